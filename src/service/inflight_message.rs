//! A message on its way from the LMTP server to the broker, and the channel for its verdicts.

use crate::delivery::Verdict;
use crate::protocol::Request;
use std::borrow::Cow;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tokio::sync::oneshot;
use tracing::warn;

/// A message that the LMTP server has received completely, and passes on for delivery.
#[derive(Debug)]
pub struct InflightMessage {
    /// The envelope. `file` is the path if `message` is a file, and `size` is the size of the message in bytes.
    pub request: Request,
    /// The bytes: a Return-Path line, and the data after DATA.
    pub message: Body,
    /// Takes one verdict for each recipient, in the request's order. With another number of verdicts, or if this is dropped,
    /// every recipient is answered 451. If the client has gone, the delivery goes on.
    pub answer: oneshot::Sender<Vec<Verdict>>,
}

/// Where a message's bytes are.
#[derive(Debug)]
pub enum Body {
    /// In memory.
    Memory(Vec<u8>),
    /// In a file, which exists as long as this value. The broker keeps this value until the delivery has ended.
    File(MessageFile),
}

impl Body {
    /// The whole message.
    ///
    /// # Errors
    /// If its file cannot be read.
    pub(super) fn bytes(&self) -> io::Result<Cow<'_, [u8]>> {
        match self {
            Self::Memory(bytes) => Ok(Cow::Borrowed(bytes)),
            Self::File(file) => fs::read(file.path()).map(Cow::Owned),
        }
    }

    /// The bytes that follow the request's header in a frame: none if the message is in a file.
    pub fn in_memory(&self) -> &[u8] {
        match self {
            Self::Memory(bytes) => bytes,
            Self::File(_) => &[],
        }
    }
}

/// A file with a message, which is removed when this is dropped. Until then it is locked (flock(2)), so that another process can
/// detect a file that was left behind.
#[derive(Debug)]
pub struct MessageFile {
    path: PathBuf,
    file: File,
}

impl MessageFile {
    /// Creates a file that only our user may read.
    ///
    /// # Errors
    /// If the file exists, or if the system cannot create or lock it.
    pub(super) fn create(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let made = Self { path, file };
        made.file.try_lock()?;
        Ok(made)
    }

    /// Removes a file that no process has locked. Returns whether it was removed.
    ///
    /// # Errors
    /// If the system cannot open or remove the file.
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

    /// The absolute path of the file.
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
