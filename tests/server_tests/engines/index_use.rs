//! Each index of the ledger costs every delivery: there is none that nothing reads. The servers count that themselves. What reads which is a
//! table in docs/schema.md, "The indexes".

use crate::support::database::{Database, Engine};
use crate::support::site_fixture::Scene;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

#[test]
fn by_postgresql() {
    every_index_of_the_ledger_is_read(Engine::Postgres17);
}

/// MariaDB has the same tables, and does not count as it comes.
#[test]
fn by_mysql() {
    every_index_of_the_ledger_is_read(Engine::Mysql9);
}

const TABLES: &str =
    "'addresses', 'attempts', 'messages', 'message_sources', 'copies', 'failures', 'message_addresses'";

fn every_index_of_the_ledger_is_read(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    let owner = scene.user("past");
    fill(&mut scene.database, &owner);
    let before = reads(&mut scene.database);

    // One message to two, of an author who lives here.
    let message = scene.message("today");
    for recipient in ["doug", "scuba"] {
        scene.deliver(recipient, format!("Delivered-To: {recipient}@x\n{message}")).delivered();
    }
    // What people ask: after one message in four ways, how it goes, what is wrong, who has a lock.
    for asked in [scene.message_id("today").as_str(), "queue-30000", "doug@mail.axial.net", "@mail.axial.net"] {
        assert_eq!(scene.subcommand(&["trace", "--since", "30d", asked]).status.code(), Some(0), "{asked}");
    }
    assert_eq!(scene.subcommand(&["stats"]).status.code(), Some(0));
    assert_eq!(scene.subcommand(&["audit", "--since", "10m"]).status.code(), Some(65), "of the past no copy is there");
    let held = scene.hold(&scene.message_id("today"));
    assert_eq!(scene.subcommand(&["lock", "list"]).status.code(), Some(0));
    drop(held);
    // And what is forgotten.
    let ages = ["--attempts-older-than", "660h", "--sources-older-than", "20d", "--messages-older-than", "660h"];
    let pruned = scene.subcommand(&[&["prune"], &ages[..]].concat());
    assert_eq!(pruned.status.code(), Some(0), "{pruned:?}");

    // PostgreSQL's sessions tell what they have read once they have ended.
    let began = Instant::now();
    loop {
        let after = reads(&mut scene.database);
        let unread: Vec<&String> = after.keys().filter(|index| after[*index] <= before[*index]).collect();
        if unread.is_empty() {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "nothing reads {unread:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// How often each index was read.
fn reads(database: &mut Database) -> BTreeMap<String, u64> {
    let sql = if database.engine.is_postgres() {
        format!("SELECT indexrelname || ' ' || idx_scan FROM pg_stat_user_indexes WHERE relname IN ({TABLES})")
    } else {
        format!(
            "SELECT CONCAT(object_name, '.', index_name, ' ', count_read) \
             FROM performance_schema.table_io_waits_summary_by_index_usage \
             WHERE object_schema = DATABASE() AND object_name IN ({TABLES}) AND index_name IS NOT NULL"
        )
    };
    let lines = database.texts(&sql);
    assert!(lines.len() > 10, "{lines:?}");
    let pairs = lines.iter().map(|line| line.split_once(' ').unwrap());
    pairs.map(|(index, reads)| (index.to_owned(), reads.parse().unwrap())).collect()
}

/// 60,000 addresses; as many messages, of the last 28 days, each with a copy and an ended attempt. The source of one in 600 is
/// kept, and one copy in 3,000 is owed.
fn fill(database: &mut Database, owner: &str) {
    let postgres = database.engine.is_postgres();
    if postgres {
        database.execute("CREATE TABLE numbers AS SELECT n FROM generate_series(1, 60000) n");
    } else {
        let digits = "(SELECT 0 d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 \
                      UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)";
        database.execute(&format!(
            "CREATE TABLE numbers AS SELECT 1 + a.d + 10 * b.d + 100 * c.d + 1000 * d.d + 10000 * e.d AS n \
             FROM {digits} a, {digits} b, {digits} c, {digits} d, {digits} e WHERE e.d < 6"
        ));
    }
    // Keys begin with a day.
    let key = |kind: char| match postgres {
        true => format!("('\\x0000512c'::bytea || substr(sha256(('{kind}' || n)::bytea), 5))"),
        false => format!("UNHEX(INSERT(SHA2(CONCAT('{kind}', n), 256), 1, 8, '0000512c'))"),
    };
    let (identity, copy) = (key('m'), key('c'));
    let lock = if postgres { "sha256(('l' || n)::bytea)" } else { "UNHEX(SHA2(CONCAT('l', n), 256))" };
    let concat = |first: &str, last: &str| match postgres {
        true => format!("'{first}' || n || '{last}'"),
        false => format!("CONCAT('{first}', n, '{last}')"),
    };
    let (message_id, queue_id) = (concat("<", "@mail.example>"), concat("queue-", ""));
    // Every forty seconds. A UUID of version 7 begins with the milliseconds.
    let (then, uuid) = if postgres {
        let then = "now() - (60000 - n) * interval '40 seconds'";
        let milliseconds = format!("lpad(to_hex((extract(epoch FROM {then}) * 1000)::bigint), 12, '0')");
        (then, format!("({milliseconds} || '70008000' || lpad(to_hex(n), 12, '0'))::uuid"))
    } else {
        let then = "UTC_TIMESTAMP(6) - INTERVAL (60000 - n) * 40 SECOND";
        let milliseconds =
            format!("LPAD(HEX(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', {then}) DIV 1000), 12, '0')");
        (then, format!("UNHEX(CONCAT({milliseconds}, '70008000', LPAD(HEX(n), 12, '0')))"))
    };
    let state = "CASE WHEN MOD(n.n, 3000) = 0 THEN 'owed' ELSE 'delivered' END";
    for statement in [
        format!(
            "INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, headers, size, recorded_at) \
             SELECT {identity}, {lock}, {message_id}, {identity}, 'x', '[]', 1, {then} FROM numbers ORDER BY n"
        ),
        format!(
            "INSERT INTO addresses (address, imap_user) SELECT {}, 'x' FROM numbers",
            concat("user", "@mail.example")
        ),
        "INSERT INTO message_sources (message_id, source) SELECT id, 'x' FROM messages WHERE MOD(id, 600) = 0"
            .to_owned(),
        format!(
            "INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, updated_at) \
             SELECT {copy}, m.id, 'recipient', '{owner}', 'INBOX', 'x', {state}, m.recorded_at \
             FROM numbers n JOIN messages m ON m.identity = {identity}"
        ),
        format!(
            "INSERT INTO attempts (attempt, copy_key, role, imap_user, mailbox, identity, lock_digest, message_id, recipient, \
             queue_id, host, pid, started_at, ended_at, outcome) SELECT {uuid}, {copy}, 'recipient', '{owner}', 'INBOX', {identity}, \
             {lock}, {message_id}, 'x', {queue_id}, 'x', 1, {then}, {then}, 'appended' FROM numbers ORDER BY n"
        ),
        format!(
            "INSERT INTO failures (identity, recipient, lock_digest, message_id, queue_id, host, cause, count, first_at, last_at) \
             SELECT {identity}, 'y', {lock}, {message_id}, {queue_id}, 'x', 'deferred: over quota', 1, {then}, {then} FROM numbers \
             WHERE MOD(n, 10) = 0"
        ),
    ] {
        database.execute(&statement);
    }
    if postgres {
        database.execute("ANALYZE");
    } else {
        database.ask("ANALYZE TABLE addresses, messages, message_sources, copies, attempts");
    }
}
