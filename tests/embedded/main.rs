//! Without any server: SQLite, file locks and Maildirs under one directory, and what the process says at its end.

mod support;

mod a_file_lock_excludes_and_dies_with_its_process;
mod a_maildir_keeps_one_copy;
mod any_address_has_a_maildir;
mod ten_at_once_on_a_fresh_directory;
mod the_first_verdict_is_the_last_word;
mod the_ledger_remembers;
mod the_watchdog_ends_what_hangs;
