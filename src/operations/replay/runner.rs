//! Runs a replay: jobs take entries from the list, and each job delivers one message at a time. If two messages have one
//! Message-ID, the second waits for the first: otherwise the open attempt of the first would defer it.

use super::entry::ReplayEntry;
use super::envelope::was_prepended_for;
use super::{List, PartialEnvelope, ReplayError};
use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::delivery::{Deferral, Delivered, Manner, NoCaller, Refusal, Stages, Verdict};
use crate::ledger::Database;
use crate::message::Message;
use crate::site::{self, Envelope, Sessions, Site, StateBefore, Terms};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use std::{io, thread};

const NO_ENVELOPE: &str = "no envelope: give --recipient, or write it into FILE.envelope; the message does not begin with a \
    Delivered-To or X-Original-To line of pipe(8)";

/// The settings of a replay.
pub(crate) struct Replay<'a> {
    pub(crate) site: &'a Site,
    /// The part of the envelope that the options give. Messages from the ledger have the ledger's envelope.
    pub(crate) envelope: PartialEnvelope,
    /// The number of messages delivered concurrently.
    pub(crate) jobs: usize,
    /// Reports what would be done, and changes nothing.
    pub(crate) dry_run: bool,
    /// Set by the caller to end the replay after the messages in progress.
    pub(crate) stop: &'a AtomicBool,
    /// Is called with each result, and with `None` once an entry of the list is finished.
    pub(crate) listen: &'a (dyn Fn(Option<MessageReport>) + Sync),
}

/// Messages with one lock take the same turn, which depends on the lock's first byte.
type Turns = [Mutex<()>; 256];

/// The result of a message for one recipient, with its source.
#[derive(Debug)]
pub(crate) struct MessageReport {
    /// The location of the message, for display.
    pub(crate) source: String,
    /// The recipient, if it is known.
    pub(crate) recipient: Option<String>,
    pub(crate) outcome: ReplayOutcome,
    /// The line for the file of failures, if the message failed.
    pub(crate) failure: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplayOutcome {
    /// The message is delivered; in a dry run, it would be. The text lists the copies.
    Delivered(String),
    /// The message was delivered earlier.
    AlreadyThere,
    /// The message was not delivered now, for this reason. A retry may succeed.
    Deferred(String),
    /// The message cannot be delivered as it is, for this reason. The cause must be fixed first.
    Refused(String),
}

/// The number of deliveries by result, and of finished entries of the list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) delivered: u64,
    pub(crate) already_there: u64,
    pub(crate) deferred: u64,
    pub(crate) refused: u64,
    pub(crate) done: u64,
}

impl Tally {
    pub(crate) fn failed(&self) -> u64 {
        self.deferred + self.refused
    }

    pub(crate) fn count(&mut self, outcome: &ReplayOutcome) {
        match outcome {
            ReplayOutcome::Delivered(_) => self.delivered += 1,
            ReplayOutcome::AlreadyThere => self.already_there += 1,
            ReplayOutcome::Deferred(_) => self.deferred += 1,
            ReplayOutcome::Refused(_) => self.refused += 1,
        }
    }
}

impl ReplayOutcome {
    pub(crate) fn internal_error() -> Self {
        Self::Deferred("an internal error; the log has the details".into())
    }

    /// The outcome of one delivery. A panic is logged; the next delivery may succeed.
    pub(crate) fn guarded<E>(deliver: impl FnOnce() -> Result<Self, E>) -> Result<Self, E> {
        catch_unwind(AssertUnwindSafe(deliver)).unwrap_or_else(|_| Ok(Self::internal_error()))
    }

    /// The word in output for people and programs.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Self::Delivered(_) => "delivered",
            Self::AlreadyThere => "already there",
            Self::Deferred(_) => "deferred",
            Self::Refused(_) => "refused",
        }
    }

    /// The reason, or the manner of the delivery.
    pub(crate) fn detail(&self) -> &str {
        match self {
            Self::Delivered(text) | Self::Deferred(text) | Self::Refused(text) => text,
            Self::AlreadyThere => self.as_str(),
        }
    }

    pub(crate) fn failed(&self) -> bool {
        matches!(self, Self::Deferred(_) | Self::Refused(_))
    }
}

impl From<&Refusal> for ReplayOutcome {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Deferred(_) => Self::Deferred(refusal.to_string()),
            Refusal::UnknownRecipient | Refusal::OverQuota(_) => Self::Refused(refusal.to_string()),
        }
    }
}

impl From<DatabaseError> for ReplayOutcome {
    fn from(error: DatabaseError) -> Self {
        Self::Deferred(Deferral::Database(error).to_string())
    }
}

impl Replay<'_> {
    /// Replays the list.
    ///
    /// # Errors
    /// If the replay as a whole cannot continue. `listen` gets the failure of a single message.
    pub(crate) fn run(&self, list: List) -> Result<(), ReplayError> {
        let (list, turns): (_, &Turns) = (&Mutex::new(list), &[const { Mutex::new(()) }; 256]);
        thread::scope(|scope| {
            let start = |number| {
                let job = move || ReplayJob { replay: self, turns, database: None }.work(list);
                thread::Builder::new().name(format!("job-{number}")).spawn_scoped(scope, job)
            };
            let jobs = (0..self.jobs.max(1)).map(start).collect::<io::Result<Vec<_>>>().map_err(ReplayError::Job)?;
            let internal = |_| Err(ReplayError::Job(io::Error::other("an internal error")));
            jobs.into_iter().try_for_each(|job| job.join().unwrap_or_else(internal))
        })
    }
}

/// One of the threads that deliver.
pub(super) struct ReplayJob<'a> {
    pub(super) replay: &'a Replay<'a>,
    turns: &'a Turns,
    /// A session with the ledger. Most messages of a second run need only the ledger.
    database: Option<(Box<dyn Database>, Deadline)>,
}

impl ReplayJob<'_> {
    /// Replays entries of the list until none is left, or the replay is ended: the next run finds the rest.
    fn work(&mut self, list: &Mutex<List>) -> Result<(), ReplayError> {
        let next = || list.lock().unwrap_or_else(PoisonError::into_inner).take_oldest();
        while !self.replay.stop.load(Ordering::Relaxed)
            && let Some(location) = next()?
        {
            let mut entry = ReplayEntry::new(location).resolve();
            // A panic at one message is logged, and the others continue.
            let replayed = catch_unwind(AssertUnwindSafe(|| self.replay_entry(&mut entry)));
            if let Err(outcome) = replayed.unwrap_or_else(|_| Err(ReplayOutcome::internal_error())) {
                self.report(&entry, None, None, outcome);
            }
            (self.replay.listen)(None);
        }
        Ok(())
    }

    /// Reports the result of a message, if it could be read, for one recipient or for all of them.
    fn report(
        &mut self,
        entry: &ReplayEntry,
        message: Option<&Message>,
        envelope: Option<&Envelope>,
        outcome: ReplayOutcome,
    ) {
        if matches!(outcome, ReplayOutcome::Deferred(_)) {
            // The session may be the cause, so the next message gets a new one.
            self.database = None;
        }
        let failure = outcome.failed().then(|| entry.to_line(message, envelope, &outcome));
        let id = message.map(Message::message_id_for_people).or(entry.message_id.as_deref());
        let id = id.map(|id| format!(" {id}")).unwrap_or_default();
        let known = || entry.envelope.recipients.first().map(|(recipient, _)| recipient.clone());
        (self.replay.listen)(Some(MessageReport {
            source: format!("{}{id}", entry.source),
            recipient: envelope.map(|envelope| envelope.recipient.to_string()).or_else(known),
            failure,
            outcome,
        }));
    }

    /// Replays one entry of the list, and reports each of its recipients.
    ///
    /// # Errors
    /// The result of the whole entry, if no message can be read from it.
    fn replay_entry(&mut self, entry: &mut ReplayEntry) -> Result<(), ReplayOutcome> {
        let (message, known) = &self.load(entry)?;
        let (Replay { site, dry_run, .. }, lines_are_ours) = (self.replay, entry.source.lines_are_ours());
        if known.recipients.is_empty() {
            self.report(entry, Some(message), None, ReplayOutcome::Refused(NO_ENVELOPE.into()));
            return Ok(());
        }
        let [first, ..] = *site.lock_name(message).digest();
        let _turn = self.turns.get(usize::from(first)).map(|turn| turn.lock().unwrap_or_else(PoisonError::into_inner));
        for envelope in known.envelopes() {
            let outcome = match &envelope {
                Ok(envelope) => {
                    // Other recipients must not read lines that were prepended for one recipient.
                    let is_for_other = lines_are_ours && !was_prepended_for(message, envelope);
                    let others = is_for_other.then(|| message.for_another_recipient());
                    let message = others.as_ref().unwrap_or(message);
                    ReplayOutcome::guarded(|| Ok(deliver(site, self.database()?, message, envelope, *dry_run)))
                        .unwrap_or_else(DatabaseError::into)
                }
                Err(why) => ReplayOutcome::Refused(why.clone()),
            };
            self.report(entry, Some(message), envelope.as_ref().ok(), outcome);
        }
        Ok(())
    }

    /// A session with the ledger. The session is replaced after half of its time, so that enough is left for each query.
    pub(super) fn database(&mut self) -> Result<&mut (dyn Database + 'static), DatabaseError> {
        let site = self.replay.site;
        let kept = self.database.take().filter(|(_, deadline)| deadline.remaining() > site.deadline() / 2);
        let kept = match kept {
            Some(kept) => kept,
            None => {
                let deadline = Deadline::after(site.deadline());
                (site.open_database(None, deadline)?, deadline)
            }
        };
        Ok(self.database.insert(kept).0.as_mut())
    }
}

/// Delivers a message to one recipient, unless the ledger has it as delivered. In a dry run, reports what would be done.
pub(crate) fn deliver(
    site: &Site,
    database: &mut dyn Database,
    message: &Message,
    envelope: &Envelope,
    dry_run: bool,
) -> ReplayOutcome {
    let began = Instant::now();
    #[cfg(feature = "test-faults")]
    crate::base::fault_injection::at("replay");
    let mut stages = Stages::default();
    let result = match site.plan(message, envelope, database) {
        // A delivered copy stays delivered, so this result needs no lock.
        Ok(copies) if copies.iter().all(|copy| matches!(copy.state, StateBefore::ThereAlready(_))) => {
            return ReplayOutcome::AlreadyThere;
        }
        Ok(copies) if dry_run => {
            let copies: Vec<String> = copies.iter().map(ToString::to_string).collect();
            return ReplayOutcome::Delivered(copies.join("; "));
        }
        Err(refusal) if dry_run => return ReplayOutcome::from(&refusal),
        Ok(_) => {
            let deadline = Deadline::after(site.deadline());
            let terms = Terms { policy: &site.policy(), caller: &NoCaller, deadline };
            site.deliver(&mut Sessions::default(), message, envelope, &terms, &mut stages)
        }
        Err(refusal) => Err(refusal),
    };
    let verdict = match &result {
        Ok(delivered) => Verdict::from(delivered),
        Err(refusal) => Verdict::from(refusal),
    };
    site::log_delivery(message, envelope, &site.lock_name(message), &result, &verdict, &stages, began);
    let there = |manner: &Manner| matches!(manner, Manner::AlreadyThere | Manner::Adopted(_));
    match &result {
        Ok(Delivered { copies, .. }) if copies.iter().all(|copy| there(&copy.manner)) => ReplayOutcome::AlreadyThere,
        Ok(_) => ReplayOutcome::Delivered(verdict.text().to_owned()),
        Err(refusal) => ReplayOutcome::from(refusal),
    }
}
