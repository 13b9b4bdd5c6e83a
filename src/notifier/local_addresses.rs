//! Whether an address belongs to this machine.
//!
//! The check uses a socket option that accepts only an address of this machine: one of an interface, or one of a network that is
//! routed to this machine as a whole. A successful bind(2) proves too little: with `net.ipv4.ip_nonlocal_bind`, as for keepalived
//! and HAProxy, a socket can be bound to any address (ip(7)).

use rustix::io::Errno;
use rustix::net::sockopt::set_ip_multicast_if;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Whether the address belongs to this machine.
///
/// # Errors
/// If that cannot be determined, for example with too many open files.
pub(super) fn has(address: IpAddr) -> io::Result<bool> {
    match address {
        IpAddr::V4(address) => is_local(address),
        IpAddr::V6(address) => is_own_source(address),
    }
}

/// IP_MULTICAST_IF takes the address of a local interface (ip(7)). The kernel also searches its table of local routes for it
/// (`ip_dev_find`).
fn is_local(address: Ipv4Addr) -> io::Result<bool> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    match set_ip_multicast_if(&socket, &address) {
        Ok(()) => Ok(true),
        Err(Errno::ADDRNOTAVAIL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// IPv6 has no such option. connect(2) of a datagram socket chooses the source address and sends nothing. The kernel prefers the
/// destination itself as the source, if it is local (RFC 6724 section 5, rule 1).
fn is_own_source(address: Ipv6Addr) -> io::Result<bool> {
    let connect = |socket: UdpSocket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    match UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).and_then(connect) {
        Ok(source) => Ok(source.ip() == address),
        Err(error) => match Errno::from_io_error(&error) {
            // No route leads to the address, or the kernel has no IPv6.
            Some(Errno::ADDRNOTAVAIL | Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::AFNOSUPPORT | Errno::ACCESS) => {
                Ok(false)
            }
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_own_addresses_are_known_and_those_of_others_are_not_its_own() {
        assert!(has(Ipv4Addr::LOCALHOST.into()).unwrap());
        // The whole network of this address is routed to this machine.
        assert!(has("127.1.2.3".parse().unwrap()).unwrap());
        assert!(!has("93.184.216.34".parse().unwrap()).unwrap());
        assert!(!has("2606:2800:21f:cb07:6820:80da:af6b:8b2c".parse().unwrap()).unwrap());
    }

    /// An unknown result does not count as "no". A link-local address has no route without a link (ipv6(7)).
    #[test]
    fn an_address_of_which_it_cannot_be_known_is_an_error() {
        let link_local = "fe80::1".parse().unwrap();
        // Not every machine has IPv6.
        if has(Ipv6Addr::LOCALHOST.into()).unwrap() {
            assert_eq!(has(link_local).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        } else {
            assert!(!matches!(has(link_local), Ok(true)));
        }
    }
}
