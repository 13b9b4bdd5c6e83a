//! The LMTP server (RFC 2033): it receives messages from Postfix, passes each on as a
//! [`InflightMessage`](super::inflight_message::InflightMessage), and replies for each recipient.
//!
//! `session` is one conversation without a socket. `command`, `path`, `xforward` and `data` parse the client's bytes. `spool`
//! stores a message while it is received. `replies` writes the replies to a message, and `counters` counts them.
//!
//! `conversation` connects a session with a connection. `listener`, `access`, `unauthenticated_limit` and `server` decide where
//! clients connect, which may, and how many.

mod access;
mod command;
mod conversation;
mod counters;
mod data;
mod listener;
mod path;
#[cfg(any(test, feature = "test-properties"))]
pub mod property_tests;
mod replies;
mod server;
mod session;
mod spool;
mod unauthenticated_limit;
mod xforward;

pub use counters::{LmtpCounters, LmtpTally};
pub(super) use listener::{Connection, Listener};
pub use server::LmtpServer;
pub use session::{LmtpSession, Settings, StartTls, Step, Transaction};
pub use spool::Spool;
