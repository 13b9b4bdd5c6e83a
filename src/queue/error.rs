//! What can go wrong with the queue's files.

use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why the queue could not do what it was asked for. Whatever it is, no file that was accepted before has been changed by it.
#[derive(Debug, Error)]
pub enum QueueError {
    /// The disk, or the share of it that this user may fill, is full, but for what is kept free for others. Trying again later can help (SMTP 452, HTTP 507).
    #[error("{doing} {}: no room is left on the disk", path.display())]
    NoSpace { doing: &'static str, path: PathBuf },
    /// Anything else that the system reports. Trying again later can help.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file can be renamed only within one file system.
    #[error(
        "{} is on another file system than the other folders of the queue (rename(2): EXDEV): all of them have to be on one",
        path.display()
    )]
    AnotherFileSystem { path: PathBuf },
    /// A rename that could overwrite a file could lose a message.
    #[error(
        "the file system of {} cannot rename without overwriting (renameat2(2), RENAME_NOREPLACE): put the queue on a local \
         ext4, XFS, Btrfs or tmpfs",
        path.display()
    )]
    RenamesOverwrite { path: PathBuf },
    /// Somebody else could have put files there, or could take them away.
    #[error("{} belongs to user {owner}, and this process runs as user {user}", path.display())]
    AnotherOwner { path: PathBuf, owner: u32, user: u32 },
    /// The same.
    #[error("others may write to {} (mode {mode:04o}): run `chmod 0700` on it", path.display())]
    WritableByOthers { path: PathBuf, mode: u32 },
    /// No queue has been made there.
    #[error("there is no queue at {}", path.display())]
    NoQueue { path: PathBuf },
    /// Mail for nobody.
    #[error("a message without a recipient cannot be queued")]
    NoRecipient,
    /// An envelope that cannot be written down.
    #[error("the envelope cannot be written: {problem}")]
    Envelope { problem: String },
}

impl QueueError {
    /// Whether it is for want of room.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::NoSpace { .. })
    }

    /// What the system said when we were `doing` something with `path`.
    pub(super) fn of(doing: &'static str, path: &Path, errno: Errno) -> Self {
        let path = path.to_owned();
        match errno {
            Errno::NOSPC | Errno::DQUOT => Self::NoSpace { doing, path },
            errno => Self::Io { doing, path, source: errno.into() },
        }
    }

    /// The same, where the standard library said it.
    pub(super) fn of_io(doing: &'static str, path: &Path, error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::StorageFull {
            return Self::NoSpace { doing, path: path.to_owned() };
        }
        match Errno::from_io_error(&error) {
            Some(errno) => Self::of(doing, path, errno),
            None => Self::Io { doing, path: path.to_owned(), source: error },
        }
    }
}
