//! A snapshot of the holders of locks and of those who wait for one. It may be outdated when it is read.
//!
//! The server knows the holder of a lock, and the ledger knows the Message-ID that gives the lock its name. PostgreSQL lists all
//! locks of a database. The other engines answer for one name at a time: each that the ledger knows, and the requested one.

mod by_name;
mod postgres;

use crate::database::{DatabaseError, Dialect};
use crate::ledger::Database;
use crate::lock::LockName;
use serde::{Serialize, Serializer};
use std::path::Path;
use std::time::Duration;

/// A holder of a lock, or a waiter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LockEntry {
    /// The lock, as the server names it: a PostgreSQL key, a MySQL name, a file.
    pub lock: String,
    /// The Message-ID that gives the lock its name, if the ledger knows it.
    pub name: Option<String>,
    /// Whether this process waits for the lock; otherwise it holds the lock.
    pub waits: bool,
    pub host: Option<String>,
    pub pid: Option<u32>,
    /// `delivery 4bXyz` with Postfix's queue id, or the name that another program gives itself.
    pub application: Option<String>,
    /// The session on the server.
    pub session: Option<u64>,
    /// How long ago the lock was requested, by the server's clock.
    #[serde(rename = "age_s", serialize_with = "in_seconds")]
    pub age: Option<Duration>,
}

fn in_seconds<S: Serializer>(age: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    age.map(|age| age.as_secs_f64()).serialize(serializer)
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
    let mut listing = match database.dialect() {
        Dialect::Postgresql => postgres::list(database, only)?,
        Dialect::Mysql | Dialect::Mariadb | Dialect::Sqlite => by_name::list(database, directory, only)?,
    };
    listing.entries.sort_by(|a, b| (&a.lock, a.waits, b.age).cmp(&(&b.lock, b.waits, a.age)));
    Ok(listing)
}

/// [`LockEntry::application`] of a delivery.
fn application(queue_id: Option<&str>) -> String {
    queue_id.map_or_else(|| "delivery".into(), |queue_id| format!("delivery {queue_id}"))
}
