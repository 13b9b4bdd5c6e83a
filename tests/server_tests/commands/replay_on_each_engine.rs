//! `replay` on real servers: what it delivers is delivered as if Postfix had handed it over, once, whichever the database
//! is, and however often it is run.

use crate::support::database::Engine;
use crate::support::program::{as_delivered, program, wait_until};
use crate::support::replay::{Replayed, replay};
use crate::support::site_fixture::{LISA, Scene};
use crate::support::{host_and_port, server};
use std::process::Command;

on_each_engine!(
    a_mailbox_from_a_backup_is_delivered_once,
    what_the_ledger_knows_to_have_failed_is_delivered_from_its_source,
    or_from_the_mailbox_of_somebody_who_has_it,
    a_lock_held_elsewhere_is_deferred_and_taken_up_again,
    people_have_the_rights_that_it_needs,
);

fn command(scene: &Scene, arguments: &[&str]) -> Command {
    let mut command = program(&["replay", "--config", &scene.path("config.toml")]);
    command.args(arguments).current_dir(scene.folder.path());
    command
}

fn run(scene: &Scene, arguments: &[&str]) -> Replayed {
    replay(command(scene, arguments), b"")
}

/// Messages `0` and so on, as files of a folder; its path.
fn folder(scene: &Scene, count: usize) -> String {
    let folder = scene.path("folder");
    std::fs::create_dir(&folder).unwrap();
    for n in 0..count {
        std::fs::write(format!("{folder}/{n}"), scene.message(&n.to_string())).unwrap();
    }
    folder
}

/// A delivery that finds the lock held is deferred at once.
const NO_WAIT: &str = "[lock]\nwait = \"0s\"\n";

const TO_BOTH: [&str; 6] =
    ["--sender", LISA, "--recipient", "scuba@mail.axial.net", "--recipient", "doug@mail.axial.net"];

fn a_mailbox_from_a_backup_is_delivered_once(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "scuba", "doug"]);
    let folder = folder(&scene, 12);
    // One of them has come by Postfix, to one of the two.
    scene.deliver("doug", scene.message("7")).delivered();
    let arguments = [TO_BOTH.as_slice(), &["--jobs", "4", &folder]].concat();
    run(&scene, &[arguments.as_slice(), &["--dry-run"]].concat()).ended(0, [23, 1, 0, 0]);
    assert_eq!(scene.inbox("scuba").len(), 0);
    run(&scene, &arguments).ended(0, [23, 1, 0, 0]);
    run(&scene, &arguments).ended(0, [0, 24, 0, 0]);
    for mailbox in [scene.inbox("scuba"), scene.inbox("doug"), scene.sent("lisa")] {
        assert_eq!(mailbox.len(), 12);
    }
    // And if Postfix comes after it, there is nothing left to do.
    assert_eq!(scene.deliver("scuba", scene.message("3")).delivered(), "INBOX already there, Sent already there");
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
}

fn what_the_ledger_knows_to_have_failed_is_delivered_from_its_source(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    scene.configure(|settings| {
        settings.more = format!("{NO_WAIT}[record]\nkeep_source = true\n[sent]\nenabled = false\n")
    });
    what_failed_is_delivered(&scene);
}

fn or_from_the_mailbox_of_somebody_who_has_it(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    scene.configure(|settings| settings.more = format!("{NO_WAIT}[sent]\nenabled = false\n"));
    what_failed_is_delivered(&scene);
}

/// Doug has a message, with the lines that were prepended for him. Scuba's delivery came while a lock was held.
fn what_failed_is_delivered(scene: &Scene) {
    let (message, id) = (scene.message("failed"), scene.message_id("failed"));
    let lines = "X-Original-To: doug@mail.axial.net\nDelivered-To: doug@mail.axial.net\n";
    scene.deliver_with("doug", &["--queue-id", "4bXyz"], format!("{lines}{message}")).delivered();
    let holder = scene.hold(&id);
    assert_eq!(scene.deliver_with("scuba", &["--queue-id", "4bXyz"], &message).exit, Some(75));
    let again = run(scene, &["--message-id", &id]);
    again.ended(75, [0, 1, 1, 0]);
    assert!(again.stderr.contains("another delivery of this message holds its lock"), "{again:?}");
    drop(holder);
    // No copy can be read, or delivered, while the mailboxes are out of reach: that passes.
    let mut down = program(&[
        "replay",
        "--config",
        &scene.other_configuration("down.toml", |settings| {
            settings.imap = ("127.0.0.1".into(), 1);
        }),
    ]);
    down.args(["--message-id", &id]).current_dir(scene.folder.path());
    replay(down, b"").ended(75, [0, 1, 1, 0]);
    // Of this one there is no source: nobody has got it.
    let nowhere = scene.hold(&scene.message_id("nowhere"));
    assert_eq!(scene.deliver("scuba", scene.message("nowhere")).exit, Some(75));
    drop(nowhere);

    assert_eq!(run(scene, &["--failed", "--recipient", "doug@mail.axial.net"]).exit, Some(66), "doug has it");
    let failed = ["--failed", "--since", "1h"];
    let would = run(scene, &[failed.as_slice(), &["--dry-run"]].concat());
    would.ended(65, [1, 0, 0, 1]);
    wait_until("the lock is free", || run(scene, &failed).exit != Some(75));
    // No line of it tells scuba of doug.
    let inbox: Vec<_> = scene.inbox("scuba").into_iter().map(|there| there.content).collect();
    assert_eq!(inbox, [as_delivered(message.as_bytes())]);
    assert_eq!(scene.inbox("doug").len(), 1);
    run(scene, &["--message-id", &id]).ended(0, [0, 2, 0, 0]);
    let rest = run(scene, &failed);
    rest.ended(65, [0, 0, 0, 1]);
    assert!(rest.stderr.contains("the ledger has no source of it"), "{rest:?}");
    assert_eq!(run(scene, &["--message-id", "<unknown@x>"]).exit, Some(66));
}

fn a_lock_held_elsewhere_is_deferred_and_taken_up_again(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "scuba", "doug"]);
    scene.configure(|settings| settings.more = NO_WAIT.into());
    let folder = folder(&scene, 3);
    let failed = scene.path("failed");
    let holder = scene.hold(&scene.message_id("1"));
    let arguments = [TO_BOTH.as_slice(), &["--failures-to", &failed, &folder]].concat();
    let replayed = run(&scene, &arguments);
    replayed.ended(75, [4, 0, 2, 0]);
    drop(holder);
    wait_until("the lock is free", || run(&scene, &[&failed]).exit == Some(0));
    run(&scene, &[&failed]).ended(0, [0, 2, 0, 0]);
    assert_eq!((scene.inbox("scuba").len(), scene.inbox("doug").len(), scene.sent("lisa").len()), (3, 3, 3));
}

fn people_have_the_rights_that_it_needs(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "scuba", "doug"]);
    let role = format!("o{}", scene.run);
    scene.database.create_operator_who_delivers(&role, "only-for-this-test");
    scene.configure(|settings| {
        settings.role = role;
        settings.database_password = "only-for-this-test".into();
        settings.more = format!("{NO_WAIT}[record]\nkeep_source = true\n");
    });
    let folder = folder(&scene, 1);
    run(&scene, &["--recipient", "doug@mail.axial.net", &folder]).ended(0, [1, 0, 0, 0]);
    let holder = scene.hold(&scene.message_id("0"));
    run(&scene, &["--recipient", "scuba@mail.axial.net", &folder]).ended(75, [0, 0, 1, 0]);
    drop(holder);
    wait_until("the lock is free", || run(&scene, &["--failed"]).exit == Some(0));
    assert_eq!((scene.inbox("scuba").len(), scene.inbox("doug").len()), (1, 1));
}

/// Standard input cannot be had again: what is written down of it is all of it, or a later replay would deliver a part.
#[test]
fn what_is_too_large_for_now_is_kept_whole() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug"]);
    let message = scene.message("large") + &"a line of many\n".repeat(10_000);
    let failed = scene.path("failed");
    scene.configure(|settings| settings.more = "[delivery]\nmessage_size_limit = \"1kB\"\n".into());
    let to_doug = ["--recipient", "doug@mail.axial.net", "--failures-to", &failed, "-"];
    replay(command(&scene, &to_doug), message.as_bytes()).ended(65, [0, 0, 0, 1]);
    scene.configure(|settings| settings.more = "[delivery]\nmessage_size_limit = \"1MB\"\n".into());
    run(&scene, &["--recipient", "doug@mail.axial.net", &failed]).ended(0, [1, 0, 0, 0]);
    assert_eq!(scene.inbox("doug")[0].content, as_delivered(message.as_bytes()));
}

/// Cyrus has X for each byte beyond ASCII: a lock that was made from its bytes would be another than the delivery's.
#[test]
fn from_a_mailbox_on_cyrus_it_takes_the_lock_that_the_delivery_took() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug", "scuba"]);
    scene.configure(|settings| settings.imap = host_and_port(server("CYRUS"), 143));
    let message = scene.message("grün");
    scene.deliver("doug", &message).delivered();
    let holder = scene.hold(&scene.message_id("grün"));
    scene.deliver_with("scuba", &["--lock-wait", "0s"], &message).deferred("4.3.0 ");
    drop(holder);
    wait_until("it is delivered", || run(&scene, &["--failed", "--since", "1h"]).numbers() == [1, 0, 0, 0]);
    assert_eq!(scene.database.count("SELECT count(DISTINCT lock_digest) FROM attempts"), 1);
    assert_eq!(scene.database.texts("SELECT DISTINCT message_id FROM attempts"), [scene.message_id("grün")]);
}
