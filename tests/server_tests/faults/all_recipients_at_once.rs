//! What this program is for: all recipients of one message in the same instant.

use crate::support::database::Engine;
use crate::support::program::{Running, wait_until};
use crate::support::site_fixture::Scene;
use crate::support::wire::{Fate, Speaker, Wire, says};
use std::time::Duration;

on_each_engine!(each_recipient_once_and_the_author_once);

const NAMES: [&str; 6] = ["doug", "scuba", "anna", "bert", "carl", "dora"];

fn each_recipient_once_and_the_author_once(engine: Engine) {
    let mut scene = Scene::with(engine, &NAMES);
    scene.member("lisa");
    // A slow way to Sent: a search for a copy there would find none meanwhile.
    let wire = Wire::to(scene.settings.imap.clone(), |speaker, piece| {
        if speaker == Speaker::Program && says(piece, " APPEND ") && says(piece, "Sent") {
            std::thread::sleep(Duration::from_millis(300));
        }
        Fate::Pass
    });
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), wire.address.port()));
    // Without a wait for the lock, and with one.
    for (round, arguments) in [("none", ["--lock-wait", "0s"]), ("wait", ["--lock-wait", "30s"])] {
        let message = scene.message(round);
        let mut waiting = NAMES.to_vec();
        // Postfix comes again for those that were deferred.
        wait_until("all is delivered", || {
            let running: Vec<(&str, Running)> =
                waiting.iter().map(|name| (*name, scene.start(name, &arguments, &message))).collect();
            waiting.clear();
            for (name, delivery) in running {
                let outcome = delivery.end();
                if outcome.exit == Some(75) {
                    outcome.deferred("4.3.0 another delivery of this message holds its lock");
                    waiting.push(name);
                } else {
                    assert!(outcome.delivered().starts_with("INBOX appended"), "{outcome:?}");
                }
            }
            waiting.is_empty()
        });
    }
    for name in NAMES {
        assert_eq!(scene.inbox(name).len(), 2, "{name}");
    }
    assert_eq!(scene.sent("lisa").len(), 2);
    assert_eq!(scene.database.count("SELECT count(*) FROM copies WHERE state = 'delivered'"), 14);
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    assert_eq!(scene.database.count("SELECT count(*) FROM messages"), 2);
}
