//! One master for each runtime directory: it holds a lock on a file there for as long as it lives.
//!
//! flock(2) ends with the process, however that ends. A lock with a lifetime would not do: its owner may sleep for longer, and
//! somebody would have to remove a dead owner's lock.

use super::MasterError;
use crate::base::deadline::Deadline;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// How long to wait for the lock of a dead master.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// The lock, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct InstanceLock {
    /// This file is closed on exec, like all files that Rust opens: a child process must not hold the lock after the master's
    /// end.
    _locked: File,
}

impl InstanceLock {
    /// Takes the lock, and writes our process id into the file, for people.
    ///
    /// # Errors
    /// [`MasterError::Another`] if another process holds the lock.
    pub(super) fn take(path: &Path) -> Result<Self, MasterError> {
        Self::take_within(path, PATIENCE)
    }

    /// Waits for the lock. If a master is killed just before its child executes a program, the child has a copy of the lock until
    /// then. On a busy machine that may take a moment.
    fn take_within(path: &Path, patience: Duration) -> Result<Self, MasterError> {
        let deadline = Deadline::after(patience);
        let failed = |source| MasterError::File { doing: "locking", path: path.to_owned(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK {
                return Err(failed(error.into()));
            }
            let holder = read_pid(&mut file).map_err(failed)?;
            if deadline.passed() || holder.is_some_and(is_alive) {
                return Err(MasterError::Another {
                    pid: holder.map(Pid::as_raw_nonzero).map(|pid| pid.get().unsigned_abs()),
                });
            }
            std::thread::sleep(PAUSE);
        }
        let mut write = || {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        write().map_err(failed)?;
        Ok(Self { _locked: file })
    }
}

/// The process id in the file; `None` while another process writes it.
fn read_pid(file: &mut File) -> io::Result<Option<Pid>> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    let number = text.trim().parse::<u32>().ok().and_then(|number| i32::try_from(number).ok());
    Ok(number.and_then(Pid::from_raw))
}

fn is_alive(process: Pid) -> bool {
    // EPERM means that the process exists, but belongs to another user.
    test_kill_process(process) != Err(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_reported_who_holds_it_and_what_is_left_of_a_dead_one_holds_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("master.lock");
        std::fs::write(&path, "99999999\n").unwrap();
        let held = InstanceLock::take(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        // For flock(2), another open file description of the same file is another holder, even in the same process.
        let error = InstanceLock::take(&path).unwrap_err();
        assert!(matches!(error, MasterError::Another { pid: Some(pid) } if pid == std::process::id()), "{error}");
        drop(held);
        InstanceLock::take(&path).unwrap();
    }

    /// The child of a master that is killed between fork(2) and execve(2) holds the lock until it executes its program.
    #[test]
    fn what_holds_the_lock_of_a_dead_master_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("master.lock");
        let held = InstanceLock::take(&path).unwrap();
        // No process has this id: it is beyond the maximum of Linux.
        std::fs::write(&path, "99999999\n").unwrap();
        let error = InstanceLock::take_within(&path, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, MasterError::Another { pid: Some(99_999_999) }), "{error}");
        let later = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            drop(held);
        });
        InstanceLock::take_within(&path, Duration::from_mins(1)).unwrap();
        later.join().unwrap();
    }
}
