//! Reading a mailbox: for people who want to know, long after a delivery, what became of its copies.
//!
//! Nothing here creates a mailbox, sets a flag or reads more of a mailbox than it is asked for. A delivery needs none of
//! it, so it is a trait of its own beside [`Mailbox`].

use super::{Mailbox, MailboxError, Placement, Position, Role};
use crate::message::Identity;

/// A copy as the ledger has it.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    /// Whose message it is a copy of.
    pub identity: &'a Identity,
    /// Why the mailbox got it.
    pub role: Role,
    /// Where it was stored; `None` where the store told no UID: a Maildir, a server without UIDPLUS.
    pub placement: Option<Placement>,
}

/// Whether a copy is where the ledger has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is. On an IMAP server: a message of this UID is there; what it is, only [`ReadableMailbox::read`] tells.
    There,
    /// It is there, and bears `\Deleted`.
    MarkedDeleted,
    /// It is not.
    Gone,
    /// The mailbox has another UIDVALIDITY now, so that its UIDs name other messages: it was made anew, or restored.
    Renumbered,
    /// No UID was told when it was stored: it has to be looked for ([`Mailbox::find`]).
    Unplaced,
}

/// What was seen in a mailbox of the copies that should be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Where the mailbox stands; `None` in a store without UIDs (Maildir). A UIDNEXT that is not above a recorded UID,
    /// under the same UIDVALIDITY, means that the mailbox is an older one than the copy was stored in.
    pub position: Option<Position>,
    /// A value for each copy asked about, in their order.
    pub copies: Vec<Presence>,
}

/// One message of a mailbox, as a list has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its UID.
    pub uid: u32,
    /// Whether it bears `\Deleted`.
    pub deleted: bool,
    /// Its size in bytes.
    pub size: u64,
    /// Its Message-ID; a byte beyond ASCII is an `X`, as in an [`Identity`].
    pub message_id: Option<Vec<u8>>,
}

/// A mailbox that can be read. Each call looks at it anew.
pub trait ReadableMailbox: Mailbox {
    /// Which of these copies are where the ledger has them. Asks about their UIDs and no others.
    ///
    /// # Errors
    /// [`MailboxError`]; `NoSuchMailbox` where it is not there, if the server says so in these words.
    fn presence(&mut self, copies: &[Recorded<'_>]) -> Result<Seen, MailboxError>;

    /// The bytes of a copy, with CRLF line ends; `None` if it is gone, or the mailbox was renumbered, or where no UID was
    /// told. Whether they are that message still is for the caller to compare ([`Identity::of`]).
    ///
    /// # Errors
    /// [`MailboxError`]
    fn read(&mut self, copy: &Recorded<'_>) -> Result<Option<Vec<u8>>, MailboxError>;

    /// Lists what arrived at or above a UID, in ascending order of UID. Nothing, where UIDVALIDITY is another, and in a
    /// store without UIDs.
    ///
    /// # Errors
    /// [`MailboxError`]
    fn list(&mut self, since: Position, take: &mut dyn FnMut(Listed)) -> Result<(), MailboxError>;
}
