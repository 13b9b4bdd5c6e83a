//! Mailboxes on an IMAP server: the operations of a delivery as commands of [`crate::imap`].

mod append;
pub mod authorization;
mod examine;
mod mailbox;
mod message_id_match;

pub use mailbox::ImapMailbox;
