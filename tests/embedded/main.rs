//! Scenarios that need no server.

mod imap_append_tells_its_outcomes_apart;
mod imap_find_and_remove_are_careful;
mod imap_login_gives_nothing_away;
mod imap_never_outlives_the_deadline;

#[path = "../support/imap_peer.rs"]
mod imap_peer;
