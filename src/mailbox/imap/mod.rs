//! Mailboxes on an IMAP server: what a delivery asks of one, in the words of [`crate::imap`].

mod append;
pub mod authorization;
mod candidate;
mod mailbox;
mod reading;

pub use mailbox::ImapMailbox;
