//! One deadline over everything a delivery does.
//!
//! Postfix kills a command that outlives `command_time_limit` (1000 s by default) and *bounces* its message
//! (`src/global/pipe_command.c`: "Command time limit exceeded", 5.3.0). So every wait on a socket, a lock or a query
//! fits into what is left of a deadline of our own, which lies far below that limit.

use std::time::{Duration, Instant};

/// How long a delivery may take unless configured otherwise: far below those 1000 s.
pub(crate) const OF_A_DELIVERY: Duration = Duration::from_mins(4);

/// How long a delivery waits for a lock held elsewhere unless configured otherwise: in 30 seconds a hundred recipients of one message,
/// which begin at once, have their turn. At most half of the delivery's time, which has to go on afterwards.
#[must_use]
pub(crate) fn lock_wait(deadline: Duration) -> Duration {
    Duration::from_secs(30).min(deadline / 2)
}

/// The instant by which a delivery has ended, whatever happens.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// A deadline that lies `span` ahead.
    #[must_use]
    pub fn after(span: Duration) -> Self {
        Self(Instant::now() + span)
    }

    /// What is left of it; zero once it has passed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// The deadline for a step that may use up half of what is left.
    #[must_use]
    pub(crate) fn half_way(&self) -> Self {
        Self::after(self.remaining() / 2)
    }

    /// Whichever of the two comes first.
    #[must_use]
    pub(crate) fn or_sooner(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    /// This one, or at least so long from now, if that is later.
    #[must_use]
    pub(crate) fn or_after(self, least: Duration) -> Self {
        Self(self.0.max(Instant::now() + least))
    }

    /// Whether it has passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.remaining().is_zero()
    }
}
