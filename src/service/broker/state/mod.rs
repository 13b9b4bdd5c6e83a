//! The broker's decisions, without input or output: events and the time go in, actions come out.

#[cfg(test)]
mod client_tests;
mod clients;
mod limits;
#[cfg(test)]
mod limits_tests;
#[cfg(test)]
mod property_tests;
mod shunt;
#[cfg(test)]
mod shunt_tests;
#[cfg(test)]
mod tests;
mod worker_replies;

use super::counters::{Counters, Gauges};
use super::job::{Job, JobId, Payload, ReplyTo, Stage, users};
use super::workers::Workers;
use crate::delivery::{StatusDetail, Verdict};
use crate::protocol::zmtp::INTERVAL;
use crate::protocol::{Header, Reply, Request, Source};
use crate::service::inflight_message::Body;
use crate::service::shunt::{Admission, CrashRecords, Order, WorkerEnd};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};
use uuid::Uuid;

/// How much longer than a delivery's deadline the broker waits for the worker, whose own watchdog acts first.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// A connection of a client or of a worker. An id is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A message that came over LMTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalId(pub u64);

#[derive(Clone, Debug)]
pub struct Settings {
    /// The longest wait for a worker.
    pub worker_wait: Duration,
    /// The configured number of workers.
    pub workers: usize,
    /// How many messages to one recipient are delivered at the same time.
    pub max_per_recipient: usize,
    /// How long a message waits for a recipient at that limit. Then it goes to the others, or is deferred if there are none.
    pub patience: Duration,
    /// Postfix's `recipient_delimiter`: what follows it in the local part does not change the mailbox.
    pub recipient_delimiter: String,
    /// With how many mailboxes a worker keeps an open session.
    pub mailbox_sessions: usize,
    /// The longest time of a delivery; a request cannot ask for more.
    pub longest_delivery: Duration,
    /// Distinguishes this broker's messages from those of the previous broker, to which replies may still arrive.
    pub run: u64,
}

#[derive(Debug)]
pub enum Event {
    /// A worker has sent READY.
    WorkerReady { connection: ConnectionId, name: Vec<u8>, pid: Option<i32> },
    /// A worker has sent a heartbeat.
    WorkerBeat { connection: ConnectionId },
    /// A worker has sent a reply.
    WorkerAnswered { connection: ConnectionId, address: Vec<u8>, body: Vec<u8> },
    /// A worker's connection has ended.
    WorkerGone { connection: ConnectionId },
    /// A worker's process has ended, as the master reports.
    ProcessEnded(WorkerEnd),
    /// A client has sent a request, or another frame.
    ClientSaid { connection: ConnectionId, body: Vec<u8> },
    /// A client has sent a request whose message is in a file.
    ClientDelivers { connection: ConnectionId, request: Box<Request>, body: Body },
    /// A client's connection has ended.
    ClientGone { connection: ConnectionId },
    /// A message has come over LMTP.
    Submitted { id: LocalId, request: Box<Request>, body: Body },
    /// This process must end. Requests without GO are deferred, and so are messages without a worker. Other messages are still
    /// delivered.
    Stop,
}

/// What the caller must do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a heartbeat to a worker.
    Beat { connection: ConnectionId },
    /// Send a message to a worker.
    Work { connection: ConnectionId, address: Vec<u8>, body: Vec<u8> },
    /// Send a frame to a client.
    SendToClient { connection: ConnectionId, body: Vec<u8> },
    /// Answer the LMTP server: a verdict for each recipient.
    Answer { id: LocalId, verdicts: Vec<Verdict> },
    /// Kill the process behind this connection if the system knows its id, and close the connection.
    EndWorker { connection: ConnectionId, pid: Option<i32> },
    /// Close the connection of a worker that has reported its end.
    CloseWorker { connection: ConnectionId },
    /// Close the connection of a client that has sent an invalid frame: the client notices at once.
    CloseClient { connection: ConnectionId },
}

pub struct Broker {
    settings: Settings,
    workers: Workers,
    jobs: BTreeMap<JobId, Job>,
    /// The jobs that wait for a worker, in the order of their arrival.
    queue: VecDeque<JobId>,
    /// Recipients that kept a worker waiting for long without a delivery, and until when they count as slow.
    slow: BTreeMap<String, Instant>,
    crashes: CrashRecords,
    /// Why the last delivery that used the database could not use it; `None` if it could.
    database_away: Option<String>,
    stopping: bool,
    last_job: u64,
    /// The time of the event that is being handled.
    now: Instant,
    last_tick: Instant,
    next_beat: Instant,
    counters: Counters,
    actions: Vec<Action>,
}

impl Broker {
    pub fn new(settings: Settings, crashes: CrashRecords, now: Instant) -> Self {
        Self {
            settings,
            workers: Workers::default(),
            jobs: BTreeMap::new(),
            queue: VecDeque::new(),
            slow: BTreeMap::new(),
            crashes,
            database_away: None,
            stopping: false,
            last_job: 0,
            now,
            last_tick: now,
            next_beat: now + INTERVAL,
            counters: Counters::default(),
            actions: Vec::new(),
        }
    }

    /// Handles an event, and returns the actions that follow.
    #[must_use]
    pub fn handle(&mut self, event: Event, now: Instant) -> Vec<Action> {
        self.now = now;
        match event {
            Event::WorkerReady { connection, name, pid } => {
                self.workers.ready(connection, &name, pid, now);
            }
            Event::WorkerBeat { connection } => {
                if !self.workers.received(connection, now) {
                    // The worker gets no heartbeats from this broker either, so it soon sends READY.
                    debug!(connection = connection.0, "a heartbeat of somebody who has not said READY");
                }
            }
            Event::WorkerAnswered { connection, address, body } => {
                self.worker_answered(connection, &address, body, now);
            }
            Event::WorkerGone { connection } => self.worker_gone(connection, now),
            Event::ProcessEnded(end) => self.process_ended(&end, now),
            Event::ClientSaid { connection, body } => self.client_said(connection, body, now),
            Event::ClientDelivers { connection, request, body } => {
                self.client_delivers(request, body, connection, now);
            }
            Event::ClientGone { connection } => self.client_gone(connection),
            Event::Submitted { id, request, body } => {
                let job = self.admit(request, body, ReplyTo::Local(id), Stage::Queued, now);
                if !self.refuse_shunted(job, now) {
                    self.queue.push_back(job);
                }
            }
            Event::Stop => self.stopping = true,
        }
        self.counters.newly_shunted = self.crashes.newly_shunted();
        if self.stopping {
            self.defer_what_cannot_begin();
        }
        self.dispatch(now);
        std::mem::take(&mut self.actions)
    }

    /// Whether the broker has no jobs.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// When the caller must call [`tick`](Self::tick), if no event comes before.
    pub fn next_tick(&self) -> Instant {
        let queued = self.queue.iter().filter_map(|id| self.jobs.get(id));
        // A job whose patience has ended waits only for a worker.
        let patient =
            |job: &Job| job.throttled_since.map(|since| self.patient_until(job, since)).filter(|at| *at > self.now);
        let times = queued.flat_map(|job| [Some(self.deferred_at(job)), patient(job)]).flatten();
        times.min().map_or(self.next_beat, |first| first.min(self.next_beat))
    }

    /// Handles the passage of time: heartbeats, and jobs that have waited too long. All earlier events must be
    /// [handled](Self::handle) before.
    #[must_use]
    pub fn tick(&mut self, now: Instant) -> Vec<Action> {
        let pause = now.saturating_duration_since(self.last_tick);
        (self.now, self.last_tick) = (now, now);
        if now >= self.next_beat {
            self.next_beat = now + INTERVAL;
            if pause <= 2 * INTERVAL {
                self.counters.missed_heartbeats += self.workers.missed_heartbeats(now);
            }
            self.actions.extend(self.workers.connections().map(|connection| Action::Beat { connection }));
        }
        if pause > 2 * INTERVAL {
            // This process, or the machine, was stopped: the missing heartbeats are not the fault of the peers.
            warn!(seconds = pause.as_secs(), "the broker did not run for a while: all workers are given more time");
            self.workers.all_heard(now);
        } else {
            self.end_what_takes_too_long(now);
        }
        self.end_what_waits_too_long(now);
        self.slow.retain(|_, until| now < *until);
        self.crashes.drop_old(now);
        self.dispatch(now);
        std::mem::take(&mut self.actions)
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Why the last delivery that used the database could not use it; `None` if it could.
    pub fn database_away(&self) -> Option<&str> {
        self.database_away.as_deref()
    }

    /// The records of messages that have crashed workers.
    pub fn crashes(&self) -> &CrashRecords {
        &self.crashes
    }

    /// The changes of the crash records that must be stored now.
    #[must_use]
    pub fn orders(&mut self) -> Vec<Order> {
        self.crashes.orders()
    }

    /// How many messages and workers there are now.
    pub fn gauges(&self, now: Instant) -> Gauges {
        let (ready, busy, silent) = self.workers.count(now);
        let held = self.jobs.values().filter(|job| job.stage == Stage::AwaitingGo).count();
        let in_work = self.jobs.len() - held - self.queue.len();
        Gauges { queued: self.queue.len(), held, in_work, ready, busy, silent, suspects: self.crashes.suspects() }
    }

    fn admit(&mut self, request: Box<Request>, body: Body, asker: ReplyTo, stage: Stage, now: Instant) -> JobId {
        let time = Duration::from_millis(request.time_left_ms).min(self.settings.longest_delivery);
        let (users, known_crash) =
            (users(&request, &self.settings.recipient_delimiter), self.crashes.find(&request, &body));
        let id = self.insert(Payload::Delivery { request, body, users }, asker, time, stage, now);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.known_crash = known_crash;
        }
        id
    }

    fn insert(&mut self, what: Payload, asker: ReplyTo, time: Duration, stage: Stage, now: Instant) -> JobId {
        self.last_job += 1;
        let id = JobId(self.last_job);
        let job = Job {
            what,
            asker,
            stage,
            arrived: now,
            queued: now,
            time,
            known_crash: None,
            alone: false,
            throttled_since: None,
            excluded_recipients: BTreeSet::new(),
        };
        self.jobs.insert(id, job);
        id
    }

    /// Removes a job from the broker, in any stage.
    fn take(&mut self, id: JobId) -> Option<Job> {
        let job = self.jobs.remove(&id)?;
        if job.stage == Stage::Queued {
            self.queue.retain(|queued| *queued != id);
        }
        Some(job)
    }

    /// Passes messages to workers, as long as there are both.
    fn dispatch(&mut self, now: Instant) {
        let mut at = 0;
        while let Some(&id) = self.queue.get(at) {
            if !self.workers.any_free(now) {
                return;
            }
            let Some(job) = self.jobs.get(&id) else { return };
            let alone = match self.admission(job, now) {
                Admission::Ordinary => false,
                Admission::OneAtATime => true,
                Admission::Refused(_) => {
                    self.refuse_shunted(id, now);
                    continue;
                }
            };
            // A message may wait for its recipients, for its own lock, or for another message that crashes workers. Such a
            // message does not block those behind it.
            if (alone && (self.one_is_alone() || self.others_go_first(id)))
                || self.waits_for_its_message(id, now)
                || self.is_held_back(id, now)
            {
                at += 1;
                continue;
            }
            self.queue.remove(at);
            self.dispatch_job(id, alone, now);
        }
    }

    /// Passes a message to a worker. This happens at most once for each job.
    fn dispatch_job(&mut self, id: JobId, alone: bool, now: Instant) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.alone = alone;
        let slow = job.delivered_users().all(|user| self.slow.contains_key(user));
        let Some(body) = job.body_for_a_worker(slow, now) else {
            self.answer_all(id, StatusDetail::SYSTEM, "the envelope is too long");
            return;
        };
        let users = job.delivered_users().collect();
        let taken = self.workers.take(id, &users, self.settings.mailbox_sessions, now);
        let Some(connection) = taken else { return };
        if let (true, Some(key)) = (job.alone, job.known_crash) {
            self.crashes.begins_alone(key, now);
        }
        if !job.excluded_recipients.is_empty() {
            self.counters.excluded_recipients += job.excluded_recipients.len() as u64;
            info!(
                recipients = job.excluded_recipients.len(),
                "a message goes to the others of its recipients: these have too many at work"
            );
        }
        self.counters.waits.add(now.saturating_duration_since(job.queued));
        self.counters.dispatched += 1;
        job.stage = Stage::At { worker: connection, since: now, until: now + job.time_left(now) + GRACE };
        self.actions.push(Action::Work { connection, address: self.address(id), body });
    }

    /// The address of a job. A worker returns it with its reply.
    fn address(&self, id: JobId) -> Vec<u8> {
        [self.settings.run.to_be_bytes(), id.0.to_be_bytes()].concat()
    }

    /// Defers messages that no worker has taken in time, and requests whose client has not sent GO in time.
    fn end_what_waits_too_long(&mut self, now: Instant) {
        let late = self.jobs.iter().filter(|(_, job)| match job.stage {
            Stage::Queued => now >= self.deferred_at(job),
            Stage::AwaitingGo => job.time_left(now).is_zero(),
            Stage::At { .. } => false,
        });
        for id in late.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.counters.waited_too_long += 1;
            // 4.4.5, mail system congestion (RFC 3463 section 3.5). 4.3.2 would say that the whole system accepts nothing, but
            // the cause may be one recipient's mailbox.
            self.answer_all(id, StatusDetail::CONGESTION, "it waited too long for others to be delivered");
        }
    }

    fn defer_what_cannot_begin(&mut self) {
        let stay = self.workers.any_that_stay();
        let waiting = self.jobs.iter().filter(|(_, job)| match job.stage {
            Stage::AwaitingGo => true,
            // While the service ends, no process is replaced, so no new worker will come.
            Stage::Queued => !stay,
            Stage::At { .. } => false,
        });
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.answer_all(id, StatusDetail::NOT_ACCEPTING, "the service is being stopped");
        }
    }

    /// Defers a message for all of its recipients. Another program's message gets no answer, since that program does not know our
    /// replies.
    fn answer_all(&mut self, id: JobId, detail: StatusDetail, text: &str) -> Option<Job> {
        let verdicts = match self.jobs.get(&id).map(|job| &job.what) {
            Some(Payload::Delivery { request, .. }) => all(request, detail, text),
            Some(Payload::Opaque(_)) | None => return self.take(id),
        };
        self.answer(id, &verdicts)
    }

    /// The only function that answers a message of ours. This function removes the job, so no second answer is possible.
    fn answer(&mut self, id: JobId, verdicts: &[Verdict]) -> Option<Job> {
        self.note_slow_recipients(id, verdicts);
        let job = self.take(id)?;
        let Payload::Delivery { request, .. } = &job.what else { return Some(job) };
        // Without a client, there is no reply to count. (The LMTP server counts its own replies.)
        if matches!(job.asker, ReplyTo::Client(_)) {
            self.count_replies(request.source, verdicts, self.now.saturating_duration_since(job.arrived));
        }
        if let Some(key) = job.known_crash {
            self.crashes.answered(key, request, verdicts, self.now);
        }
        match job.asker {
            ReplyTo::Local(id) => self.actions.push(Action::Answer { id, verdicts: verdicts.to_vec() }),
            client @ ReplyTo::Client(_) => self.send_to_client(client, &reply(request.id, verdicts)),
            ReplyTo::Nobody => debug!(id = %request.id, "the client of this message has gone"),
        }
        Some(job)
    }

    fn count_replies(&mut self, source: Source, verdicts: &[Verdict], after: Duration) {
        let codes: Vec<String> = verdicts.iter().map(Verdict::code).collect();
        self.traffic(source).replied(codes.iter().map(String::as_str), after);
    }

    fn send_to_client(&mut self, to: ReplyTo, header: &Header) {
        let ReplyTo::Client(connection) = to else { return };
        self.actions.push(match header.frame(&[]) {
            Ok(body) => Action::SendToClient { connection, body },
            Err(problem) => {
                warn!(%problem, "an answer to a client cannot be written");
                Action::CloseClient { connection }
            }
        });
    }
}

fn reply(id: Uuid, verdicts: &[Verdict]) -> Header {
    Header::Reply(Reply { id, results: verdicts.to_vec(), ..Reply::default() })
}

fn all(request: &Request, detail: StatusDetail, text: &str) -> Vec<Verdict> {
    vec![Verdict::deferred(detail, text); request.recipients.len()]
}
