//! `check` connects as the notifier does, and says what its role lacks: the notifier itself says so in its own log alone.

use super::telling::{Notifier, RETRY};
use crate::support::database::Engine;
use crate::support::program::program;
use crate::support::scene::Scene;
use serde_json::Value;

on_each_engine![what_the_notifiers_role_lacks_is_told];

/// What `check` finds of it.
fn found(config: &str) -> Value {
    let said = program(&["check", "--json", "--config", config]).output().unwrap();
    let told: Value = serde_json::from_slice(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    let mut of_it = told.as_array().unwrap().iter().filter(|finding| finding["what"] == "notifier");
    let finding = of_it.next().unwrap_or_else(|| panic!("{told}")).clone();
    assert!(of_it.next().is_none(), "{told}");
    finding
}

/// The rights of an older release, after a migration.
fn what_the_notifiers_role_lacks_is_told(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let config = Notifier::configuration(&mut scene, RETRY, "");
    assert_eq!(found(&config)["state"], "ok");

    let role = format!("{}_n", scene.run);
    let role = if engine.is_postgres() { role } else { format!("'{role}'@'%'") };
    for right in [
        "INSERT ON outbox",
        "DELETE ON notifications",
        "UPDATE (state_reason) ON subscriptions",
        "SELECT (headers) ON messages",
    ] {
        scene.database.execute(&format!("REVOKE {right} FROM {role}"));
    }
    let lacking = found(&config);
    assert_eq!(lacking["state"], "warning");
    let lacks =
        "its role lacks INSERT on outbox, DELETE on notifications, UPDATE on subscriptions, SELECT on messages:";
    assert!(lacking["found"].as_str().unwrap().starts_with(lacks), "{lacking}");
    let file = if engine.is_postgres() { "sql/postgres/grants-notify.sql" } else { "sql/mysql/grants-notify.sql" };
    let mend = format!("apply {file} once more, for the role of {}", scene.path("notify.toml"));
    assert_eq!(lacking["mend"], mend.as_str());

    // It cannot log in; and nobody can read how it would.
    scene.file("notify.password", "another\n", 0o600);
    let refused = found(&config);
    assert!(refused["state"] == "warning" && refused["mend"].as_str().unwrap().contains("its password"), "{refused}");
    std::fs::remove_file(scene.path("notify.toml")).unwrap();
    let gone = found(&config);
    assert!(gone["state"] == "warning" && gone["found"].as_str().unwrap().contains("notify.toml"), "{gone}");
}
