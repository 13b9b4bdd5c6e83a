//! Counts attempts by result, and measures how long each stage took.

mod histogram;
mod notifications;

use super::notifications::NotificationFigures;
use crate::base::timestamp;
use crate::database::DatabaseError;
use crate::ledger::stage_times::{self, STAGES};
use crate::ledger::{AttemptResult, Database, failures, statistics, time_span};
use crate::message::Role;
use histogram::Histogram;
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use uuid::Uuid;

pub(crate) use notifications::{NotificationStats, notification_stats};

/// Units per millisecond: stage times are counted in hundredths of a millisecond.
const UNITS: f64 = 100.0;

/// The cause of a deferral by a lock held elsewhere.
pub(crate) const BUSY: &str = "another delivery held the lock";

/// The name of the row that sums up all stages.
const TOTAL: &str = "total";

/// How deliveries went between two moments, in microseconds since 1970 by the database's clock. `stats --json` prints this.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Statistics {
    #[serde(serialize_with = "timestamp::serialize")]
    pub(crate) from: i64,
    #[serde(serialize_with = "timestamp::serialize")]
    pub(crate) until: i64,
    /// The attempts that began between these moments.
    pub(crate) attempts: Attempts,
    /// First the attempts that found the lock held elsewhere, then the causes by their frequency.
    pub(crate) deferrals: Vec<Deferrals>,
    /// Deliveries that first failed before their journal in the time span, by frequency.
    pub(crate) failures: Vec<EarlyFailures>,
    /// Delivered or owed copies by outcome: `appended`, `adopted`, `already there`, `owed`.
    pub(crate) copies: BTreeMap<&'static str, u64>,
    /// All copies that are owed now, of any age.
    pub(crate) copies_owed_now: u64,
    pub(crate) messages: Messages,
    /// How far behind subscribers are now. `None` if nobody asked for it, or if our role may not read it.
    pub(crate) notifications: Option<NotificationFigures>,
    /// The notification attempts for events of the time span. `None` in the same cases.
    pub(crate) notification_attempts: Option<NotificationStats>,
    pub(crate) lock: Contention,
    /// In the order of the stages; `total` is the last.
    pub(crate) stages: Vec<StageDuration>,
}

/// The number of attempts for each result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Attempts {
    pub(crate) all: u64,
    /// Exit 0.
    pub(crate) delivered: u64,
    /// Exit 75, including attempts that found the lock held elsewhere.
    pub(crate) deferred: u64,
    /// Exit 65 or 77.
    pub(crate) refused: u64,
    /// Attempts whose process died; a later attempt searched for their copies.
    pub(crate) died: u64,
    pub(crate) not_ended: u64,
}

/// The number of attempts that were deferred for one cause.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Deferrals {
    pub(crate) cause: &'static str,
    pub(crate) attempts: u64,
    /// The share of all attempts, from 0 to 1.
    pub(crate) share: f64,
}

/// The deliveries that failed before their journal for one cause: those that were not delivered since, with their tries, and
/// those that were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct EarlyFailures {
    pub(crate) cause: &'static str,
    pub(crate) deliveries: u64,
    pub(crate) tries: u64,
    /// Delivered or refused since.
    pub(crate) over: u64,
}

/// Messages that were first recorded in the time span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Messages {
    pub(crate) recorded: u64,
    pub(crate) bytes: u64,
}

/// The number of attempts that found the lock held elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Contention {
    pub(crate) busy: u64,
    /// The share of all attempts, from 0 to 1.
    pub(crate) busy_share: f64,
}

/// Percentiles of a duration. They are accurate to 1 %; the maximum is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Percentiles {
    #[serde(rename = "p50_ms", serialize_with = "milliseconds")]
    pub(crate) p50: Duration,
    #[serde(rename = "p90_ms", serialize_with = "milliseconds")]
    pub(crate) p90: Duration,
    #[serde(rename = "p99_ms", serialize_with = "milliseconds")]
    pub(crate) p99: Duration,
    #[serde(rename = "max_ms", serialize_with = "milliseconds")]
    pub(crate) max: Duration,
}

impl Percentiles {
    /// The percentiles of a histogram; `span` converts one of its values into a duration.
    fn of(counted: &Histogram, span: impl Fn(u64) -> Duration) -> Self {
        let [p50, p90, p99] = [50, 90, 99].map(|percent| span(counted.percentile(percent)));
        Self { p50, p90, p99, max: span(counted.greatest) }
    }
}

/// The duration of a stage, over the attempts that reached it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct StageDuration {
    pub(crate) stage: &'static str,
    pub(crate) attempts: u64,
    #[serde(flatten)]
    pub(crate) took: Percentiles,
}

fn milliseconds<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(span.as_micros() as f64 / 1000.0)
}

/// The moment from which attempts are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Since {
    /// This long ago by the database's clock.
    Ago(Duration),
    /// In microseconds since 1970.
    Moment(i64),
}

/// Counts the attempts that began since that moment, in constant memory.
pub(crate) fn count(database: &mut dyn Database, since: Since) -> Result<Statistics, DatabaseError> {
    let until = time_span::now(database)?;
    let from = match since {
        Since::Ago(ago) => until.saturating_sub(time_span::microseconds(ago)),
        Since::Moment(moment) => moment,
    };
    let (mut counting, end) = (Counting::default(), until.saturating_add(1));
    statistics::each_page_of_attempts(database, from, end, |page| counting.add_page(page))?;
    let mut tally = counting.end();
    (tally.recorded, tally.bytes) = statistics::recorded_messages(database, from, end)?;
    let failures = early_failures(database, from)?;
    Ok(Statistics { failures, ..tally.statistics(from, until, statistics::owed_copies(database, None)?) })
}

/// The deliveries that failed before their journal since a time, by cause.
pub(crate) fn early_failures(database: &mut dyn Database, from: i64) -> Result<Vec<EarlyFailures>, DatabaseError> {
    let mut counted: BTreeMap<&'static str, EarlyFailures> = BTreeMap::new();
    failures::each_failure(database, from, |failure| {
        let cause = match AttemptResult::of_copy(Some(&failure.cause)) {
            AttemptResult::Deferred(cause) => cause,
            _ => "refused",
        };
        let of_cause = counted.entry(cause).or_insert(EarlyFailures { cause, deliveries: 0, tries: 0, over: 0 });
        if failure.is_over {
            of_cause.over += 1;
        } else {
            of_cause.deliveries += 1;
            of_cause.tries += failure.count;
        }
    })?;
    let mut failures: Vec<EarlyFailures> = counted.into_values().collect();
    failures.sort_by_key(|failure| std::cmp::Reverse((failure.deliveries, failure.over)));
    Ok(failures)
}

/// The counts of a time span.
#[derive(Clone, Debug, Default)]
struct StatsTally {
    attempts: Attempts,
    busy: u64,
    /// The deferred attempts, by cause.
    deferred: BTreeMap<&'static str, u64>,
    copies: BTreeMap<&'static str, u64>,
    stages: HashMap<&'static str, Histogram>,
    recorded: u64,
    bytes: u64,
}

impl StatsTally {
    /// The sorted counts, for a span from `from` to `until`, both included.
    fn statistics(self, from: i64, until: i64, copies_owed_now: u64) -> Statistics {
        let Self { mut attempts, busy, deferred, copies, stages, recorded, bytes } = self;
        attempts.deferred = busy + deferred.values().sum::<u64>();
        let share = |part| if attempts.all == 0 { 0.0 } else { part as f64 / attempts.all as f64 };
        let mut causes: Vec<_> = deferred.into_iter().collect();
        causes.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
        let causes = [(BUSY, busy)].into_iter().chain(causes).filter(|(_, number)| *number > 0);
        let span = |hundredths| Duration::from_micros(hundredths * 10);
        let stage = |stage| {
            let took: &Histogram = stages.get(stage)?;
            Some(StageDuration { stage, attempts: took.count, took: Percentiles::of(took, span) })
        };
        Statistics {
            from,
            until,
            attempts,
            deferrals: causes.map(|(cause, attempts)| Deferrals { cause, attempts, share: share(attempts) }).collect(),
            copies,
            copies_owed_now,
            failures: Vec::new(),
            messages: Messages { recorded, bytes },
            notifications: None,
            notification_attempts: None,
            lock: Contention { busy, busy_share: share(busy) },
            stages: STAGES.into_iter().chain([TOTAL]).filter_map(stage).collect(),
        }
    }
}

#[derive(Default)]
struct Counting {
    tally: StatsTally,
    /// Attempts whose rows may not all have been read yet.
    partial: HashMap<Uuid, Partial>,
    page: u64,
}

#[derive(Default)]
struct Partial {
    page: u64,
    copies: Vec<(Role, AttemptResult)>,
    stages: Option<String>,
}

impl Counting {
    fn add_page(&mut self, page: Vec<statistics::TriedCopy>) {
        self.page += 1;
        for tried in page {
            let result = AttemptResult::of_copy(tried.outcome.as_ref());
            if let (AttemptResult::Delivered, Some(outcome)) = (result, &tried.outcome) {
                *self.tally.copies.entry(outcome.word()).or_default() += 1;
            }
            let attempt = self.partial.entry(tried.attempt).or_default();
            attempt.page = self.page;
            attempt.copies.push((tried.role, result));
            attempt.stages = attempt.stages.take().or(tried.stages);
        }
        // The rows of an attempt are next to each other, so an attempt without a row in this page is complete.
        self.add_older_than(self.page);
    }

    fn add_older_than(&mut self, page: u64) {
        let complete: Vec<_> = self.partial.extract_if(|_, attempt| attempt.page < page).collect();
        complete.iter().for_each(|(_, attempt)| self.add(attempt));
    }

    fn end(mut self) -> StatsTally {
        self.add_older_than(u64::MAX);
        self.tally
    }

    fn add(&mut self, attempt: &Partial) {
        let tally = &mut self.tally;
        let attempts = &mut tally.attempts;
        match AttemptResult::of_attempt(attempt.copies.iter().copied()) {
            AttemptResult::Delivered => attempts.delivered += 1,
            AttemptResult::Busy => tally.busy += 1,
            AttemptResult::Refused => attempts.refused += 1,
            // An audit's attempt is no delivery.
            AttemptResult::Audit => return,
            AttemptResult::Died => attempts.died += 1,
            AttemptResult::Open => attempts.not_ended += 1,
            AttemptResult::Deferred(cause) => *tally.deferred.entry(cause).or_default() += 1,
        }
        attempts.all += 1;
        let Some(stages) = &attempt.stages else { return };
        let stages = stage_times::read(stages);
        let total = stages.iter().map(|(_, took)| took).sum();
        for (name, took) in stages.into_iter().chain([(TOTAL, total)]) {
            tally.stages.entry(name).or_default().add((took * UNITS).round().max(0.0) as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Outcome;
    use crate::ledger::statistics::TriedCopy;

    fn counted(tried: &[(u8, Role, Option<Outcome>, &str)]) -> StatsTally {
        let mut counting = Counting::default();
        counting.add_page(
            tried
                .iter()
                .map(|(attempt, role, outcome, stages)| TriedCopy {
                    attempt: Uuid::from_bytes([*attempt; 16]),
                    role: *role,
                    outcome: outcome.clone(),
                    stages: Some((*stages).to_owned()),
                })
                .collect(),
        );
        counting.end()
    }

    #[test]
    fn an_attempt_counts_once_by_the_copy_that_decides_how_it_ended() {
        let tried = [
            (1, Role::Recipient, Some(Outcome::Appended), r#"{"connect":4.5,"append":2.25}"#),
            (1, Role::Sender, Some(Outcome::Owed), r#"{"connect":4.5,"append":2.25}"#),
            (2, Role::Recipient, Some(Outcome::Busy), r#"{"lock":0.5}"#),
            (3, Role::Recipient, Some(Outcome::Deferred(crate::ledger::Cause::Unsettled, None)), "{}"),
            (4, Role::Recipient, Some(Outcome::Refused("x".into())), "{}"),
            (5, Role::Recipient, Some(Outcome::Died), r#"{"connect":100}"#),
            (6, Role::Recipient, None, "{}"),
            (7, Role::Recipient, Some(Outcome::AlreadyThere), r#"{"connect":7}"#),
        ];
        let Statistics { attempts, lock, .. } = counted(&tried).statistics(1, 2, 3);
        let ended = Attempts { all: 7, delivered: 2, deferred: 2, refused: 1, died: 1, not_ended: 1 };
        assert_eq!((attempts, lock.busy), (ended, 1));
    }
}
