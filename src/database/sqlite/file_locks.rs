//! The file lock of `--embedded`: flock(2) on one file per name.
//!
//! The kernel releases the lock when the last descriptor of its open file is closed. So the lock ends with its process,
//! SIGKILL included, and needs no expiry. It excludes processes of *one machine*: over a network file system, flock may or
//! may not reach other machines, and SQLite does not work there at all.
//!
//! The name of a lock is the name of a file: letters and digits.

use crate::base::back_off::BackOff;
use crate::base::deadline::Deadline;
use crate::database::{Client, DatabaseError, DatabaseFailure};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The longest pause between two tries. flock(2) has no time limit, so a wait polls; 20 ms is shorter than one delivery.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// How many bytes of a holder's note are read at most. Ours has some 150.
const NOTE_LIMIT: u64 = 4096;

/// The locks of one directory, as one process sees them.
#[derive(Debug)]
pub(crate) struct FileLocks {
    directory: PathBuf,
    client: Client,
    deadline: Deadline,
    held: Vec<HeldLock>,
}

/// A lock that we hold as long as `file` is open.
#[derive(Debug)]
struct HeldLock {
    name: String,
    path: PathBuf,
    file: File,
}

/// The holder's note in its lock file, for people and for the log. The lock does not depend on the note.
#[derive(Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) queue_id: Option<String>,
    /// Microseconds since 1970.
    since: u64,
}

impl Note {
    /// For how long the lock has been held; `None` if the clock was set back meanwhile.
    pub(crate) fn held_for(&self) -> Option<Duration> {
        let since = UNIX_EPOCH.checked_add(Duration::from_micros(self.since))?;
        SystemTime::now().duration_since(since).ok()
    }
}

pub(crate) enum FileLockResult {
    Held,
    /// Another process has the lock; its note, if that can be read.
    Busy(Option<Note>),
}

impl FileLocks {
    /// The locks in `directory`, which must exist. No wait passes `deadline`; `client` is shown to other processes as
    /// the holder.
    pub fn new(directory: PathBuf, client: Client, deadline: Deadline) -> Self {
        Self { directory, client, deadline, held: Vec::new() }
    }

    /// From now on, locks are taken for another delivery.
    pub fn begin(&mut self, client: Client, deadline: Deadline) {
        (self.client, self.deadline) = (client, deadline);
    }

    pub(crate) fn holds_any(&self) -> bool {
        !self.held.is_empty()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// One try, without waiting.
    fn try_once(&mut self, name: &str) -> Result<FileLockResult, DatabaseError> {
        let path = self.path(name);
        let doing = || format!("taking the file lock {}", path.display());
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)
                .map_err(|e| local(doing(), &e))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(FileLockResult::Busy(read_note(&mut file))),
                Err(TryLockError::Error(e)) => return Err(local(doing(), &e)),
            }
            // Between our open and our lock, the holder may have unlinked this file and released its lock. No other process
            // will ever open that file, so a lock on it excludes nobody. Only a lock on the file that the path names now
            // counts.
            if !is_at(&file, &path).map_err(|e| local(doing(), &e))? {
                if self.deadline.passed() {
                    return Err(DatabaseError::new(
                        DatabaseFailure::TimedOut,
                        doing(),
                        "its file changed at every look",
                    ));
                }
                continue;
            }
            if let Err(e) = self.write_note(&mut file) {
                tracing::warn!(file = %path.display(), error = %e, "cannot note in the lock file who holds it");
            }
            self.held.push(HeldLock { name: name.to_owned(), path, file });
            return Ok(FileLockResult::Held);
        }
    }

    fn write_note(&self, file: &mut File) -> io::Result<()> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let note = Note {
            host: self.client.host.clone(),
            pid: self.client.pid,
            queue_id: self.client.queue_id.clone(),
            since: u64::try_from(since).unwrap_or(u64::MAX),
        };
        let text = serde_json::to_vec(&note)?;
        // A holder that died may have left its note.
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(&text)
    }

    /// Takes the lock, waiting for at most `wait`. A repeated request for a lock that this very value holds returns
    /// [`FileLockResult::Held`].
    pub(crate) fn acquire(&mut self, name: &str, wait: Duration) -> Result<FileLockResult, DatabaseError> {
        if self.held.iter().any(|held| held.name == name) {
            return Ok(FileLockResult::Held);
        }
        let begun = Instant::now();
        let mut pauses = BackOff::new(Duration::from_millis(1), LONGEST_PAUSE);
        loop {
            let acquired = self.try_once(name)?;
            let left = wait.saturating_sub(begun.elapsed()).min(self.deadline.remaining());
            if matches!(acquired, FileLockResult::Held) || left.is_zero() {
                return Ok(acquired);
            }
            std::thread::sleep(pauses.pause().min(left));
        }
    }

    /// Whether we still hold the lock. Only the manual removal of its file ends it: another process would then lock a new
    /// file.
    pub(crate) fn still_held(&self, name: &str) -> Result<bool, DatabaseError> {
        let Some(held) = self.held.iter().find(|held| held.name == name) else { return Ok(false) };
        is_at(&held.file, &held.path)
            .map_err(|e| local(format!("looking whether the file lock {} is still ours", held.path.display()), &e))
    }

    /// Releases it; does nothing if it is not held.
    pub(crate) fn release(&mut self, name: &str) {
        if let Some(position) = self.held.iter().position(|held| held.name == name) {
            drop(self.held.swap_remove(position));
        }
    }

    /// The holder; `None` if the lock is free, the inner `None` if the holder's note cannot be read.
    ///
    /// The note counts only if the kernel lists a lock on the file (`/proc/locks`, proc_locks(5)), because a killed holder
    /// leaves its file behind. Trying the lock instead would defer a delivery of that moment.
    pub(crate) fn holder(&self, name: &str) -> Result<Option<Option<Note>>, DatabaseError> {
        let path = self.path(name);
        let doing = || format!("asking who holds the file lock {}", path.display());
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(local(doing(), &e)),
        };
        let inode = file.metadata().map_err(|e| local(doing(), &e))?.ino();
        let locks = kernels_locks().map_err(|e| local(doing(), &e))?;
        let locked = is_locked(&locks, inode);
        Ok(locked.then(|| read_note(&mut file)))
    }
}

/// The text of `/proc/locks`, read several times. A text longer than a page takes several read calls. A lock that is
/// released between two of these shifts the later ones, so that one may be missing (Linux, `fs/seq_file.c`, `fs/locks.c`).
fn kernels_locks() -> io::Result<String> {
    (0..3).map(|_| fs::read_to_string("/proc/locks")).collect()
}

/// Whether the text of /proc/locks has an flock on this inode. The device is not compared, because the kernel's list and
/// stat(2) differ on btrfs and overlayfs.
fn is_locked(locks: &str, inode: u64) -> bool {
    locks.lines().any(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let granted = words.next() == Some("FLOCK");
        // ADVISORY WRITE pid major:minor:inode
        let file = words.nth(3).and_then(|file| file.rsplit(':').next());
        granted && file.and_then(|inode| inode.parse().ok()) == Some(inode)
    })
}

impl Drop for HeldLock {
    /// Unlinks the file while the lock on it is still held, and then releases the lock by closing the file. A process that
    /// has opened the file meanwhile locks a file without a name, detects that, and opens the path once more.
    fn drop(&mut self) {
        let unlinked =
            is_at(&self.file, &self.path).and_then(|ours| if ours { fs::remove_file(&self.path) } else { Ok(()) });
        if let Err(e) = unlinked {
            // The lock is free all the same. The file stays, and the next holder uses it.
            tracing::warn!(file = %self.path.display(), error = %e, "cannot remove the file of a lock that was let go");
        }
    }
}

/// Whether `path` names this very file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((ours.dev(), ours.ino()) == (there.dev(), there.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// The holder that the lock's file names. Between the lock and the write of the note, that is nobody, or the previous
/// holder.
fn read_note(file: &mut File) -> Option<Note> {
    let mut text = Vec::new();
    file.take(NOTE_LIMIT).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

fn local(doing: String, error: &io::Error) -> DatabaseError {
    DatabaseError::new(DatabaseFailure::Local, doing, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locks(directory: &Path, queue_id: &str) -> FileLocks {
        let client = Client { host: "mx1".into(), pid: 17, queue_id: Some(queue_id.into()) };
        FileLocks::new(directory.to_owned(), client, Deadline::after(Duration::from_hours(1)))
    }

    fn take(locks: &mut FileLocks, name: &str) {
        assert!(matches!(locks.acquire(name, Duration::ZERO), Ok(FileLockResult::Held)), "{name}");
    }

    #[test]
    fn a_lock_is_there_as_long_as_it_is_held_and_its_file_goes_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let (mut one, other) = (locks(directory.path(), "4b1"), locks(directory.path(), "4b2"));
        assert!(!one.holds_any());
        take(&mut one, "a");
        take(&mut one, "b");
        // A repeated request returns the same lock.
        take(&mut one, "a");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
        assert!(one.holds_any() && one.still_held("a").unwrap() && !other.still_held("a").unwrap());
        let note = other.holder("a").unwrap().flatten().unwrap();
        assert_eq!((note.host.as_str(), note.pid, note.queue_id.as_deref()), ("mx1", 17, Some("4b1")));
        let yesterday = Note { since: note.since - 86_400_000_000, ..note };
        assert!(yesterday.held_for().unwrap() >= Duration::from_hours(24));
        one.release("a");
        assert!(other.holder("a").unwrap().is_none() && one.still_held("b").unwrap() && one.holds_any());
        one.release("b");
        assert!(!one.holds_any());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        // A later delivery's note replaces the first.
        one.begin(Client { host: "mx2".into(), pid: 18, queue_id: None }, Deadline::after(Duration::from_hours(1)));
        take(&mut one, "a");
        assert_eq!(other.holder("a").unwrap().flatten().map(|note| note.pid), Some(18));
    }

    #[test]
    fn a_lock_whose_file_was_taken_away_is_not_held_any_more_and_lets_another_ones_file_be() {
        let directory = tempfile::tempdir().unwrap();
        let (mut one, mut other) = (locks(directory.path(), "4b1"), locks(directory.path(), "4b2"));
        take(&mut one, "a");
        fs::remove_file(directory.path().join("a")).unwrap();
        assert!(!one.still_held("a").unwrap());
        take(&mut other, "a");
        one.release("a");
        assert!(!one.still_held("a").unwrap() && other.still_held("a").unwrap());
        // A path that cannot be read is an error, and no free lock.
        let nowhere = locks(&directory.path().join("a"), "4b3");
        assert!(nowhere.holder("b").is_err());
    }

    #[test]
    fn a_lock_in_the_kernels_list_is_found_by_its_file() {
        let locks = "\
1: POSIX  ADVISORY  WRITE 4711 fe:00:18 0 EOF
2: FLOCK  ADVISORY  WRITE 4712 00:2b:1234 0 EOF
2: -> FLOCK  ADVISORY  WRITE 4713 00:2b:77 0 EOF
";
        assert!(is_locked(locks, 1234));
        // Of another kind; waited for; unknown.
        assert!(!is_locked(locks, 18) && !is_locked(locks, 77) && !is_locked(locks, 12));
    }
}
