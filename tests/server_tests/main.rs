//! Scenarios on real servers. `tests/run` starts the servers and runs these; see tests/servers/up for the servers alone.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/mysql.rs"]
mod support_mysql;

mod administration;
mod all_at_once;
mod bad_input;
mod cut_at_every_point;
mod cut_short;
mod exit_matrix;
mod failing_surroundings;
mod imap_append_stores_one_copy;
mod imap_finds_what_arrived_since;
mod imap_mailbox_in_the_making;
mod imap_over_quota;
mod imap_round_trips;
mod imap_takes_out_one_by_its_uid;
mod imap_ways_in;
mod mysql_connecting;
mod mysql_contention;
mod mysql_hostile_text;
mod mysql_indexes;
mod mysql_inspection;
mod mysql_ledger;
mod mysql_lock;
mod mysql_schema;
mod mysql_source;
mod postfix_fragments;
mod postgres_connection;
mod postgres_inspection;
mod postgres_ledger;
mod postgres_lock;
mod postgres_migrations;
mod postgres_pgbouncer;
mod postgres_record;
mod postgres_round_trips;
mod real_kills;
mod routing;
mod sent_copies;
mod the_lock_held_elsewhere;
mod two_hosts;
mod ways_to_connect;
mod what_imap_servers_do;
mod what_is_recorded;
mod what_mysql_does;
mod what_pgbouncer_does;
mod what_postgresql_does;
