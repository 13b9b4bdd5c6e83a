//! The reads of commands and the web UI on the ledger, on SQLite: these statements are written once for all engines.

mod attempts_tests;
mod copies_tests;
mod delivery_locks_tests;
mod failures_tests;
mod message_addresses_tests;
mod old_events_tests;
mod very_many_tests;
mod web_sessions_tests;

use super::message_addresses::AddressPattern;
use super::trace::{self, By};
use super::{CopyKey, Database, Notifications, Outcome, retention, statistics};
use crate::base::deadline::Deadline;
use crate::database::{Client, DatabaseFailure, SqliteDatabase, Tables, Value};
use crate::lock::{Holder, LockName};
use crate::message::{Identity, Role};
use std::time::Duration;
use uuid::Uuid;

/// A time in 2026, and spans of time, in microseconds.
const THEN: i64 = 1_790_000_000_000_000;
const MINUTE: i64 = 60_000_000;
const DAY: i64 = 24 * 60 * MINUTE;

pub(super) struct Site {
    pub(super) database: SqliteDatabase,
    _directory: tempfile::TempDir,
}

pub(super) fn site() -> Site {
    let directory = tempfile::tempdir().unwrap();
    let client = Client { host: "mx1".into(), pid: 1, queue_id: None };
    let deadline = Deadline::after(Duration::from_hours(1));
    let database = crate::ledger::schema::open_embedded(directory.path(), &client, deadline).unwrap();
    Site { database, _directory: directory }
}

/// The identity of the message with this number.
fn identity(message: i64) -> Identity {
    let mut bytes = [0; 32];
    bytes[24..].copy_from_slice(&message.to_be_bytes());
    Identity::from_bytes(bytes)
}

/// Ten messages have one Message-ID.
fn lock(message: i64) -> LockName {
    LockName::new("maildrop", format!("{}@x", message / 10).as_bytes())
}

fn key(message: i64, role: Role, user: &str) -> CopyKey {
    CopyKey::new(&identity(message), role, user, mailbox(role))
}

fn mailbox(role: Role) -> &'static str {
    if role == Role::Sender { "Sent" } else { "INBOX" }
}

#[derive(Clone, Copy)]
struct Attempt<'a> {
    message: i64,
    role: Role,
    user: &'a str,
    /// `None`: the UUID is of the time when it began.
    name: Option<Uuid>,
    began: i64,
    ended: Option<(i64, &'a str)>,
    queue_id: Option<&'a str>,
    /// The envelope sender.
    sender: Option<&'a str>,
    host: &'a str,
}

impl Attempt<'_> {
    /// An attempt at a recipient's copy that has not ended.
    fn at(message: i64, began: i64) -> Self {
        Self {
            message,
            role: Role::Recipient,
            user: "doug",
            name: None,
            began,
            ended: None,
            queue_id: None,
            sender: None,
            host: "mx1",
        }
    }

    fn name(&self) -> Uuid {
        self.name.unwrap_or_else(|| {
            let first = super::time_span::first_uuid_of(self.began).as_u128();
            Uuid::from_u128(first + u128::from(self.message.unsigned_abs()))
        })
    }
}

impl Site {
    fn make(&mut self, table: &str) {
        self.database.change("making a table", &format!("CREATE TABLE {table}"), &[]).unwrap();
    }

    fn put(&mut self, table: &str, row: &[(&str, Value<'_>)]) {
        let (columns, values): (Vec<&str>, Vec<Value<'_>>) = row.iter().copied().unzip();
        let places = vec!["?"; values.len()].join(", ");
        let sql = format!("INSERT INTO {table} ({}) VALUES ({places})", columns.join(", "));
        self.database.change("filling", &sql, &values).unwrap();
    }

    fn tried(&mut self, attempt: Attempt<'_>) -> Uuid {
        let (identity, lock) = (identity(attempt.message), lock(attempt.message));
        let (name, message_id) = (attempt.name(), format!("{}@x", attempt.message / 10));
        let key = key(attempt.message, attempt.role, attempt.user);
        let recipient = format!("{}@x", attempt.user);
        self.put(
            "attempts",
            &[
                ("attempt", Value::Uuid(name)),
                ("copy_key", Value::Bytes(key.as_bytes())),
                ("role", Value::Text(attempt.role.as_str())),
                ("imap_user", Value::Text(attempt.user)),
                ("mailbox", Value::Text(mailbox(attempt.role))),
                ("identity", Value::Bytes(identity.as_bytes())),
                ("lock_digest", Value::Bytes(lock.digest())),
                ("message_id", Value::Text(&message_id)),
                ("recipient", Value::Text(&recipient)),
                ("queue_id", attempt.queue_id.map_or(Value::Null, Value::Text)),
                ("sender", attempt.sender.map_or(Value::Null, Value::Text)),
                ("host", Value::Text(attempt.host)),
                ("pid", Value::Integer(17)),
                ("started_at", Value::Moment(attempt.began)),
                ("ended_at", attempt.ended.map_or(Value::Null, |(at, _)| Value::Moment(at))),
                ("outcome", attempt.ended.map_or(Value::Null, |(_, outcome)| Value::Text(outcome))),
            ],
        );
        name
    }

    fn message(&mut self, message: i64, recorded_at: i64) {
        let (identity, lock) = (identity(message), lock(message));
        let message_id = format!("{}@x", message / 10);
        self.put(
            "messages",
            &[
                ("id", Value::Integer(message)),
                ("identity", Value::Bytes(identity.as_bytes())),
                ("lock_digest", Value::Bytes(lock.digest())),
                ("message_id", Value::Text(&message_id)),
                ("content_digest", Value::Bytes(&[7; 32])),
                ("sender", Value::Text("Lisa@x")),
                ("headers", Value::Text("[]")),
                ("size", Value::Integer(1000 + message)),
                ("recorded_at", Value::Moment(recorded_at)),
            ],
        );
    }

    /// A copy that is delivered under this UID, or owed.
    fn copy(&mut self, message: i64, role: Role, user: &str, uid: Option<i64>, at: i64) -> CopyKey {
        let key = key(message, role, user);
        let recipient = format!("{user}@x");
        let delivered = uid.map_or(Value::Null, |_| Value::Moment(at));
        self.put(
            "copies",
            &[
                ("copy_key", Value::Bytes(key.as_bytes())),
                ("message", Value::Integer(message)),
                ("role", Value::Text(role.as_str())),
                ("imap_user", Value::Text(user)),
                ("mailbox", Value::Text(mailbox(role))),
                ("recipient", Value::Text(&recipient)),
                ("state", Value::Text(if uid.is_some() { "delivered" } else { "owed" })),
                ("uid_validity", uid.map_or(Value::Null, |_| Value::Integer(5))),
                ("uid", uid.map_or(Value::Null, Value::Integer)),
                ("reason", if uid.is_some() { Value::Null } else { Value::Text("over quota") }),
                ("delivered_at", delivered),
                ("updated_at", Value::Moment(at)),
            ],
        );
        key
    }

    fn source(&mut self, message: i64) {
        self.put("message_sources", &[("message_id", Value::Integer(message)), ("source", Value::Bytes(b"x"))]);
    }

    fn number(&mut self, sql: &str) -> i64 {
        self.database.select("asking", sql, &[]).unwrap()[0].value(0).unwrap().unwrap()
    }

    /// The numbers of the matching messages, and whether there are more.
    fn found(&mut self, by: By<'_>, limit: usize) -> (Vec<i64>, bool) {
        let (found, more) = trace::find(&mut self.database, by, limit).unwrap();
        let number = |identity: [u8; 32]| i64::from_be_bytes(identity[24..].try_into().unwrap());
        (found.into_iter().map(|found| number(found.identity)).collect(), more)
    }
}

#[test]
fn a_message_is_found_by_each_of_its_names_the_newest_first() {
    let mut site = site();
    for message in 11..15 {
        site.tried(Attempt { queue_id: Some("4bQ"), ..Attempt::at(message, THEN + message * MINUTE) });
    }
    // Another Message-ID; a recorded message whose attempts are deleted; one with only a sent copy.
    site.tried(Attempt { user: "anna", queue_id: Some("4bX"), ..Attempt::at(20, THEN + DAY) });
    site.message(16, THEN + DAY);
    site.message(13, THEN + 13 * MINUTE);
    let lock = lock(10);
    assert_eq!(site.found(By::Lock(&lock), 10), (vec![16, 14, 13, 12, 11], false));
    assert_eq!(site.found(By::Lock(&lock), 5), (vec![16, 14, 13, 12, 11], false));
    assert_eq!(site.found(By::Lock(&lock), 2), (vec![16, 14], true));
    let found = |site: &mut Site, queue_id, since| site.found(By::QueueId(queue_id, since, None), 10).0;
    assert_eq!(found(&mut site, "4bQ", THEN), [14, 13, 12, 11]);
    assert_eq!(found(&mut site, "4bQ", THEN + 13 * MINUTE), [14, 13]);
    assert_eq!(found(&mut site, "4bQ", THEN + 13 * MINUTE + 1), [14]);
    assert_eq!(found(&mut site, "4bX", THEN), [20]);
    assert!(found(&mut site, "4b", THEN).is_empty());
    assert_eq!(site.found(By::QueueId("4bQ", 0, Some(lock)), 10).0, [14, 13, 12, 11]);
    let addresses =
        |site: &mut Site, pattern, user| site.found(By::Addresses { pattern: &pattern, user, since: THEN }, 10).0;
    let address = |text: &str| AddressPattern::Address(text.into());
    assert_eq!(addresses(&mut site, address("anna@x"), "nobody"), [20]);
    assert_eq!(addresses(&mut site, address("nobody@x"), "anna"), [20]);
    assert_eq!(addresses(&mut site, address("anna"), "nobody"), [20]);
    assert_eq!(addresses(&mut site, AddressPattern::Beginning("an".into()), "nobody"), [20]);
    assert_eq!(addresses(&mut site, AddressPattern::Domain("x".into()), "nobody"), [20, 14, 13, 12, 11]);
    assert!(addresses(&mut site, AddressPattern::DomainBeginning("y".into()), "nobody").is_empty());

    let identity_of = |site: &mut Site, message, lock| {
        let found = trace::find_identity(&mut site.database, *identity(message).as_bytes(), lock).unwrap();
        found.map(|found| found.lock)
    };
    assert_eq!(identity_of(&mut site, 13, None), Some(lock));
    // The recorded lock counts, and not the one that is passed in.
    assert_eq!(identity_of(&mut site, 13, Some(LockName::new("x", b"y"))), Some(lock));
    assert_eq!(identity_of(&mut site, 20, Some(LockName::new("x", b"y"))), Some(LockName::new("x", b"y")));
    assert_eq!(identity_of(&mut site, 20, None), None);
}

#[test]
fn a_trace_has_all_copies_and_attempts_however_many_there_are() {
    let mut site = site();
    site.message(7, THEN);
    let users: Vec<String> = (0..501).map(|number| format!("user{number:04}")).collect();
    for (number, user) in (0..).zip(&users) {
        let copy = Attempt { user, ..Attempt::at(7, THEN + number) };
        site.tried(Attempt { name: Some(Uuid::from_u128(1 + u128::from(number.unsigned_abs()))), ..copy });
        site.copy(7, Role::Recipient, user, Some(number), THEN + number);
    }
    // Another message of the same lock.
    site.tried(Attempt::at(8, THEN));
    let (found, _) = trace::find(&mut site.database, By::Lock(&lock(7)), 2).unwrap();
    let found = found.iter().find(|found| found.identity == *identity(7).as_bytes()).unwrap();
    let trace = trace::read(&mut site.database, found, None).unwrap();
    assert!(trace.copies.iter().map(|copy| &copy.user).eq(&users));
    assert!(trace.copies.iter().map(|copy| copy.uid).eq((0..501).map(Some)));
    assert!(trace.attempts.iter().map(|attempt| &attempt.copies[0].user).eq(&users));
}

#[test]
fn a_trace_tells_what_each_attempt_came_to_and_who_holds_the_lock() {
    let mut site = site();
    site.message(7, THEN + MINUTE);
    site.source(7);
    let inbox = site.copy(7, Role::Recipient, "doug", Some(3), THEN + MINUTE);
    let sent = site.copy(7, Role::Sender, "lisa", None, THEN + MINUTE);
    // One of two copies, which ended one after the other; the author's comes first in the order of keys, or does not.
    let first = Attempt {
        ended: Some((THEN + MINUTE, "appended")),
        queue_id: Some("4bQ"),
        host: "mx2",
        ..Attempt::at(7, THEN)
    };
    let name = site.tried(first);
    let second = Attempt {
        role: Role::Sender,
        user: "lisa",
        name: Some(name),
        ended: Some((THEN + 2 * MINUTE, "owed: over quota")),
        ..first
    };
    site.tried(second);
    // It ended before all others, and brought nothing.
    site.tried(Attempt { ended: Some((THEN + 1, "deferred: x")), host: "mx3", ..Attempt::at(7, THEN - 1) });
    // It found the copy in the mailbox; and one that has ended for one copy only.
    let later = Attempt { ended: Some((THEN + 3 * MINUTE, "already there")), ..Attempt::at(7, THEN + 2 * MINUTE) };
    site.tried(later);
    let open = Attempt { ended: Some((THEN + 5 * MINUTE, "already there")), ..Attempt::at(7, THEN + 4 * MINUTE) };
    let open_name = site.tried(open);
    site.tried(Attempt { role: Role::Sender, user: "lisa", name: Some(open_name), ended: None, ..open });
    let found = trace::find(&mut site.database, By::Lock(&lock(7)), 1).unwrap().0;
    let read = |site: &mut Site, holder| trace::read(&mut site.database, &found[0], holder).unwrap();
    let trace = read(&mut site, None);

    let message = trace.message.as_ref().unwrap();
    assert_eq!((trace.message_id.as_str(), message.sender.as_str(), message.size), ("0@x", "Lisa@x", 1007));
    assert!(message.source_kept && message.recorded_at == THEN + MINUTE);
    let copies: Vec<_> =
        trace.copies.iter().map(|copy| (copy.key, copy.delivered, copy.uid, copy.delivered_at)).collect();
    assert_eq!(
        copies,
        [(*inbox.as_bytes(), true, Some(3), Some(THEN + MINUTE)), (*sent.as_bytes(), false, None, None)]
    );
    let attempts: Vec<_> = trace.attempts.iter().map(|attempt| (attempt.began_at, attempt.ended_at)).collect();
    let expected = [
        (THEN - 1, Some(THEN + 1)),
        (THEN, Some(THEN + 2 * MINUTE)),
        (THEN + 2 * MINUTE, Some(THEN + 3 * MINUTE)),
        (THEN + 4 * MINUTE, None),
    ];
    assert_eq!(attempts, expected);
    let roles = |at: usize| trace.attempts[at].copies.iter().map(|copy| copy.role).collect::<Vec<_>>();
    assert_eq!([roles(1), roles(3)], [[Role::Recipient, Role::Sender]; 2]);
    assert!(trace.attempts[1].copies[0].earlier.is_none());
    let earlier = trace.attempts[2].copies[0].earlier.as_ref().unwrap();
    assert_eq!((earlier.queue_id.as_deref(), earlier.host.as_deref()), (Some("4bQ"), Some("mx2")));
    assert_eq!((earlier.sender.as_deref(), earlier.delivered_at), (None, THEN + MINUTE));

    // The lock's holder is identified by host and process, or by the session.
    let holding = |site: &mut Site, host: &str, pid| {
        let holder = Holder { host: Some(host.into()), pid: Some(pid), ..Holder::default() };
        let trace = read(site, Some(holder));
        trace.attempts.iter().map(|attempt| attempt.holds_the_lock).collect::<Vec<_>>()
    };
    assert_eq!(holding(&mut site, "mx1", 17), [false, false, false, true]);
    assert_eq!(holding(&mut site, "mx1", 18), [false; 4]);
    assert_eq!(holding(&mut site, "mx2", 17), [false; 4]);
    let of_session = |site: &mut Site, session| {
        let trace = read(site, Some(Holder { session, ..Holder::default() }));
        trace.attempts.iter().map(|attempt| attempt.holds_the_lock).collect::<Vec<_>>()
    };
    assert_eq!(of_session(&mut site, None), [false; 4], "neither has a number");
    site.database.change("filling", "UPDATE attempts SET session = 4711", &[]).unwrap();
    assert_eq!(of_session(&mut site, Some(4711)), [false, false, false, true]);
    assert_eq!(of_session(&mut site, Some(4712)), [false; 4]);
}

#[test]
fn of_a_message_that_was_never_recorded_its_attempts_tell() {
    let mut site = site();
    site.tried(Attempt { ended: Some((THEN + 1, "deferred: x")), ..Attempt::at(7, THEN) });
    let found = trace::find(&mut site.database, By::Lock(&lock(7)), 1).unwrap().0;
    let trace = trace::read(&mut site.database, &found[0], None).unwrap();
    assert!(trace.message.is_none() && trace.copies.is_empty());
    assert_eq!((trace.message_id.as_str(), trace.attempts.len()), ("0@x", 1));
}

#[test]
fn what_is_counted_is_of_its_span_of_time() {
    let mut site = site();
    for (message, at) in [(1, THEN - 1), (2, THEN), (3, THEN + 1), (4, THEN + DAY)] {
        site.message(message, at);
        site.tried(Attempt::at(message, at));
        site.copy(message, Role::Sender, "lisa", None, at);
    }
    let recorded =
        |site: &mut Site, from, until| statistics::recorded_messages(&mut site.database, from, until).unwrap();
    assert_eq!(recorded(&mut site, THEN, THEN + DAY), (2, 2005));
    assert_eq!(recorded(&mut site, 0, i64::MAX), (4, 4010));
    assert_eq!(recorded(&mut site, 0, THEN - 1), (0, 0));
    let owed = |site: &mut Site, before| statistics::owed_copies(&mut site.database, before).unwrap();
    assert_eq!([None, Some(THEN), Some(THEN + 1)].map(|before| owed(&mut site, before)), [4, 1, 2]);

    site.tried(Attempt { ended: Some((THEN + 9, "appended")), ..Attempt::at(5, THEN + 5) });
    site.database.change("filling", "UPDATE attempts SET stages = '{\"lock\":1.5}' WHERE ended_at > 0", &[]).unwrap();
    let mut seen = Vec::new();
    statistics::each_page_of_attempts(&mut site.database, THEN, THEN + DAY, |page| {
        seen.extend(page.into_iter().map(|tried| (tried.attempt, tried.role, tried.outcome, tried.stages)));
    })
    .unwrap();
    let open = |message, at| (Attempt::at(message, at).name(), Role::Recipient, None, None);
    let ended =
        (Attempt::at(5, THEN + 5).name(), Role::Recipient, Some(Outcome::Appended), Some("{\"lock\":1.5}".into()));
    seen.sort_by_key(|(attempt, ..)| *attempt);
    assert_eq!(seen, [open(2, THEN), open(3, THEN + 1), ended]);
}

#[test]
fn each_old_message_is_met_once_however_many_were_recorded_in_one_moment() {
    let mut site = site();
    let fill = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1203) \
                INSERT INTO messages (id, identity, lock_digest, message_id, content_digest, sender, headers, size, recorded_at) \
                SELECT i, CAST(printf('%032d', i) AS BLOB), zeroblob(32), 'x', zeroblob(32), '', '[]', 1, ? + i / 800 FROM n";
    site.database.change("filling", fill, &[Value::Moment(THEN)]).unwrap();
    let mut old = retention::OldMessages::before(THEN + 1);
    let mut pages = || old.some(&mut site.database).unwrap().map(|page| page.len());
    assert_eq!([pages(), pages(), pages()], [Some(500), Some(299), None]);
    let mut old = retention::OldMessages::before(THEN + 2);
    let mut pages = || old.some(&mut site.database).unwrap().map(|page| page.len());
    assert_eq!([pages(), pages(), pages(), pages()], [Some(500), Some(500), Some(203), None]);
}

#[test]
fn what_is_forgotten_is_older_than_its_moment_and_not_needed_any_more() {
    let mut site = site();
    let ended = Some((THEN, "appended"));
    for (message, at) in [(1, THEN - 2), (12, THEN - 1), (23, THEN), (34, THEN - 3), (45, THEN - 3)] {
        site.message(message, at);
        site.source(message);
        site.copy(message, Role::Recipient, "doug", Some(message), at);
        site.tried(Attempt { ended, ..Attempt::at(message, at) });
    }
    // Of these one is owed, and the other has an attempt that has not ended.
    site.copy(34, Role::Sender, "lisa", None, THEN - 3);
    site.tried(Attempt { user: "anna", ..Attempt::at(45, THEN - 2) });
    let database = &mut site.database;
    let attempts = [true, false].map(|ended| retention::count_attempts(database, THEN, ended).unwrap());
    assert_eq!(attempts, [4, 1]);
    assert_eq!(retention::count_attempts(database, THEN + 1, true).unwrap(), 5);
    assert_eq!([true, false].map(|owed| retention::count_sources(database, THEN, owed).unwrap()), [1, 3]);
    assert_eq!(retention::count_owed_messages(database, THEN).unwrap(), 1);
    assert_eq!(retention::count_owed_messages(database, THEN - 3).unwrap(), 0);
    assert_eq!([true, false].map(|heard| retention::count_messages(database, THEN, heard).unwrap()), [1, 2]);

    let mut old = retention::OldAttempts::before(THEN);
    assert_eq!(old.delete_batch(database).unwrap(), Some(4));
    assert_eq!(old.delete_batch(database).unwrap(), None);
    let mut old = retention::OldSources::before(THEN);
    assert_eq!(old.delete_batch(database).unwrap(), Some(3));
    assert_eq!(old.delete_batch(database).unwrap(), None);
    let mut old = retention::OldMessages::before(THEN);
    let some = old.some(database).unwrap().unwrap();
    assert_eq!(some.len(), 2);
    assert!(old.some(database).unwrap().is_none());
    // One was referenced in the meantime.
    let journalled = some.iter().find(|message| message.lock == lock(12)).unwrap();
    site.tried(Attempt::at(12, THEN + 5));
    assert!(!journalled.forget(&mut site.database, THEN).unwrap());
    let gone = some.iter().find(|message| message.lock == lock(1)).unwrap();
    assert!(gone.forget(&mut site.database, THEN).unwrap());
    assert!(!gone.forget(&mut site.database, THEN).unwrap(), "it is forgotten once");
    let mut left = |table: &str, column: &str| {
        let sql = format!("SELECT group_concat({column}, ' ') FROM (SELECT {column} FROM {table} ORDER BY {column})");
        site.database.select("asking", &sql, &[]).unwrap()[0].text(0).unwrap_or_default().to_owned()
    };
    assert_eq!(left("messages", "id"), "12 23 34 45");
    assert_eq!(left("copies", "message"), "12 23 34 34 45");
    assert_eq!(left("message_sources", "message_id"), "23 34");
}

#[test]
fn old_rows_are_forgotten_in_pieces_until_none_is_left() {
    let mut site = site();
    for message in 0..51 {
        site.message(message, THEN);
        site.source(message);
    }
    let mut old = retention::OldSources::before(THEN + 1);
    let mut pieces = || old.delete_batch(&mut site.database).unwrap();
    assert_eq!([pieces(), pieces(), pieces()], [Some(50), Some(1), None]);

    let logged = "INSERT INTO operations (created_at, actor, interface, host, operation, outcome) \
                  WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 502) \
                  SELECT ?, 'lisa', 'web UI', 'mx1', 'replay', 'done' FROM n";
    site.database.change("filling", logged, &[Value::Moment(THEN)]).unwrap();
    site.database.change("filling", "UPDATE operations SET created_at = created_at + 1 WHERE id = 502", &[]).unwrap();
    assert_eq!(retention::count_operations(&mut site.database, THEN + 1).unwrap(), 501);
    assert_eq!(retention::count_operations(&mut site.database, THEN).unwrap(), 0);
    let mut pieces = || retention::delete_operations(&mut site.database, THEN + 1).unwrap();
    assert_eq!([pieces(), pieces(), pieces()], [Some(500), Some(1), None]);
    // A clock was set back: older rows behind a newer one wait for it.
    site.database.change("filling", logged, &[Value::Moment(THEN)]).unwrap();
    assert_eq!(retention::delete_operations(&mut site.database, THEN + 1).unwrap(), None);
    assert_eq!(site.number("SELECT count(*) FROM operations"), 503);
    assert!(retention::try_right(&mut site.database, &["attempts", "copies"]).is_ok());
    assert!(retention::try_right(&mut site.database, &["attempts", "nowhere"]).is_err());
    assert_eq!(site.number("SELECT count(*) FROM messages"), 51);
}

#[test]
fn an_embedded_ledger_has_no_addresses_and_forgets_nothing() {
    let mut site = site();
    let ledger: &mut dyn Database = &mut site.database;
    let failure = |error: Option<crate::database::DatabaseError>| error.map(|error| error.failure);
    let login_check = super::LoginCheck::new("imap://x".into());
    let no_table = failure(ledger.addresses(&["doug@x"]).err());
    assert!(no_table.is_some());
    assert_eq!(failure(ledger.look_up(&["doug@x"], Some(&login_check)).err()), no_table);
    assert_eq!(failure(ledger.record_login_check(&login_check, "mx1", true).err()), no_table);
    assert_eq!(failure(ledger.refuse("mx1", &["doug@x"]).err()), no_table);
    assert_ne!(no_table, Some(DatabaseFailure::Contention));
    assert!(ledger.begin_epoch().is_ok());
    let epoch = ledger.epoch().unwrap();
    assert!(!epoch.is_unwritten() && epoch.began().is_none());
    // It has no subscriptions, either.
    assert!(ledger.lease(Uuid::nil(), Duration::from_mins(1), 9, &[], 0).is_err());
    assert!(ledger.has_unpublished(0).is_err());
}
