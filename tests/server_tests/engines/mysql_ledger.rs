//! MySQL and MariaDB: what was tried and what was done is remembered, and seen at once.

use crate::support_mysql::{Mail, Tap, TestDatabase, client, on_each_server};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::database::{DatabaseFailure, MysqlDatabase, Server};
use maildrop_command::ledger::{CopyHistory, CopyKey, CopyState, DeliveredAt, Ledger, LockResult, Record};
use maildrop_command::lock::{Acquired, NamedLock};
use maildrop_command::mailbox::{Placement, Position};
use mysql::prelude::Queryable;
use std::time::Duration;

on_each_server!(
    under_the_lock_the_look_sees_what_was_committed_a_moment_before,
    an_open_attempt_is_seen_with_its_age_and_position,
    a_delivered_copy_is_seen_with_its_placement,
    a_copy_owed_is_not_delivered_until_it_is,
    a_delivered_copy_never_becomes_owed_again,
    a_new_delivery_moves_a_copys_placement,
    copies_of_one_message_share_its_row,
    an_attempt_ends_once,
    an_attempt_ends_itself_without_the_lock,
    the_first_attempts_age_counts_those_that_ended,
    histories_come_in_the_order_asked_for,
    what_is_recorded_can_be_read_by_people,
    addresses_are_found_by_their_exact_folded_text,
    an_address_in_capitals_cannot_be_entered,
    each_step_of_a_delivery_is_one_round_trip,
    a_look_that_fails_behind_the_lock_leaves_no_lock,
);

const PLACED: Placement = Placement { uid_validity: u32::MAX, uid: 42 };

fn history(database: &mut MysqlDatabase, key: CopyKey) -> CopyHistory {
    database.look(&[key]).unwrap().remove(0)
}

fn under_the_lock_the_look_sees_what_was_committed_a_moment_before(server: &str) {
    for together in [false, true] {
        look_after_a_wait(&TestDatabase::new(server), together);
    }
}

/// `together`: lock and look in one batch.
fn look_after_a_wait(site: &TestDatabase, together: bool) {
    let (mut first, mut second) = (site.connect(), site.connect());
    let to_scuba = Mail::to("scuba");
    let to_doug = to_scuba.also_to("doug");
    first.journal(&to_scuba.journal()).unwrap();
    assert!(matches!(first.acquire(&to_scuba.lock, Duration::ZERO).unwrap(), Acquired::Held));
    // The second has read the ledger before: nothing that it saw then may stay with it.
    second.journal(&to_doug.journal()).unwrap();
    assert_eq!(history(&mut second, to_doug.sent()).delivered, None);
    let waiting = std::thread::spawn(move || {
        if together {
            let looked = looked(&mut second, &to_doug, Duration::from_secs(200));
            return looked.iter().find(|copy| copy.key == to_doug.sent()).unwrap().delivered;
        }
        assert!(matches!(second.acquire(&to_doug.lock, Duration::from_secs(200)).unwrap(), Acquired::Held));
        history(&mut second, to_doug.sent()).delivered
    });
    std::thread::sleep(Duration::from_millis(200));
    first.record(&to_scuba.record(CopyState::Delivered(Some(PLACED)), CopyState::Delivered(Some(PLACED)))).unwrap();
    first.release(&to_scuba.lock).unwrap();
    assert_eq!(waiting.join().unwrap(), Some(DeliveredAt { placement: Some(PLACED) }));
}

fn an_open_attempt_is_seen_with_its_age_and_position(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    let first = Mail::to("scuba");
    let second = first.also_to("doug");
    database.journal(&first.journal()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    database.journal(&second.journal()).unwrap();
    let inbox = history(&mut database, first.inbox());
    let [open] = inbox.open_attempts.as_slice() else { panic!("{inbox:?}") };
    assert_eq!((open.attempt, open.recipient.as_str()), (first.attempt, "scuba"));
    assert_eq!(open.position, Some(Position { uid_validity: u32::MAX, uid_next: 17 }));
    assert!((0.05..120.0).contains(&open.age), "{open:?}");
    let sent = history(&mut database, first.sent());
    let attempts: Vec<_> = sent.open_attempts.iter().map(|open| (open.attempt, open.position)).collect();
    assert_eq!(attempts, [(first.attempt, None), (second.attempt, None)]);
    assert_eq!(sent.delivered, None);
    // Whatever time zone the server keeps, an age is not off by it.
    site.admin()
        .query_drop(
            "SET SESSION time_zone = '-11:00'; UPDATE attempts SET started_at = UTC_TIMESTAMP(6) - INTERVAL 1 HOUR",
        )
        .unwrap();
    let age = history(&mut database, first.inbox()).open_attempts[0].age;
    assert!((3600.0..3720.0).contains(&age), "{age}");
}

fn a_delivered_copy_is_seen_with_its_placement(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    let mail = Mail::to("scuba");
    database.journal(&mail.journal()).unwrap();
    database.record(&mail.record(CopyState::Delivered(Some(PLACED)), CopyState::Delivered(None))).unwrap();
    let inbox = history(&mut database, mail.inbox());
    assert_eq!(inbox.delivered, Some(DeliveredAt { placement: Some(PLACED) }));
    assert!(inbox.open_attempts.is_empty());
    assert_eq!(history(&mut database, mail.sent()).delivered, Some(DeliveredAt { placement: None }));
}

fn a_copy_owed_is_not_delivered_until_it_is(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    let mail = Mail::to("scuba");
    database.record(&mail.record(CopyState::Delivered(None), CopyState::Owed("over quota"))).unwrap();
    let [inbox, sent] = <[_; 2]>::try_from(database.look(&[mail.inbox(), mail.sent()]).unwrap()).unwrap();
    assert_eq!((inbox.delivered, inbox.owed), (Some(DeliveredAt { placement: None }), None));
    assert_eq!((sent.delivered, sent.owed.as_deref()), (None, Some("over quota")));
    let reason: String = site.admin().query_first("SELECT reason FROM copies WHERE state = 'owed'").unwrap().unwrap();
    assert_eq!(reason, "over quota");
    database.record(&mail.record(CopyState::Delivered(None), CopyState::Delivered(Some(PLACED)))).unwrap();
    assert_eq!(history(&mut database, mail.sent()).delivered, Some(DeliveredAt { placement: Some(PLACED) }));
    let reasons: Option<String> = site.admin().query_first("SELECT MAX(reason) FROM copies").unwrap().unwrap();
    assert_eq!(reasons, None);
}

fn a_delivered_copy_never_becomes_owed_again(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    let mail = Mail::to("scuba");
    database.record(&mail.record(CopyState::Delivered(Some(PLACED)), CopyState::Delivered(None))).unwrap();
    let all = "SELECT CONCAT_WS('|', HEX(copy_key), state, uid_validity, uid, IFNULL(reason, '-'), recipient, \
               delivered_at, updated_at) FROM copies ORDER BY copy_key";
    let before: Vec<String> = site.admin().query(all).unwrap();
    let again = mail.also_to("doug");
    let copies = vec![mail.inbox_copy(CopyState::Owed("a late thought")), again.sent_copy(CopyState::Owed("another"))];
    database.record(&Record { message: Some(mail.message()), copies, ..Record::default() }).unwrap();
    let after: Vec<String> = site.admin().query(all).unwrap();
    assert_eq!(before.len(), 2);
    assert_eq!(before, after);
    assert_eq!(history(&mut database, mail.inbox()).delivered, Some(DeliveredAt { placement: Some(PLACED) }));
}

fn a_new_delivery_moves_a_copys_placement(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    let mail = Mail::to("scuba");
    database.record(&mail.record(CopyState::Delivered(Some(PLACED)), CopyState::Delivered(None))).unwrap();
    let since: String = site.admin().query_first("SELECT MAX(delivered_at) FROM copies").unwrap().unwrap();
    let elsewhere = Placement { uid_validity: 7, uid: 8 };
    database.record(&mail.record(CopyState::Delivered(Some(elsewhere)), CopyState::Delivered(None))).unwrap();
    assert_eq!(history(&mut database, mail.inbox()).delivered, Some(DeliveredAt { placement: Some(elsewhere) }));
    let still: String = site.admin().query_first("SELECT MAX(delivered_at) FROM copies").unwrap().unwrap();
    assert_eq!(since, still);
}

fn copies_of_one_message_share_its_row(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    let other = Mail::to("scuba");
    database.record(&other.record(CopyState::Delivered(None), CopyState::Delivered(None))).unwrap();
    let to_scuba = Mail::to("scuba");
    let to_doug = to_scuba.also_to("doug");
    for mail in [&to_scuba, &to_doug] {
        database.record(&mail.record(CopyState::Delivered(None), CopyState::Delivered(None))).unwrap();
    }
    let rows: Vec<(i64, i64)> = site
        .admin()
        .query("SELECT m.id, COUNT(*) FROM messages m JOIN copies c ON c.message = m.id GROUP BY m.id ORDER BY 1")
        .unwrap();
    assert_eq!(rows.iter().map(|row| row.1).collect::<Vec<_>>(), [2, 3]);
}

fn an_attempt_ends_once(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    let mail = Mail::to("scuba");
    database.journal(&mail.journal()).unwrap();
    for outcome in ["delivered", "died"] {
        database.record(&Record { ended: mail.ended(outcome), ..Record::default() }).unwrap();
    }
    let outcomes: Vec<String> = site.admin().query("SELECT outcome FROM attempts").unwrap();
    assert_eq!(outcomes, ["delivered", "delivered"]);
    assert!(history(&mut database, mail.sent()).open_attempts.is_empty());
}

fn an_attempt_ends_itself_without_the_lock(server: &str) {
    let site = TestDatabase::new(server);
    let (mut first, mut second) = (site.connect(), site.connect());
    let to_scuba = Mail::to("scuba");
    let to_doug = to_scuba.also_to("doug");
    first.journal(&to_scuba.journal()).unwrap();
    assert!(matches!(first.acquire(&to_scuba.lock, Duration::ZERO).unwrap(), Acquired::Held));
    second.journal(&to_doug.journal()).unwrap();
    assert!(matches!(second.acquire(&to_doug.lock, Duration::ZERO).unwrap(), Acquired::Busy(_)));
    second.record(&Record { ended: to_doug.ended("busy"), ..Record::default() }).unwrap();
    let open = history(&mut first, to_scuba.sent()).open_attempts;
    assert_eq!(open.iter().map(|open| open.attempt).collect::<Vec<_>>(), [to_scuba.attempt]);
}

fn the_first_attempts_age_counts_those_that_ended(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    let mail = Mail::to("scuba");
    assert_eq!(database.first_attempt_age(&mail.keys()).unwrap(), Duration::ZERO);
    assert_eq!(database.first_attempt_age(&[]).unwrap(), Duration::ZERO);
    database.journal(&mail.journal()).unwrap();
    database.record(&Record { ended: mail.ended("deferred"), ..Record::default() }).unwrap();
    site.admin().query_drop("UPDATE attempts SET started_at = started_at - INTERVAL 2 DAY").unwrap();
    database.journal(&mail.also_to("scuba").journal()).unwrap();
    let age = database.first_attempt_age(&mail.keys()).unwrap();
    assert!((172_800..172_920).contains(&age.as_secs()), "{age:?}");
    // A clock that was set back makes nobody negative.
    site.admin().query_drop("UPDATE attempts SET started_at = UTC_TIMESTAMP(6) + INTERVAL 1 DAY").unwrap();
    assert_eq!(database.first_attempt_age(&mail.keys()).unwrap(), Duration::ZERO);
    assert!(history(&mut database, mail.sent()).open_attempts[0].age < -80_000.0);
}

fn histories_come_in_the_order_asked_for(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    let (known, unknown) = (Mail::to("scuba"), Mail::to("doug"));
    database.journal(&known.journal()).unwrap();
    let asked = [unknown.sent(), known.sent(), unknown.inbox(), known.inbox()];
    let histories = database.look(&asked).unwrap();
    assert_eq!(histories.iter().map(|history| history.key).collect::<Vec<_>>(), asked);
    assert_eq!(histories.iter().map(|history| history.open_attempts.len()).collect::<Vec<_>>(), [0, 1, 0, 1]);
    assert!(database.look(&[]).unwrap().is_empty());
}

fn what_is_recorded_can_be_read_by_people(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    let mail = Mail::to("scuba");
    let mut record = mail.record(CopyState::Delivered(Some(PLACED)), CopyState::Owed("later"));
    // Ten thousand characters of Message-ID, and a Date that no calendar has.
    let long = "x".repeat(10_000);
    if let Some(message) = &mut record.message {
        message.message_id = &long;
        message.date = Some(i64::MAX);
    }
    database.record(&record).unwrap();
    let row: (String, String, Option<String>, String, Option<String>, String) = site
        .admin()
        .query_first(
            "SELECT message_id, subject, header_cc, sender, sent_at, JSON_EXTRACT(headers, '$[0][0]') FROM messages",
        )
        .unwrap()
        .unwrap();
    assert_eq!(row, (long, "Grüße 😀".into(), None, "lisa@example.com".into(), None, "\"From\"".into()));
    let mail = Mail::to("scuba");
    database.record(&mail.record(CopyState::Delivered(None), CopyState::Delivered(None))).unwrap();
    let sent: Vec<String> =
        site.admin().query("SELECT CAST(sent_at AS CHAR) FROM messages WHERE sent_at IS NOT NULL").unwrap();
    assert_eq!(sent, ["2023-11-14 22:13:20"]);
}

fn addresses_are_found_by_their_exact_folded_text(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    let book = database.addresses(&["scuba@mail.example.net"]).unwrap();
    assert!(book.empty && book.entries.is_empty());
    site.admin()
        .query_drop(
            "INSERT INTO addresses (address, imap_user, sent) VALUES ('scuba@mail.example.net', 'Scuba', \
                     'Gesendet'), ('jörg@example.net', 'jörg', 'Sent')",
        )
        .unwrap();
    let asked =
        ["Scuba@Mail.example.net", "JÖRG@example.net", "jorg@example.net", "scuba@mail.example.net ", "nobody@"];
    let book = database.addresses(&asked).unwrap();
    assert!(!book.empty);
    let mut found: Vec<_> =
        book.entries.iter().map(|(address, to)| format!("{address} {} {} {}", to.user, to.inbox, to.sent)).collect();
    found.sort();
    assert_eq!(found, ["jörg@example.net jörg INBOX Sent", "scuba@mail.example.net Scuba INBOX Gesendet"]);
    let book = database.addresses(&["scuba@mail.example.net "]).unwrap();
    assert!(book.entries.is_empty());
    assert!(!database.addresses(&[]).unwrap().empty);
}

fn an_address_in_capitals_cannot_be_entered(server: &str) {
    let site = TestDatabase::new(server);
    let insert = |address: &str| {
        site.admin().query_drop(format!("INSERT INTO addresses (address, imap_user) VALUES ('{address}', 'x')"))
    };
    insert("scuba@mail.example.net").unwrap();
    for address in ["Scuba2@mail.example.net", "JÖRG@example.net"] {
        insert(address).unwrap_err();
    }
}

fn each_step_of_a_delivery_is_one_round_trip(server: &str) {
    let site = TestDatabase::new(server);
    let tap = Tap::on(&site.host, "127.0.0.1:0");
    let behind =
        Server { address: Endpoint::Tcp { host: "127.0.0.1".into(), port: tap.address.port() }, ..site.server() };
    let mut database = MysqlDatabase::connect(&behind, &client(), Deadline::after(Duration::from_secs(60))).unwrap();
    let mail = Mail::to("scuba");
    let trips = |step: &str| assert_eq!(tap.queries().len(), 1, "{step}");
    trips("connect");
    database.addresses(&["scuba@mail.example.net", "lisa@example.com"]).unwrap();
    trips("addresses");
    database.journal(&mail.journal()).unwrap();
    trips("journal");
    looked(&mut database, &mail, Duration::ZERO);
    trips("lock and look");
    assert!(database.still_held(&mail.lock).unwrap());
    trips("still held");
    let mut record = mail.record(CopyState::Delivered(Some(PLACED)), CopyState::Delivered(None));
    if let Some(message) = &mut record.message {
        message.raw = Some(b"Subject: hello\r\n\r\n'\\\0");
    }
    database.record(&record).unwrap();
    trips("record, and the lock's release");
    database.release(&mail.lock).unwrap();
    assert!(tap.queries().is_empty());
}

fn looked(database: &mut MysqlDatabase, mail: &Mail, wait: Duration) -> Vec<CopyHistory> {
    match database.acquire_and_look(&mail.lock, wait, &mail.keys()).unwrap() {
        LockResult::Held { looked, .. } => looked.unwrap().copies,
        LockResult::Busy(holder) => panic!("held by {holder:?}"),
    }
}

fn a_look_that_fails_behind_the_lock_leaves_no_lock(server: &str) {
    let site = TestDatabase::new(server);
    let (mut first, mut second) = (site.connect(), site.connect());
    let mail = Mail::to("scuba");
    site.admin().query_drop("RENAME TABLE copies TO elsewhere").unwrap();
    let error = first.acquire_and_look(&mail.lock, Duration::ZERO, &mail.keys()).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::Schema, "{error}");
    assert!(matches!(second.acquire(&mail.lock, Duration::ZERO).unwrap(), Acquired::Held));
    second.release(&mail.lock).unwrap();
    site.admin().query_drop("RENAME TABLE elsewhere TO copies").unwrap();
    looked(&mut first, &mail, Duration::ZERO);
    assert!(first.still_held(&mail.lock).unwrap());
}
