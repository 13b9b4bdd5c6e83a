//! Deliveries that failed before their journal.

use super::{AddressPattern, Attempt, DAY, MINUTE, Site, THEN, identity, lock, retention, site};
use crate::database::{Tables, Value};
use crate::ledger::failures::{FailureCursor, FailuresOf, WaitingDeliveries, each_failure, failed_deliveries, waiting};
use crate::mailbox::MailboxFailure;
use crate::message::Role;

impl Site {
    fn failed(&mut self, message: i64, recipient: &str, first_at: i64, last_at: i64) {
        let (identity, lock, queue_id) = (identity(message), lock(message), format!("queue{message}"));
        self.put(
            "failures",
            &[
                ("identity", Value::Bytes(identity.as_bytes())),
                ("recipient", Value::Text(recipient)),
                ("lock_digest", Value::Bytes(lock.digest())),
                ("sender", Value::Text("Lisa@Gmail.com")),
                ("message_id", Value::Text("x@x")),
                ("queue_id", Value::Text(&queue_id)),
                ("host", Value::Text("mx1")),
                ("cause", Value::Text("deferred: no such mailbox")),
                ("count", Value::Integer(1)),
                ("first_at", Value::Moment(first_at)),
                ("last_at", Value::Moment(last_at)),
            ],
        );
    }

    fn read_failures(&mut self, of: FailuresOf<'_>) -> Vec<String> {
        self.read_failures_after(of, None)
    }

    fn read_failures_after(&mut self, of: FailuresOf<'_>, after: Option<&FailureCursor>) -> Vec<String> {
        let read = failed_deliveries(&mut self.database, of, after, 3).unwrap();
        read.into_iter().map(|failure| format!("{} {}", failure.queue_id.unwrap(), failure.recipient)).collect()
    }
}

#[test]
fn failures_are_found_by_message_lock_queue_id_and_address_and_the_newest_come_first() {
    let mut site = site();
    for message in [1, 2, 11] {
        site.failed(message, "doug@x", THEN + message * MINUTE, THEN + DAY);
    }
    site.failed(1, "scuba@x", THEN + MINUTE, THEN + DAY);
    assert_eq!(site.read_failures(FailuresOf::Message(identity(1).as_bytes())), ["queue1 scuba@x", "queue1 doug@x"]);
    let of_lock = site.read_failures(FailuresOf::Lock(&lock(2)));
    assert_eq!(of_lock, ["queue2 doug@x", "queue1 scuba@x", "queue1 doug@x"]);
    assert_eq!(site.read_failures(FailuresOf::QueueId("queue11", THEN)), ["queue11 doug@x"]);
    assert!(site.read_failures(FailuresOf::QueueId("queue11", THEN + 12 * MINUTE)).is_empty());
    let like = |pattern: AddressPattern, site: &mut Site| site.read_failures(FailuresOf::Addresses(&pattern, THEN));
    assert_eq!(like(AddressPattern::Address("scuba@x".into()), &mut site), ["queue1 scuba@x"]);
    assert_eq!(like(AddressPattern::Beginning("sc".into()), &mut site), ["queue1 scuba@x"]);
    assert!(like(AddressPattern::Domain("gmail".into()), &mut site).is_empty());
    assert_eq!(like(AddressPattern::DomainBeginning("gmail".into()), &mut site).len(), 3);
    let about = "UPDATE failures SET subject = 'Quarterly Figures', author = 'Lisa' WHERE recipient = 'scuba@x'";
    site.database.change("a test", about, &[]).unwrap();
    assert_eq!(site.read_failures(FailuresOf::Piece("ly fig", THEN)), ["queue1 scuba@x"]);
    assert_eq!(site.read_failures(FailuresOf::Piece("LISA", THEN)), ["queue1 scuba@x"]);
    let of_sender = like(AddressPattern::Address("lisa@gmail.com".into()), &mut site);
    assert_eq!(of_sender, ["queue11 doug@x", "queue2 doug@x", "queue1 scuba@x"], "three at most");
    let third = FailureCursor { first_at: THEN + MINUTE, identity: identity(1), recipient: "scuba@x".into() };
    assert_eq!(FailureCursor::from_text(&third.to_string()).as_ref(), Some(&third));
    let sender = AddressPattern::Address("lisa@gmail.com".into());
    let behind = site.read_failures_after(FailuresOf::Addresses(&sender, THEN), Some(&third));
    assert_eq!(behind, ["queue1 doug@x"], "the next page");
    let since = THEN + MINUTE;
    let first = failed_deliveries(&mut site.database, FailuresOf::Since(since), None, 2).unwrap();
    assert_eq!(first.last().unwrap().queue_id.as_deref(), Some("queue2"));
    let next = site.read_failures_after(FailuresOf::Since(since), Some(&first.last().unwrap().cursor()));
    assert_eq!(next, ["queue1 scuba@x", "queue1 doug@x"]);
    let mut seen = 0;
    each_failure(&mut site.database, since, |_| seen += 1).unwrap();
    assert_eq!(seen, 4);
}

#[test]
fn what_was_delivered_or_refused_since_is_left_out_and_what_was_tried_again_in_vain_is_not() {
    let mut site = site();
    for message in 1..6 {
        site.failed(message, "doug@x", THEN + message, THEN + message);
    }
    let outcomes = ["already there", "refused: over quota: x", "deferred: over quota: x", "busy"];
    for (message, outcome) in (1..).zip(outcomes) {
        site.tried(Attempt { ended: Some((THEN + MINUTE, outcome)), ..Attempt::at(message, THEN + MINUTE) });
    }
    site.tried(Attempt::at(5, THEN + MINUTE));
    assert_eq!(site.read_failures(FailuresOf::Since(0)), ["queue5 doug@x", "queue4 doug@x", "queue3 doug@x"]);
    // The attempt that delivered it is pruned, and the copy is recorded.
    site.message(5, THEN + MINUTE);
    site.copy(5, Role::Recipient, "doug", Some(1), THEN + MINUTE);
    assert_eq!(site.read_failures(FailuresOf::Since(0)), ["queue4 doug@x", "queue3 doug@x"]);
}

#[test]
fn what_waits_is_counted_and_its_most_frequent_cause_is_named() {
    let mut site = site();
    let now = THEN + DAY;
    assert_eq!(waiting(&mut site.database, now).unwrap(), None);
    for message in 1..6 {
        site.failed(message, "doug@x", THEN + message, now);
    }
    // One was tried last before that time, one is refused, and of one an attempt was deferred.
    site.failed(6, "doug@x", THEN, now - 1);
    for (queue, cause) in [
        (2, "deferred: the mailbox store is out of reach: 127.0.0.1:143"),
        (3, "deferred: the mailbox store is out of reach"),
        (4, "refused: unknown recipient"),
    ] {
        let sql = format!("UPDATE failures SET cause = '{cause}' WHERE queue_id = 'queue{queue}'");
        site.database.change("a test", &sql, &[]).unwrap();
    }
    site.tried(Attempt { ended: Some((now, "busy")), ..Attempt::at(5, now) });
    site.tried(Attempt { ended: Some((now, "already there")), ..Attempt::at(1, now) });
    let cause = MailboxFailure::Unreachable.as_str();
    let counted = WaitingDeliveries { all: 3, with_attempt: 1, cause, of_cause: 2, since: THEN + 2 };
    assert_eq!(waiting(&mut site.database, now).unwrap(), Some(counted));
}

#[test]
fn a_failure_is_forgotten_a_while_after_its_last_try() {
    let mut site = site();
    for message in 0..501 {
        site.failed(message, "doug@x", THEN + message, THEN + message);
    }
    site.failed(600, "doug@x", THEN, THEN + DAY);
    site.failed(601, "doug@x", THEN + DAY, THEN + DAY);
    assert_eq!(retention::count_failures(&mut site.database, THEN + DAY).unwrap(), 501);
    let mut delete = || retention::delete_old_failures(&mut site.database, THEN + DAY).unwrap();
    assert_eq!([delete(), delete(), delete()], [Some(500), Some(1), None]);
    assert_eq!(site.number("SELECT count(*) FROM failures"), 2, "one of them was tried again");
}
