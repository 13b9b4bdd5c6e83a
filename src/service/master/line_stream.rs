//! Lines of JSON over a stream. No operation blocks.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

#[derive(Debug)]
pub(super) struct LineStream {
    stream: UnixStream,
    /// The received data that was not returned: mostly the beginning of an incomplete line.
    received: Vec<u8>,
    to_send: Vec<u8>,
}

impl LineStream {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, received: Vec::new(), to_send: Vec::new() })
    }

    /// Sends a line now, or as soon as the stream can take it.
    pub(super) fn say(&mut self, line: &str) -> io::Result<()> {
        self.to_send.extend_from_slice(line.as_bytes());
        self.send()
    }

    /// Sends as much of the waiting data as the stream takes.
    pub(super) fn send(&mut self) -> io::Result<()> {
        while !self.to_send.is_empty() {
            match self.stream.write(&self.to_send) {
                Ok(sent) => drop(self.to_send.drain(..sent.min(self.to_send.len()))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// How many bytes wait to be sent.
    pub(super) fn waiting(&self) -> usize {
        self.to_send.len()
    }

    /// The next line that has arrived; `None` if there is none yet.
    ///
    /// # Errors
    /// If the other side has closed the stream, or has sent more than `longest` bytes without a line end.
    pub(super) fn next_line(&mut self, longest: usize) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = [0; 16_384];
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                return Ok(Some(self.received.drain(..=end).collect()));
            }
            if self.received.len() > longest {
                return Err(io::Error::other("a line without an end"));
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.received.extend_from_slice(buffer.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for LineStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
impl LineStream {
    /// How many received bytes were not returned yet.
    pub(super) fn received(&self) -> usize {
        self.received.len()
    }
}
