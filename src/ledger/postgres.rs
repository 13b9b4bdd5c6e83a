//! The ledger on PostgreSQL.
//!
//! Each method is one round trip; the look is none, as it rides with the lock's statements. Before the lock they are single
//! statements with parameters. Under it they are batches of the simple query protocol: the record's, so that its statements
//! and its COMMIT travel together; the look's, since a statement with parameters keeps its snapshot until the next one (see
//! [`PostgresDatabase`]). A batch has no parameters, so every value in it is written as hexadecimal digits ([`literal`]),
//! which nothing can break out of.

use super::{CopyHistory, CopyKey, Delivered, Journal, Ledger, OpenAttempt, Record, bare};
use crate::database::postgres::{PostgresDatabase, TextRow, Transaction, column};
use crate::database::{DatabaseError, DatabaseFailure};
use crate::mailbox::{Placement, Position};
use crate::routing::{AddressBook, Destination};
use postgres::types::Type;
use std::time::Duration;

pub(crate) mod literal;
pub(crate) mod statements;

use literal::stored;

/// Casts make the answer the same for a view over the platform's own tables, whatever its types are.
const ADDRESSES: &str = "\
    SELECT a.address::text, a.imap_user::text, a.inbox::text, a.sent::text, t.empty, t.read_only \
    FROM (SELECT NOT EXISTS (SELECT FROM addresses) AS empty, \
                 current_setting('transaction_read_only')::bool AS read_only) t \
    LEFT JOIN addresses a ON a.address = ANY ($1)";

const JOURNAL: &str = "\
    INSERT INTO attempts (attempt, identity, lock_digest, message_id, recipient, queue_id, host, pid, session, \
                          copy_key, role, imap_user, mailbox, uid_validity, uid_next, started_at) \
    SELECT $1::uuid, $2, $3, $4, $5, $6, $7, $8, pg_backend_pid(), c.*, clock_timestamp() \
    FROM unnest($9::bytea[], $10::text[], $11::text[], $12::text[], $13::bigint[], $14::bigint[]) c";

impl Ledger for PostgresDatabase {
    fn addresses(&mut self, addresses: &[&str]) -> Result<AddressBook, DatabaseError> {
        let doing = "looking up addresses";
        let asked: Vec<String> = addresses.iter().map(|address| stored(&address.to_lowercase()).into_owned()).collect();
        let mut book = AddressBook::default();
        let mut read_only = false;
        for row in &self.query(doing, ADDRESSES, &[(&asked, Type::TEXT_ARRAY)])? {
            (book.empty, read_only) = (column(doing, row, 4)?, column(doing, row, 5)?);
            if let Some(address) = column(doing, row, 0)? {
                let destination = Destination {
                    user: column(doing, row, 1)?,
                    inbox: column(doing, row, 2)?,
                    sent: column(doing, row, 3)?,
                };
                book.entries.push((address, destination));
            }
        }
        book.unless_a_replica_knows_nobody(doing, read_only)
    }

    fn try_journal(&mut self, journal: &Journal<'_>) -> Result<(), DatabaseError> {
        let doing = "writing the journal";
        let attempt = journal.attempt.to_string();
        let message_id = stored(journal.message_id);
        let recipient = stored(journal.recipient);
        let queue_id = journal.queue_id.map(stored);
        let host = stored(journal.host);
        let copies = &journal.copies;
        let keys: Vec<&[u8]> = copies.iter().map(|copy| &copy.key.as_bytes()[..]).collect();
        let roles: Vec<&str> = copies.iter().map(|copy| copy.role.as_str()).collect();
        let users: Vec<_> = copies.iter().map(|copy| stored(copy.user)).collect();
        let mailboxes: Vec<_> = copies.iter().map(|copy| stored(copy.mailbox)).collect();
        let validities: Vec<_> = copies.iter().map(|copy| copy.position.map(|p| i64::from(p.uid_validity))).collect();
        let nexts: Vec<_> = copies.iter().map(|copy| copy.position.map(|p| i64::from(p.uid_next))).collect();
        loop {
            let written = self.execute(
                doing,
                JOURNAL,
                &[
                    // As text: the crate's uuid type is a feature that nothing else needs.
                    (&attempt, Type::TEXT),
                    (&&journal.identity.as_bytes()[..], Type::BYTEA),
                    (&&journal.lock.digest()[..], Type::BYTEA),
                    (&message_id, Type::TEXT),
                    (&recipient, Type::TEXT),
                    (&queue_id, Type::TEXT),
                    (&host, Type::TEXT),
                    (&i64::from(journal.pid), Type::INT8),
                    (&keys, Type::BYTEA_ARRAY),
                    (&roles, Type::TEXT_ARRAY),
                    (&users, Type::TEXT_ARRAY),
                    (&mailboxes, Type::TEXT_ARRAY),
                    (&validities, Type::INT8_ARRAY),
                    (&nexts, Type::INT8_ARRAY),
                ],
            );
            match written {
                Ok(_) => {
                    self.journalled = copies.iter().map(|copy| copy.key).collect();
                    return Ok(());
                }
                Err(error) if self.try_again(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn look(&mut self, copies: &[CopyKey]) -> Result<Vec<CopyHistory>, DatabaseError> {
        let doing = "looking at what was done";
        let looked = self.looked.take().filter(|looked| looked.copies == copies);
        let (answers, rows_before) = match looked {
            Some(looked) => (looked.answers, looked.rows_before),
            None => (self.batch(doing, &statements::look(copies))?, 0),
        };
        let mut histories: Vec<CopyHistory> =
            copies.iter().map(|key| CopyHistory { key: *key, delivered: None, open_attempts: Vec::new() }).collect();
        for row in answers.rows().skip(rows_before) {
            // Counted from 1.
            let place = row.value::<usize>(doing, 0)?.and_then(|place| place.checked_sub(1));
            let history = place.and_then(|place| histories.get_mut(place));
            let history = history.ok_or_else(|| odd(doing, "a copy that was not asked for"))?;
            if row.truth(doing, 1)? {
                let placement = pair(doing, &row, 2, 3)?.map(|(uid_validity, uid)| Placement { uid_validity, uid });
                history.delivered = Some(Delivered { placement });
            }
            if let Some(attempt) = row.value(doing, 4)? {
                history.open_attempts.push(OpenAttempt {
                    attempt,
                    recipient: row.text(doing, 5)?.unwrap_or_default().to_owned(),
                    age: row.value(doing, 6)?.ok_or_else(|| odd(doing, "an attempt without a beginning"))?,
                    position: pair(doing, &row, 7, 8)?
                        .map(|(uid_validity, uid_next)| Position { uid_validity, uid_next }),
                });
            }
        }
        Ok(histories)
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), DatabaseError> {
        self.looked = None;
        // In the lock's transaction a contended statement is taken back to a savepoint, which leaves the lock alone. The
        // savepoint also fails where there is no open and sound transaction (25P01, 25P02): a COMMIT alone would not,
        // and the statements would be recorded without the lock.
        let (first, again) = match self.transaction {
            Transaction::None => (statements::BEGIN, statements::BEGIN_AGAIN),
            Transaction::Lock(_) => (statements::SAVEPOINT, statements::SAVEPOINT_AGAIN),
            Transaction::Schema => {
                return Err(odd(statements::DOING, "the schema is being changed on this connection"));
            }
        };
        let mut begin = first;
        let written = bare::or_bare(record, |record| {
            loop {
                let written = self.try_record(begin, record);
                begin = again;
                match written {
                    Err(error) if self.try_again(&error) => {}
                    written => return written,
                }
            }
        });
        match written {
            Ok(()) => {
                self.transaction = Transaction::None;
                Ok(())
            }
            Err(error) => Err(self.roll_back_after(error)),
        }
    }

    fn first_attempt_age(&mut self, copies: &[CopyKey]) -> Result<Duration, DatabaseError> {
        let doing = "looking for the first attempt";
        let age = match self.batch(doing, &statements::first_attempt_age(copies))?.rows().next() {
            Some(row) => row.value(doing, 0)?,
            None => None,
        };
        // Negative where the server's clock was set back: as good as just now.
        Ok(age.and_then(|age| Duration::try_from_secs_f64(age).ok()).unwrap_or_default())
    }
}

impl PostgresDatabase {
    /// One round trip; two more where the message's source is kept, so that its megabytes cross as bytes, and only once
    /// for all recipients.
    fn try_record(&mut self, begin: &str, record: &Record<'_>) -> Result<(), DatabaseError> {
        let doing = statements::DOING;
        let mut batch = begin.to_owned();
        if let Some(message) = &record.message {
            batch.push_str(&statements::message(message));
            if let Some(raw) = message.raw {
                batch.push_str(&statements::source_is_missing(message));
                if self.batch(doing, &batch)?.truth(doing)? {
                    let identity = &message.identity.as_bytes()[..];
                    self.execute(doing, statements::SOURCE, &[(&identity, Type::BYTEA), (&raw, Type::BYTEA)])?;
                }
                batch.clear();
            }
        } else if !record.copies.is_empty() {
            return Err(odd(doing, "copies without their message"));
        }
        for copy in &record.copies {
            if let Some(message) = &record.message {
                batch.push_str(&statements::copy(message, copy));
            }
        }
        for ended in &record.ended {
            batch.push_str(&statements::ended(ended));
        }
        batch.push_str("COMMIT");
        self.batch(doing, &batch).map(|_| ())
    }
}

/// Two unsigned numbers that are known together or not at all. A number that IMAP cannot have counts as not known,
/// which only ever means a longer search.
fn pair(doing: &str, row: &TextRow<'_>, first: usize, second: usize) -> Result<Option<(u32, u32)>, DatabaseError> {
    let number = |index| -> Result<Option<u32>, DatabaseError> {
        Ok(row.value::<i64>(doing, index)?.and_then(|value| u32::try_from(value).ok()))
    };
    Ok(number(first)?.zip(number(second)?))
}

/// What should never come about.
fn odd(doing: &str, detail: &str) -> DatabaseError {
    DatabaseError::new(DatabaseFailure::Other, doing, detail)
}
