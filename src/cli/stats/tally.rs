//! Counts attempts while it walks through them.

use super::histogram::Histogram;
use crate::cli::ending::{self, Ending};
use crate::cli::pages::{Of, Pages};
use crate::database::{Database, DatabaseError, Row};
use crate::mailbox::Role;
use std::collections::{BTreeMap, HashMap};
use uuid::Uuid;

/// Rows of a page. The rows of one attempt are written by one statement: they lie in the same page, or in two that follow
/// one another.
const PAGE: usize = 4000;

/// Units of a histogram in a millisecond: the ledger has hundredths.
const UNITS: f64 = 100.0;

/// What was counted.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) delivered: u64,
    pub(super) busy: u64,
    pub(super) refused: u64,
    pub(super) died: u64,
    pub(super) open: u64,
    /// By cause.
    pub(super) deferred: BTreeMap<&'static str, u64>,
    /// Copies by what came of them, of those that came to something: `appended`, `adopted`, `already there`, `owed`.
    pub(super) copies: BTreeMap<String, u64>,
    /// In the stages' own order, and `total` at the end.
    pub(super) stages: Vec<(&'static str, Histogram)>,
}

/// An attempt whose rows may not all have been read yet.
#[derive(Default)]
struct Half {
    page: u64,
    copies: Vec<(Role, Ending)>,
    stages: Option<String>,
}

impl Tally {
    /// All attempts.
    pub(super) fn attempts(&self) -> u64 {
        self.delivered + self.busy + self.refused + self.died + self.open + self.deferred.values().sum::<u64>()
    }

    /// A stage's span in milliseconds.
    pub(super) fn milliseconds(units: u64) -> f64 {
        units as f64 / UNITS
    }

    /// The same in seconds.
    pub(super) fn seconds(units: u64) -> f64 {
        units as f64 / (UNITS * 1000.0)
    }

    fn add(&mut self, attempt: &Half) {
        match Ending::of_attempt(attempt.copies.iter().copied()) {
            Ending::Delivered => self.delivered += 1,
            Ending::Busy => self.busy += 1,
            Ending::Refused => self.refused += 1,
            Ending::Repair => return,
            Ending::Died => self.died += 1,
            Ending::Open => self.open += 1,
            Ending::Deferred(cause) => *self.deferred.entry(cause).or_default() += 1,
        }
        let Some(stages) = &attempt.stages else { return };
        let stages = ending::stages(stages);
        let total = stages.iter().map(|(_, took)| took).sum();
        for (name, took) in stages.into_iter().chain([("total", total)]) {
            let units = (took * UNITS).round().max(0.0) as u64;
            match self.stages.iter_mut().find(|(known, _)| *known == name) {
                Some((_, histogram)) => histogram.add(units),
                None => {
                    let mut histogram = Histogram::default();
                    histogram.add(units);
                    self.stages.push((name, histogram));
                }
            }
        }
    }
}

/// Counts the attempts that began from `from` up to, not including, `until`, in microseconds since 1970.
pub(super) fn read(database: &mut dyn Database, from: i64, until: i64) -> Result<Tally, DatabaseError> {
    let mut tally = Tally::default();
    let mut halves: HashMap<Uuid, Half> = HashMap::new();
    let mut pages = Pages::new(Of::Attempts, from, until, PAGE);
    let columns = "a.role, CASE WHEN a.ended_at IS NULL THEN 0 ELSE 1 END, a.outcome, a.stages";
    let mut number = 0;
    while let Some(page) = pages.next(database, columns, "1 = 1", &[])? {
        number += 1;
        for row in &page.rows {
            take(row, page.first, number, &mut halves, &mut tally)?;
        }
        halves.retain(|_, half| {
            let whole = half.page < number;
            if whole {
                tally.add(half);
            }
            !whole
        });
    }
    halves.values().for_each(|half| tally.add(half));
    let order = crate::delivery::Stages::default().named().map(|(name, _)| name);
    let place = |name: &str| match name {
        "total" => usize::MAX,
        _ => order.iter().position(|known| *known == name).unwrap_or(order.len()),
    };
    tally.stages.sort_by_key(|(name, _)| place(name));
    Ok(tally)
}

fn take(
    row: &Row,
    first: usize,
    page: u64,
    halves: &mut HashMap<Uuid, Half>,
    tally: &mut Tally,
) -> Result<(), DatabaseError> {
    let half = halves.entry(Uuid::from_bytes(row.digest(1)?)).or_default();
    half.page = page;
    let ended = row.value::<u8>(first + 1)? == Some(1);
    let outcome = row.text(first + 2);
    let copy = Ending::of_copy(ended, outcome);
    half.copies.push((ending::role(row.text(first)), copy));
    if let (Ending::Delivered, Some(outcome)) = (copy, outcome) {
        *tally.copies.entry(outcome.to_owned()).or_default() += 1;
    }
    if half.stages.is_none() {
        half.stages = row.text(first + 3).map(ToOwned::to_owned);
    }
    Ok(())
}
