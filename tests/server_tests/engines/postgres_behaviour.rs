//! What PostgreSQL itself does, by a plain client, where the lock and the ledger rely on it: an upgrade that changes one
//! of these breaks a promise, and this file says which.
//!
//! Pinned elsewhere, through the code that relies on it: the end of a session frees its lock and the holder learns of it
//! at its next statement (`postgres_lock`: a killed holder), an error in the transaction frees it (`postgres_lock`: an
//! aborted transaction), COMMIT makes the record visible before the next holder looks (`postgres_lock`: a look under the
//! lock), a deadlock's victim goes on from its savepoint with the lock (`postgres_record`), a role with few rights sees who
//! holds a lock (`postgres_lock`: the second delivery).

use crate::support;
use crate::support::database::ADMINISTRATOR;
use crate::support::postgres::{TestDatabase, on_each_postgres};
use crate::support::program::wait_until;
use crate::support::standby::Primary;
use maildrop_command::message::fold;
use postgres::error::SqlState;
use postgres::{Client, NoTls, SimpleQueryMessage};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;

on_each_postgres!(
    the_statement_after_the_lock_sees_what_was_just_committed,
    the_statement_that_waits_for_the_lock_does_not,
    a_repeatable_read_transaction_does_not_either,
    each_statement_of_a_batch_has_a_snapshot_of_its_own,
    a_batch_ends_at_its_first_error,
    an_idle_lock_holds_back_no_vacuum_and_a_write_or_a_snapshot_does,
    an_extended_query_leaves_a_snapshot_behind_until_the_next_statement,
    a_session_that_idles_too_long_in_its_transaction_loses_the_lock_unawares,
    a_setting_of_the_transaction_ends_with_it,
    a_transaction_timeout_can_be_put_off_and_not_moved,
    a_lock_is_its_databases,
    a_lock_taken_before_a_savepoint_outlives_its_rollback,
    the_list_of_locks_has_the_key_in_two_halves,
    a_second_insert_of_a_key_waits_for_the_first_transaction,
    a_commit_whose_wait_for_a_standby_is_ended_is_a_success_with_a_warning_or_no_answer,
    a_setting_for_the_transaction_lasts_while_its_commit_waits,
);

/// So that the SQL of postfix/README.md finds what `check` finds.
#[test]
fn the_folding_of_postgresql_18_is_that_of_the_program() {
    let test = TestDatabase::empty("POSTGRES18");
    if test.value("current_setting('server_version_num')::int < 180000").unwrap() == "true" {
        assert!(support::another_version_may_stand_in());
        return;
    }
    let sql = "SELECT i, casefold(chr(i) COLLATE pg_unicode_fast) FROM generate_series(1, 1114111) i \
               WHERE i NOT BETWEEN 55296 AND 57343 AND casefold(chr(i) COLLATE pg_unicode_fast) <> chr(i)";
    let theirs: Vec<(u32, String)> = test
        .admin()
        .query(sql, &[])
        .unwrap()
        .iter()
        .map(|row| (u32::try_from(row.get::<_, i32>(0)).unwrap(), row.get(1)))
        .collect();
    let ours: Vec<(u32, String)> = ('\u{1}'..=char::MAX)
        .map(|c| (u32::from(c), fold(&c.to_string())))
        .filter(|(c, folded)| char::from_u32(*c).is_some_and(|c| c.to_string() != *folded))
        .collect();
    assert_eq!(ours, theirs);
}

/// A table `seen` and a lock that nobody else uses, in a database that others use, too: a database of its own for each
/// scenario takes longer than the scenario.
struct TableAndLock {
    host: String,
    schema: String,
    key: i64,
}

impl TableAndLock {
    fn new(server: &str) -> Self {
        let id = Uuid::now_v7();
        let place = Self {
            host: support::server(server),
            schema: format!("what_{}", id.simple()),
            key: i64::from_be_bytes(id.into_bytes()[8..].try_into().unwrap()),
        };
        // The path may name a schema that is yet to come.
        let make = format!("CREATE SCHEMA {}; CREATE TABLE seen (id int PRIMARY KEY)", place.schema);
        place.session().batch_execute(&make).unwrap();
        place
    }

    fn session(&self) -> Client {
        let (user, password) = ADMINISTRATOR;
        let mut options = postgres::Config::new();
        options.host(&self.host).user(user).password(password).dbname("postgres");
        let mut session = options.connect(NoTls).unwrap();
        session.batch_execute(&format!("SET search_path TO {}", self.schema)).unwrap();
        session
    }

    /// Tries to take the lock for the transaction: `t` or `f`.
    fn lock(&self, session: &mut Client) -> String {
        value(session, &format!("SELECT pg_try_advisory_xact_lock({})", self.key))
    }

    /// A transaction that has the lock.
    fn holder(&self) -> Client {
        let mut session = self.session();
        session.batch_execute("BEGIN").unwrap();
        assert_eq!(self.lock(&mut session), "t");
        session
    }

    /// Whether somebody waits for the lock.
    fn is_waited_for(&self) -> bool {
        let key = self.key;
        let waiting = format!(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objsubid = 1 \
             AND ((classid::bigint << 32) | objid::bigint) = {key}"
        );
        value(&mut self.session(), &waiting) == "1"
    }
}

impl Drop for TableAndLock {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.session().batch_execute(&format!("DROP SCHEMA {} CASCADE", self.schema)).unwrap();
        }
    }
}

/// The value in the first column of each row of a batch, all statements' rows in one list.
fn values(client: &mut Client, batch: &str) -> Vec<String> {
    let answers = client.simple_query(batch).unwrap_or_else(|error| panic!("{batch}: {error:?}"));
    let rows = answers.iter().filter_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("NULL").to_owned()),
        _ => None,
    });
    rows.collect()
}

fn value(client: &mut Client, sql: &str) -> String {
    values(client, sql).pop().expect("a row")
}

fn pid(client: &mut Client) -> String {
    value(client, "SELECT pg_backend_pid()")
}

/// What one session sees that waited for the lock of another, which committed a row before letting go: `before` is run
/// first, `waiting` while the lock is held, LOCK being the function that waits for it; the values of `waiting`.
fn seen_after_waiting(server: &str, before: &str, waiting: &str) -> Vec<String> {
    let place = TableAndLock::new(server);
    let (mut holder, mut waiter) = (place.holder(), place.session());
    waiter.batch_execute(before).unwrap();
    let waiting = waiting.replace("LOCK", &format!("pg_advisory_xact_lock({})", place.key));
    thread::scope(|scope| {
        let seen = scope.spawn(|| values(&mut waiter, &waiting));
        wait_until("somebody waits", || place.is_waited_for());
        holder.batch_execute("INSERT INTO seen VALUES (1); COMMIT").unwrap();
        seen.join().unwrap()
    })
}

/// The lock's transaction is READ COMMITTED and the look is a statement of its own for this.
fn the_statement_after_the_lock_sees_what_was_just_committed(server: &str) {
    let seen =
        seen_after_waiting(server, "BEGIN ISOLATION LEVEL READ COMMITTED", "SELECT LOCK; SELECT count(*) FROM seen");
    assert_eq!(seen, ["", "1"]);
}

fn the_statement_that_waits_for_the_lock_does_not(server: &str) {
    let seen = seen_after_waiting(server, "BEGIN ISOLATION LEVEL READ COMMITTED", "SELECT count(*) FROM seen, LOCK");
    assert_eq!(seen, ["0"]);
}

fn a_repeatable_read_transaction_does_not_either(server: &str) {
    let seen =
        seen_after_waiting(server, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT LOCK; SELECT count(*) FROM seen");
    assert_eq!(seen, ["", "0"]);
}

/// Lock and look may ride in one message, in a transaction or without one.
fn each_statement_of_a_batch_has_a_snapshot_of_its_own(server: &str) {
    for begin in ["BEGIN ISOLATION LEVEL READ COMMITTED; ", ""] {
        let batch = format!("{begin}SELECT count(*) FROM seen; SELECT LOCK; SELECT count(*) FROM seen; COMMIT");
        assert_eq!(seen_after_waiting(server, "", &batch), ["0", "", "1"], "{begin:?}");
    }
}

/// A batch that locks and goes on never goes on without the lock; and without BEGIN all of it is one transaction.
fn a_batch_ends_at_its_first_error(server: &str) {
    let place = TableAndLock::new(server);
    let mut client = place.session();
    client.batch_execute("INSERT INTO seen VALUES (1); SELECT 1/0; INSERT INTO seen VALUES (2)").unwrap_err();
    assert_eq!(value(&mut client, "SELECT count(*) FROM seen"), "0");
    client.batch_execute("INSERT INTO seen VALUES (1); COMMIT; SELECT 1/0; INSERT INTO seen VALUES (2)").unwrap_err();
    assert_eq!(value(&mut client, "SELECT count(*) FROM seen"), "1");
}

/// The table's size after VACUUM of what was deleted: nothing, if the rows could be removed.
fn size_after_vacuum(test: &TestDatabase) -> u64 {
    let mut admin = test.admin();
    admin.batch_execute("CREATE TABLE dead AS SELECT generate_series(1, 1000) AS id").unwrap();
    admin.batch_execute("DELETE FROM dead").unwrap();
    admin.batch_execute("VACUUM dead").unwrap();
    let size = value(&mut admin, "SELECT pg_relation_size('dead')").parse().unwrap();
    admin.batch_execute("DROP TABLE dead").unwrap();
    size
}

/// The lock is held for as long as IMAP takes: no write comes before APPEND, and no snapshot stays.
fn an_idle_lock_holds_back_no_vacuum_and_a_write_or_a_snapshot_does(server: &str) {
    let test = TestDatabase::empty(server);
    let mut holder = test.admin();
    holder.batch_execute("CREATE TABLE seen (id int PRIMARY KEY)").unwrap();
    holder.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(1)").unwrap();
    assert_eq!(value(&mut holder, "SELECT count(*) FROM seen"), "0");
    // The server's own processes, too, keep what is dead for a moment: one that writes the page, or autovacuum's.
    wait_until("what is dead is removed", || size_after_vacuum(&test) == 0);
    holder.batch_execute("INSERT INTO seen VALUES (1)").unwrap();
    assert!(size_after_vacuum(&test) > 0, "a write keeps what is dead");
    holder.batch_execute("ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM seen").unwrap();
    assert!(size_after_vacuum(&test) > 0, "a snapshot keeps what is dead");
    holder.batch_execute("ROLLBACK").unwrap();
    wait_until("what is dead is removed", || size_after_vacuum(&test) == 0);
}

/// That is why the look is a simple query: its client does not close the portal.
fn an_extended_query_leaves_a_snapshot_behind_until_the_next_statement(server: &str) {
    let place = TableAndLock::new(server);
    let (mut holder, mut other) = (place.holder(), place.session());
    let of_holder =
        format!("SELECT coalesce(backend_xmin::text, '-') FROM pg_stat_activity WHERE pid = {}", pid(&mut holder));
    assert_eq!(value(&mut other, &of_holder), "-");
    holder.query_typed("SELECT id FROM seen", &[]).unwrap();
    assert_ne!(value(&mut other, &of_holder), "-");
    holder.simple_query("SELECT id FROM seen").unwrap();
    assert_eq!(value(&mut other, &of_holder), "-");
}

/// The worst thing that can happen to a lock: it is gone in the middle of the IMAP exchange, and nobody says so. Therefore
/// the limit is set for the transaction, and the lock is asked for again before the last CRLF.
fn a_session_that_idles_too_long_in_its_transaction_loses_the_lock_unawares(server: &str) {
    let place = TableAndLock::new(server);
    let mut other = place.session();
    let mut holder = place.session();
    // In one batch, within which it does not idle.
    let limit = "SET idle_in_transaction_session_timeout = '100ms'; BEGIN";
    assert_eq!(value(&mut holder, &format!("{limit}; SELECT pg_try_advisory_xact_lock({})", place.key)), "t");
    wait_until("the lock is free", || place.lock(&mut other) == "t");
    // Only now does it learn of it: from the server's last words, or from the end of the connection.
    let error = holder.simple_query("SELECT 1").unwrap_err();
    let last_words = error.code() == Some(&SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT);
    assert!(last_words || error.is_closed(), "{error:?}");
    holder.simple_query("SELECT 1").unwrap_err();

    // With a limit of the transaction's own it stays.
    let mut holder = place.session();
    holder.batch_execute("SET idle_in_transaction_session_timeout = '100ms'").unwrap();
    holder.batch_execute("BEGIN; SELECT set_config('idle_in_transaction_session_timeout', '600000', true)").unwrap();
    assert_eq!(place.lock(&mut holder), "t");
    thread::sleep(Duration::from_millis(400));
    assert_eq!(place.lock(&mut other), "f");
    holder.batch_execute("COMMIT").unwrap();
}

/// What a pooler hands on to the next client must not be what we have set.
fn a_setting_of_the_transaction_ends_with_it(server: &str) {
    let place = TableAndLock::new(server);
    let mut client = place.session();
    let before = value(&mut client, "SHOW lock_timeout");
    for end in ["COMMIT", "ROLLBACK"] {
        client.batch_execute("BEGIN; SELECT set_config('lock_timeout', '1234', true)").unwrap();
        assert_eq!(value(&mut client, "SHOW lock_timeout"), "1234ms");
        client.batch_execute(end).unwrap();
        assert_eq!(value(&mut client, "SHOW lock_timeout"), before, "{end}");
    }
}

/// 17 and later: 0 ends the timer that runs; any other value leaves it as it is.
fn a_transaction_timeout_can_be_put_off_and_not_moved(server: &str) {
    let place = TableAndLock::new(server);
    let mut client = place.session();
    if server == "POSTGRES15" {
        let error = client.batch_execute("SET transaction_timeout = 0").unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::UNDEFINED_OBJECT), "naming it is an error there");
        return;
    }
    for (limit, lives) in [("0", true), ("600000", false)] {
        let mut client = place.session();
        client.batch_execute("SET transaction_timeout = '3s'").unwrap();
        client.batch_execute(&format!("BEGIN; SELECT set_config('transaction_timeout', '{limit}', true)")).unwrap();
        let began = Instant::now();
        let until = Duration::from_millis(if lives { 6000 } else { 60_000 });
        while began.elapsed() < until && client.simple_query("SELECT 1").is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(client.simple_query("SELECT 1").is_ok(), lives, "{limit}");
    }
}

fn a_lock_is_its_databases(server: &str) {
    let (place, elsewhere) = (TableAndLock::new(server), TestDatabase::empty(server));
    let (_holder, mut other) = (place.holder(), place.session());
    assert_eq!(place.lock(&mut other), "f");
    assert_eq!(place.lock(&mut elsewhere.admin()), "t");
}

/// The record is written after a savepoint, so that it can be tried again.
fn a_lock_taken_before_a_savepoint_outlives_its_rollback(server: &str) {
    let (place, after) = (TableAndLock::new(server), TableAndLock::new(server));
    let (mut holder, mut other) = (place.holder(), place.session());
    holder.batch_execute("SAVEPOINT s").unwrap();
    assert_eq!(after.lock(&mut holder), "t");
    holder.simple_query("SELECT 1/0").unwrap_err();
    holder.batch_execute("ROLLBACK TO SAVEPOINT s").unwrap();
    assert_eq!(place.lock(&mut other), "f");
    assert_eq!(after.lock(&mut other), "t", "one that was taken after it is gone");
    holder.batch_execute("RELEASE SAVEPOINT s").unwrap();
    assert_eq!(place.lock(&mut other), "f");
    holder.batch_execute("COMMIT").unwrap();
    assert_eq!(place.lock(&mut other), "t");
}

/// `classid` and `objid` are unsigned; half of all keys are negative.
fn the_list_of_locks_has_the_key_in_two_halves(server: &str) {
    let place = TableAndLock::new(server);
    let mut client = place.session();
    for key in [i64::MIN, -1, 0, 1, 0x7fff_ffff, 0x8000_0000, -0x8000_0000, i64::MAX] {
        client.batch_execute("BEGIN").unwrap();
        // As text: the digits of the smallest number alone are none that fits.
        assert_eq!(value(&mut client, &format!("SELECT pg_try_advisory_xact_lock_shared('{key}')")), "t");
        let listed = "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks \
                      WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND pid = pg_backend_pid()";
        assert_eq!(values(&mut client, listed), [key.to_string()]);
        client.batch_execute("ROLLBACK").unwrap();
    }
}

/// Were the record written before APPEND, everybody else would wait here for IMAP.
fn a_second_insert_of_a_key_waits_for_the_first_transaction(server: &str) {
    let place = TableAndLock::new(server);
    let (mut first, mut second) = (place.session(), place.session());
    first.batch_execute("BEGIN; INSERT INTO seen VALUES (1)").unwrap();
    second.batch_execute("SET lock_timeout = '100ms'").unwrap();
    let insert = "INSERT INTO seen VALUES (1) ON CONFLICT DO NOTHING";
    let error = second.batch_execute(insert).unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::LOCK_NOT_AVAILABLE));
    first.batch_execute("COMMIT").unwrap();
    second.batch_execute(insert).unwrap();
}

/// Nothing else but the warning's code, and that no function raised it, tells it from a COMMIT that is on the standby
/// (`SyncRepWaitForLSN`). Everybody sees at once what was committed.
fn a_commit_whose_wait_for_a_standby_is_ended_is_a_success_with_a_warning_or_no_answer(server: &str) {
    let mut primary = Primary::start(server);
    primary.session(mpsc::channel().0).batch_execute("CREATE TABLE seen (id int)").unwrap();
    let notices = primary.commits_wait();
    let codes: Vec<_> = notices.iter().map(|notice| (notice.code().code(), notice.where_())).collect();
    assert_eq!(codes, [("01000", None)]);

    // In either protocol, and whatever time limit the statement has: that ends before the wait.
    for insert in ["BEGIN; SET LOCAL statement_timeout = '1s'; INSERT INTO seen VALUES (1); COMMIT", ""] {
        let (sender, notices) = mpsc::channel();
        let mut session = primary.session(sender);
        let committing = thread::spawn(move || match insert {
            "" => session.execute_typed("INSERT INTO seen VALUES (1)", &[]).map(drop),
            batch => session.simple_query(batch).map(drop),
        });
        wait_until("it waits", || primary.waiting() == 1);
        thread::sleep(Duration::from_millis(1500));
        assert_eq!(primary.end_waits("pg_cancel_backend"), 1);
        committing.join().unwrap().unwrap();
        assert_eq!(notices.try_iter().map(|notice| notice.code().code().to_owned()).collect::<Vec<_>>(), ["01000"]);
    }
    let mut session = primary.session(mpsc::channel().0);
    let committing = thread::spawn(move || session.batch_execute("INSERT INTO seen VALUES (1)"));
    wait_until("it waits", || primary.waiting() == 1);
    assert_eq!(primary.end_waits("pg_terminate_backend"), 1);
    let error = committing.join().unwrap().unwrap_err();
    assert!(error.is_closed() || error.code() == Some(&SqlState::ADMIN_SHUTDOWN), "{error:?}");
    assert_eq!(value(&mut primary.session(mpsc::channel().0), "SELECT count(*) FROM seen"), "3");
}

/// So the program hears the warning, and none of those that come with the statements before it, whatever the role's own
/// setting is; in one statement, too.
fn a_setting_for_the_transaction_lasts_while_its_commit_waits(server: &str) {
    let mut primary = Primary::start(server);
    primary.session(mpsc::channel().0).batch_execute("CREATE TABLE seen (id int)").unwrap();
    primary.commits_wait();
    let quiet = "SET LOCAL client_min_messages = error;";
    for (commit, heard) in [
        ("BEGIN; INSERT INTO seen VALUES (1); SET LOCAL client_min_messages = warning; COMMIT", 1),
        ("INSERT INTO seen VALUES (1); SET LOCAL client_min_messages = warning", 1),
        (
            "WITH written AS (INSERT INTO seen VALUES (1) RETURNING 1) \
             SELECT set_config('client_min_messages', 'warning', true) FROM (SELECT count(*) FROM written) w",
            1,
        ),
        (&format!("BEGIN; {quiet} SET TRANSACTION READ WRITE; BEGIN; INSERT INTO seen VALUES (1); COMMIT"), 0),
    ] {
        let (sender, notices) = mpsc::channel();
        let mut session = primary.session(sender);
        session.batch_execute("SET client_min_messages = error").unwrap();
        thread::scope(|scope| {
            let committing = scope.spawn(move || session.simple_query(commit).map(drop));
            wait_until("it waits", || primary.end_waits("pg_cancel_backend") == 1);
            committing.join().unwrap().unwrap();
        });
        assert_eq!(notices.try_iter().count(), heard, "{commit}");
    }
}
