//! The file queue, for mail that no Postfix queue holds: one file for each message, until it is delivered. The folder
//! `shunted/` beside it has the messages that crashed workers; their holders, an MTA or this queue, retry them.
//!
//! ```text
//! enqueue ──▶ tmp/ ──▶ new/ ◀──▶ work/ ──▶ (delivered: removed)      bad/      what cannot be read
//!                       ▲ ▼        └─────▶ refused/                  held/     held by an operator, or too old for the ledger
//! ```
//!
//! * **A message is accepted once it is on the disk.** The file is written to `tmp/` and synced, then renamed to `new/`, and
//!   `new/` is synced; only then is the message accepted. If anything fails before, the file is removed.
//! * **A file is never rewritten, and no rename overwrites one** (`RENAME_NOREPLACE`). What changes between attempts is in
//!   its name: see [`Name`].
//! * **A claim is a lock (flock(2)) on the file, and then a rename to `work/`.** So at any moment, a file in `work/` without
//!   a lock is one whose owner is dead. The kernel releases the lock when its process ends: nothing has to expire, and no
//!   clock matters.
//! * **Two files of one lock are never claimed at once**: a runner that finds another file of that lock in `work/` gives its
//!   own back.
//! * **No message is dropped, and none is bounced.** Mail that was refused permanently is kept in `refused/`, unreadable
//!   files in `bad/`, and messages that were tried for longer than the ledger remembers in `held/`. A person decides what
//!   happens to them.
//!
//! A crash may leave a message, or some of its recipients, in two files. The remaining recipients of a partly delivered
//! claim are written to a new file before the old one is removed, because the other order could lose them. Two files are
//! harmless: a second delivery finds the record of the first one in the ledger.

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

pub use crate::message::Recipient;
pub use admin::QueueAdminError;
pub use claim::{Claim, DueList, Settled, Settlement};
pub use envelope::Envelope;
pub use error::QueueError;
pub use listing::{Entry, State, Waiting};
pub use name::{Name, pause_after};
pub use shunted::{CrashedMessage, Digest, MessageHolder, Origin, SHUNTED_AFTER, UnreadableFile};

use crate::base::files::{create_directory, leaves_the_reserve, sync_directory};
use crate::lock::LockName;
use folder::Folder;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// The queue in one folder. Several threads and processes can use one queue at once.
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
    /// Messages that crashed workers. They are not part of the queue: their holder has them as well.
    shunted: Folder,
}

impl Queue {
    /// Opens the queue in this folder, and creates the folders that are missing. For the service, which runs as the queue's
    /// user.
    ///
    /// # Errors
    /// If a folder cannot be created, belongs to another user, or can be written by others; or if root would create one in
    /// another user's folder.
    pub fn open(path: &Path) -> Result<Self, QueueError> {
        let made = |path: &Path| create_directory(path).map_err(|error| QueueError::of_io("making", path, error));
        folder::refuse_root(path)?;
        if !folder::is_there(path) {
            made(path)?;
        }
        // Owner and mode are checked first, so that nothing is created in a folder of another user.
        Folder::open(path.to_owned())?;
        for name in ["tmp", "new", "work", "held", "refused", "bad", "shunted"] {
            let folder = path.join(name);
            if !folder::is_there(&folder) {
                made(&folder)?;
            }
        }
        // Even if all folders exist: the process that created them may have been killed before it synced them.
        sync_directory(path).map_err(|error| QueueError::of_io("syncing", path, error))?;
        Self::existing(path)
    }

    /// Opens the queue in this folder, and creates nothing. For people who list messages, or hold, release or drop one.
    ///
    /// # Errors
    /// [`QueueError::NoQueue`] if there is none. Also if a folder belongs to another user (except for root) or can be
    /// written by others.
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

    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Accepts a message. `lock` is the lock that its deliveries take; messages of one lock are never delivered at once. The
    /// envelope's size and time are set here.
    ///
    /// Once this returns a name, the message survives any crash, and the caller must report it as accepted.
    ///
    /// # Errors
    /// If the message was not accepted; then its file has been removed. [`QueueError::is_no_space`] is true if only the
    /// reserve for other programs is left on the disk. If the disk fails so badly that the file can neither be synced nor
    /// removed, the message may still be delivered.
    pub fn enqueue(
        &self,
        lock: &LockName,
        envelope: Envelope,
        message: &[u8],
        now: SystemTime,
    ) -> Result<Name, QueueError> {
        if envelope.recipients.is_empty() {
            return Err(QueueError::NoRecipient);
        }
        // The reserve is checked only here, so that accepted messages are still settled when the disk is nearly full.
        leaves_the_reserve(&self.0.path, message.len() as u64)
            .map_err(|error| QueueError::of_io("writing below", &self.0.path, error))?;
        let name = Name::new(now, lock);
        let envelope = Envelope { queued_at: name.accepted_at(), size: message.len() as u64, ..envelope };
        self.0.write(&envelope, message, &self.0.new, name)
    }
}

impl Folders {
    /// Each folder of the queue's messages, with the state of the messages in it.
    fn all(&self) -> [(State, &Folder); 5] {
        [State::New, State::Work, State::Held, State::Refused, State::Bad].map(|state| (state, self.folder(state)))
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

    /// Writes a message into a folder, under this name or the next free one.
    fn write(&self, envelope: &Envelope, message: &[u8], to: &Folder, name: Name) -> Result<Name, QueueError> {
        self.tmp.write(&[&envelope.written()?, message])?.place(to, name)
    }
}

#[cfg(test)]
mod tests;
