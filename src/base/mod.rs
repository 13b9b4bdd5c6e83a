//! The parts that know no mail, one of each.

pub(crate) mod back_off;
pub mod blocking_pool;
pub(crate) mod confinement;
pub(crate) mod core_dumps;
pub mod deadline;
pub mod endpoint;
pub(crate) mod exposition;
#[cfg(feature = "test-faults")]
pub(crate) mod fault_injection;
pub(crate) mod files;
pub mod hex;
pub(crate) mod http_connections;
pub mod listener;
pub mod log;
pub(crate) mod printed;
pub(crate) mod problem;
pub mod readiness;
pub mod secret;
pub(crate) mod sent_body;
pub(crate) mod server_waits;
pub mod shares;
pub(crate) mod stop;
pub(crate) mod summary_cache;
pub(crate) mod terminal;
pub(crate) mod timestamp;
pub(crate) mod tls;
