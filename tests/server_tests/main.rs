//! Scenarios on real servers. `tests/run` starts the servers and runs these; see tests/servers/up for the servers alone.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/mysql.rs"]
mod support_mysql;

mod engines;
mod faults;
mod hosts;
mod imap;
mod operator;
mod postfix;
mod push;
mod service;
