//! Whether somebody has set back this machine's clock.

use std::time::{Duration, Instant, SystemTime};

/// What is less is how a clock is adjusted.
const LEAST: Duration = Duration::from_secs(2);

/// The time of day, read between these two.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    before: Instant,
    wall: SystemTime,
    after: Instant,
}

impl Clock {
    pub(super) fn now() -> Self {
        let before = Instant::now();
        let wall = SystemTime::now();
        Self { before, wall, after: Instant::now() }
    }

    /// By how much it was set back since it was looked at last, if it was. Whatever holds up this process at either look counts as time that
    /// has not passed: then it looks as if the clock had been set forward, which tells nothing. (So does a machine that was suspended.)
    pub(super) fn set_back(&mut self) -> Option<Duration> {
        self.set_back_to(Self::now())
    }

    /// From now on it looks as if this machine's clock had been set back by so much since it was looked at last.
    #[cfg(test)]
    pub(super) fn was_ahead(&mut self, by: Duration) {
        self.wall += by;
    }

    fn set_back_to(&mut self, now: Self) -> Option<Duration> {
        let last = std::mem::replace(self, now);
        let expected = last.wall.checked_add(now.before.saturating_duration_since(last.after))?;
        expected.duration_since(now.wall).ok().filter(|by| *by >= LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_is_noticed_once_and_one_that_runs_on_or_is_set_forward_never() {
        let (now, hour) = (Instant::now(), Duration::from_hours(1));
        let wall = SystemTime::now();
        let mut clock = Clock { before: now, wall, after: now };
        let mut back = |at, wall| clock.set_back_to(Clock { before: at, wall, after: at });
        assert_eq!(back(now + hour, wall + hour), None);
        // A clock is adjusted by slowing it down.
        assert_eq!(back(now + 2 * hour, wall + 2 * hour - Duration::from_secs(1)), None);
        assert_eq!(back(now + 3 * hour, wall + 9 * hour), None);
        assert_eq!(back(now + 4 * hour, wall + 8 * hour), Some(2 * hour));
        assert_eq!(back(now + 5 * hour, wall + 9 * hour), None);
        assert_eq!(back(now + 5 * hour, wall + 9 * hour - LEAST), Some(LEAST));
    }

    #[test]
    fn the_clock_of_this_machine_is_what_is_looked_at() {
        let mut clock = Clock::now();
        clock.was_ahead(Duration::from_hours(1));
        assert!(clock.set_back().is_some_and(|by| by > Duration::from_mins(30)));
        assert_eq!(clock.set_back(), None);
    }

    /// It is stopped for an hour in the middle of a look.
    #[test]
    fn a_process_that_stands_still_notices_nothing() {
        let (now, wall, hour) = (Instant::now(), SystemTime::now(), Duration::from_hours(1));
        let mut clock = Clock { before: now, wall, after: now };
        let look = |from: u32, wall, to: u32| Clock { before: now + hour * from, wall, after: now + hour * to };
        assert_eq!(clock.set_back_to(look(1, wall + hour, 2)), None);
        assert_eq!(clock.set_back_to(look(3, wall + hour * 4, 4)), None);
        assert_eq!(clock.set_back_to(look(5, wall + hour * 5, 5)), None);
    }
}
