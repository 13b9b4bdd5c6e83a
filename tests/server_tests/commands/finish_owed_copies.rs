//! A Sent copy that a delivery left owed is finished later, once, from whatever is left of the message.

use crate::support::database::Engine;
use crate::support::program::{as_delivered, wait_until};
use crate::support::site_fixture::{LISA, Scene};
use crate::support::wire::{Fate, Speaker, Wire, says};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::delivery::Manner;
use maildrop_command::ledger::audit_queries::{self, RecordedCopy, Selection};
use maildrop_command::operations::redelivery::{self, RedeliveryError};
use std::time::Duration;

on_each_engine!(
    an_owed_copy_is_finished_from_the_recipients,
    a_kept_source_is_enough,
    with_nothing_left_of_the_message_it_stays_owed,
    two_who_finish_it_at_once_leave_one_copy,
);

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(240))
}

/// A site where Lisa's Sent mailbox was out of reach while doug got her message.
pub fn owed(engine: Engine, more: &str) -> (Scene, String) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    let dovecot = scene.settings.imap.clone();
    let wire = Wire::to(dovecot.clone(), |speaker, piece| match speaker {
        Speaker::Program if says(piece, "\"Sent\"") => Fate::Cut,
        _ => Fate::Pass,
    });
    scene.configure(|settings| {
        settings.imap = ("127.0.0.1".into(), wire.address.port());
        settings.more = format!("[sent]\nretry_for = \"0s\"\n{more}");
    });
    let message = scene.message("owed");
    let prepended = format!("Return-Path: <{LISA}>\nX-Original-To: doug@x\n{message}");
    assert_eq!(scene.deliver("doug", prepended).delivered(), "INBOX appended (uid 1), Sent owed");
    scene.configure(|settings| settings.imap = dovecot);
    assert_eq!(list(&scene).len(), 1);
    (scene, message)
}

fn list(scene: &Scene) -> Vec<RecordedCopy> {
    let mut database = scene.site().open_database(None, soon()).unwrap();
    audit_queries::owed(database.as_mut(), &Selection { since: 0, mailbox: None }).unwrap()
}

fn finished_with(mut scene: Scene, message: &str) {
    let owed = list(&scene).remove(0);
    assert_eq!((owed.user.as_str(), owed.mailbox.as_str()), (scene.user("lisa").as_str(), "Sent"));
    assert!(owed.reason.is_some());
    let manner = redelivery::finish(&scene.site(), &owed, soon()).unwrap();
    assert!(matches!(manner, Manner::Appended(Some(_))), "{manner:?}");
    let sent = scene.sent("lisa");
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].content, as_delivered(message.as_bytes()));
    assert!(sent[0].flags.contains(&"\\Seen".to_owned()), "{:?}", sent[0].flags);
    // As the ledger says, and Postfix's next delivery.
    assert_eq!(list(&scene).len(), 0);
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    assert_eq!(redelivery::finish(&scene.site(), &owed, soon()).unwrap(), Manner::AlreadyThere);
    assert_eq!(scene.deliver("doug", message).delivered(), "INBOX already there, Sent already there");
    assert_eq!(scene.sent("lisa").len(), 1);
}

fn an_owed_copy_is_finished_from_the_recipients(engine: Engine) {
    let (scene, message) = owed(engine, "");
    finished_with(scene, &message);
}

fn a_kept_source_is_enough(engine: Engine) {
    let (scene, message) = owed(engine, "[record]\nkeep_source = true\n");
    let mut doug = scene.look("doug");
    doug.run("SELECT INBOX").unwrap();
    doug.run("UID STORE 1 +FLAGS (\\Deleted)").unwrap();
    doug.run("EXPUNGE").unwrap();
    finished_with(scene, &message);
}

fn with_nothing_left_of_the_message_it_stays_owed(engine: Engine) {
    let (mut scene, _) = owed(engine, "");
    let mut doug = scene.look("doug");
    doug.run("SELECT INBOX").unwrap();
    doug.run("UID STORE 1 +FLAGS (\\Deleted)").unwrap();
    doug.run("EXPUNGE").unwrap();
    let owed = list(&scene).remove(0);
    let error = redelivery::finish(&scene.site(), &owed, soon()).unwrap_err();
    assert!(matches!(&error, RedeliveryError::NoSource(why) if why.contains("record.keep_source")), "{error}");
    assert_eq!((list(&scene).len(), scene.sent("lisa").len()), (1, 0));
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
}

fn two_who_finish_it_at_once_leave_one_copy(engine: Engine) {
    let (scene, _) = owed(engine, "");
    let (owed, site) = (list(&scene).remove(0), scene.site());
    let (mut appended, mut outcomes) = (0, Vec::new());
    // The holder of the lock gives way to one that began before; where that one has met the lock, none of them delivers.
    wait_until("one of them appends", || {
        let round: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(|| redelivery::finish(&site, &owed, soon()))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        appended += round.iter().filter(|outcome| matches!(outcome, Ok(Manner::Appended(_)))).count();
        outcomes.extend(round);
        appended > 0
    });
    assert_eq!((appended, scene.sent("lisa").len()), (1, 1), "{outcomes:?}");
}
