//! The subcommands that people run, on one machine.

mod a_command_runs_under_a_file_lock;
mod a_lost_maildir_copy_is_restored;
mod audit_of_maildirs;
mod check_asks_postfix;
mod check_on_one_machine;
mod inject_on_one_machine;
mod no_server_holds_a_subcommand_up;
mod prune_on_one_machine;
mod quickstart;
mod replay_envelopes;
mod replay_from_anywhere;
mod replay_goes_on;
mod replay_in_constant_memory;
mod replay_support;
mod shunted_messages_are_retried;
mod the_operations_log;
mod the_queue_by_hand;
mod trace_and_stats_on_one_machine;
mod what_check_finds_on_one_machine;
