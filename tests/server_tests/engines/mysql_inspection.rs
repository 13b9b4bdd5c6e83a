//! MySQL and MariaDB: `check` finds what breaks a promise.

use crate::support::another_version_may_stand_in;
use crate::support_mysql::{TestDatabase, migrate, on_each_server};
use maildrop_command::database::DatabaseFailure;
use maildrop_command::ledger::{Finding, Inspect, State, Wanted};
use mysql::prelude::Queryable;

on_each_server!(
    a_server_in_order_is_found_so,
    a_missing_schema_is_bad,
    a_changed_migration_is_bad,
    a_function_that_names_another_lock_is_bad,
    what_fails_otherwise_is_neither_a_missing_right_nor_a_missing_function,
    the_server_says_what_it_is,
);

fn finding<'a>(findings: &'a [Finding], what: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.what == what).unwrap_or_else(|| panic!("no {what} in {findings:#?}"))
}

fn a_server_in_order_is_found_so(server: &str) {
    let site = TestDatabase::new(server);
    let findings = site.connect().inspect(Wanted::default()).unwrap();
    for what in [
        "version",
        "read_only",
        "max_allowed_packet",
        "GET_LOCK",
        "session",
        "schema",
        "rights",
        "maildrop_lock_name()",
    ] {
        assert_eq!(finding(&findings, what).state, State::Good, "{:?}", finding(&findings, what));
    }
    let durable: Option<i64> = site.admin().query_first("SELECT @@innodb_flush_log_at_trx_commit").unwrap();
    let state = finding(&findings, "innodb_flush_log_at_trx_commit").state;
    assert_eq!(state, if durable == Some(1) { State::Good } else { State::Bad });
    assert!(findings.iter().all(|finding| (finding.state == State::Good) == finding.mend.is_none()), "{findings:#?}");
    let applied: Option<u64> = site.admin().query_first("SELECT COUNT(*) FROM maildrop_migrations").unwrap();
    assert_eq!(finding(&findings, "schema").found, format!("{} migrations applied", applied.unwrap()));
    // Trying the rights has left nothing behind.
    for table in ["attempts", "messages", "message_sources", "copies", "addresses"] {
        let rows: Option<u64> = site.admin().query_first(format!("SELECT COUNT(*) FROM {table}")).unwrap();
        assert_eq!(rows, Some(0), "{table}");
    }
}

fn a_missing_schema_is_bad(server: &str) {
    let site = TestDatabase::empty(server);
    let mut database = site.connect();
    let findings = database.inspect(Wanted::default()).unwrap();
    assert_eq!(finding(&findings, "schema").state, State::Bad);
    assert_eq!(finding(&findings, "schema").mend.as_deref(), Some("maildrop_command migrate"));
    assert_eq!(finding(&findings, "maildrop_lock_name()").state, State::Warning);
    migrate(&mut database);
    assert_eq!(finding(&database.inspect(Wanted::default()).unwrap(), "schema").state, State::Good);
}

fn a_changed_migration_is_bad(server: &str) {
    let site = TestDatabase::new(server);
    site.admin().query_drop("UPDATE maildrop_migrations SET checksum = REPEAT('0', 64) WHERE number = 1").unwrap();
    assert_eq!(finding(&site.connect().inspect(Wanted::default()).unwrap(), "schema").state, State::Bad);
}

fn a_function_that_names_another_lock_is_bad(server: &str) {
    let site = TestDatabase::new(server);
    let mut admin = site.admin();
    admin.query_drop("DROP FUNCTION maildrop_lock_name").unwrap();
    admin
        .query_drop("CREATE FUNCTION maildrop_lock_name(a LONGBLOB, b LONGBLOB) RETURNS CHAR(57) DETERMINISTIC NO SQL RETURN 'x'")
        .unwrap();
    assert_eq!(finding(&site.connect().inspect(Wanted::default()).unwrap(), "maildrop_lock_name()").state, State::Bad);
}

/// A table that somebody has dropped; a function of the same name, of somebody's own.
fn what_fails_otherwise_is_neither_a_missing_right_nor_a_missing_function(server: &str) {
    let site = TestDatabase::new(server);
    let mut admin = site.admin();
    let failure = || site.connect().inspect(Wanted::default()).unwrap_err().failure;
    for table in ["ways_in", "refusals"] {
        admin.query_drop(format!("RENAME TABLE {table} TO away")).unwrap();
        assert_eq!(failure(), DatabaseFailure::Schema, "{table}");
        admin.query_drop(format!("RENAME TABLE away TO {table}")).unwrap();
    }
    admin.query_drop("DROP FUNCTION maildrop_lock_name").unwrap();
    let of_one = "CREATE FUNCTION maildrop_lock_name(a LONGBLOB) RETURNS CHAR(57) DETERMINISTIC NO SQL RETURN 'x'";
    admin.query_drop(of_one).unwrap();
    assert_eq!(failure(), DatabaseFailure::Other);
}

fn the_server_says_what_it_is(server: &str) {
    let site = TestDatabase::empty(server);
    let named: Option<String> =
        site.admin().query_first("SELECT CONCAT('hostname ', @@hostname, ', port ', @@port, ', server_u')").unwrap();
    let named = named.unwrap();
    let [one, other] = [site.connect(), site.connect()].map(|mut database| database.server().unwrap());
    assert!(one.starts_with(&named) && one.len() > named.len() + 10, "{one}");
    assert_eq!(one, other);
    let described = site.connect().describe().unwrap();
    let version: Option<String> = site.admin().query_first("SELECT VERSION()").unwrap();
    assert!(described.contains(&version.unwrap()), "{described}");
    if another_version_may_stand_in() {
        return;
    }
    let wanted = match server {
        "MYSQL9" => "MySQL 9.",
        "MARIADB118" => "MariaDB 11.8.",
        _ => "MariaDB 10.11.",
    };
    assert!(described.starts_with(wanted), "{described}");
}
