//! Who has asked for locks, and what locks are named after: the programs of `lock exec`, which have a table, and deliveries, by
//! their attempts.

use super::{Database, columns, time_span};
use crate::database::{DatabaseError, DatabaseFailure, Dialect, Row, Value};
use crate::lock::LockName;
use std::path::Path;
use std::time::Duration;

/// How far back an attempt may have begun that still holds its lock: longer than any delivery's deadline.
const RECENT: Duration = Duration::from_hours(2);
/// How many programs, and how many deliveries, are read at most.
const MOST: usize = 1000;

/// What a lock is named after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockPurpose {
    /// A message's lock: its Message-ID.
    Message(String),
    /// The lock of `lock exec`: the name that it was given.
    Program(String),
}

/// A process that has asked for a lock, and may have ended since.
#[derive(Clone, Debug)]
pub(crate) struct LockUser {
    pub(crate) lock: LockName,
    pub(crate) purpose: LockPurpose,
    pub(crate) host: String,
    pub(crate) pid: Option<u32>,
    /// Postfix's queue id.
    pub(crate) queue_id: Option<String>,
    pub(crate) session: Option<u64>,
    /// How long ago it asked, by the database's clock.
    pub(crate) age: Option<Duration>,
}

/// Programs, and deliveries that have begun lately and not ended.
pub(crate) fn lock_users(database: &mut dyn Database, only: Option<&LockName>) -> Result<Vec<LockUser>, DatabaseError> {
    let dialect = database.dialect();
    let digest = dialect.hex("a.lock_digest");
    let age = |moment| format!("{} - {}", dialect.microseconds(dialect.now()), dialect.microseconds(moment));
    let restriction = if only.is_some() { " AND a.lock_digest = ?" } else { "" };
    let wanted = only.map(|name| Value::Bytes(name.digest()));
    let programs = format!(
        "SELECT {digest}, a.name, a.host, a.pid, NULL, a.session, {} FROM programs a WHERE 1 = 1{restriction} LIMIT {MOST}",
        age("a.asked_at")
    );
    let programs = of_programs(database, &programs, wanted.as_slice())?;
    let (recent, mut values) =
        time_span::attempts_since(dialect, time_span::now(database)? - time_span::microseconds(RECENT));
    values.extend(wanted);
    let attempts = format!(
        "SELECT {digest}, a.message_id, a.host, a.pid, a.queue_id, a.session, {} FROM attempts a \
         WHERE {recent} AND a.ended_at IS NULL{restriction} LIMIT {MOST}",
        age("a.started_at")
    );
    let attempts = database.select("reading who asks for locks", &attempts, &values)?;
    let programs = programs.iter().map(|row| lock_user(row, LockPurpose::Program));
    programs.chain(attempts.iter().map(|row| lock_user(row, LockPurpose::Message))).collect()
}

fn lock_user(row: &Row, purpose: fn(String) -> LockPurpose) -> Result<LockUser, DatabaseError> {
    Ok(LockUser {
        lock: LockName::from_digest(row.digest(0)?),
        purpose: purpose(columns::owned(row, 1)?),
        host: columns::owned(row, 2)?,
        pid: row.value(3)?,
        queue_id: columns::optional(row, 4),
        session: row.value(5)?,
        // Negative if a clock was set back.
        age: row.value::<i64>(6)?.and_then(|age| u64::try_from(age).ok()).map(Duration::from_micros),
    })
}

/// What the lock is named after whose digest is between these two: a digest may be known in part only.
pub(crate) fn lock_purpose(
    database: &mut dyn Database,
    low: &[u8; 32],
    high: &[u8; 32],
) -> Result<Option<LockPurpose>, DatabaseError> {
    let values = [Value::Bytes(low), Value::Bytes(high)];
    let between = "WHERE lock_digest BETWEEN ? AND ? LIMIT 1";
    let first = |rows: &[Row]| rows.first().and_then(|row| columns::optional(row, 0));
    if let Some(name) = first(&of_programs(database, &format!("SELECT name FROM programs {between}"), &values)?) {
        return Ok(Some(LockPurpose::Program(name)));
    }
    for table in ["attempts", "messages"] {
        let sql = format!("SELECT message_id FROM {table} {between}");
        if let Some(message_id) = first(&database.select("reading what a lock is named after", &sql, &values)?) {
            return Ok(Some(LockPurpose::Message(message_id)));
        }
    }
    Ok(None)
}

/// Rows of the table of programs; none for a role that may not read it, as that of deliveries may not.
fn of_programs(database: &mut dyn Database, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, DatabaseError> {
    match database.select("reading what programs run", sql, values) {
        Err(error) if error.failure == DatabaseFailure::AccessDenied => Ok(Vec::new()),
        read => read,
    }
}

/// The statement with which an administrator gives us the right to read the table of programs; `None` if we have it.
pub(crate) fn missing_grant(database: &mut dyn Database) -> Result<Option<String>, DatabaseError> {
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
    Ok(Some(format!("GRANT SELECT ON {};", rows.first().and_then(|row| row.text(0)).unwrap_or_default())))
}

/// Records that this process asks for a lock, and deletes the rows of processes of this host that have ended.
pub(crate) fn write_down_program(
    database: &mut dyn Database,
    lock: &LockName,
    host: &str,
    name: &str,
) -> Result<(), DatabaseError> {
    let (digest, host_value) = (Value::Bytes(lock.digest()), Value::Text(host));
    let doing = "writing down which program asks for the lock";
    let others = "SELECT pid FROM programs WHERE lock_digest = ? AND host = ?";
    for row in database.select(doing, others, &[digest, host_value])? {
        let pid: u32 = columns::number(&row, 0)?;
        // Our process id may have been another process's.
        if pid == std::process::id() || !Path::new(&format!("/proc/{pid}")).exists() {
            take_out_program(database, lock, host, pid)?;
        }
    }
    let dialect = database.dialect();
    let session = match dialect {
        Dialect::Postgresql => "pg_backend_pid()",
        Dialect::Mysql | Dialect::Mariadb => "CONNECTION_ID()",
        Dialect::Sqlite => "NULL",
    };
    let insert = format!(
        "INSERT INTO programs (lock_digest, host, pid, name, session, asked_at) VALUES (?, ?, ?, ?, {session}, {})",
        dialect.now()
    );
    let values = [digest, host_value, Value::Integer(std::process::id().into()), Value::Text(name)];
    database.change(doing, &insert, &values).map(drop)
}

/// The row that this process has written, to be written anew.
pub(crate) struct WrittenDown {
    lock: LockName,
    host: String,
    name: String,
    session: Option<i64>,
    asked_at: i64,
}

impl WrittenDown {
    /// What [`write_down_program`] wrote.
    pub(crate) fn read(
        database: &mut dyn Database,
        lock: &LockName,
        host: &str,
        name: &str,
    ) -> Result<Self, DatabaseError> {
        let doing = "reading which program asks for the lock";
        let asked_at = database.dialect().microseconds("asked_at");
        let sql = format!("SELECT session, {asked_at} FROM programs WHERE lock_digest = ? AND host = ? AND pid = ?");
        let values = [Value::Bytes(lock.digest()), Value::Text(host), Value::Integer(std::process::id().into())];
        let rows = database.select(doing, &sql, &values)?;
        let row = rows.first().ok_or_else(|| DatabaseError::other(doing, "the row has been deleted"))?;
        Ok(Self {
            lock: *lock,
            host: host.to_owned(),
            name: name.to_owned(),
            session: row.value(0)?,
            asked_at: columns::number(row, 1)?,
        })
    }

    /// Commits it once more, as it was: not an update that changes nothing, of which MySQL would tell nobody.
    pub(crate) fn commit_again(&self, database: &mut dyn Database) -> Result<(), DatabaseError> {
        let (digest, host) = (Value::Bytes(self.lock.digest()), Value::Text(&self.host));
        let pid = Value::Integer(std::process::id().into());
        let session = self.session.map_or(Value::Null, Value::Integer);
        let delete = "DELETE FROM programs WHERE lock_digest = ? AND host = ? AND pid = ?";
        let insert = "INSERT INTO programs (lock_digest, host, pid, name, session, asked_at) VALUES (?, ?, ?, ?, ?, ?)";
        let inserted = [digest, host, pid, Value::Text(&self.name), session, Value::Moment(self.asked_at)];
        let changes: [(&str, &[Value<'_>]); 2] = [(delete, &[digest, host, pid]), (insert, &inserted)];
        database.change_together("committing that the lock is held", &changes)
    }
}

/// Deletes the row of a process of this host that asked for a lock.
pub(crate) fn take_out_program(
    database: &mut dyn Database,
    lock: &LockName,
    host: &str,
    pid: u32,
) -> Result<(), DatabaseError> {
    let values = [Value::Bytes(lock.digest()), Value::Text(host), Value::Integer(pid.into())];
    let delete = "DELETE FROM programs WHERE lock_digest = ? AND host = ? AND pid = ?";
    database.change("taking out which program asked for the lock", delete, &values).map(drop)
}
