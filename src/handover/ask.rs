//! Asks the master of the service, at its control socket.

use super::control::{Answer, Command, LONGEST_LINE, Request, line};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use thiserror::Error;

/// How long an answer may take that needs no waiting.
pub(crate) const SHORT: Duration = Duration::from_secs(30);

/// Why the service was not asked.
#[derive(Debug, Error)]
pub(crate) enum NotAsked {
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

/// Asks the master, and waits for the answer.
pub(crate) fn ask(socket: &Path, command: Command, patience: Duration) -> Result<Answer, NotAsked> {
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
