//! Who holds a lock: the deliveries that have requested it, by their attempts, and the message that it is named after.

use super::{Database, time_span};
use crate::database::{DatabaseError, Query, Value, columns_of};
use crate::lock::{Holder, LockName};
use std::time::Duration;
use uuid::Uuid;

/// The maximum age of an attempt that may still hold its lock: longer than any delivery's deadline.
const RECENT: Duration = Duration::from_hours(2);
/// The most deliveries that are read.
const MOST: usize = 1000;

/// A delivery that has requested a lock, and may have ended since.
#[derive(Clone, Debug)]
pub(crate) struct LockUser {
    pub(crate) lock: LockName,
    /// Its time is that of the request, by the database's clock.
    pub(crate) process: Holder,
}

columns_of! { LockUser: lock, process }

/// Deliveries that have begun recently and not ended.
pub(crate) fn lock_users(database: &mut dyn Database, only: Option<&LockName>) -> Result<Vec<LockUser>, DatabaseError> {
    let dialect = database.dialect();
    let restriction = if only.is_some() { " AND a.lock_digest = ?" } else { "" };
    let wanted = only.map(|name| Value::Bytes(name.digest()));
    let mut values = vec![Value::Moment(time_span::now(database)? - time_span::microseconds(RECENT))];
    values.extend(wanted);
    let attempts = format!(
        "SELECT {}, a.host, a.pid, a.queue_id, a.session, {} FROM attempts a \
         WHERE a.started_at >= ? AND a.ended_at IS NULL{restriction} LIMIT {MOST}",
        dialect.hex("a.lock_digest"),
        dialect.seconds_between("a.started_at", dialect.now())
    );
    database.query("reading who asks for locks", &attempts, &values)
}

/// The Message-ID of the lock whose digest is between these two: a digest may be known only in part.
pub(crate) fn message_of_lock(
    database: &mut dyn Database,
    low: &[u8; 32],
    high: &[u8; 32],
) -> Result<Option<String>, DatabaseError> {
    let values = [Value::Bytes(low), Value::Bytes(high)];
    for table in ["attempts", "messages"] {
        let sql = format!("SELECT message_id FROM {table} WHERE lock_digest BETWEEN ? AND ? LIMIT 1");
        let message_id = database.query_first("reading what a lock is named after", &sql, &values)?;
        if message_id.is_some() {
            return Ok(message_id);
        }
    }
    Ok(None)
}

/// Commits a change that leaves no row: its own transaction deletes the row. A transaction without a change would not
/// wait for other servers. On this table the operators' role has both rights (grants-operator.sql), and no delivery
/// depends on it.
pub(crate) fn commit_a_change(database: &mut dyn Database) -> Result<(), DatabaseError> {
    let id = [Value::Uuid(Uuid::now_v7())];
    let (insert, delete) = (
        "INSERT INTO subscription_queues (subscription) VALUES (?)",
        "DELETE FROM subscription_queues WHERE subscription = ?",
    );
    database.execute_together("committing that the lock is held", &[(insert, &id), (delete, &id)]).map(drop)
}
