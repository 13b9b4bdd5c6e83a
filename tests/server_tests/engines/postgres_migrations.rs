//! The schema on PostgreSQL: brought up to date by the first process, and never against what is there.

use crate::support::postgres::{Mail, TestDatabase, on_each_postgres};
use crate::support::program::wait_until;
use maildrop_command::database::{DatabaseError, DatabaseFailure, PostgresDatabase};
use maildrop_command::ledger::schema::{self, Application, MigrateError, Migrated, Migration, MigrationState, Schema};
use maildrop_command::ledger::{CopyState, Ledger};
use maildrop_command::lock::{Acquired, NamedLock};
use postgres::error::SqlState;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;
use uuid::Uuid;

on_each_postgres!(
    ten_machines_migrate_at_once,
    migrating_again_does_nothing,
    an_edited_migration_is_refused,
    a_newer_schema_is_left_alone,
    a_failing_migration_takes_back_all,
    an_optional_migration_may_be_left_out_and_come_later,
    a_role_without_the_right_to_create_learns_that,
    a_migration_that_locks_its_tables_first_waits_for_a_delivery_which_does_not_wait_for_it,
    the_sql_functions_say_the_same_names,
);

fn migrate(database: &mut PostgresDatabase) -> Result<Migrated, MigrateError> {
    schema::migrate(database, &mut |_, _| {})
}

fn states(database: &mut PostgresDatabase) -> Vec<(u32, MigrationState)> {
    schema::status(database).unwrap().iter().map(|migration| (migration.number, migration.state)).collect()
}

fn ten_machines_migrate_at_once(server: &str) {
    let test = TestDatabase::empty(server);
    let start = Barrier::new(10);
    let all: Vec<Migrated> = thread::scope(|scope| {
        let machines: Vec<_> = (0..10)
            .map(|_| {
                scope.spawn(|| {
                    let mut database = test.connect_as_owner();
                    start.wait();
                    migrate(&mut database).unwrap()
                })
            })
            .collect();
        machines.into_iter().map(|machine| machine.join().unwrap()).collect()
    });
    let known = test.connect_as_owner().known().len();
    let mut steps: Vec<usize> = all.iter().map(|migrated| migrated.steps.len()).collect();
    steps.sort_unstable();
    assert_eq!(steps, [0, 0, 0, 0, 0, 0, 0, 0, 0, known]);
    assert!(all.iter().flat_map(|m| &m.steps).all(|(_, application)| *application == Application::Done));
    assert_eq!(test.value("SELECT count(*) FROM maildrop_migrations"), Some(known.to_string()));
}

fn migrating_again_does_nothing(server: &str) {
    let test = TestDatabase::migrated(server);
    // The delivery role has no right to create anything, and needs none where nothing is pending.
    let mut database = test.connect("A");
    assert_eq!(migrate(&mut database).unwrap(), Migrated::default());
    assert!(states(&mut database).iter().all(|(_, state)| *state == MigrationState::Applied));
}

fn an_edited_migration_is_refused(server: &str) {
    let test = TestDatabase::migrated(server);
    test.admin().batch_execute("UPDATE maildrop_migrations SET checksum = 'other' WHERE number = 1").unwrap();
    let mut database = test.connect_as_owner();
    assert_eq!(states(&mut database)[0], (1, MigrationState::Edited));
    let error = migrate(&mut database).unwrap_err();
    assert!(matches!(&error, MigrateError::Edited { number: 1, name } if name == "schema"), "{error}");
}

fn a_newer_schema_is_left_alone(server: &str) {
    let test = TestDatabase::migrated(server);
    test.admin().batch_execute("INSERT INTO maildrop_migrations VALUES (99, 'from_the_future', 'x', now())").unwrap();
    let migrated = migrate(&mut test.connect_as_owner()).unwrap();
    assert!(migrated.steps.is_empty());
    assert_eq!(
        migrated.newer.iter().map(|m| (m.number, m.name.as_str())).collect::<Vec<_>>(),
        [(99, "from_the_future")]
    );
}

fn a_failing_migration_takes_back_all(server: &str) {
    let test = TestDatabase::empty(server);
    // A table that the first migration makes after others is in the way.
    test.admin().batch_execute("CREATE TABLE copies (id int)").unwrap();
    let mut database = test.connect_as_owner();
    let error = migrate(&mut database).unwrap_err();
    assert!(
        error.to_string().contains("applying migration 0001_schema: relation \"copies\" already exists"),
        "{error}"
    );
    let tables = "SELECT string_agg(tablename, ' ') FROM pg_tables WHERE schemaname = 'public'";
    assert_eq!(test.value(tables).as_deref(), Some("copies"));
    // The lock is free, and the very same connection can go on.
    test.admin().batch_execute("DROP TABLE copies").unwrap();
    assert_eq!(migrate(&mut database).unwrap().steps.len(), database.known().len());
}

fn an_optional_migration_may_be_left_out_and_come_later(server: &str) {
    let test = TestDatabase::empty(server);
    test.admin()
        .batch_execute(&format!(
            "REVOKE USAGE ON LANGUAGE sql FROM PUBLIC; GRANT CREATE ON SCHEMA public TO {}",
            test.name
        ))
        .unwrap();
    let mut database = test.connect("A");
    let mut collected = Vec::new();
    let migrated = schema::migrate(&mut database, &mut |migration, application| {
        collected.push((migration.number, application.clone()));
    })
    .unwrap();
    assert_eq!(collected[0], (1, Application::Done));
    assert!(matches!(&collected[1], (2, Application::LeftOut(why)) if why.contains("permission denied for language")));
    assert!(collected[2..].iter().all(|(_, application)| *application == Application::Done));
    assert_eq!(migrated.steps.len(), database.known().len());
    assert_eq!(states(&mut database)[..2], [(1, MigrationState::Applied), (2, MigrationState::Pending)]);

    test.admin().batch_execute("GRANT USAGE ON LANGUAGE sql TO PUBLIC").unwrap();
    assert_eq!(migrate(&mut database).unwrap().steps.len(), 1);
    assert!(states(&mut database).iter().all(|(_, state)| *state == MigrationState::Applied));
    // The role owns tables in the database that is about to be dropped with it.
    drop(database);
}

fn a_role_without_the_right_to_create_learns_that(server: &str) {
    let test = TestDatabase::empty(server);
    match migrate(&mut test.connect("A")).unwrap_err() {
        MigrateError::Database(error) => assert_eq!(error.failure, DatabaseFailure::AccessDenied, "{error}"),
        other => panic!("{other}"),
    }
}

/// A migration of a later release, which alters tables that deliveries use.
fn later(sql: &'static str) -> Migration {
    Migration { number: 99, name: "later", sql, optional: false }
}

const WEAK_LOCK_FIRST: &str = "CREATE INDEX later ON attempts (host); ALTER TABLE attempts ADD COLUMN later int";
const LOCKED_FIRST: &str = "LOCK TABLE attempts IN ACCESS EXCLUSIVE MODE; \
     CREATE INDEX later ON attempts (host); ALTER TABLE attempts ADD COLUMN later int";

/// Applies it once, and without another try.
fn apply(migration: &Migration, test: &TestDatabase) -> Result<(), DatabaseError> {
    let mut owner = test.connect_as_owner();
    owner.lock_schema()?;
    owner.apply(migration)?;
    owner.unlock_schema()
}

fn until_a_migration_waits(watch: &mut postgres::Client) {
    let waits = "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() \
                 AND application_name LIKE 'maildrop owner %' AND wait_event_type = 'Lock'";
    wait_until("the migration waits", || watch.query_one(waits, &[]).unwrap().get(0));
}

/// The delivery has read its tables under its lock, and will write to them in the same transaction.
fn a_migration_that_locks_its_tables_first_waits_for_a_delivery_which_does_not_wait_for_it(server: &str) {
    let test = TestDatabase::migrated(server);
    let (mut watch, mut reader) = (test.admin(), test.admin());

    // The control: by the stronger lock after a weaker one it waits for a delivery that waits for it.
    reader.batch_execute("BEGIN; SELECT count(*) FROM attempts").unwrap();
    thread::scope(|scope| {
        let migrating = scope.spawn(|| apply(&later(WEAK_LOCK_FIRST), &test));
        until_a_migration_waits(&mut watch);
        let error = reader.batch_execute("UPDATE attempts SET host = host").unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED), "{error}");
        reader.batch_execute("ROLLBACK").unwrap();
        migrating.join().unwrap().unwrap();
    });
    let undone =
        "ALTER TABLE attempts DROP COLUMN later; DROP INDEX later; DELETE FROM maildrop_migrations WHERE number = 99";
    watch.batch_execute(undone).unwrap();

    let mut delivery = test.connect("FIRST");
    let mail = Mail::new("<later@mail.google.com>");
    let attempt = Uuid::now_v7();
    delivery.journal(&mail.journal(attempt, None)).unwrap();
    assert!(matches!(delivery.acquire(&mail.lock, Duration::ZERO).unwrap(), Acquired::Held));
    delivery.look(&mail.keys()).unwrap();
    thread::scope(|scope| {
        let migrating = scope.spawn(|| apply(&later(LOCKED_FIRST), &test));
        until_a_migration_waits(&mut watch);
        delivery.record(&mail.record(attempt, CopyState::Delivered(None), CopyState::Delivered(None))).unwrap();
        migrating.join().unwrap().unwrap();
    });
    let newer = schema::status(&mut test.connect_as_owner()).unwrap();
    assert_eq!(newer.last().map(|last| (last.number, last.state)), Some((99, MigrationState::Newer)));
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert!(matches!(test.value(deadlocks).as_deref(), Some("0" | "1")), "none but the control's");
}

fn the_sql_functions_say_the_same_names(server: &str) {
    let test = TestDatabase::migrated(server);
    // An administrator's session may have another idea of where to look for functions and operators.
    let mut admin = test.admin();
    admin.batch_execute("SET search_path = pg_catalog").unwrap();
    let vectors: Vec<(String, String, i64, String)> =
        serde_json::from_str(include_str!("../../lock_names.json")).unwrap();
    for (namespace, message_id, key, name) in vectors {
        let row = admin
            .query_one(
                "SELECT public.maildrop_lock_key($1, $2), public.maildrop_lock_name($1, $2)",
                &[&message_id, &namespace],
            )
            .unwrap();
        assert_eq!(
            (row.get::<_, i64>(0), row.get::<_, String>(1)),
            (key, name.clone()),
            "{namespace:?} {message_id:?}"
        );
        if namespace == "maildrop" {
            let row = admin.query_one("SELECT public.maildrop_lock_name($1)", &[&message_id]).unwrap();
            assert_eq!(row.get::<_, String>(0), name);
        }
    }
}
