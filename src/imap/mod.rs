//! The IMAP client (RFC 3501): knows nothing of deliveries.
//!
//! The project has its own client because existing ones lack what exactly-once delivery needs. This client can hold back the
//! last CRLF of an APPEND, and never sends a literal before the server asks for it. It keeps the response code of a refused
//! APPEND, and distinguishes a lost reply from a refusal. It accepts text that is not ASCII.
//!
//! [`Connection`] is a server that has sent its greeting, [`Session`] one user who is logged in; that user's mailboxes are in
//! [`crate::mailbox`]. `connection` sends commands and receives replies, `argument` writes commands. `wire` and `token` read
//! replies, `fetch` extracts the requested data. `stream` moves bytes within the deadline. `append_grace` says how late an
//! APPEND may land.

mod append_grace;
pub(crate) mod argument;
pub(crate) mod connection;
mod error;
pub(crate) mod fetch;
#[cfg(test)]
#[path = "../../tests/properties/imap/mod.rs"]
mod properties_test;
#[cfg(any(test, feature = "test-properties"))]
pub mod property_tests;
pub(crate) mod session;
mod stream;
mod token;
pub(crate) mod wire;

pub(crate) use append_grace::Locks;
pub use error::{MailboxError, MailboxFailure};
pub use session::{Connection, Session, connect};
pub(crate) use stream::USER_TIMEOUT;

use crate::base::endpoint::Endpoint;
use crate::base::secret::Secret;
use serde::Deserialize;
use std::path::PathBuf;

/// Where a mailbox's next message will be (RFC 3501 section 2.3.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// While this stays the same, UIDs only grow.
    pub uid_validity: u32,
    /// The lowest UID that a message appended from now on can have.
    pub uid_next: u32,
}

/// Where one message is in a mailbox, as APPENDUID reports it (RFC 4315 section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Placement {
    pub uid_validity: u32,
    pub uid: u32,
}

/// The IMAP server, and the login to a user's mailboxes.
#[derive(Clone, Debug)]
pub struct Settings {
    pub address: Endpoint,
    /// The encryption of a TCP connection; a unix socket needs none.
    pub encryption: Encryption,
    /// The trusted CA certificates, PEM; the system's if no file is named.
    pub ca_file: Option<PathBuf>,
    pub user: String,
    pub password: Secret,
    /// Whether the service account names the mailbox's user as the authorization identity of SASL PLAIN (RFC 4616 section 2).
    /// `LOGIN` has none.
    pub act_for_user: bool,
    pub login: Mechanism,
    /// The login name, if [`act_for_user`](Self::act_for_user) is off. `{user}` in it stands for the mailbox's user, as in
    /// `{user}*service` for servers whose master users have a separator. `None` means the service account's own name, so the
    /// name of a mailbox must then contain its user (`user/lisa`).
    pub login_user: Option<String>,
}

impl Settings {
    /// See [`login_names_the_user`].
    pub(crate) fn name_the_user(&self) -> bool {
        login_names_the_user(self.act_for_user, self.login_user.as_deref())
    }

    /// Whether these settings lead to a mailbox of this user: the login names the user, or the mailbox's name does.
    pub(crate) fn lead_to(&self, user: &str, mailbox: &str) -> bool {
        self.name_the_user() || is_named_after(mailbox, user)
    }
}

/// The encryption of a TCP connection to the server. Each encrypted form verifies the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encryption {
    None,
    /// With STARTTLS (RFC 3501 section 6.2.1).
    StartTls,
    /// From the first byte on (RFC 8314): port 993.
    #[serde(rename = "tls")]
    Implicit,
}

/// What a session may do in a mailbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rights {
    /// The server does not report rights (no ACL, RFC 4314).
    #[default]
    Unknown,
    NoMailbox,
    /// The rights as letters.
    Of(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mechanism {
    /// `AUTHENTICATE PLAIN` (RFC 4616), which can act for another user.
    #[default]
    Plain,
    /// The command `LOGIN` (RFC 3501 section 6.2.3), which cannot.
    Login,
}

/// A failure of the connection; the caller adds the operation in progress.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) failure: MailboxFailure,
    pub(crate) detail: String,
}

impl Broken {
    pub fn new(failure: MailboxFailure, detail: impl Into<String>) -> Self {
        Self { failure, detail: detail.into() }
    }

    pub(crate) fn protocol(detail: impl Into<String>) -> Self {
        Self::new(MailboxFailure::Protocol, detail)
    }

    pub fn lost(detail: impl Into<String>) -> Self {
        Self::new(MailboxFailure::ConnectionLost, detail)
    }

    pub(crate) fn while_doing(self, doing: &str) -> MailboxError {
        MailboxError::new(self.failure, doing, self.detail)
    }
}

/// Whether a login names the user whose mailboxes it is for: as the authorization identity, or in the login name.
pub(crate) fn login_names_the_user(act_for_user: bool, login_user: Option<&str>) -> bool {
    act_for_user || login_user.is_some_and(|pattern| pattern.contains("{user}"))
}

/// Whether the name of a mailbox contains the user's whole name: `user/lisa` is lisa's, and neither al's nor lis's.
pub(crate) fn is_named_after(mailbox: &str, user: &str) -> bool {
    !user.is_empty()
        && mailbox.match_indices(user).any(|(at, _)| {
            let (before, after) = (mailbox.get(..at), mailbox.get(at + user.len()..));
            let part_of_a_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
            !part_of_a_word(before.and_then(|text| text.chars().next_back()))
                && !part_of_a_word(after.and_then(|text| text.chars().next()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mailbox_is_named_after_a_user_whose_whole_name_is_in_it() {
        for (mailbox, user) in [("user/lisa", "lisa"), ("#shared.lisa@x.org.Sent", "lisa@x.org"), ("lisa", "lisa")] {
            assert!(is_named_after(mailbox, user), "{mailbox} {user}");
        }
        let none =
            [("INBOX", "lisa"), ("user/alice", "al"), ("user/alice", "ice"), ("user/elisa", "lisa"), ("INBOX", "")];
        for (mailbox, user) in none.into_iter().chain([("user/lisa", "lisa@x.org"), ("user/li", "lí")]) {
            assert!(!is_named_after(mailbox, user), "{mailbox} {user}");
        }
        assert!(is_named_after("user/alice/ali", "ali"));
    }
}
