//! The service: a front that speaks LMTP and hands messages out, workers that deliver them, runners that empty the file queue, a
//! timer for what is done at intervals, and a master that starts them all.
//! Uses all rooms up to `queue`.

#[cfg(test)]
mod an_hour_away;
pub mod broker;
mod counted;
pub mod front;
pub mod handed;
pub mod http;
pub mod lmtp;
pub mod master;
mod place;
pub mod runner;
mod runtime_directory;
pub mod standing;
pub mod suspects;
pub mod timer;
mod watchdog;
pub mod worker;

pub use place::Place;
