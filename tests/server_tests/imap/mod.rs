//! What IMAP servers do, and what the client does with them.

mod append_stores_one_copy;
mod authorization_identity_on_servers;
mod corpus_over_imap;
mod dovecot_delivery_instance;
mod find_since_a_uid;
mod least_rights;
mod logins;
mod mailbox_creation;
mod orphaned_locks;
mod over_quota;
mod read_mailboxes;
mod remove_by_uid;
mod round_trips;
mod server_behaviour;
mod session_reuse_on_servers;
