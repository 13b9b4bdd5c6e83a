//! What a delivery writes down at its end on PostgreSQL: all or nothing, whatever the message holds.

use crate::support::counting_proxy::CountingProxy;
use crate::support::postgres::{Mail, TestDatabase, on_each_postgres, tcp};
use crate::support::program::wait_until;
use maildrop_command::ledger::{CopyState, DeliveredAt, Ledger, Outcome, Record};
use maildrop_command::lock::{Acquired, NamedLock};
use maildrop_command::mailbox::Placement;
use std::thread;
use std::time::Duration;
use uuid::Uuid;

on_each_postgres!(
    every_state_is_reported_again,
    a_delivered_copy_is_never_owed_again,
    hostile_text_is_stored_as_it_is,
    hostile_text_is_stored_as_it_is_whatever_the_server_thinks_of_backslashes,
    absurd_numbers_cost_no_message,
    a_large_source_is_stored_once_and_sent_once,
    a_deadlock_is_tried_again_and_the_lock_stays,
    a_record_that_fails_leaves_nothing_behind,
    copies_without_their_message_are_refused,
);

const SOMEWHERE: Placement = Placement { uid_validity: 1_700_000_000, uid: u32::MAX };

fn every_state_is_reported_again(server: &str) {
    let test = TestDatabase::migrated(server);
    let mut database = test.connect("A");
    for (n, (state, delivered, with_lock)) in [
        (CopyState::Delivered(Some(SOMEWHERE)), Some(DeliveredAt { placement: Some(SOMEWHERE) }), true),
        (CopyState::Delivered(None), Some(DeliveredAt { placement: None }), true),
        (CopyState::Owed("over quota"), None, true),
        (CopyState::Delivered(Some(SOMEWHERE)), Some(DeliveredAt { placement: Some(SOMEWHERE) }), false),
        (CopyState::Owed("over quota"), None, false),
    ]
    .into_iter()
    .enumerate()
    {
        let mail = Mail::new(&format!("<{n}@example.com>"));
        let attempt = Uuid::now_v7();
        database.journal(&mail.journal(attempt, None)).unwrap();
        if with_lock {
            assert!(matches!(database.acquire(&mail.lock, Duration::ZERO).unwrap(), Acquired::Held));
        }
        database.record(&mail.record(attempt, CopyState::Delivered(None), state)).unwrap();
        let [recipient, sender] = &database.look(&mail.keys()).unwrap()[..] else { panic!() };
        assert_eq!(recipient.delivered, Some(DeliveredAt { placement: None }));
        assert_eq!(sender.delivered, delivered);
        assert!(recipient.open_attempts.is_empty() && sender.open_attempts.is_empty());
    }
    let message = "SELECT concat_ws('|', message_id, sender, header_from, header_to, coalesce(header_cc, '-'), subject, \
                   extract(epoch FROM sent_at)::bigint, headers, size, now() - recorded_at < '1 minute') \
                   FROM messages WHERE message_id = '<0@example.com>'";
    assert_eq!(
        test.value(message).as_deref(),
        Some(
            "<0@example.com>|lisa@gmail.example|Lisa <lisa@gmail.example>|scuba@mail.example|-|Diving|1700000000|\
             [[\"Subject\", \"Diving\"]]|4321|t"
        )
    );
    let owed = "SELECT string_agg(concat_ws('|', role, imap_user, mailbox, recipient, reason, \
                coalesce(delivered_at::text, '-')), ' ') FROM copies WHERE state = 'owed'";
    let one = "sender|lisa|Sent|scuba@mail.example|over quota|-";
    assert_eq!(test.value(owed).unwrap(), format!("{one} {one}"));
}

fn a_delivered_copy_is_never_owed_again(server: &str) {
    let test = TestDatabase::migrated(server);
    let mut database = test.connect("A");
    let mail = Mail::new("<123-abc@mail.google.com>");
    let mut record = |state| {
        database.record(&mail.record(Uuid::now_v7(), CopyState::Delivered(Some(SOMEWHERE)), state)).unwrap();
        test.value(
            "SELECT concat_ws('|', state, coalesce(uid::text, '-'), coalesce(reason, '-'), delivered_at IS NOT NULL) \
             FROM copies WHERE role = 'sender'",
        )
        .unwrap()
    };
    let elsewhere = Placement { uid_validity: 2, uid: 7 };
    assert_eq!(record(CopyState::Owed("over quota")), "owed|-|over quota|f");
    assert_eq!(record(CopyState::Owed("still over quota")), "owed|-|still over quota|f");
    assert_eq!(record(CopyState::Delivered(Some(SOMEWHERE))), "delivered|4294967295|-|t");
    assert_eq!(record(CopyState::Owed("late")), "delivered|4294967295|-|t");
    assert_eq!(record(CopyState::Delivered(Some(elsewhere))), "delivered|7|-|t");
    assert_eq!(test.value("SELECT count(*) FROM messages").as_deref(), Some("1"));
    assert_eq!(test.value("SELECT count(*) FROM copies").as_deref(), Some("2"));
}

fn hostile_texts() -> Vec<String> {
    let mut texts: Vec<String> = [
        "'); DROP TABLE copies; --",
        "\\'; DROP TABLE copies; --",
        "$$ $1 ${x} :role %s {} \u{0}",
        "\u{0}",
        "\\x00 \\u0000 E'\\''",
        "\u{feff}\u{202e}\u{1F600}\u{10FFFF}\u{1}\u{7f}",
        "\r\n\r\n.\r\n",
        "",
    ]
    .map(str::to_owned)
    .into();
    texts.push("m".repeat(10_000));
    texts.push("\u{1F600}'\"\\".repeat(2_000));
    texts
}

fn hostile_text_is_stored_as_it_is(server: &str) {
    hostile_text(&TestDatabase::migrated(server));
}

fn hostile_text_is_stored_as_it_is_whatever_the_server_thinks_of_backslashes(server: &str) {
    let test = TestDatabase::migrated(server);
    test.role_setting("standard_conforming_strings = off");
    test.role_setting("bytea_output = 'escape'");
    hostile_text(&test);
}

fn hostile_text(test: &TestDatabase) {
    let mut database = test.connect("A");
    for (n, text) in hostile_texts().into_iter().enumerate() {
        let mut mail = Mail::new(&format!("<{n}@example.com>{text}"));
        mail.subject = text.clone();
        mail.recipient = text.clone();
        mail.headers = serde_json::json!([["Subject", text]]).to_string();
        let attempt = Uuid::now_v7();
        let text = text.as_str();
        let mut journal = mail.journal(attempt, None);
        (journal.host, journal.queue_id, journal.sender) = (text, Some(text), Some(text));
        database.journal(&journal).unwrap();
        assert!(matches!(database.acquire(&mail.lock, Duration::ZERO).unwrap(), Acquired::Held));
        let mut record = mail.record(attempt, CopyState::Delivered(None), CopyState::Owed(text));
        record.ended[0].outcome = Outcome::from_text(text);
        record.ended[1].outcome = Outcome::from_text(text);
        if let Some(message) = &mut record.message {
            (message.sender, message.from, message.to, message.cc) = (text, Some(text), Some(text), Some(text));
        }
        database.record(&record).unwrap();

        // NUL is the one character that the server cannot store.
        let stored = text.replace('\0', "\u{FFFD}");
        let mut admin = test.admin();
        let row = admin
            .query_one(
                "SELECT m.sender, header_from, header_to, header_cc, subject, m.headers #>> '{0,1}', c.reason, \
                 a.recipient, a.host, a.queue_id, a.sender AS envelope_sender, a.outcome \
                 FROM messages m JOIN copies c ON c.message = m.id AND c.role = 'sender' \
                 JOIN attempts a ON a.copy_key = c.copy_key WHERE m.message_id LIKE $1",
                &[&format!("<{n}@example.com>%")],
            )
            .unwrap();
        for column in 0..row.len() {
            assert_eq!(row.get::<_, String>(column), stored, "{} of text {n}", row.columns()[column].name());
        }
        assert_eq!(database.look(&mail.keys()).unwrap().len(), 2);
    }
}

fn absurd_numbers_cost_no_message(server: &str) {
    let test = TestDatabase::migrated(server);
    let mut database = test.connect("A");
    for (n, (date, size)) in
        [(i64::MIN, u64::MAX), (i64::MAX, 0), (-62_135_596_800, 1), (253_402_300_799, 1)].into_iter().enumerate()
    {
        let mail = Mail::new(&format!("<{n}@example.com>"));
        let mut record = mail.record(Uuid::now_v7(), CopyState::Delivered(None), CopyState::Delivered(None));
        if let Some(message) = &mut record.message {
            (message.date, message.size) = (Some(date), size);
        }
        database.record(&record).unwrap();
    }
    let years = "SELECT string_agg(coalesce(to_char(sent_at AT TIME ZONE 'UTC', 'YYYY'), '-'), ' ' ORDER BY message_id) \
                 FROM messages";
    assert_eq!(test.value(years).as_deref(), Some("- - 0001 9999"));
}

fn a_large_source_is_stored_once_and_sent_once(server: &str) {
    let test = TestDatabase::migrated(server);
    let proxy = CountingProxy::before(&test.host, 5432);
    let mut database = test.connect_by(tcp("127.0.0.1", proxy.port), "A");
    let raw: Vec<u8> = (0..10_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mail = Mail::new("<123-abc@mail.google.com>");
    let mut sent = Vec::new();
    for with_lock in [true, false] {
        proxy.bytes_sent();
        if with_lock {
            assert!(matches!(database.acquire(&mail.lock, Duration::ZERO).unwrap(), Acquired::Held));
        }
        let mut record = mail.record(Uuid::now_v7(), CopyState::Delivered(None), CopyState::Delivered(None));
        if let Some(message) = &mut record.message {
            message.raw = Some(&raw);
        }
        database.record(&record).unwrap();
        sent.push(proxy.bytes_sent());
    }
    assert!((10_000_000..10_100_000).contains(&sent[0]) && sent[1] < 50_000, "{sent:?}");
    let stored: Vec<u8> = test.admin().query_one("SELECT source FROM message_sources", &[]).unwrap().get(0);
    assert!(stored == raw);
    assert_eq!(test.value("SELECT count(*) FROM copies").as_deref(), Some("2"));
}

fn a_deadlock_is_tried_again_and_the_lock_stays(server: &str) {
    let test = TestDatabase::migrated(server);
    // A waiting session looks for a deadlock once, after so long: by then the other one has to wait, too, or that one loses.
    test.role_setting("deadlock_timeout = '20s'");
    let (mut first, mut second) = (test.connect("FIRST"), test.connect("SECOND"));
    let mail = Mail::new("<123-abc@mail.google.com>");
    let attempt = Uuid::now_v7();
    first.journal(&mail.journal(attempt, None)).unwrap();
    assert!(matches!(first.acquire(&mail.lock, Duration::ZERO).unwrap(), Acquired::Held));

    // Somebody tidies up the journal in the other order, and is the more patient of the two.
    let (mut admin, mut watch) = (test.admin(), test.admin());
    let touch = |role: &str| format!("UPDATE attempts SET host = host WHERE role = '{role}'");
    admin.batch_execute(&format!("SET deadlock_timeout = '120s'; BEGIN; {}", touch("sender"))).unwrap();
    thread::scope(|scope| {
        let recording = scope.spawn(|| {
            first.record(&mail.record(attempt, CopyState::Delivered(None), CopyState::Delivered(None))).unwrap();
        });
        until_the_record_waits(&mut watch);
        admin.batch_execute(&touch("recipient")).unwrap();
        // The record has lost, and waits again: the lock is as it was.
        until_the_record_waits(&mut watch);
        let acquired = second.acquire(&mail.lock, Duration::ZERO);
        admin.batch_execute("COMMIT").unwrap();
        recording.join().unwrap();
        assert!(matches!(acquired.unwrap(), Acquired::Busy(Some(_))));
    });
    let ended = "SELECT count(*) FROM attempts WHERE ended_at IS NOT NULL";
    assert_eq!(test.value(ended).as_deref(), Some("2"));
    assert!(second.look(&mail.keys()).unwrap().iter().all(|copy| copy.delivered.is_some()));
}

fn until_the_record_waits(watch: &mut postgres::Client) {
    let waiting = "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() \
                   AND application_name LIKE 'maildrop FIRST %' AND wait_event_type = 'Lock'";
    wait_until("the record waits", || watch.query_one(waiting, &[]).unwrap().get(0));
}

fn a_record_that_fails_leaves_nothing_behind(server: &str) {
    let test = TestDatabase::migrated(server);
    let mut database = test.connect("A");
    let mail = Mail::new("<123-abc@mail.google.com>");
    test.admin().batch_execute("ALTER TABLE copies ADD CONSTRAINT no_sender CHECK (role <> 'sender')").unwrap();
    for with_lock in [true, false] {
        if with_lock {
            assert!(matches!(database.acquire(&mail.lock, Duration::ZERO).unwrap(), Acquired::Held));
        }
        let record = mail.record(Uuid::now_v7(), CopyState::Delivered(None), CopyState::Delivered(None));
        let error = database.record(&record).unwrap_err();
        assert!(error.to_string().contains("23514"), "{error}");
        assert!(!database.still_held(&mail.lock).unwrap());
        database.release(&mail.lock).unwrap();
    }
    for table in ["messages", "copies"] {
        assert_eq!(test.value(&format!("SELECT count(*) FROM {table}")).as_deref(), Some("0"));
    }
    // The connection is as good as before.
    test.admin().batch_execute("ALTER TABLE copies DROP CONSTRAINT no_sender").unwrap();
    database.record(&mail.record(Uuid::now_v7(), CopyState::Delivered(None), CopyState::Delivered(None))).unwrap();
}

fn copies_without_their_message_are_refused(server: &str) {
    let test = TestDatabase::migrated(server);
    let mail = Mail::new("<123-abc@mail.google.com>");
    let record = mail.record(Uuid::now_v7(), CopyState::Delivered(None), CopyState::Delivered(None));
    let error = test.connect("A").record(&Record { message: None, ..record }).unwrap_err();
    assert!(error.to_string().contains("without their message"), "{error}");
}
