//! `service`: starts the service, `maildropd`, requests its status, and gives it orders, through its master's control socket.

mod start;
mod status;

use super::progress::Progress;
use super::{Ended, Failure, complain, fail, help, print_line};
use crate::config::{CONFIGURATION, Config, Service, runtime_directory_of};
use crate::protocol::control::Command as Order;
use crate::protocol::control_client::{ControlError, SHORT, ask};
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::time::Duration;
use sysexits::ExitCode;

/// The exit statuses of an init script (LSB, "Init Script Actions").
const DEGRADED: u8 = 1;
const NOT_RUNNING: u8 = 3;

/// The time limit of an answer that comes after one process after the other has finished its messages.
const LONG: Duration = Duration::from_hours(24);

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the service, and wait until it is ready
    #[command(after_help = help("service start"))]
    Start(start::Arguments),
    /// Stop the service after the messages in progress, and wait for its end
    #[command(after_help = help("service stop"))]
    Stop(ServiceOptions),
    /// Restart the processes one after the other, each after its message, and wait until the new ones are ready
    #[command(after_help = help("service restart"))]
    Restart(ServiceOptions),
    /// Reload the configuration, then restart; a configuration with a mistake changes nothing
    #[command(after_help = help("service reload"))]
    Reload(ServiceOptions),
    /// Reopen the log, after its file was moved away
    #[command(after_help = help("service reopen"))]
    Reopen(ServiceOptions),
    /// Show the service's state, with reasons, and each process
    #[command(after_help = help("service status"))]
    Status(status::Arguments),
}

#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct ServiceOptions {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = CONFIGURATION)]
    config: PathBuf,
    /// The control socket, if the configuration does not name its folder any more
    #[arg(long, value_name = "SOCKET", conflicts_with = "config")]
    socket: Option<PathBuf>,
}

pub(crate) fn run(command: &Command) -> Ended {
    let replaced = "one process after the other is replaced";
    let (options, order, waits_for, done, otherwise) = match command {
        Command::Start(arguments) => return start::run(arguments),
        Command::Status(arguments) => return status::run(arguments),
        Command::Stop(options) => (
            options,
            Order::Stop,
            "it ends after the messages in progress",
            "maildropd has ended",
            ExitCode::Unavailable,
        ),
        Command::Restart(options) => {
            (options, Order::Restart, replaced, "all processes are new", ExitCode::Unavailable)
        }
        Command::Reload(options) => {
            (options, Order::Reload, replaced, "all processes run by the new configuration", ExitCode::Config)
        }
        Command::Reopen(options) => {
            (options, Order::Reopen, "the log is reopened", "the log was reopened", ExitCode::CantCreat)
        }
    };
    let socket = options.socket()?;
    let _progress = Progress::watch(waits_for);
    let patience = if order == Order::Reopen { SHORT } else { LONG };
    let answer = ask(&socket, order, patience).map_err(|problem| not_asked(&problem, &socket))?;
    if !answer.done {
        let problem = answer.problem.unwrap_or_else(|| "it was not done, and the service does not say why".into());
        return Err(fail(otherwise, problem));
    }
    print_line(done);
    if let Some(note) = answer.note {
        complain(&note);
    }
    Ok(ExitCode::Ok)
}

fn not_asked(problem: &ControlError, socket: &Path) -> Failure {
    let status = match problem {
        ControlError::NotRunning => NOT_RUNNING,
        ControlError::NotAllowed(_) => ExitCode::NoPerm.into(),
        ControlError::NotMaildropd(_) => ExitCode::Protocol.into(),
        ControlError::Silent(_) | ControlError::Ended => ExitCode::Unavailable.into(),
    };
    fail(status, format!("{}: {problem}", socket.display()))
}

impl ServiceOptions {
    /// The control socket. A mistake in the configuration must not block access to a running service: the mistake is
    /// printed, and the socket's folder is searched for nevertheless.
    fn socket(&self) -> Result<PathBuf, Failure> {
        if let Some(socket) = &self.socket {
            return Ok(socket.clone());
        }
        let error = match Config::load(&self.config) {
            Ok(config) => return Ok(config.service.control_socket()),
            Err(error) => error,
        };
        complain(&error.to_string());
        let text = std::fs::read_to_string(&self.config).ok();
        let folder = text.and_then(|text| runtime_directory_of(&text));
        let socket =
            folder.map(|runtime_directory| Service { runtime_directory, ..Service::default() }.control_socket());
        let advice = "give another file with --config FILE, or the control socket with --socket SOCKET";
        socket.ok_or_else(|| fail(ExitCode::Config, advice))
    }
}
