//! A lock held for as long as a program runs: taken, asked after every second, and let go, by a thread of its own, since
//! a server that does not answer would block whoever asks it.
//!
//! The order of things is what keeps two programs apart even where a machine is merely cut off. The server frees the lock
//! when it has heard nothing for [`silence`]; before that, whoever holds it has missed an answer, sent SIGTERM, waited for
//! the grace and sent SIGKILL. What remains is a machine whose clock stands still (suspended, or a stopped process): it
//! learns of its loss when it goes on.

use super::{Acquired, LockName};
use crate::database::{Database, DatabaseError, Dialect, Tables, Value};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};

/// Between two questions whether the lock is still ours.
pub(super) const PERIOD: Duration = Duration::from_secs(1);
/// For how long the server may leave such a question unanswered.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// What killing a program may take.
const MARGIN: Duration = Duration::from_secs(5);
/// The longest single wait on the server. A PostgreSQL statement that waits has a snapshot, which holds back VACUUM, and a
/// server waits on for a client that is gone; so a long wait is many short ones.
const SLICE: Duration = Duration::from_secs(10);

/// After how long a silence the server frees the lock, where a program may take `grace` to end.
pub(super) fn silence(grace: Duration) -> Duration {
    PERIOD + PATIENCE + grace + MARGIN
}

/// Which lock, for what, and how long to wait for it.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Its name, as people call it.
    pub name: String,
    /// Its name, as the server does.
    pub lock: LockName,
    /// How long to wait for it; zero: not at all.
    pub wait: Duration,
    /// This host's name, for others to read.
    pub host: String,
}

/// What the thread has to say.
#[derive(Debug)]
pub(super) enum Report {
    /// What came of asking for it. Nothing follows, unless it is held.
    Asked(Result<Acquired, DatabaseError>),
    /// It was still ours after this moment.
    Still(Instant),
    /// It is not ours any more. Nothing follows.
    Lost(String),
    /// It was ours to the end, and was let go. Nothing follows.
    LetGo,
}

/// Takes the lock, and holds it until `done` says something or is dropped.
pub(super) fn hold(
    database: &mut dyn Database,
    wish: &Wish,
    grace: Duration,
    done: &Receiver<()>,
    report: impl Fn(Report),
) {
    let taken = take(database, wish).and_then(|acquired| {
        if matches!(acquired, Acquired::Held) {
            info!(name = wish.name, lock = wish.lock.mysql_name(), "the lock is held");
            database.keep(silence(grace))?;
        }
        Ok(acquired)
    });
    let held = matches!(taken, Ok(Acquired::Held));
    match &taken {
        Ok(Acquired::Held) => {}
        Ok(_) => forget(database, wish),
        // What is in the way is told once, by the report; most likely it is in the way of this, too.
        Err(_) => drop(forget_process(database, wish, ours())),
    }
    report(Report::Asked(taken));
    if !held {
        return;
    }
    loop {
        let over = !matches!(done.recv_timeout(PERIOD), Err(RecvTimeoutError::Timeout));
        let asked = Instant::now();
        match database.still_held(&wish.lock) {
            Ok(true) if over => break,
            Ok(true) => {
                debug!(took_ms = asked.elapsed().as_millis(), "the lock is still held");
                report(Report::Still(asked));
            }
            Ok(false) => return report(Report::Lost("the server says that it is not ours any more".into())),
            Err(error) => return report(Report::Lost(error.to_string())),
        }
    }
    // That the lock was ours to the end is known by now; the server frees it with the connection at the latest.
    if let Err(error) = database.release(&wish.lock) {
        warn!(%error, "the lock was not let go; the server frees it with the connection");
    }
    forget(database, wish);
    report(Report::LetGo);
}

fn take(database: &mut dyn Database, wish: &Wish) -> Result<Acquired, DatabaseError> {
    let began = Instant::now();
    note(database, wish)?;
    loop {
        let left = wish.wait.saturating_sub(began.elapsed());
        match database.acquire(&wish.lock, left.min(SLICE))? {
            Acquired::Busy(holder) if !left.is_zero() => info!(name = wish.name, ?holder, "waiting for the lock"),
            settled => return Ok(settled),
        }
    }
}

/// Writes down who asks, for `lock list`, and takes out what processes of this host left behind that are no more.
fn note(database: &mut dyn Database, wish: &Wish) -> Result<(), DatabaseError> {
    let doing = "writing down which program asks for the lock";
    let (digest, host) = (Value::Bytes(wish.lock.digest()), Value::Text(&wish.host));
    let others = "SELECT pid FROM programs WHERE lock_digest = ? AND host = ?";
    for row in database.select(doing, others, &[digest, host])? {
        let gone = row.value::<i64>(0)?.filter(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        if let Some(pid) = gone {
            forget_process(database, wish, pid)?;
        }
    }
    // Our own number may have been somebody else's.
    forget_process(database, wish, ours())?;
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
    database.change(doing, &insert, &[digest, host, Value::Integer(ours()), Value::Text(&wish.name)]).map(|_| ())
}

/// A row that stays says nothing: the server is asked who holds the lock.
fn forget(database: &mut dyn Database, wish: &Wish) {
    if let Err(error) = forget_process(database, wish, ours()) {
        warn!(%error, "the program stays in the table `programs`; the next one of its name takes it out");
    }
}

fn forget_process<T: Tables + ?Sized>(database: &mut T, wish: &Wish, pid: i64) -> Result<(), DatabaseError> {
    let values = [Value::Bytes(wish.lock.digest()), Value::Text(&wish.host), Value::Integer(pid)];
    let delete = "DELETE FROM programs WHERE lock_digest = ? AND host = ? AND pid = ?";
    database.change("taking out which program asked for the lock", delete, &values).map(|_| ())
}

fn ours() -> i64 {
    i64::from(std::process::id())
}
