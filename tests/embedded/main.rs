//! Without any server: messages as they come; SQLite, file locks and Maildirs under one directory; what the process says
//! at its end.

#[path = "../support/imap_peer.rs"]
mod imap_peer;
#[path = "../support/program.rs"]
mod program;
#[path = "../properties/mod.rs"]
mod properties;
#[path = "../support/replay.rs"]
mod replay;

mod a_command_runs_under_a_file_lock;
mod a_file_lock_excludes_and_dies_with_its_process;
mod a_lost_maildir_copy_is_restored;
mod a_maildir_is_read;
mod a_maildir_keeps_one_copy;
mod any_address_has_a_maildir;
mod any_bytes_are_delivered;
mod any_text_is_an_address_a_file_or_a_line;
mod audit_of_maildirs;
mod imap_append_tells_its_outcomes_apart;
mod imap_find_and_remove_are_careful;
mod imap_login_gives_nothing_away;
mod imap_never_outlives_the_deadline;
mod prune_on_one_machine;
mod real_messages_are_delivered_as_they_came;
mod replay_envelopes;
mod replay_from_anywhere;
mod replay_goes_on;
mod replay_in_constant_memory;
mod replay_support;
mod support;
mod ten_at_once_on_a_fresh_directory;
mod the_command_line;
mod the_envelope;
mod the_first_verdict_is_the_last_word;
mod the_ledger_remembers;
mod the_watchdog_ends_what_hangs;
mod trace_and_stats_on_one_machine;
mod what_others_see_of_it;
mod what_the_log_tells;
mod what_we_are_made_of;
