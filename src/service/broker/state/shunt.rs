//! The broker's handling of messages that crash workers: see [`crate::service::shunt`].

use super::super::job::{Job, JobId, Stage, What};
use super::super::workers::Wants;
use super::{Action, Broker, ConnectionId};
use crate::delivery::StatusDetail;
use crate::service::shunt::{Admission, WorkerEnd};
use std::time::Instant;
use tracing::info;

impl Broker {
    pub(super) fn admission(&self, job: &Job, now: Instant) -> Admission {
        match &job.what {
            What::Ours { request, .. } => self.crashes.admission(job.known_crash, request.source, now),
            What::Plain(_) => Admission::Ordinary,
        }
    }

    /// Passes on the first message that needs a worker of its own. Only one at a time, so that such messages cost one worker at
    /// a time, whatever they do. It gets the next new worker. If there is none, one worker is replaced.
    pub(super) fn hand_out_alone(&mut self, now: Instant) {
        if self.crashes.is_empty() || self.jobs.values().any(|job| job.alone && matches!(job.stage, Stage::At(..))) {
            return;
        }
        let is_next = |id: &&JobId| self.jobs.get(id).is_some_and(|job| self.admission(job, now) == Admission::Alone);
        for id in self.queue.iter().filter(is_next).copied().collect::<Vec<_>>() {
            if !self.workers.any_for(Wants::New, now) {
                // A retired worker has to be replaced before another one is retired: perhaps no new worker can start.
                if self.workers.staying() >= self.settings.workers
                    && let Some((connection, pid)) = self.workers.retire_one(now)
                {
                    info!(pid, "a worker is replaced by a new one, for a message that has crashed one before");
                    self.actions.push(Action::RetireWorker { connection, pid });
                }
                return;
            }
            if !self.waits_for_its_message(id, now) && !self.is_held_back(id, now) {
                self.queue.retain(|queued| *queued != id);
                self.hand_to_a_worker(id, Wants::New, now);
                return;
            }
        }
    }

    /// Answers a shunted message that is not due. Returns whether it was one.
    pub(super) fn refuse_shunted(&mut self, id: JobId, now: Instant) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        let Admission::Refused(text) = self.admission(job, now) else { return false };
        self.counters.refused_shunted += 1;
        self.answer_all(id, StatusDetail::SYSTEM, &text);
        true
    }

    /// A worker has closed its connection. The master reports how the process has ended: the message may be the cause.
    pub(super) fn worker_gone(&mut self, connection: ConnectionId, now: Instant) {
        let pid = self.workers.get(connection).and_then(|worker| worker.pid);
        let lost = self.lose_worker(connection, "the process that delivered it has ended").and_then(Job::lost);
        if let (Some(pid), Some(lost)) = (pid.and_then(|pid| u32::try_from(pid).ok()), lost) {
            self.crashes.connection_ended(pid, lost, now);
        }
    }

    /// The master reports how a process has ended. Its connection may end later: a process that has crashed sends nothing more.
    pub(super) fn process_ended(&mut self, end: &WorkerEnd, now: Instant) {
        if let Some(connection) = self.workers.of_process(end.pid).filter(|_| end.is_crash()) {
            self.worker_gone(connection, now);
        }
        self.crashes.process_ended(end, now);
    }
}
