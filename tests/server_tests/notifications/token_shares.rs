//! The subscriptions of one token take no more than their share of the requests, whatever their receivers do.

use crate::fixtures::webhook_receiver::Receiver;
use crate::notifications::event_delivery::{Notifier, PENDING, happen, subscribe};
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use maildrop_command::base::deadline::Deadline;
use maildrop_command::config::Config;
use maildrop_command::ledger::Notifications;
use maildrop_command::site::Site;
use std::collections::BTreeSet;
use std::time::Duration;
use uuid::Uuid;

on_two_engines![
    silent_receivers_of_one_token_leave_half_of_the_requests_to_others,
    of_the_owners_that_are_served_enough_nothing_is_leased,
];

fn silent_receivers_of_one_token_leave_half_of_the_requests_to_others(engine: Engine) {
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    for number in 0..20 {
        let own = [("owner", "'token:a'"), ("max_in_flight", "3"), ("description", &*format!("'{number}'"))];
        subscribe(&mut scene, ("all", ""), &receiver.url("/slow"), &own);
    }
    happen(&mut scene, 5, "message.delivered");
    let notifier = Notifier::start_with(&mut scene, "concurrency = 8\n");
    wait_until("it has its share", || receiver.came("/slow").len() == 4);
    subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &[("owner", "'token:b'")]);
    let shown: BTreeSet<String> = happen(&mut scene, 20, "message.delivered").into_iter().collect();
    wait_until("the other one is notified all", || receiver.taken("/quick").len() == 20);
    let taken: BTreeSet<String> = receiver.taken("/quick").iter().map(|request| request.id().to_owned()).collect();
    assert_eq!((taken, receiver.came("/slow").len()), (shown, 4));
    receiver.release();
    wait_until("all are notified", || scene.database.count(PENDING) == 0);
    assert_eq!(receiver.taken("/slow").len(), 20 * 25);
    notifier.end();
}

fn of_the_owners_that_are_served_enough_nothing_is_leased(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let mut of = |owner| subscribe(&mut scene, ("all", ""), "https://hooks.example.com/in", &[("owner", owner)]);
    let [first, second, quoted, other] = ["'token:a'", "'token:a'", "'token:it''s ? $1'", "'token:ab'"].map(&mut of);
    // What is left of one that was removed.
    let removed = Uuid::now_v7();
    let now = if engine.is_postgres() { "now()" } else { "UTC_TIMESTAMP(6)" };
    for id in [first, second, quoted, other, removed] {
        let id = if engine.is_postgres() { format!("'{id}'") } else { format!("X'{}'", id.simple()) };
        let due = format!("INSERT INTO subscription_queues (subscription, due_at) VALUES ({id}, {now})");
        scene.database.execute(&due);
    }
    let site = Site::configured(Config::load(scene.path("config.toml").as_ref()).unwrap()).unwrap();
    let mut database = site.open_database(None, Deadline::after(Duration::from_mins(1))).unwrap();
    let mut leased = |served: &[&str]| -> BTreeSet<(Uuid, String)> {
        let leased = database.lease(Uuid::now_v7(), Duration::from_mins(1), 10, served, 0).unwrap();
        leased.into_iter().map(|one| (one.subscription, one.owner)).collect()
    };
    let with = |all: &[(Uuid, &str)]| all.iter().map(|(id, owner)| (*id, (*owner).to_owned())).collect();
    let owners = ["token:a", "token:it's ? $1"];
    assert_eq!(leased(&owners), with(&[(other, "token:ab"), (removed, "")]));
    assert_eq!(leased(&[]), with(&[(first, owners[0]), (second, owners[0]), (quoted, owners[1])]));
}
