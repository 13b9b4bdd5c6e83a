//! The subcommands that people run.

mod audit;
mod check_and_migrate;
mod documented_commands_on_servers;
pub mod finish_owed_copies;
mod lock_exec;
mod lock_list;
mod older_release;
mod prune;
mod quickstart_on_servers;
mod replay_missing_copies;
mod replay_on_each_engine;
mod replay_queue_file;
mod restore_lost_copies;
mod sizing_model;
mod stats;
mod trace;
