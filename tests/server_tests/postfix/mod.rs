//! Deliveries by a real Postfix, and what it makes of each exit.

mod exit_matrix;
mod few_database_connections;
mod lock_held_elsewhere;
mod passwords_in_crashes;
mod postfix_fragments;
mod refusals;
mod routing_on_servers;
mod sent_copies;
mod split_domain;
mod two_hosts;
mod two_namespaces;
