//! Checks tokens, links and sessions. Invalid ones must not keep the database from clients with a valid one.
//!
//! A query for a credential that was valid within the last hour counts as a query of its client. All other credentials have a
//! pool of their own, and each client address has a budget of failures. Once the budget is used up, the database is not queried.

use super::{Blocking, QueryFailure, Work, whole};
use crate::base::blocking_pool::{Length, asked_by};
use crate::base::http_connections::HttpConnection;
use crate::database::DatabaseError;
use crate::ledger::Database;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};
use thiserror::Error;
use tracing::warn;

/// How many failures an address may have at once, and how many of them expire each second.
const BUDGET: f64 = 60.0;
const FORGOTTEN_PER_SECOND: f64 = 1.0;
/// How many addresses have a budget of their own. The others share one with their network: 16 bits of IPv4, 48 of IPv6.
const MOST_ADDRESSES: usize = 4096;
/// How long a credential counts as recently valid, and how many such credentials are remembered.
const VALID_FOR: Duration = Duration::from_hours(1);
const MOST_VALID: usize = 1 << 16;
/// The shortest time between two log lines about one address.
const LOG_INTERVAL: Duration = Duration::from_mins(1);
/// The bits that distinguish clients in IPv6: a client has a whole network of 64 bits.
const OF_ONE_CLIENT: u128 = u128::MAX << 64;

/// A digest of a token, a link or a session.
pub(crate) type Credential = [u8; 32];

/// The sender of a request.
#[derive(Clone, Default)]
pub(crate) struct Caller {
    address: Option<IpAddr>,
    connection: Option<HttpConnection>,
}

/// Why a credential could not be checked.
#[derive(Debug, Error)]
pub(crate) enum NotAuthenticated {
    #[error("too many failures of this address")]
    TooManyFailures { wait: Duration },
    #[error(transparent)]
    QueryFailure(#[from] QueryFailure),
}

/// What this process remembers of clients and their credentials.
#[derive(Default)]
pub(super) struct Memory {
    /// When a credential was last valid, and the client that it belongs to.
    valid: HashMap<Credential, (Instant, String)>,
    budgets: HashMap<Option<IpAddr>, Budget>,
    /// The budgets of networks whose addresses have none of their own.
    shared: HashMap<Option<IpAddr>, Budget>,
    /// The budget of log lines, for all clients together.
    lines: Budget,
}

#[derive(Clone, Copy, Default)]
struct Budget {
    used: f64,
    used_at: Option<Instant>,
    logged_at: Option<Instant>,
    /// Failures that no log line has reported yet.
    unlogged: u64,
}

impl Caller {
    /// A caller on this connection. `address` is the client's, from the connection or a trusted proxy, and `None` behind a unix
    /// socket.
    pub(crate) fn new(address: Option<IpAddr>, connection: Option<HttpConnection>) -> Self {
        let one = |address: IpAddr| match address.to_canonical() {
            // A process on this machine can use any loopback address.
            IpAddr::V4(address) if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(address) if !address.is_loopback() => {
                Ipv6Addr::from_bits(address.to_bits() & OF_ONE_CLIENT).into()
            }
            address => address,
        };
        Self { address: address.map(one), connection }
    }

    /// Marks the connection as one with a valid login.
    pub(crate) fn has_login(&self, login: Credential) {
        if let Some(connection) = &self.connection {
            connection.has_login(login);
        }
    }
}

impl Blocking {
    /// Returns the result of `work` for a credential that `caller` has sent; `None` if that credential is not valid. `client`
    /// names the owner, as [`asked_by`] takes it for the owner's requests.
    ///
    /// # Errors
    /// If the address has failed too often, or if the database does not answer.
    pub(crate) async fn authenticate<T: Send + 'static>(
        &self,
        caller: &Caller,
        credential: Credential,
        client: impl FnOnce(&T) -> String,
        work: impl FnOnce(&mut dyn Database) -> Result<Option<T>, DatabaseError> + Send + 'static,
    ) -> Result<Option<T>, NotAuthenticated> {
        let _considered = caller.connection.as_ref().map(HttpConnection::considered);
        let valid_for = self.memory().valid_for(&credential, Instant::now());
        let was_valid = valid_for.is_some();
        let found = if let Some(client) = valid_for {
            // The query counts for its client: otherwise a client with many fast requests could fill the queue of all others.
            asked_by(client, self.query(work)).await
        } else {
            // The failure is taken before the database is queried, since many requests may arrive at once.
            let taken = self.memory().take(caller.address, Instant::now());
            if let Err(wait) = taken {
                self.failed(caller);
                return Err(NotAuthenticated::TooManyFailures { wait });
            }
            self.query_with(Work::UnknownCredential, Length::Short, self.0.patience, |_, database, _| work(database))
                .await
        };
        if !matches!(found, Ok(None)) && !was_valid {
            self.memory().give_back(caller.address);
        }
        match &found {
            Ok(Some(found)) => {
                self.is_valid(credential, client(found));
                caller.has_login(credential);
            }
            Ok(None) => {
                self.memory().valid.remove(&credential);
                self.failed(caller);
            }
            Err(_) => {}
        }
        Ok(found?)
    }

    /// Remembers that this credential of a client was valid just now.
    pub(crate) fn is_valid(&self, credential: Credential, client: String) {
        self.memory().remember(credential, client, Instant::now());
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        whole(&self.0.clients)
    }

    fn failed(&self, caller: &Caller) {
        let due = self.memory().failed(caller.address, Instant::now());
        let Some((failures, has_own)) = due else { return };
        let address = match caller.address {
            _ if !has_own => "many addresses".to_owned(),
            Some(address) => address.to_string(),
            None => "unix".to_owned(),
        };
        warn!(address, failures, "tokens, links or sessions that are not valid were refused");
    }
}

impl Memory {
    /// The client of a credential that was valid recently.
    fn valid_for(&self, credential: &Credential, now: Instant) -> Option<String> {
        let (at, client) = self.valid.get(credential)?;
        (now.saturating_duration_since(*at) < VALID_FOR).then(|| client.clone())
    }

    fn remember(&mut self, credential: Credential, client: String, now: Instant) {
        if self.valid.len() >= MOST_VALID {
            self.valid.retain(|_, (at, _)| now.saturating_duration_since(*at) < VALID_FOR);
        }
        if self.valid.len() < MOST_VALID || self.valid.contains_key(&credential) {
            self.valid.insert(credential, (now, client));
        }
    }

    /// The budget of an address, and whether the address has it alone.
    fn budget(&mut self, address: Option<IpAddr>, now: Instant) -> (&mut Budget, bool) {
        if self.budgets.len() >= MOST_ADDRESSES && !self.budgets.contains_key(&address) {
            self.budgets.retain(|_, budget| budget.left_over(now) > 0.0);
            if self.budgets.len() >= MOST_ADDRESSES {
                let mut network = address.map(network_of);
                if self.shared.len() >= MOST_ADDRESSES && !self.shared.contains_key(&network) {
                    self.shared.retain(|_, budget| budget.left_over(now) > 0.0);
                    network = network.filter(|_| self.shared.len() < MOST_ADDRESSES);
                }
                return (self.shared.entry(network).or_default(), false);
            }
        }
        (self.budgets.entry(address).or_default(), true)
    }

    /// Takes one failure from the budget, or returns how long to wait for the next one.
    fn take(&mut self, address: Option<IpAddr>, now: Instant) -> Result<(), Duration> {
        self.budget(address, now).0.take(now)
    }

    fn give_back(&mut self, address: Option<IpAddr>) {
        let network = address.map(network_of).filter(|network| self.shared.contains_key(&Some(*network)));
        let own = self.budgets.get_mut(&address);
        if let Some(budget) = own.or_else(|| self.shared.get_mut(&network)) {
            budget.used = (budget.used - 1.0).max(0.0);
        }
    }

    /// Takes a log line from the budget of lines, so that requests cannot fill the log.
    pub(super) fn may_log(&mut self, now: Instant) -> bool {
        self.lines.take(now).is_ok()
    }

    /// Counts a failure. If a log line is due, returns the number of failures since the last line, and whether all belong to this
    /// address.
    fn failed(&mut self, address: Option<IpAddr>, now: Instant) -> Option<(u64, bool)> {
        let (budget, has_own) = self.budget(address, now);
        budget.unlogged += 1;
        if budget.was_logged(now) || !self.may_log(now) {
            return None;
        }
        let (budget, _) = self.budget(address, now);
        budget.logged_at = Some(now);
        Some((std::mem::take(&mut budget.unlogged), has_own))
    }
}

impl Budget {
    fn left_over(&self, now: Instant) -> f64 {
        let since = self.used_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        (self.used - since.as_secs_f64() * FORGOTTEN_PER_SECOND).max(0.0)
    }

    fn was_logged(&self, now: Instant) -> bool {
        self.logged_at.is_some_and(|at| now.saturating_duration_since(at) < LOG_INTERVAL)
    }

    /// Takes one failure, or returns how long to wait for the next one.
    fn take(&mut self, now: Instant) -> Result<(), Duration> {
        (self.used, self.used_at) = (self.left_over(now), Some(now));
        let over = self.used + 1.0 - BUDGET;
        if over > 0.0 {
            return Err(Duration::from_secs_f64(over / FORGOTTEN_PER_SECOND));
        }
        self.used += 1.0;
        Ok(())
    }
}

fn network_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & (u32::MAX << 16)).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 80)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::Site;
    use crate::site::embedded::Embedded;

    fn at(address: &str) -> Option<IpAddr> {
        Caller::new(Some(address.parse().unwrap()), None).address
    }

    #[test]
    fn an_address_has_a_budget_that_comes_back_and_one_line_a_minute_in_the_log() {
        let (mut memory, begun) = (Memory::default(), Instant::now());
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut fail = |address: &str, now| {
            let failed = memory.take(at(address), now).is_err();
            (failed, memory.failed(at(address), now))
        };
        let many: Vec<_> = (0..100).map(|_| fail("192.0.2.1", begun)).collect();
        assert_eq!(many.iter().filter(|(refused, _)| *refused).count(), 40);
        assert!(many.iter().filter_map(|(_, line)| *line).eq([(1, true)]), "{many:?}");
        assert_eq!(fail("::ffff:192.0.2.1", after(1)), (false, None), "it is the same");
        assert_eq!(fail("192.0.2.1", after(1)), (true, None));
        assert_eq!(fail("192.0.2.2", after(1)), (false, Some((1, true))));
        assert_eq!(fail("192.0.2.1", after(60)), (false, Some((102, true))));
    }

    #[test]
    fn addresses_of_one_client_are_one() {
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:2"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(at("127.0.0.1"), at("127.9.9.9"));
        assert_ne!(at("192.0.2.1"), at("192.0.2.2"));
        assert_ne!(at("::1"), at("::2"));
    }

    #[test]
    fn however_many_addresses_fail_few_are_remembered_and_no_other_network_is_shut_out() {
        let (mut memory, begun) = (Memory::default(), Instant::now());
        let mut lines = 0;
        let mut refused = 0;
        for number in 0..u32::try_from(MOST_ADDRESSES).unwrap() + 200 {
            let address = Some(IpAddr::V4(number.into()));
            refused += u32::from(memory.take(address, begun).is_err());
            lines += usize::from(memory.failed(address, begun).is_some());
        }
        assert_eq!((memory.budgets.len(), lines), (MOST_ADDRESSES, 60));
        assert_eq!(refused, 200 - 60);
        for _ in 0..3 {
            memory.take(at("192.0.2.1"), begun).unwrap();
            memory.take(at("2001:db8::1"), begun).unwrap();
            memory.give_back(at("2001:db8::1"));
        }
        assert_eq!(memory.shared.len(), 3);
        // A moment later the first addresses need no budget any more, and new ones get their own.
        memory.take(at("192.0.2.1"), begun + Duration::from_secs(1)).unwrap();
        assert_eq!(memory.budgets.len(), 1);

        for number in 0..u32::try_from(MOST_VALID).unwrap() + 10 {
            let mut credential = [0; 32];
            credential[..4].copy_from_slice(&number.to_be_bytes());
            memory.remember(credential, String::new(), begun);
        }
        assert_eq!(memory.valid.len(), MOST_VALID);
        memory.remember([1; 32], String::new(), begun + VALID_FOR);
        assert_eq!(memory.valid.len(), 1);
    }

    #[test]
    fn what_was_valid_is_asked_about_when_the_budget_is_used_up_and_what_is_made_up_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::embedded(Embedded::new(directory.path().to_owned()));
        let blocking = Blocking::new(site, Duration::from_mins(2));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let caller = Caller::new(Some("192.0.2.1".parse().unwrap()), None);
        let show = |credential: u8, valid: bool| {
            let client = |(): &()| "somebody".to_owned();
            let asked = blocking.authenticate(&caller, [credential; 32], client, move |_| Ok(valid.then_some(())));
            runtime.block_on(asked)
        };
        // Valid credentials may be sent any number of times, and cost nothing of the budget.
        for _ in 0..100 {
            assert!(matches!(show(1, true), Ok(Some(()))));
        }
        blocking.is_valid([1; 32], "somebody".into());
        let made_up: Vec<_> = (0..100).map(|_| show(2, false)).collect();
        let refused = |answer: &&Result<_, _>| matches!(answer, Err(NotAuthenticated::TooManyFailures { .. }));
        let refusals = made_up.iter().filter(refused).count();
        assert!(refusals > 0 && made_up.iter().filter(|answer| matches!(answer, Ok(None))).count() >= 60);
        // A budget this far used up does not recover during the test, however slow the machine is.
        blocking.memory().budgets.values_mut().for_each(|budget| budget.used = 1e9);
        assert!(matches!(show(3, true), Err(NotAuthenticated::TooManyFailures { wait }) if wait > Duration::ZERO));
        assert!(matches!(show(1, true), Ok(Some(()))));
        // A credential that is no longer valid is treated as unknown.
        assert!(matches!(show(1, false), Ok(None)));
        assert!(matches!(show(1, false), Err(NotAuthenticated::TooManyFailures { .. })));
    }
}
