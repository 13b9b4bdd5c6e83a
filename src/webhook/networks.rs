//! Which addresses may be called on behalf of a person outside this site.
//!
//! A URL from a stranger must not lead into our own networks. A callback at 127.0.0.1, or at the address from which clouds
//! give out credentials, would make the service send the stranger's requests (server-side request forgery). So every address
//! outside the public Internet is refused, by IANA's registries of special-purpose addresses. Addresses that wrap another
//! address are refused as well.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4 networks outside the public Internet: the first address, and the length of the prefix.
/// <https://www.iana.org/assignments/iana-ipv4-special-registry>
const V4: [(Ipv4Addr, u32); 18] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    // Not in the registry: each machine in Azure reaches its own host there.
    // <https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16>
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 31, 196, 0), 24),
    (Ipv4Addr::new(192, 52, 193, 0), 24),
    // 6to4 relays.
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(192, 175, 48, 0), 24),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    // Multicast, reserved, broadcast.
    (Ipv4Addr::new(224, 0, 0, 0), 3),
];

/// The addresses assigned to the public Internet. Not among them are unique local, link-local, multicast, loopback, v4-mapped
/// and v4-compatible addresses, NAT64's two prefixes, 100::/64, 5f00::/16 and fec0::/10.
const V6_PUBLIC: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// The networks within [`V6_PUBLIC`] that are not public. <https://www.iana.org/assignments/iana-ipv6-special-registry>
const V6_SPECIAL: [(Ipv6Addr, u32); 5] = [
    // Protocols: Teredo, ORCHID, benchmarks, and others.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    // 6to4: wraps an IPv4 address.
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0), 48),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// Whether the address is in the public Internet.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            !V4.iter().any(|(network, prefix)| address.to_bits() >> (32 - prefix) == network.to_bits() >> (32 - prefix))
        }
        IpAddr::V6(address) => {
            let of = |(network, prefix): &(Ipv6Addr, u32)| {
                address.to_bits() >> (128 - prefix) == network.to_bits() >> (128 - prefix)
            };
            of(&V6_PUBLIC) && !V6_SPECIAL.iter().any(of)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First and last address of each network of the two registries; none is public.
    #[test]
    fn each_special_network_is_refused_from_its_first_to_its_last_address() {
        for (first, last) in [
            ("0.0.0.0", "0.255.255.255"),
            ("10.0.0.0", "10.255.255.255"),
            ("100.64.0.0", "100.127.255.255"),
            ("127.0.0.0", "127.255.255.255"),
            ("169.254.0.0", "169.254.255.255"),
            ("172.16.0.0", "172.31.255.255"),
            ("192.0.0.0", "192.0.0.255"),
            ("192.0.2.0", "192.0.2.255"),
            ("192.31.196.0", "192.31.196.255"),
            ("192.52.193.0", "192.52.193.255"),
            ("192.88.99.0", "192.88.99.255"),
            ("192.168.0.0", "192.168.255.255"),
            ("192.175.48.0", "192.175.48.255"),
            ("198.18.0.0", "198.19.255.255"),
            ("198.51.100.0", "198.51.100.255"),
            ("203.0.113.0", "203.0.113.255"),
            ("224.0.0.0", "255.255.255.255"),
            ("::", "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2620:4f:8000::", "2620:4f:8000:ffff:ffff:ffff:ffff:ffff"),
            ("3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("4000::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            let [first, last] = [first, last].map(|text| text.parse::<IpAddr>().unwrap());
            assert!(!is_public(first) && !is_public(last), "{first}");
            // The adjacent addresses are public, unless another network begins there.
            let next = match (first, last) {
                (IpAddr::V4(first), IpAddr::V4(last)) => [
                    first.to_bits().checked_sub(1).map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
                    last.to_bits().checked_add(1).map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
                ],
                (IpAddr::V6(first), IpAddr::V6(last)) => [
                    first.to_bits().checked_sub(1).map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))),
                    last.to_bits().checked_add(1).map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))),
                ],
                _ => unreachable!(),
            };
            let adjacent = ["2000::", "3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"].map(|text| text.parse().unwrap());
            for next in next.into_iter().flatten().filter(|next| !adjacent.contains(next)) {
                assert!(is_public(next), "{next}");
            }
        }
    }

    #[test]
    fn each_network_begins_and_ends_where_its_registry_says() {
        for (inside, outside) in [
            ("0.0.0.0", "1.0.0.0"),
            ("10.255.255.255", "11.0.0.0"),
            ("100.64.0.0", "100.63.255.255"),
            ("100.127.255.255", "100.128.0.0"),
            ("127.255.255.255", "128.0.0.1"),
            ("168.63.129.16", "168.63.129.15"),
            ("168.63.129.16", "168.63.129.17"),
            ("169.254.169.254", "169.253.255.255"),
            ("172.16.0.0", "172.15.255.255"),
            ("172.31.255.255", "172.32.0.0"),
            ("192.0.0.170", "192.0.1.0"),
            ("192.88.99.1", "192.88.98.255"),
            ("192.168.0.1", "192.169.0.0"),
            ("198.19.255.255", "198.20.0.0"),
            ("224.0.0.1", "223.255.255.255"),
            ("255.255.255.255", "9.9.9.9"),
            ("::", "2000::1"),
            ("::1", "2606:4700::1111"),
            ("::ffff:8.8.8.8", "2a00:1450::1"),
            ("::8.8.8.8", "2001:200::1"),
            ("64:ff9b::808:808", "2003::1"),
            ("64:ff9b:1::1", "2400::1"),
            ("100::1", "2600::1"),
            ("2001::1", "2001:4860:4860::8888"),
            ("2001:db8::1", "2001:db7::1"),
            ("2002:808:808::1", "2001:ffff::1"),
            ("3fff::1", "3ffe::1"),
            ("5f00::1", "3ffd::1"),
            ("fc00::1", "2800::1"),
            ("fdff::1", "2c00::1"),
            ("fe80::1", "2001:503::1"),
            ("fec0::1", "2620:fe::fe"),
            ("ff02::1", "2620:4f:7fff::1"),
        ] {
            assert!(!is_public(inside.parse().unwrap()), "{inside}");
            assert!(is_public(outside.parse().unwrap()), "{outside}");
        }
    }
}
