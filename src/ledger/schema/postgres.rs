//! The schema of PostgreSQL: `sql/postgres/`. DDL is transactional here: one transaction applies all pending migrations, and
//! holds the schema's lock. Any failure rolls back all of them.
//!
//! A migration that alters a table which deliveries use begins with `LOCK TABLE ... IN ACCESS EXCLUSIVE MODE`. With a weaker lock
//! first, it could deadlock with a delivery (PostgreSQL manual, "Deadlocks": the most restrictive mode first).

use super::{Application, Applied, Migration, Schema, TABLE_WAIT, read_applied, recorded, schema_lock};
use crate::database::postgres::{PostgresDatabase, SHOW_COMMIT_WARNINGS, Transaction, milliseconds};
use crate::database::{DatabaseError, DatabaseFailure, Dialect};

const MIGRATIONS: &[Migration] = &[
    Migration::new(1, "schema", include_str!("../../../sql/postgres/0001_schema.sql")),
    Migration::optional(2, "lock_functions", include_str!("../../../sql/postgres/0002_lock_functions.sql")),
    Migration::optional(3, "cached_plans", include_str!("../../../sql/postgres/0003_cached_plans.sql")),
];

const MIGRATIONS_TABLE: &str = "\
    CREATE TABLE IF NOT EXISTS maildrop_migrations (\
        number int PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at timestamptz NOT NULL)";

impl Schema for PostgresDatabase {
    fn known(&self) -> &'static [Migration] {
        MIGRATIONS
    }

    fn applied(&mut self) -> Result<Vec<Applied>, DatabaseError> {
        read_applied(self, "SELECT count(to_regclass('maildrop_migrations'))")
    }

    fn lock_schema(&mut self) -> Result<(), DatabaseError> {
        let doing = "taking the schema's lock";
        if self.transaction != Transaction::None {
            return Err(DatabaseError::other(doing, "this connection holds a lock already"));
        }
        let key = schema_lock().postgres_key();
        let wait = milliseconds(self.deadline().remaining());
        let table_wait = milliseconds(TABLE_WAIT);
        // CREATE TABLE comes under the lock: two at once collide in the catalogue, even with IF NOT EXISTS.
        let batch = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
             SELECT set_config('idle_in_transaction_session_timeout', '0', true), \
                    set_config('statement_timeout', '0', true), \
                    set_config('lock_timeout', '{wait}', true), \
                    CASE WHEN current_setting('server_version_num')::int >= 170000 \
                         THEN set_config('transaction_timeout', '0', true) END; \
             SELECT pg_advisory_xact_lock({key}); \
             SELECT set_config('lock_timeout', '{table_wait}', true); \
             {MIGRATIONS_TABLE}"
        );
        match self.batch(doing, &batch) {
            Ok(_) => {
                self.transaction = Transaction::Schema;
                Ok(())
            }
            Err(error) => Err(self.roll_back_after(error)),
        }
    }

    fn apply(&mut self, migration: &Migration) -> Result<Application, DatabaseError> {
        let doing = format!("applying migration {:04}_{}", migration.number, migration.name);
        if self.transaction != Transaction::Schema {
            return Err(DatabaseError::other(doing, "the schema's lock is not held"));
        }
        match self.try_apply(&doing, migration) {
            Ok(application) => Ok(application),
            // Only a migration that the server refused is rolled back alone. A lost connection, or a table in use, is no refusal.
            Err(error) if migration.optional && refused(error.failure) => {
                match self.batch(&doing, "ROLLBACK TO SAVEPOINT maildrop_migration") {
                    Ok(_) => Ok(Application::LeftOut(error.detail)),
                    Err(error) => Err(self.roll_back_after(error)),
                }
            }
            Err(error) => Err(self.roll_back_after(error)),
        }
    }

    fn unlock_schema(&mut self) -> Result<(), DatabaseError> {
        if self.transaction != Transaction::Schema {
            return Ok(());
        }
        self.transaction = Transaction::None;
        let doing = "committing the migrations";
        self.batch(doing, &format!("{SHOW_COMMIT_WARNINGS} COMMIT"))?;
        self.check_commit_warning(doing)
    }
}

impl PostgresDatabase {
    fn try_apply(&mut self, doing: &str, migration: &Migration) -> Result<Application, DatabaseError> {
        let recorded = recorded(Dialect::Postgresql, migration);
        self.batch(doing, &format!("SAVEPOINT maildrop_migration; {}\n; {recorded}", migration.sql))?;
        Ok(Application::Done)
    }
}

/// Whether the server refused the statement.
fn refused(failure: DatabaseFailure) -> bool {
    use DatabaseFailure::{AccessDenied, Other, Refused, Schema};
    matches!(failure, AccessDenied | Schema | Refused | Other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_file_is_a_migration_by_its_own_number_and_name() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/postgres");
        let mut files: Vec<String> =
            directory.read_dir().unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        files.retain(|file| file.starts_with(|c: char| c.is_ascii_digit()));
        files.sort();
        let known: Vec<String> = MIGRATIONS.iter().map(|m| format!("{:04}_{}.sql", m.number, m.name)).collect();
        assert_eq!(known, files);
        for migration in MIGRATIONS {
            let file = directory.join(format!("{:04}_{}.sql", migration.number, migration.name));
            assert_eq!(std::fs::read_to_string(file).unwrap(), migration.sql);
        }
    }
}
