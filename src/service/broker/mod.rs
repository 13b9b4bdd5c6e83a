//! The broker: it assigns messages to workers, and returns the results to their senders.
//!
//! It speaks the Paranoid Pirate's protocol (<https://rfc.zeromq.org/spec/6/>) with two differences, which its peers do not
//! notice:
//!
//! - Only READY or a reply makes a worker ready, as in <https://rfc.zeromq.org/spec/7/>. The guide's queue treats a heartbeat as
//!   READY. So it sends a second message to a worker that sends heartbeats while it works.
//! - The broker remembers which message each worker has. If a worker ends, its message is deferred at once. No message goes to a
//!   second worker: the first one may have delivered it, or may still do so.
//!
//! `state` decides, without input or output. `sockets` passes the peers' frames to it, and carries out its decisions.

mod counters;
mod job;
pub mod sockets;
pub mod state;
mod workers;

pub use counters::{Counters, Gauges};
