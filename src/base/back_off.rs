//! Pauses between attempts that double, up to a longest one.

use std::time::Duration;

/// The pause after this many doublings.
pub(crate) fn doubled(first: Duration, doublings: u32, longest: Duration) -> Duration {
    first.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(longest)
}

/// Pauses between attempts: each is twice as long as the one before, up to `longest`.
#[derive(Clone, Debug)]
pub(crate) struct BackOff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl BackOff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// The current pause; the next one is twice as long.
    #[must_use = "it says how long to wait"]
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = doubled(pause, 1, self.longest);
        pause
    }

    /// Returns to the first pause, after a successful attempt.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_up_to_the_longest_until_a_try_succeeds() {
        let mut back_off = BackOff::new(Duration::from_secs(1), Duration::from_secs(5));
        let mut pauses = || [(); 5].map(|()| back_off.pause().as_secs());
        assert_eq!(pauses(), [1, 2, 4, 5, 5]);
        back_off.reset();
        assert_eq!(back_off.pause().as_secs(), 1);
        let longest = Duration::from_hours(1);
        let nth = |doublings| doubled(Duration::from_secs(5), doublings, longest).as_secs();
        assert_eq!([0, 1, 9, 10, 31, 32, u32::MAX].map(nth), [5, 10, 2560, 3600, 3600, 3600, 3600]);
    }
}
