//! Which notifier serves a subscription, of what it is notified, and what becomes of one that a notifier has left behind.

use crate::fixtures::rest_client::Rest;
use crate::fixtures::webhook_receiver::Receiver;
use crate::notifications::event_delivery::{Notifier, PENDING, RETRY, happen, settlement, subscribe};
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use crate::support::standby::Primary;
use maildrop_command::base::deadline::Deadline;
use maildrop_command::config::Config;
use maildrop_command::database::DatabaseFailure;
use maildrop_command::ledger::Notifications;
use maildrop_command::ledger::notifications::{Published, Settlement, StateChange, Wake};
use maildrop_command::lock::LockName;
use maildrop_command::site::Site;
use serde_json::json;
use std::time::Duration;
use uuid::Uuid;

on_each_engine![
    who_leases_for_longer_hears_what_another_one_has_by_now,
    a_new_subscription_is_notified_nothing_from_before_it_was_made,
    of_what_a_notifier_has_left_behind_half_as_many_are_leased_and_at_last_one_alone,
    who_settles_after_it_was_resumed_does_not_undo_that,
    a_change_that_cannot_be_made_whole_is_not_made_at_all,
    sixty_receivers_of_messages_with_long_headers_are_notified_within_the_memory_that_there_is,
];

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

fn lock(scene: &Scene) -> LockName {
    LockName::new(&scene.run, b"notify/publisher")
}

/// However long nobody has published.
fn a_new_subscription_is_notified_nothing_from_before_it_was_made(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let make = |scene: &mut Scene| {
        let id = subscribe(scene, ("all", ""), "http://127.0.0.1:9/", &[]);
        happen(scene, 1, "message.delivered");
        id
    };
    let [first, second] = [(); 2].map(|()| make(&mut scene));
    let published = scene.open_database().publish(&lock(&scene), Wake::Nobody).unwrap();
    assert!(matches!(published, Published::Events { count: 2, .. }));
    let of = |id: Uuid| {
        let id = if engine.is_postgres() { format!("'{id}'") } else { format!("X'{}'", id.simple()) };
        format!("{PENDING} WHERE subscription = {id}")
    };
    assert_eq!([first, second].map(|id| scene.database.count(&of(id))), [2, 1]);
}

fn of_what_a_notifier_has_left_behind_half_as_many_are_leased_and_at_last_one_alone(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    for _ in 0..4 {
        subscribe(&mut scene, ("all", ""), "http://127.0.0.1:9/", &[]);
    }
    happen(&mut scene, 1, "message.delivered");
    let mut database = scene.open_database();
    assert!(matches!(database.publish(&lock(&scene), Wake::Nobody).unwrap(), Published::Events { count: 1, .. }));
    let ended = if engine.is_postgres() { "now() - interval '1 hour'" } else { "UTC_TIMESTAMP(6) - INTERVAL 1 HOUR" };
    let mut lease = |scene: &mut Scene, leased_before| {
        let by = Uuid::now_v7();
        let leased = database.lease(by, Duration::from_hours(1), 10, &[], leased_before).unwrap();
        // It ends.
        scene
            .database
            .execute(&format!("UPDATE subscription_queues SET leased_until = {ended} WHERE leased_by IS NOT NULL"));
        let among: Vec<Option<u32>> = leased.iter().map(|one| one.lease_limit).collect();
        (among, by, leased)
    };
    assert_eq!(lease(&mut scene, 0).0, [None; 4]);
    assert_eq!(lease(&mut scene, 2).0, [None::<u32>; 0]);
    let (among, by, leased) = lease(&mut scene, 0);
    assert_eq!(among, [Some(4); 2]);
    // One of these is given back: nobody has ended with it.
    let given_back = leased[0].subscription;
    let settled = Settlement { lease: None, ..settlement(given_back, by, &[]) };
    assert!(scene.open_database().settle(&[settled]).unwrap().is_empty());
    let mut alone = Vec::new();
    for among in [2, 1, 0, 0] {
        let (ended, by, leased) = lease(&mut scene, 0);
        assert_eq!(ended, [Some(among)]);
        alone.push((leased[0].subscription, by));
    }
    assert!(alone.iter().all(|(one, _)| *one == leased[1].subscription));
    // Given back after that, it is leased alone all the same.
    let (one, by) = alone[3];
    let settled = Settlement { lease: None, alone: true, ..settlement(one, by, &[]) };
    assert!(scene.open_database().settle(&[settled]).unwrap().is_empty());
    assert_eq!(lease(&mut scene, 0).0, [Some(1)]);
}

/// A notifier that found out something about the receiver before that.
fn who_settles_after_it_was_resumed_does_not_undo_that(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let url = "http://127.0.0.1:9/";
    let one = subscribe(&mut scene, ("all", ""), url, &[]);
    happen(&mut scene, 1, "message.delivered");
    let (mut database, by) = (scene.open_database(), Uuid::now_v7());
    assert!(matches!(database.publish(&lock(&scene), Wake::Nobody).unwrap(), Published::Events { count: 1, .. }));
    assert_eq!(database.lease(by, Duration::from_hours(1), 10, &[], 0).unwrap().len(), 1);
    for word in ["pause", "resume"] {
        let output = scene.subcommand(&["subscription", word, &one.to_string()]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    let settled = Settlement {
        lease: None,
        failures: 6,
        open_for: Some(Duration::from_hours(1)),
        state: Some(&StateChange::Disabled("gone".into())),
        callback: url,
        ..settlement(one, by, &[])
    };
    assert_eq!(database.settle(&[settled]).unwrap(), [one]);
    assert_eq!(scene.database.texts("SELECT state FROM subscriptions"), ["active"]);
    let undone =
        "SELECT count(*) FROM subscription_queues WHERE failures > 0 OR paused_until IS NOT NULL OR due_at IS NULL";
    assert_eq!(scene.database.count(undone), 0);
    assert_eq!(database.lease(by, Duration::from_hours(1), 10, &[], 0).unwrap().len(), 1);
}

fn a_change_that_cannot_be_made_whole_is_not_made_at_all(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let rest = Rest::start(&mut scene, "");
    let token = rest.token(&["--name", "crm", "--scope", "subscriptions:write"]);
    let more = [("owner", "'token:crm'"), ("state", "'paused'")];
    let one = subscribe(&mut scene, ("all", ""), "https://hooks.example.com/in", &more);
    scene.database.execute("INSERT INTO subscription_queues (subscription, failures) SELECT id, 3 FROM subscriptions");
    let mut people = scene.session();
    people.execute(if engine.is_postgres() { "BEGIN" } else { "START TRANSACTION" });
    people.execute("UPDATE subscription_queues SET failures = 4");
    let change = || {
        let wanted = json!({ "description": "the CRM", "state": "active" });
        rest.ask(&token, &format!("PATCH /subscriptions/{one}"), Some(&wanted))
    };
    change().problem(503, "unavailable");
    let is = |scene: &mut Scene| scene.database.texts("SELECT concat(state, ' ', description) FROM subscriptions");
    assert_eq!(is(&mut scene), ["paused "]);
    people.execute("ROLLBACK");
    assert_eq!(change().good(200)["description"], "the CRM");
    assert_eq!(is(&mut scene), ["active the CRM"]);
    rest.end();
}

/// What is committed on a server that does not wait until its standby has it may be forgotten, and given out again in another order.
#[test]
fn what_is_published_leased_and_settled_counts_once_a_standby_has_it() {
    let mut primary = Primary::start("POSTGRES17");
    let mut scene = Scene::with_database_on(Engine::Postgres17, &primary.server);
    let one = subscribe(&mut scene, ("all", ""), "http://127.0.0.1:9/", &[]);
    happen(&mut scene, 1, "message.delivered");
    // However little of what the server says the role wants to hear.
    let set = format!("ALTER DATABASE {} SET client_min_messages = error", scene.database.name);
    scene.database.execute(&set);
    let (lock, by, minute) = (lock(&scene), Uuid::now_v7(), Duration::from_mins(1));
    primary.commits_wait();
    for step in ["publish", "lease", "settle"] {
        let mut database = scene.open_database();
        std::thread::scope(|scope| {
            scope.spawn(|| wait_until("the commit waits", || primary.end_waits("pg_cancel_backend") == 1));
            let failed = match step {
                "publish" => database.publish(&lock, Wake::Nobody).map(drop),
                "lease" => database.lease(by, minute, 10, &[], 0).map(drop),
                _ => database.settle(&[settlement(one, by, &[])]).map(drop),
            };
            assert_eq!(failed.unwrap_err().failure, DatabaseFailure::InDoubt, "{step}");
        });
    }
    primary.commits_wait_no_more();
    assert_eq!(scene.database.count("SELECT count(*) FROM events"), 1);
}

/// As much as a message may keep of its header, and as much memory as `service.worker_memory` gives a notifier.
fn sixty_receivers_of_messages_with_long_headers_are_notified_within_the_memory_that_there_is(engine: Engine) {
    const SUBSCRIPTIONS: usize = 60;
    const EVENTS: usize = 110;
    let (mut scene, receiver) = (Scene::with(engine, &[]), Receiver::start());
    for _ in 0..SUBSCRIPTIONS {
        subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &[("detail", "'full'")]);
    }
    let headers: Vec<[String; 2]> = (0..31).map(|number| [format!("X-{number}"), "x".repeat(8_000)]).collect();
    let (digest, now) = if engine.is_postgres() {
        (format!("decode('{}', 'hex')", "ab".repeat(32)), "now()")
    } else {
        (format!("X'{}'", "ab".repeat(32)), "UTC_TIMESTAMP(6)")
    };
    scene.database.execute(&format!(
        "INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, headers, size, recorded_at) \
         VALUES ({digest}, {digest}, '<1@example.org>', {digest}, '', '{}', 1, {now})",
        json!(headers)
    ));
    happen(&mut scene, EVENTS, "message.delivered");
    let published = scene.open_database().publish(&lock(&scene), Wake::Nobody).unwrap();
    assert!(matches!(published, Published::Events { count: EVENTS, .. }));
    let notifier = Notifier::start_within(&Notifier::configuration(&mut scene, RETRY, ""), 1_000_000_000);
    wait_until("all are notified", || scene.database.count(PENDING) == 0);
    notifier.end();
    let taken = receiver.taken("/quick");
    assert_eq!(taken.len(), SUBSCRIPTIONS * EVENTS);
    let message = &taken[0].json()["data"]["message"];
    assert_eq!((message["headers"].as_array().unwrap().len(), &message["headers_truncated"]), (2, &true.into()));
}
