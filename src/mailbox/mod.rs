//! Mailboxes: where copies live.
//!
//! One value of [`Mailbox`] is one mailbox of one user, opened and authenticated.

pub mod imap;
mod maildir;
mod reading;
mod whereabouts;

pub use maildir::MaildirMailbox;
pub use reading::{Listed, Presence, Reading, Recorded, Seen};
pub use whereabouts::look_everywhere;

use crate::message::Identity;
use thiserror::Error;
use time::OffsetDateTime;

/// Where a mailbox stands: what the next message will be called (RFC 3501 section 2.3.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// As long as this stays the same, UIDs only grow.
    pub uid_validity: u32,
    /// The lowest UID that a message appended from now on can get.
    pub uid_next: u32,
}

/// The name of one message in a mailbox (RFC 4315: what APPENDUID says).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The mailbox's UIDVALIDITY when the copy was stored.
    pub uid_validity: u32,
    /// The copy's UID.
    pub uid: u32,
}

/// Why this mailbox gets a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The envelope recipient's INBOX.
    Recipient,
    /// The author's Sent mailbox.
    Sender,
}

impl Role {
    /// The word that the ledger and the log use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Recipient => "recipient",
            Self::Sender => "sender",
        }
    }

    /// The role that the ledger's word says.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Recipient, Self::Sender].into_iter().find(|role| role.as_str() == word)
    }
}

/// A copy about to be appended.
#[derive(Clone, Copy, Debug)]
pub struct NewCopy<'a> {
    /// The message with CRLF line ends and no NUL.
    pub bytes: &'a [u8],
    /// Whose message it is a copy of.
    pub identity: &'a Identity,
    /// Why the mailbox gets it.
    pub role: Role,
    /// Whether it is marked `\Seen` (the Sent copy is).
    pub seen: bool,
    /// When it arrived: the INTERNALDATE.
    pub arrived: OffsetDateTime,
}

/// What came of an append.
#[derive(Debug)]
pub enum Appended {
    /// The server says that it is stored; where, if it tells (UIDPLUS).
    Stored(Option<Placement>),
    /// `go_ahead` said no: the last CRLF was never sent, nothing is stored. The session is of no further use.
    Withheld,
    /// The server said no: nothing is stored.
    Refused(MailboxError),
    /// It failed before the last CRLF was sent: nothing is stored.
    NotSent(MailboxError),
    /// It was sent, and the answer is missing: stored, not stored, or stored later. Treat it as a crash.
    Unknown(MailboxError),
}

/// What to look for in a mailbox.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The Message-ID as it stands in the message, without its angle brackets; `None` where it has none.
    pub message_id: Option<&'a str>,
    /// The identity, recomputed from the bytes in the mailbox for each candidate.
    pub identity: &'a Identity,
    /// The role of the copy looked for.
    pub role: Role,
    /// What makes a candidate a match.
    pub matching: Matching,
    /// Where to begin: only what arrived at or above this UID, as long as UIDVALIDITY is the same. `None`, or a mailbox
    /// with another UIDVALIDITY: the whole mailbox.
    pub since: Option<Position>,
    /// In a search of the whole mailbox: nothing that arrived before this day (INTERNALDATE, a day earlier to be safe
    /// about time zones).
    pub not_before: OffsetDateTime,
}

/// What makes a candidate a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matching {
    /// The same message: same Message-ID, same words of its author.
    Identity,
    /// The same Message-ID is enough: a copy that the member's own mail program has saved may differ in its headers.
    MessageId,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Whether the search could begin at [`Wanted::since`]: UIDVALIDITY is the same. Nothing is ever removed otherwise.
    pub in_range: bool,
    /// The matching copies in ascending order of UID.
    pub copies: Vec<FoundCopy>,
}

/// One copy found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundCopy {
    /// Where it is; `None` in a store without UIDs (Maildir).
    pub placement: Option<Placement>,
    /// Whether it bears `\Deleted`.
    pub deleted: bool,
}

/// What came of taking out a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It is gone.
    Removed,
    /// It was left: the one to keep is gone, marked `\Deleted`, or another message.
    KeeperGone,
    /// It was left: it is not there any more, or is another message.
    NotThere,
    /// It was left: UIDVALIDITY has changed since.
    Renumbered,
    /// It was left: the server cannot expunge a single UID (no UIDPLUS), or refuses to.
    Unsupported,
    /// It was left: `go_ahead` said no.
    Withheld,
}

/// One mailbox of one user.
pub trait Mailbox {
    /// Where the mailbox stands now. Creates the mailbox, once, if it is missing. `None` in a store without UIDs
    /// (Maildir).
    ///
    /// # Errors
    /// [`MailboxError`]
    fn position(&mut self) -> Result<Option<Position>, MailboxError>;

    /// Appends a copy. `go_ahead` is asked when everything but the last CRLF is with the server: a literal without it
    /// stores nothing. On `false` it is never sent.
    fn append(&mut self, copy: &NewCopy<'_>, go_ahead: &mut dyn FnMut() -> bool) -> Appended;

    /// Looks for copies. Selects the mailbox anew each time: a session that selected it earlier does not see what
    /// another has appended since.
    ///
    /// # Errors
    /// [`MailboxError`]
    fn find(&mut self, wanted: &Wanted<'_>) -> Result<Found, MailboxError>;

    /// Takes out `extra`, only if it and `keep` are both there, are both what is `wanted` by identity, `keep` is not
    /// marked `\Deleted`, UIDVALIDITY is the same, and `go_ahead`, asked at the last moment, says yes. By UID EXPUNGE.
    ///
    /// # Errors
    /// [`MailboxError`]
    fn remove(
        &mut self,
        extra: Placement,
        keep: Placement,
        wanted: &Wanted<'_>,
        go_ahead: &mut dyn FnMut() -> bool,
    ) -> Result<Removal, MailboxError>;
}

/// What a mailbox store's failure is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailboxFailure {
    /// The server cannot be reached, or its TLS certificate is not to be trusted.
    Unreachable,
    /// The server refuses the service account, or its right to act for this user.
    AccessDenied,
    /// The connection ended.
    ConnectionLost,
    /// No answer within the time that was left.
    TimedOut,
    /// The mailbox is not there and cannot be created.
    NoSuchMailbox,
    /// The user is over quota (RFC 5530 OVERQUOTA).
    OverQuota,
    /// The server said NO or BAD, and said no more.
    Refused,
    /// The server said NO and that trying again is of no use: RFC 5530 CANNOT, LIMIT, NOPERM.
    RefusedForGood,
    /// What came is not the protocol.
    Protocol,
    /// Something on this machine: a file, a directory, a setting.
    Local,
    /// This process itself: a panic in one of its threads, or no thread to be had. Says nothing of how it is set up.
    Internal,
}

impl MailboxFailure {
    /// The words that the ledger has for it; `stats` counts by them.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "the mailbox store is out of reach",
            Self::AccessDenied => "the mailbox store refuses our account",
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

    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Unreachable,
        Self::AccessDenied,
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

/// A failure at a mailbox store.
#[derive(Debug, Error)]
#[error("{doing}: {detail}")]
pub struct MailboxError {
    /// What it is about.
    pub failure: MailboxFailure,
    /// What was being done, for the log: `appending to "INBOX"`.
    pub doing: String,
    /// What the server or the system said, for the log. Never a secret.
    pub detail: String,
}

impl MailboxError {
    /// A failure of the given kind.
    pub fn new(failure: MailboxFailure, doing: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { failure, doing: doing.into(), detail: detail.into() }
    }

    /// Whether trying again later can help. Everything may mend itself but what the server refused for good; being over
    /// quota passes.
    #[must_use]
    pub fn trying_again_can_help(&self) -> bool {
        self.failure != MailboxFailure::RefusedForGood
    }
}
