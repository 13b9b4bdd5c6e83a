//! The locks on PostgreSQL: `pg_locks` and `pg_stat_activity`, which every role may read. For another role's sessions, times and
//! addresses are visible only with `pg_read_all_stats`, which grants-operator.sql grants.

use crate::database::postgres::ProcessName;
use crate::database::{DatabaseError, Query};
use crate::ledger::Database;
use crate::ledger::lock_exec_holders::message_of_lock;
use crate::lock::LockName;
use crate::operations::locks::{Listing, LockEntry, application};
use std::time::Duration;

pub fn list(database: &mut dyn Database, only: Option<&LockName>) -> Result<Listing, DatabaseError> {
    let doing = "reading the server's list of locks";
    let restriction = only.map(|name| format!(" WHERE key = {}", name.postgres_key())).unwrap_or_default();
    // A key of type bigint has its halves in classid and objid, with objsubid 1 (PostgreSQL manual, `pg_locks`). A transaction
    // that holds its lock has done nothing but request it, so `xact_start` is the time of the request.
    let sql = format!(
        "SELECT key, NOT granted, pid, NULLIF(application_name, ''), host(client_addr), \
         extract(epoch FROM clock_timestamp() - CASE WHEN granted THEN xact_start ELSE waitstart END) \
         FROM (SELECT (classid::bigint << 32) | objid::bigint AS key, granted, pid, waitstart FROM pg_locks \
               WHERE locktype = 'advisory' AND objsubid = 1 \
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) locks \
         LEFT JOIN pg_stat_activity USING (pid){restriction} ORDER BY key"
    );
    let mut listing = Listing::default();
    type Row = (i64, bool, Option<u64>, Option<String>, Option<String>, Option<Duration>);
    for (key, waits, session, called, address, age) in database.query::<Row>(doing, &sql, &[])? {
        let lock = key.to_string();
        let name = match listing.entries.last().filter(|last: &&LockEntry| last.lock == lock) {
            Some(last) => last.name.clone(),
            None => message_of_lock(database, &digest(key, 0), &digest(key, u8::MAX))?,
        };
        let process = called.as_deref().and_then(ProcessName::from_application_name);
        let application = match (&process, &name) {
            (Some(ProcessName { queue_id, .. }), name) if name.is_some() || queue_id.is_some() => {
                Some(application(queue_id.as_deref()))
            }
            _ => called,
        };
        let (host, pid) = process.map(|process| (process.host, process.pid)).unzip();
        listing.entries.push(LockEntry { lock, name, waits, host: host.or(address), pid, application, session, age });
    }
    Ok(listing)
}

/// The lowest or the highest digest that gives this key.
fn digest(key: i64, rest: u8) -> [u8; 32] {
    let mut digest = [rest; 32];
    digest[..8].copy_from_slice(&key.to_be_bytes());
    digest
}
