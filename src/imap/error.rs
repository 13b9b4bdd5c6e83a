//! The errors of a mailbox store.

use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailboxFailure {
    /// The server cannot be reached, or its TLS certificate is not trusted.
    Unreachable,
    /// The server refuses the service account, or refuses it for this user: RFC 5530 AUTHENTICATIONFAILED,
    /// AUTHORIZATIONFAILED.
    AccessDenied,
    /// The server refuses the login without saying that the account is the reason.
    LoginRefused,
    /// The server opens the same INBOX for every user that the service account names, so that all mail would go there.
    IdentityIgnored,
    ConnectionLost,
    TimedOut,
    /// The mailbox does not exist and cannot be created.
    NoSuchMailbox,
    /// RFC 5530 OVERQUOTA.
    OverQuota,
    /// The server said NO or BAD, without a more specific code.
    Refused,
    /// The server said NO, and that a retry is useless: RFC 5530 CANNOT, LIMIT, NOPERM.
    RefusedForGood,
    /// The bytes from the server are not IMAP.
    Protocol,
    /// A failure on this machine: a file, a directory, a setting.
    Local,
    /// A failure of this process: a panic in one of its threads, or no thread could be started. The setup is correct.
    Internal,
}

impl MailboxFailure {
    /// The text by which the ledger stores the failure, and `stats` counts it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "the mailbox store is out of reach",
            Self::AccessDenied => "the mailbox store refuses our account",
            Self::LoginRefused => "the mailbox store refuses the login",
            Self::IdentityIgnored => "the mailbox store ignores on whose behalf we come",
            Self::ConnectionLost => "the mailbox store's connection was lost",
            Self::TimedOut => "the mailbox store did not answer in time",
            Self::NoSuchMailbox => "no such mailbox",
            Self::OverQuota => "over quota",
            Self::Refused => "the mailbox store refused",
            Self::RefusedForGood => "the mailbox store refused for good",
            Self::Protocol => "the mailbox store's answer makes no sense",
            Self::Local => "something on this machine",
            Self::Internal => "an internal error",
        }
    }

    pub(crate) const ALL: [Self; 13] = [
        Self::Unreachable,
        Self::AccessDenied,
        Self::LoginRefused,
        Self::IdentityIgnored,
        Self::ConnectionLost,
        Self::TimedOut,
        Self::NoSuchMailbox,
        Self::OverQuota,
        Self::Refused,
        Self::RefusedForGood,
        Self::Protocol,
        Self::Local,
        Self::Internal,
    ];
}

#[derive(Clone, Debug, Error)]
#[error("{doing}: {detail}")]
pub struct MailboxError {
    pub failure: MailboxFailure,
    /// The operation in progress, for the log: `appending to "INBOX"`.
    pub doing: String,
    /// The server's or the system's message, for the log. Never a secret.
    pub detail: String,
}

impl MailboxError {
    pub fn new(failure: MailboxFailure, doing: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { failure, doing: doing.into(), detail: detail.into() }
    }

    /// Whether a retry can help: always, unless the server refused for good. Being over quota is temporary.
    pub fn trying_again_can_help(&self) -> bool {
        self.failure != MailboxFailure::RefusedForGood
    }
}
