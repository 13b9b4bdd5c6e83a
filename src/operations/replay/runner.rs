//! Runs a replay: jobs take entries from the list, and each job delivers one message at a time. If two messages have one
//! Message-ID, the second waits for the first: otherwise the open attempt of the first would defer it.

use super::entry::ReplayEntry;
use super::envelope::was_prepended_for;
use super::reading::TOO_LARGE;
use super::{List, PartialEnvelope, ReplayError};
use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::delivery::{Deferral, Delivered, Manner, NoCaller, Refusal, Stages, Verdict};
use crate::ledger::Database;
use crate::lock::LockName;
use crate::message::Message;
use crate::site::{self, Envelope, Sessions, Site, StateBefore, Terms};
use std::borrow::Cow;
use std::collections::HashSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How many events may wait to be counted.
const WAITING: usize = 32;
/// How often the caller gets control while no event arrives.
const TICK: Duration = Duration::from_millis(200);

const NO_ENVELOPE: &str = "no envelope: give --recipient, or write it into FILE.envelope; the message does not begin with a \
    Delivered-To or X-Original-To line of pipe(8)";

/// The settings of a replay.
#[derive(Debug)]
pub(crate) struct Replay<'a> {
    pub(crate) site: &'a Site,
    /// The largest message, in bytes.
    pub(crate) size_limit: Option<u64>,
    /// The part of the envelope that the options give. Messages from the ledger have the ledger's envelope.
    pub(crate) envelope: PartialEnvelope,
    /// The number of messages delivered concurrently.
    pub(crate) jobs: usize,
    /// Reports what would be done, and changes nothing.
    pub(crate) dry_run: bool,
    /// Set by the caller to end the replay after the messages in progress.
    pub(crate) stop: &'a AtomicBool,
}

/// The events that jobs send to the thread that counts.
enum JobEvent {
    Report(MessageReport),
    /// An entry of the list is finished.
    Done,
}

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

    /// This outcome, with a reason that names the delivery.
    pub(crate) fn about(self, whose: &str) -> Self {
        match self {
            Self::Deferred(why) => Self::Deferred(format!("{whose}{why}")),
            Self::Refused(why) => Self::Refused(format!("{whose}{why}")),
            other => other,
        }
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
    /// Replays the list. `listen` is called with the counts so far and the result of one message, and at intervals without a
    /// result.
    ///
    /// # Errors
    /// If the replay as a whole cannot continue. `listen` gets the failure of a single message.
    pub(crate) fn run(
        &self,
        list: List,
        tally: &mut Tally,
        mut listen: impl FnMut(&Tally, Option<MessageReport>),
    ) -> Result<(), ReplayError> {
        let (events, received) = sync_channel(WAITING);
        let (list, turns) = (&Mutex::new(list), &Turns::default());
        thread::scope(|scope| {
            // If a job cannot start, the receiver is dropped here, which ends the others.
            let received = received;
            let start = |number| {
                let events = events.clone();
                let job = move || ReplayJob { replay: self, events, turns, database: None }.work(list);
                thread::Builder::new().name(format!("job-{number}")).spawn_scoped(scope, job)
            };
            let jobs = (0..self.jobs.max(1)).map(start).collect::<io::Result<Vec<_>>>().map_err(ReplayError::Job)?;
            // Each job has its own sender, so the channel closes when the last job ends.
            drop(events);
            loop {
                let mut reported = None;
                match received.recv_timeout(TICK) {
                    Ok(JobEvent::Report(report)) => {
                        tally.count(&report.outcome);
                        reported = Some(report);
                    }
                    Ok(JobEvent::Done) => tally.done += 1,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                listen(tally, reported);
            }
            let internal = |_| Err(ReplayError::Job(io::Error::other("an internal error")));
            jobs.into_iter().try_for_each(|job| job.join().unwrap_or_else(internal))
        })
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// The locks of the messages that jobs are delivering now.
#[derive(Default)]
struct Turns {
    taken: Mutex<HashSet<[u8; 32]>>,
    released: Condvar,
}

/// The turn of one message, until it is dropped.
struct MessageTurn<'a>(&'a Turns, LockName);

impl Turns {
    /// Waits until no other job has a message with this lock.
    fn take(&self, lock: LockName) -> MessageTurn<'_> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_taken = |taken: &mut HashSet<[u8; 32]>| taken.contains(lock.digest());
        let mut taken = self.released.wait_while(taken, is_taken).unwrap_or_else(PoisonError::into_inner);
        taken.insert(*lock.digest());
        MessageTurn(self, lock)
    }
}

impl Drop for MessageTurn<'_> {
    fn drop(&mut self) {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(self.1.digest());
        self.0.released.notify_all();
    }
}

/// One of the threads that deliver.
pub(super) struct ReplayJob<'a> {
    pub(super) replay: &'a Replay<'a>,
    events: SyncSender<JobEvent>,
    turns: &'a Turns,
    /// A session with the ledger. Most messages of a second run need only the ledger.
    database: Option<(Box<dyn Database>, Deadline)>,
}

impl ReplayJob<'_> {
    /// Replays entries of the list until none is left, or the replay is ended: the next run finds the rest.
    fn work(&mut self, list: &Mutex<List>) -> Result<(), ReplayError> {
        let next = || list.lock().unwrap_or_else(PoisonError::into_inner).take_oldest();
        while !self.replay.stopped()
            && let Some(listed) = next()?
        {
            // A panic at one message is logged, and the others continue.
            let (entry, replayed) = match listed.resolve() {
                Ok(entry) => {
                    let replayed = catch_unwind(AssertUnwindSafe(|| self.replay_entry(&entry)));
                    (entry, replayed.unwrap_or_else(|_| Err(ReplayOutcome::internal_error())))
                }
                Err(why) => (Cow::Borrowed(&listed), Err(ReplayOutcome::Refused(why))),
            };
            if let Err(outcome) = replayed {
                self.report(&entry, None, None, outcome);
            }
            if self.events.send(JobEvent::Done).is_err() {
                break;
            }
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
        let failure = outcome.failed().then(|| entry.clone().into_line(message, envelope, &outcome));
        let id = message.map(|message| format!(" {}", message.message_id_for_people())).unwrap_or_default();
        let _ = self.events.send(JobEvent::Report(MessageReport {
            source: format!("{}{id}", entry.source),
            recipient: envelope.map(|envelope| envelope.recipient.to_string()),
            failure,
            outcome,
        }));
    }

    /// Replays one entry of the list, and reports each of its recipients.
    ///
    /// # Errors
    /// The result of the whole entry, if no message can be read from it.
    fn replay_entry(&mut self, entry: &ReplayEntry) -> Result<(), ReplayOutcome> {
        let loaded = self.load(entry)?;
        let message = &loaded.message;
        let is_too_large = self.replay.size_limit.is_some_and(|limit| message.size() > limit);
        if is_too_large || loaded.envelope.recipients.is_empty() {
            let why = if is_too_large { TOO_LARGE } else { NO_ENVELOPE };
            self.report(entry, Some(message), None, ReplayOutcome::Refused(why.into()));
            return Ok(());
        }
        let _turn = self.turns.take(self.replay.site.lock_name(message));
        for envelope in loaded.envelope.envelopes() {
            let envelope = match envelope {
                Ok(envelope) => envelope,
                Err(why) => {
                    self.report(entry, Some(message), None, ReplayOutcome::Refused(why));
                    continue;
                }
            };
            let others;
            // Other recipients must not read lines that were prepended for one recipient.
            let message = if loaded.lines_are_ours && !was_prepended_for(message, &envelope) {
                others = message.for_another_recipient();
                &others
            } else {
                message
            };
            let (site, dry_run) = (self.replay.site, self.replay.dry_run);
            let outcome = ReplayOutcome::guarded(|| Ok(deliver(site, self.database()?, message, &envelope, dry_run)));
            self.report(entry, Some(message), Some(&envelope), outcome.unwrap_or_else(DatabaseError::into));
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
