//! What is left when something dies, hangs, is cut off or comes malformed.

mod a_large_message_that_comes_slowly;
mod a_stopped_postfix;
mod all_at_once;
pub mod bad_input;
mod commits_in_doubt;
mod connections_cut_at_every_point;
mod deliveries_cut_short;
mod failing_surroundings;
mod peers_that_fall_silent;
mod real_kills;
mod real_kills_under_postfix;
mod real_network_that_drops_everything;
mod real_outages;
mod replay_survives_a_bug;
mod servers_that_stand_still;
