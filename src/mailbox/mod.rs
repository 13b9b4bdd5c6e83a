//! Mailboxes: where copies live.
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

/// How fast the server has to take an upload.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long it may take no byte of it.
    pub stall: Duration,
    /// When it has to have all of it.
    pub until: Deadline,
}

/// The result of an append.
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
    /// It was sent, and the answer is missing, or tells of a failure: stored, not stored, or stored later. It counts as a crash.
    Unknown(MailboxError),
    /// The mailbox was removed a moment ago, so that nothing is stored; it has been made anew: the copy may be appended once more.
    MadeAnew,
}

/// What to look for in a mailbox.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The Message-ID as [`Message::message_id`](crate::message::Message::message_id) has it; `None`, or the one that was made
    /// up, which no message has, where it has none.
    pub message_id: Option<&'a str>,
    /// Recomputed for each candidate from its bytes in the mailbox.
    pub identity: &'a Identity,
    pub role: Role,
    pub matching: Matching,
    /// Only what is at or above this UID. `None`, or a mailbox with another UIDVALIDITY: the whole mailbox.
    pub since: Option<Position>,
    /// In a search of the whole mailbox: nothing that arrived before this day (by INTERNALDATE, a day earlier to be safe about
    /// time zones).
    pub not_before: OffsetDateTime,
}

/// What makes a candidate a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matching {
    /// The same [`Identity`](crate::message::Identity).
    Identity,
    /// The same Message-ID: a copy that the author's own mail program has saved may differ in its headers.
    MessageId,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Whether the search could begin at [`Wanted::since`]: UIDVALIDITY is the same. Nothing is ever removed otherwise.
    pub in_range: bool,
    /// The matching copies in ascending order of UID.
    pub copies: Vec<FoundCopy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundCopy {
    /// `None` in a store without UIDs (Maildir).
    pub placement: Option<Placement>,
    /// Whether it bears `\Deleted`.
    pub deleted: bool,
}

/// The result of taking out a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It is gone.
    Removed,
    /// It was left: the one to keep is gone, marked `\Deleted`, or another message.
    KeeperGone,
    /// It was left: it is not there any more, or is another message.
    NotThere,
    /// It was left: it names recipients that the one to keep does not (Bcc), so its owner put it there.
    TellsMore,
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
    /// Where the store fails, or the mailbox is not there and cannot be created.
    fn position(&mut self) -> Result<Option<Position>, MailboxError>;

    /// The first half of an append: everything but the last CRLF goes to the server. A literal without it stores nothing. Then
    /// comes either [`complete`](Self::complete) or [`withhold`](Self::withhold). Without a `pace` it may take until the end of the
    /// delivery.
    ///
    /// # Errors
    /// What came of it, if it is over already: nothing is stored.
    fn upload(&mut self, copy: &NewCopy<'_>, pace: Option<Pace>) -> Result<(), Appended>;

    /// Sends the last CRLF of what was uploaded, and does not wait for the answer: several mailboxes may work on theirs at once.
    fn complete(&mut self);

    /// Whether the answer to what was completed has come, or comes within this time; or none is waited for.
    fn is_answered_within(&mut self, _patience: Duration) -> bool {
        true
    }

    /// The answer to what was completed.
    fn answer(&mut self) -> Appended;

    /// Never sends the last CRLF of what was uploaded. The session is of no further use.
    fn withhold(&mut self);

    /// Until when the server may take for what it is asked next; at most until the end of the delivery. `None`: until then.
    fn patient_until(&mut self, until: Option<Deadline>);

    /// A whole append of one copy. `go_ahead` is asked between its halves; on `false` the last CRLF is never sent.
    fn append(&mut self, copy: &NewCopy<'_>, go_ahead: &mut dyn FnMut() -> bool) -> Appended {
        // It can be made anew once.
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
                Appended::MadeAnew => {}
                appended => return appended,
            }
        }
        Appended::MadeAnew
    }

    /// Looks for copies. Selects the mailbox anew each time: a session that selected it earlier does not see what
    /// another has appended since.
    ///
    /// # Errors
    /// Where the store fails: then nothing is known of the copies.
    fn find(&mut self, wanted: &Wanted<'_>) -> Result<Found, MailboxError>;

    /// Takes out `extra`, by UID EXPUNGE, only if it and `keep` are both there and have the identity `wanted`, `keep` is not
    /// marked `\Deleted`, UIDVALIDITY is the same, and `go_ahead`, asked at the last moment, says yes.
    ///
    /// # Errors
    /// Where the store fails: the copy may still be taken out later.
    fn remove(
        &mut self,
        extra: Placement,
        keep: Placement,
        wanted: &Wanted<'_>,
        go_ahead: &mut dyn FnMut() -> bool,
    ) -> Result<Removal, MailboxError>;
}
