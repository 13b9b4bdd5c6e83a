//! The named lock of MySQL and MariaDB: `GET_LOCK`, `RELEASE_LOCK`, `IS_USED_LOCK` (MySQL 9 manual 14.14, "Locking
//! Functions"; MariaDB, "Miscellaneous Functions").
//!
//! The lock belongs to the session: COMMIT and ROLLBACK keep it, and the end of the connection frees it. What differs
//! between the servers, or surprises:
//!
//! - `GET_LOCK` answers 1 (held), 0 (busy) or NULL (neither). MariaDB answers NULL to a killed query and to a bad
//!   argument; MySQL raises an error (1317, 3057, 4163).
//! - MySQL rounds the timeout to whole seconds: 0.4 would not wait, and 0.6 would wait one second. MariaDB accepts
//!   fractions. A negative timeout, which waits for ever on MySQL and is NULL on MariaDB, is never sent.
//! - A session that takes a lock twice would have to release it twice. Here the second request is an error.
//! - MySQL accepts names of 64 characters and ignores case; MariaDB accepts 192 bytes and respects case. Our names are the
//!   same to both ([`LockName::mysql_name`]).
//! - Names belong to the server, not to the database: sites that share a server choose different namespaces.
//! - The lock belongs to one server. On Group Replication with several primaries it does not exclude sessions of another
//!   member: `check` reports that. On a node of Galera, and on a read-only server, the lock is refused.
//! - A lock no longer counts once its server is read-only: while the primary changes, the old and the new one would both
//!   grant the lock.

use super::{Acquired, Holder, LockName, NamedLock};
use crate::database::mysql::{Answer, only, sql};
use crate::database::{DatabaseError, DatabaseFailure, Dialect, MysqlDatabase, Tables, Value};
use std::time::Duration;
use tracing::warn;

/// Sent with `GET_LOCK` if the server may be a node of Galera. `@@wsrep_on` is an error on a MariaDB built without it.
const GALERA: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name = 'wsrep_on' AND Value = 'ON'; ";

/// Our own answer in place of `GET_LOCK`'s: this session holds the lock already.
const OURS_ALREADY: i64 = 2;

impl NamedLock for MysqlDatabase {
    fn acquire(&mut self, name: &LockName, wait: Duration) -> Result<Acquired, DatabaseError> {
        Ok(match self.get_lock_and(name, wait, &[])? {
            Some(_) => Acquired::Held,
            None => Acquired::Busy(log_unknown_holder(self.holder(name))),
        })
    }

    fn still_held(&mut self, name: &LockName) -> Result<bool, DatabaseError> {
        let doing = "making sure of the lock";
        let lock = self.dialect().literal(Value::Text(&name.mysql_name()));
        let ask = format!("SELECT IS_USED_LOCK({lock}) <=> CONNECTION_ID(), {}", sql::READ_ONLY);
        let (ours, read_only): (bool, bool) = self.run_for(doing, &ask, 1)?;
        if ours && read_only {
            warn!(lock = ?name, "the server takes no writes any more: its lock does not exclude who asks the new primary");
        }
        Ok(ours && !read_only)
    }

    fn keep(&mut self, silence: Duration) -> Result<(), DatabaseError> {
        let seconds = rounded_up(silence).max(1);
        self.run("keeping the lock", &format!("SET SESSION wait_timeout = {seconds}"), 1).map(|_| ())
    }

    fn holder(&mut self, name: &LockName) -> Result<Option<Holder>, DatabaseError> {
        let ask = format!("SELECT IS_USED_LOCK({})", self.dialect().literal(Value::Text(&name.mysql_name())));
        let session = self.run_for::<Option<u64>>("asking who holds the lock", &ask, 1)?;
        Ok(session.map(Holder::of_session))
    }

    fn release(&mut self, name: &LockName) -> Result<(), DatabaseError> {
        if self.has_committed() {
            // The record has released it.
            return Ok(());
        }
        let doing = "releasing the lock";
        let ask = format!("SELECT RELEASE_LOCK({})", self.dialect().literal(Value::Text(&name.mysql_name())));
        match self.run_for::<Option<i64>>(doing, &ask, 1)? {
            Some(1) => {}
            Some(_) => warn!(lock = ?name, "the lock to be released is held by another session"),
            None => warn!(lock = ?name, "the lock to be released was free"),
        }
        Ok(())
    }
}

impl MysqlDatabase {
    /// Asks for the lock, and in the same round trip runs the statements `then`, each of which has a newer snapshot than
    /// the lock (pinned by the tests of MySQL's behaviour). Returns their answers; `None` if another session holds the lock.
    ///
    /// The statements must only read: they also run if the lock is busy. If one of them fails, the lock is released.
    pub(crate) fn get_lock_and(
        &mut self,
        name: &LockName,
        wait: Duration,
        then: &[String],
    ) -> Result<Option<Vec<Answer>>, DatabaseError> {
        let doing = "asking for the lock";
        let seconds = timeout(self.dialect(), wait, self.remaining());
        let lock = self.dialect().literal(Value::Text(&name.mysql_name()));
        // CASE evaluates GET_LOCK only if its branch is reached (a test verifies that on each server).
        let ask = format!(
            "SELECT CASE WHEN IS_USED_LOCK({lock}) <=> CONNECTION_ID() THEN {OURS_ALREADY} \
             ELSE GET_LOCK({lock}, {seconds}) END, {}",
            sql::READ_ONLY
        );
        let (galera, first) = if self.knows_galera() { (GALERA, 1) } else { ("", 0) };
        let batch = then.iter().fold(format!("{galera}{ask}"), |batch, statement| batch + "; " + statement);
        let mut answers = self.run(doing, &batch, first + 1 + then.len()).inspect_err(|_| {
            if !then.is_empty() {
                // If the connection is gone, the server has released it.
                drop(self.run("releasing the lock", &format!("DO RELEASE_LOCK({lock})"), 1));
            }
        })?;
        let then = answers.split_off(first + 1);
        let (got, read_only): (Option<i64>, bool) = only(&answers)?;
        let is_galera = first == 1 && answers.first().is_some_and(|rows| !rows.is_empty());
        let other = |detail: &str| Err(DatabaseError::new(DatabaseFailure::Other, doing, detail));
        match got {
            Some(1) => match excludes_nobody(is_galera, read_only) {
                Some((failure, why)) => {
                    self.release(name)?;
                    Err(DatabaseError::new(failure, doing, why))
                }
                None => Ok(Some(then)),
            },
            Some(0) => Ok(None),
            Some(OURS_ALREADY) => other("this session holds it already: a mistake in this program"),
            Some(number) => other(&format!("GET_LOCK answered {number}")),
            None => other("GET_LOCK answered NULL: the query was killed, or the server could not"),
        }
    }
}

/// Why a lock on such a server excludes nobody; `None` if it excludes all.
fn excludes_nobody(galera: bool, read_only: bool) -> Option<(DatabaseFailure, &'static str)> {
    if galera {
        let why = "the server is a node of Galera: a lock on it does not exclude who asks another node";
        return Some((DatabaseFailure::Other, why));
    }
    let why = "the server takes no writes (a replica?): a lock on it does not exclude who asks the primary";
    read_only.then_some((DatabaseFailure::ReadOnly, why))
}

impl Holder {
    pub(crate) fn of_session(session: u64) -> Self {
        Self { session: Some(session), ..Self::default() }
    }
}

/// The holder is only for the log, so a failure to read it is only logged. If the connection is gone, the next statement
/// fails as well.
pub(crate) fn log_unknown_holder(holder: Result<Option<Holder>, DatabaseError>) -> Option<Holder> {
    holder.unwrap_or_else(|error| {
        warn!(%error, "the holder of the lock is unknown");
        None
    })
}

/// The timeout in seconds, as the server accepts it: at most the time until the deadline.
fn timeout(product: Dialect, wait: Duration, left: Duration) -> String {
    let wait = wait.min(left);
    if product == Dialect::Mariadb {
        return format!("{}.{:06}", wait.as_secs(), wait.subsec_micros());
    }
    let up = rounded_up(wait);
    // Rounded up to at least the requested wait, or down if that would pass the deadline.
    let seconds = if Duration::from_secs(up) <= left { up } else { wait.as_secs() };
    seconds.to_string()
}

/// In whole seconds.
fn rounded_up(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_counts_on_a_server_that_takes_writes_and_is_the_only_one_to_do_so() {
        let why = |galera, read_only| excludes_nobody(galera, read_only).map(|(failure, _)| failure);
        assert_eq!(why(false, false), None);
        assert_eq!(why(false, true), Some(DatabaseFailure::ReadOnly));
        assert_eq!([why(true, false), why(true, true)], [Some(DatabaseFailure::Other); 2]);
    }

    #[test]
    fn the_timeout_is_whole_seconds_on_mysql_and_never_past_the_deadline() {
        let ms = Duration::from_millis;
        for (wait, left, mysql, mariadb) in [
            (0, 240_000, "0", "0.000000"),
            (400, 60_000, "1", "0.400000"),
            (10_000, 60_000, "10", "10.000000"),
            (2_500, 3_000, "3", "2.500000"),
            (30_000, 2_700, "2", "2.700000"),
            (30_000, 700, "0", "0.700000"),
        ] {
            assert_eq!(timeout(Dialect::Mysql, ms(wait), ms(left)), mysql);
            assert_eq!(timeout(Dialect::Mariadb, ms(wait), ms(left)), mariadb);
        }
    }
}
