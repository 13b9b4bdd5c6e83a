//! The named lock on PostgreSQL: who has it, who waits, and what becomes of it when things end badly.

use crate::support::postgres::{Mail, TestDatabase, on_each_postgres};
use crate::support::program::wait_until;
use maildrop_command::database::{DatabaseError, DatabaseFailure, PostgresDatabase};
use maildrop_command::ledger::{CopyHistory, CopyState, Ledger, LockResult, Record};
use maildrop_command::lock::{Acquired, Holder, LockName, NamedLock};
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;

const NOT_AT_ALL: Duration = Duration::ZERO;

on_each_postgres!(
    the_second_delivery_learns_who_holds_the_lock,
    a_delivery_that_waits_gets_the_lock_when_it_is_free,
    a_wait_that_ends_in_vain_is_busy_and_leaves_the_connection_usable,
    a_killed_holder_frees_the_lock_and_learns_that_it_is_lost,
    a_kept_lock_is_freed_when_its_machine_falls_silent,
    an_aborted_transaction_is_no_lock,
    short_time_limits_of_the_role_do_not_end_the_lock,
    a_held_lock_holds_back_no_vacuum,
    letting_go_frees_the_lock_and_may_be_repeated,
    the_record_frees_the_lock,
    one_connection_holds_one_lock,
    a_look_under_the_lock_sees_what_was_just_committed,
    a_look_that_fails_behind_the_lock_takes_no_lock,
);

fn lock() -> LockName {
    LockName::new("maildrop", b"<123-abc@mail.google.com>")
}

fn is_held(acquired: &Acquired) -> bool {
    matches!(acquired, Acquired::Held)
}

fn holder(acquired: Acquired) -> Holder {
    match acquired {
        Acquired::Busy(Some(holder)) => holder,
        other => panic!("expected a holder, got {other:?}"),
    }
}

fn backend(test: &TestDatabase, queue_id: &str) -> String {
    test.value(&format!(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name \
                         LIKE 'maildrop {queue_id} %'"
    ))
    .unwrap()
}

fn kill(test: &TestDatabase, queue_id: &str) {
    test.value(&format!("SELECT pg_terminate_backend({}, 60000)", backend(test, queue_id)));
}

fn the_second_delivery_learns_who_holds_the_lock(server: &str) {
    let test = TestDatabase::migrated(server);
    let (mut first, mut second) = (test.connect("FIRST"), test.connect("SECOND"));
    assert!(is_held(&first.acquire(&lock(), NOT_AT_ALL).unwrap()));
    thread::sleep(Duration::from_millis(50));

    let holder = holder(second.acquire(&lock(), NOT_AT_ALL).unwrap());
    assert_eq!(holder.host.as_deref(), Some("mx1.example.com"));
    assert_eq!(holder.pid, Some(std::process::id()));
    assert_eq!(holder.queue_id.as_deref(), Some("FIRST"));
    assert_eq!(holder.session.unwrap().to_string(), backend(&test, "FIRST"));
    let held_for = holder.held_for.unwrap();
    assert!(held_for >= Duration::from_millis(50) && held_for < Duration::from_secs(120), "{held_for:?}");

    assert!(first.still_held(&lock()).unwrap());
    assert!(!second.still_held(&lock()).unwrap());
    // Another message's lock is another lock.
    let another = LockName::new("maildrop", b"<another@example.com>");
    let session = |holder: Option<Holder>| holder.map(|holder| holder.session);
    assert_eq!(session(second.holder(&lock()).unwrap()), Some(holder.session));
    assert_eq!(session(second.holder(&another).unwrap()), None);
    assert!(is_held(&second.acquire(&another, NOT_AT_ALL).unwrap()));
}

fn a_delivery_that_waits_gets_the_lock_when_it_is_free(server: &str) {
    let test = TestDatabase::migrated(server);
    let (mut first, mut second) = (test.connect("FIRST"), test.connect("SECOND"));
    assert!(is_held(&first.acquire(&lock(), NOT_AT_ALL).unwrap()));
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(400));
            first.release(&lock()).unwrap();
        });
        assert!(is_held(&second.acquire(&lock(), Duration::from_secs(200)).unwrap()));
        let waited = began.elapsed();
        assert!(waited >= Duration::from_millis(400) && waited < Duration::from_secs(100), "{waited:?}");
    });
    assert!(second.still_held(&lock()).unwrap());
}

fn a_wait_that_ends_in_vain_is_busy_and_leaves_the_connection_usable(server: &str) {
    let test = TestDatabase::migrated(server);
    let (mut first, mut second) = (test.connect("FIRST"), test.connect("SECOND"));
    let mail = Mail::new("<123-abc@mail.google.com>");
    let attempt = Uuid::now_v7();
    second.journal(&mail.journal(attempt, None)).unwrap();
    assert!(is_held(&first.acquire(&mail.lock, NOT_AT_ALL).unwrap()));

    let began = Instant::now();
    let busy = second.acquire_and_look(&mail.lock, Duration::from_millis(300), &mail.keys()).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(300));
    let LockResult::Busy(Some(holder)) = busy else { panic!("{busy:?}") };
    assert_eq!(holder.queue_id.as_deref(), Some("FIRST"));

    let ended = mail.record(attempt, CopyState::Delivered(None), CopyState::Delivered(None)).ended;
    second.record(&Record { ended, ..Record::default() }).unwrap();
    assert_eq!(test.value("SELECT count(*) FROM attempts WHERE ended_at IS NULL").as_deref(), Some("0"));
    assert!(first.still_held(&mail.lock).unwrap());
}

fn a_killed_holder_frees_the_lock_and_learns_that_it_is_lost(server: &str) {
    let test = TestDatabase::migrated(server);
    let (mut first, mut second) = (test.connect("FIRST"), test.connect("SECOND"));
    assert!(is_held(&first.acquire(&lock(), NOT_AT_ALL).unwrap()));
    kill(&test, "FIRST");
    assert!(is_held(&second.acquire(&lock(), NOT_AT_ALL).unwrap()));
    assert_eq!(first.still_held(&lock()).unwrap_err().failure, DatabaseFailure::ConnectionLost);
    let mail = Mail::new("<123-abc@mail.google.com>");
    let record = mail.record(Uuid::now_v7(), CopyState::Delivered(None), CopyState::Delivered(None));
    assert_eq!(first.record(&record).unwrap_err().failure, DatabaseFailure::ConnectionLost);
    assert!(!first.still_held(&lock()).unwrap_or(false));
    assert_eq!(test.value("SELECT count(*) FROM copies").as_deref(), Some("0"));
}

fn an_aborted_transaction_is_no_lock(server: &str) {
    let test = TestDatabase::migrated(server);
    let (mut first, mut second) = (test.connect("FIRST"), test.connect("SECOND"));
    assert!(is_held(&first.acquire(&lock(), NOT_AT_ALL).unwrap()));
    // A failing statement: the transaction is aborted, and the server has freed the lock.
    test.admin().batch_execute("ALTER TABLE copies RENAME TO elsewhere").unwrap();
    assert_eq!(first.look(&Mail::new("x").keys()).unwrap_err().failure, DatabaseFailure::Schema);
    test.admin().batch_execute("ALTER TABLE elsewhere RENAME TO copies").unwrap();
    assert!(is_held(&second.acquire(&lock(), NOT_AT_ALL).unwrap()));
    assert!(!first.still_held(&lock()).unwrap_or(false));
    let record = Record::default();
    first.record(&record).unwrap_err();
}

fn short_time_limits_of_the_role_do_not_end_the_lock(server: &str) {
    let test = TestDatabase::migrated(server);
    for limit in ["idle_in_transaction_session_timeout", "statement_timeout", "lock_timeout"] {
        test.role_setting(&format!("{limit} = '1s'"));
    }
    let version = test.value("current_setting('server_version_num')").unwrap();
    if version.parse::<u32>().unwrap() >= 170_000 {
        test.role_setting("transaction_timeout = '1s'");
    }
    let (mut first, mut second) = (test.connect("FIRST"), test.connect("SECOND"));
    assert!(is_held(&first.acquire(&lock(), NOT_AT_ALL).unwrap()));
    let began = Instant::now();
    holder(second.acquire(&lock(), Duration::from_secs(2)).unwrap());
    assert!(began.elapsed() >= Duration::from_secs(2));
    assert!(first.still_held(&lock()).unwrap());
}

fn a_held_lock_holds_back_no_vacuum(server: &str) {
    let test = TestDatabase::migrated(server);
    let mail = Mail::new("<123-abc@mail.google.com>");
    // The worst that a role can come with.
    test.role_setting("default_transaction_isolation = 'serializable'");
    let mut first = test.connect("FIRST");
    first.journal(&mail.journal(Uuid::now_v7(), None)).unwrap();
    looked(first.acquire_and_look(&mail.lock, NOT_AT_ALL, &mail.keys()));
    first.look(&mail.keys()).unwrap();
    assert!(first.still_held(&mail.lock).unwrap());
    let held = "SELECT state || ' ' || coalesce(backend_xid::text, '-') || ' ' || coalesce(backend_xmin::text, '-') \
                FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'maildrop FIRST %'";
    assert_eq!(test.value(held).as_deref(), Some("idle in transaction - -"));
}

fn letting_go_frees_the_lock_and_may_be_repeated(server: &str) {
    let test = TestDatabase::migrated(server);
    let (mut first, mut second) = (test.connect("FIRST"), test.connect("SECOND"));
    assert!(is_held(&first.acquire(&lock(), NOT_AT_ALL).unwrap()));
    first.release(&lock()).unwrap();
    first.release(&lock()).unwrap();
    assert!(!first.still_held(&lock()).unwrap());
    assert!(is_held(&second.acquire(&lock(), NOT_AT_ALL).unwrap()));
}

fn the_record_frees_the_lock(server: &str) {
    let test = TestDatabase::migrated(server);
    let (mut first, mut second) = (test.connect("FIRST"), test.connect("SECOND"));
    let mail = Mail::new("<123-abc@mail.google.com>");
    assert!(is_held(&first.acquire(&mail.lock, NOT_AT_ALL).unwrap()));
    first.record(&mail.record(Uuid::now_v7(), CopyState::Delivered(None), CopyState::Delivered(None))).unwrap();
    assert!(!first.still_held(&mail.lock).unwrap());
    assert!(is_held(&second.acquire(&mail.lock, NOT_AT_ALL).unwrap()));
    assert!(second.look(&mail.keys()).unwrap().iter().all(|copy| copy.delivered.is_some()));
}

fn one_connection_holds_one_lock(server: &str) {
    let test = TestDatabase::migrated(server);
    let mut first = test.connect("FIRST");
    assert!(is_held(&first.acquire(&lock(), NOT_AT_ALL).unwrap()));
    first.acquire(&LockName::new("maildrop", b"<another@example.com>"), NOT_AT_ALL).unwrap_err();
    assert!(first.still_held(&lock()).unwrap());
}

/// The bug of the best-known program of this shape: B waits for A's lock, gets it, and looks at a snapshot that is older
/// than A's commit.
fn a_look_under_the_lock_sees_what_was_just_committed(server: &str) {
    for (isolation, together) in
        [("repeatable read", false), ("serializable", false), ("repeatable read", true), ("serializable", true)]
    {
        let test = TestDatabase::migrated(server);
        test.role_setting(&format!("default_transaction_isolation = '{isolation}'"));
        let (mut first, mut second) = (test.connect("FIRST"), test.connect("SECOND"));
        let mail = Mail::new("<123-abc@mail.google.com>");
        let attempt = Uuid::now_v7();
        first.journal(&mail.journal(attempt, None)).unwrap();
        assert!(is_held(&first.acquire(&mail.lock, NOT_AT_ALL).unwrap()));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                if together {
                    return looked(second.acquire_and_look(&mail.lock, Duration::from_secs(200), &mail.keys()));
                }
                assert!(is_held(&second.acquire(&mail.lock, Duration::from_secs(200)).unwrap()));
                second.look(&mail.keys()).unwrap()
            });
            until_somebody_waits(&test);
            record_delivered(&mut first, &mail, attempt);
            let seen = waiting.join().unwrap();
            assert!(seen.len() == 2, "{seen:?}");
            assert!(seen.iter().all(|copy| copy.delivered.is_some() && copy.open_attempts.is_empty()), "{seen:?}");
        });
    }
}

fn looked(asked: Result<LockResult, DatabaseError>) -> Vec<CopyHistory> {
    match asked.unwrap() {
        LockResult::Held { looked, .. } => looked.unwrap().copies,
        LockResult::Busy(holder) => panic!("held by {holder:?}"),
    }
}

/// The lock is then as free as before, and another statement can be run.
fn a_look_that_fails_behind_the_lock_takes_no_lock(server: &str) {
    let test = TestDatabase::migrated(server);
    let (mut first, mut second) = (test.connect("FIRST"), test.connect("SECOND"));
    let mail = Mail::new("<123-abc@mail.google.com>");
    test.admin().batch_execute("ALTER TABLE copies RENAME TO elsewhere").unwrap();
    for wait in [NOT_AT_ALL, Duration::from_secs(1)] {
        let error = first.acquire_and_look(&mail.lock, wait, &mail.keys()).unwrap_err();
        assert_eq!(error.failure, DatabaseFailure::Schema, "{error}");
        assert!(!first.still_held(&mail.lock).unwrap());
        assert!(is_held(&second.acquire(&mail.lock, NOT_AT_ALL).unwrap()));
        second.release(&mail.lock).unwrap();
    }
    test.admin().batch_execute("ALTER TABLE elsewhere RENAME TO copies").unwrap();
    let seen = looked(first.acquire_and_look(&mail.lock, NOT_AT_ALL, &mail.keys()));
    assert!(seen.iter().all(|copy| copy.delivered.is_none()), "{seen:?}");
    assert!(first.still_held(&mail.lock).unwrap());
}

fn record_delivered(database: &mut PostgresDatabase, mail: &Mail, attempt: Uuid) {
    database.record(&mail.record(attempt, CopyState::Delivered(None), CopyState::Delivered(None))).unwrap();
}

fn until_somebody_waits(test: &TestDatabase) {
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    wait_until("somebody waits for the lock", || test.value(waiting).as_deref() == Some("1"));
}

/// The machine vanished: its connection stands, as far as the server knows, and nothing comes over it.
fn a_kept_lock_is_freed_when_its_machine_falls_silent(server: &str) {
    let test = TestDatabase::migrated(server);
    let (mut vanished, mut next) = (test.connect("VANISHED"), test.connect("NEXT"));
    assert!(is_held(&vanished.acquire(&lock(), NOT_AT_ALL).unwrap()));
    holder(next.acquire(&lock(), NOT_AT_ALL).unwrap());
    vanished.keep(Duration::from_secs(2)).unwrap();
    assert!(is_held(&next.acquire(&lock(), Duration::from_secs(60)).unwrap()));
    assert!(vanished.still_held(&lock()).is_err());
}
