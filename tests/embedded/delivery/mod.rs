//! One delivery, on one machine: the command line, its exit status, its copies and its log line.

mod arbitrary_bytes;
mod arbitrary_text;
mod bcc;
mod client_died;
mod command_line;
mod corpus_to_maildirs;
mod delivery_log;
mod envelope;
mod exit_status;
mod root_and_other_users;
mod same_message_twice;
mod secrets_are_not_visible;
mod several_recipients_under_one_lock;
mod step_by_step;
mod ten_on_a_new_directory;
mod via_the_service;
mod watchdog;
