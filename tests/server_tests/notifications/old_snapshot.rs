//! Somebody holds a snapshot open, a dump or a forgotten transaction, so that nothing that is dead can be cleared away; what the notifier
//! looks at again and again stays small all the same.

use crate::notifications::event_delivery::{happen, settlement, subscribe};
use crate::support::database::Engine;
use crate::support::site_fixture::Scene;
use maildrop_command::ledger::notifications::{Due, Next, Published, Settlement, Wake, WebhookAttempt};
use maildrop_command::ledger::{Database, Notifications};
use maildrop_command::lock::LockName;
use std::time::Duration;
use uuid::Uuid;

const SUBSCRIPTIONS: usize = 100;
const EVENTS: usize = 1000;
/// As many as are settled at once.
const AT_ONCE: usize = 50;
/// Of subscriptions, each settlement leaves a dead row: two thousand in some fifty blocks, each of which is read once, and the blocks
/// of the index. A queue of notifications would have left thousands.
const FEW: i64 = 100;

#[test]
fn a_poll_reads_few_blocks_after_a_hundred_thousand_notifications_under_an_old_snapshot() {
    let mut scene = Scene::with(Engine::Postgres17, &[]);
    // They are as they are since yesterday.
    let more = [("updated_at", "now() - interval '1 day'")];
    for _ in 0..SUBSCRIPTIONS {
        subscribe(&mut scene, ("all", ""), "https://receiver.example/", &more);
    }
    // The server counts what its own processes read, too.
    for table in ["subscriptions", "subscription_queues", "outbox", "events", "notifications", "notification_attempts"]
    {
        scene.database.execute(&format!("ALTER TABLE {table} SET (autovacuum_enabled = off)"));
    }
    let mut old = scene.session();
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ");
    assert_eq!(old.texts("SELECT count(*)::text FROM events"), ["0"]);
    let mut database = scene.open_database();
    let database = database.as_mut();
    let (lock, by, minute) = (LockName::new(&scene.run, b"notify/publisher"), Uuid::now_v7(), Duration::from_mins(1));
    let mut after = 0;
    for _ in 0..EVENTS / 500 {
        happen(&mut scene, 500, "message.delivered");
        let Published::Events { count: 500, last } = database.publish(&lock, Wake::Nobody).unwrap() else {
            panic!("500")
        };
        after = last;
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM notifications"), (SUBSCRIPTIONS * EVENTS) as i64);
    let mut shown = 0;
    for leased in database.lease(by, minute, SUBSCRIPTIONS, &[], 0).unwrap() {
        // As the notifier does it: what was answered is settled, and when nothing is left it is given back.
        loop {
            let due = database.due(&leased, &[], AT_ONCE).unwrap();
            shown += due.len();
            let attempts: Vec<WebhookAttempt> = due.iter().map(taken).collect();
            let settlement = Settlement {
                lease: (!due.is_empty()).then_some(minute),
                ..settlement(leased.subscription, by, &attempts)
            };
            assert!(database.settle(&[settlement]).unwrap().is_empty());
            if due.is_empty() {
                break;
            }
        }
    }
    assert_eq!(shown, SUBSCRIPTIONS * EVENTS);
    let before = blocks(database);
    assert!(!database.has_unpublished(after).unwrap());
    let looking = blocks(database) - before;
    assert!(database.lease(by, minute, SUBSCRIPTIONS, &[], 0).unwrap().is_empty());
    let leasing = blocks(database) - before - looking;
    // What is done every five seconds besides: events are looked for from the first one on, and subscriptions that were changed of late.
    // (All of them are looked at every ten minutes. That meets each notification that is dead and cannot be cleared away once: 98,154
    // blocks for these hundred thousand.)
    assert_eq!(database.publish(&lock, Wake::Changed).unwrap(), Published::Events { count: 0, last: 0 });
    let waking = blocks(database) - before - looking - leasing;
    println!("blocks: looking for events {looking}, leasing {leasing}, waking {waking}");
    assert!(looking <= 10, "{looking} blocks to look for events: it begins behind those that were published");
    assert!(leasing <= FEW, "{leasing} blocks to lease");
    assert!(waking <= FEW, "{waking} blocks to wake");
    drop(old);
}

/// `clock_timestamp()` may be another moment in each row, so that no index can be asked for what is before it: each claim would read all
/// that waits.
#[test]
fn nothing_that_the_notifier_looks_for_is_compared_with_a_clock_that_no_index_can_be_asked_for() {
    let mut scene = Scene::with(Engine::Postgres17, &[]);
    let id = subscribe(&mut scene, ("all", ""), "https://receiver.example/", &[]);
    subscribe(&mut scene, ("all", ""), "https://other.example/", &[("in_order", "TRUE"), ("detail", "'full'")]);
    happen(&mut scene, 3, "message.delivered");
    // A query for this name finds this one before the server's own.
    scene.database.execute(
        "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql \
         AS 'BEGIN RAISE EXCEPTION ''clock_timestamp() is asked for''; END'",
    );
    let first = format!("ALTER DATABASE {} SET search_path = public, pg_catalog", scene.database.name);
    scene.database.execute(&first);
    let mut database = scene.open_database();
    let database = database.as_mut();
    let refused = database.select("asking for the time", "SELECT clock_timestamp()", &[]).unwrap_err();
    assert!(refused.to_string().contains("clock_timestamp() is asked for"), "{refused}");

    let (lock, by, minute) = (LockName::new(&scene.run, b"notify/publisher"), Uuid::now_v7(), Duration::from_mins(1));
    assert!(database.has_unpublished(0).unwrap());
    let Published::Events { count: 3, .. } = database.publish(&lock, Wake::All).unwrap() else { panic!("3") };
    let leased = database.lease(by, minute, 10, &[], 0).unwrap();
    assert_eq!(leased.len(), 2);
    let due: Vec<Vec<Due>> = leased.iter().map(|leased| database.due(leased, &[], AT_ONCE).unwrap()).collect();
    assert_eq!(due.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3]);
    assert!(database.lease_longer(by, minute, &[id]).unwrap().is_empty());
    let next = [Next::Done, Next::Again(minute), Next::GivenUp];
    let of_it = &due[leased.iter().position(|leased| leased.subscription == id).unwrap()];
    let attempts: Vec<WebhookAttempt> =
        of_it.iter().zip(next).map(|(due, next)| WebhookAttempt { next, ..taken(due) }).collect();
    for (lease, open_for, attempts) in [(Some(minute), None, &attempts[..]), (None, Some(minute), &[])] {
        let settled = database.settle(&[Settlement { lease, open_for, ..settlement(id, by, attempts) }]);
        assert!(settled.unwrap().is_empty());
    }
}

/// What a receiver has taken.
fn taken(due: &Due) -> WebhookAttempt {
    WebhookAttempt {
        position: Some(due.position),
        due_at: due.due_at,
        started_at: 1_790_000_000_000_000 + due.position,
        took: Duration::from_millis(5),
        status: Some(204),
        outcome: "taken, 204".into(),
        response: None,
        next: Next::Done,
    }
}

/// So many blocks of tables were looked at so far.
fn blocks(database: &mut dyn Database) -> i64 {
    // A session's counters are reported before it answers (src/backend/tcop/postgres.c), if that is asked for.
    database.select("counting", "SELECT pg_stat_force_next_flush()", &[]).unwrap();
    let read = "SELECT sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0))::bigint FROM pg_statio_user_tables";
    database.select("counting", read, &[]).unwrap()[0].text(0).unwrap().parse().unwrap()
}
