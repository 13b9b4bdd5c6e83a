//! Without any server: messages as they come; SQLite, file locks and Maildirs under one directory; what the process says
//! at its end.

#[path = "../support/imap_peer.rs"]
mod imap_peer;
#[path = "../support/program.rs"]
mod program;

mod a_file_lock_excludes_and_dies_with_its_process;
mod a_maildir_keeps_one_copy;
mod any_address_has_a_maildir;
mod any_bytes_are_delivered;
mod imap_append_tells_its_outcomes_apart;
mod imap_find_and_remove_are_careful;
mod imap_login_gives_nothing_away;
mod imap_never_outlives_the_deadline;
mod real_messages_are_delivered_as_they_came;
mod support;
mod ten_at_once_on_a_fresh_directory;
mod the_command_line;
mod the_envelope;
mod the_first_verdict_is_the_last_word;
mod the_ledger_remembers;
mod the_watchdog_ends_what_hangs;
mod what_others_see_of_it;
mod what_we_are_made_of;
