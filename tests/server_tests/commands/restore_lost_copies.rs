//! A mailbox comes back from an old backup: what it has lost is delivered again, what it still has is left as it is.

use crate::support::database::Engine;
use crate::support::program::{as_delivered, wait_until};
use crate::support::site_fixture::{LISA, Scene};
use crate::support::wire::{Fate, Speaker, Wire, says};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::delivery::Manner;
use maildrop_command::ledger::audit_queries::{RecordedCopy, Selection};
use maildrop_command::operations::audit::{Audit, NotInPlace};
use maildrop_command::operations::redelivery;
use std::time::Duration;

on_each_engine!(
    a_recreated_mailbox_gets_back_what_it_lost,
    a_recipients_copy_is_restored_from_anothers_without_a_trace_of_the_other,
    what_is_back_by_the_time_of_the_lock_is_not_doubled,
    a_restore_that_was_cut_short_is_looked_for,
);

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(240))
}

fn losses(scene: &Scene, mailbox: Option<&str>) -> Audit {
    let site = scene.site();
    let mut database = site.open_database(None, soon()).unwrap();
    redelivery::lost(&site, database.as_mut(), &Selection { since: 0, mailbox }, soon()).unwrap()
}

fn lost(scene: &Scene) -> Vec<RecordedCopy> {
    losses(scene, None).gone.into_iter().map(|(copy, _)| copy).collect()
}

fn a_recreated_mailbox_gets_back_what_it_lost(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    for id in ["a", "b", "c"] {
        scene.deliver("doug", scene.message(id)).delivered();
    }
    let none = losses(&scene, None);
    assert_eq!((none.copies, none.mailboxes, none.gone.len(), none.unseen.len()), (6, 2, 0, 0));

    // A new UIDVALIDITY, and of three messages one.
    let mut lisa = scene.look("lisa");
    lisa.run("DELETE Sent").unwrap();
    let everything = losses(&scene, None).gone;
    assert_eq!(everything.iter().map(|(_, gone)| *gone).collect::<Vec<_>>(), [NotInPlace::NoMailbox; 3]);
    lisa.run("CREATE Sent").unwrap();
    let a = scene.message("a").replace('\n', "\r\n");
    lisa.run(&format!("APPEND Sent (\\Seen) {{{}+}}\r\n{a}", a.len())).unwrap();

    let now_lost = losses(&scene, None);
    let ids: Vec<_> = now_lost.gone.iter().map(|(copy, gone)| (copy.message_id.clone(), *gone)).collect();
    let [b, c] = ["b", "c"].map(|id| (scene.message_id(id), NotInPlace::NewMailbox));
    assert_eq!(ids, [b, c]);
    assert_eq!(losses(&scene, Some(&format!("{}/INBOX", scene.user("doug")))).gone.len(), 0);

    let site = scene.site();
    for (lost, _) in &everything {
        let manner = redelivery::restore(&site, lost, soon()).unwrap();
        let still_there = lost.message_id == scene.message_id("a");
        assert!(
            matches!((still_there, &manner), (true, Manner::Adopted(_)) | (false, Manner::Appended(_))),
            "{manner:?}"
        );
    }
    let restored = scene.sent("lisa");
    assert_eq!(restored.len(), 3);
    for id in ["a", "b", "c"] {
        let copies = restored.iter().filter(|copy| copy.content == as_delivered(scene.message(id).as_bytes())).count();
        assert_eq!(copies, 1, "{id}");
    }
    // And the ledger knows where they are now.
    assert_eq!(lost(&scene).len(), 0);
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    assert_eq!(redelivery::restore(&site, &everything[0].0, soon()).unwrap(), Manner::AlreadyThere);
    assert_eq!(scene.sent("lisa").len(), 3);
}

fn a_recipients_copy_is_restored_from_anothers_without_a_trace_of_the_other(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug", "scuba"]);
    scene.configure(|settings| settings.more = "[sent]\nenabled = false\n".into());
    let message = scene.message("restored");
    for name in ["scuba", "doug"] {
        let prepended =
            format!("Return-Path: <{LISA}>\nX-Original-To: {name}@elsewhere\nDelivered-To: {name}@mail.axial.net\n");
        scene.deliver(name, format!("{prepended}{message}")).delivered();
    }
    let mut doug = scene.look("doug");
    doug.run("SELECT INBOX").unwrap();
    doug.run("UID STORE 1 +FLAGS (\\Deleted)").unwrap();
    doug.run("EXPUNGE").unwrap();
    let lost = lost(&scene);
    assert_eq!(lost.iter().map(|copy| copy.recipient.as_str()).collect::<Vec<_>>(), ["doug@mail.axial.net"]);
    let manner = redelivery::restore(&scene.site(), &lost[0], soon()).unwrap();
    assert!(matches!(manner, Manner::Appended(Some(at)) if at.uid == 2), "{manner:?}");
    assert_eq!(scene.inbox("doug")[0].content, as_delivered(message.as_bytes()));
    assert!(!scene.inbox("doug")[0].flags.contains(&"\\Seen".to_owned()));
}

fn what_is_back_by_the_time_of_the_lock_is_not_doubled(engine: Engine) {
    let scene = Scene::with(engine, &["lisa", "doug"]);
    let message = scene.message("back");
    scene.deliver("doug", &message).delivered();
    let mut lisa = scene.look("lisa");
    lisa.run("SELECT Sent").unwrap();
    lisa.run("UID STORE 1 +FLAGS (\\Deleted)").unwrap();
    lisa.run("EXPUNGE").unwrap();
    let (lost, site) = (lost(&scene), scene.site());
    assert_eq!(lost.len(), 1);
    // Four operators at once.
    let (mut appended, mut outcomes) = (0, Vec::new());
    // The holder of the lock gives way to one that began before; where that one has met the lock, none of them delivers.
    wait_until("one of them appends", || {
        let round: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(|| redelivery::restore(&site, &lost[0], soon()))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        appended += round.iter().filter(|outcome| matches!(outcome, Ok(Manner::Appended(_)))).count();
        outcomes.extend(round);
        appended > 0
    });
    assert_eq!((appended, scene.sent("lisa").len()), (1, 1), "{outcomes:?}");
    assert_eq!(redelivery::restore(&site, &lost[0], soon()).unwrap(), Manner::AlreadyThere);
    assert_eq!(scene.sent("lisa").len(), 1);
}

/// The answer to its APPEND is lost: nobody knows, so that the next one waits until that is settled, looks, and adopts it.
fn a_restore_that_was_cut_short_is_looked_for(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    scene.deliver("doug", scene.message("cut")).delivered();
    let mut lisa = scene.look("lisa");
    lisa.run("SELECT Sent").unwrap();
    lisa.run("UID STORE 1 +FLAGS (\\Deleted)").unwrap();
    lisa.run("EXPUNGE").unwrap();
    let lost = lost(&scene).remove(0);
    let dovecot = scene.settings.imap.clone();
    let wire = Wire::to(dovecot.clone(), |speaker, piece| match speaker {
        Speaker::Server if says(piece, "APPENDUID") => Fate::Cut,
        _ => Fate::Pass,
    });
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), wire.address.port()));
    redelivery::restore(&scene.site(), &lost, soon()).unwrap_err();
    scene.configure(|settings| settings.imap = dovecot);
    let error = redelivery::restore(&scene.site(), &lost, soon()).unwrap_err();
    assert!(error.to_string().contains("may still arrive"), "{error}");
    scene.ten_minutes_pass();
    let manner = redelivery::restore(&scene.site(), &lost, soon()).unwrap();
    assert!(matches!(manner, Manner::Adopted(Some(at)) if at.uid == 2), "{manner:?}");
    assert_eq!(scene.sent("lisa").len(), 1);
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    assert_eq!(redelivery::restore(&scene.site(), &lost, soon()).unwrap(), Manner::AlreadyThere);
}
