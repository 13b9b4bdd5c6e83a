//! A worker: a process that delivers one message at a time, with sessions that stay open in between.
//!
//! This thread delivers. A second one ([`link`]) talks with the broker, so that heartbeats show that the process is alive during
//! a long delivery. A third ends the process if a delivery outlives its deadline ([`process_watchdog`](super::process_watchdog)).

mod deliver;
mod link;
mod recycling;

use super::error::ServiceError;
use super::process_watchdog;
use crate::base::stop::Stop;
use crate::base::watchdog::Watchdog;
use crate::config::Config;
use crate::delivery::{StatusDetail, Verdict};
use crate::protocol::{DatabaseState, Header, Logins, Reply, Request};
use crate::site::{self, Sessions, Site};
use link::{DeliveryReply, Job, Link, Wake};
use recycling::Recycling;
pub use recycling::Successor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How long after its deadline a delivery is ended, together with this process. The broker would end it later ([`GRACE`]), but
/// could not say where it hung.
///
/// [`GRACE`]: super::broker::state
const PAST_THE_DEADLINE: Duration = Duration::from_secs(3);
/// How long preparing the sessions for the next delivery may take. No other limit covers a server that hangs then.
const BETWEEN_DELIVERIES: Duration = Duration::from_secs(10);

/// Delivers the messages of the broker until SIGTERM or SIGINT, or until this worker must be replaced and a new process could
/// begin.
///
/// # Errors
/// If the system provides no threads or signal handlers.
pub fn run(site: &Site, config: &Config, successor: Successor) -> Result<(), ServiceError> {
    let stop = Arc::new(Stop::on_signals().map_err(ServiceError::system("setting up signals"))?);
    let (wake, woken) = Wake::pair().map_err(ServiceError::system("making a pair of sockets"))?;
    let watchdog = process_watchdog::start().map_err(ServiceError::system("starting a thread"))?;
    let recycling = Arc::new(Recycling::new(config.service.recycle_after, successor));
    let (assign, assigned) = mpsc::channel();
    let (answer, answers) = mpsc::channel();
    let link = Link::new(config, Arc::clone(&stop), Arc::clone(&recycling), woken, assign, answers);
    let talking = thread::Builder::new().name("broker".into()).spawn(move || link.run());
    let talking = talking.map_err(ServiceError::system("starting a thread"))?;

    let messages = config.service.messages();
    let mut worker =
        Worker { site, messages, watchdog, sessions: Sessions::default(), logins: site::Logins::default() };
    let mut delivered = 0;
    // The loop ends when the other thread does.
    for Job { address, body, received } in assigned {
        let mut leaving = false;
        delivered += 1;
        let body = worker.answer(body, received, |had_it_alone| {
            // A crashing message may have left state in this process, which must not affect another message.
            if had_it_alone || recycling.is_due(delivered) {
                stop.request();
            }
            leaving = stop.is_requested();
            leaving
        });
        let shown = answer.send(DeliveryReply { address, body, leaving });
        wake.wake();
        if shown.is_err() {
            break;
        }
        worker.between_deliveries();
    }
    if talking.join().is_err() {
        warn!("the thread that talks with the broker has ended by a panic");
    }
    info!(delivered, "the worker has ended");
    Ok(())
}

/// The state that a worker keeps between deliveries.
struct Worker<'a> {
    site: &'a Site,
    /// The folder of messages that are kept in files.
    messages: PathBuf,
    watchdog: Watchdog,
    sessions: Sessions,
    /// The logins of which the broker has been notified.
    logins: site::Logins,
}

impl Worker<'_> {
    /// The reply to a request of the broker. Another program's request is returned unchanged, as the guide's worker does.
    fn answer(&mut self, mut body: Vec<u8>, received: Instant, leaves: impl FnOnce(bool) -> bool) -> Vec<u8> {
        let (request, header) = match Header::read(&body) {
            Ok((Header::Deliver(request), message)) => (request, body.len() - message.len()),
            Ok(_) => {
                warn!("the broker has sent what is no message to be delivered");
                return body;
            }
            Err(problem) => {
                info!(%problem, "another program's message goes back as it came");
                return body;
            }
        };
        // The header is removed in place, since a message may be large.
        body.drain(..header);
        let (results, database) = self.deliver(&request, body, received);
        let reply =
            Reply { id: request.id, results, leaving: leaves(request.suspect), logins: self.logins(), database };
        Header::Reply(reply).frame(&[]).unwrap_or_else(|problem| {
            // The broker treats the empty reply as an invalid one, and defers the message.
            warn!(%problem, "the answer to a message cannot be written");
            Vec::new()
        })
    }

    /// How many sessions were opened since the last call.
    fn logins(&mut self) -> Logins {
        let before = std::mem::replace(&mut self.logins, self.site.logins());
        opened_since(before, self.logins)
    }

    fn deliver(&mut self, request: &Request, message: Vec<u8>, received: Instant) -> (Vec<Verdict>, DatabaseState) {
        let time = Duration::from_millis(request.time_left_ms).min(self.site.deadline());
        let left = time.saturating_sub(received.elapsed());
        let _watched = self.watchdog.watch("a delivery", left.saturating_add(PAST_THE_DEADLINE));
        let (site, messages, sessions) = (self.site, &self.messages, &mut self.sessions);
        let ended =
            catch_unwind(AssertUnwindSafe(|| deliver::to_all(site, sessions, messages, request, message, left)));
        ended.unwrap_or_else(|_| {
            // The log has the panic. The sessions are dropped: they may be in the middle of a command.
            self.sessions = Sessions::default();
            (
                vec![Verdict::deferred(StatusDetail::SYSTEM, "an internal error"); request.recipients.len()],
                DatabaseState::NotAsked,
            )
        })
    }

    /// Prepares the sessions for the next delivery, after this one is answered.
    fn between_deliveries(&mut self) {
        let _watched = self.watchdog.watch("keeping sessions for the next delivery", BETWEEN_DELIVERIES);
        if catch_unwind(AssertUnwindSafe(|| self.sessions.end())).is_err() {
            self.sessions = Sessions::default();
        }
    }
}

fn opened_since(before: site::Logins, now: site::Logins) -> Logins {
    Logins { database: now.database - before.database, imap: now.imap - before.imap }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
