//! Who does something by the command line, the API or the web UI is in the operations log, whichever of them it is.

use crate::fixtures::rest_client::{Rest, link};
use crate::support::database::Engine;
use crate::support::program::program;
use crate::support::site_fixture::Scene;
use serde_json::json;

const PG: Engine = Engine::Postgres17;

/// What was written down since it was asked for last.
fn written(scene: &mut Scene, last: &mut i64) -> Vec<String> {
    let rows = scene.database.texts(&format!(
        "SELECT interface || ' ' || CASE WHEN interface = 'api' THEN actor ELSE '' END || ' ' || operation || ': ' || outcome \
         FROM operations WHERE id > {last} ORDER BY id"
    ));
    *last = scene.database.count("SELECT coalesce(max(id), 0) FROM operations");
    rows
}

#[test]
fn each_operation_that_the_command_line_and_the_api_have_is_in_the_operations_log() {
    let mut scene = Scene::with(PG, &[]);
    let rest = Rest::start(&mut scene, "");
    let mut last = 0;
    let by_command_line = |what: &str, outcome: &str| vec![format!("command line  {what}: {outcome}")];
    let token = rest.cli(&["token", "create", "--name", "crm", "--scope", "subscriptions:write"]);
    let (token, id) = (token["token"].as_str().unwrap(), token["id"].as_str().unwrap());
    assert_eq!(written(&mut scene, &mut last), by_command_line("made a token", "crm, for subscriptions:write"));
    link(&rest.config, "admin");
    assert_eq!(written(&mut scene, &mut last), by_command_line("made a login", "admin"));
    scene.database.execute(
        "INSERT INTO web_sessions (digest, name, role, created_at, last_seen_at) \
         VALUES (decode(repeat('ab', 32), 'hex'), 'anna', 'admin', now(), now())",
    );
    rest.cli(&["web", "sessions", "--end", "abababababab"]);
    assert_eq!(written(&mut scene, &mut last), by_command_line("ended a login", "ended"));
    let nobody = program(&["web", "sessions", "--end", "abababababab", "--config", &rest.config]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(66));
    assert_eq!(written(&mut scene, &mut last), [""; 0]);

    let wanted =
        json!({ "callback_url": "https://hooks.example.com/in", "resource": "domain", "resource_id": "axial.net" });
    let made = rest.ask(token, "POST /subscriptions", Some(&wanted)).good(201);
    let it = format!("/subscriptions/{}", made["id"].as_str().unwrap());
    // Each stands there before it is done, and again with what came of it.
    let by_api = |begun: &str, what: &str, outcome: &str| {
        vec![format!("api crm {begun}: "), format!("api crm {what}: {outcome}")]
    };
    let once = |what: &str| vec![format!("api crm {what}: shown")];
    let what = "made a subscription";
    assert_eq!(written(&mut scene, &mut last), by_api(what, what, "of domain axial.net"));
    // Its callback has answered.
    scene.database.execute("UPDATE subscriptions SET state = 'active', verified_at = created_at");
    let same = |what: &str, outcome: &str| by_api(what, what, outcome);
    for (request, body, log) in [
        (format!("GET {it}"), None, Vec::new()),
        ("POST /subscriptions".into(), Some(wanted), by_api(what, "looked at a secret", "shown")),
        (format!("GET {it}/secret"), None, once("looked at a secret")),
        (format!("POST {it}/secret"), None, same("rotated a secret", "renewed")),
        (format!("PATCH {it}"), Some(json!({ "description": "x" })), {
            same("changed a subscription", "changed: description")
        }),
        (format!("POST {it}/recover"), Some(json!({ "since": "2026-01-01T00:00:00Z" })), {
            same("notified again", "0 notifications are due again")
        }),
        (format!("PATCH {it}"), Some(json!({ "state": "paused" })), same("paused a subscription", "paused")),
        (format!("PATCH {it}"), Some(json!({ "state": "active" })), same("resumed a subscription", "resumed")),
        (
            format!("PATCH {it}"),
            Some(json!({ "state": "paused", "types": ["message.delivered"], "in_order": true })),
            same("paused a subscription", "paused, and changed: types, in_order"),
        ),
        (
            format!("PATCH {it}"),
            Some(json!({ "callback_url": "https://other.example.com/in?key=hidden" })),
            same("changed a subscription", "changed: callback_url (at other.example.com)"),
        ),
        (format!("DELETE {it}"), None, {
            same("removed a subscription", "it was of domain axial.net, and made by token:crm")
        }),
    ] {
        let answer = rest.ask(token, &request, body.as_ref());
        assert!((200..300).contains(&answer.status), "{request}: {answer:?}");
        let rows = written(&mut scene, &mut last);
        assert_eq!(rows, log, "{request}");
    }
    rest.cli(&["token", "revoke", id]);
    assert_eq!(written(&mut scene, &mut last), by_command_line("revoked a token", "crm"));

    // Who comes from elsewhere does nothing that cannot be written down.
    let another = rest.token(&["--name", "crm", "--scope", "subscriptions:write"]);
    let made = rest
        .ask(
            &another,
            "POST /subscriptions",
            Some(&json!({
        "callback_url": "https://hooks.example.com/in", "resource": "all" })),
        )
        .good(201);
    let it = format!("/subscriptions/{}", made["id"].as_str().unwrap());
    scene.database.execute("ALTER TABLE operations RENAME TO elsewhere");
    for request in [format!("GET {it}/secret"), format!("POST {it}/secret"), format!("DELETE {it}")] {
        let answer = rest.ask(&another, &request, None);
        assert!(answer.status >= 500 && !answer.body.contains("whsec_"), "{request}: {answer:?}");
    }
    assert_eq!(scene.database.count("SELECT sum(secret_generation) FROM subscriptions"), 1);
}
