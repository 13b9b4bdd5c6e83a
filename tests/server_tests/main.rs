//! Scenarios on real servers. `tests/run` starts the servers and runs these; see tests/servers/up for the servers alone.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/mysql.rs"]
mod support_mysql;

mod administration;
mod bad_input;
mod cut_short;
mod failing_surroundings;
mod mysql_connecting;
mod mysql_contention;
mod mysql_hostile_text;
mod mysql_indexes;
mod mysql_inspection;
mod mysql_ledger;
mod mysql_lock;
mod mysql_schema;
mod mysql_source;
mod routing;
mod sent_copies;
mod the_lock_held_elsewhere;
mod what_is_recorded;
