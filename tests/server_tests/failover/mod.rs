//! Several servers, of which one takes writes at a time: which is used, for how long one is waited for, and what a former primary
//! that still answers comes to.

mod behind_haproxy;
mod choice_of_server;
mod failover_under_load;
mod former_primary;
mod galera;
mod group_replication;
mod hanging_first_server;
mod late_last_crlf;
mod lock_exec_after_failover;
mod long_run_of_failovers;
mod lost_commits;
mod postgres_epochs;
mod server_status;
mod wait_for_a_primary;
