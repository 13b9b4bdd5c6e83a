//! `maildrop_command` and `maildropd`: one message, delivered exactly once.
//!
//! Postfix runs this program once per recipient. Two recipients of one message are two processes, perhaps on two
//! machines, at the same instant; both owe the sender's Sent mailbox the same copy. They agree through a *named lock* in
//! the database that every machine already talks to, keyed by the Message-ID, and through a *ledger* in the same
//! database that remembers what was tried and what was done.
//!
//! Two sentences rank above everything else here: **no message is ever lost, and none is there twice.** In doubt
//! between losing and deferring, a delivery defers (exit 75, `EX_TEMPFAIL`), and Postfix tries again.
//!
//! # The map
//!
//! Read [`delivery`] first: it is one delivery from top to bottom. The rooms, from the ground up; each may
//! use those above its own line and no others, and those of floor 6 do not use each other. `tests/embedded/the_floors.rs`
//! holds the code to this table.
//!
//! | floor | room | what it is for |
//! |---|---|---|
//! | 1 | [`base`] | deadlines, secrets, endpoints, TLS, times, the log, durable directories: knows no mail |
//! | 2 | [`message`] | bytes in; names, addresses and identity out: no input or output |
//! | 2 | [`imap`] | the IMAP client: wire, conversation, session |
//! | 2 | [`database`] | sessions with PostgreSQL, MySQL/MariaDB and SQLite, and what goes wrong in them |
//! | 3 | [`lock`] | [`lock::NamedLock`]: try or wait for a name; is it still mine; let go |
//! | 3 | [`mailbox`] | [`mailbox::Mailbox`]: where does it stand; append; find; remove one. IMAP and Maildir |
//! | 3 | [`schema`] | the migrations in `sql/` |
//! | 3 | [`ledger`] | [`ledger::Ledger`]: attempts, messages, copies, typed outcomes; every statement on its tables, for reading and forgetting too; what `check` asks |
//! | 3 | [`routing`] | which mailboxes an address has |
//! | 3 | [`config`] | the TOML file |
//! | 4 | [`delivery`] | the five steps of one delivery; the verdict's code and text |
//! | 4 | [`site`] | opens what one delivery needs, by a configuration or in one directory |
//! | 5 | [`webhook`] | where a callback may be, what it is sent, secrets and signatures, when a notification is tried again |
//! | 5 | [`operations`] | trace, stats, audit, prune, check, replay: data out, nothing printed |
//! | 5 | [`blocking`] | asks the ledger and opens mailboxes on behalf of code that must not block |
//! | 5 | [`zmtp`] | ZeroMQ's frames and the Paranoid Pirate's words: knows no mail |
//! | 5 | [`handover`] | what a way in hands over to the service, and what it is told |
//! | 5 | [`queue`] | what has no Postfix behind it: files that are never lost, claims, slices; and copies of messages that crashed workers |
//! | 5 | [`intake`] | takes mail into that queue: who is known, how large it may be |
//! | 6 | [`pipe`] | the way in for pipe(8) and local(8): exit status, one line, watchdog |
//! | 6 | [`cli`] | what people type |
//! | 6 | [`push`] | the notifier: publishes events, and tells subscribers by signed requests |
//! | 6 | [`api`] | the REST API: subscriptions, events, messages, and mail in by HTTP |
//! | 6 | [`serve`] | the service: LMTP, broker, workers, and the master that starts them |
//! | 6 | [`web`] | the page, by HTTP |
//! | 7 | [`command`] | the command line as a whole: a delivery, or a subcommand |
//! | 7 | [`service`] | the command line of `maildropd`: the master, or one of its roles |
//!
//! Lock and ledger of one engine share one connection: on PostgreSQL the lock *is* a transaction of it.

pub(crate) mod api;
pub mod base;
pub mod blocking;
pub(crate) mod cli;
pub mod command;
pub mod config;
pub mod database;
pub mod delivery;
pub mod handover;
pub mod imap;
pub(crate) mod intake;
pub mod ledger;
pub mod lock;
pub mod mailbox;
pub mod message;
pub mod operations;
pub mod pipe;
pub mod push;
pub mod queue;
pub(crate) mod routing;
pub mod schema;
pub mod serve;
pub mod service;
pub mod site;
pub mod web;
pub mod webhook;
pub mod zmtp;
