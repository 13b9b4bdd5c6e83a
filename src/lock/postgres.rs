//! The lock on PostgreSQL: `pg_try_advisory_xact_lock`. It ends with its transaction: with COMMIT, ROLLBACK, or the end
//! of the connection.
//!
//! The transaction writes nothing before the record, so it has no xid. As it is READ COMMITTED, it has no snapshot
//! while IMAP works. So it holds back no VACUUM. (A statement that *waits* for the lock has a snapshot, as every SELECT
//! has.)

use super::{Acquired, Holder, LockName, NamedLock};
use crate::database::postgres::{PostgresDatabase, ProcessName, SHOW_COMMIT_WARNINGS, Transaction, milliseconds};
use crate::database::{DatabaseError, DatabaseFailure, Dialect, Row, Value, unreadable};
use std::time::Duration;

/// The server ends the lock's session this long after the delivery's deadline. By then the process is gone. Only the
/// session of a machine that vanished is left, which would hold the lock until TCP gives up.
const AFTER_THE_DEADLINE: Duration = Duration::from_secs(30);

/// The condition for the row of an advisory lock with a bigint key in `pg_locks` (PostgreSQL manual, `pg_locks`). It
/// has the key's halves in `classid` and `objid`, `objsubid` 1, in this database.
const LOCKED_BY_KEY: &str = "l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted \
     AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
     AND (l.classid::bigint << 32) | l.objid::bigint =";

/// Identifies the present transaction: no other has, or ever had, the same process and beginning.
const THIS_TRANSACTION: &str = "pg_backend_pid() || ' ' || transaction_timestamp()";

impl NamedLock for PostgresDatabase {
    fn acquire(&mut self, name: &LockName, wait: Duration) -> Result<Acquired, DatabaseError> {
        Ok(match self.acquire_and(name, wait, "")? {
            AcquiredAnd::Held(_) => Acquired::Held,
            AcquiredAnd::Busy(holder) => Acquired::Busy(holder),
        })
    }

    fn still_held(&mut self, name: &LockName) -> Result<bool, DatabaseError> {
        let doing = "asking whether the lock is still held";
        let key = name.postgres_key();
        if self.transaction != Transaction::Lock(key) {
            return Ok(false);
        }
        // Compares the transaction and the process with those that took the lock. This is right even if a pooler has
        // given us another server process. The transaction ends with the lock, and the lock with it: nothing else frees
        // a transaction's lock. It costs the server a tenth of reading `pg_locks`, for which it searches the locks of
        // all sessions. In an aborted transaction the statement fails, and the lock is gone.
        let sql = format!("SELECT {THIS_TRANSACTION} = {}", Dialect::Postgresql.literal(Value::Text(&self.locked_in)));
        self.batch(doing, &sql)?.last()
    }

    fn holder(&mut self, name: &LockName) -> Result<Option<Holder>, DatabaseError> {
        self.ask_for_holder("", name.postgres_key())
    }

    fn keep(&mut self, silence: Duration) -> Result<(), DatabaseError> {
        // For the lock's transaction alone; the timer restarts after each statement.
        let idle = milliseconds(silence);
        let sql = format!("SELECT set_config('idle_in_transaction_session_timeout', '{idle}', true)");
        self.batch("keeping the lock", &sql).map(|_| ())
    }

    fn release(&mut self, name: &LockName) -> Result<(), DatabaseError> {
        if self.transaction == Transaction::Lock(name.postgres_key()) {
            // A record commits by itself, so nothing is lost.
            self.roll_back()?;
        }
        Ok(())
    }

    fn commit_and_release(&mut self, name: &LockName) -> Result<(), DatabaseError> {
        let doing = "committing under the lock";
        if self.transaction != Transaction::Lock(name.postgres_key()) {
            return Err(DatabaseError::other(doing, "the lock is not held"));
        }
        let committed = self.batch(doing, &format!("{SHOW_COMMIT_WARNINGS} COMMIT"));
        self.transaction = Transaction::None;
        committed?;
        self.check_commit_warning(doing)
    }
}

/// [`Acquired`], with the answers to the statements that were sent along.
pub(crate) enum AcquiredAnd {
    Held(Vec<Row>),
    Busy(Option<Holder>),
}

impl PostgresDatabase {
    /// Takes the lock, and in the same round trip runs the statements `then` in its transaction. Each has a newer
    /// snapshot than the one that took the lock (pinned by the tests of PostgreSQL's behaviour). They only read: if
    /// another session holds the lock, they may still run, and their answers are dropped. If one of them fails, the
    /// lock is not taken.
    pub(crate) fn acquire_and(
        &mut self,
        name: &LockName,
        wait: Duration,
        then: &str,
    ) -> Result<AcquiredAnd, DatabaseError> {
        let doing = "taking the lock";
        if self.transaction != Transaction::None {
            // A second BEGIN is only a warning, and the ROLLBACK on "busy" would free the first lock.
            return Err(DatabaseError::new(DatabaseFailure::Other, doing, "this connection holds a lock already"));
        }
        let key = name.postgres_key();
        let remaining = self.deadline().remaining();
        let begin = begin(remaining, self.name_to_set());
        if wait.is_zero() {
            let trying = format!("{begin}; SELECT pg_try_advisory_xact_lock({key}); {then}");
            let answers = self.batch(doing, &trying).and_then(|answers| {
                let taken = answers.rows.get(ROWS_OF_BEGIN).ok_or_else(|| unreadable("no answer".into()))?;
                Ok((taken.read()?, answers.rows))
            });
            return match answers {
                Ok((true, answers)) => self.held(key, answers, ROWS_OF_BEGIN + 1),
                Ok((false, _)) => self.busy(key),
                Err(error) => Err(self.roll_back_after(error)),
            };
        }
        // The function that waits returns nothing: if the batch succeeds, the lock is held.
        let limit = milliseconds(wait.min(remaining));
        let waiting = format!(
            "{begin}; SELECT set_config('lock_timeout', '{limit}', true); SELECT pg_advisory_xact_lock({key}); \
             SELECT set_config('lock_timeout', '0', true); {then}"
        );
        self.keep_doubtful_flag(|database| match database.batch(doing, &waiting) {
            Ok(answers) => database.held(key, answers.rows, ROWS_OF_BEGIN + 3),
            // 55P03, the lock_timeout. The lock may have been granted at that moment; the rollback frees it.
            Err(error) if error.failure == DatabaseFailure::Contention => database.busy(key),
            Err(error) => Err(database.roll_back_after(error)),
        })
    }

    /// `rows`: the number of rows of the statements before the ones that were sent along.
    fn held(&mut self, key: i64, mut answers: Vec<Row>, rows: usize) -> Result<AcquiredAnd, DatabaseError> {
        self.transaction = Transaction::Lock(key);
        let missing = || unreadable("the server names no transaction".into());
        match answers.first().and_then(|row| row.text(0)).ok_or_else(missing) {
            Ok(transaction) => self.locked_in = transaction.to_owned(),
            Err(error) => return Err(self.roll_back_after(error)),
        }
        Ok(AcquiredAnd::Held(answers.split_off(rows.min(answers.len()))))
    }

    /// Rolls back, so that the connection can record the attempt's end, and reads the lock's holder, in one round trip.
    fn busy(&mut self, key: i64) -> Result<AcquiredAnd, DatabaseError> {
        self.ask_for_holder("ROLLBACK; ", key).map(AcquiredAnd::Busy)
    }

    /// `None` if the lock is free.
    fn ask_for_holder(&mut self, first: &str, key: i64) -> Result<Option<Holder>, DatabaseError> {
        let asked = format!(
            "{first}SELECT l.pid, a.application_name, extract(epoch FROM clock_timestamp() - a.xact_start) \
             FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid WHERE {LOCKED_BY_KEY} {key} LIMIT 1"
        );
        let doing = "asking who holds the lock";
        self.batch(doing, &asked)?.rows.first().map(holder).transpose()
    }
}

/// How many rows [`begin`] answers with: the first column identifies the transaction.
const ROWS_OF_BEGIN: usize = 1;

/// Begins the lock's transaction with time limits of its own. A limit of the role's or the server's that is shorter
/// than an IMAP exchange would end the session, and the lock with it.
///
/// `transaction_timeout` (17 and later; an older server refuses the name) can only be switched off. A running timer is
/// not moved (`assign_transaction_timeout`, seen on 17 and 18).
///
/// `name` is set if the session was opened under another one: other sessions see from it who holds the lock.
fn begin(remaining: Duration, name: Option<&str>) -> String {
    let idle = milliseconds(remaining + AFTER_THE_DEADLINE);
    let statement = milliseconds(remaining);
    let name = name.map_or_else(String::new, |name| {
        format!(", set_config('application_name', {}, true)", Dialect::Postgresql.literal(Value::Text(name)))
    });
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
         SELECT {THIS_TRANSACTION}, \
                set_config('idle_in_transaction_session_timeout', '{idle}', true), \
                set_config('statement_timeout', '{statement}', true), \
                set_config('lock_timeout', '0', true), \
                CASE WHEN current_setting('server_version_num')::int >= 170000 \
                     THEN set_config('transaction_timeout', '0', true) END{name}"
    )
}

/// Reads the row of the session that holds a lock. Of other programs' sessions only the server's process id is known.
/// Since when a session of another role has held it is hidden.
fn holder(row: &Row) -> Result<Holder, DatabaseError> {
    // Since its transaction began, including its wait for the lock.
    let (session, name, held_for): (_, Option<String>, _) = row.read()?;
    let process = name.as_deref().and_then(ProcessName::from_application_name);
    let (host, pid, queue_id) =
        process.map_or((None, None, None), |process| (Some(process.host), Some(process.pid), process.queue_id));
    Ok(Holder { host, pid, queue_id, session, held_for })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locks_transaction_outlives_the_deadline_by_a_while_and_its_statements_do_not() {
        let begin = begin(Duration::from_secs(20), Some("maildrop - 1@mx1"));
        for set in [
            "'idle_in_transaction_session_timeout', '50000', true",
            "'statement_timeout', '20000', true",
            "'lock_timeout', '0', true",
            &format!("'application_name', {}, true", Dialect::Postgresql.literal(Value::Text("maildrop - 1@mx1"))),
        ] {
            assert!(begin.contains(&format!("set_config({set})")), "{set}: {begin}");
        }
    }
}
