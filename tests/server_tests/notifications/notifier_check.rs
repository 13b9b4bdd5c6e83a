//! `check` connects as the notifier does, and says what its role lacks: the notifier itself says so in its own log alone. And it says who is
//! sent nothing.

use crate::notifications::event_delivery::{Notifier, RETRY, happen, subscribe};
use crate::support::database::Engine;
use crate::support::program::program;
use crate::support::site_fixture::Scene;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use uuid::Uuid;

on_two_engines![what_the_notifiers_role_lacks_is_notified, who_is_notified_nothing_is_notified];

/// What `check` finds of these.
fn all(config: &str, what: &str) -> Vec<Value> {
    let output_text = program(&["check", "--json", "--config", config]).output().unwrap();
    let printed: Value =
        serde_json::from_slice(&output_text.stdout).unwrap_or_else(|error| panic!("{error}: {output_text:?}"));
    printed.as_array().unwrap().iter().filter(|finding| finding["what"] == what).cloned().collect()
}

/// What `check` finds of the notifier.
fn found(config: &str) -> Value {
    let mut of_it = all(config, "notifier");
    assert_eq!(of_it.len(), 1, "{of_it:?}");
    of_it.remove(0)
}

/// The rights of an older release, after a migration.
fn what_the_notifiers_role_lacks_is_notified(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let config = Notifier::configuration(&mut scene, RETRY, "");
    assert_eq!(found(&config)["state"], "ok");

    let role = format!("{}_n", scene.run);
    let role = if engine.is_postgres() { role } else { format!("'{role}'@'%'") };
    for right in [
        "DELETE ON outbox",
        "DELETE ON notifications",
        "UPDATE (state_reason) ON subscriptions",
        "SELECT (headers) ON messages",
    ] {
        scene.database.execute(&format!("REVOKE {right} FROM {role}"));
    }
    let lacking = found(&config);
    assert_eq!(lacking["state"], "warning");
    let lacks =
        "its role lacks DELETE on outbox, DELETE on notifications, UPDATE on subscriptions, SELECT on messages:";
    assert!(lacking["found"].as_str().unwrap().starts_with(lacks), "{lacking}");
    let file = if engine.is_postgres() { "sql/postgres/grants-notifier.sql" } else { "sql/mysql/grants-notifier.sql" };
    assert_eq!(lacking["fix"], format!("grant what {file} grants"));

    // It cannot log in; and nobody can read how it would.
    scene.file("notifier.password", "another\n", 0o600);
    let refused = found(&config);
    assert!(refused["state"] == "warning" && refused["fix"].as_str().unwrap().contains("its password"), "{refused}");
    std::fs::remove_file(scene.path("notifier.password")).unwrap();
    let gone = found(&config);
    assert!(gone["state"] == "warning" && gone["found"].as_str().unwrap().contains("notifier.password"), "{gone}");
}

/// Since nobody is there who notifies.
fn who_is_notified_nothing_is_notified(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let config = Notifier::configuration(&mut scene, RETRY, "");
    let found_by = |what: &str| -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        all(&config, what).iter().map(|finding| (text(&finding["state"]), text(&finding["found"]))).collect()
    };
    let is = |what: &str, found: &str| assert_eq!(found_by(what), [("ok".to_owned(), found.to_owned())]);
    is("notifications", "0 are pending; 0 events are to be published");
    let ago =
        if engine.is_postgres() { "now() - interval '10 minutes'" } else { "UTC_TIMESTAMP(6) - INTERVAL 10 MINUTE" };
    let id = |id: Uuid| if engine.is_postgres() { format!("'{id}'") } else { format!("X'{}'", id.simple()) };
    let due = id(subscribe(&mut scene, ("all", ""), "https://three.example/", &[]));
    scene.database.execute(&format!(
        "INSERT INTO subscription_queues (subscription, due_at, paused_until) VALUES ({due}, {ago}, NULL)"
    ));
    scene.database.execute(&format!(
        "INSERT INTO notifications (subscription, event, due_at, given_up_at) \
         VALUES ({due}, 1, {ago}, NULL), ({due}, 2, {ago}, NULL)"
    ));
    let late = |pending, unpublished| {
        let [(state, found)] = &found_by("notifications")[..] else { panic!("{:?}", found_by("notifications")) };
        // Seconds go by.
        let counts = format!("{pending} are pending; {unpublished} events are to be published: for 10m");
        assert!(state == "warning" && found.starts_with(&counts), "{found}");
        assert!(found.ends_with(", and no notifier does it"), "{found}");
    };
    late(2, 0);
    happen(&mut scene, 3, "message.delivered");
    scene.database.execute(&format!("UPDATE outbox SET created_at = {ago}"));
    late(2, 3);

    // A key that others can read.
    let key = scene.path("key");
    let warned = |mode: u32| {
        fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
        found_by("configuration")
            .iter()
            .any(|(state, found)| state == "warning" && found.starts_with(&format!("{key}: mode ")))
    };
    assert_eq!([warned(0o600), warned(0o640), warned(0o644)], [false, false, true]);

    is("clock", "this host's goes as the database's does");
    if engine.is_postgres() {
        // No server's clock can be set here: a query for it finds this function before the server's own.
        scene.database.execute(
            "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql \
             RETURN pg_catalog.clock_timestamp() + interval '1 hour'",
        );
        scene.database.execute(&format!("ALTER DATABASE {} SET search_path = public, pg_catalog", scene.database.name));
        let (state, found) = found_by("clock").remove(0);
        let about = ["this host's is 59m", "this host's is 1h"].iter().any(|begin| found.starts_with(begin));
        assert!(state == "warning" && about && found.ends_with(" behind the database's"), "{found}");
    }
}
