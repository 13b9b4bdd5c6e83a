//! Mailboxes: the stores of copies.
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

use crate::base::deadline::Deadline;
use crate::message::{Identity, Role};
use std::time::Duration;
use time::OffsetDateTime;

/// A copy about to be appended.
#[derive(Clone, Copy, Debug)]
pub struct NewCopy<'a> {
    /// The message with CRLF line ends and no NUL.
    pub bytes: &'a [u8],
    pub identity: &'a Identity,
    pub role: Role,
    /// Whether it is marked `\Seen`, as the Sent copy is.
    pub seen: bool,
    /// The INTERNALDATE.
    pub arrived: OffsetDateTime,
}

/// The time limits for the server to accept an upload.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The longest time for which the server may accept no byte.
    pub stall: Duration,
    /// When the server has to have accepted all bytes.
    pub until: Deadline,
}

/// The result of an append.
#[derive(Debug)]
pub enum Appended {
    /// The server reports that it has stored the copy, with its UID if the server supports UIDPLUS.
    Stored(Option<Placement>),
    /// `go_ahead` returned `false`: the last CRLF was never sent, so nothing is stored. The session cannot be used further.
    Withheld,
    /// The server refused the copy: nothing is stored.
    Refused(MailboxError),
    /// The append failed before the last CRLF was sent: nothing is stored.
    NotSent(MailboxError),
    /// The last CRLF was sent, and the answer is missing or reports a failure. The copy is stored, is not stored, or will be
    /// stored later. This counts as a crash.
    Unknown(MailboxError),
    /// The mailbox had just been removed, so nothing is stored. It has been recreated: the caller may append the copy once
    /// more.
    Recreated,
}

/// The copy to search for in a mailbox.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The Message-ID as [`Message::message_id`](crate::message::Message::message_id) returns it. A message without one has
    /// `None` here, or a generated one that no message in a mailbox contains.
    pub message_id: Option<&'a str>,
    /// Recomputed for each candidate from its bytes in the mailbox.
    pub identity: &'a Identity,
    pub role: Role,
    pub matching: Matching,
    /// The search begins at this UID. With `None`, or in a mailbox with another UIDVALIDITY, it covers the whole mailbox.
    pub since: Option<Position>,
    /// In a search of the whole mailbox: no message that arrived before this day. The INTERNALDATE counts, with one day of
    /// tolerance for time zones.
    pub not_before: OffsetDateTime,
}

/// What makes a candidate a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matching {
    /// The same [`Identity`](crate::message::Identity).
    Identity,
    /// The same Message-ID: a copy that the author's own mail program has saved may have other headers.
    MessageId,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Whether the search could begin at [`Wanted::since`], because UIDVALIDITY is the same. Otherwise no copy is ever
    /// removed.
    pub in_range: bool,
    /// The matching copies in ascending order of UID.
    pub copies: Vec<FoundCopy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundCopy {
    /// `None` in a store without UIDs (Maildir).
    pub placement: Option<Placement>,
    /// Whether it has the flag `\Deleted`.
    pub deleted: bool,
}

/// The result of removing a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It is gone.
    Removed,
    /// Not removed: the copy to keep is gone, marked `\Deleted`, or another message.
    KeeperGone,
    /// Not removed: the copy is no longer there, or is another message.
    NotThere,
    /// Not removed: the copy names Bcc recipients that the copy to keep does not name, so the mailbox's owner put it there.
    TellsMore,
    /// Not removed: UIDVALIDITY has changed since.
    Renumbered,
    /// Not removed: the server cannot expunge a single UID (no UIDPLUS), or refuses to.
    Unsupported,
    /// Not removed: `go_ahead` returned `false`.
    Withheld,
}

/// One mailbox of one user.
pub trait Mailbox {
    /// The mailbox's present position. Creates the mailbox, once, if it is missing. `None` in a store without UIDs (Maildir).
    ///
    /// # Errors
    /// If the store fails, or the mailbox is missing and cannot be created.
    fn position(&mut self) -> Result<Option<Position>, MailboxError>;

    /// The first half of an append: sends all bytes except the last CRLF. Without that CRLF the server stores nothing. The
    /// caller then calls either [`complete`](Self::complete) or [`withhold`](Self::withhold). Without a `pace` the upload may
    /// last until the end of the delivery.
    ///
    /// # Errors
    /// If the append has already ended: its result. Nothing is stored.
    fn upload(&mut self, copy: &NewCopy<'_>, pace: Option<Pace>) -> Result<(), Appended>;

    /// Sends the last CRLF of the upload and does not wait for the answer, so that several mailboxes can store their copies
    /// in parallel.
    fn complete(&mut self);

    /// Whether the answer to the completed upload has come, comes within this time, or is not expected at all.
    fn is_answered_within(&mut self, _patience: Duration) -> bool {
        true
    }

    /// The answer to the completed upload.
    fn answer(&mut self) -> Appended;

    /// Never sends the last CRLF of the upload. The session cannot be used further.
    fn withhold(&mut self);

    /// Sets the deadline for the server's answers to the next commands, at most the end of the delivery. `None`: the end of the
    /// delivery.
    fn patient_until(&mut self, until: Option<Deadline>);

    /// A whole append of one copy. `go_ahead` is called between the two halves; on `false` the last CRLF is never sent.
    fn append(&mut self, copy: &NewCopy<'_>, go_ahead: &mut dyn FnMut() -> bool) -> Appended {
        // The mailbox can be recreated once.
        for _ in 0..2 {
            if let Err(appended) = self.upload(copy, None) {
                return appended;
            }
            if !go_ahead() {
                self.withhold();
                return Appended::Withheld;
            }
            self.complete();
            match self.answer() {
                Appended::Recreated => {}
                appended => return appended,
            }
        }
        Appended::Recreated
    }

    /// Searches for copies. Selects the mailbox each time: a session that selected it earlier does not see what another
    /// session has appended since.
    ///
    /// # Errors
    /// If the store fails: then nothing is known of the copies.
    fn find(&mut self, wanted: &Wanted<'_>) -> Result<Found, MailboxError>;

    /// Removes `extra` with UID EXPUNGE, if all of these hold: `extra` and `keep` both exist and have the identity `wanted`;
    /// `keep` is not marked `\Deleted`; UIDVALIDITY is the same; `go_ahead`, called at the last moment, returns `true`.
    ///
    /// # Errors
    /// If the store fails: the server may still remove the copy later.
    fn remove(
        &mut self,
        extra: Placement,
        keep: Placement,
        wanted: &Wanted<'_>,
        go_ahead: &mut dyn FnMut() -> bool,
    ) -> Result<Removal, MailboxError>;
}
