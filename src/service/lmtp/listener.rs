//! The sockets that clients connect to, and their connections.

use crate::base::listener::Listener as Open;
use rustix::net::sockopt::set_socket_send_buffer_size;
use std::io;
use std::net::IpAddr;
use std::task::{Context, Poll};
use tokio::net;
use tokio_util::either::Either;

/// How much the system holds of the replies that a client has not taken, in bytes. By itself it takes megabytes (tcp(7)), and we
/// would answer a client that reads nothing for as long.
const SEND_BUFFER: usize = 64 << 10;

/// One for the runtime.
pub(in crate::service) enum Listener {
    Unix(net::UnixListener),
    Tcp(net::TcpListener),
}

impl Listener {
    /// To be called within a runtime.
    pub(in crate::service) fn new(listener: Open) -> io::Result<Self> {
        match listener {
            Open::Unix(listener) => {
                listener.set_nonblocking(true)?;
                net::UnixListener::from_std(listener).map(Self::Unix)
            }
            Open::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                // Connections have it from the socket that they come by.
                set_socket_send_buffer_size(&listener, SEND_BUFFER)?;
                net::TcpListener::from_std(listener).map(Self::Tcp)
            }
        }
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Connection>> {
        match self {
            Self::Unix(listener) => listener
                .poll_accept(context)
                .map_ok(|(stream, _)| Connection { stream: Either::Left(stream), address: None }),
            Self::Tcp(listener) => listener
                .poll_accept(context)
                .map_ok(|(stream, peer)| Connection { stream: Either::Right(stream), address: Some(peer.ip()) }),
        }
    }
}

/// The next connection to any of them. (Nothing is lost where the future is dropped: a connection is taken only to be returned.)
pub(in crate::service) async fn accept(listeners: &[Listener], turn: usize) -> io::Result<Connection> {
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
pub(in crate::service) struct Connection {
    pub(in crate::service) stream: Either<net::UnixStream, net::TcpStream>,
    /// Where it comes from, if not from this machine by a unix socket.
    pub(in crate::service) address: Option<IpAddr>,
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
