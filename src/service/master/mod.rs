//! The master of the service: starts the front and the workers, and starts again whatever ends. Uses `base`, `config` and
//! `handover`.
//!
//! It delivers nothing and listens to nobody but whoever may use its control socket, so that there is little that could end
//! it. It has one thread and no runtime: [`supervisor`] is its loop. (A second one reads a configuration for a reload.)
//!
//! What it is careful about, each for a reason that stopped somebody's mail:
//!
//! - A process that dies is started again for ever ([`restarts`]).
//! - Its end is heard of at once, whenever it comes: SIGCHLD is handled before the first one is started.
//! - Exit status and signal are two things ([`End`](crate::protocol::control::End)).
//! - There is one master, by a lock that dies with it ([`one_master`]).
//! - Nothing is told to a process by a number in a file: it may be another's by now. Who gives orders asks at the control
//!   socket, and is told when they are carried out.
//! - A configuration with a mistake in it changes nothing, whoever reads it when ([`child_start`]).
//! - A process of the service is the file that the master is, even if an upgrade has put another in its place:
//!   /proc/self/exe. Two versions never talk to each other; after an upgrade the service is stopped and started, and systemd
//!   keeps its sockets.

pub mod child_start;
mod children;
mod control;
pub mod front_channel;
mod instance_lock;
mod lifecycle;
pub mod listeners;
pub(in crate::service) mod restarts;
mod state;
mod stderr_tail;
mod supervisor;
mod systemd;

use crate::base::log::{self, LogError};
use crate::config::{Config, ConfigError};
use crate::protocol::control::Role;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use supervisor::Supervisor;
use thiserror::Error;

/// Why there is no master.
#[derive(Debug, Error)]
pub enum MasterError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another process holds the lock of the runtime directory.
    #[error("another maildropd is running{}", .pid.map(|pid| format!(", pid {pid}")).unwrap_or_default())]
    Another { pid: Option<u32> },
    /// A file or directory of the service cannot be had.
    #[error("{doing} {}: {source}", path.display())]
    File { doing: &'static str, path: PathBuf, source: io::Error },
    /// A socket cannot be listened at.
    #[error("listening at {place}: {source}")]
    Listen { place: String, source: io::Error },
    #[error(transparent)]
    Log(#[from] LogError),
    /// The system refuses what every process may do.
    #[error("{doing}: {source}")]
    System { doing: &'static str, source: io::Error },
}

/// What is about to be started.
#[derive(Debug)]
pub struct Start<'a> {
    pub role: Role,
    /// Which of its role, from 1.
    pub number: u32,
    /// The configuration file.
    pub file: &'a Path,
    /// The file with its text as the master has checked it.
    pub checked: &'a Path,
}

/// How a process of the service is started.
pub type Program = Box<dyn Fn(&Start<'_>) -> Command>;

/// Starts the very file that runs, by the hidden options that `maildropd` has for this.
#[must_use]
pub fn this_program() -> Program {
    Box::new(|start| {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("maildropd").arg("--config").arg(start.file).args(["--role", start.role.as_str()]);
        command.args(["--number", &start.number.to_string(), "--master", &std::process::id().to_string()]);
        command.arg("--checked").arg(start.checked);
        command
    })
}

/// Is the master, by this configuration file, until the service is told to end. It takes the main thread, and sockets that
/// systemd has handed over: to be called before any thread is started.
///
/// # Errors
/// Where it cannot begin. Once it has begun it goes on, whatever fails.
pub fn run(file: &Path, program: Program) -> Result<(), MasterError> {
    let (config, text) = Config::load_with_text(file)?;
    log::start_of_service(&config.log_settings())?;
    if let Some(problem) = config.memory_warning() {
        tracing::warn!(problem, "the largest messages cannot be delivered");
    }
    let mut supervisor = Supervisor::begin(file, config, &text, program)?;
    supervisor.supervise();
    supervisor.end();
    Ok(())
}
