//! Counts the tries at telling subscribers by what was answered, and how long after its event the first one began.

use super::{Histogram, Percentiles};
use crate::database::DatabaseError;
use crate::ledger::Database;
use crate::ledger::notifications::attempts::{Tried, each_page_of_tries};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use uuid::Uuid;

/// How telling went what happened between two moments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Telling {
    /// Tries by the class of their answers: `2xx`, or `none` where none came.
    pub(crate) tries: BTreeMap<&'static str, u64>,
    /// From an event's commit to the beginning of the first try at telling it to a subscription. It is as exact as the clocks of the
    /// notifiers' hosts agree with the database's.
    pub(crate) first_try: FirstTry,
}

/// How long it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct FirstTry {
    /// How many there were.
    pub(crate) notifications: u64,
    #[serde(flatten)]
    pub(crate) took: Percentiles,
}

/// The class of an answer.
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

/// Counts what happened from `from` up to, not including, `until`, in constant memory. `None` where there is nothing to see, or where
/// this role may not see it.
///
/// # Errors
/// Where it cannot be read.
pub(crate) fn telling(database: &mut dyn Database, span: (i64, i64)) -> Result<Option<Telling>, DatabaseError> {
    let mut counting = Counting::default();
    let seen = each_page_of_tries(database, span, |page| page.into_iter().for_each(|tried| counting.add(tried)))?;
    Ok(seen.then(|| counting.end()))
}

/// What was counted so far.
#[derive(Default)]
struct Counting {
    tries: BTreeMap<&'static str, u64>,
    first: Histogram,
    last: Option<(i64, Uuid)>,
}

impl Counting {
    fn add(&mut self, Tried { event, subscription, after, status }: Tried) {
        *self.tries.entry(class(status)).or_default() += 1;
        if self.last.replace((event, subscription)) != Some((event, subscription)) {
            self.first.add(after.max(0).unsigned_abs());
        }
    }

    fn end(self) -> Telling {
        let took = Percentiles::of(&self.first, Duration::from_micros);
        Telling { tries: self.tries, first_try: FirstTry { notifications: self.first.count, took } }
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
            // The host's clock is behind.
            (7, other, -300, Some(410)),
            (8, other, 50, Some(301)),
        ] {
            counting.add(Tried { event, subscription, after, status });
        }
        let Telling { tries, first_try } = counting.end();
        assert_eq!(tries, [("2xx", 1), ("3xx", 1), ("4xx", 1), ("5xx", 1), ("none", 1)].into());
        let micros = |span: Duration| span.as_micros();
        assert_eq!((first_try.notifications, micros(first_try.took.p50), micros(first_try.took.max)), (3, 50, 100));
    }
}
