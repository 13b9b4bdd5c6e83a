//! How deliveries went: attempts counted by how they ended, and how long each stage took.

mod histogram;

use crate::base::timestamp;
use crate::database::DatabaseError;
use crate::ledger::stages::{self, STAGES};
use crate::ledger::{AttemptResult, Database, statistics, time_span};
use crate::message::Role;
use histogram::Histogram;
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use uuid::Uuid;

/// Units of a histogram in a millisecond: the ledger has hundredths.
const UNITS: f64 = 100.0;

/// The cause under which a lock held elsewhere is counted.
pub(crate) const BUSY: &str = "another delivery held the lock";

/// All stages together.
const TOTAL: &str = "total";

/// How deliveries went between two moments. Serialized, it is what `stats --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Statistics {
    /// In microseconds since 1970.
    #[serde(serialize_with = "timestamp::serialize")]
    pub(crate) from: i64,
    /// In microseconds since 1970: the database's clock.
    #[serde(serialize_with = "timestamp::serialize")]
    pub(crate) until: i64,
    /// The attempts that began in between, by how they ended.
    pub(crate) attempts: Attempts,
    /// Why attempts were put off, the lock held elsewhere first, then the most frequent.
    pub(crate) deferrals: Vec<Deferrals>,
    /// Copies by what came of them, of those that came to something: `appended`, `adopted`, `already there`, `owed`.
    pub(crate) copies: BTreeMap<&'static str, u64>,
    /// How many copies are owed now, whenever that began.
    pub(crate) copies_owed_now: u64,
    /// The messages that were first recorded in between.
    pub(crate) messages: Messages,
    pub(crate) lock: Contention,
    /// The stages that took any time, in their order; `total` at the end.
    pub(crate) stages: Vec<Stage>,
}

/// How many attempts ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Attempts {
    pub(crate) all: u64,
    /// Postfix was told 0.
    pub(crate) delivered: u64,
    /// 75, the lock held elsewhere included.
    pub(crate) deferred: u64,
    /// 65 or 77.
    pub(crate) refused: u64,
    /// They never ended themselves; a later attempt looked for their copies.
    pub(crate) died: u64,
    /// They have not ended.
    pub(crate) not_ended: u64,
}

/// How many attempts were put off for one cause.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Deferrals {
    pub(crate) cause: &'static str,
    pub(crate) attempts: u64,
    /// Of all attempts, from 0 to 1.
    pub(crate) share: f64,
}

/// Messages, and their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Messages {
    pub(crate) recorded: u64,
    /// How large, all together.
    pub(crate) bytes: u64,
}

/// How often the lock was held elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Contention {
    /// How many attempts found it so.
    pub(crate) busy: u64,
    /// Of all attempts, from 0 to 1.
    pub(crate) busy_share: f64,
}

/// How long a stage took in the attempts that came to it. Percentiles are to within 1 %, the greatest is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Stage {
    pub(crate) stage: &'static str,
    pub(crate) attempts: u64,
    /// Half of them took at most that long.
    #[serde(rename = "p50_ms", serialize_with = "milliseconds")]
    pub p50: Duration,
    /// 90 % did.
    #[serde(rename = "p90_ms", serialize_with = "milliseconds")]
    pub p90: Duration,
    /// 99 % did.
    #[serde(rename = "p99_ms", serialize_with = "milliseconds")]
    pub p99: Duration,
    /// All did.
    #[serde(rename = "max_ms", serialize_with = "milliseconds")]
    pub(crate) max: Duration,
}

fn milliseconds<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(span.as_micros() as f64 / 1000.0)
}

/// Since when attempts are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Since {
    /// Since so long ago, by the clock that wrote the times.
    Ago(Duration),
    /// In microseconds since 1970.
    Moment(i64),
}

/// Counts what began since then. Memory stays flat, however much that is.
///
/// # Errors
/// The ledger cannot be read.
pub(crate) fn count(database: &mut dyn Database, since: Since) -> Result<Statistics, DatabaseError> {
    let until = time_span::now(database)?;
    let from = match since {
        Since::Ago(ago) => until.saturating_sub(time_span::microseconds(ago)),
        Since::Moment(moment) => moment,
    };
    let mut tally = Tally::default();
    statistics::each_page_of_attempts(database, from, until.saturating_add(1), |page| tally.add_page(page))?;
    tally.end();
    let (recorded, bytes) = statistics::recorded_messages(database, from, until)?;
    let copies_owed_now = statistics::owed_copies(database, None)?;
    let Tally { mut attempts, busy, deferred, copies, stages, .. } = tally;
    attempts.deferred = busy + deferred.values().sum::<u64>();
    let share = |part| if attempts.all == 0 { 0.0 } else { part as f64 / attempts.all as f64 };
    let mut causes: Vec<_> = deferred.into_iter().collect();
    causes.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
    let causes = [(BUSY, busy)].into_iter().chain(causes).filter(|(_, number)| *number > 0);
    let stage = |name| stages.get(name).map(|histogram| histogram.stage(name));
    Ok(Statistics {
        from,
        until,
        attempts,
        deferrals: causes.map(|(cause, attempts)| Deferrals { cause, attempts, share: share(attempts) }).collect(),
        copies,
        copies_owed_now,
        messages: Messages { recorded, bytes },
        lock: Contention { busy, busy_share: share(busy) },
        stages: STAGES.into_iter().chain([TOTAL]).filter_map(stage).collect(),
    })
}

impl Histogram {
    fn stage(&self, stage: &'static str) -> Stage {
        let span = |units| Duration::from_micros(units * 10);
        let [p50, p90, p99] = [50, 90, 99].map(|percent| span(self.percentile(percent)));
        Stage { stage, attempts: self.count(), p50, p90, p99, max: span(self.greatest()) }
    }
}

/// What was counted so far.
#[derive(Default)]
struct Tally {
    attempts: Attempts,
    busy: u64,
    /// By cause.
    deferred: BTreeMap<&'static str, u64>,
    copies: BTreeMap<&'static str, u64>,
    stages: HashMap<&'static str, Histogram>,
    /// Attempts whose rows may not all have been read yet.
    halves: HashMap<Uuid, Half>,
    page: u64,
}

#[derive(Default)]
struct Half {
    page: u64,
    copies: Vec<(Role, AttemptResult)>,
    stages: Option<String>,
}

impl Tally {
    fn add_page(&mut self, page: Vec<statistics::TriedCopy>) {
        self.page += 1;
        for tried in page {
            let result = AttemptResult::of_copy(tried.outcome.as_ref());
            if let (AttemptResult::Delivered, Some(outcome)) = (result, &tried.outcome) {
                *self.copies.entry(outcome.word()).or_default() += 1;
            }
            let half = self.halves.entry(tried.attempt).or_default();
            half.page = self.page;
            half.copies.push((tried.role, result));
            half.stages = half.stages.take().or(tried.stages);
        }
        // What had no row in this page is whole.
        let page = self.page;
        let whole: Vec<Half> = self.halves.extract_if(|_, half| half.page < page).map(|(_, half)| half).collect();
        whole.iter().for_each(|attempt| self.add(attempt));
    }

    fn end(&mut self) {
        let rest = std::mem::take(&mut self.halves);
        rest.values().for_each(|attempt| self.add(attempt));
    }

    fn add(&mut self, attempt: &Half) {
        let attempts = &mut self.attempts;
        match AttemptResult::of_attempt(attempt.copies.iter().copied()) {
            AttemptResult::Delivered => attempts.delivered += 1,
            AttemptResult::Busy => self.busy += 1,
            AttemptResult::Refused => attempts.refused += 1,
            // No try at a delivery.
            AttemptResult::Audit => return,
            AttemptResult::Died => attempts.died += 1,
            AttemptResult::Open => attempts.not_ended += 1,
            AttemptResult::Deferred(cause) => *self.deferred.entry(cause).or_default() += 1,
        }
        attempts.all += 1;
        let Some(stages) = &attempt.stages else { return };
        let stages = stages::read(stages);
        let total = stages.iter().map(|(_, took)| took).sum();
        for (name, took) in stages.into_iter().chain([(TOTAL, total)]) {
            self.stages.entry(name).or_default().add((took * UNITS).round().max(0.0) as u64);
        }
    }
}
