//! Decides whether the ledger may have forgotten a delivery of a message. After a fail-over that lost commits, or a restore
//! from a backup, it lacks the latest deliveries. A copy that may be among these is searched for before it is appended.

use std::time::Duration;

/// How much younger a message may appear than it is: the host's clock may have been set since, or the message may have
/// waited for the lock.
const TO_SPARE: Duration = Duration::from_hours(1);

/// How long after its lifetime in the queue a message may still be retried. This exceeds Postfix's time between two tries:
/// `maximal_backoff_time` (4000 s) and `queue_run_delay` (300 s), postconf(5).
const LAST_TRY: Duration = Duration::from_hours(2);

/// For how long after the beginning of an epoch Postfix may still hand over a message that it received before.
#[must_use]
pub fn looked_for(queue_lifetime: Duration) -> Duration {
    queue_lifetime.saturating_add(LAST_TRY)
}

/// Whether a message that came `came` ago may have been delivered before the epoch, which began `began` ago. `came` is
/// measured by this host's clock and `began` by the database's, so a difference between the two clocks does not matter.
pub(super) fn may_be(came: Option<Duration>, began: Option<Duration>, queue_lifetime: Duration) -> bool {
    let Some(began) = began else { return false };
    began <= looked_for(queue_lifetime) && came.is_none_or(|came| came.saturating_add(TO_SPARE) >= began)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_before_the_epoch_or_within_its_first_hour_may_be_forgotten_for_as_long_as_it_may_be_queued() {
        let (hour, day) = (3600, 24 * 3600);
        let seconds = |seconds: Option<u64>| seconds.map(Duration::from_secs);
        for (came, began, forgotten) in [
            // The ledger has forgotten nothing.
            (Some(day), None, false),
            (None, None, false),
            // The epoch begins now.
            (Some(0), Some(0), true),
            (None, Some(0), true),
            (Some(4 * day), Some(0), true),
            (Some(0), Some(hour), true),
            (Some(0), Some(hour + 1), false),
            (Some(day), Some(day + hour), true),
            (Some(day), Some(day + hour + 1), false),
            (Some(day), Some(day), true),
            (Some(2 * day), Some(day), true),
            (None, Some(day), true),
            // Five days, and two hours.
            (Some(6 * day), Some(5 * day + 2 * hour), true),
            (None, Some(5 * day + 2 * hour), true),
            (Some(6 * day), Some(5 * day + 2 * hour + 1), false),
            (None, Some(5 * day + 2 * hour + 1), false),
            (Some(u64::MAX), Some(5), true),
        ] {
            let shown = may_be(seconds(came), seconds(began), Duration::from_secs(5 * day));
            assert_eq!(shown, forgotten, "{came:?} {began:?}");
        }
        assert!(may_be(None, Some(Duration::from_secs(u64::MAX)), Duration::MAX));
    }
}
