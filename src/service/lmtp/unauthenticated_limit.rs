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
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// The owner of one IPv6 address usually has its whole /64 network.
const OF_ONE: u128 = u128::MAX << 64;

/// The connections without a certificate, and their limit.
pub(super) struct UnauthenticatedClients {
    places: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    last: u64,
    /// Oldest first.
    by: Vec<UnauthenticatedClient>,
}

struct UnauthenticatedClient {
    number: u64,
    client_network: IpAddr,
    /// When this is dropped, the connection must close.
    _may_stay: oneshot::Sender<()>,
}

/// A permit for one connection, which holds until this is dropped.
pub(super) struct ConnectionPermit {
    strangers: Arc<UnauthenticatedClients>,
    number: u64,
    /// Ends when another address has got the permit.
    may_stay: oneshot::Receiver<()>,
}

impl UnauthenticatedClients {
    pub(super) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self { places, taken: Mutex::default() })
    }

    /// A permit for a client at this address. `None` at the limit, if no other address has more connections.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionPermit> {
        let (mut taken, client_network) = (self.taken(), client_network(address));
        if taken.by.len() >= self.places {
            let at = taken.who_gives_way_to(client_network)?;
            taken.by.remove(at);
        }
        taken.last += 1;
        let (number, (stays, may_stay)) = (taken.last, oneshot::channel());
        taken.by.push(UnauthenticatedClient { number, client_network, _may_stay: stays });
        Some(ConnectionPermit { strangers: Arc::clone(self), number, may_stay })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// The oldest connection of the address with the most. A handshake takes moments, so the oldest one is probably idle.
    fn who_gives_way_to(&self, newcomer: IpAddr) -> Option<usize> {
        let mut counts = HashMap::new();
        for stranger in &self.by {
            *counts.entry(stranger.client_network).or_insert(0_usize) += 1;
        }
        let most = counts.values().copied().max()?;
        let own = counts.get(&newcomer).copied().unwrap_or_default();
        let has_most = |stranger: &UnauthenticatedClient| counts.get(&stranger.client_network) == Some(&most);
        self.by.iter().position(has_most).filter(|_| own < most)
    }
}

impl ConnectionPermit {
    /// Returns once another address has got the permit.
    pub(super) async fn is_lost(&mut self) {
        // This only ends: nothing is ever sent.
        let _ = (&mut self.may_stay).await;
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.strangers.taken().by.retain(|stranger| stranger.number != self.number);
    }
}

fn client_network(address: IpAddr) -> IpAddr {
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

    fn is_lost(place: &mut ConnectionPermit) -> bool {
        place.may_stay.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn one_address_may_have_all_places_and_gives_way_to_others_until_they_have_as_many() {
        let strangers = UnauthenticatedClients::new(4);
        let mut first: Vec<ConnectionPermit> = (0..4).map(|_| strangers.admit(at("192.0.2.1")).unwrap()).collect();
        assert!(strangers.admit(at("192.0.2.1")).is_none());
        assert!(strangers.admit(at("::ffff:192.0.2.1")).is_none(), "it is the same");
        let second: Vec<ConnectionPermit> = (0..2).map(|_| strangers.admit(at("192.0.2.2")).unwrap()).collect();
        assert_eq!(first.iter_mut().map(is_lost).collect::<Vec<_>>(), [true, true, false, false], "its oldest go");
        assert!(strangers.admit(at("192.0.2.2")).is_none(), "each has two");
        let third = strangers.admit(at("192.0.2.3")).unwrap();
        assert_eq!(first.iter_mut().map(is_lost).collect::<Vec<_>>(), [true, true, true, false]);
        // Dropping a permit that another address has got frees nothing.
        first.clear();
        assert_eq!(strangers.taken().by.len(), 3);
        drop((second, third));
        assert!(strangers.taken().by.is_empty());
    }

    #[test]
    fn addresses_of_one_network_of_64_bits_are_one() {
        let strangers = UnauthenticatedClients::new(2);
        let [mut first, mut second] = ["2001:db8::1", "2001:db8::2:0:0:9"].map(|it| strangers.admit(at(it)).unwrap());
        assert!(strangers.admit(at("2001:db8:0:0:ffff::7")).is_none());
        let _other = strangers.admit(at("2001:db8:0:1::1")).unwrap();
        assert_eq!((is_lost(&mut first), is_lost(&mut second)), (true, false));
    }
}
