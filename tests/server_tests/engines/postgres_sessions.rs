//! PostgreSQL: one session serves one delivery after another, and none of them leaves anything to the next. PgBouncer in
//! transaction mode, too.

use crate::support;
use crate::support::counting_proxy::CountingProxy;
use crate::support::postgres::{Mail, TestDatabase, client, deadline, on_each_postgres, tcp};
use crate::support::program::wait_until;
use maildrop_command::base::deadline::Deadline;
use maildrop_command::database::{
    DatabaseFailure, Idle, KnownTimelines, Limits, PostgresDatabase, Server, Session, Tables, Timeline,
};
use maildrop_command::ledger::{CopyState, Ledger, LockResult, Record};
use maildrop_command::lock::{Acquired, Holder, NamedLock};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

on_each_postgres!(
    a_session_that_is_used_again_carries_nothing_over,
    a_session_with_anything_left_is_thrown_away,
    a_lock_that_was_waited_for_in_vain_leaves_the_session_as_good_as_new,
    a_session_that_was_ended_meanwhile_is_found_dead_before_anything_is_journalled,
    a_delivery_on_a_session_that_stands_takes_five_round_trips_and_its_end_none,
    a_session_keeps_the_plans_of_what_it_says_from_its_second_delivery_on,
    a_session_whose_functions_are_not_there_sends_its_statements,
    plans_that_were_made_on_empty_tables_read_none_of_them_whole_once_they_are_full,
    a_server_that_has_missed_a_fail_over_answers_no_statement_and_serves_no_other_delivery,
    a_server_that_takes_no_writes_says_so_on_connecting_and_when_it_is_asked,
    a_long_question_is_ended_before_the_server_is_taken_for_one_that_says_nothing,
);

/// What the server would have kept of a setting.
const SETTINGS: &str = "SELECT current_setting('statement_timeout'), current_setting('lock_timeout'), \
     current_setting('idle_in_transaction_session_timeout'), current_setting('client_min_messages'), \
     current_setting('transaction_isolation')";

fn another(text: &str) -> Mail {
    Mail::new(&format!("<{text}@mail.google.com>"))
}

fn deliver(database: &mut PostgresDatabase, mail: &Mail) {
    let attempt = Uuid::now_v7();
    database.addresses(&["scuba@mail.example"]).unwrap();
    database.journal(&mail.journal(attempt, None)).unwrap();
    let looked = match database.acquire_and_look(&mail.lock, Duration::ZERO, &mail.keys()).unwrap() {
        LockResult::Held { looked, .. } => looked.unwrap(),
        LockResult::Busy(holder) => panic!("{holder:?}"),
    };
    assert!(looked.copies.iter().all(|copy| copy.delivered.is_none() && copy.open_attempts.len() == 1), "{looked:?}");
    assert!(database.still_held(&mail.lock).unwrap());
    let state = CopyState::Delivered(None);
    database.record(&mail.record(attempt, state, state)).unwrap();
    database.release(&mail.lock).unwrap();
}

fn row(database: &mut PostgresDatabase, sql: &str) -> Vec<String> {
    let rows = database.select("asking", sql, &[]).unwrap();
    (0..).map_while(|index| rows[0].text(index).map(str::to_owned)).collect()
}

fn take(database: &mut PostgresDatabase, mail: &Mail) {
    assert!(matches!(database.acquire(&mail.lock, Duration::ZERO).unwrap(), Acquired::Held));
}

fn holder(test: &TestDatabase, mail: &Mail) -> Holder {
    match test.connect("ONLOOKER").acquire(&mail.lock, Duration::ZERO).unwrap() {
        Acquired::Busy(Some(holder)) => holder,
        other => panic!("{other:?}"),
    }
}

fn a_session_that_is_used_again_carries_nothing_over(server: &str) {
    let test = TestDatabase::migrated(server);
    carries_nothing_over(&test, test.connect("FIRST"));
}

#[test]
fn a_session_behind_pgbouncer_carries_nothing_over() {
    let test = TestDatabase::migrated("POSTGRES17");
    carries_nothing_over(&test, test.connect_by(tcp(&support::server("PGBOUNCER"), 5432), "FIRST"));
}

fn carries_nothing_over(test: &TestDatabase, mut database: PostgresDatabase) {
    let before = row(&mut database, SETTINGS);
    let all_locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
                     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    // The server's own (autovacuum) are none of ours, and an onlooker may not be gone yet.
    let busy_sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle' \
                         AND pid <> pg_backend_pid() AND backend_type = 'client backend' \
                         AND application_name NOT LIKE 'maildrop ONLOOKER %'";
    let named = |queue_id: &str| {
        test.value(&format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
             AND application_name LIKE 'maildrop {queue_id} %'"
        ))
    };
    let mut database = Box::new(database);
    deliver(&mut database, &another("first"));
    let mut last: Option<&str> = None;
    for (queue_id, seconds) in [("SECOND", 20), ("THIRD", 200)] {
        let idle = Idle::after(database).expect("a session without a fault");
        assert_eq!(test.value(all_locks).as_deref(), Some("0"));
        assert_eq!(test.value(busy_sessions).as_deref(), Some("0"));
        for gone in ["FIRST"].into_iter().chain(last) {
            assert_eq!(named(gone).as_deref(), Some("0"), "the server still tells of {gone}");
        }
        database = idle.begin(&client(queue_id), Deadline::after(Duration::from_secs(seconds))).unwrap();
        assert_eq!(database.round_trips(), 0);
        assert_eq!(row(&mut database, SETTINGS), before);

        // Who holds the lock, and by which time limit, is this delivery's.
        let mail = another(queue_id);
        take(&mut database, &mail);
        let holder = holder(test, &mail);
        assert_eq!((holder.queue_id.as_deref(), holder.host.as_deref()), (Some(queue_id), Some("mx1.example.com")));
        let limits = "SELECT setting::bigint / 1000 FROM pg_settings \
                      WHERE name IN ('statement_timeout', 'idle_in_transaction_session_timeout') ORDER BY name";
        let limits = database.select("asking", limits, &[]).unwrap();
        let limits: Vec<u64> = limits.iter().map(|row| row.value(0).unwrap().unwrap()).collect();
        let [idle_for, statement] = limits[..] else { panic!("{limits:?}") };
        assert!(idle_for <= seconds + 30 && idle_for >= seconds - 10, "{idle_for}");
        assert!(statement <= seconds && statement >= seconds - 10, "{statement}");
        database.release(&mail.lock).unwrap();
        deliver(&mut database, &mail);
        last = Some(queue_id);
    }
}

fn a_session_with_anything_left_is_thrown_away(server: &str) {
    let test = TestDatabase::migrated(server);
    let mail = another("left");
    let in_the_midst = "SELECT nonsense";
    for (what, leave) in [
        ("a lock of ours", "" /* taken below */),
        ("an error in its conversation", in_the_midst),
        ("a transaction", "BEGIN"),
        ("a transaction that wrote", "BEGIN; INSERT INTO addresses VALUES ('left@mail.example', 'left')"),
        ("a transaction that was aborted", "BEGIN; SELECT 1/0"),
        ("a server that takes no writes", "SET default_transaction_read_only = on"),
    ] {
        let mut database = Box::new(test.connect_as_owner());
        if leave.is_empty() {
            take(&mut database, &mail);
        } else {
            let left = database.select("leaving something", leave, &[]);
            assert_eq!(left.is_err(), leave == in_the_midst || leave.contains("1/0"), "{what}");
        }
        assert!(Idle::after(database).is_none(), "{what}");
        // It is closed, and with it whatever it held.
        let mut next = test.connect("NEXT");
        assert!(matches!(next.acquire(&mail.lock, Duration::from_secs(60)).unwrap(), Acquired::Held), "{what}");
        next.release(&mail.lock).unwrap();
        let left = "SELECT count(*) FROM addresses WHERE imap_user = 'left'";
        assert_eq!(test.value(left).as_deref(), Some("0"), "{what}");
    }
    // A lock of the session's own is freed, however often it was taken.
    let mut database = Box::new(test.connect("SESSION"));
    database.select("leaving something", "SELECT pg_advisory_lock(4711), pg_advisory_lock(4711)", &[]).unwrap();
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711";
    assert_eq!(test.value(locks).as_deref(), Some("1"));
    let kept = Idle::after(database);
    assert!(kept.is_some());
    assert_eq!(test.value(locks).as_deref(), Some("0"));
    // One whose server has ended it.
    let database = Box::new(test.connect("KILLED"));
    kill(&test, "KILLED");
    assert!(Idle::after(database).is_none());
}

fn kill(test: &TestDatabase, queue_id: &str) {
    test.value(&format!(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity \
         WHERE datname = current_database() AND application_name LIKE 'maildrop {queue_id} %'"
    ))
    .expect("a session of that name");
}

fn a_lock_that_was_waited_for_in_vain_leaves_the_session_as_good_as_new(server: &str) {
    let test = TestDatabase::migrated(server);
    let (mut first, mut second) = (test.connect("FIRST"), Box::new(test.connect("SECOND")));
    let (mail, attempt) = (another("busy"), Uuid::now_v7());
    take(&mut first, &mail);
    for wait in [Duration::ZERO, Duration::from_millis(100)] {
        second.journal(&mail.journal(attempt, None)).unwrap();
        let busy = second.acquire_and_look(&mail.lock, wait, &mail.keys()).unwrap();
        assert!(matches!(busy, LockResult::Busy(Some(_))), "{busy:?}");
        let ended = mail.record(attempt, CopyState::Delivered(None), CopyState::Delivered(None)).ended;
        second.record(&Record { ended, ..Record::default() }).unwrap();
        test.admin().batch_execute("DELETE FROM attempts").unwrap();
        second = Idle::after(second).expect("nothing is in doubt").begin(&client("AGAIN"), deadline()).unwrap();
    }
}

fn a_session_that_was_ended_meanwhile_is_found_dead_before_anything_is_journalled(server: &str) {
    let test = TestDatabase::migrated(server);
    let mut database = Box::new(test.connect_as("tester", ""));
    deliver(&mut database, &another("first"));
    let idle = Idle::after(database).unwrap();
    kill(&test, "-");
    // Either the end has arrived by now, or the first statement meets it.
    let error = match idle.begin(&client("SECOND"), deadline()) {
        Ok(mut database) => database.addresses(&["scuba@mail.example"]).unwrap_err(),
        Err(error) => error,
    };
    assert!(error.a_new_session_can_help(), "{error}");
    assert_eq!(error.failure, DatabaseFailure::ConnectionLost, "{error}");
}

fn a_delivery_on_a_session_that_stands_takes_five_round_trips_and_its_end_none(server: &str) {
    let test = TestDatabase::migrated(server);
    let proxy = CountingProxy::before(&test.host, 5432);
    let mut database = Box::new(test.connect_by(tcp("127.0.0.1", proxy.port), "FIRST"));
    proxy.round_trips();
    for number in 0..3 {
        deliver(&mut database, &another(&number.to_string()));
        assert_eq!(proxy.round_trips(), 5, "addresses, journal, lock and look, still held, record");
        assert_eq!(database.round_trips(), 5);
        let idle = Idle::after(database).unwrap();
        // The proof that nothing is left comes with the record, from the second delivery on.
        assert_eq!(proxy.round_trips(), usize::from(number == 0), "what proves that nothing is left");
        database = idle.begin(&client("NEXT"), deadline()).unwrap();
        assert_eq!(proxy.round_trips(), 0, "to begin takes none");
    }
    database.addresses(&["scuba@mail.example"]).unwrap();
    let _idle = Idle::after(database).unwrap();
    assert_eq!(proxy.round_trips(), 2, "without a record the proof is a question of its own");
}

/// Three deliveries by one session, which then ends.
fn three_deliveries(test: &TestDatabase) {
    three_more(Box::new(test.connect("FIRST")), "first");
}

fn three_more(mut database: Box<PostgresDatabase>, name: &str) -> Box<PostgresDatabase> {
    for number in 0..3 {
        deliver(&mut database, &another(&format!("{name}{number}")));
        database = Idle::after(database).unwrap().begin(&client("NEXT"), deadline()).unwrap();
    }
    // Otherwise the server counts what it has read when it has the time.
    database.select("counting", "SELECT pg_stat_force_next_flush()", &[]).unwrap();
    database
}

/// What a session sends in its first delivery and what it calls in the next ones is the same.
fn a_session_keeps_the_plans_of_what_it_says_from_its_second_delivery_on(server: &str) {
    let test = TestDatabase::migrated(server);
    test.role_setting("track_functions = 'pl'");
    three_deliveries(&test);
    // Each delivery has one journal, one look and one message, of two copies. The first asks for the epoch by a statement, too.
    let calls = "SELECT string_agg(funcname || ' ' || calls, ', ' ORDER BY funcname) FROM pg_stat_user_functions \
                 WHERE funcname LIKE 'maildrop\\_%'";
    let expected = "maildrop_addresses 2, maildrop_copy 4, maildrop_epoch 2, maildrop_look 2, maildrop_message 2";
    wait_until("the session's calls are counted", || test.value(calls).as_deref() == Some(expected));
    for rows in [
        "SELECT count(DISTINCT (role, imap_user, mailbox, recipient, queue_id, sender, host, pid, outcome, stages, session)) || ' of ' \
         || count(*) FROM attempts WHERE ended_at > started_at",
        "SELECT count(DISTINCT (role, imap_user, mailbox, recipient, state, uid_validity, uid, reason)) || ' of ' \
         || count(*) FROM copies WHERE delivered_at <= updated_at",
        "SELECT count(DISTINCT (sender, header_from, header_to, header_cc, sent_at, size)) * 2 || ' of ' \
         || count(*) * 2 FROM messages",
    ] {
        assert_eq!(test.value(rows).as_deref(), Some("2 of 6"), "{rows}");
    }
}

fn a_session_whose_functions_are_not_there_sends_its_statements(server: &str) {
    let test = TestDatabase::migrated(server);
    // `migrate` makes all of them, or none.
    let drop = "DROP FUNCTION maildrop_addresses, maildrop_look, maildrop_message, maildrop_copy";
    test.admin().batch_execute(drop).unwrap();
    three_deliveries(&test);
    // Nor may it call what it has no right to.
    let other = TestDatabase::migrated(server);
    other.admin().batch_execute("REVOKE EXECUTE ON FUNCTION maildrop_copy FROM PUBLIC").unwrap();
    three_deliveries(&other);
}

/// Nothing makes these plans again: no statistics are gathered.
fn plans_that_were_made_on_empty_tables_read_none_of_them_whole_once_they_are_full(server: &str) {
    let test = TestDatabase::migrated(server);
    let tables = ["attempts", "messages", "copies"];
    for table in tables {
        test.admin().batch_execute(&format!("ALTER TABLE {table} SET (autovacuum_enabled = off)")).unwrap();
    }
    let database = three_more(Box::new(test.connect("FIRST")), "empty");
    let digest = "int4send(20780) || substr(sha256(convert_to(n::text, 'UTF8')), 1, 28)";
    let fill = format!(
        "INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, headers, size, recorded_at) \
         SELECT {digest}, {digest}, n, {digest}, '', '[]', 1, now() FROM generate_series(1, 20000) n; \
         INSERT INTO copies SELECT identity, id, 'recipient', 'u', 'INBOX', 'r', 'delivered', 1, 1, NULL, now(), now() \
         FROM messages ON CONFLICT DO NOTHING; \
         INSERT INTO attempts SELECT identity, gen_random_uuid(), 'recipient', 'u', 'INBOX', identity, lock_digest, \
         message_id, 'r', NULL, NULL, 'mx1', 1, 1, 1, 1, now() FROM messages; SELECT pg_stat_force_next_flush()"
    );
    test.admin().batch_execute(&fill).unwrap();
    let scans = "SELECT string_agg(relname || ' ' || seq_scan, ', ' ORDER BY relname) FROM pg_stat_user_tables \
                 WHERE relname IN ('attempts', 'messages', 'copies')";
    let reads = "SELECT sum(idx_scan) FROM pg_stat_user_tables WHERE relname IN ('attempts', 'messages', 'copies')";
    let before = (test.value(scans), test.value(reads));
    drop(three_more(database, "full"));
    wait_until("what was read is counted", || test.value(reads) != before.1);
    assert_eq!(test.value(scans), before.0);
}

fn a_server_that_has_missed_a_fail_over_answers_no_statement_and_serves_no_other_delivery(server: &str) {
    let test = TestDatabase::migrated(server);
    let system = test.value("SELECT system_identifier FROM pg_control_system()").unwrap();
    let another_takes_over = |known: &KnownTimelines| {
        let later = Timeline { cluster: format!("postgresql/{system}"), number: 4_000_000 };
        known.compare(&later, "db2").unwrap();
    };
    let connect = |known: &Arc<KnownTimelines>, name: &str| {
        let server = Server { timelines: Some(known.clone()), ..test.server(tcp(&test.host, 5432), &test.name) };
        PostgresDatabase::connect(&server, &client(name), deadline())
    };
    let ask = |database: &mut PostgresDatabase| database.addresses(&["scuba@mail.example"]);

    // It is asked with a delivery's first statement.
    let known = Arc::default();
    let mut stands = connect(&known, "FIRST").unwrap();
    ask(&mut stands).unwrap();
    assert!(stands.check_still_primary().is_ok());
    another_takes_over(&known);
    assert_eq!(stands.check_still_primary().unwrap_err().failure, DatabaseFailure::Behind);
    assert!(Idle::after(Box::new(stands)).is_none());
    // It is suspected by now, so that it does not come as far as to a statement.
    assert_eq!(connect(&known, "SECOND").err().map(|error| error.failure), Some(DatabaseFailure::Behind));
    // A session that has not met it yet meets it with its first statement, whether that reads or writes.
    let unmet = || {
        let known = Arc::default();
        another_takes_over(&known);
        connect(&known, "THIRD").unwrap()
    };
    let mut reads = unmet();
    assert_eq!(ask(&mut reads).unwrap_err().failure, DatabaseFailure::Behind);
    assert!(Idle::after(Box::new(reads)).is_none());
    let (mail, mut writes) = (another("behind"), unmet());
    let error = writes.acquire(&mail.lock, Duration::ZERO).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::Behind, "{error}");
    // A session that stood before is asked again for each delivery.
    let known = Arc::default();
    let mut again = Box::new(connect(&known, "FOURTH").unwrap());
    ask(&mut again).unwrap();
    let idle = Idle::after(again).expect("a session without a fault");
    another_takes_over(&known);
    let mut again = idle.begin(&client("FIFTH"), deadline()).unwrap();
    assert!(again.check_still_primary().is_ok(), "the answer to an earlier delivery says nothing of now");
    assert_eq!(ask(&mut again).unwrap_err().failure, DatabaseFailure::Behind);
}

fn a_server_that_takes_no_writes_says_so_on_connecting_and_when_it_is_asked(server: &str) {
    let test = TestDatabase::migrated(server);
    let mut writes = test.connect("WRITES");
    assert!(!writes.said_read_only() && !writes.is_read_only().unwrap());
    test.role_setting("default_transaction_read_only = on");
    let mut reads = test.connect("READS");
    assert!(reads.said_read_only() && reads.is_read_only().unwrap());
    assert!(!writes.lacks_sync_standby() && !reads.lacks_sync_standby());
}

fn a_long_question_is_ended_before_the_server_is_taken_for_one_that_says_nothing(server: &str) {
    let test = TestDatabase::migrated(server);
    let limits = Limits { silence: Duration::from_mins(8), ..Limits::default() };
    let server = Server { limits, ..test.server(tcp(&test.host, 5432), &test.name) };
    let forever = Deadline::after(Duration::from_hours(100));
    let mut database = Box::new(PostgresDatabase::connect(&server, &client("FIRST"), forever).unwrap());
    let limit = |database: &mut PostgresDatabase| row(database, "SELECT current_setting('statement_timeout')");
    let none = limit(&mut database);
    database.limit_statement_time(Duration::from_hours(50));
    assert_eq!(limit(&mut database), ["7min"]);
    database.limit_statement_time(Duration::from_mins(2));
    assert_eq!(limit(&mut database), ["2min"]);
    // The lock's transaction has a limit of its own, which is that of the delivery.
    let mail = another("long");
    take(&mut database, &mail);
    let of_the_lock = limit(&mut database);
    assert!(of_the_lock != ["2min"] && of_the_lock != none, "{of_the_lock:?}");
    database.release(&mail.lock).unwrap();
    // It was said for this delivery.
    let mut next = Idle::after(database).unwrap().begin(&client("SECOND"), forever).unwrap();
    assert_eq!(limit(&mut next), none);
}
