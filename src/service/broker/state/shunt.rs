//! The broker's handling of messages that crash workers: see [`crate::service::shunt`].

use super::super::job::{Job, JobId, Payload, Stage};
use super::{Broker, ConnectionId};
use crate::delivery::StatusDetail;
use crate::protocol::Source;
use crate::service::shunt::{Admission, WorkerEnd};
use std::time::Instant;

impl Broker {
    pub(super) fn admission(&self, job: &Job, now: Instant) -> Admission {
        match &job.what {
            Payload::Delivery { request, .. } => self.crashes.admission(job.known_crash, request.source, now),
            Payload::Opaque(_) => Admission::Ordinary,
        }
    }

    /// Whether a suspect message is at a worker. Only one at a time is, so that such messages cost one worker at a time, whatever
    /// they do.
    pub(super) fn one_is_alone(&self) -> bool {
        !self.crashes.is_empty() && self.jobs.values().any(|job| job.alone && matches!(job.stage, Stage::At { .. }))
    }

    /// Whether a new build retries the message while other mail waits: that mail goes first.
    pub(super) fn others_go_first(&self, id: JobId) -> bool {
        let is_of_an_upgrade =
            |job: &Job| matches!(&job.what, Payload::Delivery { request, .. } if request.source == Source::Upgrade);
        let is_other = |other: &JobId| self.jobs.get(other).is_some_and(|job| !is_of_an_upgrade(job));
        self.jobs.get(&id).is_some_and(is_of_an_upgrade) && self.queue.iter().any(is_other)
    }

    /// Answers a shunted message that is not due yet. Returns whether this message was one.
    pub(super) fn refuse_shunted(&mut self, id: JobId, now: Instant) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        let Admission::Refused(text) = self.admission(job, now) else { return false };
        self.counters.refused_shunted += 1;
        self.answer_all(id, StatusDetail::SYSTEM, &text);
        true
    }

    /// Handles the end of a worker's connection. The master reports how the process has ended: the message may be the cause.
    pub(super) fn worker_gone(&mut self, connection: ConnectionId, now: Instant) {
        let pid = self.workers.get(connection).and_then(|worker| worker.pid);
        let lost = self.remove_worker(connection, "the process that delivered it has ended").and_then(Job::lost);
        if let (Some(pid), Some(lost)) = (pid.and_then(|pid| u32::try_from(pid).ok()), lost) {
            self.crashes.connection_ended(pid, lost, now);
        }
    }

    /// Handles the master's report of how a process has ended. The connection of the process may end later: a process that has
    /// crashed sends nothing more.
    pub(super) fn process_ended(&mut self, end: &WorkerEnd, now: Instant) {
        if let Some(connection) = self.workers.of_process(end.pid).filter(|_| end.is_crash()) {
            self.worker_gone(connection, now);
        }
        self.crashes.process_ended(end, now);
    }
}
