//! One deadline for everything that a delivery does.
//!
//! Postfix kills a command that exceeds `command_time_limit` (1000 s by default) and *bounces* its message
//! (`src/global/pipe_command.c`: "Command time limit exceeded", 5.3.0). So this deadline, far below that limit, limits every wait
//! on a socket, a lock or a query.

use std::time::{Duration, Instant};

/// How long a delivery may take by default: far below Postfix's 1000 s.
pub(crate) const OF_A_DELIVERY: Duration = Duration::from_mins(4);

/// How long a delivery waits by default for a lock held elsewhere. In 30 seconds, a hundred recipients of one message that start
/// together all get the lock. The wait is at most half of the delivery's time, since the delivery must go on afterwards.
pub(crate) fn lock_wait(deadline: Duration) -> Duration {
    Duration::from_secs(30).min(deadline / 2)
}

/// The instant by which a delivery has ended, whatever happens.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// A deadline after this span from now.
    pub fn after(span: Duration) -> Self {
        Self(Instant::now() + span)
    }

    /// The time that is left; zero once it has passed.
    pub fn remaining(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// The deadline for a step that may use half of the time that is left.
    pub(crate) fn half_way(&self) -> Self {
        Self::after(self.remaining() / 2)
    }

    /// The deadline for a step after which another one takes this time; at most an eighth of what is left is kept for it.
    pub(crate) fn leaving(&self, time: Duration) -> Self {
        Self::after(self.remaining().saturating_sub(time.min(self.remaining() / 8)))
    }

    /// This deadline, or one after this span from now, whichever is sooner.
    pub(crate) fn or_within(self, span: Option<Duration>) -> Self {
        span.map_or(self, |span| self.or_sooner(Self::after(span)))
    }

    pub(crate) fn or_sooner(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    /// This deadline, or one after this span from now, whichever is later.
    pub(crate) fn or_after(self, least: Duration) -> Self {
        Self(self.0.max(Instant::now() + least))
    }

    pub fn passed(&self) -> bool {
        self.remaining().is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lock_is_waited_for_half_a_minute_and_for_at_most_half_of_the_time() {
        assert_eq!([lock_wait(OF_A_DELIVERY), lock_wait(seconds(20))], [seconds(30), seconds(10)]);
    }

    #[test]
    fn the_sooner_and_the_later_of_two_are_distinguished() {
        let (soon, late) = (Deadline::after(seconds(1000)), Deadline::after(seconds(100_000)));
        let is_late = |deadline: Deadline| deadline.remaining() > seconds(1000);
        assert!(!is_late(soon.or_sooner(late)) && !is_late(late.or_sooner(soon)));
        assert!(is_late(late.or_within(None)) && !is_late(late.or_within(Some(seconds(1000)))));
        assert!(!is_late(soon.or_within(Some(seconds(100_000)))));
        assert!(is_late(soon.or_after(seconds(100_000))) && is_late(late.or_after(seconds(1))));
        assert!(late.half_way().remaining() <= seconds(50_000) && is_late(late.half_way()));
        assert!(Deadline::after(Duration::ZERO).passed() && !soon.passed());
    }
}
