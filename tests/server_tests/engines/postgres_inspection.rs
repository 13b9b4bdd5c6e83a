//! What `check` finds on PostgreSQL: nothing on a good server, and each thing that would break a promise.

use crate::support::another_version_may_stand_in;
use crate::support::check_report::Checked;
use crate::support::database::Engine;
use crate::support::postgres::{TestDatabase, on_each_postgres};
use crate::support::site_fixture::Scene;
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
    assert_eq!(find(&findings, "max_connections").found, "300");
    assert_eq!(find(&findings, "migration 0001_schema").found, "applied");
    // Whatever the server's order is.
    let settings = [
        "default_transaction_read_only",
        "synchronous_commit",
        "fsync",
        "full_page_writes",
        "server_encoding",
        "client_encoding",
        "statement_timeout",
        "idle_session_timeout",
        "max_connections",
    ];
    let shown: Vec<_> = findings.iter().map(|f| f.what.as_str()).filter(|what| settings.contains(what)).collect();
    assert_eq!(shown, settings);
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
        ("default_transaction_read_only", FindingState::Bad, "on"),
        ("synchronous_commit", FindingState::Bad, "off"),
        ("statement_timeout", FindingState::Warning, "1000 ms"),
        ("idle_session_timeout", FindingState::Warning, "30000 ms"),
        ("fsync", FindingState::Good, "on"),
    ] {
        let finding = find(&findings, what);
        assert_eq!((finding.state, finding.found.as_str()), (state, found), "{what}");
    }
}

/// Shorter than a delivery's deadline, and longer than `check` itself has time.
#[test]
fn a_limit_that_is_shorter_than_a_delivery_is_found_however_little_time_check_has() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug"]);
    let name = scene.database.name.clone();
    let limits = ["statement_timeout", "idle_session_timeout"];
    for limit in limits {
        scene.database.execute(&format!("ALTER DATABASE {name} SET {limit} = '100s'"));
    }
    for (deadline, state) in [("240s", "warning"), ("90s", "ok")] {
        scene.configure(|settings| settings.more = format!("[delivery]\ndeadline = {deadline:?}\n"));
        let checked = Checked::of(&scene);
        for limit in limits {
            assert_eq!(checked.on(limit), [(state, "100000 ms")], "{limit}, {deadline}");
        }
        assert_eq!(checked.exit, Some(0));
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
    for (what, needed) in [
        ("INSERT on message_sources", "needed only with record.keep_source"),
        ("INSERT on unknown_recipients", "needed with routing.unknown_recipient = \"reject\", which defers without it"),
        ("INSERT on outbox", "needed once anybody is subscribed, who is notified of nothing without it"),
    ] {
        let finding = find(&findings, what);
        assert_eq!(
            (finding.state, finding.found.as_str()),
            (FindingState::Warning, &*format!("not granted; {needed}"))
        );
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
    replication(FindingState::Warning, "synchronous_commit = local: no commit waits for pg_receivewal");
    test.role_setting("synchronous_commit = on");
    primary.end_receiver();
    replication(FindingState::Bad, "synchronous_standby_names = pg_receivewal, and there is none");
    primary.commits_wait_no_more();
    drop(test);
}

/// The extensions themselves are not available here: their rows in the catalogue are.
fn more_than_one_primary_is_found(server: &str) {
    let test = TestDatabase::migrated(server);
    let mut admin = test.admin();
    admin.batch_execute("SET allow_system_table_mods = on").unwrap();
    for (oid, name) in (90_000_u32..).zip(["bdr", "spock", "pglogical", "citus"]) {
        let insert = "INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion) \
                      VALUES ($1, $2::text::name, 10, 11, false, '1')";
        admin.execute(insert, &[&oid, &name]).unwrap();
    }
    let findings = findings(&test);
    for (name, state) in [
        ("bdr", FindingState::Bad),
        ("spock", FindingState::Bad),
        ("pglogical", FindingState::Warning),
        ("citus", FindingState::Warning),
    ] {
        assert_eq!(find(&findings, name).state, state, "{name}");
    }
}
