//! Who holds a lock, and who waits for one: a glimpse, over by the time that anybody reads it.
//!
//! The server knows who holds a lock, and the ledger knows what its name means: a digest leads to the Message-ID of a
//! delivery's attempt, or to the name under which `lock exec` runs a program. PostgreSQL lists the locks of a database;
//! MySQL and MariaDB answer for one name at a time, so the names come from the ledger there.

mod file;
mod mysql;
mod postgres;

use super::LockName;
use crate::database::{Database, DatabaseError, DatabaseFailure, Dialect, Row, Value};
use std::path::Path;
use std::time::Duration;
use uuid::{NoContext, Timestamp, Uuid};

/// How far back an attempt may have begun that still holds its lock: longer than any delivery's deadline, and an hour for
/// hosts whose clocks differ.
const RECENT: Duration = Duration::from_secs(2 * 3600);
/// More than this many deliveries at once are not looked at.
const MOST: usize = 1000;

/// Whoever holds a lock, or waits for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The lock, as the server names it: a PostgreSQL key, a MySQL name, a file.
    pub lock: String,
    /// What its name means, where the ledger tells.
    pub name: Option<Name>,
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
    pub age: Option<Duration>,
}

/// What a lock is named after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// A message's lock: its Message-ID.
    Message(String),
    /// The lock of `lock exec`.
    Program(String),
}

/// What could not be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// What is missing.
    pub what: &'static str,
    /// The statement that an administrator runs to have it shown.
    pub grant: String,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Lock by lock, the holder before those who wait.
    pub entries: Vec<Entry>,
    /// What our rights hide from us.
    pub hidden: Vec<Hidden>,
}

/// Lists who holds a lock of this site, and who waits; or of one lock alone. `directory` is that of an embedded site.
///
/// # Errors
/// [`DatabaseError`]
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
    listing.hidden.extend(hidden_programs(database)?);
    listing.entries.sort_by(|a, b| (&a.lock, a.waits, b.age).cmp(&(&b.lock, b.waits, a.age)));
    Ok(listing)
}

/// What the table of programs has; nothing for those who may not read it, as a delivery may not.
fn of_programs(database: &mut dyn Database, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, DatabaseError> {
    match database.select("reading what programs run", sql, values) {
        Err(error) if error.failure == DatabaseFailure::AccessDenied => Ok(Vec::new()),
        read => read,
    }
}

/// What gives us the right to read it; `None` if we have it.
fn hidden_programs(database: &mut dyn Database) -> Result<Option<Hidden>, DatabaseError> {
    match database.select("reading what programs run", "SELECT 1 FROM programs WHERE 1 = 0", &[]) {
        Err(error) if error.failure == DatabaseFailure::AccessDenied => {}
        Err(error) => return Err(error),
        Ok(_) => return Ok(None),
    }
    let sql = match database.dialect() {
        Dialect::Postgresql => "SELECT 'programs TO ' || quote_ident(current_user)",
        _ => "SELECT CONCAT('`', DATABASE(), '`.programs TO ''', REPLACE(CURRENT_USER(), '@', '''@'''), '''')",
    };
    let rows = database.select("looking at our own rights", sql, &[])?;
    let on = rows.first().and_then(|row| row.text(0)).unwrap_or_default();
    Ok(Some(Hidden { what: "which programs `lock exec` runs", grant: format!("GRANT SELECT ON {on};") }))
}

/// A process that the ledger knows to have asked for a lock.
#[derive(Clone, Debug)]
struct Asker {
    digest: [u8; 32],
    name: Name,
    host: String,
    pid: Option<u32>,
    queue_id: Option<String>,
    session: Option<u64>,
    age: Option<Duration>,
}

impl Asker {
    fn application(&self) -> String {
        match (&self.name, &self.queue_id) {
            (Name::Program(_), _) => "lock exec".into(),
            (Name::Message(_), Some(queue_id)) => format!("delivery {queue_id}"),
            (Name::Message(_), None) => "delivery".into(),
        }
    }
}

/// Programs, and deliveries that have begun lately and not ended. They asked for their lock, and may be gone since.
fn askers(database: &mut dyn Database, only: Option<&LockName>) -> Result<Vec<Asker>, DatabaseError> {
    let doing = "reading who asks for locks";
    let dialect = database.dialect();
    let (digest, now) = (dialect.hex("lock_digest"), dialect.microseconds(dialect.now()));
    let age = |moment| format!("{now} - {}", dialect.microseconds(moment));
    let (restriction, wanted) = match only {
        Some(name) => (" AND lock_digest = ?", Some(Value::Bytes(name.digest()))),
        None => ("", None),
    };
    let mut askers = Vec::new();
    let programs = format!(
        "SELECT {digest}, name, host, pid, NULL, session, {} FROM programs WHERE 1 = 1{restriction} LIMIT {MOST}",
        age("asked_at")
    );
    let values: Vec<_> = wanted.into_iter().collect();
    for row in of_programs(database, &programs, &values)? {
        askers.push(asker(&row, Name::Program)?);
    }
    let attempts = format!(
        "SELECT {digest}, message_id, host, pid, queue_id, session, {} FROM attempts \
         WHERE attempt >= ? AND ended_at IS NULL AND started_at > ?{restriction} LIMIT {MOST}",
        age("started_at")
    );
    let begun = time::OffsetDateTime::now_utc() - RECENT;
    let (seconds, microseconds) = (begun.unix_timestamp(), begun.unix_timestamp_nanos() / 1000);
    let earliest = Uuid::new_v7(Timestamp::from_unix(NoContext, u64::try_from(seconds).unwrap_or(0), 0));
    let mut values = vec![Value::Uuid(earliest), Value::Moment(i64::try_from(microseconds).unwrap_or(0))];
    values.extend(wanted);
    for row in database.select(doing, &attempts, &values)? {
        askers.push(asker(&row, Name::Message)?);
    }
    Ok(askers)
}

fn asker(row: &Row, name: impl Fn(String) -> Name) -> Result<Asker, DatabaseError> {
    let text = |index| row.text(index).unwrap_or_default().to_owned();
    Ok(Asker {
        digest: row.digest(0)?,
        name: name(text(1)),
        host: text(2),
        pid: row.value(3)?,
        queue_id: row.text(4).map(str::to_owned),
        session: row.value(5)?,
        // Negative if a clock was set back.
        age: row.value::<i64>(6)?.and_then(|age| u64::try_from(age).ok()).map(Duration::from_micros),
    })
}

/// What the digests between these two mean: a name, of which a digest may have been cut.
fn meaning(database: &mut dyn Database, low: &[u8; 32], high: &[u8; 32]) -> Result<Option<Name>, DatabaseError> {
    let doing = "reading what a lock is named after";
    let values = [Value::Bytes(low), Value::Bytes(high)];
    let places = "WHERE lock_digest BETWEEN ? AND ? LIMIT 1";
    let first = |rows: &[Row]| rows.first().and_then(|row| row.text(0)).map(str::to_owned);
    if let Some(name) = first(&of_programs(database, &format!("SELECT name FROM programs {places}"), &values)?) {
        return Ok(Some(Name::Program(name)));
    }
    let mut ask = |what: &str| -> Result<Option<String>, DatabaseError> {
        Ok(first(&database.select(doing, &format!("SELECT {what} {places}"), &values)?))
    };
    if let Some(message_id) = ask("message_id FROM attempts")? {
        return Ok(Some(Name::Message(message_id)));
    }
    Ok(ask("message_id FROM messages")?.map(Name::Message))
}
