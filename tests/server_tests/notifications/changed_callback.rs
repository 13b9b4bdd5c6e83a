//! A callback that is changed is asked its question where it is now: who answers at the old one's place answers for nobody else.

use crate::fixtures::rest_client::crm_subscribes;
use crate::fixtures::webhook_receiver::Receiver;
use crate::notifications::event_delivery::{PENDING, happen};
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use serde_json::json;

on_two_engines!(a_callback_that_is_changed_a_moment_after_the_old_one_was_notified_is_asked_itself);

fn a_callback_that_is_changed_a_moment_after_the_old_one_was_notified_is_asked_itself(engine: Engine) {
    let (mut scene, old, new) = (Scene::with(engine, &[]), Receiver::start(), Receiver::start());
    let (notifier, rest, token, made) = crm_subscribes(&mut scene, &old.url("/quick"));
    happen(&mut scene, 1, "message.delivered");
    wait_until("the old one has answered its question, and is notified", || {
        old.taken("/quick").len() == 2 && scene.database.count(PENDING) == 0
    });
    // Its connection rests for some seconds. At the new place somebody answers who was never asked whether he wants to be notified.
    let id = made["id"].as_str().unwrap();
    let change = json!({ "callback_url": new.url("/mute") });
    rest.ask(&token, &format!("PATCH /subscriptions/{id}"), Some(&change)).good(200);
    happen(&mut scene, 1, "message.delivered");
    wait_until("one of them is asked", || !new.came("/mute").is_empty() || !old.came("/mute").is_empty());
    assert_eq!(old.came("/mute").len(), 0);
    assert_eq!(new.came("/mute")[0].json()["type"], "subscription.verify");
    notifier.end();
    assert_eq!(scene.database.texts("SELECT state FROM subscriptions"), ["unverified"]);
    assert_eq!(scene.database.count(PENDING), 1);
    rest.end();
}
