//! A session with a client's connection: reads, writes, and waits for no longer than is allowed.

use super::session::{Phase, Session, Step, Transaction};
use crate::delivery::Verdict;
use crate::service::inflight_message::Handed;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, error};

/// How much is read at once.
const BLOCK: usize = 32 << 10;
/// How many bytes of commands are worked off before others have a turn: some hundred commands. All sessions, and what gives out
/// the work, run in one thread.
const COMMANDS_AT_ONCE: usize = 1 << 10;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Until the next command has come (RFC 5321 section 4.5.3.2.7).
    pub command: Duration,
    /// Until the next bytes of a message have come, and until all of them have.
    pub data_block: Duration,
    pub data: Duration,
    /// Until the client has taken our replies.
    pub write: Duration,
    /// Until a handshake of TLS is done.
    pub tls: Duration,
    /// How long after its deadline a delivery is still waited for, whose end was not told. The workers' own watchdogs and the
    /// broker come first.
    pub after_deadline: Duration,
    /// When the service ends: how long a client may still take to begin that has not handed over anything yet. To close such a
    /// connection counts for Postfix as a failure of the whole site (`src/smtp/smtp_trouble.c`); one that it keeps for later use
    /// is tried with RSET first.
    pub begin: Duration,
    /// The same, for all that it says until then: no new front serves anybody before this one has ended.
    pub begin_in_all: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            command: Duration::from_mins(5),
            data_block: Duration::from_mins(3),
            data: Duration::from_hours(1),
            write: Duration::from_mins(3),
            tls: Duration::from_mins(1),
            after_deadline: Duration::from_secs(15),
            begin: Duration::from_secs(5),
            begin_in_all: Duration::from_secs(20),
        }
    }
}

/// What goes on around a conversation.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    pub limits: Limits,
    pub hand_out: mpsc::Sender<Handed>,
    pub stop: watch::Receiver<bool>,
}

/// How a conversation ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// There is nothing left to say.
    Over,
    /// The client waits for TLS.
    StartTls,
}

enum Reading {
    Bytes(usize),
    TimeIsUp,
    ServiceEnds,
}

impl Surroundings {
    /// Leads a session to its end, or up to TLS.
    pub(super) async fn converse<S>(&mut self, stream: &mut S, session: &mut Session) -> io::Result<Ending>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut block = vec![0; BLOCK];
        // What has been read, and is not taken yet.
        let mut input = 0..0;
        let mut since = Instant::now();
        let mut told_to_end = None;
        loop {
            let rest = block.get(input.clone()).unwrap_or_default();
            // A byte of a message costs far less than one of a command.
            let at_once = if session.phase() == Phase::Data { BLOCK } else { COMMANDS_AT_ONCE };
            let (taken, step) = session.feed(rest.get(..at_once).unwrap_or(rest));
            input.start += taken;
            if self.write(stream, session).await? {
                since = Instant::now();
            }
            match step {
                Step::Deliver(transaction) => {
                    let verdicts = self.deliver(*transaction).await;
                    told_to_end = None;
                    // Written together with the replies to what the client has sent behind its message, QUIT mostly.
                    session.answer(verdicts.as_deref());
                }
                Step::StartTls => return Ok(Ending::StartTls),
                Step::Close => {
                    stream.shutdown().await?;
                    return Ok(Ending::Over);
                }
                Step::More if !input.is_empty() => yield_now().await,
                Step::More => match self.read(stream, &mut block, session, since, &mut told_to_end).await? {
                    Reading::Bytes(0) => return Ok(Ending::Over),
                    Reading::Bytes(length) => input = 0..length,
                    Reading::ServiceEnds => session.close("421 4.3.2 The service ends"),
                    Reading::TimeIsUp if matches!(session.phase(), Phase::Idle { .. }) => {
                        session.close("421 4.4.2 Nothing came for too long");
                    }
                    // Whatever is said within a message could be taken for the answer to it.
                    Reading::TimeIsUp => {
                        debug!(phase = ?session.phase(), "a client takes too long, and is left");
                        return Ok(Ending::Over);
                    }
                },
            }
        }
    }

    /// Reads what comes next, for as long as the session may wait for it.
    async fn read<S>(
        &mut self,
        stream: &mut S,
        block: &mut [u8],
        session: &Session,
        since: Instant,
        told_to_end: &mut Option<Instant>,
    ) -> io::Result<Reading>
    where
        S: AsyncRead + Unpin,
    {
        let limits = self.limits;
        let now = Instant::now();
        loop {
            // Whoever could stop us and is gone has stopped us.
            let ends = *self.stop.borrow() || self.stop.has_changed().is_err();
            if ends {
                told_to_end.get_or_insert_with(Instant::now);
            }
            let in_all = told_to_end.map(|told| told + limits.begin_in_all);
            let begins = in_all.map(|in_all| in_all.min(since + limits.begin));
            let (until, why) = match (session.phase(), begins) {
                (Phase::Idle { has_served: true }, Some(_)) => (now, Reading::ServiceEnds),
                (Phase::Idle { has_served: false }, Some(until)) => (until, Reading::ServiceEnds),
                (Phase::Command, Some(until)) => (until, Reading::TimeIsUp),
                (Phase::Idle { .. } | Phase::Command, None) => (since + limits.command, Reading::TimeIsUp),
                // The client has no answer yet, and so keeps its message.
                (Phase::Data, _) => {
                    let until = (now + limits.data_block).min(since + limits.data);
                    (in_all.map_or(until, |in_all| in_all.min(until)), Reading::TimeIsUp)
                }
            };
            // However much it says.
            if in_all.is_some_and(|in_all| now >= in_all) && until <= now {
                return Ok(why);
            }
            tokio::select! {
                // What has come already is answered first.
                biased;
                read = stream.read(block) => return read.map(Reading::Bytes),
                () = sleep_until(until) => return Ok(why),
                _ = self.stop.changed(), if !ends => {}
            }
        }
    }

    /// Writes all replies at once, and says whether there were any.
    async fn write<S>(&self, stream: &mut S, session: &mut Session) -> io::Result<bool>
    where
        S: AsyncWrite + Unpin,
    {
        let replies = session.replies();
        if replies.is_empty() {
            return Ok(false);
        }
        let written = async {
            stream.write_all(&replies).await?;
            stream.flush().await
        };
        timeout(self.limits.write, written).await??;
        Ok(true)
    }

    /// Hands the message out, and waits for what becomes of it. `None`: nobody has told.
    ///
    /// Whether the client is still there does not count: its message is delivered, and it learns so when it comes again. Nothing is
    /// read meanwhile, so that what it sends ahead takes no memory.
    async fn deliver(&self, transaction: Transaction) -> Option<Vec<Verdict>> {
        let Transaction { request, message } = transaction;
        let (id, queue_id) = (request.id, request.queue_id.clone());
        let limit = Duration::from_millis(request.time_left_ms).saturating_add(self.limits.after_deadline);
        let (answer, verdicts) = oneshot::channel();
        let told = timeout(limit, async {
            self.hand_out.send(Handed { request, message, answer }).await.ok()?;
            verdicts.await.ok()
        });
        let told = told.await.ok().flatten();
        if told.is_none() {
            error!(%id, queue_id, "nobody has told what became of a message: it is deferred");
        }
        told
    }
}

#[cfg(test)]
#[path = "conversation_tests.rs"]
mod tests;
