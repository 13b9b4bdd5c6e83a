//! The client of the master's control socket.

use super::control::{Answer, Command, LONGEST_LINE, Request, key_beside, line};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use thiserror::Error;

/// How long an immediate answer may take.
pub(crate) const SHORT: Duration = Duration::from_secs(30);

/// Why the master could not answer.
#[derive(Debug, Error)]
pub(crate) enum ControlError {
    #[error("maildropd is not running")]
    NotRunning,
    #[error("{0}: only root and the user that the service runs as may ask it: use sudo")]
    NotAllowed(io::Error),
    #[error("it does not answer: {0}")]
    Silent(io::Error),
    #[error("it has ended without an answer")]
    Ended,
    #[error("what answers is not maildropd: {0}")]
    NotMaildropd(serde_json::Error),
}

/// Whether a master listens. Nothing is sent, because a master that hangs counts as running.
pub(crate) fn is_running(socket: &Path) -> bool {
    !matches!(UnixStream::connect(socket).map_err(not_connected), Err(ControlError::NotRunning))
}

pub(crate) fn ask(socket: &Path, command: Command, patience: Duration) -> Result<Answer, ControlError> {
    let mut stream = UnixStream::connect(socket).map_err(not_connected)?;
    let silent = |error: io::Error| match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ControlError::Ended,
        io::ErrorKind::WouldBlock => ControlError::Silent(io::ErrorKind::TimedOut.into()),
        _ => ControlError::Silent(error),
    };
    stream.set_read_timeout(Some(patience)).map_err(silent)?;
    stream.set_write_timeout(Some(SHORT)).map_err(silent)?;
    // The master writes the file before it listens, and removes it when it ends.
    let read_key = || std::fs::read_to_string(key_beside(socket)).map_err(not_connected);
    let key = if command == Command::Status { None } else { Some(read_key()?) };
    stream.write_all(line(&Request { command, key }).as_bytes()).map_err(silent)?;
    let mut answer = String::new();
    let limit = u64::try_from(2 * LONGEST_LINE).unwrap_or(u64::MAX);
    BufReader::new(stream.take(limit)).read_line(&mut answer).map_err(silent)?;
    if answer.is_empty() {
        return Err(ControlError::Ended);
    }
    serde_json::from_str(&answer).map_err(ControlError::NotMaildropd)
}

fn not_connected(error: io::Error) -> ControlError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ControlError::NotRunning,
        io::ErrorKind::PermissionDenied => ControlError::NotAllowed(error),
        _ => ControlError::Silent(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread;

    /// The result of a request to a master that does this with its client.
    fn asked(master: impl FnOnce(UnixStream) + Send, patience: Duration) -> Result<Answer, ControlError> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || master(listener.accept().unwrap().0));
            ask(&socket, Command::Status, patience)
        })
    }

    #[test]
    fn no_service_and_one_that_may_not_be_asked_are_distinguished() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control.sock");
        let nobody = |socket: &Path| matches!(ask(socket, Command::Stop, SHORT), Err(ControlError::NotRunning));
        assert!(nobody(&socket));
        drop(UnixListener::bind(&socket).unwrap());
        assert!(nobody(&socket));
        // Root may connect to any socket, so that the test cannot be refused.
        assert!(matches!(not_connected(io::ErrorKind::PermissionDenied.into()), ControlError::NotAllowed(_)));
        assert!(matches!(not_connected(io::ErrorKind::OutOfMemory.into()), ControlError::Silent(_)));
    }

    #[test]
    fn a_master_that_ends_without_an_answer_is_not_taken_for_a_silent_one() {
        assert!(matches!(asked(drop, SHORT), Err(ControlError::Ended)));
        let read_and_ended = |stream: UnixStream| {
            BufReader::new(stream).read_line(&mut String::new()).unwrap();
        };
        assert!(matches!(asked(read_and_ended, SHORT), Err(ControlError::Ended)));
        let silent = |mut stream: UnixStream| {
            stream.read_to_end(&mut Vec::new()).unwrap();
        };
        let shown = asked(silent, Duration::from_millis(10)).unwrap_err().to_string();
        assert_eq!(shown, "it does not answer: timed out");
    }

    #[test]
    fn an_answer_may_be_longer_than_a_line_should_be_and_one_that_never_ends_is_none() {
        let longest = |mut stream: UnixStream| {
            let problem = "x".repeat(2 * LONGEST_LINE - line(&Answer::failed("")).len());
            stream.write_all(line(&Answer::failed(problem)).as_bytes()).unwrap();
            // The request is read first, so that closing does not reset the connection.
            stream.read_to_end(&mut Vec::new()).unwrap();
        };
        assert!(!asked(longest, SHORT).unwrap().done);
        let endless = |mut stream: UnixStream| while stream.write_all(&[b' '; 1 << 16]).is_ok() {};
        assert!(matches!(asked(endless, SHORT), Err(ControlError::NotMaildropd(_))));
    }
}
