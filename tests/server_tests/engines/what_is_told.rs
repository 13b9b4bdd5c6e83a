//! What is written down for subscribers: one event for each copy that changes, in the record's own transaction, and none where nobody
//! is subscribed.

use crate::support::database::Engine;
use crate::support::scene::Scene;
use serde_json::{Value, json};

on_each_engine!(
    each_change_of_a_copy_is_told_once_and_none_where_nobody_is_subscribed,
    an_authors_copy_that_is_owed_is_told_and_so_is_its_end,
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

fn each_change_of_a_copy_is_told_once_and_none_where_nobody_is_subscribed(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    scene.deliver("doug", scene.message("nobody")).delivered();
    assert_eq!(events(&mut scene), 0);

    scene.database.subscribe();
    let message = scene.message("told");
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
    let id = scene.message_id("told");
    assert_eq!(
        scene.database.texts(rows),
        [
            format!("message.delivered|recipient|doug@mail.axial.net|{doug}|INBOX|appended|4bXyz|{id}"),
            format!("sent.delivered|sender|doug@mail.axial.net|{lisa}|Sent|appended|4bXyz|{id}"),
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

fn an_authors_copy_that_is_owed_is_told_and_so_is_its_end(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    scene.database.subscribe();
    // `sent.look = "mailbox"`: the author's copy is owed at first.
    scene.configure(|settings| settings.more = "[sent]\nlook = \"mailbox\"\n".into());
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
    assert!(!scene.log().contains("subscribers are not told"), "{}", scene.log());

    let check = |scene: &Scene| String::from_utf8(scene.subcommand(&["check"]).stdout).unwrap();
    assert!(!check(&scene).contains("once anybody is subscribed"));
    scene.database.execute(&format!("REVOKE INSERT ON outbox FROM {whom}"));
    scene.deliver("doug", scene.message("two")).delivered();
    assert!(scene.log().contains("subscribers are not told"), "{}", scene.log());
    assert!(check(&scene).contains("once anybody is subscribed"), "{}", check(&scene));
    scene.database.execute("DROP TABLE outbox");
    scene.deliver("doug", scene.message("three")).delivered();
    scene.database.execute("DROP TABLE subscriptions");
    scene.deliver("doug", scene.message("four")).delivered();
    let copies = "SELECT count(*) FROM copies WHERE state = 'delivered'";
    assert_eq!((scene.inbox("doug").len(), scene.database.count(copies)), (4, 8));
}
