//! A message on its way from the LMTP server to the broker, and what becomes of it on its way back.

use crate::delivery::Verdict;
use crate::handover::Request;
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
    /// Takes one verdict for each recipient, in the request's order. Whatever is missing is answered with 451; so is everybody
    /// where it is dropped. Nobody listens any more once the client has hung up: the delivery goes on all the same.
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

/// A file with a message in it, which is removed when this is dropped.
#[derive(Debug)]
pub struct MessageFile(PathBuf);

impl MessageFile {
    /// Takes over a file that is there.
    #[allow(dead_code, reason = "the LMTP server that writes such files follows")]
    pub(super) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The file's whole path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for MessageFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            warn!(file = %self.0.display(), %error, "a message's file cannot be removed; the next start will try again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_messages_file_is_there_for_as_long_as_the_message_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        std::fs::write(&path, b"Subject: x\r\n\r\n").unwrap();
        let body = Body::File(MessageFile::new(path.clone()));
        assert_eq!(body.in_memory(), b"");
        assert!(path.exists());
        drop(body);
        assert!(!path.exists());
        assert_eq!(Body::Memory(b"x".to_vec()).in_memory(), b"x");
    }
}
