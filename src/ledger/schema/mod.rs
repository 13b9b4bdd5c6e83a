//! The schema in `sql/<engine>/`: numbered migrations, applied in order by `migrate`.
//!
//! Until release 1.0 the files are edited in place, and a database is recreated. From 1.0 on, an applied file stays unchanged,
//! and a new one only adds. So release N runs on the schema of N+1 while machines are upgraded one after the other. A changed
//! function gets another name beside the old one, and a new column may be NULL.

mod mysql;
mod postgres;
mod sqlite;

pub use self::sqlite::open_embedded;

use crate::database::{DatabaseError, Dialect, Query, Tables, Value, columns_of};
use crate::lock::LockName;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;
use thiserror::Error;
use tracing::warn;

/// How long a migration waits for a table that is in use. A delivery on PostgreSQL holds its tables (for reading) until its lock
/// ends. Meanwhile every new session queues behind the migration.
const TABLE_WAIT: Duration = Duration::from_secs(10);
/// How often pending migrations are tried if other sessions block them, by using a table or in a deadlock.
const TRIES: u32 = 6;
/// The pause between two tries, in which the queued sessions continue.
const PAUSE: Duration = Duration::from_secs(2);

/// One file of `sql/<engine>/`: `NUMBER_NAME.sql`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    pub number: u32,
    pub name: &'static str,
    pub sql: &'static str,
    /// Whether the schema works without this migration: some servers refuse it to ordinary roles, and `migrate` then leaves it
    /// out.
    pub optional: bool,
}

impl Migration {
    const fn new(number: u32, name: &'static str, sql: &'static str) -> Self {
        Self { number, name, sql, optional: false }
    }

    const fn optional(number: u32, name: &'static str, sql: &'static str) -> Self {
        Self { number, name, sql, optional: true }
    }

    /// SHA-256 of the text, in lower-case hexadecimal. It reveals an edited migration.
    #[must_use]
    pub fn checksum(&self) -> String {
        crate::base::hex::encode(&Sha256::digest(self.sql.as_bytes()))
    }
}

/// A row of the table of migrations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    pub number: u32,
    pub name: String,
    /// The checksum of the text that was applied.
    pub checksum: String,
}

columns_of! { Applied: number, name, checksum }

/// Reads the applied migrations. `there` is a query that counts the tables of that name: the error of a SELECT would not say
/// which table is missing.
fn read_applied(database: &mut dyn Tables, there: &str) -> Result<Vec<Applied>, DatabaseError> {
    let doing = "reading which migrations are applied";
    if database.query_number(doing, there, &[])? == 0 {
        return Ok(Vec::new());
    }
    database.query(doing, "SELECT number, name, checksum FROM maildrop_migrations ORDER BY number", &[])
}

/// The statement that records a migration as applied.
fn recorded(dialect: Dialect, migration: &Migration) -> String {
    format!(
        "INSERT INTO maildrop_migrations (number, name, checksum, applied_at) VALUES ({}, {}, {})",
        migration.number,
        dialect.list([Value::Text(migration.name), Value::Text(&migration.checksum())]),
        dialect.now()
    )
}

/// The result of applying one migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Application {
    /// The migration is applied and recorded.
    Done,
    /// The server refused this optional migration, with this message.
    LeftOut(String),
}

/// A database whose schema can be read and migrated.
pub trait Schema {
    /// The migrations that this release knows for this engine, in order.
    fn known(&self) -> &'static [Migration];

    /// The applied migrations, in order; empty if their table does not exist yet.
    ///
    /// # Errors
    /// If that table cannot be read.
    fn applied(&mut self) -> Result<Vec<Applied>, DatabaseError>;

    /// Waits for the lock under which migrations are applied, and creates their table.
    ///
    /// # Errors
    /// If another process has the lock until the deadline, or if our role may not create the table.
    fn lock_schema(&mut self) -> Result<(), DatabaseError>;

    /// Applies one migration and records it. The caller holds the schema's lock.
    ///
    /// # Errors
    /// If the server refuses one of its statements, unless the migration is optional.
    fn apply(&mut self, migration: &Migration) -> Result<Application, DatabaseError>;

    /// Releases the schema's lock. On PostgreSQL this commits the migrations.
    ///
    /// # Errors
    /// If the connection is gone, or if the commit failed or its result is unknown.
    fn unlock_schema(&mut self) -> Result<(), DatabaseError>;
}

/// The state of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationState {
    /// Applied, with the text of this release.
    Applied,
    /// Not applied: either not yet, or because the server refused an optional migration.
    Pending,
    /// Applied, with a text that differs from this release's.
    Edited,
    /// Applied by a newer release: this one does not know it. Deliveries continue, since migrations only add.
    Newer,
}

/// One migration, known or applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationStatus {
    pub number: u32,
    pub name: String,
    /// Whether the schema works without this migration; `false` if this release does not know it.
    pub optional: bool,
    pub state: MigrationState,
}

/// The result of [`migrate`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// The result of each migration that was pending, in order.
    pub steps: Vec<(Migration, Application)>,
    /// Migrations that a newer release has applied.
    pub newer: Vec<MigrationStatus>,
}

/// Why the schema was not brought up to date.
#[derive(Debug, Error)]
pub enum MigrateError {
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// An applied migration is not the one that this release knows by its number.
    #[error(
        "migration {number:04}_{name} was applied with another text than this program's: recreate the database \
         (docs/upgrade.md, \"Recreating the database\"), or use the program that has made it"
    )]
    Edited { number: u32, name: String },
}

/// The lock under which migrations are applied. On MySQL all databases of a server share it, so this also waits for another
/// site's migration there.
fn schema_lock() -> LockName {
    LockName::new("maildrop schema", b"migrations")
}

/// The state of each migration that is known or applied, in the order of their numbers. Takes no lock.
///
/// # Errors
/// If the table of migrations cannot be read.
pub fn status(database: &mut dyn Schema) -> Result<Vec<MigrationStatus>, DatabaseError> {
    let applied = database.applied()?;
    Ok(compare(database.known(), &applied))
}

/// Applies the pending migrations in order. Any number of machines may do so at once: under the schema's lock the first one
/// applies them, and the others find them applied.
///
/// `progress` is called for each migration as soon as it is applied. PostgreSQL commits, or rolls back, all of them together. So
/// they are final there only when this returns `Ok`.
///
/// If other sessions block a migration, by using a table or in a deadlock, this pauses and retries the rest.
///
/// # Errors
/// If the server refuses a migration; if other sessions block it in every try; or if a migration was edited.
pub fn migrate(
    database: &mut dyn Schema,
    progress: &mut dyn FnMut(&Migration, &Application),
) -> Result<Migrated, MigrateError> {
    migrate_with(database, progress, PAUSE)
}

fn migrate_with(
    database: &mut dyn Schema,
    progress: &mut dyn FnMut(&Migration, &Application),
    pause: Duration,
) -> Result<Migrated, MigrateError> {
    // PostgreSQL may roll back a migration that is then applied again; it is reported once.
    let mut shown = BTreeSet::new();
    let mut once = |migration: &Migration, application: &Application| {
        if shown.insert(migration.number) {
            progress(migration, application);
        }
    };
    for _ in 1..TRIES {
        match try_to_migrate(database, &mut once) {
            Err(MigrateError::Database(error)) if error.trying_again_at_once_can_help() => {
                warn!(%error, again_in = ?pause, "others are in the way of a migration");
                thread::sleep(pause);
            }
            done => return done,
        }
    }
    try_to_migrate(database, &mut once)
}

fn try_to_migrate(
    database: &mut dyn Schema,
    progress: &mut dyn FnMut(&Migration, &Application),
) -> Result<Migrated, MigrateError> {
    // The first check is without the lock, which needs rights that a role need not have if nothing is pending.
    let before = sound(status(database)?)?;
    if pending(&before).is_empty() {
        return Ok(Migrated { steps: Vec::new(), newer: newer(before) });
    }
    database.lock_schema()?;
    let migrated = apply_pending(database, progress);
    let unlocked = database.unlock_schema();
    // The migration's own error is more useful than the error of the unlock.
    let migrated = migrated?;
    unlocked?;
    Ok(migrated)
}

/// Applies what is pending. The caller holds the lock, so the applied migrations are read once more: another machine may have
/// applied them while this one waited.
fn apply_pending(
    database: &mut dyn Schema,
    progress: &mut dyn FnMut(&Migration, &Application),
) -> Result<Migrated, MigrateError> {
    let now = sound(status(database)?)?;
    let pending = pending(&now);
    let mut steps = Vec::with_capacity(pending.len());
    for migration in database.known().iter().filter(|migration| pending.contains(&migration.number)) {
        let application = database.apply(migration)?;
        progress(migration, &application);
        steps.push((*migration, application));
    }
    Ok(Migrated { steps, newer: newer(now) })
}

/// The state of each migration that is known or applied.
fn compare(known: &[Migration], applied: &[Applied]) -> Vec<MigrationStatus> {
    let of_known = known.iter().map(|migration| MigrationStatus {
        number: migration.number,
        name: migration.name.to_owned(),
        optional: migration.optional,
        state: match applied.iter().find(|applied| applied.number == migration.number) {
            None => MigrationState::Pending,
            // The name is for people; only the text is compared.
            Some(applied) if applied.checksum == migration.checksum() => MigrationState::Applied,
            Some(_) => MigrationState::Edited,
        },
    });
    let of_others = applied
        .iter()
        .filter(|applied| known.iter().all(|migration| migration.number != applied.number))
        .map(|applied| MigrationStatus {
            number: applied.number,
            name: applied.name.clone(),
            optional: false,
            state: MigrationState::Newer,
        });
    let mut all: Vec<MigrationStatus> = of_known.chain(of_others).collect();
    all.sort_by_key(|migration| migration.number);
    all
}

/// Refuses a schema on which nothing further may be applied.
fn sound(all: Vec<MigrationStatus>) -> Result<Vec<MigrationStatus>, MigrateError> {
    match all.iter().find(|migration| migration.state == MigrationState::Edited) {
        Some(MigrationStatus { number, name, .. }) => Err(MigrateError::Edited { number: *number, name: name.clone() }),
        None => Ok(all),
    }
}

fn pending(all: &[MigrationStatus]) -> Vec<u32> {
    all.iter().filter(|migration| migration.state == MigrationState::Pending).map(|m| m.number).collect()
}

fn newer(all: Vec<MigrationStatus>) -> Vec<MigrationStatus> {
    all.into_iter().filter(|migration| migration.state == MigrationState::Newer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::DatabaseFailure;

    const fn known(number: u32, optional: bool) -> Migration {
        Migration { optional, ..Migration::new(number, "some", "some") }
    }

    fn applied(number: u32, sql: &'static str) -> Applied {
        Applied { number, name: "some".into(), checksum: Migration { sql, ..known(number, false) }.checksum() }
    }

    /// An engine in memory on which another machine gets the lock first.
    #[derive(Default)]
    struct EngineSchema {
        applied: Vec<Applied>,
        /// The migrations that another machine applies while we wait for the lock.
        meanwhile: Vec<Applied>,
        fails_at: Option<u32>,
        /// How many tries fail at the last migration because of other sessions.
        in_the_way: u32,
        /// Whether a failure rolls back what was applied under the lock.
        takes_back: bool,
        locked: bool,
        locks: usize,
    }

    impl Schema for EngineSchema {
        fn known(&self) -> &'static [Migration] {
            const { &[known(1, false), known(2, true), known(3, false)] }
        }

        fn applied(&mut self) -> Result<Vec<Applied>, DatabaseError> {
            Ok(self.applied.clone())
        }

        fn lock_schema(&mut self) -> Result<(), DatabaseError> {
            self.applied.append(&mut self.meanwhile);
            self.locked = true;
            self.locks += 1;
            Ok(())
        }

        fn apply(&mut self, migration: &Migration) -> Result<Application, DatabaseError> {
            assert!(self.locked);
            if self.fails_at == Some(migration.number) {
                return Err(DatabaseError::new(DatabaseFailure::Other, "applying", "no"));
            }
            if migration.number == 3 && self.in_the_way > 0 {
                self.in_the_way -= 1;
                if self.takes_back {
                    self.applied.clear();
                }
                return Err(DatabaseError::new(DatabaseFailure::Contention, "applying", "in use"));
            }
            if migration.optional {
                return Ok(Application::LeftOut("no".into()));
            }
            self.applied.push(applied(migration.number, migration.sql));
            Ok(Application::Done)
        }

        fn unlock_schema(&mut self) -> Result<(), DatabaseError> {
            self.locked = false;
            Ok(())
        }
    }

    fn steps(engine: &mut EngineSchema) -> Vec<u32> {
        let migrated = migrate(engine, &mut |_, _| {}).unwrap();
        migrated.steps.iter().map(|(migration, _)| migration.number).collect()
    }

    #[test]
    fn what_is_pending_is_applied_in_order_and_what_was_left_out_is_tried_again() {
        let mut engine = EngineSchema::default();
        assert_eq!(steps(&mut engine), [1, 2, 3]);
        assert_eq!(steps(&mut engine), [2]);
        assert!(!engine.locked);
    }

    #[test]
    fn what_another_machine_applied_while_we_waited_is_not_applied_again() {
        let mut engine =
            EngineSchema { meanwhile: vec![applied(1, "some"), applied(3, "some")], ..EngineSchema::default() };
        assert_eq!(steps(&mut engine), [2]);
    }

    #[test]
    fn what_another_machine_edited_while_we_waited_is_refused() {
        let mut engine = EngineSchema { meanwhile: vec![applied(1, "other")], ..EngineSchema::default() };
        let error = migrate(&mut engine, &mut |_, _| {}).unwrap_err();
        assert!(matches!(error, MigrateError::Edited { number: 1, .. }), "{error}");
        assert!(!engine.locked && engine.applied.len() == 1);
    }

    #[test]
    fn a_failure_lets_go_of_the_lock_and_goes_no_further() {
        let mut engine = EngineSchema { fails_at: Some(1), ..EngineSchema::default() };
        assert!(matches!(migrate(&mut engine, &mut |_, _| {}).unwrap_err(), MigrateError::Database(_)));
        assert!(!engine.locked && engine.applied.is_empty());
    }

    /// An engine that keeps what was applied continues behind it. An engine that rolls back applies everything once more, and
    /// each migration is still reported once.
    #[test]
    fn where_others_are_in_the_way_it_is_tried_again_a_few_times() {
        for takes_back in [true, false] {
            for (in_the_way, succeeds) in [(1, true), (TRIES - 1, true), (TRIES, false), (TRIES + 1, false)] {
                let mut engine = EngineSchema { in_the_way, takes_back, ..EngineSchema::default() };
                let mut shown = Vec::new();
                let mut report = |migration: &Migration, _: &Application| shown.push(migration.number);
                let migrated = migrate_with(&mut engine, &mut report, Duration::ZERO);
                let locks = usize::try_from(TRIES.min(in_the_way + 1)).unwrap();
                assert_eq!((engine.locks, engine.locked), (locks, false));
                match migrated {
                    Ok(_) => assert_eq!((succeeds, engine.applied.len(), shown), (true, 2, vec![1, 2, 3])),
                    Err(MigrateError::Database(error)) => {
                        assert!(!succeeds && error.failure == DatabaseFailure::Contention, "{error}");
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    #[test]
    fn where_nothing_is_pending_no_lock_is_taken() {
        let all = vec![applied(1, "some"), applied(2, "some"), applied(3, "some"), applied(4, "new")];
        let mut engine = EngineSchema { applied: all, ..EngineSchema::default() };
        let migrated = migrate(&mut engine, &mut |_, _| {}).unwrap();
        assert_eq!((migrated.steps.len(), migrated.newer.len(), engine.locks), (0, 1, 0));
    }

    #[test]
    fn what_is_not_ours_is_distinguished() {
        let known = [known(1, false), known(2, false), known(4, false)];
        let applied = [applied(1, "some"), applied(2, "other"), applied(3, "x"), applied(5, "x")];
        let states: Vec<_> = compare(&known, &applied).iter().map(|m| (m.number, m.state)).collect();
        use MigrationState::{Applied, Edited, Newer, Pending};
        assert_eq!(states, [(1, Applied), (2, Edited), (3, Newer), (4, Pending), (5, Newer)]);
    }
}
