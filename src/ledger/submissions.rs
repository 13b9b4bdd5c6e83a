//! Messages that clients of the API have submitted: the owner of each, who may ask later for its state.

use super::Database;
use super::activity::{ResultFilter, outcome_is};
use crate::database::{DatabaseError, Query, Value, columns_of, unreadable};
use crate::lock::LockName;

/// A submission, as it was accepted.
#[derive(Clone, Debug)]
pub(crate) struct Submission {
    /// The owner of the token, as subscriptions have it.
    pub(crate) owner: String,
    /// The host whose queue has the message.
    pub(crate) host: String,
    /// Of the message: what its copies are found by.
    pub(crate) identity: [u8; 32],
    pub(crate) lock: LockName,
    /// Folded.
    pub(crate) recipients: Vec<String>,
}

columns_of! { Submission: owner, host, identity, lock, recipients }

/// Records a submission under its queue id, before its message is in the queue: no client gets an id without an owner.
///
/// # Errors
/// If it may not have been committed.
pub(crate) fn record(database: &mut dyn Database, id: &str, submission: &Submission) -> Result<(), DatabaseError> {
    let Submission { owner, host, identity, lock, recipients } = submission;
    let recipients = serde_json::to_string(recipients).map_err(|error| unreadable(error.to_string()))?;
    let sql = format!(
        "INSERT INTO submissions (id, owner, host, identity, lock_digest, recipients, created_at) VALUES (?, ?, ?, ?, ?, ?, {})",
        database.dialect().now()
    );
    let values = [
        Value::Text(id),
        Value::Text(owner),
        Value::Text(host),
        Value::Bytes(identity),
        Value::Bytes(lock.digest()),
        Value::Text(&recipients),
    ];
    database.change("recording a submission", &sql, &values).map(drop)
}

/// The submission with this id, and when it was accepted, in microseconds since 1970.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn read(database: &mut dyn Database, id: &str) -> Result<Option<(Submission, i64)>, DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT owner, host, {}, {}, recipients, {} FROM submissions WHERE id = ?",
        dialect.hex("identity"),
        dialect.hex("lock_digest"),
        dialect.microseconds("created_at")
    );
    database.query_first("reading a submission", &sql, &[Value::Text(id)])
}

/// The recipients whose copy of a message was delivered, by the journal. It also names those whose mailbox had the copy
/// already, through another address.
///
/// # Errors
/// If they cannot be read.
pub(crate) fn delivered_recipients(
    database: &mut dyn Database,
    Submission { identity, lock, .. }: &Submission,
) -> Result<Vec<String>, DatabaseError> {
    let sql = format!(
        "SELECT DISTINCT a.recipient FROM attempts a WHERE a.lock_digest = ? AND a.identity = ? AND a.role = 'recipient' AND {}",
        outcome_is(ResultFilter::Delivered)
    );
    database.query("reading who has a message", &sql, &[Value::Bytes(lock.digest()), Value::Bytes(identity)])
}
