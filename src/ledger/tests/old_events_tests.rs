//! Old events and their notifications.

use super::{Site, THEN, retention, site};
use crate::base::hex;
use crate::database::{Tables, Value};
use std::ops::Range;

/// Only servers have these tables, since only servers have subscriptions.
fn site_with_subscribers() -> Site {
    let mut site = site();
    for table in [
        "events (position INTEGER, created_at INTEGER)",
        "subscriptions (id BLOB)",
        "notifications (subscription BLOB, event INTEGER)",
        "notification_attempts (event INTEGER)",
    ] {
        site.make(table);
    }
    site
}

impl Site {
    /// Adds events, with notifications for the subscription of this number.
    fn happen(&mut self, events: Range<i64>, at: i64, subscription: u8) {
        self.fill("events", &format!("i, {at}"), &events);
        self.fill("notification_attempts", "i", &events);
        self.is_to_be_notified(subscription, events);
    }

    pub(super) fn is_to_be_notified(&mut self, subscription: u8, events: Range<i64>) {
        self.fill("notifications", &format!("X'{}', i", hex::encode(&[subscription; 16])), &events);
    }

    fn fill(&mut self, table: &str, row: &str, Range { start, end }: &Range<i64>) {
        let sql = format!(
            "WITH RECURSIVE n (i) AS (SELECT {start} UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {end}) \
             INSERT INTO {table} SELECT {row} FROM n"
        );
        self.database.change("filling", &sql, &[]).unwrap();
    }

    fn subscribes(&mut self, subscription: u8) {
        self.put("subscriptions", &[("id", Value::Bytes(&[subscription; 16]))]);
    }
}

#[test]
fn old_events_are_forgotten_with_what_subscribers_were_reported_of_them() {
    let mut site = site_with_subscribers();
    let left = |site: &mut Site| {
        ["events", "notifications", "notification_attempts"]
            .map(|table| site.number(&format!("SELECT count(*) FROM {table}")))
    };
    // No subscription is left: the notifications without one are deleted last.
    site.happen(1..3, THEN, 7);
    let mut old = retention::OldEvents::before(THEN + 1);
    let mut pieces = || old.delete_batch(&mut site.database).unwrap();
    assert_eq!([pieces(), pieces(), pieces()], [Some(2), Some(0), None]);
    assert_eq!(left(&mut site), [0; 3]);
    site.subscribes(7);
    site.happen(3..504, THEN, 7);
    site.happen(504..506, THEN + 1, 7);
    // A clock was set back: older events behind a newer one wait for it.
    site.happen(506..507, THEN, 7);
    assert_eq!(retention::count_events(&mut site.database, THEN + 1).unwrap(), 502);
    assert_eq!(retention::count_events(&mut site.database, THEN).unwrap(), 0);
    let mut old = retention::OldEvents::before(THEN + 1);
    let mut pieces = || old.delete_batch(&mut site.database).unwrap();
    assert_eq!([pieces(), pieces(), pieces()], [Some(500), Some(1), None]);
    assert_eq!(left(&mut site), [3, 3, 3]);
}

/// A notification without its event would be due for ever: nothing can be sent for it.
#[test]
fn what_somebody_has_reported_once_more_while_old_events_are_forgotten_goes_with_them() {
    let mut site = site_with_subscribers();
    site.subscribes(7);
    site.happen(1..1201, THEN, 7);
    site.happen(1201..1202, THEN + 1, 7);
    let mut old = retention::OldEvents::before(THEN + 1);
    assert_eq!(old.delete_batch(&mut site.database).unwrap(), Some(500));
    // Between two batches a user subscribes, and requests all existing events.
    site.subscribes(8);
    site.is_to_be_notified(8, 501..1202);
    assert_eq!(old.delete_batch(&mut site.database).unwrap(), Some(500));
    let of_nothing = "SELECT count(*) FROM notifications n \
                      WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.position = n.event)";
    assert_eq!(site.number(of_nothing), 0);
    assert_eq!(old.delete_batch(&mut site.database).unwrap(), Some(200));
    // A user has read an event before it was deleted, and commits a redelivery request afterwards.
    site.is_to_be_notified(7, 1..601);
    site.is_to_be_notified(7, 1150..1151);
    site.is_to_be_notified(8, 1100..1101);
    // They are more than one batch has.
    let mut pieces = || old.delete_batch(&mut site.database).unwrap();
    assert_eq!([pieces(), pieces(), pieces()], [Some(0), Some(0), None]);
    assert_eq!(site.number(of_nothing), 0);
    assert_eq!(site.number("SELECT count(*) FROM notifications"), 2);
}
