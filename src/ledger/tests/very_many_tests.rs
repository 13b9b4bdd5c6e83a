//! A subscription with more notifications than one batch changes.

use super::{Site, site};
use crate::base::deadline::Deadline;
use crate::database::Value;
use crate::ledger::notifications::bulk::PIECE;
use crate::ledger::subscriptions::{BEING_REMOVED, delete};
use std::time::Duration;
use uuid::Uuid;

const ONE: Uuid = Uuid::from_bytes([7; 16]);

/// A subscription with so many notifications, in this state. Only servers have these tables.
fn subscribed(state: &str, notifications: i64) -> Site {
    let mut site = site();
    for table in [
        "subscriptions (id BLOB, state TEXT, state_reason TEXT, updated_at INTEGER)",
        "subscription_queues (subscription BLOB, due_at INTEGER)",
        "notifications (subscription BLOB, event INTEGER)",
    ] {
        site.make(table);
    }
    site.put("subscriptions", &[("id", Value::Uuid(ONE)), ("state", Value::Text(state))]);
    site.put("subscription_queues", &[("subscription", Value::Uuid(ONE)), ("due_at", Value::Integer(1))]);
    site.is_to_be_notified(7, 1..notifications + 1);
    site.is_to_be_notified(8, 1..3);
    site
}

#[test]
fn it_is_removed_piece_by_piece_for_as_long_as_there_is_time_and_disabled_meanwhile() {
    let piece = PIECE as i64;
    let mut site = subscribed("active", 2 * piece + 1);
    let over = Some(Deadline::after(Duration::ZERO));
    for left in [piece + 1, 1] {
        assert!(!delete(&mut site.database, ONE, over).unwrap());
        assert_eq!(site.number("SELECT count(*) FROM notifications") - 2, left);
        let disabled =
            format!("SELECT count(*) FROM subscriptions WHERE state = 'disabled' AND state_reason = '{BEING_REMOVED}'");
        assert_eq!(site.number(&disabled), 1);
        assert_eq!(site.number("SELECT count(*) FROM subscription_queues WHERE due_at IS NULL"), 1);
    }
    assert!(delete(&mut site.database, ONE, over).unwrap());
    let left = ["subscriptions", "subscription_queues", "notifications"]
        .map(|table| site.number(&format!("SELECT count(*) FROM {table}")));
    assert_eq!(left, [0, 0, 2]);
}

#[test]
fn one_with_little_to_be_reported_is_removed_at_once() {
    let mut site = subscribed("active", PIECE as i64);
    assert!(delete(&mut site.database, ONE, Some(Deadline::after(Duration::ZERO))).unwrap());
    assert_eq!(site.number("SELECT count(*) FROM notifications"), 2);
}

/// Nothing is sent to it anyway. If it were disabled, a resume would send its notifications without a challenge.
#[test]
fn one_whose_callback_has_not_answered_stays_so_while_it_is_removed() {
    let mut site = subscribed("unverified", 2 * PIECE as i64);
    assert!(!delete(&mut site.database, ONE, Some(Deadline::after(Duration::ZERO))).unwrap());
    assert_eq!(site.number("SELECT count(*) FROM subscriptions WHERE state = 'unverified'"), 1);
}
