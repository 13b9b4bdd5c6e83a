//! MySQL and MariaDB: the cost of one delivery does not grow with the tables.

use crate::support_mysql::{Mail, Tap, TestDatabase, client, on_each_server};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::database::{MysqlDatabase, Server};
use maildrop_command::ledger::{CopyState, Ledger, LockResult, audit_queries};
use mysql::prelude::Queryable;
use std::time::Duration;

on_each_server!(every_statement_of_a_delivery_uses_an_index);

fn fill(admin: &mut mysql::Conn) {
    // A hundred times a hundred, and again: twelve thousand of each.
    let mut digits: Vec<String> = Vec::new();
    for n in 0..12_000 {
        digits.push(format!("({n})"));
    }
    admin.query_drop("CREATE TABLE numbers (n INT PRIMARY KEY)").unwrap();
    admin.query_drop(format!("INSERT INTO numbers VALUES {}", digits.join(","))).unwrap();
    for statement in [
        "INSERT INTO addresses (address, imap_user) SELECT CONCAT('user', n, '@example.net'), n FROM numbers",
        "INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, headers, size, recorded_at) \
         SELECT UNHEX(SHA2(CONCAT('m', n), 256)), UNHEX(SHA2(CONCAT('l', n), 256)), n, UNHEX(SHA2(n, 256)), 'x', \
         '[]', 1, UTC_TIMESTAMP(6) FROM numbers",
        "INSERT INTO message_sources SELECT id, 'x' FROM messages",
        "INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, updated_at) SELECT \
         UNHEX(INSERT(SHA2(CONCAT('c', id), 256), 1, 8, '0000512c')), id, 'recipient', 'x', 'INBOX', 'x', 'delivered', UTC_TIMESTAMP(6) FROM \
         messages",
        // Among them a thousand that died, which stay open for ever.
        "INSERT INTO attempts (attempt, copy_key, role, imap_user, mailbox, identity, lock_digest, message_id, \
         recipient, host, pid, started_at, ended_at) SELECT UNHEX(LEFT(SHA2(CONCAT('a', n), 256), 32)), \
         UNHEX(INSERT(SHA2(CONCAT('c', n), 256), 1, 8, '0000512c')), 'recipient', 'x', 'INBOX', UNHEX(SHA2(n, 256)), UNHEX(SHA2(n, 256)), 'x', \
         'x', 'x', 1, UTC_TIMESTAMP(6), IF(n < 1000, NULL, UTC_TIMESTAMP(6)) FROM numbers",
    ] {
        admin.query_drop(statement).unwrap();
    }
    let _: Vec<mysql::Row> =
        admin.query("ANALYZE TABLE addresses, messages, message_sources, copies, attempts").unwrap();
}

fn every_statement_of_a_delivery_uses_an_index(server: &str) {
    let site = TestDatabase::new(server);
    let mut admin = site.admin();
    fill(&mut admin);
    let tap = Tap::on(&site.host, "127.0.0.1:0");
    let behind =
        Server { address: Endpoint::Tcp { host: "127.0.0.1".into(), port: tap.address.port() }, ..site.server() };
    let connect = || MysqlDatabase::connect(&behind, &client(), Deadline::after(Duration::from_secs(60))).unwrap();
    let (mut first, mut second) = (connect(), connect());
    tap.queries();

    let to_scuba = Mail::to("scuba");
    let to_doug = to_scuba.also_to("doug");
    first.addresses(&["user7@example.net", "user8@example.net"]).unwrap();
    first.journal(&to_scuba.journal()).unwrap();
    let asked = first.acquire_and_look(&to_scuba.lock, Duration::ZERO, &to_scuba.keys()).unwrap();
    assert!(matches!(asked, LockResult::Held { looked: Ok(_), .. }), "{asked:?}");
    second.journal(&to_doug.journal()).unwrap();
    let asked = second.acquire_and_look(&to_doug.lock, Duration::ZERO, &to_doug.keys()).unwrap();
    assert!(matches!(asked, LockResult::Busy(Some(_))), "{asked:?}");
    first.first_attempt_age(&to_scuba.keys()).unwrap();
    let mut record = to_scuba.record(CopyState::Delivered(None), CopyState::Owed("x"));
    let source = vec![b'x'; 100];
    if let Some(message) = &mut record.message {
        message.raw = Some(&source);
    }
    first.record(&record).unwrap();
    assert!(audit_queries::earlier_delivery(&mut first, &to_scuba.keys()[0]).unwrap().is_some());

    let statements: Vec<String> =
        tap.queries().iter().flat_map(|batch| batch.split("; ").map(str::to_owned).collect::<Vec<_>>()).collect();
    if server == "MYSQL9" {
        admin.query_drop("SET explain_format = 'TRADITIONAL'").unwrap();
    }
    let mut explained = Vec::new();
    for statement in statements {
        // What inserts literal rows finds duplicates by its unique keys, and EXPLAIN has nothing to say of it. The last
        // ask whether a table has any row, and stop at the first.
        let plain = statement.starts_with("INSERT") && statement.contains(" VALUES ");
        let explainable = ["SELECT", "UPDATE", "INSERT"].iter().any(|verb| statement.starts_with(verb));
        let any_row = ["SELECT NOT EXISTS (SELECT 1 FROM addresses), ", "SELECT EXISTS (SELECT 1 FROM subscriptions) "];
        if plain || !explainable || any_row.iter().any(|begin| statement.starts_with(begin)) {
            continue;
        }
        let rows: Vec<mysql::Row> = admin.query(format!("EXPLAIN {statement}")).unwrap();
        for row in rows {
            let (table, key): (Option<String>, Option<String>) = (row.get("table").unwrap(), row.get("key").unwrap());
            let Some(table) = table.filter(|table| !table.starts_with('<')) else { continue };
            let kind: Option<String> = row.get("type").unwrap();
            let kind = kind.unwrap_or_default();
            // MySQL lists the table that is inserted into, too.
            let select_type: String = row.get("select_type").unwrap();
            if select_type == "INSERT" {
                continue;
            }
            // MariaDB adds how much of it a second index filters out: `3 (0%)`.
            let rows: Option<String> = row.get("rows").unwrap();
            let rows = rows.and_then(|rows| rows.split(' ').next()?.parse::<u64>().ok());
            // The last row of all is at the end of its index.
            let is_last = table == "epochs" && kind == "index" && rows == Some(1);
            assert!(
                key.is_some() && (is_last || !["ALL", "index"].contains(&kind.as_str())) && rows.unwrap_or(0) < 20,
                "{table}: {kind} by {key:?}, {rows:?} rows: {statement}"
            );
            explained.push(table);
        }
    }
    explained.sort();
    explained.dedup();
    let all = ["a", "addresses", "attempts", "c", "copies", "epochs", "m", "messages", "s"];
    assert_eq!(explained, all, "not all were looked at");
}
