//! The IMAP client, against a peer that says what the test tells it to.

mod append_outcomes;
mod authorization_identity;
mod connections;
mod deadline;
mod find_and_remove;
mod login;
mod mailbox_creation_once;
mod read_by_uid;
mod search_for_copies;
mod session_reuse;
