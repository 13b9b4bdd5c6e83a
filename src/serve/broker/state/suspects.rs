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

    /// One suspect at a time, and the next one once the worker of the last one is replaced: whatever they do, they cost one worker at a
    /// time, and where no new one can begin (a password's file is gone, say), one in all.
    pub(super) fn a_suspect_may_begin(&self) -> bool {
        !self.one_is_on_its_way && !self.jobs.values().any(|job| job.has_its_own && matches!(job.stage, Stage::At(..)))
    }

    /// Whether a worker may go for a new one to take its place: of several, the last one may not, since none may come.
    pub(super) fn one_may_go(&self) -> bool {
        self.settings.workers == 1 || self.workers.several_stay()
    }

    /// Sees to it that there will be a new worker for a suspect that waits for one. Whether a new one is to be kept for it.
    pub(super) fn make_way_for_a_suspect(&mut self, now: Instant) -> bool {
        if self.suspects.is_empty() || !self.a_suspect_may_begin() {
            return false;
        }
        let waits = |id: &JobId| self.jobs.get(id).is_some_and(|job| self.permit(job, now) == Permit::OwnWorker);
        if !self.queue.iter().any(waits) {
            return false;
        }
        if !self.workers.any_for(Wants::New, now)
            && self.one_may_go()
            && let Some((connection, pid)) = self.workers.retire_one(now)
        {
            self.one_is_on_its_way = true;
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
