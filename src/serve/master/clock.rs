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
    /// The time of day comes first: whatever holds up this process between the two looks as if the clock had been set forward.
    pub(super) fn now() -> Self {
        let wall = SystemTime::now();
        Self { at: Instant::now(), wall }
    }

    /// By how much it was set back since then, if it was. (That it is set forward tells nothing: so does a machine that was suspended.)
    pub(super) fn set_back(&mut self) -> Option<Duration> {
        self.set_back_to(Self::now())
    }

    fn set_back_to(&mut self, now: Self) -> Option<Duration> {
        let before = std::mem::replace(self, now);
        let expected = before.wall.checked_add(self.at.saturating_duration_since(before.at))?;
        expected.duration_since(self.wall).ok().filter(|by| *by >= LEAST)
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
        let mut back = |at, wall| clock.set_back_to(Clock { at, wall });
        assert_eq!(back(now + hour, wall + hour), None);
        // A clock is adjusted by slowing it down.
        assert_eq!(back(now + 2 * hour, wall + 2 * hour - Duration::from_secs(1)), None);
        assert_eq!(back(now + 3 * hour, wall + 9 * hour), None);
        assert_eq!(back(now + 4 * hour, wall + 8 * hour), Some(2 * hour));
        assert_eq!(back(now + 5 * hour, wall + 9 * hour), None);
        assert_eq!(back(now + 5 * hour, wall + 9 * hour - LEAST), Some(LEAST));
    }
}
