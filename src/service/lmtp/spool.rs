//! Storage of a message while it is being received: memory, or a file if it is large.

use crate::base::files::{create_directory, leaves_the_reserve};
use crate::config::Config;
use crate::protocol::LARGEST_MESSAGE;
use crate::service::inflight_message::{Body, MessageFile};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;
use tracing::{debug, error, warn};
use uuid::Uuid;

/// How many bytes are written to a file at once.
const BLOCK: usize = 64 << 10;

/// Where messages are stored, and how large they may be.
#[derive(Clone, Debug)]
pub struct Spool {
    /// The folder of message files.
    pub directory: PathBuf,
    /// Messages larger than this, in bytes, go into a file.
    pub above: u64,
    /// The largest message that is accepted, in bytes. `None`: any.
    pub limit: Option<u64>,
}

impl Spool {
    pub fn new(config: &Config) -> Self {
        let limit = config.delivery.message_size_limit;
        Self {
            directory: config.service.messages(),
            // A message in memory goes to its worker in one frame, which has space for the largest message and no more.
            above: config.service.spool_threshold.min(limit.unwrap_or(LARGEST_MESSAGE)),
            limit,
        }
    }

    /// The limit to announce to clients: twice our limit, so that no client holds back a message that would be accepted.
    ///
    /// A line of n bytes counts as n + 1 here. In SIZE it counts as n + 2, with its CR LF (RFC 1870 section 5). Postfix bounces a
    /// message that is larger than a server announces (`src/smtp/smtp_proto.c`), and compares its queue file's
    /// `request->data_size`. There the line is a record of n + 2 bytes, or of n + 3 from 128 bytes on. Neither size exceeds 2 *
    /// (n + 1).
    pub(super) fn announced(&self) -> Option<u64> {
        self.limit.map(|limit| limit.saturating_mul(2))
    }

    /// Creates the folder, and removes the files of a front that has died: Postfix still has those messages. A file that cannot
    /// be removed is logged; mail still comes in.
    ///
    /// # Errors
    /// If the folder cannot be created or read.
    pub fn prepare(&self) -> io::Result<()> {
        create_directory(&self.directory)?;
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            match MessageFile::remove_if_left_behind(&path) {
                Ok(true) => debug!(file = %path.display(), "a message's file that was left behind is removed"),
                Ok(false) => {}
                // Another front has just delivered this message.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => error!(file = %path.display(), %error, "what was left behind cannot be removed"),
            }
        }
        Ok(())
    }
}

impl Spool {
    /// Writes a complete message into a file.
    ///
    /// # Errors
    /// If the disk is full, or if the system cannot write the file.
    pub(in crate::service) fn keep(&self, message: &[u8]) -> io::Result<MessageFile> {
        leaves_the_reserve(&self.directory, message.len() as u64)?;
        let mut file = MessageFile::create(self.directory.join(Uuid::now_v7().to_string()))?;
        file.append(message)?;
        Ok(file)
    }
}

/// Why a message was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum NotTaken {
    #[error("552 5.3.4 The message is larger than this server takes")]
    TooBig,
    #[error("452 4.3.1 There is no room for the message")]
    NoRoom,
}

/// A message that is being received. If it cannot be stored, its bytes are dropped, and [`end`](Self::end) returns the error.
#[derive(Debug)]
pub(super) struct Incoming {
    spool: Arc<Spool>,
    /// The whole message, or the part that is not in the file yet.
    bytes: Vec<u8>,
    file: Option<MessageFile>,
    /// The bytes that came from the client, each line end counted as one.
    received: u64,
    /// The size of the message to be stored, in bytes.
    size: u64,
    failed: Option<NotTaken>,
}

impl Incoming {
    /// A message that begins with our own line, which does not count towards the limit.
    pub(super) fn new(spool: Arc<Spool>, first_line: &[u8]) -> Self {
        let bytes = first_line.to_vec();
        Self { spool, size: bytes.len() as u64, bytes, file: None, received: 0, failed: None }
    }

    /// Stores more bytes.
    ///
    /// This thread, which all sessions share, writes the file. At most [`BLOCK`] bytes are written at once, by default into a
    /// folder in memory (below /run).
    pub(super) fn take(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        // A line end counts as one byte, as for Postfix and in a delivery through pipe(8). So all transports accept the same
        // messages.
        let line_ends = memchr::memchr_iter(b'\n', bytes).count();
        self.received = self.received.saturating_add(bytes.len().saturating_sub(line_ends) as u64);
        if self.spool.limit.is_some_and(|limit| self.received > limit) {
            self.fail(NotTaken::TooBig);
            return;
        }
        self.size += bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
        let to_file = if self.file.is_some() { self.bytes.len() >= BLOCK } else { self.size > self.spool.above };
        if to_file {
            self.write();
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The message and its size in bytes.
    pub(super) fn end(mut self) -> Result<(Body, u64), NotTaken> {
        if self.file.is_some() {
            self.write();
        }
        match (self.failed, self.file) {
            (Some(failed), _) => Err(failed),
            (None, Some(file)) => Ok((Body::File(file), self.size)),
            (None, None) => Ok((Body::Memory(self.bytes), self.size)),
        }
    }

    fn write(&mut self) {
        if let Err(error) = self.try_to_write() {
            warn!(directory = %self.spool.directory.display(), %error, "a message cannot be taken");
            self.fail(NotTaken::NoRoom);
        }
    }

    fn try_to_write(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let path = self.spool.directory.join(Uuid::now_v7().to_string());
                self.file.insert(MessageFile::create(path)?)
            }
        };
        leaves_the_reserve(&self.spool.directory, 0)?;
        file.append(&self.bytes)?;
        self.bytes.clear();
        Ok(())
    }

    fn fail(&mut self, failed: NotTaken) {
        self.failed = Some(failed);
        self.bytes = Vec::new();
        self.file = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::files::synced;
    use crate::protocol::{Header, LONGEST_HEADER};
    use crate::service::front::longest_frame;
    use std::path::Path;

    fn spool(directory: &Path, above: u64, limit: Option<u64>) -> Arc<Spool> {
        Arc::new(Spool { directory: directory.join("messages"), above, limit })
    }

    fn files(spool: &Spool) -> usize {
        fs::read_dir(&spool.directory).unwrap().count()
    }

    /// A message that does not fit into a frame would be deferred at each attempt.
    #[test]
    fn what_is_kept_in_memory_goes_to_a_worker_in_one_frame() {
        let site = "[database]\nengine = \"postgresql\"\nhost = \"db.invalid\"\ndatabase = \"x\"\nuser = \"x\"\n\
                    [imap]\nhost = \"imap.invalid\"\nuser = \"x\"\npassword_file = \"/nowhere\"\n";
        for (settings, above) in [
            ("", 256 << 10),
            ("[service]\nspool_threshold = \"100MB\"\n", 100_000_000),
            ("[service]\nspool_threshold = \"1GB\"\n", LARGEST_MESSAGE),
            ("[service]\nspool_threshold = \"1GB\"\n[delivery]\nmessage_size_limit = \"50MB\"\n", 50_000_000),
            ("[delivery]\nmessage_size_limit = 1000\n", 1000),
        ] {
            let config = Config::parse(Path::new("/x"), &format!("{site}{settings}")).unwrap();
            let spool = Spool::new(&config);
            assert_eq!(spool.above, above, "{settings}");
            let header = Header::Received { id: Uuid::nil() };
            let before_header = header.frame(&[]).unwrap().len() - serde_json::to_vec(&header).unwrap().len();
            let longest = before_header + LONGEST_HEADER + usize::try_from(spool.above).unwrap();
            assert!(longest <= longest_frame(&config), "{settings}");
        }
    }

    #[test]
    fn a_message_is_in_memory_or_once_it_is_larger_in_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let spool = spool(directory.path(), 100, None);
        spool.prepare().unwrap();
        synced::take();
        for (length, in_file) in [(0, false), (98, false), (99, true), (1_000_000, true)] {
            let mut incoming = Incoming::new(spool.clone(), b"R:");
            let message: Vec<u8> = (0..length).map(|at| b'a' + (at % 23) as u8).collect();
            for piece in message.chunks(977) {
                incoming.take(piece);
            }
            let (body, size) = incoming.end().unwrap();
            let expected = [b"R:", message.as_slice()].concat();
            assert_eq!(size, expected.len() as u64);
            let bytes = match &body {
                Body::Memory(bytes) => bytes.clone(),
                Body::File(file) => fs::read(file.path()).unwrap(),
            };
            assert!(bytes == expected, "{length}");
            assert_eq!(matches!(body, Body::File(_)), in_file, "{length}");
            assert_eq!(files(&spool), usize::from(in_file));
            drop(body);
            assert_eq!(files(&spool), 0);
        }
        // No fsync(2) is needed: the client keeps the message until it is answered, which is after the delivery.
        assert!(synced::take().is_empty());
    }

    #[test]
    fn what_is_in_a_file_takes_little_memory_and_is_written_in_blocks() {
        let directory = tempfile::tempdir().unwrap();
        let spool = spool(directory.path(), 100, None);
        spool.prepare().unwrap();
        let mut incoming = Incoming::new(spool, b"R:");
        incoming.take(&[b'x'; 200]);
        assert_eq!((incoming.bytes.len(), incoming.size()), (0, 202));
        incoming.take(&[b'x'; 200]);
        assert_eq!((incoming.bytes.len(), incoming.size()), (200, 402), "a write for so little is none");
        incoming.take(&[b'x'; BLOCK - 201]);
        assert_eq!(incoming.bytes.len(), BLOCK - 1);
        incoming.take(b"x");
        assert_eq!((incoming.bytes.len(), incoming.size()), (0, 202 + BLOCK as u64));
    }

    #[test]
    fn a_message_that_is_too_big_leaves_nothing_behind_and_takes_no_memory() {
        let directory = tempfile::tempdir().unwrap();
        let spool = spool(directory.path(), 10, Some(1000));
        spool.prepare().unwrap();
        let mut incoming = Incoming::new(spool.clone(), b"Return-Path: <>\r\n");
        incoming.take(&[b'x'; 1000]);
        assert_eq!(files(&spool), 1);
        incoming.take(b"x");
        assert_eq!(files(&spool), 0);
        incoming.take(&[b'x'; 100_000]);
        assert_eq!(incoming.bytes.capacity(), 0);
        assert_eq!(incoming.end().map(|_| ()), Err(NotTaken::TooBig));
        let mut incoming = Incoming::new(spool, b"Return-Path: <>\r\n");
        incoming.take(&[b'x'; 1000]);
        assert_eq!(incoming.end().map(|(_, size)| size), Ok(1017));
    }

    #[test]
    fn where_no_file_can_be_written_there_is_no_message() {
        let directory = tempfile::tempdir().unwrap();
        let spool = spool(directory.path(), 10, None);
        let mut incoming = Incoming::new(spool.clone(), b"");
        incoming.take(&[b'x'; 100]);
        incoming.take(&[b'x'; 100]);
        assert_eq!(incoming.end().map(|_| ()), Err(NotTaken::NoRoom));
        // As if the device became full in the middle of the file.
        spool.prepare().unwrap();
        let mut incoming = Incoming::new(spool.clone(), b"");
        incoming.file = Some(MessageFile::create(spool.directory.join("x")).unwrap());
        incoming.take(&[b'x'; 100]);
        incoming.fail(NotTaken::NoRoom);
        assert_eq!(files(&spool), 0);
        assert_eq!(incoming.end().map(|_| ()), Err(NotTaken::NoRoom));
    }

    #[test]
    fn what_a_dead_front_has_left_is_removed_and_what_another_still_has_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let spool = spool(directory.path(), 10, None);
        spool.prepare().unwrap();
        fs::write(spool.directory.join("left"), b"x").unwrap();
        let kept = MessageFile::create(spool.directory.join("kept")).unwrap();
        spool.prepare().unwrap();
        assert_eq!(files(&spool), 1);
        assert!(kept.path().exists());
        // A folder cannot be removed like a file, and must not keep a front from starting.
        fs::create_dir(spool.directory.join("folder")).unwrap();
        fs::write(spool.directory.join("left"), b"x").unwrap();
        spool.prepare().unwrap();
        assert_eq!(files(&spool), 2);
    }
}
