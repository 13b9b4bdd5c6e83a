//! What the broker counts, for whoever watches the service.

use crate::delivery::Verdict;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Upper ends of the spans that [`Waits`] sorts by, in milliseconds.
pub const WAIT_BUCKETS_MS: [u64; 8] = [1, 5, 25, 100, 500, 2_000, 10_000, 30_000];

/// What has happened since the front began. Numbers only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Verdicts by enhanced status code: one for each recipient of each message, counted when the message is answered.
    pub verdicts: BTreeMap<String, u64>,
    /// Messages handed to a worker.
    pub handed_out: u64,
    /// Messages that waited for a worker for too long.
    pub waited_too_long: u64,
    /// Messages whose worker ended, was silent, or did not answer in time.
    pub workers_lost: u64,
    /// Answers that were none: another message's, of another number of results, or another program's.
    pub wrong_answers: u64,
    /// Answers to nothing that their worker had in hand.
    pub late_answers: u64,
    /// Requests that a client sent again while they were known.
    pub joined: u64,
    /// Requests whose client went, or called them off, before a worker had them.
    pub dropped: u64,
    /// How long messages waited for a worker that then got them.
    pub waits: Waits,
}

/// How long messages waited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waits {
    /// How many waited no longer than the span of the same place in [`WAIT_BUCKETS_MS`], and longer than the one before it.
    pub buckets: [u64; WAIT_BUCKETS_MS.len()],
    /// How many waited longer than all of these.
    pub longer: u64,
    /// All waits together, in milliseconds.
    pub sum_ms: u64,
}

/// How the broker stands now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// Messages that wait for a worker.
    pub queued: usize,
    /// Requests whose client has yet to say that they may begin.
    pub held: usize,
    /// Workers that wait for a message.
    pub ready: usize,
    /// Workers that have one.
    pub busy: usize,
    /// Those of either kind that have not been heard for too long.
    pub silent: usize,
}

impl Counters {
    pub(super) fn answered(&mut self, verdicts: &[Verdict]) {
        for verdict in verdicts {
            *self.verdicts.entry(verdict.code()).or_default() += 1;
        }
    }
}

impl Waits {
    pub(super) fn add(&mut self, wait: Duration) {
        let milliseconds = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        self.sum_ms = self.sum_ms.saturating_add(milliseconds);
        let bucket = WAIT_BUCKETS_MS.iter().position(|end| milliseconds <= *end);
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
    fn a_wait_is_counted_once_by_its_length() {
        let mut waits = Waits::default();
        for milliseconds in [0, 1, 2, 30_000, 30_001] {
            waits.add(Duration::from_millis(milliseconds));
        }
        assert_eq!((waits.buckets, waits.longer, waits.sum_ms), ([2, 1, 0, 0, 0, 0, 0, 1], 1, 60_004));
    }
}
