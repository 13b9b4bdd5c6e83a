//! The ledger in SQLite (`sql/sqlite/`).

use super::{
    CopyHistory, CopyKey, CopyRecord, CopyState, DeliveredAt, Journal, Ledger, MessageRecord, OpenAttempt, Record,
    seconds, without_headers,
};
use crate::database::sqlite::now;
use crate::database::{DatabaseError, DatabaseFailure, SqliteDatabase};
use crate::lock::LockName;
use crate::mailbox::{Placement, Position};
use rusqlite::{Connection, OptionalExtension, Transaction, named_params, params};
use std::time::Duration;
use uuid::Uuid;

impl Ledger for SqliteDatabase {
    fn try_journal(&mut self, journal: &Journal<'_>) -> Result<(), DatabaseError> {
        self.writing("writing the journal", |transaction| {
            let mut insert = transaction.prepare(
                "INSERT INTO attempts (attempt, copy_key, role, imap_user, mailbox, identity, lock_digest, message_id,
                     recipient, queue_id, sender, host, pid, uid_validity, uid_next, started_at)
                 VALUES (:attempt, :copy_key, :role, :user, :mailbox, :identity, :lock, :message_id,
                     :recipient, :queue_id, :sender, :host, :pid, :uid_validity, :uid_next, :now)",
            )?;
            for copy in &journal.copies {
                insert.execute(named_params! {
                    ":attempt": journal.attempt.as_bytes(),
                    ":copy_key": copy.key.as_bytes(),
                    ":role": copy.role.as_str(),
                    ":user": copy.user,
                    ":mailbox": copy.mailbox,
                    ":identity": journal.identity.as_bytes(),
                    ":lock": journal.lock.digest(),
                    ":message_id": journal.message_id,
                    ":recipient": copy.recipient,
                    ":queue_id": journal.queue_id,
                    ":sender": journal.sender,
                    ":host": journal.host,
                    ":pid": journal.pid,
                    ":uid_validity": copy.position.map(|p| p.uid_validity),
                    ":uid_next": copy.position.map(|p| p.uid_next),
                    ":now": now(),
                })?;
            }
            Ok(())
        })
    }

    fn look(&mut self, copies: &[CopyKey]) -> Result<Vec<CopyHistory>, DatabaseError> {
        self.patiently("looking at what is known of the copies", |connection| {
            // One snapshot for all copies, taken at the first SELECT.
            let transaction = connection.transaction()?;
            let histories = copies.iter().map(|key| history(&transaction, *key)).collect::<rusqlite::Result<_>>()?;
            transaction.commit()?;
            Ok(histories)
        })
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), DatabaseError> {
        const DOING: &str = "recording the delivery";
        if record.message.is_none() && !record.copies.is_empty() {
            return Err(DatabaseError::new(DatabaseFailure::Local, DOING, "copies of no message: a bug of our own"));
        }
        without_headers::record_or_less(record, |record| {
            self.writing(DOING, |transaction| {
                let now = now();
                if let Some(message) = &record.message {
                    let id = write_message(transaction, message, now)?;
                    for copy in &record.copies {
                        write_copy(transaction, id, copy, now)?;
                    }
                }
                for ended in &record.ended {
                    let (outcome, attempt) = (ended.outcome.to_string(), ended.attempt.as_bytes());
                    transaction.execute(
                        "UPDATE attempts SET ended_at = ?, outcome = ?, stages = ?
                         WHERE attempt = ? AND copy_key = ? AND ended_at IS NULL",
                        params![now, outcome, ended.stages, attempt, ended.key.as_bytes()],
                    )?;
                }
                Ok(())
            })
        })
    }

    fn first_attempt_age(&mut self, copies: &[CopyKey]) -> Result<Duration, DatabaseError> {
        let first = self.patiently("looking for the first attempt", |connection| {
            let mut first: Option<i64> = None;
            let mut select = connection.prepare("SELECT min(started_at) FROM attempts WHERE copy_key = ?")?;
            for key in copies {
                let started: Option<i64> = select.query_row([key.as_bytes()], |row| row.get(0))?;
                first = [first, started].into_iter().flatten().min();
            }
            Ok(first)
        })?;
        Ok(first.map_or(Duration::ZERO, |started| {
            Duration::from_micros(u64::try_from(now().saturating_sub(started)).unwrap_or(0))
        }))
    }
}

/// What is known of one copy.
fn history(connection: &Connection, key: CopyKey) -> rusqlite::Result<CopyHistory> {
    let now = now();
    let delivered = connection
        .query_row(
            "SELECT uid_validity, uid, lock_digest, recorded_at
             FROM copies LEFT JOIN messages ON messages.id = copies.message
             WHERE copy_key = ? AND state = 'delivered'",
            [key.as_bytes()],
            |row| {
                let both = row.get::<_, Option<u32>>(0)?.zip(row.get::<_, Option<u32>>(1)?);
                let placement = both.map(|(uid_validity, uid)| Placement { uid_validity, uid });
                let recorded = row.get::<_, Option<[u8; 32]>>(2)?.zip(row.get::<_, Option<i64>>(3)?);
                let recorded =
                    recorded.map(|(lock, at)| (LockName::from_digest(lock), seconds(now.saturating_sub(at))));
                Ok((DeliveredAt { placement }, recorded))
            },
        )
        .optional()?;
    let open_attempts = connection
        .prepare(
            "SELECT attempt, recipient, started_at, uid_validity, uid_next, host, lock_digest FROM attempts
             WHERE copy_key = ? AND ended_at IS NULL ORDER BY started_at, attempt",
        )?
        .query_map([key.as_bytes()], |row| {
            let position = row.get::<_, Option<u32>>(3)?.zip(row.get::<_, Option<u32>>(4)?);
            Ok(OpenAttempt {
                attempt: Uuid::from_bytes(row.get(0)?),
                recipient: row.get(1)?,
                host: row.get(5)?,
                lock: LockName::from_digest(row.get(6)?),
                age: seconds(now.saturating_sub(row.get(2)?)),
                position: position.map(|(uid_validity, uid_next)| Position { uid_validity, uid_next }),
            })
        })?
        .collect::<rusqlite::Result<_>>()?;
    let (delivered, recorded) = delivered.unzip();
    // Nobody is told of what changes here: see `Record::events`.
    Ok(CopyHistory { key, delivered, owed: None, recorded: recorded.flatten(), open_attempts })
}

/// Writes the message if it is not there yet, and says which row it is.
fn write_message(transaction: &Transaction<'_>, message: &MessageRecord<'_>, now: i64) -> rusqlite::Result<i64> {
    transaction.execute(
        "INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, header_from, header_to,
             header_cc, subject, sent_at, headers, size, recorded_at)
         VALUES (:identity, :lock, :message_id, :content_digest, :sender, :from, :to, :cc, :subject, :sent_at, :headers,
             :size, :now)
         ON CONFLICT (identity) DO NOTHING",
        named_params! {
            ":identity": message.identity.as_bytes(),
            ":lock": message.lock.digest(),
            ":message_id": message.message_id,
            ":content_digest": message.content_digest,
            ":sender": message.sender,
            ":from": message.from,
            ":to": message.to,
            ":cc": message.cc,
            ":subject": message.subject,
            // A Date field may claim any year.
            ":sent_at": message.date.map(|seconds| seconds.saturating_mul(1_000_000)),
            ":headers": message.headers,
            ":size": i64::try_from(message.size).unwrap_or(i64::MAX),
            ":now": now,
        },
    )?;
    let id =
        transaction
            .query_row("SELECT id FROM messages WHERE identity = ?", [message.identity.as_bytes()], |row| row.get(0))?;
    if let Some(source) = message.raw {
        transaction.execute(
            "INSERT INTO message_sources (message_id, source) VALUES (?, ?) ON CONFLICT (message_id) DO NOTHING",
            params![id, source],
        )?;
    }
    Ok(id)
}

/// Writes a copy's row. A delivered copy never becomes owed; only another delivery changes where it is.
fn write_copy(transaction: &Transaction<'_>, message: i64, copy: &CopyRecord<'_>, now: i64) -> rusqlite::Result<usize> {
    let (state, placement, reason) = match copy.state {
        CopyState::Delivered(placement) => ("delivered", placement, None),
        CopyState::Owed(reason) => ("owed", None, Some(reason)),
    };
    transaction.execute(
        "INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, uid_validity, uid, reason,
             delivered_at, updated_at)
         VALUES (:copy_key, :message, :role, :user, :mailbox, :recipient, :state, :uid_validity, :uid, :reason,
             :delivered_at, :now)
         ON CONFLICT (copy_key) DO UPDATE SET
             recipient = excluded.recipient, state = excluded.state, uid_validity = excluded.uid_validity,
             uid = excluded.uid, reason = excluded.reason,
             delivered_at = coalesce(copies.delivered_at, excluded.delivered_at), updated_at = excluded.updated_at
         WHERE copies.state = 'owed' OR excluded.state = 'delivered'",
        named_params! {
            ":copy_key": copy.key.as_bytes(),
            ":message": message,
            ":role": copy.role.as_str(),
            ":user": copy.user,
            ":mailbox": copy.mailbox,
            ":recipient": copy.recipient,
            ":state": state,
            ":uid_validity": placement.map(|p| p.uid_validity),
            ":uid": placement.map(|p| p.uid),
            ":reason": reason,
            ":delivered_at": (state == "delivered").then_some(now),
            ":now": now,
        },
    )
}
