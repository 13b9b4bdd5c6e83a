//! A snapshot of the holders of locks and of those who wait for one. It may be outdated when it is read.
//!
//! The server knows the holder of a lock, and the ledger knows the Message-ID that gives the lock its name.
//!
//! | engine | which locks | from where |
//! |---|---|---|
//! | PostgreSQL | all of a database | `pg_locks`, and `pg_stat_activity`, which shows times and addresses of other roles' sessions only with `pg_read_all_stats` (grants-operator.sql) |
//! | MySQL, MariaDB | each that the ledger knows, and the requested one | `IS_USED_LOCK`, and the process list, which shows sessions of other accounts only with PROCESS (grants-operator.sql) |
//! | SQLite | all of an embedded site, without the waiting processes, since they poll | the files of the locks |
//!
//! MySQL's own list of locks needs rights on the performance schema. MariaDB's is a plugin that is not loaded by default.

use crate::base::hex;
use crate::database::postgres::ProcessName;
use crate::database::{DatabaseError, DatabaseFailure, Dialect, Query};
use crate::ledger::Database;
use crate::ledger::delivery_locks::{lock_users, message_of_lock};
use crate::lock::{Holder, LockName};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::DirEntry;
use std::path::Path;
use std::time::Duration;
use std::{io, iter};

/// A holder of a lock, or a waiter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LockEntry {
    /// The lock, as the server names it: a PostgreSQL key, a MySQL name, a file.
    pub lock: String,
    /// The Message-ID that gives the lock its name, if the ledger knows it.
    pub name: Option<String>,
    /// Whether this process waits for the lock; otherwise it holds the lock.
    pub waits: bool,
    /// `delivery 4bXyz` with Postfix's queue id, or the name that another program gives itself.
    pub application: Option<String>,
    /// The process that holds the lock, or waits for it.
    #[serde(flatten)]
    pub process: Holder,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Listing {
    /// Ordered by lock, the holder before the waiters.
    #[serde(rename = "locks")]
    pub entries: Vec<LockEntry>,
}

/// Lists the locks of this site, or `only` one. `directory` is that of an embedded site.
pub fn list(
    database: &mut dyn Database,
    directory: Option<&Path>,
    only: Option<&LockName>,
) -> Result<Listing, DatabaseError> {
    let mut entries = match database.dialect() {
        Dialect::Postgresql => from_postgres(database, only)?,
        Dialect::Mysql | Dialect::Mariadb | Dialect::Sqlite => by_name(database, directory, only)?,
    };
    entries.sort_by(|a, b| (&a.lock, a.waits, b.process.held_for).cmp(&(&b.lock, b.waits, a.process.held_for)));
    Ok(Listing { entries })
}

fn from_postgres(database: &mut dyn Database, only: Option<&LockName>) -> Result<Vec<LockEntry>, DatabaseError> {
    let restriction = only.map(|name| format!(" WHERE key = {}", name.postgres_key())).unwrap_or_default();
    // A key of type bigint has its halves in classid and objid, with objsubid 1 (PostgreSQL manual, `pg_locks`). A transaction
    // that holds its lock has done nothing but request it, so `xact_start` is the time of the request.
    let sql = format!(
        "SELECT key, NOT granted, pid, NULLIF(application_name, ''), host(client_addr), \
         extract(epoch FROM clock_timestamp() - CASE WHEN granted THEN xact_start ELSE waitstart END) \
         FROM (SELECT (classid::bigint << 32) | objid::bigint AS key, granted, pid, waitstart FROM pg_locks \
               WHERE locktype = 'advisory' AND objsubid = 1 \
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) locks \
         LEFT JOIN pg_stat_activity USING (pid){restriction}"
    );
    type Row = (i64, bool, Option<u64>, Option<String>, Option<String>, Option<Duration>);
    let rows = database.query::<Row>("reading the server's list of locks", &sql, &[])?;
    let entry = |(key, waits, session, program, address, held_for): Row| {
        let [mut low, mut high] = [[0; 32], [u8::MAX; 32]];
        for digest in [&mut low, &mut high] {
            digest[..8].copy_from_slice(&key.to_be_bytes());
        }
        let name = message_of_lock(database, &low, &high)?;
        let known = program.as_deref().and_then(ProcessName::from_application_name);
        let is_delivery = known.as_ref().is_some_and(|known| name.is_some() || known.queue_id.is_some());
        let queue_id = known.as_ref().and_then(|known| known.queue_id.clone());
        let application = if is_delivery { Some(delivery(queue_id.as_deref())) } else { program };
        let (host, pid) = known.map(|known| (known.host, known.pid)).unzip();
        let process = Holder { host: host.or(address), pid, queue_id, session, held_for };
        Ok(LockEntry { lock: key.to_string(), name, waits, application, process })
    };
    rows.into_iter().map(entry).collect()
}

/// A session in the process list of MySQL or MariaDB.
struct ListedSession {
    account: String,
    host: String,
    /// Whether it waits in GET_LOCK.
    waits: bool,
}

fn by_name(
    database: &mut dyn Database,
    directory: Option<&Path>,
    only: Option<&LockName>,
) -> Result<Vec<LockEntry>, DatabaseError> {
    let is_file = database.dialect() == Dialect::Sqlite;
    // The process list is read before the ledger, so that a session that ends in between is not mistaken for a waiter.
    let sessions = if is_file { BTreeMap::new() } else { sessions(database)? };
    let users = lock_users(database, only)?;
    let mut locks: BTreeSet<LockName> = users.iter().map(|user| user.lock).chain(only.copied()).collect();
    if let (Some(directory), None) = (directory, only) {
        let unreadable = |error: io::Error| {
            DatabaseError::new(DatabaseFailure::Local, "looking which locks are held", error.to_string())
        };
        locks.extend(locks_of_files(directory).map_err(unreadable)?);
    }
    let mut entries = Vec::new();
    for lock in locks {
        let Some(holder) = database.holder(&lock)? else { continue };
        let name = message_of_lock(database, lock.digest(), lock.digest())?;
        let session = |process: &Holder| process.session.and_then(|id| sessions.get(&id));
        let holds = |user: &&Holder| match holder.session {
            Some(session) => user.session == Some(session),
            None => holder.pid.is_some() && user.pid == holder.pid,
        };
        let of_lock = users.iter().filter(|user| user.lock == lock).map(|user| &user.process);
        let (holding, others): (Vec<_>, Vec<_>) = of_lock.partition(holds);
        let waiting = others.into_iter().filter(|user| session(user).is_some_and(|session| session.waits));
        let first = (*holding.first().unwrap_or(&&holder), !holding.is_empty(), false);
        let all = iter::once(first).chain(waiting.map(|user| (user, true, true)));
        entries.extend(all.map(|(process, is_delivery, waits)| {
            let (account, host) = session(process).map(|listed| (listed.account.clone(), listed.host.clone())).unzip();
            LockEntry {
                lock: if is_file { hex::encode(lock.digest()) } else { lock.mysql_name() },
                name: name.clone(),
                waits,
                application: if is_delivery { Some(delivery(process.queue_id.as_deref())) } else { account },
                process: Holder { host: process.host.clone().or(host), ..process.clone() },
            }
        }));
    }
    Ok(entries)
}

fn sessions(database: &mut dyn Database) -> Result<BTreeMap<u64, ListedSession>, DatabaseError> {
    // The port follows the last colon.
    let sql = "SELECT id, user, LEFT(host, CHAR_LENGTH(host) - LOCATE(':', REVERSE(host))), COALESCE(state, '') = 'User lock' \
               FROM information_schema.processlist";
    let rows: Vec<(u64, String, String, bool)> = database.query("reading the server's list of sessions", sql, &[])?;
    Ok(rows.into_iter().map(|(id, account, host, waits)| (id, ListedSession { account, host, waits })).collect())
}

/// The locks whose files an embedded site has, held or not.
fn locks_of_files(directory: &Path) -> io::Result<Vec<LockName>> {
    let files = match std::fs::read_dir(directory.join("locks")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        files => files?,
    };
    let lock = |file: DirEntry| lock_of_file(&file.file_name().to_string_lossy());
    files.filter_map(|file| file.map(lock).transpose()).collect()
}

/// The lock that gives a file its name.
fn lock_of_file(name: &str) -> Option<LockName> {
    Some(LockName::from_digest(hex::decode(name)?.try_into().ok()?)).filter(|lock| hex::encode(lock.digest()) == name)
}

/// [`LockEntry::application`] of a delivery.
fn delivery(queue_id: Option<&str>) -> String {
    queue_id.map_or_else(|| "delivery".into(), |queue_id| format!("delivery {queue_id}"))
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
