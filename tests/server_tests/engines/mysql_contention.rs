//! MySQL and MariaDB: a delivery that the server aborts for another's sake is written down all the same.

use crate::support::program::wait_until;
use crate::support_mysql::{Mail, Tap, TestDatabase, client, on_each_server};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::database::{DatabaseFailure, MysqlDatabase, Server};
use maildrop_command::ledger::{CopyState, Ledger};
use maildrop_command::lock::{Acquired, NamedLock};
use mysql::prelude::Queryable;
use std::time::{Duration, Instant};

on_each_server!(
    a_deadlock_is_tried_again_and_the_lock_stays,
    a_row_that_is_locked_for_a_while_is_waited_for,
    a_row_that_stays_locked_ends_by_the_deadline,
);

/// The two write the same two rows in opposite orders. InnoDB aborts the one that has changed less, so the other changes
/// a great many rows first.
fn a_deadlock_is_tried_again_and_the_lock_stays(server: &str) {
    let site = TestDatabase::new(server);
    let tap = Tap::on(&site.host, "127.0.0.1:0");
    let behind =
        Server { address: Endpoint::Tcp { host: "127.0.0.1".into(), port: tap.address.port() }, ..site.server() };
    let mut database = MysqlDatabase::connect(&behind, &client(), Deadline::after(Duration::from_secs(240))).unwrap();
    let mail = Mail::to("scuba");
    database.record(&mail.record(CopyState::Owed("x"), CopyState::Owed("x"))).unwrap();
    database.journal(&mail.journal()).unwrap();
    assert!(matches!(database.acquire(&mail.lock, Duration::ZERO).unwrap(), Acquired::Held));

    let mut other = site.admin();
    other.query_drop("CREATE TABLE ballast (n INT PRIMARY KEY, v INT)").unwrap();
    other.query_drop("START TRANSACTION").unwrap();
    for n in 0..20 {
        let rows: Vec<String> = (0..200).map(|i| format!("({}, 0)", n * 200 + i)).collect();
        other.query_drop(format!("INSERT INTO ballast VALUES {}", rows.join(","))).unwrap();
    }
    let touch = |key: maildrop_command::ledger::CopyKey| {
        let hex: String = key.as_bytes().iter().map(|b| format!("{b:02x}")).collect();
        format!("UPDATE copies SET updated_at = updated_at + INTERVAL 1 SECOND WHERE copy_key = X'{hex}'")
    };
    other.query_drop(touch(mail.sent())).unwrap();
    let (inbox, lock) = (mail.inbox(), mail.lock);
    tap.queries();
    let recording = std::thread::spawn(move || {
        let record = mail.record(CopyState::Delivered(None), CopyState::Delivered(None));
        let result = database.record(&record);
        (result, database.look(&mail.keys()))
    });
    // Until it has locked the first row and waits for the second.
    let mut watch = site.admin();
    // Others wait on this server, too.
    let waits = format!(
        "SELECT COUNT(*) FROM information_schema.innodb_trx JOIN information_schema.processlist ON id = trx_mysql_thread_id \
         WHERE trx_state = 'LOCK WAIT' AND db = '{}'",
        site.database
    );
    wait_until("the record waits for the locked row", || {
        // The server refreshes this table only for who has not asked for a tenth of a second.
        std::thread::sleep(Duration::from_millis(250));
        watch.query_first::<u64, _>(&waits).unwrap() > Some(0)
    });
    // No deadlock here means that it hit the other one.
    other.query_drop(touch(inbox)).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let holder: Option<u64> =
        watch.query_first(format!("SELECT IS_USED_LOCK('{}')", lock.mysql_name())).unwrap().unwrap();
    assert!(holder.is_some(), "the record waits for the rows, under its lock");
    other.query_drop("COMMIT").unwrap();
    let (result, histories) = recording.join().unwrap();
    result.unwrap();
    for history in histories.unwrap() {
        assert!(history.delivered.is_some() && history.open_attempts.is_empty(), "{history:?}");
    }
    // What ends one attempt in the midst of the wait, and has the next: a deadlock. (The server tells of its last one only,
    // which may be another test's by now; and a wait for a row ends by itself after ten seconds.)
    let records = tap.queries().iter().filter(|query| query.contains("INSERT INTO copies")).count();
    assert!(records > 1, "there was no deadlock");
}

fn a_row_that_is_locked_for_a_while_is_waited_for(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    let mail = Mail::to("scuba");
    database.journal(&mail.journal()).unwrap();
    let mut other = site.admin();
    other.query_drop("START TRANSACTION; UPDATE attempts SET outcome = 'x'").unwrap();
    let recording = std::thread::spawn(move || {
        database.record(&mail.record(CopyState::Delivered(None), CopyState::Delivered(None)))
    });
    std::thread::sleep(Duration::from_millis(500));
    other.query_drop("ROLLBACK").unwrap();
    recording.join().unwrap().unwrap();
}

fn a_row_that_stays_locked_ends_by_the_deadline(server: &str) {
    let site = TestDatabase::new(server);
    let began = Instant::now();
    // Time enough to come to the lock, for a machine that hangs for a while.
    let mut database = site.connect_for(Duration::from_secs(8));
    let mail = Mail::to("scuba");
    database.journal(&mail.journal()).unwrap();
    let mut other = site.admin();
    other.query_drop("START TRANSACTION; UPDATE attempts SET outcome = 'x'").unwrap();
    let error = database.record(&mail.record(CopyState::Delivered(None), CopyState::Delivered(None))).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::Contention, "{error}");
    assert!(error.detail.contains("1205"), "{error}");
    // Where nobody asks for less, the server waits for fifty.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    other.query_drop("ROLLBACK").unwrap();
    // The message, which went in before the lock wait, was taken back with the rest.
    let messages: Option<u64> = site.admin().query_first("SELECT COUNT(*) FROM messages").unwrap();
    assert_eq!(messages, Some(0));
}
