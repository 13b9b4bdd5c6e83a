//! A lock that somebody else holds: 75 at once, or after a wait; never success.

use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use std::time::Duration;

on_each_engine!(
    a_lock_held_elsewhere_puts_the_message_off,
    with_a_wait_it_goes_on_when_the_lock_is_let_go,
    the_holder_is_named_in_the_log,
);

fn a_lock_held_elsewhere_puts_the_message_off(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    let message = scene.message("held");
    let holder = scene.hold(&scene.message_id("held"));
    for _ in 0..2 {
        let outcome = scene.deliver_with("doug", &["--lock-wait", "0s"], &message);
        outcome.deferred("4.3.0 another delivery of this message holds its lock");
        assert!(outcome.took < Duration::from_secs(30), "{outcome:?}");
    }
    assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (0, 0));
    // Another message has another lock.
    scene.deliver("doug", scene.message("free")).delivered();
    // Nothing of the two is left open: as soon as the lock is free, nobody has to look for anything.
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    drop(holder);
    wait_until("it is delivered", || scene.deliver("doug", &message).exit == Some(0));
    assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (2, 2));
}

fn with_a_wait_it_goes_on_when_the_lock_is_let_go(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    let message = scene.message("wait");
    let holder = scene.hold(&scene.message_id("wait"));
    let outcome = scene.deliver_with("doug", &["--lock-wait", "1s"], &message);
    outcome.deferred("4.3.0 another delivery of this message holds its lock");
    assert!(outcome.took >= Duration::from_secs(1), "{outcome:?}");

    let mut waiting = ["doug", "scuba"].map(|name| scene.start(name, &["--lock-wait", "50s"], &message));
    wait_until("both have journalled", || {
        scene.database.count("SELECT count(DISTINCT attempt) FROM attempts WHERE ended_at IS NULL") == 2
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(waiting.iter_mut().all(|delivery| !delivery.has_ended()));
    drop(holder);
    for delivery in waiting {
        delivery.end().delivered();
    }
    assert_eq!((scene.inbox("doug").len(), scene.inbox("scuba").len(), scene.sent("lisa").len()), (1, 1, 1));
}

/// Stopped in its midst, a delivery still holds its lock.
fn the_holder_is_named_in_the_log(engine: Engine) {
    use crate::support::wire::{Fate, Speaker, Wire, says};
    let mut scene = Scene::with(engine, &["doug", "scuba"]);
    scene.member("lisa");
    let message = scene.message("holder");
    let dovecot = scene.settings.imap.clone();
    let wire = Wire::to(dovecot.clone(), |speaker, piece| match speaker {
        Speaker::Server if says(piece, "APPENDUID") => Fate::Hold,
        _ => Fate::Pass,
    });
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), wire.address.port()));
    let first = scene.start("doug", &["--queue-id", "4bFIRST"], &message);
    wait_until("it has appended", || scene.inbox("doug").len() == 1);

    scene.configure(|settings| settings.imap = dovecot);
    std::thread::sleep(Duration::from_millis(1100));
    let outcome = scene.deliver_with("scuba", &["--queue-id", "4bSECOND", "--lock-wait", "0s"], &message);
    let since = outcome.deferred("4.3.0 another delivery of this message holds its lock, ");
    let seconds: u32 = since.strip_suffix(" s").unwrap().parse().unwrap();
    assert!((1..60).contains(&seconds), "{since}");
    let log = scene.log();
    let line = log.lines().find(|line| line.contains("queue_id=4bSECOND") && line.contains("deferred")).unwrap();
    assert!(line.contains("holder_queue_id=4bFIRST"), "{line}");
    assert!(line.contains("holder_pid=") && line.contains("holder_host=") && line.contains("held_for_s="), "{line}");
    assert!(!outcome.line.contains("4bFIRST"), "{outcome:?}");
    first.kill();
}
