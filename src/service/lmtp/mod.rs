//! The LMTP server (RFC 2033): takes messages from Postfix, hands each out as a [`Handed`](super::inflight_message::Handed), and
//! answers for each recipient.
//!
//! `session` is one conversation without a socket; `command`, `path`, `xforward` and `data` read what the client sends;
//! `spool` keeps a message while it comes in; `replies` is where the answers to a message come from, and `tally` counts
//! them. `conversation` joins a session and a connection; `listener`, `access`, `strangers` and `server` say where clients
//! connect, who may, and how many.

mod access;
mod command;
mod conversation;
mod counters;
mod data;
mod listener;
mod path;
mod replies;
mod server;
mod session;
mod spool;
#[cfg(any(test, feature = "test-properties"))]
pub mod test_properties;
mod unauthenticated_limit;
mod xforward;

pub use counters::{Counted, Tally};
pub(super) use listener::{Connection, Listener, accept};
pub use server::{CannotServe, Server};
pub use session::{Client, Session, Settings, StartTls, Step, Transaction};
pub use spool::Spool;
