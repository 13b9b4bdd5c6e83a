//! The locks on MySQL and MariaDB. `IS_USED_LOCK` returns the session that has a lock whose name the ledger knows; the process
//! list shows which sessions wait. Sessions of another account are visible only with the right PROCESS, which grants-operator.sql
//! grants.
//!
//! The servers' own lists of locks are not always available. MySQL's `metadata_locks` needs rights on the performance schema,
//! which MariaDB switches off by default. MariaDB's `metadata_lock_info` is a plugin that is not loaded by default.

use super::{Listing, LockEntry, application};
use crate::database::{DatabaseError, Query};
use crate::ledger::Database;
use crate::ledger::lock_exec_holders::{LockUser, lock_users, message_of_lock};
use crate::lock::LockName;
use std::collections::{BTreeMap, BTreeSet};

/// The state in the process list of a session that waits in GET_LOCK.
const WAITS: &str = "User lock";

/// A session of the process list.
struct ListedSession {
    account: String,
    host: String,
    state: String,
}

pub fn list(database: &mut dyn Database, only: Option<&LockName>) -> Result<Listing, DatabaseError> {
    // The process list is read before the ledger, so that a session that ends in between is not mistaken for a waiter.
    let sessions = sessions(database)?;
    let askers = lock_users(database, only)?;
    let locks: BTreeSet<LockName> = askers.iter().map(|asker| asker.lock).chain(only.copied()).collect();
    let mut listing = Listing::default();
    for lock in locks {
        let Some(holder) = database.holder(&lock)?.and_then(|holder| holder.session) else { continue };
        let of_lock: Vec<&LockUser> = askers.iter().filter(|asker| asker.lock == lock).collect();
        let name = match of_lock.first() {
            Some(asker) => Some(asker.message_id.clone()),
            None => message_of_lock(database, lock.digest(), lock.digest())?,
        };
        let mut add = |id, asker: Option<&LockUser>, waits| {
            let listed = sessions.get(&id);
            listing.entries.push(LockEntry {
                lock: lock.mysql_name(),
                name: name.clone(),
                waits,
                host: asker.map(|asker| asker.host.clone()).or_else(|| listed.map(|session| session.host.clone())),
                pid: asker.and_then(|asker| asker.pid),
                application: asker
                    .map(|asker| application(asker.queue_id.as_deref()))
                    .or_else(|| listed.map(|session| session.account.clone())),
                session: Some(id),
                age: asker.and_then(|asker| asker.age),
            });
        };
        let who = of_lock.iter().find(|asker| asker.session == Some(holder)).copied();
        add(holder, who, false);
        for asker in of_lock {
            let Some(id) = asker.session.filter(|id| *id != holder) else { continue };
            if sessions.get(&id).is_some_and(|session| session.state == WAITS) {
                add(id, Some(asker), true);
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
