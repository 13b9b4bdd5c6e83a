//! Delivered and owed copies, and deliveries to be repeated.

use super::{Attempt, DAY, MINUTE, Site, THEN, identity, key, lock, site};
use crate::database::{Tables, Value};
use crate::ledger::audit_queries::{self, SOURCE_PART, Selection};
use crate::ledger::deliveries;
use crate::lock::LockName;
use crate::mailbox::Placement;
use crate::message::Role;
use std::time::Duration;
use uuid::Uuid;

#[test]
fn copies_are_reported_by_mailbox_by_message_and_by_name() {
    let mut site = site();
    for message in 1..4 {
        site.message(message, THEN + message);
        site.copy(message, Role::Recipient, "doug", Some(message), THEN + message);
    }
    let anna = site.copy(1, Role::Recipient, "anna", Some(9), THEN + DAY);
    let sent = site.copy(1, Role::Sender, "lisa", Some(4), THEN);
    let owed = site.copy(2, Role::Sender, "lisa", None, THEN);
    // Attempts that may have brought the copy, under this UIDVALIDITY.
    for (uid_validity, uid_next, name) in [(5, 7, 1), (5, 3, 2), (4, 1, 3)] {
        site.tried(Attempt { user: "anna", name: Some(Uuid::from_u128(name)), ..Attempt::at(1, THEN) });
        let sql =
            format!("UPDATE attempts SET uid_validity = {uid_validity}, uid_next = {uid_next} WHERE uid_next IS NULL");
        site.database.change("filling", &sql, &[]).unwrap();
    }
    let delivered = |site: &mut Site, since, mailbox| {
        let mailboxes = audit_queries::delivered(&mut site.database, &Selection { since, mailbox }).unwrap();
        let all = mailboxes.into_iter().flat_map(|((user, mailbox), copies)| {
            copies.into_iter().map(move |copy| format!("{user}/{mailbox} {} {:?}", copy.message, copy.lowest))
        });
        all.collect::<Vec<_>>()
    };
    assert_eq!(
        delivered(&mut site, THEN, None),
        ["anna/INBOX 1 Some(3)", "doug/INBOX 1 None", "doug/INBOX 2 None", "doug/INBOX 3 None", "lisa/Sent 1 None"]
    );
    assert_eq!(delivered(&mut site, THEN, Some("lisa")), ["lisa/Sent 1 None"]);
    // Recorded since, or recorded in the week before and delivered since.
    assert_eq!(
        delivered(&mut site, THEN + 2, None),
        ["anna/INBOX 1 Some(3)", "doug/INBOX 2 None", "doug/INBOX 3 None"]
    );
    assert_eq!(delivered(&mut site, THEN + DAY, None), ["anna/INBOX 1 Some(3)"]);
    assert!(delivered(&mut site, THEN + DAY + 1, None).is_empty());
    site.database
        .change("filling", "UPDATE messages SET recorded_at = recorded_at - ?", &[Value::Integer(7 * DAY)])
        .unwrap();
    assert_eq!(
        delivered(&mut site, THEN + 2, None),
        ["doug/INBOX 2 None", "doug/INBOX 3 None"],
        "of one the week is over"
    );

    let mailboxes = audit_queries::delivered(&mut site.database, &Selection { since: 0, mailbox: None }).unwrap();
    let of_doug = &mailboxes[&("doug".to_owned(), "INBOX".to_owned())];
    let of = |site: &mut Site, copies: &[audit_queries::DeliveredCopy]| {
        let copies = audit_queries::of_mailbox(&mut site.database, ("doug", "INBOX"), copies).unwrap();
        copies.iter().map(|copy| (copy.message, copy.placement.map(|at| at.uid))).collect::<Vec<_>>()
    };
    assert_eq!(of(&mut site, of_doug), [(1, Some(1)), (2, Some(2)), (3, Some(3))]);
    assert_eq!(of(&mut site, &of_doug[1..2]), [(2, Some(2))]);
    assert!(of(&mut site, &[]).is_empty());
    // A copy of another role in the same mailbox is another copy.
    let as_sender: Vec<_> =
        of_doug.iter().map(|copy| audit_queries::DeliveredCopy { role: Role::Sender, ..*copy }).collect();
    assert!(of(&mut site, &as_sender).is_empty());

    let of_message = audit_queries::of_message(&mut site.database, 1).unwrap();
    let users: Vec<&str> = of_message.iter().map(|copy| copy.user.as_str()).collect();
    assert_eq!(users, ["anna", "doug", "lisa"]);
    assert_eq!(of_message[2].key(), sent);
    let by_key = |site: &mut Site, key| audit_queries::by_key(&mut site.database, key).unwrap();
    let (copy, delivered) = by_key(&mut site, &owed).unwrap();
    assert_eq!((copy.message, copy.reason.as_deref(), delivered), (2, Some("over quota"), false));
    assert!(by_key(&mut site, &anna).unwrap().1);
    let nobodys = key(3, Role::Sender, "lisa");
    assert!(by_key(&mut site, &nobodys).is_none());
    let with = audit_queries::message_with(&mut site.database, identity(2).as_bytes()).unwrap();
    assert_eq!(with, Some((2, "0@x".to_owned(), 1002)));
    assert_eq!(audit_queries::message_with(&mut site.database, identity(9).as_bytes()).unwrap(), None);
    site.source(2);
    assert_eq!(audit_queries::source(&mut site.database, 2).unwrap().as_deref(), Some(&b"x"[..]));
    assert_eq!(audit_queries::source(&mut site.database, 1).unwrap(), None);
}

/// The source is read in parts: a message of the largest size must not take several times as much memory.
#[test]
fn a_source_is_read_whole_whatever_its_size() {
    let mut site = site();
    for (message, size) in (1..).zip([0, 1, SOURCE_PART - 1, SOURCE_PART, SOURCE_PART + 1, SOURCE_PART * 2]) {
        site.message(message, THEN);
        let source: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
        let sql = "INSERT INTO message_sources (message_id, source) VALUES (?, ?)";
        site.database.change("filling", sql, &[Value::Integer(message), Value::Bytes(&source)]).unwrap();
        let read = audit_queries::source(&mut site.database, message).unwrap().unwrap();
        assert!(read == source && read.capacity() <= size + SOURCE_PART, "{size}: {}", read.capacity());
    }
}

#[test]
fn what_is_owed_is_reported_in_the_order_of_its_last_tries_however_much_it_is() {
    let mut site = site();
    site.message(1, THEN);
    let users: Vec<String> = (0..501).map(|number| format!("lisa{number:04}")).collect();
    for (number, user) in (0..).zip(&users) {
        site.copy(1, Role::Sender, user, None, THEN - number);
    }
    let all = Selection { since: 0, mailbox: None };
    let owed = audit_queries::owed(&mut site.database, &all).unwrap();
    assert!(owed.iter().map(|copy| &copy.user).eq(users.iter().rev()));
    let since = Selection { since: THEN - 1, mailbox: None };
    let latest = audit_queries::owed(&mut site.database, &since).unwrap();
    assert!(latest.iter().map(|copy| copy.user.as_str()).eq(["lisa0001", "lisa0000"]));
    // In pages, also if many have the same last try.
    site.database.change("filling", "UPDATE copies SET updated_at = updated_at / 100 * 100", &[]).unwrap();
    let (mut paged, mut after) = (Vec::new(), (i64::MIN, Vec::new()));
    loop {
        let page = audit_queries::owed_after(&mut site.database, (after.0, &after.1)).unwrap();
        let Some(last) = page.last() else { break };
        after = (last.last_try, last.key.as_bytes().to_vec());
        paged.extend(page);
    }
    assert!(paged.is_sorted_by_key(|owed| (owed.last_try, *owed.key.as_bytes())));
    assert!(paged.iter().all(|owed| owed.last_try % 100 == 0 && owed.recorded_at == THEN));
    let mut of: Vec<&str> = paged.iter().map(|owed| owed.user.as_str()).collect();
    of.sort_unstable();
    assert!(of.iter().eq(&users));
    for (number, user) in (0..).zip(&users) {
        let again = "UPDATE copies SET updated_at = ? WHERE imap_user = ?";
        site.database.change("filling", again, &[Value::Integer(THEN - number), Value::Text(user)]).unwrap();
    }
    let newest = |site: &mut Site, limit| {
        let (copies, more) = audit_queries::latest_owed(&mut site.database, limit).unwrap();
        (copies.iter().map(|copy| copy.user.clone()).collect::<Vec<_>>(), more)
    };
    assert_eq!(newest(&mut site, 2), (users[..2].to_vec(), true));
    assert_eq!(newest(&mut site, 501), (users.clone(), false));
    assert_eq!(newest(&mut site, 500), (users[..500].to_vec(), true));

    // The author's own mail program has its time.
    let of_one = Selection { since: 0, mailbox: Some("lisa0003") };
    let by_now = |site: &mut Site, left_for: Option<Duration>| {
        let (copies, left) = audit_queries::owed_by_now(&mut site.database, &of_one, left_for).unwrap();
        (copies.len(), left)
    };
    site.database.change("filling", "UPDATE messages SET recorded_at = unixepoch() * 1000000", &[]).unwrap();
    assert_eq!(by_now(&mut site, None), (1, 0));
    assert_eq!(by_now(&mut site, Some(Duration::from_hours(1))), (0, 1));
    site.database
        .change("filling", "UPDATE messages SET recorded_at = recorded_at - ?", &[Value::Integer(DAY)])
        .unwrap();
    assert_eq!(by_now(&mut site, Some(Duration::from_hours(1))), (1, 0));

    let tried = key(1, Role::Sender, "lisa0003");
    assert!(audit_queries::begin_try(&mut site.database, &tried).unwrap());
    audit_queries::still_owed(&mut site.database, &tried, "the server is away").unwrap();
    let (copy, _) = audit_queries::by_key(&mut site.database, &tried).unwrap().unwrap();
    assert_eq!(copy.reason.as_deref(), Some("the server is away"));
    assert_eq!(audit_queries::owed(&mut site.database, &all).unwrap().last().unwrap().user, "lisa0003");
    let placement = Placement { uid_validity: 9, uid: 8 };
    audit_queries::adopt_owed(&mut site.database, &copy, Some(placement), "mx1").unwrap();
    let (copy, delivered) = audit_queries::by_key(&mut site.database, &tried).unwrap().unwrap();
    assert_eq!((copy.placement, copy.reason.as_deref(), delivered), (Some(placement), None, true));
    assert!(!audit_queries::begin_try(&mut site.database, &tried).unwrap(), "it is owed no more");
}

#[test]
fn how_a_copy_came_to_be_there_is_reported_by_the_first_that_brought_it() {
    let mut site = site();
    site.message(1, THEN);
    let key = site.copy(1, Role::Recipient, "doug", Some(1), THEN);
    let earlier = |site: &mut Site| audit_queries::earlier_delivery(&mut site.database, &key).unwrap().unwrap();
    let (queue_id, host) = (earlier(&mut site).queue_id, earlier(&mut site).host);
    assert_eq!((queue_id, host), (None, None), "no attempt is kept");
    for (at, outcome, queue_id) in [(1, "deferred: x", "4b1"), (3, "adopted", "4b3"), (2, "appended", "4b2")] {
        let ended = Some((THEN + at, outcome));
        site.tried(Attempt { ended, queue_id: Some(queue_id), ..Attempt::at(1, THEN + at * 1000) });
    }
    let first = earlier(&mut site);
    assert_eq!((first.queue_id.as_deref(), first.sender), (Some("4b2"), None), "not that of the message");
    for sender in ["", "bounce@y"] {
        site.database
            .change("test", "UPDATE attempts SET sender = ? WHERE queue_id = '4b2'", &[Value::Text(sender)])
            .unwrap();
        assert_eq!(earlier(&mut site).sender.as_deref(), Some(sender));
    }
    let owed = site.copy(1, Role::Sender, "lisa", None, THEN);
    assert!(audit_queries::earlier_delivery(&mut site.database, &owed).unwrap().is_none());
}

#[test]
fn an_attempt_never_ended_if_it_began_longer_ago_than_any_delivery_lives() {
    let mut site = site();
    let now = crate::ledger::time_span::now(&mut site.database).unwrap();
    let long_ago = now - 2 * DAY;
    site.tried(Attempt { queue_id: Some("4bQ"), ..Attempt::at(1, long_ago) });
    site.tried(Attempt { user: "anna", ..Attempt::at(2, long_ago) });
    site.tried(Attempt { ended: Some((now, "appended")), ..Attempt::at(3, long_ago) });
    // Of now, or a day ahead of the database's clock: these attempts are running, as far as is known.
    site.tried(Attempt::at(4, now));
    site.tried(Attempt::at(5, now + DAY));
    site.message(2, now);
    site.copy(2, Role::Recipient, "anna", Some(1), now);
    let mut never_ended = |mailbox, lives| {
        let selection = Selection { since: 0, mailbox };
        deliveries::never_ended(&mut site.database, &selection, lives).unwrap()
    };
    let all = never_ended(None, Duration::from_hours(24));
    let shown: Vec<_> =
        all.iter().map(|tried| (tried.user.as_str(), tried.delivered, tried.queue_id.as_deref())).collect();
    assert_eq!(shown, [("doug", false, Some("4bQ")), ("anna", true, None)]);
    assert!(all[0].age >= Duration::from_hours(48) && all[0].age < Duration::from_hours(49), "{:?}", all[0].age);
    assert_eq!((all[0].started_at, all[0].pid), (long_ago, 17));
    assert_eq!(never_ended(Some("anna"), Duration::from_hours(24)).len(), 1);
    assert!(never_ended(None, Duration::from_hours(50)).is_empty());
}

#[test]
fn the_deliveries_that_are_asked_for_are_met_and_no_others() {
    let mut site = site();
    site.message(1, THEN);
    site.copy(1, Role::Recipient, "doug", Some(1), THEN);
    site.tried(Attempt::at(1, THEN));
    site.tried(Attempt { user: "anna", ..Attempt::at(2, THEN + MINUTE) });
    site.tried(Attempt { role: Role::Sender, user: "lisa", ..Attempt::at(2, THEN + MINUTE) });
    site.tried(Attempt::at(12, THEN + 2 * MINUTE));
    let met = |site: &mut Site, locks: &[LockName], since, failed, recipients: &[&str]| {
        let recipients = recipients.iter().map(|recipient| (*recipient).to_owned()).collect();
        let query = deliveries::DeliveryQuery { locks: locks.to_vec(), since, failed, recipients };
        let mut met = Vec::new();
        let seen = deliveries::each_delivery::<crate::database::DatabaseError>(
            &mut site.database,
            &query,
            |began_at, copy| {
                met.push(((began_at - THEN) / MINUTE, copy));
                Ok(())
            },
        );
        seen.unwrap();
        met.sort_unstable_by_key(|(began, ..)| *began);
        met
    };
    let doug = (0, key(1, Role::Recipient, "doug"));
    let anna = (1, key(2, Role::Recipient, "anna"));
    let other = (2, key(12, Role::Recipient, "doug"));
    for locks in [vec![], vec![lock(1), lock(12)]] {
        assert_eq!(met(&mut site, &locks, None, false, &[]), [doug, anna, other]);
        assert_eq!(met(&mut site, &locks, None, true, &[]), [anna, other]);
        assert_eq!(met(&mut site, &locks, Some(THEN + MINUTE), false, &[]), [anna, other]);
        assert_eq!(met(&mut site, &locks, None, false, &["doug@x"]), [doug, other]);
        assert_eq!(met(&mut site, &locks, None, false, &["doug@x", "anna@x"]), [doug, anna, other]);
        assert!(met(&mut site, &locks, None, false, &["lisa@x"]).is_empty());
    }
    assert_eq!(met(&mut site, &[lock(1)], None, false, &[]), [doug, anna]);

    // Page by page, whether by time or by lock.
    let many = "INSERT INTO attempts (attempt, copy_key, role, imap_user, mailbox, identity, lock_digest, message_id, recipient, \
                host, pid, started_at) \
                WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 4001) \
                SELECT unhex('019' || printf('%029x', n)), copy_key, role, imap_user, mailbox, identity, lock_digest, message_id, \
                recipient, host, pid, started_at + n FROM n, attempts WHERE started_at = ?";
    site.database.change("filling", many, &[Value::Moment(THEN + 2 * MINUTE)]).unwrap();
    assert_eq!(met(&mut site, &[lock(12)], None, false, &[]).len(), 4002);
}

#[test]
fn what_is_known_of_a_delivery_is_what_its_last_attempt_says() {
    let mut site = site();
    site.tried(Attempt { ended: Some((THEN + 1, "deferred: x")), queue_id: Some("4b1"), ..Attempt::at(1, THEN) });
    let doug = key(1, Role::Recipient, "doug");
    let known = |site: &mut Site, key| deliveries::known_delivery(&mut site.database, key).unwrap();
    let first = known(&mut site, &doug).unwrap();
    assert!(!first.delivered && first.message.is_none() && first.sender.is_none() && first.last_outcome.is_some());
    site.message(1, THEN + MINUTE);
    site.copy(1, Role::Recipient, "doug", Some(1), THEN + MINUTE);
    site.tried(Attempt { queue_id: Some("4b2"), ..Attempt::at(1, THEN + MINUTE) });
    let last = known(&mut site, &doug).unwrap();
    assert!(last.delivered && last.last_outcome.is_none());
    assert_eq!((last.queue_id.as_deref(), last.sender.as_deref()), (Some("4b2"), Some("Lisa@x")));
    assert_eq!((last.message, last.identity.as_bytes()), (Some(1), super::identity(1).as_bytes()));
    let nobodys = key(2, Role::Recipient, "doug");
    assert!(known(&mut site, &nobodys).is_none());
    site.copy(1, Role::Sender, "lisa", None, THEN + MINUTE);
    site.tried(Attempt { role: Role::Sender, user: "lisa", ..Attempt::at(1, THEN) });
    let owed = key(1, Role::Sender, "lisa");
    assert!(!known(&mut site, &owed).unwrap().delivered, "it is owed");
}
