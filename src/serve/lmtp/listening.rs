//! Sockets that clients connect to.

use crate::base::endpoint::Endpoint;
use crate::config::Serve;
use std::fs::{self, Permissions};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net;

/// One that is open.
#[derive(Debug)]
pub enum Listening {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listening {
    /// Opens those that the configuration names.
    ///
    /// # Errors
    /// Where one of them cannot be opened: the error names it.
    pub fn open(serve: &Serve) -> io::Result<Vec<Self>> {
        Self::open_at(&serve.lmtp_endpoints())
    }

    /// Opens these.
    ///
    /// # Errors
    /// Where one of them cannot be opened: the error names it.
    pub fn open_at(endpoints: &[Endpoint]) -> io::Result<Vec<Self>> {
        let mut listening = Vec::new();
        for endpoint in endpoints {
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{endpoint}: {error}"));
            match endpoint {
                Endpoint::Socket(path) => listening.push(Self::Unix(unix(path).map_err(named)?)),
                Endpoint::Tcp { host, port } => {
                    // A name may have several addresses: all of them.
                    let addresses: Vec<SocketAddr> = (host.as_str(), *port).to_socket_addrs().map_err(named)?.collect();
                    for address in addresses {
                        listening.push(Self::Tcp(TcpListener::bind(address).map_err(named)?));
                    }
                }
            }
        }
        Ok(listening)
    }
}

/// A socket at a path where a service that died may have left one. Its group may connect, which is its directory's where that has
/// the set-group-ID bit (inode(7)), besides ourselves.
fn unix(path: &Path) -> io::Result<UnixListener> {
    let left_behind = fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if left_behind && UnixStream::connect(path).is_err_and(|error| refused(&error)) {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// The same, for the runtime.
pub(in crate::serve) enum Listener {
    Unix(net::UnixListener),
    Tcp(net::TcpListener),
}

impl Listener {
    /// To be called within a runtime.
    pub(in crate::serve) fn new(listening: Listening) -> io::Result<Self> {
        match listening {
            Listening::Unix(listener) => {
                listener.set_nonblocking(true)?;
                net::UnixListener::from_std(listener).map(Self::Unix)
            }
            Listening::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                net::TcpListener::from_std(listener).map(Self::Tcp)
            }
        }
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Connection>> {
        match self {
            Self::Unix(listener) => listener.poll_accept(context).map_ok(|(stream, _)| Connection::Unix(stream)),
            Self::Tcp(listener) => {
                listener.poll_accept(context).map_ok(|(stream, address)| Connection::Tcp(stream, address.ip()))
            }
        }
    }
}

/// The next connection to any of them. (Nothing is lost where the future is dropped: a connection is taken only to be returned.)
pub(in crate::serve) async fn accept(listeners: &[Listener], turn: usize) -> io::Result<Connection> {
    std::future::poll_fn(|context| {
        // Not always in the same order, or one that is never idle would keep the others waiting.
        let order = (0..listeners.len()).map(|at| (at + turn) % listeners.len());
        for listener in order.filter_map(|at| listeners.get(at)) {
            if let Poll::Ready(accepted) = listener.poll_accept(context) {
                return Poll::Ready(accepted);
            }
        }
        Poll::Pending
    })
    .await
}

/// A client's connection.
#[derive(Debug)]
pub(in crate::serve) enum Connection {
    Unix(net::UnixStream),
    Tcp(net::TcpStream, IpAddr),
}

impl Connection {
    /// Where it comes from, if not from this machine by a unix socket.
    pub(in crate::serve) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp(_, address) => Some(*address),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tcp(stream, _) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tcp(stream, _) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
            Self::Tcp(stream, _) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tcp(stream, _) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(lmtp: &[&str]) -> Serve {
        Serve { lmtp: lmtp.iter().map(|text| (*text).to_owned()).collect(), ..Serve::default() }
    }

    #[test]
    fn a_socket_that_was_left_behind_is_replaced_and_one_that_is_in_use_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lmtp");
        let serve = serve(&[path.to_str().unwrap(), "127.0.0.1:1"]);
        let only_unix = Serve { lmtp: serve.lmtp[..1].to_vec(), ..Serve::default() };
        let first = Listening::open(&only_unix).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        let error = Listening::open(&only_unix).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().starts_with(path.to_str().unwrap()), "{error}");
        drop(first);
        assert_eq!(Listening::open(&only_unix).unwrap().len(), 1);
        // What is no socket is somebody's.
        let file = directory.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(unix(&file).is_err());
        assert!(file.exists());
    }
}
