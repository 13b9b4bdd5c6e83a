//! Cleans up after dead processes, at the start of a runner and once a minute. It also holds messages whose delivery the ledger
//! may have forgotten.

use super::admin::rename_durably;
use super::folder::Folder;
use super::{Folders, Name, Queue, QueueError};
use crate::lock::LockName;
use std::ffi::OsStr;
use std::time::{Duration, SystemTime};
use tracing::{info, warn};
use uuid::Uuid;

impl Queue {
    /// Cleans up after dead processes. This may run at any time, beside any other operation.
    ///
    /// A claim of a dead process goes back to `new/` unchanged, because the death of its runner says nothing about the
    /// message. But the message may have been delivered, which the ledger records only for `remembered`. So a claim that was
    /// due longer ago is held until a person releases it.
    ///
    /// The time in the name counts, because only the file's own times say when it was claimed, and a backup changes those.
    ///
    /// # Errors
    /// If a system call fails; what was cleaned up before stays so.
    pub fn recover(&self, now: SystemTime, remembered: Duration) -> Result<(), QueueError> {
        let (folders, mut failed) = (&*self.0, None);
        // One failure does not stop the rest of the clean-up.
        let mut note = |done: Result<(), QueueError>| {
            if let Err(error) = done {
                warn!(%error, "something in the queue cannot be put right");
                failed.get_or_insert(error);
            }
        };
        for name in folders.work.messages()? {
            note(if name.overdue(now) > remembered { folders.hold_back(name) } else { folders.bring_back(name) });
        }
        for (_, folder) in folders.all() {
            for name in folder.names()? {
                note(folders.move_foreign_file_to_bad(folder, &name, now));
            }
        }
        for name in folders.tmp.names()? {
            note(remove_unlocked(&folders.tmp, &name));
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Folders {
    /// Moves a claim back to `new/` if its owner is dead.
    fn bring_back(&self, name: Name) -> Result<(), QueueError> {
        if self.take_over(name, &self.new)? {
            info!(message = name.id(), "the claim of a runner that is gone came back");
        }
        Ok(())
    }

    /// Moves a claim to `held/`, where no runner tries it, if its owner is dead.
    fn hold_back(&self, name: Name) -> Result<(), QueueError> {
        if self.take_over(name, &self.held)? {
            warn!(
                message = name.id(),
                "the claim of a runner that is gone is held: it may have been delivered longer ago than the ledger remembers. \
                 `maildrop_command queue show` says what it is, and `queue release`, with --again if it asks for that, has it delivered"
            );
            self.held.sync()?;
        }
        Ok(())
    }

    /// Moves a message that waits for a further attempt to `held/`, where no runner tries it.
    pub(super) fn hold_forgotten(&self, name: Name) -> Result<(), QueueError> {
        if rename_durably(&self.new, &self.held, name, name)?.is_some() {
            warn!(
                message = name.id(),
                tries = name.tries,
                "a message that was tried is held: it may have been delivered longer ago than the ledger remembers. \
                 `maildrop_command queue show` says what it is, and `queue release`, with --again if it asks for that, has it delivered"
            );
        }
        Ok(())
    }

    fn take_over(&self, name: Name, to: &Folder) -> Result<bool, QueueError> {
        let text = name.to_string();
        // A file that this process can lock is no live claim, because a claim is locked before it comes to `work/`. The lock
        // is kept until the rename is done, so that no other process takes the file over.
        let Some(_locked) = self.work.lock(text.as_str())? else { return Ok(false) };
        Ok(self.work.rename_to_a_free(text.as_str(), to, name)?.is_some())
    }

    /// Moves a file with a foreign name to `bad/`. Anything that is no regular file stays where it is, and is listed.
    fn move_foreign_file_to_bad(&self, folder: &Folder, name: &OsStr, now: SystemTime) -> Result<(), QueueError> {
        if name.to_str().and_then(Name::read).is_some() {
            return Ok(());
        }
        let Some(_locked) = folder.lock(name)? else { return Ok(()) };
        warn!(name = %name.to_string_lossy(), "a file whose name is none of the queue's is moved to bad/");
        let lock = LockName::new("a name that is none", name.as_encoded_bytes());
        self.move_to_bad(folder, name, Name::new(now, &lock))
    }
}

/// Removes a file that no process writes any more, if its name is one that only this program gives.
pub(super) fn remove_unlocked(folder: &Folder, name: &OsStr) -> Result<(), QueueError> {
    let ours = name.to_str().is_some_and(|name| Uuid::try_parse(name).is_ok());
    // A writer locks its file right after creating it. If this lock comes first, the writer finds the file locked or gone,
    // and creates another.
    match if ours { folder.lock(name)? } else { None } {
        Some(_locked) => folder.remove(name).map(drop),
        None => Ok(()),
    }
}
