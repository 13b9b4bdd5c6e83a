//! ZeroMQ's frames (ZMTP 3.0, <https://rfc.zeromq.org/spec/23/>) and the Paranoid Pirate's words
//! (<https://rfc.zeromq.org/spec/6/>), without input or output but for one blocking adapter.
//!
//! Of ZMTP there is what we need: the NULL mechanism, and the four socket types of requests and replies. ZeroMQ's own library
//! and the guide's programs are held against it (`tests/server_tests/service`). No peer can make it hold more than its
//! [`Settings`] allow: what is too long is refused when it is announced.

mod blocking;
mod connection;
mod error;
mod frame;
mod handshake;
mod pirate;
#[cfg(any(test, feature = "test-properties"))]
pub mod test_properties;

pub use blocking::{Blocking, BlockingError};
pub use connection::{Connection, Message, Settings};
pub use error::ZmtpError;
pub use handshake::{Peer, SocketType};
pub use pirate::{
    FIRST_PAUSE, FromWorker, INTERVAL, LIVENESS, LONGEST_PAUSE, NoPirate, ToWorker, from_client, to_client,
};
