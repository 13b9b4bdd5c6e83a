//! Frames from clients: requests, and GO.

use super::{Action, Broker, ConnectionId, Job, JobId, Payload, ReplyTo, Stage};
use crate::protocol::{Header, MARK, Request, Source};
use crate::service::counters::Traffic;
use crate::service::inflight_message::Body;
use std::time::Instant;
use tracing::{debug, warn};
use uuid::Uuid;

impl Broker {
    pub(super) fn client_said(&mut self, connection: ConnectionId, mut body: Vec<u8>, now: Instant) {
        let asker = ReplyTo::Client(connection);
        if !body.starts_with(MARK) {
            let job = self.insert(Payload::Opaque(body), asker, self.settings.longest_delivery, Stage::Queued, now);
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

    /// The counters of what clients send over this transport.
    pub(super) fn traffic(&mut self, source: Source) -> &mut Traffic {
        self.counters.traffics.entry(source.transport()).or_default()
    }

    pub(super) fn client_delivers(
        &mut self,
        request: Box<Request>,
        body: Body,
        connection: ConnectionId,
        now: Instant,
    ) {
        let (id, recipients) = (request.id, request.recipients.len());
        self.traffic(request.source).received(recipients, request.size);
        let asker = ReplyTo::Client(connection);
        let job = self.admit(request, body, asker, Stage::AwaitingGo, now);
        if !self.refuse_shunted(job, now) {
            self.send_to_client(asker, &Header::Received { id });
        }
    }

    fn client_says_go(&mut self, id: Uuid, connection: ConnectionId, now: Instant) {
        let its = |job: &Job| job.asker == ReplyTo::Client(connection) && job.is_request(id);
        let Some((job_id, job)) = self.jobs.iter_mut().find(|(_, job)| its(job)) else {
            // The request was deferred already, because GO came too late. If the client has not received that answer, it waits
            // for one that never comes. Closing the connection ends this wait at once.
            debug!(%id, "no request of this name waits for its client");
            self.actions.push(Action::CloseClient { connection });
            return;
        };
        if job.stage == Stage::AwaitingGo {
            job.stage = Stage::Queued;
            job.queued = now;
            self.queue.push_back(*job_id);
        }
    }

    pub(super) fn client_gone(&mut self, gone: ConnectionId) {
        let its = |job: &Job| job.asker == ReplyTo::Client(gone);
        let jobs: Vec<JobId> = self.jobs.iter().filter(|(_, job)| its(job)).map(|(id, _)| *id).collect();
        for id in jobs {
            match self.jobs.get_mut(&id) {
                Some(job) if matches!(job.stage, Stage::At { .. }) => job.asker = ReplyTo::Nobody,
                _ => {
                    self.counters.dropped += 1;
                    self.take(id);
                }
            }
        }
    }
}
