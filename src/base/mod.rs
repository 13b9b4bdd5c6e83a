//! The ground floor: what knows no mail. Uses no other room.

pub(crate) mod core_dumps;
pub mod deadline;
pub mod endpoint;
#[cfg(feature = "test-faults")]
pub(crate) mod fault;
pub(crate) mod files;
pub mod hex;
pub mod log;
pub mod secret;
pub(crate) mod server_waits;
pub(crate) mod terminal;
pub(crate) mod timestamp;
pub(crate) mod tls;
