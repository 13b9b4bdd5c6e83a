//! Frames from clients: requests, GO, and cancellations.

use super::{Action, Asker, Broker, ConnectionId, Job, JobId, Stage, What, all, reply};
use crate::delivery::StatusDetail;
use crate::protocol::{Header, MARK, Request, Source};
use crate::service::counters::Traffic;
use crate::service::inflight_message::Body;
use std::time::{Duration, Instant};
use tracing::{debug, warn};
use uuid::Uuid;

impl Broker {
    pub(super) fn client_said(&mut self, connection: ConnectionId, mut body: Vec<u8>, now: Instant) {
        let asker = Asker::Client(connection);
        if !body.starts_with(MARK) {
            let job = self.insert(What::Plain(body), asker, self.settings.longest_delivery, Stage::Queued, now);
            self.queue.push_back(job);
            return;
        }
        let read = Header::read(&body).map(|(header, message)| (header, body.len() - message.len()));
        match read {
            Ok((Header::Deliver(request), at)) => {
                let message = body.split_off(at);
                self.client_delivers(Box::new(request), Body::Memory(message), connection, now);
            }
            Ok((Header::Go { id }, _)) => self.client_says_go(id, connection, now),
            Ok((Header::Cancel { id }, _)) => self.client_cancels(id),
            Ok((Header::Received { .. } | Header::Reply(_), _)) => {
                warn!("a client said what only the broker says");
                self.refuse_client(connection);
            }
            Err(problem) => {
                warn!(%problem, "a client's request cannot be read");
                self.refuse_client(connection);
            }
        }
    }

    fn refuse_client(&mut self, connection: ConnectionId) {
        self.counters.refused_requests += 1;
        self.actions.push(Action::CloseClient { connection });
    }

    /// The counters of what clients send.
    pub(super) fn traffic(&mut self, source: Source) -> &mut Traffic {
        self.counters.traffics.entry(source.into()).or_default()
    }

    pub(super) fn client_delivers(
        &mut self,
        request: Box<Request>,
        body: Body,
        connection: ConnectionId,
        now: Instant,
    ) {
        let (id, asker, recipients) = (request.id, Asker::Client(connection), request.recipients.len());
        // A mail system that is refused can send fewer recipients at once (RFC 5321 section 4.5.3.1.10). A message of the
        // service's own queue would be refused for ever.
        if request.source == Source::Mta && recipients > self.settings.max_recipients {
            warn!(recipients, "a client's message has too many recipients");
            self.refuse_client(connection);
            return;
        }
        if let Some(job) = self.named.get(&id).and_then(|job| self.jobs.get_mut(job)) {
            // The client has reconnected, because the first answer is missing or its connection broke. It waits on the new
            // connection.
            if !matches!(&job.what, What::Ours { request: known, .. } if is_same(known, &request)) {
                warn!(%id, "two different requests of one name; the second is deferred");
                let verdicts = all(&request, StatusDetail::SYSTEM, "another request has the same name");
                self.traffic(request.source).received(request.recipients.len(), request.size);
                self.count_replies(request.source, &verdicts, Duration::ZERO);
                self.tell(asker, &reply(id, &verdicts));
                return;
            }
            // The last data of an ended connection may be read after the data of its successor.
            if job.asker.is_before(asker) {
                job.asker = asker;
            }
            self.counters.joined += 1;
        } else {
            self.traffic(request.source).received(request.recipients.len(), request.size);
            let job = self.admit(request, body, asker, now);
            self.named.insert(id, job);
            if self.refuse_shunted(job, now) {
                return;
            }
            if let Some(job) = self.jobs.get_mut(&job) {
                job.stage = Stage::Held;
            }
        }
        self.tell(asker, &Header::Received { id });
    }

    fn client_says_go(&mut self, id: Uuid, connection: ConnectionId, now: Instant) {
        let Some(&job_id) = self.named.get(&id) else {
            // The request was deferred already, because GO came too late. If its client has not received that, it waits for an
            // answer that never comes. The closed connection makes it notice at once.
            debug!(%id, "no request of this name waits for its client");
            self.actions.push(Action::CloseClient { connection });
            return;
        };
        if let Some(job) = self.jobs.get_mut(&job_id).filter(|job| job.stage == Stage::Held) {
            job.stage = Stage::Queued;
            job.queued = now;
            self.queue.push_back(job_id);
        }
    }

    fn client_cancels(&mut self, id: Uuid) {
        if let Some(&job) = self.named.get(&id)
            && self.jobs.get(&job).is_some_and(|job| !matches!(job.stage, Stage::At(..)))
        {
            self.drop_job(job);
        }
    }

    pub(super) fn client_gone(&mut self, gone: ConnectionId) {
        let its = |job: &Job| job.asker == Asker::Client(gone);
        let jobs: Vec<JobId> = self.jobs.iter().filter(|(_, job)| its(job)).map(|(id, _)| *id).collect();
        for id in jobs {
            match self.jobs.get_mut(&id) {
                Some(job) if matches!(job.stage, Stage::At(..)) => job.asker = Asker::Nobody,
                _ => self.drop_job(id),
            }
        }
    }

    fn drop_job(&mut self, id: JobId) {
        self.counters.dropped += 1;
        drop(self.take(id));
    }
}

/// Whether a request is a retry of the known one. A retry may have less time left, and its message in another file.
fn is_same(known: &Request, again: &Request) -> bool {
    let (time_left_ms, file) = (known.time_left_ms, known.file.clone());
    Request { time_left_ms, file, ..again.clone() } == *known
}
