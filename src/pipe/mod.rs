//! The interface for Postfix's pipe(8) and local(8): one message on standard input, one recipient, one exit status.

pub mod deadline_watchdog;
pub mod deliver;
mod exit_status;
mod incoming;
mod person;
mod standard_streams;
mod via;

pub use exit_status::{exit_status, report};
