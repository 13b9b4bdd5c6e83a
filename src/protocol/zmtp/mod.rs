//! ZeroMQ's frames (ZMTP 3.0, <https://rfc.zeromq.org/spec/23/>) and the Paranoid Pirate's messages
//! (<https://rfc.zeromq.org/spec/6/>). Except for one blocking adapter, there is no input or output here.
//!
//! Of ZMTP, the NULL mechanism and the four socket types of requests and replies are implemented. Tests connect it with
//! ZeroMQ's own library and the guide's programs (`tests/server_tests/service`). A peer cannot make it use more memory than
//! its [`Settings`] allow: a frame that is too long is refused when its length arrives.

mod blocking_connection;
mod connection;
mod error;
mod frame;
mod handshake;
mod pirate;
#[cfg(any(test, feature = "test-properties"))]
pub mod property_tests;

pub use blocking_connection::{Blocking, BlockingError};
pub use connection::{Connection, Message, Settings};
pub use error::ZmtpError;
pub use handshake::{Peer, SocketType};
pub use pirate::{FIRST_PAUSE, INTERVAL, LIVENESS, LONGEST_PAUSE, NoPirate, PirateMessage, from_client, to_client};
