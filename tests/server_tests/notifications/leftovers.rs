//! Two at once, of whom one has not seen what the other does: nothing stays behind for ever.

use crate::notifications::event_delivery::{happen, subscribe};
use crate::support::database::Engine;
use crate::support::program::{program, wait_until};
use crate::support::site_fixture::Scene;
use maildrop_command::ledger::Notifications;
use maildrop_command::ledger::notifications::{Published, Wake};
use maildrop_command::lock::LockName;
use std::process::Stdio;
use uuid::Uuid;

on_each_engine![
    notifications_of_events_or_of_a_subscription_that_are_gone_go_when_old_events_do,
    of_two_that_revoke_the_tokens_of_a_name_the_second_sees_the_first,
];

fn literal(engine: Engine, id: Uuid) -> String {
    if engine.is_postgres() { format!("CAST('{id}' AS uuid)") } else { format!("X'{}'", id.simple()) }
}

fn notifications_of_events_or_of_a_subscription_that_are_gone_go_when_old_events_do(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let [gone, kept] = [(); 2].map(|()| subscribe(&mut scene, ("all", ""), "https://hooks.example.com/in", &[]));
    happen(&mut scene, 2, "message.delivered");
    let lock = LockName::new(&scene.run, b"publisher");
    let published = scene.open_database().publish(&lock, Wake::Nobody).unwrap();
    assert!(matches!(published, Published::Events { count: 2, .. }));
    // As it is where it was deleted before the publisher's COMMIT.
    let [gone, kept] = [gone, kept].map(|id| literal(engine, id));
    scene.database.execute(&format!("DELETE FROM subscriptions WHERE id = {gone}"));
    // What was left so in earlier times, of events that were forgotten since: more than a page. Or who had events sent
    // once more while they were forgotten.
    for subscription in [&gone, &kept] {
        scene.database.execute(&format!(
            "INSERT INTO notifications (subscription, event) \
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600) SELECT {subscription}, -i FROM n"
        ));
    }
    let oldest = scene.database.count("SELECT min(position) FROM events");
    let long_ago =
        if engine.is_postgres() { "now() - interval '40 days'" } else { "UTC_TIMESTAMP(6) - INTERVAL 40 DAY" };
    scene.database.execute(&format!("UPDATE events SET created_at = {long_ago} WHERE position = {oldest}"));
    let operator = format!("{}_o", scene.run);
    scene.database.create_operator(&operator, "secret");
    scene.configure(|settings| (settings.role, settings.database_password) = (operator, "secret".into()));
    let pruned = scene.subcommand(&["prune", "--events-older-than", "30d", "--json"]);
    let output: serde_json::Value = serde_json::from_slice(&pruned.stdout).unwrap_or_else(|_| panic!("{pruned:?}"));
    assert_eq!(output[0]["removed"], 1, "{output}");
    // The younger event is still there, and what is to be notified of it.
    for subscription in [&gone, &kept] {
        let left = format!("SELECT count(*) FROM notifications WHERE subscription = {subscription}");
        assert_eq!(scene.database.count(&left), 1, "{subscription}");
    }
    scene.database.execute(&format!("UPDATE events SET created_at = {long_ago}"));
    assert!(scene.subcommand(&["prune", "--events-older-than", "30d"]).status.success());
    assert_eq!(scene.database.count("SELECT count(*) FROM notifications"), 0);
}

/// Each would find the other one's token still valid, and leave the subscriptions to it.
fn of_two_that_revoke_the_tokens_of_a_name_the_second_sees_the_first(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let (operator, password) = (format!("{}_o", scene.run), scene.settings.database_password.clone());
    scene.database.create_operator(&operator, &password);
    let people = scene.other_configuration("people.toml", |settings| settings.role.clone_from(&operator));
    let made = |scene: &Scene| -> Uuid {
        let words = ["token", "create", "--name", "agency", "--scope", "subscriptions:write", "--json"];
        let output = scene.subcommand(&words);
        let token: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        token["id"].as_str().unwrap().parse().unwrap()
    };
    let (first, second) = (made(&scene), made(&scene));
    subscribe(&mut scene, ("all", ""), "https://hooks.example.com/in", &[("owner", "'token:agency'")]);

    // Somebody has revoked the first, and has not committed: the second is valid still, and so the subscription stays.
    let mut somebody = scene.session();
    let now = if engine.is_postgres() { "now()" } else { "UTC_TIMESTAMP(6)" };
    somebody.execute(if engine.is_postgres() { "BEGIN" } else { "START TRANSACTION" });
    somebody.execute(&format!("UPDATE api_tokens SET revoked_at = {now} WHERE id = {}", literal(engine, first)));
    let mut revoking = program(&["token", "revoke", &second.to_string(), "--config", &people])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let name = &scene.database.name;
    let waits = if engine.is_postgres() {
        format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND wait_event_type = 'Lock'")
    } else {
        format!(
            "SELECT count(*) FROM information_schema.processlist WHERE db = '{name}' AND info LIKE 'UPDATE api_tokens %'"
        )
    };
    wait_until("it waits, or has ended", || {
        scene.database.count(&waits) == 1 || revoking.try_wait().unwrap().is_some()
    });
    somebody.execute("COMMIT");
    let revoked = revoking.wait_with_output().unwrap();
    assert!(revoked.status.success(), "{revoked:?}");
    assert_eq!(scene.database.texts("SELECT state FROM subscriptions"), ["disabled"]);
}
