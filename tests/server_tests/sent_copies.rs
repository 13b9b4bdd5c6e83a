//! The author's own copy: read, without the lines for one recipient, and never at the recipient's cost.

use crate::support::database::Engine;
use crate::support::program::as_delivered;
use crate::support::scene::{LISA, Scene};

const PG: Engine = Engine::Postgres17;

on_each_engine!(the_sent_copy_is_one_for_all_recipients, a_sent_copy_that_fails_does_not_cost_the_recipient_anything);

fn the_sent_copy_is_one_for_all_recipients(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "scuba", "doug"]);
    let message = scene.message("both");
    for name in ["scuba", "doug"] {
        let prepended =
            format!("Return-Path: <{LISA}>\nX-Original-To: {name}@x\nDelivered-To: {name}@mail.axial.net\n");
        scene.deliver(name, format!("{prepended}{message}")).delivered();
        let inbox = scene.inbox(name);
        assert_eq!(inbox.len(), 1);
        assert_eq!(inbox[0].content, as_delivered(format!("{prepended}{message}").as_bytes()));
        assert!(!inbox[0].flags.contains(&"\\Seen".to_owned()), "{:?}", inbox[0].flags);
    }
    let sent = scene.sent("lisa");
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].content, as_delivered(message.as_bytes()));
    assert!(sent[0].flags.contains(&"\\Seen".to_owned()), "{:?}", sent[0].flags);
    // It is one that her mail program shows: made once, and subscribed to.
    let subscribed = scene.look("lisa").run("LSUB \"\" Sent").unwrap();
    assert!(subscribed.iter().any(|response| response.text.ends_with("Sent")), "{subscribed:?}");
    let rows = "SELECT CONCAT(role, ' ', state, ' ', mailbox, ' ', uid) FROM copies ORDER BY role, imap_user";
    assert_eq!(
        scene.database.texts(rows),
        ["recipient delivered INBOX 1", "recipient delivered INBOX 1", "sender delivered Sent 1"]
    );
}

#[test]
fn a_note_to_oneself_is_in_both() {
    let scene = Scene::with(PG, &["lisa"]);
    let message = scene.message("note");
    assert_eq!(scene.deliver("lisa", &message).delivered(), "INBOX appended (uid 1), Sent appended (uid 1)");
    assert_eq!(scene.deliver("lisa", &message).delivered(), "INBOX already there, Sent already there");
    assert_eq!((scene.inbox("lisa").len(), scene.sent("lisa").len()), (1, 1));
}

/// Whoever keeps what is sent where everything is has one copy of it, however INBOX is spelt.
#[test]
fn a_note_to_oneself_is_there_once_where_sent_is_the_inbox() {
    let mut scene = Scene::with(PG, &["lisa"]);
    scene.database.execute("UPDATE addresses SET sent = 'Inbox'");
    let message = scene.message("note");
    assert_eq!(scene.deliver("lisa", &message).delivered(), "INBOX appended (uid 1)");
    scene.database.execute("UPDATE addresses SET inbox = 'inbox', sent = 'INBOX'");
    assert_eq!(scene.deliver("lisa", &message).delivered(), "INBOX already there");
    assert_eq!(scene.inbox("lisa").len(), 1);
}

#[test]
fn without_sent_copies_there_are_none() {
    let mut scene = Scene::with(PG, &["lisa", "doug"]);
    scene.configure(|settings| settings.more = "[sent]\nenabled = false\n".into());
    assert_eq!(scene.deliver("doug", scene.message("a")).delivered(), "INBOX appended (uid 1)");
    assert_eq!(scene.sent("lisa").len(), 0);
}

/// Her mail program has saved what she wrote, as it wrote it: without Received and what else comes on the way.
#[test]
fn the_copy_that_the_members_mail_program_saved_is_the_one() {
    let mut scene = Scene::with(PG, &["lisa", "doug", "scuba"]);
    scene.configure(|settings| settings.more = "[sent]\nlook = \"mailbox\"\n".into());
    let message = scene.message("own");
    let mut own = scene.look("lisa");
    own.run("CREATE Sent").unwrap();
    let saved = message.replace('\n', "\r\n").replace("own\r\n", "own, and a signature that a list cut off\r\n");
    own.run(&format!("APPEND Sent (\\Seen) {{{}+}}\r\n{saved}", saved.len())).unwrap();
    for name in ["doug", "scuba"] {
        let outcome = scene.deliver(name, format!("Received: by mx\n{message}"));
        assert!(outcome.delivered().starts_with("INBOX appended"), "{outcome:?}");
        assert!(outcome.line.contains(if name == "doug" { "Sent adopted (uid 1)" } else { "Sent already there" }));
    }
    assert_eq!(scene.sent("lisa").len(), 1);
    // What she has not saved is appended; one without a Message-ID cannot be looked for, and is appended.
    scene.deliver("doug", scene.message("other")).delivered();
    scene.deliver("doug", scene.message("nameless").replace("Message-ID", "X-No-ID")).delivered();
    assert_eq!(scene.sent("lisa").len(), 3);
}

/// Dovecot has no room for users whose name begins with `full`.
fn a_sent_copy_that_fails_does_not_cost_the_recipient_anything(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug", "scuba"]);
    scene.database.add_address(LISA, &format!("full-{}", scene.run));
    let message = scene.message("owed");
    // Put off for the sake of the Sent copy; the recipient's is there, and recorded.
    scene.deliver("doug", &message).deferred("4.2.2 the mailbox is full");
    assert_eq!(scene.inbox("doug").len(), 1);
    assert_eq!(scene.database.count("SELECT count(*) FROM copies WHERE state = 'delivered' AND uid = 1"), 1);
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    // It is filed, and not delivered again.
    scene.look("doug").run("SELECT INBOX").unwrap();
    let mut doug = scene.look("doug");
    doug.run("CREATE Filed").unwrap();
    doug.run("SELECT INBOX").unwrap();
    doug.run("UID MOVE 1 Filed").unwrap();
    scene.deliver("doug", &message).deferred("4.2.2 the mailbox is full");
    assert_eq!((scene.inbox("doug").len(), scene.mailbox("doug", "Filed").len()), (0, 1));

    // Past the time that the operator gives it, it stays owed, and the delivery is done.
    scene.configure(|settings| settings.more = "[sent]\nretry_for = \"5m\"\n".into());
    scene.deliver("doug", &message).deferred("4.2.2 the mailbox is full");
    scene.ten_minutes_pass();
    assert_eq!(scene.deliver("doug", &message).delivered(), "INBOX already there, Sent owed");
    let owed = "SELECT CONCAT(role, ' ', mailbox, ' ', reason) FROM copies WHERE state = 'owed'";
    let owed = scene.database.texts(owed);
    assert!(owed.len() == 1 && owed[0].starts_with("sender Sent ") && owed[0].contains("uota"), "{owed:?}");
    assert!(scene.log().contains("stays owed"));
    // The next recipient of the same message does not wait for it either.
    assert_eq!(scene.deliver("scuba", &message).delivered(), "INBOX appended (uid 1), Sent owed");
    assert_eq!(scene.database.count("SELECT count(*) FROM copies WHERE state = 'owed'"), 1);
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
}

#[test]
fn a_sent_mailbox_that_can_never_be_holds_nothing_up() {
    let mut scene = Scene::with(PG, &["lisa", "doug"]);
    scene.database.execute(&format!("UPDATE addresses SET sent = '../../x' WHERE address = '{LISA}'"));
    let message = scene.message("never");
    let outcome = scene.deliver("doug", &message);
    outcome.one_line();
    assert_eq!(scene.inbox("doug").len(), 1);
    scene.configure(|settings| settings.more = "[sent]\nretry_for = \"0s\"\n".into());
    assert_eq!(scene.deliver("doug", &message).delivered(), "INBOX already there, ../../x owed");
    assert_eq!(scene.inbox("doug").len(), 1);
}

#[test]
fn a_full_inbox_waits_or_is_refused_as_the_operator_chose() {
    let mut scene = Scene::with(PG, &["lisa"]);
    scene.database.add_address("doug@mail.axial.net", &format!("full-{}", scene.run));
    let message = scene.message("full");
    scene.deliver("doug", &message).deferred("4.2.2 the mailbox is full");
    assert_eq!(scene.sent("lisa").len(), 0, "the recipient's copy comes first");
    scene.configure(|settings| settings.imap_more = "over_quota = \"reject\"\n".into());
    assert_eq!(scene.deliver("doug", &message).ended(77, "5.2.2 "), "the recipient's mailbox is full");
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    assert_eq!(scene.database.count("SELECT count(*) FROM copies"), 0);
}
