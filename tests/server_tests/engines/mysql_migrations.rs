//! MySQL and MariaDB: migrations are applied once, an error in them is never passed over, and a delivery needs few rights.

use crate::support_mysql::{Mail, TestDatabase, client, migrate, on_each_server};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::database::{DatabaseError, DatabaseFailure, MysqlDatabase, Tables};
use maildrop_command::delivery::bare_message_id;
use maildrop_command::ledger::schema::{Application, Migration, Schema};
use maildrop_command::ledger::{CopyState, Ledger, Record};
use maildrop_command::ledger::{FindingState, Requirements, inspect};
use maildrop_command::lock::{Acquired, LockName, NamedLock};
use mysql::prelude::Queryable;
use std::time::Duration;

on_each_server!(
    ten_migrate_at_once_and_each_migration_is_applied_once,
    a_migration_that_stopped_half_way_is_run_again,
    a_broken_second_statement_of_a_migration_surfaces,
    a_broken_later_statement_of_a_record_surfaces_and_nothing_stays,
    an_optional_migration_that_is_refused_is_left_out,
    the_locks_functions_name_the_same_lock_as_this_program,
    the_rights_in_grants_sql_are_enough,
    nothing_is_applied_in_an_empty_database,
    a_migration_waits_no_longer_for_a_table_in_use_than_deliveries_can,
);

fn connect_as(server: &maildrop_command::database::Server) -> Result<MysqlDatabase, DatabaseError> {
    MysqlDatabase::connect(server, &client(), Deadline::after(Duration::from_secs(60)))
}

fn ten_migrate_at_once_and_each_migration_is_applied_once(server: &str) {
    let site = TestDatabase::empty(server);
    let applications: Vec<Application> = std::thread::scope(|scope| {
        let ten: Vec<_> = (0..10).map(|_| scope.spawn(|| migrate(&mut site.connect()))).collect();
        ten.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    let mut database = site.connect();
    assert_eq!(applications, vec![Application::Done; database.known().len()]);
    let applied = database.applied().unwrap();
    let known: Vec<_> =
        database.known().iter().map(|known| (known.number, known.name.to_owned(), known.checksum())).collect();
    assert_eq!(
        applied.into_iter().map(|applied| (applied.number, applied.name, applied.checksum)).collect::<Vec<_>>(),
        known
    );
}

fn a_migration_that_stopped_half_way_is_run_again(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    let mail = Mail::to("scuba");
    database.record(&mail.record(CopyState::Delivered(None), CopyState::Delivered(None))).unwrap();
    // As if it had died before it was recorded, and before its last tables.
    site.admin().query_drop("DELETE FROM maildrop_migrations").unwrap();
    site.admin().query_drop("DROP TABLE message_sources, operations").unwrap();
    assert_eq!(migrate(&mut database), vec![Application::Done; database.known().len()]);
    database.look(&mail.keys()).unwrap();
    let rows = "SELECT (SELECT COUNT(*) FROM message_sources) + (SELECT COUNT(*) FROM operations), \
                (SELECT COUNT(*) FROM epochs)";
    assert_eq!(site.admin().query_first(rows).unwrap(), Some((0, 1)), "and the first epoch is there once");
}

fn a_broken_second_statement_of_a_migration_surfaces(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    let broken = Migration {
        number: 99,
        name: "broken",
        sql: "CREATE TABLE IF NOT EXISTS one (a INT);\nSELEC bogus;\nCREATE TABLE two (a INT);\n",
        optional: true,
    };
    database.lock_schema().unwrap();
    let error = database.apply(&broken).unwrap_err();
    assert!(error.to_string().contains("1064"), "{error}");
    let tables: Vec<String> = site.admin().query("SHOW TABLES LIKE 't%'").unwrap();
    assert!(tables.is_empty(), "{tables:?}");
    assert!(database.applied().unwrap().iter().all(|applied| applied.number != 99));
    // And the connection is in step: the next answer belongs to the next question.
    database.unlock_schema().unwrap();
    database.look(&Mail::to("scuba").keys()).unwrap();
}

/// The crate drops errors of the second and later statements of a batch unless every result set is read.
fn a_broken_later_statement_of_a_record_surfaces_and_nothing_stays(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    let mail = Mail::to("scuba");
    site.admin().query_drop("ALTER TABLE copies DROP COLUMN recipient").unwrap();
    let record = mail.record(CopyState::Delivered(None), CopyState::Delivered(None));
    let error = database.record(&record).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::Schema, "{error}");
    // The next transaction would commit what was left of this one.
    database.record(&Record { ended: mail.ended("deferred"), ..Record::default() }).unwrap();
    let messages: Option<u64> = site.admin().query_first("SELECT COUNT(*) FROM messages").unwrap();
    assert_eq!(messages, Some(0));
    site.admin().query_drop("ALTER TABLE copies ADD COLUMN recipient TEXT NOT NULL").unwrap();
    database.record(&record).unwrap();
}

fn an_optional_migration_that_is_refused_is_left_out(server: &str) {
    // Without the right to create routines; and, where there is a binary log, with it but without SUPER (error 1419).
    let tables = "CREATE, ALTER, INDEX, REFERENCES, DROP, SELECT, INSERT, UPDATE";
    let routines = "CREATE ROUTINE, ALTER ROUTINE, EXECUTE";
    for (rights, why) in [(tables.to_owned(), None), (format!("{tables}, {routines}"), Some("1419"))] {
        let site = TestDatabase::empty(server);
        let logged: Option<bool> = site.admin().query_first("SELECT @@log_bin").unwrap();
        let role = site.user(&[format!("GRANT {rights} ON DB.* TO USER")], "");
        let applications = migrate(&mut connect_as(&role).unwrap());
        match (why, logged) {
            (Some(_), Some(false)) => assert!(applications.iter().all(|a| *a == Application::Done), "{applications:?}"),
            _ => {
                let [Application::Done, Application::LeftOut(reason), others @ ..] = applications.as_slice() else {
                    panic!("{applications:?}")
                };
                assert!(others.iter().all(|a| *a == Application::Done), "{applications:?}");
                assert!(reason.contains(why.unwrap_or("denied")), "{reason}");
            }
        }
        // It goes on without them, and tries again next time, when somebody may who can.
        let mail = Mail::to("scuba");
        connect_as(&role).unwrap().journal(&mail.journal()).unwrap();
        let left = if why.is_some() && logged == Some(false) { 0 } else { 1 };
        assert_eq!(migrate(&mut site.connect()), vec![Application::Done; left]);
    }
}

fn the_locks_functions_name_the_same_lock_as_this_program(server: &str) {
    let site = TestDatabase::new(server);
    let mut admin = site.admin();
    let mut ids: Vec<Vec<u8>> = [
        "<123-abc@mail.example.com>",
        "123-abc@mail.example.com",
        " \t\r\n\u{c}<123-abc@mail.example.com>\r\n ",
        "<123-abc@mail.example.com> (a comment) <other@example.com>",
        "<no end@example.com",
        "no begin@example.com>",
        "<>",
        "< inner space @example.com >",
        "<a<b>c>",
        "",
        "   ",
        "\u{b}vertical tab\u{b}",
        "grüße@example.com 誠に😀",
        "'; DROP TABLE copies; --@\\",
        "UPPER@Example.com",
        "a > b",
        "\u{a0}not a space to us\u{a0}",
    ]
    .iter()
    .map(|id| id.as_bytes().to_vec())
    .collect();
    ids.push(vec![0xff, 0x00, b' ', 0xfe, 0x09]);
    ids.push([b"<", "x".repeat(100_000).as_bytes(), b">"].concat());
    // Keys with and without the highest bit.
    ids.extend((0..20).map(|i| format!("<{i}@example.com>").into_bytes()));
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    let mut negative = 0;
    for id in &ids {
        for namespace in ["maildrop", "", "größe:'"] {
            let ours = LockName::new(namespace, bare_message_id(id));
            let arguments = format!("X'{}', _utf8mb4 X'{}'", hex(id), hex(namespace.as_bytes()));
            let (name, key, digest): (String, i64, String) = admin
                .query_first(format!(
                    "SELECT maildrop_lock_name({arguments}), maildrop_lock_key({arguments}), maildrop_lock_digest({arguments})"
                ))
                .unwrap()
                .unwrap();
            assert_eq!((name, key, digest), (ours.mysql_name(), ours.postgres_key(), hex(ours.digest())), "{id:?}");
            negative += usize::from(key < 0);
        }
    }
    assert!(negative > 0);
    // As somebody would type it.
    let mut database = site.connect();
    let id = format!("<{}@example.com>", site.database);
    let name = LockName::new("maildrop", bare_message_id(id.as_bytes()));
    assert!(matches!(database.acquire(&name, Duration::ZERO).unwrap(), Acquired::Held));
    let holder: Option<u64> =
        admin.query_first(format!("SELECT IS_USED_LOCK(maildrop_lock_name('{id}', 'maildrop'))")).unwrap().unwrap();
    assert!(holder.is_some());
}

fn the_rights_in_grants_sql_are_enough(server: &str) {
    let site = TestDatabase::new(server);
    let grants: Vec<String> = include_str!("../../../sql/mysql/grants.sql")
        .lines()
        .filter(|line| line.starts_with("GRANT "))
        .map(|line| line.trim_end_matches(';').replace("'maildrop'@'%'", "USER").replace("maildrop.", "DB."))
        .collect();
    assert_eq!(grants.len(), 15);
    let role = site.user(&grants, "");
    let mut database = connect_as(&role).unwrap();
    for length in [10, 2 << 20] {
        let source = vec![b'x'; length];
        let mail = Mail::to("scuba");
        database.addresses(&["scuba"]).unwrap();
        database.journal(&mail.journal()).unwrap();
        assert!(matches!(database.acquire(&mail.lock, Duration::ZERO).unwrap(), Acquired::Held));
        database.look(&mail.keys()).unwrap();
        for state in [CopyState::Owed("x"), CopyState::Delivered(None)] {
            let mut record = mail.record(state, state);
            if let Some(message) = &mut record.message {
                message.raw = Some(&source);
            }
            database.record(&record).unwrap();
        }
        database.first_attempt_age(&mail.keys()).unwrap();
        database.release(&mail.lock).unwrap();
    }
    let findings = inspect(&mut database, Requirements::default()).unwrap();
    let state = |what: &str| findings.iter().find(|finding| finding.what == what).map(|finding| finding.state);
    for what in ["rights", "migration 0001_schema"] {
        assert_eq!(state(what), Some(FindingState::Good), "{findings:?}");
    }
    // And each of them is needed: without any one, `check` says so; of what only some deliveries write, apart from the others.
    let lacking = grants[..grants.len() - 1].iter().enumerate().flat_map(|(missing, grant)| {
        let (rights, on) = grant.strip_prefix("GRANT ").and_then(|grant| grant.split_once(" ON ")).unwrap();
        let rights: Vec<&str> = rights.split(", ").collect();
        let less = (0..rights.len()).map(move |without| {
            let left: Vec<&str> = (0..rights.len()).filter(|at| *at != without).map(|at| rights[at]).collect();
            let left = (!left.is_empty()).then(|| format!("GRANT {} ON {on}", left.join(", ")));
            (missing, format!("{} on {on}", rights[without]), left)
        });
        less.collect::<Vec<_>>()
    });
    for (missing, lack, less) in lacking {
        let table =
            grants[missing].split_once(" ON ").unwrap().1.split_once(" TO ").unwrap().0.rsplit('.').next().unwrap();
        let only_some = [
            "unknown_recipients",
            "failures",
            "outbox",
            "subscriptions",
            "message_sources",
            "message_addresses",
            "message_addresses_read",
        ]
        .contains(&table.trim_matches('`'));
        let state = if only_some { FindingState::Warning } else { FindingState::Bad };
        let others = grants.iter().enumerate().filter(|(i, _)| *i != missing).map(|(_, grant)| grant.clone());
        let fewer: Vec<String> = others.chain(less).collect();
        let findings = inspect(&mut connect_as(&site.user(&fewer, "")).unwrap(), Requirements::default()).unwrap();
        let rights = findings.iter().find(|finding| finding.what.ends_with(&format!(" on {table}")));
        assert_eq!(rights.map(|finding| finding.state), Some(state), "without {lack}: {findings:?}");
    }
}

fn nothing_is_applied_in_an_empty_database(server: &str) {
    let site = TestDatabase::empty(server);
    let mut database = site.connect();
    assert!(database.applied().unwrap().is_empty());
    let error = database.look(&Mail::to("scuba").keys()).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::Schema, "{error}");
}

/// A session that comes meanwhile waits behind it.
fn a_migration_waits_no_longer_for_a_table_in_use_than_deliveries_can(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    database.lock_schema().unwrap();
    let limit = database.select("asking", "SELECT @@SESSION.lock_wait_timeout", &[]).unwrap();
    assert_eq!(limit[0].text(0), Some("10"));

    let mut reader = site.admin();
    reader.query_drop("START TRANSACTION").unwrap();
    let _: Option<u64> = reader.query_first("SELECT COUNT(*) FROM attempts").unwrap();
    // The test waits for less.
    database.change("setting", "SET SESSION lock_wait_timeout = 1", &[]).unwrap();
    let sql = "ALTER TABLE attempts ADD COLUMN another INT NULL;";
    let migration = Migration { number: 99, name: "another", sql, optional: true };
    let error = database.apply(&migration).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::Contention, "{error}");
    assert!(error.to_string().contains("has used a table of this migration"), "{error}");
    reader.query_drop("COMMIT").unwrap();
    assert_eq!(database.apply(&migration).unwrap(), Application::Done);
    database.unlock_schema().unwrap();
}
