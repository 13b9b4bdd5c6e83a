//! MySQL and MariaDB: `IS_USED_LOCK` says of a name that the ledger knows which session has it, and the process list which
//! sessions wait for a lock. Sessions of another account are in that list for those who have the right PROCESS.
//!
//! Both servers can list locks by themselves, and neither can be relied on: MySQL's `metadata_locks` wants rights on the
//! performance schema, which MariaDB switches off by default, and MariaDB's `metadata_lock_info` is a plugin that is not
//! loaded by default.

use super::{Entry, Hidden, Listing, application};
use crate::base::hex;
use crate::database::{DatabaseError, Value};
use crate::ledger::Database;
use crate::ledger::lock_users::{LockPurpose, LockUser, lock_purpose, lock_users};
use crate::lock::LockName;
use std::collections::{BTreeMap, BTreeSet};

/// What the process list says of a session that waits in GET_LOCK.
const WAITS: &str = "User lock";
/// This many names are asked after at once.
const PAGE: usize = 100;

/// A session of the process list.
struct Session {
    account: String,
    host: String,
    state: String,
}

pub fn list(database: &mut dyn Database, only: Option<&LockName>) -> Result<Listing, DatabaseError> {
    // Before the ledger: who has ended since is then not taken for one who waits.
    let sessions = sessions(database)?;
    let askers = lock_users(database, only)?;
    let mut digests: BTreeSet<[u8; 32]> = askers.iter().map(|asker| asker.digest).collect();
    digests.extend(only.map(|name| *name.digest()));
    let digests: Vec<_> = digests.into_iter().collect();
    let mut listing = Listing::default();
    let mut unseen = false;
    for page in digests.chunks(PAGE) {
        let holders = holders(database, page)?;
        for (digest, holder) in page.iter().zip(holders) {
            let Some(holder) = holder else { continue };
            let of_lock = || askers.iter().filter(|asker| asker.digest == *digest);
            let lock = sql_name(digest);
            let who = of_lock().find(|asker| asker.session == Some(holder));
            let name = match of_lock().next() {
                Some(asker) => Some(asker.purpose.clone()),
                None => lock_purpose(database, digest, digest)?,
            };
            unseen |= who.is_none() && !sessions.contains_key(&holder);
            listing.entries.push(entry(&lock, name.as_ref(), holder, who, sessions.get(&holder), false));
            for asker in of_lock() {
                let Some(id) = asker.session.filter(|session| *session != holder) else { continue };
                match sessions.get(&id) {
                    Some(session) if session.state == WAITS => {
                        listing.entries.push(entry(&lock, name.as_ref(), id, Some(asker), Some(session), true));
                    }
                    Some(_) => {}
                    None => unseen = true,
                }
            }
        }
    }
    if unseen && let Some(grant) = process_grant(database)? {
        listing.hidden.push(Hidden { what: "who waits for a lock under another account", grant });
    }
    Ok(listing)
}

fn entry(
    lock: &str,
    name: Option<&LockPurpose>,
    session: u64,
    asker: Option<&LockUser>,
    listed: Option<&Session>,
    waits: bool,
) -> Entry {
    Entry {
        lock: lock.to_owned(),
        name: name.cloned(),
        waits,
        host: asker.map(|asker| asker.host.clone()).or_else(|| listed.map(|session| session.host.clone())),
        pid: asker.and_then(|asker| asker.pid),
        application: asker
            .map(|asker| application(Some(&asker.purpose), asker.queue_id.as_deref()))
            .or_else(|| listed.map(|session| session.account.clone())),
        session: Some(session),
        age: asker.and_then(|asker| asker.age),
    }
}

/// As [`LockName::mysql_name`].
fn sql_name(digest: &[u8; 32]) -> String {
    format!("maildrop:{}", hex::encode(&digest[..24]))
}

/// Which session holds each.
fn holders(database: &mut dyn Database, digests: &[[u8; 32]]) -> Result<Vec<Option<u64>>, DatabaseError> {
    let names: Vec<String> = digests.iter().map(sql_name).collect();
    let values: Vec<_> = names.iter().map(|name| Value::Text(name)).collect();
    let columns = vec!["IS_USED_LOCK(?)"; names.len()].join(", ");
    let rows = database.select("asking who holds the locks", &format!("SELECT {columns}"), &values)?;
    (0..names.len()).map(|index| rows.first().map_or(Ok(None), |row| row.value(index))).collect()
}

fn sessions(database: &mut dyn Database) -> Result<BTreeMap<u64, Session>, DatabaseError> {
    let sql = "SELECT id, user, host, COALESCE(state, '') FROM information_schema.processlist";
    let rows = database.select("reading the server's list of sessions", sql, &[])?;
    let text = |row: &crate::database::Row, index| row.text(index).unwrap_or_default().to_owned();
    let mut sessions = BTreeMap::new();
    for row in rows {
        let Some(id) = row.value(0)? else { continue };
        let host = text(&row, 2);
        let host = host.rsplit_once(':').map_or(host.as_str(), |(host, _port)| host).to_owned();
        sessions.insert(id, Session { account: text(&row, 1), host, state: text(&row, 3) });
    }
    Ok(sessions)
}

/// What gives us the right to see every session; `None` if we have it.
fn process_grant(database: &mut dyn Database) -> Result<Option<String>, DatabaseError> {
    let sql = "SELECT CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), ''''), \
               (SELECT COUNT(*) FROM information_schema.user_privileges WHERE privilege_type = 'PROCESS' \
                AND grantee = CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), ''''))";
    let rows = database.select("looking at our own rights", sql, &[])?;
    let account = rows.first().filter(|row| row.text(1) == Some("0")).and_then(|row| row.text(0));
    Ok(account.map(|account| format!("GRANT PROCESS ON *.* TO {account};")))
}
