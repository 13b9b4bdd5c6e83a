//! SQLite and file locks under one directory: the database of `--embedded`.
//!
//! `DIR/ledger.sqlite` is the ledger, in WAL mode, `DIR/locks/` holds a file per lock that is held right now. Nothing
//! has to be set up: the first delivery makes the directory, the database and its tables, and so may ten at once.
//!
//! What a commit promises here is what the disk keeps of an fsync: `synchronous=FULL`, so that it survives a power loss
//! on a file system and a disk that do not lie. One machine only: WAL needs shared memory, and does not work over a
//! network file system (<https://sqlite.org/wal.html>).

mod tables;

use super::{Client, DatabaseError, DatabaseFailure, Finding, Inspect, State};
use crate::deadline::Deadline;
use crate::embedded::create_directory;
use crate::lock::{Acquired, FileLocks, Holder, Holders, LockName, NamedLock};
use crate::schema::{Application, Applied, Migration, Schema};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The database, under the directory.
const LEDGER: &str = "ledger.sqlite";
/// The lock files, under the directory.
const LOCKS: &str = "locks";
/// Between two tries of something that SQLite found busy without asking its busy handler.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a statement may take once the lock is kept for as long as a program runs: less than `lock exec` gives it to let go.
const ONCE_KEPT: Duration = Duration::from_secs(5);
/// File systems that more than one machine may have mounted.
const SHARED_FILE_SYSTEMS: [&str; 11] =
    ["nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "fuse.sshfs", "fuse.glusterfs", "gfs2", "ocfs2"];

const MIGRATIONS: &[Migration] = &[
    Migration { number: 1, name: "ledger", sql: include_str!("../../sql/sqlite/0001_ledger.sql"), optional: false },
    Migration {
        number: 2,
        name: "operation",
        sql: include_str!("../../sql/sqlite/0002_operation.sql"),
        optional: false,
    },
    Migration { number: 3, name: "programs", sql: include_str!("../../sql/sqlite/0003_programs.sql"), optional: false },
];

/// The ledger and the locks of one directory.
#[derive(Debug)]
pub struct SqliteDatabase {
    connection: Connection,
    locks: FileLocks,
    directory: PathBuf,
    deadline: Deadline,
    /// Whether the lock is [kept](NamedLock::keep), and the deadline lies behind us by the time that it is let go.
    kept: bool,
}

impl SqliteDatabase {
    /// Opens the database under `directory`; makes both where they are missing, and brings the schema up to date. No
    /// wait of this value's, here or later, passes `deadline`. `client` is what others read as the holder of a lock.
    ///
    /// # Errors
    /// [`DatabaseError`]; [`DatabaseFailure::Local`] where the directory or a file of it cannot be made or read.
    pub fn open(directory: &Path, client: &Client, deadline: Deadline) -> Result<Self, DatabaseError> {
        let doing = || format!("opening the embedded database in {}", directory.display());
        let local = |e: io::Error| DatabaseError::new(DatabaseFailure::Local, doing(), e.to_string());
        // The directory is on the disk before the ledger's file is made; whoever finds the file need not sync it again.
        let fresh = !directory.join(LEDGER).try_exists().map_err(local)?;
        if fresh {
            create_directory(directory).map_err(local)?;
        }
        // An absolute path: a later change of directory does not matter, and SQLite never takes one for a `file:` URI.
        let directory = directory.canonicalize().map_err(local)?;
        // The locks' directory need not outlive a power loss: nobody holds a lock then.
        match DirBuilder::new().mode(0o700).create(directory.join(LOCKS)) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(local(e)),
        }
        let path = directory.join(LEDGER);
        if fresh {
            // SQLite would leave the mode to the umask; its other files take after this one. Never opened if it is there:
            // closing any descriptor of it would drop the POSIX locks of another connection in this process.
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(local(e)),
            }
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&path, flags).map_err(|e| error(&doing(), &e))?;
        let locks = FileLocks::new(directory.join(LOCKS), client.clone(), deadline);
        let mut database = Self { connection, locks, directory, deadline, kept: false };
        database.configure()?;
        database.bring_up_to_date()?;
        Ok(database)
    }

    /// What holds for this connection alone; nothing here writes.
    fn configure(&mut self) -> Result<(), DatabaseError> {
        self.patiently("setting up the connection to SQLite", |connection| {
            // FULL: every commit is on the disk before it returns. NORMAL would lose the last ones in a power loss.
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.pragma_update(None, "foreign_keys", true)
        })
    }

    /// Switches to WAL and applies what is missing of the schema, if anything is: nearly always it is one SELECT.
    fn bring_up_to_date(&mut self) -> Result<(), DatabaseError> {
        if self.is_up_to_date()? {
            return Ok(());
        }
        self.lock_schema()?;
        let done = self.migrate();
        let unlocked = self.unlock_schema();
        done.and(unlocked)
    }

    fn is_up_to_date(&mut self) -> Result<bool, DatabaseError> {
        let applied = self.applied()?;
        for migration in MIGRATIONS {
            match applied.iter().find(|applied| applied.number == migration.number) {
                None => return Ok(false),
                Some(applied) if applied.checksum != migration.checksum() => {
                    return Err(DatabaseError::new(
                        DatabaseFailure::Schema,
                        "looking at the schema of the embedded database",
                        format!("migration {} was applied with another text than this release has", migration.number),
                    ));
                }
                Some(_) => {}
            }
        }
        Ok(true)
    }

    /// Called under the schema's lock.
    fn migrate(&mut self) -> Result<(), DatabaseError> {
        // Another may have done it while we waited for the lock.
        let applied = self.applied()?;
        for migration in MIGRATIONS.iter().filter(|known| applied.iter().all(|a| a.number != known.number)) {
            self.apply(migration)?;
        }
        Ok(())
    }

    /// Runs `work`, and again as long as SQLite says that another connection is in the way and time is left. So `work`
    /// must be one transaction, or change nothing: what failed has been rolled back.
    ///
    /// The busy handler does the waiting nearly always. SQLite does not ask it where waiting could be a deadlock
    /// (<https://sqlite.org/c3ref/busy_handler.html>), and says SQLITE_BUSY at once.
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
                return Err(DatabaseError::new(DatabaseFailure::TimedOut, doing, busy));
            }
            // SQLite takes milliseconds as an int, and rusqlite panics beyond it.
            let timeout = left.min(Duration::from_secs(3600));
            let result = self.connection.busy_timeout(timeout).and_then(|()| work(&mut self.connection));
            match result {
                Ok(value) => return Ok(value),
                Err(e) if is_busy(&e) => {
                    busy = e.to_string();
                    std::thread::sleep(PAUSE.min(deadline.remaining()));
                }
                Err(e) => return Err(error(doing, &e)),
            }
        }
    }

    /// [`Self::patiently`], in a transaction that takes SQLite's write lock at its beginning: one that read first and
    /// wrote later would fail with SQLITE_BUSY_SNAPSHOT if another wrote in between.
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

    /// The directory that all of it lies in, as an absolute path.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn schema_lock() -> LockName {
        LockName::new("maildrop schema", b"migrations")
    }

    /// A setting of the connection, as text.
    fn pragma(&mut self, name: &str) -> Result<String, DatabaseError> {
        self.patiently("reading a setting of SQLite", |connection| {
            connection.pragma_query_value(None, name, |row| {
                Ok(match row.get_ref(0)? {
                    rusqlite::types::ValueRef::Integer(number) => number.to_string(),
                    other => other.as_str().unwrap_or("?").to_owned(),
                })
            })
        })
    }
}

impl NamedLock for SqliteDatabase {
    fn acquire(&mut self, name: &LockName, wait: Duration) -> Result<Acquired, DatabaseError> {
        self.locks.acquire(name, wait)
    }

    fn still_held(&mut self, name: &LockName) -> Result<bool, DatabaseError> {
        self.locks.still_held(name)
    }

    /// A lock in a file dies with its process: there is nobody to tell. But what is said from now on is not a delivery's.
    fn keep(&mut self, _silence: Duration) -> Result<(), DatabaseError> {
        self.kept = true;
        Ok(())
    }

    fn release(&mut self, name: &LockName) -> Result<(), DatabaseError> {
        self.locks.release(name)
    }
}

impl Holders for SqliteDatabase {
    fn holder(&mut self, name: &LockName) -> Result<Option<Holder>, DatabaseError> {
        self.locks.holder(name)
    }
}

impl Schema for SqliteDatabase {
    fn known(&self) -> &'static [Migration] {
        MIGRATIONS
    }

    fn applied(&mut self) -> Result<Vec<Applied>, DatabaseError> {
        self.patiently("reading which migrations the embedded database has", |connection| {
            let there = connection
                .query_row("SELECT 1 FROM sqlite_schema WHERE name = 'maildrop_migrations'", [], |_| Ok(()))
                .optional()?;
            if there.is_none() {
                return Ok(Vec::new());
            }
            connection
                .prepare("SELECT number, name, checksum FROM maildrop_migrations ORDER BY number")?
                .query_map([], |row| Ok(Applied { number: row.get(0)?, name: row.get(1)?, checksum: row.get(2)? }))?
                .collect()
        })
    }

    /// Also switches the database to WAL, which outlives the connection: it happens once, with the first migration.
    fn lock_schema(&mut self) -> Result<(), DatabaseError> {
        const DOING: &str = "taking the lock under which the embedded database's schema is changed";
        if let Acquired::Busy(holder) = self.locks.acquire(&Self::schema_lock(), self.deadline.remaining())? {
            return Err(DatabaseError::new(DatabaseFailure::TimedOut, DOING, format!("it is held by {holder:?}")));
        }
        let mode = self.patiently("switching the embedded database to WAL", |connection| {
            connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0))
        })?;
        // SQLite answers with the mode that it stays in where it cannot do WAL.
        if !mode.eq_ignore_ascii_case("wal") {
            return Err(DatabaseError::new(
                DatabaseFailure::Local,
                "switching the embedded database to WAL",
                format!("it stays in mode {mode}: the file system has no shared memory?"),
            ));
        }
        self.writing("making the table of migrations", |transaction| {
            transaction.execute_batch(
                "CREATE TABLE IF NOT EXISTS maildrop_migrations (
                     number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL
                 ) STRICT",
            )
        })
    }

    fn apply(&mut self, migration: &Migration) -> Result<Application, DatabaseError> {
        let doing = format!("applying migration {} ({})", migration.number, migration.name);
        self.writing(&doing, |transaction| {
            transaction.execute_batch(migration.sql)?;
            transaction.execute(
                "INSERT INTO maildrop_migrations (number, name, checksum, applied_at) VALUES (?, ?, ?, ?)",
                params![migration.number, migration.name, migration.checksum(), now()],
            )
        })?;
        Ok(Application::Done)
    }

    fn unlock_schema(&mut self) -> Result<(), DatabaseError> {
        self.locks.release(&Self::schema_lock())
    }
}

impl Inspect for SqliteDatabase {
    /// There is no server.
    fn round_trips(&self) -> u32 {
        0
    }

    fn describe(&mut self) -> Result<String, DatabaseError> {
        Ok(format!("SQLite {}", rusqlite::version()))
    }

    /// Any address has a mailbox here, so none is special.
    fn any_address(&mut self) -> Result<Option<String>, DatabaseError> {
        Ok(None)
    }

    fn inspect(&mut self) -> Result<Vec<Finding>, DatabaseError> {
        let journal_mode = self.pragma("journal_mode")?;
        let synchronous = self.pragma("synchronous")?;
        let good_if = |good: bool| if good { State::Good } else { State::Bad };
        Ok(vec![
            Finding {
                what: "journal_mode".into(),
                state: good_if(journal_mode == "wal"),
                found: journal_mode,
                mend: Some("PRAGMA journal_mode=WAL".into()),
            },
            Finding {
                what: "synchronous".into(),
                // 2 is FULL, 3 is EXTRA (https://sqlite.org/pragma.html#pragma_synchronous).
                state: good_if(matches!(synchronous.as_str(), "2" | "3")),
                found: synchronous,
                mend: None,
            },
            self.inspect_mode()?,
            self.inspect_file_system(),
            self.inspect_lock()?,
        ]
        .into_iter()
        .map(|finding| if finding.state == State::Good { Finding { mend: None, ..finding } } else { finding })
        .collect())
    }
}

impl SqliteDatabase {
    /// Whether others can read the mail.
    fn inspect_mode(&self) -> Result<Finding, DatabaseError> {
        let mode = fs::metadata(&self.directory)
            .map_err(|e| DatabaseError::new(DatabaseFailure::Local, "looking at the directory", e.to_string()))?
            .mode()
            & 0o7777;
        Ok(Finding {
            what: format!("mode of {}", self.directory.display()),
            state: if mode & 0o077 == 0 { State::Good } else { State::Warning },
            found: format!("{mode:04o}"),
            mend: Some(format!("chmod 0700 {}", self.directory.display())),
        })
    }

    /// Whether another machine could have the same directory mounted: neither WAL nor flock would know of it.
    fn inspect_file_system(&self) -> Finding {
        let kind = fs::read_to_string("/proc/self/mountinfo").ok().and_then(|m| file_system(&m, &self.directory));
        Finding {
            what: "file system".into(),
            state: match kind.as_deref() {
                None => State::Warning,
                Some(kind) if SHARED_FILE_SYSTEMS.contains(&kind) => State::Bad,
                Some(_) => State::Good,
            },
            found: kind.unwrap_or_else(|| "not to be found out".into()),
            mend: Some("a directory on a disk of this machine".into()),
        }
    }

    /// Whether the lock excludes: taken once, a second try must find it busy.
    fn inspect_lock(&self) -> Result<Finding, DatabaseError> {
        let client = Client { host: "check".into(), pid: std::process::id(), queue_id: None };
        let name = LockName::new("maildrop check", std::process::id().to_string().as_bytes());
        let locks = || FileLocks::new(self.directory.join(LOCKS), client.clone(), self.deadline);
        let (mut one, mut two) = (locks(), locks());
        let first = one.acquire(&name, Duration::ZERO)?;
        let second = two.acquire(&name, Duration::ZERO)?;
        let excludes = matches!((&first, &second), (Acquired::Held, Acquired::Busy(_)));
        Ok(Finding {
            what: "file lock".into(),
            state: if excludes { State::Good } else { State::Bad },
            found: if excludes { "excludes" } else { "does not exclude" }.into(),
            mend: Some("a file system with flock(2)".into()),
        })
    }
}

/// The kind of file system that `path` lies on, by the text of /proc/self/mountinfo (proc_pid_mountinfo(5)).
fn file_system(mountinfo: &str, path: &Path) -> Option<String> {
    let mut best: Option<(usize, &str)> = None;
    for line in mountinfo.lines() {
        let (left, right) = line.split_once(" - ")?;
        let mount_point = left.split(' ').nth(4)?.replace("\\040", " ");
        let kind = right.split(' ').next()?;
        // The longest mount point counts, and of two on the same one the later.
        if path.starts_with(&mount_point) && best.is_none_or(|(length, _)| mount_point.len() >= length) {
            best = Some((mount_point.len(), kind));
        }
    }
    best.map(|(_, kind)| kind.to_owned())
}

/// Microseconds since 1970 by this machine's clock, which is the database's. (SQLite's own functions stop at
/// milliseconds.)
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        // FileLockingProtocolFailed: SQLite gave up on a race for the WAL after some ten seconds of tries.
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed)
    )
}

/// What SQLite said, as ours.
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
    use rusqlite::ffi;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /home rw shared:1 - nfs4 server:/home rw
31 30 0:41 / /home/my\\040mail rw - tmpfs none rw
";

    #[test]
    fn the_longest_mount_point_names_the_file_system() {
        let kind = |path| file_system(MOUNTS, Path::new(path));
        assert_eq!(kind("/var/mail").as_deref(), Some("ext4"));
        assert_eq!(kind("/home/lisa/mail").as_deref(), Some("nfs4"));
        assert_eq!(kind("/home/my mail/x").as_deref(), Some("tmpfs"));
        assert_eq!(kind("/homes").as_deref(), Some("ext4"));
    }
    fn database(directory: &Path, deadline: Duration) -> SqliteDatabase {
        let client = Client { host: "mx1.example".into(), pid: 1, queue_id: None };
        SqliteDatabase::open(directory, &client, Deadline::after(deadline)).unwrap()
    }

    fn busy<T>() -> rusqlite::Result<T> {
        Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), None))
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
    fn what_stays_busy_is_given_up_at_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let mut database = database(directory.path(), Duration::from_secs(120));
        database.deadline = Deadline::after(Duration::from_secs(1));
        let error = database.patiently("testing", |_| busy::<()>()).unwrap_err();
        assert_eq!(error.failure, DatabaseFailure::TimedOut);
        assert!(error.detail.contains("locked"), "{error}");
    }

    /// Another process in a long write: the wait ends at our deadline, not after SQLite's own idea of one.
    #[test]
    fn a_write_lock_held_elsewhere_is_waited_for_until_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let mut ours = database(directory.path(), Duration::from_secs(120));
        let other = Connection::open(directory.path().join(LEDGER)).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let begun = std::time::Instant::now();
        ours.deadline = Deadline::after(Duration::from_secs(1));
        let error = ours.writing("testing", |_| Ok(())).unwrap_err();
        assert_eq!(error.failure, DatabaseFailure::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    }
}
