//! Named locks: at most one session has the lock of a name, of all machines that use the database.
//! Uses `base` and `database`.
//!
//! The lock says *who goes on now*. It knows no mail, no ledger, and nothing of what is done under it.

mod mysql;
mod name;
mod postgres;
mod sqlite;

pub(crate) use mysql::or_untold;
pub(crate) use name::OF_PROGRAMS;
pub use name::{DEFAULT_NAMESPACE, LockName};
pub(crate) use postgres::AcquiredAnd;

use crate::database::DatabaseError;
use std::time::Duration;

/// What came of asking for a lock. That it is held elsewhere is a value, not an error: it happens every day. But it is never
/// success.
#[derive(Debug)]
pub enum Acquired {
    /// It is ours until [`NamedLock::release`], or until the session ends; on PostgreSQL also no longer than the transaction
    /// that holds it.
    Held,
    /// Another session has it; which one, as far as the server tells.
    Busy(Option<Holder>),
}

/// Who holds a lock. For the log: the line that may reach a sender says only for how long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// The host it runs on, if it told.
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

/// A lock by name in the database that every machine shares, held by one session.
///
/// The session never reconnects: a new connection would not hold the lock. It holds one lock at a time, and is not used by two
/// threads at once.
///
/// A lock does not outlive its session. Where the connection breaks, the server frees the lock, and the holder learns of it
/// only when it asks: so it asks [`still_held`](Self::still_held) right before anything that cannot be undone. Where the
/// holder's machine vanishes without a word, the server frees the lock once it has heard nothing for as long as the session
/// was begun for, and a while longer (30 s on PostgreSQL, 60 s on MySQL). What takes longer than that, or must be free
/// sooner, says so with [`keep`](Self::keep).
///
/// ```
/// use maildrop_command::base::deadline::Deadline;
/// use maildrop_command::database::{Client, DatabaseError, SqliteDatabase};
/// use maildrop_command::lock::{Acquired, LockName, NamedLock};
/// use std::time::Duration;
///
/// /// Sends the report, unless another machine is at it; says whether it did.
/// fn nightly_report(database: &mut dyn NamedLock) -> Result<bool, DatabaseError> {
///     let name = LockName::new("reports", b"nightly");
///     if let Acquired::Busy(holder) = database.acquire(&name, Duration::from_millis(100))? {
///         println!("another one is at it: {holder:?}");
///         return Ok(false);
///     }
///     // ... whatever can be done twice ...
///     let ours = database.still_held(&name)?;
///     if ours {
///         // ... what must not be done twice ...
///     }
///     database.release(&name)?;
///     Ok(ours)
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // SQLite and file locks: for one machine. `PostgresDatabase` and `MysqlDatabase` are used in the same way.
/// let directory = tempfile::tempdir()?;
/// let client = Client { host: "mx1".into(), pid: std::process::id(), queue_id: None };
/// let open = || SqliteDatabase::open(directory.path(), &client, Deadline::after(Duration::from_secs(60)));
/// let (mut one, mut other) = (open()?, open()?);
/// assert!(nightly_report(&mut one)?);
///
/// let name = LockName::new("reports", b"nightly");
/// assert!(matches!(one.acquire(&name, Duration::ZERO)?, Acquired::Held));
/// assert!(!nightly_report(&mut other)?, "two machines sent it");
/// drop(one);
/// assert!(nightly_report(&mut other)?, "a lock that outlives its session");
/// # Ok(())
/// # }
/// ```
pub trait NamedLock {
    /// Takes the lock, waiting on the server for at most `wait` (zero: not at all), and never past the session's deadline.
    ///
    /// # Errors
    /// Where the server gave no clear answer. On PostgreSQL also where the session holds a lock already, on MySQL where it holds
    /// this one. A clear "held
    /// elsewhere" is [`Acquired::Busy`].
    fn acquire(&mut self, name: &LockName, wait: Duration) -> Result<Acquired, DatabaseError>;

    /// Asks, in the very session that took it, whether the lock is still ours. `Ok(false)` and `Err` both mean: go no further.
    ///
    /// # Errors
    /// Where the connection is gone, and the lock with it.
    fn still_held(&mut self, name: &LockName) -> Result<bool, DatabaseError>;

    /// For a lock that is held for another time than the session was begun for: from now on the server frees it, and ends the
    /// session, once it has heard nothing from us for `silence`. The holder asks [`still_held`](Self::still_held) more often
    /// than that. A lock in a file dies with its process, and needs no such limit.
    ///
    /// # Errors
    /// Where the connection is gone, and the lock with it.
    fn keep(&mut self, _silence: Duration) -> Result<(), DatabaseError> {
        Ok(())
    }

    /// Frees the lock. To free one that is not held (any more) is no error.
    ///
    /// # Errors
    /// Where the connection is gone; the server then frees the lock by itself.
    fn release(&mut self, name: &LockName) -> Result<(), DatabaseError>;
}

/// Who holds locks, for people who look on. Nothing here takes a lock, not even for a moment: a delivery that came in that
/// moment would be put off.
pub trait Holders {
    /// Who holds this lock now, as far as the database tells; `None` if it is free.
    ///
    /// # Errors
    /// Where the server cannot be asked.
    fn holder(&mut self, name: &LockName) -> Result<Option<Holder>, DatabaseError>;
}
