//! One master for each runtime directory: it holds a lock on a file there for as long as it lives.
//!
//! flock(2) ends with the process, however that ends. A lock with a lifetime would not do: its owner may sleep for longer, and
//! somebody would have to remove a dead owner's lock.

use crate::base::deadline::Deadline;
use crate::service::error::ServiceError;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// How long to wait for the lock of a dead master: if it is killed just before its child executes a program, the child has a copy
/// of the lock until then.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

/// Takes the lock, and writes our process id into the file, for people. The lock ends when the file is closed. A child process does
/// not hold it: like all files that Rust opens, this one is closed on exec.
///
/// # Errors
/// [`ServiceError::Another`] if another process holds the lock.
pub(super) fn take(path: &Path) -> Result<File, ServiceError> {
    take_within(path, PATIENCE)
}

fn take_within(path: &Path, patience: Duration) -> Result<File, ServiceError> {
    let deadline = Deadline::after(patience);
    let failed = ServiceError::file("locking", path);
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
        if deadline.passed() {
            return Err(ServiceError::Another { pid: read_pid(&mut file).map_err(failed)? });
        }
        std::thread::sleep(PAUSE);
    }
    let mut write = || {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    write().map_err(failed)?;
    Ok(file)
}

/// The process id in the file; `None` while another process writes it.
fn read_pid(file: &mut File) -> io::Result<Option<u32>> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok(text.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_reported_who_holds_it_and_what_is_left_of_a_dead_one_holds_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("master.lock");
        std::fs::write(&path, "99999999\n").unwrap();
        let held = take(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        // For flock(2), another open file description of the same file is another holder, even in the same process.
        let error = take(&path).unwrap_err();
        assert!(matches!(error, ServiceError::Another { pid: Some(pid) } if pid == std::process::id()), "{error}");
        drop(held);
        take(&path).unwrap();
    }

    /// The child of a master that is killed between fork(2) and execve(2) holds the lock until it executes its program.
    #[test]
    fn what_holds_the_lock_of_a_dead_master_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("master.lock");
        let held = take(&path).unwrap();
        let error = take_within(&path, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, ServiceError::Another { .. }), "{error}");
        let later = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            drop(held);
        });
        take_within(&path, Duration::from_mins(1)).unwrap();
        later.join().unwrap();
    }
}
