//! What processes have left behind that are gone: at the start of a runner, and each minute. And what is held, since the ledger may
//! have forgotten that it was delivered.

use super::admin::move_for_good;
use super::envelope::Unreadable;
use super::folder::Folder;
use super::{Folders, Name, Queue, QueueError};
use crate::lock::LockName;
use std::ffi::OsStr;
use std::time::{Duration, SystemTime};
use tracing::{info, warn};
use uuid::Uuid;

/// What was found, and put right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Claims whose owner is gone: they are in `new/` again.
    pub returned: usize,
    /// Claims whose owner is gone, and which may have been delivered so long ago that nobody knows any more: they are in `held/`.
    pub held: usize,
    /// Files with a name that is none: they are in `bad/`.
    pub set_aside: usize,
    /// Files that were never accepted: they are removed.
    pub removed: usize,
}

impl Queue {
    /// Looks for what processes have left behind that are gone. It may run at any time, beside anything else.
    ///
    /// A claim of theirs comes back as it was: that its runner died says nothing about the message. But it may have been delivered, and
    /// the ledger tells the next try only for as long as it remembers: one that was due longer than `remembered` ago, by its name, is
    /// held, until a person releases it. (When it was claimed is known to the file's times alone, which a backup changes.)
    ///
    /// # Errors
    /// Where the system fails us; what was put right before stays so.
    pub fn recover(&self, now: SystemTime, remembered: Duration) -> Result<Recovered, QueueError> {
        let (folders, mut recovered, mut failed) = (&*self.0, Recovered::default(), None);
        // What cannot be put right, for whatever reason, does not keep us from the rest.
        let mut count = |counter: fn(&mut Recovered) -> &mut usize, done: Result<bool, QueueError>| match done {
            Ok(done) => *counter(&mut recovered) += usize::from(done),
            Err(error) => {
                warn!(%error, "something in the queue cannot be put right");
                failed.get_or_insert(error);
            }
        };
        for name in folders.work.messages()? {
            if name.overdue(now) > remembered {
                count(|recovered| &mut recovered.held, folders.hold_back(name));
            } else {
                count(|recovered| &mut recovered.returned, folders.bring_back(name));
            }
        }
        for (_, folder) in folders.all() {
            for name in folder.names()? {
                count(|recovered| &mut recovered.set_aside, folders.set_strange_name_aside(folder, &name, now));
            }
            for name in folder.probes()? {
                count(|recovered| &mut recovered.removed, remove_unlocked(folder, &name));
            }
        }
        for name in folders.tmp.names()? {
            count(|recovered| &mut recovered.removed, remove_unlocked(&folders.tmp, &name));
        }
        failed.map_or(Ok(recovered), Err)
    }
}

impl Folders {
    /// Brings back a claim if its owner is gone.
    fn bring_back(&self, name: Name) -> Result<bool, QueueError> {
        let returned = self.take_over(name, &self.new)?;
        if returned {
            info!(message = name.id(), "the claim of a runner that is gone came back");
        }
        Ok(returned)
    }

    /// The same, but to where nobody tries it.
    fn hold_back(&self, name: Name) -> Result<bool, QueueError> {
        let held = self.take_over(name, &self.held)?;
        if held {
            warn!(
                message = name.id(),
                "the claim of a runner that is gone is held: it may have been delivered longer ago than the ledger remembers. \
                 `maildrop_command queue show` says what it is, and `queue release`, with --again if it asks for that, has it delivered"
            );
            self.held.sync()?;
        }
        Ok(held)
    }

    /// Moves a message that waits for a further try to where nobody tries it.
    pub(super) fn hold_forgotten(&self, name: Name) -> Result<(), QueueError> {
        if move_for_good(&self.new, &self.held, name, name)?.is_some() {
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
        // Locked by us, it is nobody's claim: a claim is locked before it comes to work/. Our lock lasts until it is there.
        let Some(_locked) = self.work.lock(text.as_str())? else { return Ok(false) };
        Ok(self.work.rename_to_a_free(text.as_str(), to, name)?.is_some())
    }

    /// A file that somebody has put there under a name of its own. What is no file stays where it is, and is listed.
    fn set_strange_name_aside(&self, folder: &Folder, name: &OsStr, now: SystemTime) -> Result<bool, QueueError> {
        let known = |name: &str| Name::read(name).is_some() || Name::is_of_reason(name);
        if name.to_str().is_some_and(known) {
            return Ok(false);
        }
        let Some(_locked) = folder.lock(name)? else { return Ok(false) };
        let told = name.to_string_lossy().into_owned();
        warn!(name = told, "a file whose name is none of the queue's is set aside in bad/");
        let lock = LockName::new("a name that is none", name.as_encoded_bytes());
        self.set_aside(folder, name, Name::new(now, &lock), &Unreadable::Name(told))?;
        Ok(true)
    }
}

/// Removes a file that nobody is writing any more, if it has a name that only this program gives.
pub(super) fn remove_unlocked(folder: &Folder, name: &OsStr) -> Result<bool, QueueError> {
    let ours = name.to_str().is_some_and(|name| Uuid::try_parse(name.trim_start_matches('.')).is_ok());
    // Until it is removed, our lock tells a writer that has just made it, and locks it next, that it has lost it.
    match if ours { folder.lock(name)? } else { None } {
        Some(_locked) => folder.remove(name),
        None => Ok(false),
    }
}
