//! Fixtures of these tests alone; those of several test programs are in tests/support.

pub mod clients_and_processes;
pub mod replay_runs;
pub mod test_front;
pub mod test_master;
pub mod whole_service;

pub(crate) use crate::program;
