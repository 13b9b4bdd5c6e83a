//! What `check` finds on PostgreSQL: nothing on a good server, and each thing that would break a promise.

use crate::support::another_version_may_stand_in;
use crate::support::postgres::{TestDatabase, on_each_postgres};
use maildrop_command::database::{Finding, Inspect, State};

on_each_postgres!(
    a_good_server_has_nothing_to_mend,
    settings_that_break_a_promise_are_found,
    a_database_of_another_encoding_is_found,
    a_missing_right_is_found,
    a_missing_schema_is_found,
);

fn findings(test: &TestDatabase) -> Vec<Finding> {
    test.connect("CHECK").inspect().unwrap()
}

fn find<'a>(findings: &'a [Finding], what: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.what == what).unwrap_or_else(|| panic!("no {what} in {findings:#?}"))
}

fn a_good_server_has_nothing_to_mend(server: &str) {
    let test = TestDatabase::migrated(server);
    let version = test.connect("CHECK").describe().unwrap();
    let reported = test.value("current_setting('server_version')").unwrap();
    let reported = reported.split(' ').next().unwrap();
    assert_eq!(version, format!("PostgreSQL {reported}"));
    assert!(another_version_may_stand_in() || reported.starts_with(&server["POSTGRES".len()..]), "{version}");
    let findings = findings(&test);
    let to_mend: Vec<_> = findings.iter().filter(|f| f.state != State::Good || f.mend.is_some()).collect();
    assert!(to_mend.is_empty(), "{to_mend:#?}");
    assert_eq!(find(&findings, "named lock").found, "taken, still held, let go");
    assert_eq!(find(&findings, "max_connections").found, "300");
    assert_eq!(find(&findings, "migration 0001_ledger").found, "applied");
}

fn settings_that_break_a_promise_are_found(server: &str) {
    let test = TestDatabase::migrated(server);
    for setting in [
        "default_transaction_read_only = on",
        "synchronous_commit = off",
        "statement_timeout = '1s'",
        "idle_session_timeout = '30s'",
    ] {
        test.role_setting(setting);
    }
    let findings = findings(&test);
    for (what, state, found) in [
        ("default_transaction_read_only", State::Bad, "on"),
        ("synchronous_commit", State::Bad, "off"),
        ("statement_timeout", State::Warning, "1000 ms"),
        ("idle_session_timeout", State::Warning, "30000 ms"),
        ("fsync", State::Good, "on"),
    ] {
        let finding = find(&findings, what);
        assert_eq!((finding.state, finding.found.as_str()), (state, found), "{what}");
    }
}

fn a_database_of_another_encoding_is_found(server: &str) {
    let test = TestDatabase::made_with(server, "ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
    let findings = findings(&test);
    let encoding = find(&findings, "server_encoding");
    assert_eq!((encoding.state, encoding.found.as_str()), (State::Bad, "LATIN1"));
}

fn a_missing_right_is_found(server: &str) {
    let test = TestDatabase::migrated(server);
    test.admin()
        .batch_execute(&format!("REVOKE UPDATE (ended_at, outcome, stages) ON attempts FROM {}", test.name))
        .unwrap();
    test.admin().batch_execute(&format!("REVOKE ALL ON message_sources FROM {}", test.name)).unwrap();
    let findings = findings(&test);
    assert_eq!(find(&findings, "UPDATE on attempts").state, State::Bad);
    assert_eq!(find(&findings, "INSERT on attempts").state, State::Good);
    assert_eq!(find(&findings, "INSERT on message_sources").state, State::Warning);
}

fn a_missing_schema_is_found(server: &str) {
    let findings = findings(&TestDatabase::empty(server));
    let finding = find(&findings, "migration 0001_ledger");
    assert_eq!((finding.state, finding.found.as_str()), (State::Bad, "not applied"));
    assert!(finding.mend.as_deref().unwrap().contains("migrate"));
}
