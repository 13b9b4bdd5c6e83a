//! A connection on a blocking stream, with a time limit for each wait.

use super::connection::{Connection, Message, Settings};
use super::error::ZmtpError;
use super::handshake::Peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType as NetType, connect, send, socket_with,
};
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use thiserror::Error;

/// How many bytes one read returns at most.
const PIECE: usize = 64 << 10;

/// The shortest timeout of a write, since zero means no timeout (socket(7), SO_SNDTIMEO).
const SHORTEST: Duration = Duration::from_millis(1);

/// Why a connection is unusable. A new one may work.
#[derive(Debug, Error)]
pub enum BlockingError {
    #[error(transparent)]
    Protocol(#[from] ZmtpError),
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer did not read, or not answer the handshake, in time")]
    TimedOut,
    #[error("the connection: {0}")]
    Stream(#[from] io::Error),
    /// For example, the peer is not running.
    #[error("nobody answers there: {0}")]
    NobodyThere(#[source] io::Error),
}

/// A connection after its handshake. After any error it is unusable, and has to be replaced.
pub struct Blocking {
    stream: UnixStream,
    connection: Connection,
    piece: Vec<u8>,
}

impl Blocking {
    /// Connects to a unix socket, and does the handshake.
    ///
    /// # Errors
    /// Those of [`handshake`](Self::handshake), and [`BlockingError::NobodyThere`] if the connect fails.
    pub fn connect(path: &Path, settings: Settings, until: Instant) -> Result<Self, BlockingError> {
        let address = SocketAddrUnix::new(path).map_err(io::Error::from)?;
        let socket = socket_with(AddressFamily::UNIX, NetType::STREAM, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(io::Error::from)?;
        // The timeout also limits connect(2), which blocks while the backlog is full (socket(7), SO_SNDTIMEO).
        set_socket_timeout(&socket, Timeout::Send, Some(left(until))).map_err(io::Error::from)?;
        retry_on_intr(|| connect(&socket, &address)).map_err(|error| nobody_there(error.into()))?;
        Self::handshake(UnixStream::from(socket), settings, until)
    }

    /// Does the handshake, on either side.
    ///
    /// # Errors
    /// If the peer has gone, is not a valid peer, or has not answered by `until`.
    pub fn handshake(stream: UnixStream, settings: Settings, until: Instant) -> Result<Self, BlockingError> {
        let mut new = Self { stream, connection: Connection::new(settings), piece: vec![0; PIECE] };
        // [`Connection`] limits the length of a handshake, and each wait ends at `until`, so a peer that sends byte by byte
        // cannot block this for long.
        while new.connection.peer().is_none() {
            if !new.flush(until)? || !new.read(until)? {
                return Err(BlockingError::TimedOut);
            }
        }
        // Our READY may still be unsent if the peer's READY came together with its greeting.
        if new.flush(until)? { Ok(new) } else { Err(BlockingError::TimedOut) }
    }

    /// The peer, as it describes itself.
    pub fn peer(&self) -> Option<&Peer> {
        self.connection.peer()
    }

    /// The stream, for poll(2). Poll only after [`receive`](Self::receive) has returned all messages that have arrived:
    /// bytes that are already read do not make the stream readable.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Sends a message.
    ///
    /// # Errors
    /// If it could not be sent by `until`. A part of it may have been sent.
    pub fn send(&mut self, frames: &[&[u8]], until: Instant) -> Result<(), BlockingError> {
        self.connection.send(frames);
        if self.flush(until)? { Ok(()) } else { Err(BlockingError::TimedOut) }
    }

    /// The next message. `None` if no complete message has arrived by `until`; a partial one is kept. If `until` has passed,
    /// only arrived data is used.
    ///
    /// # Errors
    /// If no more messages will come.
    pub fn receive(&mut self, until: Instant) -> Result<Option<Message>, BlockingError> {
        loop {
            if let Some(message) = self.connection.next()? {
                return Ok(Some(message));
            }
            // The flush sends the answer to a PING.
            if !self.flush(until)? || !self.read(until)? {
                return Ok(None);
            }
            // A peer that sends PINGs without end must not block this.
            if Instant::now() >= until {
                return Ok(self.connection.next()?);
            }
        }
    }

    /// Reads some bytes; `false` if none have arrived by `until`.
    fn read(&mut self, until: Instant) -> Result<bool, BlockingError> {
        if !self.is_readable(until)? {
            return Ok(false);
        }
        match retry_on_intr(|| rustix::io::read(&self.stream, self.piece.as_mut_slice())) {
            Ok(0) => Err(BlockingError::Closed),
            Ok(length) => {
                self.connection.feed(self.piece.get(..length).unwrap_or_default())?;
                Ok(true)
            }
            Err(error) => timed_out(error.into()),
        }
    }

    /// Waits for data with poll(2), because a socket timeout may be late by an eighth (Linux's timer wheel).
    fn is_readable(&self, until: Instant) -> Result<bool, BlockingError> {
        retry_on_intr(|| {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
            poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&left))
        })
        .map(|ready| ready > 0)
        .map_err(|error| BlockingError::Stream(error.into()))
    }

    /// Writes all waiting bytes; `false` if that was not possible by `until`.
    fn flush(&mut self, until: Instant) -> Result<bool, BlockingError> {
        while !self.connection.outgoing().is_empty() {
            self.stream.set_write_timeout(Some(left(until)))?;
            match retry_on_intr(|| send(&self.stream, self.connection.outgoing(), SendFlags::NOSIGNAL)) {
                Ok(length) => {
                    self.connection.wrote(length);
                    if Instant::now() >= until {
                        return Ok(self.connection.outgoing().is_empty());
                    }
                }
                Err(error) => return timed_out(error.into()),
            }
        }
        Ok(true)
    }
}

impl fmt::Debug for Blocking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connection.fmt(f)
    }
}

/// The time until `until`, and never zero.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(SHORTEST)
}

/// `Ok(false)` if the error is only that the time is over (socket(7), SO_RCVTIMEO).
fn timed_out(error: io::Error) -> Result<bool, BlockingError> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(false),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Err(BlockingError::Closed),
        _ => Err(error.into()),
    }
}

/// The error of a connect that failed, or timed out.
fn nobody_there(error: io::Error) -> BlockingError {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => BlockingError::TimedOut,
        _ => BlockingError::NobodyThere(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::handshake::SocketType;
    use super::super::property_tests::{handshake, settings};
    use super::*;
    use std::io::{Read, Write};
    use std::thread;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// A dealer and a router after their handshake.
    fn pair() -> (Blocking, Blocking) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let router = thread::spawn(move || Blocking::handshake(theirs, settings(SocketType::Router), soon()).unwrap());
        let dealer = Blocking::handshake(ours, settings(SocketType::Dealer), soon()).unwrap();
        (dealer, router.join().unwrap())
    }

    #[test]
    fn messages_go_both_ways() {
        let (mut dealer, mut router) = pair();
        assert_eq!(dealer.peer().unwrap().socket_type, SocketType::Router);
        dealer.send(&[b"", b"one"], soon()).unwrap();
        dealer.send(&[b"two"], soon()).unwrap();
        assert_eq!(router.receive(soon()).unwrap(), Some(vec![b"".to_vec(), b"one".to_vec()]));
        // Arrived data is returned, even if the time is over.
        assert_eq!(router.receive(Instant::now()).unwrap(), Some(vec![b"two".to_vec()]));
        assert_eq!(router.receive(Instant::now()).unwrap(), None);
        router.send(&[b"three"], soon()).unwrap();
        assert_eq!(dealer.receive(soon()).unwrap(), Some(vec![b"three".to_vec()]));
        assert!(format!("{dealer:?}").starts_with("Connection"));
        drop(router);
        assert!(matches!(dealer.receive(soon()), Err(BlockingError::Closed)));
        assert!(matches!(dealer.send(&[b"four"], soon()), Err(BlockingError::Closed)));
    }

    #[test]
    fn a_message_longer_than_a_piece_is_read_to_its_end() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&handshake(SocketType::Router)).unwrap();
        let mut dealer = Blocking::handshake(ours, settings(SocketType::Dealer), soon()).unwrap();
        let frame = vec![7; settings(SocketType::Dealer).longest_frame];
        let message = [&[2][..], &(frame.len() as u64).to_be_bytes(), &frame].concat();
        assert!(message.len() > PIECE);
        thread::scope(|scope| {
            scope.spawn(|| theirs.write_all(&message).unwrap());
            assert_eq!(dealer.receive(soon()).unwrap(), Some(vec![frame.clone()]));
        });
    }

    #[test]
    fn a_message_that_comes_in_parts_is_waited_for_more_than_once() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&handshake(SocketType::Router)).unwrap();
        let mut dealer = Blocking::handshake(ours, settings(SocketType::Dealer), soon()).unwrap();
        theirs.write_all(b"\0\x03a").unwrap();
        assert_eq!(dealer.receive(Instant::now()).unwrap(), None);
        theirs.write_all(b"bc").unwrap();
        assert_eq!(dealer.receive(soon()).unwrap(), Some(vec![b"abc".to_vec()]));
    }

    #[test]
    fn a_peer_that_says_nothing_or_nonsense_gets_no_connection() {
        let silent = UnixStream::pair().unwrap();
        let until = Instant::now() + Duration::from_millis(20);
        let error = Blocking::handshake(silent.0, settings(SocketType::Dealer), until).unwrap_err();
        assert!(matches!(error, BlockingError::TimedOut), "{error}");
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"220 mail ESMTP\r\n").unwrap();
        let error = Blocking::handshake(ours, settings(SocketType::Dealer), soon()).unwrap_err();
        assert!(matches!(error, BlockingError::Protocol(ZmtpError::NotZmtp)), "{error}");
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let error = Blocking::handshake(ours, settings(SocketType::Dealer), soon()).unwrap_err();
        assert!(matches!(error, BlockingError::Closed), "{error}");
    }

    #[test]
    fn whom_nobody_answers_is_reported_at_once_and_who_is_not_accepted_waits_no_longer_than_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let connect = |until| Blocking::connect(&path, settings(SocketType::Dealer), until).unwrap_err();
        assert!(matches!(connect(soon()), BlockingError::NobodyThere(_)));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let waiting = UnixStream::connect(&path).unwrap();
        assert!(matches!(connect(Instant::now() + Duration::from_millis(20)), BlockingError::TimedOut));
        drop((waiting, listener));
        assert!(matches!(connect(soon()), BlockingError::NobodyThere(_)));
        let too_long = folder.path().join("x".repeat(200));
        let error = Blocking::connect(&too_long, settings(SocketType::Dealer), soon()).unwrap_err();
        assert!(matches!(error, BlockingError::Stream(_)), "{error}");
    }

    #[test]
    fn a_peer_that_does_not_read_is_not_waited_for_without_end() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&handshake(SocketType::Router)).unwrap();
        let mut dealer = Blocking::handshake(ours, settings(SocketType::Dealer), soon()).unwrap();
        let until = Instant::now() + Duration::from_millis(20);
        let error = dealer.send(&[&vec![0; 32 << 20]], until).unwrap_err();
        assert!(matches!(error, BlockingError::TimedOut), "{error}");
        // The same if there is no space for a single byte.
        let error = dealer.send(&[b"x"], Instant::now()).unwrap_err();
        assert!(matches!(error, BlockingError::TimedOut), "{error}");
    }

    #[test]
    fn a_peer_that_sends_pings_without_end_does_not_hold_us_up() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&handshake(SocketType::Router)).unwrap();
        let mut dealer = Blocking::handshake(ours, settings(SocketType::Dealer), soon()).unwrap();
        let flood = thread::spawn(move || {
            let mut answers = [0; 4096];
            theirs.set_nonblocking(true).unwrap();
            loop {
                match theirs.write(&b"\x04\x07\x04PING\0\x0a".repeat(10)) {
                    Err(error) if error.kind() != ErrorKind::WouldBlock => return,
                    // An incomplete PING would be followed by a complete one.
                    Ok(length) if length < 90 => return,
                    _ => drop(theirs.read(&mut answers)),
                }
            }
        });
        assert!(!matches!(dealer.receive(Instant::now() + Duration::from_millis(50)), Ok(Some(_))));
        drop(dealer);
        flood.join().unwrap();
    }
}
