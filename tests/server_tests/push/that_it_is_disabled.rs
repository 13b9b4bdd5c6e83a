//! Who has lost a subscription hears of it at his others.

use super::receiver::{Receiver, Request};
use super::telling::{Notifier, happen, subscribe, verify};
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::scene::Scene;
use serde_json::{Value, json};
use uuid::Uuid;

on_each_engine![
    others_of_its_owner_hear_once_that_a_subscription_is_disabled,
    with_the_rights_of_an_older_release_it_is_disabled_and_nobody_hears_of_it,
];

fn that_it_is_disabled(came: Vec<Request>) -> Vec<Request> {
    came.into_iter().filter(|request| request.json()["type"] == "subscription.disabled").collect()
}

fn told(subscription: Uuid, why: &str) -> Value {
    json!({ "subscription": subscription.to_string(), "state": "disabled", "state_reason": why })
}

/// One receiver wants no more, another one has been dead for days; two notifiers are at work.
fn others_of_its_owner_hear_once_that_a_subscription_is_disabled(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    let types = |wanted: &str| {
        if engine.is_postgres() { format!("'{{{wanted}}}'") } else { format!("'[\"{wanted}\"]'") }
    };
    let (chosen, unwanted) = (types("subscription.disabled"), types("message.refused"));
    let gone = subscribe(&mut scene, ("all", ""), &receiver.url("/gone"), &[]);
    let other = subscribe(&mut scene, ("all", ""), &receiver.url("/quick/other"), &[]);
    subscribe(&mut scene, ("domain", "example.org"), &receiver.url("/quick/chosen"), &[("types", &chosen)]);
    subscribe(&mut scene, ("all", ""), &receiver.url("/quick/unwanted"), &[("types", &unwanted)]);
    subscribe(&mut scene, ("domain", "example.org"), &receiver.url("/quick/paused"), &[("state", "'paused'")]);
    subscribe(&mut scene, ("all", ""), &receiver.url("/quick/dora"), &[("owner", "'dora'")]);
    let notifiers = [Notifier::start(&mut scene), Notifier::start(&mut scene)];
    happen(&mut scene, 4, "message.delivered");
    let heard = |path: &str| that_it_is_disabled(receiver.taken(path));
    wait_until("the others have heard", || heard("/quick/other").len() == 1 && heard("/quick/chosen").len() == 1);

    // It has failed for longer than a receiver may; since its last failure it has rested.
    let dead = subscribe(&mut scene, ("address", "doug@mail.axial.net"), &receiver.url("/dead"), &[]);
    let (id, days_ago) = if engine.is_postgres() {
        (format!("'{dead}'"), "now() - interval '6 days'")
    } else {
        (format!("X'{}'", dead.simple()), "UTC_TIMESTAMP(6) - INTERVAL 6 DAY")
    };
    scene.database.execute(&format!(
        "INSERT INTO subscription_queues (subscription, failures, failing_since) VALUES ({id}, 9, {days_ago})"
    ));
    happen(&mut scene, 1, "message.delivered");
    wait_until("they have heard of that one as well", || {
        heard("/quick/other").len() == 2 && heard("/quick/chosen").len() == 2
    });
    wait_until("all is told", || {
        receiver.taken("/quick/other").len() >= 7
            && receiver.taken("/quick/dora").len() >= 5
            && scene.database.count("SELECT count(*) FROM outbox") == 0
    });
    notifiers.into_iter().for_each(Notifier::end);
    assert_eq!((receiver.came("/quick/other").len(), receiver.came("/quick/dora").len()), (7, 5));

    let at_the_other = heard("/quick/other");
    at_the_other.iter().for_each(|request| verify(request, other, 1).unwrap());
    let (first, second) = (at_the_other[0].json(), at_the_other[1].json());
    assert_eq!(first["data"], told(gone, "the receiver answered 410: it wants no more"));
    assert_eq!((&first["resource"], &first["resource_id"]), (&"subscription".into(), &gone.to_string().into()));
    assert_eq!(first["diff"]["state"], json!({ "---": "active", "+++": "disabled" }));
    let why = second["data"]["state_reason"].as_str().unwrap();
    assert!(why.starts_with("nothing was taken for 6days") && why.ends_with("answered 503"), "{why}");
    assert_eq!(second["data"], told(dead, why));
    // By the same event, and nobody else of it: neither who is another one, nor who has not chosen it.
    assert_eq!(receiver.came("/quick/chosen").len(), 2);
    assert_eq!(heard("/quick/chosen")[0].body, at_the_other[0].body);
    for path in ["/quick/unwanted", "/quick/dora", "/quick/paused", "/gone", "/dead"] {
        assert_eq!(that_it_is_disabled(receiver.came(path)).len(), 0, "{path}");
    }
    let disabled = "SELECT count(*) FROM events WHERE type = 'subscription.disabled'";
    assert_eq!(scene.database.count(disabled), 2);
}

/// A notifier that may not write events goes on: what was answered is written down, and nothing comes again and again.
fn with_the_rights_of_an_older_release_it_is_disabled_and_nobody_hears_of_it(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    subscribe(&mut scene, ("all", ""), &receiver.url("/gone"), &[("max_in_flight", "2")]);
    subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &[]);
    let notifier = Notifier::start(&mut scene);
    let role = format!("{}_n", scene.run);
    let role = if engine.is_postgres() { role } else { format!("'{role}'@'%'") };
    scene.database.execute(&format!("REVOKE INSERT ON outbox FROM {role}"));
    happen(&mut scene, 9, "message.delivered");
    wait_until("it is disabled", || {
        scene.database.count("SELECT count(*) FROM subscriptions WHERE state = 'disabled'") == 1
    });
    wait_until("the other one is told what happens", || receiver.taken("/quick").len() == 9);
    notifier.end();
    assert!(receiver.came("/gone").len() <= 2, "{}", receiver.came("/gone").len());
    assert!(scene.log().contains("grants-notify.sql gives the right"), "{}", scene.log());
    assert_eq!(scene.database.count("SELECT count(*) FROM events WHERE type = 'subscription.disabled'"), 0);
    assert!(that_it_is_disabled(receiver.came("/quick")).is_empty());
}
