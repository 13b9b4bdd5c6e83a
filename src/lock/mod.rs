//! Named locks: at most one session of all machines that use the database holds the lock of a name. They know nothing of mail.

mod mysql;
mod name;
mod postgres;
mod shard;
mod sqlite;

pub(crate) use mysql::or_untold;
pub(crate) use name::OF_PROGRAMS;
pub use name::{DEFAULT_NAMESPACE, LockName};
pub(crate) use postgres::AcquiredAnd;
pub use shard::Slice;

use crate::database::{DatabaseError, columns_of};
use std::time::Duration;

/// The answer to a request for a lock. That it is held elsewhere is no error: it happens every day.
#[derive(Debug)]
pub enum Acquired {
    /// We hold it until [`NamedLock::release`], or until the session ends; on PostgreSQL, until its transaction ends.
    Held,
    /// Another session holds it; which one, as far as the server tells.
    Busy(Option<Holder>),
}

/// Who holds a lock, as far as it is known. For the log: the line that may reach a sender says only for how long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    pub host: Option<String>,
    /// Its process id on that host.
    pub pid: Option<u32>,
    /// Postfix's queue id of the message it delivers.
    pub queue_id: Option<String>,
    /// The session on the database server: a backend pid (PostgreSQL) or a connection id (MySQL).
    pub session: Option<u64>,
    /// For how long it has held the lock, by the database's clock.
    pub held_for: Option<Duration>,
}

columns_of! { Holder: host, pid, queue_id, session, held_for }

/// A lock by name in the database that every machine shares, held by one session.
///
/// The session never reconnects: a new connection would not hold the lock. It holds one lock at a time, and is used by one
/// thread at a time.
///
/// A lock does not outlive its session. If the connection breaks, the server frees the lock, and the holder learns of it only when
/// it asks: so it asks [`still_held`](Self::still_held) right before anything that cannot be undone. If the holder's machine
/// vanishes, the server frees the lock when it has heard nothing for as long as the session was begun for, and a while longer
/// (30 s on PostgreSQL, 60 s on MySQL). Another time is set with [`keep`](Self::keep).
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
    /// When the server gave no clear answer. On PostgreSQL also when the session holds any lock already, on MySQL this one.
    fn acquire(&mut self, name: &LockName, wait: Duration) -> Result<Acquired, DatabaseError>;

    /// Asks, in the session that took it, whether the lock is still held. `Ok(false)` and `Err` both mean: stop.
    ///
    /// # Errors
    /// When the connection is gone, and the lock with it.
    fn still_held(&mut self, name: &LockName) -> Result<bool, DatabaseError>;

    /// Who holds the lock now; `None` if it is free. It is never taken to find out: a delivery at that moment would be deferred.
    ///
    /// # Errors
    /// When the server cannot be asked.
    fn holder(&mut self, name: &LockName) -> Result<Option<Holder>, DatabaseError>;

    /// From now on the server frees the lock, and ends the session, when it has heard nothing from us for `silence`. The holder
    /// asks [`still_held`](Self::still_held) more often than that. A lock in a file ends with its process, and needs no limit.
    ///
    /// # Errors
    /// When the connection is gone, and the lock with it.
    fn keep(&mut self, _silence: Duration) -> Result<(), DatabaseError> {
        Ok(())
    }

    /// Frees the lock. It is no error if it is not held (any more).
    ///
    /// # Errors
    /// When the connection is gone; the server then frees the lock by itself.
    fn release(&mut self, name: &LockName) -> Result<(), DatabaseError>;

    /// Frees the lock, after what was written under it is committed: on PostgreSQL the lock's transaction has it, elsewhere it is.
    ///
    /// # Errors
    /// As [`release`](Self::release), and on PostgreSQL where it may not be committed.
    fn commit_and_release(&mut self, name: &LockName) -> Result<(), DatabaseError> {
        self.release(name)
    }
}
