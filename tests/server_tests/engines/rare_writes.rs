//! What few deliveries write: that a recipient is refused, that a login to the mailbox store was checked, and that another epoch
//! has begun.

use crate::support::database::Engine;
use crate::support::site_fixture::Scene;
use maildrop_command::ledger::{CopyKey, Database, LockResult, LoginCheck, Snapshot};
use maildrop_command::lock::{Acquired, LockName};
use maildrop_command::message::{Identity, Role};
use std::time::Duration;

on_each_engine!(
    a_recipient_is_refused_where_others_are_known_and_each_refusal_counts,
    a_login_check_is_as_old_as_its_last_proof_and_the_lock_is_free_afterwards,
    an_epoch_is_written_down_once_and_has_begun_when_another_one_is_found,
);

fn a_recipient_is_refused_where_others_are_known_and_each_refusal_counts(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let mut database = scene.open_database();
    let refused = |scene: &mut Scene, host: &str| {
        scene.database.count(&format!("SELECT coalesce(max(count), 0) FROM unknown_recipients WHERE host = '{host}'"))
    };
    assert!(!database.refuse("mx1", &["nobody@x"]).unwrap(), "the table may not be filled yet");
    scene.database.execute("INSERT INTO addresses (address, imap_user) VALUES ('scuba@x', 'scuba')");
    assert!(!database.refuse("mx1", &["Scuba@X"]).unwrap());
    assert!(!database.refuse("mx1", &["nobody@x", "scuba@x"]).unwrap());
    assert_eq!(refused(&mut scene, "mx1"), 0);
    for times in 1..4 {
        assert!(database.refuse("mx1", &["nobody@x"]).unwrap());
        assert_eq!(refused(&mut scene, "mx1"), times);
    }
    assert!(database.refuse("mx2", &["nobody@x", "@x"]).unwrap());
    assert_eq!((refused(&mut scene, "mx1"), refused(&mut scene, "mx2")), (3, 1));
}

fn a_login_check_is_as_old_as_its_last_proof_and_the_lock_is_free_afterwards(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let (mut one, mut other) = (scene.open_database(), scene.open_database());
    let (login_check, another) = (LoginCheck::new("imap://one".into()), LoginCheck::new("imap://another".into()));
    let proven = |database: &mut dyn Database, login_check| database.look_up(&["scuba@x"], login_check).unwrap().proven;
    assert_eq!(proven(one.as_mut(), Some(&login_check)), None);
    one.record_login_check(&login_check, "mx1", true).unwrap();
    let age = proven(other.as_mut(), Some(&login_check)).unwrap();
    assert!((0.0..3000.0).contains(&age), "{age}");
    assert_eq!((proven(one.as_mut(), Some(&another)), proven(one.as_mut(), None)), (None, None));
    // Proven an hour ago, and now by another host.
    let hour_ago = if engine.is_postgres() { "interval '1 hour'" } else { "INTERVAL 1 HOUR" };
    scene.database.execute(&format!("UPDATE login_checks SET verified_at = verified_at - {hour_ago}"));
    let age = proven(one.as_mut(), Some(&login_check)).unwrap();
    assert!((3600.0..7000.0).contains(&age), "{age}");
    // Under a lock, which ends with the commit where it is the transaction's.
    let lock = LockName::new(&scene.database.name, b"1@x");
    assert!(matches!(other.acquire(&lock, Duration::ZERO), Ok(Acquired::Held)));
    other.record_login_check(&login_check, "mx2", true).unwrap();
    let age = proven(one.as_mut(), Some(&login_check)).unwrap();
    assert!((0.0..3000.0).contains(&age), "{age}");
    let written = format!("SELECT count(*) FROM login_checks WHERE host = 'mx2' AND login = '{}'", login_check.text);
    assert_eq!((scene.database.count(&written), scene.database.count("SELECT count(*) FROM login_checks")), (1, 1));
    assert_eq!(other.still_held(&lock).unwrap(), !engine.is_postgres());
    other.release(&lock).unwrap();
    assert!(matches!(one.acquire(&lock, Duration::ZERO), Ok(Acquired::Held)));
    // It is found to be none: the other one is left as it is.
    other.record_login_check(&another, "mx2", true).unwrap();
    one.record_login_check(&login_check, "mx1", false).unwrap();
    let age = proven(other.as_mut(), Some(&login_check)).unwrap();
    assert!(age > 1.0e9, "{age}");
    assert!(proven(other.as_mut(), Some(&another)).unwrap() < 3000.0);
    assert_eq!(one.still_held(&lock).unwrap(), !engine.is_postgres());
    one.release(&lock).unwrap();
    assert!(matches!(other.acquire(&lock, Duration::ZERO), Ok(Acquired::Held)));
    // Until it is checked again.
    one.record_login_check(&login_check, "mx1", true).unwrap();
    assert!(proven(other.as_mut(), Some(&login_check)).unwrap() < 3000.0);
    one.record_login_check(&LoginCheck::new("imap://never".into()), "mx1", false).unwrap();
    assert_eq!(scene.database.count("SELECT count(*) FROM login_checks"), 2);
}

fn an_epoch_is_written_down_once_and_has_begun_when_another_one_is_found(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let (mut one, mut other) = (scene.open_database(), scene.open_database());
    let lock = LockName::new(&scene.database.name, b"1@x");
    let key = CopyKey::new(&Identity::of(b"Subject: a\r\n\r\nb\r\n"), Role::Recipient, "scuba", "INBOX");
    let look = |database: &mut dyn Database| -> Snapshot {
        let looked = match database.acquire_and_look(&lock, Duration::ZERO, &[key]).unwrap() {
            LockResult::Held { looked, .. } => looked.unwrap(),
            LockResult::Busy(holder) => panic!("{holder:?}"),
        };
        database.release(&lock).unwrap();
        looked
    };
    let rows = |scene: &mut Scene| scene.database.count("SELECT count(*) FROM epochs");
    // A migration records the first one; a program that was there before may find none.
    assert!(!one.epoch().unwrap().is_unwritten());
    scene.database.execute("DELETE FROM epochs");
    assert!(one.epoch().unwrap().is_unwritten());
    // The first of all: nothing was forgotten that a ledger could have known.
    for database in [&mut one, &mut other] {
        assert_eq!(look(database.as_mut()).epoch, None);
        assert_eq!(rows(&mut scene), 1);
        assert!(!database.epoch().unwrap().is_unwritten());
    }
    one.begin_epoch().unwrap();
    assert_eq!(rows(&mut scene), 1);
    // Another server has taken over, as far as the table knows.
    scene.database.execute("UPDATE epochs SET epoch = 'another server'");
    assert!(one.epoch().unwrap().is_unwritten());
    let began = look(one.as_mut()).epoch.unwrap();
    assert!(began < Duration::from_mins(50), "{began:?}");
    assert_eq!(rows(&mut scene), 2);
    let hour_ago = if engine.is_postgres() { "interval '1 hour'" } else { "INTERVAL 1 HOUR" };
    scene.database.execute(&format!("UPDATE epochs SET since = since - {hour_ago}"));
    let began = look(other.as_mut()).epoch.unwrap();
    assert!(began >= Duration::from_hours(1) && began < Duration::from_mins(110), "{began:?}");
    // Manually, too, and then no more.
    scene.database.execute("UPDATE epochs SET epoch = 'another server'");
    for _ in 0..2 {
        other.begin_epoch().unwrap();
        assert_eq!(rows(&mut scene), 3);
    }
    assert_eq!(one.look(&[key]).unwrap().len(), 1);
}
