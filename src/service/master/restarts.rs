//! When a process that has died is restarted: after a pause that doubles, and once a minute if it dies too often. The master
//! never gives up.
//!
//! A limit for the whole life stops a service for days. The limit may be reached by the crashes of a year, or by ten seconds
//! without a database. Then nothing starts the service any more, and nothing reports it. So only the deaths within a window
//! count, and the consequence is a pause.

use crate::base::back_off::BackOff;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The first pause.
pub(super) const FIRST: Duration = Duration::from_millis(100);
/// The longest pause, which is also that of a throttled process.
pub(super) const LONGEST: Duration = Duration::from_mins(1);
/// A process that has lived for this time begins with the first pause again.
pub(super) const STEADY: Duration = Duration::from_mins(1);

/// The deaths of one process and of its predecessors.
#[derive(Clone, Debug)]
pub(in crate::service) struct Restarts {
    /// How many deaths within the window are tolerated.
    allowed: usize,
    window: Duration,
    pause: BackOff,
    /// The times of the deaths within the window: at most one more than is tolerated.
    deaths: VecDeque<Instant>,
    throttled: bool,
}

impl Restarts {
    pub(in crate::service) fn new(allowed: u32, window: Duration) -> Self {
        let allowed = usize::try_from(allowed).unwrap_or(usize::MAX);
        Self { allowed, window, pause: BackOff::new(FIRST, LONGEST), deaths: VecDeque::new(), throttled: false }
    }

    /// Records a death at `now`, after a life of `lived`. Returns the pause before the restart.
    #[must_use]
    pub(in crate::service) fn died(&mut self, now: Instant, lived: Duration) -> Duration {
        self.lives(lived);
        self.deaths.retain(|death| now.saturating_duration_since(*death) < self.window);
        self.deaths.push_back(now);
        if self.deaths.len() > self.allowed {
            self.throttled = true;
            while self.deaths.len() > self.allowed.saturating_add(1) {
                self.deaths.pop_front();
            }
        }
        let pause = self.pause.pause();
        if self.throttled { LONGEST } else { pause }
    }

    /// Records that the process has lived for `lived` so far.
    pub(in crate::service) fn lives(&mut self, lived: Duration) {
        if lived >= STEADY {
            self.pause.reset();
            self.throttled = false;
        }
    }

    /// Whether the process is started only once a minute.
    #[must_use]
    pub(in crate::service) fn is_throttled(&self) -> bool {
        self.throttled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW: Duration = Duration::from_mins(10);

    /// Lets the process die `times` times, each after a life of `lived`, with a restart after each pause. Returns the pauses in
    /// milliseconds.
    fn pauses(restarts: &mut Restarts, now: &mut Instant, lived: Duration, times: usize) -> Vec<u128> {
        let mut pauses = Vec::new();
        for _ in 0..times {
            *now += lived;
            let pause = restarts.died(*now, lived);
            *now += pause;
            pauses.push(pause.as_millis());
        }
        pauses
    }

    #[test]
    fn the_pause_doubles_until_it_is_throttled() {
        let (mut restarts, mut now) = (Restarts::new(10, WINDOW), Instant::now());
        let first = pauses(&mut restarts, &mut now, Duration::ZERO, 10);
        assert_eq!(first, [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 51_200]);
        assert!(!restarts.is_throttled());
        // A year of deaths: one restart a minute, without end.
        let year = pauses(&mut restarts, &mut now, Duration::ZERO, 365 * 24 * 60);
        assert!(year.iter().all(|pause| *pause == 60_000), "{year:?}");
        assert!(restarts.is_throttled());
        assert!(restarts.deaths.len() <= 11, "what is remembered is bounded");
    }

    #[test]
    fn a_minute_of_life_forgives_and_ten_deaths_of_a_year_are_no_storm() {
        let (mut restarts, mut now) = (Restarts::new(10, WINDOW), Instant::now());
        pauses(&mut restarts, &mut now, Duration::ZERO, 20);
        assert!(restarts.is_throttled());
        restarts.lives(STEADY - Duration::from_millis(1));
        assert!(restarts.is_throttled());
        restarts.lives(STEADY);
        assert!(!restarts.is_throttled());
        let month = Duration::from_hours(24 * 30);
        assert_eq!(pauses(&mut restarts, &mut now, month, 50), [100; 50]);
        assert!(!restarts.is_throttled());
    }

    #[test]
    fn deaths_outside_the_window_are_forgotten() {
        let (mut restarts, mut now) = (Restarts::new(3, Duration::from_secs(10)), Instant::now());
        let lived = Duration::from_secs(4);
        assert_eq!(pauses(&mut restarts, &mut now, lived, 6), [100, 200, 400, 800, 1600, 3200]);
        assert_eq!(pauses(&mut restarts, &mut now, Duration::ZERO, 5), [6400, 12_800, 25_600, 51_200, 60_000]);
        assert!(!restarts.is_throttled());
    }

    #[test]
    fn no_more_deaths_are_remembered_than_count_and_one_as_old_as_the_window_does_not() {
        let (mut restarts, mut now) = (Restarts::new(1, Duration::from_hours(24)), Instant::now());
        pauses(&mut restarts, &mut now, Duration::ZERO, 100);
        assert_eq!(restarts.deaths.len(), 2);
        let mut restarts = Restarts::new(1, Duration::from_secs(10));
        for _ in 0..5 {
            let _ = restarts.died(now, Duration::ZERO);
            now += Duration::from_secs(10);
            assert!(!restarts.is_throttled());
        }
    }

    proptest! {
        #[test]
        fn whatever_it_dies_of_it_is_started_again_within_a_minute_and_never_at_once(
            allowed in 0_u32..20,
            window in 1_u64..2000,
            lives in prop::collection::vec((0_u64..100_000, 0_u64..100_000), 1..200),
        ) {
            let window = Duration::from_secs(window);
            let (mut restarts, mut now, mut deaths) = (Restarts::new(allowed, window), Instant::now(), Vec::new());
            let mut before = Duration::ZERO;
            for (lived, late) in lives {
                let lived = Duration::from_millis(lived);
                now += lived;
                let pause = restarts.died(now, lived);
                deaths.push(now);
                prop_assert!((FIRST..=LONGEST).contains(&pause), "{pause:?}");
                if lived < STEADY {
                    prop_assert!(pause >= before, "{pause:?} after {before:?}");
                }
                let within = deaths.iter().filter(|death| now.duration_since(**death) < window).count();
                if within > usize::try_from(allowed).unwrap() {
                    prop_assert!(restarts.is_throttled() && pause == LONGEST);
                }
                before = pause;
                // The restart may be late, too.
                now += pause + Duration::from_millis(late);
            }
        }
    }
}
