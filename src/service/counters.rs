//! What the front counts, for whoever watches the service. Numbers only grow, from when the front began.

use crate::protocol::Source;
use std::collections::BTreeMap;
use std::time::Duration;

/// What came in by one way, and what was answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages that were there whole.
    pub messages: u64,
    /// Their recipients, each of whom is owed one reply.
    pub recipients: u64,
    /// The size of all these messages, in bytes.
    pub bytes: u64,
    /// Replies by their enhanced status code: one for each recipient of each message, counted when it is given.
    pub replies: BTreeMap<String, u64>,
    /// How long it took from the end of a message to its replies: one for each message that was answered.
    pub durations: Spans,
}

/// How messages come in: what comes by each way is counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Via {
    Lmtp,
    /// From a thin client: `maildrop_command --via`.
    Command,
    /// From the file queue, by a runner.
    Queue,
    /// From what is shunted.
    Shunt,
}

impl Via {
    pub(super) const ALL: [Self; 4] = [Self::Lmtp, Self::Command, Self::Queue, Self::Shunt];

    /// Its name, as the figures have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lmtp => "lmtp",
            Self::Command => "command",
            Self::Queue => "queue",
            Self::Shunt => "shunt",
        }
    }
}

/// What a client of the broker's says of itself. What comes by LMTP is counted where it comes in.
impl From<Source> for Via {
    fn from(source: Source) -> Self {
        match source {
            Source::Mta => Self::Command,
            Source::Queue => Self::Queue,
            Source::Shunt | Source::Upgrade => Self::Shunt,
        }
    }
}

/// By the ways in.
pub type Traffics = BTreeMap<Via, Traffic>;

impl Traffic {
    /// A message is there.
    pub(super) fn received(&mut self, recipients: usize, bytes: u64) {
        self.messages += 1;
        self.recipients += recipients as u64;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// A message is answered, after so long a time: a code for each recipient.
    pub(super) fn replied<'a>(&mut self, codes: impl IntoIterator<Item = &'a str>, after: Duration) {
        for code in codes {
            match self.replies.get_mut(code) {
                Some(number) => *number += 1,
                None => drop(self.replies.insert(code.to_owned(), 1)),
            }
        }
        self.durations.add(after);
    }
}

/// The upper ends of the spans that [`Spans`] sorts by, in milliseconds: from a delivery with warm sessions to the deadline of one.
pub const ENDS_MS: [u64; 17] =
    [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 240_000];

/// How long things took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// How many took no longer than the span of the same place in [`ENDS_MS`], and longer than the one before it.
    pub buckets: [u64; ENDS_MS.len()],
    /// How many took longer than all of these.
    pub longer: u64,
    /// All of them together.
    pub sum: Duration,
}

impl Spans {
    pub(super) fn add(&mut self, span: Duration) {
        self.sum = self.sum.saturating_add(span);
        let bucket = ENDS_MS.iter().position(|end| span <= Duration::from_millis(*end));
        match bucket.and_then(|at| self.buckets.get_mut(at)) {
            Some(count) => *count += 1,
            None => self.longer += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_counted_once_by_its_length() {
        let mut spans = Spans::default();
        for milliseconds in [0, 1, 2, 240_000, 240_001] {
            spans.add(Duration::from_millis(milliseconds));
        }
        spans.add(Duration::from_micros(1_001));
        assert_eq!((spans.buckets[..3].to_vec(), spans.buckets[16], spans.longer), (vec![2, 2, 0], 1, 1));
        assert_eq!(spans.buckets.iter().sum::<u64>(), 5);
        assert_eq!(spans.sum, Duration::from_micros(480_004_000 + 1_001));
    }

    #[test]
    fn each_reply_is_counted_once() {
        let mut traffic = Traffic::default();
        traffic.received(3, 100);
        traffic.replied(["2.0.0", "4.3.0", "2.0.0"], Duration::from_secs(1));
        assert_eq!((traffic.messages, traffic.recipients, traffic.bytes), (1, 3, 100));
        assert_eq!(traffic.replies, BTreeMap::from([("2.0.0".into(), 2), ("4.3.0".into(), 1)]));
        assert_eq!(traffic.durations.sum, Duration::from_secs(1));
    }
}
