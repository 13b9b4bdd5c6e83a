//! What the notifier asks again and again costs the same whatever waits: each statement finds its rows by an index, so that few
//! rows are read where many are there.

use crate::support::database::Engine;
use crate::support::site_fixture::Scene;
use maildrop_command::base::deadline::Deadline;
use maildrop_command::config::Config;
use maildrop_command::ledger::notifications::{
    Leased, Next, Published, Settlement, SubscriptionState, Wake, WebhookAttempt,
};
use maildrop_command::ledger::{Database, Notifications};
use maildrop_command::lock::LockName;
use maildrop_command::site::Site;
use std::collections::BTreeMap;
use std::time::Duration;
use uuid::Uuid;

on_each_engine!(each_statement_reads_what_it_is_about_and_not_what_waits);
on_each_other_version!(each_statement_reads_what_it_is_about_and_not_what_waits);

/// Of each table there are so many rows.
const MANY: usize = 100_000;
/// So many are read at most. It is far from both what is needed, some three hundred, and a table.
const FEW: i64 = 2_000;

/// The subscription that so many notifications wait for.
const BUSY: Uuid = Uuid::from_u128(0x0193_a1b2_c3d4_7e5f_8a9b_0000_0001_86a0);
const MOST: usize = 100;

fn each_statement_reads_what_it_is_about_and_not_what_waits(engine: Engine) {
    let mut scene = Scene::with(engine, &[]);
    fill(&mut scene);
    let site = Site::configured(Config::load(scene.path("config.toml").as_ref()).unwrap()).unwrap();
    let mut database = site.open_database(None, Deadline::after(Duration::from_mins(5))).unwrap();
    let database = database.as_mut();
    let (lock, by) = (LockName::new(&scene.run, b"notify/publisher"), Uuid::now_v7());
    let minute = Duration::from_mins(1);

    let read = rows_read(engine, database, |database| assert!(database.has_unpublished(0).unwrap()));
    assert!(read < FEW, "looking for what is to be published: {read}");
    let read = rows_read(engine, database, |database| {
        assert!(matches!(database.publish(&lock, Wake::Nobody).unwrap(), Published::Events { count: 6, .. }));
    });
    assert!(read < FEW, "publishing: {read}");
    assert_eq!(scene.database.count("SELECT count(*) FROM notifications WHERE event > 100000"), 6 * 2 + 4);
    hand_in_what_was_read(&mut scene);
    let mut leased = Vec::new();
    let read = rows_read(engine, database, |database| leased = database.lease(by, minute, 10, &[], 0).unwrap());
    assert!(read < FEW, "leasing: {read}");
    assert_eq!(leased.len(), 10);
    let taken: Vec<Uuid> = leased.iter().map(|one| one.subscription).collect();
    let read = rows_read(engine, database, |database| {
        assert!(database.lease_longer(by, minute, &taken).unwrap().is_empty());
    });
    assert!(read < FEW, "leasing for longer: {read}");

    // A subscriber to everything.
    let mut due_at = BTreeMap::new();
    let busy = leased.iter().find(|one| one.subscription == BUSY).expect("it is due for longest").clone();
    for (in_order, full) in [(false, false), (true, false), (false, true)] {
        let of = Leased { in_order, full, state: SubscriptionState::Active, ..busy.clone() };
        let mut due = Vec::new();
        let read = rows_read(engine, database, |database| due = database.due(&of, &[], MOST).unwrap());
        assert!(read < FEW && due.len() == MOST, "what is due, in order {in_order}, full {full}: {read}");
        let positions: Vec<i64> = due.iter().map(|one| one.position).collect();
        assert!(positions.is_sorted() && positions[0] == 1, "{positions:?}");
        due_at.extend(due.iter().map(|one| (one.position, one.due_at)));
    }
    for in_order in [false, true] {
        let tried = |position, next| WebhookAttempt {
            position: Some(position),
            due_at: due_at[&position],
            started_at: 1_790_000_000_000_000 + position,
            took: Duration::from_millis(5),
            status: Some(204),
            outcome: "taken, 204".into(),
            response: None,
            next,
        };
        let first = if in_order { 51 } else { 1 };
        let mut attempts: Vec<WebhookAttempt> =
            (first..first + 48).map(|position| tried(position, Next::Done)).collect();
        attempts.push(tried(first + 48, Next::Again(minute)));
        attempts.push(tried(first + 49, Next::GivenUp));
        let settlement = Settlement {
            subscription: BUSY,
            in_order,
            by,
            lease: Some(minute),
            host: "mx1",
            attempts: &attempts,
            failures: 1,
            open_for: None,
            state: None,
            callback: "",
            idle: false,
            alone: false,
        };
        let read = rows_read(engine, database, |database| assert!(database.settle(&[settlement]).unwrap().is_empty()));
        assert!(read < FEW, "settling, in order {in_order}: {read}");
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM notification_attempts WHERE status = 204"), 100);
    assert_eq!(scene.database.count("SELECT count(*) FROM notifications WHERE event <= 100 AND tries = 1"), 4);
    assert_eq!(scene.database.count("SELECT count(*) FROM notifications WHERE event <= 100"), 4);
}

/// How many rows, or entries of an index, this session's server reads for it.
fn rows_read(engine: Engine, database: &mut dyn Database, work: impl FnOnce(&mut dyn Database)) -> i64 {
    let before = rows_read_so_far(engine, database);
    work(database);
    rows_read_so_far(engine, database) - before
}

fn rows_read_so_far(engine: Engine, database: &mut dyn Database) -> i64 {
    if engine.is_postgres() {
        // A session's counters are reported before it answers (src/backend/tcop/postgres.c), if that is asked for.
        database.select("counting", "SELECT pg_stat_force_next_flush()", &[]).unwrap();
        let read = "SELECT (sum(seq_tup_read) + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes))::bigint FROM pg_stat_user_tables";
        return database.select("counting", read, &[]).unwrap()[0].text(0).unwrap().parse().unwrap();
    }
    let rows = database.select("counting", "SHOW SESSION STATUS LIKE 'Handler\\_read\\_%'", &[]).unwrap();
    rows.iter().map(|row| row.text(1).unwrap().parse::<i64>().unwrap()).sum()
}

/// PostgreSQL counts what all sessions read: what this test's own one has read is counted now, and not while something else is measured.
fn hand_in_what_was_read(scene: &mut Scene) {
    if scene.database.engine.is_postgres() {
        scene.database.execute("SELECT pg_stat_force_next_flush()");
    }
}

/// A hundred thousand of each: subscriptions of a domain each, each due at another time; events; notifications of one subscription. And
/// six events that are to be published.
fn fill(scene: &mut Scene) {
    let postgres = scene.database.engine.is_postgres();
    if postgres {
        for statement in [
            "CREATE TABLE numbers AS SELECT n FROM generate_series(1, 100000) n",
            "INSERT INTO subscriptions (id, owner, callback_url, callback_digest, resource, resource_id, state, created_at, updated_at) \
             SELECT ('0193a1b2-c3d4-7e5f-8a9b-0000' || lpad(to_hex(n), 8, '0'))::uuid, 'anna', 'https://example.com/', \
             sha256(n::text::bytea), CASE WHEN n > 99998 THEN 'all' ELSE 'domain' END, CASE WHEN n > 99998 THEN '' ELSE n || '.example' END, \
             'active', now(), now() FROM numbers",
            "INSERT INTO subscription_queues (subscription, due_at) SELECT id, now() - interval '2 days' \
             + (100000 - ('x' || right(id::text, 8))::bit(32)::int) * interval '1 second' FROM subscriptions",
            "INSERT INTO events (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, host, diff, created_at, \
             published_at) SELECT gen_random_uuid(), 'message.delivered', sha256(n::text::bytea), sha256(n::text::bytea), n, 'recipient', \
             'doug@' || n || '.example', 'doug', 'INBOX', 'mx1', '{}', now(), now() FROM numbers ORDER BY n",
            "INSERT INTO notifications (subscription, event, due_at) SELECT '0193a1b2-c3d4-7e5f-8a9b-0000000186a0', position, \
             now() - interval '2 days' + position * interval '1 second' FROM events",
            "INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, headers, size, recorded_at) \
             SELECT identity, identity, message_id, identity, '', '[]', 1, now() FROM events",
            "INSERT INTO outbox (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, host, diff, created_at) \
             SELECT gen_random_uuid(), 'message.delivered', sha256('x'), sha256('x'), n, 'recipient', \
             'doug@' || CASE WHEN n > 4 THEN 'elsewhere' ELSE n::text END || '.example', 'doug', 'INBOX', 'mx1', '{}', now() \
             FROM numbers WHERE n <= 6 ORDER BY n",
            "ANALYZE",
        ] {
            scene.database.execute(statement);
        }
        hand_in_what_was_read(scene);
        return;
    }
    let numbers: Vec<String> = (1..=MANY).map(|number| format!("({number})")).collect();
    for statement in [
        "CREATE TABLE numbers (n INT PRIMARY KEY)",
        &format!("INSERT INTO numbers VALUES {}", numbers.join(", ")),
        "INSERT INTO subscriptions (id, owner, callback_url, callback_digest, target_digest, resource, resource_id, types, description, \
         state, created_at, updated_at) SELECT UNHEX(CONCAT('0193a1b2c3d47e5f8a9b0000', LPAD(HEX(n), 8, '0'))), 'anna', \
         'https://example.com/', UNHEX(SHA2(n, 256)), UNHEX(SHA2(n, 256)), IF(n > 99998, 'all', 'domain'), \
         IF(n > 99998, '', CONCAT(n, '.example')), '[]', '', 'active', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) FROM numbers",
        "INSERT INTO subscription_queues (subscription, due_at) SELECT UNHEX(CONCAT('0193a1b2c3d47e5f8a9b0000', LPAD(HEX(n), 8, '0'))), \
         UTC_TIMESTAMP(6) - INTERVAL 2 DAY + INTERVAL (100000 - n) SECOND FROM numbers",
        "INSERT INTO events (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, host, diff, created_at, \
         published_at) SELECT UNHEX(LEFT(SHA2(n, 256), 32)), 'message.delivered', UNHEX(SHA2(n, 256)), UNHEX(SHA2(n, 256)), n, \
         'recipient', CONCAT('doug@', n, '.example'), 'doug', 'INBOX', 'mx1', '{}', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) FROM numbers \
         ORDER BY n",
        "INSERT INTO notifications (subscription, event, due_at) SELECT UNHEX('0193a1b2c3d47e5f8a9b0000000186a0'), position, \
         UTC_TIMESTAMP(6) - INTERVAL 2 DAY + INTERVAL position SECOND FROM events",
        "INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, headers, size, recorded_at) \
         SELECT identity, identity, message_id, identity, '', '[]', 1, UTC_TIMESTAMP(6) FROM events",
        "INSERT INTO outbox (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, host, diff, created_at) \
         SELECT UNHEX(LEFT(SHA2(CONCAT('o', n), 256), 32)), 'message.delivered', UNHEX(SHA2('x', 256)), UNHEX(SHA2('x', 256)), n, \
         'recipient', CONCAT('doug@', IF(n > 4, 'elsewhere', n), '.example'), 'doug', 'INBOX', 'mx1', '{}', UTC_TIMESTAMP(6) \
         FROM numbers WHERE n <= 6 ORDER BY n",
    ] {
        scene.database.execute(statement);
    }
    scene.database.ask("ANALYZE TABLE subscriptions, subscription_queues, events, notifications, messages, outbox");
}
