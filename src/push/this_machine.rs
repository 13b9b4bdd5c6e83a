//! Whether an address is this machine's own.
//!
//! Only to such an address can a socket be bound: that is the kernel's own word, for the addresses of interfaces and for what is routed
//! to it as a whole. But where `net.ipv4.ip_nonlocal_bind` or its like of IPv6 is set, as for keepalived and HAProxy, a socket can be
//! bound to any address (ip(7)). There the kernel's routes say it (proc_net(5)).

use crate::config::Network;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Addresses that no machine has: RFC 5737 and RFC 3849.
const NOBODYS_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const NOBODYS_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// Whether it is.
///
/// # Errors
/// Where that cannot be known: too many files are open, or the routes cannot be read.
pub(super) fn has(address: IpAddr) -> io::Result<bool> {
    if !can_be_bound(address)? {
        return Ok(false);
    }
    let nobodys = match address {
        IpAddr::V4(_) => NOBODYS_V4.into(),
        IpAddr::V6(_) => NOBODYS_V6.into(),
    };
    if can_be_bound(nobodys)? { is_routed_here(address) } else { Ok(true) }
}

fn can_be_bound(address: IpAddr) -> io::Result<bool> {
    match UdpSocket::bind((address, 0)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(false),
        // A kernel without IPv6.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_routed_here(address: IpAddr) -> io::Result<bool> {
    let (file, read): (_, fn(&str) -> Vec<Network>) = match address {
        IpAddr::V4(_) => ("/proc/self/net/fib_trie", of_fib_trie),
        IpAddr::V6(_) => ("/proc/self/net/ipv6_route", of_ipv6_route),
    };
    let text = fs::read_to_string(file).map_err(|error| io::Error::new(error.kind(), format!("{file}: {error}")))?;
    Ok(read(&text).iter().any(|network| network.contains(address)))
}

/// The IPv4 networks that are routed to this machine: of a network there is `|-- 127.0.0.0`, and a line `/8 host LOCAL` below it.
fn of_fib_trie(text: &str) -> Vec<Network> {
    let (mut networks, mut first) = (Vec::new(), "");
    for line in text.lines() {
        if let Some((_, address)) = line.split_once("|-- ") {
            first = address.trim();
        } else if let Some(prefix) = line.trim().strip_suffix(" host LOCAL") {
            networks.extend(format!("{first}{prefix}").parse::<Network>());
        }
    }
    networks
}

/// The same of IPv6: the first column is the network and the second its prefix, both in hexadecimal digits; of the flags, the last column
/// but one, RTF_LOCAL says it (linux/ipv6_route.h).
fn of_ipv6_route(text: &str) -> Vec<Network> {
    const RTF_LOCAL: u32 = 0x8000_0000;
    let mut networks = Vec::new();
    for line in text.lines() {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (Some(network), Some(prefix), Some(flags)) = (columns.first(), columns.get(1), columns.get(8)) else {
            continue;
        };
        let numbers =
            (u128::from_str_radix(network, 16), u8::from_str_radix(prefix, 16), u32::from_str_radix(flags, 16));
        if let (Ok(network), Ok(prefix), Ok(flags)) = numbers
            && flags & RTF_LOCAL != 0
        {
            networks.extend(format!("{}/{prefix}", Ipv6Addr::from_bits(network)).parse::<Network>());
        }
    }
    networks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contain(networks: &[Network], address: &str) -> bool {
        networks.iter().any(|network| network.contains(address.parse().unwrap()))
    }

    #[test]
    fn its_own_addresses_are_known_and_those_of_others_are_not_its_own() {
        assert!(has(Ipv4Addr::LOCALHOST.into()).unwrap());
        assert!(has("127.1.2.3".parse().unwrap()).unwrap());
        assert!(!has("93.184.216.34".parse().unwrap()).unwrap());
        assert!(!has("2606:2800:21f:cb07:6820:80da:af6b:8b2c".parse().unwrap()).unwrap());
    }

    /// That it cannot be known is not taken for "no". A link-local address cannot be bound without a link (ipv6(7)).
    #[test]
    fn an_address_of_which_it_cannot_be_known_is_an_error() {
        let link_local = "fe80::1".parse().unwrap();
        match can_be_bound(Ipv6Addr::LOCALHOST.into()) {
            Ok(true) => assert_eq!(has(link_local).unwrap_err().kind(), io::ErrorKind::InvalidInput),
            // A machine without IPv6.
            _ => assert!(!has(link_local).unwrap()),
        }
    }

    #[test]
    fn by_the_kernels_routes_they_are_the_same() {
        assert!(is_routed_here(Ipv4Addr::LOCALHOST.into()).unwrap());
        assert!(!is_routed_here("93.184.216.34".parse().unwrap()).unwrap());
        // Not every machine has IPv6.
        if let Ok(true) = can_be_bound(Ipv6Addr::LOCALHOST.into()) {
            assert!(is_routed_here(Ipv6Addr::LOCALHOST.into()).unwrap());
            assert!(!is_routed_here("2606:2800:21f:cb07:6820:80da:af6b:8b2c".parse().unwrap()).unwrap());
        }
    }

    #[test]
    fn networks_that_are_routed_here_as_a_whole_are_read_as_well() {
        let trie = "Local:\n  +-- 0.0.0.0/0 3 0 4\n     |-- 0.0.0.0\n        /0 universe UNICAST\n        |-- 93.184.216.0\n           \
                    /24 link UNICAST\n           /25 host LOCAL\n     |-- 93.184.217.7\n        /32 host LOCAL\n     \
                    |-- 93.184.217.255\n        /32 link BROADCAST\n";
        let networks = of_fib_trie(trie);
        for (address, is) in [
            ("93.184.216.1", true),
            ("93.184.216.127", true),
            ("93.184.216.128", false),
            ("93.184.217.7", true),
            ("93.184.217.8", false),
            ("93.184.217.255", false),
        ] {
            assert_eq!(contain(&networks, address), is, "{address}");
        }
        let local = "26062800021f0000000000000000abcd 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000002 00000000 80200001     eth0\n";
        let others = "26062800021f00000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n";
        let networks = of_ipv6_route(&format!("{others}{local}"));
        assert!(contain(&networks, "2606:2800:21f::abcd"));
        assert!(!contain(&networks, "2606:2800:21f::abce"));
    }
}
