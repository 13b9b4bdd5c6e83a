//! The connected workers, and the choice of the one that gets the next message.

use super::job::JobId;
use super::state::ConnectionId;
use crate::protocol::zmtp::{INTERVAL, LIVENESS};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// A worker without a heartbeat for this time gets no new message.
const SILENT: Duration = INTERVAL.saturating_mul(LIVENESS);
/// A worker without a heartbeat for this time is ended. A process that was stopped, or is short of memory, may recover before
/// that, and its message then needs no redelivery.
const DEAD: Duration = Duration::from_secs(10);

pub(super) struct Worker {
    /// The name that the worker gives itself, for the log.
    pub(super) name: String,
    /// The process id, if the system knows it. The worker's own claim does not count, since this process may get killed.
    pub(super) pid: Option<i32>,
    heard: Instant,
    pub(super) job: Option<JobId>,
    /// The recipients of the deliveries on this connection, the latest last. There are at most as many as the worker keeps
    /// mailbox sessions.
    recent: VecDeque<String>,
    /// Whether the worker ends, and gets no more messages.
    pub(super) leaving: bool,
}

#[derive(Default)]
pub(super) struct Workers {
    all: BTreeMap<ConnectionId, Worker>,
    /// The workers without a message, the one that has waited longest first.
    ready: VecDeque<ConnectionId>,
}

impl Workers {
    /// Handles READY. On a known connection it counts only as a heartbeat, since the worker may have a message.
    pub(super) fn ready(&mut self, connection: ConnectionId, name: &[u8], pid: Option<i32>, now: Instant) {
        if self.received(connection, now) {
            return;
        }
        let name = String::from_utf8_lossy(name).into_owned();
        let worker = Worker { name, pid, heard: now, job: None, recent: VecDeque::new(), leaving: false };
        self.all.insert(connection, worker);
        self.ready.push_back(connection);
    }

    /// Records a sign of life. Returns whether the worker is known.
    pub(super) fn received(&mut self, connection: ConnectionId, now: Instant) -> bool {
        self.all.get_mut(&connection).map(|worker| worker.heard = now).is_some()
    }

    /// Records a sign of life of all workers, after a time in which this process could not read their heartbeats.
    pub(super) fn all_heard(&mut self, now: Instant) {
        self.all.values_mut().for_each(|worker| worker.heard = now);
    }

    pub(super) fn get_mut(&mut self, connection: ConnectionId) -> Option<&mut Worker> {
        self.all.get_mut(&connection)
    }

    pub(super) fn get(&self, connection: ConnectionId) -> Option<&Worker> {
        self.all.get(&connection)
    }

    /// Assigns the message to one of the workers that may take it: the one with open sessions for the most of these mailboxes. Of
    /// several such workers, the one that has waited longest gets it. A worker without a session must log in, which takes most of
    /// a delivery's time. `sessions` is the number of sessions that a worker keeps.
    pub(super) fn take(
        &mut self,
        job: JobId,
        users: &BTreeSet<&String>,
        sessions: usize,
        now: Instant,
    ) -> Option<ConnectionId> {
        let open = |worker: &Worker| worker.recent.iter().filter(|user| users.contains(user)).count();
        let (at, _) = self.free_workers(now).max_by_key(|(at, worker)| (open(worker), Reverse(*at)))?;
        let connection = self.ready.remove(at)?;
        let worker = self.all.get_mut(&connection)?;
        worker.job = Some(job);
        worker.recent.retain(|user| !users.contains(&user));
        worker.recent.extend(users.iter().map(|user| (*user).clone()));
        worker.recent.drain(..worker.recent.len().saturating_sub(sessions));
        Some(connection)
    }

    /// Whether any worker could take a message now.
    pub(super) fn any_free(&self, now: Instant) -> bool {
        self.free_workers(now).next().is_some()
    }

    /// The idle workers that could take a message now, with their positions in `ready`.
    fn free_workers(&self, now: Instant) -> impl Iterator<Item = (usize, &Worker)> {
        let ready = self.ready.iter().enumerate();
        let ready = ready.filter_map(|(at, connection)| Some((at, self.all.get(connection)?)));
        ready.filter(move |(_, worker)| !worker.leaving && !worker.is_silent(now))
    }

    /// The jobs at workers.
    pub(super) fn jobs(&self) -> impl Iterator<Item = JobId> {
        self.all.values().filter_map(|worker| worker.job)
    }

    /// Whether any worker takes another message, now or later.
    pub(super) fn any_that_stay(&self) -> bool {
        self.all.values().any(|worker| !worker.leaving)
    }

    /// Records that the worker has answered, and is idle.
    pub(super) fn free(&mut self, connection: ConnectionId) {
        if let Some(worker) = self.all.get_mut(&connection) {
            worker.job = None;
            self.ready.push_back(connection);
        }
    }

    pub(super) fn remove(&mut self, connection: ConnectionId) -> Option<Worker> {
        self.ready.retain(|ready| *ready != connection);
        self.all.remove(&connection)
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.all.keys().copied()
    }

    pub(super) fn of_process(&self, pid: u32) -> Option<ConnectionId> {
        let is_its = |worker: &Worker| worker.pid.is_some_and(|known| u32::try_from(known) == Ok(pid));
        self.all.iter().find(|(_, worker)| is_its(worker)).map(|(connection, _)| *connection)
    }

    /// The workers whose heartbeats have been missing for too long.
    pub(super) fn dead(&self, now: Instant) -> Vec<ConnectionId> {
        self.all.iter().filter(|(_, worker)| worker.silence(now) >= DEAD).map(|(connection, _)| *connection).collect()
    }

    /// How many workers are ready, busy, and unresponsive.
    pub(super) fn count(&self, now: Instant) -> (usize, usize, usize) {
        let busy = self.all.values().filter(|worker| worker.job.is_some() && !worker.is_silent(now)).count();
        let silent = self.all.values().filter(|worker| worker.is_silent(now)).count();
        (self.free_workers(now).count(), busy, silent)
    }

    /// How many workers have an overdue heartbeat. One is due each second, and may take a second to arrive.
    pub(super) fn missed_heartbeats(&self, now: Instant) -> u64 {
        self.all.values().filter(|worker| worker.silence(now) >= 2 * INTERVAL).count() as u64
    }
}

impl Worker {
    fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard)
    }

    fn is_silent(&self, now: Instant) -> bool {
        self.silence(now) >= SILENT
    }
}
