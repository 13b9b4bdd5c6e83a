//! The address of a server.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How long one address of a server may take to accept a connection: three retransmissions of the SYN. Another address may be
/// faster.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How to reach a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Over TCP.
    Tcp {
        /// Name or address.
        host: String,
        port: u16,
    },
    /// A unix socket: its directory (PostgreSQL) or its path (MySQL, IMAP).
    Socket(PathBuf),
}

impl fmt::Display for Endpoint {
    /// `db.example.com port 5432`, or the socket's path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => write!(f, "{host} port {port}"),
            Self::Socket(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Endpoint {
    /// Whether data sent there never leaves this machine.
    #[must_use]
    pub(crate) fn is_on_this_machine(&self) -> bool {
        match self {
            Self::Socket(_) => true,
            Self::Tcp { host, .. } => {
                host.eq_ignore_ascii_case("localhost")
                    || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str) -> Endpoint {
        Endpoint::Tcp { host: host.into(), port: 5432 }
    }

    #[test]
    fn a_socket_and_loopback_are_on_this_machine_and_no_name_that_only_looks_like_it() {
        for host in ["localhost", "LocalHost", "127.0.0.1", "127.9.9.9", "::1"] {
            assert!(tcp(host).is_on_this_machine(), "{host}");
        }
        for host in ["db.example.com", "192.0.2.1", "localhost.example.com", "::2", ""] {
            assert!(!tcp(host).is_on_this_machine(), "{host}");
        }
        assert!(Endpoint::Socket("/run/postgresql".into()).is_on_this_machine());
    }

    #[test]
    fn people_are_told_where_it_is() {
        assert_eq!(tcp("db1").to_string(), "db1 port 5432");
        assert_eq!(Endpoint::Socket("/run/postgresql".into()).to_string(), "/run/postgresql");
    }
}
