//! `stats` counts the outcomes of notifications.

use crate::fixtures::webhook_receiver::Receiver;
use crate::notifications::event_delivery::{Notifier, PENDING, happen, subscribe};
use crate::notifications::operator_commands::Operator;
use crate::support::database::Engine;
use crate::support::program::{program, wait_until};
use crate::support::site_fixture::Scene;
use serde_json::{Value, json};

on_two_engines![answers_are_counted_by_their_class_and_how_long_after_its_commit_what_happened_was_notified];

fn answers_are_counted_by_their_class_and_how_long_after_its_commit_what_happened_was_notified(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let operator = Operator::new(&mut scene);
    let counted = || operator.json(&["stats", "--since", "2h"])["notification_attempts"].clone();
    let first = |figures: &Value| figures["first_try"]["notifications"].clone();
    assert_eq!((&counted()["tries"], first(&counted())), (&json!({}), 0.into()));
    subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &[]);
    happen(&mut scene, 2, "message.delivered");
    let notifier = Notifier::start(&mut scene);
    wait_until("both are notified", || receiver.taken("/quick").len() == 2 && scene.database.count(PENDING) == 0);
    notifier.end();
    let shown_text = counted();
    assert_eq!((&shown_text["tries"], first(&shown_text)), (&json!({ "2xx": 2 }), 2.into()));
    assert!(shown_text["first_try"]["max_ms"].as_f64().unwrap() < 3_600_000.0, "{shown_text}");

    // Another one has not answered in ten thousand tries at one event, which are read in more than one go; the first was an hour late.
    let other = subscribe(&mut scene, ("all", ""), "https://receiver.example/", &[]);
    let (id, started) = if engine.is_postgres() {
        (format!("'{other}'"), "e.created_at + interval '1 hour' + i.n * interval '1 microsecond'")
    } else {
        (format!("X'{}'", other.simple()), "e.created_at + INTERVAL 1 HOUR + INTERVAL i.n MICROSECOND")
    };
    let digits = "(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 \
                  UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    scene.database.execute(&format!(
        "INSERT INTO notification_attempts (subscription, event, started_at, host, milliseconds, outcome) \
         SELECT {id}, e.position, {started}, 'mx2', 1, 'no answer' FROM events e, \
         (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * d.d AS n FROM {digits} a, {digits} b, {digits} c, {digits} d) i \
         WHERE e.position = (SELECT min(position) FROM events)"
    ));
    let reported = counted();
    assert_eq!((&reported["tries"], first(&reported)), (&json!({ "2xx": 2, "none": 10_000 }), 3.into()));
    assert_eq!(reported["first_try"]["max_ms"], 3_600_000.0);
    // Only what happened within the time counts.
    let long_ago =
        if engine.is_postgres() { "now() - interval '3 hours'" } else { "UTC_TIMESTAMP(6) - INTERVAL 3 HOUR" };
    let newest = scene.database.count("SELECT max(position) FROM events");
    scene.database.execute(&format!("UPDATE events SET created_at = {long_ago} WHERE position = {newest}"));
    let shown = counted();
    assert_eq!((&shown["tries"], first(&shown)), (&json!({ "2xx": 1, "none": 10_000 }), 2.into()));

    let stats_output = |format: &str| {
        let output = operator.run(&["stats", "--since", "2h", "--format", format]);
        String::from_utf8(output.stdout).unwrap()
    };
    let (text, table) = (stats_output("prometheus"), stats_output("table"));
    for line in [
        "maildrop_notification_attempts{class=\"2xx\",window=\"2h\"} 1\n",
        "maildrop_notification_attempts{class=\"none\",window=\"2h\"} 10000\n",
        "maildrop_notification_first_try_seconds{percentile=\"100\",window=\"2h\"} 3600\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert!(table.contains("answers to notifications") && table.contains("all within 3600000.00 ms"), "{table}");

    // Who delivers may not see it.
    let role = format!("{}_d", scene.run);
    scene.database.create_role_of_grants_file(&role, "secret");
    let deliveries = scene.other_configuration("deliver.toml", |settings| settings.role = role);
    let text = std::fs::read_to_string(&deliveries).unwrap().replace("database.password", "operator.password");
    std::fs::write(&deliveries, text).unwrap();
    let output_text = program(&["stats", "--json", "--config", &deliveries]).output().unwrap();
    let printed: Value =
        serde_json::from_slice(&output_text.stdout).unwrap_or_else(|error| panic!("{error}: {output_text:?}"));
    assert_eq!(printed["notification_attempts"], Value::Null);
}
