//! What is written to the ledger on PostgreSQL is read from it unchanged.

use crate::support::postgres::{Mail, TestDatabase, client, deadline, on_each_postgres};
use maildrop_command::database::{DatabaseFailure, Idle};
use maildrop_command::ledger::Destination;
use maildrop_command::ledger::{Ledger, Outcome, Record};
use maildrop_command::mailbox::Position;
use std::thread;
use std::time::Duration;
use uuid::Uuid;

on_each_postgres!(
    addresses_lead_to_mailboxes,
    an_address_that_no_delivery_would_find_cannot_be_stored,
    a_view_over_other_types_serves_as_addresses,
    an_address_that_a_standby_lacks_is_not_unknown,
    the_journal_is_seen_by_everybody_at_once,
    a_copy_that_nobody_tried_has_no_history,
    the_first_attempt_counts,
    an_ended_attempt_is_not_open,
    a_missing_schema_says_what_fixes_it,
    a_read_only_database_takes_no_journal,
    a_role_without_rights_is_denied,
    a_journal_that_meets_a_deadlock_is_written_again,
);

fn addresses_lead_to_mailboxes(server: &str) {
    let test = TestDatabase::migrated(server);
    let mut database = test.connect("A");
    let book = database.addresses(&["scuba@mail.example"]).unwrap();
    assert!(book.empty && book.entries.is_empty());

    test.admin()
        .batch_execute(
            "INSERT INTO addresses VALUES ('scuba@mail.example', 'scuba'); \
             INSERT INTO addresses VALUES ('lisa@mail.example', 'lisa', 'In', 'Gone')",
        )
        .unwrap();
    let mut book = database.addresses(&["Scuba@Mail.Example", "lisa@mail.example", "nobody@mail.example"]).unwrap();
    book.entries.sort_by(|a, b| a.0.cmp(&b.0));
    let to =
        |user: &str, inbox: &str, sent: &str| Destination { user: user.into(), inbox: inbox.into(), sent: sent.into() };
    assert!(!book.empty);
    assert_eq!(
        book.entries,
        [
            ("lisa@mail.example".to_owned(), to("lisa", "In", "Gone")),
            ("scuba@mail.example".to_owned(), to("scuba", "INBOX", "Sent")),
        ]
    );
    let book = database.addresses(&["nobody@mail.example"]).unwrap();
    assert!(!book.empty && book.entries.is_empty());
    // A NUL would be refused by the server; nobody has such an address.
    assert!(database.addresses(&["a\0b@mail.example"]).unwrap().entries.is_empty());
}

fn an_address_that_no_delivery_would_find_cannot_be_stored(server: &str) {
    let test = TestDatabase::migrated(server);
    let error = test.admin().batch_execute("INSERT INTO addresses VALUES ('Scuba@mail.example', 'scuba')").unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("addresses_lower_case"));
}

/// Also to a session that keeps the plan it made for the table, as from its second delivery on.
fn a_view_over_other_types_serves_as_addresses(server: &str) {
    let test = TestDatabase::migrated(server);
    test.admin().batch_execute("INSERT INTO addresses VALUES ('scuba@mail.example', 'before')").unwrap();
    let again = |database| Idle::after(database).unwrap().begin(&client("AGAIN"), deadline()).unwrap();
    let mut keeps = again(Box::new(test.connect("KEEPS")));
    let found = keeps.addresses(&["scuba@mail.example"]).unwrap();
    assert_eq!(found.entries[0].1.user, "before");
    test.admin()
        .batch_execute(&format!(
            "DROP TABLE addresses; CREATE DOMAIN mailbox_name AS text; CREATE TYPE account AS ENUM ('scuba'); \
             CREATE VIEW addresses AS SELECT 'scuba@mail.example'::text AS address, 'scuba'::account AS imap_user, \
             'INBOX'::mailbox_name AS inbox, 'Sent'::name AS sent, NULL::text AS destination; GRANT SELECT ON addresses TO {}",
            test.name
        ))
        .unwrap();
    for database in [&mut test.connect("A"), &mut *again(keeps)] {
        let book = database.addresses(&["scuba@mail.example"]).unwrap();
        assert_eq!(book.entries.len(), 1);
        assert_eq!(book.entries[0].1.user, "scuba");
    }
}

/// An address that is not found is refused for good; a standby that lags behind may not have the newest addresses.
fn an_address_that_a_standby_lacks_is_not_unknown(server: &str) {
    let test = TestDatabase::migrated(server);
    test.admin().batch_execute("INSERT INTO addresses VALUES ('scuba@mail.example', 'scuba')").unwrap();
    test.role_setting("default_transaction_read_only = on");
    let mut standby = test.connect("A");
    let error = standby.addresses(&["doug@mail.example"]).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::ReadOnly, "{error}");
    assert_eq!(standby.addresses(&["scuba@mail.example"]).unwrap().entries.len(), 1);
}

fn the_journal_is_seen_by_everybody_at_once(server: &str) {
    let test = TestDatabase::migrated(server);
    let (mut first, mut second) = (test.connect("FIRST"), test.connect("SECOND"));
    let mail = Mail::new("<123-abc@mail.google.com>");
    let (older, newer) = (Uuid::now_v7(), Uuid::now_v7());
    let position = Position { uid_validity: u32::MAX, uid_next: 4_000_000_000 };
    first.journal(&mail.journal(older, Some(position))).unwrap();
    second.journal(&mail.journal(newer, None)).unwrap();

    let [recipient, sender] = mail.keys();
    // In the order asked for, as often as asked for.
    let seen = first.look(&[sender, recipient, sender]).unwrap();
    assert_eq!(seen.iter().map(|copy| copy.key).collect::<Vec<_>>(), [sender, recipient, sender]);
    for copy in &seen {
        assert_eq!(copy.delivered, None);
        let [a, b] = &copy.open_attempts[..] else { panic!("{copy:?}") };
        assert_eq!((a.attempt, b.attempt), (older, newer));
        assert_eq!((a.position, b.position), (Some(position), None));
        assert_eq!(a.recipient, mail.recipient);
        assert!(a.age >= b.age && b.age >= 0.0 && a.age < 120.0, "{a:?} {b:?}");
    }
    let row = "SELECT concat_ws(' ', role, imap_user, mailbox, message_id, recipient, queue_id, host, pid, session > 0) \
               FROM attempts ORDER BY role DESC, started_at LIMIT 1";
    assert_eq!(
        test.value(row).as_deref(),
        Some("sender lisa Sent <123-abc@mail.google.com> scuba@mail.example 4XyZ12 mx1.example.com 4711 t")
    );
    let digests = format!(
        "SELECT count(*) FROM attempts WHERE identity = '\\x{}' AND lock_digest = '\\x{}'",
        hex(mail.identity.as_bytes()),
        hex(mail.lock.digest())
    );
    assert_eq!(test.value(&digests).as_deref(), Some("4"));
}

fn a_copy_that_nobody_tried_has_no_history(server: &str) {
    let test = TestDatabase::migrated(server);
    let mut database = test.connect("A");
    let keys = Mail::new("<nobody@tried.example>").keys();
    let seen = database.look(&keys).unwrap();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|copy| copy.delivered.is_none() && copy.open_attempts.is_empty()));
    assert_eq!(database.first_attempt_age(&keys).unwrap(), Duration::ZERO);
    assert!(database.look(&[]).unwrap().is_empty());
}

fn the_first_attempt_counts(server: &str) {
    let test = TestDatabase::migrated(server);
    let mut database = test.connect("A");
    let mail = Mail::new("<123-abc@mail.google.com>");
    let (first, second) = (Uuid::now_v7(), Uuid::now_v7());
    database.journal(&mail.journal(first, None)).unwrap();
    let ended = mail.record(first, owed(), owed()).ended;
    database.record(&Record { ended, ..Record::default() }).unwrap();
    thread::sleep(Duration::from_millis(300));
    database.journal(&mail.journal(second, None)).unwrap();
    let age = database.first_attempt_age(&mail.keys()).unwrap();
    assert!(age >= Duration::from_millis(300) && age < Duration::from_secs(120), "{age:?}");
    // A clock that was set back.
    test.admin().batch_execute("UPDATE attempts SET started_at = started_at + '1 hour'").unwrap();
    assert_eq!(database.first_attempt_age(&mail.keys()).unwrap(), Duration::ZERO);
    assert!(database.look(&mail.keys()).unwrap()[0].open_attempts[0].age < 0.0);
}

fn an_ended_attempt_is_not_open(server: &str) {
    let test = TestDatabase::migrated(server);
    let mut database = test.connect("A");
    let mail = Mail::new("<123-abc@mail.google.com>");
    let (gone, open) = (Uuid::now_v7(), Uuid::now_v7());
    database.journal(&mail.journal(gone, None)).unwrap();
    database.journal(&mail.journal(open, None)).unwrap();
    let mut ended = mail.record(gone, owed(), owed()).ended;
    for end in &mut ended {
        end.outcome = Outcome::Busy;
    }
    database.record(&Record { ended: ended.clone(), ..Record::default() }).unwrap();
    for copy in database.look(&mail.keys()).unwrap() {
        assert_eq!(copy.open_attempts.iter().map(|attempt| attempt.attempt).collect::<Vec<_>>(), [open]);
    }
    // As it ended, so it stays.
    for end in &mut ended {
        end.outcome = Outcome::Appended;
    }
    database.record(&Record { ended, ..Record::default() }).unwrap();
    let outcomes = "SELECT string_agg(DISTINCT outcome, ',') FROM attempts";
    assert_eq!(test.value(outcomes).as_deref(), Some("busy"));
}

fn a_missing_schema_says_what_fixes_it(server: &str) {
    let test = TestDatabase::empty(server);
    let error = test.connect("A").journal(&Mail::new("x").journal(Uuid::now_v7(), None)).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::Schema);
    assert!(error.to_string().starts_with("writing the journal: relation \"attempts\" does not exist"), "{error}");
    assert!(error.to_string().contains("maildrop_command migrate"), "{error}");
}

fn a_read_only_database_takes_no_journal(server: &str) {
    let test = TestDatabase::migrated(server);
    test.role_setting("default_transaction_read_only = on");
    let error = test.connect("A").journal(&Mail::new("x").journal(Uuid::now_v7(), None)).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::ReadOnly, "{error}");
}

fn a_role_without_rights_is_denied(server: &str) {
    let test = TestDatabase::migrated(server);
    test.admin().batch_execute(&format!("REVOKE INSERT ON attempts FROM {}", test.name)).unwrap();
    let error = test.connect("A").journal(&Mail::new("x").journal(Uuid::now_v7(), None)).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::AccessDenied, "{error}");
}

/// The first try, and no other, hears what the server says of a deadlock.
fn a_journal_that_meets_a_deadlock_is_written_again(server: &str) {
    let test = TestDatabase::migrated(server);
    let trigger = format!(
        "CREATE SEQUENCE tries; GRANT USAGE ON SEQUENCE tries TO {}; \
         CREATE FUNCTION fails_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           IF nextval('tries') = 1 THEN RAISE EXCEPTION 'a deadlock' USING ERRCODE = 'deadlock_detected'; END IF; \
           RETURN NULL; END $$; \
         CREATE TRIGGER fails_once BEFORE INSERT ON attempts FOR EACH STATEMENT EXECUTE FUNCTION fails_once()",
        test.name
    );
    test.admin().batch_execute(&trigger).unwrap();
    test.connect("A").journal(&Mail::new("x").journal(Uuid::now_v7(), None)).unwrap();
    assert_eq!(test.value("SELECT count(*) FROM attempts").as_deref(), Some("2"));
    assert_eq!(test.value("SELECT last_value FROM tries").as_deref(), Some("2"));
}

fn owed() -> maildrop_command::ledger::CopyState<'static> {
    maildrop_command::ledger::CopyState::Owed("not this test's matter")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
