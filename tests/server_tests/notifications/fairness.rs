//! One receiver's trouble is its own: those that do not answer hold up nobody, one that fails rests, is asked once at a time, and has
//! everything when it answers again; one that took nothing for too long is notified no more, until somebody says so.

use crate::fixtures::rest_client::Rest;
use crate::fixtures::webhook_receiver::Receiver;
use crate::notifications::event_delivery::{Notifier, PENDING, RETRY, happen, subscribe};
use crate::notifications::event_schema::hold_to_the_document;
use crate::support::database::Engine;
use crate::support::program::{program, wait_until};
use crate::support::receivers::Receivers;
use crate::support::site_fixture::Scene;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;
use uuid::Uuid;

on_two_engines!(
    a_hundred_receivers_that_do_not_answer_hold_up_nobody,
    a_receiver_that_rests_is_asked_once_and_notified_everything_when_it_answers,
    a_receiver_that_takes_nothing_is_disabled_and_notified_everything_once_it_is_resumed,
    a_receiver_that_rests_is_sent_what_waits_as_soon_as_somebody_resumes_it,
);

fn a_hundred_receivers_that_do_not_answer_hold_up_nobody(engine: Engine) {
    const QUICK: Range<u32> = 0..4;
    const SILENT: Range<u32> = 100..200;
    let (mut scene, receivers) = (Scene::with(engine, &[]), Receivers::start());
    for number in SILENT {
        subscribe(&mut scene, ("all", ""), &receivers.url(204, Duration::from_hours(1), number), &[]);
    }
    for number in QUICK {
        subscribe(&mut scene, ("all", ""), &receivers.url(204, Duration::ZERO, number), &[]);
    }
    let config = Notifier::configuration(&mut scene, RETRY, "");
    let text = std::fs::read_to_string(&config).unwrap().replace("timeout = \"200s\"", "timeout = \"1h\"");
    std::fs::write(&config, text).unwrap();
    happen(&mut scene, 20, "message.delivered");
    let notifier = Notifier::start_at(&config);
    wait_until("all are asked, as often at once as may be", || receivers.count(SILENT) == 400);
    // While each of them has all that it may have under way.
    happen(&mut scene, 100, "message.delivered");
    wait_until("the quick ones have all", || receivers.count(QUICK) >= 4 * 120);
    let different: BTreeSet<(u32, u128)> = receivers.look(|came| {
        came.iter().filter(|one| QUICK.contains(&one.receiver)).map(|one| (one.receiver, one.event)).collect()
    });
    assert_eq!((different.len(), receivers.count(QUICK)), (480, 480), "each was sent once");
    assert_eq!(receivers.count(SILENT), 400, "the others still have what they had");
    hold_to_the_document(&receivers.bodies(), &[]);
    drop(notifier);
}

/// Waits until the only subscription rests for the better part of an hour; how many tries have failed in a row.
fn rests(scene: &mut Scene) -> i64 {
    let soon = if scene.database.engine.is_postgres() {
        "now() + interval '30 minutes'"
    } else {
        "UTC_TIMESTAMP(6) + INTERVAL 30 MINUTE"
    };
    let failures = format!(
        "SELECT concat(failures, '') FROM subscription_queues WHERE leased_by IS NULL AND paused_until > {soon}"
    );
    let mut found = Vec::new();
    wait_until("it rests", || {
        found = scene.database.texts(&failures);
        !found.is_empty()
    });
    found[0].parse().unwrap()
}

/// The rest of each resting subscription is over, and so are the waits of what failed.
fn an_hour_passes(scene: &mut Scene) {
    let ago = if scene.database.engine.is_postgres() {
        "now() - interval '1 minute'"
    } else {
        "UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE"
    };
    scene.database.execute(&format!("UPDATE notifications SET due_at = {ago}"));
    scene.database.execute(&format!("UPDATE subscription_queues SET due_at = {ago}, paused_until = {ago}"));
}

fn a_receiver_that_rests_is_asked_once_and_notified_everything_when_it_answers(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    subscribe(&mut scene, ("all", ""), &receiver.url("/broken"), &[]);
    let all: BTreeSet<String> = happen(&mut scene, 30, "message.delivered").into_iter().collect();
    let notifier = Notifier::start(&mut scene);
    let mut failures = rests(&mut scene);
    assert!(failures >= 5, "{failures}");
    for _ in 0..2 {
        let before = receiver.came("/broken").len();
        an_hour_passes(&mut scene);
        wait_until("it is asked once more", || receiver.came("/broken").len() > before);
        wait_until("that is written down", || {
            scene.database.count("SELECT count(*) FROM notification_attempts") == receiver.came("/broken").len() as i64
        });
        failures += 1;
        assert_eq!((rests(&mut scene), receiver.came("/broken").len()), (failures, before + 1), "one at a time");
    }
    receiver.release();
    an_hour_passes(&mut scene);
    wait_until("it has everything", || scene.database.count(PENDING) == 0);
    let taken: Vec<String> = receiver.taken("/broken").iter().map(|request| request.id().to_owned()).collect();
    assert_eq!((taken.len(), taken.into_iter().collect::<BTreeSet<_>>()), (30, all));
    notifier.end();
    assert_eq!(
        scene.database.count("SELECT count(*) FROM subscription_queues WHERE failures = 0 AND paused_until IS NULL"),
        1
    );
}

/// By the API and by the command, after a pause and after it was disabled.
fn a_receiver_that_rests_is_sent_what_waits_as_soon_as_somebody_resumes_it(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let rest = Rest::start(&mut scene, "");
    let token = rest.token(&["--name", "crm", "--scope", "subscriptions:write"]);
    let [paused, disabled] = ["/broken?paused", "/broken?disabled"]
        .map(|path| subscribe(&mut scene, ("all", ""), &receiver.url(path), &[("owner", "'token:crm'")]));
    let all: BTreeSet<String> = happen(&mut scene, 3, "message.delivered").into_iter().collect();
    let notifier = Notifier::start(&mut scene);
    let minutes = "INTERVAL '30' MINUTE";
    let now = if engine.is_postgres() { "now()" } else { "UTC_TIMESTAMP(6)" };
    let resting = format!(
        "SELECT count(*) FROM subscription_queues WHERE leased_by IS NULL AND failures > 5 AND paused_until > {now} + {minutes}"
    );
    wait_until("both rest", || scene.database.count(&resting) == 2);
    let show = |id: Uuid| rest.ask(&token, &format!("GET /subscriptions/{id}"), None).good(200);
    assert!(show(paused)["resting_until"].is_string(), "{}", show(paused));
    let become_state = |state: &str| {
        let change = json!({ "state": state });
        rest.ask(&token, &format!("PATCH /subscriptions/{paused}"), Some(&change)).good(200)
    };
    let configuration = scene.path("notifier.toml");
    let command = |arguments: &[&str]| {
        let ended = program(&["subscription"]).args(arguments).args(["--config", &configuration]).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
    };
    become_state("paused");
    let id = disabled.to_string();
    command(&["disable", &id, "--reason", "too slow"]);
    receiver.release();
    assert_eq!(become_state("active")["resting_until"], Value::Null);
    command(&["resume", &id]);
    wait_until("both have everything", || scene.database.count(PENDING) == 0);
    for path in ["/broken?paused", "/broken?disabled"] {
        let taken: BTreeSet<String> = receiver.taken(path).iter().map(|request| request.id().to_owned()).collect();
        assert_eq!(taken, all, "{path}");
    }
    notifier.end();
    rest.end();
}

fn a_receiver_that_takes_nothing_is_disabled_and_notified_everything_once_it_is_resumed(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let id = subscribe(&mut scene, ("all", ""), &receiver.url("/broken"), &[]);
    let mut all: BTreeSet<String> = happen(&mut scene, 3, "message.delivered").into_iter().collect();
    let notifier = Notifier::start(&mut scene);
    rests(&mut scene);
    // Five days go by.
    let days_ago = if engine.is_postgres() { "now() - interval '6 days'" } else { "UTC_TIMESTAMP(6) - INTERVAL 6 DAY" };
    scene.database.execute(&format!("UPDATE subscription_queues SET failing_since = {days_ago}"));
    an_hour_passes(&mut scene);
    wait_until("it is disabled", || scene.database.texts("SELECT state FROM subscriptions") == ["disabled"]);
    let why = scene.database.texts("SELECT state_reason FROM subscriptions").remove(0);
    assert!(why.starts_with("nothing was taken for 6days") && why.ends_with("answered 500"), "{why}");
    wait_until("the log says so", || scene.log().contains("a subscription is disabled"));
    // What happens meanwhile is kept, and nobody is asked.
    let came = receiver.came("/broken").len();
    all.extend(happen(&mut scene, 3, "message.delivered"));
    an_hour_passes(&mut scene);
    wait_until("it is published", || scene.database.count(PENDING) == 6);
    wait_until("the notifier has looked", || {
        scene.database.count("SELECT count(*) FROM subscription_queues WHERE due_at IS NULL") == 1
    });
    assert_eq!(receiver.came("/broken").len(), came);
    receiver.release();
    let resumed = program(&["subscription", "resume", &id.to_string(), "--config", &scene.path("notifier.toml")])
        .output()
        .unwrap();
    assert!(resumed.status.success(), "{resumed:?}");
    wait_until("it has everything", || scene.database.count(PENDING) == 0);
    let taken: BTreeSet<String> = receiver.taken("/broken").iter().map(|request| request.id().to_owned()).collect();
    assert_eq!(taken, all);
    notifier.end();
}
