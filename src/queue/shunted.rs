//! Messages that crashed workers of the service, in `shunted/`, in the queue's own format: `TIME-DIGEST,CRASHES.msg`.
//!
//! After one crash a message is a suspect; from [`SHUNTED_AFTER`] crashes on it is shunted. Two parties change the folder:
//! the front process of the service, and a person who drops a message. Each of them holds the folder's lock (flock(2))
//! meanwhile. A file keeps the envelope of the message's first crash.

use super::folder::{Folder, NameKind};
use super::listing::read_envelope;
use super::{Envelope, Name, Queue, QueueError};
use crate::base::files::leaves_the_reserve;
use crate::base::timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, SystemTime};
use thiserror::Error;

/// A message is shunted once it has crashed this many workers.
pub const SHUNTED_AFTER: u32 = 2;

/// The first eight bytes of the SHA-256 of a message's bytes, by which the next attempt recognises the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(u64);

/// The text is no digest, which has 16 hexadecimal digits.
#[derive(Debug, PartialEq, Eq)]
pub struct NoDigest;

/// The system that holds a message, and what it sent with the message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    pub holder: MessageHolder,
    /// Postfix's queue id, or the file queue's.
    pub queue_id: Option<String>,
    pub client_address: Option<String>,
    pub sasl_username: Option<String>,
}

/// The system that has the message and retries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageHolder {
    /// Postfix, or another mail system.
    #[default]
    Mta,
    /// Our file queue.
    Queue,
}

/// A message that crashed workers, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashedMessage {
    pub digest: Digest,
    pub crashes: u32,
    /// When the message first crashed a worker, in microseconds since 1970.
    pub since: i64,
    /// When its file was last changed, by a crash or by a backup, in seconds since 1970.
    pub changed: i64,
    pub file: PathBuf,
    pub envelope: Envelope,
}

/// A file in `shunted/` that cannot be read.
#[derive(Debug, Error)]
#[error("{}: {problem}", file.display())]
pub struct UnreadableFile {
    pub digest: Digest,
    pub file: PathBuf,
    pub problem: String,
}

impl Digest {
    /// The lowest and the highest digest.
    pub const FIRST: Self = Self(0);
    pub const LAST: Self = Self(u64::MAX);

    pub fn of(message: &[u8]) -> Self {
        let [a, b, c, d, e, f, g, h, ..]: [u8; 32] = Sha256::digest(message).into();
        Self(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
}

/// 16 hexadecimal digits, by which people name the message.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Digest {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 16);
        read.map(Self).ok_or(NoDigest)
    }
}

impl CrashedMessage {
    /// Whether the message is shunted: it has crashed a second worker.
    pub fn is_shunted(&self) -> bool {
        self.crashes >= SHUNTED_AFTER
    }

    /// How long ago it first crashed a worker.
    pub fn age(&self) -> Duration {
        Duration::from_micros(u64::try_from(timestamp::now().saturating_sub(self.since)).unwrap_or_default())
    }
}

impl Queue {
    /// All suspects and shunted messages, the oldest first. A file that cannot be read is reported with the reason.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn crashed(&self) -> Result<Vec<Result<CrashedMessage, UnreadableFile>>, QueueError> {
        let folder = &self.0.shunted;
        let read = |name| open(folder, name).map(|found| found.map(|(message, _)| message)).transpose();
        Ok(folder.messages()?.into_iter().filter_map(read).collect())
    }

    /// A message that crashed workers, with its bytes. `None` if there is none of this digest.
    ///
    /// # Errors
    /// If the file cannot be read, or its bytes were changed.
    pub fn crashed_message(&self, digest: Digest) -> Result<Option<(CrashedMessage, Vec<u8>)>, UnreadableFile> {
        let folder = &self.0.shunted;
        let unreadable = |problem: String| UnreadableFile { digest, file: folder.path.clone(), problem };
        let Some(name) = folder.of_digest(digest).map_err(|error| unreadable(error.to_string()))? else {
            return Ok(None);
        };
        let Some((found, mut file)) = open(folder, name)? else { return Ok(None) };
        let mut bytes = Vec::new();
        let read = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
        read.map_err(|error| unreadable(error.to_string()))?;
        let (_, message) = Envelope::read_with_message(bytes).map_err(|error| unreadable(error.to_string()))?;
        if Digest::of(&message) != digest {
            return Err(UnreadableFile { digest, file: found.file, problem: "its bytes were changed".into() });
        }
        Ok(Some((found, message)))
    }

    /// Records that a message has crashed this many workers, and stores its bytes if they are not stored yet. A lower count
    /// than the stored one changes nothing. The envelope's size and time are set here.
    ///
    /// # Errors
    /// If the record could not be written. [`QueueError::is_no_space`] says whether the disk is full.
    pub fn record_crash(
        &self,
        digest: Digest,
        crashes: u32,
        envelope: Envelope,
        message: &[u8],
        now: SystemTime,
    ) -> Result<(), QueueError> {
        let folder = &self.0.shunted;
        let _lock = folder.lock_whole()?;
        if let Some(name) = folder.of_digest(digest)? {
            let counted = Name { tries: crashes.max(name.tries), ..name };
            if counted != name {
                folder.rename_to_a_free(name.to_string().as_str(), folder, counted)?;
            }
            return folder.sync();
        }
        leaves_the_reserve(&folder.path, message.len() as u64)
            .map_err(|error| QueueError::of_io("writing below", &folder.path, error))?;
        let name = Name { tries: crashes, ..Name::of_digest(now, digest.0) };
        let envelope = Envelope { queued_at: name.accepted_at(), size: message.len() as u64, ..envelope };
        self.0.tmp.write(&[&envelope.written()?, message])?.place(folder, name)?;
        Ok(())
    }

    /// Removes a message that crashed workers. Returns whether there was one.
    ///
    /// # Errors
    /// If it could not be removed.
    pub fn drop_crashed(&self, digest: Digest) -> Result<bool, QueueError> {
        let folder = &self.0.shunted;
        let _lock = folder.lock_whole()?;
        let Some(name) = folder.of_digest(digest)? else { return Ok(false) };
        let removed = folder.remove(name.to_string().as_str())?;
        folder.sync()?;
        Ok(removed)
    }
}

impl Folder {
    /// The file of a digest. A backup may have restored a second one: then the file with more crashes counts.
    fn of_digest(&self, digest: Digest) -> Result<Option<Name>, QueueError> {
        let names = self.messages()?.into_iter().filter(|name| name.lock == digest.0);
        Ok(names.max_by_key(|name| name.tries))
    }
}

fn open(folder: &Folder, name: Name) -> Result<Option<(CrashedMessage, File)>, UnreadableFile> {
    let (text, digest) = (name.to_string(), Digest(name.lock));
    let file = folder.path.join(&text);
    let read = match folder.find(text.as_str()) {
        Ok(NameKind::Gone) => return Ok(None),
        Ok(NameKind::NoFile(kind)) => Err(format!("it is {kind}")),
        Ok(NameKind::File(open)) => match (read_envelope(&open), open.metadata()) {
            (Ok(read), Ok(metadata)) => read.map(|envelope| (envelope, metadata.ctime(), open)),
            (Err(error), _) | (_, Err(error)) => Err(error.to_string()),
        },
        Err(error) => Err(error.to_string()),
    };
    match read {
        Ok((envelope, changed, open)) => {
            let (crashes, since) = (name.tries, name.accepted_at());
            Ok(Some((CrashedMessage { digest, crashes, since, changed, file, envelope }, open)))
        }
        Err(problem) => Err(UnreadableFile { digest, file, problem }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Recipient, State, Waiting};

    const BYTES: &[u8] = b"Subject: x\r\n\r\nx\r\n";

    fn queue() -> (tempfile::TempDir, Queue) {
        let folder = tempfile::tempdir().unwrap();
        let queue = Queue::open(&folder.path().join("queue")).unwrap();
        (folder, queue)
    }

    fn envelope(to: &[&str]) -> Envelope {
        let recipient = |to: &&str| Recipient { address: (*to).into(), original: Some(format!("{to} as written")) };
        Envelope {
            sender: "lisa@x".into(),
            queued_at: 0,
            injected_by: "the service".into(),
            may_owe_sent: true,
            reason: Some("worker 7 ended by SIGSEGV".into()),
            size: 0,
            origin: Some(Origin { queue_id: Some("4bXyz".into()), ..Origin::default() }),
            recipients: to.iter().map(recipient).collect(),
        }
    }

    fn record(queue: &Queue, crashes: u32, to: &[&str]) {
        queue.record_crash(Digest::of(BYTES), crashes, envelope(to), BYTES, SystemTime::now()).unwrap();
    }

    fn recipients(queue: &Queue) -> Vec<String> {
        let (found, message) = queue.crashed_message(Digest::of(BYTES)).unwrap().unwrap();
        assert_eq!(message, BYTES);
        found.envelope.recipients.into_iter().map(|recipient| recipient.address).collect()
    }

    #[test]
    fn a_digest_is_the_beginning_of_what_sha256sum_prints() {
        let digest = Digest::of(b"test");
        assert_eq!(digest.to_string(), "9f86d081884c7d65");
        assert_eq!("9f86d081884c7d65".parse(), Ok(digest));
        for wrong in ["", "9f86", "9f86d081884c7d6", "+f86d081884c7d65x", "9f86d081884c7d65a", "zf86d081884c7d65"] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn crashes_are_counted_in_the_name_and_the_first_envelope_stays() {
        let (_folder, queue) = queue();
        record(&queue, 1, &["a@x", "b@x"]);
        let first = queue.crashed().unwrap().remove(0).unwrap();
        assert!(first.crashes == 1 && !first.is_shunted());
        record(&queue, 2, &["c@x"]);
        let second = queue.crashed().unwrap().remove(0).unwrap();
        assert!(second.is_shunted() && second.since == first.since && second.envelope == first.envelope);
        assert_eq!(recipients(&queue), ["a@x", "b@x"]);
        // A lower count, as after a restart, does not lower the stored one.
        record(&queue, 1, &["a@x"]);
        let all = queue.crashed().unwrap();
        assert!(all.len() == 1 && all[0].as_ref().unwrap().crashes == 2);
    }

    #[test]
    fn shunted_messages_are_counted_and_suspects_are_not() {
        let (_folder, queue) = queue();
        let waiting = |queue: &Queue| {
            let all = queue.waiting().unwrap();
            all.into_iter().find(|(state, _)| *state == State::Shunted).unwrap().1
        };
        record(&queue, 1, &["a@x"]);
        assert_eq!(waiting(&queue), Waiting::default());
        record(&queue, 2, &["a@x"]);
        assert!(waiting(&queue).messages == 1 && waiting(&queue).oldest.is_some());
        assert!(queue.list().unwrap().is_empty(), "they are not the queue's");
        assert!(queue.drop_crashed(Digest::of(BYTES)).unwrap() && !queue.drop_crashed(Digest::of(BYTES)).unwrap());
        assert_eq!(waiting(&queue), Waiting::default());
    }

    #[test]
    fn what_was_changed_or_cut_short_is_not_read() {
        let (_folder, queue) = queue();
        record(&queue, 2, &["a@x"]);
        let file = queue.crashed().unwrap().remove(0).unwrap().file;
        let bytes = std::fs::read(&file).unwrap();
        let mut changed = bytes.clone();
        *changed.last_mut().unwrap() ^= 1;
        std::fs::write(&file, changed).unwrap();
        assert!(queue.crashed_message(Digest::of(BYTES)).unwrap_err().to_string().contains("changed"));
        std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
        assert!(queue.crashed().unwrap().remove(0).is_err());
        assert!(queue.crashed_message(Digest::of(BYTES)).is_err());
    }

    #[test]
    fn who_changes_the_folder_waits_for_who_does_so_already() {
        let (_folder, queue) = queue();
        record(&queue, 2, &["a@x"]);
        let another = Queue::existing(queue.path()).unwrap();
        let lock = another.0.shunted.lock_whole().unwrap();
        std::thread::scope(|scope| {
            let drops = scope.spawn(|| queue.drop_crashed(Digest::of(BYTES)).unwrap());
            assert_eq!(another.crashed().unwrap().len(), 1);
            drop(lock);
            assert!(drops.join().unwrap());
        });
    }
}
