//! Scenarios on real servers. `tests/run` starts the servers and runs these; see tests/servers/up for the servers alone.

#[path = "../support/mod.rs"]
mod support;

mod postfix_fragments;
mod two_hosts;
