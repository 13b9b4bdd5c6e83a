//! The replay itself: the list is dealt out to jobs, and each job delivers one message at a time.

use super::envelope::was_prepended_for;
use super::failure::{FailedContent, FailedSource, Failure};
use super::list::{Entry, List, Location, Piece};
use super::slice::job_of;
use super::source::{is_packed, mbox, postcat_output, standard_input};
use super::{Form, PartialEnvelope, ReplayError, Slice};
use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::delivery::NoCaller;
use crate::delivery::{Deferral, Delivered, Manner, Policy, Refusal, Stages, Verdict};
use crate::ledger::CopyKey;
use crate::ledger::Database;
use crate::ledger::deliveries::known_delivery;
use crate::lock::LockName;
use crate::message::{Message, message_id_at_the_beginning};
use crate::operations::redelivery::{self, RedeliveryError};
use crate::site::{self, Envelope, PlannedCopy, Sessions, Site, Standing, Terms};
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// How many entries wait for a job. An entry says where a message is, not what it says.
const WAITING: usize = 32;
/// How much of a message is read to find its Message-ID. What has it further down is read whole.
const BEGINNING: u64 = 64 * 1024;
const TOO_LARGE: &str = "it is larger than delivery.message_size_limit allows";
/// How often whoever listens is told that time passes.
const TICK: Duration = Duration::from_millis(200);

/// How to replay.
#[derive(Debug)]
pub(crate) struct Replay<'a> {
    pub(crate) site: &'a Site,
    /// What the operator has chosen about deliveries.
    pub(crate) policy: Policy,
    /// How long one delivery may take.
    pub(crate) deadline: Duration,
    /// The largest message, in bytes.
    pub(crate) size_limit: Option<u64>,
    /// What the options say of the envelope. (What the ledger knows has the ledger's.)
    pub(crate) given: PartialEnvelope,
    /// How many messages at once.
    pub(crate) jobs: usize,
    pub(crate) slice: Slice,
    /// Say what would be done, and do nothing.
    pub(crate) dry_run: bool,
    /// Standard input, if it is a source.
    pub(crate) stdin: Option<File>,
    /// Set from outside: to end after the messages in hand.
    pub(crate) stop: &'a AtomicBool,
}

/// What whoever listens is told.
#[derive(Debug)]
pub(crate) enum Event {
    /// What came of a message for one recipient.
    MessageReport(MessageReport),
    /// An entry of the list is done with.
    Done,
    /// An entry of the list belongs to another slice.
    Elsewhere,
    /// Time passes.
    Tick,
}

/// What came of a message for one recipient.
#[derive(Debug)]
pub(crate) struct MessageReport {
    /// Where the message is, for people.
    pub(crate) source: String,
    /// For whom, where that is known.
    pub(crate) recipient: Option<String>,
    /// What came of it.
    pub(crate) outcome: ReplayOutcome,
    /// The line for the file of failures, where it failed.
    pub(crate) failure: Option<String>,
}

/// What came of a message for one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplayOutcome {
    /// It is delivered; or would be, in a dry run: copy by copy.
    Delivered(String),
    /// It was delivered before.
    AlreadyThere,
    /// Not now; why. The same again may succeed.
    Deferred(String),
    /// Not as it is; why. Somebody has to mend something first.
    Refused(String),
}

/// How many deliveries came to what.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) delivered: u64,
    pub(crate) already_there: u64,
    pub(crate) deferred: u64,
    pub(crate) refused: u64,
    /// Entries of the list that are done with.
    pub(crate) done: u64,
    /// Entries of the list that belong to other slices.
    pub(crate) elsewhere: u64,
}

impl Tally {
    pub(crate) fn failed(&self) -> u64 {
        self.deferred + self.refused
    }

    pub(crate) fn looked_at(&self) -> u64 {
        self.done + self.elsewhere
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

/// A message that was read, with what is known of its envelope.
struct Loaded {
    message: Message,
    given: PartialEnvelope,
    /// The lines that pipe(8) prepends stand above it only if it did so here.
    lines_are_ours: bool,
}

impl ReplayOutcome {
    pub(crate) fn internal_error() -> Self {
        Self::Deferred("an internal error; the log has the details".into())
    }

    fn unreadable(error: &io::Error) -> Self {
        Self::Refused(format!("it cannot be read: {error}"))
    }

    fn of(result: &Result<Delivered, Refusal>, verdict: &Verdict) -> Self {
        match result {
            Ok(delivered) => {
                let there = |manner: &Manner| matches!(manner, Manner::AlreadyThere | Manner::Adopted(_));
                if delivered.copies.iter().all(|copy| there(&copy.manner)) {
                    Self::AlreadyThere
                } else {
                    Self::Delivered(verdict.text().to_owned())
                }
            }
            Err(refusal) => Self::refusal(refusal),
        }
    }

    /// What a delivery that did not happen comes to.
    pub(crate) fn refusal(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Deferred(_) => Self::Deferred(refusal.to_string()),
            Refusal::UnknownRecipient | Refusal::OverQuota(_) => Self::Refused(refusal.to_string()),
        }
    }
}

impl Replay<'_> {
    /// Opens standard input, so that its messages can be read by any job.
    ///
    /// # Errors
    /// [`ReplayError::StandardInput`]
    pub(crate) fn standard_input() -> Result<File, ReplayError> {
        standard_input()
    }

    /// Replays the list, and tells `hear` of it.
    ///
    /// # Errors
    /// [`ReplayError`], where it cannot go on at all. What becomes of a single message is told.
    pub(crate) fn run(&self, list: List, mut hear: impl FnMut(Event)) -> Result<(), ReplayError> {
        let (events, heard) = sync_channel(WAITING);
        thread::scope(|scope| {
            let mut queues = Vec::with_capacity(self.jobs);
            for number in 0..self.jobs.max(1) {
                let (queue, entries) = sync_channel(WAITING);
                let events = events.clone();
                let job = move || Job { replay: self, events, database: None }.work(&entries);
                thread::Builder::new()
                    .name(format!("job-{number}"))
                    .spawn_scoped(scope, job)
                    .map_err(ReplayError::Job)?;
                queues.push(queue);
            }
            let deal = move || self.deal(&list, &queues, &events);
            let dealer =
                thread::Builder::new().name("dealer".into()).spawn_scoped(scope, deal).map_err(ReplayError::Job)?;
            loop {
                match heard.recv_timeout(TICK) {
                    Ok(event) => hear(event),
                    Err(RecvTimeoutError::Timeout) => hear(Event::Tick),
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            dealer.join().unwrap_or_else(|_| Err(ReplayError::Job(io::Error::other("an internal error"))))
        })
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Gives each entry of our slice to its job. Two messages with one lock go to the same job, one after the other.
    fn deal(&self, list: &List, queues: &[SyncSender<Entry>], events: &SyncSender<Event>) -> Result<(), ReplayError> {
        list.each(|entry| {
            if self.stopped() {
                return ControlFlow::Break(());
            }
            let alone = self.slice.is_whole() && queues.len() == 1;
            // What cannot be read has to be told by somebody: by the first slice.
            let lock = if alone { None } else { self.lock_of(&entry).ok() };
            let lock = lock.unwrap_or_else(|| LockName::from_digest([0; 32]));
            if !self.slice.has(&lock) && !self.slice.is_whole() {
                // Nobody who would not hear the rest either.
                let _ = events.send(Event::Elsewhere);
                return ControlFlow::Continue(());
            }
            match queues.get(job_of(&lock, queues.len())).map(|queue| queue.send(entry)) {
                Some(Ok(())) => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        })
    }

    /// The lock that guards the message of an entry; where possible, read from the message's beginning.
    fn lock_of(&self, entry: &Entry) -> io::Result<LockName> {
        if let Some(digest) = entry.lock {
            return Ok(LockName::from_digest(digest));
        }
        match &entry.place {
            Location::Piece(piece) if piece.form == Form::Failures => {
                let failure = Failure::read(&self.bytes(piece)?).map_err(io::Error::other)?;
                match (failure.lock(), failure.again().map_err(io::Error::other)?) {
                    (Some(digest), _) => Ok(LockName::from_digest(digest)),
                    (None, FailedSource::Location(place)) => self.lock_of(&Entry { at: entry.at, place, lock: None }),
                    (None, FailedSource::Content(form, bytes)) => {
                        self.lock_of_whole(message_in(form, bytes).map_err(io::Error::other)?.0)
                    }
                }
            }
            Location::Piece(piece) => {
                let mut beginning = Vec::new();
                if piece.form != Form::QueueFile {
                    piece.open(self.stdin.as_ref())?.take(BEGINNING).read_to_end(&mut beginning)?;
                }
                match message_id_at_the_beginning(&beginning) {
                    Some(id) => Ok(self.site.lock_of_message_id(&id)),
                    None => self.lock_of_whole(self.message_of(piece).map_err(io::Error::other)?.0),
                }
            }
            Location::Ledger(_) => Err(io::Error::other("the ledger tells the lock with the entry")),
        }
    }

    fn lock_of_whole(&self, bytes: Vec<u8>) -> io::Result<LockName> {
        let message = Message::receive(bytes).map_err(io::Error::other)?;
        Ok(self.site.lock_name(&message))
    }

    /// What stands in a file, unless it is larger than any message may be.
    fn bytes(&self, piece: &Piece) -> io::Result<Vec<u8>> {
        // A little more, for what a file says besides; a line of an earlier replay may hold a whole message as base64.
        let limit = match piece.form {
            Form::Failures => u64::MAX,
            Form::Message | Form::Mbox | Form::QueueFile => {
                self.size_limit.unwrap_or(u64::MAX).saturating_add(BEGINNING)
            }
        };
        let bytes = self.first_bytes(piece, limit)?;
        if bytes.len() as u64 == limit {
            return Err(io::Error::other(TOO_LARGE));
        }
        Ok(bytes)
    }

    fn first_bytes(&self, piece: &Piece, limit: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        piece.open(self.stdin.as_ref())?.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The message in a file, as it was before it was put there, and what the file says of its envelope.
    fn message_of(&self, piece: &Piece) -> Result<(Vec<u8>, PartialEnvelope), String> {
        let bytes = self.bytes(piece).map_err(|error| format!("it cannot be read: {error}"))?;
        let sidecar = piece.path.as_deref().map_or_else(|| Ok(PartialEnvelope::default()), PartialEnvelope::beside)?;
        let (bytes, records) = message_in(piece.form, bytes)?;
        Ok((bytes, sidecar.or(records)))
    }
}

/// The message in what a file of this form holds, and what that says of its envelope.
fn message_in(form: Form, bytes: Vec<u8>) -> Result<(Vec<u8>, PartialEnvelope), &'static str> {
    match form {
        Form::Message if is_packed(&bytes) => {
            Err("it is compressed, or encrypted (Dovecot's mail_compress or mail_crypt?): unpack it first")
        }
        Form::Message | Form::Failures => Ok((bytes, PartialEnvelope::default())),
        Form::Mbox if !mbox::is_from_line(&bytes) => Err("no message begins there: the mbox has changed"),
        Form::Mbox => Ok((mbox::message(bytes), PartialEnvelope::default())),
        Form::QueueFile => postcat_output::message(bytes),
    }
}

/// What one of several threads does.
struct Job<'a> {
    replay: &'a Replay<'a>,
    events: SyncSender<Event>,
    /// To ask the ledger, which is all that most messages of a second run need. Opened anew when half of its time is over:
    /// no question may take longer than a delivery.
    database: Option<(Box<dyn Database>, Deadline)>,
}

impl Job<'_> {
    fn work(&mut self, entries: &Receiver<Entry>) {
        for entry in entries {
            if self.replay.stopped() {
                // The rest is left as it is: the next run finds it.
                continue;
            }
            let done = catch_unwind(AssertUnwindSafe(|| self.replay_one(&entry))).unwrap_or_else(|_| {
                self.database = None;
                self.tell_unread(&entry, None, ReplayOutcome::internal_error());
                true
            });
            if done {
                self.hear(Event::Done);
            }
        }
    }

    fn hear(&self, event: Event) {
        // Nobody listens any more once the replay is over.
        let _ = self.events.send(event);
    }

    /// Tells what came of a message for one recipient, or for all of them.
    fn tell(&self, entry: &Entry, message: &Message, envelope: Option<&Envelope>, outcome: ReplayOutcome) {
        let lock = self.replay.site.lock_name(message);
        let what = FailedContent::Message(message, &lock);
        let line = |result: &str, reason: &str| Failure::line(entry.at, &entry.place, &what, envelope, result, reason);
        self.tell_with(entry, Some(message), envelope, outcome, line);
    }

    /// Tells that no message was read. `earlier` is the line of an earlier replay that leads to it.
    fn tell_unread(&self, entry: &Entry, earlier: Option<&Failure>, outcome: ReplayOutcome) {
        let line = |result: &str, reason: &str| {
            let bytes = match (&entry.place, earlier) {
                (_, Some(earlier)) => return earlier.once_more(result, reason),
                // Nowhere to be read again, and a line that leads to a line leads nowhere: all of it is written down.
                (Location::Piece(piece), None) if piece.path.is_none() || piece.form == Form::Failures => {
                    self.replay.first_bytes(piece, u64::MAX).unwrap_or_default()
                }
                (Location::Piece(_) | Location::Ledger(_), None) => Vec::new(),
            };
            match (&entry.place, Failure::read(&bytes)) {
                (Location::Piece(Piece { form: Form::Failures, .. }), Ok(earlier)) => earlier.once_more(result, reason),
                _ => Failure::line(entry.at, &entry.place, &FailedContent::Bytes(&bytes), None, result, reason),
            }
        };
        self.tell_with(entry, None, None, outcome, line);
    }

    fn tell_with(
        &self,
        entry: &Entry,
        message: Option<&Message>,
        envelope: Option<&Envelope>,
        outcome: ReplayOutcome,
        line: impl Fn(&str, &str) -> String,
    ) {
        let failure = |result: &str, reason: &str| Some(line(result, reason));
        self.hear(Event::MessageReport(MessageReport {
            source: match &entry.place {
                Location::Piece(Piece { path, offset, .. }) => {
                    let path = path.as_ref().map_or("standard input".into(), |path| path.display().to_string());
                    if *offset == 0 { path } else { format!("{path}, byte {offset}") }
                }
                Location::Ledger(_) => "the ledger".into(),
            } + &message.map(|message| format!(" {}", message.message_id_for_people())).unwrap_or_default(),
            recipient: envelope.map(|envelope| envelope.recipient.to_string()),
            failure: match &outcome {
                ReplayOutcome::Delivered(_) | ReplayOutcome::AlreadyThere => None,
                ReplayOutcome::Deferred(why) => failure("deferred", why),
                ReplayOutcome::Refused(why) => failure("refused", why),
            },
            outcome,
        }));
    }

    /// One entry of the list, for each of its recipients. Says whether something is told of each of them: `false` where it
    /// was ended before the first, and the next run finds the entry where it is.
    fn replay_one(&mut self, entry: &Entry) -> bool {
        // A failure of an earlier run is about what failed, not about the line that tells of it.
        let (again, failure) = match &entry.place {
            Location::Piece(piece) if piece.form == Form::Failures => {
                let read = self.replay.bytes(piece).map_err(|error| ReplayOutcome::unreadable(&error));
                let read = read.and_then(|line| Failure::read(&line).map_err(ReplayOutcome::Refused));
                let again = read.and_then(|failure| {
                    let again = failure.again().map_err(|why| ReplayOutcome::Refused(why.into()))?;
                    Ok((again, failure))
                });
                match again {
                    Ok((again, failure)) => (again, Some(failure)),
                    Err(outcome) => {
                        self.tell_unread(entry, None, outcome);
                        return true;
                    }
                }
            }
            place => (FailedSource::Location(place.clone()), None),
        };
        let entry = match &again {
            FailedSource::Location(place) => Entry { place: place.clone(), ..entry.clone() },
            // It is written down whole again if it fails again.
            FailedSource::Content(..) => Entry {
                place: Location::Piece(Piece { form: Form::Message, path: None, offset: 0, length: Piece::TO_THE_END }),
                ..entry.clone()
            },
        };
        let loaded = match self.load(again, failure.as_ref()) {
            Ok(loaded) => loaded,
            Err(outcome) => {
                self.tell_unread(&entry, failure.as_ref(), outcome);
                return true;
            }
        };
        let message = &loaded.message;
        if self.replay.size_limit.is_some_and(|limit| message.size() > limit) {
            self.tell(&entry, message, None, ReplayOutcome::Refused(TOO_LARGE.into()));
            return true;
        }
        if loaded.given.recipients.is_empty() {
            let why = "no envelope: give --recipient, or write it into FILE.envelope; the message does not begin with a \
                       Delivered-To or X-Original-To line of pipe(8)";
            self.tell(&entry, message, None, ReplayOutcome::Refused(why.into()));
            return true;
        }
        let can_be_read_again = !matches!(&entry.place, Location::Piece(Piece { path: None, .. }));
        let mut begun = false;
        for envelope in loaded.given.envelopes() {
            let envelope = match envelope {
                Ok(envelope) => envelope,
                Err(why) => {
                    self.tell(&entry, message, None, ReplayOutcome::Refused(why));
                    continue;
                }
            };
            if self.replay.stopped() {
                if !begun && can_be_read_again {
                    return false;
                }
                // Others of its recipients are served, or it cannot be read again: this one is not to be forgotten.
                self.tell(&entry, message, Some(&envelope), ReplayOutcome::Deferred("it was ended early".into()));
                continue;
            }
            let others;
            // Lines that were prepended for one recipient are nobody else's to read.
            let message = if loaded.lines_are_ours && !was_prepended_for(message, &envelope) {
                others = message.for_another_recipient();
                &others
            } else {
                message
            };
            begun = true;
            // A panic in one delivery says nothing about the next one. The log has it.
            let outcome = catch_unwind(AssertUnwindSafe(|| self.deliver(message, &envelope))).unwrap_or_else(|_| {
                self.database = None;
                ReplayOutcome::internal_error()
            });
            self.tell(&entry, message, Some(&envelope), outcome);
        }
        true
    }

    /// Reads the message and what is known of its envelope; or says what came of it without that.
    fn load(&mut self, again: FailedSource, failure: Option<&Failure>) -> Result<Loaded, ReplayOutcome> {
        let replay = self.replay;
        let receive = |bytes| Message::receive(bytes).map_err(|error| ReplayOutcome::Refused(error.to_string()));
        let (message, given, lines_are_ours) = match again {
            FailedSource::Location(Location::Piece(piece)) => {
                let (bytes, given) = replay.message_of(&piece).map_err(ReplayOutcome::Refused)?;
                // Postfix has not handed this one over yet: what stands at its top came with it.
                let (given, from_queue) = (replay.given.clone().or(given), piece.form == Form::QueueFile);
                (receive(bytes)?, given, !from_queue)
            }
            FailedSource::Location(Location::Ledger(key)) => {
                let (message, given) = self.load_from_ledger(&key)?;
                (message, given, true)
            }
            FailedSource::Content(form, bytes) => {
                let (bytes, records) = message_in(form, bytes).map_err(|why| ReplayOutcome::Refused(why.into()))?;
                (receive(bytes)?, replay.given.clone().or(records), form != Form::QueueFile)
            }
        };
        if failure.is_some_and(|failure| !failure.is_about(&message)) {
            return Err(ReplayOutcome::Refused("another message is there now".into()));
        }
        let given = failure.map(Failure::given).unwrap_or_default().or(given);
        let given = if lines_are_ours { given.or(PartialEnvelope::in_prepended_lines(&message)) } else { given };
        Ok(Loaded { message, given, lines_are_ours })
    }

    /// Reads a message that was to be delivered as this copy, from wherever the ledger knows it to be.
    fn load_from_ledger(&mut self, key: &CopyKey) -> Result<(Message, PartialEnvelope), ReplayOutcome> {
        let replay = self.replay;
        let database_failed = |error| ReplayOutcome::refusal(&Deferral::Database(error).into());
        let known = self.ask(|database| known_delivery(database, key)).map_err(database_failed)?;
        let known = known.ok_or_else(|| ReplayOutcome::Refused("the ledger does not know it any more".into()))?;
        if known.delivered {
            return Err(ReplayOutcome::AlreadyThere);
        }
        let whose = format!("{} to {}", known.message_id, known.recipient);
        let (row, identity) = known.message.ok_or_else(|| {
            ReplayOutcome::Refused(format!(
                "{whose}: nobody has got it yet, so the ledger has no source of it: Postfix has it in its queue, and tries it \
                 again (at once: `postqueue -i QUEUE-ID`); or replay it from a file"
            ))
        })?;
        let message = self.ask(|database| {
            let deadline = Deadline::after(replay.deadline);
            match redelivery::message_of_ledger(replay.site, database, (row, &identity), None, deadline) {
                Err(RedeliveryError::Database(error)) => Err(error),
                message => Ok(message),
            }
        });
        match message.map_err(database_failed)? {
            Ok(message) => {
                let (sender, queue_id, recipients) = (known.sender, known.queue_id, vec![(known.recipient, None)]);
                Ok((message, PartialEnvelope { sender, recipients, queue_id, ..PartialEnvelope::default() }))
            }
            Err(why @ RedeliveryError::OutOfReach(_)) => Err(ReplayOutcome::Deferred(format!("{whose}: {why}"))),
            Err(why) => Err(ReplayOutcome::Refused(format!("{whose}: {why}"))),
        }
    }

    /// Asks the ledger.
    fn ask<T>(
        &mut self,
        question: impl FnOnce(&mut dyn Database) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        let replay = self.replay;
        let (mut database, deadline) = match self.database.take() {
            Some((database, deadline)) if deadline.remaining() > replay.deadline / 2 => (database, deadline),
            _ => {
                let deadline = Deadline::after(replay.deadline);
                (replay.site.open_database(None, deadline)?, deadline)
            }
        };
        // After an error nobody knows what the connection is good for.
        let answer = question(database.as_mut())?;
        self.database = Some((database, deadline));
        Ok(answer)
    }

    fn plan(&mut self, message: &Message, envelope: &Envelope) -> Result<Vec<PlannedCopy>, Refusal> {
        let site = self.replay.site;
        let planned = self.ask(|database| match site.plan(message, envelope, database) {
            Err(Refusal::Deferred(Deferral::Database(error))) => Err(error),
            planned => Ok(planned),
        });
        planned.map_err(|error| Refusal::from(Deferral::Database(error)))?
    }

    /// Delivers a message to one recipient, unless the ledger has it as delivered.
    fn deliver(&mut self, message: &Message, envelope: &Envelope) -> ReplayOutcome {
        let replay = self.replay;
        let began = Instant::now();
        #[cfg(feature = "test-faults")]
        crate::base::fault::at("replay");
        let mut stages = Stages::default();
        let planned = self.plan(message, envelope);
        let result = match planned {
            // What is delivered stays delivered: no lock is needed to believe it.
            Ok(copies) if copies.iter().all(|copy| matches!(copy.standing, Standing::ThereAlready(_))) => {
                return ReplayOutcome::AlreadyThere;
            }
            Ok(copies) if replay.dry_run => {
                let copies: Vec<String> = copies.iter().map(ToString::to_string).collect();
                return ReplayOutcome::Delivered(copies.join("; "));
            }
            Ok(_) => {
                let deadline = Deadline::after(replay.deadline);
                let terms = Terms { policy: &replay.policy, caller: &NoCaller, deadline };
                replay.site.deliver(&mut Sessions::default(), message, envelope, &terms, &mut stages)
            }
            Err(refusal) if replay.dry_run => return ReplayOutcome::refusal(&refusal),
            Err(refusal) => Err(refusal),
        };
        let verdict = match &result {
            Ok(delivered) => Verdict::from(delivered),
            Err(refusal) => Verdict::from(refusal),
        };
        site::log_delivery(message, envelope, &replay.site.lock_name(message), &result, &verdict, &stages, began);
        ReplayOutcome::of(&result, &verdict)
    }
}
