//! SQLite and file locks under one directory: the database of `--embedded`.
//!
//! `DIR/ledger.sqlite` is the ledger, in WAL mode; `DIR/locks/` has a file for each lock that is held now. No setup is
//! needed: the first delivery creates the directory, the database and its tables, and several deliveries may do so at once.
//!
//! A commit survives a power loss (`synchronous=FULL`) if the file system and the disk keep what they have synced. One
//! machine only: WAL needs shared memory, and does not work over a network file system (<https://sqlite.org/wal.html>).

pub(crate) mod file_locks;
mod tables;

use super::{Client, DatabaseError, DatabaseFailure, Sealed, Session};
use crate::base::deadline::Deadline;
use crate::base::files::create_directory;
use file_locks::FileLocks;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The database, under the directory.
const LEDGER: &str = "ledger.sqlite";
/// The lock files, under the directory.
pub(crate) const LOCKS: &str = "locks";
/// How long a change of little value waits for another connection.
const SHORT_LOCK_WAIT: Duration = Duration::from_millis(100);
/// The pause after an SQLITE_BUSY for which SQLite did not call the busy handler.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a statement may take while a lock is [kept](SqliteDatabase::kept): less than the time that `lock exec` has to
/// release the lock.
const ONCE_KEPT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct SqliteDatabase {
    connection: Connection,
    pub(crate) locks: FileLocks,
    pub(crate) deadline: Deadline,
    /// Whether an error came during this delivery, so that the session is not reused.
    doubtful: bool,
    /// Whether the lock may be held past the deadline: `lock exec` holds it for a program, and not for a delivery.
    pub(crate) kept: bool,
}

impl Session for SqliteDatabase {
    /// There is no server.
    fn round_trips(&self) -> u32 {
        0
    }

    fn begin(&mut self, client: &Client, deadline: Deadline, _: Sealed) -> Result<(), DatabaseError> {
        self.deadline = deadline;
        self.locks.begin(client.clone(), deadline);
        Ok(())
    }

    fn end(&mut self, _: Sealed) -> Result<(), DatabaseError> {
        let left = |what| Err(DatabaseError::other("ending a delivery's use of the session", what));
        if self.doubtful {
            return left("an error came in its conversation");
        }
        if !self.connection.is_autocommit() {
            return left("a transaction is still open");
        }
        if self.kept || self.locks.holds_any() {
            return left("a lock is still held");
        }
        Ok(())
    }
}

impl SqliteDatabase {
    /// Opens the database under `directory`, and creates both if they are missing.
    /// [`crate::ledger::schema::open_embedded`] migrates the schema. No wait of this session passes `deadline`.
    /// `client` is shown to other processes as the holder of a lock.
    ///
    /// # Errors
    /// If the directory or a file of it cannot be created or read, or if another process blocks it until the deadline.
    pub fn open(directory: &Path, client: &Client, deadline: Deadline) -> Result<Self, DatabaseError> {
        let doing = || format!("opening the embedded database in {}", directory.display());
        let local = |e: io::Error| DatabaseError::new(DatabaseFailure::Local, doing(), e.to_string());
        // The directory is synced before the ledger's file is created. So if the file exists, the directory has been synced.
        let fresh = !directory.join(LEDGER).try_exists().map_err(local)?;
        if fresh {
            create_directory(directory).map_err(local)?;
        }
        // An absolute path, so that a later change of directory does not matter, and SQLite never takes the path for a
        // `file:` URI.
        let directory = directory.canonicalize().map_err(local)?;
        // The locks' directory need not survive a power loss: no lock does.
        match DirBuilder::new().mode(0o700).create(directory.join(LOCKS)) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(local(e)),
        }
        let path = directory.join(LEDGER);
        if fresh {
            // SQLite would leave the mode to the umask, and its other files copy the mode of this one. An existing file is
            // never opened here: closing it would drop the POSIX locks of another connection in this process (fcntl(2)).
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(local(e)),
            }
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&path, flags).map_err(|e| error(&doing(), &e))?;
        let locks = FileLocks::new(directory.join(LOCKS), client.clone(), deadline);
        let mut database = Self { connection, locks, deadline, doubtful: false, kept: false };
        database.configure()?;
        Ok(database)
    }

    /// Settings of this connection; none of them writes.
    fn configure(&mut self) -> Result<(), DatabaseError> {
        self.patiently("setting up the connection to SQLite", |connection| {
            // FULL: each commit is on the disk before it returns. With NORMAL a power loss would lose the last commits.
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.pragma_update(None, "foreign_keys", true)
        })
    }

    /// Runs `work`, and repeats it while another connection blocks it and time is left. So `work` must be one
    /// transaction, or change nothing.
    ///
    /// Nearly always the busy handler does the waiting. If waiting could be a deadlock, SQLite does not call it and returns
    /// SQLITE_BUSY at once (<https://sqlite.org/c3ref/busy_handler.html>).
    pub(crate) fn patiently<T>(
        &mut self,
        doing: &str,
        mut work: impl FnMut(&mut Connection) -> rusqlite::Result<T>,
    ) -> Result<T, DatabaseError> {
        let mut busy = String::from("the deadline has passed");
        let deadline = if self.kept { Deadline::after(ONCE_KEPT) } else { self.deadline };
        loop {
            let left = deadline.remaining();
            if left.is_zero() {
                self.doubtful = true;
                return Err(DatabaseError::new(DatabaseFailure::TimedOut, doing, busy));
            }
            // SQLite's parameter is an int of milliseconds, and rusqlite panics if the time exceeds that.
            let timeout = left.min(Duration::from_secs(3600));
            let result = self.connection.busy_timeout(timeout).and_then(|()| work(&mut self.connection));
            match result {
                Ok(value) => return Ok(value),
                Err(e) if is_busy(&e) => {
                    busy = e.to_string();
                    std::thread::sleep(PAUSE.min(deadline.remaining()));
                }
                Err(e) => {
                    self.doubtful = true;
                    return Err(error(doing, &e));
                }
            }
        }
    }

    /// [`Self::patiently`], in a transaction that takes SQLite's write lock at its beginning. A transaction that read
    /// first and wrote later would fail with SQLITE_BUSY_SNAPSHOT if another one wrote in between.
    pub(crate) fn writing<T>(
        &mut self,
        doing: &str,
        mut work: impl FnMut(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, DatabaseError> {
        self.patiently(doing, |connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let value = work(&transaction)?;
            transaction.commit()?;
            Ok(value)
        })
    }
}

impl SqliteDatabase {
    /// Changes rows of little value, all or none: it waits for another connection only for a moment.
    pub(crate) fn change_briefly(&mut self, doing: &str, statements: &[String]) -> Result<(), DatabaseError> {
        let deadline = self.deadline;
        self.deadline = Deadline::after(SHORT_LOCK_WAIT.min(deadline.remaining() / 2));
        let changed = self.writing(doing, |transaction| {
            statements.iter().try_for_each(|statement| transaction.execute(statement, []).map(drop))
        });
        self.deadline = deadline;
        changed
    }
}

/// Microseconds since 1970 by this machine's clock, which is the database's. (SQLite's own functions stop at
/// milliseconds.)
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        // FileLockingProtocolFailed: SQLite lost races for the WAL for some ten seconds, and a retry may succeed.
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed)
    )
}

fn error(doing: &str, error: &rusqlite::Error) -> DatabaseError {
    let failure = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => DatabaseFailure::Contention,
        Some(ErrorCode::ReadOnly) => DatabaseFailure::ReadOnly,
        Some(
            ErrorCode::CannotOpen | ErrorCode::DiskFull | ErrorCode::SystemIoFailure | ErrorCode::PermissionDenied,
        ) => DatabaseFailure::Local,
        Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch) => DatabaseFailure::Refused,
        _ => DatabaseFailure::Other,
    };
    DatabaseError::new(failure, doing, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::Query;
    use rusqlite::ffi;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn database(directory: &Path, deadline: Duration) -> SqliteDatabase {
        let client = Client { host: "mx1.example".into(), pid: 1, queue_id: None };
        SqliteDatabase::open(directory, &client, Deadline::after(deadline)).unwrap()
    }

    /// Settings of the connection.
    fn settings(database: &mut SqliteDatabase) -> [String; 2] {
        ["PRAGMA synchronous", "PRAGMA foreign_keys"]
            .map(|setting| database.query_first("asking", setting, &[]).unwrap().unwrap())
    }

    fn busy<T>() -> rusqlite::Result<T> {
        Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), None))
    }

    /// <https://www.sqlite.org/rescode.html>
    #[test]
    fn a_result_code_says_what_it_is_about_and_whether_to_wait() {
        use DatabaseFailure::{Contention, Local, Other, ReadOnly, Refused};
        let codes: [(&[i32], DatabaseFailure); 5] = [
            (&[ffi::SQLITE_BUSY, ffi::SQLITE_LOCKED], Contention),
            (&[ffi::SQLITE_READONLY], ReadOnly),
            (&[ffi::SQLITE_CANTOPEN, ffi::SQLITE_FULL, ffi::SQLITE_IOERR, ffi::SQLITE_PERM], Local),
            (&[ffi::SQLITE_CONSTRAINT, ffi::SQLITE_TOOBIG, ffi::SQLITE_MISMATCH], Refused),
            (&[ffi::SQLITE_CORRUPT, ffi::SQLITE_PROTOCOL, ffi::SQLITE_NOMEM], Other),
        ];
        for (code, failure) in codes.into_iter().flat_map(|(codes, it)| codes.iter().map(move |code| (*code, it))) {
            let shown = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(error("asking", &shown).failure, failure, "{code}");
            assert_eq!(is_busy(&shown), failure == Contention || code == ffi::SQLITE_PROTOCOL, "{code}");
        }
    }

    #[test]
    fn what_is_made_is_ours_alone_and_holds_what_it_was_reported_to() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("not/there");
        let mut database = database(&directory, Duration::from_mins(2));
        let mode = std::fs::metadata(directory.join(LEDGER)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // With FULL, each commit is on the disk before it returns.
        assert_eq!(settings(&mut database), ["2", "1"]);
        assert_eq!(database.round_trips(), 0);
    }

    #[test]
    fn what_is_busy_is_tried_again_and_nothing_else_is() {
        let directory = tempfile::tempdir().unwrap();
        let mut database = database(directory.path(), Duration::from_secs(120));
        let mut tries = 0;
        let result = database.writing("testing", |_| {
            tries += 1;
            if tries < 3 { busy() } else { Ok(tries) }
        });
        assert_eq!(result.unwrap(), 3);
        let error = database.writing("testing", |t| t.execute("nonsense", [])).unwrap_err();
        assert_eq!(error.failure, DatabaseFailure::Other);
    }

    #[test]
    fn a_session_may_serve_another_delivery_where_nothing_is_left_of_this_one() {
        use crate::database::Idle;
        let directory = tempfile::tempdir().unwrap();
        let open = || Box::new(database(directory.path(), Duration::from_hours(1)));
        let mut fine = open();
        assert_eq!(fine.round_trips(), 0);
        assert_eq!(settings(&mut fine), ["2", "1"]);
        let next = Client { host: "mx2.example".into(), pid: 2, queue_id: None };
        let mut next = Idle::after(fine).unwrap().begin(&next, Deadline::after(Duration::ZERO)).ok().unwrap();
        assert!(next.patiently("asking", |_| Ok(())).is_err(), "this delivery has its own deadline");
        assert!(Idle::after(next).is_none(), "an error came");
        let mut locked = open();
        assert!(matches!(locked.locks.acquire("a", Duration::ZERO), Ok(file_locks::FileLockResult::Held)));
        assert!(Idle::after(locked).is_none());
        let mut kept = open();
        kept.kept = true;
        assert!(Idle::after(kept).is_none());
        let unfinished = open();
        unfinished.connection.execute_batch("BEGIN").unwrap();
        assert!(Idle::after(unfinished).is_none());
    }

    #[test]
    fn the_clock_counts_microseconds_since_1970() {
        // 2020, and 2100.
        assert!((1_577_836_800_000_000..4_102_444_800_000_000).contains(&now()));
    }

    #[test]
    fn what_is_made_is_for_its_owner_alone_and_may_be_there_already() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let _open = database(directory.path(), Duration::from_hours(1));
            let mode = |name| fs::metadata(directory.path().join(name)).unwrap().permissions().mode() & 0o7777;
            assert_eq!([mode(LEDGER), mode(LOCKS)], [0o600, 0o700]);
        }
    }

    #[test]
    fn each_error_of_sqlite_has_the_meaning_that_a_delivery_goes_by() {
        use DatabaseFailure::{Contention, Local, Other, ReadOnly, Refused};
        for (code, means) in [
            (ffi::SQLITE_BUSY, Contention),
            (ffi::SQLITE_LOCKED, Contention),
            (ffi::SQLITE_READONLY, ReadOnly),
            (ffi::SQLITE_CANTOPEN, Local),
            (ffi::SQLITE_FULL, Local),
            (ffi::SQLITE_IOERR, Local),
            (ffi::SQLITE_PERM, Local),
            (ffi::SQLITE_CONSTRAINT, Refused),
            (ffi::SQLITE_TOOBIG, Refused),
            (ffi::SQLITE_MISMATCH, Refused),
            (ffi::SQLITE_CORRUPT, Other),
        ] {
            let shown = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(error("testing", &shown).failure, means, "{shown}");
        }
    }

    #[test]
    fn what_stays_busy_is_given_up_at_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let mut database = database(directory.path(), Duration::from_secs(120));
        // Repeated if this process was suspended until the deadline: then nothing was tried, and so nothing was busy.
        let (mut tries, mut error) = (0, None);
        while tries == 0 {
            database.deadline = Deadline::after(Duration::from_secs(1));
            let given_up = database.patiently("testing", |_| {
                tries += 1;
                busy::<()>()
            });
            error = given_up.err();
        }
        let error = error.unwrap();
        assert_eq!(error.failure, DatabaseFailure::TimedOut);
        assert!(error.detail.contains("locked"), "{error}");
    }

    /// Another process in a long write: the wait ends at our deadline, not at a limit of SQLite's own.
    #[test]
    fn a_write_lock_held_elsewhere_is_waited_for_until_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let mut ours = database(directory.path(), Duration::from_mins(10));
        let other = Connection::open(directory.path().join(LEDGER)).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let begun = std::time::Instant::now();
        ours.deadline = Deadline::after(Duration::from_secs(1));
        let error = ours.writing("testing", |_| Ok(())).unwrap_err();
        assert_eq!(error.failure, DatabaseFailure::TimedOut);
        // The deadline that it was opened with is ten minutes, and the longest wait that SQLite is given an hour.
        assert!(begun.elapsed() < Duration::from_mins(1), "{:?}", begun.elapsed());
    }
}
