//! The ledger in MySQL and MariaDB: `sql/mysql/`.
//!
//! The lock is in the session: first the delivery's COMMIT, then RELEASE_LOCK. The look and the journal are autocommit statements:
//! a transaction from before the lock would keep an older read view, and not see what was committed since.

mod epoch;

use super::{
    AcquiredAndLooked, AddressBook, CopyHistory, CopyKey, CopyRecord, CopyState, DeliveredAt, Destination,
    EndedAttempt, Epoch, EventRecord, Journal, Ledger, Looked, MessageRecord, OpenAttempt, Record, WayIn,
    looked_by_itself, seconds, without_headers,
};
use crate::database::mysql::{Answer, bytes_column, column, only_row, sql};
use crate::database::{DatabaseError, DatabaseFailure, MysqlDatabase};
use crate::lock::{Holder, Holders, LockName, or_untold};
use crate::mailbox::{Placement, Position};
use crate::message::fold;
use mysql::Row;
use std::time::Duration;
use time::OffsetDateTime;
use time::macros::format_description;
use tracing::warn;
use uuid::Uuid;

/// A source of up to this size, in bytes, goes with the batch, twice as long in hexadecimal digits. A larger one goes as it is, by
/// a prepared statement, for more round trips.
const SOURCE_IN_BATCH: usize = 1 << 20;

/// How much of `max_allowed_packet` is kept for everything but the source, in bytes: far more than a record's texts may have.
const ROOM_BESIDE_SOURCE: usize = 1 << 20;

/// The age of a row's `started_at` by the database's clock, in microseconds.
const AGE: &str = "TIMESTAMPDIFF(MICROSECOND, started_at, UTC_TIMESTAMP(6))";

impl Ledger for MysqlDatabase {
    fn look_up(&mut self, addresses: &[&str], way_in: Option<&WayIn>) -> Result<AddressBook, DatabaseError> {
        let doing = "looking the addresses up";
        let folded: Vec<String> = addresses.iter().map(|address| fold(address)).collect();
        let wanted = in_list(&folded);
        let batch = format!(
            "SELECT address, imap_user, inbox, sent FROM addresses WHERE address IN ({wanted}); \
             SELECT NOT EXISTS (SELECT 1 FROM addresses), {}, \
             (SELECT TIMESTAMPDIFF(MICROSECOND, proven_at, UTC_TIMESTAMP(6)) FROM ways_in WHERE digest = {})",
            sql::READ_ONLY,
            way_in.map_or_else(|| "NULL".to_owned(), |way_in| sql::bytes(&way_in.digest)),
        );
        let answers = self.run(doing, &batch, 2)?;
        let mut entries = Vec::new();
        for row in answers.first().into_iter().flatten() {
            let address: String = column(row, 0, doing)?;
            let (user, inbox, sent) = (column(row, 1, doing)?, column(row, 2, doing)?, column(row, 3, doing)?);
            // The collation pads with spaces: "a@example.com " finds the row of "a@example.com". It is not the same.
            if folded.contains(&fold(&address)) {
                entries.push((address, Destination { user, inbox, sent }));
            }
        }
        let row = only_row(&answers, doing)?;
        let proven = column::<Option<i64>>(row, 2, doing)?.map(seconds);
        AddressBook { entries, empty: column(row, 0, doing)?, proven }
            .unless_a_replica_knows_none(doing, column(row, 1, doing)?)
    }

    fn refuse(&mut self, host: &str, addresses: &[&str]) -> Result<bool, DatabaseError> {
        let doing = "writing down that a recipient is refused";
        let folded: Vec<String> = addresses.iter().map(|address| fold(address)).collect();
        // A role that may write on a server that takes no writes (SUPER, READ ONLY ADMIN) is none that may refuse there.
        let batch = format!(
            "INSERT INTO refusals (host, refused, last_at) SELECT {host}, 1, UTC_TIMESTAMP(6) FROM DUAL \
             WHERE NOT ({read_only}) AND EXISTS (SELECT 1 FROM addresses) \
             AND NOT EXISTS (SELECT 1 FROM addresses WHERE address IN ({wanted})) \
             ON DUPLICATE KEY UPDATE refused = refusals.refused + 1, last_at = UTC_TIMESTAMP(6); \
             SELECT ROW_COUNT() > 0, {read_only}",
            host = sql::text(host),
            wanted = in_list(&folded),
            read_only = sql::READ_ONLY,
        );
        let answers = self.retrying(|database| database.run(doing, &batch, 2))?;
        let row = only_row(&answers, doing)?;
        if column(row, 1, doing)? {
            let detail = "the server takes no writes (a replica?)";
            return Err(DatabaseError::new(DatabaseFailure::ReadOnly, doing, detail));
        }
        column(row, 0, doing)
    }

    fn record_way_in(&mut self, way_in: &WayIn, host: &str) -> Result<(), DatabaseError> {
        let insert = format!(
            "INSERT INTO ways_in (digest, way_in, proven_at, host) VALUES ({}, {}, UTC_TIMESTAMP(6), {host}) \
             ON DUPLICATE KEY UPDATE proven_at = UTC_TIMESTAMP(6), host = {host}",
            sql::bytes(&way_in.digest),
            sql::text(&way_in.text),
            host = sql::text(host),
        );
        self.retrying(|database| database.run("remembering a way in to the mailbox store", &insert, 1).map(drop))
    }

    fn disprove_way_in(&mut self, way_in: &WayIn, host: &str) -> Result<(), DatabaseError> {
        let (digest, host) = (sql::bytes(&way_in.digest), sql::text(host));
        let update = format!("UPDATE ways_in SET proven_at = '1970-01-01', host = {host} WHERE digest = {digest}");
        let doing = "remembering that a way in to the mailbox store is none";
        self.retrying(|database| database.run(doing, &update, 1).map(drop))
    }

    fn try_journal(&mut self, journal: &Journal<'_>) -> Result<(), DatabaseError> {
        if journal.copies.is_empty() {
            return Ok(());
        }
        let attempt = sql::bytes(journal.attempt.as_bytes());
        let identity = sql::bytes(journal.identity.as_bytes());
        let lock_digest = sql::bytes(journal.lock.digest());
        let message_id = sql::text(journal.message_id);
        let queue_id = sql::optional_text(journal.queue_id);
        let sender = sql::optional_text(journal.sender);
        let host = sql::text(journal.host);
        let pid = journal.pid;
        let rows = journal.copies.iter().map(|copy| {
            format!(
                "({attempt}, {key}, {role}, {user}, {mailbox}, {identity}, {lock_digest}, {message_id}, {recipient}, \
                 {queue_id}, {sender}, {host}, {pid}, CONNECTION_ID(), {uid_validity}, {uid_next}, UTC_TIMESTAMP(6))",
                key = sql::bytes(copy.key.as_bytes()),
                role = sql::text(copy.role.as_str()),
                user = sql::text(copy.user),
                mailbox = sql::text(copy.mailbox),
                recipient = sql::text(copy.recipient),
                uid_validity = sql::optional_number(copy.position.map(|position| position.uid_validity)),
                uid_next = sql::optional_number(copy.position.map(|position| position.uid_next)),
            )
        });
        let insert = format!(
            "INSERT INTO attempts (attempt, copy_key, role, imap_user, mailbox, identity, lock_digest, message_id, \
             recipient, queue_id, sender, host, pid, session, uid_validity, uid_next, started_at) VALUES {}",
            sql::list(rows)
        );
        self.retrying(|database| database.run("writing the journal", &insert, 1)).map(drop)
    }

    fn acquire_and_look(
        &mut self,
        lock: &LockName,
        wait: Duration,
        copies: &[CopyKey],
    ) -> Result<AcquiredAndLooked, DatabaseError> {
        Ok(if self.get_lock(lock, wait)? {
            looked_by_itself(|| {
                let (copies, epoch) = self.look_and_ask(copies, Some(&epoch::asked(self.product())))?;
                if epoch.is_unwritten() {
                    // The lock is the session's, and stays.
                    self.begin_epoch()?;
                }
                Ok(Looked { copies, epoch: epoch.began() })
            })
        } else {
            AcquiredAndLooked::Busy(or_untold(self.holder_among(lock, copies)))
        })
    }

    fn look(&mut self, copies: &[CopyKey]) -> Result<Vec<CopyHistory>, DatabaseError> {
        self.look_and_ask(copies, None).map(|(histories, _)| histories)
    }

    fn epoch(&mut self) -> Result<Epoch, DatabaseError> {
        let doing = "asking in which epoch the database is";
        let answers = self.run(doing, &epoch::asked(self.product()), 1)?;
        epoch::told(only_row(&answers, doing)?, doing)
    }

    fn begin_epoch(&mut self) -> Result<(), DatabaseError> {
        let insert = epoch::begin(self.product());
        self.retrying(|database| database.run("writing down that another epoch has begun", &insert, 1)).map(drop)
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), DatabaseError> {
        if record.message.is_none() && !record.copies.is_empty() {
            return Err(DatabaseError::other(
                "recording the delivery",
                "copies without their message: a mistake in this program",
            ));
        }
        if record.message.is_none() && record.ended.is_empty() {
            return Ok(());
        }
        without_headers::record_or_less(record, |record| {
            let source = record.message.as_ref().and_then(|message| self.source_that_fits(message));
            self.retrying(|database| database.try_to_record(record, source))
        })
    }

    fn first_attempt_age(&mut self, copies: &[CopyKey]) -> Result<Duration, DatabaseError> {
        let doing = "asking when the first attempt began";
        if copies.is_empty() {
            return Ok(Duration::ZERO);
        }
        let keys = keys(copies);
        let ask = format!("SELECT MAX({AGE}) FROM attempts WHERE copy_key IN ({keys})");
        let answers = self.run(doing, &ask, 1)?;
        let age: Option<i64> = column(only_row(&answers, doing)?, 0, doing)?;
        // Negative if the server's clock was set back.
        Ok(age.and_then(|age| u64::try_from(age).ok()).map_or(Duration::ZERO, Duration::from_micros))
    }
}

impl Holders for MysqlDatabase {
    fn holder(&mut self, name: &LockName) -> Result<Option<Holder>, DatabaseError> {
        self.holder_among(name, &[])
    }
}

impl MysqlDatabase {
    /// In one round trip, what is known of these copies, and in which epoch the database is, if that is `asked`.
    fn look_and_ask(
        &mut self,
        copies: &[CopyKey],
        asked: Option<&str>,
    ) -> Result<(Vec<CopyHistory>, Epoch), DatabaseError> {
        let doing = "looking at what the ledger knows";
        if copies.is_empty() {
            return Ok(Default::default());
        }
        let keys = keys(copies);
        let (also, statements) = asked.map_or((String::new(), 2), |asked| (format!("; {asked}"), 3));
        // Two snapshots, the attempts' first: an attempt's end is committed together with its copy, so an ended attempt has its
        // copy in the later snapshot. The other way round, a commit in between would show neither the copy nor the attempt.
        let batch = format!(
            "SELECT copy_key, attempt, recipient, {AGE}, uid_validity, uid_next, host, lock_digest FROM attempts \
             WHERE copy_key IN ({keys}) AND ended_at IS NULL ORDER BY started_at, attempt; \
             SELECT copy_key, uid_validity, uid, lock_digest, \
             TIMESTAMPDIFF(MICROSECOND, recorded_at, UTC_TIMESTAMP(6)), \
             CASE WHEN state = 'owed' THEN COALESCE(reason, '') END \
             FROM copies LEFT JOIN messages ON messages.id = copies.message \
             WHERE copy_key IN ({keys}){also}"
        );
        let answers = self.run(doing, &batch, statements)?;
        let [attempts, recorded, also @ ..] = answers.as_slice() else {
            return Err(DatabaseError::other(doing, "two answers were to come, or three"));
        };
        let epoch = if also.is_empty() { Epoch::default() } else { epoch::told(only_row(also, doing)?, doing)? };
        let mut histories: Vec<CopyHistory> = copies.iter().map(CopyHistory::unknown).collect();
        for row in attempts {
            let (key, attempt) = (CopyKey::from_bytes(bytes_column(row, 0, doing)?), open_attempt(row, doing)?);
            for history in histories.iter_mut().filter(|history| history.key == key) {
                history.open_attempts.push(attempt.clone());
            }
        }
        for row in recorded {
            let key = CopyKey::from_bytes(bytes_column(row, 0, doing)?);
            if let Some(why) = column::<Option<String>>(row, 5, doing)? {
                for history in histories.iter_mut().filter(|history| history.key == key) {
                    history.owed = Some(why.clone());
                }
                continue;
            }
            let both = column::<Option<u32>>(row, 1, doing)?.zip(column(row, 2, doing)?);
            let placement = both.map(|(uid_validity, uid)| Placement { uid_validity, uid });
            let age: Option<i64> = column(row, 4, doing)?;
            let recorded = age.map(|age| Ok((lock_name(row, 3, doing)?, seconds(age)))).transpose()?;
            for history in histories.iter_mut().filter(|history| history.key == key) {
                (history.delivered, history.recorded) = (Some(DeliveredAt { placement }), recorded);
            }
        }
        Ok((histories, epoch))
    }

    /// Who holds the lock: the session that the server names, and what its journal says of it. A delivery asks by the index of its
    /// own `copies`: of a holder that delivers none of them, the log has the session only. Without copies, all attempts under this
    /// lock are looked at.
    fn holder_among(&mut self, lock: &LockName, copies: &[CopyKey]) -> Result<Option<Holder>, DatabaseError> {
        let doing = "asking who holds the lock";
        let ours = match copies {
            [] => String::new(),
            copies => format!("copy_key IN ({}) AND ", keys(copies)),
        };
        let batch = format!(
            "SELECT IS_USED_LOCK({lock}); \
             SELECT session, host, pid, queue_id, {AGE} FROM attempts \
             WHERE {ours}ended_at IS NULL AND lock_digest = {digest} \
             AND session = IS_USED_LOCK({lock}) AND session <> CONNECTION_ID() \
             ORDER BY started_at DESC LIMIT 1",
            lock = sql::text(&lock.mysql_name()),
            digest = sql::bytes(lock.digest()),
        );
        let answers = self.run(doing, &batch, 2)?;
        if let Some(row) = answers.get(1).and_then(|rows| rows.first()) {
            let age: i64 = column(row, 4, doing)?;
            return Ok(Some(Holder {
                session: column(row, 0, doing)?,
                host: Some(column(row, 1, doing)?),
                pid: Some(column(row, 2, doing)?),
                queue_id: column(row, 3, doing)?,
                // Negative if the server's clock was set back.
                held_for: u64::try_from(age).ok().map(Duration::from_micros),
            }));
        }
        let Some(row) = answers.first().and_then(|rows| rows.first()) else {
            return Ok(None);
        };
        // NULL: it was freed in the meantime.
        let session: Option<u64> = column(row, 0, doing)?;
        Ok(session.map(Holder::of_session))
    }

    /// The source, unless the server could not take it. `max_allowed_packet` (by default 16 MiB on MariaDB, 64 MiB on MySQL)
    /// bounds every value, and a larger packet costs the connection and the lock. A message too large for that is delivered
    /// without its source, and the log says so, instead of being deferred for ever.
    fn source_that_fits<'a>(&self, message: &MessageRecord<'a>) -> Option<&'a [u8]> {
        let source = message.raw?;
        let most = self.max_allowed_packet().saturating_sub(ROOM_BESIDE_SOURCE);
        if source.len() <= most {
            return Some(source);
        }
        warn!(
            message_id = message.message_id,
            bytes = source.len(),
            max_allowed_packet = self.max_allowed_packet(),
            "the source of this message is not kept: the database server's max_allowed_packet is too small for it"
        );
        None
    }

    /// One transaction in one round trip; in four if there is a large source. The caller rolls back if it fails. A lost answer to
    /// COMMIT is an error like any other, and no reason to try again.
    fn try_to_record(&mut self, record: &Record<'_>, source: Option<&[u8]>) -> Result<(), DatabaseError> {
        let doing = "recording the delivery";
        let mut statements = Vec::new();
        if !record.events.is_empty() {
            // Before the transaction: within it, the look at subscriptions would be its snapshot, which MariaDB holds the rest to.
            // Not within the INSERT, which would wait for whoever changes a subscription (1205).
            statements.push("SELECT EXISTS (SELECT 1 FROM subscriptions) INTO @maildrop_subscribed".into());
        }
        statements.push("START TRANSACTION".into());
        if let Some(message) = &record.message {
            statements.push(insert_message(message));
            statements.push("SET @maildrop_message = LAST_INSERT_ID()".into());
        }
        match source {
            Some(source) if goes_in_batch(source.len(), self.max_allowed_packet()) => {
                statements.push(insert_source(&sql::bytes(source)))
            }
            Some(source) => {
                statements
                    .push("SELECT EXISTS (SELECT 1 FROM message_sources WHERE message_id = @maildrop_message)".into());
                let answers = self.run_all(doing, &mut statements)?;
                let kept_already: bool = column(only_row(&answers, doing)?, 0, doing)?;
                if !kept_already {
                    self.run_with_bytes("keeping the source of the message", &insert_source("?"), source)?;
                }
            }
            None => {}
        }
        statements.extend(record.copies.iter().map(upsert_copy));
        statements.extend(record.ended.iter().map(end_attempt));
        statements.extend(record.events.iter().map(insert_event));
        statements.push("COMMIT".into());
        self.run_all(doing, &mut statements)?;
        Ok(())
    }

    fn run_all(&mut self, doing: &str, statements: &mut Vec<String>) -> Result<Vec<Answer>, DatabaseError> {
        let count = statements.len();
        let batch = std::mem::take(statements).join("; ");
        self.run(doing, &batch, count)
    }
}

fn keys(copies: &[CopyKey]) -> String {
    sql::list(copies.iter().map(|key| sql::bytes(key.as_bytes())))
}

/// The inside of an IN list, which may not be empty.
fn in_list(addresses: &[String]) -> String {
    if addresses.is_empty() { "NULL".into() } else { sql::list(addresses.iter().map(|address| sql::text(address))) }
}

fn open_attempt(row: &Row, doing: &str) -> Result<OpenAttempt, DatabaseError> {
    let age: i64 = column(row, 3, doing)?;
    let both = column::<Option<u32>>(row, 4, doing)?.zip(column(row, 5, doing)?);
    Ok(OpenAttempt {
        attempt: Uuid::from_bytes(bytes_column(row, 1, doing)?),
        recipient: column(row, 2, doing)?,
        host: column(row, 6, doing)?,
        lock: lock_name(row, 7, doing)?,
        age: seconds(age),
        position: both.map(|(uid_validity, uid_next)| Position { uid_validity, uid_next }),
    })
}

fn lock_name(row: &Row, index: usize, doing: &str) -> Result<LockName, DatabaseError> {
    Ok(LockName::from_digest(bytes_column(row, index, doing)?))
}

/// The message, unless it is there. The assignment to `id` changes nothing, but sets LAST_INSERT_ID() either way (MySQL manual
/// 15.2.7.2).
fn insert_message(message: &MessageRecord<'_>) -> String {
    format!(
        "INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, header_from, header_to, \
         header_cc, subject, sent_at, headers, size, recorded_at) \
         VALUES ({identity}, {lock}, {message_id}, {content}, {sender}, {from}, {to}, {cc}, {subject}, {sent_at}, \
         {headers}, {size}, UTC_TIMESTAMP(6)) \
         ON DUPLICATE KEY UPDATE id = LAST_INSERT_ID(id)",
        identity = sql::bytes(message.identity.as_bytes()),
        lock = sql::bytes(message.lock.digest()),
        message_id = sql::text(message.message_id),
        content = sql::bytes(message.content_digest),
        sender = sql::text(message.sender),
        from = sql::optional_text(message.from),
        to = sql::optional_text(message.to),
        cc = sql::optional_text(message.cc),
        subject = sql::optional_text(message.subject),
        sent_at = sql::optional_text(message.date.and_then(date).as_deref()),
        headers = sql::text(message.headers),
        size = message.size,
    )
}

/// The source, unless it is there: a delivery has no right to change one. `source` is a literal or `?`.
fn insert_source(source: &str) -> String {
    format!(
        "INSERT INTO message_sources (message_id, source) SELECT @maildrop_message, {source} FROM DUAL \
         WHERE NOT EXISTS (SELECT 1 FROM message_sources WHERE message_id = @maildrop_message)"
    )
}

/// The copy's row, new or changed: delivered never becomes owed. Assignments go from left to right, so `state` comes last. The
/// values are repeated, since MySQL and MariaDB have no name for the new row in common (`VALUES()` is deprecated in MySQL; MariaDB
/// knows no alias).
fn upsert_copy(copy: &CopyRecord<'_>) -> String {
    let recipient = sql::text(copy.recipient);
    let (state, placement, reason) = match copy.state {
        CopyState::Delivered(placement) => ("'delivered'", placement, None),
        CopyState::Owed(reason) => ("'owed'", None, Some(reason)),
    };
    let uid_validity = sql::optional_number(placement.map(|placement| placement.uid_validity));
    let uid = sql::optional_number(placement.map(|placement| placement.uid));
    let reason = sql::optional_text(reason);
    let (delivered_at, change) = match copy.state {
        CopyState::Delivered(_) => (
            "UTC_TIMESTAMP(6)",
            format!(
                "recipient = {recipient}, uid_validity = {uid_validity}, uid = {uid}, reason = NULL, \
                 delivered_at = COALESCE(delivered_at, UTC_TIMESTAMP(6)), updated_at = UTC_TIMESTAMP(6), \
                 state = 'delivered'"
            ),
        ),
        CopyState::Owed(_) => (
            "NULL",
            format!(
                "recipient = IF(state = 'delivered', recipient, {recipient}), \
                 reason = IF(state = 'delivered', reason, {reason}), \
                 updated_at = IF(state = 'delivered', updated_at, UTC_TIMESTAMP(6))"
            ),
        ),
    };
    format!(
        "INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, uid_validity, uid, reason, \
         delivered_at, updated_at) \
         VALUES ({key}, @maildrop_message, {role}, {user}, {mailbox}, {recipient}, {state}, {uid_validity}, {uid}, \
         {reason}, {delivered_at}, UTC_TIMESTAMP(6)) \
         ON DUPLICATE KEY UPDATE {change}",
        key = sql::bytes(copy.key.as_bytes()),
        role = sql::text(copy.role.as_str()),
        user = sql::text(copy.user),
        mailbox = sql::text(copy.mailbox),
    )
}

/// An attempt's end. One that has ended stays as it ended.
fn end_attempt(ended: &EndedAttempt<'_>) -> String {
    format!(
        "UPDATE attempts SET ended_at = UTC_TIMESTAMP(6), outcome = {}, stages = {} \
         WHERE attempt = {} AND copy_key = {} AND ended_at IS NULL",
        sql::text(&ended.outcome.to_string()),
        sql::optional_text(ended.stages),
        sql::bytes(ended.attempt.as_bytes()),
        sql::bytes(ended.key.as_bytes()),
    )
}

/// What there is to tell of a copy, where anybody is subscribed.
fn insert_event(event: &EventRecord<'_>) -> String {
    format!(
        "INSERT INTO outbox (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, manner, \
         attempt, queue_id, host, diff, created_at) \
         SELECT {name}, '{kind}', {key}, {identity}, {message_id}, '{role}', {recipient}, {user}, {mailbox}, {manner}, \
         {attempt}, {queue_id}, {host}, {diff}, UTC_TIMESTAMP(6) FROM DUAL WHERE @maildrop_subscribed",
        name = sql::bytes(event.event.as_bytes()),
        kind = event.kind.as_str(),
        key = sql::bytes(event.key.as_bytes()),
        identity = sql::bytes(event.identity.as_bytes()),
        message_id = sql::text(event.message_id),
        role = event.role.as_str(),
        recipient = sql::text(event.recipient),
        user = sql::text(event.user),
        mailbox = sql::text(event.mailbox),
        manner = sql::optional_text(event.manner),
        attempt = event.attempt.map_or_else(|| "NULL".to_owned(), |attempt| sql::bytes(attempt.as_bytes())),
        queue_id = sql::optional_text(event.queue_id),
        host = sql::text(event.host),
        diff = sql::text(&event.diff.as_json()),
    )
}

/// A Date field's seconds since 1970 as a DATETIME; `None` outside of its years 1000 to 9999, for which strict mode would refuse
/// the row.
fn date(seconds: i64) -> Option<String> {
    let date = OffsetDateTime::from_unix_timestamp(seconds).ok()?;
    if !(1000..=9999).contains(&date.year()) {
        return None;
    }
    date.format(format_description!("[year]-[month]-[day] [hour]:[minute]:[second]")).ok()
}

/// Whether a source of so many bytes, as hexadecimal digits, fits into a packet together with the rest of the transaction.
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

    #[test]
    fn a_date_that_the_server_cannot_hold_is_left_out() {
        assert_eq!(date(0).as_deref(), Some("1970-01-01 00:00:00"));
        assert_eq!(date(4_102_444_800).as_deref(), Some("2100-01-01 00:00:00"));
        assert_eq!(date(i64::MAX), None);
        assert_eq!(date(-62_000_000_000), None);
    }
}
