//! Of all hosts that share a database, one does what all would do at intervals: it holds a named lock meanwhile.
//!
//! The lock has a session of its own. On PostgreSQL that is a transaction that has no snapshot and no xid between two questions, so
//! that it holds back no VACUUM, and PgBouncer in transaction mode may stand between. It is no fence: what is done under it may be
//! done twice without harm, each message under its own lock. It saves hosts from doing it all at once.

use super::lock_holder::lock_of_program;
use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::ledger::Database;
use crate::lock::{Acquired, Holder, LockName};
use crate::site::Site;
use std::time::Duration;
use tracing::debug;

/// Whose turn it is.
pub(crate) enum Turn {
    Ours(Held),
    /// Another host is at it; which, as far as the server tells.
    Anothers(Option<Holder>),
}

/// The lock, for as long as this is.
pub(crate) struct Held {
    database: Box<dyn Database>,
    lock: LockName,
}

/// Takes the lock of this name, if nobody holds it, for `at_most` so long. `maildrop_command lock try NAME` tells who has it, and
/// `lock exec NAME` keeps all hosts from it meanwhile. The server frees the lock where it has heard nothing for `silence`.
///
/// # Errors
/// Where the database gave no clear answer.
pub(crate) fn take(site: &Site, name: &str, at_most: Duration, silence: Duration) -> Result<Turn, DatabaseError> {
    let lock = lock_of_program(site.namespace(), name);
    let mut database = site.open_database(None, Deadline::after(at_most))?;
    match database.acquire(&lock, Duration::ZERO)? {
        Acquired::Held => {
            database.keep(silence)?;
            Ok(Turn::Ours(Held { database, lock }))
        }
        Acquired::Busy(holder) => Ok(Turn::Anothers(holder)),
    }
}

impl Held {
    /// Whether it is still ours, asked of the server. Where that is not known, it is not.
    pub(crate) fn is_still_ours(&mut self) -> Result<(), String> {
        match self.database.still_held(&self.lock) {
            Ok(true) => Ok(()),
            Ok(false) => Err("the lock was lost on the way".into()),
            Err(error) => Err(format!("the lock was lost on the way: {error}")),
        }
    }

    /// Frees it.
    pub(crate) fn end(mut self) {
        if let Err(error) = self.database.release(&self.lock) {
            debug!(%error, "the lock was not released; the server frees it with the connection");
        }
    }
}
