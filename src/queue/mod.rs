//! The file queue: mail that has no Postfix behind it, a file for each message, until it is delivered. Beside it, in `shunted/`,
//! messages that crashed workers, which their holders try again.
//!
//! ```text
//! enqueue ──▶ tmp/ ──▶ new/ ◀──▶ work/ ──▶ (delivered: removed)      bad/      what cannot be read
//!                       ▲ ▼        └─────▶ refused/                  held/     what an operator holds back, or may have been delivered longer ago than the ledger remembers
//! ```
//!
//! * **Accepted is what is on the disk.** A message is written to `tmp/` and synced, renamed to `new/`, and `new/` is
//!   synced; only then is it accepted. Whatever fails before, nothing is there.
//! * **A file is never rewritten, and no rename overwrites one** (`RENAME_NOREPLACE`). What changes from try to try is
//!   in its name: see [`Name`].
//! * **A claim is a rename to `work/` and a lock (flock(2)) on the file.** The lock comes first, so a file in `work/`
//!   that nobody has locked is one whose owner is gone, at any moment. The kernel frees the lock with its process;
//!   nothing has to expire, and no clock counts.
//! * **Two files of one lock are never claimed at once**: a runner that finds another one of it in `work/` gives its
//!   own back.
//! * **Nothing is dropped, and nothing is bounced.** What was refused for good is kept in `refused/`, what cannot be
//!   read in `bad/`, what was tried for longer than the ledger remembers in `held/`, until a person says what is to become
//!   of it.
//!
//! A crash may leave a message, or some of its recipients, in two files: a claim that was partly delivered is written
//! anew, with the recipients that remain, before the old file is removed. The other order could lose them. Twice is
//! harmless: the ledger knows what was delivered, and a second delivery of it finds it there already.

mod admin;
mod claim;
#[cfg(test)]
mod claim_tests;
#[cfg(test)]
mod crash_tests;
mod envelope;
mod error;
mod folder;
#[cfg(test)]
mod interleaving_tests;
mod listing;
#[cfg(test)]
mod model_tests;
mod name;
mod recover;
mod shunted;

pub use admin::ByHandError;
pub use claim::{Claim, Listed, Settled, Settlement};
pub use envelope::{Envelope, Recipient};
pub use error::QueueError;
pub use listing::{Counts, Entry, State, Waiting};
pub use name::{Name, pause_after};
pub use recover::Recovered;
pub use shunted::{CrashedMessage, Digest, MessageHolder, Origin, SHUNTED_AFTER, UnreadableFile};

use crate::base::files::{create_directory, leaves_the_reserve, sync_directory};
use crate::lock::LockName;
use folder::Folder;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// The queue in one folder. It can be cloned, and used by several threads and processes at once.
#[derive(Clone, Debug)]
pub struct Queue(Arc<Folders>);

#[derive(Debug)]
struct Folders {
    path: PathBuf,
    tmp: Folder,
    new: Folder,
    work: Folder,
    held: Folder,
    refused: Folder,
    bad: Folder,
    /// Messages that crashed workers: none of the queue's states.
    shunted: Folder,
}

/// Mail to be queued.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewMail {
    /// The envelope sender; empty for the null sender.
    pub sender: String,
    /// At least one.
    pub recipients: Vec<Recipient>,
    /// Who brings it.
    pub injected_by: String,
    /// Whether the sender's Sent mailbox may get a copy.
    pub may_owe_sent: bool,
    /// Whether who brings it vouches for the sender.
    pub vouches: bool,
}

impl Queue {
    /// Opens the queue in this folder, and makes what is missing of it: for the service, as its own user.
    ///
    /// # Errors
    /// Where a folder cannot be made, or would belong to root in another user's folder, where it belongs to somebody
    /// else or can be written by others; where the folders are not on one file system
    /// ([`QueueError::AnotherFileSystem`]), or that cannot rename without overwriting.
    pub fn open(path: &Path) -> Result<Self, QueueError> {
        let made = |path: &Path| create_directory(path).map_err(|error| QueueError::of_io("making", path, error));
        folder::refuse_root(path)?;
        if !folder::is_there(path) {
            made(path)?;
        }
        // Its owner and its mode come first: nothing is made in a folder of somebody else.
        Folder::open(path.to_owned())?;
        for name in ["tmp", "new", "work", "held", "refused", "bad", "shunted"] {
            let folder = path.join(name);
            if !folder::is_there(&folder) {
                made(&folder)?;
            }
        }
        // Where a process that made them was killed before it had synced them.
        sync_directory(path).map_err(|error| QueueError::of_io("syncing", path, error))?;
        let queue = Self::existing(path)?;
        let Folders { tmp, new, work, held, refused, bad, .. } = &*queue.0;
        folder::prove_renames(tmp, &[new, work, held, refused, bad])?;
        Ok(queue)
    }

    /// Opens the queue in this folder, and makes nothing: for people, who look at it or hold, release or drop a
    /// message.
    ///
    /// # Errors
    /// [`QueueError::NoQueue`] where there is none, and where it belongs to somebody else or can be written by others.
    /// Root may look after everybody's.
    pub fn existing(path: &Path) -> Result<Self, QueueError> {
        Folder::open(path.to_owned())?;
        let open = |name: &str| Folder::open(path.join(name));
        Ok(Self(Arc::new(Folders {
            path: path.to_owned(),
            tmp: open("tmp")?,
            new: open("new")?,
            work: open("work")?,
            held: open("held")?,
            refused: open("refused")?,
            bad: open("bad")?,
            shunted: open("shunted")?,
        })))
    }

    /// The folder that it is in.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Takes a message in. `lock` is the lock that its deliveries take; messages of one lock are never delivered at
    /// once.
    ///
    /// Once this has returned its name, the message is there, whatever happens: it must be answered for as accepted.
    ///
    /// # Errors
    /// Nothing was accepted, and nothing is left of it. [`QueueError::is_no_space`] says whether the disk is full, or would be but
    /// for what is kept free for others. (Where the disk fails so badly that what was written can neither be synced nor removed, it may be
    /// delivered all the same.)
    pub fn enqueue(&self, lock: &LockName, mail: NewMail, message: &[u8], now: SystemTime) -> Result<Name, QueueError> {
        let NewMail { sender, recipients, injected_by, may_owe_sent, vouches } = mail;
        if recipients.is_empty() {
            return Err(QueueError::NoRecipient);
        }
        // What was accepted before is still moved and settled where this is refused.
        leaves_the_reserve(&self.0.path, message.len() as u64)
            .map_err(|error| QueueError::of_io("writing below", &self.0.path, error))?;
        let name = Name::new(now, lock);
        let envelope = Envelope {
            sender,
            queued_at: name.accepted_at(),
            injected_by,
            may_owe_sent,
            vouches,
            reason: None,
            size: message.len() as u64,
            origin: None,
            recipients,
        };
        self.0.write(&envelope, message, &self.0.new, name)
    }
}

impl Folders {
    /// Each folder in which a message can be, with what its being there means.
    fn all(&self) -> [(State, &Folder); 5] {
        [
            (State::New, &self.new),
            (State::Work, &self.work),
            (State::Held, &self.held),
            (State::Refused, &self.refused),
            (State::Bad, &self.bad),
        ]
    }

    fn folder(&self, state: State) -> &Folder {
        match state {
            State::New => &self.new,
            State::Work => &self.work,
            State::Held => &self.held,
            State::Refused => &self.refused,
            State::Bad => &self.bad,
            State::Shunted => &self.shunted,
        }
    }

    /// Writes a message into a folder, by this name or the next one that is free.
    fn write(&self, envelope: &Envelope, message: &[u8], to: &Folder, name: Name) -> Result<Name, QueueError> {
        let written = self.tmp.write(&[&envelope.written()?, message])?;
        // By its name a message is held, released and dropped. A clock that was set back could give it the name of one
        // that is in another folder by now.
        let mut name = name;
        while self.knows(name)? {
            name = name.later();
        }
        written.place(to, name)
    }

    /// Whether a message has this name, in any folder.
    fn knows(&self, name: Name) -> Result<bool, QueueError> {
        let name = name.to_string();
        for (_, folder) in self.all() {
            if folder.has(&name)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
