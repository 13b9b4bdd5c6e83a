//! Errors of the queue's files.

use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why an operation of the queue failed. No such failure changes a file that was accepted before.
#[derive(Debug, Error)]
pub enum QueueError {
    /// The disk or this user's quota is full, except for the reserve for other programs. A retry can help (SMTP 452, HTTP
    /// 507).
    #[error("{doing} {}: no room is left on the disk", path.display())]
    NoSpace { doing: &'static str, path: PathBuf },
    /// Any other failure of a system call. A retry can help.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// rename(2) works only within one file system.
    #[error(
        "{} is on another file system than the other folders of the queue (rename(2): EXDEV): all of them have to be on one",
        path.display()
    )]
    AnotherFileSystem { path: PathBuf },
    /// A rename that overwrites a file loses a message.
    #[error(
        "the file system of {} cannot rename without overwriting (renameat2(2), RENAME_NOREPLACE): put the queue on a local \
         ext4, XFS, Btrfs or tmpfs",
        path.display()
    )]
    RenamesOverwrite { path: PathBuf },
    /// The other user could add or remove files.
    #[error("{} belongs to user {owner}, and this process runs as user {user}", path.display())]
    AnotherOwner { path: PathBuf, owner: u32, user: u32 },
    /// Other users could add or remove files.
    #[error("others may write to {} (mode {mode:04o}): run `chmod 0700` on it", path.display())]
    WritableByOthers { path: PathBuf, mode: u32 },
    #[error("there is no queue at {}", path.display())]
    NoQueue { path: PathBuf },
    #[error("a message without a recipient cannot be queued")]
    NoRecipient,
    /// The envelope would not be read back as it is.
    #[error("the envelope cannot be written: {problem}")]
    Envelope { problem: String },
}

impl QueueError {
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::NoSpace { .. })
    }

    /// The error of a system call on `path`; `doing` names the attempted operation.
    pub(super) fn of(doing: &'static str, path: &Path, errno: Errno) -> Self {
        let path = path.to_owned();
        match errno {
            Errno::NOSPC | Errno::DQUOT => Self::NoSpace { doing, path },
            errno => Self::Io { doing, path, source: errno.into() },
        }
    }

    /// As [`of`](Self::of), for an error of the standard library.
    pub(crate) fn of_io(doing: &'static str, path: &Path, error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::StorageFull {
            return Self::NoSpace { doing, path: path.to_owned() };
        }
        match Errno::from_io_error(&error) {
            Some(errno) => Self::of(doing, path, errno),
            None => Self::Io { doing, path: path.to_owned(), source: error },
        }
    }
}
