//! Opens the connection: which address, which certificate, how long.

use super::connection::{Failed, PostgresConnection};
use super::{PostgresDatabase, ProcessName, Transaction, error};
use crate::base::deadline::Deadline;
use crate::base::endpoint::Endpoint;
use crate::base::server_waits::{self, ServerKind};
use crate::database::{Client, DatabaseError, DatabaseFailure, Server, Tls, unsupported_products};
use postgres::NoTls;
use postgres::config::SslMode;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;
use tokio_postgres::Config;
use tokio_postgres_rustls::MakeRustlsConnect;
use tracing::debug;

/// The port if a socket directory's path does not name one.
const DEFAULT_PORT: u16 = 5432;
/// A socket's name in its directory, up to the port (PostgreSQL manual, `unix_socket_directories`).
const SOCKET_NAME: &str = ".s.PGSQL.";

impl PostgresDatabase {
    /// Connects and authenticates: three round trips with a password (SCRAM), and those of TLS. Of a name's addresses, the
    /// first one whose server takes writes is used; if none takes writes, the first that answers.
    ///
    /// The socket directory of an [`Endpoint::Socket`] may be followed by the socket's name (`.s.PGSQL.5433`) if the
    /// port is not 5432.
    ///
    /// # Errors
    /// If the server cannot be reached in time or refuses us. [`DatabaseFailure::Local`] if TLS cannot be set up here;
    /// [`DatabaseFailure::Unsupported`] if the server reports that it is another product than PostgreSQL.
    pub fn connect(server: &Server, client: &Client, deadline: Deadline) -> Result<Self, DatabaseError> {
        let doing = format!("connecting to PostgreSQL at {}", server.address);
        let remaining = deadline.remaining();
        if remaining.is_zero() {
            return Err(DatabaseError::new(DatabaseFailure::TimedOut, doing, "no time is left"));
        }
        let called = ProcessName::of(client);
        let mut config = Config::new();
        config
            .dbname(&server.database)
            .user(&server.user)
            .application_name(called.to_string())
            .tcp_user_timeout(server.limits.silence)
            .keepalives_idle(Duration::from_secs(15))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3);
        if let Some(password) = &server.password {
            config.password(password.expose());
        }
        match &server.address {
            Endpoint::Tcp { host, port } => config.host(host).port(*port),
            Endpoint::Socket(path) => {
                let (directory, port) = socket(path);
                config.host_path(directory).port(port)
            }
        };
        let tls = match (&server.tls, &server.address) {
            (Tls::Verify { ca_file }, Endpoint::Tcp { .. }) => {
                let tls = crate::base::tls::client_config(ca_file.as_deref())
                    .map_err(|error| DatabaseError::new(DatabaseFailure::Local, &doing, error.to_string()))?;
                config.ssl_mode(SslMode::Require);
                Some(MakeRustlsConnect::new(tls.as_ref().clone()))
            }
            (Tls::Off, _) | (Tls::Verify { .. }, Endpoint::Socket(_)) => {
                config.ssl_mode(SslMode::Disable);
                None
            }
        };
        let awaited = server_waits::for_answer(ServerKind::Database);
        let open = |config: &mut Config, left: Duration| {
            config.connect_timeout(server.limits.connect.min(left));
            let silence = server.silence(left);
            match &tls {
                Some(tls) => PostgresConnection::open(config, tls.clone(), silence),
                None => PostgresConnection::open(config, NoTls, silence),
            }
        };
        let mut connection = try_each(&config, &addresses(&server.address), deadline, open)
            .map_err(|failed| error::unconnected(&doing, &failed, deadline.passed()))?;
        drop(awaited);
        // The library keeps the notices of connecting (such as a collation of another version) until the connection is used.
        // They are read here, so that none is taken for a COMMIT's. An error here appears once more at the first use.
        drop(connection.poll_incoming());
        for notice in connection.notices() {
            debug!(said = %notice, "a notice of the database server");
        }
        if let Some(product) = connection.unsupported_product() {
            return Err(unsupported_products::refused(&doing, product, "PostgreSQL"));
        }
        let mut database = Self {
            connection,
            server: server.clone(),
            status_is_due: server.timelines.is_some(),
            hurried: false,
            timeline: None,
            lacks_sync_standby: false,
            called,
            name: None,
            deadline,
            longest: None,
            transaction: Transaction::None,
            locked_in: String::new(),
            doubtful: false,
            cached_plans: false,
            proof: None,
            reports_epoch: false,
            round_trips: 0,
        };
        if server.is_suspect() {
            database.ask_who_answers(&doing)?;
        }
        Ok(database)
    }
}

/// The addresses of a host. Empty for a socket, or for a name that cannot be looked up, which the library reports.
fn addresses(address: &Endpoint) -> Vec<IpAddr> {
    let Endpoint::Tcp { host, port } = address else { return Vec::new() };
    let mut found: Vec<IpAddr> = (host.as_str(), *port)
        .to_socket_addrs()
        .map(|found| found.map(|address| address.ip()).collect())
        .unwrap_or_default();
    found.dedup();
    found
}

/// Tries one address after the other. The library would do so as well, but it reports how the *last* one failed. If
/// `localhost` is also `::1` on a machine without IPv6, that would hide that the server has refused the password.
fn try_each(
    config: &Config,
    addresses: &[IpAddr],
    deadline: Deadline,
    open: impl Fn(&mut Config, Duration) -> Result<PostgresConnection, Failed>,
) -> Result<PostgresConnection, Failed> {
    let mut worst: Option<Failed> = None;
    let mut reading: Option<PostgresConnection> = None;
    for address in addresses {
        let left = deadline.remaining();
        if left.is_zero() {
            break;
        }
        match open(config.clone().hostaddr(*address), left) {
            Ok(connection) if connection.reports_read_only() => drop(reading.get_or_insert(connection)),
            Ok(connection) => return Ok(connection),
            Err(failed) => {
                // The error of a server is more informative than that of an address without one.
                let silent = error::no_server_answered;
                if worst.as_ref().is_none_or(|worst| silent(worst) && !silent(&failed)) {
                    worst = Some(failed);
                }
            }
        }
    }
    match (reading, worst) {
        (Some(connection), _) => Ok(connection),
        (None, Some(failed)) => Err(failed),
        (None, None) => open(&mut config.clone(), deadline.remaining()),
    }
}

/// The directory and the port of a unix socket.
fn socket(path: &Path) -> (&Path, u16) {
    let port = path
        .file_name()
        .and_then(|name| name.to_str())
        .and_then(|name| name.strip_prefix(SOCKET_NAME))
        .and_then(|port| port.parse().ok());
    match (path.parent(), port) {
        (Some(directory), Some(port)) => (directory, port),
        _ => (path, DEFAULT_PORT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    #[test]
    fn a_socket_is_a_directory_or_a_file_that_names_its_port() {
        assert_eq!(socket(Path::new("/run/postgresql")), (Path::new("/run/postgresql"), 5432));
        assert_eq!(socket(Path::new("/run/postgresql/.s.PGSQL.5433")), (Path::new("/run/postgresql"), 5433));
    }

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [&[kind][..], &length, body].concat()
    }

    /// Reads a client's first message.
    fn greeted(stream: &mut TcpStream) {
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        stream.read_exact(&mut vec![0; u32::from_be_bytes(length) as usize - 4]).unwrap();
    }

    /// Refuses a client, as PostgreSQL does at a wrong password.
    fn refuse(mut stream: TcpStream) {
        greeted(&mut stream);
        stream.write_all(&message(b'E', b"SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed\0\0")).unwrap();
    }

    /// Lets a client in, and reports what a standby reports from version 14 on.
    fn welcome(mut stream: TcpStream, in_hot_standby: &str) {
        greeted(&mut stream);
        let parameter = format!("in_hot_standby\0{in_hot_standby}\0");
        let received = [
            message(b'R', &0_u32.to_be_bytes()),
            message(b'S', parameter.as_bytes()),
            message(b'K', &[0; 8]),
            message(b'Z', b"I"),
        ];
        stream.write_all(&received.concat()).unwrap();
        // Until the client disconnects.
        drop(stream.read_to_end(&mut Vec::new()));
    }

    fn config(port: u16) -> Config {
        let mut config = Config::new();
        config.host("localhost").port(port).user("maildrop").ssl_mode(SslMode::Disable);
        config
    }

    fn open(config: &mut Config, left: Duration) -> Result<PostgresConnection, Failed> {
        PostgresConnection::open(config, NoTls, Some(left))
    }

    #[test]
    fn what_the_server_says_is_reported_whatever_another_address_of_it_does() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || (0..2).for_each(|_| refuse(listener.accept().unwrap().0)));
        // No server listens at the second one.
        let (there, nowhere) = ([127, 0, 0, 1].into(), [127, 0, 0, 2].into());
        for addresses in [[there, nowhere], [nowhere, there]] {
            let deadline = Deadline::after(Duration::from_secs(60));
            let failed = try_each(&config(port), &addresses, deadline, open).err().unwrap();
            let error = error::unconnected("connecting", &failed, false);
            assert_eq!(error.failure, DatabaseFailure::AccessDenied, "{error}");
        }
        server.join().unwrap();
    }

    #[test]
    fn an_address_that_takes_no_writes_is_the_last_choice() {
        let standby = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = standby.local_addr().unwrap().port();
        let primary = TcpListener::bind(("127.0.0.2", port)).unwrap();
        let deadline = Deadline::after(Duration::from_secs(60));
        thread::scope(|scope| {
            scope.spawn(|| (0..2).for_each(|_| welcome(standby.accept().unwrap().0, "on")));
            scope.spawn(|| welcome(primary.accept().unwrap().0, "off"));
            let standby_and = |other: [u8; 4]| [[127, 0, 0, 1].into(), other.into()];
            let found = try_each(&config(port), &standby_and([127, 0, 0, 2]), deadline, open).unwrap();
            assert!(!found.reports_read_only());
            // No server listens at the third.
            let found = try_each(&config(port), &standby_and([127, 0, 0, 3]), deadline, open).unwrap();
            assert!(found.reports_read_only());
        });
    }

    #[test]
    fn a_server_that_says_nothing_is_given_up() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut config = config(silent.local_addr().unwrap().port());
        let failed =
            PostgresConnection::open(config.hostaddr([127, 0, 0, 1].into()), NoTls, Some(Duration::from_millis(50)));
        let error = error::unconnected("connecting", &failed.err().unwrap(), false);
        assert_eq!(error.failure, DatabaseFailure::TimedOut, "{error}");
    }
}
