//! Which deliveries have asked for locks, by their attempts, and which message a lock is named after.

use super::{Database, columns, time_span};
use crate::database::{DatabaseError, Row, Value};
use crate::lock::LockName;
use std::time::Duration;
use uuid::Uuid;

/// How far back an attempt may have begun that still holds its lock: longer than any delivery's deadline.
const RECENT: Duration = Duration::from_hours(2);
/// How many deliveries are read at most.
const MOST: usize = 1000;

/// A delivery that has asked for a lock, and may have ended since.
#[derive(Clone, Debug)]
pub(crate) struct LockUser {
    pub(crate) lock: LockName,
    pub(crate) message_id: String,
    pub(crate) host: String,
    pub(crate) pid: Option<u32>,
    /// Postfix's queue id.
    pub(crate) queue_id: Option<String>,
    pub(crate) session: Option<u64>,
    /// How long ago it asked, by the database's clock.
    pub(crate) age: Option<Duration>,
}

/// Deliveries that have begun lately and not ended.
pub(crate) fn lock_users(database: &mut dyn Database, only: Option<&LockName>) -> Result<Vec<LockUser>, DatabaseError> {
    let dialect = database.dialect();
    let digest = dialect.hex("a.lock_digest");
    let age = |moment| format!("{} - {}", dialect.microseconds(dialect.now()), dialect.microseconds(moment));
    let restriction = if only.is_some() { " AND a.lock_digest = ?" } else { "" };
    let wanted = only.map(|name| Value::Bytes(name.digest()));
    let mut values = vec![Value::Moment(time_span::now(database)? - time_span::microseconds(RECENT))];
    values.extend(wanted);
    let attempts = format!(
        "SELECT {digest}, a.message_id, a.host, a.pid, a.queue_id, a.session, {} FROM attempts a \
         WHERE a.started_at >= ? AND a.ended_at IS NULL{restriction} LIMIT {MOST}",
        age("a.started_at")
    );
    database.select("reading who asks for locks", &attempts, &values)?.iter().map(lock_user).collect()
}

fn lock_user(row: &Row) -> Result<LockUser, DatabaseError> {
    Ok(LockUser {
        lock: LockName::from_digest(row.digest(0)?),
        message_id: columns::owned(row, 1)?,
        host: columns::owned(row, 2)?,
        pid: row.value(3)?,
        queue_id: columns::optional(row, 4),
        session: row.value(5)?,
        // Negative if a clock was set back.
        age: row.value::<i64>(6)?.and_then(|age| u64::try_from(age).ok()).map(Duration::from_micros),
    })
}

/// The Message-ID that the lock is named after whose digest is between these two: a digest may be known in part only.
pub(crate) fn message_of_lock(
    database: &mut dyn Database,
    low: &[u8; 32],
    high: &[u8; 32],
) -> Result<Option<String>, DatabaseError> {
    let values = [Value::Bytes(low), Value::Bytes(high)];
    for table in ["attempts", "messages"] {
        let sql = format!("SELECT message_id FROM {table} WHERE lock_digest BETWEEN ? AND ? LIMIT 1");
        let rows = database.select("reading what a lock is named after", &sql, &values)?;
        if let Some(row) = rows.first() {
            return columns::owned(row, 0).map(Some);
        }
    }
    Ok(None)
}

/// Commits a change of which nothing is left: a row that its own transaction deletes. A transaction without a change would wait for no other
/// server. In this table the role of people may do both (grants-operator.sql), and no delivery goes by it.
pub(crate) fn commit_a_change(database: &mut dyn Database) -> Result<(), DatabaseError> {
    let id = [Value::Uuid(Uuid::now_v7())];
    let (insert, delete) = (
        "INSERT INTO subscription_queues (subscription) VALUES (?)",
        "DELETE FROM subscription_queues WHERE subscription = ?",
    );
    database.change_together("committing that the lock is held", &[(insert, &id), (delete, &id)]).map(drop)
}
