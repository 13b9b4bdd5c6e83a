//! PostgreSQL: the connection that carries lock, ledger, schema and inspection.
//!
//! Works through PgBouncer in transaction mode: only unnamed statements (`query_typed`) and simple-query batches, no
//! session state, no startup options; what has to be set is set for one transaction.

mod application_name;
mod error;
mod inspect;
mod tables;

pub(crate) use application_name::Process;

use super::{Address, CONNECT_TIMEOUT, Client, DatabaseError, DatabaseFailure, Server, Tls};
use crate::deadline::Deadline;
use crate::ledger::CopyKey;
use postgres::config::SslMode;
use postgres::types::{ToSql, Type};
use postgres::{Config, NoTls, Row, SimpleQueryMessage, SimpleQueryRow};
use std::net::{IpAddr, ToSocketAddrs};
use std::path::Path;
use std::str::FromStr;
use std::thread;
use std::time::Duration;
use tokio_postgres_rustls::MakeRustlsConnect;

/// Where a socket directory's path says nothing of the port.
const DEFAULT_PORT: u16 = 5432;
/// A socket's name in its directory, up to the port (PostgreSQL manual, `unix_socket_directories`).
const SOCKET_NAME: &str = ".s.PGSQL.";
/// For how long a contended statement rests before it is tried again. Short: the server has already waited for its
/// `deadlock_timeout` (1 s by default).
const REST: Duration = Duration::from_millis(20);

/// One connection to PostgreSQL, for one delivery.
pub struct PostgresDatabase {
    client: postgres::Client,
    deadline: Deadline,
    pub(crate) transaction: Transaction,
    round_trips: u32,
    /// The copies that were journalled, until the lock is asked for.
    pub(crate) journalled: Vec<CopyKey>,
    /// What the lock's batch saw of them, until it is looked at.
    pub(crate) looked: Option<Looked>,
}

/// What the ledger has of some copies, by a statement of the lock's batch behind the one that took the lock.
pub(crate) struct Looked {
    pub(crate) copies: Vec<CopyKey>,
    pub(crate) answers: Batch,
    /// How many rows of the answers are those of the statements before it.
    pub(crate) rows_before: usize,
}

/// The transaction that is open on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transaction {
    /// None; each statement is its own.
    None,
    /// The one that holds the advisory lock of this key.
    Lock(i64),
    /// The one that holds the schema's lock, and applies migrations.
    Schema,
}

impl PostgresDatabase {
    /// Connects and authenticates: three round trips with a password (SCRAM), and those of TLS.
    ///
    /// The socket directory of an [`Address::Socket`] may be followed by the socket's name (`.s.PGSQL.5433`) where the
    /// port is not 5432.
    ///
    /// What a silent server does after the TCP connect is bounded by the process's watchdog only: the client library
    /// has no time limit for it.
    ///
    /// # Errors
    /// [`DatabaseError`]: unreachable, access denied, timed out, or TLS cannot be set up here.
    pub fn connect(server: &Server, client: &Client, deadline: Deadline) -> Result<Self, DatabaseError> {
        let doing = format!("connecting to PostgreSQL at {}", place(&server.address));
        let remaining = deadline.remaining();
        if remaining.is_zero() {
            return Err(DatabaseError::new(DatabaseFailure::TimedOut, doing, "no time is left"));
        }
        let mut config = Config::new();
        config
            .dbname(&server.database)
            .user(&server.user)
            .application_name(&Process::of(client).to_string())
            .connect_timeout(CONNECT_TIMEOUT.min(remaining))
            // A server that is gone without a word is noticed within the deadline, and not after the two hours that
            // Linux gives it.
            .tcp_user_timeout(remaining)
            .keepalives_idle(Duration::from_secs(15))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3);
        if let Some(password) = &server.password {
            config.password(password.expose());
        }
        match &server.address {
            Address::Tcp { host, port } => config.host(host).port(*port),
            Address::Socket(path) => {
                let (directory, port) = socket(path);
                config.host_path(directory).port(port)
            }
        };
        let tls = match (&server.tls, &server.address) {
            (Tls::Verify { ca_file }, Address::Tcp { .. }) => {
                let tls = crate::tls::client_config(ca_file.as_deref())
                    .map_err(|error| DatabaseError::new(DatabaseFailure::Local, &doing, error.to_string()))?;
                config.ssl_mode(SslMode::Require);
                Some(MakeRustlsConnect::new(tls.as_ref().clone()))
            }
            (Tls::Off, _) | (Tls::Verify { .. }, Address::Socket(_)) => {
                config.ssl_mode(SslMode::Disable);
                None
            }
        };
        let client = try_each(&config, &addresses(&server.address), deadline, |config| match &tls {
            Some(tls) => config.connect(tls.clone()),
            None => config.connect(NoTls),
        })
        .map_err(|error| error::not_connected(&doing, &error, deadline.passed()))?;
        Ok(Self {
            client,
            deadline,
            transaction: Transaction::None,
            round_trips: 0,
            journalled: Vec::new(),
            looked: None,
        })
    }

    /// The deadline that the connection was opened with.
    pub(crate) fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Runs one statement with parameters and brings its rows: one round trip, no named statement.
    ///
    /// Not for the lock's transaction: the client library does not close its portal, which keeps its snapshot until the
    /// next statement, and so holds back VACUUM while IMAP works. A [`batch`](Self::batch) leaves nothing behind.
    pub(crate) fn query(
        &mut self,
        doing: &str,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, DatabaseError> {
        self.round_trips += 1;
        self.client.query_typed(sql, parameters).map_err(|error| error::failed(doing, &error))
    }

    /// Runs one statement with parameters: one round trip, no named statement.
    pub(crate) fn execute(
        &mut self,
        doing: &str,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<u64, DatabaseError> {
        self.round_trips += 1;
        self.client.execute_typed(sql, parameters).map_err(|error| error::failed(doing, &error))
    }

    /// Runs statements in one round trip, each with a snapshot of its own, up to the first that fails. They are text:
    /// nothing goes into it but constants, numbers and hexadecimal digits.
    pub(crate) fn batch(&mut self, doing: &str, sql: &str) -> Result<Batch, DatabaseError> {
        self.round_trips += 1;
        match self.client.simple_query(sql) {
            Ok(answers) => Ok(Batch(answers)),
            Err(error) => Err(error::failed(doing, &error)),
        }
    }

    /// Ends whatever transaction is open and makes the connection usable again.
    pub(crate) fn roll_back(&mut self) -> Result<(), DatabaseError> {
        self.transaction = Transaction::None;
        self.looked = None;
        // Outside a transaction this is a warning of the server's, no error.
        self.batch("rolling back", "ROLLBACK").map(|_| ())
    }

    /// Like [`roll_back`](Self::roll_back), after a failure that is told anyway: where this fails too, the connection
    /// is gone, and the server has rolled back by itself.
    pub(crate) fn roll_back_after(&mut self, failure: DatabaseError) -> DatabaseError {
        match self.roll_back() {
            Ok(()) => failure,
            Err(second) => {
                let detail = format!("{}; then, {}", failure.detail, second);
                DatabaseError { detail, ..failure }
            }
        }
    }

    /// Whether a failed step is to be tried again at once; rests a moment if so.
    pub(crate) fn try_again(&self, failure: &DatabaseError) -> bool {
        if !failure.trying_again_at_once_can_help() || self.deadline.passed() {
            return false;
        }
        thread::sleep(REST.min(self.deadline.remaining()));
        true
    }
}

/// The answers to a batch.
pub(crate) struct Batch(Vec<SimpleQueryMessage>);

impl Batch {
    /// The rows that its statements brought, in order.
    pub(crate) fn rows(&self) -> impl DoubleEndedIterator<Item = TextRow<'_>> {
        self.0.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(TextRow(row)),
            _ => None,
        })
    }

    /// The first column of the last row as a truth value.
    pub(crate) fn truth(&self, doing: &str) -> Result<bool, DatabaseError> {
        match self.rows().next_back() {
            Some(row) => row.truth(doing, 0),
            None => Err(DatabaseError::new(DatabaseFailure::Other, doing, "the server answered without a row")),
        }
    }
}

/// A row of a batch's answers, whose values come as text.
#[derive(Clone, Copy)]
pub(crate) struct TextRow<'a>(&'a SimpleQueryRow);

impl<'a> TextRow<'a> {
    /// A column as text; `None` for NULL.
    pub(crate) fn text(&self, doing: &str, index: usize) -> Result<Option<&'a str>, DatabaseError> {
        self.0.try_get(index).map_err(|error| error::failed(doing, &error))
    }

    /// A column that can be read as a `T`; `None` for NULL.
    pub(crate) fn value<T: FromStr>(&self, doing: &str, index: usize) -> Result<Option<T>, DatabaseError> {
        match self.text(doing, index)? {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| unreadable(doing, text)),
        }
    }

    /// A column that is not NULL.
    pub(crate) fn truth(&self, doing: &str, index: usize) -> Result<bool, DatabaseError> {
        match self.text(doing, index)? {
            Some("t") => Ok(true),
            Some("f") => Ok(false),
            other => Err(unreadable(doing, other.unwrap_or("NULL"))),
        }
    }
}

fn unreadable(doing: &str, text: &str) -> DatabaseError {
    DatabaseError::new(DatabaseFailure::Other, doing, format!("the server answered {text:?}, which is no such value"))
}

/// A column of a row. Never panics, unlike the row's own `get`.
pub(crate) fn column<'a, T>(doing: &str, row: &'a Row, index: usize) -> Result<T, DatabaseError>
where
    T: postgres::types::FromSql<'a>,
{
    row.try_get(index).map_err(|error| error::failed(doing, &error))
}

/// A time span as PostgreSQL's settings take it: whole milliseconds, as an int, and never 0, which means "no limit".
pub(crate) fn milliseconds(span: Duration) -> i32 {
    i32::try_from(span.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// The address, for people.
fn place(address: &Address) -> String {
    match address {
        Address::Tcp { host, port } => format!("{host} port {port}"),
        Address::Socket(path) => path.display().to_string(),
    }
}

/// The addresses of a host; none of a socket, or of a name that cannot be looked up, which is the library's to tell.
fn addresses(address: &Address) -> Vec<IpAddr> {
    let Address::Tcp { host, port } = address else { return Vec::new() };
    let mut found: Vec<IpAddr> = (host.as_str(), *port)
        .to_socket_addrs()
        .map(|found| found.map(|address| address.ip()).collect())
        .unwrap_or_default();
    found.dedup();
    found
}

/// Tries one address after the other, as the library does; but that tells how the *last* one failed. Where `localhost` is
/// `::1`, too, on a machine without IPv6, nobody would learn that the server is there, and has refused the password.
fn try_each(
    config: &Config,
    addresses: &[IpAddr],
    deadline: Deadline,
    connect: impl Fn(&Config) -> Result<postgres::Client, postgres::Error>,
) -> Result<postgres::Client, postgres::Error> {
    let mut told: Option<postgres::Error> = None;
    for address in addresses {
        let left = deadline.remaining();
        if left.is_zero() {
            break;
        }
        let mut one = config.clone();
        match connect(one.hostaddr(*address).connect_timeout(CONNECT_TIMEOUT.min(left))) {
            Ok(client) => return Ok(client),
            Err(error) => {
                // Whoever answers says more than an address at which nobody does; of those, the system prefers the first.
                let more =
                    told.as_ref().is_none_or(|told| error::nobody_answered(told) && !error::nobody_answered(&error));
                if more {
                    told = Some(error);
                }
            }
        }
    }
    told.map_or_else(|| connect(config), Err)
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

    #[test]
    fn a_socket_is_a_directory_or_a_file_that_names_its_port() {
        assert_eq!(socket(Path::new("/run/postgresql")), (Path::new("/run/postgresql"), 5432));
        assert_eq!(socket(Path::new("/run/postgresql/.s.PGSQL.5433")), (Path::new("/run/postgresql"), 5433));
    }

    #[test]
    fn a_time_limit_is_never_no_limit() {
        assert_eq!(milliseconds(Duration::ZERO), 1);
        assert_eq!(milliseconds(Duration::from_micros(1_500)), 1);
        assert_eq!(milliseconds(Duration::from_secs(240)), 240_000);
        assert_eq!(milliseconds(Duration::MAX), i32::MAX);
    }

    /// Says no to whoever connects, as PostgreSQL does to a wrong password.
    fn refuse(mut stream: TcpStream) {
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        stream.read_exact(&mut vec![0; u32::from_be_bytes(length) as usize - 4]).unwrap();
        let said = b"SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed\0\0";
        stream.write_all(b"E").unwrap();
        stream.write_all(&(u32::try_from(said.len()).unwrap() + 4).to_be_bytes()).unwrap();
        stream.write_all(said).unwrap();
    }

    #[test]
    fn what_the_server_says_is_told_whatever_another_address_of_it_does() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || (0..2).for_each(|_| refuse(listener.accept().unwrap().0)));
        // Nobody listens at the second one.
        let (there, nowhere) = ([127, 0, 0, 1].into(), [127, 0, 0, 2].into());
        for addresses in [[there, nowhere], [nowhere, there]] {
            let mut config = Config::new();
            config.host("localhost").port(port).user("maildrop").ssl_mode(SslMode::Disable);
            let deadline = Deadline::after(Duration::from_secs(60));
            let error = try_each(&config, &addresses, deadline, |config| config.connect(NoTls)).err().unwrap();
            let error = error::not_connected("connecting", &error, false);
            assert_eq!(error.failure, DatabaseFailure::AccessDenied, "{error}");
        }
        server.join().unwrap();
    }
}
