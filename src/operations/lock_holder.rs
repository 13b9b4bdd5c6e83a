//! Holds a lock while a program runs: takes it, checks every second that it is still held, and releases it. This runs in a thread
//! of its own, since a server that does not answer would block the caller.
//!
//! Two programs never run at once, even if a machine is cut off: the server frees the lock after [`silence`]. Before that, the
//! holder has missed an answer, sent SIGTERM, waited for the grace and sent SIGKILL. The exception is a suspended machine, or a
//! stopped process: it learns of the loss only when it resumes.
//!
//! A former primary, left behind at a fail-over, may report for ever that the lock is held, while the new primary grants it to
//! another. If the commits of the former primary wait for another server, it cannot commit. So a second connection commits each
//! second.

use crate::base::deadline::Deadline;
use crate::database::{DatabaseError, Dialect};
use crate::delivery::bare_message_id;
use crate::ledger::delivery_locks::commit_a_change;
use crate::ledger::{self, Database};
use crate::lock::{Acquired, LockName, OF_PROGRAMS};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};

/// How often the server is asked whether the lock is still held.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);
/// The time limit of that query.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// The time limit for connecting, in addition to the wait for the lock.
pub(crate) const CONNECTING: Duration = Duration::from_secs(30);
/// How long killing a program may take.
const MARGIN: Duration = Duration::from_secs(5);
/// The longest single wait on the server; a long wait consists of several. A waiting statement has a snapshot on PostgreSQL,
/// which holds back VACUUM. A server also continues to wait for a client that is gone.
const SLICE: Duration = Duration::from_secs(10);

/// The time without a query after which the server frees the lock. A program may take `grace` to end.
fn silence(grace: Duration) -> Duration {
    PERIOD + PATIENCE + grace + MARGIN
}

/// The lock of a program that `lock exec` runs. No configuration can choose this namespace for messages, so a program and a
/// delivery never share a lock. SQL has `maildrop_lock_key(NAME, 'maildrop exec')` for the same lock. White space and angle
/// brackets around a name are ignored, as around a Message-ID.
pub(crate) fn lock_of_program(namespace: &str, name: &str) -> LockName {
    LockName::new(&format!("{namespace}{OF_PROGRAMS}"), bare_message_id(name.as_bytes()))
}

/// The thread's reports. Only `Asked(Ok(Held))` and `Still` are followed by further reports.
#[derive(Debug)]
pub(crate) enum HolderReport {
    Asked(Result<Acquired, DatabaseError>),
    /// The lock was still held at this moment, or later.
    Still(Instant),
    /// The lock is lost, for this reason.
    Lost(String),
    /// The lock was held to the end, and is released.
    Released,
}

/// The connection that holds a lock, and another one to the same server, which commits meanwhile: on PostgreSQL the lock's own
/// connection is in the lock's transaction. A lock in a file needs no commit.
struct LockConnections {
    holder: Box<dyn Database>,
    other: Option<Box<dyn Database>>,
}

impl LockConnections {
    /// Takes the lock, or returns who has it.
    fn take(
        open: impl Fn(Deadline) -> Result<Box<dyn Database>, DatabaseError>,
        lock: &LockName,
        (wait, grace): (Duration, Duration),
    ) -> Result<(Acquired, Self), DatabaseError> {
        let mut holder = open(Deadline::after(wait.saturating_add(CONNECTING)))?;
        // This query precedes the lock's transaction, which must have no snapshot.
        let is_file = holder.dialect() == Dialect::Sqlite;
        let server = if is_file { String::new() } else { ledger::server(holder.as_mut())? };
        let acquired = take(holder.as_mut(), lock, wait)?;
        let mut taken = Self { holder, other: None };
        if matches!(acquired, Acquired::Held) {
            taken.holder.keep(silence(grace))?;
            if !is_file {
                let mut other = open(Deadline::after(CONNECTING))?;
                let another = ledger::server(other.as_mut())?;
                if server != another {
                    let detail = format!("two connections lead to two servers: {server}; {another}");
                    return Err(DatabaseError::other("committing that the lock is held", detail));
                }
                commit_a_change(other.as_mut())?;
                taken.other = Some(other);
            }
        }
        Ok((acquired, taken))
    }

    /// Whether the server commits, and says that the lock is still held.
    fn still_hold(&mut self, lock: &LockName) -> Result<bool, DatabaseError> {
        self.other.as_mut().map_or(Ok(()), |other| commit_a_change(other.as_mut()))?;
        self.holder.still_held(lock)
    }
}

/// Takes the lock, waiting for at most `wait`, and holds it until `done` receives a value or is dropped. `grace` is the time that
/// the program may take to end.
pub(crate) fn hold(
    open: impl Fn(Deadline) -> Result<Box<dyn Database>, DatabaseError>,
    lock: &LockName,
    (wait, grace): (Duration, Duration),
    done: &Receiver<()>,
    report: impl Fn(HolderReport),
) {
    let mut taken = match LockConnections::take(open, lock, (wait, grace)) {
        Ok((Acquired::Held, taken)) => taken,
        other => return report(HolderReport::Asked(other.map(|(acquired, _)| acquired))),
    };
    report(HolderReport::Asked(Ok(Acquired::Held)));
    loop {
        let over = !matches!(done.recv_timeout(PERIOD), Err(RecvTimeoutError::Timeout));
        let asked = Instant::now();
        match taken.still_hold(lock) {
            Ok(true) if over => break,
            Ok(true) => {
                debug!(took_ms = asked.elapsed().as_millis(), "the lock is still held");
                report(HolderReport::Still(asked));
            }
            Ok(false) => return report(HolderReport::Lost("the server says that it is not ours any more".into())),
            Err(error) => return report(HolderReport::Lost(error.to_string())),
        }
    }
    if let Err(error) = taken.holder.release(lock) {
        warn!(%error, "the lock was not let go; the server frees it with the connection");
    }
    report(HolderReport::Released);
}

fn take(database: &mut dyn Database, lock: &LockName, wait: Duration) -> Result<Acquired, DatabaseError> {
    let began = Instant::now();
    loop {
        let left = wait.saturating_sub(began.elapsed());
        match database.acquire(lock, left.min(SLICE))? {
            Acquired::Busy(holder) if !left.is_zero() => info!(?holder, "waiting for the lock"),
            settled => return Ok(settled),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::{Client, SqliteDatabase};
    use crate::lock::NamedLock;
    use std::path::Path;
    use std::sync::mpsc;

    fn open(directory: &Path) -> SqliteDatabase {
        let client = Client { host: "mx1".into(), pid: std::process::id(), queue_id: None };
        crate::ledger::schema::open_embedded(directory, &client, Deadline::after(Duration::from_mins(2))).unwrap()
    }

    /// The SQL functions name the same lock: `SELECT maildrop_lock_key('<nightly>', 'x exec')` gives this key.
    #[test]
    fn a_programs_lock_is_the_one_that_the_sql_functions_name() {
        let lock = lock_of_program("x", "nightly");
        assert_eq!(lock, LockName::new("x exec", b"nightly"));
        for same in ["<nightly>", " nightly\n", "<nightly> "] {
            assert_eq!(lock_of_program("x", same), lock, "{same:?}");
        }
        assert_ne!(lock_of_program("x", "grüße"), lock_of_program("x", "größe"));
    }

    #[test]
    fn the_server_waits_until_the_program_must_be_dead() {
        for grace in [Duration::ZERO, Duration::from_secs(100)] {
            let dead = PERIOD + PATIENCE + grace;
            assert!(silence(grace) > dead && silence(grace) < dead + Duration::from_mins(1));
        }
    }

    #[test]
    fn the_lock_is_held_until_the_program_is_done() {
        let directory = tempfile::tempdir().unwrap();
        let mut other = open(directory.path());
        let lock = lock_of_program("x", "nightly");
        let hold_it = |done: &Receiver<()>, report: &dyn Fn(HolderReport)| {
            let open = |_| Ok::<Box<dyn Database>, _>(Box::new(open(directory.path())));
            hold(open, &lock, (Duration::ZERO, Duration::ZERO), done, report);
        };
        let (done, wait) = mpsc::channel();
        let (send, reports) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || hold_it(&wait, &|report| drop(send.send(report))));
            assert!(matches!(reports.recv().unwrap(), HolderReport::Asked(Ok(Acquired::Held))));
            // The reports are one period apart.
            for _ in 0..2 {
                assert!(matches!(reports.recv().unwrap(), HolderReport::Still(_)));
            }
            assert!(matches!(other.acquire(&lock, Duration::ZERO).unwrap(), Acquired::Busy(_)));
            drop(done);
            // One more report may have been on its way.
            let last = reports.iter().find(|report| !matches!(report, HolderReport::Still(_)));
            assert!(matches!(last, Some(HolderReport::Released)), "{last:?}");
        });
        assert!(matches!(other.acquire(&lock, Duration::ZERO).unwrap(), Acquired::Held));
        let (send, reports) = mpsc::channel();
        hold_it(&mpsc::channel().1, &|report| drop(send.send(report)));
        assert!(matches!(reports.try_recv().unwrap(), HolderReport::Asked(Ok(Acquired::Busy(_)))));
        assert!(reports.try_recv().is_err());
    }
}
