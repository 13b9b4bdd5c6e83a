//! The ledger in MySQL and MariaDB: `sql/mysql/`.
//!
//! The lock belongs to the session: the delivery's COMMIT comes first, then its release. The look and the journal are autocommit
//! statements: a transaction from before the lock would keep an older read view, and not see later commits.

mod epoch;

use super::{
    AddressBook, CopyHistory, CopyKey, Destination, Epoch, FailureRecord, Journal, Ledger, LockResult, LoginCheck,
    MessageRecord, Record, Snapshot, failures, record_fallback, statements,
};
use crate::database::mysql::{only, sql};
use crate::database::{DatabaseError, DatabaseFailure, MysqlDatabase, Row, Tables, Value};
use crate::lock::{Holder, LockName, log_unknown_holder};
use crate::message::fold;
use std::time::Duration;
use tracing::warn;

/// A source of up to this size, in bytes, goes with the batch, as twice as many hexadecimal digits. A larger source goes as bytes
/// in a prepared statement, with more round trips.
const SOURCE_IN_BATCH: usize = 1 << 20;

/// How many bytes of `max_allowed_packet` are reserved for everything except the source: far more than the texts of a record
/// take.
const ROOM_BESIDE_SOURCE: usize = 1 << 20;

impl Ledger for MysqlDatabase {
    fn look_up(&mut self, addresses: &[&str], login_check: Option<&LoginCheck>) -> Result<AddressBook, DatabaseError> {
        let doing = "looking the addresses up";
        let folded: Vec<String> = addresses.iter().map(|address| fold(address)).collect();
        let wanted = self.in_list(&folded);
        let batch = format!(
            "SELECT address, IF(destination IS NULL, imap_user, ''), inbox, sent FROM addresses \
             WHERE address IN ({wanted}); \
             SELECT NOT EXISTS (SELECT 1 FROM addresses), {}, \
             (SELECT {} FROM login_checks WHERE digest = {})",
            sql::READ_ONLY,
            self.dialect().seconds_between("verified_at", self.dialect().now()),
            self.dialect().literal(login_check.map_or(Value::Null, |login_check| Value::Bytes(&login_check.digest))),
        );
        let answers = self.run(doing, &batch, 2)?;
        let entries = answers.first().into_iter().flatten().map(Row::read);
        let mut entries = entries.collect::<Result<Vec<(String, Destination)>, _>>()?;
        // The collation pads with spaces: "a@example.com " matches the row of "a@example.com", which is another
        // address.
        entries.retain(|(address, _)| folded.contains(&fold(address)));
        let (empty, read_only, proven) = only(&answers)?;
        AddressBook { entries, empty, proven }.unless_a_replica_knows_none(doing, read_only)
    }

    fn refuse(&mut self, host: &str, addresses: &[&str]) -> Result<bool, DatabaseError> {
        let doing = "writing down that a recipient is refused";
        let folded: Vec<String> = addresses.iter().map(|address| fold(address)).collect();
        // Some roles may write even on a read-only server (SUPER, READ ONLY ADMIN). There, such a role must not refuse
        // recipients.
        let batch = format!(
            "INSERT INTO unknown_recipients (host, count, in_hour, last_at) SELECT {host}, 1, 1, UTC_TIMESTAMP(6) FROM DUAL \
             WHERE NOT ({read_only}) AND EXISTS (SELECT 1 FROM addresses) \
             AND NOT EXISTS (SELECT 1 FROM addresses WHERE address IN ({wanted})) \
             ON DUPLICATE KEY UPDATE count = unknown_recipients.count + 1, \
                 in_hour = IF(unknown_recipients.last_at >= {hour}, unknown_recipients.in_hour + 1, 1), \
                 last_at = UTC_TIMESTAMP(6); \
             SELECT ROW_COUNT() > 0, {read_only}",
            host = self.dialect().literal(Value::Text(host)),
            hour = self.dialect().this_hour(),
            wanted = self.in_list(&folded),
            read_only = sql::READ_ONLY,
        );
        let (is_refused, read_only) = self.retrying(|database| database.run_for(doing, &batch, 2))?;
        if read_only {
            let detail = "the server takes no writes (a replica?)";
            return Err(DatabaseError::new(DatabaseFailure::ReadOnly, doing, detail));
        }
        Ok(is_refused)
    }

    fn record_login_check(
        &mut self,
        login_check: &LoginCheck,
        host: &str,
        is_proven: bool,
    ) -> Result<(), DatabaseError> {
        let written = statements::login_check(self.dialect(), login_check, host, is_proven);
        self.change(statements::RECORDING_A_LOGIN, &written, &[]).map(drop)
    }

    fn try_journal(&mut self, journal: &Journal<'_>) -> Result<(), DatabaseError> {
        if journal.copies.is_empty() {
            return Ok(());
        }
        self.change(statements::JOURNALLING, &statements::journal(self.dialect(), journal), &[]).map(drop)
    }

    fn record_failures(&mut self, failures: &[FailureRecord<'_>]) -> Result<(), DatabaseError> {
        failures::record_with_fallback(failures, self.dialect(), |statements| {
            self.change_briefly(failures::RECORDING_FAILURES, statements, failures::WRITE_TIMEOUT)
        })
    }

    fn acquire_and_look(
        &mut self,
        lock: &LockName,
        wait: Duration,
        copies: &[CopyKey],
    ) -> Result<LockResult, DatabaseError> {
        let doing = "looking at what the ledger knows";
        let [attempts, recorded] = statements::look(self.dialect(), copies);
        let then = [attempts, recorded, epoch::asked(self.dialect())];
        let Some(answers) = self.get_lock_and(lock, wait, &then)? else {
            return Ok(LockResult::Busy(log_unknown_holder(self.holder_among(lock, copies))));
        };
        let [attempts, recorded, _] = answers.as_slice() else {
            return Err(DatabaseError::other(doing, "three answers were to come"));
        };
        let looked = only::<Epoch>(&answers).and_then(|epoch| {
            if epoch.is_unwritten() {
                // The lock belongs to the session, so this transaction does not end it.
                self.begin_epoch()?;
            }
            Ok(Snapshot { copies: statements::histories(copies, attempts, recorded)?, epoch: epoch.began() })
        });
        Ok(LockResult::Held { looked, took: Duration::ZERO })
    }

    fn look(&mut self, copies: &[CopyKey]) -> Result<Vec<CopyHistory>, DatabaseError> {
        let doing = "looking at what the ledger knows";
        if copies.is_empty() {
            return Ok(Vec::new());
        }
        match self.run(doing, &statements::look(self.dialect(), copies).join("; "), 2)?.as_slice() {
            [attempts, recorded] => statements::histories(copies, attempts, recorded),
            _ => Err(DatabaseError::other(doing, "two answers were to come")),
        }
    }

    fn epoch(&mut self) -> Result<Epoch, DatabaseError> {
        let doing = "asking in which epoch the database is";
        self.run_for(doing, &epoch::asked(self.dialect()), 1)
    }

    fn begin_epoch(&mut self) -> Result<(), DatabaseError> {
        let insert = epoch::begin(self.dialect());
        self.retrying(|database| database.run("writing down that another epoch has begun", &insert, 1)).map(drop)
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), DatabaseError> {
        if record.message.is_none() && record.copies.is_empty() && record.ended.is_empty() {
            return Ok(());
        }
        record_fallback::record_with_fallback(record, |record| {
            let source = record.message.as_ref().and_then(|message| self.source_that_fits(message));
            self.retrying(|database| database.try_to_record(record, source))
        })
    }

    fn first_attempt_age(&mut self, copies: &[CopyKey]) -> Result<Duration, DatabaseError> {
        statements::first_attempt_age(self, copies)
    }
}

impl MysqlDatabase {
    /// The holder of the lock: the session that the server names, and that session's journal. The journal's index is on the copy,
    /// so only the delivery's own `copies` are searched. If the holder delivers none of them, only its session is known.
    fn holder_among(&mut self, lock: &LockName, copies: &[CopyKey]) -> Result<Option<Holder>, DatabaseError> {
        let doing = "asking who holds the lock";
        let batch = format!(
            "SELECT IS_USED_LOCK({lock}); \
             SELECT host, pid, queue_id, session, {age} FROM attempts \
             WHERE copy_key IN ({keys}) AND ended_at IS NULL AND lock_digest = {digest} \
             AND session = IS_USED_LOCK({lock}) AND session <> CONNECTION_ID() \
             ORDER BY started_at DESC LIMIT 1",
            keys = statements::keys(self.dialect(), copies),
            lock = self.dialect().literal(Value::Text(&lock.mysql_name())),
            digest = self.dialect().literal(Value::Bytes(lock.digest())),
            age = self.dialect().seconds_between("started_at", self.dialect().now()),
        );
        let answers = self.run(doing, &batch, 2)?;
        let first = |answer: usize| answers.get(answer).and_then(|rows| rows.first());
        if let Some(row) = first(1) {
            return row.read().map(Some);
        }
        // NULL: the lock was released meanwhile.
        let session = first(0).map(Row::read::<Option<u64>>).transpose()?.flatten();
        Ok(session.map(Holder::of_session))
    }

    /// The source, unless the server could not take it. `max_allowed_packet` (by default 16 MiB on MariaDB, 64 MiB on MySQL)
    /// limits every value; a larger packet would cost the connection, and the lock with it.
    ///
    /// A message that is too large for that is delivered without its source, and logged. Otherwise it would be deferred for ever.
    fn source_that_fits<'a>(&self, message: &MessageRecord<'a>) -> Option<&'a [u8]> {
        let source = message.raw?;
        let most = self.max_allowed_packet.saturating_sub(ROOM_BESIDE_SOURCE);
        if source.len() <= most {
            return Some(source);
        }
        warn!(
            message_id = message.message_id,
            bytes = source.len(),
            max_allowed_packet = self.max_allowed_packet,
            "the source of this message is not kept: the database server's max_allowed_packet is too small for it"
        );
        None
    }

    /// One transaction in one round trip, or in four with a large source. If it fails, the caller rolls back. A lost answer to
    /// COMMIT is an error like any other, and is not retried.
    fn try_to_record(&mut self, record: &Record<'_>, source: Option<&[u8]>) -> Result<(), DatabaseError> {
        let (doing, dialect) = (statements::RECORDING, self.dialect());
        let mut batch = Vec::new();
        if !record.events.is_empty() {
            // This is read before the transaction: inside it, the read would fix its snapshot, and MariaDB refuses later
            // statements that conflict with that. The INSERT does not read it either, or it would wait for sessions that change a
            // subscription (1205).
            batch.push("SELECT EXISTS (SELECT 1 FROM subscriptions) INTO @maildrop_subscribed".into());
        }
        batch.push("START TRANSACTION".into());
        if let Some(message) = &record.message {
            batch.push(statements::message(dialect, message, false));
            match source {
                Some(source) if goes_in_batch(source.len(), self.max_allowed_packet) => {
                    batch.push(statements::source(dialect, message, &dialect.literal(Value::Bytes(source))));
                }
                Some(source) => {
                    batch.push(statements::source_is_missing(dialect, message));
                    if only(&self.run_all(doing, &mut batch)?)? {
                        let insert = statements::source(dialect, message, "?");
                        self.run_with_bytes("keeping the source of the message", &insert, source)?;
                    }
                }
                None => {}
            }
        }
        batch.extend(statements::after_message(dialect, record, false)?);
        self.commit(doing, batch)
    }

    fn run_all(&mut self, doing: &str, statements: &mut Vec<String>) -> Result<Vec<Vec<Row>>, DatabaseError> {
        let count = statements.len();
        let batch = std::mem::take(statements).join("; ");
        self.run(doing, &batch, count)
    }

    /// The inside of an IN list; the list must not be empty.
    fn in_list(&self, addresses: &[String]) -> String {
        match addresses {
            [] => "NULL".into(),
            _ => self.dialect().list(addresses.iter().map(|address| Value::Text(address))),
        }
    }
}

/// Whether a source of so many bytes, as hexadecimal digits, fits into a packet together with the rest of the
/// transaction.
fn goes_in_batch(bytes: usize, max_allowed_packet: usize) -> bool {
    bytes <= SOURCE_IN_BATCH && bytes * 2 + ROOM_BESIDE_SOURCE <= max_allowed_packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_is_large_or_that_the_server_would_refuse_goes_by_itself() {
        let large = 64 << 20;
        assert!(goes_in_batch(SOURCE_IN_BATCH, large) && !goes_in_batch(SOURCE_IN_BATCH + 1, large));
        let for_a_quarter = ROOM_BESIDE_SOURCE + (1 << 19);
        assert!(goes_in_batch(1 << 18, for_a_quarter) && !goes_in_batch((1 << 18) + 1, for_a_quarter));
        assert!(!goes_in_batch(1, ROOM_BESIDE_SOURCE + 1));
    }
}
