//! There is one master for each runtime directory: it holds a lock on a file in it for as long as it lives.
//!
//! flock(2) ends with the process, however that ends. A lock with a lifetime does not: its owner may sleep longer than that,
//! and what is left of a dead one has to be cleared away by hand.

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

/// How long the lock of a master that is dead is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// Held for as long as this is.
#[derive(Debug)]
pub(super) struct OneMaster {
    /// Closed on exec, as all that Rust opens: a process that we start must not hold the lock when we are gone.
    _locked: File,
}

impl OneMaster {
    /// Takes the lock, and writes our process id into the file, for people.
    ///
    /// # Errors
    /// [`MasterError::Another`] where another process holds it.
    pub(super) fn take(path: &Path) -> Result<Self, MasterError> {
        Self::take_within(path, PATIENCE)
    }

    /// A process that a master was about to start when it was killed has a copy of its lock until it executes its program, which may
    /// take a moment on a busy machine: that is waited for.
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

/// Whom the file names. Nobody while that is written.
fn read_pid(file: &mut File) -> io::Result<Option<Pid>> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    let number = text.trim().parse::<u32>().ok().and_then(|number| i32::try_from(number).ok());
    Ok(number.and_then(Pid::from_raw))
}

fn is_alive(process: Pid) -> bool {
    // Of another user's process it is said that we may send it nothing.
    test_kill_process(process) != Err(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_holds_it_and_what_is_left_of_a_dead_one_holds_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("master.lock");
        std::fs::write(&path, "99999999\n").unwrap();
        let held = OneMaster::take(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        // Another description of the same file: flock(2) takes it for another holder, in this process, too.
        let error = OneMaster::take(&path).unwrap_err();
        assert!(matches!(error, MasterError::Another { pid: Some(pid) } if pid == std::process::id()), "{error}");
        drop(held);
        OneMaster::take(&path).unwrap();
    }

    /// Killed between fork(2) and execve(2) of one of its processes, say: that one has the lock until it executes its program.
    #[test]
    fn what_holds_the_lock_of_a_dead_master_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("master.lock");
        let held = OneMaster::take(&path).unwrap();
        // Nobody has this id: it is beyond the greatest that Linux gives.
        std::fs::write(&path, "99999999\n").unwrap();
        let error = OneMaster::take_within(&path, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, MasterError::Another { pid: Some(99_999_999) }), "{error}");
        let later = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            drop(held);
        });
        OneMaster::take_within(&path, Duration::from_mins(1)).unwrap();
        later.join().unwrap();
    }
}
