//! The counters of the LMTP server.

use crate::service::counters::Traffic;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The counters that all sessions of a server share.
#[derive(Clone, Debug, Default)]
pub struct LmtpTally(Arc<Mutex<LmtpCounters>>);

/// The counters since the server began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LmtpCounters {
    /// Messages, and the replies to them.
    pub traffic: Traffic,
    /// Open connections, by the kind of socket.
    pub open: BTreeMap<&'static str, usize>,
    /// Accepted connections, by the kind of socket.
    pub accepted: BTreeMap<&'static str, u64>,
    /// Accepted connections that were closed at once, because their address may not connect.
    pub sent_away: u64,
    /// Refused commands, by command and enhanced status code of the reply. (`traffic` has the messages that were refused after
    /// DATA.)
    pub refused: BTreeMap<(&'static str, String), u64>,
}

/// An open connection; when this is dropped, it counts as closed.
#[derive(Debug)]
pub(super) struct ConnectionGauge(LmtpTally, &'static str);

impl LmtpTally {
    /// The counters so far.
    pub fn counted(&self) -> LmtpCounters {
        self.here().clone()
    }

    /// No operation on the counters can panic half-way, so even a poisoned lock is usable.
    fn here(&self) -> MutexGuard<'_, LmtpCounters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn opened(&self, socket: &'static str) -> ConnectionGauge {
        let mut counted = self.here();
        *counted.open.entry(socket).or_default() += 1;
        *counted.accepted.entry(socket).or_default() += 1;
        ConnectionGauge(self.clone(), socket)
    }

    pub(super) fn sent_away(&self) {
        self.here().sent_away += 1;
    }

    /// Counts a message that was received completely.
    pub(super) fn received(&self, recipients: usize, bytes: u64) {
        self.here().traffic.received(recipients, bytes);
    }

    /// Counts the replies to a message, as the client gets them.
    pub(super) fn replied(&self, lines: &[u8], after: Duration) {
        let lines = String::from_utf8_lossy(lines);
        self.here().traffic.replied(lines.lines().map(enhanced), after);
    }

    /// Counts the reply to a command, if it is a refusal.
    pub(super) fn answered(&self, command: &'static str, reply: &str) {
        if reply.starts_with(['4', '5']) {
            *self.here().refused.entry((command, enhanced(reply).to_owned())).or_default() += 1;
        }
    }
}

/// The enhanced status code of a reply. All our replies to a message have one.
fn enhanced(reply: &str) -> &str {
    reply.split(' ').nth(1).unwrap_or_default()
}

impl Drop for ConnectionGauge {
    fn drop(&mut self) {
        if let Some(open) = self.0.here().open.get_mut(self.1) {
            *open -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_an_answer_is_a_reply_and_refused_commands_are_none() {
        let tally = LmtpTally::default();
        let open = tally.opened("tcp");
        tally.received(3, 10);
        tally.replied(b"250 2.0.0 x\r\n451 4.3.0 y\r\n250 2.0.0 x\r\n", Duration::from_millis(3));
        tally.answered("RCPT", "250 2.1.5 Ok");
        tally.answered("RCPT", "452 4.5.3 Too many recipients");
        tally.sent_away();
        tally.sent_away();
        let counted = tally.counted();
        assert_eq!((counted.traffic.messages, counted.traffic.recipients, counted.traffic.bytes), (1, 3, 10));
        assert_eq!(counted.sent_away, 2);
        assert_eq!(counted.traffic.replies, BTreeMap::from([("2.0.0".into(), 2), ("4.3.0".into(), 1)]));
        assert_eq!(counted.refused, BTreeMap::from([(("RCPT", "4.5.3".into()), 1)]));
        assert_eq!((counted.open["tcp"], counted.accepted["tcp"]), (1, 1));
        drop(open);
        assert_eq!((tally.counted().open["tcp"], tally.counted().accepted["tcp"]), (0, 1));
    }
}
