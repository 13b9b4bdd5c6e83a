//! Thousands of notifications are requeued, given up and removed batch by batch: somebody who keeps one of their rows, or the
//! subscription's, holds up nobody for long, and what ended half way goes on when it is asked for again.

use crate::fixtures::rest_client::Rest;
use crate::notifications::event_delivery::{PENDING, happen, subscribe};
use crate::support::database::{Connection, Engine};
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use maildrop_command::ledger::Notifications;
use maildrop_command::ledger::notifications::{Published, Wake};
use maildrop_command::lock::LockName;
use serde_json::{Value, json};
use uuid::Uuid;

on_two_engines![
    what_was_given_up_is_notified_once_more_piece_by_piece,
    all_that_happened_is_notified_once_more_for_some_seconds_and_then_from_there_on,
    a_subscription_is_removed_piece_by_piece_and_notified_nothing_meanwhile,
    what_is_asked_for_manually_comes_to_its_end,
];

/// More than two pieces.
const EVENTS: usize = 4500;

/// They are given up, or to be notified, to this subscription.
fn very_many(scene: &mut Scene, subscription: Uuid, given_up: bool) {
    let lock = lock(scene);
    let mut database = scene.open_database();
    for _ in 0..EVENTS / 500 {
        happen(scene, 500, "message.delivered");
        assert!(matches!(database.publish(&lock, Wake::Nobody).unwrap(), Published::Events { count: 500, .. }));
    }
    if given_up {
        let (id, now) = (literal(scene, subscription), now(scene));
        scene.database.execute(&format!(
            "UPDATE notifications SET due_at = NULL, given_up_at = {now}, tries = 3 WHERE subscription = {id}"
        ));
    }
}

fn lock(scene: &Scene) -> LockName {
    LockName::new(&scene.run, b"notify/publisher")
}

fn literal(scene: &Scene, id: Uuid) -> String {
    if scene.database.engine.is_postgres() { format!("'{id}'") } else { format!("X'{}'", id.simple()) }
}

fn now(scene: &Scene) -> &'static str {
    if scene.database.engine.is_postgres() { "now()" } else { "UTC_TIMESTAMP(6)" }
}

/// Somebody has changed this, and does not commit.
fn kept(scene: &Scene, change: &str) -> Connection {
    let mut people = scene.session();
    people.execute(if scene.database.engine.is_postgres() { "BEGIN" } else { "START TRANSACTION" });
    people.execute(change);
    people
}

/// The same of a notification in the second piece; and its event's position.
fn one_is_kept(scene: &mut Scene, subscription: Uuid) -> (Connection, i64) {
    let position = scene.database.count("SELECT event FROM notifications ORDER BY event LIMIT 1 OFFSET 3000");
    let which = format!("subscription = {} AND event = {position}", literal(scene, subscription));
    (kept(scene, &format!("UPDATE notifications SET last_status = 200 WHERE {which}")), position)
}

/// How many sessions wait for somebody's row, for so many seconds or longer.
fn waiting(scene: &mut Scene, seconds: u32) -> i64 {
    let name = &scene.database.name;
    let waits = if scene.database.engine.is_postgres() {
        format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND wait_event_type = 'Lock' \
             AND clock_timestamp() - query_start >= interval '{seconds} s'"
        )
    } else {
        format!(
            "SELECT count(*) FROM information_schema.processlist WHERE db = '{name}' AND command = 'Query' AND time >= {seconds} \
             AND info NOT LIKE '%processlist%'"
        )
    };
    scene.database.count(&waits)
}

/// A token, and the path of a subscription of its name.
fn of_a_token(scene: &mut Scene, rest: &Rest) -> (String, Uuid, String) {
    let token = rest.token(&["--name", "crm", "--scope", "subscriptions:write"]);
    let one = subscribe(scene, ("all", ""), "https://hooks.example.com/in", &[("owner", "'token:crm'")]);
    (token, one, format!("/subscriptions/{one}"))
}

/// It does not wait for anybody who has gone.
#[track_caller]
fn is_published(scene: &mut Scene) {
    happen(scene, 1, "message.delivered");
    let published = scene.open_database().publish(&lock(scene), Wake::Nobody);
    assert!(matches!(published, Ok(Published::Events { count: 1, .. })), "{published:?}");
}

fn what_was_given_up_is_notified_once_more_piece_by_piece(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let rest = Rest::start(&mut scene, "");
    let (token, one, path) = of_a_token(&mut scene, &rest);
    very_many(&mut scene, one, true);
    let due = "SELECT count(*) FROM notifications WHERE due_at IS NOT NULL AND tries = 0";
    let (mut people, _) = one_is_kept(&mut scene, one);
    let recover =
        || rest.ask(&token, &format!("POST {path}/recover"), Some(&json!({ "since": "2020-01-01T00:00:00Z" })));
    recover().problem(503, "unavailable");
    assert_eq!(scene.database.count(due), 2000, "the first piece");
    is_published(&mut scene);
    people.execute("ROLLBACK");
    assert_eq!(recover().good(202), json!({ "notifications": 2500 }));
    assert_eq!(scene.database.count(due), EVENTS as i64 + 1);
    assert_eq!(recover().good(202), json!({ "notifications": 0 }));
    rest.end();
}

fn all_that_happened_is_notified_once_more_for_some_seconds_and_then_from_there_on(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let rest = Rest::start(&mut scene, "");
    let (token, one, path) = of_a_token(&mut scene, &rest);
    very_many(&mut scene, one, true);
    // All but some were taken.
    scene.database.execute("DELETE FROM notifications WHERE event % 10 = 1");
    let (mut people, position) = one_is_kept(&mut scene, one);
    let recover = |after: Option<&Value>| {
        let wanted = json!({ "since": "2020-01-01T00:00:00Z", "only": "all", "after": after });
        rest.ask(&token, &format!("POST {path}/recover"), Some(&wanted))
    };
    let first = std::thread::scope(|scope| {
        let asked = scope.spawn(|| recover(None));
        wait_until("it has waited for longer than it goes on", || waiting(&mut scene, 5) > 0);
        people.execute("ROLLBACK");
        asked.join().unwrap().good(202)
    });
    let next = first["next"].as_i64().unwrap_or_else(|| panic!("{first}"));
    assert!(next >= position, "{first}: the piece that it was at");
    let due = "SELECT count(*) FROM notifications WHERE due_at IS NOT NULL AND tries = 0";
    assert_eq!(first["notifications"], scene.database.count(due));
    assert_eq!(
        scene.database.count(&format!("SELECT count(*) FROM events WHERE position <= {next}")),
        first["notifications"]
    );
    let second = recover(Some(&first["next"])).good(202);
    assert_eq!(second, json!({ "notifications": EVENTS as i64 - first["notifications"].as_i64().unwrap() }));
    assert_eq!(scene.database.count(due), EVENTS as i64);
    is_published(&mut scene);
    rest.end();
}

fn a_subscription_is_removed_piece_by_piece_and_notified_nothing_meanwhile(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let rest = Rest::start(&mut scene, "");
    let (token, one, path) = of_a_token(&mut scene, &rest);
    very_many(&mut scene, one, false);
    let (mut people, _) = one_is_kept(&mut scene, one);
    rest.ask(&token, &format!("DELETE {path}"), None).problem(503, "unavailable");
    assert_eq!(scene.database.count(PENDING), 2500, "the first piece is gone");
    let shown = rest.ask(&token, &format!("GET {path}"), None).good(200);
    assert_eq!((&shown["state"], &shown["state_reason"]), (&"disabled".into(), &"it is being removed".into()));
    is_published(&mut scene);
    people.execute("ROLLBACK");
    rest.ask(&token, &format!("DELETE {path}"), None).good(204);
    rest.ask(&token, &format!("GET {path}"), None).problem(404, "not-found");
    let left = "SELECT (SELECT count(*) FROM notifications) + (SELECT count(*) FROM subscription_queues)";
    assert_eq!(scene.database.count(left), 0);
    rest.end();
}

fn what_is_asked_for_manually_comes_to_its_end(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let [one, other] = [("all", ""), ("domain", "mail.axial.net")]
        .map(|resource| subscribe(&mut scene, resource, "https://hooks.example.com/in", &[]));
    very_many(&mut scene, one, false);
    let id = one.to_string();
    let operator = crate::notifications::operator_commands::Operator::new(&mut scene);
    let given_up = "SELECT count(*) FROM notifications WHERE due_at IS NULL";
    assert_eq!(operator.json(&["notify", "give-up", "--subscription", &id]), json!({ "given_up": EVENTS }));
    assert_eq!(scene.database.count(given_up), EVENTS as i64);
    assert_eq!(
        operator.json(&["notify", "give-up", "--subscription", &other.to_string(), "--before", "2030-01-01"]),
        json!({ "given_up": EVENTS })
    );
    assert_eq!(operator.json(&["notify", "redeliver"]), json!({ "due_again": 2 * EVENTS }));
    assert_eq!(scene.database.count(given_up), 0);
    let all = ["notify", "redeliver", "--all", "--since", "1d", "--subscription", &id];
    assert_eq!(operator.json(&all), json!({ "due_again": EVENTS }));
    assert!(operator.run(&["subscription", "delete", &id]).status.success());
    assert_eq!(scene.database.count(PENDING), EVENTS as i64);
}
