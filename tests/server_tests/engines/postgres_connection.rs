//! Connecting to PostgreSQL: by TCP, TLS and socket, and what is said where it fails.

use crate::support;
use crate::support::postgres::{TestDatabase, client, deadline, on_each_postgres, tcp};
use crate::support::two_addresses::{self, SilentAddress};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::base::secret::Secret;
use maildrop_command::database::{DatabaseError, DatabaseFailure, Limits, PostgresDatabase, Server, Tls};
use maildrop_command::ledger::describe;
use std::path::PathBuf;
use std::time::{Duration, Instant};

on_each_postgres!(
    tls_is_used_where_it_is_asked_for,
    a_certificate_of_an_unknown_authority_is_not_trusted,
    a_wrong_password_is_access_denied_and_stays_secret,
    a_database_that_is_not_there_is_unreachable,
    an_address_that_says_nothing_does_not_use_up_the_time,
);

fn connect(server: &Server) -> Result<PostgresDatabase, DatabaseError> {
    PostgresDatabase::connect(server, &client("A"), deadline())
}

fn failure(server: &Server) -> DatabaseError {
    match connect(server) {
        Ok(_) => panic!("connected to {server:?}"),
        Err(error) => error,
    }
}

fn tls_is_used_where_it_is_asked_for(server: &str) {
    let test = TestDatabase::migrated(server);
    let mut server = test.server(tcp(&test.host, 5432), &test.name);
    for (tls, encrypted) in
        [(Tls::Off, "f"), (Tls::Verify { ca_file: Some(PathBuf::from(support::env("MAILDROP_TEST_CA"))) }, "t")]
    {
        server.tls = tls;
        let _database = connect(&server).unwrap();
        let ssl = "SELECT s.ssl FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) \
                   WHERE datname = current_database() AND application_name LIKE 'maildrop A %'";
        assert_eq!(test.value(&format!("{ssl} ORDER BY backend_start DESC LIMIT 1")).unwrap(), format_bool(encrypted));
    }
}

fn format_bool(short: &str) -> &str {
    if short == "t" { "true" } else { "false" }
}

fn a_certificate_of_an_unknown_authority_is_not_trusted(server: &str) {
    let test = TestDatabase::empty(server);
    let mut server = test.server(tcp(&test.host, 5432), &test.name);
    server.tls = Tls::Verify { ca_file: None };
    let error = failure(&server);
    assert_eq!(error.failure, DatabaseFailure::Unreachable, "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
    server.tls = Tls::Verify { ca_file: Some("/nowhere/ca.pem".into()) };
    let error = failure(&server);
    assert_eq!(error.failure, DatabaseFailure::Local, "{error}");
    assert!(error.to_string().contains("/nowhere/ca.pem"), "{error}");
}

fn a_wrong_password_is_access_denied_and_stays_secret(server: &str) {
    let test = TestDatabase::empty(server);
    let mut server = test.server(tcp(&test.host, 5432), &test.name);
    server.password = Some(Secret::new("not-the-password".into()));
    let error = failure(&server);
    assert_eq!(error.failure, DatabaseFailure::AccessDenied, "{error}");
    assert!(error.to_string().contains("28P01") && !format!("{error:?}").contains("not-the-password"), "{error}");
    server.password = None;
    let error = failure(&server);
    assert_eq!(error.failure, DatabaseFailure::Local, "{error}");
    assert!(error.to_string().contains("password missing"), "{error}");
}

fn a_database_that_is_not_there_is_unreachable(server: &str) {
    let test = TestDatabase::empty(server);
    let mut server = test.server(tcp(&test.host, 5432), &test.name);
    server.database = "nowhere".into();
    let error = failure(&server);
    assert_eq!(error.failure, DatabaseFailure::Unreachable, "{error}");
    assert!(error.to_string().contains("database \"nowhere\" does not exist"), "{error}");
}

#[test]
fn a_unix_socket_is_found_by_its_directory_or_its_path() {
    let test = TestDatabase::migrated("POSTGRES17");
    let directory = PathBuf::from(support::env("MAILDROP_TEST_POSTGRES17_SOCKET_DIR"));
    for path in [directory.clone(), directory.join(".s.PGSQL.5432")] {
        let mut server = test.server(Endpoint::Socket(path), &test.name);
        // Nothing is encrypted there, whatever is asked for TCP.
        server.tls = Tls::Verify { ca_file: None };
        describe(&mut connect(&server).unwrap()).unwrap();
    }
    let error = failure(&test.server(Endpoint::Socket("/nowhere".into()), &test.name));
    assert_eq!(error.failure, DatabaseFailure::Unreachable);
    assert!(error.to_string().starts_with("connecting to PostgreSQL at /nowhere: "), "{error}");
}

#[test]
fn nobody_listening_is_unreachable() {
    // One that was free a moment ago may be another test's by now.
    let port = 1;
    let server = Server {
        address: tcp("127.0.0.1", port),
        database: "any".into(),
        user: "any".into(),
        password: None,
        tls: Tls::Off,
        limits: Limits::default(),
        timelines: None,
    };
    let error = failure(&server);
    assert_eq!(error.failure, DatabaseFailure::Unreachable);
    assert!(error.to_string().contains(&format!("127.0.0.1 port {port}")), "{error}");
    assert!(error.to_string().to_lowercase().contains("refused"), "{error}");
}

#[test]
fn a_deadline_that_has_passed_connects_to_nobody() {
    let server = Server {
        // TEST-NET-1 (RFC 5737): a connect would hang.
        address: tcp("192.0.2.1", 5432),
        database: "any".into(),
        user: "any".into(),
        password: None,
        tls: Tls::Off,
        limits: Limits::default(),
        timelines: None,
    };
    let began = Instant::now();
    let deadline = Deadline::after(Duration::ZERO);
    match PostgresDatabase::connect(&server, &client("A"), deadline) {
        Err(error) => assert_eq!(error.failure, DatabaseFailure::TimedOut),
        Ok(_) => panic!("connected"),
    }
    assert!(began.elapsed() < Duration::from_secs(60));
}

/// The other one is the server's.
fn an_address_that_says_nothing_does_not_use_up_the_time(server: &str) {
    let name = server.to_lowercase();
    if two_addresses::is_inside() {
        let test = TestDatabase::empty(server);
        let began = Instant::now();
        connect(&test.server(tcp(&name, 5432), &test.name)).unwrap();
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        return;
    }
    let silent = SilentAddress::at(5432);
    let test = format!("engines::postgres_connection::{name}::an_address_that_says_nothing_does_not_use_up_the_time");
    two_addresses::run_inside(&test, &name, [&silent.ip.to_string(), &support::server(server)]);
}
