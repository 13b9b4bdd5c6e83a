//! `audit`: what became of recorded copies. Each scenario is one that a person is called for: a copy gone, a mailbox back
//! from a backup, a duplicated copy, a delivery that was killed.

use crate::support::database::Engine;
use crate::support::imap::Imap;
use crate::support::imap_server::Server;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use crate::support::wire::{Fate, Speaker, Wire, says};
use crate::support::{host_and_port, server};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::delivery::lock_of_message_id;
use maildrop_command::ledger::audit_queries::Selection;
use maildrop_command::lock::{Acquired, DEFAULT_NAMESPACE};
use maildrop_command::operations::audit::{NotRemoved, audit, take_out};
use serde_json::{Value, json};
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const PG: Engine = Engine::Postgres17;

on_each_engine!(
    nothing_is_found_where_all_is_well,
    a_copy_that_its_owner_deleted_needs_nobody,
    a_recreated_mailbox_has_lost_what_is_not_in_it,
    a_mailbox_that_was_only_renumbered_has_lost_nothing_older_than_what_it_has,
    a_duplicated_copy_is_removed_if_it_is_the_same_to_the_last_byte,
    an_attempt_whose_process_was_killed_is_reported,
    a_sent_copy_that_is_owed_is_reported,
);

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What a person reads.
fn audited(scene: &Scene, more: &[&str], exit: i32) -> String {
    let output = scene.subcommand(&[&["audit"], more].concat());
    assert_eq!(output.status.code(), Some(exit), "{}", text(&output));
    text(&output)
}

fn found(scene: &Scene, more: &[&str], exit: i32) -> Value {
    serde_json::from_str(&audited(scene, &[&["--json"], more].concat(), exit)).unwrap()
}

fn list<'a>(found: &'a Value, what: &str) -> &'a [Value] {
    found[what].as_array().unwrap()
}

/// Her own mail program takes a message out.
fn delete(owner: &mut Imap, mailbox: &str, uid: u32) {
    owner.run(&format!("SELECT {mailbox}")).unwrap();
    owner.run(&format!("UID STORE {uid} +FLAGS (\\Deleted)")).unwrap();
    owner.run(&format!("UID EXPUNGE {uid}")).unwrap();
}

fn append(owner: &mut Imap, mailbox: &str, message: &str) {
    let literal = message.replace('\n', "\r\n");
    owner.run(&format!("APPEND {mailbox} (\\Seen) {{{}+}}\r\n{literal}", literal.len())).unwrap();
}

fn nothing_is_found_where_all_is_well(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    let nothing = audited(&scene, &[], 0);
    assert!(nothing.starts_with("No copy has been recorded since "), "{nothing}");
    for id in ["a", "b"] {
        scene.deliver("doug", scene.message(id)).delivered();
    }
    // As a person with the rights that people get, and no more.
    let role = format!("o{}", scene.run);
    scene.database.create_operator(&role, "only-for-this-test");
    scene.configure(|settings| {
        settings.role = role;
        settings.database_password = "only-for-this-test".into();
    });
    let well = audited(&scene, &[], 0);
    assert!(well.starts_with("Looked for 4 copies in 2 mailboxes, "), "{well}");
    assert!(well.ends_with(": all are there, once, and no attempt is overdue.\n"), "{well}");
    let doug = scene.user("doug");
    assert_eq!(found(&scene, &["--mailbox", &doug], 0)["copies"], 2);
    assert_eq!(found(&scene, &["--mailbox", &format!("{doug}/INBOX")], 0)["copies"], 2);
    assert_eq!(found(&scene, &["--mailbox", &format!("{doug}/Sent")], 0)["copies"], 0);
    assert_eq!(found(&scene, &["--since", "0"], 0)["copies"], 0);
    // And nobody's mail has been marked as read.
    assert!(scene.inbox("doug").iter().all(|message| !message.flags.contains(&"\\Seen".to_owned())));
}

fn a_copy_that_its_owner_deleted_needs_nobody(engine: Engine) {
    let scene = Scene::with(engine, &["lisa", "doug"]);
    for id in ["a", "b"] {
        scene.deliver("doug", scene.message(id)).delivered();
    }
    delete(&mut scene.look("doug"), "INBOX", 1);
    let all = audited(&scene, &[], 0);
    assert!(all.contains(": 1 gone, most likely deleted or filed by their owners.\n"), "{all}");
    assert!(!all.contains(&scene.message_id("a")), "what owners do is counted, not listed: {all}");
    let one = audited(&scene, &["--mailbox", &scene.user("doug")], 0);
    assert!(one.contains(&scene.message_id("a")) && one.contains("most likely its owner has deleted it"), "{one}");
    let found = found(&scene, &[], 0);
    let gone: Vec<_> =
        list(&found, "gone").iter().map(|gone| (&gone["why"], &gone["copy"]["uid"], &gone["lost"])).collect();
    assert_eq!(gone, [(&json!("removed"), &json!(1), &json!(false))]);

    // She has put the other one back under another name: nothing is lost, and nothing duplicated.
    let mut doug = scene.look("doug");
    doug.run("SELECT INBOX").unwrap();
    doug.run("UID COPY 2 INBOX").unwrap();
    delete(&mut doug, "INBOX", 2);
    let moved = audited(&scene, &[], 0);
    assert!(moved.contains(" 1 moved, 1 gone, ") && moved.contains("it was uid 2; it is uid 3 now"), "{moved}");
}

fn a_recreated_mailbox_has_lost_what_is_not_in_it(engine: Engine) {
    let scene = Scene::with(engine, &["lisa", "doug"]);
    for id in ["a", "b", "c"] {
        scene.deliver("doug", scene.message(id)).delivered();
    }
    let mut lisa = scene.look("lisa");
    lisa.run("DELETE Sent").unwrap();
    let none = audited(&scene, &[], 65);
    assert!(none.matches("LOST").count() == 3 && none.contains("the whole mailbox is gone"), "{none}");
    lisa.run("CREATE Sent").unwrap();
    append(&mut lisa, "Sent", &scene.message("a"));
    let some = audited(&scene, &[], 65);
    assert!(some.contains(": 2 lost, 1 moved.\n") && some.contains("replay --restore"), "{some}");
    assert!(some.trim_start().starts_with("found") && some.lines().nth(1).unwrap().starts_with(" LOST"), "{some}");
    let found = found(&scene, &[], 65);
    let gone: Vec<_> =
        list(&found, "gone").iter().map(|gone| (gone["why"].as_str().unwrap(), &gone["now"]["uid"])).collect();
    assert_eq!(gone, [("renumbered", &json!(1)), ("new mailbox", &Value::Null), ("new mailbox", &Value::Null)]);
    assert!(list(&found, "gone").iter().all(|gone| gone["copy"]["mailbox"] == "Sent"));
}

/// Known here by the ledger, which has the copies under an earlier UIDVALIDITY.
fn a_mailbox_that_was_only_renumbered_has_lost_nothing_older_than_what_it_has(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    scene.configure(|settings| settings.more = "[sent]\nenabled = false\n".into());
    for id in ["a", "b", "c"] {
        scene.deliver("doug", scene.message(id)).delivered();
    }
    delete(&mut scene.look("doug"), "INBOX", 1);
    scene.database.execute("UPDATE copies SET uid_validity = uid_validity - 1");
    let shown = audited(&scene, &[], 0);
    assert!(shown.contains(": 2 moved, 1 gone, most likely deleted or filed by their owners.\n"), "{shown}");
    let restored = scene.subcommand(&["replay", "--restore", "--since", "1h", "--yes"]);
    assert_eq!((restored.status.code(), scene.inbox("doug").len()), (Some(0), 2), "{}", text(&restored));
    // One that is newer than what is there may be lost: the mailbox may come from a backup.
    delete(&mut scene.look("doug"), "INBOX", 3);
    let found = found(&scene, &[], 65);
    let gone: Vec<_> = list(&found, "gone").iter().map(|gone| gone["why"].as_str().unwrap()).collect();
    assert_eq!(gone, ["removed", "renumbered", "new mailbox"]);
}

/// An older mailbox under its old UIDVALIDITY gives out UIDs for a second time. Known here by the ledger, which says that the
/// copies were stored under UIDs that the mailbox has yet to give out, or has given to other messages.
#[test]
fn a_mailbox_that_went_back_has_lost_what_came_after() {
    let mut scene = Scene::with(PG, &["doug"]);
    scene.configure(|settings| settings.more = "[sent]\nenabled = false\n".into());
    for id in ["a", "b", "c"] {
        scene.deliver("doug", scene.message(id)).delivered();
    }
    let mut doug = scene.look("doug");
    delete(&mut doug, "INBOX", 1);
    delete(&mut doug, "INBOX", 2);
    scene.database.execute(&format!(
        "UPDATE copies SET uid = uid + 2 WHERE message IN (SELECT id FROM messages WHERE message_id <> '{}')",
        scene.message_id("c")
    ));
    // a is recorded as 3, which is c; b as 4, which is the next.
    let shown = audited(&scene, &[], 65);
    assert!(shown.contains(": 2 lost.\n"), "{shown}");
    for id in ["a", "b"] {
        let line = shown.lines().find(|line| line.contains(&scene.message_id(id))).unwrap();
        assert!(line.starts_with(" LOST") && line.contains("the mailbox has gone back to before that"), "{shown}");
    }
}

fn a_duplicated_copy_is_removed_if_it_is_the_same_to_the_last_byte(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    for id in ["same", "other", "single"] {
        scene.deliver("doug", scene.message(id)).delivered();
    }
    let mut lisa = scene.look("lisa");
    append(&mut lisa, "Sent", &scene.message("same"));
    append(&mut lisa, "Sent", &format!("X-Filter: another way\n{}", scene.message("other")));
    // A stranger's, who has copied the Message-ID: another message.
    append(&mut lisa, "Sent", &scene.message("single").replace("Subject: ", "Subject: not "));
    let looked = audited(&scene, &[], 65);
    assert!(looked.contains(": 2 duplicated.\n") && looked.contains("uid 4 is the same as uid 1"), "{looked}");
    assert!(looked.contains("uid 5 is the same message as uid 2") && looked.contains("audit --repair"), "{looked}");

    let dry = audited(&scene, &["--repair"], 65);
    assert!(dry.contains("uid 4 would be taken out; uid 1, which is the same, stays"), "{dry}");
    assert!(dry.contains("uid 5 was left, beside uid 2") && dry.contains("Nothing was changed."), "{dry}");
    assert_eq!(scene.sent("lisa").len(), 6);
    let refused = scene.subcommand(&["audit", "--yes"]);
    assert_eq!(refused.status.code(), Some(64), "{}", text(&refused));

    // With the rights of somebody who may replay, and no more.
    let role = format!("o{}", scene.run);
    scene.database.create_operator_who_delivers(&role, "only-for-this-test");
    scene.configure(|settings| {
        settings.role = role;
        settings.database_password = "only-for-this-test".into();
    });
    let repaired = audited(&scene, &["--repair", "--yes"], 65);
    assert!(repaired.contains(": 1 duplicated, 1 taken out.\n"), "{repaired}");
    let left: Vec<u32> = scene.sent("lisa").iter().map(|message| message.uid).collect();
    assert_eq!(left, [1, 2, 3, 5, 6]);
    let found = found(&scene, &[], 65);
    let twice: Vec<_> = list(&found, "twice").iter().map(|twice| (&twice["extra_uid"], &twice["same"])).collect();
    assert_eq!(twice, [(&json!(5), &json!(false))]);
    // It was done by the book, and the next delivery sees nothing odd.
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    assert_eq!(
        scene.database.count("SELECT count(*) FROM attempts WHERE outcome = 'audit: took out a copy too many'"),
        1
    );
    // It was nobody's try at a delivery, and says nothing of how the message stands, once the tries are forgotten.
    let stats: Value = serde_json::from_slice(&scene.subcommand(&["stats", "--json"]).stdout).unwrap();
    let counted = &stats["attempts"];
    assert_eq!(
        (&counted["all"], &counted["delivered"], &counted["deferred"]),
        (&json!(3), &json!(3), &json!(0)),
        "{stats}"
    );
    assert_eq!(scene.deliver("doug", scene.message("same")).delivered(), "INBOX already there, Sent already there");
    scene.database.execute("DELETE FROM attempts WHERE outcome NOT LIKE 'audit: %'");
    let traced = scene.subcommand(&["trace", &scene.message_id("same")]);
    assert!(text(&traced).starts_with("DELIVERED to "), "{}", text(&traced));
}

fn an_attempt_whose_process_was_killed_is_reported(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    scene.configure(|settings| settings.more = "[sent]\nenabled = false\n".into());
    let dovecot = scene.settings.imap.clone();
    let appended = Arc::new(AtomicBool::new(false));
    let wire = Wire::to(dovecot.clone(), {
        let appended = appended.clone();
        move |speaker, piece| match speaker {
            Speaker::Server if says(piece, "APPENDUID") => {
                appended.store(true, Ordering::SeqCst);
                Fate::Hold
            }
            _ => Fate::Pass,
        }
    });
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), wire.address.port()));
    let message = scene.message("killed");
    let delivery = scene.start("doug", &["--queue-id", "4bKilled"], &message);
    let pid = delivery.id();
    wait_until("it has appended", || appended.load(Ordering::SeqCst));
    delivery.kill();
    scene.configure(|settings| settings.imap = dovecot);
    // A moment ago: it may still be under way, for all that the ledger knows.
    assert_eq!(list(&found(&scene, &[], 0), "never_ended").len(), 0);

    // Longer ago than any delivery lives; settled or not.
    scene.minutes_pass(4);
    assert_eq!(list(&found(&scene, &[], 65), "never_ended").len(), 1);
    scene.minutes_pass(6);
    let shown = audited(&scene, &[], 65);
    for part in [": 1 never ended.\n", &format!("process {pid} on "), "NOT delivered", "postcat -q 4bKilled"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let found = found(&scene, &["--mailbox", &scene.user("doug")], 65);
    let attempt = &list(&found, "never_ended")[0];
    assert_eq!((&attempt["pid"], &attempt["delivered"]), (&json!(pid), &json!(false)));
    assert!(attempt["age_seconds"].as_u64().unwrap() >= 600);
    // Postfix tries again; then there is nothing to tell.
    assert_eq!(scene.deliver("doug", &message).delivered(), "INBOX adopted (uid 1)");
    assert!(audit_is_clean(&scene));
}

fn a_sent_copy_that_is_owed_is_reported(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    for id in ["a", "b"] {
        scene.deliver("doug", scene.message(id)).delivered();
    }
    let lisa = scene.user("lisa");
    let of_a = format!(
        "role = 'sender' AND message IN (SELECT id FROM messages WHERE message_id = '{}')",
        scene.message_id("a")
    );
    scene.database.execute(&format!("UPDATE copies SET state = 'owed', reason = 'over quota' WHERE {of_a}"));
    delete(&mut scene.look("lisa"), "Sent", 1);
    let owed = audited(&scene, &[], 65);
    assert!(owed.contains(": 1 owed.\n") && owed.contains("replay --owed"), "{owed}");
    let line = owed.lines().find(|line| line.starts_with(" OWED")).unwrap();
    assert!(line.contains(&scene.message_id("a")) && line.contains("over quota"), "{owed}");
    let found = found(&scene, &["--mailbox", &lisa], 65);
    let [one] = list(&found, "owed") else { panic!("{found}") };
    assert_eq!((&one["copy"]["mailbox"], &one["why"]), (&json!("Sent"), &json!("over quota")), "{found}");
    assert!(audited(&scene, &["--mailbox", &scene.user("doug")], 0).contains("all are there, once"));
}

fn audit_is_clean(scene: &Scene) -> bool {
    audited(scene, &[], 0).contains("all are there, once, and no attempt is overdue.")
}

#[test]
fn a_mailbox_out_of_reach_is_reported_and_the_others_are_looked_at() {
    let mut scene = Scene::with(PG, &["lisa", "doug"]);
    scene.deliver("doug", scene.message("a")).delivered();
    scene.database.execute("UPDATE copies SET imap_user = '' WHERE role = 'sender'");
    let shown = audited(&scene, &[], 69);
    assert!(shown.contains("not looked at") && shown.contains(": 1 not looked at.\n"), "{shown}");
}

/// Between the look and the repair anything may have happened: what stays is looked at again under the lock.
#[test]
fn a_copy_too_many_is_left_if_the_other_is_gone_by_then() {
    let mut scene = Scene::with(PG, &["lisa", "doug"]);
    scene.deliver("doug", scene.message("same")).delivered();
    let mut lisa = scene.look("lisa");
    append(&mut lisa, "Sent", &scene.message("same"));
    let (site, soon) = (scene.site(), || Deadline::after(Duration::from_secs(240)));
    let mut database = site.open_database(None, soon()).unwrap();
    let selection = Selection { since: 0, mailbox: None };
    let mut found = audit(&site, database.as_mut(), &selection, &mut |_, _| {}).unwrap();
    let [twice] = found.twice.as_mut_slice() else { panic!("{found:?}") };
    assert!(twice.same);

    // A delivery of the message is under way.
    let lock = lock_of_message_id(DEFAULT_NAMESPACE, scene.message_id("same").as_bytes());
    assert!(matches!(database.acquire(&lock, Duration::ZERO).unwrap(), Acquired::Held));
    assert!(matches!(take_out(&site, twice, soon()), Err(NotRemoved::Busy)));
    database.release(&lock).unwrap();
    // The ledger has another one by now.
    scene.database.execute("UPDATE copies SET uid = 7 WHERE role = 'sender'");
    assert!(matches!(take_out(&site, twice, soon()), Err(NotRemoved::Changed(_))));
    scene.database.execute("UPDATE copies SET uid = 1 WHERE role = 'sender'");
    // She has deleted the one that was to stay.
    delete(&mut lisa, "Sent", 1);
    assert!(matches!(take_out(&site, twice, soon()), Err(NotRemoved::Changed(_))));
    assert_eq!(scene.sent("lisa").iter().map(|message| message.uid).collect::<Vec<_>>(), [2]);
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
}

/// What cannot even be compared has not been touched: its attempt ends, or it would be reported as cut short, and keep
/// its message from being pruned, for ever.
#[test]
fn a_repair_that_could_not_read_the_mailbox_leaves_no_attempt_open() {
    let mut scene = Scene::with(PG, &["lisa", "doug"]);
    scene.deliver("doug", scene.message("same")).delivered();
    append(&mut scene.look("lisa"), "Sent", &scene.message("same"));
    let dovecot = scene.settings.imap.clone();
    // Found, compared once, journalled; and under the lock, where it is compared once more, the mailbox is out of reach.
    let journalled = Arc::new(AtomicBool::new(false));
    let wire = Wire::to(dovecot.clone(), {
        let journalled = journalled.clone();
        move |speaker, piece| match speaker {
            Speaker::Program if journalled.load(Ordering::SeqCst) && says(piece, "EXAMINE") => Fate::Cut,
            _ => Fate::Pass,
        }
    });
    let (site, soon) = (scene.site(), || Deadline::after(Duration::from_secs(60)));
    let mut database = site.open_database(None, soon()).unwrap();
    let selection = Selection { since: 0, mailbox: None };
    let found = audit(&site, database.as_mut(), &selection, &mut |_, _| {}).unwrap();
    let [twice] = found.twice.as_slice() else { panic!("{found:?}") };
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), wire.address.port()));
    let site = scene.site();
    // It waits for the lock once it has journalled.
    let lock = lock_of_message_id(DEFAULT_NAMESPACE, scene.message_id("same").as_bytes());
    assert!(matches!(database.acquire(&lock, Duration::ZERO).unwrap(), Acquired::Held));
    let open = "SELECT count(*) FROM attempts WHERE ended_at IS NULL";
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| take_out(&site, twice, soon()));
        wait_until("it has journalled", || scene.database.count(open) == 1);
        journalled.store(true, Ordering::SeqCst);
        database.release(&lock).unwrap();
        let taken = taken.join().unwrap();
        assert!(matches!(taken, Err(NotRemoved::Mailbox(_))), "{taken:?}");
    });
    assert_eq!((scene.database.count(open), scene.sent("lisa").len()), (0, 2));
}

/// An expunge that is sent after `imap.append_grace` would be taken for one that can do nothing any more, and `imap.append_grace` goes by the
/// deadline of deliveries.
#[test]
fn a_repair_is_given_no_longer_than_a_delivery() {
    let mut scene = Scene::with(PG, &["lisa", "doug"]);
    scene.deliver("doug", scene.message("same")).delivered();
    append(&mut scene.look("lisa"), "Sent", &scene.message("same"));
    let asked = Arc::new(OnceLock::new());
    let wire = Wire::to(scene.settings.imap.clone(), {
        let asked = asked.clone();
        move |speaker, piece| match speaker {
            Speaker::Program if says(piece, "UID EXPUNGE") => {
                asked.get_or_init(Instant::now);
                Fate::Hold
            }
            _ => Fate::Pass,
        }
    });
    scene.configure(|settings| {
        settings.imap = ("127.0.0.1".into(), wire.address.port());
        // Time enough to log in on a machine that does too much else, and far less than two minutes.
        settings.more = "[delivery]\ndeadline = \"30s\"\n".into();
    });
    let repaired = audited(&scene, &["--repair", "--yes"], 65);
    assert!(repaired.contains("it may be out or not"), "{repaired}");
    let waited = asked.get().expect("the expunge is held").elapsed();
    assert!(waited < Duration::from_secs(60), "{waited:?}");
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 1);
}

/// What arrives for another address of hers is in the mailbox for what she sends: a note that goes there, and to others, is in
/// it in both roles.
fn in_both_roles(scene: &mut Scene) -> String {
    scene.database.add_address("team@mail.axial.net", &scene.user("lisa"));
    scene.database.execute("UPDATE addresses SET inbox = 'Sent' WHERE address = 'team@mail.axial.net'");
    let message = scene.message("both");
    scene.deliver("doug", &message).delivered();
    scene.deliver("team@mail.axial.net", &message).delivered();
    assert_eq!(scene.sent("lisa").len(), 2);
    message
}

#[test]
fn two_roles_in_one_mailbox_are_two_copies_and_none_too_many() {
    let mut scene = Scene::with(PG, &["lisa", "doug"]);
    let message = in_both_roles(&mut scene);
    assert!(audit_is_clean(&scene));
    // A third one is.
    append(&mut scene.look("lisa"), "Sent", &message);
    let found = found(&scene, &[], 65);
    let extras: Vec<_> = list(&found, "twice").iter().map(|twice| &twice["extra_uid"]).collect();
    assert_eq!(extras, [&json!(3)]);
}

/// The second was appended when the mailbox was looked at, and recorded after that.
#[test]
fn a_copy_that_a_delivery_has_recorded_meanwhile_is_none_too_many() {
    let mut scene = Scene::with(PG, &["lisa", "doug"]);
    in_both_roles(&mut scene);
    let (lisa, of_recipients) = (scene.user("lisa"), "role = 'recipient' AND imap_user");
    scene.database.execute(&format!("UPDATE copies SET state = 'owed' WHERE {of_recipients} = '{lisa}'"));
    let (site, soon) = (scene.site(), || Deadline::after(Duration::from_secs(60)));
    let mut database = site.open_database(None, soon()).unwrap();
    let selection = Selection { since: 0, mailbox: None };
    let found = audit(&site, database.as_mut(), &selection, &mut |_, _| {}).unwrap();
    let [twice] = found.twice.as_slice() else { panic!("{found:?}") };
    assert!(twice.same);
    scene.database.execute(&format!("UPDATE copies SET state = 'delivered' WHERE {of_recipients} = '{lisa}'"));
    let taken = take_out(&site, twice, soon());
    assert!(matches!(taken, Err(NotRemoved::Changed(_))), "{taken:?}");
    assert_eq!(scene.sent("lisa").len(), 2);
}

/// A device that gives all of its reports one Message-ID: each is read as often as it is one of them, and not once for each
/// other. A week of such reports would else not be looked through in the time that a mailbox has.
#[test]
fn messages_that_share_a_message_id_are_read_once_or_twice_each() {
    let mut scene = Scene::with(PG, &["doug"]);
    scene.configure(|settings| settings.more = "[sent]\nenabled = false\n".into());
    for number in 0..12 {
        scene.deliver("doug", scene.message("report").replace("Subject: ", &format!("Subject: {number} "))).delivered();
    }
    let mut doug = scene.look("doug");
    delete(&mut doug, "INBOX", 3);
    delete(&mut doug, "INBOX", 4);
    let read = Arc::new(AtomicUsize::new(0));
    let wire = Wire::to(scene.settings.imap.clone(), {
        let read = read.clone();
        move |speaker, piece| {
            if speaker == Speaker::Program && says(piece, "BODY.PEEK[])") {
                read.fetch_add(1, Ordering::SeqCst);
            }
            Fate::Pass
        }
    });
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), wire.address.port()));
    let shown = audited(&scene, &[], 0);
    assert!(shown.contains(": 2 gone, "), "{shown}");
    assert!((10..=20).contains(&read.load(Ordering::SeqCst)), "{read:?}");
}

/// Cyrus has X for each byte beyond ASCII: a lock that was made from its bytes would be another than the deliveries'.
#[test]
fn on_cyrus_a_repair_and_a_copy_owed_take_the_lock_that_the_delivery_took() {
    let mut scene = Scene::with(PG, &["lisa", "doug"]);
    scene.configure(|settings| settings.imap = host_and_port(server("CYRUS"), 143));
    let message = scene.message("grün");
    scene.deliver("doug", &message).delivered();
    append(&mut Server::Cyrus.mail_program(&scene.user("lisa")), "Sent", &message);
    let repaired = audited(&scene, &["--repair", "--yes"], 0);
    assert!(repaired.contains(": 1 taken out.\n"), "{repaired}");
    delete(&mut Server::Cyrus.mail_program(&scene.user("lisa")), "Sent", 1);
    scene.database.execute("UPDATE copies SET state = 'owed', reason = 'over quota' WHERE role = 'sender'");
    let owed = scene.subcommand(&["replay", "--owed"]);
    assert_eq!(owed.status.code(), Some(0), "{}", text(&owed));
    assert_eq!(scene.database.count("SELECT count(DISTINCT attempt) FROM attempts"), 3);
    assert_eq!(scene.database.count("SELECT count(DISTINCT lock_digest) FROM attempts"), 1);
}

#[test]
fn on_cyrus_it_finds_the_same() {
    let mut scene = Scene::with(PG, &["lisa", "doug"]);
    scene.configure(|settings| settings.imap = host_and_port(server("CYRUS"), 143));
    // Cyrus writes X for each byte beyond ASCII in a header.
    let message = |id| scene.message(id).replace("Subject: ", "Subject: grün ");
    let messages = ["a", "b", "c"].map(message);
    for message in &messages {
        scene.deliver("doug", message).delivered();
    }
    assert!(audit_is_clean(&scene));
    delete(&mut Server::Cyrus.mail_program(&scene.user("doug")), "INBOX", 1);
    append(&mut Server::Cyrus.mail_program(&scene.user("lisa")), "Sent", &messages[1]);
    let looked = audited(&scene, &[], 65);
    assert!(looked.contains(": 1 duplicated, 1 gone, "), "{looked}");
    let repaired = audited(&scene, &["--repair", "--yes"], 0);
    assert!(repaired.contains(": 1 taken out, 1 gone, "), "{repaired}");
    let mut lisa = Server::Cyrus.mail_program(&scene.user("lisa"));
    assert_eq!(lisa.messages("Sent").iter().map(|message| message.uid).collect::<Vec<_>>(), [1, 2, 3]);
    lisa.run("DELETE Sent").unwrap();
    let lost = audited(&scene, &[], 65);
    assert!(lost.contains(": 3 lost, 1 gone, ") && lost.contains("the whole mailbox is gone"), "{lost}");
}

/// What was restored lacks what may name others. Its owner takes the one that was deleted out of the bin: which of the two stays is the ledger's.
#[test]
fn a_restored_copy_and_the_one_that_came_back_are_the_same_unless_that_one_has_a_bcc() {
    let mut scene = Scene::with(PG, &["lisa", "doug", "scuba"]);
    scene.configure(|settings| settings.more = "[sent]\nenabled = false\n".into());
    for (id, bcc) in [("plain", ""), ("blind", "Bcc: ada@x\n")] {
        let copy_for = |name: &str| {
            let received = format!("Received: from a by mx\n\tfor <{name}@x>; Mon, 1 Jan 2026 00:00:00 +0000\n");
            let date = "Date: Mon, 1 Jan 2026 00:00:00 +0000\n";
            format!("Delivered-To: {name}@x\n{received}{bcc}{date}{}", scene.message(id))
        };
        for name in ["scuba", "doug"] {
            scene.deliver(name, copy_for(name)).delivered();
        }
    }
    let mut doug = scene.look("doug");
    let [plain, blind] = scene.inbox("doug").try_into().unwrap_or_else(|found| panic!("{found:?}"));
    for uid in [1, 2] {
        delete(&mut doug, "INBOX", uid);
    }
    assert!(scene.subcommand(&["replay", "--restore", "--deleted", "--since", "1h", "--yes"]).status.success());
    assert_eq!(scene.inbox("doug").len(), 2);
    for copy in [&plain, &blind] {
        append(&mut doug, "INBOX", &String::from_utf8_lossy(&copy.content).replace('\r', ""));
    }
    let repaired = audited(&scene, &["--repair", "--yes"], 65);
    assert!(repaired.contains("was taken out; uid 3, which is the same, stays"), "{repaired}");
    assert!(repaired.contains("a Bcc that the one to keep has not"), "{repaired}");
    let left = scene.inbox("doug");
    assert_eq!(left.iter().map(|copy| copy.uid).collect::<Vec<_>>(), [3, 4, 6]);
}
