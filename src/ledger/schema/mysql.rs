//! The schema of MySQL and MariaDB: `sql/mysql/`.
//!
//! Each DDL statement commits by itself. So each migration can be run again after a failure half way, and is recorded only after
//! its last statement.
//!
//! A DDL statement waits for the metadata lock of its table until every transaction that has used the table has ended. Every
//! later session waits behind it (MySQL manual, "Metadata Locking"; MariaDB, "Metadata Locking"). So it waits only as long as a
//! delivery can spare, not as long as `migrate` has time.

use super::{Application, Applied, Migration, Schema, TABLE_WAIT, read_applied, recorded, schema_lock};
use crate::database::{DatabaseError, DatabaseFailure, MysqlDatabase, Tables};
use crate::lock::{Acquired, NamedLock};

const MIGRATIONS: &[Migration] = &[
    Migration::new(1, "schema", include_str!("../../../sql/mysql/0001_schema.sql")),
    Migration::optional(2, "lock_functions", include_str!("../../../sql/mysql/0002_lock_functions.sql")),
];

const MIGRATIONS_TABLE: &str = "CREATE TABLE IF NOT EXISTS maildrop_migrations (\
     number INT UNSIGNED NOT NULL PRIMARY KEY, \
     name VARCHAR(255) NOT NULL, \
     checksum CHAR(64) NOT NULL, \
     applied_at DATETIME(6) NOT NULL COMMENT 'UTC'\
     ) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin";

impl Schema for MysqlDatabase {
    fn known(&self) -> &'static [Migration] {
        MIGRATIONS
    }

    fn applied(&mut self) -> Result<Vec<Applied>, DatabaseError> {
        let there = "SELECT COUNT(*) FROM information_schema.tables \
                     WHERE table_schema = DATABASE() AND table_name = 'maildrop_migrations'";
        read_applied(self, there)
    }

    fn lock_schema(&mut self) -> Result<(), DatabaseError> {
        let wait = self.remaining();
        if let Acquired::Busy(holder) = self.acquire(&schema_lock(), wait)? {
            let session = holder.and_then(|holder| holder.session);
            let session = session.map(|session| format!(", in session {session}")).unwrap_or_default();
            let detail = format!("another migration has held it all the time{session}");
            return Err(DatabaseError::new(DatabaseFailure::TimedOut, "waiting for the lock on the schema", detail));
        }
        // This limit does not apply to GET_LOCK, which has its own. The session keeps it: it only migrates.
        let doing = "making the table of migrations";
        let wait = TABLE_WAIT.as_secs();
        self.run(doing, &format!("SET SESSION lock_wait_timeout = {wait}; {MIGRATIONS_TABLE}"), 2).map(drop)
    }

    fn apply(&mut self, migration: &Migration) -> Result<Application, DatabaseError> {
        let doing = format!("applying migration {} ({})", migration.number, migration.name);
        self.define(&doing, migration).map_err(|error| match error.failure {
            // The server's error does not name the table.
            DatabaseFailure::Contention => {
                let detail = format!(
                    "{}: a transaction that has used a table of this migration did not end within {} s",
                    error.detail,
                    TABLE_WAIT.as_secs()
                );
                DatabaseError { detail, ..error }
            }
            _ => error,
        })
    }

    fn unlock_schema(&mut self) -> Result<(), DatabaseError> {
        self.release(&schema_lock())
    }
}

impl MysqlDatabase {
    fn define(&mut self, doing: &str, migration: &Migration) -> Result<Application, DatabaseError> {
        // Each statement ends at the end of a line. Neither the server nor this count regards comments.
        let ends = migration.sql.lines().filter(|line| line.ends_with(';') && !line.starts_with("--"));
        match self.run(doing, migration.sql.trim_end(), ends.count()) {
            Ok(_) => {}
            // 1419 and similar codes: see `error::failure`.
            Err(error) if migration.optional && error.failure == DatabaseFailure::AccessDenied => {
                return Ok(Application::LeftOut(error.detail));
            }
            Err(error) => return Err(error),
        }
        self.run(doing, &recorded(self.dialect(), migration), 1).map(|_| Application::Done)
    }
}
