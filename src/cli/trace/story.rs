//! What the ledger has of one message.

use super::find::Found;
use crate::cli::ending::{self, Ending};
use crate::database::{Database, DatabaseError, Row, Value};
use crate::lock::{Holder, LockName, hex};
use crate::mailbox::Role;
use uuid::Uuid;

/// Rows of one answer.
const PAGE: usize = 500;

/// All of it.
pub(super) struct Story {
    pub(super) identity: [u8; 32],
    pub(super) lock: LockName,
    /// What was recorded with the first copy; `None` where none was delivered yet.
    pub(super) message: Option<Message>,
    pub(super) copies: Vec<Copy>,
    /// In the order of time.
    pub(super) attempts: Vec<Attempt>,
    /// Who holds the lock now.
    pub(super) holder: Option<Holder>,
}

/// A message as it was recorded.
pub(super) struct Message {
    pub(super) message_id: String,
    /// The envelope sender; empty for the null sender.
    pub(super) sender: String,
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    pub(super) subject: Option<String>,
    /// In bytes.
    pub(super) size: u64,
    /// In microseconds since 1970, as all moments here.
    pub(super) recorded_at: i64,
    /// Whether its source is kept in the database.
    pub(super) source: bool,
}

/// Where a copy is, or that it is owed.
pub(super) struct Copy {
    pub(super) key: [u8; 32],
    pub(super) role: Role,
    pub(super) user: String,
    pub(super) mailbox: String,
    /// Of the delivery that brought it.
    pub(super) recipient: String,
    pub(super) delivered: bool,
    pub(super) uid_validity: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) reason: Option<String>,
    pub(super) delivered_at: Option<i64>,
    pub(super) updated_at: i64,
}

/// What one process tried.
pub(super) struct Attempt {
    pub(super) name: Uuid,
    pub(super) message_id: String,
    pub(super) recipient: String,
    pub(super) queue_id: Option<String>,
    pub(super) host: String,
    pub(super) pid: u32,
    pub(super) session: Option<u64>,
    pub(super) began_at: i64,
    /// Its copies, the recipient's first.
    pub(super) copies: Vec<Tried>,
    /// Milliseconds of each stage, in their order.
    pub(super) stages: Vec<(&'static str, f64)>,
}

/// An attempt's part in one copy.
pub(super) struct Tried {
    pub(super) key: [u8; 32],
    pub(super) role: Role,
    pub(super) user: String,
    pub(super) mailbox: String,
    pub(super) ended_at: Option<i64>,
    pub(super) outcome: Option<String>,
}

impl Story {
    /// The Message-ID, for people.
    pub(super) fn message_id(&self) -> &str {
        let recorded = self.message.as_ref().map(|message| message.message_id.as_str());
        recorded.or(self.attempts.last().map(|attempt| attempt.message_id.as_str())).unwrap_or_default()
    }

    /// The identity's digits.
    pub(super) fn identity(&self) -> String {
        hex(&self.identity)
    }

    /// Whether this attempt is the one that has the lock.
    pub(super) fn holds_the_lock(&self, attempt: &Attempt) -> bool {
        let Some(holder) = &self.holder else { return false };
        let told = holder.host.as_deref() == Some(&attempt.host) && holder.pid == Some(attempt.pid);
        attempt.ending() == Ending::Open && (told || (holder.session.is_some() && holder.session == attempt.session))
    }
}

impl Attempt {
    /// How it ended.
    pub(super) fn ending(&self) -> Ending {
        Ending::of_attempt(
            self.copies
                .iter()
                .map(|copy| (copy.role, Ending::of_copy(copy.ended_at.is_some(), copy.outcome.as_deref()))),
        )
    }

    /// When the last of it ended, if all of it has.
    pub(super) fn ended_at(&self) -> Option<i64> {
        self.copies.iter().map(|copy| copy.ended_at).max_by_key(|ended| ended.unwrap_or(i64::MAX)).flatten()
    }
}

/// Reads it.
pub(super) fn read(database: &mut dyn Database, found: &Found) -> Result<Story, DatabaseError> {
    let identity = Value::Bytes(&found.identity);
    let dialect = database.dialect();
    let sql = format!(
        "SELECT m.id, m.message_id, m.sender, m.header_from, m.header_to, m.subject, m.size, {}, \
         (SELECT count(*) FROM message_sources s WHERE s.message_id = m.id) FROM messages m WHERE m.identity = ?",
        dialect.microseconds("m.recorded_at")
    );
    let rows = database.select("reading the message", &sql, &[identity])?;
    let (message, copies) = match rows.first() {
        Some(row) => (Some(message(row)?), copies(database, row.value(0)?.unwrap_or_default())?),
        None => (None, Vec::new()),
    };
    let attempts = attempts(database, found)?;
    Ok(Story { identity: found.identity, lock: found.lock, message, copies, attempts, holder: None })
}

fn owned(row: &Row, index: usize) -> Option<String> {
    row.text(index).map(ToOwned::to_owned)
}

fn text(row: &Row, index: usize) -> String {
    owned(row, index).unwrap_or_default()
}

fn message(row: &Row) -> Result<Message, DatabaseError> {
    Ok(Message {
        message_id: text(row, 1),
        sender: text(row, 2),
        from: owned(row, 3),
        to: owned(row, 4),
        subject: owned(row, 5),
        size: row.value(6)?.unwrap_or_default(),
        recorded_at: row.value(7)?.unwrap_or_default(),
        source: row.value::<i64>(8)? == Some(1),
    })
}

/// In the order of their roles and users.
fn copies(database: &mut dyn Database, message: i64) -> Result<Vec<Copy>, DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT {}, c.role, c.imap_user, c.mailbox, c.recipient, c.state, c.uid_validity, c.uid, c.reason, {}, {} \
         FROM copies c WHERE c.message = ? AND c.copy_key > ? ORDER BY c.copy_key LIMIT {PAGE}",
        dialect.hex("c.copy_key"),
        dialect.microseconds("c.delivered_at"),
        dialect.microseconds("c.updated_at")
    );
    let mut copies: Vec<Copy> = Vec::new();
    loop {
        let after = copies.last().map(|copy: &Copy| copy.key);
        let after = Value::Bytes(after.as_ref().map_or(&[], |key| &key[..]));
        let rows = database.select("reading the copies", &sql, &[Value::Integer(message), after])?;
        for row in &rows {
            copies.push(Copy {
                key: row.digest(0)?,
                role: ending::role(row.text(1)),
                user: text(row, 2),
                mailbox: text(row, 3),
                recipient: text(row, 4),
                delivered: row.text(5) == Some("delivered"),
                uid_validity: row.value(6)?,
                uid: row.value(7)?,
                reason: owned(row, 8),
                delivered_at: row.value(9)?,
                updated_at: row.value(10)?.unwrap_or_default(),
            });
        }
        if rows.len() < PAGE {
            copies.sort_by(|a, b| (a.role == Role::Sender, &a.user).cmp(&(b.role == Role::Sender, &b.user)));
            return Ok(copies);
        }
    }
}

fn attempts(database: &mut dyn Database, found: &Found) -> Result<Vec<Attempt>, DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT {}, {}, a.role, a.imap_user, a.mailbox, a.message_id, a.recipient, a.queue_id, a.host, a.pid, a.session, \
         {}, {}, a.outcome, a.stages FROM attempts a \
         WHERE a.lock_digest = ? AND a.identity = ? AND (a.attempt > ? OR (a.attempt = ? AND a.copy_key > ?)) \
         ORDER BY a.attempt, a.copy_key LIMIT {PAGE}",
        dialect.uuid("a.attempt"),
        dialect.hex("a.copy_key"),
        dialect.microseconds("a.started_at"),
        dialect.microseconds("a.ended_at")
    );
    let mut attempts: Vec<Attempt> = Vec::new();
    let mut last = (Uuid::nil(), [0; 32]);
    loop {
        let rows = database.select(
            "reading the attempts",
            &sql,
            &[
                Value::Bytes(found.lock.digest()),
                Value::Bytes(&found.identity),
                Value::Uuid(last.0),
                Value::Uuid(last.0),
                Value::Bytes(&last.1),
            ],
        )?;
        for row in &rows {
            last = (Uuid::from_bytes(row.digest(0)?), row.digest(1)?);
            let tried = Tried {
                key: last.1,
                role: ending::role(row.text(2)),
                user: text(row, 3),
                mailbox: text(row, 4),
                ended_at: row.value(12)?,
                outcome: owned(row, 13),
            };
            match attempts.last_mut().filter(|attempt| attempt.name == last.0) {
                Some(attempt) => {
                    attempt.copies.push(tried);
                    attempt.copies.sort_by_key(|copy| copy.role == Role::Sender);
                }
                None => attempts.push(Attempt {
                    name: last.0,
                    message_id: text(row, 5),
                    recipient: text(row, 6),
                    queue_id: owned(row, 7),
                    host: text(row, 8),
                    pid: row.value(9)?.unwrap_or_default(),
                    session: row.value(10)?,
                    began_at: row.value(11)?.unwrap_or_default(),
                    copies: vec![tried],
                    stages: Vec::new(),
                }),
            }
            if let (Some(attempt), Some(stages)) = (attempts.last_mut(), row.text(14)) {
                attempt.stages = ending::stages(stages);
            }
        }
        if rows.len() < PAGE {
            // The hosts' clocks made their UUIDs; the order of time is the database's.
            attempts.sort_by_key(|attempt| (attempt.began_at, attempt.name));
            return Ok(attempts);
        }
    }
}
