//! The statements of `operations::prune`: which rows are old enough and not needed any more, and their removal in small batches.

use super::time_span::{self, Page, Pages, Table};
use super::{Database, columns};
use crate::database::{DatabaseError, Value};
use crate::lock::LockName;
use uuid::Uuid;

/// Rows of a batch: a transaction of some milliseconds.
const BATCH: usize = 500;

/// The same for sources, which may be large.
const SOURCES: usize = 50;

/// A message `m` with a copy that is owed.
const OWED: &str = "EXISTS (SELECT 1 FROM copies c WHERE c.message = m.id AND c.state = 'owed')";

/// A message `m` with a copy or an attempt since a moment (two values), or an attempt that has not ended.
const HEARD_OF: &str = "(EXISTS (SELECT 1 FROM copies c WHERE c.message = m.id AND c.updated_at >= ?) \
     OR EXISTS (SELECT 1 FROM attempts a WHERE a.lock_digest = m.lock_digest AND a.identity = m.identity \
                AND (a.ended_at IS NULL OR a.started_at >= ?)))";

/// Messages with their sources.
const WITH_SOURCE: &str = "message_sources s JOIN messages m ON m.id = s.message_id";

fn count(database: &mut dyn Database, of: &str, values: &[Value<'_>]) -> Result<u64, DatabaseError> {
    columns::only_number(&database.select("counting", &format!("SELECT count(*) FROM {of}"), values)?)
}

/// How many attempts from before a moment have ended, or have not.
pub(crate) fn count_attempts(database: &mut dyn Database, before: i64, ended: bool) -> Result<u64, DatabaseError> {
    let not = if ended { "NOT" } else { "" };
    count(database, &format!("attempts WHERE started_at < ? AND ended_at IS {not} NULL"), &[Value::Moment(before)])
}

/// How many sources there are of messages from before a moment: with a copy that is owed, or without.
pub(crate) fn count_sources(database: &mut dyn Database, before: i64, owed: bool) -> Result<u64, DatabaseError> {
    let not = if owed { "" } else { "NOT" };
    count(database, &format!("{WITH_SOURCE} WHERE m.recorded_at < ? AND {not} {OWED}"), &[Value::Moment(before)])
}

/// How many messages there are from before a moment with a copy that is owed.
pub(crate) fn count_owed_messages(database: &mut dyn Database, before: i64) -> Result<u64, DatabaseError> {
    count(database, &format!("messages m WHERE m.recorded_at < ? AND {OWED}"), &[Value::Moment(before)])
}

/// The same without such a copy: those that are [heard of](HEARD_OF) since, or those that are not.
pub(crate) fn count_messages(database: &mut dyn Database, before: i64, heard_of: bool) -> Result<u64, DatabaseError> {
    let not = if heard_of { "" } else { "NOT" };
    let old = format!("messages m WHERE m.recorded_at < ? AND NOT {OWED} AND {not} {HEARD_OF}");
    count(database, &old, &[Value::Moment(before); 3])
}

/// Fails where our role may not delete from these tables, even if nothing is old; deletes nothing.
pub(crate) fn try_right(database: &mut dyn Database, tables: &[&str]) -> Result<(), DatabaseError> {
    tables.iter().try_for_each(|table| {
        let sql = format!("DELETE FROM {table} WHERE 1 = 0");
        database.change("asking for the right to forget", &sql, &[]).map(drop)
    })
}

/// The attempts from before a moment that have ended.
pub(crate) struct OldAttempts {
    pages: Pages,
}

impl OldAttempts {
    pub(crate) fn before(before: i64) -> Self {
        Self { pages: Pages::new(Table::Attempts, 0, before, BATCH) }
    }

    /// Forgets the next of them, and says how many; `None` at the end.
    pub(crate) fn forget_some(&mut self, database: &mut dyn Database) -> Result<Option<u64>, DatabaseError> {
        let Some(page) = self.pages.next(database, "a.role", "a.ended_at IS NOT NULL", &[])? else { return Ok(None) };
        let Some([first, last]) = time_span::ends(&page)? else { return Ok(Some(0)) };
        let sql = "DELETE FROM attempts WHERE started_at >= ? AND started_at <= ? AND ended_at IS NOT NULL";
        database.change("forgetting attempts", sql, &[Value::Moment(first), Value::Moment(last)]).map(Some)
    }
}

/// The sources of messages from before a moment without a copy that is owed.
pub(crate) struct OldSources {
    before: i64,
    /// The last message that was looked at.
    last: i64,
}

impl OldSources {
    pub(crate) fn before(before: i64) -> Self {
        Self { before, last: i64::MIN }
    }

    /// Forgets the next of them, and says how many; `None` at the end.
    pub(crate) fn forget_some(&mut self, database: &mut dyn Database) -> Result<Option<u64>, DatabaseError> {
        let doing = "forgetting sources";
        let select = format!(
            "SELECT s.message_id FROM {WITH_SOURCE} \
             WHERE s.message_id > ? AND m.recorded_at < ? AND NOT {OWED} ORDER BY s.message_id LIMIT {SOURCES}"
        );
        let rows = database.select(doing, &select, &[Value::Integer(self.last), Value::Moment(self.before)])?;
        let ids = rows.iter().map(|row| columns::number(row, 0)).collect::<Result<Vec<i64>, _>>()?;
        let Some(last) = ids.last() else { return Ok(None) };
        self.last = *last;
        let values: Vec<Value<'_>> = ids.iter().map(|id| Value::Integer(*id)).collect();
        // A copy may have become owed since.
        let delete = format!(
            "DELETE FROM message_sources WHERE message_id IN ({}) AND NOT EXISTS \
             (SELECT 1 FROM copies c WHERE c.message = message_sources.message_id AND c.state = 'owed')",
            vec!["?"; ids.len()].join(", ")
        );
        database.change(doing, &delete, &values).map(Some)
    }
}

/// How many events are from before a moment.
pub(crate) fn count_events(database: &mut dyn Database, before: i64) -> Result<u64, DatabaseError> {
    count(database, "events WHERE created_at < ?", &[Value::Moment(before)])
}

/// The events from before a moment, and what subscribers were told of them, or are still to be told.
pub(crate) struct OldEvents {
    before: i64,
    /// The position of the last one that was looked at.
    last: i64,
    of_nothing: Option<OfNothing>,
}

/// Notifications whose events are gone, once the old events are. Whoever publishes while a subscription is deleted leaves some behind,
/// and so does whoever has events told once more that are forgotten at that moment: a notifier would find nothing to tell by them, and
/// the subscription would be due for ever.
struct OfNothing {
    /// The position from which on events may be left.
    left: i64,
    /// All subscriptions up to this one were looked at.
    looked_at: Uuid,
}

impl OldEvents {
    pub(crate) fn before(before: i64) -> Self {
        Self { before, last: 0, of_nothing: None }
    }

    /// Forgets the next of them, and says how many; `None` at the end, which is the first that is newer: positions are in
    /// the order of their commits, and what lies beyond is left to the next time. After the last of them, notifications of nothing go,
    /// which do not count.
    pub(crate) fn forget_some(&mut self, database: &mut dyn Database) -> Result<Option<u64>, DatabaseError> {
        let doing = "forgetting events";
        let page = format!(
            "SELECT position, CASE WHEN created_at < ? THEN 1 ELSE 0 END FROM events WHERE position > ? \
             ORDER BY position LIMIT {BATCH}"
        );
        let mut old = Vec::new();
        for row in database.select(doing, &page, &[Value::Moment(self.before), Value::Integer(self.last)])? {
            if columns::number::<i64>(&row, 1)? == 0 {
                break;
            }
            old.push(columns::number::<i64>(&row, 0)?);
        }
        let Some(last) = old.last() else {
            return Ok(self.forget_some_of_nothing(database)?.then_some(0));
        };
        // Anew each time: all of a run may take hours, and somebody subscribes meanwhile, and has old events told.
        let asked = format!("SELECT {} FROM subscriptions", database.dialect().uuid("id"));
        let rows = database.select(doing, &asked, &[])?;
        let ids = rows.iter().map(|row| row.value(0)?.ok_or_else(|| columns::missing(0)));
        let subscriptions = ids.collect::<Result<Vec<Uuid>, DatabaseError>>()?;
        let range = [Value::Integer(self.last), Value::Integer(*last)];
        let of_subscribers: Vec<Value<'_>> = subscriptions.iter().map(|id| Value::Uuid(*id)).chain(range).collect();
        // By its key, of which the subscription is the first part.
        let pending = format!(
            "DELETE FROM notifications WHERE subscription IN ({}) AND event > ? AND event <= ?",
            vec!["?"; subscriptions.len()].join(", ")
        );
        let mut changes: Vec<(&str, &[Value<'_>])> = vec![
            ("DELETE FROM notification_attempts WHERE event > ? AND event <= ?", &range),
            ("DELETE FROM events WHERE position > ? AND position <= ?", &range),
        ];
        if !subscriptions.is_empty() {
            changes.insert(0, (&pending, &of_subscribers));
        }
        database.change_together(doing, &changes)?;
        self.last = *last;
        Ok(Some(old.len() as u64))
    }

    /// Whether there were any. From one subscription to the next by the key of the notifications, so that what is still to be told is not
    /// read.
    fn forget_some_of_nothing(&mut self, database: &mut dyn Database) -> Result<bool, DatabaseError> {
        let doing = "forgetting notifications of nothing";
        let mut at = match self.of_nothing.take() {
            Some(at) => at,
            None => {
                let rows = database.select(doing, "SELECT position FROM events ORDER BY position LIMIT 1", &[])?;
                let left = rows.first().map(|row| columns::number(row, 0)).transpose()?;
                OfNothing { left: left.unwrap_or(i64::MAX), looked_at: Uuid::nil() }
            }
        };
        let next = format!(
            "SELECT {} FROM notifications WHERE subscription > ? ORDER BY subscription LIMIT 1",
            database.dialect().uuid("subscription")
        );
        let page = format!(
            "SELECT event FROM notifications WHERE subscription = ? AND event < ? ORDER BY event LIMIT {BATCH}"
        );
        // An event and its first notifications come to be in one transaction: who sees one of these and no event sees what is left.
        let delete = "DELETE FROM notifications WHERE subscription = ? AND event <= ? \
                      AND NOT EXISTS (SELECT 1 FROM events e WHERE e.position = notifications.event)";
        while let Some(row) = database.select(doing, &next, &[Value::Uuid(at.looked_at)])?.first() {
            let subscription: Uuid = row.value(0)?.ok_or_else(|| columns::missing(0))?;
            let rows = database.select(doing, &page, &[Value::Uuid(subscription), Value::Integer(at.left)])?;
            let gone = match rows.last() {
                Some(last) => {
                    let last = Value::Integer(columns::number(last, 0)?);
                    database.change(doing, delete, &[Value::Uuid(subscription), last])?
                }
                None => 0,
            };
            // Where all of a page was of nothing, there may be more.
            if gone < BATCH as u64 {
                at.looked_at = subscription;
            }
            if gone > 0 {
                self.of_nothing = Some(at);
                return Ok(true);
            }
        }
        self.of_nothing = Some(at);
        Ok(false)
    }
}

/// How many rows of the operations log are from before a moment.
pub(crate) fn count_operations(database: &mut dyn Database, before: i64) -> Result<u64, DatabaseError> {
    count(database, "operations_log WHERE at < ?", &[Value::Moment(before)])
}

/// The rows of the operations log from before a moment.
pub(crate) struct OldOperations {
    before: i64,
}

impl OldOperations {
    pub(crate) fn before(before: i64) -> Self {
        Self { before }
    }

    /// Forgets the next of them, and says how many; `None` at the end. By its key, in whose order the rows were written, but for
    /// a clock that was set back: what lies beyond the first that is newer is left to the next time.
    pub(crate) fn forget_some(&mut self, database: &mut dyn Database) -> Result<Option<u64>, DatabaseError> {
        let doing = "forgetting operations";
        let page =
            format!("SELECT id, CASE WHEN at < ? THEN 1 ELSE 0 END FROM operations_log ORDER BY id LIMIT {BATCH}");
        let mut last = None;
        for row in database.select(doing, &page, &[Value::Moment(self.before)])? {
            if columns::number::<i64>(&row, 1)? == 0 {
                break;
            }
            last = Some(columns::number::<i64>(&row, 0)?);
        }
        let Some(last) = last else { return Ok(None) };
        let delete = "DELETE FROM operations_log WHERE id <= ? AND at < ?";
        database.change(doing, delete, &[Value::Integer(last), Value::Moment(self.before)]).map(Some)
    }
}

/// A message that may go, unless it is heard of.
pub(crate) struct OldMessage {
    id: i64,
    identity: [u8; 32],
    /// The lock under which it goes.
    pub(crate) lock: LockName,
}

/// The messages from before a moment that are not [heard of](HEARD_OF) since.
pub(crate) struct OldMessages {
    pages: Pages,
    before: i64,
}

impl OldMessages {
    pub(crate) fn before(before: i64) -> Self {
        Self { pages: Pages::new(Table::Messages, 0, before, BATCH), before }
    }

    /// The next of them; `None` at the end.
    pub(crate) fn some(&mut self, database: &mut dyn Database) -> Result<Option<Vec<OldMessage>>, DatabaseError> {
        let dialect = database.dialect();
        let asked = format!("{}, {}", dialect.hex("m.identity"), dialect.hex("m.lock_digest"));
        let condition = format!("NOT {OWED} AND NOT {HEARD_OF}");
        let page = self.pages.next(database, &asked, &condition, &[Value::Moment(self.before); 2])?;
        let Some(Page { rows, first }) = page else { return Ok(None) };
        let old = rows.iter().map(|row| {
            let lock = LockName::from_digest(row.digest(first + 1)?);
            Ok(OldMessage { id: columns::number(row, 1)?, identity: row.digest(first)?, lock })
        });
        old.collect::<Result<_, _>>().map(Some)
    }
}

impl OldMessage {
    /// Forgets it with all that belongs to it, unless it was heard of meanwhile: then `false`. Called under its lock.
    pub(crate) fn forget(&self, database: &mut dyn Database, before: i64) -> Result<bool, DatabaseError> {
        let doing = "forgetting a message";
        let (id, moment) = (Value::Integer(self.id), Value::Moment(before));
        // A new snapshot, with what was journalled before we had the lock.
        let again = format!("SELECT m.id FROM messages m WHERE m.id = ? AND NOT {OWED} AND NOT {HEARD_OF}");
        if database.select(doing, &again, &[id, moment, moment])?.is_empty() {
            return Ok(false);
        }
        // Children before their parent. A newer attempt stays: its delivery waits for our lock.
        database.change_together(
            doing,
            &[
                (
                    "DELETE FROM attempts WHERE lock_digest = ? AND identity = ? AND ended_at IS NOT NULL AND started_at < ?",
                    &[Value::Bytes(self.lock.digest()), Value::Bytes(&self.identity), moment],
                ),
                ("DELETE FROM message_sources WHERE message_id = ?", &[id]),
                ("DELETE FROM copies WHERE message = ?", &[id]),
                ("DELETE FROM messages WHERE id = ?", &[id]),
            ],
        )?;
        Ok(true)
    }
}
