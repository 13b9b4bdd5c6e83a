//! What is asked of a site besides deliveries. Each returns data; printing is for `cli`. Uses all rooms below.

pub mod audit;
pub(crate) mod check;
pub(crate) mod hold_lock;
pub mod locks;
pub(crate) mod prune;
pub mod redelivery;
pub(crate) mod replay;
pub(crate) mod stats;
pub(crate) mod trace;
