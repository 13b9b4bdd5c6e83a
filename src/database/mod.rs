//! Database connections: one file per engine, each the bearer of that engine's lock, ledger, schema and inspection.
//!
//! A connection is opened for one delivery, is never pooled away, and is never reconnected: the lock would not come
//! along.

pub(crate) mod mysql;
pub(crate) mod postgres;
pub(crate) mod sqlite;
mod tables;

pub use self::mysql::MysqlDatabase;
pub use self::postgres::PostgresDatabase;
pub use self::sqlite::SqliteDatabase;
pub use self::tables::{Dialect, Row, Tables, Value};

use crate::config::Secret;
use crate::ledger::Ledger;
use crate::lock::{Holders, NamedLock};
use crate::schema::Schema;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// How long one address of a server may take to answer to a connect: three retransmissions of the SYN. Another may be better.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a database server is, and who we are to it. From the configuration.
#[derive(Clone, Debug)]
pub struct Server {
    /// How to reach it.
    pub address: Address,
    /// The database (PostgreSQL) or schema (MySQL).
    pub database: String,
    /// Our role there.
    pub user: String,
    /// Its password; none where the socket tells who we are (peer, unix_socket).
    pub password: Option<Secret>,
    /// Whether the connection is encrypted; a unix socket never is.
    pub tls: Tls,
}

/// How to reach a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Over TCP.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// A unix socket: its directory (PostgreSQL) or its path (MySQL, IMAP).
    Socket(PathBuf),
}

/// Whether a TCP connection to a database is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// It is not.
    Off,
    /// It is, and the server's certificate must be for its host name, signed by a CA of this file, or by one that the
    /// system trusts. There is no form that encrypts without verifying.
    Verify {
        /// The CA certificates, PEM.
        ca_file: Option<PathBuf>,
    },
}

/// What the server's list of sessions says of us: who holds a lock is found by it.
#[derive(Clone, Debug)]
pub struct Client {
    /// This host's name.
    pub host: String,
    /// This process's id.
    pub pid: u32,
    /// Postfix's queue id, if given.
    pub queue_id: Option<String>,
}

/// Everything that a database is to this program.
pub trait Database: NamedLock + Holders + Ledger + Schema + Inspect + Tables {}

impl<T: NamedLock + Holders + Ledger + Schema + Inspect + Tables> Database for T {}

/// What `check` asks of a database: does it keep the promises that a delivery rests on?
pub trait Inspect {
    /// Product and version, for people: `PostgreSQL 17.6`.
    ///
    /// # Errors
    /// [`DatabaseError`]
    fn describe(&mut self) -> Result<String, DatabaseError>;

    /// What could be wrong with the server, each looked at: a standby, a read-only server, a commit that is not durable,
    /// a cluster on which the lock excludes nobody.
    ///
    /// # Errors
    /// [`DatabaseError`]
    fn inspect(&mut self) -> Result<Vec<Finding>, DatabaseError>;

    /// Some address of the table `addresses` that is no `@domain`, to try a login with; `None` if it has none.
    ///
    /// # Errors
    /// [`DatabaseError`]
    fn any_address(&mut self) -> Result<Option<String>, DatabaseError>;

    /// How often the server was waited for since the connection stands.
    fn round_trips(&self) -> u32;
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at: `synchronous_commit`.
    pub what: String,
    /// How it is.
    pub state: State,
    /// What was found: `on`.
    pub found: String,
    /// What mends it, where something is to be mended.
    pub mend: Option<String>,
}

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// As it should be.
    Good,
    /// It works, and could be better.
    Warning,
    /// It breaks a promise: `check` fails.
    Bad,
}

/// What a database's failure is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseFailure {
    /// It cannot be reached, or its TLS certificate is not to be trusted.
    Unreachable,
    /// It refuses our role or password, or our role lacks a right.
    AccessDenied,
    /// The connection ended, and any lock with it.
    ConnectionLost,
    /// A deadlock, a lock wait or a serialization failure: 1213, 1205, 1020, 40P01, 40001.
    Contention,
    /// No answer within the time that was left.
    TimedOut,
    /// The schema is missing, or is not the one that this release needs: `maildrop_command migrate`.
    Schema,
    /// The server takes no writes: a standby, or read-only.
    ReadOnly,
    /// The server refuses a value: a constraint, a trigger, a type or an index will not have it. The same value will be
    /// refused again.
    Refused,
    /// Something on this machine: a file, a directory, a setting.
    Local,
    /// Anything else that the server said.
    Other,
}

/// A failure at the database.
#[derive(Debug, Error)]
#[error("{doing}: {detail}")]
pub struct DatabaseError {
    /// What it is about.
    pub failure: DatabaseFailure,
    /// What was being done, for the log: `recording the delivery`.
    pub doing: String,
    /// What the server or the system said, with its code, for the log. Never a secret.
    pub detail: String,
}

impl DatabaseError {
    /// A failure of the given kind.
    pub fn new(failure: DatabaseFailure, doing: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { failure, doing: doing.into(), detail: detail.into() }
    }

    /// Whether the very same statement, tried again at once, can help.
    #[must_use]
    pub fn trying_again_at_once_can_help(&self) -> bool {
        self.failure == DatabaseFailure::Contention
    }
}
