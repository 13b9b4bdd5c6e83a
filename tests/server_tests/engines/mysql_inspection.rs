//! MySQL and MariaDB: `check` finds what breaks a promise.

use crate::support::another_version_may_stand_in;
use crate::support_mysql::{TestDatabase, migrate, on_each_server};
use maildrop_command::database::DatabaseFailure;
use maildrop_command::ledger::{Finding, FindingState, Requirements, describe, inspect};
use mysql::prelude::Queryable;

on_each_server!(
    a_server_in_order_is_found_so,
    a_missing_schema_is_bad,
    a_changed_migration_is_bad,
    what_fails_otherwise_is_no_missing_right,
    the_server_says_what_it_is,
);

fn finding<'a>(findings: &'a [Finding], what: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.what == what).unwrap_or_else(|| panic!("no {what} in {findings:#?}"))
}

fn a_server_in_order_is_found_so(server: &str) {
    let site = TestDatabase::new(server);
    let findings = inspect(&mut site.connect(), Requirements::default()).unwrap();
    for what in ["version", "writes", "max_allowed_packet", "named lock", "migration 0001_schema", "rights"] {
        assert_eq!(finding(&findings, what).state, FindingState::Good, "{:?}", finding(&findings, what));
    }
    let durable: Option<i64> = site.admin().query_first("SELECT @@innodb_flush_log_at_trx_commit").unwrap();
    let state = finding(&findings, "innodb_flush_log_at_trx_commit").state;
    assert_eq!(state, if durable == Some(1) { FindingState::Good } else { FindingState::Bad });
    // MySQL does not show whether a replica follows.
    let mut others = findings.iter().filter(|finding| finding.what != "replication");
    assert!(others.all(|finding| (finding.state == FindingState::Good) == finding.fix.is_none()), "{findings:#?}");
    // Trying the rights has left nothing behind.
    for table in ["attempts", "messages", "message_sources", "copies", "addresses"] {
        let rows: Option<u64> = site.admin().query_first(format!("SELECT COUNT(*) FROM {table}")).unwrap();
        assert_eq!(rows, Some(0), "{table}");
    }
}

fn a_missing_schema_is_bad(server: &str) {
    let site = TestDatabase::empty(server);
    let mut database = site.connect();
    let findings = inspect(&mut database, Requirements::default()).unwrap();
    let schema = finding(&findings, "migration 0001_schema");
    assert_eq!((schema.state, schema.fix.as_deref()), (FindingState::Bad, Some("run `maildrop_command migrate`")));
    migrate(&mut database);
    assert_eq!(
        finding(&inspect(&mut database, Requirements::default()).unwrap(), "migration 0001_schema").state,
        FindingState::Good
    );
}

fn a_changed_migration_is_bad(server: &str) {
    let site = TestDatabase::new(server);
    site.admin().query_drop("UPDATE maildrop_migrations SET checksum = REPEAT('0', 64) WHERE number = 1").unwrap();
    assert_eq!(
        finding(&inspect(&mut site.connect(), Requirements::default()).unwrap(), "migration 0001_schema").state,
        FindingState::Bad
    );
}

/// A table that somebody has dropped.
fn what_fails_otherwise_is_no_missing_right(server: &str) {
    let site = TestDatabase::new(server);
    let mut admin = site.admin();
    let failure = || inspect(&mut site.connect(), Requirements::default()).unwrap_err().failure;
    for table in ["login_checks", "unknown_recipients"] {
        admin.query_drop(format!("RENAME TABLE {table} TO away")).unwrap();
        assert_eq!(failure(), DatabaseFailure::Schema, "{table}");
        admin.query_drop(format!("RENAME TABLE away TO {table}")).unwrap();
    }
}

fn the_server_says_what_it_is(server: &str) {
    let site = TestDatabase::empty(server);
    let named: Option<String> =
        site.admin().query_first("SELECT CONCAT('hostname ', @@hostname, ', port ', @@port, ', server_')").unwrap();
    let named = named.unwrap();
    let [one, other] =
        [site.connect(), site.connect()].map(|mut database| maildrop_command::ledger::server(&mut database).unwrap());
    assert!(one.starts_with(&named), "{one}");
    assert_eq!(one, other);
    let described = describe(&mut site.connect()).unwrap();
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
