//! The command line of `maildropd`: the master, or one of its roles. Uses `serve`.

use crate::base::log;
use crate::base::terminal::complain;
use crate::config::Config;
use crate::serve::Place;
use crate::serve::front::{self, FrontSettings};
use crate::serve::worker::{self, WorkerSettings};
use crate::site::Setup;
use clap::{Parser, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use sysexits::ExitCode;

/// Deliver mail for Postfix as a service, by LMTP and for thin clients: exactly once, as maildrop_command does
#[derive(Debug, Parser)]
#[command(name = "maildropd", version)]
struct Arguments {
    /// The configuration file
    #[arg(long, value_name = "FILE", required_unless_present = "embedded", conflicts_with = "embedded")]
    config: Option<PathBuf>,
    /// Deliver on this one machine, into Maildirs and an SQLite ledger under DIR, with no configuration; the sockets are in DIR/run
    #[arg(long, value_name = "DIR")]
    embedded: Option<PathBuf>,
    /// What this process is to do, which the master says of the processes that it starts
    #[arg(long, value_enum, hide = true)]
    role: Option<Role>,
    /// Where clients connect to, for tests: a whole path, or tcp:ADDRESS:PORT
    #[arg(long, value_name = "PLACE", hide = true)]
    clients: Option<Place>,
    /// Where workers connect to, for tests
    #[arg(long, value_name = "PLACE", hide = true)]
    workers: Option<Place>,
}

/// What one process of the service does.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    /// Takes messages, and hands them to workers
    Front,
    /// Delivers messages
    Worker,
}

/// Runs a command line of `maildropd`, and returns the status to exit with.
#[must_use]
pub fn run(arguments: &[OsString]) -> u8 {
    crate::base::core_dumps::switch_off();
    crate::base::log::panic_hook();
    u8::from(match Arguments::try_parse_from(arguments) {
        Ok(arguments) => match arguments.role {
            Some(Role::Front) => ended(front(&arguments)),
            Some(Role::Worker) => ended(worker(&arguments)),
            None => {
                complain("this service has no master yet");
                ExitCode::Unavailable
            }
        },
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() { ExitCode::Usage } else { ExitCode::Ok }
        }
    })
}

/// Says what went wrong, where something did.
fn ended(result: Result<(), (ExitCode, String)>) -> ExitCode {
    result.map_or_else(
        |(exit, problem)| {
            complain(&problem);
            tracing::error!(problem, "this process of the service cannot go on");
            exit
        },
        |()| ExitCode::Ok,
    )
}

fn unusable(problem: impl ToString) -> (ExitCode, String) {
    (ExitCode::Config, problem.to_string())
}

fn unavailable(problem: impl ToString) -> (ExitCode, String) {
    (ExitCode::Unavailable, problem.to_string())
}

/// The front reads no password.
fn front(arguments: &Arguments) -> Result<(), (ExitCode, String)> {
    let (mut settings, log) = match (&arguments.config, &arguments.embedded) {
        (Some(file), _) => {
            let config = Config::load(file).map_err(unusable)?;
            (FrontSettings::of(&config), config.log_settings())
        }
        (None, directory) => {
            let directory = directory.as_deref().unwrap_or_else(|| "".as_ref());
            (FrontSettings::embedded(directory), embedded(directory)?.log)
        }
    };
    if let Some(clients) = &arguments.clients {
        settings.clients = clients.clone();
    }
    if let Some(workers) = &arguments.workers {
        settings.workers = workers.clone();
    }
    log::start(&log).map_err(unusable)?;
    front::run(&settings, |mut inside| async move {
        // Where the LMTP server runs: it hands its messages over by this, and ends when it is told to.
        let _ = inside.stop.wait_for(|stop| *stop).await;
    })
    .map_err(unavailable)
}

fn worker(arguments: &Arguments) -> Result<(), (ExitCode, String)> {
    let (mut settings, setup) = match (&arguments.config, &arguments.embedded) {
        (Some(file), _) => {
            let config = Config::load(file).map_err(unusable)?;
            (WorkerSettings::of(&config), Setup::configured(file).map_err(unusable)?)
        }
        (None, directory) => {
            let directory = directory.as_deref().unwrap_or_else(|| "".as_ref());
            (WorkerSettings::embedded(directory), embedded(directory)?)
        }
    };
    if let Some(workers) = &arguments.workers {
        settings.broker = workers.clone();
    }
    log::start(&setup.log).map_err(unusable)?;
    let site = setup.place.site().map_err(unusable)?;
    worker::run(&site, settings).map_err(unavailable)
}

fn embedded(directory: &std::path::Path) -> Result<Setup, (ExitCode, String)> {
    if !directory.is_absolute() {
        return Err(unusable("--embedded wants the whole path of the directory, from / on"));
    }
    Setup::embedded(directory).map_err(unusable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }
}
