//! `maildrop_command`: one message, one recipient, delivered exactly once.
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
//! Read [`delivery`] first: it tells the story of one delivery from top to bottom. The three things that it relies on
//! vary independently and are traits:
//!
//! | trait | says | engines |
//! |---|---|---|
//! | [`lock::NamedLock`] | try or wait for a name; is it still mine; who holds it; let go | PostgreSQL, MySQL/MariaDB, a file lock (embedded) |
//! | [`ledger::Ledger`] | attempts, messages, copies: what happened | PostgreSQL, MySQL/MariaDB, SQLite (embedded) |
//! | [`mailbox::Mailbox`] | where does it stand; append; find since; remove one | IMAP, Maildir (embedded) |
//!
//! Lock and ledger of one engine share one connection ([`database`]): on PostgreSQL the lock *is* a transaction of it.
//!
//! [`message`] turns bytes into a message and gives it its identity; [`routing`] says which mailboxes an address has;
//! [`config`] reads the TOML file; [`schema`] applies what lies in `sql/`; [`cli`] is the command line, a file per
//! subcommand; [`site`] opens what one delivery needs, side by side, and [`embedded`] is the site without servers; [`tls`]
//! is built only where a connection wants it; [`log`] sends records to syslog, journald or a file; [`deadline`] bounds every
//! wait, and [`watchdog`] has the last word on it. [`replay`] feeds the same delivery from files, mboxes and the ledger.

pub mod audit;
pub mod cli;
pub mod config;
pub mod core_dumps;
pub mod database;
pub mod deadline;
pub mod delivery;
pub mod embedded;
#[cfg(feature = "test-faults")]
mod fault;
pub mod ledger;
pub mod lock;
pub mod log;
pub mod mailbox;
pub mod message;
pub mod redelivery;
pub mod replay;
pub mod routing;
pub mod schema;
pub mod site;
pub mod tls;
pub mod watchdog;
