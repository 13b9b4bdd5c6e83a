//! MySQL and MariaDB: reaching the server, being sure that it is the one, and giving up in time.

use crate::support;
use crate::support::two_addresses;
use crate::support_mysql::{Mail, PASSWORD, Tap, TestDatabase, client, lock_of_its_own, on_each_server};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::base::secret::Secret;
use maildrop_command::database::{DatabaseError, DatabaseFailure, MysqlDatabase, Server, Tls};
use maildrop_command::ledger::Ledger;
use maildrop_command::ledger::schema::Schema;
use maildrop_command::lock::{Acquired, NamedLock};
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

on_each_server!(
    tls_with_a_private_ca_is_verified,
    a_certificate_for_another_name_is_refused,
    a_certificate_of_another_ca_is_refused,
    a_name_with_two_addresses_is_tried_at_both,
    a_wrong_password_and_a_missing_database_are_distinguished,
    a_silent_server_costs_no_more_than_the_deadline,
    a_late_answer_is_never_taken_for_another,
);

fn connect(server: &Server) -> Result<MysqlDatabase, DatabaseError> {
    MysqlDatabase::connect(server, &client(), Deadline::after(Duration::from_secs(120)))
}

fn tcp(host: &str, port: u16) -> Endpoint {
    Endpoint::Tcp { host: host.into(), port }
}

fn test_ca() -> Tls {
    Tls::Verify { ca_file: Some(PathBuf::from(support::env("MAILDROP_TEST_CA"))) }
}

fn tls_with_a_private_ca_is_verified(server: &str) {
    let site = TestDatabase::empty(server);
    let in_clear = site.user(&["GRANT SELECT ON DB.* TO USER".into()], "REQUIRE SSL");
    assert_eq!(connect(&in_clear).unwrap_err().failure, DatabaseFailure::AccessDenied);
    let encrypted = Server { tls: test_ca(), ..in_clear };
    let name = lock_of_its_own();
    let mut database = connect(&encrypted).unwrap();
    assert!(matches!(database.acquire(&name, Duration::ZERO).unwrap(), Acquired::Held));
}

/// The certificates name 127.0.0.1, and not 127.0.0.2.
fn a_certificate_for_another_name_is_refused(server: &str) {
    let site = TestDatabase::empty(server);
    for (listen, good) in [("127.0.0.1:0", true), ("127.0.0.2:0", false)] {
        let tap = Tap::on(&site.host, listen);
        let address = tcp(&tap.address.ip().to_string(), tap.address.port());
        match connect(&Server { address, tls: test_ca(), ..site.server() }) {
            Ok(_) => assert!(good, "{listen}"),
            Err(error) => {
                assert!(!good, "{listen}: {error}");
                assert_eq!(error.failure, DatabaseFailure::Unreachable, "{error}");
                assert!(error.detail.to_lowercase().contains("certificate"), "{error}");
            }
        }
    }
}

fn a_certificate_of_another_ca_is_refused(server: &str) {
    let site = TestDatabase::empty(server);
    let error = connect(&Server { tls: Tls::Verify { ca_file: None }, ..site.server() }).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::Unreachable, "{error}");
    let missing = Tls::Verify { ca_file: Some("/nowhere/ca.pem".into()) };
    let error = connect(&Server { tls: missing, ..site.server() }).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::Local, "{error}");
    assert!(error.detail.contains("/nowhere/ca.pem"), "{error}");
}

/// `::1`, where nobody listens, and the server's. Once in the clear and once by TLS, which must still be for the *name*.
fn a_name_with_two_addresses_is_tried_at_both(server: &str) {
    // The certificates bear the server's name in small letters.
    let name = server.to_lowercase();
    if two_addresses::is_inside() {
        let site = TestDatabase::empty(server);
        for tls in [Tls::Off, test_ca()] {
            let mut database = connect(&Server { address: tcp(&name, 3306), tls, ..site.server() }).unwrap();
            assert!(database.applied().unwrap().is_empty());
        }
        // Nobody listens at either.
        let error = connect(&Server { address: tcp(&name, 1), tls: test_ca(), ..site.server() }).unwrap_err();
        assert_eq!(error.failure, DatabaseFailure::Unreachable, "{error}");
        return;
    }
    let test = format!("engines::mysql_connection::{name}::a_name_with_two_addresses_is_tried_at_both");
    two_addresses::run_inside(&test, &name, ["::1", &support::server(server)]);
}

fn a_wrong_password_and_a_missing_database_are_distinguished(server: &str) {
    let site = TestDatabase::empty(server);
    let wrong = Server { password: Some(Secret::new("wrong".into())), ..site.server() };
    let error = connect(&wrong).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::AccessDenied, "{error}");
    let missing = Server { database: "maildrop_test_nowhere".into(), ..site.server() };
    assert_eq!(connect(&missing).unwrap_err().failure, DatabaseFailure::Schema);
    let elsewhere = Server { address: tcp(&site.host, 1), ..site.server() };
    let error = connect(&elsewhere).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::Unreachable, "{error}");
    for error in [connect(&wrong).unwrap_err(), connect(&missing).unwrap_err()] {
        assert!(!error.to_string().contains(PASSWORD), "{error}");
    }
    let shown = format!("{:?}", site.connect());
    assert!(!shown.contains(PASSWORD), "{shown}");
    let passed = MysqlDatabase::connect(&site.server(), &client(), Deadline::after(Duration::ZERO)).unwrap_err();
    assert_eq!(passed.failure, DatabaseFailure::TimedOut, "{passed}");
}

fn a_silent_server_costs_no_more_than_the_deadline(server: &str) {
    let site = TestDatabase::empty(server);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp("127.0.0.1", silent.local_addr().unwrap().port());
    let began = Instant::now();
    let deadline = Deadline::after(Duration::from_secs(1));
    let error = MysqlDatabase::connect(&Server { address, ..site.server() }, &client(), deadline).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::TimedOut, "{error}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

/// "You hold the lock" said late must not be heard as the answer to a later question.
fn a_late_answer_is_never_taken_for_another(server: &str) {
    let site = TestDatabase::new(server);
    let tap = Tap::on(&site.host, "127.0.0.1:0");
    let behind = Server { address: tcp("127.0.0.1", tap.address.port()), ..site.server() };
    // Time enough to connect, for a machine that hangs for a while.
    let mut database = MysqlDatabase::connect(&behind, &client(), Deadline::after(Duration::from_secs(6))).unwrap();
    let name = lock_of_its_own();
    tap.hush(true);
    let error = database.acquire(&name, Duration::ZERO).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::TimedOut, "{error}");
    tap.hush(false);
    std::thread::sleep(Duration::from_millis(300));
    tap.queries();
    assert_eq!(database.still_held(&name).unwrap_err().failure, DatabaseFailure::ConnectionLost);
    assert_eq!(database.look(&Mail::to("scuba").keys()).unwrap_err().failure, DatabaseFailure::ConnectionLost);
    assert!(tap.queries().is_empty(), "nothing more is said on it");
}

#[test]
fn a_unix_socket_is_connected_to() {
    let site = TestDatabase::new("MARIADB118");
    let path = PathBuf::from(support::env("MAILDROP_TEST_MARIADB118_SOCKET"));
    let server = Server { address: Endpoint::Socket(path), tls: test_ca(), ..site.server() };
    connect(&server).unwrap().look(&Mail::to("scuba").keys()).unwrap();
    let server = Server { address: Endpoint::Socket("/nowhere/mysql.sock".into()), ..site.server() };
    assert_eq!(connect(&server).unwrap_err().failure, DatabaseFailure::Unreachable);
}
