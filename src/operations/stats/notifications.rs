//! Counts notification attempts by HTTP status class, and measures the delay from an event to its first attempt.

use super::{Histogram, Percentiles};
use crate::database::DatabaseError;
use crate::ledger::Database;
use crate::ledger::notifications::attempts::{AttemptTiming, each_page_of_attempts};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use uuid::Uuid;

/// The notification attempts for the events of a time span.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NotificationStats {
    /// Attempts by the class of the HTTP status, such as `2xx`; `none` without an answer.
    pub(crate) tries: BTreeMap<&'static str, u64>,
    /// The delay from an event's commit to the start of its first notification attempt, for each subscription. It is as exact as
    /// the clocks of the notifiers' hosts agree with the database's.
    pub(crate) first_try: FirstTry,
}

/// The delay of the first attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct FirstTry {
    /// The number of notifications.
    pub(crate) notifications: u64,
    #[serde(flatten)]
    pub(crate) took: Percentiles,
}

/// The class of an HTTP status.
fn class(status: Option<u16>) -> &'static str {
    match status {
        None => "none",
        Some(..200) => "1xx",
        Some(..300) => "2xx",
        Some(..400) => "3xx",
        Some(..500) => "4xx",
        Some(_) => "5xx",
    }
}

/// Counts the attempts for events from `from` up to, not including, `until`, in constant memory. `None` if there are no
/// subscribers, or if our role may not read the tables.
///
/// # Errors
/// If the database fails.
pub(crate) fn notification_stats(
    database: &mut dyn Database,
    span: (i64, i64),
) -> Result<Option<NotificationStats>, DatabaseError> {
    let mut counting = Counting::default();
    let seen = each_page_of_attempts(database, span, |page| page.into_iter().for_each(|tried| counting.add(tried)))?;
    Ok(seen.then(|| counting.end()))
}

#[derive(Default)]
struct Counting {
    tries: BTreeMap<&'static str, u64>,
    first: Histogram,
    last: Option<(i64, Uuid)>,
}

impl Counting {
    fn add(&mut self, AttemptTiming { event, subscription, after, status }: AttemptTiming) {
        *self.tries.entry(class(status)).or_default() += 1;
        if self.last.replace((event, subscription)) != Some((event, subscription)) {
            self.first.add(after.max(0).unsigned_abs());
        }
    }

    fn end(self) -> NotificationStats {
        let took = Percentiles::of(&self.first, Duration::from_micros);
        NotificationStats { tries: self.tries, first_try: FirstTry { notifications: self.first.count, took } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_try_at_a_notification_counts_for_how_long_it_took() {
        let mut counting = Counting::default();
        let [one, other] = [1, 2].map(|id| Uuid::from_bytes([id; 16]));
        for (event, subscription, after, status) in [
            (7, one, 100, Some(503)),
            (7, one, 5_000_000, None),
            (7, one, 9_000_000, Some(204)),
            // The host's clock is behind the database's.
            (7, other, -300, Some(410)),
            (8, other, 50, Some(301)),
        ] {
            counting.add(AttemptTiming { event, subscription, after, status });
        }
        let NotificationStats { tries, first_try } = counting.end();
        assert_eq!(tries, [("2xx", 1), ("3xx", 1), ("4xx", 1), ("5xx", 1), ("none", 1)].into());
        let micros = |span: Duration| span.as_micros();
        assert_eq!((first_try.notifications, micros(first_try.took.p50), micros(first_try.took.max)), (3, 50, 100));
    }
}
