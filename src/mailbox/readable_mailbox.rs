//! Reads a mailbox long after a delivery, to show whether its copies still exist.
//!
//! No method here creates a mailbox or sets a flag. Deliveries need none of them, so they are not in [`Mailbox`].

use super::{Mailbox, MailboxError, Placement, Position, Role};
use crate::message::Identity;

/// A copy as the ledger records it.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    pub identity: &'a Identity,
    pub role: Role,
    /// `None` if the store reported no UID: a Maildir, or a server without UIDPLUS.
    pub placement: Option<Placement>,
}

/// Whether a copy is at its recorded place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// On an IMAP server: a message with this UID exists. Only [`ReadableMailbox::read`] shows whether it is that copy.
    There,
    MarkedDeleted,
    Gone,
    /// The mailbox has another UIDVALIDITY now, so its UIDs name other messages: it was recreated, or restored.
    Renumbered,
    /// The store reported no UID for the copy, so it has to be searched for ([`Mailbox::find`]).
    Unplaced,
}

/// The presence of copies in a mailbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailboxPresence {
    /// `None` in a store without UIDs (Maildir). If UIDNEXT is not above a recorded UID of the same UIDVALIDITY, the mailbox
    /// is older than the copy: it was restored from a backup.
    pub position: Option<Position>,
    /// One presence for each requested copy, in the order of the request.
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

/// A mailbox that can be read. No call relies on an earlier call's view of the mailbox.
pub trait ReadableMailbox: Mailbox {
    /// Which of these copies are at their recorded places. The cost does not grow with the mailbox: only their UIDs are
    /// queried.
    ///
    /// # Errors
    /// `NoSuchMailbox` if the server says that the mailbox does not exist; any other failure if the store fails.
    fn presence(&mut self, copies: &[Recorded<'_>]) -> Result<MailboxPresence, MailboxError>;

    /// The bytes of a copy, with CRLF line ends; `None` if it is gone, the mailbox was renumbered, or no UID was reported.
    /// The caller has to compare the bytes with the message ([`Identity::of`]).
    fn read(&mut self, copy: &Recorded<'_>) -> Result<Option<Vec<u8>>, MailboxError>;

    /// Lists the messages from a UID on, in ascending order. Lists nothing if UIDVALIDITY differs, or the store has no UIDs.
    fn list(&mut self, since: Position, take: &mut dyn FnMut(Listed)) -> Result<(), MailboxError>;
}
