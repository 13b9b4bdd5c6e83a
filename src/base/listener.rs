//! Sockets that clients connect to.

use super::endpoint::Endpoint;
use std::fs::{self, Permissions};
use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

#[derive(Debug)]
pub enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Opens one or more sockets for each endpoint. The user of this process and the group of a unix socket may connect to it.
    /// That group is the group of its directory if the directory has the set-group-ID bit (inode(7)).
    ///
    /// # Errors
    /// If a socket cannot be opened; the error names the endpoint.
    pub fn open_all(endpoints: &[Endpoint]) -> io::Result<Vec<Self>> {
        let mut open = Vec::new();
        for endpoint in endpoints {
            let opened = match endpoint {
                Endpoint::Socket(path) => bind_unix(path, 0o660).map(|listener| vec![Self::Unix(listener)]),
                Endpoint::Tcp { host, port } => Self::bind_tcp((host.as_str(), *port)),
            };
            open.extend(opened.map_err(|error| io::Error::new(error.kind(), format!("{endpoint}: {error}")))?);
        }
        Ok(open)
    }

    /// Binds each address of a host.
    pub(crate) fn bind_tcp(host: impl ToSocketAddrs) -> io::Result<Vec<Self>> {
        let mut sockets = Vec::new();
        let mut last = io::Error::new(io::ErrorKind::NotFound, "this name has no address");
        for address in host.to_socket_addrs()? {
            match TcpListener::bind(address) {
                Ok(socket) => sockets.push(Self::Tcp(socket)),
                // `localhost` has an IPv6 address in /etc/hosts, even if the system has no IPv6.
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => last = error,
                Err(error) => return Err(error),
            }
        }
        if sockets.is_empty() { Err(last) } else { Ok(sockets) }
    }

    /// The address of the socket, as the configuration writes it.
    pub fn name(&self) -> String {
        match self {
            Self::Unix(socket) => {
                let address = socket.local_addr().ok();
                let path = address.as_ref().and_then(|address| address.as_pathname());
                path.map_or_else(|| "a unix socket without a path".into(), |path| path.display().to_string())
            }
            Self::Tcp(socket) => {
                socket.local_addr().map_or_else(|_| "a TCP socket".into(), |address| address.to_string())
            }
        }
    }

    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            Self::Unix(socket) => socket.try_clone()?.into(),
            Self::Tcp(socket) => socket.try_clone()?.into(),
        })
    }
}

/// Binds a unix socket with this mode. A stale socket of a dead process, which refuses connections, is replaced.
///
/// # Errors
/// `AddrInUse` if another program answers there. `AlreadyExists` if the path is something other than a socket. Other errors if
/// the system cannot bind the socket.
pub(crate) fn bind_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
    match UnixStream::connect(path) {
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AddrInUse, "another program answers there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            if !fs::symlink_metadata(path)?.file_type().is_socket() {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something that is no socket is there"));
            }
            fs::remove_file(path)?;
        }
        // The path is free, or bind(2) reports the socket there.
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    Ok(listener)
}

/// Whether the user at the other end of a connection is root, or the user of this process.
pub(crate) fn is_trusted(peer: u32) -> bool {
    may_connect(peer, rustix::process::geteuid().as_raw())
}

fn may_connect(peer: u32, ours: u32) -> bool {
    [0, ours].contains(&peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_user_and_root_are_trusted() {
        assert!(may_connect(0, 7) && may_connect(7, 7));
        assert!(!may_connect(8, 7) && !may_connect(7, 0));
    }

    #[test]
    fn a_socket_that_was_left_behind_is_replaced_and_one_that_is_in_use_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lmtp");
        let at = [Endpoint::Socket(path.clone())];
        let first = Listener::open_all(&at).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        let error = Listener::open_all(&at).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(error.to_string(), format!("{}: another program answers there", path.display()));
        drop(first);
        assert_eq!(Listener::open_all(&at).unwrap()[0].name(), path.display().to_string());
    }

    #[test]
    fn what_is_no_stream_socket_is_somebodys_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "a letter").unwrap();
        let error = bind_unix(&file, 0o600).unwrap_err();
        assert_eq!(error.to_string(), "something that is no socket is there");
        assert_eq!(fs::read_to_string(&file).unwrap(), "a letter");
        assert!(bind_unix(directory.path(), 0o600).is_err());
        // A datagram socket does not refuse a stream connection, but fails in another way.
        let datagrams = directory.path().join("log");
        let _anothers = std::os::unix::net::UnixDatagram::bind(&datagrams).unwrap();
        assert!(bind_unix(&datagrams, 0o600).is_err() && datagrams.exists());
    }
}
