//! Asks the master of the service, at its control socket.

use super::{NOT_RUNNING, Place, complain, exit};
use crate::cli::site_options::CONFIGURATION;
use crate::config::{Config, Serve, runtime_directory_of};
use crate::handover::control::{Answer, Command, LONGEST_LINE, Request, line};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use sysexits::ExitCode;
use thiserror::Error;

/// How long an answer may take that needs no waiting.
pub(super) const SHORT: Duration = Duration::from_secs(30);
/// How long one may take for which messages have to be finished first, by one process after the other.
pub(super) const LONG: Duration = Duration::from_hours(24);

/// Why the service was not asked.
#[derive(Debug, Error)]
pub(super) enum NotAsked {
    #[error("maildropd is not running")]
    NotRunning,
    #[error("{0}: only root and the user that the service runs as may ask it: use sudo")]
    NotAllowed(io::Error),
    #[error("it does not answer: {0}")]
    Silent(io::Error),
    #[error("it has ended without an answer")]
    Ended,
    #[error("what answers is not maildropd: {0}")]
    Another(serde_json::Error),
}

impl NotAsked {
    /// Prints it, and returns the status to exit with; ends with 3 at once where nothing runs.
    pub(super) fn told(&self, socket: &Path) -> ExitCode {
        complain(&format!("{}: {self}", socket.display()));
        match self {
            Self::NotRunning => exit(NOT_RUNNING),
            Self::NotAllowed(_) => ExitCode::NoPerm,
            Self::Another(_) => ExitCode::Protocol,
            Self::Silent(_) | Self::Ended => ExitCode::Unavailable,
        }
    }
}

impl Place {
    /// The configuration file.
    pub(super) fn file(&self) -> PathBuf {
        self.config.clone().unwrap_or_else(|| CONFIGURATION.into())
    }

    /// The control socket. A mistake in the configuration must not keep anybody from asking a service that runs: it is told,
    /// and the folder is looked for all the same.
    pub(super) fn socket(&self) -> Result<PathBuf, ExitCode> {
        if let Some(socket) = &self.socket {
            return Ok(socket.clone());
        }
        let file = self.file();
        match Config::load(&file) {
            Ok(config) => Ok(config.serve.control_socket()),
            Err(error) => {
                complain(&error.to_string());
                let text = std::fs::read_to_string(&file).ok();
                let folder = text.and_then(|text| runtime_directory_of(&text));
                folder.map_or_else(
                    || {
                        complain("give another file with --config FILE, or the control socket with --socket SOCKET");
                        Err(ExitCode::Config)
                    },
                    |runtime_directory| Ok(Serve { runtime_directory, ..Serve::default() }.control_socket()),
                )
            }
        }
    }
}

/// Asks the master, and waits for the answer.
pub(super) fn ask(socket: &Path, command: Command, patience: Duration) -> Result<Answer, NotAsked> {
    let mut stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => NotAsked::NotRunning,
        io::ErrorKind::PermissionDenied => NotAsked::NotAllowed(error),
        _ => NotAsked::Silent(error),
    })?;
    let silent = |error: io::Error| match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => NotAsked::Ended,
        io::ErrorKind::WouldBlock => NotAsked::Silent(io::ErrorKind::TimedOut.into()),
        _ => NotAsked::Silent(error),
    };
    stream.set_read_timeout(Some(patience)).map_err(silent)?;
    stream.set_write_timeout(Some(SHORT)).map_err(silent)?;
    stream.write_all(line(&Request { command }).as_bytes()).map_err(silent)?;
    let mut answer = String::new();
    let limit = u64::try_from(2 * LONGEST_LINE).unwrap_or(u64::MAX);
    BufReader::new(stream.take(limit)).read_line(&mut answer).map_err(silent)?;
    if answer.is_empty() {
        return Err(NotAsked::Ended);
    }
    serde_json::from_str(&answer).map_err(NotAsked::Another)
}
