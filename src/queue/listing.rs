//! Lists the messages in the queue. Listing takes no lock, so runners continue meanwhile.

use super::envelope::LONGEST;
use super::folder::{Folder, NameKind};
use super::{Envelope, Folders, Name, Queue, QueueError, SHUNTED_AFTER};
use crate::base::text_enum::text_enum;
use crate::base::timestamp;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;

text_enum! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum State {
        /// Waits for a runner, or for the next attempt.
        New = "new",
        /// A runner is delivering the message.
        Work = "work",
        /// Held by an operator, or because the ledger may have pruned its delivery.
        Held = "held",
        /// Refused permanently.
        Refused = "refused",
        /// The file cannot be read.
        Bad = "bad",
        /// Has crashed two workers. Its [holder](super::MessageHolder) retries it; the queue's own list does not contain it.
        Shunted = "shunted",
    }
}

/// One message of the queue, or a foreign file in its folders, which no runner touches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The id by which people hold, release and drop the message.
    pub id: String,
    pub file: String,
    pub state: State,
    /// When it was accepted, in microseconds since 1970.
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub queued_at: Option<i64>,
    /// The size of the message in bytes.
    pub size: Option<u64>,
    pub sender: Option<String>,
    pub recipients: Vec<String>,
    pub injected_by: Option<String>,
    /// How often it was tried and deferred.
    pub tries: u32,
    /// The earliest moment of the next attempt, in microseconds since 1970.
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub next_try: Option<i64>,
    /// Why the message was refused or moved to `bad/`, or why the file does not belong to the queue.
    pub reason: Option<String>,
}

/// The messages of one folder, counted by their names alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    pub messages: usize,
    /// When the oldest of them was accepted, in microseconds since 1970.
    pub oldest: Option<i64>,
}

impl Queue {
    /// All messages, by folder, the oldest first. Every message that stays in its folder is listed. One that moves meanwhile
    /// is listed once in nearly all cases.
    ///
    /// # Errors
    /// If a folder cannot be read. A file that cannot be read is listed with the reason.
    pub fn list(&self) -> Result<Vec<Entry>, QueueError> {
        let folders = &*self.0;
        let mut entries = BTreeMap::new();
        for (state, folder) in folders.all_read_twice() {
            for file in folder.names()? {
                if let Some((inode, entry)) = folders.entry(state, &file)? {
                    // The key is the inode, which a rename keeps, so that a message that moved is listed once. Without an
                    // inode the path is enough: no runner moves an entry that is not a file or cannot be opened.
                    let key =
                        inode.map_or_else(|| (0, format!("{state}/{}", entry.file)), |inode| (inode, String::new()));
                    entries.insert(key, entry);
                }
            }
        }
        let mut entries: Vec<Entry> = entries.into_values().collect();
        entries.sort_by(|a, b| (a.state, &a.id).cmp(&(b.state, &b.id)));
        Ok(entries)
    }

    /// What is left of the message with this id, which was accepted for so many recipients: the message itself, or the parts of
    /// it that still wait or were refused. Only their files are opened.
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub(crate) fn parts_of(&self, id: &str, recipients: usize) -> Result<Vec<Entry>, QueueError> {
        let folders = &*self.0;
        let mut parts = Vec::new();
        for (state, folder) in folders.all_read_twice() {
            for name in folder.messages()?.iter().filter(|name| name.is_part_of(id, recipients)) {
                let entry = folders.entry(state, OsStr::new(&name.to_string()))?;
                parts.extend(entry.map(|(_, entry)| entry));
            }
        }
        Ok(parts)
    }

    /// The bytes of all messages in the listed folders, by submitter. Each file is opened; one that moves meanwhile may
    /// count twice.
    ///
    /// # Errors
    /// If a folder cannot be read. A file that cannot be read is not counted.
    pub fn bytes_by_submitter(&self) -> Result<HashMap<String, u64>, QueueError> {
        let mut bytes: HashMap<String, u64> = HashMap::new();
        for (state, folder) in self.0.all() {
            for file in folder.names()? {
                let Some((_, Entry { injected_by: Some(bringer), size: Some(size), .. })) =
                    self.0.entry(state, &file)?
                else {
                    continue;
                };
                let sum = bytes.entry(bringer).or_default();
                *sum = sum.saturating_add(size);
            }
        }
        Ok(bytes)
    }

    /// Half of the size of the queue's file system, in bytes; `u64::MAX` if that reports no size.
    ///
    /// # Errors
    /// If the system call statvfs(3) fails.
    pub fn half_of_the_disk(&self) -> Result<u64, QueueError> {
        let path = self.path();
        let system = rustix::fs::statvfs(path).map_err(|errno| QueueError::of("examining", path, errno))?;
        Ok(system.f_blocks.checked_mul(system.f_frsize).filter(|all| *all > 0).map_or(u64::MAX, |all| all / 2))
    }

    /// How many messages there are in each folder, and when the oldest was accepted, by their names alone.
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub fn waiting(&self) -> Result<Vec<(State, Waiting)>, QueueError> {
        let waiting = |(state, folder): (State, &Folder)| {
            let names = folder.messages()?;
            let counts = |name: &&Name| state != State::Shunted || name.tries >= SHUNTED_AFTER;
            let oldest = names.iter().filter(counts).map(|name| name.accepted_at()).min();
            Ok((state, Waiting { messages: names.iter().filter(counts).count(), oldest }))
        };
        self.0.all().into_iter().chain([(State::Shunted, &self.0.shunted)]).map(waiting).collect()
    }
}

impl Folders {
    /// All folders. Messages move between `new/` and `work/` in both directions: their second read finds a message that was claimed
    /// or put back during the first.
    fn all_read_twice(&self) -> impl Iterator<Item = (State, &Folder)> {
        self.all().into_iter().chain([(State::New, &self.new), (State::Work, &self.work)])
    }

    /// What a name in a folder stands for, with the inode of its file. `None` if it is gone.
    fn entry(&self, state: State, file: &OsStr) -> Result<Option<(Option<u64>, Entry)>, QueueError> {
        let mut inode = None;
        let shown = file.to_string_lossy().into_owned();
        let name = Name::read(&shown);
        let mut entry = Entry {
            id: name.map_or_else(|| shown.clone(), |name| name.id()),
            queued_at: name.map(|name| name.accepted_at()),
            size: None,
            sender: None,
            recipients: Vec::new(),
            injected_by: None,
            tries: name.map_or(0, |name| name.tries),
            next_try: name.and_then(|name| name.next_try()),
            reason: None,
            file: shown,
            state,
        };
        let folder = self.folder(state);
        match folder.find(file) {
            Ok(NameKind::Gone) => return Ok(None),
            Ok(NameKind::NoFile(kind)) => {
                entry.reason = Some(format!("{kind}, and no file: the queue leaves it alone"))
            }
            Ok(NameKind::File(open)) => {
                inode = open.metadata().ok().map(|metadata| metadata.ino());
                match read_envelope(&open) {
                    Ok(Ok(envelope)) => entry.has(envelope),
                    Ok(Err(unreadable)) => entry.reason = Some(unreadable),
                    Err(error) => {
                        let error = QueueError::of_io("reading", &folder.path.join(file), error);
                        entry.reason = Some(error.to_string());
                    }
                }
            }
            // Such a file may belong to another user, for example. The others can still be listed.
            Err(error) => entry.reason = Some(error.to_string()),
        }
        if state == State::Bad && entry.reason.is_none() {
            entry.reason = Some("it can be read: only its name was none of the queue's".into());
        }
        Ok(Some((inode, entry)))
    }
}

impl Entry {
    fn has(&mut self, envelope: Envelope) {
        self.size = Some(envelope.size);
        self.sender = Some(envelope.sender);
        self.recipients = envelope.recipients.into_iter().map(|recipient| recipient.address).collect();
        self.injected_by = Some(envelope.injected_by);
        self.reason = envelope.reason;
    }
}

/// The envelope at the beginning of a file if the whole message follows it; otherwise what is wrong with the file.
pub(super) fn read_envelope(file: &File) -> std::io::Result<Result<Envelope, String>> {
    let mut beginning = Vec::new();
    // Most envelopes end within the first of these lengths.
    for length in [4096, LONGEST as u64] {
        file.take(length.saturating_sub(beginning.len() as u64)).read_to_end(&mut beginning)?;
        if let Ok((envelope, at)) = Envelope::read(&beginning) {
            let message = file.metadata()?.len().saturating_sub(at as u64);
            return Ok(envelope.check_size(message).map(|()| envelope).map_err(|unreadable| unreadable.to_string()));
        }
    }
    Ok(Envelope::read(&beginning).map(|(envelope, _)| envelope).map_err(|unreadable| unreadable.to_string()))
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for State {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).filter(|state| *state != Self::Shunted).ok_or("it is new, work, held, refused or bad")
    }
}
