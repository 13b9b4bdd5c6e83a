//! Deliveries by their attempts: those that never ended, and those that are to be repeated.

use super::audit_queries::Selection;
use super::columns::IS_DELIVERED;
use super::time_span::{self, AttemptCursor, Pages};
use super::{CopyKey, Database, Outcome};
use crate::database::{DatabaseError, Query, Value, columns_of};
use crate::lock::LockName;
use crate::message::Identity;
use serde::Serialize;
use std::time::Duration;
use uuid::Uuid;

/// The most rows of one answer.
const PAGE: usize = 2000;

/// An attempt that has not ended, and began longer ago than the longest delivery takes.
#[derive(Clone, Debug, Serialize)]
pub struct NeverEnded {
    /// The Message-ID, for people.
    pub message_id: String,
    /// The envelope recipient.
    pub recipient: String,
    /// The mailbox's user.
    pub user: String,
    pub mailbox: String,
    pub host: String,
    /// The process id on that host.
    pub pid: i64,
    /// Postfix's queue id.
    pub queue_id: Option<String>,
    /// When it began, in microseconds since 1970.
    #[serde(serialize_with = "crate::base::timestamp::serialize")]
    pub started_at: i64,
    /// How long ago the attempt began, by the database's clock.
    #[serde(rename = "age_seconds", serialize_with = "in_seconds")]
    pub age: Duration,
    /// Whether the ledger has the copy as delivered, by another attempt.
    pub delivered: bool,
}

columns_of! { NeverEnded: message_id, recipient, user, mailbox, host, pid, queue_id, started_at, age, delivered }

fn in_seconds<S: serde::Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(span.as_secs())
}

/// The attempts that have not ended, and began longer ago than a delivery `lives`.
pub(crate) fn never_ended(
    database: &mut dyn Database,
    selection: &Selection<'_>,
    lives: Duration,
) -> Result<Vec<NeverEnded>, DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT a.message_id, a.recipient, a.imap_user, a.mailbox, a.host, a.pid, a.queue_id, {}, {}, c.copy_key IS NOT NULL \
         FROM attempts a LEFT JOIN copies c ON c.copy_key = a.copy_key AND c.state = 'delivered' \
         WHERE a.started_at >= ? AND a.ended_at IS NULL ORDER BY a.started_at, a.attempt",
        dialect.microseconds("a.started_at"),
        dialect.seconds_between("a.started_at", dialect.now())
    );
    let mut never_ended: Vec<NeverEnded> =
        database.query("reading the journal", &sql, &[Value::Moment(selection.since)])?;
    never_ended.retain(|attempt| attempt.age >= lives && selection.has(&attempt.user, &attempt.mailbox));
    Ok(never_ended)
}

/// How far the database's clock may have been set back since an attempt began, in microseconds.
const SET_BACK: i64 = 3_600_000_000;

/// A filter on deliveries to envelope recipients. An empty field does not restrict.
#[derive(Debug)]
pub(crate) struct DeliveryQuery {
    /// Deliveries of messages with one of these locks, tried at any time; empty: of all messages.
    pub(crate) locks: Vec<LockName>,
    /// Deliveries that were tried since then, in microseconds since 1970.
    pub(crate) since: Option<i64>,
    /// Only deliveries whose recipient's copy is not delivered.
    pub(crate) failed: bool,
    /// Deliveries to one of these addresses, as the ledger keeps them.
    pub(crate) recipients: Vec<String>,
}

/// Calls `see` for each attempt at these deliveries, with its beginning, in microseconds since 1970, and its copy. At most
/// [`PAGE`] rows are in memory at a time.
pub(crate) fn each_delivery<E: From<DatabaseError>>(
    database: &mut dyn Database,
    query: &DeliveryQuery,
    mut see: impl FnMut(i64, CopyKey) -> Result<(), E>,
) -> Result<(), E> {
    let mut condition = String::from("a.role = 'recipient'");
    let mut values: Vec<Value<'_>> = Vec::new();
    if let Some(since) = query.since {
        condition += " AND a.started_at >= ?";
        values.push(Value::Moment(since));
    }
    if !query.recipients.is_empty() {
        condition += &format!(" AND a.recipient IN ({})", vec!["?"; query.recipients.len()].join(", "));
        values.extend(query.recipients.iter().map(|recipient| Value::Text(recipient)));
    }
    if query.failed {
        condition += " AND NOT EXISTS (SELECT 1 FROM copies c WHERE c.copy_key = a.copy_key AND c.state = 'delivered')";
    }
    let mut see = |row: &AttemptCursor| see(row.began_at, CopyKey::from_bytes(row.key));
    if query.locks.is_empty() {
        let until = time_span::now(database)?.saturating_add(SET_BACK);
        let mut pages = Pages::new(query.since.unwrap_or_default(), until, PAGE);
        while let Some(page) = pages.next::<i64>(database, "1", &condition, &values)? {
            page.iter().try_for_each(|(row, _)| see(row))?;
        }
        return Ok(());
    }
    let sql = format!(
        "SELECT {} FROM attempts a WHERE a.lock_digest = ? AND a.attempt > ? AND {condition} ORDER BY a.attempt LIMIT {PAGE}",
        AttemptCursor::columns(database.dialect()),
    );
    for lock in &query.locks {
        // Each attempt has one row for its recipient's copy, so its UUID is the cursor of the next page.
        let mut next = Some(Uuid::nil());
        while let Some(last) = next {
            let mut asked = vec![Value::Bytes(lock.digest()), Value::Uuid(last)];
            asked.extend_from_slice(&values);
            let page: Vec<AttemptCursor> = database.query("asking the ledger what to replay", &sql, &asked)?;
            next = page.last().filter(|_| page.len() == PAGE).map(|last| last.attempt);
            page.iter().try_for_each(&mut see)?;
        }
    }
    Ok(())
}

/// What the ledger knows of a delivery.
#[derive(Clone)]
pub(crate) struct KnownDelivery {
    /// Whether the recipient's copy is delivered.
    pub(crate) delivered: bool,
    /// The row id of its message, if it has one.
    pub(crate) message: Option<i64>,
    /// The Message-ID, for people.
    pub(crate) message_id: String,
    /// The envelope sender of that attempt, or else the recorded sender of the message; `None` if neither is known.
    pub(crate) sender: Option<String>,
    /// The envelope recipient.
    pub(crate) recipient: String,
    /// Postfix's queue id.
    pub(crate) queue_id: Option<String>,
    /// The message's identity, recorded or not.
    pub(crate) identity: Identity,
    pub(crate) lock: LockName,
    pub(crate) subject: Option<String>,
    /// The mailbox's user.
    pub(crate) user: String,
    pub(crate) mailbox: String,
    /// The outcome of the last attempt at this copy; `None` if that attempt has not ended.
    pub(crate) last_outcome: Option<Outcome>,
}

columns_of! { KnownDelivery:
    delivered, message, message_id, sender, recipient, queue_id, identity, lock, subject, user, mailbox, last_outcome
}

/// What the ledger knows of the delivery of a copy, from the last attempt at it; `None` if the ledger no longer keeps that
/// attempt.
pub(crate) fn known_delivery(
    database: &mut dyn Database,
    key: &CopyKey,
) -> Result<Option<KnownDelivery>, DatabaseError> {
    let sql = format!(
        "SELECT CASE WHEN c.copy_key IS NULL THEN 0 ELSE {IS_DELIVERED} END, m.id, a.message_id, COALESCE(a.sender, m.sender), \
         a.recipient, a.queue_id, {}, {}, m.subject, a.imap_user, a.mailbox, a.outcome FROM attempts a \
         LEFT JOIN messages m ON m.identity = a.identity LEFT JOIN copies c ON c.copy_key = a.copy_key \
         WHERE a.copy_key = ? ORDER BY a.attempt DESC LIMIT 1",
        database.dialect().hex("a.identity"),
        database.dialect().hex("a.lock_digest")
    );
    database.query_first("reading a delivery from the ledger", &sql, &[Value::Bytes(key.as_bytes())])
}
