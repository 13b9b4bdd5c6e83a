//! What PgBouncer does in transaction mode, by a plain client, where we rely on it, and where we therefore do not: the lock
//! is a transaction's.
//!
//! Pinned elsewhere, through the code that relies on it: sixty deliveries exclude each other, and the holder is found, by a
//! role that PgBouncer asks the server about (`postgres_pgbouncer`).

use crate::support;
use crate::support::postgres::TestDatabase;
use crate::support::program::wait_until;
use postgres::{Client, NoTls, SimpleQueryMessage};

fn client(test: &TestDatabase, application_name: &str) -> Client {
    postgres::Config::new()
        .host(&support::server("PGBOUNCER"))
        .user(support::database::ADMINISTRATOR.0)
        .password(support::database::ADMINISTRATOR.1)
        .dbname(&test.name)
        .application_name(application_name)
        .connect(NoTls)
        .unwrap()
}

/// The value of a query that every pooler understands: a simple one.
fn value(client: &mut Client, sql: &str) -> String {
    let answers = client.simple_query(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let row = answers.iter().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("NULL").to_owned()),
        _ => None,
    });
    row.unwrap_or_else(|| panic!("{sql}: no row"))
}

fn backend(client: &mut Client) -> String {
    value(client, "SELECT pg_backend_pid()")
}

#[test]
fn a_transaction_keeps_its_backend_and_its_lock_until_it_ends() {
    let test = TestDatabase::empty("POSTGRES17");
    let (mut holder, mut other) = (client(&test, "holder"), client(&test, "other"));
    holder.batch_execute("BEGIN").unwrap();
    assert_eq!(value(&mut holder, "SELECT pg_try_advisory_xact_lock(1)"), "t");
    let own = backend(&mut holder);
    assert_eq!(value(&mut other, "SELECT pg_try_advisory_xact_lock(1)"), "f");
    assert_ne!(backend(&mut other), own);
    assert_eq!(backend(&mut holder), own);
    holder.batch_execute("COMMIT").unwrap();
    assert_eq!(value(&mut other, "SELECT pg_try_advisory_xact_lock(1)"), "t");
}

#[test]
fn a_client_that_leaves_in_its_transaction_frees_the_lock() {
    let test = TestDatabase::empty("POSTGRES17");
    let (mut holder, mut other) = (client(&test, "holder"), client(&test, "other"));
    holder.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(1)").unwrap();
    assert_eq!(value(&mut other, "SELECT pg_try_advisory_xact_lock(1)"), "f");
    drop(holder);
    wait_until("the lock is free", || value(&mut other, "SELECT pg_try_advisory_xact_lock(1)") == "t");
}

/// Why the lock is not a session's: the next user of the backend has it without having asked, and the one who asked cannot let
/// go of it, and it outlives its client.
#[test]
fn a_sessions_lock_goes_to_the_next_client_and_stays() {
    let test = TestDatabase::empty("POSTGRES17");
    let (mut holder, mut next) = (client(&test, "holder"), client(&test, "next"));
    assert_eq!(value(&mut holder, "SELECT pg_try_advisory_lock(1)"), "t");
    let own = backend(&mut holder);
    next.batch_execute("BEGIN").unwrap();
    assert_eq!(backend(&mut next), own, "PgBouncer gives out what was used last");
    assert_eq!(value(&mut next, "SELECT pg_try_advisory_lock(1)"), "t", "two clients hold the lock");
    assert_eq!(value(&mut next, "SELECT pg_advisory_unlock(1)"), "t");
    assert_eq!(value(&mut holder, "SELECT pg_advisory_unlock(1)"), "f", "its holder cannot let go of it");
    next.batch_execute("COMMIT").unwrap();
    drop((holder, next));
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let gone = format!("{held} AND pid <> {own}");
    wait_until("both clients are gone", || test.value(&gone).as_deref() == Some("0"));
    assert_eq!(test.value(held).as_deref(), Some("1"), "it outlives its client");
}

/// So does a setting; one of the transaction does not.
#[test]
fn a_sessions_setting_goes_to_the_next_client_and_a_transactions_does_not() {
    let test = TestDatabase::empty("POSTGRES17");
    let (mut first, mut second) = (client(&test, "first"), client(&test, "second"));
    first.batch_execute("SET lock_timeout = 1234").unwrap();
    assert_eq!(value(&mut second, "SHOW lock_timeout"), "1234ms");
    first.batch_execute("BEGIN; SELECT set_config('lock_timeout', '4321', true); COMMIT").unwrap();
    assert_eq!(value(&mut second, "SHOW lock_timeout"), "1234ms");
}

/// By which a delivery that finds the lock held learns from whom.
#[test]
fn the_backend_bears_the_application_name_of_its_user() {
    let test = TestDatabase::empty("POSTGRES17");
    for name in ["maildrop A 1@mx1", "maildrop B 2@mx2"] {
        let mut client = client(&test, name);
        client.batch_execute("BEGIN").unwrap();
        let own = backend(&mut client);
        let shown = format!("SELECT application_name FROM pg_stat_activity WHERE pid = {own}");
        assert_eq!(test.value(&shown).as_deref(), Some(name));
        client.batch_execute("COMMIT").unwrap();
    }
}
