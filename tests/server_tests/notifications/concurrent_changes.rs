//! The notifier's work beside others': who changes a subscription, who takes one, who publishes, and a pooler in between.

use crate::fixtures::webhook_receiver::{Receiver, Request};
use crate::notifications::event_delivery::{Notifier, PENDING, happen, settlement, subscribe};
use crate::support::database::Engine;
use crate::support::program::wait_until;
use crate::support::server;
use crate::support::site_fixture::Scene;
use maildrop_command::base::deadline::Deadline;
use maildrop_command::config::Config;
use maildrop_command::database::DatabaseFailure;
use maildrop_command::ledger::notifications::{Next, Published, Settlement, StateChange, Wake, WebhookAttempt};
use maildrop_command::ledger::{Database, Notifications};
use maildrop_command::lock::{Acquired, LockName};
use maildrop_command::site::Site;
use std::collections::BTreeSet;
use std::time::Duration;
use uuid::Uuid;

on_each_engine![
    nobody_waits_for_who_changes_or_takes_another_subscription,
    a_subscription_is_disabled_only_by_the_notifier_that_has_leased_it,
    of_those_that_are_settled_together_one_that_is_another_ones_is_left_alone,
    who_publishes_under_another_lock_does_not_get_past_who_was_first,
    who_waits_for_a_subscriptions_row_is_ended_in_time_and_so_is_what_he_asked,
];

/// One that waited would fail at its deadline.
fn open(scene: &Scene) -> Box<dyn Database> {
    open_by(&scene.path("config.toml"))
}

fn open_by(config: &str) -> Box<dyn Database> {
    let site = Site::configured(Config::load(config.as_ref()).unwrap()).unwrap();
    site.open_database(None, Deadline::after(Duration::from_mins(1))).unwrap()
}

fn nobody_waits_for_who_changes_or_takes_another_subscription(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let url = "https://hooks.example.com/in";
    let mut changed = || subscribe(&mut scene, ("address", "other@mail.axial.net"), url, &[]);
    let (first, second) = (changed(), changed());
    let shown = subscribe(&mut scene, ("all", ""), url, &[]);
    let id = |id: Uuid| if engine.is_postgres() { format!("'{id}'") } else { format!("X'{}'", id.simple()) };
    let now = if engine.is_postgres() { "now()" } else { "UTC_TIMESTAMP(6)" };
    for one in [first, second] {
        let due = format!("INSERT INTO subscription_queues (subscription, due_at) VALUES ({}, {now})", id(one));
        scene.database.execute(&due);
    }
    let (lock, by, minute) = (LockName::new(&scene.run, b"notify/publisher"), Uuid::now_v7(), Duration::from_mins(1));

    // Somebody changes all subscriptions, and has not committed: a delivery asks only whether there is one.
    let mut people = scene.session();
    people.execute(if engine.is_postgres() { "BEGIN" } else { "START TRANSACTION" });
    people.execute("UPDATE subscriptions SET description = 'x'");
    scene.deliver("doug", scene.message("a")).delivered();
    assert_eq!(scene.database.count("SELECT count(*) FROM outbox"), 1);
    people.execute("ROLLBACK");

    // Another notifier takes one that is due: this one takes the others, and what happens is published meanwhile.
    people.execute(if engine.is_postgres() { "BEGIN" } else { "START TRANSACTION" });
    people.execute(&format!("UPDATE subscription_queues SET failures = 1 WHERE subscription = {}", id(first)));
    let mut database = open(&scene);
    let taken: Vec<Uuid> = database.lease(by, minute, 10, &[], 0).unwrap().iter().map(|one| one.subscription).collect();
    assert_eq!(taken, [second]);
    assert!(matches!(database.publish(&lock, Wake::Nobody).unwrap(), Published::Events { count: 1, .. }));
    assert_eq!(scene.database.count("SELECT count(*) FROM notifications"), 1);
    assert_eq!(database.lease(by, minute, 10, &[], 0).unwrap()[0].subscription, shown);
    people.execute("ROLLBACK");

    // One publishes at a time.
    happen(&mut scene, 1, "message.delivered");
    let mut publisher = open(&scene);
    assert!(matches!(publisher.acquire(&lock, Duration::ZERO).unwrap(), Acquired::Held));
    assert_eq!(database.publish(&lock, Wake::All).unwrap(), Published::Busy);
    publisher.release(&lock).unwrap();
    assert!(matches!(database.publish(&lock, Wake::All).unwrap(), Published::Events { count: 1, .. }));
}

/// The first one's lease is over before it has settled, and a second one has asked the receiver meanwhile: the holder
/// of the lease says what becomes of it.
fn a_subscription_is_disabled_only_by_the_notifier_that_has_leased_it(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let gone = subscribe(&mut scene, ("all", ""), "https://hooks.example.com/gone", &[]);
    let mut database = open(&scene);
    let settle = |database: &mut dyn Database, by: Uuid| {
        let settlement = Settlement {
            lease: None,
            failures: 1,
            state: Some(&StateChange::Disabled("it's \"gone\"".into())),
            callback: "https://hooks.example.com/gone",
            idle: true,
            ..settlement(gone, by, &[])
        };
        database.settle(&[settlement]).unwrap()
    };
    let (one, another) = (Uuid::now_v7(), Uuid::now_v7());
    let literal = if engine.is_postgres() { format!("'{another}'") } else { format!("X'{}'", another.simple()) };
    let leased =
        format!("INSERT INTO subscription_queues (subscription, leased_by) SELECT id, {literal} FROM subscriptions");
    scene.database.execute(&leased);
    let state = "SELECT concat(state, ': ', coalesce(state_reason, '')) FROM subscriptions";
    assert_eq!(settle(database.as_mut(), one), [gone], "it is another one's");
    assert_eq!(scene.database.texts(state), ["active: "]);
    assert!(settle(database.as_mut(), another).is_empty());
    // The answer to its COMMIT was lost, say.
    assert_eq!(settle(database.as_mut(), another), [gone]);
    assert_eq!(scene.database.texts(state), ["disabled: it's \"gone\""]);
}

/// What was answered is written down of both.
fn of_those_that_are_settled_together_one_that_is_another_ones_is_left_alone(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    let url = "https://hooks.example.com/in";
    let [kept, taken] = [(); 2].map(|()| subscribe(&mut scene, ("all", ""), url, &[]));
    happen(&mut scene, 1, "message.delivered");
    let (lock, by, another) = (LockName::new(&scene.run, b"notify/publisher"), Uuid::now_v7(), Uuid::now_v7());
    let minute = Duration::from_mins(1);
    let mut database = open(&scene);
    assert!(matches!(database.publish(&lock, Wake::Nobody).unwrap(), Published::Events { count: 1, .. }));
    let leased = database.lease(by, minute, 10, &[], 0).unwrap();
    assert_eq!(leased.len(), 2);
    let literal = |id: Uuid| if engine.is_postgres() { format!("'{id}'") } else { format!("X'{}'", id.simple()) };
    scene.database.execute(&format!(
        "UPDATE subscription_queues SET leased_by = {}, failures = 7 WHERE subscription = {}",
        literal(another),
        literal(taken)
    ));
    let attempts: Vec<[WebhookAttempt; 1]> = leased
        .iter()
        .map(|leased| {
            let due = database.due(leased, &[], 10).unwrap();
            [WebhookAttempt {
                position: Some(due[0].position),
                due_at: due[0].due_at,
                started_at: 1_790_000_000_000_000,
                took: Duration::ZERO,
                status: Some(204),
                outcome: "taken, 204".into(),
                response: None,
                next: Next::Done,
            }]
        })
        .collect();
    let settlements: Vec<Settlement<'_>> =
        leased.iter().zip(&attempts).map(|(leased, attempts)| settlement(leased.subscription, by, attempts)).collect();
    assert_eq!(database.settle(&settlements).unwrap(), [taken]);
    assert_eq!(scene.database.count(PENDING), 0);
    assert_eq!(scene.database.count("SELECT count(*) FROM notification_attempts"), 2);
    let left = |id, by, failures| {
        format!(
            "SELECT count(*) FROM subscription_queues WHERE subscription = {} AND leased_by = {} AND failures = {failures}",
            literal(id),
            literal(by)
        )
    };
    assert_eq!(scene.database.count(&left(kept, by, 0)), 1);
    assert_eq!(scene.database.count(&left(taken, another, 7)), 1);
}

/// Two hosts whose `lock.namespace` differs, say. The lock spares publishers each other's errors; that a reader who goes on behind the
/// last event he has seen misses none does not hang on it: an event is published once, so the second one waits for the first one's
/// COMMIT, with all that it would have published before it.
fn who_publishes_under_another_lock_does_not_get_past_who_was_first(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    subscribe(&mut scene, ("all", ""), "https://hooks.example.com/in", &[]);
    let [lock, other] = [&b"notify/publisher"[..], b"notify/another"].map(|name| LockName::new(&scene.run, name));
    let publishing = |scene: &Scene, lock: LockName| {
        let config = scene.path("config.toml");
        std::thread::spawn(move || open_by(&config).publish(&lock, Wake::Nobody))
    };
    let name = &scene.database.name;
    // What each of the two waits for is there before it is seen to wait: the first has inserted its events, the second read its own.
    let [first_waits, both_wait] = if engine.is_postgres() {
        let waits = format!("FROM pg_stat_activity WHERE datname = '{name}' AND wait_event_type = 'Lock'");
        [1, 2].map(|count| format!("SELECT count(*) / {count} {waits}"))
    } else {
        ["subscription_queues", "events"].map(|table| {
            format!(
                "SELECT count(*) FROM information_schema.processlist WHERE db = '{name}' AND info LIKE 'INSERT INTO {table} %'"
            )
        })
    };

    // The first one waits, before its COMMIT, for somebody who has the subscription's row.
    let now = if engine.is_postgres() { "now()" } else { "UTC_TIMESTAMP(6)" };
    let due = format!("INSERT INTO subscription_queues (subscription, due_at) SELECT id, {now} FROM subscriptions");
    scene.database.execute(&due);
    let mut people = scene.session();
    people.execute(if engine.is_postgres() { "BEGIN" } else { "START TRANSACTION" });
    people.execute("UPDATE subscription_queues SET failures = 1");
    let first = happen(&mut scene, 1, "message.delivered");
    let ahead = publishing(&scene, lock);
    wait_until("the first one waits", || scene.database.count(&first_waits) == 1);
    let second = happen(&mut scene, 1, "message.delivered");
    let behind = publishing(&scene, other);
    wait_until("the second one waits for it", || scene.database.count(&both_wait) == 1);
    assert_eq!(
        scene.database.count("SELECT count(*) FROM events"),
        0,
        "there is nothing that a reader could go on behind"
    );
    people.execute("ROLLBACK");

    assert!(matches!(ahead.join().unwrap().unwrap(), Published::Events { count: 1, .. }));
    // It fails; or it has begun once more meanwhile, since a server gives up who waits for a row for long.
    if behind.join().unwrap().is_err() {
        assert!(matches!(open(&scene).publish(&lock, Wake::Nobody).unwrap(), Published::Events { count: 1, .. }));
    }
    let id = if engine.is_postgres() { "replace(event::text, '-', '')" } else { "LOWER(HEX(event))" };
    let read = scene.database.texts(&format!("SELECT concat('evt_', {id}) FROM events ORDER BY position"));
    assert_eq!(read, [first, second].concat());
    assert_eq!(scene.database.count("SELECT count(*) FROM notifications"), 2);
}

/// The row is kept for longer than any of them may take. It is the notifier's own, or the API's, to ask again.
fn who_waits_for_a_subscriptions_row_is_ended_in_time_and_so_is_what_he_asked(engine: Engine) {
    type Asked<'a> = &'a dyn Fn(&mut dyn Database) -> Option<DatabaseFailure>;
    let mut scene = Scene::with(engine, &[]);
    let url = "https://hooks.example.com/in";
    let shown = subscribe(&mut scene, ("all", ""), url, &[]);
    let (lock, by) = (LockName::new(&scene.run, b"notify/publisher"), Uuid::now_v7());
    happen(&mut scene, 1, "message.delivered");
    let mut database = scene.open_database();
    assert!(matches!(database.publish(&lock, Wake::Nobody).unwrap(), Published::Events { count: 1, .. }));
    happen(&mut scene, 1, "message.delivered");
    let mut people = scene.session();
    people.execute(if engine.is_postgres() { "BEGIN" } else { "START TRANSACTION" });
    people.execute("UPDATE subscription_queues SET failures = 1");
    let name = &scene.database.name;
    let waiting = if engine.is_postgres() {
        format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND wait_event_type = 'Lock'")
    } else {
        format!(
            "SELECT count(*) FROM information_schema.processlist WHERE db = '{name}' AND command = 'Query' \
             AND info NOT LIKE '%processlist%'"
        )
    };
    let site = scene.site();
    let asked: [(&str, Asked<'_>); 3] = [
        ("publish", &|database| database.publish(&lock, Wake::Nobody).err().map(|error| error.failure)),
        ("settle", &|database| database.settle(&[settlement(shown, by, &[])]).err().map(|error| error.failure)),
        ("change", &|database| {
            let longer = "UPDATE subscription_queues SET leased_until = leased_until";
            database.change("leasing for longer", longer, &[]).err().map(|error| error.failure)
        }),
    ];
    for (what, ask) in asked {
        let round = Duration::from_secs(3);
        let mut database = site.open_database(None, Deadline::after(round)).unwrap();
        database.limit_statement_time(round);
        let failure = ask(database.as_mut());
        assert!(
            matches!(failure, Some(DatabaseFailure::Contention | DatabaseFailure::TimedOut)),
            "{what}: {failure:?}"
        );
        // In the server, too: it does not take the row once it is free, for somebody who has gone.
        assert_eq!(scene.database.count(&waiting), 0, "{what}");
    }
    people.execute("ROLLBACK");
    assert!(matches!(database.publish(&lock, Wake::Nobody).unwrap(), Published::Events { count: 1, .. }));
    assert_eq!(scene.database.count(PENDING), 2);
}

/// PgBouncer gives each transaction another session: neither leases nor the lock of publishing may be of a session.
#[test]
fn through_pgbouncer_in_transaction_mode_each_event_is_notified_once() {
    let (mut scene, receiver) = (Scene::with(Engine::Postgres17, &[]), Receiver::start());
    subscribe(&mut scene, ("all", ""), &receiver.url("/quick"), &[]);
    subscribe(&mut scene, ("all", ""), &receiver.url("/once"), &[("in_order", "true")]);
    let pooler = server("PGBOUNCER");
    scene.configure(|settings| settings.database = (pooler, 5432));
    let notifiers = [Notifier::start(&mut scene), Notifier::start(&mut scene)];
    let all: BTreeSet<String> = (0..5).flat_map(|_| happen(&mut scene, 20, "message.delivered")).collect();
    wait_until("all are notified", || {
        scene.database.count("SELECT count(*) FROM events") == 100 && scene.database.count(PENDING) == 0
    });
    notifiers.into_iter().for_each(Notifier::end);
    for path in ["/quick", "/once"] {
        let taken = receiver.taken(path);
        assert_eq!(taken.len(), 100, "{path}");
        assert_eq!(taken.iter().map(|one| one.id().to_owned()).collect::<BTreeSet<_>>(), all, "{path}");
    }
    assert!(receiver.taken("/once").iter().map(Request::sequence).is_sorted());
}

/// In REPEATABLE READ, what is taken would hold up whatever comes to be between it, and behind it (1205, at last).
mod while_one_notifier_takes_what_is_due {
    use super::*;

    #[test]
    fn another_one_publishes_on_mysql9() {
        another_one_publishes(Engine::Mysql9);
    }

    #[test]
    fn another_one_publishes_on_mariadb118() {
        another_one_publishes(Engine::Mariadb118);
    }

    fn another_one_publishes(engine: Engine) {
        let mut scene = Scene::with(engine, &[]);
        let url = "https://hooks.example.com/in";
        // By its id it is between two that are due; it is due behind both.
        let [first, busy, second] = [("domain", "axial.net"), ("all", ""), ("domain", "axial.net")]
            .map(|resource| subscribe(&mut scene, resource, url, &[]));
        for one in [first, second] {
            scene.database.execute(&format!(
                "INSERT INTO subscription_queues (subscription, due_at) VALUES (X'{}', UTC_TIMESTAMP(6))",
                one.simple()
            ));
        }
        happen(&mut scene, 1, "message.delivered");
        // It has locked what it takes, and goes no further.
        let mut gate = scene.session();
        assert_eq!(gate.texts(&format!("SELECT CAST(GET_LOCK('{}', 0) AS CHAR)", scene.run)), ["1"]);
        scene.database.execute(&format!(
            "CREATE TRIGGER taken BEFORE UPDATE ON subscription_queues FOR EACH ROW SET @gate = GET_LOCK('{}', 3600)",
            scene.run
        ));
        let config = scene.path("config.toml");
        let taking = std::thread::spawn(move || {
            open_by(&config).lease(Uuid::now_v7(), Duration::from_mins(1), 10, &[], 0).unwrap()
        });
        let waits = format!(
            "SELECT count(*) FROM information_schema.processlist WHERE state = 'User lock' AND db = '{}'",
            scene.database.name
        );
        wait_until("it has taken them", || scene.database.count(&waits) == 1);

        let lock = LockName::new(&scene.run, b"notify/publisher");
        assert!(matches!(open(&scene).publish(&lock, Wake::Nobody).unwrap(), Published::Events { count: 1, .. }));
        let due = format!("SELECT count(*) FROM subscription_queues WHERE subscription = X'{}'", busy.simple());
        assert_eq!(scene.database.count(&due), 1);
        assert_eq!(scene.database.count(&waits), 1, "it has not gone on meanwhile");
        drop(gate);
        let mut taken: Vec<Uuid> = taking.join().unwrap().iter().map(|one| one.subscription).collect();
        taken.sort_unstable();
        assert_eq!(taken, [first, second]);
    }
}
