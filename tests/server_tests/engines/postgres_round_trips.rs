//! What a delivery costs on PostgreSQL: its round trips, and that no table is ever read from end to end.

use crate::support::counting_proxy::CountingProxy;
use crate::support::postgres::{Mail, TestDatabase, on_each_postgres, tcp};
use crate::support::program::wait_until;
use maildrop_command::database::PostgresDatabase;
use maildrop_command::ledger::{CopyState, Ledger, LockResult, audit_queries};
use maildrop_command::lock::{Acquired, NamedLock};
use std::thread;
use std::time::Duration;
use uuid::Uuid;

on_each_postgres!(a_delivery_takes_eight_round_trips, a_busy_lock_costs_two_more, no_statement_reads_a_whole_table);

fn a_delivery_takes_eight_round_trips(server: &str) {
    let test = TestDatabase::migrated(server);
    let proxy = CountingProxy::before(&test.host, 5432);
    let mail = Mail::new("<123-abc@mail.google.com>");
    let attempt = Uuid::now_v7();

    let mut database = test.connect_by(tcp("127.0.0.1", proxy.port), "A");
    let mut cost = vec![("connect", proxy.round_trips())];
    let mut after = |step| cost.push((step, proxy.round_trips()));
    database.addresses(&["scuba@mail.example", "lisa@gmail.example"]).unwrap();
    after("addresses");
    database.journal(&mail.journal(attempt, None)).unwrap();
    after("journal");
    take_and_look(&mut database, &mail);
    after("acquire and look");
    assert!(database.still_held(&mail.lock).unwrap());
    after("still_held");
    database.record(&mail.record(attempt, CopyState::Delivered(None), CopyState::Delivered(None))).unwrap();
    after("record");
    database.release(&mail.lock).unwrap();
    after("release");

    let expected = [
        ("connect", 3),
        ("addresses", 1),
        ("journal", 1),
        ("acquire and look", 1),
        ("still_held", 1),
        ("record", 1),
        ("release", 0),
    ];
    assert_eq!(cost, expected);
}

fn take_and_look(database: &mut PostgresDatabase, mail: &Mail) {
    let asked = database.acquire_and_look(&mail.lock, Duration::ZERO, &mail.keys()).unwrap();
    assert!(matches!(asked, LockResult::Held { looked: Ok(_), .. }), "{asked:?}");
}

fn a_busy_lock_costs_two_more(server: &str) {
    let test = TestDatabase::migrated(server);
    let proxy = CountingProxy::before(&test.host, 5432);
    let mail = Mail::new("<123-abc@mail.google.com>");
    let mut first = test.connect("FIRST");
    assert!(matches!(first.acquire(&mail.lock, Duration::ZERO).unwrap(), Acquired::Held));
    let mut second = test.connect_by(tcp("127.0.0.1", proxy.port), "SECOND");
    for wait in [Duration::ZERO, Duration::from_millis(100)] {
        proxy.round_trips();
        assert!(matches!(second.acquire(&mail.lock, wait).unwrap(), Acquired::Busy(Some(_))));
        assert_eq!(proxy.round_trips(), 2, "acquire, and who has it");
        let asked = second.acquire_and_look(&mail.lock, wait, &mail.keys()).unwrap();
        assert!(matches!(asked, LockResult::Busy(Some(_))), "{asked:?}");
        assert_eq!(proxy.round_trips(), 2, "the same with a look behind it");
    }
}

/// The server counts its own reads of whole tables (`pg_stat_user_tables.seq_scan`), those of foreign keys among them.
fn no_statement_reads_a_whole_table(server: &str) {
    let test = TestDatabase::migrated(server);
    fill(&test);
    let scans = "SELECT string_agg(relname || ' ' || seq_scan, ', ' ORDER BY relname) FROM pg_stat_user_tables \
                 WHERE relname IN ('attempts', 'messages', 'copies', 'message_sources')";
    let reads = "SELECT coalesce(sum(idx_scan), 0) FROM pg_stat_user_tables";
    // A whole index may be read, too, and is not counted as such: the pages tell.
    let pages = "SELECT sum(coalesce(heap_blks_read + heap_blks_hit, 0) + coalesce(idx_blks_read + idx_blks_hit, 0)) \
                 FROM pg_statio_user_tables WHERE relname IN ('attempts', 'messages', 'copies', 'message_sources')";
    until_all_sessions_have_ended(&test);
    settle(&test, reads);
    let (scans_before, reads_before, pages_before) = (test.value(scans), test.value(reads), number(&test, pages));

    let mail = Mail::new("<123-abc@mail.google.com>");
    let mut database = test.connect("A");
    let book = database.addresses(&["user4711@mail.example", "user1@mail.example"]).unwrap();
    assert_eq!(book.entries.len(), 2);
    for _ in 0..3 {
        let attempt = Uuid::now_v7();
        database.journal(&mail.journal(attempt, None)).unwrap();
        take_and_look(&mut database, &mail);
        database.first_attempt_age(&mail.keys()).unwrap();
        assert!(database.still_held(&mail.lock).unwrap());
        let mut record = mail.record(attempt, CopyState::Delivered(None), CopyState::Delivered(None));
        if let Some(message) = &mut record.message {
            message.raw = Some(b"raw");
        }
        database.record(&record).unwrap();
    }
    assert!(audit_queries::earlier_delivery(&mut database, &mail.keys()[0]).unwrap().is_some());
    drop(database);
    until_all_sessions_have_ended(&test);
    settle(&test, reads);
    assert_ne!(test.value(reads), reads_before, "the server has not counted");
    assert_eq!(test.value(scans), scans_before);
    let a_delivery = (number(&test, pages) - pages_before) / 3;
    assert!((10..200).contains(&a_delivery), "a delivery reads {a_delivery} pages");

    // Of the addresses, only whether there is any row is asked without the index: the first page.
    let pages = "SELECT heap_blks_read + heap_blks_hit FROM pg_statio_user_tables WHERE relname = 'addresses'";
    let before = number(&test, pages);
    let mut database = test.connect("B");
    for _ in 0..10 {
        database.addresses(&["user4711@mail.example", "nobody@mail.example"]).unwrap();
    }
    drop(database);
    until_all_sessions_have_ended(&test);
    settle(&test, pages);
    let after = number(&test, pages);
    assert!((10..=50).contains(&(after - before)), "{before} {after}");
}

fn number(test: &TestDatabase, sql: &str) -> i64 {
    test.value(sql).unwrap().parse().unwrap()
}

/// 20,000 of everything.
fn fill(test: &TestDatabase) {
    let digest = "int4send(20780) || substr(sha256(convert_to(n::text, 'UTF8')), 1, 28)";
    test.admin()
        .batch_execute(&format!(
            "INSERT INTO addresses SELECT 'user' || n || '@mail.example', 'user' || n FROM generate_series(1, 20000) n; \
             INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, headers, size, recorded_at) \
             SELECT {digest}, {digest}, n, {digest}, '', '[]', 1, now() FROM generate_series(1, 20000) n; \
             INSERT INTO message_sources SELECT id, 'source' FROM messages; \
             INSERT INTO copies SELECT identity, id, 'recipient', 'u', 'INBOX', 'r', \
             CASE WHEN id % 10 = 0 THEN 'owed' ELSE 'delivered' END, 1, 1, NULL, now(), now() FROM messages; \
             INSERT INTO attempts SELECT identity, gen_random_uuid(), 'recipient', 'u', 'INBOX', identity, lock_digest, \
             message_id, 'r', NULL, NULL, 'mx1', 1, 1, 1, 1, now(), CASE WHEN id % 10 <> 0 THEN now() END, 'x' FROM messages;"
        ))
        .unwrap();
    test.admin().batch_execute("VACUUM ANALYZE").unwrap();
}

/// A session hands in its counts as it ends, a moment after its client.
fn until_all_sessions_have_ended(test: &TestDatabase) {
    let mut watch = test.admin();
    let others = "SELECT count(*) = 0 FROM pg_stat_activity \
                  WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
    wait_until("all sessions have ended", || watch.query_one(others, &[]).unwrap().get(0));
}

/// Waits until the server's counts hang.
fn settle(test: &TestDatabase, counts: &str) {
    let mut last = test.value(counts);
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(600));
        let now = test.value(counts);
        if now == last {
            return;
        }
        last = now;
    }
}
