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
pub use readable_mailbox::{Listed, MailboxPresence, Presence, ReadableMailbox, Recorded};

use crate::base::deadline::Deadline;
use crate::message::{Identity, Role};
use std::time::Duration;
use time::OffsetDateTime;

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

/// Time limits within which the server has to accept an upload.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The longest time for which the server may accept no byte.
    pub stall: Duration,
    /// When the server has to have accepted all bytes.
    pub until: Deadline,
}

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
    /// stored later. The delivery treats this like a crash: the attempt stays open.
    Unknown(MailboxError),
    /// The mailbox had just been removed, so nothing is stored. The mailbox has been recreated, so the caller may append the
    /// copy once more.
    Recreated,
}

#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The Message-ID as [`Message::message_id`](crate::message::Message::message_id) returns it. A message without one has
    /// `None` here, or a generated one that no message in a mailbox contains.
    pub message_id: Option<&'a str>,
    /// Compared with the identity that is computed from each candidate's bytes in the mailbox.
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
pub struct FoundCopies {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The server has confirmed the removal.
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
    /// caller then calls [`complete`](Self::complete) or [`withhold`](Self::withhold). Without a `pace` the upload may last
    /// until the deadline of the delivery.
    ///
    /// # Errors
    /// The result of an append that has ended here. Nothing is stored.
    fn upload(&mut self, copy: &NewCopy<'_>, pace: Option<Pace>) -> Result<(), Appended>;

    /// Sends the last CRLF of the upload and does not wait for the answer, so that several mailboxes can store their copies
    /// in parallel.
    fn complete(&mut self);

    /// Waits for at most `patience`. `true` if [`answer`](Self::answer) would not block.
    fn is_answered_within(&mut self, _patience: Duration) -> bool {
        true
    }

    /// The answer to the completed upload.
    fn answer(&mut self) -> Appended;

    /// Gives up the upload without its last CRLF, so nothing is stored. The session cannot be used further.
    fn withhold(&mut self);

    /// Sets the deadline for the answers to the next commands, if it is earlier than the delivery's. `None` restores the
    /// delivery's.
    fn patient_until(&mut self, until: Option<Deadline>);

    /// Appends one copy. `go_ahead` is called right before the last CRLF; if it returns `false`, that CRLF is never sent.
    fn append(&mut self, copy: &NewCopy<'_>, go_ahead: &mut dyn FnMut() -> bool) -> Appended {
        // Twice, because a mailbox that was removed meanwhile is recreated once.
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

    /// Searches for copies. Selects the mailbox each time: a session that selected it earlier need not see what another
    /// session has appended since.
    ///
    /// # Errors
    /// If the store fails: then nothing is known of the copies.
    fn find(&mut self, wanted: &Wanted<'_>) -> Result<FoundCopies, MailboxError>;

    /// Removes `extra` with UID EXPUNGE, if all of these hold:
    ///
    /// - UIDVALIDITY is the same;
    /// - `extra` and `keep` both exist, and their bytes have the identity `wanted`;
    /// - `keep` is not marked `\Deleted`;
    /// - `extra` names no Bcc recipients that `keep` does not name;
    /// - `go_ahead`, called last, returns `true`.
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
