//! Reading a mailbox, long after a delivery, to see what became of its copies.
//!
//! Nothing here creates a mailbox, sets a flag or reads more than it is asked for. A delivery needs none of it, so it is a trait
//! of its own beside [`Mailbox`].

use super::{Mailbox, MailboxError, Placement, Position, Role};
use crate::message::Identity;

/// A copy as the ledger has it.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    pub identity: &'a Identity,
    pub role: Role,
    /// `None` where the store told no UID: a Maildir, a server without UIDPLUS.
    pub placement: Option<Placement>,
}

/// Whether a copy is where the ledger has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// On an IMAP server: a message of this UID is; whether it is that copy, only [`ReadableMailbox::read`] tells.
    There,
    MarkedDeleted,
    Gone,
    /// The mailbox has another UIDVALIDITY now, so that its UIDs name other messages: it was made anew, or restored.
    Renumbered,
    /// No UID was told when it was stored: it has to be looked for ([`Mailbox::find`]).
    Unplaced,
}

/// Which copies are in a mailbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Where the mailbox stands; `None` in a store without UIDs (Maildir). A UIDNEXT not above a recorded UID, under the same
    /// UIDVALIDITY, means that the mailbox is older than the copy: it comes from a backup.
    pub position: Option<Position>,
    /// For each copy asked about, in their order.
    pub copies: Vec<Presence>,
}

/// One message of a mailbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub uid: u32,
    pub deleted: bool,
    /// In bytes.
    pub size: u64,
    /// A byte beyond ASCII is an `X`, as in an [`Identity`].
    pub message_id: Option<Vec<u8>>,
}

/// A mailbox that can be read. Each call looks at it anew.
pub trait ReadableMailbox: Mailbox {
    /// Which of these copies are where the ledger has them. Asks about their UIDs and no others.
    ///
    /// # Errors
    /// `NoSuchMailbox` where the mailbox is not there, if the server says so; any other where the store fails.
    fn presence(&mut self, copies: &[Recorded<'_>]) -> Result<Seen, MailboxError>;

    /// The bytes of a copy, with CRLF line ends; `None` if it is gone, the mailbox was renumbered, or no UID was told. Whether
    /// they still are that message, the caller has to compare ([`Identity::of`]).
    fn read(&mut self, copy: &Recorded<'_>) -> Result<Option<Vec<u8>>, MailboxError>;

    /// Lists what is at or above a UID, in ascending order; nothing where UIDVALIDITY is another, or there are no UIDs.
    fn list(&mut self, since: Position, take: &mut dyn FnMut(Listed)) -> Result<(), MailboxError>;
}
