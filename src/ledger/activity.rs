//! Attempts, the newest first, and the few figures above them: for users who have no Message-ID yet.
//!
//! Attempts have an index on their time. Matches may be rare, so the search goes backwards in time, in slices of so
//! many attempts. It stops when there is enough to show, or enough time was spent: the answer says how far back it has
//! searched.

pub(crate) use super::time_span::AttemptCursor;

use super::time_span;
use super::{AttemptResult, Database, Outcome};
use crate::database::{DatabaseError, DatabaseFailure, Query, Value, columns_of, unreadable};
use crate::lock::LockName;
use crate::message::Role;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tracing::debug;

/// How many attempts or messages the first slice has, and the widest: a statement takes some milliseconds. Each slice has four
/// times as many as the one before.
pub(super) const FIRST_SLICE: usize = 2_000;
pub(super) const WIDEST_SLICE: usize = 16_000;
/// A minute, in microseconds.
pub(super) const MINUTE: i64 = 60_000_000;
/// How far a host's clock may be from the database's, in microseconds.
const CLOCKS_DIFFER: i64 = 60 * MINUTE;
/// After this long without a full answer, no further slice is read.
pub(super) const LONG_ENOUGH: Duration = Duration::from_millis(2500);

/// After this long the server ends the reading of one slice. The answer then says how far back the search is complete.
const LONGEST: Duration = Duration::from_secs(5);

/// The result of an attempt that a search selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultFilter {
    Delivered,
    Deferred,
    Refused,
    /// It has not ended, or its process died before it could record an end.
    Unended,
}

/// A search for attempts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) by: Option<SearchBy>,
    pub(crate) result: Option<ResultFilter>,
    pub(crate) role: Option<Role>,
    pub(crate) host: Option<String>,
    /// The mailbox's user.
    pub(crate) user: Option<String>,
    /// In microseconds since 1970; `until` is not included.
    pub(crate) since: i64,
    pub(crate) until: Option<i64>,
    /// Only attempts older than this one.
    pub(crate) before: Option<AttemptCursor>,
}

#[derive(Clone, Debug)]
pub(crate) enum SearchBy {
    /// The lock of a Message-ID. It has an index, so its age does not matter.
    Lock(LockName),
    /// With the lock of its message, if that is known: then its age does not matter.
    QueueId(String, Option<LockName>),
    /// An envelope recipient, a mailbox's user or an envelope sender: as the ledger keeps addresses, and as it was
    /// given.
    Address { address: String, user: String },
    /// A part of a subject, or of an author's name or address, of recorded messages; case does not matter.
    Piece(String),
}

impl Wanted {
    /// Adds the conditions on state, role, host and user, as SQL with its values.
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
        conditions.extend(self.result.map(outcome_is));
    }
}

/// An attempt at one copy, and what is known of its message.
#[derive(Clone, Debug)]
pub(crate) struct Tried {
    pub(crate) place: AttemptCursor,
    pub(crate) identity: [u8; 32],
    pub(crate) lock: LockName,
    pub(crate) message_id: String,
    pub(crate) role: Role,
    pub(crate) user: String,
    pub(crate) mailbox: String,
    pub(crate) recipient: String,
    pub(crate) queue_id: Option<String>,
    pub(crate) host: String,
    /// `None` if it has not ended.
    pub(crate) outcome: Option<Outcome>,
    /// Milliseconds of each stage of the attempt.
    stages: Vec<(&'static str, f64)>,
    /// Whether its message is recorded, as it is once a copy is delivered or owed: then its fields are known.
    pub(crate) is_recorded: bool,
    pub(crate) from: Option<String>,
    pub(crate) subject: Option<String>,
}

columns_of! { Tried:
    place, identity, lock, message_id, role, user, mailbox, recipient, queue_id, host, outcome, stages;
    is_recorded: false, from: None, subject: None
}

impl Tried {
    pub(crate) fn result(&self) -> AttemptResult {
        AttemptResult::of_copy(self.outcome.as_ref())
    }

    /// All stages of the attempt together, in milliseconds.
    pub(crate) fn took(&self) -> Option<f64> {
        (!self.stages.is_empty()).then(|| self.stages.iter().map(|(_, took)| took).sum())
    }
}

/// The result of a search, the newest attempt first.
#[derive(Clone, Debug)]
pub(crate) struct FoundTried {
    pub(crate) tried: Vec<Tried>,
    pub(crate) more: bool,
    /// How far back the search went, if it was cut short: in microseconds since 1970.
    pub(crate) looked_back_to: Option<i64>,
}

/// The condition on the ledger's outcome texts, as SQL.
pub(super) fn outcome_is(result: ResultFilter) -> &'static str {
    match result {
        ResultFilter::Delivered => {
            "a.outcome IN ('appended', 'adopted', 'already there', 'already there; not looked for', 'owed')"
        }
        ResultFilter::Deferred => "(a.outcome = 'busy' OR a.outcome LIKE 'deferred: %')",
        ResultFilter::Refused => "a.outcome LIKE 'refused: %'",
        ResultFilter::Unended => "(a.ended_at IS NULL OR a.outcome = 'died; its copy was looked for')",
    }
}

impl SearchBy {
    /// Whether it has an index of its own, so that a match is found at once, however old it is.
    fn is_indexed(&self) -> bool {
        matches!(self, Self::Lock(_) | Self::QueueId(_, Some(_)))
    }
}

/// Whether the message of an attempt has this piece in its subject or author. It reads one row by its key, so a slice
/// costs no more than its attempts. It is no EXISTS, which a server may turn into a scan of all messages.
const OF_A_PIECE: &str = "(SELECT CASE WHEN lower(m.subject) LIKE ? ESCAPE '!' OR lower(m.header_from) LIKE ? ESCAPE '!' \
                          THEN 1 ELSE 0 END FROM messages m WHERE m.identity = a.identity) = 1";

/// The lock of the message that has this queue id, and that arrived at this time by its host's clock. `None` also if
/// the search takes too long.
pub(crate) fn lock_of_queue_id(
    database: &mut dyn Database,
    queue_id: &str,
    arrived: i64,
) -> Result<Option<LockName>, DatabaseError> {
    database.limit_statement_time(LONGEST);
    let sql = format!(
        "SELECT {} FROM attempts a WHERE a.started_at >= ? AND a.started_at < ? AND a.queue_id = ? ORDER BY a.started_at LIMIT 1",
        database.dialect().hex("a.lock_digest")
    );
    let newest = time_span::now(database)?.saturating_add(MINUTE);
    // Nearly all messages are tried at once, and nearly all clocks agree.
    let usual = (arrived.saturating_sub(MINUTE), arrived.saturating_add(4 * MINUTE));
    for (since, until) in [usual, (arrived.saturating_sub(CLOCKS_DIFFER), newest)] {
        let values = [Value::Moment(since), Value::Moment(until), Value::Text(queue_id)];
        match in_time(database.query_first("looking for a queue id", &sql, &values))? {
            Some(None) => {}
            found => return Ok(found.flatten()),
        }
    }
    Ok(None)
}

/// The beginning of the slice with so many of the attempts from a time up to, not including, another one: those that
/// began last. If there are fewer, it is the beginning of that time.
fn begin_of_slice(
    database: &mut dyn Database,
    (since, before): (i64, i64),
    attempts: usize,
) -> Result<i64, DatabaseError> {
    let sql = format!(
        "SELECT {} FROM attempts WHERE started_at >= ? AND started_at < ? ORDER BY started_at DESC LIMIT 1 OFFSET {attempts}",
        database.dialect().microseconds("started_at")
    );
    let doing = "looking how far so many attempts reach";
    let begin = database.query_first(doing, &sql, &[Value::Moment(since), Value::Moment(before)])?;
    Ok(begin.unwrap_or(since))
}

/// The result, or `None` if the server has ended the statement because it took too long.
pub(crate) fn in_time<T>(read: Result<T, DatabaseError>) -> Result<Option<T>, DatabaseError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.failure == DatabaseFailure::TimedOut => {
            debug!(%error, "a search ends here");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// At most `limit` matching attempts, the newest first.
pub(crate) fn find(database: &mut dyn Database, wanted: &Wanted, limit: usize) -> Result<FoundTried, DatabaseError> {
    let mut found = search(database, wanted, limit)?;
    add_messages(database, &mut found.tried)?;
    Ok(found)
}

fn search(database: &mut dyn Database, wanted: &Wanted, limit: usize) -> Result<FoundTried, DatabaseError> {
    let began = Instant::now();
    database.limit_statement_time(LONGEST);
    let now = time_span::now(database)?;
    // An attempt may have begun at this very moment.
    let newest = wanted.until.unwrap_or_else(|| now.saturating_add(MINUTE));
    let newest = wanted.before.map_or(newest, |place| newest.min(place.began_at.saturating_add(1)));
    let indexed = wanted.by.as_ref().is_some_and(SearchBy::is_indexed);
    let is_short_queue_id = matches!(wanted.by, Some(SearchBy::QueueId(_, None)));
    let since = if indexed { 0 } else { wanted.since };
    let (mut end, mut width) = (newest, FIRST_SLICE);
    let mut tried: Vec<Tried> = Vec::new();
    while end > since && tried.len() <= limit {
        let missing = limit + 1 - tried.len();
        let read = |database: &mut dyn Database| {
            // With an index of its own, the whole time is read at once.
            let begin = if indexed { since } else { begin_of_slice(database, (since, end), width)? };
            Ok((begin, slice(database, wanted, (begin, end), missing)?))
        };
        let Some((begin, more)) = in_time(read(database))? else {
            return Ok(FoundTried { tried, more: false, looked_back_to: Some(end.min(now)) });
        };
        tried.extend(more);
        (end, width) = (begin, (4 * width).min(WIDEST_SLICE));
        if is_short_queue_id && let Some(newest) = tried.first().map(|one| one.lock) {
            // A short queue id is reused for other messages later. The newest message is meant, and older attempts were
            // not searched.
            tried.retain(|one| one.lock == newest);
            let more = tried.len() > limit;
            tried.truncate(limit);
            let oldest = tried.last().map(|oldest| oldest.place.began_at);
            return Ok(FoundTried { tried, more, looked_back_to: oldest.filter(|oldest| !more && *oldest > since) });
        }
        if tried.len() <= limit && end > since && began.elapsed() > LONG_ENOUGH {
            return Ok(FoundTried { tried, more: false, looked_back_to: Some(end) });
        }
    }
    let more = tried.len() > limit;
    tried.truncate(limit);
    Ok(FoundTried { tried, more, looked_back_to: None })
}

/// The newest `limit` matching attempts, of those that began from a time up to, not including, another one.
fn slice(
    database: &mut dyn Database,
    wanted: &Wanted,
    (begin, end): (i64, i64),
    limit: usize,
) -> Result<Vec<Tried>, DatabaseError> {
    let pattern;
    let mut conditions = vec!["a.started_at >= ? AND a.started_at < ?"];
    let mut values = vec![Value::Moment(begin), Value::Moment(end)];
    if let Some(before) = &wanted.before {
        conditions.push("(a.started_at, a.attempt, a.copy_key) < (?, ?, ?)");
        values.extend(before.values());
    }
    wanted.narrow(&mut conditions, &mut values);
    let (queue_id, lock) = match &wanted.by {
        Some(SearchBy::Lock(lock)) => (None, Some(lock)),
        Some(SearchBy::QueueId(queue_id, lock)) => (Some(queue_id), lock.as_ref()),
        _ => (None, None),
    };
    if let Some(queue_id) = queue_id {
        conditions.push("a.queue_id = ?");
        values.push(Value::Text(queue_id));
    }
    if let Some(lock) = lock {
        conditions.push("a.lock_digest = ?");
        values.push(Value::Bytes(lock.digest()));
    }
    match &wanted.by {
        Some(SearchBy::Address { address, user }) => {
            conditions.push("(a.recipient = ? OR a.imap_user IN (?, ?) OR lower(a.sender) = ?)");
            let (address, user) = (Value::Text(address), Value::Text(user));
            values.extend([address, address, user, address]);
        }
        Some(SearchBy::Piece(piece)) => {
            pattern = like(piece);
            // Last, so that it is evaluated only for attempts that meet the others.
            conditions.push(OF_A_PIECE);
            values.extend([Value::Text(&pattern); 2]);
        }
        _ => {}
    }
    let dialect = database.dialect();
    let order = "ORDER BY a.started_at DESC, a.attempt DESC, a.copy_key DESC";
    let sql = format!(
        "SELECT {}, {}, {}, a.message_id, a.role, a.imap_user, a.mailbox, a.recipient, a.queue_id, a.host, a.outcome, a.stages \
         FROM (SELECT * FROM attempts a WHERE {} {order} LIMIT {limit}) a {order}",
        AttemptCursor::columns(dialect),
        dialect.hex("a.identity"),
        dialect.hex("a.lock_digest"),
        conditions.join(" AND "),
    );
    database.query("reading what was tried", &sql, &values)
}

/// The LIKE pattern for a text that contains this part.
pub(super) fn like(piece: &str) -> String {
    format!("%{}%", escaped(&piece.to_lowercase()))
}

/// A text within a LIKE pattern.
pub(super) fn escaped(text: &str) -> String {
    text.replace('!', "!!").replace('%', "!%").replace('_', "!_")
}

/// Adds the fields of the attempts' messages. Those of the newest attempts were usually recorded last, and are
/// adjacent: only the others are looked up one by one.
fn add_messages(database: &mut dyn Database, tried: &mut [Tried]) -> Result<(), DatabaseError> {
    let mut missing: BTreeSet<[u8; 32]> = tried.iter().map(|one| one.identity).collect();
    let last =
        format!("(SELECT identity, header_from, subject FROM messages ORDER BY id DESC LIMIT {})", 2 * missing.len());
    for from in [&last, "messages"] {
        if missing.is_empty() {
            break;
        }
        let sql = format!(
            "SELECT {}, m.header_from, m.subject FROM {from} m WHERE m.identity IN ({})",
            database.dialect().hex("m.identity"),
            vec!["?"; missing.len()].join(", ")
        );
        let values: Vec<Value<'_>> = missing.iter().map(|identity| Value::Bytes(identity)).collect();
        let rows: Vec<([u8; 32], Option<String>, Option<String>)> =
            database.query("reading whose messages these are", &sql, &values)?;
        for (identity, from, subject) in rows {
            missing.remove(&identity);
            for one in tried.iter_mut().filter(|one| one.identity == identity) {
                (one.is_recorded, one.from, one.subject) = (true, from.clone(), subject.clone());
            }
        }
    }
    Ok(())
}

/// The recent results for recipients' copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Attempts.
    pub(crate) delivered: u64,
    pub(crate) refused: u64,
    /// Copies that were deferred, and are by now neither delivered nor refused.
    pub(crate) deferred: u64,
}

/// Counts the results of recipients' copies since a time, and the copies deferred since another time that still wait.
pub(crate) fn count(database: &mut dyn Database, since: i64, deferred_since: i64) -> Result<Counted, DatabaseError> {
    let number = |result| format!("coalesce(sum(CASE WHEN {} THEN 1 ELSE 0 END), 0)", outcome_is(result));
    let sql = format!(
        "SELECT {}, {} FROM attempts a WHERE a.started_at >= ? AND a.role = 'recipient'",
        number(ResultFilter::Delivered),
        number(ResultFilter::Refused)
    );
    let counted = database.query_first("counting attempts", &sql, &[Value::Moment(since)])?;
    let (delivered, refused) = counted.ok_or_else(|| unreadable("an answer without a row".into()))?;
    // Nearly all deferred copies are delivered soon after, within the rows that are read anyway. Only the rest are
    // looked up.
    let any = |condition: &str| format!("max(CASE WHEN {condition} THEN 1 ELSE 0 END)");
    let sql = format!(
        "SELECT count(*) FROM (SELECT a.copy_key FROM attempts a WHERE a.started_at >= ? AND a.role = 'recipient' \
         GROUP BY a.copy_key HAVING {} = 1 AND {} = 0) k \
         WHERE NOT EXISTS (SELECT 1 FROM copies c WHERE c.copy_key = k.copy_key AND c.state = 'delivered') \
         AND NOT EXISTS (SELECT 1 FROM attempts b WHERE b.copy_key = k.copy_key AND b.outcome LIKE 'refused: %')",
        any(outcome_is(ResultFilter::Deferred)),
        any("a.outcome IN ('appended', 'adopted', 'already there', 'already there; not looked for') \
             OR a.outcome LIKE 'refused: %'"),
    );
    let deferred = database.query_number("counting what is deferred", &sql, &[Value::Moment(deferred_since)])?;
    Ok(Counted { delivered, refused, deferred: deferred.unsigned_abs() })
}
