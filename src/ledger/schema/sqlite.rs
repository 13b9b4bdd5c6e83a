//! The schema of the embedded database: `sql/sqlite/`.

use super::{Application, Applied, MigrateError, Migration, Schema, migrate, read_applied, recorded, schema_lock};
use crate::base::deadline::Deadline;
use crate::database::{Client, DatabaseError, DatabaseFailure, Dialect, SqliteDatabase};
use crate::lock::{Acquired, NamedLock};
use std::path::Path;

const MIGRATIONS: &[Migration] = &[Migration::new(1, "schema", include_str!("../../../sql/sqlite/0001_schema.sql"))];

/// Opens the embedded database under `directory`, and migrates its schema, which nearly always is one SELECT. The first delivery
/// creates everything, and ten processes may do so at once.
///
/// # Errors
/// If the directory or a file of it cannot be created or read. If another process holds the schema's lock until the deadline. If
/// a migration was applied with another text.
pub fn open_embedded(directory: &Path, client: &Client, deadline: Deadline) -> Result<SqliteDatabase, DatabaseError> {
    let mut database = SqliteDatabase::open(directory, client, deadline)?;
    match migrate(&mut database, &mut |_, _| {}) {
        Ok(_) => Ok(database),
        Err(MigrateError::Database(error)) => Err(error),
        Err(other) => {
            let doing = "looking at the schema of the embedded database";
            Err(DatabaseError::new(DatabaseFailure::Schema, doing, other.to_string()))
        }
    }
}

impl Schema for SqliteDatabase {
    fn known(&self) -> &'static [Migration] {
        MIGRATIONS
    }

    fn applied(&mut self) -> Result<Vec<Applied>, DatabaseError> {
        read_applied(self, "SELECT count(*) FROM sqlite_schema WHERE name = 'maildrop_migrations'")
    }

    /// Also switches the database to WAL, which is permanent.
    fn lock_schema(&mut self) -> Result<(), DatabaseError> {
        if let Acquired::Busy(holder) = self.acquire(&schema_lock(), self.deadline.remaining())? {
            let doing = "taking the lock under which the embedded database's schema is changed";
            return Err(DatabaseError::new(DatabaseFailure::TimedOut, doing, format!("it is held by {holder:?}")));
        }
        let doing = "switching the embedded database to WAL";
        let mode = self.patiently(doing, |connection| {
            connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0))
        })?;
        // If SQLite cannot use WAL, it returns the mode that it stays in.
        if !mode.eq_ignore_ascii_case("wal") {
            let detail = format!("it stays in mode {mode}: the file system has no shared memory?");
            return Err(DatabaseError::new(DatabaseFailure::Local, doing, detail));
        }
        self.writing("making the table of migrations", |transaction| {
            transaction.execute_batch(
                "CREATE TABLE IF NOT EXISTS maildrop_migrations (
                     number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL
                 ) STRICT",
            )
        })
    }

    fn apply(&mut self, migration: &Migration) -> Result<Application, DatabaseError> {
        let doing = format!("applying migration {} ({})", migration.number, migration.name);
        self.writing(&doing, |transaction| {
            transaction.execute_batch(migration.sql)?;
            transaction.execute(&recorded(Dialect::Sqlite, migration), [])
        })?;
        Ok(Application::Done)
    }

    fn unlock_schema(&mut self) -> Result<(), DatabaseError> {
        self.release(&schema_lock())
    }
}
