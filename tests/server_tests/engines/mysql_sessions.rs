//! MySQL and MariaDB: one session serves one delivery after another, and none of them leaves anything to the next.

use crate::support_mysql::{Mail, Tap, TestDatabase, client, lock_of_its_own, on_each_server};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::database::{Client, DatabaseFailure, Idle, MysqlDatabase, Server, Session, Tables};
use maildrop_command::ledger::{CopyState, Journal, Ledger, LockResult};
use maildrop_command::lock::{Acquired, NamedLock};
use mysql::prelude::Queryable;
use std::time::Duration;

on_each_server!(
    a_session_that_is_used_again_carries_nothing_over,
    a_session_with_anything_left_is_thrown_away,
    what_was_not_committed_is_taken_back,
    a_session_that_was_ended_meanwhile_is_found_dead_before_anything_is_journalled,
    an_answer_that_came_too_late_is_heard_by_no_other_delivery,
    a_longer_delivery_than_the_session_was_opened_for_does_not_begin,
    to_begin_takes_no_round_trip_and_to_end_one_unless_a_record_was_the_last,
);

fn called(queue_id: &str) -> Client {
    Client { queue_id: Some(queue_id.into()), ..client() }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(200))
}

fn deliver(database: &mut MysqlDatabase, mail: &Mail) {
    database.addresses(&["scuba"]).unwrap();
    database.journal(&mail.journal()).unwrap();
    let looked = match database.acquire_and_look(&mail.lock, Duration::ZERO, &mail.keys()).unwrap() {
        LockResult::Held { looked, .. } => looked.unwrap(),
        LockResult::Busy(holder) => panic!("{holder:?}"),
    };
    assert!(looked.copies.iter().all(|copy| copy.delivered.is_none() && copy.open_attempts.len() == 1), "{looked:?}");
    assert!(database.still_held(&mail.lock).unwrap());
    database.record(&mail.record(CopyState::Delivered(None), CopyState::Delivered(None))).unwrap();
    database.release(&mail.lock).unwrap();
}

fn session(database: &mut MysqlDatabase) -> u64 {
    database.select("asking", "SELECT CONNECTION_ID()", &[]).unwrap()[0].value(0).unwrap().unwrap()
}

fn is_free(site: &TestDatabase, name: &str) -> bool {
    site.admin().query_first::<bool, _>(format!("SELECT IS_FREE_LOCK('{name}')")).unwrap().unwrap()
}

fn a_session_that_is_used_again_carries_nothing_over(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = Box::new(site.connect());
    let first = Mail::to("scuba");
    deliver(&mut database, &first);
    let number = session(&mut database);
    for (queue_id, seconds) in [("SECOND", 20), ("THIRD", 200)] {
        let idle = Idle::after(database).expect("a session without a fault");
        assert!(is_free(&site, &first.lock.mysql_name()));
        database = idle.begin(&called(queue_id), Deadline::after(Duration::from_secs(seconds))).unwrap();
        assert_eq!(database.round_trips(), 0);
        assert_eq!(session(&mut database), number);

        let limits = "SELECT @@wait_timeout, @@lock_wait_timeout, @@innodb_lock_wait_timeout, @@autocommit";
        let limits = database.select("asking", limits, &[]).unwrap();
        let limit = |index| limits[0].value::<u64>(index).unwrap().unwrap();
        assert!((seconds + 50..=seconds + 60).contains(&limit(0)), "{limits:?}");
        assert!((seconds - 10..=seconds).contains(&limit(1)), "{limits:?}");
        assert_eq!((limit(2), limit(3)), (10, 1));

        // Who holds the lock is this delivery.
        let mail = Mail::to("scuba");
        let to_doug = mail.also_to("doug");
        database.journal(&Journal { queue_id: Some(queue_id), ..mail.journal() }).unwrap();
        assert!(matches!(database.acquire(&mail.lock, Duration::ZERO).unwrap(), Acquired::Held));
        let asked = site.connect().acquire_and_look(&mail.lock, Duration::ZERO, &to_doug.keys()).unwrap();
        let LockResult::Busy(Some(holder)) = asked else { panic!("{asked:?}") };
        assert_eq!((holder.queue_id.as_deref(), holder.session), (Some(queue_id), Some(number)));
        let shown = format!(
            "SELECT COUNT(*) FROM performance_schema.session_connect_attrs \
             WHERE attr_name = 'queue_id' AND processlist_id = {number}"
        );
        assert_eq!(site.admin().query_first::<u64, _>(shown).unwrap(), Some(0), "it stays as it was on connecting");
        database.release(&mail.lock).unwrap();
        deliver(&mut database, &Mail::to("scuba"));
    }
}

fn a_session_with_anything_left_is_thrown_away(server: &str) {
    let site = TestDatabase::new(server);
    let name = lock_of_its_own();
    let theirs = lock_of_its_own().mysql_name();
    let get_lock = format!("SELECT GET_LOCK('{theirs}', 0)");
    let twice = format!("SELECT GET_LOCK('{theirs}', 0) + GET_LOCK('{theirs}', 0)");
    for (what, leave) in [
        ("a lock of ours", ""),
        ("another lock", get_lock.as_str()),
        ("another lock, taken twice", twice.as_str()),
        ("an error in its conversation", "SELECT nonsense"),
    ] {
        let mut database = Box::new(site.connect());
        if leave.is_empty() {
            assert!(matches!(database.acquire(&name, Duration::ZERO).unwrap(), Acquired::Held));
        } else {
            let left = database.select("leaving something", leave, &[]);
            assert_eq!(left.is_err(), leave.contains("nonsense"), "{what}");
        }
        assert!(Idle::after(database).is_none(), "{what}");
        // It is closed, and with it whatever it held.
        let mut next = site.connect();
        assert!(matches!(next.acquire(&name, Duration::from_secs(60)).unwrap(), Acquired::Held), "{what}");
        next.release(&name).unwrap();
        // Released at once: a session that is closed may hold it for a moment still.
        let freed = format!("SELECT GET_LOCK('{theirs}', 60) + RELEASE_LOCK('{theirs}')");
        assert_eq!(site.admin().query_first::<u8, _>(freed).unwrap(), Some(2), "{what}");
    }
    let mut database = Box::new(site.connect());
    let number = session(&mut database);
    site.admin().query_drop(format!("KILL {number}")).unwrap();
    assert!(Idle::after(database).is_none(), "a session that was killed");
}

/// The server cannot be asked whether a transaction is open, so it is rolled back in any case.
fn what_was_not_committed_is_taken_back(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = Box::new(site.connect());
    database.select("leaving a transaction", "START TRANSACTION", &[]).unwrap();
    database.select("in it", "INSERT INTO addresses (address, imap_user) VALUES ('left@x', 'left')", &[]).unwrap();
    let mut database = Idle::after(database).unwrap().begin(&called("SECOND"), soon()).unwrap();
    deliver(&mut database, &Mail::to("scuba"));
    let left: Option<u64> = site.admin().query_first("SELECT COUNT(*) FROM addresses").unwrap();
    assert_eq!(left, Some(0));
}

fn a_session_that_was_ended_meanwhile_is_found_dead_before_anything_is_journalled(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = Box::new(site.connect());
    deliver(&mut database, &Mail::to("scuba"));
    let number = session(&mut database);
    let idle = Idle::after(database).unwrap();
    site.admin().query_drop(format!("KILL {number}")).unwrap();
    let mut database = idle.begin(&called("SECOND"), soon()).unwrap();
    let error = database.addresses(&["scuba"]).unwrap_err();
    assert!(error.a_new_session_can_help(), "{error}");
    assert_eq!(error.failure, DatabaseFailure::ConnectionLost, "{error}");
}

fn behind(site: &TestDatabase, tap: &Tap) -> Server {
    Server { address: Endpoint::Tcp { host: "127.0.0.1".into(), port: tap.address.port() }, ..site.server() }
}

fn an_answer_that_came_too_late_is_heard_by_no_other_delivery(server: &str) {
    let site = TestDatabase::new(server);
    let tap = Tap::on(&site.host, "127.0.0.1:0");
    // Time enough to connect, for a machine that hangs for a while.
    let deadline = Deadline::after(Duration::from_secs(6));
    let mut database = Box::new(MysqlDatabase::connect(&behind(&site, &tap), &called("FIRST"), deadline).unwrap());
    tap.hush(true);
    let error = database.acquire(&lock_of_its_own(), Duration::ZERO).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::TimedOut, "{error}");
    tap.hush(false);
    assert!(Idle::after(database).is_none());
}

fn a_longer_delivery_than_the_session_was_opened_for_does_not_begin(server: &str) {
    let site = TestDatabase::new(server);
    let idle = || Idle::after(Box::new(site.connect_for(Duration::from_secs(60)))).unwrap();
    assert!(idle().begin(&called("SHORT"), Deadline::after(Duration::from_secs(60))).is_ok());
    let error = idle().begin(&called("LONG"), Deadline::after(Duration::from_secs(90))).err().unwrap();
    assert_eq!(error.failure, DatabaseFailure::Local, "{error}");
}

fn to_begin_takes_no_round_trip_and_to_end_one_unless_a_record_was_the_last(server: &str) {
    let site = TestDatabase::new(server);
    let tap = Tap::on(&site.host, "127.0.0.1:0");
    let mut database = Box::new(MysqlDatabase::connect(&behind(&site, &tap), &called("FIRST"), soon()).unwrap());
    tap.queries();
    let before = database.round_trips();
    deliver(&mut database, &Mail::to("scuba"));
    let delivery = tap.queries().len();
    assert_eq!((database.round_trips() - before) as usize, delivery);
    for _ in 0..2 {
        let idle = Idle::after(database).unwrap();
        assert_eq!(tap.queries().len(), 0, "the record has released every lock, and says so");
        database = idle.begin(&called("NEXT"), Deadline::after(Duration::from_secs(60))).unwrap();
        assert!(tap.queries().is_empty());
        deliver(&mut database, &Mail::to("scuba"));
        let queries = tap.queries();
        assert_eq!(queries.len(), delivery, "{queries:?}");
        assert!(queries[0].starts_with("SET SESSION "), "{queries:?}");
        assert_eq!(database.round_trips() as usize, delivery);
    }
    database.addresses(&["scuba"]).unwrap();
    tap.queries();
    let _idle = Idle::after(database).unwrap();
    assert_eq!(tap.queries().len(), 1, "without a record the proof is a question of its own");
}
