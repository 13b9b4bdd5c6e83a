//! What `check` finds on PostgreSQL: nothing on a good server, and each thing that would break a promise.

use crate::support::another_version_may_stand_in;
use crate::support::postgres::{TestDatabase, on_each_postgres};
use crate::support::standby::Primary;
use maildrop_command::ledger::{Finding, FindingState, Ledger, Requirements, describe, inspect};

on_each_postgres!(
    a_good_server_has_nothing_to_fix,
    settings_that_break_a_promise_are_found,
    a_database_of_another_encoding_is_found,
    a_missing_right_is_found,
    a_missing_schema_is_found,
    a_commit_that_waits_for_no_standby_is_found,
    more_than_one_primary_is_found,
);

fn findings(test: &TestDatabase) -> Vec<Finding> {
    inspect(&mut test.connect("CHECK"), Requirements::default()).unwrap()
}

fn find<'a>(findings: &'a [Finding], what: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.what == what).unwrap_or_else(|| panic!("no {what} in {findings:#?}"))
}

fn a_good_server_has_nothing_to_fix(server: &str) {
    let test = TestDatabase::migrated(server);
    let version = describe(&mut test.connect("CHECK")).unwrap();
    let reported = test.value("current_setting('server_version')").unwrap();
    let reported = reported.split(' ').next().unwrap();
    assert_eq!(version, format!("PostgreSQL {reported}"));
    assert!(another_version_may_stand_in() || reported.starts_with(&server["POSTGRES".len()..]), "{version}");
    let findings = findings(&test);
    let to_fix: Vec<_> = findings.iter().filter(|f| f.state != FindingState::Good || f.fix.is_some()).collect();
    assert!(to_fix.is_empty(), "{to_fix:#?}");
    assert_eq!(find(&findings, "named lock").found, "taken, still held, let go");
    assert_eq!(find(&findings, "writes").found, "the server takes them");
    assert_eq!(find(&findings, "migration 0001_schema").found, "applied");
    for what in ["fsync", "full_page_writes", "synchronous_commit", "server_encoding", "replication"] {
        assert_eq!(find(&findings, what).state, FindingState::Good, "{what}");
    }
}

fn settings_that_break_a_promise_are_found(server: &str) {
    let test = TestDatabase::migrated(server);
    for setting in ["default_transaction_read_only = on", "synchronous_commit = off"] {
        test.role_setting(setting);
    }
    let findings = findings(&test);
    for (what, state, found) in [
        ("writes", FindingState::Bad, "the server takes none"),
        ("synchronous_commit", FindingState::Bad, "off"),
        ("fsync", FindingState::Good, "on"),
    ] {
        let finding = find(&findings, what);
        assert_eq!((finding.state, finding.found.as_str()), (state, found), "{what}");
    }
}

fn a_database_of_another_encoding_is_found(server: &str) {
    let test = TestDatabase::made_with(server, "ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
    let findings = findings(&test);
    let encoding = find(&findings, "server_encoding");
    assert_eq!((encoding.state, encoding.found.as_str()), (FindingState::Bad, "LATIN1"));
}

fn a_missing_right_is_found(server: &str) {
    let test = TestDatabase::migrated(server);
    test.admin()
        .batch_execute(&format!("REVOKE UPDATE (ended_at, outcome, stages) ON attempts FROM {}", test.name))
        .unwrap();
    let some_only = format!("REVOKE ALL ON message_sources, unknown_recipients, outbox FROM {}", test.name);
    test.admin().batch_execute(&some_only).unwrap();
    // Where not everybody may execute it, the role may, until it is taken from it.
    for (role, state) in [("PUBLIC", FindingState::Good), (&test.name, FindingState::Bad)] {
        let function = format!("REVOKE EXECUTE ON FUNCTION maildrop_epoch() FROM {role}");
        test.admin().batch_execute(&function).unwrap();
        let lacks = findings(&test).iter().any(|finding| finding.what == "EXECUTE on FUNCTION maildrop_epoch()");
        assert_eq!(lacks, state == FindingState::Bad, "{role}");
        assert_eq!(test.connect("A").epoch().is_ok(), state == FindingState::Good, "{role}");
    }
    let findings = findings(&test);
    assert_eq!(find(&findings, "UPDATE on attempts").state, FindingState::Bad);
    assert!(findings.iter().all(|finding| finding.what != "INSERT on attempts"), "{findings:#?}");
    for what in ["INSERT on message_sources", "INSERT on unknown_recipients", "INSERT on outbox"] {
        let finding = find(&findings, what);
        let found = "not granted; sql/postgres/grants.sql says which sites need it";
        assert_eq!((finding.state, finding.found.as_str()), (FindingState::Warning, found));
    }
}

fn a_missing_schema_is_found(server: &str) {
    let findings = findings(&TestDatabase::empty(server));
    let finding = find(&findings, "migration 0001_schema");
    assert_eq!((finding.state, finding.found.as_str()), (FindingState::Bad, "not applied"));
    assert!(finding.fix.as_deref().unwrap().contains("migrate"));
}

/// By a role with few rights, which sees how many receive what the server writes, and not who.
fn a_commit_that_waits_for_no_standby_is_found(server: &str) {
    let mut primary = Primary::start(server);
    // Dropped before its server is.
    let test = TestDatabase::migrated_at(primary.server.address().0);
    let replication = |state: FindingState, found: &str| {
        let findings = findings(&test);
        let finding = find(&findings, "replication");
        assert_eq!((finding.state, finding.found.as_str()), (state, found));
        assert_eq!(finding.fix.is_none(), state == FindingState::Good, "{finding:?}");
    };
    replication(FindingState::Good, "none");
    primary.start_receiver();
    replication(FindingState::Warning, "to 1, and no commit waits for it");
    primary.name_standbys("'pg_receivewal'");
    replication(FindingState::Good, "a commit waits for pg_receivewal");
    test.role_setting("synchronous_commit = local");
    replication(FindingState::Warning, "to 1, and no commit waits for it");
    test.role_setting("synchronous_commit = on");
    primary.end_receiver();
    replication(FindingState::Bad, "a commit waits for pg_receivewal, and there is none");
    primary.commits_wait_no_more();
    drop(test);
}

/// The extensions themselves are not available here: their rows in the catalogue are.
fn more_than_one_primary_is_found(server: &str) {
    let test = TestDatabase::migrated(server);
    let mut admin = test.admin();
    admin.batch_execute("SET allow_system_table_mods = on").unwrap();
    for (oid, name) in (90_000_u32..).zip(["bdr", "spock", "citus"]) {
        let insert = "INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion) \
                      VALUES ($1, $2::text::name, 10, 11, false, '1')";
        admin.execute(insert, &[&oid, &name]).unwrap();
    }
    let findings = findings(&test);
    for (name, state) in [("bdr", FindingState::Bad), ("spock", FindingState::Bad), ("citus", FindingState::Warning)] {
        assert_eq!(find(&findings, name).state, state, "{name}");
    }
}
