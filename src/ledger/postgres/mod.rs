//! The ledger on PostgreSQL.
//!
//! Each method is one round trip; the look goes with the lock's statements. Most are batches of the simple query protocol: the journal
//! and the record, so that each and its COMMIT are one round trip; the look, since a statement with parameters keeps its snapshot until
//! the next one (see [`PostgresDatabase`]).

use super::{AcquiredAndLooked, AddressBook, CopyHistory, CopyKey, DeliveredAt, Destination, Epoch, Journal, Ledger};
use super::{Looked, OpenAttempt, Record, WayIn, record_fallback, statements as shared};
use crate::base::hex;
use crate::database::postgres::{HEAR_NOTHING, HEAR_OF_THE_COMMIT, PostgresDatabase, TextRow, Transaction, column};
use crate::database::{DatabaseError, DatabaseFailure, Dialect, Tables, without_nul};
use crate::lock::{AcquiredAnd, LockName, NamedLock};
use crate::mailbox::{Placement, Position};
use crate::message::fold;
use postgres::types::{ToSql, Type};
use std::time::Duration;

mod statements;

/// The settings are those of a record's batch (`HEAR_NOTHING`, `HEAR_OF_THE_COMMIT`), as in a journal's statement.
const REFUSE: &str = "\
    WITH written AS (\
        INSERT INTO refusals (host, refused, last_at) \
        SELECT $1, 1, clock_timestamp() FROM set_config('client_min_messages', 'error', true) \
        WHERE EXISTS (SELECT FROM addresses) AND NOT EXISTS (SELECT FROM addresses a WHERE a.address = ANY ($2)) \
        ON CONFLICT (host) DO UPDATE SET refused = refusals.refused + 1, last_at = excluded.last_at \
        RETURNING 1) \
    SELECT set_config('client_min_messages', 'warning', true) FROM (SELECT count(*) AS rows FROM written) w WHERE w.rows > 0";

impl Ledger for PostgresDatabase {
    fn look_up(&mut self, addresses: &[&str], way_in: Option<&WayIn>) -> Result<AddressBook, DatabaseError> {
        let doing = "looking up addresses";
        let asked = asked(addresses);
        let mut book = AddressBook::default();
        let mut read_only = false;
        let digest = way_in.map(|way_in| &way_in.digest[..]);
        let statement = statements::look_up(self.plans_are_cached());
        for row in &self.query(doing, statement, &[(&asked, Type::TEXT_ARRAY), (&digest, Type::BYTEA)])? {
            (book.empty, read_only, book.proven) =
                (column(doing, row, 4)?, column(doing, row, 5)?, column(doing, row, 6)?);
            self.tells_its_epoch = column(doing, row, 7)?;
            if let Some(address) = column(doing, row, 0)? {
                let destination = Destination {
                    user: column(doing, row, 1)?,
                    inbox: column(doing, row, 2)?,
                    sent: column(doing, row, 3)?,
                };
                book.entries.push((address, destination));
            }
        }
        book.unless_a_replica_knows_none(doing, read_only)
    }

    fn refuse(&mut self, host: &str, addresses: &[&str]) -> Result<bool, DatabaseError> {
        let doing = "writing down that a recipient is refused";
        let (host, asked) = (without_nul(host), asked(addresses));
        let values: &[(&(dyn ToSql + Sync), _)] = &[(&host, Type::TEXT), (&asked, Type::TEXT_ARRAY)];
        let rows = self.retrying(|this| this.execute(doing, REFUSE, values))?;
        self.replicated(doing)?;
        Ok(rows > 0)
    }

    fn record_way_in(&mut self, way_in: &WayIn, host: &str) -> Result<(), DatabaseError> {
        self.write_way_in(
            "remembering a way in to the mailbox store",
            &shared::way_in(Dialect::Postgresql, way_in, host),
        )
    }

    fn disprove_way_in(&mut self, way_in: &WayIn, host: &str) -> Result<(), DatabaseError> {
        let doing = "remembering that a way in to the mailbox store is none";
        self.write_way_in(doing, &shared::no_way_in(Dialect::Postgresql, way_in, host))
    }

    fn try_journal(&mut self, journal: &Journal<'_>) -> Result<(), DatabaseError> {
        if journal.copies.is_empty() {
            return Ok(());
        }
        self.change(shared::JOURNALLING, &shared::journal(Dialect::Postgresql, journal), &[]).map(drop)
    }

    /// One round trip. Where the look fails, the lock is not taken either: the server aborts the transaction. The epoch is asked for
    /// in it, too: a pooler may give the next transaction another server.
    ///
    /// A session's first delivery asks without the function, which costs a new session some 2 ms: PL/pgSQL has to be loaded. Where a
    /// service has taken away what is asked for, the function says so, and a new session asks twice.
    ///
    /// An epoch that has just begun is written down by a transaction of its own, before the lock is taken once more.
    fn acquire_and_look(
        &mut self,
        lock: &LockName,
        wait: Duration,
        copies: &[CopyKey],
    ) -> Result<AcquiredAndLooked, DatabaseError> {
        let look = statements::look(self.plans_are_cached(), copies);
        let mut may_begin = true;
        loop {
            let directly = self.tells_its_epoch && !self.plans_are_cached();
            let epoch_of = if directly { statements::EPOCH_BY_ITSELF } else { statements::EPOCH };
            let seen = match self.acquire_and(lock, wait, &format!("{epoch_of}; {look}")) {
                Ok(AcquiredAnd::Held(seen)) => seen,
                Ok(AcquiredAnd::Busy(holder)) => return Ok(AcquiredAndLooked::Busy(holder)),
                Err(error) if directly && refuses_to_tell(&error) => {
                    self.tells_its_epoch = false;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut rows = seen.rows();
            let looked = epoch(&mut rows).and_then(|epoch| Ok((histories(copies, rows)?, epoch)));
            if matches!(&looked, Ok((_, epoch)) if epoch.is_unwritten()) && std::mem::take(&mut may_begin) {
                self.release(lock)?;
                self.begin_epoch()?;
                continue;
            }
            let looked = looked.map(|(copies, epoch)| Looked { copies, epoch: epoch.began() });
            return Ok(AcquiredAndLooked::Held { looked, took: Duration::ZERO });
        }
    }

    fn look(&mut self, copies: &[CopyKey]) -> Result<Vec<CopyHistory>, DatabaseError> {
        histories(copies, self.batch(LOOKING, &statements::look(self.plans_are_cached(), copies))?.rows())
    }

    fn epoch(&mut self) -> Result<Epoch, DatabaseError> {
        epoch(&mut self.batch(ASKING_FOR_THE_EPOCH, statements::EPOCH)?.rows())
    }

    fn begin_epoch(&mut self) -> Result<(), DatabaseError> {
        let doing = "writing down that another epoch has begun";
        self.retrying(|this| this.execute(doing, statements::BEGIN_EPOCH, &[]))?;
        self.replicated(doing)
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), DatabaseError> {
        // In the lock's transaction a contended statement is rolled back to a savepoint, which keeps the lock. A savepoint also
        // fails outside of an open and sound transaction (25P01, 25P02), where the rest would be recorded without the lock.
        let (first, again) = match self.transaction {
            Transaction::None => (statements::BEGIN, statements::BEGIN_AGAIN),
            Transaction::Lock(_) => (statements::SAVEPOINT, statements::SAVEPOINT_AGAIN),
            Transaction::Schema => {
                return Err(DatabaseError::other(shared::RECORDING, "the schema is being changed on this connection"));
            }
        };
        let mut begin = first;
        let written = record_fallback::record_or_less(record, |record| {
            self.retrying(|this| this.try_record(std::mem::replace(&mut begin, again), record))
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
        shared::first_attempt_age(self, copies)
    }
}

impl PostgresDatabase {
    fn write_way_in(&mut self, doing: &str, statement: &str) -> Result<(), DatabaseError> {
        // COMMIT ends the lock's transaction. Without one it gives a warning of class 25.
        self.batch(doing, &format!("{HEAR_NOTHING} {statement}; {HEAR_OF_THE_COMMIT} COMMIT"))?;
        self.transaction = Transaction::None;
        self.replicated(doing)
    }

    /// One round trip; two more where the message's source is kept, so that it crosses as bytes, and once for all recipients.
    fn try_record(&mut self, begin: &str, record: &Record<'_>) -> Result<(), DatabaseError> {
        let (doing, dialect, cached) = (shared::RECORDING, Dialect::Postgresql, self.plans_are_cached());
        let mut batch = format!("{begin}{HEAR_NOTHING}");
        if let Some(message) = &record.message {
            batch += &format!("{};", shared::message(dialect, message));
            if let Some(raw) = message.raw {
                batch += &shared::source_is_missing(dialect, message);
                if self.batch(doing, &batch)?.rows().next_back().map(|row| row.value(doing, 0)).transpose()?.flatten()
                    == Some(1)
                {
                    self.execute(doing, &shared::source(dialect, message, "$1"), &[(&raw, Type::BYTEA)])?;
                }
                batch.clear();
            }
        }
        for statement in shared::after_message(dialect, record, cached)? {
            batch += &statement;
            batch.push(';');
        }
        batch.push_str(HEAR_OF_THE_COMMIT);
        batch.push_str("COMMIT");
        self.batch(doing, &batch)?;
        self.replicated(doing)
    }
}

const LOOKING: &str = "looking at what was done";

const ASKING_FOR_THE_EPOCH: &str = "asking in which epoch the database is";

/// Whether the server may have refused to tell its epoch: it has no such function (42883), our role may not (42501), or the service has
/// taken it away (0A000).
fn refuses_to_tell(error: &DatabaseError) -> bool {
    matches!(error.failure, DatabaseFailure::Schema | DatabaseFailure::AccessDenied | DatabaseFailure::Other)
}

/// What the next row says of the epoch.
fn epoch<'a>(rows: &mut impl Iterator<Item = TextRow<'a>>) -> Result<Epoch, DatabaseError> {
    let doing = ASKING_FOR_THE_EPOCH;
    let row = rows.next().ok_or_else(|| DatabaseError::other(doing, "no answer"))?;
    let text = |index| Ok::<_, DatabaseError>(row.text(doing, index)?.map(ToOwned::to_owned));
    Ok(Epoch { present: text(0)?, last: text(1)?, age: row.value(doing, 2)? })
}

/// What the rows of a look say of the copies that were asked for.
fn histories<'a>(
    copies: &[CopyKey],
    rows: impl Iterator<Item = TextRow<'a>>,
) -> Result<Vec<CopyHistory>, DatabaseError> {
    let doing = LOOKING;
    let mut histories: Vec<CopyHistory> = copies.iter().map(CopyHistory::unknown).collect();
    for row in rows {
        // Counted from 1.
        let place = row.value::<usize>(doing, 0)?.and_then(|place| place.checked_sub(1));
        let history = place.and_then(|place| histories.get_mut(place));
        let history = history.ok_or_else(|| DatabaseError::other(doing, "a copy that was not asked for"))?;
        if row.truth(doing, 1)? {
            let placement = pair(doing, &row, 2, 3)?.map(|(uid_validity, uid)| Placement { uid_validity, uid });
            history.delivered = Some(DeliveredAt { placement });
            history.recorded = lock_name(doing, &row, 11)?.zip(row.value(doing, 12)?);
        }
        if history.owed.is_none() {
            history.owed = row.text(doing, 13)?.map(ToOwned::to_owned);
        }
        if let Some(attempt) = row.value(doing, 4)? {
            history.open_attempts.push(OpenAttempt {
                attempt,
                recipient: row.text(doing, 5)?.unwrap_or_default().to_owned(),
                host: row.text(doing, 9)?.unwrap_or_default().to_owned(),
                lock: lock_name(doing, &row, 10)?
                    .ok_or_else(|| DatabaseError::other(doing, "an attempt without a lock"))?,
                age: row
                    .value(doing, 6)?
                    .ok_or_else(|| DatabaseError::other(doing, "an attempt without a beginning"))?,
                position: pair(doing, &row, 7, 8)?.map(|(uid_validity, uid_next)| Position { uid_validity, uid_next }),
            });
        }
    }
    Ok(histories)
}

/// Addresses as they are in the table.
fn asked(addresses: &[&str]) -> Vec<String> {
    addresses.iter().map(|address| without_nul(&fold(address)).into_owned()).collect()
}

/// Two unsigned numbers that are known together or not at all. A number that IMAP cannot have counts as not known, which only
/// makes a search longer.
fn pair(doing: &str, row: &TextRow<'_>, first: usize, second: usize) -> Result<Option<(u32, u32)>, DatabaseError> {
    let number = |index| -> Result<Option<u32>, DatabaseError> {
        Ok(row.value::<i64>(doing, index)?.and_then(|value| u32::try_from(value).ok()))
    };
    Ok(number(first)?.zip(number(second)?))
}

/// A lock's digest, which comes in hexadecimal digits.
fn lock_name(doing: &str, row: &TextRow<'_>, index: usize) -> Result<Option<LockName>, DatabaseError> {
    let Some(digits) = row.text(doing, index)? else { return Ok(None) };
    let digest = hex::decode(digits).and_then(|digest| digest.try_into().ok());
    digest
        .map(|digest| Some(LockName::from_digest(digest)))
        .ok_or_else(|| DatabaseError::other(doing, "a lock's digest that is none"))
}
