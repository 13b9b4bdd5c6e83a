//! Mailboxes on an IMAP server: what a delivery asks of one, in the words of [`crate::imap`].

mod append;
pub mod authorization;
mod examine;
mod mailbox;
mod message_id_match;

pub use mailbox::ImapMailbox;
