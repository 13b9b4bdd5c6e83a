//! Whether somebody has set back this machine's clock.

use std::time::{Duration, Instant, SystemTime};

/// What is less is how a clock is adjusted.
const LEAST: Duration = Duration::from_secs(2);

/// The clock as it was when it was looked at last.
pub(super) struct Clock {
    at: Instant,
    wall: SystemTime,
}

impl Clock {
    pub(super) fn at(now: Instant) -> Self {
        Self { at: now, wall: SystemTime::now() }
    }

    /// By how much it was set back since then, if it was. (That it is set forward tells nothing: so does a machine that was suspended.)
    pub(super) fn set_back(&mut self, now: Instant) -> Option<Duration> {
        self.set_back_to(now, SystemTime::now())
    }

    fn set_back_to(&mut self, now: Instant, wall: SystemTime) -> Option<Duration> {
        let expected = self.wall.checked_add(now.saturating_duration_since(self.at));
        *self = Self { at: now, wall };
        expected?.duration_since(wall).ok().filter(|by| *by >= LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_is_noticed_once_and_one_that_runs_on_or_is_set_forward_never() {
        let (now, hour) = (Instant::now(), Duration::from_hours(1));
        let wall = SystemTime::now();
        let mut clock = Clock { at: now, wall };
        assert_eq!(clock.set_back_to(now + hour, wall + hour), None);
        // A clock is adjusted by slowing it down.
        assert_eq!(clock.set_back_to(now + 2 * hour, wall + 2 * hour - Duration::from_secs(1)), None);
        assert_eq!(clock.set_back_to(now + 3 * hour, wall + 9 * hour), None);
        assert_eq!(clock.set_back_to(now + 4 * hour, wall + 8 * hour), Some(2 * hour));
        assert_eq!(clock.set_back_to(now + 5 * hour, wall + 9 * hour), None);
        assert_eq!(clock.set_back_to(now + 5 * hour, wall + 9 * hour - LEAST), Some(LEAST));
    }
}
