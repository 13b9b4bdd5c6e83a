//! The ledger on PostgreSQL.
//!
//! Each method is one round trip; the look goes with the lock's statements. Most are batches of the simple query protocol. In a
//! batch, the journal or the record shares its round trip with its COMMIT. For the look, a statement with parameters would keep
//! its snapshot until the next one (see [`PostgresDatabase`]).

use super::failures::{RECORDING_FAILURES, WRITE_TIMEOUT, record_with_fallback};
use super::{AddressBook, CopyHistory, CopyKey, DeliveredAt, Destination, Epoch, Journal, Ledger, LockResult};
use super::{FailureRecord, LoginCheck, OpenAttempt, Record, Snapshot, record_fallback, statements as shared};
use crate::database::postgres::{Parameter, PostgresDatabase, SHOW_COMMIT_WARNINGS, SUPPRESS_NOTICES, Transaction};
use crate::database::{DatabaseError, DatabaseFailure, Dialect, Row, Tables, unreadable, without_nul};
use crate::lock::{AcquiredAnd, LockName, NamedLock};
use crate::mailbox::Placement;
use crate::message::fold;
use postgres::types::Type;
use std::time::Duration;

mod statements;

/// These settings are the same as in a record's batch (`SUPPRESS_NOTICES`, `SHOW_COMMIT_WARNINGS`).
const REFUSE: &str = "\
    WITH written AS (\
        INSERT INTO unknown_recipients (host, count, in_hour, last_at) \
        SELECT $1, 1, 1, clock_timestamp() FROM set_config('client_min_messages', 'error', true) \
        WHERE EXISTS (SELECT FROM addresses) AND NOT EXISTS (SELECT FROM addresses a WHERE a.address = ANY ($2)) \
        ON CONFLICT (host) DO UPDATE SET count = unknown_recipients.count + 1, last_at = excluded.last_at, \
            in_hour = CASE WHEN unknown_recipients.last_at >= date_trunc('hour', excluded.last_at) \
                THEN unknown_recipients.in_hour + 1 ELSE 1 END \
        RETURNING 1) \
    SELECT set_config('client_min_messages', 'warning', true) FROM (SELECT count(*) AS rows FROM written) w WHERE w.rows > 0";

impl Ledger for PostgresDatabase {
    fn look_up(&mut self, addresses: &[&str], login_check: Option<&LoginCheck>) -> Result<AddressBook, DatabaseError> {
        let doing = "looking up addresses";
        let (asked, digest) = (asked(addresses), login_check.map(|login_check| &login_check.digest[..]));
        let mut book = AddressBook::default();
        let mut read_only = false;
        let values: [Parameter<'_>; 2] = [(&asked, Type::TEXT_ARRAY), (&digest, Type::BYTEA)];
        for row in self.read(doing, &statements::look_up(self.plans_are_cached()), &values)? {
            let (address, user, inbox, sent): (_, Option<String>, Option<String>, Option<String>);
            ((address, user, inbox, sent), book.empty, read_only, book.proven, self.reports_epoch) = row.read()?;
            if let (Some(address), Some(inbox), Some(sent)) = (address, inbox, sent) {
                book.entries.push((address, Destination { user: user.unwrap_or_default(), inbox, sent }));
            }
        }
        book.unless_a_replica_knows_none(doing, read_only)
    }

    fn refuse(&mut self, host: &str, addresses: &[&str]) -> Result<bool, DatabaseError> {
        let doing = "writing down that a recipient is refused";
        let (host, asked) = (without_nul(host), asked(addresses));
        let values: [Parameter<'_>; 2] = [(&host, Type::TEXT), (&asked, Type::TEXT_ARRAY)];
        let rows = self.retrying(|this| this.execute(doing, REFUSE, &values))?;
        self.check_commit_warning(doing)?;
        Ok(rows > 0)
    }

    fn record_login_check(
        &mut self,
        login_check: &LoginCheck,
        host: &str,
        is_proven: bool,
    ) -> Result<(), DatabaseError> {
        let (doing, written) =
            (shared::RECORDING_A_LOGIN, shared::login_check(Dialect::Postgresql, login_check, host, is_proven));
        // COMMIT ends the lock's transaction. Without a transaction it gives a warning of class 25.
        self.batch(doing, &format!("{SUPPRESS_NOTICES} {written}; {SHOW_COMMIT_WARNINGS} COMMIT"))?;
        self.transaction = Transaction::None;
        self.check_commit_warning(doing)
    }

    fn try_journal(&mut self, journal: &Journal<'_>) -> Result<(), DatabaseError> {
        if journal.copies.is_empty() {
            return Ok(());
        }
        self.change(shared::JOURNALLING, &shared::journal(Dialect::Postgresql, journal), &[]).map(drop)
    }

    fn record_failures(&mut self, failures: &[FailureRecord<'_>]) -> Result<(), DatabaseError> {
        record_with_fallback(failures, Dialect::Postgresql, |statements| {
            self.change_briefly(RECORDING_FAILURES, &statements.join("; "), WRITE_TIMEOUT)
        })
    }

    /// Takes the lock and looks, in one round trip. If the look fails, the lock is not taken either: the server aborts the
    /// transaction. The epoch is read in the same transaction, since a pooler may give the next one another server.
    ///
    /// A session's first delivery reads the epoch without the function, which costs a new session some 2 ms to load PL/pgSQL. If
    /// a service has removed what the query needs, the function reports that, and a new session asks twice.
    ///
    /// A transaction of its own records a new epoch, before the lock is taken once more.
    fn acquire_and_look(
        &mut self,
        lock: &LockName,
        wait: Duration,
        copies: &[CopyKey],
    ) -> Result<LockResult, DatabaseError> {
        let look = statements::look(self.plans_are_cached(), copies);
        let mut may_begin = true;
        loop {
            let directly = self.reports_epoch && !self.plans_are_cached();
            let epoch_of = if directly { statements::EPOCH_BY_ITSELF } else { statements::EPOCH };
            let seen = match self.acquire_and(lock, wait, &format!("{epoch_of}; {look}")) {
                Ok(AcquiredAnd::Held(seen)) => seen,
                Ok(AcquiredAnd::Busy(holder)) => return Ok(LockResult::Busy(holder)),
                Err(error) if directly && cannot_report_epoch(&error) => {
                    self.reports_epoch = false;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let looked = epoch(&seen).and_then(|epoch| Ok((histories(copies, &seen[1..])?, epoch)));
            if matches!(&looked, Ok((_, epoch)) if epoch.is_unwritten()) && std::mem::take(&mut may_begin) {
                self.release(lock)?;
                self.begin_epoch()?;
                continue;
            }
            let looked = looked.map(|(copies, epoch)| Snapshot { copies, epoch: epoch.began() });
            return Ok(LockResult::Held { looked, took: Duration::ZERO });
        }
    }

    fn look(&mut self, copies: &[CopyKey]) -> Result<Vec<CopyHistory>, DatabaseError> {
        let look = statements::look(self.plans_are_cached(), copies);
        histories(copies, &self.batch("looking at what was done", &look)?.rows)
    }

    fn epoch(&mut self) -> Result<Epoch, DatabaseError> {
        epoch(&self.batch("asking in which epoch the database is", statements::EPOCH)?.rows)
    }

    fn begin_epoch(&mut self) -> Result<(), DatabaseError> {
        self.change("writing down that another epoch has begun", statements::BEGIN_EPOCH, &[]).map(drop)
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), DatabaseError> {
        // In the lock's transaction, a contended statement is rolled back to a savepoint, which keeps the lock. A savepoint also
        // fails outside of an open and sound transaction (25P01, 25P02). Without that, the rest would be recorded without the
        // lock.
        let (first, again) = match self.transaction {
            Transaction::None => (statements::BEGIN, statements::BEGIN_AGAIN),
            Transaction::Lock(_) => (statements::SAVEPOINT, statements::SAVEPOINT_AGAIN),
            Transaction::Schema => {
                return Err(DatabaseError::other(shared::RECORDING, "the schema is being changed on this connection"));
            }
        };
        let mut begin = first;
        let written = record_fallback::record_with_fallback(record, |record| {
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
    /// One round trip, or three if the message's source is kept: the source is sent as bytes, and once for all recipients.
    fn try_record(&mut self, begin: &str, record: &Record<'_>) -> Result<(), DatabaseError> {
        let (doing, dialect, cached) = (shared::RECORDING, Dialect::Postgresql, self.plans_are_cached());
        let mut batch = format!("{begin}{SUPPRESS_NOTICES}");
        if let Some(message) = &record.message {
            batch += &format!("{};", shared::message(dialect, message, cached));
            if let Some(raw) = message.raw {
                batch += &shared::source_is_missing(dialect, message);
                if self.batch(doing, &batch)?.last()? {
                    self.execute(doing, &shared::source(dialect, message, "$1"), &[(&raw, Type::BYTEA)])?;
                }
                batch.clear();
            }
        }
        for statement in shared::after_message(dialect, record, cached)? {
            batch += &statement;
            batch.push(';');
        }
        self.commit(doing, &batch)
    }
}

/// Whether the server may have refused to report its epoch. Either it has no such function (42883), or our role may not call it
/// (42501), or the service has removed it (0A000).
fn cannot_report_epoch(error: &DatabaseError) -> bool {
    matches!(error.failure, DatabaseFailure::Schema | DatabaseFailure::AccessDenied | DatabaseFailure::Other)
}

/// Reads the epoch, which is in the first row.
fn epoch(rows: &[Row]) -> Result<Epoch, DatabaseError> {
    rows.first().ok_or_else(|| unreadable("no answer about the epoch".into()))?.read()
}

/// Combines the rows of a look into the history of each requested copy.
fn histories(copies: &[CopyKey], rows: &[Row]) -> Result<Vec<CopyHistory>, DatabaseError> {
    type Seen = (usize, bool, Option<Placement>, Option<OpenAttempt>, Option<LockName>, Option<f64>, Option<String>);
    let mut histories: Vec<CopyHistory> = copies.iter().map(CopyHistory::unknown).collect();
    for row in rows {
        let (place, is_delivered, placement, attempt, lock, age, owed): Seen = row.read()?;
        // The database counts from 1.
        let history = place.checked_sub(1).and_then(|place| histories.get_mut(place));
        let history = history.ok_or_else(|| unreadable("a copy that was not asked for".into()))?;
        if is_delivered {
            (history.delivered, history.recorded) = (Some(DeliveredAt { placement }), lock.zip(age));
        }
        history.owed = owed;
        history.open_attempts.extend(attempt);
    }
    Ok(histories)
}

/// The addresses as the table spells them.
fn asked(addresses: &[&str]) -> Vec<String> {
    addresses.iter().map(|address| without_nul(&fold(address)).into_owned()).collect()
}
