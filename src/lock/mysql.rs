//! The named lock of MySQL and MariaDB: `GET_LOCK`, `RELEASE_LOCK`, `IS_USED_LOCK` (MySQL 9 manual 14.14, "Locking
//! Functions"; MariaDB, "Miscellaneous Functions").
//!
//! It lives in the session: COMMIT and ROLLBACK keep it, the end of the connection frees it. What the two servers do
//! differently, or not as one would think:
//!
//! - `GET_LOCK` has *three* answers: 1 is held, 0 is busy, and NULL is neither. MariaDB gives NULL to a killed query and
//!   to an argument it does not like; MySQL raises an error (1317, 3057, 4163).
//! - A timeout is rounded to whole seconds by MySQL, so that 0.4 would be "do not wait" and 0.6 a second; MariaDB takes
//!   fractions. A negative one waits for ever on MySQL and is NULL on MariaDB. Neither ever gets one.
//! - Both count: a session that takes a lock twice has to release it twice. Here that is a mistake, and an error.
//! - Names: MySQL takes 64 characters and ignores case, MariaDB takes 192 bytes and does not. Ours are the same to both
//!   ([`LockName::mysql_name`]).
//! - The name space is the server's, not the database's: sites that share a server choose different namespaces.
//! - The lock is that one server's. On Group Replication with several primaries it does not exclude who asks another
//!   member: `check` says so. On a node of Galera, and on a server that takes no writes, it is not taken at all; nor does it
//!   count once the server takes none any more: while the primary changes, one delivery would have it on the old one, and
//!   another on the new one.

use super::{Acquired, Holder, LockName, NamedLock};
use crate::database::mysql::{Product, column, only_row, sql};
use crate::database::{DatabaseError, DatabaseFailure, MysqlDatabase};
use std::time::Duration;
use tracing::warn;

/// Asked together with `GET_LOCK` where the server may be a node of Galera. Not by `@@wsrep_on`, which is an error where a
/// MariaDB was built without Galera.
const GALERA: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name = 'wsrep_on' AND Value = 'ON'; ";

/// The answer, beside those of `GET_LOCK`, where this very session holds the lock already.
const OURS_ALREADY: i64 = 2;

impl NamedLock for MysqlDatabase {
    fn acquire(&mut self, name: &LockName, wait: Duration) -> Result<Acquired, DatabaseError> {
        if self.get_lock(name, wait)? {
            return Ok(Acquired::Held);
        }
        let holder = self.holding_session(name).map(|session| session.map(Holder::of_session));
        Ok(Acquired::Busy(or_untold(holder)))
    }

    fn still_held(&mut self, name: &LockName) -> Result<bool, DatabaseError> {
        let doing = "making sure of the lock";
        let lock = sql::text(&name.mysql_name());
        let ask = format!("SELECT IS_USED_LOCK({lock}) <=> CONNECTION_ID(), {}", sql::READ_ONLY);
        let answers = self.run(doing, &ask, 1)?;
        let row = only_row(&answers, doing)?;
        let (ours, read_only): (bool, bool) = (column(row, 0, doing)?, column(row, 1, doing)?);
        if ours && read_only {
            warn!(lock = ?name, "the server takes no writes any more: its lock does not exclude who asks the new primary");
        }
        Ok(ours && !read_only)
    }

    fn keep(&mut self, silence: Duration) -> Result<(), DatabaseError> {
        let seconds = silence.as_secs() + u64::from(silence.subsec_nanos() > 0);
        self.run("keeping the lock", &format!("SET SESSION wait_timeout = {}", seconds.max(1)), 1).map(|_| ())
    }

    fn release(&mut self, name: &LockName) -> Result<(), DatabaseError> {
        let doing = "releasing the lock";
        let ask = format!("SELECT RELEASE_LOCK({})", sql::text(&name.mysql_name()));
        let answers = self.run(doing, &ask, 1)?;
        match column::<Option<i64>>(only_row(&answers, doing)?, 0, doing)? {
            Some(1) => {}
            Some(_) => warn!(lock = ?name, "the lock to be released is held by another session"),
            None => warn!(lock = ?name, "the lock to be released was free"),
        }
        Ok(())
    }
}

impl MysqlDatabase {
    /// Whether we got the lock.
    pub(crate) fn get_lock(&mut self, name: &LockName, wait: Duration) -> Result<bool, DatabaseError> {
        let doing = "asking for the lock";
        let seconds = timeout(self.product(), wait, self.remaining());
        let lock = sql::text(&name.mysql_name());
        // CASE evaluates GET_LOCK only where its turn comes (a test holds the servers to it).
        let ask = format!(
            "SELECT CASE WHEN IS_USED_LOCK({lock}) <=> CONNECTION_ID() THEN {OURS_ALREADY} \
             ELSE GET_LOCK({lock}, {seconds}) END, {}",
            sql::READ_ONLY
        );
        let (first, statements) = if self.knows_galera() { (GALERA, 2) } else { ("", 1) };
        let answers = self.run(doing, &format!("{first}{ask}"), statements)?;
        let row = only_row(&answers, doing)?;
        let galera = statements == 2 && answers.first().is_some_and(|rows| !rows.is_empty());
        let read_only: bool = column(row, 1, doing)?;
        let other = |detail: &str| Err(DatabaseError::new(DatabaseFailure::Other, doing, detail));
        match column::<Option<i64>>(row, 0, doing)? {
            Some(1) if galera => {
                self.release(name)?;
                other("the server is a node of Galera: a lock on it does not exclude who asks another node")
            }
            Some(1) if read_only => {
                self.release(name)?;
                let detail =
                    "the server takes no writes (a replica?): a lock on it does not exclude who asks the primary";
                Err(DatabaseError::new(DatabaseFailure::ReadOnly, doing, detail))
            }
            Some(1) => Ok(true),
            Some(0) => Ok(false),
            Some(OURS_ALREADY) => other("this session holds it already: a mistake in this program"),
            Some(number) => other(&format!("GET_LOCK answered {number}")),
            None => other("GET_LOCK answered NULL: the query was killed, or the server could not"),
        }
    }

    /// Which session has the lock; `None` if it is free.
    fn holding_session(&mut self, name: &LockName) -> Result<Option<u64>, DatabaseError> {
        let doing = "asking who holds the lock";
        let answers = self.run(doing, &format!("SELECT IS_USED_LOCK({})", sql::text(&name.mysql_name())), 1)?;
        column(only_row(&answers, doing)?, 0, doing)
    }
}

impl Holder {
    /// A holder of which only the session is known.
    pub(crate) fn of_session(session: u64) -> Self {
        Self { session: Some(session), ..Self::default() }
    }
}

/// Who holds the lock is for the log: a failure to find out changes nothing about "busy", unless the connection is gone, which
/// the next statement will tell.
pub(crate) fn or_untold(holder: Result<Option<Holder>, DatabaseError>) -> Option<Holder> {
    holder.unwrap_or_else(|error| {
        warn!(%error, "who holds the lock cannot be told");
        None
    })
}

/// The timeout as the server takes it, in seconds: at most what is left until the deadline.
fn timeout(product: Product, wait: Duration, left: Duration) -> String {
    let wait = wait.min(left);
    match product {
        Product::Mariadb => format!("{}.{:06}", wait.as_secs(), wait.subsec_micros()),
        Product::Mysql => {
            let up = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            // Rounded up to what the operator wished for at least; down where that would pass the deadline.
            let seconds = if Duration::from_secs(up) <= left { up } else { wait.as_secs() };
            seconds.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_stays_no_wait() {
        for product in [Product::Mysql, Product::Mariadb] {
            let zero: f64 = timeout(product, Duration::ZERO, Duration::from_secs(240)).parse().unwrap();
            assert_eq!(zero, 0.0);
        }
    }

    #[test]
    fn mysql_waits_whole_seconds_and_never_past_the_deadline() {
        let ms = Duration::from_millis;
        assert_eq!(timeout(Product::Mysql, ms(400), ms(60_000)), "1");
        assert_eq!(timeout(Product::Mysql, ms(10_000), ms(60_000)), "10");
        assert_eq!(timeout(Product::Mysql, ms(30_000), ms(2_700)), "2");
        assert_eq!(timeout(Product::Mysql, ms(30_000), ms(700)), "0");
    }

    #[test]
    fn mariadb_waits_fractions_and_never_past_the_deadline() {
        let ms = Duration::from_millis;
        assert_eq!(timeout(Product::Mariadb, ms(400), ms(60_000)), "0.400000");
        assert_eq!(timeout(Product::Mariadb, ms(30_000), ms(2_700)), "2.700000");
    }
}
