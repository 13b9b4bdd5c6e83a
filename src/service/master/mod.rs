//! The master of the service: it starts the front, the workers and the other processes, and restarts each that ends.
//!
//! It delivers nothing, and reads only its control socket and the reports of its processes, so little could end it. It has one
//! thread and no runtime: [`supervisor`] is its loop. (A second thread reads the configuration for a reload.)
//!
//! Each of these rules prevents a failure that has stopped mail somewhere:
//!
//! - A process that dies is restarted for ever ([`restarts`]).
//! - The master notices the end of a process at once: SIGCHLD is handled before the first process is started.
//! - Exit status and signal are different ends ([`End`](crate::protocol::control::End)).
//! - There is one master, which holds a lock that ends with it ([`instance_lock`]).
//! - No process gets a signal by the number in a file, which may be another process's by now. Commands come over the control
//!   socket, and are answered when they are done.
//! - A configuration with an error changes nothing, whenever it is read ([`child_start`]).
//! - Each process executes the master's own file, /proc/self/exe, even if an upgrade has replaced it. So two versions never talk
//!   to each other. After an upgrade the service is stopped and started, and systemd keeps its sockets.

pub mod child_start;
mod children;
mod control;
pub mod front_channel;
mod instance_lock;
mod lifecycle;
mod line_stream;
pub mod listeners;
pub(in crate::service) mod restarts;
mod state;
mod stderr_tail;
mod supervisor;
mod systemd;

use super::error::ServiceError;
use crate::base::log;
use crate::config::Config;
use crate::protocol::control::Role;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use supervisor::{SIGNALS, Supervisor};

/// What a process is started with.
#[derive(Debug)]
pub struct Start<'a> {
    pub role: Role,
    /// The number within the role, from 1.
    pub number: u32,
    /// The configuration file.
    pub file: &'a Path,
    /// The file with the configuration's text as the master has checked it.
    pub checked: &'a Path,
}

/// Creates the command that starts a process of the service.
pub type Program = Box<dyn Fn(&Start<'_>) -> Command>;

/// Starts the running executable, with the hidden options of `maildropd`.
pub fn this_program() -> Program {
    Box::new(|start| {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("maildropd").arg("--config").arg(start.file).args(["--role", start.role.as_str()]);
        command.args(["--number", &start.number.to_string(), "--master", &std::process::id().to_string()]);
        command.arg("--checked").arg(start.checked);
        command
    })
}

/// Runs the master with this configuration file until the service ends. Call this in the main thread, before any other thread is
/// started, since it takes the sockets that systemd has passed.
///
/// # Errors
/// If the master cannot begin. Once it has begun, it goes on, whatever fails.
pub fn run(file: &Path, program: Program) -> Result<(), ServiceError> {
    let (config, text) = Config::load_with_text(file)?;
    log::start_of_service(&config.log_settings())?;
    if let Some(problem) = config.memory_warning() {
        tracing::warn!(problem, "the largest messages cannot be delivered");
    }
    let mut supervisor = Supervisor::begin(&SIGNALS, file, config, &text, program)?;
    supervisor.supervise();
    supervisor.end();
    Ok(())
}
