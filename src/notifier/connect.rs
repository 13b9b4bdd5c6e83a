//! A connection to a receiver. The receiver's host is looked up, each address is checked, and only a checked address is connected
//! to.
//!
//! A name may resolve to a public address at the check, and to one of ours at the connect (DNS rebinding). So each connection
//! looks its host up once more, and no connection is kept for long.

use super::local_addresses;
use super::request_failure::{RequestFailure, is_unreachable};
use crate::config::Notifications;
use crate::webhook::{Callback, Refused};
use rustls::pki_types::ServerName;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use url::Host;

/// How long one address is tried before the next one is tried beside it (RFC 8305 section 5, "Connection Attempt Delay").
const BETWEEN_ADDRESSES: Duration = Duration::from_millis(250);

/// How many addresses of a receiver are tried. The owner of a name may list any number of addresses, also of hosts that belong to
/// others.
const MOST_ADDRESSES: usize = 8;

/// How many hosts are looked up at once, each in a thread of its own. getaddrinfo(3) cannot be cancelled: a name server that does
/// not answer blocks the thread until the resolver gives up.
pub(super) const MOST_LOOKUPS: usize = 64;

/// Returns the addresses of a host. May block.
pub(super) type Resolve = Arc<dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync>;

/// A connection, encrypted or not.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

#[derive(Clone)]
pub(super) struct Connector {
    rules: Arc<Notifications>,
    tls: Arc<rustls::ClientConfig>,
    resolve: Resolve,
    lookups: Arc<Semaphore>,
}

/// The system's resolver, which uses /etc/hosts and nsswitch.conf.
pub(super) fn by_the_system() -> Resolve {
    Arc::new(|host| Ok((host, 0).to_socket_addrs()?.map(|address| address.ip()).collect()))
}

impl Connector {
    pub(super) fn new(rules: Notifications, tls: &rustls::ClientConfig, resolve: Resolve) -> Self {
        let mut tls = tls.clone();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self { rules: Arc::new(rules), tls: Arc::new(tls), resolve, lookups: Arc::new(Semaphore::new(MOST_LOOKUPS)) }
    }

    /// Connects to a callback. Also returns whether the receiver is in a network of ours. `waits` is true until the lookup of the
    /// host begins.
    ///
    /// # Errors
    /// If the callback's host cannot be looked up, if none of its addresses may be called, or if connecting or TLS fails.
    pub(super) async fn connect(
        &self,
        callback: &Callback,
        waits: &AtomicBool,
    ) -> Result<(Box<dyn Stream>, bool), RequestFailure> {
        let not_called = |detail: String| RequestFailure::NotCalled(detail);
        let addresses = self.addresses(callback, waits).await?;
        let (stream, at) = dial(&addresses).await.map_err(|error| RequestFailure::connecting(&error))?;
        let ours = self.is_allowed(at.ip());
        if !callback.is_encrypted() {
            return Ok((Box::new(stream), ours));
        }
        let name = match callback.host() {
            Host::Domain(name) => {
                ServerName::try_from(name.clone()).map_err(|error| not_called(format!("TLS: {error}")))?
            }
            Host::Ipv4(_) | Host::Ipv6(_) => ServerName::IpAddress(at.ip().into()),
        };
        let encrypted = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await;
        Ok((Box::new(encrypted.map_err(|error| not_called(format!("TLS: {error}")))?), ours))
    }

    /// The addresses of a callback that may be called.
    async fn addresses(&self, callback: &Callback, waits: &AtomicBool) -> Result<Vec<SocketAddr>, RequestFailure> {
        let addresses = match callback.host() {
            Host::Ipv4(address) => vec![IpAddr::from(*address)],
            Host::Ipv6(address) => vec![IpAddr::from(*address)],
            Host::Domain(name) => {
                self.look_up(name, waits).await.map_err(|error| RequestFailure::looking_up(&error))?
            }
        };
        let allowed = callback.may_be_called_at(&addresses, &self.rules);
        let allowed = allowed.map_err(|refused| RequestFailure::NotCalled(format!("{addresses:?}: {refused}")))?;
        self.of_others(allowed, local_addresses::has)
    }

    /// The addresses of a host. `waits` is true until a thread is free: a request that times out before that was not tried.
    async fn look_up(&self, name: &str, waits: &AtomicBool) -> io::Result<Vec<IpAddr>> {
        waits.store(true, Ordering::Relaxed);
        let thread = Arc::clone(&self.lookups).acquire_owned().await.map_err(io::Error::other)?;
        waits.store(false, Ordering::Relaxed);
        let (resolve, name) = (Arc::clone(&self.resolve), name.to_owned());
        let lookup = move || {
            let found = resolve(&name);
            // The thread stays in use until the resolver returns, even if the request has timed out meanwhile.
            drop(thread);
            found
        };
        spawn_blocking(lookup).await.map_err(io::Error::other)?
    }

    /// The addresses that do not belong to this machine, or are in an allowed network.
    fn of_others(
        &self,
        addresses: Vec<SocketAddr>,
        is_ours: impl Fn(IpAddr) -> io::Result<bool>,
    ) -> Result<Vec<SocketAddr>, RequestFailure> {
        let mut of_others = Vec::new();
        for at in addresses {
            let asked = if self.is_allowed(at.ip()) { Ok(false) } else { is_ours(at.ip()) };
            let unknown =
                |error| RequestFailure::NotTried(format!("whether {} is this machine's own: {error}", at.ip()));
            if !asked.map_err(unknown)? {
                of_others.push(at);
            }
        }
        if of_others.is_empty() {
            return Err(RequestFailure::NotCalled(format!("this machine's own: {}", Refused::Address)));
        }
        Ok(of_others)
    }

    fn is_allowed(&self, address: IpAddr) -> bool {
        self.rules.allow_networks.iter().any(|network| network.contains(address))
    }
}

/// Connects to the first address that answers. If one is slow, the next is tried beside it after a moment (RFC 8305 section 5).
/// So a receiver whose IPv6 address leads nowhere is reached by IPv4. If all fail, an error of another machine is preferred to
/// the lack of a route.
async fn dial(addresses: &[SocketAddr]) -> io::Result<(TcpStream, SocketAddr)> {
    let mut tries = JoinSet::new();
    let mut left = addresses.iter().copied().take(MOST_ADDRESSES);
    let mut failed: Option<io::Error> = None;
    loop {
        let next = left.next();
        if let Some(address) = next {
            tries.spawn(async move { (TcpStream::connect(address).await, address) });
        }
        let wait = if next.is_some() { BETWEEN_ADDRESSES } else { Duration::MAX };
        match timeout(wait, tries.join_next()).await {
            Ok(Some(Ok((Ok(stream), address)))) => {
                stream.set_nodelay(true)?;
                return Ok((stream, address));
            }
            Ok(Some(Ok((Err(error), _)))) => {
                if failed.is_none() || !is_unreachable(&error) {
                    failed = Some(error);
                }
            }
            Ok(Some(Err(error))) => failed = Some(io::Error::other(error)),
            // All connects have failed, and no address is left.
            Ok(None) => return Err(failed.unwrap_or_else(|| io::Error::other("it has no address"))),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::request_failure::NOT_CALLED;
    use super::*;
    use crate::webhook::{NOT_PUBLIC, THIS_MACHINE};
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::net::TcpSocket;

    fn connector(rules: Notifications, answers: Vec<Vec<IpAddr>>) -> (Connector, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let resolve: Resolve = Arc::new(move |_| {
            let turn = counted.fetch_add(1, Ordering::SeqCst);
            answers.get(turn).cloned().ok_or_else(|| io::Error::other("asked too often"))
        });
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let tls = tls.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
        (Connector::new(rules, &tls, resolve), asked)
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn addresses(connector: &Connector, callback: &Callback) -> Result<Vec<SocketAddr>, RequestFailure> {
        run(connector.addresses(callback, &AtomicBool::default()))
    }

    fn connect(connector: &Connector, callback: &Callback) -> Result<(Box<dyn Stream>, bool), RequestFailure> {
        run(connector.connect(callback, &AtomicBool::default()))
    }

    /// A service on this machine that must never be called.
    fn canary() -> (TcpListener, u16) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    #[test]
    fn a_name_that_is_public_first_and_ours_then_reaches_nothing_of_ours() {
        let (canary, port) = canary();
        let (public, ours): (IpAddr, IpAddr) = ("93.184.216.34".parse().unwrap(), Ipv4Addr::LOCALHOST.into());
        let rules = Notifications {
            allow_http: true,
            allow_ports: vec![port],
            allow_networks: Vec::new(),
            ..Notifications::default()
        };
        let callback = Callback::parse(&format!("http://rebinding.example:{port}/"), &rules).unwrap();
        let (connector, asked) = connector(rules, vec![vec![public], vec![ours], vec![ours, public]]);
        // The connection uses the checked address: there is no second lookup in between.
        assert_eq!(addresses(&connector, &callback), Ok(vec![SocketAddr::new(public, port)]));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        // The next connection looks the host up once more and checks it.
        let refused = connect(&connector, &callback).err();
        assert_eq!(refused.map(|why| why.to_string()).as_deref(), Some(NOT_CALLED));
        // Of several addresses only the allowed ones are left.
        assert_eq!(addresses(&connector, &callback), Ok(vec![SocketAddr::new(public, port)]));
        assert!(canary.accept().is_err());
    }

    /// All spellings of this machine, at a port that is allowed, so that only the address can be refused. The URL parser refuses
    /// each of them, and so does the connector if the parser accepts one. In an allowed network some are called, since a service
    /// does listen there.
    #[test]
    fn no_spelling_of_this_machine_is_called_at_a_port_that_is_allowed() {
        let everywhere = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = everywhere.local_addr().unwrap().port();
        let mut canaries = vec![everywhere];
        // Not every machine has IPv6.
        canaries.extend(TcpListener::bind((Ipv6Addr::LOCALHOST, port)));
        canaries.iter().for_each(|canary| canary.set_nonblocking(true).unwrap());
        let is_called = || canaries.iter().any(|canary| canary.accept().is_ok());
        let strict = Notifications {
            allow_http: true,
            allow_ports: vec![port],
            allow_networks: Vec::new(),
            ..Notifications::default()
        };
        let all = vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()];
        let lenient = Notifications { allow_networks: all, ..strict.clone() };
        let connector =
            |rules: &Notifications| Connector { resolve: by_the_system(), ..connector(rules.clone(), Vec::new()).0 };
        let mut let_by = 0;
        for address in THIS_MACHINE.iter().chain(NOT_PUBLIC) {
            let url = format!("http://{address}:{port}/");
            assert_eq!(Callback::parse(&url, &strict), Err(Refused::Address), "{url}");
            // As if the URL parser had accepted it.
            let Ok(callback) = Callback::parse(&url, &lenient) else { continue };
            let refused = connect(&connector(&strict), &callback).err();
            assert_eq!(refused.map(|why| why.to_string()).as_deref(), Some(NOT_CALLED), "{url}");
            let_by += 1;
        }
        assert_eq!(let_by, THIS_MACHINE.len() + NOT_PUBLIC.len());
        assert!(!is_called());
        for address in ["127.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.255.255.254", "0"] {
            let callback = Callback::parse(&format!("http://{address}:{port}/"), &lenient).unwrap();
            connect(&connector(&lenient), &callback).ok().unwrap();
            assert!(is_called(), "{address}");
        }
    }

    #[test]
    fn a_name_of_this_machine_is_called_only_where_its_network_is_allowed() {
        let (canary, port) = canary();
        let rules = Notifications {
            allow_http: true,
            allow_ports: vec![port],
            allow_networks: Vec::new(),
            ..Notifications::default()
        };
        let callback = Callback::parse(&format!("http://localhost:{port}/"), &rules).unwrap();
        let loopback = || vec![vec![Ipv4Addr::LOCALHOST.into()]];
        let (strict, _) = connector(rules.clone(), loopback());
        assert!(connect(&strict, &callback).is_err());
        assert!(canary.accept().is_err());
        let (lenient, _) =
            connector(Notifications { allow_networks: vec!["127.0.0.1".parse().unwrap()], ..rules }, loopback());
        let (_, ours) = connect(&lenient, &callback).ok().unwrap();
        assert!(ours);
        canary.accept().unwrap();
    }

    /// A service on all addresses of this machine may be private, even if one of the addresses is public.
    #[test]
    fn a_public_address_of_this_machine_is_called_only_where_its_network_is_allowed() {
        let rules = Notifications {
            allow_http: true,
            allow_ports: vec![80],
            allow_networks: Vec::new(),
            ..Notifications::default()
        };
        let [ours, others] = ["93.184.216.34:80", "93.184.216.35:80"].map(|text| text.parse::<SocketAddr>().unwrap());
        let called = |rules: &Notifications, addresses: &[SocketAddr]| {
            connector(rules.clone(), Vec::new()).0.of_others(addresses.to_vec(), |address| Ok(address == ours.ip()))
        };
        assert_eq!(called(&rules, &[ours, others]), Ok(vec![others]));
        assert!(matches!(called(&rules, &[ours]), Err(RequestFailure::NotCalled(_))));
        let allowed = Notifications { allow_networks: vec!["93.184.216.34".parse().unwrap()], ..rules };
        assert_eq!(called(&allowed, &[ours]), Ok(vec![ours]));
    }

    /// A listener whose queue is full drops a SYN, as a route that leads nowhere does.
    #[test]
    fn an_address_that_does_not_answer_keeps_nobody_from_the_next_one() {
        run(async {
            let silent = TcpSocket::new_v4().unwrap();
            silent.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
            let silent = silent.listen(0).unwrap();
            let good = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let [silent_at, good_at] = [silent.local_addr().unwrap(), good.local_addr().unwrap()];
            // A listen queue of length 0 holds one connection (listen(2)).
            let _first = TcpStream::connect(silent_at).await.unwrap();
            let addresses = [silent_at, silent_at, good_at];
            let (_, at) = dial(&addresses).await.unwrap();
            assert_eq!(at, good_at);
        });
    }

    #[test]
    fn where_no_address_answers_it_is_reported_why() {
        let closed = |_| std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let error = run(dial(&[1, 2].map(closed))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(run(dial(&[])).unwrap_err().to_string(), "it has no address");
    }
}
