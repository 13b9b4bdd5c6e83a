//! Where front and workers find each other.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A unix socket.
    Unix(PathBuf),
    /// TCP, for tests with programs that know nothing else: whoever reaches it may hand out and take messages.
    Tcp(SocketAddr),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("tcp:") {
            Some(address) => address.parse().map(Self::Tcp).map_err(|error| format!("{address:?}: {error}")),
            None if text.starts_with('/') => Ok(Self::Unix(text.into())),
            None => Err(format!("{text:?} is neither the whole path of a socket nor tcp:ADDRESS:PORT")),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_written() {
        for text in ["/run/maildropd/clients.sock", "tcp:127.0.0.1:5555"] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        for text in ["", "clients.sock", "tcp:", "tcp:localhost:5555", "tcp:127.0.0.1"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }
}
