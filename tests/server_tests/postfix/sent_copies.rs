//! The author's own copy: read, without the lines for one recipient, and never at the recipient's cost.

use crate::support::database::Engine;
use crate::support::program::as_delivered;
use crate::support::site_fixture::{LISA, Scene};
use crate::support::wire::{Fate, Speaker, Wire, says};

const PG: Engine = Engine::Postgres17;

on_two_engines!(
    the_sent_copy_is_one_for_all_recipients,
    a_sent_copy_that_fails_does_not_cost_the_recipient_anything,
    a_copy_that_the_author_saves_after_sending_is_the_one,
    an_author_whose_sent_is_her_inbox_has_each_message_once,
);

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

/// A user whose Sent mailbox is INBOX has one copy, however INBOX is spelt.
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

/// Mail programs submit a message first and save it to Sent afterwards: a search at once finds nothing. They save it as
/// they wrote it: without Received and what else comes on the way.
fn a_copy_that_the_author_saves_after_sending_is_the_one(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    let dovecot = scene.settings.imap.clone();
    let wire = Wire::to(dovecot.clone(), |speaker, piece| {
        assert!(speaker != Speaker::Program || !says(piece, "\"Sent\""), "a delivery has looked into Sent");
        Fate::Pass
    });
    scene.configure(|settings| {
        settings.imap = ("127.0.0.1".into(), wire.address.port());
        settings.more = "[sent]\ndedup_by = \"mailbox\"\n".into();
    });
    let message = scene.message("own");
    for name in ["doug", "scuba"] {
        let outcome = scene.deliver(name, format!("Received: by mx\n{message}"));
        assert_eq!(outcome.delivered(), "INBOX appended (uid 1), Sent owed", "{name}");
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE role = 'sender'"), 0);
    assert_eq!(scene.database.count("SELECT count(*) FROM copies WHERE state = 'owed'"), 1);

    // Her mail program comes now.
    let mut own = scene.look("lisa");
    own.run("CREATE Sent").unwrap();
    let saved = message.replace('\n', "\r\n").replace("own\r\n", "own, and a signature that a list cut off\r\n");
    own.run(&format!("APPEND Sent (\\Seen) {{{}+}}\r\n{saved}", saved.len())).unwrap();
    // What it does not save, and what cannot be looked for, is appended.
    scene.deliver("doug", scene.message("other")).delivered();
    scene.deliver("doug", scene.message("nameless").replace("Message-ID", "X-No-ID")).delivered();

    // One that she has saved is found where its recipient has filed it.
    let filed = scene.message("filed");
    scene.deliver("doug", &filed).delivered();
    let mut doug = scene.look("doug");
    doug.run("CREATE Filed").unwrap();
    doug.run("SELECT INBOX").unwrap();
    doug.run("UID MOVE 4 Filed").unwrap();
    let saved = filed.replace('\n', "\r\n");
    own.run(&format!("APPEND Sent (\\Seen) {{{}+}}\r\n{saved}", saved.len())).unwrap();

    // Not before it has had the time to.
    scene.configure(|settings| settings.imap = dovecot);
    let replay = |scene: &Scene| {
        let output = scene.subcommand(&["replay", "--owed"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let early = replay(&scene);
    assert!(early.starts_with("4 copies are left to their authors' own mail programs"), "{early}");
    assert_eq!(scene.subcommand(&["audit"]).status.code(), Some(0), "that is nothing to look after");
    assert_eq!(scene.sent("lisa").len(), 2);
    scene.configure(|settings| settings.more.push_str("dedup_delay = \"0s\"\n"));
    for _ in 0..2 {
        replay(&scene);
        assert_eq!(scene.sent("lisa").len(), 4);
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM copies WHERE state = 'owed'"), 0);
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    let again = scene.deliver("doug", format!("Received: by mx\n{message}"));
    assert_eq!(again.delivered(), "INBOX already there, Sent already there");
}

#[test]
fn check_warns_of_what_nobody_finishes() {
    let mut scene = Scene::with(PG, &["lisa", "doug"]);
    scene.configure(|settings| settings.more = "[sent]\ndedup_by = \"mailbox\"\n".into());
    scene.deliver("doug", scene.message("owed")).delivered();
    let check_output = |scene: &Scene| String::from_utf8(scene.subcommand(&["check", "--all"]).stdout).unwrap();
    assert!(!check_output(&scene).contains("Sent copies"));
    scene.database.execute("UPDATE copies SET updated_at = updated_at - interval '61 minutes'");
    assert!(check_output(&scene).contains("1 are owed for longer than an hour"), "{}", check_output(&scene));
}

/// What she writes to others is in her INBOX; where she is among them, it is there once.
fn an_author_whose_sent_is_her_inbox_has_each_message_once(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    scene.database.execute(&format!("UPDATE addresses SET sent = 'inbox' WHERE address = '{LISA}'"));
    let mut sent = 0;
    for order in [["doug", "lisa", "scuba"], ["lisa", "doug", "scuba"], ["doug", "scuba", "lisa"]] {
        let message = scene.message(&order.concat());
        sent += 1;
        for (number, name) in order.into_iter().enumerate() {
            let line = scene.deliver(name, format!("Return-Path: <{LISA}>\nDelivered-To: {name}@x\n{message}"));
            let (own, others) = if number == 0 { ("appended", "appended") } else { ("already there", "appended") };
            let expected = match name {
                "lisa" => format!("INBOX {own}"),
                _ => format!("INBOX {others} (uid {sent}), INBOX {own}"),
            };
            assert!(line.delivered().starts_with(&expected), "{order:?}: {name}: {line:?}");
        }
        let inbox = scene.inbox("lisa");
        assert_eq!(inbox.len(), sent, "{order:?}");
        let copy = String::from_utf8_lossy(&inbox[sent - 1].content).into_owned();
        assert!(!copy.contains("doug@x"), "what was prepended for another: {copy}");
    }
    assert_eq!(scene.subcommand(&["audit"]).status.code(), Some(0));
}

/// Full, it holds up nobody else, and what is refused to her comes to nobody else either.
#[test]
fn a_full_inbox_that_is_an_authors_sent_does_not_cost_the_recipient_anything() {
    let mut scene = Scene::with(PG, &["doug"]);
    scene.database.add_address(LISA, &format!("full-{}", scene.run));
    scene.database.execute(&format!("UPDATE addresses SET sent = 'INBOX' WHERE address = '{LISA}'"));
    let message = scene.message("full");
    scene.deliver("doug", &message).deferred("4.2.2 ");
    assert_eq!(scene.inbox("doug").len(), 1);
    scene.configure(|settings| settings.imap_more = "over_quota_action = \"reject\"\n".into());
    assert_eq!(scene.deliver("doug", &message).delivered(), "INBOX already there, INBOX owed");
    scene.deliver(LISA, &message).ended(77, "5.2.2 ");
    let owed = "SELECT count(*) FROM copies WHERE state = 'owed' AND role = 'recipient' AND mailbox = 'INBOX'";
    assert_eq!(scene.database.count(owed), 1);
}

/// Dovecot has no room for users whose name begins with `full`.
fn a_sent_copy_that_fails_does_not_cost_the_recipient_anything(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug", "scuba"]);
    scene.database.add_address(LISA, &format!("full-{}", scene.run));
    let message = scene.message("owed");
    // Deferred for the sake of the Sent copy; the recipient's is there, and recorded.
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
    scene.configure(|settings| settings.imap_more = "over_quota_action = \"reject\"\n".into());
    assert_eq!(scene.deliver("doug", &message).ended(77, "5.2.2 "), "the recipient's mailbox is full");
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    assert_eq!(scene.database.count("SELECT count(*) FROM copies"), 0);
}
