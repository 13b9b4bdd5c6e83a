//! What was tried, the newest first, and the few figures above it: what somebody wants to see who has no Message-ID yet.
//!
//! PostgreSQL finds a span of time by a block range index, which has no order; MySQL and SQLite find attempts by their UUIDs. So the
//! time is walked backwards in slices, each four times as wide as the one before it, until there is enough to show, or enough time was spent: the answer
//! says how far back it has looked.

use super::time_span::{self, attempts_before, attempts_since};
use super::{AttemptResult, Database, Outcome, columns, stage_times};
use crate::database::{DatabaseError, Dialect, Row, Value};
use crate::lock::LockName;
use crate::message::Role;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// How wide the first slice is, in microseconds, and how much wider each is than the one before it.
const FIRST_SLICE: i64 = 60_000_000;
const WIDER: i64 = 4;
/// After so long without an answer that is full, no further slice is read.
const LONG_ENOUGH: Duration = Duration::from_secs(3);

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
    QueueId(String),
    /// An envelope recipient, a mailbox's user or an envelope sender: as the ledger keeps addresses, and as it was given.
    Address {
        address: String,
        user: String,
    },
}

/// Where an attempt at a copy stands among all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) began_at: i64,
    pub(crate) attempt: Uuid,
    pub(crate) key: [u8; 32],
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

/// At most `limit` attempts that are wanted, the newest first.
pub(crate) fn find(database: &mut dyn Database, wanted: &Wanted, limit: usize) -> Result<FoundTried, DatabaseError> {
    let began = Instant::now();
    let now = time_span::now(database)?;
    // An attempt may have begun in this very moment.
    let newest = wanted.until.unwrap_or_else(|| now.saturating_add(FIRST_SLICE));
    let newest = wanted.before.map_or(newest, |place| newest.min(place.began_at.saturating_add(1)));
    // What has an index of its own is found at once, however old it is.
    let indexed = matches!(wanted.by, Some(By::Lock(_)));
    let since = if indexed { 0 } else { wanted.since };
    let (mut end, mut width) = (newest, if indexed { i64::MAX } else { FIRST_SLICE });
    let mut tried: Vec<Tried> = Vec::new();
    while end > since && tried.len() <= limit {
        let begin = end.saturating_sub(width).max(since);
        let sql = Slice { begin, end, limit: limit + 1 - tried.len() };
        tried.extend(slice(database, wanted, &sql)?);
        end = begin;
        width = width.saturating_mul(WIDER);
        if tried.len() <= limit && end > since && began.elapsed() > LONG_ENOUGH {
            return Ok(FoundTried { tried, more: false, looked_back_to: Some(end) });
        }
    }
    let more = tried.len() > limit;
    tried.truncate(limit);
    Ok(FoundTried { tried, more, looked_back_to: None })
}

struct Slice {
    begin: i64,
    end: i64,
    limit: usize,
}

fn slice(database: &mut dyn Database, wanted: &Wanted, slice: &Slice) -> Result<Vec<Tried>, DatabaseError> {
    let dialect = database.dialect();
    let (since, mut values) = attempts_since(dialect, slice.begin);
    let (before, more) = attempts_before(dialect, slice.end);
    values.extend(more);
    let mut conditions = vec![since, before];
    if let Some(Place { began_at, attempt, key }) = &wanted.before {
        conditions.push("(a.started_at, a.attempt, a.copy_key) < (?, ?, ?)");
        values.extend([Value::Moment(*began_at), Value::Uuid(*attempt), Value::Bytes(key)]);
    }
    match &wanted.by {
        None => {}
        Some(By::Lock(lock)) => {
            conditions.push("a.lock_digest = ?");
            values.push(Value::Bytes(lock.digest()));
        }
        Some(By::QueueId(queue_id)) => {
            conditions.push("a.queue_id = ?");
            values.push(Value::Text(queue_id));
        }
        Some(By::Address { address, user }) => {
            conditions.push("(a.recipient = ? OR a.imap_user = ? OR a.imap_user = ? OR lower(m.sender) = ?)");
            let (address, user) = (Value::Text(address), Value::Text(user));
            values.extend([address, address, user, address]);
        }
    }
    for (condition, text) in [("a.host = ?", &wanted.host), ("a.imap_user = ?", &wanted.user)] {
        if let Some(text) = text {
            conditions.push(condition);
            values.push(Value::Text(text));
        }
    }
    if let Some(role) = wanted.role {
        conditions.push("a.role = ?");
        values.push(Value::Text(role.as_str()));
    }
    conditions.extend(wanted.came.map(outcome_is));
    let sql = format!(
        "SELECT {}, {}, {}, {}, {}, a.message_id, a.role, a.imap_user, a.mailbox, a.recipient, a.queue_id, a.host, \
         CASE WHEN a.ended_at IS NULL THEN 0 ELSE 1 END, a.outcome, a.stages, m.header_from, m.subject \
         FROM attempts a LEFT JOIN messages m ON m.identity = a.identity WHERE {} \
         ORDER BY a.started_at DESC, a.attempt DESC, a.copy_key DESC LIMIT {}",
        dialect.microseconds("a.started_at"),
        dialect.uuid("a.attempt"),
        dialect.hex("a.copy_key"),
        dialect.hex("a.identity"),
        dialect.hex("a.lock_digest"),
        conditions.join(" AND "),
        slice.limit
    );
    database.select("reading what was tried", &sql, &values)?.iter().map(tried).collect()
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

/// A copy that is owed now.
#[derive(Clone, Debug)]
pub(crate) struct OwedCopy {
    pub(crate) identity: [u8; 32],
    pub(crate) user: String,
    pub(crate) mailbox: String,
    pub(crate) reason: Option<String>,
    /// When that was found out, in microseconds since 1970.
    pub(crate) since: i64,
    pub(crate) subject: Option<String>,
}

/// The copies that are owed, the newest first, and whether there are more.
pub(crate) fn owed(database: &mut dyn Database, limit: usize) -> Result<(Vec<OwedCopy>, bool), DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT {}, c.imap_user, c.mailbox, c.reason, {}, m.subject FROM copies c JOIN messages m ON m.id = c.message \
         WHERE c.state = 'owed' ORDER BY c.updated_at DESC LIMIT {}",
        dialect.hex("m.identity"),
        dialect.microseconds("c.updated_at"),
        limit + 1
    );
    let rows = database.select("reading what is owed", &sql, &[])?;
    let more = rows.len() > limit;
    let owed = rows.iter().take(limit).map(|row| {
        Ok(OwedCopy {
            identity: row.digest(0)?,
            user: columns::owned(row, 1)?,
            mailbox: columns::owned(row, 2)?,
            reason: columns::optional(row, 3),
            since: columns::number(row, 4)?,
            subject: columns::optional(row, 5),
        })
    });
    Ok((owed.collect::<Result<_, DatabaseError>>()?, more))
}

/// How recipients' copies came out that were tried since a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) delivered: u64,
    pub(crate) refused: u64,
}

/// Counts the attempts at recipients' copies since a moment.
pub(crate) fn count(database: &mut dyn Database, since: i64) -> Result<Counted, DatabaseError> {
    let (since, values) = attempts_since(database.dialect(), since);
    let number = |came| format!("coalesce(sum(CASE WHEN {} THEN 1 ELSE 0 END), 0)", outcome_is(came));
    let sql = format!(
        "SELECT {}, {} FROM attempts a WHERE {since} AND a.role = 'recipient'",
        number(Came::Delivered),
        number(Came::Refused)
    );
    let rows = database.select("counting attempts", &sql, &values)?;
    let counted = |row: &Row| Ok(Counted { delivered: columns::number(row, 0)?, refused: columns::number(row, 1)? });
    rows.first().map_or(Ok(Counted::default()), counted)
}

/// How many recipients' copies were put off since a moment, and are neither there by now nor refused.
pub(crate) fn deferred(database: &mut dyn Database, since: i64) -> Result<u64, DatabaseError> {
    let dialect = database.dialect();
    let (since, values) = attempts_since(dialect, since);
    let distinct = match dialect {
        Dialect::Sqlite => "count(DISTINCT hex(a.copy_key))",
        _ => "count(DISTINCT a.copy_key)",
    };
    let sql = format!(
        "SELECT {distinct} FROM attempts a WHERE {since} AND a.role = 'recipient' AND {} \
         AND NOT EXISTS (SELECT 1 FROM copies c WHERE c.copy_key = a.copy_key AND c.state = 'delivered') \
         AND NOT EXISTS (SELECT 1 FROM attempts b WHERE b.copy_key = a.copy_key AND b.outcome LIKE 'refused: %')",
        outcome_is(Came::Deferred)
    );
    columns::only_number(&database.select("counting what is deferred", &sql, &values)?)
}
