//! Scenarios on real servers. `tests/run` starts the servers and runs these; see tests/servers/up for the servers alone.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/mysql.rs"]
mod support_mysql;

mod commands;
mod engines;
mod failover;
mod faults;
#[path = "../support/servers/mod.rs"]
mod fixtures;
mod imap;
mod notifications;
mod postfix;
mod service;
mod web_ui;
