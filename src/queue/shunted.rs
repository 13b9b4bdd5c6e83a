//! Messages that have ended workers: what is remembered of each (`suspects/`), and copies of those that were set aside
//! (`shunted/`), all under the SHA-256 of their bytes.
//!
//! ```text
//! suspects/<SHA-256>    one line of JSON: the deaths, and when it was tried last
//! shunted/<SHA-256>     one line of JSON: the envelopes, and why; then the message's bytes as they came
//! ```
//!
//! Each file is written whole under another name, synced, and renamed: there is the old one or the new one. The service writes them;
//! people remove copies.

use super::QueueError;
use super::folder::{self, Folder, Found};
use super::moment;
use super::recover::remove_unlocked;
use crate::base::files::{create_directory, sync_directory};
use crate::base::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The longest first line of a file, in bytes.
const LONGEST: u64 = 1 << 22;
/// How many digits of a digest people are shown.
const SHOWN: usize = 16;
/// How few of them are enough to name a copy by.
const FEWEST: usize = 4;

/// The SHA-256 of a message's bytes, by which it is known again at its next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// A death of a worker that had nothing but this message in hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Death {
    /// In microseconds since 1970.
    #[serde(with = "moment")]
    pub at: i64,
    /// The signal that it ended by.
    pub signal: i32,
    /// Its process id, by which the log tells of it.
    pub pid: u32,
    /// Postfix's queue id, or the file queue's, of the try.
    pub queue_id: Option<String>,
    /// How far the delivery had come, where the worker was told to say so.
    pub stage: Option<String>,
    /// The last lines that it wrote to standard error, oldest first.
    pub said: Vec<String>,
}

/// What is remembered of a message that has ended a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    /// The message's size in bytes: no other can be it.
    pub size: u64,
    /// When it first ended a worker, in microseconds since 1970.
    #[serde(with = "moment")]
    pub since: i64,
    /// How many deaths count.
    pub counted: u32,
    /// The last few deaths, oldest first; those that do not count, too.
    pub deaths: Vec<Death>,
    /// When it last had a worker of its own, in microseconds since 1970.
    #[serde(with = "moment::optional")]
    pub tried_at: Option<i64>,
}

/// Who has a message besides us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Behind {
    /// A mail system that tries again.
    #[default]
    Mta,
    /// Our file queue, and nobody else.
    Queue,
}

/// What a message came with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShuntedEnvelope {
    pub sender: String,
    /// Those to whom it has not been delivered yet, as far as we know.
    pub recipients: Vec<ShuntedRecipient>,
    pub queue_id: Option<String>,
    pub client_address: Option<String>,
    pub sasl_username: Option<String>,
    pub no_sent: bool,
    pub behind: Behind,
}

/// One envelope recipient.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShuntedRecipient {
    pub address: String,
    /// Before any rewriting.
    pub original: Option<String>,
}

/// A message that was set aside, but for its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shunted {
    /// The message's size in bytes.
    pub size: u64,
    /// When it first ended a worker, in microseconds since 1970.
    #[serde(with = "moment")]
    pub since: i64,
    /// When it was set aside.
    #[serde(with = "moment")]
    pub set_aside_at: i64,
    /// Why: the deaths, oldest first.
    pub deaths: Vec<Death>,
    /// What it came with: by pipe(8) each recipient comes with an envelope of its own.
    pub envelopes: Vec<ShuntedEnvelope>,
}

/// What is in one of the folders.
#[derive(Debug)]
pub struct ShuntedFiles<T> {
    pub read: Vec<(Digest, T)>,
    pub unreadable: Vec<UnreadableCopy>,
}

/// A file that is none of ours, or cannot be read.
#[derive(Debug, Error)]
#[error("{}: {problem}", path.display())]
pub struct UnreadableCopy {
    pub path: PathBuf,
    pub problem: String,
    /// What the system said, where it did not let us read: that says nothing about the file. `None`: it was read, and is damaged.
    #[source]
    pub refused: Option<QueueError>,
}

/// Why a copy was not found by what a person calls it.
#[derive(Debug, Error)]
pub enum NoSuchCopy {
    #[error("no message that was set aside is called {0}")]
    None(String),
    #[error("{0} may be several messages: give more of its digits")]
    Several(String),
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error(transparent)]
    Unreadable(#[from] UnreadableCopy),
}

/// The two folders.
#[derive(Debug)]
pub struct ShuntedStore {
    suspects: Folder,
    shunted: Folder,
}

impl Digest {
    /// Before and after all others.
    pub const FIRST: Self = Self([0; 32]);
    pub const LAST: Self = Self([u8::MAX; 32]);

    #[must_use]
    pub fn of(message: &[u8]) -> Self {
        Self(Sha256::digest(message).into())
    }

    /// The same of what is in a file.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn of_file(mut file: impl Read) -> io::Result<Self> {
        let (mut hash, mut buffer) = (Sha256::new(), vec![0; 64 << 10]);
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(Self(hash.finalize().into())),
                Ok(length) => hash.update(buffer.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// What people call the message by.
    #[must_use]
    pub fn id(&self) -> String {
        let mut id = self.to_string();
        id.truncate(SHOWN);
        id
    }

    fn read(name: &OsStr) -> Option<Self> {
        let name = name.to_str().filter(|name| !name.contains(|c: char| c.is_ascii_uppercase()))?;
        hex::decode(name)?.try_into().ok().map(Self)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl ShuntedStore {
    /// Opens the folders below the service's state directory, and makes what is missing: for the service, as its own user.
    ///
    /// # Errors
    /// Where they cannot be had, or belong to somebody else.
    pub fn open(state_directory: &Path) -> Result<Self, QueueError> {
        folder::refuse_root(state_directory)?;
        for folder in folders(state_directory) {
            if !folder::is_there(&folder) {
                create_directory(&folder).map_err(|error| QueueError::of_io("making", &folder, error))?;
            }
        }
        sync_directory(state_directory).map_err(|error| QueueError::of_io("syncing", state_directory, error))?;
        let store = Self::existing(state_directory)?;
        // What was not finished when its writer was killed.
        for folder in [&store.suspects, &store.shunted] {
            for name in folder.names()? {
                remove_unlocked(folder, &name)?;
            }
        }
        Ok(store)
    }

    /// Opens the folders, and makes nothing: for people.
    ///
    /// # Errors
    /// [`QueueError::NoQueue`] where no service has made them yet.
    pub fn existing(state_directory: &Path) -> Result<Self, QueueError> {
        let [suspects, shunted] = folders(state_directory);
        Ok(Self { suspects: Folder::open(suspects)?, shunted: Folder::open(shunted)? })
    }

    /// What is remembered; and what cannot be read.
    ///
    /// # Errors
    /// Where the folder cannot be read.
    pub fn suspects(&self) -> Result<ShuntedFiles<Suspect>, QueueError> {
        read_all(&self.suspects, |digest| self.suspect(digest))
    }

    /// What is remembered of one message.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn suspect(&self, digest: &Digest) -> Result<Option<Suspect>, UnreadableCopy> {
        let first_line = first_line(&self.suspects, digest)?;
        first_line.map(|Opened { line, .. }| parsed(&self.suspects, digest, &line)).transpose()
    }

    /// Writes down what is to be remembered.
    ///
    /// # Errors
    /// Where it could not be: what was there before still is.
    pub fn remember(&self, digest: &Digest, suspect: &Suspect) -> Result<(), QueueError> {
        self.suspects.write(&[&line(suspect)?])?.place_over(&self.suspects, &digest.to_string())
    }

    /// Removes it.
    ///
    /// # Errors
    /// Where it could not be.
    pub fn forget(&self, digest: &Digest) -> Result<(), QueueError> {
        if self.suspects.remove(digest.to_string().as_str())? {
            self.suspects.sync()?;
        }
        Ok(())
    }

    /// The messages that are set aside; and what cannot be read.
    ///
    /// # Errors
    /// Where the folder cannot be read.
    pub fn shunted(&self) -> Result<ShuntedFiles<Shunted>, QueueError> {
        read_all(&self.shunted, |digest| self.header(digest))
    }

    /// Which messages are set aside, by their names alone.
    ///
    /// # Errors
    /// Where the folder cannot be read.
    pub fn digests(&self) -> Result<Vec<Digest>, QueueError> {
        Ok(self.shunted.names()?.iter().filter_map(|name| Digest::read(name)).collect())
    }

    /// A message that is set aside, but for its bytes. `None` where it is not.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn header(&self, digest: &Digest) -> Result<Option<Shunted>, UnreadableCopy> {
        let Some(Opened { line, rest }) = first_line(&self.shunted, digest)? else { return Ok(None) };
        let shunted: Shunted = parsed(&self.shunted, digest, &line)?;
        let found = rest.get_ref().metadata().map_err(|error| unread(&self.shunted, digest, error))?.len();
        if found != line.len() as u64 + shunted.size {
            return Err(damaged(&self.shunted, digest, "it is of another size than it says"));
        }
        Ok(Some(shunted))
    }

    /// A message that is set aside, and its bytes: those that it was set aside for.
    ///
    /// # Errors
    /// Where it cannot be read, or has been changed.
    pub fn read(&self, digest: &Digest) -> Result<Option<(Shunted, Vec<u8>)>, UnreadableCopy> {
        let Some(shunted) = self.header(digest)? else { return Ok(None) };
        let Some(Opened { mut rest, .. }) = first_line(&self.shunted, digest)? else { return Ok(None) };
        let mut message = Vec::new();
        rest.read_to_end(&mut message).map_err(|error| unread(&self.shunted, digest, error))?;
        if Digest::of(&message) != *digest {
            return Err(damaged(&self.shunted, digest, "its bytes are not those that were set aside"));
        }
        Ok(Some((shunted, message)))
    }

    /// Sets a message aside; or, where it is so already, adds what it came with this time. Whether there was anything to write.
    ///
    /// # Errors
    /// Where it could not be written, or what is there could not be read: it still is there. [`QueueError::is_no_space`] tells whether it
    /// was for want of room.
    pub fn set_aside(&self, digest: &Digest, new: Shunted, message: &[u8]) -> Result<bool, QueueError> {
        let shunted = match self.header(digest) {
            Ok(Some(known)) => {
                let mut all = known.clone();
                new.envelopes.into_iter().for_each(|envelope| all.add(envelope));
                if all == known {
                    return Ok(false);
                }
                all
            }
            // It may know recipients who do not come again: the next try brings this anew.
            Err(UnreadableCopy { refused: Some(error), .. }) => return Err(error),
            // What is damaged is of no use to anybody: this is.
            Ok(None) | Err(UnreadableCopy { refused: None, .. }) => new,
        };
        self.write(digest, &shunted, message)?;
        Ok(true)
    }

    /// It was delivered to these recipients. Whether a copy remains, for others.
    ///
    /// # Errors
    /// Where it cannot be read or written: then all of it is still there.
    pub fn delivered(&self, digest: &Digest, sender: &str, to: &[String]) -> Result<bool, NoSuchCopy> {
        let Some((mut shunted, message)) = self.read(digest)? else { return Ok(false) };
        let before = shunted.clone();
        for envelope in shunted.envelopes.iter_mut().filter(|envelope| envelope.sender == sender) {
            envelope.recipients.retain(|recipient| !to.contains(&recipient.address));
        }
        shunted.envelopes.retain(|envelope| !envelope.recipients.is_empty());
        if shunted.envelopes.is_empty() {
            self.drop_copy(digest)?;
            return Ok(false);
        }
        if shunted != before {
            self.write(digest, &shunted, &message)?;
        }
        Ok(true)
    }

    /// Removes a copy. Whether there was one.
    ///
    /// # Errors
    /// Where it could not be.
    pub fn drop_copy(&self, digest: &Digest) -> Result<bool, QueueError> {
        let removed = self.shunted.remove(digest.to_string().as_str())?;
        if removed {
            self.shunted.sync()?;
        }
        Ok(removed)
    }

    /// The message that a person calls by the first digits of its digest.
    ///
    /// # Errors
    /// Where there is none, or more than one.
    pub fn find(&self, id: &str) -> Result<Digest, NoSuchCopy> {
        let called = |digest: &Digest| id.len() >= FEWEST && digest.to_string().starts_with(&id.to_ascii_lowercase());
        let mut found = self.digests()?.into_iter().filter(called);
        match (found.next(), found.next()) {
            (Some(digest), None) => Ok(digest),
            (None, _) => Err(NoSuchCopy::None(id.into())),
            (Some(_), Some(_)) => Err(NoSuchCopy::Several(id.into())),
        }
    }

    /// Where the copy of a message is.
    #[must_use]
    pub fn path(&self, digest: &Digest) -> PathBuf {
        self.shunted.path.join(digest.to_string())
    }

    fn write(&self, digest: &Digest, shunted: &Shunted, message: &[u8]) -> Result<(), QueueError> {
        self.shunted.write(&[&line(shunted)?, message])?.place_over(&self.shunted, &digest.to_string())
    }
}

impl Shunted {
    /// Adds what it came with this time, but for what is known already.
    fn add(&mut self, mut envelope: ShuntedEnvelope) {
        let known = |recipient: &ShuntedRecipient| {
            let same = self.envelopes.iter().filter(|known| known.is_like(&envelope));
            same.flat_map(|known| &known.recipients).any(|known| known == recipient)
        };
        let new: Vec<_> = envelope.recipients.iter().filter(|recipient| !known(recipient)).cloned().collect();
        if new.is_empty() {
            return;
        }
        envelope.recipients = new;
        match self.envelopes.iter_mut().find(|known| known.is_like(&envelope)) {
            Some(known) => known.recipients.append(&mut envelope.recipients),
            None => self.envelopes.push(envelope),
        }
    }

    /// Whether a mail system has all of it, too.
    #[must_use]
    pub fn has_mta_behind(&self) -> bool {
        self.envelopes.iter().all(|envelope| envelope.behind == Behind::Mta)
    }
}

impl ShuntedEnvelope {
    /// Whether two differ in nothing but their recipients.
    fn is_like(&self, other: &Self) -> bool {
        let mut same = other.clone();
        same.recipients.clone_from(&self.recipients);
        *self == same
    }
}

fn folders(state_directory: &Path) -> [PathBuf; 2] {
    ["suspects", "shunted"].map(|name| state_directory.join(name))
}

/// A first line. Nothing is written that could not be read again.
fn line(what: &impl Serialize) -> Result<Vec<u8>, QueueError> {
    let mut line = serde_json::to_vec(what).map_err(|error| QueueError::Envelope { problem: error.to_string() })?;
    line.push(b'\n');
    if line.len() as u64 > LONGEST {
        return Err(QueueError::Envelope { problem: format!("it is longer than {LONGEST} bytes") });
    }
    Ok(line)
}

fn damaged(folder: &Folder, digest: &Digest, problem: &str) -> UnreadableCopy {
    UnreadableCopy { path: folder.path.join(digest.to_string()), problem: problem.into(), refused: None }
}

fn unread(folder: &Folder, digest: &Digest, error: io::Error) -> UnreadableCopy {
    let UnreadableCopy { path, problem, .. } = damaged(folder, digest, &error.to_string());
    let refused = Some(QueueError::of_io("reading", &path, error));
    UnreadableCopy { path, problem, refused }
}

/// A file of ours: its first line, with its end, and what comes behind it.
struct Opened {
    line: Vec<u8>,
    rest: BufReader<File>,
}

fn first_line(folder: &Folder, digest: &Digest) -> Result<Option<Opened>, UnreadableCopy> {
    let found = folder.find(digest.to_string().as_str());
    let not_found =
        |error: QueueError| UnreadableCopy { refused: Some(error), ..damaged(folder, digest, "it cannot be opened") };
    let file = match found.map_err(not_found)? {
        Found::File(file) => file,
        Found::NoFile(kind) => return Err(damaged(folder, digest, &format!("it is {kind}"))),
        Found::Gone => return Ok(None),
    };
    let (mut line, mut rest) = (Vec::new(), BufReader::new(file));
    let read = rest.by_ref().take(LONGEST).read_until(b'\n', &mut line);
    read.map_err(|error| unread(folder, digest, error))?;
    Ok(Some(Opened { line, rest }))
}

fn parsed<T: for<'de> Deserialize<'de>>(folder: &Folder, digest: &Digest, line: &[u8]) -> Result<T, UnreadableCopy> {
    let line = line.strip_suffix(b"\n").ok_or_else(|| damaged(folder, digest, "it is cut short"))?;
    serde_json::from_slice(line).map_err(|error| damaged(folder, digest, &error.to_string()))
}

fn read_all<T>(
    folder: &Folder,
    read: impl Fn(&Digest) -> Result<Option<T>, UnreadableCopy>,
) -> Result<ShuntedFiles<T>, QueueError> {
    let mut files = ShuntedFiles { read: Vec::new(), unreadable: Vec::new() };
    for name in folder.names()? {
        let Some(digest) = Digest::read(&name) else { continue };
        match read(&digest) {
            Ok(Some(one)) => files.read.push((digest, one)),
            Ok(None) => {}
            Err(unreadable) => files.unreadable.push(unreadable),
        }
    }
    Ok(files)
}

#[cfg(test)]
#[path = "shunted_tests.rs"]
mod tests;
