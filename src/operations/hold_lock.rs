//! Holds a lock for as long as a program runs: taken, asked after every second, and let go, by a thread of its own, since
//! a server that does not answer would block whoever asks it.
//!
//! The order of things is what keeps two programs apart even where a machine is merely cut off. The server frees the lock
//! when it has heard nothing for [`silence`]; before that, whoever holds it has missed an answer, sent SIGTERM, waited for
//! the grace and sent SIGKILL. What remains is a machine whose clock stands still (suspended, or a stopped process): it
//! learns of its loss when it goes on.

use crate::database::DatabaseError;
use crate::delivery::bare_message_id;
use crate::ledger::Database;
use crate::ledger::lock_users::{take_out_program, write_down_program};
use crate::lock::{Acquired, LockName, OF_PROGRAMS};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};

/// Between two questions whether the lock is still ours.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);
/// For how long the server may leave such a question unanswered.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// What killing a program may take.
const MARGIN: Duration = Duration::from_secs(5);
/// The longest single wait on the server. A PostgreSQL statement that waits has a snapshot, which holds back VACUUM, and a
/// server waits on for a client that is gone; so a long wait is many short ones.
const SLICE: Duration = Duration::from_secs(10);

/// After how long a silence the server frees the lock, where a program may take `grace` to end.
pub(crate) fn silence(grace: Duration) -> Duration {
    PERIOD + PATIENCE + grace + MARGIN
}

/// The lock of a program that `lock exec` runs. It has a namespace that no configuration can choose for messages, so that a
/// program and a delivery never meet. In SQL: `maildrop_lock_key(NAME, 'maildrop exec')`, which reads a name as it reads a
/// Message-ID, and so do we: white space and angle brackets around it do not count.
#[must_use]
pub(crate) fn lock_of_program(namespace: &str, name: &str) -> LockName {
    LockName::new(&format!("{namespace}{OF_PROGRAMS}"), bare_message_id(name.as_bytes()))
}

/// Which lock is asked for, and how long to wait for it.
#[derive(Clone, Debug)]
pub(crate) struct LockRequest {
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
pub(crate) enum Report {
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
pub(crate) fn hold(
    database: &mut dyn Database,
    request: &LockRequest,
    grace: Duration,
    done: &Receiver<()>,
    report: impl Fn(Report),
) {
    let taken = take(database, request).and_then(|acquired| {
        if matches!(acquired, Acquired::Held) {
            info!(name = request.name, lock = request.lock.mysql_name(), "the lock is held");
            database.keep(silence(grace))?;
        }
        Ok(acquired)
    });
    let held = matches!(taken, Ok(Acquired::Held));
    match &taken {
        Ok(Acquired::Held) => {}
        Ok(_) => forget(database, request),
        // What is in the way is told once, by the report; most likely it is in the way of this, too.
        Err(_) => drop(take_out_program(database, &request.lock, &request.host, std::process::id())),
    }
    report(Report::Asked(taken));
    if !held {
        return;
    }
    loop {
        let over = !matches!(done.recv_timeout(PERIOD), Err(RecvTimeoutError::Timeout));
        let asked = Instant::now();
        match database.still_held(&request.lock) {
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
    if let Err(error) = database.release(&request.lock) {
        warn!(%error, "the lock was not let go; the server frees it with the connection");
    }
    forget(database, request);
    report(Report::LetGo);
}

fn take(database: &mut dyn Database, request: &LockRequest) -> Result<Acquired, DatabaseError> {
    let began = Instant::now();
    // For `lock list`.
    write_down_program(database, &request.lock, &request.host, &request.name)?;
    loop {
        let left = request.wait.saturating_sub(began.elapsed());
        match database.acquire(&request.lock, left.min(SLICE))? {
            Acquired::Busy(holder) if !left.is_zero() => info!(name = request.name, ?holder, "waiting for the lock"),
            settled => return Ok(settled),
        }
    }
}

/// A row that stays says nothing: the server is asked who holds the lock.
fn forget(database: &mut dyn Database, request: &LockRequest) {
    if let Err(error) = take_out_program(database, &request.lock, &request.host, std::process::id()) {
        warn!(%error, "the program stays in the table `programs`; the next one of its name takes it out");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::database::{Client, SqliteDatabase, Tables, Value};
    use crate::lock::NamedLock;
    use std::path::Path;
    use std::sync::mpsc;

    fn open(directory: &Path) -> SqliteDatabase {
        let client = Client { host: "mx1".into(), pid: std::process::id(), queue_id: None };
        crate::schema::open_embedded(directory, &client, Deadline::after(Duration::from_mins(2))).unwrap()
    }

    /// SQL is the other way to take such a lock: `SELECT maildrop_lock_key('<nightly>', 'x exec')` gives this key.
    #[test]
    fn a_programs_lock_is_the_one_that_the_sql_functions_name() {
        let lock = lock_of_program("x", "nightly");
        assert_eq!(lock, LockName::new("x exec", b"nightly"));
        for same in ["<nightly>", " nightly\n", "<nightly> "] {
            assert_eq!(lock_of_program("x", same), lock, "{same:?}");
        }
        assert_ne!(lock_of_program("x", "grüße"), lock_of_program("x", "größe"));
    }

    fn request(wait: Duration) -> LockRequest {
        LockRequest { name: "nightly".into(), lock: lock_of_program("x", "nightly"), wait, host: "mx1".into() }
    }

    /// Who is written down, by process and name.
    fn programs(database: &mut SqliteDatabase) -> Vec<(i64, String)> {
        let rows = database.select("reading", "SELECT pid, name FROM programs ORDER BY pid", &[]).unwrap();
        rows.iter().map(|row| (row.value(0).unwrap().unwrap(), row.text(1).unwrap().to_owned())).collect()
    }

    #[test]
    fn the_server_waits_until_the_program_must_be_dead() {
        for grace in [Duration::ZERO, Duration::from_secs(100)] {
            let dead = PERIOD + PATIENCE + grace;
            assert!(silence(grace) > dead && silence(grace) < dead + Duration::from_mins(1));
        }
    }

    #[test]
    fn the_lock_is_held_until_the_program_is_done_however_often_that_is_asked() {
        let directory = tempfile::tempdir().unwrap();
        let mut other = open(directory.path());
        // Of a process that is no more, and of one that runs.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let request = request(Duration::ZERO);
        for (pid, name) in [(i64::from(child.id()), "gone"), (1, "another")] {
            let insert = "INSERT INTO programs (lock_digest, host, pid, name, asked_at) VALUES (?, 'mx1', ?, ?, 0)";
            let values = [Value::Bytes(request.lock.digest()), Value::Integer(pid), Value::Text(name)];
            other.change("writing", insert, &values).unwrap();
        }
        let another = (1, String::from("another"));
        let (done, wait) = mpsc::channel();
        let (send, reports) = mpsc::channel();
        std::thread::scope(|scope| {
            let request = &request;
            let place = directory.path();
            scope.spawn(move || {
                hold(&mut open(place), request, Duration::ZERO, &wait, |report| drop(send.send(report)));
            });
            assert!(matches!(reports.recv().unwrap(), Report::Asked(Ok(Acquired::Held))));
            let ours = (i64::from(std::process::id()), String::from("nightly"));
            assert_eq!(programs(&mut other), [another.clone(), ours]);
            // Each comes a period after the one before.
            for _ in 0..2 {
                assert!(matches!(reports.recv().unwrap(), Report::Still(_)));
            }
            assert!(matches!(other.acquire(&request.lock, Duration::ZERO).unwrap(), Acquired::Busy(_)));
            drop(done);
            // One more question may have been on its way.
            let last = reports.iter().find(|report| !matches!(report, Report::Still(_)));
            assert!(matches!(last, Some(Report::LetGo)), "{last:?}");
        });
        assert_eq!(programs(&mut other), [another]);
        assert!(matches!(other.acquire(&request.lock, Duration::ZERO).unwrap(), Acquired::Held));
    }

    #[test]
    fn whoever_does_not_get_the_lock_is_not_left_written_down() {
        let directory = tempfile::tempdir().unwrap();
        let (mut other, request) = (open(directory.path()), request(Duration::ZERO));
        assert!(matches!(other.acquire(&request.lock, Duration::ZERO).unwrap(), Acquired::Held));
        let (_done, wait) = mpsc::channel();
        let (send, reports) = mpsc::channel();
        hold(&mut open(directory.path()), &request, Duration::ZERO, &wait, |report| drop(send.send(report)));
        assert!(matches!(reports.recv().unwrap(), Report::Asked(Ok(Acquired::Busy(_)))));
        assert!(reports.try_recv().is_err() && programs(&mut other).is_empty());
    }
}
