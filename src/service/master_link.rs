//! The front's side of its channel with the master: reports of the front, and notices about the service and its workers.

use super::broker::sockets::{Report as Broker, Started};
use super::disk_figures::DiskFiguresReader;
use super::master::front_channel::{Notice, Report};
use super::shunt::WorkerEnd;
use crate::protocol::control::{Status, line};
use crate::queue::{State, Waiting};
use serde_json::{Map, Value};
use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

/// The interval of checks whether the database is away, which the front reports without a poll.
const LOOK: Duration = Duration::from_millis(100);

/// Answers the master's polls, and reports each change, until the master has ended. The master's status goes to `service`.
///
/// # Errors
/// If the master cannot be reached any more. It has ended, and the system is about to send us SIGTERM.
pub async fn tell_master(
    master: UnixStream,
    ask: mpsc::Sender<oneshot::Sender<Broker>>,
    started: watch::Sender<Started>,
    ended: mpsc::Sender<WorkerEnd>,
    stop: watch::Receiver<bool>,
    service: watch::Sender<Option<Status>>,
    disk: DiskFiguresReader,
) -> io::Result<()> {
    let (heard, mut says) = tokio::net::UnixStream::from_std(master)?.into_split();
    let mut notices = BufReader::new(heard).lines();
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    loop {
        let asked = tokio::select! {
            notice = notices.next_line() => match notice? {
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(notice) => match heard_of(&notice, &service) {
                    Heard::Asks => true,
                    Heard::Nothing => false,
                    Heard::Started(pid) => {
                        started.send_modify(|started| started.extend([pid]));
                        false
                    }
                    Heard::Ended(worker) => {
                        // From now on, another process may have this id.
                        let pid = i32::try_from(worker.pid).ok();
                        started.send_modify(|started| started.retain(|one| Some(*one) != pid));
                        // The broker ends with this process.
                        if ended.send(worker).await.is_err() {
                            return Ok(());
                        }
                        false
                    }
                },
            },
            _ = looks.tick() => false,
        };
        let (tell, told) = oneshot::channel();
        // The broker ends with this process.
        if ask.send(tell).await.is_err() {
            return Ok(());
        }
        let Ok(broker) = told.await else { return Ok(()) };
        let standing = (!*stop.borrow(), broker.database_away.clone());
        if asked || last.as_ref() != Some(&standing) {
            let (accepting, database_away) = standing.clone();
            let status = service.borrow().clone();
            // The poll is answered at once. Figures that are not read yet are in the next report.
            let figures = timeout(Duration::ZERO, disk.read(status.as_ref())).await.unwrap_or_default();
            let known = known(&broker, figures.queue.iter().flatten());
            let report = Report::Standing { accepting, database_away, known, timer: figures.timer };
            says.write_all(line(&report).as_bytes()).await?;
            last = Some(standing);
        }
    }
}

/// A notice of the master.
enum Heard {
    /// A poll of the front's status.
    Asks,
    /// A worker with this process id has started.
    Started(i32),
    Ended(WorkerEnd),
    Nothing,
}

fn heard_of(notice: &str, service: &watch::Sender<Option<Status>>) -> Heard {
    match serde_json::from_str(notice) {
        Ok(Notice::Ask) => Heard::Asks,
        Ok(Notice::Service { status }) => {
            service.send_replace(Some(*status));
            Heard::Nothing
        }
        Ok(Notice::WorkerEnded { number, pid, end, by_us, said }) => {
            if !by_us {
                info!(number, pid, ?end, "a worker has ended");
            }
            Heard::Ended(WorkerEnd { pid, end, by_us, said })
        }
        // The system has no larger process ids.
        Ok(Notice::WorkerStarted { pid, .. }) => i32::try_from(pid).map_or(Heard::Nothing, Heard::Started),
        Err(error) => {
            warn!(%error, "what the master says cannot be read");
            Heard::Nothing
        }
    }
}

/// The figures for `service status`.
fn known<'a>(broker: &Broker, queue: impl Iterator<Item = &'a (State, Waiting)>) -> Map<String, Value> {
    let standing = &broker.standing;
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let figures = [
        ("queued", standing.queued),
        ("held", standing.held),
        ("ready", standing.ready),
        ("busy", standing.busy),
        ("silent", standing.silent),
        ("suspects", standing.suspects),
    ];
    let figures = figures.map(|(name, count)| (name, number(count)));
    let figures = figures.into_iter().map(|(name, number)| (name.to_owned(), Value::from(number)));
    let queue = queue.map(|(state, it)| (format!("file_queue_{state}"), Value::from(number(it.messages))));
    figures.chain(queue).collect()
}

#[cfg(test)]
#[path = "master_link_tests.rs"]
mod tests;
