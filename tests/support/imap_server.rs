//! The real IMAP servers, as the mailboxes under test reach them.

use super::imap::Imap;
use super::{env, server};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::base::secret::Secret;
use maildrop_command::imap::{Encryption, Mechanism, Session, Settings, connect};
use maildrop_command::mailbox::ImapMailbox;
use maildrop_command::mailbox::{Appended, Mailbox, MailboxError, Matching, NewCopy, Placement, Position, Wanted};
use maildrop_command::message::Message;
use maildrop_command::message::Role;
use std::time::Duration;
use time::OffsetDateTime;
use time::macros::datetime;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    Dovecot,
    /// Dovecot that says that it has nothing beyond IMAP4rev1: no LITERAL+, no UIDPLUS.
    DovecotBare,
    Cyrus,
}

/// Every server.
pub const ALL: [Server; 3] = [Server::Dovecot, Server::DovecotBare, Server::Cyrus];

/// When the copies of these tests arrived.
pub const ARRIVED: OffsetDateTime = datetime!(2026-02-03 04:05:06 +01:00);

impl Server {
    fn variable(self) -> &'static str {
        match self {
            Self::Dovecot => "DOVECOT",
            Self::DovecotBare => "DOVECOT_BARE",
            Self::Cyrus => "CYRUS",
        }
    }

    /// Its host, and its port without TLS from the first byte on.
    pub fn address(self) -> (String, u16) {
        let server = server(self.variable());
        match server.rsplit_once(':') {
            Some((host, port)) => (host.to_owned(), port.parse().expect("a port")),
            None => (server, 143),
        }
    }

    /// Whether it can expunge a single UID and tells the UID of what it stored.
    pub fn has_uidplus(self) -> bool {
        self != Self::DovecotBare
    }

    /// In the clear, as the service account that acts for the user.
    pub fn settings(self) -> Settings {
        let (host, port) = self.address();
        Settings {
            address: Endpoint::Tcp { host, port },
            encryption: Encryption::None,
            ca_file: Some(env("MAILDROP_TEST_CA").into()),
            user: "service".into(),
            password: Secret::new("service-secret".into()),
            act_for_user: true,
            login: Mechanism::Plain,
            login_user: None,
        }
    }

    /// A user's mailbox, through the code under test.
    pub fn open(self, user: &str, mailbox: &str) -> ImapMailbox {
        log_in(&self.settings(), user).unwrap_or_else(|error| panic!("{self:?}: {error}")).open(mailbox)
    }

    /// A mail program of the user.
    pub fn mail_program(self, user: &str) -> Imap {
        let (host, port) = self.address();
        Imap::login(&format!("{host}:{port}"), user, "secret")
    }
}

/// A session, or why there is none.
pub fn log_in(settings: &Settings, user: &str) -> Result<Session, MailboxError> {
    connect(settings, Deadline::after(Duration::from_secs(240)))?.authenticate(user)
}

/// A user whom no other test knows.
pub fn somebody(name: &str) -> String {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("a clock").as_nanos();
    format!("{name}{}x{number}x{}", std::process::id(), now % 1_000_000_000)
}

/// A message with this id and subject.
pub fn message(id: &str, subject: &str) -> Message {
    let text = format!(
        "Return-Path: <lisa@mail.example>\nFrom: lisa@mail.example\nTo: scuba@mail.example\nMessage-ID: \
         {id}\nSubject: {subject}\n\nHello.\n"
    );
    Message::receive(text.into_bytes()).expect("a message")
}

/// Appends it.
pub fn append(mailbox: &mut ImapMailbox, message: &Message) -> Appended {
    mailbox.append(&new_copy(message), &mut || true)
}

/// Appends it, and says where.
pub fn stored(mailbox: &mut ImapMailbox, message: &Message) -> Option<Placement> {
    match append(mailbox, message) {
        Appended::Stored(placement) => placement,
        other => panic!("{other:?}"),
    }
}

pub fn new_copy(message: &Message) -> NewCopy<'_> {
    let (bytes, identity) = (message.as_received(), message.identity());
    NewCopy { bytes, identity, role: Role::Recipient, seen: false, arrived: ARRIVED }
}

/// It, wanted from there on.
pub fn wanted(message: &Message, since: Option<Position>) -> Wanted<'_> {
    Wanted {
        message_id: message.message_id(),
        identity: message.identity(),
        role: Role::Recipient,
        matching: Matching::Identity,
        since,
        not_before: ARRIVED,
    }
}

/// Where the mailbox stands.
pub fn position(mailbox: &mut ImapMailbox) -> Position {
    mailbox.position().unwrap_or_else(|error| panic!("{error}")).expect("IMAP has UIDs")
}
