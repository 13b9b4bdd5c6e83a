//! Who holds a lock, and who waits for one: a snapshot, which may be stale by the time that anybody reads it.
//!
//! The server knows who holds a lock, and the ledger knows what its name means: a digest leads to the Message-ID of a
//! delivery's attempt, or to the name under which `lock exec` runs a program. PostgreSQL lists the locks of a database;
//! MySQL and MariaDB answer for one name at a time, so the names come from the ledger there.

mod file;
mod mysql;
mod postgres;

use crate::database::{DatabaseError, Dialect};
use crate::ledger::Database;
use crate::ledger::lock_users::{LockPurpose, missing_grant};
use crate::lock::LockName;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use std::path::Path;
use std::time::Duration;

/// Whoever holds a lock, or waits for one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The lock, as the server names it: a PostgreSQL key, a MySQL name, a file.
    pub lock: String,
    /// What its name means, where the ledger tells.
    #[serde(flatten, serialize_with = "kind_and_name")]
    pub name: Option<LockPurpose>,
    /// Whether this one waits for it.
    pub waits: bool,
    /// The host that it runs on.
    pub host: Option<String>,
    /// Its process there.
    pub pid: Option<u32>,
    /// What it is: `delivery 4bXyz` with Postfix's queue id, `lock exec`, or what another program calls itself.
    pub application: Option<String>,
    /// Its session on the server.
    pub session: Option<u64>,
    /// For how long it has held the lock or waited for it, by the server's clock. Its own waiting counts as holding.
    #[serde(rename = "age_s", serialize_with = "in_seconds")]
    pub age: Option<Duration>,
}

fn kind_and_name<S: Serializer>(purpose: &Option<LockPurpose>, serializer: S) -> Result<S::Ok, S::Error> {
    let (kind, name) = match purpose {
        Some(LockPurpose::Message(name)) => (Some("message"), Some(name)),
        Some(LockPurpose::Program(name)) => (Some("program"), Some(name)),
        None => (None, None),
    };
    let mut map = serializer.serialize_map(Some(2))?;
    map.serialize_entry("kind", &kind)?;
    map.serialize_entry("name", &name)?;
    map.end()
}

fn in_seconds<S: Serializer>(age: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    age.map(|age| age.as_secs_f64()).serialize(serializer)
}

/// What could not be seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hidden {
    /// What is missing.
    pub what: &'static str,
    /// The statement that an administrator runs to have it shown.
    pub grant: String,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Listing {
    /// Lock by lock, the holder before those who wait.
    #[serde(rename = "locks")]
    pub entries: Vec<Entry>,
    /// What our rights hide from us.
    pub hidden: Vec<Hidden>,
}

/// Lists who holds a lock of this site, and who waits; or of one lock alone. `directory` is that of an embedded site.
pub fn list(
    database: &mut dyn Database,
    directory: Option<&Path>,
    only: Option<&LockName>,
) -> Result<Listing, DatabaseError> {
    let mut listing = match (database.dialect(), directory) {
        (Dialect::Postgresql, _) => postgres::list(database, only)?,
        (Dialect::Mysql | Dialect::Mariadb, _) => mysql::list(database, only)?,
        (Dialect::Sqlite, directory) => file::list(database, directory, only)?,
    };
    let grant = missing_grant(database)?;
    listing.hidden.extend(grant.map(|grant| Hidden { what: "which programs `lock exec` runs", grant }));
    listing.entries.sort_by(|a, b| (&a.lock, a.waits, b.age).cmp(&(&b.lock, b.waits, a.age)));
    Ok(listing)
}

/// What a process is, to people: `delivery 4bXyz` with Postfix's queue id, or `lock exec`.
fn application(purpose: Option<&LockPurpose>, queue_id: Option<&str>) -> String {
    match (purpose, queue_id) {
        (Some(LockPurpose::Program(_)), _) => "lock exec".into(),
        (_, Some(queue_id)) => format!("delivery {queue_id}"),
        (_, None) => "delivery".into(),
    }
}
