//! The command line of `maildropd`: the master, or one of its roles. Uses `serve`.

use crate::base::terminal::complain;
use clap::{Parser, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use sysexits::ExitCode;

/// Deliver mail for Postfix as a service, by LMTP and for thin clients: exactly once, as maildrop_command does
#[derive(Debug, Parser)]
#[command(name = "maildropd", version)]
struct Arguments {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// What this process is to do, which the master says of the processes that it starts
    #[arg(long, value_enum, hide = true)]
    role: Option<Role>,
}

/// What one process of the service does.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {}

/// Runs a command line of `maildropd`, and returns the status to exit with.
#[must_use]
pub fn run(arguments: &[OsString]) -> u8 {
    crate::base::core_dumps::switch_off();
    crate::base::log::panic_hook();
    u8::from(match Arguments::try_parse_from(arguments) {
        Ok(arguments) => {
            complain(&format!("{}: this service has no roles yet: {:?}", arguments.config.display(), arguments.role));
            ExitCode::Unavailable
        }
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() { ExitCode::Usage } else { ExitCode::Ok }
        }
    })
}
