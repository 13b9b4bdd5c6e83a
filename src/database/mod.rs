//! Sessions with databases, one file per engine: connecting, statements, errors. Lock, ledger and schema use them.
//!
//! A session serves one delivery at a time, and is never reconnected, because the lock would be lost. [`Idle`] proves that a
//! session may serve another delivery.

mod former_primary;
mod hosts;
pub(crate) mod mysql;
pub(crate) mod postgres;
#[cfg(any(test, feature = "test-properties"))]
pub mod property_tests;
mod row;
mod session;
pub(crate) mod sqlite;
mod tables;
pub(crate) mod unsupported_products;

pub use self::former_primary::{KnownTimelines, Timeline};
pub(crate) use self::hosts::{Connected, RetryUntil, connect_primary};
pub use self::mysql::MysqlDatabase;
pub use self::postgres::PostgresDatabase;
pub use self::row::{Columns, FromColumn, FromRow, Row};
pub(crate) use self::row::{columns_of, unreadable};
pub use self::session::{Client, Idle, Sealed, Session};
pub use self::sqlite::SqliteDatabase;
pub use self::tables::{Dialect, Tables, UnlockedChange, Value};
pub(crate) use self::tables::{Query, without_nul};

use crate::base::endpoint::{CONNECT_TIMEOUT, Endpoint};
use crate::base::secret::Secret;
use crate::base::server_waits;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// A database server, and our role there. From the configuration.
#[derive(Clone, Debug)]
pub struct Server {
    pub address: Endpoint,
    /// The database (PostgreSQL) or schema (MySQL).
    pub database: String,
    pub user: String,
    /// The role's password; `None` if the unix socket identifies us (`peer`, `unix_socket`).
    pub password: Option<Secret>,
    /// Whether the connection is encrypted; a unix socket never is.
    pub tls: Tls,
    pub limits: Limits,
    /// The known histories, if this is one of several servers.
    pub timelines: Option<Arc<KnownTimelines>>,
}

impl Server {
    /// How long the server may take to answer while it lets us in, within the time left. A subcommand that people start has
    /// no such limit if there is no other server to try: [`server_waits`] then detects a server that hangs.
    fn silence(&self, left: Duration) -> Option<Duration> {
        (!server_waits::are_watched() || self.timelines.is_some()).then(|| self.limits.login.min(left))
    }

    /// Whether it has to identify itself before it is used.
    fn is_suspect(&self) -> bool {
        self.timelines.as_ref().is_some_and(|known| known.suspects(&self.address.to_string()))
    }

    /// From now on it has to identify itself before it is used.
    fn suspect(&self) {
        if let Some(known) = &self.timelines {
            known.suspect(&self.address.to_string());
        }
    }

    /// Fails if this process has met a later timeline: another server has taken over, and this one was left behind.
    fn compare(&self, timeline: Option<&Timeline>, doing: &str) -> Result<(), DatabaseError> {
        let (Some(known), Some(timeline)) = (&self.timelines, timeline) else { return Ok(()) };
        let address = self.address.to_string();
        known
            .compare(timeline, &address)
            .map_err(|said| DatabaseError::new(DatabaseFailure::Behind, doing, format!("{address}: {said}")))
    }

    /// The same server, with less time to let us in, because another one may answer sooner.
    pub(crate) fn with_short_timeout(&self) -> Self {
        let login = self.limits.login.min(LET_IN_BY_ONE_OF_SEVERAL);
        Self { limits: Limits { login, ..self.limits }, ..self.clone() }
    }

    /// The same server with its full time, unless it has had that.
    fn with_full_timeout(self) -> Option<Self> {
        let Limits { login, silence, .. } = self.limits;
        (login < silence).then_some(Self { limits: Limits { login: silence, ..self.limits }, ..self })
    }
}

/// How long to wait for a server, except for locks and commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long one of its addresses may take to accept a connection.
    pub connect: Duration,
    /// How long the server may take to answer a statement that only reads. After this time without an acknowledgement the
    /// kernel gives up the connection (`TCP_USER_TIMEOUT`, tcp(7)), even if the session is idle and only keepalives are
    /// sent.
    pub silence: Duration,
    /// The same while the server lets us in, and for statements that it answers at once. Less than `silence` if there is
    /// another server to try.
    pub login: Duration,
}

pub(crate) const SILENCE: Duration = Duration::from_secs(20);

/// How long one of several servers may take to let us in before the next is tried. If a server hangs (SIGSTOP, a disk), its
/// kernel accepts the connection, and no answer ever comes. A busy server gets all of `silence` if no other takes writes.
const LET_IN_BY_ONE_OF_SEVERAL: Duration = Duration::from_secs(5);

impl Default for Limits {
    fn default() -> Self {
        Self { connect: CONNECT_TIMEOUT, login: SILENCE, silence: SILENCE }
    }
}

/// Whether a TCP connection to a database is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    Off,
    /// Encrypted. The server's certificate must be for its host name, and be signed by a CA of this file, or by one that the
    /// system trusts. Encryption without verification is not offered: anyone in between could read the password.
    Verify {
        /// The CA certificates, PEM.
        ca_file: Option<PathBuf>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseFailure {
    /// The server cannot be reached, or its TLS certificate is not trusted.
    Unreachable,
    /// The server refuses our role or password, or our role lacks a right.
    AccessDenied,
    /// The connection ended, and any lock with it.
    ConnectionLost,
    /// A deadlock, a lock wait or a serialization failure: 1213, 1205, 1020, 40P01, 40001.
    Contention,
    /// No answer within the time that was left.
    TimedOut,
    /// The change is committed on this server, which did not wait until a standby has it: a fail-over may lose it.
    InDoubt,
    /// The schema is missing, or is not the one that this release needs: `maildrop_command migrate`.
    Schema,
    /// The server takes no writes: a standby, or read-only.
    ReadOnly,
    /// The server has missed a fail-over: this process has met one with a later timeline.
    Behind,
    /// The server refuses a value because of a constraint, a trigger, a type or an index. A retry will fail as well.
    Refused,
    /// The server is a product whose locks do not exclude as deliveries need it.
    Unsupported,
    /// Something on this machine: a file, a directory, a setting.
    Local,
    Other,
}

#[derive(Clone, Debug, Error)]
#[error("{doing}: {detail}")]
pub struct DatabaseError {
    pub failure: DatabaseFailure,
    /// The operation that failed, for the log: `recording the delivery`.
    pub doing: String,
    /// The message of the server or the system, with its code, for the log. Never a secret.
    pub detail: String,
}

impl DatabaseError {
    /// A failure of this kind, of this operation, with the message of the server or the system.
    pub fn new(failure: DatabaseFailure, doing: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { failure, doing: doing.into(), detail: detail.into() }
    }

    /// A failure that should never happen: an answer of another shape, a step out of order.
    pub(crate) fn other(doing: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(DatabaseFailure::Other, doing, detail)
    }

    /// Whether a new session may succeed: this one was ended, or its server takes no writes any more. The failed statement
    /// may have been committed all the same, so a delivery retries in this way only before it has journalled.
    #[must_use]
    pub fn a_new_session_can_help(&self) -> bool {
        matches!(self.failure, DatabaseFailure::ConnectionLost | DatabaseFailure::ReadOnly | DatabaseFailure::Behind)
    }

    /// Whether the failure may be over within a minute, by itself or because another server takes over. Only a delivery that
    /// has not journalled waits for that.
    #[must_use]
    pub(crate) fn may_pass(&self) -> bool {
        use DatabaseFailure::{Behind, ConnectionLost, ReadOnly, TimedOut, Unreachable};
        matches!(self.failure, Unreachable | ConnectionLost | TimedOut | ReadOnly | Behind)
    }

    /// Whether an immediate retry of the same statement can help.
    pub(crate) fn trying_again_at_once_can_help(&self) -> bool {
        self.failure == DatabaseFailure::Contention
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(timelines: Option<Arc<KnownTimelines>>) -> Server {
        Server {
            address: Endpoint::Tcp { host: "db1".into(), port: 5432 },
            database: String::new(),
            user: String::new(),
            password: None,
            tls: Tls::Off,
            limits: Limits::default(),
            timelines,
        }
    }

    #[test]
    fn a_server_may_say_nothing_for_as_long_as_is_left_and_no_longer_than_its_limit() {
        let alone = server(None);
        assert_eq!(alone.silence(Duration::from_secs(7)), Some(Duration::from_secs(7)));
        assert_eq!(alone.silence(Duration::from_hours(1)), Some(SILENCE));
        // One of several servers is given up sooner.
        let (one, second) = (server(Some(Arc::default())), Duration::from_secs(1));
        let silences = [Duration::from_mins(1), second].map(|left| one.silence(left));
        assert_eq!(silences, [one.limits.login, second].map(Some));
    }

    #[test]
    fn a_server_is_suspect_once_it_was_found_to_be_no_primary_and_no_other_is() {
        let known = Arc::new(KnownTimelines::default());
        let one = server(Some(known.clone()));
        assert!(!one.is_suspect() && !server(None).is_suspect());
        known.suspect("another");
        assert!(!one.is_suspect());
        known.suspect(&one.address.to_string());
        assert!(one.is_suspect());
    }

    #[test]
    fn another_session_helps_where_this_one_ended_and_another_try_where_others_were_in_the_way() {
        use DatabaseFailure::{
            AccessDenied, Behind, ConnectionLost, Contention, InDoubt, ReadOnly, TimedOut, Unreachable,
        };
        let error = |failure| DatabaseError::new(failure, "asking", "no");
        for (failure, session, passes, at_once) in [
            (ConnectionLost, true, true, false),
            (ReadOnly, true, true, false),
            (Behind, true, true, false),
            (Contention, false, false, true),
            (TimedOut, false, true, false),
            (Unreachable, false, true, false),
            (InDoubt, false, false, false),
            (AccessDenied, false, false, false),
        ] {
            assert_eq!(error(failure).a_new_session_can_help(), session, "{failure:?}");
            assert_eq!(error(failure).may_pass(), passes, "{failure:?}");
            assert_eq!(error(failure).trying_again_at_once_can_help(), at_once, "{failure:?}");
        }
    }
}
