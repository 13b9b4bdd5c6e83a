//! One message at the broker, from its arrival to its answer.

use super::state::{ConnectionId, LocalId};
use crate::delivery::{StatusDetail, Verdict};
use crate::message::{Address, fold};
use crate::protocol::{Header, Recipient, Reply, Request};
use crate::service::inflight_message::Body;
use crate::service::shunt::{Key, LostJob};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use uuid::Uuid;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct JobId(pub(super) u64);

pub(super) struct Job {
    pub(super) what: Payload,
    pub(super) asker: ReplyTo,
    pub(super) stage: Stage,
    pub(super) arrived: Instant,
    /// Since when the job waits for a worker: since its arrival, or since its client's GO.
    pub(super) queued: Instant,
    /// How long its delivery may take, counted from `arrived`.
    pub(super) time: Duration,
    /// The key of the message, if it had crashed a worker before it arrived.
    pub(super) known_crash: Option<Key>,
    /// Whether the job is at a worker as a suspect message.
    pub(super) alone: bool,
    /// Since when a worker was ready for the job, while some of its recipients were at their limit: see `state/limits.rs`.
    pub(super) throttled_since: Option<Instant>,
    /// The indices of the recipients at their limit, if the job went to a worker without them.
    pub(super) excluded_recipients: BTreeSet<usize>,
}

pub(super) enum Payload {
    /// A message for this program's own workers.
    ///
    /// `users` are the mailboxes of the recipients, in their order, for the limits of deliveries to one recipient.
    Delivery { request: Box<Request>, body: Body, users: Vec<String> },
    /// Another program's request, for any worker.
    Opaque(Vec<u8>),
}

/// The recipient of the job's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyTo {
    Client(ConnectionId),
    Local(LocalId),
    /// The client has gone; the delivery goes on.
    Nobody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The client has not sent GO yet.
    AwaitingGo,
    Queued,
    /// At this worker, since this time. The worker must answer by `until`.
    At {
        worker: ConnectionId,
        since: Instant,
        until: Instant,
    },
}

impl Job {
    pub(super) fn is_request(&self, id: Uuid) -> bool {
        matches!(&self.what, Payload::Delivery { request, .. } if request.id == id)
    }

    /// The mailboxes of the recipients, in their order, for the limits of deliveries to one recipient.
    pub(super) fn users(&self) -> &[String] {
        match &self.what {
            Payload::Delivery { users, .. } => users,
            Payload::Opaque(_) => &[],
        }
    }

    /// The name of the message, shared with deliveries to other recipients: Postfix's queue id, if it is known. (Two instances of
    /// Postfix may use one id for different messages, which then wait for one another.)
    pub(super) fn message(&self) -> Option<&str> {
        match &self.what {
            Payload::Delivery { request, .. } => request.queue_id.as_deref().filter(|id| !id.is_empty()),
            Payload::Opaque(_) => None,
        }
    }

    /// The mailboxes to which a worker delivers the message.
    pub(super) fn delivered_users(&self) -> impl Iterator<Item = &String> {
        let taken = self.users().iter().enumerate().filter(|(place, _)| !self.excluded_recipients.contains(place));
        taken.map(|(_, user)| user)
    }

    /// The body for a worker: the request with the remaining time. Recipients that are left out are missing, so that the worker
    /// does not open their mailboxes. `None` if the header of a request of ours cannot be written.
    ///
    /// The job keeps the message until it is answered: if the message crashes its worker, its bytes identify it at its next
    /// delivery.
    pub(super) fn body_for_a_worker(&self, slow: bool, now: Instant) -> Option<Vec<u8>> {
        match &self.what {
            Payload::Opaque(body) => Some(body.clone()),
            Payload::Delivery { request, body, .. } => {
                let time_left_ms = u64::try_from(self.time_left(now).as_millis()).unwrap_or(u64::MAX);
                let mut request = Request { time_left_ms, suspect: self.alone, slow, ..request.as_ref().clone() };
                let mut places = 0..;
                request
                    .recipients
                    .retain(|_| places.next().is_some_and(|place| !self.excluded_recipients.contains(&place)));
                let header = Header::Deliver(request);
                header.frame(body.in_memory()).ok()
            }
        }
    }

    /// What the crash records need if the worker is lost.
    pub(super) fn lost(self) -> Option<LostJob> {
        match self.what {
            Payload::Delivery { request, body, .. } => Some(LostJob { request, body, alone: self.alone }),
            Payload::Opaque(_) => None,
        }
    }

    pub(super) fn time_left(&self, now: Instant) -> Duration {
        self.time.saturating_sub(now.saturating_duration_since(self.arrived))
    }

    /// The verdict of each recipient, and the rest of the reply. `None` unless the worker has sent one result for each recipient
    /// of its request.
    pub(super) fn read_answer(&self, body: &[u8]) -> Option<(Vec<Verdict>, Reply)> {
        let Payload::Delivery { request, .. } = &self.what else { return None };
        let Ok((Header::Reply(mut reply), _)) = Header::read(body) else { return None };
        if reply.id != request.id || reply.results.len() + self.excluded_recipients.len() != request.recipients.len() {
            return None;
        }
        let mut results = std::mem::take(&mut reply.results).into_iter();
        let verdict = |place| match self.excluded_recipients.contains(&place) {
            true => Some(Verdict::deferred(
                StatusDetail::CONGESTION,
                "too many messages for this recipient are delivered at once",
            )),
            false => results.next(),
        };
        let verdicts: Option<Vec<Verdict>> = (0..request.recipients.len()).map(verdict).collect();
        Some((verdicts?, reply))
    }
}

/// The addresses of a request, folded and without their extensions. Aliases of one mailbox count as different: only the database
/// knows them, and the front does not use the database.
pub(super) fn users(request: &Request, delimiters: &str) -> Vec<String> {
    let user = |recipient: &Recipient| {
        let bare = Address::parse(&recipient.address).ok().and_then(|address| address.without_extension(delimiters));
        bare.map_or_else(|| fold(&recipient.address), |bare| bare.folded().to_string())
    };
    request.recipients.iter().map(user).collect()
}
