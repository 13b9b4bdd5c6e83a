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
#[path = "../support/queue_of_tests.rs"]
mod queue_of_tests;
#[path = "../support/replay.rs"]
mod replay;
#[path = "../support/terminal.rs"]
mod terminal;
#[path = "../support/visitor.rs"]
mod visitor;

mod commands;
mod delivery;
mod imap;
mod project;
mod service;
mod sqlite_and_maildir;
#[path = "../support/embedded/mod.rs"]
mod support;
mod web_ui;
