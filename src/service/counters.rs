//! The front's counters, for monitoring. They only grow after its start.

use std::collections::BTreeMap;
use std::time::Duration;

/// The traffic of one transport.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages that were received completely.
    pub messages: u64,
    /// The recipients of these messages; each gets one reply.
    pub recipients: u64,
    /// The size of all these messages, in bytes.
    pub bytes: u64,
    /// Replies by their enhanced status code: one for each recipient of each message, counted when it is sent.
    pub replies: BTreeMap<String, u64>,
    /// The time from the end of a message to its replies, once per answered message.
    pub durations: Spans,
}

/// The traffic by [transport](crate::protocol::Source::transport).
pub type Traffics = BTreeMap<&'static str, Traffic>;

impl Traffic {
    pub(super) fn received(&mut self, recipients: usize, bytes: u64) {
        self.messages += 1;
        self.recipients += recipients as u64;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Counts the replies to a message, after this time: one code for each recipient.
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

/// The upper bounds of the buckets in [`Spans`], in milliseconds: from the duration of a delivery with open sessions to a
/// delivery's deadline.
pub const ENDS_MS: [u64; 17] =
    [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 240_000];

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// How many durations were above the previous bound in [`ENDS_MS`], and at most the one with this index.
    pub buckets: [u64; ENDS_MS.len()],
    /// How many durations were longer than the last bound.
    pub longer: u64,
    /// The sum of all durations.
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
