//! `replay --owed` and `replay --restore`: what the ledger says should be in a mailbox, and is not.

use crate::commands::finish_owed_copies::owed;
use crate::support::database::Engine;
use crate::support::program::program;
use crate::support::replay::{Replayed, replay};
use crate::support::site_fixture::Scene;

on_each_engine!(
    an_owed_sent_copy_is_finished_on_request,
    what_a_mailbox_lost_is_shown_and_then_delivered_again,
    the_role_for_deliveries_learns_whose_work_this_is,
);

fn run(scene: &Scene, arguments: &[&str]) -> Replayed {
    let mut command = program(&["replay", "--config", &scene.path("config.toml")]);
    command.args(arguments).current_dir(scene.folder.path());
    replay(command, b"")
}

fn an_owed_sent_copy_is_finished_on_request(engine: Engine) {
    let (mut scene, _) = owed(engine, "");
    let there = scene.settings.imap.clone();
    assert_eq!(run(&scene, &["--owed", "--mailbox", "somebody"]).numbers(), [0; 4]);
    let would = run(&scene, &["--owed", "--dry-run"]);
    assert_eq!((would.exit, would.summary["message_id"].as_str()), (Some(0), Some(scene.message_id("owed").as_str())));
    assert_eq!(scene.sent("lisa").len(), 0);
    // With the mailboxes out of reach, the message is not gone: the same again brings it.
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), 1));
    let later = run(&scene, &["--owed"]);
    later.ended(75, [0, 0, 1, 0]);
    assert!(!later.stderr.contains("nothing is left"), "{later:?}");
    scene.configure(|settings| settings.imap = there);
    run(&scene, &["--owed"]).ended(0, [1, 0, 0, 0]);
    run(&scene, &["--owed"]).ended(0, [0; 4]);
    assert_eq!((scene.sent("lisa").len(), scene.inbox("doug").len()), (1, 1));
    assert_eq!(run(&scene, &["--owed", "--recipient", "doug@mail.axial.net"]).exit, Some(64));
}

fn what_a_mailbox_lost_is_shown_and_then_delivered_again(engine: Engine) {
    let scene = Scene::with(engine, &["lisa", "doug"]);
    for id in ["kept", "lost"] {
        scene.deliver("doug", scene.message(id)).delivered();
    }
    // Her Sent mailbox comes back without one of them; and doug has deleted one of his.
    let mut lisa = scene.look("lisa");
    let kept = scene.message("kept").replace('\n', "\r\n");
    lisa.run("DELETE Sent").unwrap();
    lisa.run("CREATE Sent").unwrap();
    lisa.run(&format!("APPEND Sent (\\Seen) {{{}+}}\r\n{kept}", kept.len())).unwrap();
    let mut doug = scene.look("doug");
    doug.run("SELECT INBOX").unwrap();
    doug.run("UID STORE 1 +FLAGS (\\Deleted)").unwrap();
    doug.run("EXPUNGE").unwrap();
    // Since when is for people to say: a backup knows no better.
    assert_eq!(run(&scene, &["--restore"]).exit, Some(64));
    let look = ["--restore", "--since", "1h"];
    let seen = run(&scene, &look);
    assert_eq!((seen.exit, seen.printed.len()), (Some(0), 0), "{seen:?}");
    assert_eq!(seen.summary["message_id"], scene.message_id("lost"));
    assert_eq!((seen.summary["mailbox"].as_str(), seen.summary["role"].as_str()), (Some("Sent"), Some("sender")));
    assert_eq!(scene.sent("lisa").len(), 1, "to look changes nothing");

    run(&scene, &[look.as_slice(), &["--mailbox", "somebody", "--yes"]].concat()).ended(0, [0; 4]);
    run(&scene, &[look.as_slice(), &["--yes"]].concat()).ended(0, [1, 0, 0, 0]);
    run(&scene, &[look.as_slice(), &["--yes"]].concat()).ended(0, [0; 4]);
    assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (1, 2));

    // What doug has deleted comes back only if somebody says so.
    let too = [look.as_slice(), &["--deleted"]].concat();
    assert_eq!(run(&scene, &too).summary["message_id"], scene.message_id("kept"));
    run(&scene, &[too.as_slice(), &["--yes"]].concat()).ended(0, [1, 0, 0, 0]);
    assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (2, 2));
}

fn the_role_for_deliveries_learns_whose_work_this_is(engine: Engine) {
    let owed = || {
        let (mut scene, _) = owed(engine, "");
        let role = format!("r{}", scene.run);
        scene.database.create_role_of_grants_file(&role, "secret");
        scene.configure(|settings| (settings.role, settings.database_password) = (role, "secret".into()));
        scene
    };
    // It may read another copy of the message.
    run(&owed(), &["--owed"]).ended(0, [1, 0, 0, 0]);
    let scene = owed();
    let mut doug = scene.look("doug");
    for command in ["SELECT INBOX", "STORE 1 +FLAGS (\\Deleted)", "EXPUNGE"] {
        doug.run(command).unwrap();
    }
    let refused = run(&scene, &["--owed"]);
    if !engine.is_postgres() {
        // There it may read what it has kept, which is nothing.
        return refused.ended(65, [0, 0, 0, 1]);
    }
    assert_eq!(refused.exit, Some(65), "{refused:?}");
    assert!(
        refused.stderr.contains("message_sources") && refused.stderr.contains("grants-operator.sql"),
        "{refused:?}"
    );
}
