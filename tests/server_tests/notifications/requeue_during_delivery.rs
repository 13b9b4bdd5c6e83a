//! Somebody requeues a notification, or an event commits late, while a notifier is at its work: what was asked for is done, and
//! nothing is left out.

use crate::fixtures::rest_client::Rest;
use crate::fixtures::webhook_receiver::Receiver;
use crate::notifications::event_delivery::{Notifier, PENDING, happen, happening, settlement, subscribe};
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use maildrop_command::ledger::Notifications;
use maildrop_command::ledger::notifications::{Due, Next, Published, Wake, WebhookAttempt};
use maildrop_command::lock::LockName;
use serde_json::json;
use std::time::Duration;
use uuid::Uuid;

on_each_engine![
    what_is_asked_for_while_it_is_under_way_is_notified_again,
    an_answer_to_what_was_notified_before_it_was_asked_for_changes_nothing,
    an_event_that_commits_late_is_published_then_and_in_the_order_of_its_copy,
    a_changed_subscription_is_found_soon_and_any_other_by_the_full_sweep,
    a_notifier_looks_at_all_subscriptions_when_it_begins,
];

/// The receiver holds its answer until both were asked for: one event by its id, and all of the last hour.
fn what_is_asked_for_while_it_is_under_way_is_notified_again(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let more = [("owner", "'token:agency'"), ("max_in_flight", "8")];
    let [one, all] = ["/slow?one", "/slow?all"].map(|path| {
        let id = subscribe(&mut scene, ("all", ""), &receiver.url(path), &more);
        (path, format!("POST /subscriptions/{id}"))
    });
    let rest = Rest::start(&mut scene, "");
    let token = rest.token(&["--name", "agency", "--scope", "subscriptions:write", "--rate", "10000"]);
    let notifier = Notifier::start(&mut scene);
    let events = happen(&mut scene, 3, "message.delivered");
    wait_until("all are under way", || [one.0, all.0].iter().all(|path| receiver.came(path).len() == 3));
    let event = json!({ "event": events[1] });
    let asked = rest.ask(&token, &format!("{}/redeliver", one.1), Some(&event));
    assert_eq!(asked.good(202), json!({ "notifications": 1 }));
    let everything = json!({ "since": "2020-01-01T00:00:00Z", "only": "all" });
    let asked = rest.ask(&token, &format!("{}/recover", all.1), Some(&everything));
    assert_eq!(asked.good(202), json!({ "notifications": 3 }));
    // Nothing is sent twice at the same time.
    assert_eq!([one.0, all.0].map(|path| receiver.came(path).len()), [3, 3]);
    receiver.release();
    wait_until("all are notified, and what was asked for once more", || {
        scene.database.count(PENDING) == 0 && receiver.taken(one.0).len() == 4 && receiver.taken(all.0).len() == 6
    });
    notifier.end();
    let times = |path: &str| {
        let came = receiver.came(path);
        let of = |event: &String| came.iter().filter(|request| request.id() == event).count();
        events.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(times(one.0), [1, 2, 1]);
    assert_eq!(times(all.0), [2, 2, 2]);
    assert_eq!(scene.database.count("SELECT count(*) FROM notification_attempts WHERE status = 204"), 10);
    rest.end();
}

/// Nor does one that was given up stay so. The same answers, from a notifier that does not know it, are about what
/// nobody has asked for.
fn an_answer_to_what_was_notified_before_it_was_asked_for_changes_nothing(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    subscribe(&mut scene, ("all", ""), "https://receiver.example/", &[]);
    happen(&mut scene, 6, "message.delivered");
    let mut database = scene.open_database();
    let (lock, by, minute) = (LockName::new(&scene.run, b"notify/publisher"), Uuid::now_v7(), Duration::from_mins(1));
    assert!(matches!(database.publish(&lock, Wake::Nobody).unwrap(), Published::Events { count: 6, .. }));
    let leased = database.lease(by, minute, 1, &[], 0).unwrap().remove(0);
    let due = database.due(&leased, &[], 10).unwrap();
    let now = if engine.is_postgres() { "now()" } else { "UTC_TIMESTAMP(6)" };
    // The first three are asked for.
    scene
        .database
        .execute(&format!("UPDATE notifications SET due_at = {now}, tries = 0 WHERE event <= {}", due[2].position));
    let came_of = |(due, next): (&Due, Next)| WebhookAttempt {
        position: Some(due.position),
        due_at: due.due_at,
        started_at: 1_790_000_000_000_000 + due.position,
        took: Duration::from_millis(5),
        status: Some(204),
        outcome: "ok".into(),
        response: None,
        next,
    };
    let next = [Next::Done, Next::Again(minute), Next::GivenUp];
    let attempts: Vec<WebhookAttempt> = due.iter().zip(next.into_iter().cycle()).map(came_of).collect();
    let settlements = [settlement(leased.subscription, by, &attempts)];
    // The second time is after an answer to COMMIT that was lost: it changes nothing more.
    for _ in 0..2 {
        assert!(database.settle(&settlements).unwrap().is_empty());
        let which =
            |which: &str| format!("SELECT count(*) FROM notifications WHERE event > {} AND {which}", due[2].position);
        let asked_for = format!("SELECT count(*) FROM notifications WHERE event <= {} AND tries = 0", due[2].position);
        assert_eq!(scene.database.count(&format!("{asked_for} AND due_at <= {now}")), 3);
        assert_eq!(scene.database.count(&which("due_at IS NULL AND tries = 1")), 1);
        assert_eq!(scene.database.count(&which(&format!("due_at > {now} AND tries = 1"))), 1);
        assert_eq!(scene.database.count(PENDING), 5);
        assert_eq!(scene.database.count("SELECT count(*) FROM notification_attempts"), 6);
    }
    let again: Vec<i64> = database.due(&leased, &[], 10).unwrap().iter().map(|one| one.position).collect();
    assert_eq!(again, due[..3].iter().map(|one| one.position).collect::<Vec<_>>());
}

/// One transaction has taken its place in the outbox, and others commit and are published before it does.
fn an_event_that_commits_late_is_published_then_and_in_the_order_of_its_copy(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &[]);
    let notifier = Notifier::start(&mut scene);
    let mut late = scene.session();
    late.execute(if engine.is_postgres() { "BEGIN" } else { "START TRANSACTION" });
    let (first, written) = happening(engine, 1, "message.delivered");
    late.execute(&written);
    let others = happen(&mut scene, 3, "message.delivered");
    wait_until("the others are notified", || receiver.taken("/quick").len() == 3);
    // Twice it is looked for all there is, so that the notifier goes on behind the others: a new callback is found, and asked, then.
    for path in ["/quick/1", "/quick/2"] {
        subscribe(&mut scene, ("address", "nobody@axial.net"), &receiver.url(path), &[("state", "'unverified'")]);
        wait_until("a new callback is asked", || receiver.taken(path).len() == 1);
    }
    late.execute("COMMIT");
    let second = happen(&mut scene, 1, "message.delivered");
    wait_until("both are notified", || receiver.taken("/quick").len() == 5);
    notifier.end();
    let taken = receiver.taken("/quick");
    let at = |events: &[String]| taken.iter().find(|one| events.contains(&one.id().to_owned())).unwrap().sequence();
    let [other, first, second] = [&others[2..], &first, &second].map(at);
    assert!(other < first && first < second, "{other} {first} {second}");
    assert_eq!(scene.database.count("SELECT count(*) FROM outbox"), 0);
}

/// Some notification waits for each of them, and nobody is to serve any.
fn a_changed_subscription_is_found_soon_and_any_other_by_the_full_sweep(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let (url, ago) = ("https://receiver.example/", |minutes| ago(engine, minutes));
    let (changed, not_changed, unverified, over) = (ago(0), ago(60), "'unverified'", ago(1));
    let mut subscribed = |more: &[(&str, &str)]| subscribe(&mut scene, ("all", ""), url, more);
    let resumed = subscribed(&[("updated_at", &changed)]);
    let new = subscribed(&[("updated_at", &not_changed), ("state", unverified)]);
    let left_behind = subscribed(&[("updated_at", &not_changed)]);
    let shown = subscribed(&[("updated_at", &changed)]);
    // A notifier that leased these would only find that they are notified of nothing.
    for more in [("state", "'paused'"), ("state", "'disabled'"), ("expires_at", over.as_str())] {
        subscribed(&[("updated_at", &changed), more]);
    }
    subscribed(&[("state", unverified), ("expires_at", &over)]);
    let mut database = scene.open_database();
    let (lock, by, minute) = (LockName::new(&scene.run, b"notify/publisher"), Uuid::now_v7(), Duration::from_mins(1));
    happen(&mut scene, 1, "message.delivered");
    assert!(matches!(database.publish(&lock, Wake::Nobody).unwrap(), Published::Events { count: 1, .. }));
    scene.database.execute("UPDATE subscription_queues SET due_at = NULL");
    let id = if engine.is_postgres() { format!("'{shown}'") } else { format!("X'{}'", shown.simple()) };
    scene.database.execute(&format!("DELETE FROM notifications WHERE subscription = {id}"));
    let mut found = |wake| {
        assert_eq!(database.publish(&lock, wake).unwrap(), Published::Events { count: 0, last: 0 });
        let mut found: Vec<Uuid> =
            database.lease(by, minute, 10, &[], 0).unwrap().iter().map(|one| one.subscription).collect();
        found.sort_unstable();
        found
    };
    assert!(found(Wake::Nobody).is_empty());
    assert_eq!(found(Wake::Changed), [resumed, new]);
    assert_eq!(found(Wake::All), [left_behind]);
}

/// By whatever mishap: nobody has changed it of late, something is due to it, and nobody is to serve it.
fn a_notifier_looks_at_all_subscriptions_when_it_begins(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let long_ago = ago(engine, 60);
    subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &[("updated_at", &long_ago)]);
    let mut database = scene.open_database();
    let lock = LockName::new(&scene.run, b"notify/publisher");
    happen(&mut scene, 1, "message.delivered");
    assert!(matches!(database.publish(&lock, Wake::Nobody).unwrap(), Published::Events { count: 1, .. }));
    scene.database.execute("UPDATE subscription_queues SET due_at = NULL");
    let notifier = Notifier::start(&mut scene);
    wait_until("it is notified", || receiver.taken("/quick").len() == 1 && scene.database.count(PENDING) == 0);
    notifier.end();
}

/// The moment so many minutes ago.
pub(super) fn ago(engine: Engine, minutes: u32) -> String {
    if engine.is_postgres() {
        format!("now() - interval '{minutes} minutes'")
    } else {
        format!("UTC_TIMESTAMP(6) - INTERVAL {minutes} MINUTE")
    }
}
