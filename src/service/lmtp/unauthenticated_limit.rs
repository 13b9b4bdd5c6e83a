//! The limit of clients that have not presented their certificate yet.
//!
//! Anybody who can reach the port can open such a connection, and send nothing. So a newcomer at the limit is not simply refused:
//! if its address has fewer connections than another, the address with the most loses one.
//!
//! While no other address comes, one address may have all connections, as a Postfix does that opens its twenty at once. An
//! address that keeps hundreds open only keeps out itself.
//!
//! There is no fixed number for each address. A small one would refuse such a Postfix, which counts that as a failure of the
//! whole site. With a large one, a few addresses could keep out all others.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use tokio::sync::oneshot;

/// The owner of one IPv6 address usually has its whole /64 network.
const OF_ONE: u128 = u128::MAX << 64;

/// The connections without a certificate, and their limit.
pub(super) struct UnauthenticatedClients {
    places: usize,
    /// Oldest first.
    taken: Mutex<Vec<UnauthenticatedClient>>,
}

struct UnauthenticatedClient {
    network: IpAddr,
    /// When this is dropped, the connection must close.
    may_stay: oneshot::Sender<Infallible>,
}

/// Permits one connection until this is dropped. It resolves once another address has got the permit.
pub(super) type ConnectionPermit = oneshot::Receiver<Infallible>;

impl UnauthenticatedClients {
    pub(super) fn new(places: usize) -> Self {
        Self { places, taken: Mutex::default() }
    }

    /// A permit for a client at this address. `None` at the limit, if no other address has more connections.
    pub(super) fn admit(&self, address: IpAddr) -> Option<ConnectionPermit> {
        let network = network(address);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|client| !client.may_stay.is_closed());
        if taken.len() >= self.places {
            let at = connection_to_close(&taken, network)?;
            taken.remove(at);
        }
        let (may_stay, permit) = oneshot::channel();
        taken.push(UnauthenticatedClient { network, may_stay });
        Some(permit)
    }
}

/// The oldest connection of the address with the most. A handshake takes moments, so the oldest one is probably idle.
fn connection_to_close(taken: &[UnauthenticatedClient], newcomer: IpAddr) -> Option<usize> {
    let mut counts = HashMap::new();
    for client in taken {
        *counts.entry(client.network).or_insert(0_usize) += 1;
    }
    let most = counts.values().copied().max()?;
    let own = counts.get(&newcomer).copied().unwrap_or_default();
    taken.iter().position(|client| counts.get(&client.network) == Some(&most)).filter(|_| own < most)
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & OF_ONE)),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> IpAddr {
        address.parse().unwrap()
    }

    fn is_lost(permit: &mut ConnectionPermit) -> bool {
        permit.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn one_address_may_have_all_places_and_gives_way_to_others_until_they_have_as_many() {
        let clients = UnauthenticatedClients::new(4);
        let mut first: Vec<ConnectionPermit> = (0..4).map(|_| clients.admit(at("192.0.2.1")).unwrap()).collect();
        assert!(clients.admit(at("192.0.2.1")).is_none());
        assert!(clients.admit(at("::ffff:192.0.2.1")).is_none(), "it is the same");
        let second: Vec<ConnectionPermit> = (0..2).map(|_| clients.admit(at("192.0.2.2")).unwrap()).collect();
        assert_eq!(first.iter_mut().map(is_lost).collect::<Vec<_>>(), [true, true, false, false], "its oldest go");
        assert!(clients.admit(at("192.0.2.2")).is_none(), "each has two");
        let third = clients.admit(at("192.0.2.3")).unwrap();
        assert_eq!(first.iter_mut().map(is_lost).collect::<Vec<_>>(), [true, true, true, false]);
        // Dropping a permit that another address has got frees nothing: only the fourth place is free.
        first.clear();
        let fourth = clients.admit(at("192.0.2.2")).unwrap();
        assert!(clients.admit(at("192.0.2.2")).is_none());
        // Each connection that ends frees its place.
        drop((second, third, fourth));
        let all: Vec<_> = (0..5).map(|_| clients.admit(at("192.0.2.2"))).collect();
        assert_eq!(all.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, true, true, false]);
    }

    #[test]
    fn addresses_of_one_network_of_64_bits_are_one() {
        let clients = UnauthenticatedClients::new(2);
        let [mut first, mut second] = ["2001:db8::1", "2001:db8::2:0:0:9"].map(|it| clients.admit(at(it)).unwrap());
        assert!(clients.admit(at("2001:db8:0:0:ffff::7")).is_none());
        let _other = clients.admit(at("2001:db8:0:1::1")).unwrap();
        assert_eq!((is_lost(&mut first), is_lost(&mut second)), (true, false));
    }
}
