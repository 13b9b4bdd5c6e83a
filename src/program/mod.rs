//! The two command lines: which role or which subcommand runs.

pub mod maildrop_command;
pub mod maildropd;
