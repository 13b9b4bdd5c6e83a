//! Bytes to and from the server: TCP or a unix socket, with or without TLS. The deadline limits each wait.

use super::Broken;
use super::MailboxFailure;
use crate::base::deadline::Deadline;
use crate::base::endpoint::{CONNECT_TIMEOUT, Endpoint};
use crate::base::server_waits::{self, ServerKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustls::{ClientConfig, ClientConnection};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How long the kernel keeps sending bytes that the server does not acknowledge, even after the end of this process
/// (`TCP_USER_TIMEOUT`, tcp(7)). The default is 100 s or more (`tcp_orphan_retries`). The next attempt has to wait for that
/// time before it searches for a copy.
pub(crate) const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// How many bytes may wait in this machine while the time of an upload is measured (`SO_SNDBUF`, socket(7)). By default the
/// kernel buffers some megabytes, so that a whole message seems to be sent at once.
const UNSENT: usize = 128 * 1024;

pub(super) struct Stream {
    socket: Socket,
    tls: Option<Box<ClientConnection>>,
}

impl Stream {
    pub(super) fn connect(address: &Endpoint, deadline: Deadline) -> Result<Self, Broken> {
        let transport = match address {
            Endpoint::Tcp { host, port } => {
                Transport::Tcp(connect_to_one_of(&resolve(host, *port, deadline)?, host, deadline)?)
            }
            Endpoint::Socket(path) => Transport::Unix(connect_unix(path, deadline)?),
        };
        Ok(Self { socket: Socket { transport, deadline }, tls: None })
    }

    pub(super) fn deadline(&self) -> Deadline {
        self.socket.deadline
    }

    pub(super) fn set_deadline(&mut self, deadline: Deadline) {
        self.socket.deadline = deadline;
    }

    /// Whether the connection is open and has no unread bytes. Does not wait.
    pub(super) fn is_quiet(&mut self) -> bool {
        loop {
            let Ok(readable) = self.socket.is_readable() else { return false };
            let Some(tls) = &mut self.tls else { return !readable };
            // Readable bytes may belong to TLS itself: a session ticket, a key update.
            if readable && !matches!(tls.read_tls(&mut self.socket.bounded(None)), Ok(1..)) {
                return false;
            }
            match tls.process_new_packets() {
                Ok(state) if state.plaintext_bytes_to_read() == 0 && !state.peer_has_closed() => {}
                _ => return false,
            }
            if !readable {
                return true;
            }
        }
    }

    /// From now on few written bytes wait in this machine, so that the duration of a write shows the speed of the line.
    pub(super) fn keep_little_unsent(&self) -> io::Result<()> {
        match &self.socket.transport {
            Transport::Tcp(stream) => Ok(rustix::net::sockopt::set_socket_send_buffer_size(stream, UNSENT)?),
            // A server on this machine has no line to measure.
            Transport::Unix(_) => Ok(()),
        }
    }

    pub(super) fn remaining(&self) -> Duration {
        self.socket.deadline.remaining()
    }

    /// Continues under TLS. The server's certificate must be for `host`.
    pub(super) fn start_tls(&mut self, config: Arc<ClientConfig>, host: &str) -> Result<(), Broken> {
        let unreachable = |detail: String| Broken::new(MailboxFailure::Unreachable, detail);
        let name = rustls::pki_types::ServerName::try_from(host.to_owned())
            .map_err(|_| unreachable(format!("no certificate can be for the host name {host:?}")))?;
        let mut tls = ClientConnection::new(config, name).map_err(|e| unreachable(format!("TLS: {e}")))?;
        while tls.is_handshaking() {
            while tls.wants_write() {
                tls.write_tls(&mut self.socket.bounded(None)).map_err(|e| self.socket.explain(&e))?;
            }
            if !tls.is_handshaking() {
                break;
            }
            if tls.read_tls(&mut self.socket.bounded(None)).map_err(|e| self.socket.explain(&e))? == 0 {
                return Err(Broken::lost("the server closed the connection during the TLS handshake"));
            }
            if let Err(e) = tls.process_new_packets() {
                // The TLS alert is only for the server's log, so its loss does no harm.
                let _ = tls.write_tls(&mut self.socket.bounded(None));
                return Err(unreachable(format!("TLS: {e}")));
            }
        }
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    /// Reads available bytes, and waits no longer than `patience` or the deadline. `None` if no bytes came within
    /// `patience`; 0 if the server has closed the connection.
    pub(super) fn read(&mut self, buffer: &mut [u8], patience: Option<Duration>) -> Result<Option<usize>, Broken> {
        let Some(tls) = &mut self.tls else {
            let read = self.socket.bounded(patience).read(buffer);
            return self.socket.outcome(read);
        };
        // One limit for all reads of this call, so that TLS's own records, or parts of a record, do not extend it.
        let until = patience.map(|patience| Instant::now() + patience);
        let mut left = patience;
        loop {
            match tls.reader().read(buffer) {
                Ok(read) => return Ok(Some(read)),
                // A close without close_notify (RFC 8446 section 6.1) counts as an ordinary close. A truncated reply is
                // never taken for a complete one, because IMAP marks the end of each reply.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(Some(0)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(Broken::lost(format!("TLS: {e}"))),
            }
            // TLS may have to send something itself: an answer to a key update.
            if left.is_some_and(|left| left.is_zero()) || !send_pending(tls, &mut self.socket, left)? {
                return Ok(None);
            }
            let read = tls.read_tls(&mut self.socket.bounded(left));
            if self.socket.outcome(read)?.is_none() {
                return Ok(None);
            }
            tls.process_new_packets().map_err(|e| Broken::lost(format!("TLS: {e}")))?;
            left = until.map(|until| until.saturating_duration_since(Instant::now()));
        }
    }

    /// Writes as many bytes of `pieces` as possible within `patience`; `None` if none were written. Pieces that fit into one
    /// packet are sent in one, without a copy in memory.
    pub(super) fn write(&mut self, pieces: &[IoSlice<'_>], patience: Duration) -> Result<Option<usize>, Broken> {
        let Some(tls) = &mut self.tls else {
            let written = self.socket.bounded(Some(patience)).write_vectored(pieces);
            return match self.socket.outcome(written)? {
                Some(0) => Err(Broken::lost("the connection takes no more bytes")),
                written => Ok(written),
            };
        };
        if !send_pending(tls, &mut self.socket, Some(patience))? {
            return Ok(None);
        }
        let accepted = tls.writer().write_vectored(pieces).map_err(|e| Broken::lost(format!("TLS: {e}")))?;
        Ok(Some(accepted))
    }

    /// Sends the bytes that TLS still buffers; `false` if some are left after `patience`.
    pub(super) fn flush(&mut self, patience: Duration) -> Result<bool, Broken> {
        match &mut self.tls {
            Some(tls) => send_pending(tls, &mut self.socket, Some(patience)),
            None => Ok(true),
        }
    }
}

fn send_pending(tls: &mut ClientConnection, socket: &mut Socket, patience: Option<Duration>) -> Result<bool, Broken> {
    while tls.wants_write() {
        let written = tls.write_tls(&mut socket.bounded(patience));
        if socket.outcome(written)?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    // The last CRLF of an APPEND is a separate packet. Nagle's algorithm would hold it back until the server's delayed
    // acknowledgement, some 40 ms.
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    {
        let milliseconds = u32::try_from(USER_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
        rustix::net::sockopt::set_tcp_user_timeout(stream, milliseconds)?;
    }
    Ok(())
}

fn connect_to_one_of(addresses: &[SocketAddr], host: &str, deadline: Deadline) -> Result<TcpStream, Broken> {
    let mut failures = Vec::new();
    for (others, address) in (0..addresses.len()).rev().zip(addresses) {
        let share = share_of_one(others, deadline.remaining());
        if share.is_zero() {
            return Err(Broken::new(MailboxFailure::TimedOut, format!("no time was left to reach {host}")));
        }
        match TcpStream::connect_timeout(address, share) {
            Ok(stream) => {
                set_options(&stream).map_err(|e| Broken::new(MailboxFailure::Local, e.to_string()))?;
                return Ok(stream);
            }
            Err(e) => failures.push(format!("{address}: {e}")),
        }
    }
    let failure = if deadline.passed() { MailboxFailure::TimedOut } else { MailboxFailure::Unreachable };
    Err(Broken::new(failure, failures.join("; ")))
}

/// How long to wait for one address that is followed by `others` more: its share of the remaining time. While another
/// address is left, the wait is at most [`CONNECT_TIMEOUT`].
fn share_of_one(others: usize, left: Duration) -> Duration {
    match u32::try_from(others).unwrap_or(u32::MAX) {
        0 => left,
        others => CONNECT_TIMEOUT.min(left / others.saturating_add(1)),
    }
}

/// The host's addresses, in the system's order of preference.
fn resolve(host: &str, port: u16, deadline: Deadline) -> Result<Vec<SocketAddr>, Broken> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let name = host.to_owned();
    let found = bounded(deadline, &format!("looking up {host}"), move || {
        (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>)
    })?;
    if found.is_empty() {
        return Err(Broken::new(MailboxFailure::Unreachable, format!("{host} has no address")));
    }
    Ok(found)
}

fn connect_unix(path: &Path, deadline: Deadline) -> Result<UnixStream, Broken> {
    let socket = path.to_owned();
    bounded(deadline, &path.display().to_string(), move || UnixStream::connect(socket))
}

/// Bounds a call that has no time limit: a name lookup, or a connection to a unix socket whose queue is full. The call has a
/// thread of its own, which is abandoned if it never returns.
fn bounded<T: Send + 'static>(
    deadline: Deadline,
    what: &str,
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Broken> {
    let (result_sender, result) = mpsc::channel();
    std::thread::Builder::new()
        .name("imap-connect".into())
        // After the deadline there is no receiver.
        .spawn(move || drop(result_sender.send(call())))
        .map_err(|e| Broken::new(MailboxFailure::Internal, format!("{what}: no thread could be started: {e}")))?;
    match result.recv_timeout(deadline.remaining()) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(Broken::new(MailboxFailure::Unreachable, format!("{what}: {e}"))),
        Err(mpsc::RecvTimeoutError::Timeout) => {
            Err(Broken::new(MailboxFailure::TimedOut, format!("{what}: no answer in time")))
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(Broken::new(MailboxFailure::Internal, format!("{what}: its thread died")))
        }
    }
}

/// A socket and the deadline that bounds each wait on it.
struct Socket {
    transport: Transport,
    deadline: Deadline,
}

enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn bounded(&mut self, patience: Option<Duration>) -> Bounded<'_> {
        Bounded { socket: self, patience }
    }

    /// Whether a read would return at once, with bytes or with the end of the connection.
    fn is_readable(&self) -> io::Result<bool> {
        let mut watched = [match &self.transport {
            Transport::Tcp(stream) => PollFd::new(stream, PollFlags::IN),
            Transport::Unix(stream) => PollFd::new(stream, PollFlags::IN),
        }];
        let ready = retry_on_intr(|| poll(&mut watched, Some(&Timespec::default())))?;
        Ok(ready > 0)
    }

    /// `None` if `patience` ended before the deadline.
    fn outcome(&self, result: io::Result<usize>) -> Result<Option<usize>, Broken> {
        match result {
            Ok(moved) => Ok(Some(moved)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(self.explain(&e)),
        }
    }

    fn explain(&self, error: &io::Error) -> Broken {
        match error.kind() {
            ErrorKind::TimedOut if self.deadline.passed() => {
                Broken::new(MailboxFailure::TimedOut, "no answer within the time that was left")
            }
            _ => Broken::lost(error.to_string()),
        }
    }
}

/// A socket for one read or write. It fails with `ErrorKind::WouldBlock` if `patience` ended, and with `ErrorKind::TimedOut`
/// if the deadline passed.
struct Bounded<'a> {
    socket: &'a mut Socket,
    patience: Option<Duration>,
}

impl Bounded<'_> {
    fn wait<T>(
        &mut self,
        set: impl Fn(&Transport, Duration) -> io::Result<()>,
        mut call: impl FnMut(&mut Transport) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            let left = self.socket.deadline.remaining();
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            // The limit is set for each call, so that a server that sends one byte per second does not extend the time.
            set(&self.socket.transport, self.patience.map_or(left, |patience| patience.min(left)))?;
            let _awaited = server_waits::for_answer(ServerKind::MailboxStore);
            match call(&mut self.socket.transport) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // The end of a socket's time limit is EAGAIN (socket(7), SO_RCVTIMEO), which is WouldBlock.
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if self.patience.is_some() && !self.socket.deadline.passed() {
                        return Err(e);
                    }
                }
                outcome => return outcome,
            }
        }
    }
}

impl Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait(
            |transport, limit| match transport {
                Transport::Tcp(stream) => stream.set_read_timeout(Some(limit)),
                Transport::Unix(stream) => stream.set_read_timeout(Some(limit)),
            },
            |transport| match transport {
                Transport::Tcp(stream) => stream.read(buffer),
                Transport::Unix(stream) => stream.read(buffer),
            },
        )
    }
}

impl Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.wait(
            |transport, limit| match transport {
                Transport::Tcp(stream) => stream.set_write_timeout(Some(limit)),
                Transport::Unix(stream) => stream.set_write_timeout(Some(limit)),
            },
            |transport| match transport {
                Transport::Tcp(stream) => stream.write_vectored(pieces),
                Transport::Unix(stream) => stream.write_vectored(pieces),
            },
        )
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket, socket_with};
    use std::net::TcpListener;

    #[test]
    fn the_last_address_has_all_the_time_that_is_left_and_no_other_more_than_its_share() {
        let [short, long] = [6, 240].map(Duration::from_secs);
        assert_eq!([2, 1, 0].map(|others| share_of_one(others, short)), [short / 3, short / 2, short]);
        assert_eq!([2, 1, 0].map(|others| share_of_one(others, long)), [CONNECT_TIMEOUT, CONNECT_TIMEOUT, long]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_a_dead_process_had_sent_is_not_sent_for_longer_than_the_next_try_waits() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let stream = connect_to_one_of(&[address], "one", Deadline::after(Duration::from_secs(240))).unwrap();
        assert_eq!(rustix::net::sockopt::tcp_user_timeout(&stream), Ok(30_000));
        assert!(stream.nodelay().unwrap());
    }

    #[test]
    fn an_address_that_says_nothing_does_not_use_up_the_time() {
        // A listener with a full queue drops further connections (tcp(7)).
        let silent = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&silent, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        listen(&silent, 0).unwrap();
        let silent_address = SocketAddr::try_from(getsockname(&silent).unwrap()).unwrap();
        let filling = || {
            let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
            // Not connected yet (EINPROGRESS).
            let _ = rustix::net::connect(&socket, &silent_address);
            socket
        };
        let _filling = [filling(), filling(), filling(), filling()];
        let answering = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [silent_address, answering.local_addr().unwrap()];
        let began = Instant::now();
        let stream = connect_to_one_of(&addresses, "two", Deadline::after(Duration::from_secs(240))).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addresses[1]);
        assert!((CONNECT_TIMEOUT..CONNECT_TIMEOUT * 6).contains(&began.elapsed()), "{:?}", began.elapsed());
    }

    /// The kernel gives up after [`USER_TIMEOUT`] (ETIMEDOUT), long before the deadline.
    #[test]
    fn a_connection_that_the_kernel_gives_up_is_lost_and_not_out_of_time() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let deadline = Deadline::after(Duration::from_secs(240));
        let socket = Socket { transport: Transport::Unix(ours), deadline };
        assert_eq!(socket.explain(&ErrorKind::TimedOut.into()).failure, MailboxFailure::ConnectionLost);
    }
}
