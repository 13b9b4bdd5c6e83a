//! A message on its way from the LMTP server to the broker, and what becomes of it on its way back.

use crate::delivery::Verdict;
use crate::protocol::Request;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tokio::sync::oneshot;
use tracing::warn;

/// A message that the LMTP server has whole, and hands out to be delivered.
#[derive(Debug)]
pub struct Handed {
    /// Its envelope. `file` names the file where `message` is one, and `size` is that of the message.
    pub request: Request,
    /// Its bytes: a Return-Path line, and what came after DATA.
    pub message: Body,
    /// Takes one verdict for each recipient, in the request's order. With any other number of them, or where it is dropped,
    /// everybody is answered 451. Nobody may listen any more: the delivery goes on all the same.
    pub answer: oneshot::Sender<Vec<Verdict>>,
}

/// Where a message's bytes are.
#[derive(Debug)]
pub enum Body {
    /// Here.
    Memory(Vec<u8>),
    /// In a file, which is there for as long as this is: whoever delivers the message keeps it until the delivery has ended.
    File(MessageFile),
}

impl Body {
    /// What follows the request's header in a frame: nothing where the message is in a file.
    #[must_use]
    pub fn in_memory(&self) -> &[u8] {
        match self {
            Self::Memory(bytes) => bytes,
            Self::File(_) => &[],
        }
    }
}

/// A file with a message in it, which is removed when this is dropped. It is locked (flock(2)) until then, so that another process
/// sees whether it was left behind.
#[derive(Debug)]
pub struct MessageFile {
    path: PathBuf,
    file: File,
}

impl MessageFile {
    /// Makes a file that only we may read.
    ///
    /// # Errors
    /// Where there is such a file, or the system cannot make one.
    pub(super) fn create(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let made = Self { path, file };
        made.file.try_lock()?;
        Ok(made)
    }

    /// Removes a file that nobody has, and says whether it did.
    ///
    /// # Errors
    /// Where the system cannot open or remove it.
    pub(super) fn remove_if_left_behind(path: &Path) -> io::Result<bool> {
        match File::open(path)?.try_lock() {
            Ok(()) => fs::remove_file(path).map(|()| true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// The file's whole path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for MessageFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            warn!(file = %self.path.display(), %error, "a message's file cannot be removed; the next start will try again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_messages_file_is_there_for_as_long_as_the_message_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        let mut file = MessageFile::create(path.clone()).unwrap();
        file.append(b"Subject: x\r\n").unwrap();
        file.append(b"\r\n").unwrap();
        assert!(MessageFile::create(path.clone()).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"Subject: x\r\n\r\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let body = Body::File(file);
        assert_eq!(body.in_memory(), b"");
        assert!(!MessageFile::remove_if_left_behind(&path).unwrap());
        assert!(path.exists());
        drop(body);
        assert!(!path.exists());
        fs::write(&path, b"x").unwrap();
        assert!(MessageFile::remove_if_left_behind(&path).unwrap());
        assert!(!path.exists());
        assert_eq!(Body::Memory(b"x".to_vec()).in_memory(), b"x");
    }
}
