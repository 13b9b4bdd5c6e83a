//! The workers that are connected: which of them gets the next message.

use super::job::JobId;
use super::state::ConnectionId;
use crate::protocol::zmtp::{INTERVAL, LIVENESS};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// After so long a silence a worker gets nothing new.
const SILENT: Duration = INTERVAL.saturating_mul(LIVENESS);
/// After so long a silence it is ended. A process that has been stopped, or is short of memory, may come back before, and then its
/// message is delivered without a second try.
const DEAD: Duration = Duration::from_secs(10);

pub(super) struct Worker {
    /// What it calls itself, for the log.
    pub(super) name: String,
    /// Its process, where the system tells. It is not what the worker says of itself: this process gets killed.
    pub(super) pid: Option<i32>,
    heard: Instant,
    pub(super) job: Option<JobId>,
    /// How many messages it has had on this connection.
    served: u64,
    /// For whom it has delivered on this connection, the latest last: into as many mailboxes as it keeps sessions for.
    recent: VecDeque<String>,
    /// It has answered one of our requests with what is no answer.
    pub(super) misunderstands: bool,
    /// It ends, and gets nothing more.
    pub(super) leaving: bool,
}

/// What a message wants of its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    /// Another program's.
    Plain,
    /// Ours.
    Ours,
    /// One that has had no message yet.
    New,
}

#[derive(Default)]
pub(super) struct Workers {
    all: BTreeMap<ConnectionId, Worker>,
    /// Those without a message, the one that has waited longest first.
    ready: VecDeque<ConnectionId>,
}

impl Workers {
    /// A worker says READY. On a connection that is known it only shows that it lives: it may be at work.
    pub(super) fn ready(&mut self, connection: ConnectionId, name: &[u8], pid: Option<i32>, now: Instant) {
        if self.heard(connection, now) {
            return;
        }
        let name = String::from_utf8_lossy(name).into_owned();
        let worker = Worker {
            name,
            pid,
            heard: now,
            job: None,
            served: 0,
            recent: VecDeque::new(),
            misunderstands: false,
            leaving: false,
        };
        self.all.insert(connection, worker);
        self.ready.push_back(connection);
    }

    /// Whether the worker is known, whose silence ends.
    pub(super) fn heard(&mut self, connection: ConnectionId, now: Instant) -> bool {
        self.all.get_mut(&connection).map(|worker| worker.heard = now).is_some()
    }

    /// All are taken for having just been heard: this process has not listened meanwhile.
    pub(super) fn all_heard(&mut self, now: Instant) {
        self.all.values_mut().for_each(|worker| worker.heard = now);
    }

    pub(super) fn get_mut(&mut self, connection: ConnectionId) -> Option<&mut Worker> {
        self.all.get_mut(&connection)
    }

    pub(super) fn get(&self, connection: ConnectionId) -> Option<&Worker> {
        self.all.get(&connection)
    }

    /// Takes, of the workers that may have this message, the one that has sessions open with the most of these mailboxes, and of
    /// several the one that has waited longest. Each other worker would have to log in, which takes most of a delivery's time.
    /// `sessions` is how many a worker keeps.
    pub(super) fn take(
        &mut self,
        job: JobId,
        users: &BTreeSet<&String>,
        sessions: usize,
        wants: Wants,
        now: Instant,
    ) -> Option<ConnectionId> {
        let open = |worker: &Worker| worker.recent.iter().filter(|user| users.contains(user)).count();
        let (at, _) = self.suited(wants, now).max_by_key(|(at, worker)| (open(worker), Reverse(*at)))?;
        let connection = self.ready.remove(at)?;
        let worker = self.all.get_mut(&connection)?;
        worker.job = Some(job);
        worker.served += 1;
        worker.recent.retain(|user| !users.contains(&user));
        worker.recent.extend(users.iter().map(|user| (*user).clone()));
        worker.recent.drain(..worker.recent.len().saturating_sub(sessions));
        Some(connection)
    }

    /// Whether any worker could take such a message now.
    pub(super) fn any_for(&self, wants: Wants, now: Instant) -> bool {
        self.suited(wants, now).next().is_some()
    }

    /// Those without a message that could take such a one now, and their places.
    fn suited(&self, wants: Wants, now: Instant) -> impl Iterator<Item = (usize, &Worker)> {
        let ready = self.ready.iter().enumerate();
        let ready = ready.filter_map(|(at, connection)| Some((at, self.all.get(connection)?)));
        ready.filter(move |(_, worker)| worker.may_take(wants, now))
    }

    /// Keeps the worker that has waited longest from another message, for a new one to take its place. Its process.
    pub(super) fn retire_one(&mut self, now: Instant) -> Option<(ConnectionId, i32)> {
        let (at, _) = self.suited(Wants::Ours, now).find(|(_, worker)| worker.pid.is_some())?;
        let connection = self.ready.remove(at)?;
        let worker = self.all.get_mut(&connection)?;
        worker.leaving = true;
        Some((connection, worker.pid?))
    }

    /// Whether there is a worker that takes another message, now or later.
    pub(super) fn any_that_stay(&self) -> bool {
        self.all.values().any(|worker| !worker.leaving)
    }

    /// How many take another message of ours, now or later.
    pub(super) fn staying(&self) -> usize {
        self.all.values().filter(|worker| !worker.leaving && !worker.misunderstands).count()
    }

    /// It has answered, and waits again.
    pub(super) fn free(&mut self, connection: ConnectionId) {
        if let Some(worker) = self.all.get_mut(&connection) {
            worker.job = None;
            self.ready.push_back(connection);
        }
    }

    /// Forgets one, and says what it was.
    pub(super) fn remove(&mut self, connection: ConnectionId) -> Option<Worker> {
        self.ready.retain(|ready| *ready != connection);
        self.all.remove(&connection)
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.all.keys().copied()
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = i32> {
        self.all.values().filter_map(|worker| worker.pid)
    }

    /// Those that have been silent for too long to be waited for.
    pub(super) fn dead(&self, now: Instant) -> Vec<ConnectionId> {
        self.all.iter().filter(|(_, worker)| worker.silence(now) >= DEAD).map(|(connection, _)| *connection).collect()
    }

    /// How many are ready, busy, and silent.
    pub(super) fn count(&self, now: Instant) -> (usize, usize, usize) {
        let busy = self.all.values().filter(|worker| worker.job.is_some() && !worker.is_silent(now)).count();
        let silent = self.all.values().filter(|worker| worker.is_silent(now)).count();
        let ready = self.ready.iter().filter_map(|connection| self.all.get(connection));
        (ready.filter(|worker| !worker.is_silent(now) && !worker.leaving).count(), busy, silent)
    }
}

impl Workers {
    /// How many should have been heard meanwhile: a heartbeat is due each second, and one more second is left for its way.
    pub(super) fn missed_heartbeats(&self, now: Instant) -> u64 {
        self.all.values().filter(|worker| worker.silence(now) >= 2 * INTERVAL).count() as u64
    }
}

impl Worker {
    fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard)
    }

    fn may_take(&self, wants: Wants, now: Instant) -> bool {
        let suits = match wants {
            Wants::Plain => true,
            Wants::Ours => !self.misunderstands,
            Wants::New => !self.misunderstands && self.is_new(),
        };
        suits && !self.leaving && !self.is_silent(now)
    }

    /// Whether nothing of an earlier message can be left in it, as far as we know: where the system does not tell its process,
    /// nobody could have it replaced.
    fn is_new(&self) -> bool {
        self.served == 0 || self.pid.is_none()
    }

    fn is_silent(&self, now: Instant) -> bool {
        self.silence(now) >= SILENT
    }
}
