//! For how long the database is left alone after a round with it has failed.

use crate::base::back_off::doubled;
use std::time::{Duration, Instant};

/// The pauses after it has failed twice in a row. After the first time there is none: a session may have ended by itself, and what
/// was answered waits to be written down.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct BackOff {
    is_failing: bool,
    /// How long the next one is.
    pause: Duration,
    not_before: Option<Instant>,
}

impl BackOff {
    /// A round has failed. For how long there is none now.
    pub(super) fn failed(&mut self, now: Instant) -> Duration {
        let pause = self.pause;
        let next = doubled(pause, 1, LONGEST_PAUSE).max(FIRST_PAUSE);
        *self = Self { is_failing: true, pause: next, not_before: Some(now + pause) };
        pause
    }

    /// A round has succeeded. Whether the last one had failed.
    pub(super) fn succeeded(&mut self) -> bool {
        std::mem::take(self).is_failing
    }

    pub(super) fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// How much is left of the pause.
    pub(super) fn left(&self, now: Instant) -> Duration {
        self.not_before.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_is_asked_again_at_once_and_then_ever_more_rarely_until_it_answers() {
        let now = Instant::now();
        let mut back_off = BackOff::default();
        assert!(!back_off.is_failing() && !back_off.succeeded());
        for milliseconds in [0, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000] {
            let pause = Duration::from_millis(milliseconds);
            assert_eq!(back_off.failed(now), pause);
            assert_eq!((back_off.left(now), back_off.left(now + pause)), (pause, Duration::ZERO));
            assert!(back_off.is_failing());
        }
        assert!(back_off.succeeded());
        assert!(!back_off.is_failing() && back_off.left(now).is_zero());
        assert_eq!(back_off.failed(now), Duration::ZERO);
    }
}
