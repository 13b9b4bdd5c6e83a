//! Deliveries by a real Postfix, and what it makes of each exit.

mod cells;
mod exit_matrix;
mod passwords;
mod postfix_fragments;
mod refusals;
mod routing;
mod sent_copies;
mod the_lock_held_elsewhere;
mod two_hosts;
mod two_hundred_on_twenty_connections;
mod two_namespaces;
