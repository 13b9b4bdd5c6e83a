//! A session on a client's connection: reads and writes with time limits.

use super::session::{LmtpSession, Phase, Step, Transaction};
use crate::delivery::Verdict;
use crate::service::inflight_message::InflightMessage;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, error};

/// How many bytes one read takes at most.
const BLOCK: usize = 32 << 10;
/// How many bytes of commands a session handles before others have a turn: some hundred commands. All sessions and the broker run
/// in one thread.
const COMMANDS_AT_ONCE: usize = 1 << 10;

/// The time limit for the client to send the next command (RFC 5321 section 4.5.3.2.7).
const COMMAND: Duration = Duration::from_mins(5);
/// The time limits for the client to send the next bytes of a message, and all of them.
const DATA_BLOCK: Duration = Duration::from_mins(3);
const DATA: Duration = Duration::from_hours(1);
/// The time limit for the client to read our replies.
const WRITE: Duration = Duration::from_mins(3);
/// The time limit for the TLS handshake.
pub(super) const TLS: Duration = Duration::from_mins(1);
/// How long after its deadline the session still waits for a delivery's result. The watchdogs of the workers and the broker act
/// earlier.
const AFTER_DEADLINE: Duration = Duration::from_secs(15);
/// At the end of the service: how long a client that has not sent a message yet may take to send a command. Postfix counts a
/// closed connection as a failure of the whole site (`src/smtp/smtp_trouble.c`). Before it reuses an idle connection, Postfix
/// tests it with RSET.
const BEGIN: Duration = Duration::from_secs(5);
/// At the end of the service, the limit for all commands until the client sends a message. A new front serves clients only after
/// this one has ended.
const BEGIN_IN_ALL: Duration = Duration::from_secs(20);

/// What a conversation needs besides its stream and session.
#[derive(Clone, Debug)]
pub(super) struct SessionContext {
    pub submissions: mpsc::Sender<InflightMessage>,
    pub stop: watch::Receiver<bool>,
}

/// How a conversation ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SessionEnd {
    /// The session is over.
    Over,
    /// The client waits for the TLS handshake.
    StartTls,
}

enum Reading {
    Bytes(usize),
    TimeIsUp,
    ServiceEnds,
}

impl SessionContext {
    /// Runs a session to its end, or until the client starts TLS.
    pub(super) async fn drive<S>(&mut self, stream: &mut S, session: &mut LmtpSession) -> io::Result<SessionEnd>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut block = vec![0; BLOCK];
        // The part of `block` that the session has not consumed yet.
        let mut input = 0..0;
        let mut since = Instant::now();
        let mut asked_to_end = None;
        loop {
            let rest = block.get(input.clone()).unwrap_or_default();
            // A byte of a message costs far less time than a byte of a command.
            let at_once = if session.phase() == Phase::Data { BLOCK } else { COMMANDS_AT_ONCE };
            let (taken, step) = session.feed(rest.get(..at_once).unwrap_or(rest));
            input.start += taken;
            if self.write(stream, session).await? {
                since = Instant::now();
            }
            match step {
                Step::Deliver(transaction) => {
                    let verdicts = self.deliver(*transaction).await;
                    asked_to_end = None;
                    // These replies are written together with those to the commands that the client has pipelined after its
                    // message, mostly QUIT.
                    session.answer(verdicts.as_deref());
                }
                Step::StartTls => return Ok(SessionEnd::StartTls),
                Step::Close => {
                    stream.shutdown().await?;
                    return Ok(SessionEnd::Over);
                }
                Step::More if !input.is_empty() => yield_now().await,
                Step::More => match self.read(stream, &mut block, session, since, &mut asked_to_end).await? {
                    Reading::Bytes(0) => return Ok(SessionEnd::Over),
                    Reading::Bytes(length) => input = 0..length,
                    Reading::ServiceEnds => session.close("421 4.3.2 The service ends"),
                    Reading::TimeIsUp if matches!(session.phase(), Phase::Idle { .. }) => {
                        session.close("421 4.4.2 Nothing came for too long");
                    }
                    // Within a message, the client could take any reply for the reply to that message.
                    Reading::TimeIsUp => {
                        debug!(phase = ?session.phase(), "a client takes too long, and is left");
                        return Ok(SessionEnd::Over);
                    }
                },
            }
        }
    }

    /// Reads the next bytes, but waits no longer than the session may.
    async fn read<S>(
        &mut self,
        stream: &mut S,
        block: &mut [u8],
        session: &LmtpSession,
        since: Instant,
        asked_to_end: &mut Option<Instant>,
    ) -> io::Result<Reading>
    where
        S: AsyncRead + Unpin,
    {
        let now = Instant::now();
        loop {
            // If the sender of the stop signal is gone, the service ends as well.
            let ends = *self.stop.borrow() || self.stop.has_changed().is_err();
            if ends {
                asked_to_end.get_or_insert_with(Instant::now);
            }
            let in_all = asked_to_end.map(|asked| asked + BEGIN_IN_ALL);
            let begins = in_all.map(|in_all| in_all.min(since + BEGIN));
            let (until, why) = match (session.phase(), begins) {
                (Phase::Idle { has_served: true }, Some(_)) => (now, Reading::ServiceEnds),
                (Phase::Idle { has_served: false }, Some(until)) => (until, Reading::ServiceEnds),
                (Phase::Command, Some(until)) => (until, Reading::TimeIsUp),
                (Phase::Idle { .. } | Phase::Command, None) => (since + COMMAND, Reading::TimeIsUp),
                // Without a reply the client keeps its message, so closing here loses nothing.
                (Phase::Data, _) => {
                    let until = (now + DATA_BLOCK).min(since + DATA);
                    (in_all.map_or(until, |in_all| in_all.min(until)), Reading::TimeIsUp)
                }
            };
            // This limit holds even if the client keeps sending.
            if in_all.is_some_and(|in_all| now >= in_all) && until <= now {
                return Ok(why);
            }
            tokio::select! {
                // Bytes that have arrived are handled before a timeout.
                biased;
                read = stream.read(block) => return read.map(Reading::Bytes),
                () = sleep_until(until) => return Ok(why),
                _ = self.stop.changed(), if !ends => {}
            }
        }
    }

    /// Writes all replies at once. Returns whether there were any.
    async fn write<S>(&self, stream: &mut S, session: &mut LmtpSession) -> io::Result<bool>
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
        timeout(WRITE, written).await??;
        Ok(true)
    }

    /// Passes the message to the broker, and waits for the verdicts. `None` if no result came in time.
    ///
    /// The delivery goes on even if the client has gone: the client learns the result when it sends the message again. Meanwhile
    /// nothing is read, so pipelined data takes no memory.
    async fn deliver(&self, transaction: Transaction) -> Option<Vec<Verdict>> {
        let Transaction { request, message } = transaction;
        let (id, queue_id) = (request.id, request.queue_id.clone());
        let limit = Duration::from_millis(request.time_left_ms).saturating_add(AFTER_DEADLINE);
        let (answer, verdicts) = oneshot::channel();
        let ended = timeout(limit, async {
            self.submissions.send(InflightMessage { request, message, answer }).await.ok()?;
            verdicts.await.ok()
        });
        let ended = ended.await.ok().flatten();
        if ended.is_none() {
            error!(%id, queue_id, "a message has no result: it is deferred");
        }
        ended
    }
}

#[cfg(test)]
#[path = "conversation_tests.rs"]
mod tests;
