//! Named locks: of all sessions with the database, from any machine, at most one holds the lock of a name. This module knows
//! nothing of mail.
//!
//! | engine | the lock | whom it excludes | what ends it |
//! |---|---|---|---|
//! | PostgreSQL | `pg_try_advisory_xact_lock` of a hash | the sessions of one database | its transaction's end |
//! | MySQL, MariaDB | `GET_LOCK` of the name | the sessions of one server | `RELEASE_LOCK`, or the session's end |
//! | SQLite | `flock(2)` on a file of that name | the processes of one machine | release, or the process's end |

mod mysql;
mod name;
mod postgres;
mod shard;
mod sqlite;

pub(crate) use mysql::log_unknown_holder;
pub(crate) use name::OF_PROGRAMS;
pub use name::{DEFAULT_NAMESPACE, LockName};
pub(crate) use postgres::AcquiredAnd;
pub use shard::Shard;

use crate::base::timestamp::span;
use crate::database::{DatabaseError, columns_of};
use serde::{Serialize, Serializer};
use std::fmt;
use std::time::Duration;

/// The result of a request for a lock. That another session holds the lock is no error.
#[derive(Debug)]
pub enum Acquired {
    /// We hold it until [`NamedLock::release`], or until the session ends; on PostgreSQL, until its transaction ends.
    Held,
    /// Another session holds the lock: its holder, if the server reports one.
    Busy(Option<Holder>),
}

/// The holder of a lock, as far as it is known. It is for the log and for people; a line that may reach a sender says only
/// `held_for`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Holder {
    pub host: Option<String>,
    /// The holder's process id on that host.
    pub pid: Option<u32>,
    /// Postfix's queue id of the message that the holder delivers.
    #[serde(skip)]
    pub queue_id: Option<String>,
    /// The session on the database server: a backend pid (PostgreSQL) or a connection id (MySQL).
    pub session: Option<u64>,
    /// For how long the lock has been held, or requested, by the database's clock.
    #[serde(rename = "age_s", serialize_with = "in_seconds")]
    pub held_for: Option<Duration>,
}

fn in_seconds<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    span.map(|span| span.as_secs_f64()).serialize(serializer)
}

columns_of! { Holder: host, pid, queue_id, session, held_for }

impl fmt::Display for Holder {
    /// For people: `mx1:4711, queue id 4bXyz, session 17 of the database server, for 3s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.pid) {
            (Some(host), Some(pid)) => write!(f, "{host}:{pid}")?,
            (Some(host), None) => write!(f, "a program on {host}")?,
            _ => f.write_str("a program that does not say who it is")?,
        }
        let queue_id = self.queue_id.as_ref().map(|queue_id| format!(", queue id {queue_id}"));
        let session = self.session.map(|session| format!(", session {session} of the database server"));
        let held_for = self.held_for.map(|held_for| format!(", for {}", span(held_for)));
        [queue_id, session, held_for].into_iter().flatten().try_for_each(|known| f.write_str(&known))
    }
}

/// A lock by name in the database that every machine shares, held by one session.
///
/// The session never reconnects: a new connection would not hold the lock. A session holds one lock at a time, and is used
/// by one thread at a time.
///
/// A lock does not outlive its session. If the connection breaks, the server releases the lock, and the holder notices only
/// when it asks. So the holder calls [`still_held`](Self::still_held) right before anything that cannot be undone. If the
/// holder's machine vanishes, the server releases the lock after a silence. That is the session's time limit, and 30 s
/// (PostgreSQL) or 60 s (MySQL) more; [`keep`](Self::keep) sets another one.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use maildrop_command::base::deadline::Deadline;
/// use maildrop_command::database::{Client, SqliteDatabase};
/// use maildrop_command::lock::{Acquired, LockName, NamedLock};
/// use std::time::Duration;
///
/// // SQLite and file locks: for one machine. `PostgresDatabase` and `MysqlDatabase` are used in the same way.
/// let directory = tempfile::tempdir()?;
/// let client = Client { host: "mx1".into(), pid: std::process::id(), queue_id: None };
/// let open = || SqliteDatabase::open(directory.path(), &client, Deadline::after(Duration::from_secs(60)));
/// let (mut one, mut other) = (open()?, open()?);
///
/// let name = LockName::new("reports", b"nightly");
/// assert!(matches!(one.acquire(&name, Duration::from_millis(100))?, Acquired::Held));
/// assert!(matches!(other.acquire(&name, Duration::ZERO)?, Acquired::Busy(_)));
/// // ... whatever can be done twice ...
/// if one.still_held(&name)? {
///     // ... what must not be done twice ...
/// }
/// one.release(&name)?;
/// # Ok(())
/// # }
/// ```
pub trait NamedLock {
    /// Takes the lock, waiting on the server for at most `wait` (zero: not at all), and never past the session's deadline.
    ///
    /// # Errors
    /// If the server gave no clear answer, or its lock excludes nobody (Galera, a replica). On PostgreSQL also if the
    /// session holds any lock already; on MySQL, if it holds this one. On SQLite a lock that the session holds is [`Acquired::Held`]
    /// once more, and one release frees it.
    fn acquire(&mut self, name: &LockName, wait: Duration) -> Result<Acquired, DatabaseError>;

    /// Asks, in the session that took it, whether the lock is still held. `Ok(false)` and `Err` both mean: stop.
    ///
    /// # Errors
    /// If the connection is gone, and the lock with it.
    fn still_held(&mut self, name: &LockName) -> Result<bool, DatabaseError>;

    /// The present holder of the lock; `None` if it is free. This never takes the lock, which would defer a delivery of that
    /// moment.
    ///
    /// # Errors
    /// If the server does not answer.
    fn holder(&mut self, name: &LockName) -> Result<Option<Holder>, DatabaseError>;

    /// From now on the server releases the lock, and ends the session, once it has received nothing from us for
    /// `silence`. The holder calls [`still_held`](Self::still_held) more often than that. A lock in a file ends with
    /// its process, and needs no limit.
    ///
    /// # Errors
    /// If the connection is gone, and the lock with it.
    fn keep(&mut self, _silence: Duration) -> Result<(), DatabaseError> {
        Ok(())
    }

    /// Releases the lock. A lock that is not held (any more) is no error.
    ///
    /// # Errors
    /// If the connection is gone; the server then releases the lock by itself.
    fn release(&mut self, name: &LockName) -> Result<(), DatabaseError>;

    /// Releases the lock, after the changes made under it are committed. On PostgreSQL the lock's transaction contains
    /// them; on the other engines they are committed already.
    ///
    /// # Errors
    /// As [`release`](Self::release), and on PostgreSQL if the changes may not have been committed.
    fn commit_and_release(&mut self, name: &LockName) -> Result<(), DatabaseError> {
        self.release(name)
    }
}
