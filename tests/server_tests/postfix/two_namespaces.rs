//! Two hosts whose `lock.namespace` differs take two locks for one message, which exclude nobody. The journal shows it: the
//! second is deferred, and nothing is duplicated.

use crate::support::database::Engine;
use crate::support::program::{Outcome, Running, feed, program, wait_until};
use crate::support::site_fixture::Scene;
use crate::support::wire::{Fate, Speaker, Wire, says};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

on_each_engine!(
    a_second_host_with_another_namespace_is_deferred,
    so_is_one_that_comes_a_moment_later_until_that_is_settled,
    what_died_under_another_namespace_is_looked_for_once_it_is_settled,
);

const UNDER_ANOTHER_LOCK: &str = "4.3.5 another host uses another lock.namespace";

fn site(engine: Engine) -> Scene {
    Scene::with(engine, &["lisa", "doug", "scuba"])
}

/// The configuration of a host with this namespace.
fn host(scene: &Scene, namespace: &str) -> String {
    scene.other_configuration(&format!("{namespace}.toml"), |settings| {
        settings.more = format!("[lock]\nnamespace = \"{namespace}\"\nwait = \"0s\"\n");
    })
}

fn deliver(scene: &Scene, config: &str, recipient: &str, message: &str) -> Outcome {
    feed(scene.command_by(config, recipient, &[]), message.as_bytes())
}

/// How many copies doug, scuba and lisa have.
fn copies(scene: &Scene) -> (usize, usize, usize) {
    (scene.inbox("doug").len(), scene.inbox("scuba").len(), scene.sent("lisa").len())
}

/// It is ten minutes later, for the messages as well.
fn settled(scene: &mut Scene) {
    scene.ten_minutes_pass();
    let ago = if scene.database.engine.is_postgres() { "interval '10 minutes'" } else { "INTERVAL 10 MINUTE" };
    scene.database.execute(&format!("UPDATE messages SET recorded_at = recorded_at - {ago}"));
}

/// Doug's delivery has come as far as its APPEND to Sent, which waits until the second host is done.
fn a_second_host_with_another_namespace_is_deferred(engine: Engine) {
    // And the control, with one namespace: there it is the lock that defers it.
    for (namespace, deferred) in
        [("one", "4.3.0 another delivery of this message holds its lock"), ("two", UNDER_ANOTHER_LOCK)]
    {
        let scene = site(engine);
        let message = scene.message(namespace);
        let (reached, go_on) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let wire = Wire::to(scene.settings.imap.clone(), {
            let (reached, go_on) = (reached.clone(), go_on.clone());
            move |speaker, piece| {
                if speaker == Speaker::Program && says(piece, " APPEND ") && says(piece, "Sent") {
                    reached.store(true, Ordering::SeqCst);
                    wait_until("the second host is done", || go_on.load(Ordering::SeqCst));
                }
                Fate::Pass
            }
        });
        let slow = scene.other_configuration("slow.toml", |settings| {
            settings.imap = ("127.0.0.1".into(), wire.address.port());
            settings.more = "[lock]\nnamespace = \"one\"\n".into();
        });
        let first = Running::start(scene.command_by(&slow, "doug", &[]), message.as_bytes());
        wait_until("it has come to Sent", || reached.load(Ordering::SeqCst));
        let second = deliver(&scene, &host(&scene, namespace), "scuba", &message);
        go_on.store(true, Ordering::SeqCst);
        first.end().delivered();
        assert_eq!(copies(&scene).2, 1, "{second:?}");
        second.deferred(deferred);
        if deferred == UNDER_ANOTHER_LOCK {
            let here = gethostname::gethostname().into_string().unwrap();
            let cause = format!("{here} delivers this message under another lock");
            assert!(scene.log().contains(&cause), "{}", scene.log());
            assert!(!second.line.contains(&here), "{second:?}");
        }
        assert_eq!(copies(&scene), (1, 0, 1));
        assert_eq!(deliver(&scene, &host(&scene, "one"), "scuba", &message).exit, Some(0));
        assert_eq!(copies(&scene), (1, 1, 1));
    }
}

/// A change of the namespace on purpose takes no longer than that, either.
fn so_is_one_that_comes_a_moment_later_until_that_is_settled(engine: Engine) {
    let mut scene = site(engine);
    let message = scene.message("later");
    let (one, two) = (host(&scene, "one"), host(&scene, "two"));
    deliver(&scene, &one, "doug", &message).delivered();
    for _ in 0..2 {
        deliver(&scene, &two, "scuba", &message).deferred(UNDER_ANOTHER_LOCK);
    }
    assert_eq!(copies(&scene), (1, 0, 1));
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    settled(&mut scene);
    assert!(deliver(&scene, &two, "scuba", &message).delivered().ends_with("Sent already there"));
    assert_eq!(copies(&scene), (1, 1, 1));
    // A message that nobody else has to do with is none of this.
    deliver(&scene, &two, "doug", &scene.message("another")).delivered();

    // What the ledger has keeps the lock it was recorded with: it can be restored under either.
    for config in [&one, &two] {
        let mut restore = program(&["replay", "--config", config, "--restore", "--since", "1h"]);
        let restored = restore.args(["--yes"]).current_dir(scene.folder.path()).output().unwrap();
        assert_eq!(restored.status.code(), Some(0), "{restored:?}");
    }
    assert_eq!(copies(&scene), (2, 1, 2));
}

fn what_died_under_another_namespace_is_looked_for_once_it_is_settled(engine: Engine) {
    let mut scene = site(engine);
    let message = scene.message("died");
    let wire = Wire::to(scene.settings.imap.clone(), |speaker, piece| match speaker {
        Speaker::Server if says(piece, "APPENDUID") => Fate::Hold,
        _ => Fate::Pass,
    });
    let held = scene.other_configuration("held.toml", |settings| {
        settings.imap = ("127.0.0.1".into(), wire.address.port());
        settings.more = "[lock]\nnamespace = \"one\"\n".into();
    });
    let first = Running::start(scene.command_by(&held, "doug", &[]), message.as_bytes());
    wait_until("it has appended", || scene.inbox("doug").len() == 1);
    first.kill();
    let two = host(&scene, "two");
    // The very recipient, and another one.
    for recipient in ["doug", "scuba"] {
        deliver(&scene, &two, recipient, &message).deferred(UNDER_ANOTHER_LOCK);
    }
    assert_eq!(copies(&scene), (1, 0, 0));
    settled(&mut scene);
    assert!(deliver(&scene, &two, "doug", &message).delivered().starts_with("INBOX adopted"));
    assert!(deliver(&scene, &two, "scuba", &message).delivered().ends_with("Sent already there"));
    assert_eq!(copies(&scene), (1, 1, 1));
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
}
