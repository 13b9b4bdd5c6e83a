//! The control socket, for status requests and commands. No read or write on it blocks.

use super::line_stream::LineStream;
use crate::base::hex;
use crate::base::listener::{bind_unix, is_trusted};
use crate::protocol::control::{Answer, Command, Request, key_beside, line};
use crate::service::error::ServiceError;
use ring::rand::{SecureRandom, SystemRandom};
use sha2::{Digest, Sha256};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tracing::warn;

/// How long a client may take to send its request, or to read the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many clients may be connected that have not sent their request yet.
const LIMIT: usize = 32;
/// The pause after a connection could not be accepted, because of too many open files.
const REST: Duration = Duration::from_secs(1);
/// The longest request, in bytes.
const LONGEST_REQUEST: usize = 4096;

pub(super) struct Control {
    path: PathBuf,
    /// The key that a request needs if it changes something.
    key: String,
    socket: UnixListener,
    /// The clients that have not sent their whole request yet.
    asking: Vec<ControlConnection>,
    /// The clients that have not read their whole answer yet.
    answered: Vec<ControlConnection>,
    closed_until: Option<Instant>,
}

/// A client's connection.
#[derive(Debug)]
pub(super) struct ControlConnection {
    lines: LineStream,
    until: Instant,
}

impl Control {
    pub(super) fn bind(path: &Path) -> Result<Self, ServiceError> {
        // The key must exist before a client can connect.
        let key = write_key(&key_beside(path))?;
        let place = path.to_string_lossy();
        let failed = ServiceError::listen(&place);
        let socket = bind_unix(path, 0o600).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Self { path: path.to_owned(), key, socket, asking: Vec::new(), answered: Vec::new(), closed_until: None })
    }

    /// The descriptors to poll: for reading, and for writing.
    pub(super) fn sources(&self) -> (Vec<BorrowedFd<'_>>, Vec<BorrowedFd<'_>>) {
        let open = self.closed_until.is_none() && self.asking.len() < LIMIT;
        let socket = open.then(|| self.socket.as_fd());
        let read = socket.into_iter().chain(self.asking.iter().map(|one| one.lines.as_fd())).collect();
        (read, self.answered.iter().map(|one| one.lines.as_fd()).collect())
    }

    /// When the next timeout is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.asking.iter().chain(&self.answered).map(|one| one.until).chain(self.closed_until).min()
    }

    /// Accepts the waiting clients, and returns the requests that have arrived.
    pub(super) fn requests(&mut self, now: Instant) -> Vec<(ControlConnection, Request)> {
        self.answered.retain_mut(|one| now < one.until && one.lines.send().is_ok() && one.lines.waiting() > 0);
        self.closed_until = self.closed_until.filter(|until| now < *until);
        while self.closed_until.is_none() && self.asking.len() < LIMIT {
            match self.socket.accept() {
                Ok((stream, _)) => self.asking.extend(ControlConnection::from(stream, now)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    warn!(%error, "nobody can be let in at the control socket");
                    self.closed_until = Some(now + REST);
                }
            }
        }
        let mut requests = Vec::new();
        for mut one in std::mem::take(&mut self.asking) {
            match one.request() {
                Ok(Some(request)) if self.may(&request) => requests.push((one, request)),
                Ok(Some(Request { command, .. })) => {
                    warn!(?command, "refused at the control socket: its key was not shown");
                    let key = key_beside(&self.path);
                    let problem = format!("only those may order this who can read {}", key.display());
                    self.answer(one, &Answer::failed(problem), now);
                }
                Ok(None) if now < one.until => self.asking.push(one),
                Ok(None) => {}
                Err(problem) => self.answer(one, &Answer::failed(problem.to_string()), now),
            }
        }
        requests
    }

    /// Whether the request may be carried out. A compromised process of the service runs as our user, but confinement keeps it
    /// from reading the file of the key.
    fn may(&self, request: &Request) -> bool {
        // The hashes are compared, so the time of the comparison says nothing about the key.
        let hash = |key: &str| Sha256::digest(key.as_bytes());
        request.command == Command::Status || request.key.as_deref().is_some_and(|key| hash(key) == hash(&self.key))
    }

    /// Sends the answer, now or as soon as the socket can take it.
    pub(super) fn answer(&mut self, mut to: ControlConnection, answer: &Answer, now: Instant) {
        to.until = now + PATIENCE;
        if to.lines.say(&line(answer)).is_ok() && to.lines.waiting() > 0 {
            self.answered.push(to);
        }
    }

    /// Stops listening. Clients that wait for the end of the service get their answer later.
    pub(super) fn close(self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            warn!(%error, "the control socket cannot be removed");
        }
        if let Err(error) = std::fs::remove_file(key_beside(&self.path)) {
            warn!(%error, "the control socket's key cannot be removed");
        }
    }
}

/// Writes a new key into this file, which only our user and root can read.
fn write_key(path: &Path) -> Result<String, ServiceError> {
    let failed = ServiceError::file("writing", path);
    let mut bytes = [0; 32];
    let random = SystemRandom::new().fill(&mut bytes);
    random.map_err(|_| failed(io::Error::other("the system has no random numbers")))?;
    let key = hex::encode(&bytes);
    // The file must be new: a process may have kept the file of a dead master open.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(key.as_bytes())).map_err(failed)?;
    Ok(key)
}

impl ControlConnection {
    /// A connection of root or of our own user; `None` for others.
    fn from(stream: UnixStream, now: Instant) -> Option<Self> {
        let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?.uid.as_raw();
        if !is_trusted(peer) {
            warn!(uid = peer, "refused at the control socket");
            return None;
        }
        Some(Self { lines: LineStream::new(stream).ok()?, until: now + PATIENCE })
    }

    /// The request, once it is complete.
    fn request(&mut self) -> io::Result<Option<Request>> {
        let line = self.lines.next_line(LONGEST_REQUEST)?;
        line.map(|line| serde_json::from_slice(&line).map_err(io::Error::other)).transpose()
    }

    /// Sends an answer at the end of the service, when nothing can be written later.
    pub(super) fn answer_last(mut self, answer: &Answer) {
        // A short line always fits into the socket's empty buffer.
        let _ = self.lines.say(&line(answer));
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
