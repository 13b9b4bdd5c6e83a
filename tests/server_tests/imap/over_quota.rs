//! A full mailbox: the refusal is known for what it is, and the session stays of use.

use crate::support::imap::Imap;
use crate::support::imap_server::{Server, append, message, position, somebody};
use maildrop_command::mailbox::{Appended, MailboxFailure};
use maildrop_command::message::Message;

fn is_refused_as_full(server: Server, user: &str) {
    let big =
        Message::receive(format!("Message-ID: <big@b>\n\n{}", "0123456789\n".repeat(10_000)).into_bytes()).unwrap();
    let huge =
        Message::receive(format!("Message-ID: <big@b>\n\n{}", "0123456789\n".repeat(1_000_000)).into_bytes()).unwrap();
    let mut mailbox = server.open(user, "INBOX");
    let before = position(&mut mailbox);
    for message in [big, huge] {
        match append(&mut mailbox, &message) {
            Appended::Refused(error) => assert_eq!(error.failure, MailboxFailure::OverQuota, "{server:?}: {error}"),
            other => panic!("{server:?}: {other:?}"),
        }
        assert_eq!(position(&mut mailbox).uid_validity, before.uid_validity, "{server:?}");
    }
    assert_eq!(server.mail_program(user).messages("INBOX").len(), 0, "{server:?}");
}

#[test]
fn dovecot_says_overquota() {
    is_refused_as_full(Server::Dovecot, &somebody("full"));
    is_refused_as_full(Server::DovecotBare, &somebody("full"));
}

#[test]
fn cyrus_says_overquota() {
    let user = somebody("full");
    append(&mut Server::Cyrus.open(&user, "Elsewhere"), &message("<a@b>", "brings the user into being"));
    let (host, port) = Server::Cyrus.address();
    let mut administrator = Imap::login(&format!("{host}:{port}"), "service", "service-secret");
    administrator.run(&format!("SETQUOTA user/{user} (STORAGE 1)")).unwrap();
    is_refused_as_full(Server::Cyrus, &user);
}
