//! Mailboxes on an IMAP server (RFC 3501).
//!
//! The client is our own because what matters here is what the ready-made ones leave out: the literal is never sent
//! before the server asked for it, its last CRLF can be held back, the response code of a refused APPEND is kept, a lost
//! reply is told apart from a refusal, and text that is not ASCII breaks nothing.
//!
//! From the outside in: [`Connection`] is a server that greeted us, [`Session`] is one user of it, [`ImapMailbox`] is one
//! mailbox of that user. Below them, `conversation` sends commands and hears replies, `argument` writes commands, `wire`
//! and `token` read replies, `stream` moves bytes within the deadline.

mod argument;
mod candidate;
mod conversation;
mod fetch;
mod mailbox;
#[cfg(test)]
mod oracle_test;
#[cfg(any(test, feature = "test-properties"))]
pub mod properties;
mod reading;
mod session;
mod stream;
mod token;
mod wire;

pub use mailbox::ImapMailbox;
pub use session::{Begun, Connection, Session, begin, connect};

use crate::config::Secret;
use crate::database::Address;
use crate::mailbox::{MailboxError, MailboxFailure};
use std::path::PathBuf;

/// Where the IMAP server is, and how we get at a user's mailboxes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How to reach it: host and port, or the path of a unix socket.
    pub address: Address,
    /// How a TCP connection is encrypted; a unix socket never is.
    pub encryption: Encryption,
    /// The CA certificates to trust, PEM; the system's where none is named.
    pub ca_file: Option<PathBuf>,
    /// The service account.
    pub user: String,
    /// Its password.
    pub password: Secret,
    /// Whether the service account names the mailbox's user as the one it acts for: the authorization identity of SASL
    /// PLAIN (RFC 4616 section 2). `LOGIN` has none.
    pub act_for_user: bool,
    /// How to log in.
    pub login: Mechanism,
    /// The login name, where [`act_for_user`](Self::act_for_user) is off: `{user}` in it stands for the mailbox's user, as
    /// in `{user}*service` for servers whose master users are told apart by a separator. `None`: the service account's
    /// own name, whoever the mailbox's user is, so the name of a mailbox must then say whose it is (`user/lisa`).
    pub login_user: Option<String>,
}

/// How a TCP connection to the server is encrypted. There is no form that encrypts without verifying the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// Not at all.
    None,
    /// By STARTTLS (RFC 3501 section 6.2.1).
    StartTls,
    /// From the first byte on (RFC 8314): port 993.
    Implicit,
}

/// How to log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// `AUTHENTICATE PLAIN` (RFC 4616).
    Plain,
    /// The command `LOGIN` (RFC 3501 section 6.2.3).
    Login,
}

/// A failure of the connection itself, before it is known what was being done.
#[derive(Debug)]
struct Broken {
    failure: MailboxFailure,
    detail: String,
}

impl Broken {
    fn new(failure: MailboxFailure, detail: impl Into<String>) -> Self {
        Self { failure, detail: detail.into() }
    }

    fn protocol(detail: impl Into<String>) -> Self {
        Self::new(MailboxFailure::Protocol, detail)
    }

    fn lost(detail: impl Into<String>) -> Self {
        Self::new(MailboxFailure::ConnectionLost, detail)
    }

    fn while_doing(self, doing: &str) -> MailboxError {
        MailboxError::new(self.failure, doing, self.detail)
    }
}
