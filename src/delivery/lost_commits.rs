//! Whether the ledger may have forgotten what was delivered of a message: after a fail-over that lost commits, or a restore from a
//! backup, it does not know what was delivered last. So what may have been delivered before that is looked for before it is appended.

use std::time::Duration;

/// How much younger a message may seem than it is: the host's clock may have been set since it came, and it may have waited for the
/// lock.
const TO_SPARE: Duration = Duration::from_hours(1);

/// For so long after its lifetime in the queue a message may still be tried: more than Postfix waits between two tries
/// (`maximal_backoff_time`, 4000 s, and `queue_run_delay`, 300 s).
const LAST_TRY: Duration = Duration::from_hours(2);

/// For how long after the beginning of an epoch Postfix may bring a message that came before it.
#[must_use]
pub fn looked_for(queue_lifetime: Duration) -> Duration {
    queue_lifetime.saturating_add(LAST_TRY)
}

/// Whether a message that `came` so long ago may have been delivered before the epoch, which `began` so long ago. Both are spans: one
/// of this host's clock, the other of the database's, so that it does not matter what the two clocks say.
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
            // Nothing was ever forgotten.
            (Some(day), None, false),
            (None, None, false),
            // It begins now.
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
            let told = may_be(seconds(came), seconds(began), Duration::from_secs(5 * day));
            assert_eq!(told, forgotten, "{came:?} {began:?}");
        }
        assert!(may_be(None, Some(Duration::from_secs(u64::MAX)), Duration::MAX));
    }
}
