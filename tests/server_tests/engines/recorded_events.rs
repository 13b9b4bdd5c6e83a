//! What is written down for subscribers: one event for each copy that changes, in the record's own transaction, and none where nobody
//! is subscribed.

use crate::support::database::Engine;
use crate::support::imap::Imap;
use crate::support::site_fixture::Scene;
use crate::support::wire::{Fate, Speaker, Wire, says};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::delivery::Manner;
use maildrop_command::ledger::audit_queries::{self, Selection};
use maildrop_command::operations::redelivery;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

on_each_engine!(
    each_change_of_a_copy_is_reported_once_and_none_where_nobody_is_subscribed,
    an_authors_copy_that_is_owed_is_reported_and_so_is_its_end,
    the_authors_own_copy_is_reported_once_as_adopted,
    a_copy_that_is_delivered_again_is_reported_by_its_new_place,
    a_copy_too_many_that_is_taken_out_is_reported_and_the_recorded_one_stays,
    a_delivery_goes_on_where_events_cannot_be_written,
);

/// The events of one kind: what changed.
fn diffs(scene: &mut Scene, kind: &str) -> Vec<Value> {
    let diff = if scene.database.engine.is_postgres() { "diff::text" } else { "CAST(diff AS char)" };
    let rows = scene.database.texts(&format!("SELECT {diff} FROM outbox WHERE type = '{kind}' ORDER BY position"));
    rows.iter().map(|row| serde_json::from_str(row).unwrap()).collect()
}

fn events(scene: &mut Scene) -> i64 {
    scene.database.count("SELECT count(*) FROM outbox")
}

fn each_change_of_a_copy_is_reported_once_and_none_where_nobody_is_subscribed(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    scene.deliver("doug", scene.message("nobody")).delivered();
    assert_eq!(events(&mut scene), 0);

    scene.database.subscribe();
    let message = scene.message("events");
    scene.deliver_with("doug", &["--queue-id", "4bXyz"], &message).delivered();
    let validity = if engine.is_postgres() { "uid_validity::text" } else { "CAST(uid_validity AS char)" };
    let validity = |scene: &mut Scene, name: &str| {
        let user = scene.user(name);
        let rows = scene.database.texts(&format!("SELECT {validity} FROM copies WHERE imap_user = '{user}'"));
        rows[0].parse::<u32>().unwrap()
    };
    for (kind, name) in [("message.delivered", "doug"), ("sent.delivered", "lisa")] {
        let validity = validity(&mut scene, name);
        let delivered = json!({
            "state": { "---": null, "+++": "delivered" },
            "uid_validity": { "---": null, "+++": validity },
            "uid": { "---": null, "+++": 2 },
        });
        assert_eq!(diffs(&mut scene, kind), [delivered], "{kind}");
    }
    let (doug, lisa) = (scene.user("doug"), scene.user("lisa"));
    let rows = "SELECT CONCAT(type, '|', role, '|', recipient, '|', imap_user, '|', mailbox, '|', manner, '|', queue_id, '|', \
                message_id) FROM outbox ORDER BY position";
    let id = scene.message_id("events");
    assert_eq!(
        scene.database.texts(rows),
        [
            format!("message.delivered|recipient|doug@mail.axial.net|{doug}|INBOX|appended|4bXyz|{id}"),
            format!("sent.delivered|sender|lisa@mail.axial.net|{lisa}|Sent|appended|4bXyz|{id}"),
        ]
    );
    // An event names the attempt, the copy and the message as the ledger does.
    let named = "SELECT count(*) FROM outbox o JOIN attempts a ON a.attempt = o.attempt AND a.copy_key = o.copy_key \
                 JOIN copies c ON c.copy_key = o.copy_key JOIN messages m ON m.id = c.message AND m.identity = o.identity \
                 WHERE a.host = o.host";
    assert_eq!(scene.database.count(named), 2);
    // The same once more: nothing changes. To one more recipient: the author's copy is there.
    scene.deliver("doug", &message).delivered();
    assert_eq!(events(&mut scene), 2);
    scene.deliver("scuba", &message).delivered();
    assert_eq!(diffs(&mut scene, "message.delivered").len(), 2);
    assert_eq!(events(&mut scene), 3);
}

fn an_authors_copy_that_is_owed_is_reported_and_so_is_its_end(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    scene.database.subscribe();
    // `sent.dedup_by = "mailbox"`: the author's copy is owed at first.
    scene.configure(|settings| settings.more = "[sent]\ndedup_by = \"mailbox\"\n".into());
    scene.deliver("doug", scene.message("owed")).delivered();
    let owed = diffs(&mut scene, "sent.owed");
    assert_eq!(owed.len(), 1);
    assert_eq!(owed[0]["state"], json!({ "---": null, "+++": "owed" }));
    let reason = owed[0]["reason"]["+++"].clone();
    assert!(reason.is_string(), "{owed:?}");
    scene.configure(|settings| settings.more.clear());
    let finished = scene.subcommand(&["replay", "--owed"]);
    assert!(finished.status.success(), "{finished:?}");
    let delivered = diffs(&mut scene, "sent.delivered");
    assert_eq!(delivered.len(), 1);
    assert_eq!(delivered[0]["state"], json!({ "---": "owed", "+++": "delivered" }));
    assert_eq!(delivered[0]["reason"], json!({ "---": reason, "+++": null }));
    assert_eq!(delivered[0]["uid"], json!({ "---": null, "+++": 1 }));
    assert_eq!(events(&mut scene), 3);
}

/// Takes a message out of a mailbox, as its owner's mail program does.
fn delete(owner: &mut Imap, mailbox: &str, uid: u32) {
    owner.run(&format!("SELECT {mailbox}")).unwrap();
    owner.run(&format!("UID STORE {uid} +FLAGS (\\Deleted)")).unwrap();
    owner.run(&format!("UID EXPUNGE {uid}")).unwrap();
}

/// Saves a message in a mailbox, as its owner's mail program does.
fn save(owner: &mut Imap, mailbox: &str, message: &str) {
    let literal = message.replace('\n', "\r\n");
    owner.run(&format!("APPEND {mailbox} (\\Seen) {{{}+}}\r\n{literal}", literal.len())).unwrap();
}

/// What the program does from now on it does with the rights of who looks after deliveries, and no more.
fn as_operator(scene: &mut Scene) {
    let role = format!("o{}", scene.run);
    scene.database.create_operator_who_delivers(&role, "only-for-this-test");
    scene.configure(|settings| (settings.role, settings.database_password) = (role, "only-for-this-test".into()));
}

/// Of the events of one kind: which copy of which message, how it got there, and whether an attempt is named that the journal has.
fn about(scene: &mut Scene, kind: &str) -> Vec<String> {
    scene.database.texts(&format!(
        "SELECT CONCAT(o.role, '|', o.recipient, '|', o.imap_user, '|', o.mailbox, '|', COALESCE(o.manner, '-'), '|', \
         o.message_id, '|', CASE WHEN o.attempt IS NULL THEN '-' ELSE COALESCE(a.outcome, '?') END) FROM outbox o \
         JOIN copies c ON c.copy_key = o.copy_key JOIN messages m ON m.id = c.message AND m.identity = o.identity \
         LEFT JOIN attempts a ON a.attempt = o.attempt AND a.copy_key = o.copy_key AND a.host = o.host \
         WHERE o.type = '{kind}' ORDER BY o.position"
    ))
}

/// The UIDVALIDITY of the one recorded author's copy that has this UID.
fn validity_of_sent(scene: &mut Scene, uid: u32) -> i64 {
    let sql = format!("SELECT uid_validity FROM copies WHERE role = 'sender' AND uid = {uid} AND state = 'delivered'");
    scene.database.count(&sql)
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(240))
}

/// It is recorded without the lock, by a statement of its own.
fn the_authors_own_copy_is_reported_once_as_adopted(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    scene.configure(|settings| settings.more = "[sent]\ndedup_by = \"mailbox\"\ndedup_delay = \"0s\"\n".into());
    let (mut lisa, mut doug) = (scene.look("lisa"), scene.look("doug"));
    lisa.run("CREATE Sent").unwrap();
    // Nothing is left of it but what its author has saved, as she wrote it.
    let owed = |scene: &Scene, doug: &mut Imap, lisa: &mut Imap, uid: u32, id: &str| {
        let message = scene.message(id);
        scene.deliver("doug", format!("X-List: a list\n{message}")).delivered();
        delete(doug, "INBOX", uid);
        save(lisa, "Sent", &message);
    };
    owed(&scene, &mut doug, &mut lisa, 1, "nobody");
    as_operator(&mut scene);
    let finish = |scene: &Scene| assert_eq!(scene.subcommand(&["replay", "--owed"]).status.code(), Some(0));
    finish(&scene);
    let adopted = "SELECT count(*) FROM copies WHERE role = 'sender' AND state = 'delivered'";
    assert_eq!((events(&mut scene), scene.database.count(adopted)), (0, 1), "nobody is subscribed");

    scene.database.subscribe();
    owed(&scene, &mut doug, &mut lisa, 2, "events");
    let reason = diffs(&mut scene, "sent.owed").remove(0)["reason"]["+++"].clone();
    // Two who found it owed: one of them records it while the other one is still looking.
    let site = scene.site();
    let selection = Selection { since: 0, mailbox: None };
    let copy = audit_queries::owed(scene.open_database().as_mut(), &selection).unwrap().remove(0);
    let (other, begun) = (copy.clone(), AtomicBool::new(false));
    let dovecot = scene.settings.imap.clone();
    let wire = Wire::to(dovecot, move |speaker, piece| {
        if speaker == Speaker::Program && says(piece, "\"Sent\"") && !begun.swap(true, Ordering::SeqCst) {
            let manner = redelivery::finish(&site, &other, soon()).unwrap();
            assert!(matches!(manner, Manner::Adopted(Some(at)) if at.uid == 2), "{manner:?}");
        }
        Fate::Pass
    });
    scene.configure(|settings| settings.imap = ("127.0.0.1".into(), wire.address.port()));
    let manner = redelivery::finish(&scene.site(), &copy, soon()).unwrap();
    assert!(matches!(manner, Manner::Adopted(Some(at)) if at.uid == 2), "{manner:?}");
    let validity = validity_of_sent(&mut scene, 2);
    let change = json!({
        "state": { "---": "owed", "+++": "delivered" },
        "uid_validity": { "---": null, "+++": validity },
        "uid": { "---": null, "+++": 2 },
        "reason": { "---": reason, "+++": null },
    });
    let lisa_is = scene.user("lisa");
    let id = scene.message_id("events");
    assert_eq!(diffs(&mut scene, "sent.delivered"), [change]);
    assert_eq!(
        about(&mut scene, "sent.delivered"),
        [format!("sender|lisa@mail.axial.net|{lisa_is}|Sent|adopted|{id}|-")]
    );
    assert_eq!(events(&mut scene), 3, "{:?}", scene.database.texts("SELECT type FROM outbox"));

    // What cannot be published is not recorded either; but nothing is published without a table for it, as before an upgrade.
    owed(&scene, &mut doug, &mut lisa, 3, "refused");
    let refuse = "ALTER TABLE outbox ADD CONSTRAINT refused CHECK (manner <> 'adopted')";
    for sql in ["DELETE FROM outbox", refuse] {
        scene.session().execute(sql);
    }
    assert_ne!(scene.subcommand(&["replay", "--owed"]).status.code(), Some(0));
    assert_eq!((events(&mut scene), scene.database.count(adopted)), (0, 2));
    for sql in ["ALTER TABLE outbox DROP CONSTRAINT refused", "ALTER TABLE outbox RENAME TO another"] {
        scene.session().execute(sql);
    }
    finish(&scene);
    assert_eq!(scene.database.count(adopted), 3);
}

fn a_copy_that_is_delivered_again_is_reported_by_its_new_place(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    scene.database.subscribe();
    scene.deliver("doug", scene.message("restored")).delivered();
    let (id, lisa_is, doug_is) = (scene.message_id("restored"), scene.user("lisa"), scene.user("doug"));
    delete(&mut scene.look("doug"), "INBOX", 1);
    as_operator(&mut scene);
    let restore = |scene: &Scene| {
        let restored = scene.subcommand(&["replay", "--restore", "--since", "1h", "--deleted", "--yes"]);
        assert_eq!(restored.status.code(), Some(0), "{restored:?}");
    };
    restore(&scene);
    assert_eq!(diffs(&mut scene, "copy.restored"), [json!({ "uid": { "---": 1, "+++": 2 } })]);
    let appended = format!("recipient|doug@mail.axial.net|{doug_is}|INBOX|appended|{id}|appended");
    assert_eq!(about(&mut scene, "copy.restored"), [appended.as_str()]);
    // It is there now: what changes nothing tells nothing.
    restore(&scene);
    assert_eq!(events(&mut scene), 3);

    // One that was lost, and is back before it is delivered again.
    let before = validity_of_sent(&mut scene, 1);
    let mut lisa = scene.look("lisa");
    lisa.run("DELETE Sent").unwrap();
    let site = scene.site();
    let selection = Selection { since: 0, mailbox: None };
    let mut lost = redelivery::lost(&site, scene.open_database().as_mut(), &selection, soon()).unwrap().gone;
    lisa.run("CREATE Sent").unwrap();
    save(&mut lisa, "Sent", &scene.message("restored"));
    let manner = redelivery::restore(&site, &lost.remove(0).0, soon()).unwrap();
    assert!(matches!((manner, lost.len()), (Manner::Adopted(Some(_)), 0)));
    let after = validity_of_sent(&mut scene, 1);
    assert_eq!(diffs(&mut scene, "copy.restored")[1], json!({ "uid_validity": { "---": before, "+++": after } }));
    let adopted = format!("sender|lisa@mail.axial.net|{lisa_is}|Sent|adopted|{id}|adopted");
    assert_eq!(about(&mut scene, "copy.restored"), [appended, adopted]);
    assert_eq!(events(&mut scene), 4);
}

fn a_copy_too_many_that_is_taken_out_is_reported_and_the_recorded_one_stays(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    scene.database.subscribe();
    scene.deliver("doug", scene.message("twice")).delivered();
    save(&mut scene.look("lisa"), "Sent", &scene.message("twice"));
    as_operator(&mut scene);
    let repair =
        |scene: &Scene, more: &[&str]| scene.subcommand(&[&["audit", "--repair"], more].concat()).status.code();
    assert_eq!(repair(&scene, &[]), Some(65));
    assert_eq!(events(&mut scene), 2, "to look tells nothing");
    assert_eq!(repair(&scene, &["--yes"]), Some(0));
    let validity = validity_of_sent(&mut scene, 1);
    let change = json!({ "uid_validity": { "---": validity, "+++": null }, "uid": { "---": 2, "+++": null } });
    assert_eq!(diffs(&mut scene, "copy.removed"), [change]);
    let lisa_is = scene.user("lisa");
    let id = scene.message_id("twice");
    let expected = format!("sender|lisa@mail.axial.net|{lisa_is}|Sent|-|{id}|audit: took out a copy too many");
    assert_eq!(about(&mut scene, "copy.removed"), [expected]);
    assert_eq!(repair(&scene, &["--yes"]), Some(0));
    assert_eq!((events(&mut scene), scene.sent("lisa").len()), (3, 1));
}

/// The grants, and then the schema, of an older release.
fn a_delivery_goes_on_where_events_cannot_be_written(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    let role = format!("r{}", scene.run);
    scene.database.create_role_of_grants_file(&role, "only-for-this-test");
    let whom = if engine.is_postgres() { role.clone() } else { format!("'{role}'@'%'") };
    scene.configure(|settings| (settings.role, settings.database_password) = (role, "only-for-this-test".into()));
    scene.database.subscribe();
    scene.deliver("doug", scene.message("one")).delivered();
    assert_eq!(events(&mut scene), 2, "the rights of grants.sql are enough");
    assert!(!scene.log().contains("no notification is sent of this delivery"), "{}", scene.log());

    let check = |scene: &Scene| String::from_utf8(scene.subcommand(&["check", "--all"]).stdout).unwrap();
    assert!(!check(&scene).contains("INSERT on outbox"));
    scene.database.execute(&format!("REVOKE INSERT ON outbox FROM {whom}"));
    scene.deliver("doug", scene.message("two")).delivered();
    assert!(scene.log().contains("no notification is sent of this delivery"), "{}", scene.log());
    assert!(check(&scene).contains("INSERT on outbox"), "{}", check(&scene));
    scene.database.execute("DROP TABLE outbox");
    scene.deliver("doug", scene.message("three")).delivered();
    scene.database.execute("DROP TABLE subscriptions");
    scene.deliver("doug", scene.message("four")).delivered();
    let copies = "SELECT count(*) FROM copies WHERE state = 'delivered'";
    assert_eq!((scene.inbox("doug").len(), scene.database.count(copies)), (4, 8));
}
