//! The locks of an engine that answers for one name at a time.
//!
//! On MySQL and MariaDB, `IS_USED_LOCK` returns the session that has a lock whose name the ledger knows; the process list shows
//! which sessions wait. Sessions of another account are visible only with the right PROCESS, which grants-operator.sql grants. The
//! servers' own lists of locks are not always available. MySQL's `metadata_locks` needs rights on the performance schema, which
//! MariaDB switches off by default. MariaDB's `metadata_lock_info` is a plugin that is not loaded by default.
//!
//! On an embedded site each lock is a file. Waiting processes are not shown, because they poll.

use super::{Listing, LockEntry, application};
use crate::base::hex;
use crate::database::{DatabaseError, DatabaseFailure, Dialect, Query};
use crate::ledger::Database;
use crate::ledger::lock_exec_holders::{LockUser, lock_users, message_of_lock};
use crate::lock::{Holder, LockName};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::DirEntry;
use std::io;
use std::path::Path;

/// The state in the process list of a session that waits in GET_LOCK.
const WAITS: &str = "User lock";

/// A session of the process list.
struct ListedSession {
    account: String,
    host: String,
    state: String,
}

/// `directory` is that of an embedded site.
pub fn list(
    database: &mut dyn Database,
    directory: Option<&Path>,
    only: Option<&LockName>,
) -> Result<Listing, DatabaseError> {
    let is_file = database.dialect() == Dialect::Sqlite;
    // The process list is read before the ledger, so that a session that ends in between is not mistaken for a waiter.
    let sessions = if is_file { BTreeMap::new() } else { sessions(database)? };
    let askers = lock_users(database, only)?;
    let mut locks: BTreeSet<LockName> = askers.iter().map(|asker| asker.lock).chain(only.copied()).collect();
    if is_file && only.is_none() {
        locks.extend(locks_of_files(directory.unwrap_or(Path::new(".")))?);
    }
    let mut listing = Listing::default();
    for lock in locks {
        let Some(holder) = database.holder(&lock)? else { continue };
        let of_lock: Vec<&LockUser> = askers.iter().filter(|asker| asker.lock == lock).collect();
        let name = match of_lock.first() {
            Some(asker) => Some(asker.message_id.clone()),
            None => message_of_lock(database, lock.digest(), lock.digest())?,
        };
        let mut add = |holder: Holder, asker: Option<&LockUser>, waits| {
            let listed = holder.session.and_then(|id| sessions.get(&id));
            let host = asker.map(|asker| asker.host.clone()).or(holder.host);
            let delivery = asker.map(|asker| application(asker.queue_id.as_deref()));
            listing.entries.push(LockEntry {
                lock: if is_file { hex::encode(lock.digest()) } else { lock.mysql_name() },
                name: name.clone(),
                waits,
                host: host.or_else(|| listed.map(|session| session.host.clone())),
                pid: asker.and_then(|asker| asker.pid).or(holder.pid),
                application: delivery.or_else(|| listed.map(|session| session.account.clone())),
                session: holder.session,
                age: holder.held_for.or_else(|| asker.and_then(|asker| asker.age)),
            });
        };
        let is_holder = |asker: &LockUser| match holder.session {
            Some(session) => asker.session == Some(session),
            None => holder.pid.is_some() && asker.pid == holder.pid,
        };
        add(holder.clone(), of_lock.iter().find(|asker| is_holder(asker)).copied(), false);
        for asker in of_lock.into_iter().filter(|asker| !is_holder(asker)) {
            let Some(id) = asker.session else { continue };
            if sessions.get(&id).is_some_and(|session| session.state == WAITS) {
                add(Holder::of_session(id), Some(asker), true);
            }
        }
    }
    Ok(listing)
}

fn sessions(database: &mut dyn Database) -> Result<BTreeMap<u64, ListedSession>, DatabaseError> {
    let sql = "SELECT id, user, host, COALESCE(state, '') FROM information_schema.processlist";
    let rows: Vec<(u64, String, String, String)> = database.query("reading the server's list of sessions", sql, &[])?;
    let session = |(id, account, host, state): (u64, String, String, String)| {
        let host = host.rsplit_once(':').map_or(host.as_str(), |(host, _port)| host).to_owned();
        (id, ListedSession { account, host, state })
    };
    Ok(rows.into_iter().map(session).collect())
}

/// The locks whose files an embedded site has, held or not.
fn locks_of_files(directory: &Path) -> Result<Vec<LockName>, DatabaseError> {
    let lock =
        |file: io::Result<DirEntry>| file.map(|file| lock_of_file(&file.file_name().to_string_lossy())).transpose();
    match std::fs::read_dir(directory.join("locks")).and_then(|files| files.filter_map(lock).collect()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(DatabaseError::new(DatabaseFailure::Local, "looking which locks are held", error.to_string()))
        }
        locks => Ok(locks.unwrap_or_default()),
    }
}

/// The lock that gives a file its name.
fn lock_of_file(name: &str) -> Option<LockName> {
    Some(LockName::from_digest(hex::decode(name)?.try_into().ok()?)).filter(|lock| hex::encode(lock.digest()) == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_lock_is_passed_over() {
        assert_eq!(lock_of_file(&"0f".repeat(32)), Some(LockName::from_digest([0x0f; 32])));
        for other in ["README".to_owned(), "0f".repeat(31), "0f".repeat(33), "0g".repeat(32), "0F".repeat(32)] {
            assert_eq!(lock_of_file(&other), None, "{other}");
        }
    }
}
