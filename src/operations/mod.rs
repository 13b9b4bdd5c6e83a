//! What people and programs ask of a site beside its deliveries. Each gives back data, and hears of no terminal; printing is for
//! `cli`. Uses all rooms below, and none of the ways in and out.

pub mod audit;
pub(crate) mod check;
pub(crate) mod hold_lock;
pub mod locks;
pub(crate) mod migrate;
pub(crate) mod prune;
pub mod redelivery;
pub(crate) mod replay;
pub(crate) mod stats;
pub(crate) mod trace;
