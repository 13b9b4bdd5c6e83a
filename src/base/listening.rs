//! Sockets that clients connect to.

use super::endpoint::Endpoint;
use std::fs::{self, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// One that is open.
#[derive(Debug)]
pub enum Listening {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listening {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_was_left_behind_is_replaced_and_one_that_is_in_use_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lmtp");
        let at = [Endpoint::Socket(path.clone())];
        let first = Listening::open_at(&at).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        let error = Listening::open_at(&at).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().starts_with(path.to_str().unwrap()), "{error}");
        drop(first);
        assert_eq!(Listening::open_at(&at).unwrap().len(), 1);
        // What is no socket is somebody's.
        let file = directory.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(unix(&file).is_err());
        assert!(file.exists());
    }
}
