//! Scenarios with the real servers of `tests/servers`.

mod imap_append_stores_one_copy;
mod imap_finds_what_arrived_since;
mod imap_over_quota;
mod imap_round_trips;
mod imap_takes_out_one_by_its_uid;
mod imap_ways_in;

#[path = "../support/mod.rs"]
mod support;
