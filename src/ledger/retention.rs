//! The statements of `operations::prune`: which rows are old enough and no longer needed, and their removal in small
//! batches.

use super::Database;
use super::time_span::Pages;
use crate::database::{DatabaseError, FromRow, Query, Value, columns_of};
use crate::lock::LockName;
use uuid::Uuid;

/// Rows of a batch: a transaction of some milliseconds.
const BATCH: usize = 500;

/// Rows of a batch of sources, which may be large.
const SOURCES: usize = 50;

/// Whether a message `m` has an owed copy.
const OWED: &str = "EXISTS (SELECT 1 FROM copies c WHERE c.message = m.id AND c.state = 'owed')";

/// Whether a message `m` has a copy or an attempt since a time (two values), or an attempt that has not ended.
const REFERENCED_SINCE: &str = "(EXISTS (SELECT 1 FROM copies c WHERE c.message = m.id AND c.updated_at >= ?) \
     OR EXISTS (SELECT 1 FROM attempts a WHERE a.lock_digest = m.lock_digest AND a.identity = m.identity \
                AND (a.ended_at IS NULL OR a.started_at >= ?)))";

/// Messages with their sources.
const WITH_SOURCE: &str = "message_sources s JOIN messages m ON m.id = s.message_id";

fn count(database: &mut dyn Database, of: &str, values: &[Value<'_>]) -> Result<u64, DatabaseError> {
    Ok(database.query_number("counting", &format!("SELECT count(*) FROM {of}"), values)?.unsigned_abs())
}

/// How many attempts from before this time have ended (`ended`), or have not.
pub(crate) fn count_attempts(database: &mut dyn Database, before: i64, ended: bool) -> Result<u64, DatabaseError> {
    let not = if ended { "NOT" } else { "" };
    count(database, &format!("attempts WHERE started_at < ? AND ended_at IS {not} NULL"), &[Value::Moment(before)])
}

/// How many sources there are of messages from before this time: with an owed copy (`owed`), or without.
pub(crate) fn count_sources(database: &mut dyn Database, before: i64, owed: bool) -> Result<u64, DatabaseError> {
    let not = if owed { "" } else { "NOT" };
    count(database, &format!("{WITH_SOURCE} WHERE m.recorded_at < ? AND {not} {OWED}"), &[Value::Moment(before)])
}

/// How many messages from before this time have an owed copy.
pub(crate) fn count_owed_messages(database: &mut dyn Database, before: i64) -> Result<u64, DatabaseError> {
    count(database, &format!("messages m WHERE m.recorded_at < ? AND {OWED}"), &[Value::Moment(before)])
}

/// How many messages from before this time have no owed copy, and are [referenced](REFERENCED_SINCE) since, or are not.
pub(crate) fn count_messages(
    database: &mut dyn Database,
    before: i64,
    is_referenced: bool,
) -> Result<u64, DatabaseError> {
    let not = if is_referenced { "" } else { "NOT" };
    let old = format!("messages m WHERE m.recorded_at < ? AND NOT {OWED} AND {not} {REFERENCED_SINCE}");
    count(database, &old, &[Value::Moment(before); 3])
}

/// Fails if our role may not delete from these tables, even if nothing is old; deletes nothing.
pub(crate) fn try_right(database: &mut dyn Database, tables: &[&str]) -> Result<(), DatabaseError> {
    tables.iter().try_for_each(|table| {
        let sql = format!("DELETE FROM {table} WHERE 1 = 0");
        database.change("asking for the right to forget", &sql, &[]).map(drop)
    })
}

/// The ended attempts from before a time.
pub(crate) struct OldAttempts {
    pages: Pages,
}

impl OldAttempts {
    pub(crate) fn before(before: i64) -> Self {
        Self { pages: Pages::new(0, before, BATCH) }
    }

    /// Deletes the next batch, and returns its size; `None` at the end.
    pub(crate) fn delete_batch(&mut self, database: &mut dyn Database) -> Result<Option<u64>, DatabaseError> {
        let page = self.pages.next::<String>(database, "a.role", "a.ended_at IS NOT NULL", &[])?.unwrap_or_default();
        let ([(first, _), .., (last, _)] | [(first @ last, _)]) = page.as_slice() else { return Ok(None) };
        let sql = "DELETE FROM attempts WHERE started_at >= ? AND started_at <= ? AND ended_at IS NOT NULL";
        let moments = [first, last].map(|attempt| Value::Moment(attempt.began_at));
        database.change("forgetting attempts", sql, &moments).map(Some)
    }
}

/// The sources of messages from before a time without an owed copy.
pub(crate) struct OldSources {
    before: i64,
    /// The last message of the previous batch.
    last: i64,
}

impl OldSources {
    pub(crate) fn before(before: i64) -> Self {
        Self { before, last: i64::MIN }
    }

    /// Deletes the next batch, and returns its size; `None` at the end.
    pub(crate) fn delete_batch(&mut self, database: &mut dyn Database) -> Result<Option<u64>, DatabaseError> {
        let doing = "forgetting sources";
        let select = format!(
            "SELECT s.message_id FROM {WITH_SOURCE} \
             WHERE s.message_id > ? AND m.recorded_at < ? AND NOT {OWED} ORDER BY s.message_id LIMIT {SOURCES}"
        );
        let ids: Vec<i64> = database.query(doing, &select, &[Value::Integer(self.last), Value::Moment(self.before)])?;
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

/// How many events are from before this time.
pub(crate) fn count_events(database: &mut dyn Database, before: i64) -> Result<u64, DatabaseError> {
    count(database, "events WHERE created_at < ?", &[Value::Moment(before)])
}

/// The events from before a time, with their notifications and the tries at sending them.
pub(crate) struct OldEvents {
    before: i64,
    /// The position of the last event of the previous batch.
    last: i64,
}

impl OldEvents {
    pub(crate) fn before(before: i64) -> Self {
        Self { before, last: 0 }
    }

    /// Deletes the next batch, and returns its size. The end is the first newer event: positions are in the order of
    /// the commits. Older events behind it are left to the next run. Notifications without events follow, in batches
    /// that count no event; then `None`.
    pub(crate) fn delete_batch(&mut self, database: &mut dyn Database) -> Result<Option<u64>, DatabaseError> {
        let doing = "forgetting events";
        let page =
            format!("SELECT position, created_at < ? FROM events WHERE position > ? ORDER BY position LIMIT {BATCH}");
        let page: Vec<(i64, bool)> =
            database.query(doing, &page, &[Value::Moment(self.before), Value::Integer(self.last)])?;
        let old = page.iter().take_while(|(_, is_old)| *is_old).count();
        let Some((last, _)) = page[..old].last() else {
            return Ok(delete_orphans(database)?.then_some(0));
        };
        // Read for each batch: a run may take hours. A user may subscribe meanwhile, and request old events.
        let asked = format!("SELECT {} FROM subscriptions", database.dialect().uuid("id"));
        let subscriptions: Vec<Uuid> = database.query(doing, &asked, &[])?;
        let range = [Value::Integer(self.last), Value::Integer(*last)];
        let of_subscribers: Vec<Value<'_>> = subscriptions.iter().map(|id| Value::Uuid(*id)).chain(range).collect();
        // By the table's key, whose first part is the subscription.
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
        database.execute_together(doing, &changes)?;
        self.last = *last;
        Ok(Some(old as u64))
    }
}

/// Deletes some notifications whose events are gone; `false` if there are none. Publishing while a subscription is
/// deleted leaves some behind, and so does a redelivery request for events that are deleted at that moment. Nothing can
/// be sent for them, and the subscription would be due for ever.
fn delete_orphans(database: &mut dyn Database) -> Result<bool, DatabaseError> {
    let doing = "forgetting notifications of nothing";
    let oldest = database.query_first(doing, "SELECT position FROM events ORDER BY position LIMIT 1", &[])?;
    // An event and its first notifications are committed in one transaction. So a notification without its event is a
    // leftover.
    let of_nothing = "NOT EXISTS (SELECT 1 FROM events e WHERE e.position = notifications.event)";
    let some = format!(
        "SELECT {}, event FROM notifications WHERE event < ? AND {of_nothing} ORDER BY subscription, event LIMIT {BATCH}",
        database.dialect().uuid("subscription")
    );
    let some: Vec<(Uuid, i64)> = database.query(doing, &some, &[Value::Integer(oldest.unwrap_or(i64::MAX))])?;
    let delete =
        format!("DELETE FROM notifications WHERE subscription = ? AND event >= ? AND event <= ? AND {of_nothing}");
    for of_one in some.chunk_by(|(one, _), (other, _)| one == other) {
        let ([(id, first), .., (_, last)] | [(id, first @ last)]) = of_one else { continue };
        database.change(doing, &delete, &[Value::Uuid(*id), Value::Integer(*first), Value::Integer(*last)])?;
    }
    Ok(!some.is_empty())
}

/// How many submissions are from before this time.
pub(crate) fn count_submissions(database: &mut dyn Database, before: i64) -> Result<u64, DatabaseError> {
    count(database, "submissions WHERE created_at < ?", &[Value::Moment(before)])
}

/// Deletes a batch of the submissions from before a time; `None` if there are no more.
pub(crate) fn delete_submissions(database: &mut dyn Database, before: i64) -> Result<Option<u64>, DatabaseError> {
    delete_first_rows(database, "submissions", before, |id: &String| Value::Text(id))
}

/// Deletes a batch of the rows of the operations log from before a time; `None` if there are no more.
pub(crate) fn delete_operations(database: &mut dyn Database, before: i64) -> Result<Option<u64>, DatabaseError> {
    delete_first_rows(database, "operations", before, |id: &i64| Value::Integer(*id))
}

/// Deletes a batch of the rows with the lowest ids. Ids are in the order of the rows' times, except if a clock was set back: older
/// rows behind the first newer one are left to the next run.
fn delete_first_rows<Id: FromRow>(
    database: &mut dyn Database,
    table: &str,
    before: i64,
    value: fn(&Id) -> Value<'_>,
) -> Result<Option<u64>, DatabaseError> {
    let doing = format!("forgetting {table}");
    let page = format!("SELECT id, created_at < ? FROM {table} ORDER BY id LIMIT {BATCH}");
    let page: Vec<(Id, bool)> = database.query(&doing, &page, &[Value::Moment(before)])?;
    let Some((last, _)) = page.iter().take_while(|(_, is_old)| *is_old).last() else { return Ok(None) };
    let delete = format!("DELETE FROM {table} WHERE id <= ? AND created_at < ?");
    database.change(&doing, &delete, &[value(last), Value::Moment(before)]).map(Some)
}

/// How many rows of the operations log are from before this time.
pub(crate) fn count_operations(database: &mut dyn Database, before: i64) -> Result<u64, DatabaseError> {
    count(database, "operations WHERE created_at < ?", &[Value::Moment(before)])
}

/// Whether a failure was first and last seen before a time (two values). The index has the first.
const OLD_FAILURES: &str = "failures WHERE first_at < ? AND last_at < ?";

/// How many failures were last seen before this time.
pub(crate) fn count_failures(database: &mut dyn Database, before: i64) -> Result<u64, DatabaseError> {
    count(database, OLD_FAILURES, &[Value::Moment(before); 2])
}

/// Deletes some failures that were last seen before this time, and returns how many; `None` at the end.
pub(crate) fn delete_old_failures(database: &mut dyn Database, before: i64) -> Result<Option<u64>, DatabaseError> {
    let doing = "forgetting failures";
    let page = format!(
        "SELECT {} FROM {OLD_FAILURES} ORDER BY first_at LIMIT {BATCH}",
        database.dialect().microseconds("first_at")
    );
    let moments = [Value::Moment(before); 2];
    let page: Vec<i64> = database.query(doing, &page, &moments)?;
    let Some(last) = page.last() else { return Ok(None) };
    let delete = "DELETE FROM failures WHERE first_at <= ? AND last_at < ?";
    database.change(doing, delete, &[Value::Moment(*last), Value::Moment(before)]).map(Some)
}

/// A message that may be deleted, unless it is referenced.
pub(crate) struct OldMessage {
    id: i64,
    identity: [u8; 32],
    /// The lock under which it is deleted.
    pub(crate) lock: LockName,
    recorded_at: i64,
}

columns_of! { OldMessage: id, identity, lock, recorded_at }

/// The messages from before a time that are not [referenced](REFERENCED_SINCE) since.
pub(crate) struct OldMessages {
    before: i64,
    /// When the last message of the previous batch was recorded, and its id.
    last: (i64, i64),
}

impl OldMessages {
    pub(crate) fn before(before: i64) -> Self {
        Self { before, last: (0, 0) }
    }

    /// The next messages; `None` at the end.
    pub(crate) fn some(&mut self, database: &mut dyn Database) -> Result<Option<Vec<OldMessage>>, DatabaseError> {
        let dialect = database.dialect();
        // MySQL cannot use an index for a comparison of rows alone.
        let sql = format!(
            "SELECT m.id, {}, {}, {} FROM messages m WHERE m.recorded_at >= ? AND m.recorded_at < ? \
             AND (m.recorded_at, m.id) > (?, ?) AND NOT {OWED} AND NOT {REFERENCED_SINCE} ORDER BY m.recorded_at, m.id LIMIT {BATCH}",
            dialect.hex("m.identity"),
            dialect.hex("m.lock_digest"),
            dialect.microseconds("m.recorded_at"),
        );
        let (last, before) = (Value::Moment(self.last.0), Value::Moment(self.before));
        let values = [last, before, last, Value::Integer(self.last.1), before, before];
        let page: Vec<OldMessage> = database.query("reading old messages", &sql, &values)?;
        let Some(last) = page.last() else { return Ok(None) };
        self.last = (last.recorded_at, last.id);
        Ok(Some(page))
    }
}

impl OldMessage {
    /// Deletes the message with all its rows, unless it was referenced meanwhile: then `false`. Called under its lock.
    pub(crate) fn forget(&self, database: &mut dyn Database, before: i64) -> Result<bool, DatabaseError> {
        let doing = "forgetting a message";
        let (id, moment) = (Value::Integer(self.id), Value::Moment(before));
        // A new snapshot, which includes what was journalled before we had the lock.
        let again = format!("SELECT m.id FROM messages m WHERE m.id = ? AND NOT {OWED} AND NOT {REFERENCED_SINCE}");
        if database.select(doing, &again, &[id, moment, moment])?.is_empty() {
            return Ok(false);
        }
        // Children before their parent. A newer attempt stays: its delivery waits for our lock.
        database.execute_together(
            doing,
            &[
                (
                    "DELETE FROM attempts WHERE lock_digest = ? AND identity = ? AND ended_at IS NOT NULL AND started_at < ?",
                    &[Value::Bytes(self.lock.digest()), Value::Bytes(&self.identity), moment],
                ),
                ("DELETE FROM message_sources WHERE message_id = ?", &[id]),
                ("DELETE FROM copies WHERE message = ?", &[id]),
                ("DELETE FROM message_addresses WHERE message = ?", &[id]),
                ("DELETE FROM messages WHERE id = ?", &[id]),
            ],
        )?;
        Ok(true)
    }
}
