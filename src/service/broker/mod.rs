//! The broker: which message goes to which worker, and who is told what became of it.
//!
//! It speaks the Paranoid Pirate's protocol (<https://rfc.zeromq.org/spec/6/>) with two differences, which its peers do not notice:
//!
//! - Only READY or a reply makes a worker ready. The guide's queue takes a heartbeat for READY, too: it then hands a second message
//!   to a worker that beats while it works. (So <https://rfc.zeromq.org/spec/7/> has it.)
//! - It remembers what it has handed out. A worker that ends costs its message a deferral at once, and no message is handed to a
//!   second worker: the first may have delivered it, or may still do so.
//!
//! `state` decides, without input or output; `sockets` brings it what peers say.

mod counters;
mod job;
mod running_jobs;
pub mod sockets;
pub mod state;
mod workers;

pub use counters::{Counters, Standing};
