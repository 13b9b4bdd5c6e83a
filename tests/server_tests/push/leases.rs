//! Which notifier serves a subscription.

use super::telling::{happen, subscribe};
use crate::support::database::Engine;
use crate::support::scene::Scene;
use maildrop_command::base::deadline::Deadline;
use maildrop_command::config::Config;
use maildrop_command::ledger::notifications::{Published, Wake};
use maildrop_command::lock::LockName;
use maildrop_command::site::Site;
use std::time::Duration;
use uuid::Uuid;

on_each_engine!(who_leases_for_longer_hears_what_another_one_has_by_now);

fn who_leases_for_longer_hears_what_another_one_has_by_now(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let mut subscriptions = [(); 2].map(|()| subscribe(&mut scene, ("all", ""), "http://127.0.0.1:9/", &[]));
    happen(&mut scene, 1, "message.delivered");
    let site = Site::configured(Config::load(scene.path("config.toml").as_ref()).unwrap()).unwrap();
    let mut database = site.open_database(None, Deadline::after(Duration::from_mins(5))).unwrap();
    let lock = LockName::new(&scene.run, b"notify/publisher");
    assert!(database.has_unpublished(0).unwrap());
    let published = database.publish(&lock, Wake::Nobody).unwrap();
    let Published::Events { count: 1, last } = published else { panic!("{published:?}") };
    assert!(!database.has_unpublished(last).unwrap());

    // Longer than the test lasts.
    let (one, other, lease) = (Uuid::now_v7(), Uuid::now_v7(), Duration::from_hours(1));
    let leased = database.lease(one, lease, 10, &[], 0).unwrap();
    let mut taken: Vec<Uuid> = leased.iter().map(|leased| leased.subscription).collect();
    taken.sort();
    subscriptions.sort();
    assert_eq!(taken, subscriptions);
    assert!(database.lease(other, lease, 10, &[], 0).unwrap().is_empty());
    assert!(database.lease_longer(one, lease, &taken).unwrap().is_empty());
    assert_eq!(database.lease_longer(other, lease, &taken).unwrap(), taken);
    let literal = |id: Uuid| if engine.is_postgres() { format!("'{id}'") } else { format!("X'{}'", id.simple()) };
    let takes = format!(
        "UPDATE subscription_queues SET leased_by = {} WHERE subscription = {}",
        literal(other),
        literal(taken[0])
    );
    scene.database.execute(&takes);
    assert_eq!(database.lease_longer(one, lease, &taken).unwrap(), [taken[0]]);
    assert!(database.lease_longer(one, lease, &[]).unwrap().is_empty());
}
