//! Addresses of clients: single ones, and networks.

use ipnet::IpNet;
use serde::Deserialize;
use std::net::IpAddr;
use std::str::FromStr;

/// `192.0.2.7`, `192.0.2.0/24`, `2001:db8::/32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Network(IpNet);

impl Network {
    /// Whether the address is in this network. An IPv4 address that arrived at an IPv6 socket counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        let network = network
            .map_err(|_| format!("{text:?} is no address or network, such as \"192.0.2.7\" or \"2001:db8::/32\""))?;
        // Such a text is a mistake: another network, or a single address, was meant.
        if network.addr() != network.network() {
            return Err(format!("{text:?}: the address has bits behind the network's {}", network.prefix_len()));
        }
        Ok(Self(network))
    }
}

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A trusted proxy: an address, or any client of our unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum TrustedProxy {
    UnixSocket,
    Network(Network),
}

impl TrustedProxy {
    /// Whether the proxy is at this address; `None` is that of a unix socket.
    pub fn is_at(&self, address: Option<IpAddr>) -> bool {
        match self {
            Self::UnixSocket => address.is_none(),
            Self::Network(network) => address.is_some_and(|address| network.contains(address)),
        }
    }
}

impl TryFrom<String> for TrustedProxy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == "unix" { Ok(Self::UnixSocket) } else { text.parse().map(Self::Network) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(network: &str, address: &str) -> bool {
        network.parse::<Network>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn a_network_has_the_addresses_that_begin_as_it_does() {
        for (network, inside, outside) in [
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("192.0.2.0/24", "192.0.2.255", "192.0.3.0"),
            ("192.0.2.128/25", "192.0.2.128", "192.0.2.127"),
            ("192.0.2.0/24", "::ffff:192.0.2.9", "::ffff:192.0.3.9"),
            ("0.0.0.0/0", "255.1.2.3", "2001:db8::1"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::"),
            ("2001:db8::1", "2001:db8::1", "2001:db8::2"),
            ("::/0", "2001:db8::1", "192.0.2.1"),
        ] {
            assert!(contains(network, inside), "{network} {inside}");
            assert!(!contains(network, outside), "{network} {outside}");
        }
    }

    #[test]
    fn what_is_no_network_is_none() {
        for text in
            ["", "x", "192.0.2", "192.0.2.0/33", "::/129", "192.0.2.0/", "/24", "192.0.2.0/-1", "192.0.2.0/24/24"]
        {
            assert!(text.parse::<Network>().unwrap_err().contains("is no address"), "{text}");
        }
        for text in ["192.0.2.7/24", "2001:db8::1/32", "0.0.0.1/0"] {
            assert!(text.parse::<Network>().unwrap_err().contains("has bits behind"), "{text}");
        }
    }
}
