//! What the broker does with messages that have ended workers: see [`crate::serve::suspects`].

use super::super::job::{Job, JobId, Stage, What};
use super::super::workers::Wants;
use super::{Action, Broker, ConnectionId};
use crate::delivery::StatusDetail;
use crate::serve::suspects::Permit;
use std::time::Instant;
use tracing::info;

impl Broker {
    pub(super) fn permit(&self, job: &Job, now: Instant) -> Permit {
        match (&job.what, job.suspect) {
            (What::Ours { request, .. }, Some(key)) => self.suspects.permit(key, request.source, now),
            _ => Permit::Any,
        }
    }

    /// One suspect at a time: whatever they do, they cost one worker at a time.
    pub(super) fn a_suspect_is_at_work(&self) -> bool {
        self.jobs.values().any(|job| job.has_its_own && matches!(job.stage, Stage::At(..)))
    }

    /// Sees to it that there will be a new worker for a suspect that waits for one. Whether there is such a suspect: then new workers are
    /// kept for it.
    pub(super) fn make_way_for_a_suspect(&mut self, now: Instant) -> bool {
        if self.suspects.is_empty() || self.a_suspect_is_at_work() {
            return false;
        }
        let waits = |id: &JobId| self.jobs.get(id).is_some_and(|job| self.permit(job, now) == Permit::OwnWorker);
        if !self.queue.iter().any(waits) {
            return false;
        }
        let on_its_way = self.retired_at.is_some_and(|at| now.saturating_duration_since(at) < self.settings.queue_wait);
        if !on_its_way
            && !self.workers.any_for(Wants::New, now)
            && let Some((connection, pid)) = self.workers.retire_one(now)
        {
            self.retired_at = Some(now);
            info!(pid, "a worker is replaced by a new one, for a message that has ended one before");
            self.actions.push(Action::RetireWorker { connection, pid });
        }
        true
    }

    /// Answers a message that gets no worker. Whether it was one.
    pub(super) fn refuse_what_is_set_aside(&mut self, id: JobId, now: Instant) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        let Permit::SetAside(text) = self.permit(job, now) else { return false };
        self.counters.refused_as_set_aside += 1;
        let job = self.answer_all(id, StatusDetail::SYSTEM, &text);
        if let Some(Job { what: What::Ours { request, body, .. }, suspect: Some(key), .. }) = job {
            self.suspects.refused(key, &request, body);
        }
        true
    }

    /// A worker's connection has ended by itself. The master tells how its process has ended: that may be its message's doing.
    pub(super) fn worker_gone(&mut self, connection: ConnectionId, now: Instant) {
        let pid = self.workers.get(connection).and_then(|worker| worker.pid);
        let job = self.lose_worker(connection, "the process that delivered it has ended");
        if let Some(pid) = pid {
            self.suspects.connection_ended(pid, job.and_then(|job| job.lost_with(pid)), now);
        }
    }
}
