//! The subcommands that people run, on one machine.

mod at_a_terminal;
mod audit_maildirs;
mod check_embedded;
mod check_findings_embedded;
mod check_of_postfix_settings;
mod hanging_server_under_each_command;
mod inject_embedded;
mod lock_exec_with_file_locks;
mod manuals;
mod operations_log_embedded;
mod prune_embedded;
mod queue_commands;
mod quickstart;
mod replay_envelopes;
mod replay_memory;
mod replay_resumed;
mod replay_sources;
mod restore_lost_maildir_copy;
mod shunt_retry;
mod trace_and_stats_embedded;
