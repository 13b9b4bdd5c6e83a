//! Who asks for a lock, and what it is named after.

use super::{Attempt, DAY, MINUTE, Site, lock, site};
use crate::database::{Tables, Value};
use crate::ledger::{LockPurpose, lock_users, time_span};
use crate::lock::LockName;
use std::time::Duration;

#[test]
fn who_asks_for_a_lock_is_read_and_who_has_ended_is_taken_out() {
    let mut site = site();
    let now = time_span::now(&mut site.database).unwrap();
    let (nightly, weekly) = (LockName::new("p", b"nightly"), LockName::new("p", b"weekly"));
    // No process has this id: it is more than the kernel gives (proc(5), pid_max).
    let ended = u32::MAX;
    for (host, pid) in [("mx1", ended), ("mx2", ended), ("mx1", 1)] {
        site.put(
            "programs",
            &[
                ("lock_digest", Value::Bytes(nightly.digest())),
                ("host", Value::Text(host)),
                ("pid", Value::Integer(pid.into())),
                ("name", Value::Text("nightly")),
                ("asked_at", Value::Moment(now)),
            ],
        );
    }
    let ours = std::process::id();
    let users = |site: &mut Site, only| {
        let users = lock_users::lock_users(&mut site.database, only).unwrap();
        let mut users: Vec<_> = users.into_iter().map(|user| (user.host, user.pid.unwrap(), user.purpose)).collect();
        users.sort_by_key(|(host, pid, _)| (host.clone(), *pid));
        users
    };
    // Twice: its own row is written anew.
    for _ in 0..2 {
        lock_users::write_down_program(&mut site.database, &nightly, "mx1", "nightly").unwrap();
        let purpose = || LockPurpose::Program("nightly".into());
        let mut expected =
            vec![("mx1".to_owned(), 1, purpose()), ("mx1".into(), ours, purpose()), ("mx2".into(), ended, purpose())];
        expected.sort_by_key(|(host, pid, _)| (host.clone(), *pid));
        assert_eq!(users(&mut site, Some(&nightly)), expected);
    }
    lock_users::write_down_program(&mut site.database, &weekly, "mx1", "weekly").unwrap();
    assert_eq!(users(&mut site, Some(&weekly)).len(), 1);
    let written = lock_users::WrittenDown::read(&mut site.database, &weekly, "mx1", "weekly").unwrap();
    // It writes a row, whether or not there is one.
    for there in [true, false] {
        if !there {
            lock_users::take_out_program(&mut site.database, &weekly, "mx1", ours).unwrap();
        }
        written.commit_again(&mut site.database).unwrap();
    }
    assert_eq!(users(&mut site, Some(&weekly)).len(), 1);
    lock_users::take_out_program(&mut site.database, &weekly, "mx1", ours).unwrap();
    assert!(users(&mut site, Some(&weekly)).is_empty());
    assert!(lock_users::WrittenDown::read(&mut site.database, &weekly, "mx1", "weekly").is_err());
    assert_eq!(lock_users::missing_grant(&mut site.database).unwrap(), None);

    // Deliveries that run now, but none that has ended or that cannot run any more.
    site.tried(Attempt::at(1, now - MINUTE));
    site.tried(Attempt { ended: Some((now, "appended")), ..Attempt::at(12, now - MINUTE) });
    site.tried(Attempt::at(23, now - DAY));
    let deliveries: Vec<_> = users(&mut site, None).into_iter().filter(|(_, pid, _)| *pid == 17).collect();
    assert_eq!(deliveries, [("mx1".to_owned(), 17, LockPurpose::Message("0@x".into()))]);
    assert_eq!(users(&mut site, Some(&lock(1))).len(), 1);
    let age = lock_users::lock_users(&mut site.database, Some(&lock(1))).unwrap()[0].age.unwrap();
    assert!(age >= Duration::from_mins(1) && age < Duration::from_hours(1), "{age:?}");

    // By a digest of which only the beginning is known.
    let purpose = |site: &mut Site, lock: &LockName| {
        let (mut low, mut high) = (*lock.digest(), *lock.digest());
        low[8..].fill(0);
        high[8..].fill(255);
        lock_users::lock_purpose(&mut site.database, &low, &high).unwrap()
    };
    assert_eq!(purpose(&mut site, &nightly), Some(LockPurpose::Program("nightly".into())));
    assert_eq!(purpose(&mut site, &lock(23)), Some(LockPurpose::Message("2@x".into())));
    site.message(35, now);
    assert_eq!(purpose(&mut site, &lock(35)), Some(LockPurpose::Message("3@x".into())));
    assert_eq!(purpose(&mut site, &weekly), None);
}

#[test]
fn a_table_of_programs_that_is_not_there_is_a_failure_and_no_missing_right() {
    let mut site = site();
    site.database.change("breaking", "DROP TABLE programs", &[]).unwrap();
    // It is not asked which right that would be.
    let error = lock_users::missing_grant(&mut site.database).unwrap_err();
    assert!(error.to_string().contains("reading what programs run"), "{error}");
    assert!(lock_users::lock_users(&mut site.database, None).is_err());
}
