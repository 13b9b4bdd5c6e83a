//! Every way to a mailbox: in the clear, by STARTTLS, under TLS from the first byte, over a unix socket; as a service
//! account that acts for the user, as a master user by separator, as the user.

use crate::support::env;
use crate::support::imap_server::{ALL, Server, log_in, position, somebody};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::base::secret::Secret;
use maildrop_command::imap::{Encryption, Mechanism, Settings, connect};
use maildrop_command::mailbox::MailboxFailure;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

fn under_tls(server: Server) -> Settings {
    let (host, port) = server.address();
    Settings {
        address: Endpoint::Tcp { host, port: port + 850 },
        encryption: Encryption::Implicit,
        ..server.settings()
    }
}

fn leads_in(settings: &Settings) {
    let user = somebody("logins");
    let session = log_in(settings, &user).unwrap_or_else(|error| panic!("{settings:?}: {error}"));
    let mut mailbox = session.open("INBOX");
    assert!(mailbox.describe().contains(" ready"), "{}", mailbox.describe());
    assert_eq!(position(&mut mailbox).uid_next, 1);
}

fn refused(settings: &Settings, failure: MailboxFailure) {
    let error = log_in(settings, &somebody("logins")).err().unwrap_or_else(|| panic!("{settings:?} leads in"));
    assert_eq!(error.failure, failure, "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[test]
fn in_the_clear_by_starttls_and_under_tls() {
    for server in ALL {
        leads_in(&server.settings());
        leads_in(&Settings { encryption: Encryption::StartTls, ..server.settings() });
        leads_in(&under_tls(server));
    }
}

#[test]
fn what_was_reported_in_the_clear_is_forgotten_under_tls() {
    let (host, port) = Server::Dovecot.address();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap().port();
    // Somebody on the way who adds to what the server says, as long as he can.
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect((host, port)).unwrap();
        let mut chunk = [0; 4096];
        let read = server.read(&mut chunk).unwrap();
        let greeting = String::from_utf8_lossy(&chunk[..read]).replace("IMAP4rev1", "IMAP4rev1 LITERAL-");
        client.write_all(greeting.as_bytes()).unwrap();
        let (mut to_server, mut from_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
        std::io::copy(&mut server, &mut client)
    });
    let settings = Settings {
        address: Endpoint::Tcp { host: "127.0.0.1".into(), port: here },
        encryption: Encryption::StartTls,
        ..Server::Dovecot.settings()
    };
    let connection = connect(&settings, Deadline::after(Duration::from_secs(120))).unwrap();
    let described = connection.describe();
    assert!(described.contains("LITERAL+") && !described.contains("LITERAL-"), "{described}");
}

#[test]
fn over_a_unix_socket() {
    let address = Endpoint::Socket(env("MAILDROP_TEST_DOVECOT_SOCKET").into());
    leads_in(&Settings { address: address.clone(), ..Server::Dovecot.settings() });
    // Nothing there is encrypted, whatever the setting says, and nothing needs to be.
    leads_in(&Settings { address, encryption: Encryption::StartTls, ..Server::Dovecot.settings() });
}

#[test]
fn as_a_master_user_by_separator() {
    let separator =
        Settings { act_for_user: false, login_user: Some("{user}*service".into()), ..Server::Dovecot.settings() };
    leads_in(&separator);
    leads_in(&Settings { login: Mechanism::Login, ..separator });
}

#[test]
fn as_the_user() {
    for server in ALL {
        leads_in(&Settings {
            act_for_user: false,
            login: Mechanism::Login,
            login_user: Some("{user}".into()),
            password: Secret::new("secret".into()),
            ..server.settings()
        });
    }
}

/// What a login that is refused because of the account fails with: Cyrus has no code for it (RFC 5530).
fn denied(server: Server) -> MailboxFailure {
    if server == Server::Cyrus { MailboxFailure::LoginRefused } else { MailboxFailure::AccessDenied }
}

#[test]
fn a_wrong_password_is_access_denied() {
    for server in ALL {
        let wrong = Settings { password: Secret::new("wrong secret".into()), ..server.settings() };
        refused(&wrong, denied(server));
        let login =
            Settings { act_for_user: false, login: Mechanism::Login, login_user: Some("{user}".into()), ..wrong };
        refused(&login, denied(server));
    }
}

#[test]
fn an_account_that_may_not_act_for_others_is_access_denied() {
    for server in ALL {
        let user = somebody("nobody");
        refused(&Settings { user, password: Secret::new("secret".into()), ..server.settings() }, denied(server));
    }
}

#[test]
fn a_certificate_that_is_not_to_be_trusted_lets_nobody_in() {
    for settings in [
        Settings { encryption: Encryption::StartTls, ..Server::Dovecot.settings() },
        under_tls(Server::Dovecot),
        under_tls(Server::Cyrus),
    ] {
        // The system's CAs know nothing of the tests' own.
        refused(&Settings { ca_file: None, ..settings.clone() }, MailboxFailure::Unreachable);
    }
    // The server's certificate is not for this name.
    let Endpoint::Tcp { host, port } = under_tls(Server::Dovecot).address else { panic!() };
    if let Ok(address) = host.parse::<std::net::Ipv4Addr>() {
        let mapped = Endpoint::Tcp { host: address.to_ipv6_mapped().to_string(), port };
        refused(&Settings { address: mapped, ..under_tls(Server::Dovecot) }, MailboxFailure::Unreachable);
    }
}

#[test]
fn nobody_there_is_unreachable() {
    for address in [
        Endpoint::Tcp { host: "127.0.0.1".into(), port: 1 },
        Endpoint::Tcp { host: "no-such-host.invalid".into(), port: 143 },
        Endpoint::Socket("/no/such/socket".into()),
    ] {
        refused(&Settings { address, ..Server::Dovecot.settings() }, MailboxFailure::Unreachable);
    }
}

#[test]
fn a_ca_file_that_is_not_there_is_this_machines_fault() {
    refused(&Settings { ca_file: Some("/no/such/ca.pem".into()), ..under_tls(Server::Dovecot) }, MailboxFailure::Local);
}
