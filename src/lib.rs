//! `maildrop_command` and `maildropd`: each message is delivered exactly once.
//!
//! Postfix runs this program once per recipient. Two recipients of one message are two processes at the same instant, perhaps on
//! two machines. Both owe the sender's Sent mailbox the same copy. They coordinate through a *named lock* in the database that
//! every machine already uses, keyed by the Message-ID. A *ledger* in the same database records what was tried and what was done.
//!
//! Two sentences rank above everything else here: **no message is ever lost, and none is delivered twice.** In doubt between
//! losing and deferring, a delivery defers (exit 75, `EX_TEMPFAIL`), and Postfix tries again. Where neither can be had, a copy is
//! duplicated and never lost: docs/promises.md, "What is not promised".
//!
//! # The modules
//!
//! Read [`delivery`] first: it is one delivery from top to bottom. A module may use modules of a lower layer and none of its own;
//! `tests/embedded/project/layers.rs` checks the code against this table.
//!
//! | layer | module | what it is for |
//! |---|---|---|
//! | 1 | [`base`] | deadlines, back-off, secrets, endpoints, listeners, TLS, times, the log, durable directories: knows no mail |
//! | 2 | [`message`] | bytes in; names, addresses and identity out: no input or output |
//! | 2 | [`imap`] | the IMAP client: wire, connection, session |
//! | 2 | [`database`] | sessions with PostgreSQL, MySQL/MariaDB and SQLite, and their errors |
//! | 3 | [`lock`] | [`lock::NamedLock`]: try or wait for a name, ask whether it is still held, release it |
//! | 3 | [`mailbox`] | [`mailbox::Mailbox`]: position, append, find, remove one. IMAP and Maildir |
//! | 4 | [`ledger`] | [`ledger::Ledger`]: journal, look, record; every statement on its tables, retention, the schema and its migrations |
//! | 5 | [`config`] | the TOML file: one file for all roles |
//! | 6 | [`delivery`] | the five steps of one delivery; the verdict's code and text |
//! | 6 | [`queue`] | the file queue, for mail that no Postfix queue holds; shunted messages |
//! | 6 | [`webhook`] | allowed callback addresses, request contents, secrets and signatures, the schedule of retries |
//! | 7 | [`protocol`] | what clients, front and workers send each other: ZMTP, Paranoid Pirate, requests and results; the control socket |
//! | 7 | [`site`] | from the configuration, or one directory, to one delivery: routing, sessions, mailboxes |
//! | 8 | [`operations`] | the operations of people, as data: trace, stats, audit, check, prune, replay, redelivery, submission |
//! | 9 | [`pipe`] | started by Postfix's pipe(8) or local(8): exit status, one line, watchdog |
//! | 9 | [`service`] | master, front (LMTP, broker), worker, runner, timer, metrics |
//! | 9 | [`notifier`] | publishes events, and sends signed requests to subscribers |
//! | 9 | [`http`] | web UI and REST API on one server |
//! | 9 | [`cli`] | the subcommands for people |
//! | 10 | [`program`] | the two command lines: which role or subcommand runs |
//!
//! Lock and ledger of one engine share one connection: on PostgreSQL the lock *is* a transaction of it.

pub mod base;
pub(crate) mod cli;
pub mod config;
pub mod database;
pub mod delivery;
pub mod http;
pub mod imap;
pub mod ledger;
pub mod lock;
pub mod mailbox;
pub mod message;
pub mod notifier;
pub mod operations;
pub mod pipe;
pub mod program;
pub mod protocol;
pub mod queue;
pub mod service;
pub mod site;
pub mod webhook;
