//! Which deliveries have requested locks, by their attempts, and which message a lock is named after.

use super::{Database, time_span};
use crate::database::{DatabaseError, Query, Value, columns_of};
use crate::lock::LockName;
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
    pub(crate) message_id: String,
    pub(crate) host: String,
    pub(crate) pid: Option<u32>,
    /// Postfix's queue id.
    pub(crate) queue_id: Option<String>,
    pub(crate) session: Option<u64>,
    /// How long ago it requested the lock, by the database's clock.
    pub(crate) age: Option<Duration>,
}

columns_of! { LockUser: lock, message_id, host, pid, queue_id, session, age }

/// Deliveries that have begun recently and not ended.
pub(crate) fn lock_users(database: &mut dyn Database, only: Option<&LockName>) -> Result<Vec<LockUser>, DatabaseError> {
    let dialect = database.dialect();
    let restriction = if only.is_some() { " AND a.lock_digest = ?" } else { "" };
    let wanted = only.map(|name| Value::Bytes(name.digest()));
    let mut values = vec![Value::Moment(time_span::now(database)? - time_span::microseconds(RECENT))];
    values.extend(wanted);
    let attempts = format!(
        "SELECT {}, a.message_id, a.host, a.pid, a.queue_id, a.session, {} FROM attempts a \
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
