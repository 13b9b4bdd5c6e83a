//! What IMAP servers do, and what the client does with them.

mod imap_an_instance_for_deliveries;
mod imap_append_stores_one_copy;
mod imap_finds_what_arrived_since;
mod imap_least_rights;
mod imap_mailbox_in_the_making;
mod imap_mailboxes_are_read;
mod imap_over_quota;
mod imap_round_trips;
mod imap_sessions_serve_again;
mod imap_takes_out_one_by_its_uid;
mod imap_ways_in;
mod locks_of_the_dead;
mod on_whose_behalf;
mod real_messages;
mod what_imap_servers_do;
