//! Named locks: the one thing that two deliveries of the same message, on any two machines, agree on.
//!
//! The lock says *who goes on now*. It does not say what was done: that is the [`ledger`](crate::ledger), read again
//! once the lock is held.

mod file;
mod hold;
mod list;
mod mysql;
mod name;
mod postgres;
mod program;

pub use file::FileLocks;
pub use hold::Wish;
pub use list::{Entry, Hidden, Listing, Name, list};
pub use name::{DEFAULT_NAMESPACE, LockName};
pub(crate) use name::{OF_PROGRAMS, hex};
pub use program::{Outcome, ProgramError, die_with, run_under_lock};

use crate::database::DatabaseError;
use std::time::Duration;

/// What came of asking for a lock. Contention is a value, not an error: a lock held elsewhere is ordinary life, and is
/// never success (it ends in exit 75).
#[derive(Debug)]
pub enum Acquired {
    /// It is ours until [`NamedLock::release`], until the ledger's record commits (PostgreSQL), or until the
    /// connection ends.
    Held,
    /// Somebody else has it; who, as far as the server tells.
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

/// A lock by name in the database that every machine shares, held by one connection.
///
/// Implementations never reconnect while a lock is held: a new connection would not hold it.
pub trait NamedLock {
    /// Takes the lock, waiting on the server for at most `wait` (zero: not at all). Never waits past the deadline that
    /// the connection was opened with.
    ///
    /// # Errors
    /// [`DatabaseError`] where the server gave no clear answer. A clear "held elsewhere" is [`Acquired::Busy`].
    fn acquire(&mut self, name: &LockName, wait: Duration) -> Result<Acquired, DatabaseError>;

    /// Asks, over the very connection that took it, whether the lock is still ours. `Ok(false)` and `Err` both mean:
    /// go no further.
    ///
    /// # Errors
    /// [`DatabaseError`] where the connection is gone, and the lock with it.
    fn still_held(&mut self, name: &LockName) -> Result<bool, DatabaseError>;

    /// For a lock that is held longer than a delivery lasts: from now on, the server frees it and ends the session once it
    /// has heard nothing over this connection for `silence`, so that a machine that vanished does not hold it for ever.
    /// Whoever holds it asks [`still_held`](Self::still_held) more often than that.
    ///
    /// # Errors
    /// [`DatabaseError`] where the connection is gone, and the lock with it.
    fn keep(&mut self, _silence: Duration) -> Result<(), DatabaseError> {
        // A lock in a file dies with its process.
        Ok(())
    }

    /// Lets go of it. Letting go of a lock that is not held (any more) is no error.
    ///
    /// # Errors
    /// [`DatabaseError`] where the connection is gone; the server then frees the lock by itself.
    fn release(&mut self, name: &LockName) -> Result<(), DatabaseError>;
}

/// Who holds locks, for people who look on. Nothing here takes a lock, not even for a moment: a delivery that came in that
/// moment would be put off.
pub trait Holders {
    /// Who holds this lock now, as far as the server tells; `None` if nobody does.
    ///
    /// # Errors
    /// [`DatabaseError`]
    fn holder(&mut self, name: &LockName) -> Result<Option<Holder>, DatabaseError>;
}
