//! The address of a server.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

/// How long one address of a server may take to accept a connection: time for three retransmissions of the SYN. Another address
/// may be faster.
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
    /// Parses `db1`, `db1:5433`, `2001:db8::1`, `[2001:db8::1]:5433`, or the absolute path of a socket. Without a default, the
    /// text must have a port.
    pub(crate) fn parse(text: &str, default_port: Option<u16>) -> Option<Self> {
        if text.starts_with('/') {
            return Some(Self::Socket(text.into()));
        }
        let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(bracketed) => {
                let (host, rest) = bracketed?;
                host.parse::<Ipv6Addr>().ok()?;
                (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
            }
            // An IPv6 address has at least two colons.
            None if text.matches(':').count() > 1 => (text, None),
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let port = match port {
            Some(port) => port.parse().ok().filter(|port| *port != 0)?,
            None => default_port?,
        };
        let is_odd = |c: char| c.is_whitespace() || matches!(c, '[' | ']' | '/' | ',');
        (!host.is_empty() && !host.contains(is_odd)).then(|| Self::Tcp { host: host.to_owned(), port })
    }

    /// Whether data sent to this endpoint stays on this machine.
    pub(crate) fn is_on_this_machine(&self) -> bool {
        match self {
            Self::Socket(_) => true,
            Self::Tcp { host, .. } => {
                host.eq_ignore_ascii_case("localhost")
                    || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
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
    fn a_server_is_a_host_with_or_without_a_port_or_a_socket() {
        let shown = |text: &str| Endpoint::parse(text, Some(5432)).map(|server| server.to_string());
        for (text, server) in [
            ("db1", "db1 port 5432"),
            ("db1.example.com:5433", "db1.example.com port 5433"),
            ("192.0.2.1:1", "192.0.2.1 port 1"),
            ("2001:db8::1", "2001:db8::1 port 5432"),
            ("[2001:db8::1]", "2001:db8::1 port 5432"),
            ("[2001:db8::1]:5433", "2001:db8::1 port 5433"),
            ("/run/postgresql", "/run/postgresql"),
            ("/run/x:1", "/run/x:1"),
        ] {
            assert_eq!(shown(text).as_deref(), Some(server), "{text}");
        }
        for text in [
            "",
            ":5432",
            "db1:",
            "db1:x",
            "db1:0",
            "db1:65536",
            "db1:-1",
            "db1, db2",
            "db1,db2",
            "[::1",
            "[::1]5",
            "[]:24",
            "[a]:24",
            "a/b",
        ] {
            assert_eq!(shown(text), None, "{text}");
        }
        for text in ["x", "2001:db8::1", "2001:db8::1:24", "[2001:db8::1]", "run/x", "unix:/run/x"] {
            assert_eq!(Endpoint::parse(text, None), None, "{text} names no port");
        }
        assert_eq!(Endpoint::parse("[2001:db8::1]:5432", None), Some(tcp("2001:db8::1")));
    }

    #[test]
    fn people_are_reported_where_it_is() {
        assert_eq!(tcp("db1").to_string(), "db1 port 5432");
        assert_eq!(Endpoint::Socket("/run/postgresql".into()).to_string(), "/run/postgresql");
    }
}
