//! A runner's claim on one message, and how it is settled.

use super::folder::{Folder, Moved};
use super::{Envelope, Folders, Name, Queue, QueueError, Recipient};
use crate::lock::Shard;
use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::Read;
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tracing::warn;

/// A message that this process delivers until it settles or drops the claim. If the claim is dropped or the process dies,
/// [`Queue::recover`] puts the message back.
#[derive(Debug)]
pub struct Claim {
    folders: Arc<Folders>,
    name: Name,
    /// Holds the lock for as long as it is open. A file in `work/` without a lock counts as one whose owner is dead.
    _locked: File,
    envelope: Envelope,
    message: Vec<u8>,
}

/// The result of the delivery to one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The message is in the mailbox, and recorded in the ledger.
    Delivered,
    /// To be retried later.
    Deferred,
    /// Refused permanently, for this reason.
    Refused(String),
}

/// The files that remain of a settled claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The file with the recipients that are still to be delivered; `None` if there are none.
    pub remaining: Option<Name>,
    /// One file for each recipient that was refused.
    pub refused: Vec<Name>,
}

/// How long a runner uses its listing. A message that arrives after the listing waits no longer than this for its turn.
const LISTED_FOR: Duration = Duration::from_secs(1);

/// For how long, at least, untried messages go before tried ones.
const AHEAD: Duration = Duration::from_mins(1);

/// The messages that one runner found due in its last listing. The folder is not listed for each message, because it may
/// have a hundred thousand.
///
/// Untried messages go before tried ones. A tried message may be for a mailbox that hangs, and then occupies the runner
/// until the attempt's time limit. Many of these would hold up each new message.
///
/// Tried messages still get their turn, however many new ones arrive. It comes once the untried ones have had as much time
/// as the last tried one took, and at least a minute.
#[derive(Debug)]
pub struct DueList {
    /// The untried messages and the tried ones, each in the order in which they became due.
    untried: VecDeque<Name>,
    tried: VecDeque<Name>,
    /// For how long untried messages still go first.
    ahead: Duration,
    pub(super) at: Option<Instant>,
    /// For how long the ledger remembers deliveries. `None`: for ever.
    remembered: Option<Duration>,
}

impl DueList {
    /// A tried message that has been in the queue for longer than `remembered` is held, and not claimed. An earlier attempt
    /// may have delivered it, and the ledger may have pruned that record while the mailbox was unreachable.
    pub fn remembering(remembered: Option<Duration>) -> Self {
        Self { untried: VecDeque::new(), tried: VecDeque::new(), ahead: AHEAD, at: None, remembered }
    }

    /// Records that the runner spent `time` on a message with `tries` earlier attempts.
    pub fn took(&mut self, tries: u32, time: Duration) {
        self.ahead = if tries == 0 { self.ahead.saturating_sub(time) } else { time.max(AHEAD) };
    }

    fn next(&mut self) -> Option<Name> {
        let (first, second) = match self.ahead.is_zero() {
            true => (&mut self.tried, &mut self.untried),
            false => (&mut self.untried, &mut self.tried),
        };
        first.pop_front().or_else(|| second.pop_front())
    }
}

impl Queue {
    /// Claims the message of this shard that has been due for longest; untried messages go before tried ones. `None` if none
    /// is due now. The queue is listed once a second, and whenever the end of the listing is reached.
    ///
    /// # Errors
    /// If a system call fails. The message in question is still in the queue; others may be claimed.
    pub fn claim_listed(
        &self,
        listed: &mut DueList,
        shard: Shard,
        now: SystemTime,
    ) -> Result<Option<Claim>, QueueError> {
        let mut failed = None;
        if listed.at.is_some_and(|at| at.elapsed() < LISTED_FOR) {
            let claim = self.first_of(listed, now, &mut failed);
            if claim.is_some() {
                return Ok(claim);
            }
        }
        let due = self.due(shard, now)?.into_iter();
        (listed.untried, listed.tried) = due.partition(|name| name.tries == 0);
        listed.at = Some(Instant::now());
        let claim = self.first_of(listed, now, &mut failed);
        if claim.is_some() { Ok(claim) } else { failed.map_or(Ok(None), Err) }
    }

    /// The messages that may be tried now, ordered by the moment at which they became due, so that each has its turn. In the
    /// order of acceptance, a few old messages for mailboxes that hang would come first each time, and take all of a
    /// runner's time.
    fn due(&self, shard: Shard, now: SystemTime) -> Result<Vec<Name>, QueueError> {
        let busy = self.0.locks_in_work()?;
        let mine = |name: &Name| shard.has_first_bytes(name.lock) && name.is_due(now) && !busy.contains(&name.lock);
        let mut due: Vec<Name> = self.0.new.messages()?.into_iter().filter(mine).collect();
        due.sort_by_key(|name| (name.due_since(now), *name));
        Ok(due)
    }

    /// Claims the first listed message that can be claimed. A message that cannot be claimed does not hold up the others;
    /// the first error is kept.
    fn first_of(&self, listed: &mut DueList, now: SystemTime, failed: &mut Option<QueueError>) -> Option<Claim> {
        while let Some(name) = listed.next() {
            let is_forgotten = listed.remembered.is_some_and(|remembered| name.was_tried_before(now, remembered));
            let claim =
                if is_forgotten { self.0.hold_forgotten(name).map(|()| None) } else { self.claim_this(name, now) };
            match claim {
                Ok(Some(claim)) => return Some(claim),
                Ok(None) => {}
                Err(error) => {
                    warn!(message = name.id(), %error, "a message cannot be claimed");
                    failed.get_or_insert(error);
                }
            }
        }
        None
    }

    fn claim_this(&self, name: Name, now: SystemTime) -> Result<Option<Claim>, QueueError> {
        let Some(locked) = self.0.claim(name)? else { return Ok(None) };
        let (text, mut bytes) = (name.to_string(), Vec::new());
        if let Err(error) = (&locked).read_to_end(&mut bytes) {
            // A failed read says nothing about the file's content, so the file is not moved to `bad/`. It is deferred, so
            // that other messages have their turn.
            self.0.work.rename_to_a_free(text.as_str(), &self.0.new, name.deferred(now))?;
            return Err(QueueError::of_io("reading", &self.0.work.path.join(&text), error));
        }
        match Envelope::read_with_message(bytes) {
            Ok((envelope, message)) => {
                Ok(Some(Claim { folders: Arc::clone(&self.0), name, _locked: locked, envelope, message }))
            }
            Err(unreadable) => {
                warn!(message = name.id(), %unreadable, "a file of the queue is moved to bad/");
                self.0.move_to_bad(&self.0.work, text.as_str(), name)?;
                Ok(None)
            }
        }
    }
}

impl Folders {
    /// The locks of the messages that are claimed now.
    fn locks_in_work(&self) -> Result<HashSet<u64>, QueueError> {
        Ok(self.work.messages()?.into_iter().map(|name| name.lock).collect())
    }

    /// Claims the message for this process, unless another runner was faster.
    fn claim(&self, name: Name) -> Result<Option<File>, QueueError> {
        let text = name.to_string();
        // The lock comes before the rename. In the other order the file would be unlocked in `work/` for a moment. A
        // recovery would then take it back as the claim of a dead process. [`Folder::lock`] checks that the name still
        // stands for the locked file: another runner may have moved or removed the file before the lock.
        let Some(file) = self.new.lock(text.as_str())? else { return Ok(None) };
        if self.new.rename(text.as_str(), &self.work, &text)? != Moved::Done {
            return Ok(None);
        }
        // Another runner may have claimed a message of the same lock since the listing. Each runner renames first and checks
        // then, so at least one of the two sees the other's file, and gives its own back.
        let others = self.work.messages()?.into_iter().any(|other| other.lock == name.lock && other != name);
        if others {
            self.work.rename_to_a_free(text.as_str(), &self.new, name)?;
            return Ok(None);
        }
        Ok(Some(file))
    }

    /// Moves an unreadable file to `bad/`, where no runner tries it. The caller holds its lock.
    pub(super) fn move_to_bad(
        &self,
        from: &Folder,
        file: impl rustix::path::Arg + Copy,
        name: Name,
    ) -> Result<(), QueueError> {
        from.rename_to_a_free(file, &self.bad, name)?;
        self.bad.sync()?;
        from.sync()
    }
}

impl Claim {
    pub fn name(&self) -> Name {
        self.name
    }

    /// The number of earlier attempts.
    pub fn tries(&self) -> u32 {
        self.name.tries
    }

    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// The message, as it came.
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// Records the result for each recipient, in the order of the envelope. A recipient without a settlement is deferred.
    ///
    /// # Errors
    /// If the remaining recipients cannot be written, or the old file cannot be removed. The whole message is then still in
    /// the queue, and recipients that were delivered or refused may be retried. If possible it waits in `new/` as if all
    /// recipients had been deferred.
    pub fn settle(self, settlements: &[Settlement], now: SystemTime) -> Result<Settled, QueueError> {
        let settlements = settlements.iter().chain(iter::repeat(&Settlement::Deferred));
        let (mut deferred, mut refused) = (Vec::new(), Vec::new());
        for (recipient, settlement) in self.envelope.recipients.iter().zip(settlements) {
            match settlement {
                Settlement::Delivered => {}
                Settlement::Deferred => deferred.push(recipient.clone()),
                Settlement::Refused(why) => refused.push((recipient.clone(), why.clone())),
            }
        }
        if deferred.len() == self.envelope.recipients.len() {
            return Ok(Settled { remaining: self.defer(now)?, refused: Vec::new() });
        }
        // All that remains is on the disk before the old file is removed. In the other order, a crash would lose the
        // remaining recipients. A crash in between leaves both files, which is harmless: a second delivery to the same
        // recipient finds the first one's record in the ledger.
        match self.write_what_remains(deferred, refused, now) {
            Ok(settled) => {
                self.remove()?;
                Ok(settled)
            }
            Err(error) => {
                self.defer(now)?;
                Err(error)
            }
        }
    }

    fn write_what_remains(
        &self,
        deferred: Vec<Recipient>,
        refused: Vec<(Recipient, String)>,
        now: SystemTime,
    ) -> Result<Settled, QueueError> {
        // Each part gets an id of its own, so that people can name it. The file with the remaining recipients may be divided
        // once more, so it gets the lowest number, 0. Later divisions use only numbers below those given now, because fewer
        // recipients remain each time.
        let mut kept = Vec::new();
        for (place, (recipient, reason)) in (deferred.len()..).zip(refused) {
            let envelope = Envelope { recipients: vec![recipient], reason: Some(reason), ..self.envelope.clone() };
            let id = self.name.of_part(place).due_at_once();
            kept.push(self.folders.write(&envelope, &self.message, &self.folders.refused, id)?);
        }
        let remaining = match deferred.is_empty() {
            true => None,
            false => {
                let envelope = Envelope { recipients: deferred, ..self.envelope.clone() };
                let id = self.name.of_part(0).deferred(now);
                Some(self.folders.write(&envelope, &self.message, &self.folders.new, id)?)
            }
        };
        Ok(Settled { remaining, refused: kept })
    }

    /// Moves the message back to `new/`, to be retried after a pause. Returns its new name; `None` if the file was removed
    /// manually.
    ///
    /// # Errors
    /// If the system cannot rename the file. Then [`Queue::recover`] puts the message back.
    pub fn defer(self, now: SystemTime) -> Result<Option<Name>, QueueError> {
        self.back_as(self.name.deferred(now))
    }

    /// Moves the message back to `new/` unchanged, for another runner: it was not tried.
    ///
    /// # Errors
    /// As for [`defer`](Self::defer).
    pub fn give_back(self) -> Result<Option<Name>, QueueError> {
        self.back_as(self.name)
    }

    fn back_as(&self, name: Name) -> Result<Option<Name>, QueueError> {
        let there = self.folders.work.rename_to_a_free(self.name.to_string().as_str(), &self.folders.new, name)?;
        if there.is_none() {
            warn!(message = self.name.id(), "another process has taken the file of a claim out of work/");
        }
        Ok(there)
    }

    /// Removes the file by its name, which still stands for it: no process takes a locked file out of `work/`.
    fn remove(&self) -> Result<(), QueueError> {
        if !self.folders.work.remove(self.name.to_string().as_str())? {
            warn!(message = self.name.id(), "another process has taken the file of a claim out of work/");
        }
        self.folders.work.sync()
    }
}
