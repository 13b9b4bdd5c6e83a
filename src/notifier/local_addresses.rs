//! Whether an address is this machine's own.
//!
//! The kernel is asked by a socket option that takes no address but such a one, of an interface or of a network that is routed to this
//! machine as a whole. Whether a socket can be bound to it says too little: where `net.ipv4.ip_nonlocal_bind` is set, as for keepalived and
//! HAProxy, one can be bound to any address (ip(7)).

use rustix::io::Errno;
use rustix::net::sockopt::set_ip_multicast_if;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// An address that no machine has (RFC 3849).
const NOBODYS: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// The addresses of this machine's interfaces (proc_net(5)), each at the beginning of a line, in hexadecimal digits.
const OF_INTERFACES: &str = "/proc/self/net/if_inet6";

/// Whether it is.
///
/// # Errors
/// If that cannot be known: too many files are open, or the interfaces cannot be read.
pub(super) fn has(address: IpAddr) -> io::Result<bool> {
    match address {
        IpAddr::V4(address) => is_local(address),
        IpAddr::V6(address) => Ok(can_be_bound(address)? && (!can_be_bound(NOBODYS)? || is_of_an_interface(address)?)),
    }
}

/// IP_MULTICAST_IF takes the address of a local interface (ip(7)), and the kernel looks for it in its table of local routes as well
/// (`ip_dev_find`).
fn is_local(address: Ipv4Addr) -> io::Result<bool> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    match set_ip_multicast_if(&socket, &address) {
        Ok(()) => Ok(true),
        Err(Errno::ADDRNOTAVAIL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// IPv6 has no such option: its IPV6_MULTICAST_IF takes the number of an interface.
fn can_be_bound(address: Ipv6Addr) -> io::Result<bool> {
    match UdpSocket::bind((address, 0)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(false),
        // A kernel without IPv6.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::AFNOSUPPORT) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_of_an_interface(address: Ipv6Addr) -> io::Result<bool> {
    let text = fs::read_to_string(OF_INTERFACES)
        .map_err(|error| io::Error::new(error.kind(), format!("{OF_INTERFACES}: {error}")))?;
    let address = format!("{:032x} ", address.to_bits());
    Ok(text.lines().any(|line| line.starts_with(&address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_own_addresses_are_known_and_those_of_others_are_not_its_own() {
        assert!(has(Ipv4Addr::LOCALHOST.into()).unwrap());
        // Of a network that is routed here as a whole.
        assert!(has("127.1.2.3".parse().unwrap()).unwrap());
        assert!(!has("93.184.216.34".parse().unwrap()).unwrap());
        assert!(!has("2606:2800:21f:cb07:6820:80da:af6b:8b2c".parse().unwrap()).unwrap());
    }

    /// That it cannot be known is not taken for "no". A link-local address cannot be bound without a link (ipv6(7)).
    #[test]
    fn an_address_of_which_it_cannot_be_known_is_an_error() {
        let link_local = "fe80::1".parse().unwrap();
        match can_be_bound(Ipv6Addr::LOCALHOST) {
            Ok(true) => assert_eq!(has(link_local).unwrap_err().kind(), io::ErrorKind::InvalidInput),
            // A machine without IPv6.
            _ => assert!(!has(link_local).unwrap()),
        }
    }

    #[test]
    fn by_the_interfaces_they_are_the_same() {
        // Not every machine has IPv6.
        if let Ok(true) = can_be_bound(Ipv6Addr::LOCALHOST) {
            assert!(is_of_an_interface(Ipv6Addr::LOCALHOST).unwrap());
            assert!(!is_of_an_interface("2606:2800:21f:cb07:6820:80da:af6b:8b2c".parse().unwrap()).unwrap());
        }
    }
}
