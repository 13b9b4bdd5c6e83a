//! What was tried, the newest first, and the few figures above it: what somebody wants to see who has no Message-ID yet.
//!
//! PostgreSQL has attempts in the order of their time; MySQL and SQLite find them by their UUIDs, which hosts' clocks make.
//! What is looked for may be rare, so the time is walked backwards in slices, until there is enough to show, or enough time was
//! spent: the answer says how far back it has looked. Where nothing is looked for by a name, the last rows say how far back the
//! first slice has to go.

mod figures;
mod messages;

pub(crate) use figures::{Counted, OwedCopy, count, owed};

use super::time_span::{self, CLOCKS_DIFFER, attempts_before, attempts_named, attempts_since, attempts_since_by};
use super::{AttemptResult, Database, Outcome, columns, stage_times};
use crate::database::{DatabaseError, DatabaseFailure, Dialect, Row, Value};
use crate::lock::LockName;
use crate::message::Role;
use messages::{Messages, add_messages};
use std::time::{Duration, Instant};
use tracing::debug;
use uuid::Uuid;

/// How far the clocks of hosts may be from the database's for what is new to be told at once, in microseconds.
const CLOCKS_DIFFER_NOW: i64 = 60_000_000;
/// How wide the narrowest slice is, in microseconds, and the widest.
const NARROWEST: i64 = 60_000_000;
const WIDEST: i64 = 256 * NARROWEST;
/// By how long a slice took it is seen how wide the next one is to be: not so narrow that most of the time goes into asking, and not
/// so wide that much more is read than is looked for (and on PostgreSQL, that the plan becomes one that is compiled first: `jit_above_cost`).
const QUICK: Duration = Duration::from_millis(2);
const SHORT: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_millis(30);
/// How many of the last rows say how far back the first slice goes.
const LAST_ROWS: usize = 500;
/// After so long without an answer that is full, no further slice is read.
const LONG_ENOUGH: Duration = Duration::from_millis(2500);

/// After so long the server ends the reading of one slice: then it is told how far back all was read.
const LONGEST: Duration = Duration::from_secs(5);

/// What an attempt at a copy is to have come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    Delivered,
    Deferred,
    Refused,
    /// It has not ended, or never ended itself.
    Unended,
}

/// What is looked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) by: Option<By>,
    pub(crate) came: Option<Came>,
    pub(crate) role: Option<Role>,
    pub(crate) host: Option<String>,
    /// The mailbox's user.
    pub(crate) user: Option<String>,
    /// In microseconds since 1970; the end is not included.
    pub(crate) since: i64,
    pub(crate) until: Option<i64>,
    /// Older than this one.
    pub(crate) before: Option<Place>,
}

#[derive(Clone, Debug)]
pub(crate) enum By {
    /// The lock of a Message-ID. It has an index, so its age does not matter.
    Lock(LockName),
    /// With the lock of its message, where that is known: then its age does not matter.
    QueueId(String, Option<LockName>),
    /// An envelope recipient, a mailbox's user or an envelope sender: as the ledger keeps addresses, and as it was given.
    Address { address: String, user: String },
    /// A piece of a subject, or of an author's name or address, of messages that were recorded: in whichever case.
    Piece(String),
}

/// Where an attempt at a copy stands among all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) began_at: i64,
    pub(crate) attempt: Uuid,
    pub(crate) key: [u8; 32],
}

impl Wanted {
    /// Whether an attempt is one of those that are wanted by state, role, host, user and time.
    pub(crate) fn is_met_by(&self, one: &Tried) -> bool {
        let came = self.came.is_none_or(|came| {
            let result = one.result();
            match came {
                Came::Delivered => result == AttemptResult::Delivered,
                Came::Deferred => matches!(result, AttemptResult::Busy | AttemptResult::Deferred(_)),
                Came::Refused => result == AttemptResult::Refused,
                Came::Unended => matches!(result, AttemptResult::Open | AttemptResult::Died),
            }
        });
        let is = |wanted: &Option<String>, has: &str| wanted.as_deref().is_none_or(|wanted| wanted == has);
        let time = self.since <= one.place.began_at && self.until.is_none_or(|until| one.place.began_at < until);
        came && time
            && self.role.is_none_or(|role| role == one.role)
            && is(&self.host, &one.host)
            && is(&self.user, &one.user)
    }
}

impl Wanted {
    /// Whether all attempts of a time are wanted, or those at recipients' copies, of which each message has one.
    fn is_most(&self) -> bool {
        let by_role = self.role == Some(Role::Sender);
        !by_role && self.by.is_none() && self.came.is_none() && self.host.is_none() && self.user.is_none()
    }

    /// What is wanted by state, role, host and user, as SQL with its values.
    fn narrow<'a>(&'a self, conditions: &mut Vec<&'a str>, values: &mut Vec<Value<'a>>) {
        for (condition, text) in [("a.host = ?", &self.host), ("a.imap_user = ?", &self.user)] {
            if let Some(text) = text {
                conditions.push(condition);
                values.push(Value::Text(text));
            }
        }
        if let Some(role) = self.role {
            conditions.push("a.role = ?");
            values.push(Value::Text(role.as_str()));
        }
        conditions.extend(self.came.map(outcome_is));
    }
}

/// An attempt at one copy, and what is known of its message.
#[derive(Clone, Debug)]
pub(crate) struct Tried {
    pub(crate) place: Place,
    pub(crate) identity: [u8; 32],
    pub(crate) lock: LockName,
    pub(crate) message_id: String,
    pub(crate) role: Role,
    pub(crate) user: String,
    pub(crate) mailbox: String,
    pub(crate) recipient: String,
    pub(crate) queue_id: Option<String>,
    pub(crate) host: String,
    /// `None` where it has not ended.
    pub(crate) outcome: Option<Outcome>,
    /// All stages of the attempt together, in milliseconds.
    pub(crate) took: Option<f64>,
    /// Known once a copy is delivered or owed.
    pub(crate) from: Option<String>,
    pub(crate) subject: Option<String>,
}

impl Tried {
    pub(crate) fn result(&self) -> AttemptResult {
        AttemptResult::of_copy(self.outcome.as_ref())
    }
}

/// What was found, the newest first.
#[derive(Clone, Debug)]
pub(crate) struct FoundTried {
    pub(crate) tried: Vec<Tried>,
    pub(crate) more: bool,
    /// How far back was looked, if not all the way: in microseconds since 1970.
    pub(crate) looked_back_to: Option<i64>,
}

/// The outcomes of the ledger's texts, as SQL says them.
fn outcome_is(came: Came) -> &'static str {
    match came {
        Came::Delivered => {
            "a.outcome IN ('appended', 'adopted', 'already there', 'already there; not looked for', 'owed')"
        }
        Came::Deferred => "(a.outcome = 'busy' OR a.outcome LIKE 'deferred: %')",
        Came::Refused => "a.outcome LIKE 'refused: %'",
        Came::Unended => "(a.ended_at IS NULL OR a.outcome = 'died; its copy was looked for')",
    }
}

impl By {
    /// Whether it has an index of its own, so that it is found at once, however old it is.
    fn is_indexed(&self) -> bool {
        matches!(self, Self::Lock(_) | Self::QueueId(_, Some(_)))
    }
}

/// The lock of the message that has this queue id, and that came at this moment by its host's clock. `None` also where it takes long to
/// find.
pub(crate) fn lock_of_queue_id(
    database: &mut dyn Database,
    queue_id: &str,
    arrived: i64,
) -> Result<Option<LockName>, DatabaseError> {
    let began = Instant::now();
    database.end_long_questions(LONGEST);
    let now = time_span::now(database)?;
    let dialect = database.dialect();
    let sql = |condition: &str| {
        let lock = dialect.hex("a.lock_digest");
        format!("SELECT {lock} FROM attempts a WHERE {condition} AND a.queue_id = ? LIMIT 1")
    };
    // Nearly all are tried at once, and nearly all clocks agree.
    let mut slice = (arrived.saturating_sub(NARROWEST), arrived.saturating_add(4 * NARROWEST));
    let (mut next, mut width) = (arrived.saturating_sub(CLOCKS_DIFFER), Width { now: 4 * NARROWEST, least: NARROWEST });
    while began.elapsed() < LONG_ENOUGH {
        let asked = Instant::now();
        let (condition, mut values) = match dialect {
            Dialect::Postgresql => {
                let bounds = [slice.0, slice.1].map(Value::Moment);
                ("a.started_at >= ? AND a.started_at < ?", bounds.to_vec())
            }
            _ => attempts_named(slice.0, slice.1),
        };
        values.push(Value::Text(queue_id));
        let Some(rows) = in_time(database.select("looking for a queue id", &sql(condition), &values))? else { break };
        if let Some(row) = rows.first() {
            return Ok(Some(LockName::from_digest(row.digest(0)?)));
        }
        if next > now.saturating_add(CLOCKS_DIFFER) {
            break;
        }
        width.go_on(asked.elapsed());
        slice = (next, next.saturating_add(width.now));
        next = slice.1;
    }
    Ok(None)
}

/// What was read, unless the server has ended that since it took too long.
fn in_time<T>(read: Result<T, DatabaseError>) -> Result<Option<T>, DatabaseError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.failure == DatabaseFailure::TimedOut => {
            debug!(%error, "a search ends here");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// At most `limit` attempts that are wanted, the newest first.
pub(crate) fn find(database: &mut dyn Database, wanted: &Wanted, limit: usize) -> Result<FoundTried, DatabaseError> {
    let began = Instant::now();
    database.end_long_questions(LONGEST);
    let now = time_span::now(database)?;
    // An attempt may have begun in this very moment.
    let newest = wanted.until.unwrap_or_else(|| now.saturating_add(NARROWEST));
    let newest = wanted.before.map_or(newest, |place| newest.min(place.began_at.saturating_add(1)));
    let indexed = wanted.by.as_ref().is_some_and(By::is_indexed);
    let since = if indexed { 0 } else { wanted.since };
    let is_short_queue_id = matches!(wanted.by, Some(By::QueueId(_, None)));
    if is_short_queue_id && database.dialect() != Dialect::Postgresql {
        return find_by_uuid(database, wanted, (since, newest), limit);
    }
    let mut width = Width::of(database.dialect());
    if is_short_queue_id {
        // Somebody has it from a log, as a rule of some hours ago.
        width = Width::of_queue_ids();
    }
    let mut begin = newest.saturating_sub(width.now);
    let is_newest = wanted.by.is_none() && wanted.until.is_none() && wanted.before.is_none();
    if indexed || wanted.is_most() && database.dialect() == Dialect::Postgresql {
        // Little more is read than is shown, however long the time is.
        begin = since;
    } else if is_newest {
        let last = in_time(last_written(database, wanted, limit + 1))?.flatten();
        begin = last.unwrap_or_else(|| begin.min(now.saturating_sub(width.now)));
    }
    let mut end = newest;
    let mut tried: Vec<Tried> = Vec::new();
    // A message is recorded after its first attempt has begun, by a little as a rule.
    let (mut messages, mut recorded_since) = (Messages::Named(Vec::new()), newest.saturating_add(WIDEST));
    while end > since && tried.len() <= limit {
        let asked = Instant::now();
        begin = begin.max(since);
        if in_time(messages.add(database, wanted.by.as_ref(), (begin, recorded_since)))?.is_none() {
            return Ok(FoundTried { tried, more: false, looked_back_to: Some(end.min(now)) });
        }
        recorded_since = begin;
        let (after, mut values) = attempts_since(database.dialect(), begin);
        let (before, more) = attempts_before(database.dialect(), end);
        values.extend(more);
        let missing = limit + 1 - tried.len();
        let sql = Slice { conditions: vec![after, before], values, limit: missing, messages: &messages, is_newest };
        let Some(more) = in_time(slice(database, wanted, sql))? else {
            return Ok(FoundTried { tried, more: false, looked_back_to: Some(end.min(now)) });
        };
        tried.extend(more);
        end = begin;
        width.go_on(asked.elapsed());
        begin = end.saturating_sub(width.now);
        // A short queue id is another message's later on: the newest one is meant, and what is older was not looked for.
        let is_enough = is_short_queue_id && !tried.is_empty();
        if tried.len() <= limit && end > since && (is_enough || began.elapsed() > LONG_ENOUGH) {
            return Ok(FoundTried { tried, more: false, looked_back_to: Some(end) });
        }
    }
    let more = tried.len() > limit;
    tried.truncate(limit);
    Ok(FoundTried { tried, more, looked_back_to: None })
}

/// The attempts at the newest message that has a short queue id, where they are in the order of their UUIDs: by those the time is
/// walked, so that no slice reads what another one has read.
fn find_by_uuid(
    database: &mut dyn Database,
    wanted: &Wanted,
    (since, newest): (i64, i64),
    limit: usize,
) -> Result<FoundTried, DatabaseError> {
    let began = Instant::now();
    let (mut width, none) = (Width::of_queue_ids(), Messages::Named(Vec::new()));
    let (first, mut end) = (since.saturating_sub(CLOCKS_DIFFER), newest.saturating_add(CLOCKS_DIFFER));
    // Hardly anything is ahead of the database's clock.
    let mut begin = newest.saturating_sub(4 * NARROWEST).max(first);
    while end > first {
        let asked = Instant::now();
        let (named, mut values) = attempts_named(begin, end);
        values.extend([Value::Moment(since), Value::Moment(newest)]);
        let conditions = vec![named, "a.started_at >= ? AND a.started_at < ?"];
        let sql = Slice { conditions, values, limit: limit + 1, messages: &none, is_newest: false };
        let Some(mut tried) = in_time(slice(database, wanted, sql))? else {
            let looked_back_to = Some(end.saturating_add(CLOCKS_DIFFER).min(newest));
            return Ok(FoundTried { tried: Vec::new(), more: false, looked_back_to });
        };
        end = begin;
        width.go_on(asked.elapsed());
        begin = end.saturating_sub(width.now).max(first);
        // One that is older by its UUID may have begun so much later.
        let looked = end.saturating_add(CLOCKS_DIFFER).min(newest);
        let more = tried.len() > limit;
        tried.truncate(limit);
        if let Some(oldest) = tried.last() {
            let back_to = looked.min(oldest.place.began_at);
            // Of the time that is wanted nothing is older than its beginning.
            let looked_back_to = (!more && back_to > since).then_some(back_to);
            return Ok(FoundTried { tried, more, looked_back_to });
        }
        if end > first && began.elapsed() > LONG_ENOUGH {
            return Ok(FoundTried { tried, more: false, looked_back_to: Some(looked) });
        }
    }
    Ok(FoundTried { tried: Vec::new(), more: false, looked_back_to: None })
}

/// How wide the next slice is, in microseconds.
struct Width {
    now: i64,
    least: i64,
}

impl Width {
    /// Where attempts are found by their UUIDs, each slice reads also what began within [`CLOCKS_DIFFER`] of it: narrower ones would
    /// read the same rows again and again.
    fn of(dialect: Dialect) -> Self {
        let least = if dialect == Dialect::Postgresql { NARROWEST } else { CLOCKS_DIFFER };
        Self { now: least, least }
    }

    /// On a busy machine a narrow slice takes as long as a wide one, and nearly nothing of what is read is an answer.
    fn of_queue_ids() -> Self {
        Self { now: 16 * NARROWEST, least: 16 * NARROWEST }
    }

    /// After a slice that took so long.
    fn go_on(&mut self, took: Duration) {
        let next = match took {
            _ if took < QUICK => self.now.saturating_mul(4),
            _ if took < SHORT => self.now.saturating_mul(2),
            _ if took < LONG => self.now,
            _ => self.now / 2,
        };
        self.now = next.clamp(self.least, WIDEST);
    }
}

/// Since when the last `enough` of what is wanted began, among the last rows; `None` where those are too few. It says where to
/// look, and nothing else: hosts' clocks make the UUIDs.
fn last_written(database: &mut dyn Database, wanted: &Wanted, enough: usize) -> Result<Option<i64>, DatabaseError> {
    let dialect = database.dialect();
    let mut conditions = vec!["1 = 1"];
    let mut values = Vec::new();
    wanted.narrow(&mut conditions, &mut values);
    let order = match dialect {
        Dialect::Postgresql => "started_at DESC",
        _ => "attempt DESC, copy_key DESC",
    };
    let sql = format!(
        "SELECT count(*), {} FROM (SELECT a.started_at FROM \
         (SELECT started_at, role, host, imap_user, ended_at, outcome FROM attempts ORDER BY {order} LIMIT {LAST_ROWS}) a \
         WHERE {} ORDER BY a.started_at DESC LIMIT {enough}) t",
        dialect.microseconds("min(t.started_at)"),
        conditions.join(" AND ")
    );
    let rows = database.select("looking at the last rows", &sql, &values)?;
    let Some(row) = rows.first() else { return Ok(None) };
    let found = columns::number::<usize>(row, 0)?;
    if found >= enough { row.value(1) } else { Ok(None) }
}

struct Slice<'a> {
    /// Of which time it is, as SQL with its values.
    conditions: Vec<&'a str>,
    values: Vec<Value<'a>>,
    limit: usize,
    messages: &'a Messages,
    /// Whether it may be of what was delivered last.
    is_newest: bool,
}

fn slice<'a>(database: &mut dyn Database, wanted: &'a Wanted, slice: Slice<'a>) -> Result<Vec<Tried>, DatabaseError> {
    let Slice { mut conditions, mut values, limit, messages, is_newest } = slice;
    let (text, of_messages);
    if let Some(Place { began_at, attempt, key }) = &wanted.before {
        conditions.push("(a.started_at, a.attempt, a.copy_key) < (?, ?, ?)");
        values.extend([Value::Moment(*began_at), Value::Uuid(*attempt), Value::Bytes(key)]);
    }
    wanted.narrow(&mut conditions, &mut values);
    match &wanted.by {
        None => {}
        Some(By::Lock(lock)) => {
            conditions.push("a.lock_digest = ?");
            values.push(Value::Bytes(lock.digest()));
        }
        Some(By::QueueId(queue_id, lock)) => {
            conditions.push("a.queue_id = ?");
            values.push(Value::Text(queue_id));
            if let Some(lock) = lock {
                conditions.push("a.lock_digest = ?");
                values.push(Value::Bytes(lock.digest()));
            }
        }
        Some(by @ (By::Address { .. } | By::Piece(_))) => {
            text = by.of_message().map(|(_, text)| text).unwrap_or_default();
            let of_its = messages.condition(by, &text);
            if let By::Address { address, user } = by {
                let of = of_its.as_ref().map(|(condition, _)| format!(" OR {condition}")).unwrap_or_default();
                of_messages = format!("(a.recipient = ? OR a.imap_user = ? OR a.imap_user = ?{of})");
                let (address, user) = (Value::Text(address), Value::Text(user));
                values.extend([address, address, user]);
                values.extend(of_its.into_iter().flat_map(|(_, values)| values));
            } else {
                let Some((condition, more)) = of_its else { return Ok(Vec::new()) };
                of_messages = condition;
                values.extend(more);
            }
            // Last of all: what a message has to be asked for is asked of what is wanted otherwise alone.
            conditions.push(&of_messages);
        }
    }
    let conditions = conditions.join(" AND ");
    if !is_newest {
        return newest(database, &conditions, &values, limit, Known::OfEach);
    }
    let mut tried = newest(database, &conditions, &values, limit, Known::No)?;
    add_messages(database, &mut tried)?;
    Ok(tried)
}

/// Whether rows come with what is known of their messages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    OfEach,
    No,
}

/// The newest `limit` attempts that meet these conditions.
fn newest(
    database: &mut dyn Database,
    conditions: &str,
    values: &[Value<'_>],
    limit: usize,
    messages: Known,
) -> Result<Vec<Tried>, DatabaseError> {
    let dialect = database.dialect();
    let (known, join) = match messages {
        Known::OfEach => ("m.header_from, m.subject", "LEFT JOIN messages m ON m.identity = a.identity"),
        Known::No => ("NULL, NULL", ""),
    };
    let sql = format!(
        "SELECT {}, {}, {}, {}, {}, a.message_id, a.role, a.imap_user, a.mailbox, a.recipient, a.queue_id, a.host, \
         CASE WHEN a.ended_at IS NULL THEN 0 ELSE 1 END, a.outcome, a.stages, {known} \
         FROM (SELECT * FROM attempts a WHERE {conditions} \
         ORDER BY a.started_at DESC, a.attempt DESC, a.copy_key DESC LIMIT {limit}) a {join} \
         ORDER BY a.started_at DESC, a.attempt DESC, a.copy_key DESC",
        dialect.microseconds("a.started_at"),
        dialect.uuid("a.attempt"),
        dialect.hex("a.copy_key"),
        dialect.hex("a.identity"),
        dialect.hex("a.lock_digest"),
    );
    database.select("reading what was tried", &sql, values)?.iter().map(tried).collect()
}

/// The newest `limit` attempts, of those that began since a moment: for who asks again and again, so that on MySQL those of a host
/// whose clock is wrong by more than a minute are missing.
pub(crate) fn since(database: &mut dyn Database, since: i64, limit: usize) -> Result<Vec<Tried>, DatabaseError> {
    let (condition, values) = attempts_since_by(database.dialect(), since, CLOCKS_DIFFER_NOW);
    newest(database, condition, &values, limit, Known::OfEach)
}

fn tried(row: &Row) -> Result<Tried, DatabaseError> {
    let took = |json: &str| {
        let stages = stage_times::read(json);
        (!stages.is_empty()).then(|| stages.iter().map(|(_, took)| took).sum())
    };
    Ok(Tried {
        place: Place {
            began_at: columns::number(row, 0)?,
            attempt: Uuid::from_bytes(row.digest(1)?),
            key: row.digest(2)?,
        },
        identity: row.digest(3)?,
        lock: LockName::from_digest(row.digest(4)?),
        message_id: columns::owned(row, 5)?,
        role: columns::role(row, 6)?,
        user: columns::owned(row, 7)?,
        mailbox: columns::owned(row, 8)?,
        recipient: columns::owned(row, 9)?,
        queue_id: columns::optional(row, 10),
        host: columns::owned(row, 11)?,
        outcome: (columns::number::<u8>(row, 12)? == 1).then(|| columns::outcome(row, 13)),
        took: row.text(14).and_then(took),
        from: columns::optional(row, 15),
        subject: columns::optional(row, 16),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_slice_is_wider_after_a_quick_one_and_narrower_after_a_long_one() {
        let just = Duration::from_nanos(1);
        for (took, next) in [
            (QUICK - just, 4 * 32),
            (QUICK, 2 * 32),
            (SHORT - just, 2 * 32),
            (SHORT, 32),
            (LONG - just, 32),
            (LONG, 16),
        ] {
            let mut width = Width { now: 32 * NARROWEST, ..Width::of(Dialect::Postgresql) };
            width.go_on(took);
            assert_eq!(width.now, next * NARROWEST, "{took:?}");
        }
        // Neither without end.
        let mut width = Width::of_queue_ids();
        assert_eq!(width.now, 16 * 60_000_000);
        width.go_on(LONG);
        assert_eq!(width.now, 16 * NARROWEST);
        for _ in 0..4 {
            width.go_on(Duration::ZERO);
        }
        assert_eq!(width.now, WIDEST);
    }

    #[test]
    fn all_of_a_time_is_wanted_where_nothing_else_is_said_or_recipients_copies_alone() {
        let all = Wanted::default();
        assert!(all.is_most());
        assert!(Wanted { role: Some(Role::Recipient), ..all.clone() }.is_most());
        for narrower in [
            Wanted { role: Some(Role::Sender), ..all.clone() },
            Wanted { by: Some(By::Piece("x".into())), ..all.clone() },
            Wanted { came: Some(Came::Delivered), ..all.clone() },
            Wanted { host: Some("mx1".into()), ..all.clone() },
            Wanted { user: Some("doug".into()), ..all },
        ] {
            assert!(!narrower.is_most(), "{narrower:?}");
        }
    }

    #[test]
    fn a_search_ends_where_the_server_takes_too_long_and_fails_where_it_fails() {
        let failed = |failure| Err::<u8, _>(DatabaseError::new(failure, "looking", "x"));
        assert_eq!(in_time(Ok(1)).unwrap(), Some(1));
        assert_eq!(in_time(failed(DatabaseFailure::TimedOut)).unwrap(), None);
        let error = in_time(failed(DatabaseFailure::AccessDenied)).unwrap_err();
        assert_eq!(error.failure, DatabaseFailure::AccessDenied);
    }
}
