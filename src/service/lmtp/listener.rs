//! The sockets to which clients connect, and their connections.

use crate::base::listener::Listener as Open;
use rustix::net::sockopt::set_socket_send_buffer_size;
use std::io;
use std::net::IpAddr;
use tokio::net;
use tokio_util::either::Either;

/// How many bytes of replies the system buffers for a client that reads nothing. With the default of megabytes (tcp(7)), the
/// server would go on replying to such a client.
const SEND_BUFFER: usize = 64 << 10;

pub(in crate::service) enum Listener {
    Unix(net::UnixListener),
    Tcp(net::TcpListener),
}

impl Listener {
    /// Call this within a runtime.
    pub(in crate::service) fn new(listener: Open) -> io::Result<Self> {
        match listener {
            Open::Unix(listener) => {
                listener.set_nonblocking(true)?;
                net::UnixListener::from_std(listener).map(Self::Unix)
            }
            Open::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                // Accepted connections inherit the buffer size from the listener.
                set_socket_send_buffer_size(&listener, SEND_BUFFER)?;
                net::TcpListener::from_std(listener).map(Self::Tcp)
            }
        }
    }

    /// The next connection.
    pub(in crate::service) async fn accept(&self) -> io::Result<Connection> {
        Ok(match self {
            Self::Unix(listener) => Connection { stream: Either::Left(listener.accept().await?.0), address: None },
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Connection { stream: Either::Right(stream), address: Some(peer.ip()) }
            }
        })
    }
}

/// A client's connection.
#[derive(Debug)]
pub(in crate::service) struct Connection {
    pub(in crate::service) stream: Either<net::UnixStream, net::TcpStream>,
    /// The client's address; `None` for a unix socket.
    pub(in crate::service) address: Option<IpAddr>,
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
