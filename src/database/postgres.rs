//! A session with PostgreSQL.
//!
//! It works through PgBouncer in transaction mode: only unnamed statements (`query_typed`) and simple-query batches, no
//! session state but its name, no startup options; what has to be set is set for one transaction.

mod application_name;
mod error;
pub(crate) mod literal;
mod tables;

pub(crate) use application_name::Process;

use super::{ByIdle, Client, DatabaseError, DatabaseFailure, SILENCE, Server, Session, Tls};
use crate::base::deadline::Deadline;
use crate::base::endpoint::{CONNECT_TIMEOUT, Endpoint};
use crate::base::server_waits::{self, Whom};
use postgres::config::SslMode;
use postgres::error::DbError;
use postgres::fallible_iterator::FallibleIterator as _;
use postgres::types::{FromSql, ToSql, Type};
use postgres::{Config, NoTls, Row, SimpleQueryMessage, SimpleQueryRow};
use std::net::{IpAddr, ToSocketAddrs};
use std::path::Path;
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;
use tokio_postgres_rustls::MakeRustlsConnect;
use tracing::debug;

/// Where a socket directory's path says nothing of the port.
const DEFAULT_PORT: u16 = 5432;
/// A socket's name in its directory, up to the port (PostgreSQL manual, `unix_socket_directories`).
const SOCKET_NAME: &str = ".s.PGSQL.";
/// The pause before a contended statement is tried again. Short: the server has already waited for its `deadlock_timeout` (1 s by
/// default).
const REST: Duration = Duration::from_millis(20);

/// At the beginning of a transaction that writes: no warnings of its statements.
pub(crate) const HEAR_NOTHING: &str = "SET LOCAL client_min_messages = error;";
/// Right before its COMMIT, whatever the role's setting is: a warning after this is about the COMMIT itself, also while it waits for
/// a standby.
pub(crate) const HEAR_OF_THE_COMMIT: &str = "SET LOCAL client_min_messages = warning;";

/// A session with PostgreSQL.
pub struct PostgresDatabase {
    client: postgres::Client,
    /// What the server says beside its answers.
    notices: Receiver<DbError>,
    /// The session's name on the server, and this delivery's if that is another.
    called: Process,
    name: Option<String>,
    deadline: Deadline,
    pub(crate) transaction: Transaction,
    /// Whether an error came during this delivery: the state of the session on the server is not known for sure.
    doubtful: bool,
    round_trips: u32,
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

impl Session for PostgresDatabase {
    fn round_trips(&self) -> u32 {
        self.round_trips
    }

    fn begin(&mut self, client: &Client, deadline: Deadline, _: ByIdle) -> Result<(), DatabaseError> {
        // Reads what has come meanwhile, without waiting: the server may have ended the session.
        let heard = self.client.notifications().iter().next();
        heard.map_err(|error| error::failed("beginning a delivery", &error))?;
        let process = Process::of(client);
        self.name = (process != self.called).then(|| process.to_string());
        (self.deadline, self.round_trips) = (deadline, 0);
        Ok(())
    }

    /// In a transaction, `transaction_timestamp()` is when it began; outside of one, a statement is a transaction of its own.
    /// The name that the session was opened with goes too if it bears a queue id: no other delivery shall have it.
    fn end(&mut self, _: ByIdle) -> Result<(), DatabaseError> {
        let doing = "ending a delivery's use of the session";
        let left = |what: &str| Err(DatabaseError::other(doing, what));
        if self.transaction != Transaction::None {
            return left("a transaction is still open");
        }
        if self.doubtful {
            return left("an error came in its conversation");
        }
        let nameless = Process { queue_id: None, ..self.called.clone() };
        let rename = if nameless == self.called {
            String::new()
        } else {
            format!(", set_config('application_name', {}, false)", literal::text(&nameless.to_string()))
        };
        let proof = format!(
            "SELECT transaction_timestamp() <> statement_timestamp(), \
             EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'), \
             current_setting('transaction_read_only')::bool{rename}"
        );
        let answers = self.batch(doing, &proof)?;
        let Some(row) = answers.rows().next() else { return left("the server answered without a row") };
        self.called = nameless;
        if row.truth(doing, 0)? {
            return left("a transaction is still open on the server");
        }
        if row.truth(doing, 1)? {
            return left("a lock is still held on the server");
        }
        if row.truth(doing, 2)? {
            return left("the server takes no writes any more");
        }
        Ok(())
    }
}

impl PostgresDatabase {
    /// Connects and authenticates: three round trips with a password (SCRAM), and those of TLS.
    ///
    /// The socket directory of an [`Endpoint::Socket`] may be followed by the socket's name (`.s.PGSQL.5433`) where the
    /// port is not 5432.
    ///
    /// After the TCP connect, the client library has no time limit for an answer: only the process's watchdog ends the wait for a
    /// server that stands still. A server that vanished is given up after 30 s.
    ///
    /// # Errors
    /// Where the server cannot be reached in time or refuses us, or where TLS cannot be set up here.
    pub fn connect(server: &Server, client: &Client, deadline: Deadline) -> Result<Self, DatabaseError> {
        let doing = format!("connecting to PostgreSQL at {}", server.address);
        let remaining = deadline.remaining();
        if remaining.is_zero() {
            return Err(DatabaseError::new(DatabaseFailure::TimedOut, doing, "no time is left"));
        }
        let called = Process::of(client);
        let (say, notices) = mpsc::channel();
        let mut config = Config::new();
        config
            // Sending fails once the receiver is gone: the connection is about to be closed.
            .notice_callback(move |notice| drop(say.send(notice)))
            .dbname(&server.database)
            .user(&server.user)
            .application_name(&called.to_string())
            .connect_timeout(CONNECT_TIMEOUT.min(remaining))
            .tcp_user_timeout(SILENCE)
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
        let awaited = server_waits::for_answer(Whom::Database);
        let mut client = try_each(&config, &addresses(&server.address), deadline, |config| match &tls {
            Some(tls) => config.connect(tls.clone()),
            None => config.connect(NoTls),
        })
        .map_err(|error| error::not_connected(&doing, &error, deadline.passed()))?;
        drop(awaited);
        // The library keeps notices from connecting (a collation of another version) until the connection is used: they are read
        // here, so that none is taken for a COMMIT's. An error shows at the first use.
        drop(client.notifications().iter().next());
        Ok(Self {
            client,
            notices,
            called,
            name: None,
            deadline,
            transaction: Transaction::None,
            doubtful: false,
            round_trips: 0,
        })
    }

    /// The deadline of the delivery that the session serves.
    pub(crate) fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// The delivery's name for its transactions, where the session was opened under another one.
    pub(crate) fn name_to_set(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Does work that leaves nothing in doubt where it fails within: it ends with a ROLLBACK.
    pub(crate) fn without_doubt<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        let doubtful = self.doubtful;
        let done = work(self)?;
        self.doubtful = doubtful;
        Ok(done)
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
        self.ask(doing, |client| client.query_typed(sql, parameters))
    }

    /// Runs one statement with parameters: one round trip, no named statement.
    pub(crate) fn execute(
        &mut self,
        doing: &str,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<u64, DatabaseError> {
        self.ask(doing, |client| client.execute_typed(sql, parameters))
    }

    /// Runs statements in one round trip, each with a snapshot of its own, up to the first that fails. They are text:
    /// nothing goes into it but constants, numbers and hexadecimal digits.
    pub(crate) fn batch(&mut self, doing: &str, sql: &str) -> Result<Batch, DatabaseError> {
        self.ask(doing, |client| client.simple_query(sql)).map(Batch)
    }

    /// One round trip. Earlier notices of the server are dropped.
    fn ask<T>(
        &mut self,
        doing: &str,
        ask: impl FnOnce(&mut postgres::Client) -> Result<T, postgres::Error>,
    ) -> Result<T, DatabaseError> {
        self.round_trips += 1;
        for notice in self.notices.try_iter() {
            debug!(said = %notice, "a notice of the database server");
        }
        let _awaited = server_waits::for_answer(Whom::Database);
        ask(&mut self.client).map_err(|error| {
            self.doubtful = true;
            error::failed(doing, &error)
        })
    }

    /// Whether the COMMIT of the last round trip has reached the standbys that it waits for.
    ///
    /// Where its wait for a synchronous standby was ended (`pg_cancel_backend`), the server answers with success and a warning: it is
    /// committed on this server, and a fail-over may forget it (PostgreSQL manual, "Synchronous Replication").
    ///
    /// # Errors
    /// With [`DatabaseFailure::InDoubt`], where that wait was ended.
    pub(crate) fn replicated(&mut self, doing: &str) -> Result<(), DatabaseError> {
        let Some(notice) = self.notices.try_iter().find(error::in_doubt) else { return Ok(()) };
        self.doubtful = true;
        Err(DatabaseError::new(DatabaseFailure::InDoubt, doing, error::said_in_full(&notice)))
    }

    /// Ends whatever transaction is open and makes the connection usable again.
    pub(crate) fn roll_back(&mut self) -> Result<(), DatabaseError> {
        self.transaction = Transaction::None;
        // Outside a transaction this is a warning of the server's, no error.
        self.batch("rolling back", "ROLLBACK").map(|_| ())
    }

    /// [`roll_back`](Self::roll_back) after a failure, which is told: where the rollback fails too, the connection is gone, and the
    /// server has rolled back by itself.
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

    /// Leaves out the first rows: those of the statements before the ones that are asked about.
    pub(crate) fn skip_rows(&mut self, rows: usize) {
        let mut left = rows;
        self.0.retain(|message| {
            let skip = left > 0 && matches!(message, SimpleQueryMessage::Row(_));
            left -= usize::from(skip);
            !skip
        });
    }

    /// The first column of the last row as a truth value.
    pub(crate) fn truth(&self, doing: &str) -> Result<bool, DatabaseError> {
        match self.rows().next_back() {
            Some(row) => row.truth(doing, 0),
            None => Err(DatabaseError::other(doing, "the server answered without a row")),
        }
    }
}

/// A row of a batch's answers, whose values come as text.
#[derive(Clone, Copy)]
pub(crate) struct TextRow<'a>(&'a SimpleQueryRow);

impl<'a> TextRow<'a> {
    /// A column as text; `None` for NULL.
    pub fn text(&self, doing: &str, index: usize) -> Result<Option<&'a str>, DatabaseError> {
        self.0.try_get(index).map_err(|error| error::failed(doing, &error))
    }

    /// A column that can be read as a `T`; `None` for NULL.
    pub fn value<T: FromStr>(&self, doing: &str, index: usize) -> Result<Option<T>, DatabaseError> {
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
    DatabaseError::other(doing, format!("the server answered {text:?}, which is no such value"))
}

/// A column of a row. Never panics, unlike the row's own `get`.
pub(crate) fn column<'a, T: FromSql<'a>>(doing: &str, row: &'a Row, index: usize) -> Result<T, DatabaseError> {
    row.try_get(index).map_err(|error| error::failed(doing, &error))
}

/// The only value of an answer.
pub(crate) fn only<'a, T: FromSql<'a>>(doing: &str, rows: &'a [Row]) -> Result<T, DatabaseError> {
    match rows {
        [row] => column(doing, row, 0),
        _ => Err(DatabaseError::other(doing, format!("{} rows for one", rows.len()))),
    }
}

/// A time span as PostgreSQL's settings take it: whole milliseconds, as an int, and never 0, which means "no limit".
pub fn milliseconds(span: Duration) -> i32 {
    i32::try_from(span.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// The addresses of a host; none of a socket, or of a name that cannot be looked up, which is the library's to tell.
fn addresses(address: &Endpoint) -> Vec<IpAddr> {
    let Endpoint::Tcp { host, port } = address else { return Vec::new() };
    let mut found: Vec<IpAddr> = (host.as_str(), *port)
        .to_socket_addrs()
        .map(|found| found.map(|address| address.ip()).collect())
        .unwrap_or_default();
    found.dedup();
    found
}

/// Tries one address after the other. The library does so, too, but tells how the *last* one failed: where `localhost` is also `::1`
/// on a machine without IPv6, that would hide that the server has refused the password.
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
                // The error of a server says more than that of an address without one.
                let silent = error::no_server_answered;
                if told.as_ref().is_none_or(|told| silent(told) && !silent(&error)) {
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

    /// Refuses a client, as PostgreSQL does at a wrong password.
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
        // No server listens at the second one.
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
