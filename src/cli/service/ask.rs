//! Where the master of the service is asked, and what is said where it cannot be.

use super::{NOT_RUNNING, Place, complain, exit};
use crate::cli::site_options::CONFIGURATION;
use crate::config::{Config, Serve, runtime_directory_of};
use crate::protocol::control_client::NotAsked;
use std::path::{Path, PathBuf};
use std::time::Duration;
use sysexits::ExitCode;

/// How long an answer may take for which messages have to be finished first, by one process after the other.
pub(super) const LONG: Duration = Duration::from_hours(24);

/// Prints why it was not asked, and returns the status to exit with; ends with 3 at once where nothing runs.
pub(super) fn not_asked(problem: &NotAsked, socket: &Path) -> ExitCode {
    complain(&format!("{}: {problem}", socket.display()));
    match problem {
        NotAsked::NotRunning => exit(NOT_RUNNING),
        NotAsked::NotAllowed(_) => ExitCode::NoPerm,
        NotAsked::Another(_) => ExitCode::Protocol,
        NotAsked::Silent(_) | NotAsked::Ended => ExitCode::Unavailable,
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
