//! Scenarios against real servers, a file each.

#[path = "../support/mod.rs"]
mod support;

mod postgres_connection;
mod postgres_inspection;
mod postgres_ledger;
mod postgres_lock;
mod postgres_migrations;
mod postgres_pgbouncer;
mod postgres_record;
mod postgres_round_trips;
