//! The lock on PostgreSQL: `pg_try_advisory_xact_lock` (manual, "Advisory Lock Functions"). It ends with its transaction: by
//! COMMIT, ROLLBACK, or the end of the connection.
//!
//! The transaction holds back no VACUUM while IMAP works. It writes nothing before the record, so it has no xid; and between
//! two statements of READ COMMITTED it has no snapshot. Only the statement that *waits* for the lock has one.

use super::{Acquired, Holder, LockName, NamedLock};
use crate::database::postgres::{PostgresDatabase, ProcessName, SHOW_COMMIT_WARNINGS, Transaction, milliseconds};
use crate::database::{DatabaseError, DatabaseFailure, Dialect, Row, Value, unreadable};
use std::time::Duration;

/// The server ends the lock's session this long after the delivery's deadline. By then the process has ended, so only a
/// machine that vanished can still have a session. That session would hold the lock until TCP gives up.
const AFTER_THE_DEADLINE: Duration = Duration::from_secs(30);

/// The condition for the row of an advisory lock with a bigint key in this database. `classid` and `objid` are the halves of
/// the key, and `objsubid` is 1 (PostgreSQL manual, `pg_locks`).
const LOCKED_BY_KEY: &str = "l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted \
     AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
     AND (l.classid::bigint << 32) | l.objid::bigint =";

/// Identifies the present transaction: no other transaction has the same process and the same beginning.
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
        // Compares the present transaction with the one that took the lock: nothing but the end of a transaction frees its
        // lock. This holds even if a pooler has given us another server process. Reading `pg_locks` would cost ten times as
        // much, since the server then searches the locks of all sessions. In an aborted transaction the statement fails, and
        // the lock counts as lost.
        let sql = format!("SELECT {THIS_TRANSACTION} = {}", Dialect::Postgresql.literal(Value::Text(&self.locked_in)));
        self.batch(doing, &sql)?.last()
    }

    fn holder(&mut self, name: &LockName) -> Result<Option<Holder>, DatabaseError> {
        self.ask_for_holder("", name.postgres_key())
    }

    fn keep(&mut self, silence: Duration) -> Result<(), DatabaseError> {
        // `true`: for this transaction only. The timer restarts after each statement.
        let idle = milliseconds(silence);
        let sql = format!("SELECT set_config('idle_in_transaction_session_timeout', '{idle}', true)");
        self.batch("keeping the lock", &sql).map(|_| ())
    }

    fn release(&mut self, name: &LockName) -> Result<(), DatabaseError> {
        if self.transaction == Transaction::Lock(name.postgres_key()) {
            // The rollback loses no record: a record has a COMMIT of its own.
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

/// [`Acquired`], with the answers to the statements that were sent with the request.
pub(crate) enum AcquiredAnd {
    Held(Vec<Row>),
    Busy(Option<Holder>),
}

impl PostgresDatabase {
    /// Takes the lock, and in the same round trip runs the statements `then` in its transaction. Each of them has a newer
    /// snapshot than the one that took the lock (pinned by the tests of PostgreSQL's behaviour).
    ///
    /// The statements must only read: if another session holds the lock, they still run, and their answers are dropped. If
    /// one of them fails, the lock is not taken.
    pub(crate) fn acquire_and(
        &mut self,
        name: &LockName,
        wait: Duration,
        then: &str,
    ) -> Result<AcquiredAnd, DatabaseError> {
        let doing = "taking the lock";
        if self.transaction != Transaction::None {
            // PostgreSQL only warns about a second BEGIN, and the ROLLBACK on "busy" would free the first lock.
            return Err(DatabaseError::new(DatabaseFailure::Other, doing, "this connection holds a lock already"));
        }
        let key = name.postgres_key();
        let remaining = self.deadline().remaining();
        if wait.is_zero() {
            let begin = begin(remaining, self.name_to_set(), 0);
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
        // `pg_advisory_xact_lock` returns void: if the batch succeeds, the lock is held.
        let begin = begin(remaining, self.name_to_set(), milliseconds(wait.min(remaining)));
        let waiting = format!("{begin}; SELECT pg_advisory_xact_lock({key}); SET LOCAL lock_timeout = 0; {then}");
        self.keep_doubtful_flag(|database| match database.batch(doing, &waiting) {
            Ok(answers) => database.held(key, answers.rows, ROWS_OF_BEGIN + 1),
            // 55P03 (lock_timeout). The lock may have been granted at that moment; then the rollback frees it.
            Err(error) if error.failure == DatabaseFailure::Contention => database.busy(key),
            Err(error) => Err(database.roll_back_after(error)),
        })
    }

    /// `rows` is the number of rows that precede the answers to `then`.
    fn held(&mut self, key: i64, mut answers: Vec<Row>, rows: usize) -> Result<AcquiredAnd, DatabaseError> {
        self.transaction = Transaction::Lock(key);
        let missing = || unreadable("the server names no transaction".into());
        match answers.first().and_then(|row| row.text(0)).ok_or_else(missing) {
            Ok(transaction) => self.locked_in = transaction.to_owned(),
            Err(error) => return Err(self.roll_back_after(error)),
        }
        Ok(AcquiredAnd::Held(answers.split_off(rows.min(answers.len()))))
    }

    /// Rolls back, so that the connection can record the end of the attempt, and reads the lock's holder in the same round
    /// trip.
    fn busy(&mut self, key: i64) -> Result<AcquiredAnd, DatabaseError> {
        self.ask_for_holder("ROLLBACK; ", key).map(AcquiredAnd::Busy)
    }

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

/// Begins the lock's transaction with its own time limits. A limit of the role or the server that is shorter than an IMAP
/// exchange would end the session, and the lock with it.
///
/// `transaction_timeout` exists since 17; an older server refuses the name. It can only be switched off: a running timer is
/// not changed (`assign_transaction_timeout` in the source; seen on 17 and 18).
///
/// `name` is set if the session was opened under another name: it shows other sessions who holds the lock. `lock_wait` is how long
/// a statement waits for another session's lock, in milliseconds; 0: for as long as the statement may take.
fn begin(remaining: Duration, name: Option<&str>, lock_wait: i32) -> String {
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
                set_config('lock_timeout', '{lock_wait}', true), \
                CASE WHEN current_setting('server_version_num')::int >= 170000 \
                     THEN set_config('transaction_timeout', '0', true) END{name}"
    )
}

/// Reads the row of the session that holds a lock. For a session of another program only the server's process id is known.
/// PostgreSQL hides the times of another role's session, so `held_for` is missing then.
fn holder(row: &Row) -> Result<Holder, DatabaseError> {
    // `held_for` counts from the transaction's beginning, so it includes the wait for the lock.
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
        let begin = begin(Duration::from_secs(20), Some("maildrop - 1@mx1"), 0);
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
