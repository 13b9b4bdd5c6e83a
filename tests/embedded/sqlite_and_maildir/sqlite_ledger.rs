//! The journal, the look and the record of SQLite, through every state of a copy.

use crate::support::clients_and_processes::{identity, open};
use maildrop_command::database::{Tables, Value};
use maildrop_command::ledger::audit_queries::{self, Selection};
use maildrop_command::ledger::{
    CopyHistory, CopyKey, CopyRecord, CopyState, EndedAttempt, Journal, JournalCopy, Ledger, MessageRecord, Outcome,
    Record,
};
use maildrop_command::lock::LockName;
use maildrop_command::mailbox::{Placement, Position};
use maildrop_command::message::Identity;
use maildrop_command::message::Role;
use std::path::Path;
use std::time::Duration;
use uuid::Uuid;

struct Scene {
    identity: Identity,
    lock: LockName,
    inbox: CopyKey,
    sent: CopyKey,
    raw: Option<&'static [u8]>,
}

fn scene() -> Scene {
    let identity = identity("Subject: a\r\n\r\nb\r\n");
    Scene {
        lock: LockName::new("maildrop", b"1@x"),
        inbox: CopyKey::new(&identity, Role::Recipient, "doug@x", "INBOX"),
        sent: CopyKey::new(&identity, Role::Sender, "lisa@x", "Sent"),
        identity,
        raw: None,
    }
}

impl Scene {
    fn journal(&self, ledger: &mut dyn Ledger, recipient: &str, position: Option<Position>) -> Uuid {
        let attempt = Uuid::now_v7();
        let copy = |key, role, user, mailbox| JournalCopy { key, role, user, mailbox, recipient, position };
        ledger
            .journal(&Journal {
                attempt,
                identity: &self.identity,
                lock: &self.lock,
                message_id: "1@x",
                queue_id: Some("4bXyz"),
                sender: Some("lisa@x"),
                host: "mx1.example",
                pid: 17,
                copies: vec![
                    copy(self.inbox, Role::Recipient, "doug@x", "INBOX"),
                    copy(self.sent, Role::Sender, "lisa@x", "Sent"),
                ],
            })
            .unwrap();
        attempt
    }

    fn message(&self) -> MessageRecord<'_> {
        MessageRecord {
            identity: &self.identity,
            lock: &self.lock,
            message_id: "1@x",
            content_digest: &[7; 32],
            sender: "lisa@x",
            from: Some("Lisa <lisa@x>"),
            to: None,
            cc: None,
            subject: Some("a"),
            date: Some(i64::MAX),
            headers: "[]",
            size: 17,
            raw: self.raw,
        }
    }

    fn copy<'a>(&self, key: CopyKey, state: CopyState<'a>) -> CopyRecord<'a> {
        let (role, user, mailbox) =
            if key == self.sent { (Role::Sender, "lisa@x", "Sent") } else { (Role::Recipient, "doug@x", "INBOX") };
        CopyRecord { key, role, user, mailbox, recipient: "doug@x", state }
    }

    fn record(&self, ledger: &mut dyn Ledger, key: CopyKey, state: CopyState<'_>) {
        let record = Record {
            message: Some(self.message()),
            copies: vec![self.copy(key, state)],
            ended: vec![],
            events: vec![],
        };
        ledger.record(&record).unwrap();
    }
}

fn look(ledger: &mut dyn Ledger, key: CopyKey) -> CopyHistory {
    ledger.look(&[key]).unwrap().pop().unwrap()
}

fn placement(uid: u32) -> Option<Placement> {
    Some(Placement { uid_validity: u32::MAX, uid })
}

#[test]
fn a_copy_that_nobody_tried_is_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = open(directory.path());
    let scene = scene();
    let histories = ledger.look(&[scene.sent, scene.inbox]).unwrap();
    assert_eq!(histories.iter().map(|h| h.key).collect::<Vec<_>>(), [scene.sent, scene.inbox]);
    assert!(histories.iter().all(|h| h.delivered.is_none() && h.open_attempts.is_empty()));
    assert_eq!(ledger.first_attempt_age(&[scene.sent]).unwrap(), Duration::ZERO);
}

#[test]
fn attempts_are_open_until_they_end_and_their_age_counts_from_the_first() {
    let directory = tempfile::tempdir().unwrap();
    let (mut one, mut two) = (open(directory.path()), open(directory.path()));
    let scene = scene();
    let position = Some(Position { uid_validity: u32::MAX, uid_next: 3 });
    let first = scene.journal(&mut one, "doug@x", position);
    std::thread::sleep(Duration::from_millis(100));
    let second = scene.journal(&mut two, "scuba@x", None);

    let open_attempts = look(&mut two, scene.sent).open_attempts;
    assert_eq!(open_attempts.iter().map(|a| a.attempt).collect::<Vec<_>>(), [first, second]);
    assert_eq!(open_attempts[0].recipient, "doug@x");
    assert_eq!(open_attempts[0].position, position);
    assert_eq!(open_attempts[1].position, None);
    assert!((0.1..60.0).contains(&open_attempts[0].age), "{open_attempts:?}");
    assert!((0.0..open_attempts[0].age).contains(&open_attempts[1].age), "{open_attempts:?}");

    // The one that found the lock busy ends itself, for one of its copies.
    let ended = vec![EndedAttempt { attempt: first, key: scene.sent, outcome: Outcome::Busy, stages: None }];
    one.record(&Record { message: None, copies: vec![], ended, events: vec![] }).unwrap();
    assert_eq!(look(&mut two, scene.sent).open_attempts.iter().map(|a| a.attempt).collect::<Vec<_>>(), [second]);
    assert_eq!(look(&mut two, scene.inbox).open_attempts.len(), 2);
    // Ended or not, it was the first.
    assert!(two.first_attempt_age(&[scene.inbox, scene.sent]).unwrap() >= Duration::from_millis(100));
}

#[test]
fn an_owed_copy_becomes_delivered_and_a_delivered_one_never_owed() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = open(directory.path());
    let scene = scene();
    scene.record(&mut ledger, scene.sent, CopyState::Owed("quota"));
    assert!(look(&mut ledger, scene.sent).delivered.is_none());
    scene.record(&mut ledger, scene.sent, CopyState::Owed("still"));
    assert!(look(&mut ledger, scene.sent).delivered.is_none());
    scene.record(&mut ledger, scene.sent, CopyState::Delivered(placement(5)));
    assert_eq!(look(&mut ledger, scene.sent).delivered.unwrap().placement, placement(5));
    scene.record(&mut ledger, scene.sent, CopyState::Owed("a late loser"));
    assert_eq!(look(&mut ledger, scene.sent).delivered.unwrap().placement, placement(5));
    scene.record(&mut ledger, scene.sent, CopyState::Delivered(placement(6)));
    assert_eq!(look(&mut ledger, scene.sent).delivered.unwrap().placement, placement(6));
    assert!(look(&mut ledger, scene.inbox).delivered.is_none());
    drop(ledger);
    // What was recorded is there for the next process, and in the tables that people read.
    let ledger = rusqlite::Connection::open(directory.path().join("ledger.sqlite")).unwrap();
    let (state, reason): (String, Option<String>) =
        ledger.query_row("SELECT state, reason FROM copies", [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    assert_eq!((state.as_str(), reason), ("delivered", None));
}

#[test]
fn a_maildir_copy_is_delivered_without_a_placement() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = open(directory.path());
    let scene = scene();
    scene.record(&mut ledger, scene.inbox, CopyState::Delivered(None));
    assert_eq!(look(&mut ledger, scene.inbox).delivered.unwrap().placement, None);
}

#[test]
fn a_message_is_one_row_and_its_source_is_kept_where_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = open(directory.path());
    let mut scene = scene();
    scene.record(&mut ledger, scene.inbox, CopyState::Delivered(None));
    scene.raw = Some(b"Subject: a\r\n\r\nb\0\r\n");
    scene.record(&mut ledger, scene.sent, CopyState::Delivered(None));
    scene.record(&mut ledger, scene.sent, CopyState::Delivered(None));
    let rows = |sql: &str| -> i64 {
        let path: &Path = &directory.path().join("ledger.sqlite");
        rusqlite::Connection::open(path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
    };
    drop(ledger);
    assert_eq!(rows("SELECT count(*) FROM messages"), 1);
    assert_eq!(rows("SELECT count(*) FROM copies WHERE message = (SELECT id FROM messages)"), 2);
    assert_eq!(rows("SELECT count(*) FROM message_sources WHERE length(source) = 18"), 1);
}

#[test]
fn all_of_a_record_is_written_or_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = open(directory.path());
    let scene = scene();
    let attempt = scene.journal(&mut ledger, "doug@x", None);
    let ended = vec![EndedAttempt { attempt, key: scene.inbox, outcome: Outcome::Appended, stages: None }];
    let copies = vec![scene.copy(scene.inbox, CopyState::Delivered(None))];
    // Copies of no message are refused, and the attempt is as open as before.
    ledger.record(&Record { message: None, copies: copies.clone(), ended: ended.clone(), events: vec![] }).unwrap_err();
    assert_eq!(look(&mut ledger, scene.inbox).open_attempts.len(), 1);
    // The same where SQLite refuses the last of it.
    let outside = rusqlite::Connection::open(directory.path().join("ledger.sqlite")).unwrap();
    outside.execute_batch("CREATE TRIGGER no BEFORE UPDATE ON attempts BEGIN SELECT raise(ABORT, 'no'); END").unwrap();
    ledger
        .record(&Record {
            message: Some(scene.message()),
            copies: copies.clone(),
            ended: ended.clone(),
            events: vec![],
        })
        .unwrap_err();
    assert!(look(&mut ledger, scene.inbox).delivered.is_none());
    outside.execute_batch("DROP TRIGGER no").unwrap();
    ledger.record(&Record { message: Some(scene.message()), copies, ended, events: vec![] }).unwrap();
    let history = look(&mut ledger, scene.inbox);
    assert!(history.delivered.is_some() && history.open_attempts.is_empty());
}

#[test]
fn a_message_whose_header_is_refused_is_recorded_without_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = open(directory.path());
    let scene = scene();
    let attempt = scene.journal(&mut ledger, "doug@x", None);
    let outside = rusqlite::Connection::open(directory.path().join("ledger.sqlite")).unwrap();
    let trigger = "CREATE TRIGGER no BEFORE INSERT ON messages WHEN NEW.subject IS NOT NULL \
                   BEGIN SELECT raise(ABORT, 'no'); END";
    outside.execute_batch(trigger).unwrap();
    let ended = vec![EndedAttempt { attempt, key: scene.inbox, outcome: Outcome::Appended, stages: None }];
    let copies = vec![scene.copy(scene.inbox, CopyState::Delivered(None))];
    ledger.record(&Record { message: Some(scene.message()), copies, ended, events: vec![] }).unwrap();
    let history = look(&mut ledger, scene.inbox);
    assert!(history.delivered.is_some() && history.open_attempts.is_empty());
    let kept: (String, String, Option<String>) = outside
        .query_row("SELECT message_id, headers, header_from FROM messages", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .unwrap();
    assert_eq!(kept, ("1@x".to_owned(), "[]".to_owned(), None));
}

fn all() -> Selection<'static> {
    Selection { since: 0, mailbox: None }
}

#[test]
fn copies_that_are_owed_are_reported_in_the_order_of_their_last_attempts() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = open(directory.path());
    let scene = scene();
    let users: Vec<String> = (0..8).map(|number| format!("lisa{number}")).collect();
    for user in &users {
        let key = CopyKey::new(&scene.identity, Role::Sender, user, "Sent");
        let copy =
            CopyRecord { role: Role::Sender, user, mailbox: "Sent", ..scene.copy(key, CopyState::Owed("over quota")) };
        ledger
            .record(&Record { message: Some(scene.message()), copies: vec![copy], ended: vec![], events: vec![] })
            .unwrap();
        // The next one is a later moment, to the microsecond.
        std::thread::sleep(Duration::from_millis(2));
    }
    let owed = audit_queries::owed(&mut ledger, &all()).unwrap();
    assert_eq!(owed.iter().map(|copy| copy.user.clone()).collect::<Vec<_>>(), users);
    assert_eq!(owed[0].reason.as_deref(), Some("over quota"));
    let of_one = Selection { since: 0, mailbox: Some("lisa3/Sent") };
    assert_eq!(audit_queries::owed(&mut ledger, &of_one).unwrap().len(), 1);
    // Their authors' mail programs have a while to save them.
    for (left_for, by_now, left) in
        [(None, 8, 0), (Some(Duration::ZERO), 8, 0), (Some(Duration::from_secs(3600)), 0, 8)]
    {
        let (copies, others) = audit_queries::owed_by_now(&mut ledger, &all(), left_for).unwrap();
        assert_eq!((copies.len(), others), (by_now, left), "{left_for:?}");
    }
}

/// They are asked for 500 at a time.
#[test]
fn however_many_are_owed_each_is_reported_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = open(directory.path());
    let scene = scene();
    let users: Vec<String> = (0..1203).map(|number| format!("lisa{number:04}")).collect();
    for (from, to) in [(0, 499), (499, 500), (500, 501), (501, 1000), (1000, 1203)] {
        let copies = users[from..to].iter().map(|user| {
            let key = CopyKey::new(&scene.identity, Role::Sender, user, "Sent");
            CopyRecord { role: Role::Sender, user, mailbox: "Sent", ..scene.copy(key, CopyState::Owed("over quota")) }
        });
        let record = Record { message: Some(scene.message()), copies: copies.collect(), ended: vec![], events: vec![] };
        ledger.record(&record).unwrap();
        let mut shown: Vec<String> =
            audit_queries::owed(&mut ledger, &all()).unwrap().into_iter().map(|copy| copy.user).collect();
        shown.sort();
        assert_eq!(shown, users[..to]);
    }
}

#[test]
fn a_source_and_a_place_are_reported_as_they_were_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = open(directory.path());
    let kept = Scene { raw: Some(b"as it came\0\xff"), ..scene() };
    kept.record(&mut ledger, kept.inbox, CopyState::Delivered(placement(7)));
    let mailboxes = audit_queries::delivered(&mut ledger, &all()).unwrap();
    let copies = &mailboxes[&("doug@x".to_owned(), "INBOX".to_owned())];
    assert_eq!(copies[0].placement, placement(7));
    let message = copies[0].message;
    assert_eq!(audit_queries::source(&mut ledger, message).unwrap().as_deref(), kept.raw);
    assert_eq!(audit_queries::source(&mut ledger, message + 1).unwrap(), None);
    let copy = audit_queries::of_message(&mut ledger, message).unwrap().remove(0);
    assert_eq!(copy.placement, placement(7));
    let ago = time::OffsetDateTime::now_utc() - copy.arrived();
    assert!(ago.whole_hours() == 0, "{ago}");
}

#[test]
fn an_attempt_that_began_in_the_future_is_younger_than_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = open(directory.path());
    let scene = scene();
    scene.journal(&mut ledger, "doug@x", None);
    let hour = i64::try_from(Duration::from_secs(3600).as_micros()).unwrap();
    ledger
        .change("a clock is set back", "UPDATE attempts SET started_at = started_at + ?", &[Value::Integer(hour)])
        .unwrap();
    let age = look(&mut ledger, scene.inbox).open_attempts[0].age;
    assert!((-3600.0..-3000.0).contains(&age), "{age}");
}
