//! A runner's claim on one message, and what becomes of it.

use super::envelope::{Recipient, Unreadable};
use super::folder::{Folder, Moved};
use super::{Envelope, Folders, Name, Queue, QueueError};
use crate::lock::Slice;
use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::Read;
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tracing::warn;

/// A message that is ours to deliver, until this is settled or dropped. Where it is dropped, or the process dies, the message
/// comes back by [`Queue::recover`].
#[derive(Debug)]
pub struct Claim {
    folders: Arc<Folders>,
    name: Name,
    /// For as long as it is open: whoever finds the file unlocked in `work/` takes it for one whose owner is gone.
    _locked: File,
    envelope: Envelope,
    message: Vec<u8>,
}

/// What became of one recipient's delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// It is delivered, and recorded.
    Delivered,
    /// It is to be tried again.
    Deferred,
    /// It was refused for good, and why.
    Refused(String),
}

/// What is left of a claim that was settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The file with the recipients that are still to be delivered; `None` where there are none.
    pub remaining: Option<Name>,
    /// A file for each recipient that was refused.
    pub refused: Vec<Name>,
}

/// How long a runner goes by what it has listed: a message that comes meanwhile, and was due before those that wait, has to wait for
/// no longer than this.
const LISTED_FOR: Duration = Duration::from_secs(1);

/// For how long at least what was never tried goes before what was tried and deferred.
const AHEAD: Duration = Duration::from_mins(1);

/// What one runner found to be due when it looked last. A queue of a hundred thousand is not listed for each of them.
///
/// What was never tried goes before what was tried: that may be for mailboxes that hang, each of which takes up all of a runner's time
/// for as long as a try may last, and a queue full of it would hold up each message that comes. But what was tried has its turn,
/// however much comes: once the others have had as much time as the last of them took, and at least a minute.
#[derive(Debug)]
pub struct Listed {
    /// What was never tried, and what was, each in the order in which it became due.
    untried: VecDeque<Name>,
    tried: VecDeque<Name>,
    /// For how long what was never tried still goes first.
    ahead: Duration,
    pub(super) at: Option<Instant>,
    /// For how long the ledger knows what was delivered. `None`: for ever.
    remembered: Option<Duration>,
}

impl Default for Listed {
    fn default() -> Self {
        Self { untried: VecDeque::new(), tried: VecDeque::new(), ahead: AHEAD, at: None, remembered: None }
    }
}

impl Listed {
    /// What was tried and has been in the queue for longer than the ledger remembers is held, and not claimed: some try may have
    /// delivered it, and been forgotten while its mailbox was out of reach.
    #[must_use]
    pub fn remembering(remembered: Option<Duration>) -> Self {
        Self { remembered, ..Self::default() }
    }

    /// The runner was at a message for so long, which had had so many tries before.
    pub fn took(&mut self, tries: u32, time: Duration) {
        self.ahead = if tries == 0 { self.ahead.saturating_sub(time) } else { time.max(AHEAD) };
    }

    fn set(&mut self, names: Vec<Name>) {
        let (untried, tried) = names.into_iter().partition(|name| name.tries == 0);
        (self.untried, self.tried) = (untried, tried);
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
    /// Claims the message of this slice that may be tried now, and may be so for longest; what was never tried goes before what was.
    /// `None`: there is none at this moment.
    ///
    /// # Errors
    /// Where the system fails us. The message that it was about is still in the queue; others may be claimed.
    pub fn claim(&self, slice: Slice, now: SystemTime) -> Result<Option<Claim>, QueueError> {
        self.claim_listed(&mut Listed::default(), slice, now)
    }

    /// The same for a runner that claims one after the other: it lists the queue once a second, and whenever it has come to the
    /// end.
    ///
    /// # Errors
    /// As for [`claim`](Self::claim).
    pub fn claim_listed(
        &self,
        listed: &mut Listed,
        slice: Slice,
        now: SystemTime,
    ) -> Result<Option<Claim>, QueueError> {
        let mut failed = None;
        if listed.at.is_some_and(|at| at.elapsed() < LISTED_FOR) {
            let claim = self.first_of(listed, now, &mut failed);
            if claim.is_some() {
                return Ok(claim);
            }
        }
        listed.set(self.due(slice, now)?);
        listed.at = Some(Instant::now());
        let claim = self.first_of(listed, now, &mut failed);
        if claim.is_some() { Ok(claim) } else { failed.map_or(Ok(None), Err) }
    }

    /// What may be tried now: what became due first comes first, so that each has its turn. Ordered by when they were accepted, old
    /// messages for mailboxes that hang would go before all that is newer each time that they are due again, and some of them take up
    /// all of a runner's time.
    fn due(&self, slice: Slice, now: SystemTime) -> Result<Vec<Name>, QueueError> {
        let busy = self.0.locks_in_work()?;
        let mine = |name: &Name| slice.has_first_bytes(name.lock) && name.is_due(now) && !busy.contains(&name.lock);
        let mut due: Vec<Name> = self.0.new.messages()?.into_iter().filter(mine).collect();
        due.sort_by_key(|name| (name.due_since(now), *name));
        Ok(due)
    }

    /// Claims the first of them that can be had. One that cannot, for whatever reason, does not keep us from the others; the
    /// first error is kept.
    fn first_of(&self, listed: &mut Listed, now: SystemTime, failed: &mut Option<QueueError>) -> Option<Claim> {
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
        match Claim::read(&self.0, name, locked, now)? {
            Ok(claim) => Ok(Some(claim)),
            Err((_locked, unreadable)) => {
                warn!(message = name.id(), %unreadable, "a file of the queue is set aside in bad/");
                self.0.set_aside(&self.0.work, name.to_string().as_str(), name, &unreadable)?;
                Ok(None)
            }
        }
    }
}

impl Folders {
    /// The locks of which a message is claimed.
    fn locks_in_work(&self) -> Result<HashSet<u64>, QueueError> {
        Ok(self.work.messages()?.into_iter().map(|name| name.lock).collect())
    }

    /// Makes the message ours, if nobody was faster.
    fn claim(&self, name: Name) -> Result<Option<File>, QueueError> {
        let text = name.to_string();
        // The lock comes before the rename. In the other order, the file would be in `work/` and unlocked for a moment, and
        // whoever looks for claims of the dead would take it away again. Once it is locked it may have left `new/`: a lock on a
        // file that another runner has released, or that was removed, would be worth nothing.
        let Some(file) = self.new.lock(text.as_str())? else { return Ok(None) };
        if self.new.rename(text.as_str(), &self.work, &text)? != Moved::Done {
            return Ok(None);
        }
        // Another runner may have claimed a message of the same lock since we looked. Each renames first and looks then, so at
        // least one of the two sees the other, and gives its own back.
        let others = self.work.messages()?.into_iter().any(|other| other.lock == name.lock && other != name);
        if others {
            self.work.rename_to_a_free(text.as_str(), &self.new, name)?;
            return Ok(None);
        }
        Ok(Some(file))
    }

    /// Puts a file that cannot be read where nobody tries it again, with the reason beside it. The caller holds its lock.
    pub(super) fn set_aside(
        &self,
        from: &Folder,
        file: impl rustix::path::Arg + Copy,
        name: Name,
        why: &Unreadable,
    ) -> Result<Name, QueueError> {
        let mut name = name;
        while self.bad.has(&name.to_string())? || self.bad.has(&name.of_reason())? {
            name = name.later();
        }
        // The reason comes first. It is of some help only, and not worth failing for: on a full disk there is room for a rename.
        let reason = self.tmp.write(&[why.to_string().as_bytes(), b"\n"]);
        if let Err(error) = reason.and_then(|reason| reason.place_over(&self.bad, &name.of_reason())) {
            warn!(%error, message = name.id(), "the reason cannot be kept beside the file");
        }
        let name = from.rename_to_a_free(file, &self.bad, name)?.unwrap_or(name);
        self.bad.sync()?;
        from.sync()?;
        Ok(name)
    }
}

impl Claim {
    fn read(
        folders: &Arc<Folders>,
        name: Name,
        file: File,
        now: SystemTime,
    ) -> Result<Result<Self, (File, Unreadable)>, QueueError> {
        let mut bytes = Vec::new();
        if let Err(error) = (&file).read_to_end(&mut bytes) {
            // That says nothing about the file. Others have their turn before it is tried again.
            let text = name.to_string();
            let error = QueueError::of_io("reading", &folders.work.path.join(&text), error);
            folders.work.rename_to_a_free(text.as_str(), &folders.new, name.deferred(now))?;
            return Err(error);
        }
        Ok(match Envelope::read_with_message(bytes) {
            Ok((envelope, message)) => {
                Ok(Self { folders: Arc::clone(folders), name, _locked: file, envelope, message })
            }
            Err(unreadable) => Err((file, unreadable)),
        })
    }

    /// The name of its file.
    #[must_use]
    pub fn name(&self) -> Name {
        self.name
    }

    /// How often it was tried before.
    #[must_use]
    pub fn tries(&self) -> u32 {
        self.name.tries
    }

    /// Its envelope.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// The message, as it came.
    #[must_use]
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// Writes down what became of its recipients, in the envelope's order. One of whom nothing is said is deferred.
    ///
    /// # Errors
    /// What was delivered or refused may be tried again: the whole message is still in the queue. Where possible it waits in
    /// `new/` as if all of it had been deferred.
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
        // All that remains is on the disk before the old file goes. A crash in between leaves both, which is harmless: the ledger
        // knows what was delivered, and a second delivery of the same message to the same recipient finds it there already. In
        // the other order, those that remain would be lost.
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
        // Each has an id of its own, so that it can be named. What remains, and may be divided again, stays below all of those
        // that were refused: there is one recipient less in it for each of them.
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

    /// Each recipient has it. Its file is removed.
    ///
    /// # Errors
    /// Where the system cannot. Then it is tried again, and found to be delivered.
    pub fn finish(self) -> Result<(), QueueError> {
        self.remove()
    }

    /// Back to `new/`, to be tried again after a pause. The name that it waits by; `None` where it was removed by hand.
    ///
    /// # Errors
    /// Where the system cannot. Then it comes back by [`Queue::recover`].
    pub fn defer(self, now: SystemTime) -> Result<Option<Name>, QueueError> {
        self.back_as(self.name.deferred(now))
    }

    /// Back to `new/` as it came, for another runner: it was not tried.
    ///
    /// # Errors
    /// As for [`defer`](Self::defer).
    pub fn give_back(self) -> Result<Option<Name>, QueueError> {
        self.back_as(self.name)
    }

    fn back_as(&self, name: Name) -> Result<Option<Name>, QueueError> {
        let there = self.folders.work.rename_to_a_free(self.name.to_string().as_str(), &self.folders.new, name)?;
        if there.is_none() {
            warn!(message = self.name.id(), "the file of a claim has left work/ by another hand");
        }
        Ok(there)
    }

    /// Removes the file. The name is still ours: nobody takes a file out of `work/` that is locked.
    fn remove(&self) -> Result<(), QueueError> {
        if !self.folders.work.remove(self.name.to_string().as_str())? {
            warn!(message = self.name.id(), "the file of a claim has left work/ by another hand");
        }
        self.folders.work.sync()
    }
}
