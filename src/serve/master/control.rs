//! The control socket: who asks how the service is, or tells it what to do. It never waits for anybody.

use super::MasterError;
use super::listeners::bind_own;
use crate::handover::control::{Answer, Request, line};
use crate::serve::runtime_directory;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tracing::warn;

/// How long somebody may take to say what he wants, or to take the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many may be connected at once and have not said yet what they want.
const LIMIT: usize = 32;
/// How long nobody is let in after the system could not let somebody in: too many files are open.
const REST: Duration = Duration::from_secs(1);
/// The longest request.
const LONGEST_REQUEST: usize = 4096;

#[derive(Debug)]
pub(super) struct Control {
    path: PathBuf,
    socket: UnixListener,
    /// Who has not said yet what he wants.
    asking: Vec<Connection>,
    /// Who has not taken all of his answer yet.
    answered: Vec<Connection>,
    closed_until: Option<Instant>,
}

/// One who asks.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    buffer: Vec<u8>,
    until: Instant,
}

impl Control {
    pub(super) fn bind(path: &Path) -> Result<Self, MasterError> {
        let socket = bind_own(path)?;
        Ok(Self { path: path.to_owned(), socket, asking: Vec::new(), answered: Vec::new(), closed_until: None })
    }

    /// What to wait for: what can be read, and what can be written.
    pub(super) fn sources(&self) -> (Vec<BorrowedFd<'_>>, Vec<BorrowedFd<'_>>) {
        let open = self.closed_until.is_none() && self.asking.len() < LIMIT;
        let socket = open.then(|| self.socket.as_fd());
        let read = socket.into_iter().chain(self.asking.iter().map(|one| one.stream.as_fd())).collect();
        (read, self.answered.iter().map(|one| one.stream.as_fd()).collect())
    }

    /// When something has to be done even if nothing comes.
    pub(super) fn next(&self) -> Option<Instant> {
        self.asking.iter().chain(&self.answered).map(|one| one.until).chain(self.closed_until).min()
    }

    /// Lets in who waits, and returns what is asked.
    pub(super) fn requests(&mut self, now: Instant) -> Vec<(Connection, Request)> {
        self.answered.retain_mut(|one| now < one.until && matches!(one.write(), Ok(false)));
        self.closed_until = self.closed_until.filter(|until| now < *until);
        while self.closed_until.is_none() && self.asking.len() < LIMIT {
            match self.socket.accept() {
                Ok((stream, _)) => self.asking.extend(Connection::from(stream, now)),
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
                Ok(Some(request)) => requests.push((one, request)),
                Ok(None) if now < one.until => self.asking.push(one),
                Ok(None) => {}
                Err(problem) => self.answer(one, &Answer::failed(problem.to_string()), now),
            }
        }
        requests
    }

    /// Answers, now or as soon as there is room.
    pub(super) fn answer(&mut self, mut to: Connection, answer: &Answer, now: Instant) {
        to.buffer = line(answer).into_bytes();
        to.until = now + PATIENCE;
        if let Ok(false) = to.write() {
            self.answered.push(to);
        }
    }

    /// Nobody is let in any more. Who waits for the end of the service is told after this.
    pub(super) fn close(self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            warn!(%error, "the control socket cannot be removed");
        }
    }
}

impl Connection {
    /// One who may ask: root, and the user that we run as.
    fn from(stream: UnixStream, now: Instant) -> Option<Self> {
        let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?.uid.as_raw();
        if !runtime_directory::may_connect(peer, rustix::process::geteuid().as_raw()) {
            warn!(uid = peer, "refused at the control socket");
            return None;
        }
        stream.set_nonblocking(true).ok()?;
        Some(Self { stream, buffer: Vec::new(), until: now + PATIENCE })
    }

    /// What it asks, once all of it is there.
    fn request(&mut self) -> io::Result<Option<Request>> {
        let mut buffer = [0; LONGEST_REQUEST];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.buffer.extend_from_slice(buffer.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let request = self.buffer.get(..end).unwrap_or_default();
                return serde_json::from_slice(request).map(Some).map_err(io::Error::other);
            }
            if self.buffer.len() > LONGEST_REQUEST {
                return Err(io::Error::other("a request is one short line of JSON"));
            }
        }
    }

    /// Writes what is left of the answer; whether that was all.
    fn write(&mut self) -> io::Result<bool> {
        while !self.buffer.is_empty() {
            match self.stream.write(&self.buffer) {
                Ok(count) => drop(self.buffer.drain(..count.min(self.buffer.len()))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The last answer of a service that ends: there is no later.
    pub(super) fn answer_last(mut self, answer: &Answer) {
        self.buffer = line(answer).into_bytes();
        // A short line always fits into the socket's empty buffer.
        let _ = self.write();
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
