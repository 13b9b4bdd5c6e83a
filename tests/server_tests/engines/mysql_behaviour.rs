//! What MySQL and MariaDB themselves do, by a plain client, where the lock and the ledger rely on it: an upgrade that
//! changes one of these breaks a promise, and this file says which.
//!
//! Pinned elsewhere, through the code that relies on it: KILL CONNECTION frees the holder's lock and the holder learns of
//! it (`mysql_lock`: a killed holder), KILL QUERY of a waiting session gives NULL or an error (`mysql_lock`: a killed wait),
//! CASE calls GET_LOCK only where its turn comes (`mysql_lock`: taking a lock twice), a deadlock's victim keeps the lock
//! (`mysql_contention`), an error in a later statement of a batch ends it (`mysql_schema`), the journal is seen by
//! everybody at once (`mysql_ledger`), a client that vanishes frees its lock (`cut_short`).

use crate::support::program::wait_until;
use crate::support_mysql::{TestDatabase, lock_of_its_own, on_each_server};
use mysql::prelude::Queryable;
use mysql::{Conn, Error};
use std::time::{Duration, Instant};

on_each_server!(
    get_lock_is_held_or_busy,
    what_get_lock_does_not_like_is_null_or_an_error_and_no_lock,
    a_name_of_64_characters_is_whole_and_one_of_65_is_not_for_both,
    mysql_ignores_the_case_of_a_name_and_mariadb_does_not,
    a_timeout_is_whole_seconds_on_mysql_and_fractions_on_mariadb,
    the_lock_outlives_commit_and_rollback,
    a_killed_query_of_the_holder_keeps_the_lock,
    a_reset_connection_has_lost_the_lock,
    a_session_that_idles_too_long_loses_the_lock_unawares,
    names_are_the_servers_and_not_the_schemas,
    a_session_that_locks_twice_unlocks_twice,
    a_second_lock_does_not_free_the_first,
    what_is_not_ours_cannot_be_released,
    a_transaction_that_looked_before_the_lock_does_not_see_what_was_just_committed,
    autocommit_and_read_committed_see_it,
    a_row_changed_since_the_read_view_is_refused_by_mariadb_11_8_alone,
);

/// A lock name that nobody else uses: 40 characters in lower case.
fn name() -> String {
    let name = lock_of_its_own().mysql_name();
    name[name.len() - 40..].to_owned()
}

/// 1, 0 or NULL.
fn ask(session: &mut Conn, question: &str) -> Result<Option<i64>, u16> {
    match session.query_first::<Option<i64>, _>(format!("SELECT {question}")) {
        Ok(row) => Ok(row.expect("a row")),
        Err(Error::MySqlError(error)) => Err(error.code),
        Err(other) => panic!("{question}: {other}"),
    }
}

fn lock(session: &mut Conn, name: &str) -> Option<i64> {
    ask(session, &format!("GET_LOCK('{name}', 0)")).unwrap()
}

fn release(session: &mut Conn, name: &str) -> Option<i64> {
    ask(session, &format!("RELEASE_LOCK('{name}')")).unwrap()
}

fn is_mariadb(server: &str) -> bool {
    server.starts_with("MARIADB")
}

fn get_lock_is_held_or_busy(server: &str) {
    let (site, name) = (TestDatabase::empty(server), name());
    let (mut holder, mut other) = (site.admin(), site.admin());
    assert_eq!(ask(&mut other, &format!("IS_USED_LOCK('{name}')")), Ok(None));
    assert_eq!(lock(&mut holder, &name), Some(1));
    assert_eq!(lock(&mut other, &name), Some(0));
    let id = i64::from(holder.connection_id());
    assert_eq!(ask(&mut other, &format!("IS_USED_LOCK('{name}')")), Ok(Some(id)));
    assert_eq!(release(&mut holder, &name), Some(1));
    assert_eq!(lock(&mut other, &name), Some(1));
}

/// NULL is neither "held" nor "busy": a program that takes it for a truth value goes on without a lock, or waits for ever.
fn what_get_lock_does_not_like_is_null_or_an_error_and_no_lock(server: &str) {
    let (site, name) = (TestDatabase::empty(server), name());
    let (mut session, mut other) = (site.admin(), site.admin());
    let mariadb = is_mariadb(server);
    for question in ["GET_LOCK(NULL, 0)", "GET_LOCK('', 0)"] {
        let answer = ask(&mut session, question);
        assert_eq!(answer, if mariadb { Ok(None) } else { Err(3057) }, "{question}");
    }
    // "For ever", to MySQL.
    let answer = ask(&mut session, &format!("GET_LOCK('{name}', -1)"));
    assert_eq!(answer, Ok(if mariadb { None } else { Some(1) }));
    assert_eq!(lock(&mut other, &name), Some(i64::from(mariadb)));
}

fn a_name_of_64_characters_is_whole_and_one_of_65_is_not_for_both(server: &str) {
    let (site, name) = (TestDatabase::empty(server), name());
    let (mut session, mut other) = (site.admin(), site.admin());
    let of = |length: usize| format!("{name}{}", "x".repeat(length - name.len()));
    assert_eq!(lock(&mut session, &of(64)), Some(1));
    // Nothing is cut: a name that differs in its last character is another lock.
    assert_eq!(lock(&mut other, &format!("{}y", of(63))), Some(1));
    assert_eq!(lock(&mut other, &of(64)), Some(0));
    let long = |length| format!("GET_LOCK('{}', 0)", of(length));
    if is_mariadb(server) {
        assert_eq!(ask(&mut session, &long(192)), Ok(Some(1)));
        assert_eq!(ask(&mut session, &long(193)), Err(1059));
    } else {
        assert_eq!(ask(&mut session, &long(65)), Err(4163));
    }
}

/// Ours are all in lower case: the same lock to both.
fn mysql_ignores_the_case_of_a_name_and_mariadb_does_not(server: &str) {
    let (site, name) = (TestDatabase::empty(server), name());
    let (mut session, mut other) = (site.admin(), site.admin());
    assert_eq!(lock(&mut session, &format!("a{name}")), Some(1));
    assert_eq!(lock(&mut other, &format!("A{name}")), Some(i64::from(is_mariadb(server))));
}

fn a_timeout_is_whole_seconds_on_mysql_and_fractions_on_mariadb(server: &str) {
    let (site, name) = (TestDatabase::empty(server), name());
    let (mut holder, mut other) = (site.admin(), site.admin());
    lock(&mut holder, &name);
    let mut waited = |timeout: &str| {
        let began = Instant::now();
        assert_eq!(ask(&mut other, &format!("GET_LOCK('{name}', {timeout})")), Ok(Some(0)));
        began.elapsed()
    };
    let ms = Duration::from_millis;
    if is_mariadb(server) {
        let (below, above) = (waited("0.4"), waited("0.6"));
        assert!(below >= ms(390) && above >= ms(590), "{below:?} {above:?}");
    } else {
        // The machine may be slow to ask and to hear, though not each time.
        wait_until("it does not wait", || waited("0.4") < ms(390));
        let above = waited("0.6");
        assert!(above >= ms(990), "{above:?}");
    }
}

/// Unlike PostgreSQL's: COMMIT first, then RELEASE_LOCK, or the next one looks too early.
fn the_lock_outlives_commit_and_rollback(server: &str) {
    let (site, name) = (TestDatabase::empty(server), name());
    let (mut holder, mut other) = (site.admin(), site.admin());
    holder.query_drop("CREATE TABLE seen (id int PRIMARY KEY) ENGINE = InnoDB").unwrap();
    assert_eq!(lock(&mut holder, &name), Some(1));
    for (id, end) in ["COMMIT", "ROLLBACK"].iter().enumerate() {
        holder.query_drop(format!("START TRANSACTION; INSERT INTO seen VALUES ({id}); {end}")).unwrap();
        assert_eq!(lock(&mut other, &name), Some(0), "{end}");
    }
    assert_eq!(ask(&mut other, "COUNT(*) FROM seen"), Ok(Some(1)));
    assert_eq!(release(&mut holder, &name), Some(1));
    assert_eq!(lock(&mut other, &name), Some(1));
}

/// KILL QUERY hits what runs, and nothing else.
fn a_killed_query_of_the_holder_keeps_the_lock(server: &str) {
    let (site, name) = (TestDatabase::empty(server), name());
    let (mut holder, mut other, mut admin) = (site.admin(), site.admin(), site.admin());
    assert_eq!(lock(&mut holder, &name), Some(1));
    let id = holder.connection_id();
    let slept = std::thread::spawn(move || {
        // MySQL answers 1 to a SLEEP that was interrupted, MariaDB may raise an error.
        let interrupted = holder.query_drop("SELECT SLEEP(60)");
        (interrupted, holder)
    });
    let running = format!("COUNT(*) FROM information_schema.processlist WHERE id = {id} AND info LIKE '%SLEEP%'");
    wait_until("it sleeps", || ask(&mut admin, &running) == Ok(Some(1)));
    admin.query_drop(format!("KILL QUERY {id}")).unwrap();
    let (_, mut holder) = slept.join().unwrap();
    assert_eq!(lock(&mut other, &name), Some(0));
    assert_eq!(ask(&mut holder, &format!("IS_USED_LOCK('{name}') = CONNECTION_ID()")), Ok(Some(1)));
}

/// What a connection pool does to a connection that comes back to it.
fn a_reset_connection_has_lost_the_lock(server: &str) {
    let (site, name) = (TestDatabase::empty(server), name());
    let (mut holder, mut other) = (site.admin(), site.admin());
    assert_eq!(lock(&mut holder, &name), Some(1));
    holder.reset().unwrap();
    assert_eq!(lock(&mut other, &name), Some(1));
}

/// The holder's own session sets a `wait_timeout` beyond its deadline for this.
fn a_session_that_idles_too_long_loses_the_lock_unawares(server: &str) {
    let (site, name) = (TestDatabase::empty(server), name());
    let (mut holder, mut other) = (site.admin(), site.admin());
    assert_eq!(lock(&mut holder, &name), Some(1));
    assert_eq!(lock(&mut other, &name), Some(0));
    holder.query_drop("SET SESSION wait_timeout = 1").unwrap();
    wait_until("the lock is free", || lock(&mut other, &name) == Some(1));
    holder.query_drop("SELECT 1").unwrap_err();
}

/// Sites that share a server choose different namespaces.
fn names_are_the_servers_and_not_the_schemas(server: &str) {
    let (here, there, name) = (TestDatabase::empty(server), TestDatabase::empty(server), name());
    let (mut holder, mut neighbour) = (here.admin(), there.admin());
    assert_eq!(lock(&mut holder, &name), Some(1));
    assert_eq!(lock(&mut neighbour, &name), Some(0));
}

fn a_session_that_locks_twice_unlocks_twice(server: &str) {
    let (site, name) = (TestDatabase::empty(server), name());
    let (mut holder, mut other) = (site.admin(), site.admin());
    assert_eq!((lock(&mut holder, &name), lock(&mut holder, &name)), (Some(1), Some(1)));
    assert_eq!(release(&mut holder, &name), Some(1));
    assert_eq!(lock(&mut other, &name), Some(0));
    assert_eq!(release(&mut holder, &name), Some(1));
    assert_eq!(lock(&mut other, &name), Some(1));
}

/// Before MySQL 5.7.5 it did.
fn a_second_lock_does_not_free_the_first(server: &str) {
    let (site, first, second) = (TestDatabase::empty(server), name(), name());
    let (mut holder, mut other) = (site.admin(), site.admin());
    assert_eq!((lock(&mut holder, &first), lock(&mut holder, &second)), (Some(1), Some(1)));
    assert_eq!((lock(&mut other, &first), lock(&mut other, &second)), (Some(0), Some(0)));
}

fn what_is_not_ours_cannot_be_released(server: &str) {
    let (site, name) = (TestDatabase::empty(server), name());
    let (mut holder, mut other) = (site.admin(), site.admin());
    assert_eq!(release(&mut other, &name), None, "nobody holds it");
    assert_eq!(lock(&mut holder, &name), Some(1));
    assert_eq!(release(&mut other, &name), Some(0));
    assert_eq!(lock(&mut other, &name), Some(0));
}

/// What a session sees under the lock, whose former holder has just committed a row. `before` is run before the lock.
fn seen_under_the_lock(server: &str, before: &[&str]) -> Option<i64> {
    let (site, name) = (TestDatabase::empty(server), name());
    let (mut holder, mut next) = (site.admin(), site.admin());
    holder.query_drop("CREATE TABLE seen (id int PRIMARY KEY) ENGINE = InnoDB").unwrap();
    lock(&mut holder, &name);
    for statement in before {
        next.query_drop(statement).unwrap();
    }
    assert_eq!(lock(&mut next, &name), Some(0));
    holder.query_drop("START TRANSACTION; INSERT INTO seen VALUES (1); COMMIT").unwrap();
    release(&mut holder, &name);
    assert_eq!(lock(&mut next, &name), Some(1));
    ask(&mut next, "COUNT(*) FROM seen").unwrap()
}

/// REPEATABLE READ is the default: the read view is as old as the first look of the transaction.
fn a_transaction_that_looked_before_the_lock_does_not_see_what_was_just_committed(server: &str) {
    let looked = ["START TRANSACTION", "SELECT COUNT(*) FROM seen"];
    assert_eq!(seen_under_the_lock(server, &looked), Some(0));
    assert_eq!(seen_under_the_lock(server, &["START TRANSACTION WITH CONSISTENT SNAPSHOT"]), Some(0));
}

fn autocommit_and_read_committed_see_it(server: &str) {
    assert_eq!(seen_under_the_lock(server, &["SELECT COUNT(*) FROM seen"]), Some(1));
    let read_committed =
        ["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION", "SELECT COUNT(*) FROM seen"];
    assert_eq!(seen_under_the_lock(server, &read_committed), Some(1));
}

/// `innodb_snapshot_isolation`, on by default since MariaDB 11.6.2: error 1020, after which the transaction is tried again.
fn a_row_changed_since_the_read_view_is_refused_by_mariadb_11_8_alone(server: &str) {
    let site = TestDatabase::empty(server);
    let (mut session, mut other) = (site.admin(), site.admin());
    session.query_drop("CREATE TABLE seen (id int PRIMARY KEY, times int) ENGINE = InnoDB").unwrap();
    session.query_drop("INSERT INTO seen VALUES (1, 0)").unwrap();
    let mut changed = |isolation: &str| {
        session.query_drop(format!("SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")).unwrap();
        session.query_drop("START TRANSACTION").unwrap();
        session.query_drop("SELECT * FROM seen").unwrap();
        other.query_drop("UPDATE seen SET times = times + 1").unwrap();
        let result = session.query_drop("UPDATE seen SET times = times + 1");
        session.query_drop("ROLLBACK").unwrap();
        match result {
            Ok(()) => 0,
            Err(Error::MySqlError(error)) => error.code,
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(changed("REPEATABLE READ"), if server == "MARIADB118" { 1020 } else { 0 });
    // What every session of ours is set to.
    assert_eq!(changed("READ COMMITTED"), 0);
}
