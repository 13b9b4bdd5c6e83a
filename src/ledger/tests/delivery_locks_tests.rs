//! Which delivery requested a lock, and what the lock is named after.

use super::{Attempt, DAY, MINUTE, Site, lock, site};
use crate::ledger::{delivery_locks, time_span};
use crate::lock::{Holder, LockName};
use std::time::Duration;

#[test]
fn deliveries_that_ask_for_a_lock_are_read_and_what_it_is_named_after() {
    let mut site = site();
    let now = time_span::now(&mut site.database).unwrap();
    // Deliveries that run now, but none that has ended or that cannot run any more.
    site.tried(Attempt::at(1, now - MINUTE));
    site.tried(Attempt { ended: Some((now, "appended")), ..Attempt::at(12, now - MINUTE) });
    site.tried(Attempt::at(23, now - DAY));
    for only in [None, Some(&lock(1))] {
        let users = delivery_locks::lock_users(&mut site.database, only).unwrap();
        let [user] = &users[..] else { panic!("{users:?}") };
        let Holder { host, pid, held_for, .. } = &user.process;
        assert_eq!((user.lock, host.as_deref(), *pid), (lock(1), Some("mx1"), Some(17)));
        let age = held_for.unwrap();
        assert!(age >= Duration::from_mins(1) && age < Duration::from_hours(1), "{age:?}");
    }
    assert!(delivery_locks::lock_users(&mut site.database, Some(&lock(12))).unwrap().is_empty());

    // With a digest of which only the beginning is known.
    let message = |site: &mut Site, lock: &LockName| {
        let (mut low, mut high) = (*lock.digest(), *lock.digest());
        low[8..].fill(0);
        high[8..].fill(255);
        delivery_locks::message_of_lock(&mut site.database, &low, &high).unwrap()
    };
    assert_eq!(message(&mut site, &lock(23)).as_deref(), Some("2@x"));
    site.message(35, now);
    assert_eq!(message(&mut site, &lock(35)).as_deref(), Some("3@x"));
    assert_eq!(message(&mut site, &LockName::new("p", b"nightly")), None);
}
