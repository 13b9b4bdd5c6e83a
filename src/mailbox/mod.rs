//! Mailboxes: where copies live. Uses `base`, `message` and `imap`.
//!
//! One value of [`Mailbox`] is one mailbox of one user, opened and authenticated.

pub mod imap;
mod maildir;
mod moved_copy;
mod readable_mailbox;

pub use self::imap::ImapMailbox;
pub use crate::imap::{MailboxError, MailboxFailure, Placement, Position};
pub use maildir::MaildirMailbox;
pub use moved_copy::look_everywhere;
pub use readable_mailbox::{Listed, Presence, ReadableMailbox, Recorded, Seen};

use crate::message::{Identity, Role};
use time::OffsetDateTime;

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
