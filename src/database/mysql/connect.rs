//! Opens the connection: which address, which certificate, how long.

use super::super::{Client, DatabaseError, DatabaseFailure, Server, Tls};
use super::error;
use crate::base::deadline::Deadline;
use crate::base::endpoint::Endpoint;
use mysql::{Conn, Opts, OptsBuilder, SslOpts};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use tracing::debug;

/// The largest packet of the protocol. The server's own limit, which is lower, is read once the session is open.
const LARGEST_PACKET: usize = 1 << 30;

/// Where systems keep the certificates that they trust, in one file: Debian and its derivatives, Red Hat and its
/// derivatives, OpenSUSE, FreeBSD, Alpine and OpenBSD.
const SYSTEM_CERTIFICATES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/usr/local/etc/ssl/cert.pem",
    "/etc/ssl/cert.pem",
];

pub(super) fn open(
    server: &Server,
    client: &Client,
    deadline: Deadline,
    patience: Duration,
) -> Result<Conn, DatabaseError> {
    if deadline.passed() {
        return Err(DatabaseError::new(DatabaseFailure::TimedOut, "connecting to the database", "no time is left"));
    }
    let options = options(server, client, patience)?;
    match &server.address {
        Endpoint::Socket(path) => {
            let doing = format!("connecting to the database at {}", path.display());
            let path = path.to_str().ok_or_else(|| {
                DatabaseError::new(DatabaseFailure::Local, doing.as_str(), "the socket's path is not UTF-8")
            })?;
            let silence = server.silence(deadline.remaining());
            greeted(Opts::from(options.socket(Some(path))), silence, &doing)?
                .map_err(|error| error::connecting(&doing, &error))
        }
        Endpoint::Tcp { host, port } => {
            let doing = format!("connecting to the database at {host}, port {port}");
            let addresses = resolve(host, *port, &doing)?;
            try_each(ways(&addresses, host, &options, &server.tls), server, deadline, &doing)
        }
    }
}

fn options(server: &Server, client: &Client, patience: Duration) -> Result<OptsBuilder, DatabaseError> {
    // Without the queue id, because attributes cannot be changed when the session serves another delivery. The journal has
    // it.
    let attributes = HashMap::from([
        ("program_name".to_owned(), env!("CARGO_PKG_NAME").to_owned()),
        ("host".to_owned(), client.host.clone()),
        ("pid".to_owned(), client.pid.to_string()),
    ]);
    Ok(OptsBuilder::new()
        .user(Some(server.user.as_str()))
        .pass(server.password.as_ref().map(|password| password.expose()))
        .db_name(Some(server.database.as_str()))
        // Otherwise the crate would connect a second time if the host is this one, over a socket that the server names.
        .prefer_socket(false)
        // Saves the round trip that reads the server's limit.
        .max_allowed_packet(Some(LARGEST_PACKET))
        .stmt_cache_size(0)
        .read_timeout(Some(patience))
        .write_timeout(Some(patience))
        .tcp_keepalive_time_ms(Some(15_000))
        .tcp_keepalive_probe_interval_secs(Some(5))
        .tcp_keepalive_probe_count(Some(3))
        .tcp_user_timeout_ms(u32::try_from(server.limits.silence.as_millis()).ok())
        .ssl_opts(tls_options(&server.address, &server.tls)?)
        // Shown by performance_schema.session_connect_attrs, for people who search for the holder of a lock.
        .connect_attrs(Some(attributes)))
}

fn tls_options(address: &Endpoint, tls: &Tls) -> Result<Option<SslOpts>, DatabaseError> {
    let (Tls::Verify { ca_file }, Endpoint::Tcp { .. }) = (tls, address) else {
        return Ok(None);
    };
    let local = |detail: String| DatabaseError::new(DatabaseFailure::Local, "setting TLS up", detail);
    // The crate builds its own rustls configuration from the process's default provider. The crate rustls panics if two
    // providers are compiled in and none is chosen. An error means that one has been installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let file = match ca_file {
        Some(file) => {
            // Read here as well, because the crate's errors do not name the file.
            crate::base::tls::client_config(Some(file)).map_err(|error| local(error.to_string()))?;
            file.clone()
        }
        None => SYSTEM_CERTIFICATES.iter().map(Path::new).find(|file| file.exists()).map(PathBuf::from).ok_or_else(
            || local("the system has no CA certificates: install ca-certificates, or name a ca_file".into()),
        )?,
    };
    Ok(Some(SslOpts::default().with_root_cert_path(Some(file))))
}

fn resolve(host: &str, port: u16, doing: &str) -> Result<Vec<SocketAddr>, DatabaseError> {
    let unreachable = |detail: String| DatabaseError::new(DatabaseFailure::Unreachable, doing, detail);
    let mut addresses: Vec<SocketAddr> =
        (bare(host), port).to_socket_addrs().map_err(|error| unreachable(error.to_string()))?.collect();
    addresses.dedup();
    if addresses.is_empty() {
        return Err(unreachable("the name has no address".into()));
    }
    Ok(addresses)
}

/// Tries one address after the other. The crate gives up at the first that does not answer, and the first address of
/// `localhost` may be `::1`, where no server listens.
fn try_each(
    ways: Vec<(SocketAddr, OptsBuilder)>,
    server: &Server,
    deadline: Deadline,
    doing: &str,
) -> Result<Conn, DatabaseError> {
    let mut failures = Vec::new();
    for (address, options) in ways {
        let left = deadline.remaining();
        if left.is_zero() {
            return Err(DatabaseError::new(DatabaseFailure::TimedOut, doing, failures.join("; ")));
        }
        let options = options.tcp_port(address.port()).tcp_connect_timeout(Some(server.limits.connect.min(left)));
        match greeted(Opts::from(options), server.silence(left), doing)? {
            Ok(connection) => return Ok(connection),
            Err(error) if error::another_address_may_do(&error) => {
                debug!(%address, %error, "this address of the database does not answer");
                failures.push(error.to_string());
            }
            Err(error) => return Err(error::connecting(doing, &error)),
        }
    }
    Err(DatabaseError::new(DatabaseFailure::Unreachable, doing, failures.join("; ")))
}

/// Connects. Gives up a server that does not answer within `silence`.
fn greeted(options: Opts, silence: Option<Duration>, doing: &str) -> Result<Result<Conn, mysql::Error>, DatabaseError> {
    match silence {
        Some(silence) => within(silence, doing, move || Conn::new(options)),
        None => Ok(Conn::new(options)),
    }
}

/// Runs `ask` in a thread of its own, which is abandoned if there is no answer within `silence`. The crate sets the socket's
/// time limits only once, and exposes the socket only as a raw descriptor (mysql 28.0.4, `impl AsRawFd for Conn`).
pub(super) fn within<T: Send + 'static>(
    silence: Duration,
    doing: &str,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Result<T, DatabaseError> {
    let (answer, answered) = mpsc::channel();
    // If the receiver is gone, the answer is dropped, and the connection with it.
    thread::Builder::new()
        .name("asking".into())
        .spawn(move || drop(answer.send(ask())))
        .map_err(|error| DatabaseError::new(DatabaseFailure::Local, doing, format!("out of threads: {error}")))?;
    answered.recv_timeout(silence).map_err(|_| {
        let detail = format!("the server has said nothing for {:.1} s", silence.as_secs_f64());
        DatabaseError::new(DatabaseFailure::TimedOut, doing, detail)
    })
}

/// The connection options to try, each with the first address that they lead to.
///
/// Without TLS each address is tried. With TLS the crate verifies the certificate for the name that it connects to, so that
/// name must be the host's. If the crate binds to an address of one family, it tries the addresses of that family
/// first.
///
/// So a name with several addresses is tried once for each family, bound to the family's unspecified address, which
/// restricts nothing. If the bind fails, the error of such a try may be about the other family.
fn ways(addresses: &[SocketAddr], host: &str, options: &OptsBuilder, tls: &Tls) -> Vec<(SocketAddr, OptsBuilder)> {
    let at = |host: &str| options.clone().ip_or_hostname(Some(bracketed(host)));
    match (tls, addresses) {
        (Tls::Verify { .. }, [address]) => vec![(*address, at(host))],
        (Tls::Verify { .. }, addresses) => {
            let mut ways: Vec<(SocketAddr, OptsBuilder)> = Vec::new();
            for address in addresses {
                if ways.iter().all(|(first, _)| first.is_ipv4() != address.is_ipv4()) {
                    let any: IpAddr = match address {
                        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
                    };
                    ways.push((*address, at(host).bind_address(Some(SocketAddr::new(any, 0)))));
                }
            }
            ways
        }
        (Tls::Off, addresses) => addresses.iter().map(|address| (*address, at(&address.ip().to_string()))).collect(),
    }
}

/// An IPv6 address without the brackets that some write around it: the form for the resolver.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

/// An IPv6 address with brackets: the form for the crate.
fn bracketed(host: &str) -> String {
    match bare(host).parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]"),
        Err(_) => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The host, and our own address, of each connection that is tried.
    fn tried(addresses: &[&str], host: &str, tls: &Tls) -> Vec<(String, Option<String>)> {
        let addresses: Vec<SocketAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let ways = ways(&addresses, host, &OptsBuilder::new(), tls).into_iter();
        ways.map(|(_, options)| {
            let options = Opts::from(options);
            (options.get_ip_or_hostname().into_owned(), options.bind_address().map(ToString::to_string))
        })
        .collect()
    }

    #[test]
    fn without_tls_each_address_is_a_way() {
        let ways = tried(&["[::1]:3306", "127.0.0.1:3306"], "localhost", &Tls::Off);
        assert_eq!(ways, [("[::1]".into(), None), ("127.0.0.1".into(), None)]);
    }

    #[test]
    fn with_tls_each_family_is_a_way_and_the_name_stays() {
        let (tls, name) = (Tls::Verify { ca_file: None }, "db.example.com");
        let ways = tried(&["[::1]:3306", "[fd00::1]:3306", "127.0.0.1:3306"], name, &tls);
        assert_eq!(ways, [(name.into(), Some("[::]:0".into())), (name.into(), Some("0.0.0.0:0".into()))]);
        assert_eq!(tried(&["192.0.2.1:3306"], name, &tls), [(name.into(), None)], "one address needs no bind");
    }
}
