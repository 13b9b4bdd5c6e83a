//! One message at the broker, from when it comes until it is answered.

use super::state::{ConnectionId, LocalId};
use crate::delivery::{StatusDetail, Verdict};
use crate::message::{Address, fold};
use crate::protocol::{Header, Recipient, Reply, Request};
use crate::service::inflight_message::Body;
use crate::service::shunt::{Key, LostJob};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A job's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct JobId(pub(super) u64);

pub(super) struct Job {
    pub(super) what: What,
    pub(super) asker: Asker,
    pub(super) stage: Stage,
    pub(super) arrived: Instant,
    /// From when on it waits for a worker: its arrival, or its client's word that it may begin.
    pub(super) queued: Instant,
    /// How long its delivery may take, from `arrived` on.
    pub(super) time: Duration,
    /// It had crashed a worker when it came.
    pub(super) known_crash: Option<Key>,
    /// It was given a worker of its own.
    pub(super) alone: bool,
    /// Since when a worker was there for it, and some of its recipients had as many messages at work as one may have: see
    /// `state/limits.rs`.
    pub(super) held_back: Option<Instant>,
    /// The places of those recipients, where it was handed out without them.
    pub(super) left_out: BTreeSet<usize>,
}

pub(super) enum What {
    /// A message, for this program's own workers.
    ///
    /// `users` are its recipients, in their order, as deliveries to one of them are counted.
    Ours { request: Box<Request>, body: Body, users: Vec<String> },
    /// Another program's words, for any worker.
    Plain(Vec<u8>),
}

/// Who wants to know what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    Client(ConnectionId),
    Local(LocalId),
    /// Its client has gone; the delivery goes on.
    Nobody,
}

impl Asker {
    /// Whether `other` asks in place of this one: not if it is an older connection.
    pub(super) fn is_before(self, other: Self) -> bool {
        !matches!((self, other), (Self::Client(known), Self::Client(other)) if known > other)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its client has yet to say that it may begin.
    Held,
    Queued,
    /// At this worker, which is to have answered by then.
    At(ConnectionId, Instant),
}

impl Job {
    /// Its recipients, in their order, as deliveries to one of them are counted.
    pub(super) fn users(&self) -> &[String] {
        match &self.what {
            What::Ours { users, .. } => users,
            What::Plain(_) => &[],
        }
    }

    /// What names its message, of which others may be under way for other recipients: Postfix's queue id, where that is known. (Two
    /// Postfix may give one to different messages: then these wait for one another.)
    pub(super) fn message(&self) -> Option<&str> {
        match &self.what {
            What::Ours { request, .. } => request.queue_id.as_deref().filter(|id| !id.is_empty()),
            What::Plain(_) => None,
        }
    }

    /// Those whom it is delivered to at its worker, each once.
    pub(super) fn users_at_work(&self) -> BTreeSet<&String> {
        let taken = self.users().iter().enumerate().filter(|(place, _)| !self.left_out.contains(place));
        taken.map(|(_, user)| user).collect()
    }

    /// The body for a worker, which is told how much time is left, and of nobody who is left out: no mailbox of his is opened.
    /// `None` for one of ours whose header cannot be written.
    ///
    /// Its bytes are kept until it is answered: if it crashes its worker, its next try is recognised by them.
    pub(super) fn body_for_a_worker(&self, slow: bool, now: Instant) -> Option<Vec<u8>> {
        match &self.what {
            What::Plain(body) => Some(body.clone()),
            What::Ours { request, body, .. } => {
                let time_left_ms = u64::try_from(self.time_left(now).as_millis()).unwrap_or(u64::MAX);
                let mut request = Request { time_left_ms, suspect: self.alone, slow, ..request.as_ref().clone() };
                let mut places = 0..;
                request.recipients.retain(|_| places.next().is_some_and(|place| !self.left_out.contains(&place)));
                let header = Header::Deliver(request);
                header.frame(body.in_memory()).ok()
            }
        }
    }

    /// What is lost with its worker.
    pub(super) fn lost(self) -> Option<LostJob> {
        match self.what {
            What::Ours { request, body, .. } => Some(LostJob { request, body, alone: self.alone }),
            What::Plain(_) => None,
        }
    }

    pub(super) fn time_left(&self, now: Instant) -> Duration {
        self.time.saturating_sub(now.saturating_duration_since(self.arrived))
    }

    /// A verdict for each recipient, if a worker has answered with one for each that it was told of, and what else it says.
    pub(super) fn read_answer(&self, body: &[u8]) -> Option<(Vec<Verdict>, Reply)> {
        let What::Ours { request, .. } = &self.what else { return None };
        let Ok((Header::Reply(mut reply), _)) = Header::read(body) else { return None };
        if reply.id != request.id || reply.results.len() + self.left_out.len() != request.recipients.len() {
            return None;
        }
        let mut results = std::mem::take(&mut reply.results).into_iter();
        let verdict = |place| match self.left_out.contains(&place) {
            true => Some(Verdict::deferred(
                StatusDetail::CONGESTION,
                "too many messages for this recipient are delivered at once",
            )),
            false => results.next().and_then(|told| Verdict::try_from(told).ok()),
        };
        let verdicts: Option<Vec<Verdict>> = (0..request.recipients.len()).map(verdict).collect();
        Some((verdicts?, reply))
    }
}

/// The addresses of a request, folded and without their extensions. Aliases of one mailbox stay apart: only the
/// database knows of them, which the front does not ask.
pub(super) fn users(request: &Request, delimiters: &str) -> Vec<String> {
    let user = |recipient: &Recipient| {
        let bare = Address::parse(&recipient.address).ok().and_then(|address| address.without_extension(delimiters));
        bare.map_or_else(|| fold(&recipient.address), |bare| bare.folded().to_string())
    };
    request.recipients.iter().map(user).collect()
}
