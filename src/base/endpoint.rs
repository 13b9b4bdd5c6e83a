//! Where a server is.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How long one address of a server may take to answer to a connect: three retransmissions of the SYN. Another may be better.
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
    /// Whether what is sent there never leaves this machine.
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
