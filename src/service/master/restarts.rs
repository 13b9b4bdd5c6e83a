//! When a process that has died is restarted: after a pause that doubles, or once a minute if it dies too often. The master never
//! gives up.
//!
//! A limit for the whole life can stop a service for days: the crashes of a year may reach it, or ten seconds without a database.
//! Then nothing starts the service any more, and nothing reports that. So only deaths without a minute of life in between count,
//! and the consequence is a pause.

use crate::base::back_off::BackOff;
use std::time::Duration;

/// The first pause.
pub(super) const FIRST: Duration = Duration::from_millis(100);
/// The longest pause, which is also that of a throttled process.
pub(super) const LONGEST: Duration = Duration::from_mins(1);
/// After a life of this length, a process begins with the first pause again.
pub(super) const STEADY: Duration = Duration::from_mins(1);

/// The recent deaths of one process and of its predecessors, none of which has lived for long.
#[derive(Clone, Debug)]
pub(in crate::service) struct Restarts {
    /// After more deaths than this, the process is throttled.
    allowed: u32,
    deaths: u32,
    pause: BackOff,
}

impl Restarts {
    pub(in crate::service) fn new(allowed: u32) -> Self {
        Self { allowed, deaths: 0, pause: BackOff::new(FIRST, LONGEST) }
    }

    /// Records a death after a life of `lived`. Returns the pause before the restart.
    #[must_use]
    pub(in crate::service) fn died(&mut self, lived: Duration) -> Duration {
        self.lives(lived);
        self.deaths = self.deaths.saturating_add(1);
        let pause = self.pause.pause();
        if self.is_throttled() { LONGEST } else { pause }
    }

    /// Records that the process has lived for `lived` so far.
    pub(in crate::service) fn lives(&mut self, lived: Duration) {
        if lived >= STEADY {
            self.pause.reset();
            self.deaths = 0;
        }
    }

    /// Whether the process is started only once a minute.
    pub(in crate::service) fn is_throttled(&self) -> bool {
        self.deaths > self.allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Lets the process die `times` times, each after a life of `lived`. Returns the pauses in milliseconds.
    fn pauses(restarts: &mut Restarts, lived: Duration, times: usize) -> Vec<u128> {
        std::iter::repeat_with(|| restarts.died(lived).as_millis()).take(times).collect()
    }

    #[test]
    fn the_pause_doubles_until_it_is_throttled() {
        let mut restarts = Restarts::new(10);
        let first = pauses(&mut restarts, Duration::ZERO, 10);
        assert_eq!(first, [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 51_200]);
        assert!(!restarts.is_throttled());
        // A year of deaths: one restart a minute, without end.
        let year = pauses(&mut restarts, Duration::ZERO, 365 * 24 * 60);
        assert!(year.iter().all(|pause| *pause == 60_000), "{year:?}");
        assert!(restarts.is_throttled());
    }

    #[test]
    fn a_minute_of_life_forgives_and_ten_deaths_of_a_year_are_no_storm() {
        let mut restarts = Restarts::new(10);
        pauses(&mut restarts, Duration::ZERO, 20);
        assert!(restarts.is_throttled());
        restarts.lives(STEADY - Duration::from_millis(1));
        assert!(restarts.is_throttled());
        restarts.lives(STEADY);
        assert!(!restarts.is_throttled());
        let month = Duration::from_hours(24 * 30);
        assert_eq!(pauses(&mut restarts, month, 50), [100; 50]);
        assert!(!restarts.is_throttled());
    }

    proptest! {
        #[test]
        fn whatever_it_dies_of_it_is_started_again_within_a_minute_and_never_at_once(
            allowed in 0_u32..20,
            lives in prop::collection::vec(0_u64..100_000, 1..200),
        ) {
            let (mut restarts, mut short, mut before) = (Restarts::new(allowed), 0, Duration::ZERO);
            for lived in lives.into_iter().map(Duration::from_millis) {
                let pause = restarts.died(lived);
                prop_assert!((FIRST..=LONGEST).contains(&pause), "{pause:?}");
                if lived < STEADY {
                    prop_assert!(pause >= before, "{pause:?} after {before:?}");
                }
                short = if lived < STEADY { short + 1 } else { 1 };
                prop_assert_eq!(restarts.is_throttled(), short > allowed);
                prop_assert!(pause == LONGEST || !restarts.is_throttled());
                before = pause;
            }
        }
    }
}
