//! Several servers, of which one takes writes at a time: which is used, for how long one is waited for, and what a former primary
//! that still answers comes to.

mod a_command_under_a_lock;
mod a_fail_over_under_load;
mod a_former_primary;
mod a_last_crlf_that_comes_late;
mod a_long_run_of_fail_overs;
mod behind_haproxy;
mod epochs_of_postgresql;
mod galera;
mod gate;
mod group;
mod group_replication;
mod left_behind;
mod pair;
mod patroni;
mod storm;
mod waiting;
mod what_servers_say_of_themselves;
mod what_was_forgotten;
mod which_server_is_used;
