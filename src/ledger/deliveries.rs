//! Deliveries by their attempts: which never ended, and which are to be made again.

use super::audit_queries::Selection;
use super::time_span::{self, Pages, Table};
use super::{CopyKey, Database, Outcome, columns};
use crate::database::{DatabaseError, Row, Value};
use crate::lock::LockName;
use crate::message::Identity;
use serde::Serialize;
use std::time::Duration;
use uuid::Uuid;

/// Rows of one answer.
const PAGE: usize = 2000;

/// An attempt that began longer ago than any delivery lives, and has not ended.
#[derive(Clone, Debug, Serialize)]
pub struct NeverEnded {
    /// The Message-ID, for people.
    pub message_id: String,
    /// The envelope recipient.
    pub recipient: String,
    /// The mailbox's user.
    pub user: String,
    /// The mailbox.
    pub mailbox: String,
    /// The host on which it ran.
    pub host: String,
    /// Its process id there.
    pub pid: i64,
    /// Postfix's queue id.
    pub queue_id: Option<String>,
    /// When it began, in microseconds since 1970.
    #[serde(serialize_with = "crate::base::timestamp::serialize")]
    pub started_at: i64,
    /// How long ago that was, by the database's clock.
    #[serde(rename = "age_seconds", serialize_with = "in_seconds")]
    pub age: Duration,
    /// Whether the ledger has the copy as delivered, by another attempt.
    pub delivered: bool,
}

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
        "SELECT a.message_id, a.recipient, a.imap_user, a.mailbox, a.host, a.pid, a.queue_id, {}, {}, \
         CASE WHEN c.copy_key IS NULL THEN 0 ELSE 1 END \
         FROM attempts a LEFT JOIN copies c ON c.copy_key = a.copy_key AND c.state = 'delivered' \
         WHERE a.started_at >= ? AND a.ended_at IS NULL ORDER BY a.started_at, a.attempt",
        dialect.microseconds("a.started_at"),
        dialect.microseconds(dialect.now())
    );
    let mut never_ended = Vec::new();
    for row in &database.select("reading the journal", &sql, &[Value::Moment(selection.since)])? {
        let started_at = columns::number(row, 7)?;
        let age = columns::number::<i64>(row, 8)? - started_at;
        let (user, mailbox) = (columns::owned(row, 2)?, columns::owned(row, 3)?);
        if age < time_span::microseconds(lives) || !selection.has(&user, &mailbox) {
            continue;
        }
        never_ended.push(NeverEnded {
            message_id: columns::owned(row, 0)?,
            recipient: columns::owned(row, 1)?,
            user,
            mailbox,
            host: columns::owned(row, 4)?,
            pid: columns::number(row, 5)?,
            queue_id: columns::optional(row, 6),
            started_at,
            age: Duration::from_micros(age.unsigned_abs()),
            delivered: columns::number::<u8>(row, 9)? == 1,
        });
    }
    Ok(never_ended)
}

/// How far the database's clock may have been set back since an attempt began, in microseconds.
const SET_BACK: i64 = 3_600_000_000;

/// Which deliveries to envelope recipients are asked for. A field that is left out does not restrict.
#[derive(Debug)]
pub(crate) struct DeliveryQuery {
    /// Of messages with one of these locks, whenever they were tried; empty: of all messages.
    pub(crate) locks: Vec<LockName>,
    /// Those that were tried since, in microseconds since 1970.
    pub(crate) since: Option<i64>,
    /// Those whose recipient's copy is not delivered.
    pub(crate) failed: bool,
    /// Those to one of these addresses, as the ledger keeps them.
    pub(crate) recipients: Vec<String>,
}

/// Calls `see` for each attempt at these deliveries: when it began, in microseconds since 1970, and its copy. Some thousand rows are
/// in memory at a time.
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
    let mut see = |row: &Row| see(columns::number(row, 0)?, CopyKey::from_bytes(row.digest(2)?));
    if query.locks.is_empty() {
        let until = time_span::now(database)?.saturating_add(SET_BACK);
        let mut pages = Pages::new(Table::Attempts, query.since.unwrap_or_default(), until, PAGE);
        while let Some(page) = pages.next(database, "1", &condition, &values)? {
            page.rows.iter().try_for_each(&mut see)?;
        }
        return Ok(());
    }
    let dialect = database.dialect();
    let sql = format!(
        "SELECT {}, {}, {} FROM attempts a WHERE a.lock_digest = ? AND a.attempt > ? AND {condition} \
         ORDER BY a.attempt LIMIT {PAGE}",
        dialect.microseconds("a.started_at"),
        dialect.uuid("a.attempt"),
        dialect.hex("a.copy_key"),
    );
    for lock in &query.locks {
        // An attempt has one row for its recipient's copy: its UUID tells where the next page begins.
        let mut last = Uuid::nil();
        loop {
            let mut asked = vec![Value::Bytes(lock.digest()), Value::Uuid(last)];
            asked.extend_from_slice(&values);
            let rows = database.select("asking the ledger what to replay", &sql, &asked)?;
            for row in &rows {
                last = Uuid::from_bytes(row.digest(1)?);
                see(row)?;
            }
            if rows.len() < PAGE {
                break;
            }
        }
    }
    Ok(())
}

/// What the ledger has of a delivery.
pub(crate) struct KnownDelivery {
    /// Whether the recipient has it.
    pub(crate) delivered: bool,
    /// The row of its message, if it has one, and the message's identity.
    pub(crate) message: Option<(i64, Identity)>,
    /// The Message-ID, for people.
    pub(crate) message_id: String,
    /// The envelope sender of that attempt, or else the one that the message is recorded with; `None` where neither is known.
    pub(crate) sender: Option<String>,
    /// The envelope recipient.
    pub(crate) recipient: String,
    /// Postfix's queue id.
    pub(crate) queue_id: Option<String>,
    /// Which message it is of, recorded or not.
    pub(crate) identity: Identity,
    pub(crate) lock: LockName,
    pub(crate) subject: Option<String>,
    /// The mailbox's user.
    pub(crate) user: String,
    pub(crate) mailbox: String,
    /// What the last attempt at it has come to; `None` where it has not ended.
    pub(crate) came_to: Option<Outcome>,
}

/// What the ledger has of the delivery of a copy, by the last attempt at it; `None` where that is forgotten.
pub(crate) fn known_delivery(
    database: &mut dyn Database,
    key: &CopyKey,
) -> Result<Option<KnownDelivery>, DatabaseError> {
    let sql = format!(
        "SELECT a.recipient, a.queue_id, a.message_id, COALESCE(a.sender, m.sender), c.state, m.id, {}, {}, m.subject, \
         a.imap_user, a.mailbox, a.outcome FROM attempts a \
         LEFT JOIN messages m ON m.identity = a.identity LEFT JOIN copies c ON c.copy_key = a.copy_key \
         WHERE a.copy_key = ? ORDER BY a.attempt DESC LIMIT 1",
        database.dialect().hex("a.identity"),
        database.dialect().hex("a.lock_digest")
    );
    let rows = database.select("reading a delivery from the ledger", &sql, &[Value::Bytes(key.as_bytes())])?;
    let Some(row) = rows.first() else { return Ok(None) };
    let identity = Identity::from_bytes(row.digest(6)?);
    Ok(Some(KnownDelivery {
        delivered: row.text(4).is_some() && columns::delivered(row, 4)?,
        message: row.value(5)?.map(|message| (message, identity)),
        message_id: columns::owned(row, 2)?,
        sender: columns::optional(row, 3),
        recipient: columns::owned(row, 0)?,
        queue_id: columns::optional(row, 1),
        identity,
        lock: LockName::from_digest(row.digest(7)?),
        subject: columns::optional(row, 8),
        user: columns::owned(row, 9)?,
        mailbox: columns::owned(row, 10)?,
        came_to: row.text(11).map(Outcome::from_text),
    }))
}
