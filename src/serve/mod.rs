//! The service: a front that speaks LMTP and hands messages out, workers that deliver them, and a master that starts them all.
//! Uses all rooms up to `queue`.

pub mod broker;
pub mod front;
pub mod handed;
pub mod lmtp;
pub mod master;
mod place;
pub mod runner;
mod runtime_directory;
pub mod standing;
pub mod worker;

pub use place::Place;
