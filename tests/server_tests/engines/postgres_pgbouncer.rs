//! Everything that a delivery does, through PgBouncer in transaction mode.

use crate::support;
use crate::support::postgres::{Mail, TestDatabase, tcp};
use maildrop_command::ledger::{CopyState, Ledger, LockResult};
use maildrop_command::ledger::{FindingState, Requirements, inspect};
use maildrop_command::lock::{Acquired, NamedLock};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use uuid::Uuid;

/// More deliveries than PgBouncer has server connections for them.
const DELIVERIES: usize = 60;

#[test]
fn sixty_deliveries_of_one_message_exclude_each_other() {
    let test = TestDatabase::migrated("POSTGRES17");
    let pooler = support::server("PGBOUNCER");
    let mail = Mail::new("<123-abc@mail.google.com>");
    let (inside, delivered) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..DELIVERIES {
            scope.spawn(|| {
                let mut database = test.connect_by(tcp(&pooler, 5432), "POOLED");
                let attempt = Uuid::now_v7();
                database.addresses(&["scuba@mail.example"]).unwrap();
                database.journal(&mail.journal(attempt, None)).unwrap();
                let asked = database.acquire_and_look(&mail.lock, Duration::from_secs(200), &mail.keys()).unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two deliveries hold the lock");
                let LockResult::Held { looked: Ok(seen), .. } = asked else { panic!("{asked:?}") };
                if seen.copies.iter().all(|copy| copy.delivered.is_none()) {
                    delivered.fetch_add(1, Ordering::SeqCst);
                }
                assert!(database.still_held(&mail.lock).unwrap());
                inside.fetch_sub(1, Ordering::SeqCst);
                let state = CopyState::Delivered(None);
                database.record(&mail.record(attempt, state, state)).unwrap();
                database.release(&mail.lock).unwrap();
            });
        }
    });
    assert_eq!(delivered.load(Ordering::SeqCst), 1);
    assert_eq!(test.value("SELECT count(*) FROM attempts WHERE ended_at IS NULL").as_deref(), Some("0"));
}

#[test]
fn the_holder_is_found_and_the_busy_one_ends_its_attempt() {
    let test = TestDatabase::migrated("POSTGRES17");
    let pooler = support::server("PGBOUNCER");
    let mail = Mail::new("<123-abc@mail.google.com>");
    let mut first = test.connect_by(tcp(&pooler, 5432), "FIRST");
    let mut second = test.connect_by(tcp(&pooler, 5432), "SECOND");
    assert!(matches!(first.acquire(&mail.lock, Duration::ZERO).unwrap(), Acquired::Held));
    for wait in [Duration::ZERO, Duration::from_millis(200)] {
        let Acquired::Busy(Some(holder)) = second.acquire(&mail.lock, wait).unwrap() else { panic!() };
        assert_eq!((holder.queue_id.as_deref(), holder.host.as_deref()), (Some("FIRST"), Some("mx1.example.com")));
    }
    assert!(first.still_held(&mail.lock).unwrap());
    assert!(!second.still_held(&mail.lock).unwrap());
}

#[test]
fn check_finds_nothing_to_fix() {
    let test = TestDatabase::migrated("POSTGRES17");
    let mut database = test.connect_by(tcp(&support::server("PGBOUNCER"), 5432), "CHECK");
    let findings = inspect(&mut database, Requirements::default()).unwrap();
    assert!(findings.iter().all(|finding| finding.state == FindingState::Good), "{findings:#?}");
}
