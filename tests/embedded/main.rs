//! Without any server: messages as they come; SQLite, file locks and Maildirs under one directory; what the process says
//! at its end.

#[path = "../support/broker.rs"]
mod broker;
#[path = "../support/crawl.rs"]
mod crawl;
#[path = "../support/imap_accounts.rs"]
mod imap_accounts;
#[path = "../support/imap_peer.rs"]
mod imap_peer;
#[path = "../support/lmtp.rs"]
mod lmtp;
#[path = "../support/not_run.rs"]
mod not_run;
#[path = "../support/pages.rs"]
mod pages;
#[path = "../support/program.rs"]
mod program;
#[path = "../properties/mod.rs"]
mod properties;
#[path = "../support/replay.rs"]
mod replay;
#[path = "../support/visitor.rs"]
mod visitor;

mod a_caller_that_died;
mod a_file_lock_excludes_and_dies_with_its_process;
mod a_maildir_is_read;
mod a_maildir_keeps_one_copy;
mod a_session_serves_one_delivery_after_another;
mod any_address_has_a_maildir;
mod any_bytes_are_delivered;
mod any_text_is_an_address_a_file_or_a_line;
mod blind_copies;
mod handed_over_to_the_service;
mod imap;
mod one_delivery_step_by_step;
mod operator;
mod project;
mod real_messages_are_delivered_as_they_came;
mod root_keeps_out_of_other_peoples_directories;
mod service;
mod several_recipients_under_one_lock;
mod support;
mod ten_at_once_on_a_fresh_directory;
mod the_command_line;
mod the_envelope;
mod the_file_queue;
mod the_first_verdict_is_the_last_word;
mod the_ledger_remembers;
mod the_lmtp_server;
mod the_page;
mod the_page_behind_a_proxy;
mod the_page_delivers_again;
mod the_runner;
mod the_watchdog_ends_what_hangs;
mod what_comes_first_is_there;
mod what_is_in_a_message;
mod what_others_see_of_it;
mod what_the_log_tells;
