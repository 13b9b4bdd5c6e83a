//! MySQL and MariaDB: of two deliveries of one message, one goes on, and the other learns who does.

use crate::support::program::wait_until;
use crate::support_mysql::{Mail, TestDatabase, lock_of_its_own, on_each_server};
use maildrop_command::database::{DatabaseFailure, MysqlDatabase};
use maildrop_command::ledger::{CopyState, Ledger, LockResult};
use maildrop_command::lock::{Acquired, Holder, LockName, NamedLock};
use mysql::prelude::Queryable;
use std::time::{Duration, Instant};

on_each_server!(
    a_lock_held_elsewhere_is_busy_and_its_holder_is_named,
    a_holder_without_a_common_copy_is_named_by_its_session,
    a_wait_ends_when_the_lock_is_released,
    a_wait_in_vain_is_busy,
    a_wait_ends_by_the_deadline,
    a_killed_holder_frees_the_lock_and_learns_of_it,
    a_record_releases_the_lock_after_its_commit,
    a_kept_lock_is_freed_when_its_machine_falls_silent,
    a_killed_wait_is_neither_held_nor_busy,
    taking_a_lock_twice_is_an_error_and_counts_once,
    letting_go_of_what_is_not_held_is_no_error,
    two_messages_do_not_wait_for_each_other,
);

const NOT_AT_ALL: Duration = Duration::ZERO;

fn hold(database: &mut MysqlDatabase, name: &LockName) {
    let acquired = database.acquire(name, NOT_AT_ALL).unwrap();
    assert!(matches!(acquired, Acquired::Held), "{acquired:?}");
}

fn busy(database: &mut MysqlDatabase, name: &LockName, wait: Duration) -> Option<Holder> {
    match database.acquire(name, wait).unwrap() {
        Acquired::Busy(holder) => holder,
        Acquired::Held => panic!("two hold the lock"),
    }
}

fn a_lock_held_elsewhere_is_busy_and_its_holder_is_named(server: &str) {
    let site = TestDatabase::new(server);
    let (mut first, mut second) = (site.connect(), site.connect());
    let to_scuba = Mail::to("scuba");
    let to_doug = to_scuba.also_to("doug");
    first.journal(&to_scuba.journal()).unwrap();
    hold(&mut first, &to_scuba.lock);
    second.journal(&to_doug.journal()).unwrap();
    let asked = second.acquire_and_look(&to_doug.lock, NOT_AT_ALL, &to_doug.keys()).unwrap();
    let LockResult::Busy(Some(holder)) = asked else { panic!("{asked:?}") };
    let session: Option<u64> =
        site.admin().query_first(format!("SELECT IS_USED_LOCK('{}')", to_scuba.lock.mysql_name())).unwrap().unwrap();
    assert!(session.is_some());
    assert!(holder.held_for.unwrap() < Duration::from_secs(30), "{holder:?}");
    assert_eq!(
        holder,
        Holder {
            host: Some("mx1.example.com".into()),
            pid: Some(4711),
            queue_id: Some("4XyZ".into()),
            session,
            held_for: holder.held_for,
        }
    );
    first.release(&to_scuba.lock).unwrap();
    hold(&mut second, &to_doug.lock);
}

fn a_holder_without_a_common_copy_is_named_by_its_session(server: &str) {
    let site = TestDatabase::new(server);
    let (mut first, mut second) = (site.connect(), site.connect());
    let name = lock_of_its_own();
    hold(&mut first, &name);
    let holder = busy(&mut second, &name, NOT_AT_ALL).unwrap();
    assert!(holder.session.is_some());
    assert_eq!(holder, Holder { session: holder.session, ..Holder::default() });
}

fn a_wait_ends_when_the_lock_is_released(server: &str) {
    let site = TestDatabase::new(server);
    let (mut first, mut second) = (site.connect(), site.connect());
    let name = lock_of_its_own();
    hold(&mut first, &name);
    let began = Instant::now();
    let waiting = std::thread::spawn(move || second.acquire(&name, Duration::from_secs(200)).unwrap());
    std::thread::sleep(Duration::from_millis(400));
    first.release(&name).unwrap();
    assert!(matches!(waiting.join().unwrap(), Acquired::Held));
    assert!((Duration::from_millis(400)..Duration::from_secs(100)).contains(&began.elapsed()), "{:?}", began.elapsed());
}

fn a_wait_in_vain_is_busy(server: &str) {
    let site = TestDatabase::new(server);
    let (mut first, mut second) = (site.connect(), site.connect());
    let name = lock_of_its_own();
    hold(&mut first, &name);
    let began = Instant::now();
    // MySQL knows no half seconds, and waits a whole one.
    busy(&mut second, &name, Duration::from_millis(400));
    assert!((Duration::from_millis(390)..Duration::from_secs(60)).contains(&began.elapsed()), "{:?}", began.elapsed());
    // The machine may be slow to ask and to hear, though not each time.
    wait_until("it does not wait", || {
        let began = Instant::now();
        busy(&mut second, &name, NOT_AT_ALL);
        began.elapsed() < Duration::from_millis(390)
    });
}

fn a_wait_ends_by_the_deadline(server: &str) {
    let site = TestDatabase::new(server);
    let mut first = site.connect();
    let name = lock_of_its_own();
    hold(&mut first, &name);
    let began = Instant::now();
    // Time enough to connect, for a machine that hangs for a while.
    let mut second = site.connect_for(Duration::from_secs(6));
    busy(&mut second, &name, Duration::from_mins(1));
    // Some milliseconds after the six seconds, where the machine has nothing else to do.
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
}

fn a_killed_holder_frees_the_lock_and_learns_of_it(server: &str) {
    let site = TestDatabase::new(server);
    let (mut first, mut second) = (site.connect(), site.connect());
    let name = lock_of_its_own();
    hold(&mut first, &name);
    let session = busy(&mut second, &name, NOT_AT_ALL).unwrap().session.unwrap();
    site.admin().query_drop(format!("KILL {session}")).unwrap();
    assert!(matches!(second.acquire(&name, Duration::from_secs(60)).unwrap(), Acquired::Held));
    // It learns of it, and does not come back as another session that would answer "no" or, worse, take it again.
    assert_eq!(first.still_held(&name).unwrap_err().failure, DatabaseFailure::ConnectionLost);
    assert_eq!(first.release(&name).unwrap_err().failure, DatabaseFailure::ConnectionLost);
    assert_eq!(first.look(&Mail::to("scuba").keys()).unwrap_err().failure, DatabaseFailure::ConnectionLost);
    assert!(second.still_held(&name).unwrap());
}

fn a_record_releases_the_lock_after_its_commit(server: &str) {
    let site = TestDatabase::new(server);
    let (mut first, mut second) = (site.connect(), site.connect());
    let mail = Mail::to("scuba");
    first.journal(&mail.journal()).unwrap();
    hold(&mut first, &mail.lock);
    // One that is not committed keeps it.
    site.admin().query_drop("RENAME TABLE copies TO elsewhere").unwrap();
    first.record(&mail.record(CopyState::Delivered(None), CopyState::Delivered(None))).unwrap_err();
    assert!(first.still_held(&mail.lock).unwrap());
    busy(&mut second, &mail.lock, NOT_AT_ALL);
    site.admin().query_drop("RENAME TABLE elsewhere TO copies").unwrap();
    first.record(&mail.record(CopyState::Delivered(None), CopyState::Delivered(None))).unwrap();
    first.release(&mail.lock).unwrap();
    hold(&mut second, &mail.lock);
    assert!(!first.still_held(&mail.lock).unwrap());
}

/// KILL QUERY: MariaDB answers NULL, MySQL raises 1317. The session goes on.
fn a_killed_wait_is_neither_held_nor_busy(server: &str) {
    let site = TestDatabase::new(server);
    let (mut first, mut second) = (site.connect(), site.connect());
    let name = lock_of_its_own();
    hold(&mut first, &name);
    let waiting = std::thread::spawn(move || {
        let result = second.acquire(&name, Duration::from_secs(200));
        (result, second)
    });
    let mut admin = site.admin();
    let find = format!(
        "SELECT id FROM information_schema.processlist WHERE db = '{}' AND info LIKE '%GET_LOCK%' AND id <> CONNECTION_ID()",
        site.database
    );
    let mut session = None;
    wait_until("somebody waits", || {
        session = admin.query_first::<u64, _>(&find).unwrap();
        session.is_some()
    });
    admin.query_drop(format!("KILL QUERY {}", session.unwrap())).unwrap();
    let (result, mut second) = waiting.join().unwrap();
    assert_eq!(result.unwrap_err().failure, DatabaseFailure::Other);
    assert!(!second.still_held(&name).unwrap());
    assert!(first.still_held(&name).unwrap());
}

fn taking_a_lock_twice_is_an_error_and_counts_once(server: &str) {
    let site = TestDatabase::new(server);
    let (mut first, mut second) = (site.connect(), site.connect());
    let name = lock_of_its_own();
    hold(&mut first, &name);
    let error = first.acquire(&name, NOT_AT_ALL).unwrap_err();
    assert!(error.detail.contains("already"), "{error}");
    first.release(&name).unwrap();
    hold(&mut second, &name);
}

fn letting_go_of_what_is_not_held_is_no_error(server: &str) {
    let site = TestDatabase::new(server);
    let (mut first, mut second) = (site.connect(), site.connect());
    let name = lock_of_its_own();
    first.release(&name).unwrap();
    hold(&mut first, &name);
    second.release(&name).unwrap();
    assert!(first.still_held(&name).unwrap());
}

fn two_messages_do_not_wait_for_each_other(server: &str) {
    let site = TestDatabase::new(server);
    let (mut first, mut second) = (site.connect(), site.connect());
    hold(&mut first, &lock_of_its_own());
    hold(&mut second, &lock_of_its_own());
}

/// The machine vanished: its connection stands, as far as the server knows, and nothing comes over it.
fn a_kept_lock_is_freed_when_its_machine_falls_silent(server: &str) {
    let site = TestDatabase::new(server);
    let (mut vanished, mut next) = (site.connect(), site.connect());
    let name = lock_of_its_own();
    hold(&mut vanished, &name);
    busy(&mut next, &name, NOT_AT_ALL);
    vanished.keep(Duration::from_secs(2)).unwrap();
    let acquired = next.acquire(&name, Duration::from_secs(60)).unwrap();
    assert!(matches!(acquired, Acquired::Held), "{acquired:?}");
    assert!(vanished.still_held(&name).is_err());
}
