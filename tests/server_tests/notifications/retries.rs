//! What is tried once more has the same bytes and a signature of its own; for how long a receiver has taken nothing counts from the last
//! time that it has taken anything, whatever failed beside that.

use crate::fixtures::webhook_receiver::{Receiver, Request};
use crate::notifications::event_delivery::{Notifier, happen, settlement, subscribe, verify};
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use maildrop_command::base::deadline::Deadline;
use maildrop_command::config::Config;
use maildrop_command::ledger::Notifications;
use maildrop_command::ledger::notifications::{Due, Next, Published, Settlement, Wake, WebhookAttempt};
use maildrop_command::lock::LockName;
use maildrop_command::site::Site;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use uuid::Uuid;

on_two_engines!(who_takes_one_of_two_that_are_settled_together_has_failed_since_then);

fn tried(due: &Due, next: Next) -> WebhookAttempt {
    WebhookAttempt {
        position: Some(due.position),
        due_at: due.due_at,
        started_at: 1_790_000_000_000_000,
        took: Duration::ZERO,
        status: None,
        outcome: "x".into(),
        response: None,
        next,
    }
}

fn who_takes_one_of_two_that_are_settled_together_has_failed_since_then(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let id = subscribe(&mut scene, ("all", ""), "https://hooks.example.com/in", &[]);
    happen(&mut scene, 3, "message.delivered");
    let site = Site::configured(Config::load(scene.path("config.toml").as_ref()).unwrap()).unwrap();
    let mut database = site.open_database(None, Deadline::after(Duration::from_mins(1))).unwrap();
    let (lock, by, minute) = (LockName::new(&scene.run, b"notify/publisher"), Uuid::now_v7(), Duration::from_mins(1));
    assert!(matches!(database.publish(&lock, Wake::Nobody).unwrap(), Published::Events { count: 3, .. }));
    let leased = database.lease(by, minute, 1, &[], 0).unwrap().remove(0);
    let due = database.due(&leased, &[], 3).unwrap();
    let ago = |days: u32| match engine.is_postgres() {
        true => format!("now() - interval '{days} days'"),
        false => format!("UTC_TIMESTAMP(6) - INTERVAL {days} DAY"),
    };
    let again = Next::Again(minute);
    for (tries, failures, is_over) in
        [(&[tried(&due[0], again)][..], 10, false), (&[tried(&due[1], Next::Done), tried(&due[2], again)], 1, true)]
    {
        // It was down for six days.
        scene.database.execute(&format!("UPDATE subscription_queues SET failures = 9, failing_since = {}", ago(6)));
        let settled = database.settle(&[Settlement { failures, ..settlement(id, by, tries) }]);
        assert!(settled.unwrap().is_empty(), "it is leased to us still");
        for (what, holds) in [(">", is_over), ("<", !is_over)] {
            let since = format!(
                "SELECT count(*) FROM subscription_queues WHERE failures = {failures} AND failing_since {what} {}",
                ago(1)
            );
            assert_eq!(scene.database.count(&since), i64::from(holds), "{failures} {what}");
        }
    }
}

fn timestamp(request: &Request) -> u64 {
    request.headers["webhook-timestamp"].parse().unwrap()
}

/// A try that comes later has a timestamp, and signatures, of its own.
#[test]
fn each_try_has_the_same_bytes_and_a_new_signature() {
    let (mut scene, receiver) = (Scene::with(Engine::Postgres17, &[]), Receiver::start());
    let id = subscribe(&mut scene, ("all", ""), &receiver.url("/broken"), &[]);
    let notifier = Notifier::start(&mut scene);
    happen(&mut scene, 1, "message.delivered");
    wait_until("it has failed, and is tried in an hour", || {
        scene.database.count("SELECT count(*) FROM notifications WHERE tries = 3") == 1
    });
    let last = timestamp(receiver.came("/broken").last().unwrap());
    wait_until("it is another second", || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() > last);
    receiver.release();
    let again = scene.subcommand(&["notify", "redeliver", "--json"]);
    assert!(again.status.success(), "{again:?}");
    scene.database.execute("UPDATE notifications SET due_at = now()");
    scene.database.execute("UPDATE subscription_queues SET due_at = now(), paused_until = NULL");
    wait_until("it is taken", || receiver.taken("/broken").len() == 1);
    notifier.end();
    let tries = receiver.came("/broken");
    let of_all = |what: fn(&Request) -> String| tries.iter().map(what).collect::<BTreeSet<String>>().len();
    assert_eq!((tries.len(), of_all(|one| one.id().to_owned()), of_all(|one| one.body.clone())), (4, 1, 1));
    let taken = tries.last().unwrap();
    assert!(timestamp(taken) > last && of_all(|one| one.headers["webhook-signature"].clone()) > 1);
    tries.iter().for_each(|one| verify(one, id, 1).unwrap());
    assert_eq!(of_all(|one| one.headers["maildrop-attempt"].clone()), 4);
}
