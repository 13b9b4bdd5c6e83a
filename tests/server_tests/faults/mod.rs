//! What is left when something dies, hangs, is cut off or comes malformed.

mod all_recipients_at_once;
pub mod bad_input;
mod commits_in_doubt;
mod connections_cut_at_every_point;
mod failing_environment;
mod interrupted_deliveries;
mod network_that_drops_everything;
mod postfix_stop;
mod random_kills;
mod random_kills_under_postfix;
mod replay_survives_a_bug;
mod server_outages;
mod slow_large_message;
mod stopped_servers;
mod unresponsive_peers;
