//! Removes old rows, so that deliveries never notice.
//!
//! Nothing that a delivery may still need goes: an attempt is looked at by deliveries only while it is open, and an open one
//! stays. A message goes only under its own lock. Whoever looks it up, or records a copy of it, holds that lock: so no
//! delivery sees half of it, or records a copy of a message that has just gone. Whoever is about to (its attempt is in the
//! journal before it takes the lock) is seen by the look under the lock, which has a snapshot of its own; whoever comes
//! after that look waits for us or is put off, and finds a message that nobody has heard of.

use crate::cli::complain;
use crate::cli::pages::{self, Of, Page, Pages};
use crate::database::{Database, DatabaseError, DatabaseFailure, Row, Value};
use crate::ledger::Record;
use crate::lock::{Acquired, LockName};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Rows of a batch: some milliseconds of a transaction.
const BATCH: usize = 500;

/// The same for sources, which may have megabytes each.
const SOURCES: usize = 50;

/// A message `m` with a copy that is owed.
const OWED: &str = "EXISTS (SELECT 1 FROM copies c WHERE c.message = m.id AND c.state = 'owed')";

/// A message `m` that was heard of since a moment (twice asked for), or with an attempt that has not ended.
const HEARD_OF: &str = "(EXISTS (SELECT 1 FROM copies c WHERE c.message = m.id AND c.updated_at >= ?) \
     OR EXISTS (SELECT 1 FROM attempts a WHERE a.lock_digest = m.lock_digest AND a.identity = m.identity \
                AND (a.ended_at IS NULL OR a.started_at >= ?)))";

/// What is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Attempts,
    Sources,
    Messages,
}

impl Kind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::Sources => "sources",
            Self::Messages => "messages",
        }
    }

    /// Where it is removed from.
    fn tables(self) -> &'static [&'static str] {
        match self {
            Self::Attempts => &["attempts"],
            Self::Sources => &["message_sources"],
            Self::Messages => &["attempts", "message_sources", "copies", "messages"],
        }
    }
}

/// How much was, and what was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Forgotten {
    /// What is older than this moment, in microseconds since 1970.
    pub(super) before: i64,
    pub(super) removed: u64,
    /// Kept: attempts that never ended.
    pub(super) open: u64,
    /// Kept: messages, or their sources, with a copy that is owed.
    pub(super) owed: u64,
    /// Kept: messages that were heard of since, or with an attempt that never ended.
    pub(super) heard_of: u64,
    /// Kept: messages whose lock was held.
    pub(super) locked: u64,
}

impl Forgotten {
    /// What was kept, for people.
    pub(super) fn kept(&self) -> String {
        let kept = [
            (self.open, "that never ended"),
            (self.owed, "with a copy that is owed"),
            (self.heard_of, "heard of since, or with an attempt that never ended"),
            (self.locked, "being delivered just now"),
        ];
        let kept = kept.iter().filter(|(number, _)| *number > 0);
        kept.map(|(number, why)| format!("{number} {why}")).collect::<Vec<_>>().join(", ")
    }
}

/// What [`forget`] would do.
pub(super) fn count(database: &mut dyn Database, kind: Kind, before: i64) -> Result<Forgotten, DatabaseError> {
    let moment = Value::Moment(before);
    let (removed, values) = match kind {
        Kind::Attempts => {
            let (old, values) = pages::attempts_before(database.dialect(), before);
            (format!("attempts a WHERE {old} AND a.ended_at IS NOT NULL"), values)
        }
        Kind::Sources => (
            format!("message_sources s JOIN messages m ON m.id = s.message_id WHERE m.recorded_at < ? AND NOT {OWED}"),
            vec![moment],
        ),
        Kind::Messages => {
            (format!("messages m WHERE m.recorded_at < ? AND NOT {OWED} AND NOT {HEARD_OF}"), vec![moment; 3])
        }
    };
    let removed = number(database, &removed, &values)?;
    Ok(Forgotten { removed, ..kept(database, kind, before)? })
}

/// What is older, and stays.
fn kept(database: &mut dyn Database, kind: Kind, before: i64) -> Result<Forgotten, DatabaseError> {
    let moment = Value::Moment(before);
    let mut kept = Forgotten { before, ..Forgotten::default() };
    let old = "messages m WHERE m.recorded_at < ?";
    match kind {
        Kind::Attempts => {
            let (old, values) = pages::attempts_before(database.dialect(), before);
            kept.open = number(database, &format!("attempts a WHERE {old} AND a.ended_at IS NULL"), &values)?;
        }
        Kind::Sources => {
            let sources =
                format!("message_sources s JOIN messages m ON m.id = s.message_id WHERE m.recorded_at < ? AND {OWED}");
            kept.owed = number(database, &sources, &[moment])?;
        }
        Kind::Messages => {
            kept.owed = number(database, &format!("{old} AND {OWED}"), &[moment])?;
            kept.heard_of = number(database, &format!("{old} AND NOT {OWED} AND {HEARD_OF}"), &[moment; 3])?;
        }
    }
    Ok(kept)
}

fn number(database: &mut dyn Database, of: &str, values: &[Value<'_>]) -> Result<u64, DatabaseError> {
    let rows = database.select("counting", &format!("SELECT count(*) FROM {of}"), values)?;
    Ok(rows.first().map(|row| row.value(0)).transpose()?.flatten().unwrap_or_default())
}

/// Removes what is older than `before`, in microseconds since 1970, and rests for `pause` after each batch.
pub(super) fn forget(
    database: &mut dyn Database,
    kind: Kind,
    before: i64,
    pause: Duration,
) -> Result<Forgotten, DatabaseError> {
    // Whoever lacks the right hears of it, even where there is nothing to remove.
    for table in kind.tables() {
        database.change("asking for the right to forget", &format!("DELETE FROM {table} WHERE 1 = 0"), &[])?;
    }
    let mut batches = Batches { kind, pause, told: Instant::now(), forgotten: Forgotten::default() };
    match kind {
        Kind::Attempts => attempts(database, before, &mut batches)?,
        Kind::Sources => sources(database, before, &mut batches)?,
        Kind::Messages => messages(database, before, &mut batches)?,
    }
    let Forgotten { removed, locked, .. } = batches.forgotten;
    Ok(Forgotten { removed, locked, ..kept(database, kind, before)? })
}

/// What happens between two batches.
struct Batches {
    kind: Kind,
    pause: Duration,
    told: Instant,
    forgotten: Forgotten,
}

impl Batches {
    fn next(&mut self) {
        if self.told.elapsed() >= Duration::from_secs(2) && std::io::stderr().is_terminal() {
            complain(&format!("{} {} removed …", self.forgotten.removed, self.kind.as_str()));
            self.told = Instant::now();
        }
        if !self.pause.is_zero() {
            std::thread::sleep(self.pause);
        }
    }
}

fn attempts(database: &mut dyn Database, before: i64, batches: &mut Batches) -> Result<(), DatabaseError> {
    let mut pages = Pages::new(Of::Attempts, 0, before, BATCH);
    while let Some(page) = pages.next(database, "a.role", "a.ended_at IS NOT NULL", &[])? {
        let Some((range, [first, last])) = pages::attempts_of(database.dialect(), &page)? else { continue };
        // By the range that the page covers, which an index finds on each engine; in it, only what the page was about.
        let sql = format!("DELETE FROM attempts WHERE {range} AND ended_at IS NOT NULL AND started_at < ?");
        let values = [first, last, Value::Moment(before)];
        batches.forgotten.removed += database.change("forgetting attempts", &sql, &values)?;
        batches.next();
    }
    Ok(())
}

fn sources(database: &mut dyn Database, before: i64, batches: &mut Batches) -> Result<(), DatabaseError> {
    let select = format!(
        "SELECT s.message_id FROM message_sources s JOIN messages m ON m.id = s.message_id \
         WHERE s.message_id > ? AND m.recorded_at < ? AND NOT {OWED} ORDER BY s.message_id LIMIT {SOURCES}"
    );
    let mut after = i64::MIN;
    loop {
        let doing = "forgetting sources";
        let rows = database.select(doing, &select, &[Value::Integer(after), Value::Moment(before)])?;
        let ids = rows.iter().map(|row| row.value::<i64>(0).map(Option::unwrap_or_default));
        let ids = ids.collect::<Result<Vec<i64>, _>>()?;
        let Some(last) = ids.last() else { return Ok(()) };
        after = *last;
        let values: Vec<Value<'_>> = ids.iter().map(|id| Value::Integer(*id)).collect();
        // A copy may have become owed since.
        let delete = format!(
            "DELETE FROM message_sources WHERE message_id IN ({}) AND NOT EXISTS \
             (SELECT 1 FROM copies c WHERE c.message = message_sources.message_id AND c.state = 'owed')",
            vec!["?"; ids.len()].join(", ")
        );
        batches.forgotten.removed += database.change(doing, &delete, &values)?;
        batches.next();
    }
}

fn messages(database: &mut dyn Database, before: i64, batches: &mut Batches) -> Result<(), DatabaseError> {
    let dialect = database.dialect();
    let columns = format!("{}, {}", dialect.hex("m.identity"), dialect.hex("m.lock_digest"));
    let condition = format!("NOT {OWED} AND NOT {HEARD_OF}");
    let moment = Value::Moment(before);
    let mut pages = Pages::new(Of::Messages, 0, before, BATCH);
    while let Some(Page { rows, first }) = pages.next(database, &columns, &condition, &[moment; 2])? {
        for row in &rows {
            let old = Old::read(row, first)?;
            match message(database, &old, before) {
                Ok(Came::Removed) => batches.forgotten.removed += 1,
                Ok(Came::Locked) => batches.forgotten.locked += 1,
                Ok(Came::HeardOf) => {}
                // Another's transaction was in the way (what it is, the server knows): next time.
                Err(error) if error.failure == DatabaseFailure::Contention => batches.forgotten.locked += 1,
                Err(error) => return Err(error),
            }
        }
        batches.next();
    }
    Ok(())
}

/// A message that may go.
struct Old {
    id: i64,
    identity: [u8; 32],
    lock: LockName,
}

impl Old {
    /// From a row of a walk through messages: the id, and from `first` on what was asked for.
    fn read(row: &Row, first: usize) -> Result<Self, DatabaseError> {
        let lock = LockName::from_digest(row.digest(first + 1)?);
        Ok(Self { id: row.value(1)?.unwrap_or_default(), identity: row.digest(first)?, lock })
    }
}

/// What came of one message.
enum Came {
    Removed,
    /// Its lock was held.
    Locked,
    /// It was heard of in the meantime.
    HeardOf,
}

fn message(database: &mut dyn Database, old: &Old, before: i64) -> Result<Came, DatabaseError> {
    if !matches!(database.acquire(&old.lock, Duration::ZERO)?, Acquired::Held) {
        return Ok(Came::Locked);
    }
    let came = message_under_lock(database, old, before);
    let released = database.release(&old.lock);
    came.and_then(|came| released.map(|()| came))
}

fn message_under_lock(database: &mut dyn Database, old: &Old, before: i64) -> Result<Came, DatabaseError> {
    let doing = "forgetting a message";
    let (id, moment) = (Value::Integer(old.id), Value::Moment(before));
    // A new statement, and so a new snapshot: what was journalled before we had the lock is in it.
    let again = format!("SELECT m.id FROM messages m WHERE m.id = ? AND NOT {OWED} AND NOT {HEARD_OF}");
    if database.select(doing, &again, &[id, moment, moment])?.is_empty() {
        return Ok(Came::HeardOf);
    }
    // Children before their parent. An attempt that began since the look stays, with its delivery behind our lock.
    database.change_together(
        doing,
        &[
            (
                "DELETE FROM attempts WHERE lock_digest = ? AND identity = ? AND ended_at IS NOT NULL AND started_at < ?",
                &[Value::Bytes(old.lock.digest()), Value::Bytes(&old.identity), moment],
            ),
            ("DELETE FROM message_sources WHERE message_id = ?", &[id]),
            ("DELETE FROM copies WHERE message = ?", &[id]),
            ("DELETE FROM messages WHERE id = ?", &[id]),
        ],
    )?;
    // On PostgreSQL the lock is the transaction, and to record nothing is to commit it; letting go would roll it back.
    database.record(&Record::default())?;
    Ok(Came::Removed)
}
