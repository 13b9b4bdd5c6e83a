//! The schema of PostgreSQL: `sql/postgres/`. DDL is transactional here: all pending migrations are one transaction, which holds
//! the schema's lock, and any failure takes back all of them.

use super::{Application, Applied, Migration, Schema, TABLE_WAIT, by_day, schema_lock};
use crate::database::postgres::{HEAR_OF_THE_COMMIT, PostgresDatabase, Transaction, column, milliseconds, only};
use crate::database::{DatabaseError, DatabaseFailure};
use postgres::types::Type;

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
    Migration::locking(
        &["events", "messages", "attempts"],
        18,
        "summaries",
        include_str!("../../sql/postgres/0018_summaries.sql"),
    ),
    Migration::locking(
        &["attempts"],
        19,
        "attempts_in_order",
        include_str!("../../sql/postgres/0019_attempts_in_order.sql"),
    ),
    Migration::new(20, "attempts_sender", include_str!("../../sql/postgres/0020_attempts_sender.sql")),
    Migration::optional(21, "cached_journal", include_str!("../../sql/postgres/0021_cached_journal.sql")),
    Migration::new(22, "leased_among", include_str!("../../sql/postgres/0022_leased_among.sql")),
];

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
        if !migration.locked_first.is_empty() {
            let tables = migration.locked_first.join(", ");
            self.batch(doing, &format!("LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE"))?;
        }
        let changed = if migration.changes_keys { by_day::work_out(self)?.told() } else { None };
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
    use std::collections::{BTreeMap, BTreeSet};
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

    /// The modes of a table's lock, the weakest first (PostgreSQL manual, "Table-Level Locks").
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Mode {
        RowExclusive,
        ShareUpdateExclusive,
        Share,
        ShareRowExclusive,
        AccessExclusive,
    }

    /// What a walk through migrations has met.
    #[derive(Default)]
    struct Walk<'a> {
        /// The tables of the indexes.
        indexed: BTreeMap<&'a str, &'a str>,
        /// Tables that were made in the same transaction: nobody else has them.
        made: BTreeSet<&'a str>,
        locked: BTreeMap<&'a str, Mode>,
        /// Where a stronger lock came after a weaker one.
        wrong: Vec<String>,
    }

    impl<'a> Walk<'a> {
        fn lock(&mut self, table: &'a str, mode: Mode, doing: &str) {
            if self.made.contains(table) {
                return;
            }
            if self.locked.get(table).is_some_and(|before| *before < mode) {
                self.wrong.push(format!("{table}: {mode:?} after {:?}: {doing}", self.locked[table]));
            }
            self.locked.entry(table).and_modify(|before| *before = mode.max(*before)).or_insert(mode);
        }

        fn run(&mut self, migration: &Migration, sql: &'a [String]) {
            for table in migration.locked_first {
                self.lock(table, Mode::AccessExclusive, "LOCK TABLE");
            }
            for statement in sql {
                let words: Vec<&str> =
                    statement.split([' ', '\n', '(', ',', '.']).filter(|word| !word.is_empty()).collect();
                match words[..] {
                    ["CREATE", "TABLE", table, ..] => {
                        self.made.insert(table);
                        for other in words.windows(2).filter(|pair| pair[0] == "REFERENCES").map(|pair| pair[1]) {
                            self.lock(other, Mode::ShareRowExclusive, statement);
                        }
                    }
                    ["CREATE", "INDEX", index, "ON", table, ..]
                    | ["CREATE", "UNIQUE", "INDEX", index, "ON", table, ..] => {
                        self.lock(table, Mode::Share, statement);
                        self.indexed.insert(index, table);
                    }
                    ["DROP", "INDEX", index] => self.lock(self.indexed[index], Mode::AccessExclusive, statement),
                    // Of the index alone, SHARE UPDATE EXCLUSIVE (PostgreSQL manual, "ALTER INDEX").
                    ["ALTER", "INDEX", from, "RENAME", "TO", to] => {
                        let table = self.indexed[from];
                        self.indexed.insert(to, table);
                    }
                    // Of the index alone, ACCESS EXCLUSIVE (reloptions.c, "autosummarize"): whoever has locked its table to read there
                    // waits for it.
                    ["ALTER", "INDEX", index, "SET", ..] => {
                        if self.locked.get(self.indexed[index]) != Some(&Mode::AccessExclusive) {
                            self.wrong.push(format!("an index is locked, and not its table: {statement}"));
                        }
                    }
                    ["ALTER" | "DROP", "TABLE", table, ..] => self.lock(table, Mode::AccessExclusive, statement),
                    ["COMMENT", "ON", "TABLE" | "COLUMN", table, ..] => {
                        self.lock(table, Mode::ShareUpdateExclusive, statement);
                    }
                    ["UPDATE", table, ..] | ["INSERT", "INTO", table, ..] | ["DELETE", "FROM", table, ..] => {
                        self.lock(table, Mode::RowExclusive, statement);
                    }
                    ["CREATE", "FUNCTION", ..] => {}
                    _ => panic!("which lock does this take? {statement}"),
                }
            }
        }
    }

    /// The statements of a file, without comments, what is quoted, and the bodies of functions.
    fn statements(sql: &str) -> Vec<String> {
        let (mut statements, mut rest) = (vec![String::new()], sql);
        while let Some(c) = rest.chars().next() {
            let end = ["--", "'", "$$"].into_iter().zip(["\n", "'", "$$"]).find(|(begin, _)| rest.starts_with(begin));
            if let Some((begin, end)) = end {
                rest = rest[begin.len()..].split_once(end).map_or("", |(_, rest)| rest);
                continue;
            }
            match c {
                ';' => statements.push(String::new()),
                c => statements.last_mut().unwrap().push(c),
            }
            rest = &rest[c.len_utf8()..];
        }
        statements.iter().map(|statement| statement.trim().to_owned()).filter(|s| !s.is_empty()).collect()
    }

    /// What is wrong with the order of the locks, where these are one transaction.
    fn wrong(all: &[Migration], pending: std::ops::Range<usize>) -> Vec<String> {
        let sql: Vec<Vec<String>> = all.iter().map(|migration| statements(migration.sql)).collect();
        let mut walk = Walk::default();
        for (at, migration) in all.iter().enumerate().take(pending.end) {
            if at == pending.start {
                (walk.made, walk.locked, walk.wrong) = Default::default();
            }
            walk.run(migration, &sql[at]);
        }
        walk.wrong
    }

    #[test]
    fn no_migration_needs_a_stronger_lock_on_a_table_than_it_has_taken_first() {
        for (at, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(wrong(MIGRATIONS, at..at + 1), [""; 0], "{}", migration.name);
        }
        // All that are pending are one transaction. Nobody delivers while the keys are changed.
        let after_the_keys = MIGRATIONS.iter().position(|migration| migration.changes_keys).unwrap() + 1;
        for (first, migration) in MIGRATIONS.iter().enumerate().skip(after_the_keys) {
            assert_eq!(wrong(MIGRATIONS, first..MIGRATIONS.len()), [""; 0], "from {} on", migration.name);
        }
        // And it would be found.
        let without: Vec<Migration> = MIGRATIONS.iter().map(|m| Migration { locked_first: &[], ..*m }).collect();
        let at = |name| MIGRATIONS.iter().position(|migration| migration.name == name).unwrap();
        let found = |name| wrong(&without, at(name)..at(name) + 1);
        assert_eq!(
            found("attempts_in_order"),
            ["attempts: AccessExclusive after Share: DROP INDEX attempts_started_at"]
        );
        assert_eq!(found("keys_by_day").len(), 1);
        assert_eq!(found("summaries").len(), 3);
    }
}
