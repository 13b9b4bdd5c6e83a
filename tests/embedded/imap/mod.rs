//! The IMAP client, against a peer that says what the test tells it to.

mod a_copy_is_looked_for_everywhere;
mod imap_append_tells_its_outcomes_apart;
mod imap_connections_are_begun_ahead;
mod imap_find_and_remove_are_careful;
mod imap_honours_the_authorization_identity;
mod imap_login_gives_nothing_away;
mod imap_mailboxes_are_made_once;
mod imap_mailboxes_are_read_by_uid;
mod imap_never_outlives_the_deadline;
mod imap_sessions_serve_again;
