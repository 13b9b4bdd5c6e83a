//! The schema of PostgreSQL: `sql/postgres/`. DDL is transactional here: all pending migrations are one transaction, which holds
//! the schema's lock, and any failure takes back all of them.

use super::{Application, Applied, Migration, Schema, by_day, schema_lock};
use crate::database::postgres::{HEAR_OF_THE_COMMIT, PostgresDatabase, Transaction, column, milliseconds, only};
use crate::database::{DatabaseError, DatabaseFailure};
use postgres::types::Type;
use std::time::Duration;

const MIGRATIONS: &[Migration] = &[
    Migration::new(1, "ledger", include_str!("../../sql/postgres/0001_ledger.sql")),
    Migration::optional(2, "lock_functions", include_str!("../../sql/postgres/0002_lock_functions.sql")),
    Migration::new(3, "operation", include_str!("../../sql/postgres/0003_operation.sql")),
    Migration::new(4, "programs", include_str!("../../sql/postgres/0004_programs.sql")),
    Migration::new(5, "refusals", include_str!("../../sql/postgres/0005_refusals.sql")),
    Migration::new(6, "ways_in", include_str!("../../sql/postgres/0006_ways_in.sql")),
    Migration::optional(7, "cached_plans", include_str!("../../sql/postgres/0007_cached_plans.sql")),
    Migration::new(8, "push", include_str!("../../sql/postgres/0008_push.sql")),
    Migration::optional(9, "cached_events", include_str!("../../sql/postgres/0009_cached_events.sql")),
    Migration::new(10, "keys_to_change", include_str!("../../sql/postgres/0010_keys_to_change.sql")),
    Migration::of_keys(11, "keys_by_day", include_str!("../../sql/postgres/0011_keys_by_day.sql")),
    Migration::new(12, "keys_changed", include_str!("../../sql/postgres/0012_keys_changed.sql")),
    Migration::new(13, "page", include_str!("../../sql/postgres/0013_page.sql")),
    Migration::new(14, "api_tokens", include_str!("../../sql/postgres/0014_api_tokens.sql")),
    Migration::new(15, "epochs", include_str!("../../sql/postgres/0015_epochs.sql")),
    Migration::new(16, "operations_log", include_str!("../../sql/postgres/0016_operations_log.sql")),
    Migration::new(17, "unread_index", include_str!("../../sql/postgres/0017_unread_index.sql")),
    Migration::new(18, "summaries", include_str!("../../sql/postgres/0018_summaries.sql")),
    Migration::new(19, "attempts_in_order", include_str!("../../sql/postgres/0019_attempts_in_order.sql")),
];

/// For how long a migration waits for a table that is in use: a delivery holds its tables (for reading) until its lock ends, and
/// new deliveries queue behind the migration as long.
const TABLE_WAIT: Duration = Duration::from_secs(10);

const MIGRATIONS_TABLE: &str = "\
    CREATE TABLE IF NOT EXISTS maildrop_migrations (\
        number int PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at timestamptz NOT NULL)";

impl Schema for PostgresDatabase {
    fn known(&self) -> &'static [Migration] {
        MIGRATIONS
    }

    fn applied(&mut self) -> Result<Vec<Applied>, DatabaseError> {
        let doing = "reading which migrations are applied";
        let there = "SELECT to_regclass('maildrop_migrations') IS NOT NULL";
        if !only::<bool>(doing, &self.query(doing, there, &[])?)? {
            return Ok(Vec::new());
        }
        let rows = self.query(doing, "SELECT number, name, checksum FROM maildrop_migrations ORDER BY number", &[])?;
        rows.iter()
            .map(|row| {
                let number: i32 = column(doing, row, 0)?;
                let number = u32::try_from(number).map_err(|_| {
                    DatabaseError::new(DatabaseFailure::Schema, doing, format!("it has a migration number {number}"))
                })?;
                Ok(Applied { number, name: column(doing, row, 1)?, checksum: column(doing, row, 2)? })
            })
            .collect()
    }

    fn lock_schema(&mut self) -> Result<(), DatabaseError> {
        let doing = "taking the schema's lock";
        if self.transaction != Transaction::None {
            return Err(DatabaseError::other(doing, "this connection holds a lock already"));
        }
        let key = schema_lock().postgres_key();
        let wait = milliseconds(self.deadline().remaining());
        let table_wait = milliseconds(TABLE_WAIT);
        // CREATE TABLE only under the lock: two at once collide in the catalogue, even with IF NOT EXISTS.
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
            // Only what the server refused is taken back. A server that is gone, or a table in use, is no refusal.
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
        self.batch(doing, &format!("{HEAR_OF_THE_COMMIT} COMMIT"))?;
        self.replicated(doing)
    }
}

impl PostgresDatabase {
    fn try_apply(&mut self, doing: &str, migration: &Migration) -> Result<Application, DatabaseError> {
        let changed = if migration.changes_keys {
            // Nobody journals, or records, from here on until the COMMIT.
            self.batch(doing, "LOCK TABLE attempts, messages, copies IN ACCESS EXCLUSIVE MODE")?;
            by_day::work_out(self)?.told()
        } else {
            None
        };
        self.batch(doing, &format!("SAVEPOINT maildrop_migration; {}", migration.sql))?;
        let number = i32::try_from(migration.number)
            .map_err(|_| DatabaseError::new(DatabaseFailure::Local, doing, "its number is too large"))?;
        self.execute(
            doing,
            "INSERT INTO maildrop_migrations (number, name, checksum, applied_at) VALUES ($1, $2, $3, clock_timestamp())",
            &[(&number, Type::INT4), (&migration.name, Type::TEXT), (&migration.checksum(), Type::TEXT)],
        )?;
        Ok(changed.map_or(Application::Done, Application::Changed))
    }
}

/// Whether the server refused what it was asked to do.
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
