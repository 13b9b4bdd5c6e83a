//! The command line of `maildropd`: the master, or one of its roles. Uses `serve`.

use crate::base::terminal::complain_as;
use crate::config::Config;
use crate::handover::control;
use crate::serve::master::child_start::{self, CannotBegin};
use crate::serve::master::{self, MasterError};
use clap::{CommandFactory, Parser, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use sysexits::ExitCode;

/// Deliver mail for Postfix as a service, by LMTP and for thin clients: exactly once, as maildrop_command does.
///
/// It stays in the foreground. It starts a front, which holds the connections, and workers, which deliver; whatever of them
/// ends is started again. `maildrop_command service` asks how it is, and tells it what to do.
#[derive(Debug, Parser)]
#[command(
    name = "maildropd",
    version,
    after_help = "\
Examples:
  systemctl enable --now maildropd.socket maildropd.service
  maildropd --config /etc/maildrop_command/config.toml

Signals: SIGTERM and SIGINT end it after the messages in hand, a second one at once. SIGHUP reads the configuration anew (one \
with a mistake in it changes nothing) and opens the log anew, SIGUSR1 replaces one process after the other, SIGUSR2 opens the \
log anew.

Exit status: 0 told to end, 69 if a socket cannot be listened at, 73 if its folders or its log cannot be had, 75 if another one \
is running, 78 if the configuration cannot be read."
)]
struct Arguments {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Leave the terminal, as `maildrop_command service start` has it
    #[arg(long, hide = true)]
    detach: bool,
    /// What this process is to do, which the master says of the processes that it starts
    #[arg(long, value_enum, hide = true, requires_all = ["master", "checked"])]
    role: Option<Role>,
    /// Which of its role this process is
    #[arg(long, hide = true, default_value = "1")]
    number: u32,
    /// The process id of the master
    #[arg(long, hide = true)]
    master: Option<u32>,
    /// The configuration as the master has checked it
    #[arg(long, hide = true)]
    checked: Option<PathBuf>,
}

/// What one process of the service does.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    Front,
    Worker,
}

/// The command line's definition, from which its manual page and completions are made.
#[must_use]
pub fn definition() -> clap::Command {
    Arguments::command()
}

/// Runs a command line of `maildropd`, and returns the status to exit with.
#[must_use]
pub fn run(arguments: &[OsString]) -> u8 {
    crate::base::core_dumps::switch_off();
    crate::base::log::panic_hook();
    u8::from(match Arguments::try_parse_from(arguments) {
        Ok(Arguments { role: Some(role), config, number, master: Some(master), checked: Some(checked), .. }) => {
            let begun = child_start::begin(role.into(), master, &config, &checked);
            begun.map_or_else(|error| cannot_begin(&error), |config| be(role, number, &config))
        }
        Ok(arguments) => be_master(&arguments),
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() { ExitCode::Usage } else { ExitCode::Ok }
        }
    })
}

fn be_master(arguments: &Arguments) -> ExitCode {
    if arguments.detach
        && let Err(error) = rustix::process::setsid()
    {
        complain(&format!("leaving the terminal: {error}"));
        return ExitCode::OsErr;
    }
    match master::run(&arguments.config, master::this_program()) {
        Ok(()) => ExitCode::Ok,
        Err(error) => {
            complain(&error.to_string());
            match error {
                MasterError::Config(_) => ExitCode::Config,
                MasterError::Another { .. } => ExitCode::TempFail,
                MasterError::File { .. } | MasterError::NotOurs { .. } | MasterError::Log(_) => ExitCode::CantCreat,
                MasterError::Listen { .. } => ExitCode::Unavailable,
                MasterError::System { .. } => ExitCode::OsErr,
            }
        }
    }
}

/// What a role does, once it has begun.
fn be(role: Role, number: u32, config: &Config) -> ExitCode {
    complain(&format!("{}: there is no {role:?} {number} in this version", config.file.display()));
    ExitCode::Unavailable
}

fn cannot_begin(error: &CannotBegin) -> ExitCode {
    complain(&error.to_string());
    match error {
        CannotBegin::NoMaster => ExitCode::Unavailable,
        CannotBegin::Config(_) => ExitCode::Config,
        CannotBegin::Log(_) => ExitCode::CantCreat,
        CannotBegin::System { .. } => ExitCode::OsErr,
    }
}

fn complain(text: &str) {
    complain_as("maildropd", text);
}

impl From<Role> for control::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::Front => Self::Front,
            Role::Worker => Self::Worker,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        definition().debug_assert();
    }
}
