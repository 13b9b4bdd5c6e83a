//! A named lock for periodic work that only one of the hosts that share a database does at a time.
//!
//! The lock has a session of its own. On PostgreSQL that is a transaction that has no snapshot and no xid between two queries. So
//! it holds back no VACUUM, and PgBouncer in transaction mode may stand between.
//!
//! The lock is no fence: the work under it may be done twice without harm, each message under its own lock. The lock only saves
//! all hosts from doing all the work at once.

use super::lock_holder::lock_of_program;
use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::ledger::Database;
use crate::lock::{Acquired, Holder, LockName};
use crate::site::Site;
use std::time::Duration;
use tracing::debug;

/// Which host has the turn.
pub(crate) enum Turn {
    Ours(Held),
    /// Another host holds the lock, as far as the server reports which one.
    HeldBy(Option<Holder>),
}

/// The lock, for the lifetime of this value.
pub(crate) struct Held {
    database: Box<dyn Database>,
    lock: LockName,
}

/// Takes the lock of this name, if it is free, for at most `at_most`. `maildrop_command lock try NAME` shows its holder, and
/// `lock exec NAME` keeps all hosts from the work meanwhile. The server frees the lock if it has received nothing for `silence`.
///
/// # Errors
/// If the database does not answer, or its answer is unclear.
pub(crate) fn take(site: &Site, name: &str, at_most: Duration, silence: Duration) -> Result<Turn, DatabaseError> {
    let lock = lock_of_program(site.namespace(), name);
    let mut database = site.open_database(None, Deadline::after(at_most))?;
    match database.acquire(&lock, Duration::ZERO)? {
        Acquired::Held => {
            database.keep(silence)?;
            Ok(Turn::Ours(Held { database, lock }))
        }
        Acquired::Busy(holder) => Ok(Turn::HeldBy(holder)),
    }
}

impl Held {
    /// Whether the server says that the lock is still ours. An unknown answer counts as lost.
    pub(crate) fn is_still_ours(&mut self) -> Result<(), String> {
        match self.database.still_held(&self.lock) {
            Ok(true) => Ok(()),
            Ok(false) => Err("the lock was lost on the way".into()),
            Err(error) => Err(format!("the lock was lost on the way: {error}")),
        }
    }

    pub(crate) fn end(mut self) {
        if let Err(error) = self.database.release(&self.lock) {
            debug!(%error, "the lock was not released; the server frees it with the connection");
        }
    }
}
