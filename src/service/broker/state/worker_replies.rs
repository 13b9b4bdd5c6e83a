//! Replies of workers, and what happens to the message of a worker that ends, hangs, or takes too long.

use super::{Action, Broker, ConnectionId, Job, JobId, Payload, ReplyTo, Stage};
use crate::delivery::StatusDetail;
use crate::protocol::{DatabaseState, Header, Reply};
use std::time::Instant;
use tracing::{debug, info, warn};

impl Broker {
    pub(super) fn worker_answered(&mut self, connection: ConnectionId, address: &[u8], body: Vec<u8>, now: Instant) {
        if !self.workers.received(connection, now) {
            debug!(connection = connection.0, "an answer of somebody who has not said READY");
            return;
        }
        let job = self.workers.get(connection).and_then(|worker| worker.job);
        let Some(id) = job.filter(|id| self.address(*id) == address) else {
            if leaves(&body) {
                self.disconnect(connection);
            } else {
                // The reply came twice, or belongs to the previous broker.
                self.counters.late_answers += 1;
                info!(connection = connection.0, "an answer to nothing that this worker has");
            }
            return;
        };
        self.workers.free(connection);
        if self.pass_on(id, connection, body) || self.workers.get(connection).is_some_and(|worker| worker.leaving) {
            self.disconnect(connection);
        }
    }

    /// Passes a worker's reply on. Returns whether the worker ends, or does not understand our requests.
    fn pass_on(&mut self, id: JobId, from: ConnectionId, body: Vec<u8>) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        if let Payload::Opaque(_) = job.what {
            if let Some(ReplyTo::Client(connection)) = self.take(id).map(|job| job.asker) {
                self.actions.push(Action::SendToClient { connection, body });
            }
            return false;
        }
        match job.read_answer(&body) {
            Some((verdicts, Reply { leaving, logins, database, .. })) => {
                self.counters.logins.add(logins);
                self.note_database_state(database);
                self.answer(id, &verdicts);
                leaving
            }
            None => {
                self.counters.wrong_answers += 1;
                let worker = self.workers.get(from).map(|worker| &worker.name);
                warn!(worker, "this worker does not understand our requests, and is disconnected");
                self.answer_all(id, StatusDetail::SYSTEM, "the process that delivered it gave no answer");
                true
            }
        }
    }

    /// All deliveries use the same database, so the last report of any worker holds for all of them.
    fn note_database_state(&mut self, found: DatabaseState) {
        match found {
            DatabaseState::NotAsked => {}
            DatabaseState::There => self.database_away = None,
            DatabaseState::Away(why) => self.database_away = Some(why),
        }
    }

    /// Handles a worker's report that it ends. Closing its connection confirms that no more messages come.
    fn disconnect(&mut self, connection: ConnectionId) {
        let Some(worker) = self.workers.get_mut(connection) else { return };
        worker.leaving = true;
        if worker.job.is_none() {
            self.workers.remove(connection);
            self.actions.push(Action::CloseWorker { connection });
        }
    }

    /// Removes a worker that has ended, or is treated as ended, and defers its message. That message may be delivered already, or
    /// may still be: the next attempt looks.
    pub(super) fn remove_worker(&mut self, connection: ConnectionId, why: &str) -> Option<Job> {
        let worker = self.workers.remove(connection)?;
        let Some(id) = worker.job else {
            info!(worker = worker.name, pid = worker.pid, "a worker has gone");
            return None;
        };
        self.counters.workers_lost += 1;
        let request = self.jobs.get(&id).and_then(|job| match &job.what {
            Payload::Delivery { request, .. } => Some(request),
            Payload::Opaque(_) => None,
        });
        let queue_id = request.and_then(|request| request.queue_id.as_deref()).unwrap_or_default();
        warn!(worker = worker.name, pid = worker.pid, queue_id, why, "a worker is lost with a message");
        self.answer_all(id, StatusDetail::SYSTEM, why)
    }

    fn kill_worker(&mut self, connection: ConnectionId, why: &str) {
        let Some(pid) = self.workers.get(connection).map(|worker| worker.pid) else { return };
        self.actions.push(Action::EndWorker { connection, pid });
        self.remove_worker(connection, why);
    }

    /// Ends workers that send no heartbeats, or whose message is overdue.
    pub(super) fn end_what_takes_too_long(&mut self, now: Instant) {
        for connection in self.workers.dead(now) {
            self.kill_worker(connection, "the process that delivered it hung");
        }
        let overdue = self.jobs.values().filter_map(|job| match job.stage {
            Stage::At { worker, until, .. } if now >= until => Some(worker),
            _ => None,
        });
        for connection in overdue.collect::<Vec<_>>() {
            self.kill_worker(connection, "its delivery took too long");
        }
    }
}

/// Whether an idle worker reports its end: by a reply that belongs to no message.
fn leaves(body: &[u8]) -> bool {
    matches!(Header::read(body), Ok((Header::Reply(Reply { leaving: true, .. }), _)))
}
