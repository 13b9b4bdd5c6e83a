//! Messages that crash workers. This module decides which message is tried alone, and which is answered 451 at once.
//!
//! | crashes of a message | its next attempt |
//! |---|---|
//! | none | like any other |
//! | one: the message is a suspect | alone: no other such message is at a worker, and the worker ends afterwards |
//! | two or more: the message is shunted | 451 at once; once an hour alone |
//!
//! A signal from outside is no crash of the message. Nor is it one if the worker's watchdog ends the worker while a server owes
//! an answer: that signal is SIGKILL ([`process_watchdog`](super::process_watchdog)).
//!
//! [`writer`] stores what must outlive the process. [`upgrade`] makes a new build retry all shunted messages, so that a repaired
//! site delivers them.

pub mod upgrade;
pub mod writer;

use super::inflight_message::Body;
use crate::base::timestamp;
use crate::delivery::Verdict;
use crate::protocol::control::End;
use crate::protocol::{Request, Source};
use crate::queue::{CrashedMessage, Digest, SHUNTED_AFTER};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGABRT, SIGBUS, SIGILL, SIGSEGV};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The interval between attempts of a shunted message.
const TRIED_EACH: Duration = Duration::from_hours(1);
/// How many crashes count within a minute. If all mail crashes workers, the cause is no message, but for example a broken
/// library.
const CRASHES_A_MINUTE: usize = 4;
const MINUTE: Duration = Duration::from_mins(1);
/// The largest number of crash records.
const MOST_RECORDS: usize = 1000;
/// How much later than the end of a worker's connection the master may report the end of its process.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);

/// The identity of a message: its size in bytes, which is known first, and its digest.
pub type Key = (u64, Digest);

/// The end of a worker, as the master reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerEnd {
    pub pid: u32,
    /// The exit status or the signal.
    #[serde(flatten)]
    pub end: End,
    /// Whether the master has killed the worker, or requested its end: in that case its message is not the cause.
    pub by_us: bool,
    /// The last lines that the worker wrote to standard error, oldest first.
    pub output: Vec<String>,
}

/// How a message may be delivered now.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission {
    /// By any worker.
    Ordinary,
    /// By any worker, but with no other such message at a worker.
    OneAtATime,
    /// Not at all; this is the text of the reply.
    Refused(String),
}

/// A message that was at a worker when the worker's connection ended.
#[derive(Debug)]
pub struct LostJob {
    pub request: Box<Request>,
    pub body: Body,
    /// Whether the message was delivered as a suspect or shunted one.
    pub alone: bool,
}

/// A change that must be stored.
#[derive(Debug)]
pub enum Order {
    /// A message has crashed this many workers.
    Crashed { digest: Digest, crashes: u32, reason: String, request: Box<Request>, body: Body },
    /// The message is delivered, or its record was dropped for another one.
    Remove(Digest),
}

/// The record of a message that has crashed a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CrashRecord {
    crashes: u32,
    /// When the message first crashed a worker, in microseconds since 1970.
    since: i64,
    /// If the message is shunted: from then on, the holder's next retry is a new attempt.
    due: Instant,
}

impl CrashRecord {
    fn is_shunted(&self) -> bool {
        self.crashes >= SHUNTED_AFTER
    }
}

/// All crash records.
#[derive(Default)]
pub struct CrashRecords {
    records: BTreeMap<Key, CrashRecord>,
    /// The messages of workers whose connection has ended, but whose end the master has not reported yet. The key is the process
    /// id; each message has the time of its loss.
    lost: BTreeMap<u32, (Instant, LostJob)>,
    /// The times of the crashes that count, of the last minute.
    counted: VecDeque<Instant>,
    orders: Vec<Order>,
    newly_shunted: u64,
}

impl WorkerEnd {
    /// Whether the process has crashed. A kill from outside (SIGKILL, SIGTERM) is no crash.
    pub(super) fn is_crash(&self) -> bool {
        !self.by_us && matches!(self.end, End::Signal(SIGABRT | SIGSEGV | SIGILL | SIGBUS))
    }
}

impl CrashRecords {
    /// The stored records of an earlier process. Each shunted message may be tried at once.
    pub fn remembered(messages: Vec<CrashedMessage>, now: Instant) -> Self {
        let mut all = Self::default();
        for message in messages {
            let record = CrashRecord { crashes: message.crashes, since: message.since, due: now };
            all.records.insert((message.envelope.size, message.digest), record);
        }
        all
    }

    /// The key of the message, if it has a record.
    pub fn find(&self, request: &Request, body: &Body) -> Option<Key> {
        let size = request.size;
        self.records.range((size, Digest::FIRST)..=(size, Digest::LAST)).next()?;
        let key = (size, digest(body)?);
        self.records.contains_key(&key).then_some(key)
    }

    /// How the message may be delivered now.
    pub fn admission(&self, key: Option<Key>, source: Source, now: Instant) -> Admission {
        match key.and_then(|key| Some((key, self.records.get(&key)?))) {
            None => Admission::Ordinary,
            Some(((_, digest), record)) if record.is_shunted() && !source.is_shunt() && now < record.due => {
                Admission::Refused(format!("shunted: it has crashed {} workers ({digest})", record.crashes))
            }
            Some(_) => Admission::OneAtATime,
        }
    }

    /// Records that the message is tried alone now.
    pub fn begins_alone(&mut self, key: Key, now: Instant) {
        if let Some(record) = self.records.get_mut(&key) {
            record.due = now + TRIED_EACH;
        }
    }

    /// Records the verdicts of the message, from its worker or from the broker.
    pub fn answered(&mut self, key: Key, request: &Request, verdicts: &[Verdict], now: Instant) {
        let is_shunt = request.source.is_shunt();
        // A refusal ends the message for its holder, but not an attempt with a copy of it.
        let ends = |verdict: &Verdict| verdict.class() == 2 || (verdict.class() == 5 && !is_shunt);
        let Some(record) = self.records.get_mut(&key).filter(|_| verdicts.iter().any(ends)) else { return };
        info!(id = %key.1, queue_id = request.queue_id, sender = request.sender, "a message that had crashed a worker is delivered");
        // The holder keeps the message for the remaining recipients. If its copy was tried, it may be the only one for them.
        if !is_shunt || verdicts.iter().all(ends) {
            self.records.remove(&key);
            self.orders.push(Order::Remove(key.1));
        } else {
            record.due = now;
        }
    }

    /// Records that the connection of a worker with a message has ended.
    pub fn connection_ended(&mut self, pid: u32, lost: LostJob, now: Instant) {
        self.lost.insert(pid, (now, lost));
    }

    /// Records the master's report of a worker's end. The worker's connection has ended earlier.
    pub fn process_ended(&mut self, end: &WorkerEnd, now: Instant) {
        if let Some((_, lost)) = self.lost.remove(&end.pid) {
            self.worker_ended(end, lost, now);
        }
    }

    /// Drops the messages of workers whose end was not reported in time: another process may have the id by now.
    pub fn drop_old(&mut self, now: Instant) {
        self.lost.retain(|_, (since, _)| now.saturating_duration_since(*since) < REPORTED_WITHIN);
    }

    fn worker_ended(&mut self, end: &WorkerEnd, lost: LostJob, now: Instant) {
        let LostJob { request, body, alone } = lost;
        let Some(digest) = end.is_crash().then(|| digest(&body)).flatten() else { return };
        let (id, queue_id, last_line) = (digest.to_string(), request.queue_id.as_deref(), end.output.last());
        let (pid, sender) = (end.pid, &request.sender);
        warn!(id, pid, queue_id, sender, end = %end.end, last_line, "a worker has crashed with a message");
        self.counted.retain(|at| now.saturating_duration_since(*at) < MINUTE);
        let key = (request.size, digest);
        let is_known = self.records.contains_key(&key);
        if self.counted.len() >= CRASHES_A_MINUTE || !(is_known || self.frees_record()) {
            warn!(id, "too many messages have crashed workers: this crash does not count");
            return;
        }
        // Several workers had the message before it had a record.
        if is_known && !alone {
            return;
        }
        let record = self.records.entry(key).or_insert(CrashRecord { crashes: 0, since: timestamp::now(), due: now });
        record.crashes = record.crashes.saturating_add(1);
        let crashes = record.crashes;
        if crashes == SHUNTED_AFTER {
            record.due = now + TRIED_EACH;
            self.newly_shunted += 1;
            warn!(
                id,
                queue_id,
                sender,
                "a message is shunted: it crashes workers. It is tried once an hour; `maildrop_command shunt show` prints more"
            );
        }
        self.counted.push_back(now);
        let last_line = last_line.map(|line| format!(": {line}")).unwrap_or_default();
        let reason = format!("worker {pid} {}{last_line}", end.end);
        self.orders.push(Order::Crashed { digest, crashes, reason, request, body });
    }

    /// Whether there may be one more record. At the limit, the oldest suspect is dropped for it: its holder retries it.
    fn frees_record(&mut self) -> bool {
        if self.records.len() < MOST_RECORDS {
            return true;
        }
        let suspects = self.records.iter().filter(|(_, record)| !record.is_shunted());
        let Some((_, oldest)) = suspects.map(|(key, record)| (record.since, *key)).min() else { return false };
        self.records.remove(&oldest);
        self.orders.push(Order::Remove(oldest.1));
        true
    }

    /// Takes the changes that must be stored.
    pub fn orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The number of messages that have crashed one worker.
    pub fn suspects(&self) -> usize {
        self.records.values().filter(|record| !record.is_shunted()).count()
    }

    /// The number of messages that this process has shunted.
    pub fn newly_shunted(&self) -> u64 {
        self.newly_shunted
    }
}

/// The digest of a message. `None` if its file cannot be read: such a message is delivered like any other.
fn digest(body: &Body) -> Option<Digest> {
    let bytes = body.bytes().inspect_err(|error| warn!(%error, "a message's file cannot be read"));
    bytes.ok().map(|bytes| Digest::of(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_crash_of_its_own_is_one() {
        // How a worker ended, whether the master caused that, and whether it is a crash.
        let table = [
            (End::Signal(6), false, true),
            (End::Signal(11), false, true),
            (End::Signal(4), false, true),
            (End::Signal(7), false, true),
            (End::Signal(6), true, false),
            (End::Signal(9), false, false),
            (End::Signal(15), false, false),
            (End::Signal(8), false, false),
            // An exit status is not the signal of the same number.
            (End::Exit(6), false, false),
            (End::Exit(0), false, false),
            (End::NotStarted("no memory".into()), false, false),
        ];
        for (end, by_us, is_crash) in table {
            let end = WorkerEnd { pid: 7, end, by_us, output: Vec::new() };
            assert_eq!(end.is_crash(), is_crash, "{end:?}");
        }
    }

    /// Ends the worker with this process id and a message. Returns whether the crash was stored.
    fn crash(records: &mut CrashRecords, pid: u32, message: &str, alone: bool, now: Instant) -> bool {
        let request = Box::new(Request::to(&["a@x"], message.len()));
        let lost = LostJob { request, body: Body::Memory(message.into()), alone };
        records.connection_ended(pid, lost, now);
        records.process_ended(&WorkerEnd { pid, end: End::Signal(11), by_us: false, output: Vec::new() }, now);
        !records.orders().is_empty()
    }

    #[test]
    fn in_a_storm_of_crashes_no_more_than_a_few_a_minute_count() {
        let (mut records, mut now) = (CrashRecords::default(), Instant::now());
        for minute in 0..3 {
            for number in 0..100 {
                let counts = crash(&mut records, number, &format!("{minute} {number}"), false, now);
                assert_eq!(counts, number < u32::try_from(CRASHES_A_MINUTE).unwrap(), "{minute} {number}");
            }
            now += MINUTE;
        }
        assert_eq!((records.suspects(), records.newly_shunted()), (3 * CRASHES_A_MINUTE, 0), "none was tried alone");
    }

    #[test]
    fn of_too_many_messages_the_oldest_suspect_is_forgotten_and_no_shunted_one() {
        let (mut records, now) = (CrashRecords::default(), Instant::now());
        let at = |minute: usize| now + MINUTE * u32::try_from(minute).unwrap();
        for number in 0..MOST_RECORDS {
            assert!(crash(&mut records, 7, &number.to_string(), false, at(number)));
        }
        assert!(crash(&mut records, 7, "0", true, at(MOST_RECORDS)));
        assert!(crash(&mut records, 7, "another", false, at(MOST_RECORDS + 1)));
        assert_eq!((records.records.len(), records.suspects()), (MOST_RECORDS, MOST_RECORDS - 1));
        let is_known = |message: &str| {
            let key = (message.len() as u64, Digest::of(message.as_bytes()));
            records.records.contains_key(&key)
        };
        assert!(is_known("0") && is_known("another"), "neither what is shunted, nor what is new");
    }
}
