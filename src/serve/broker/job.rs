//! One message at the broker, from when it comes until it is answered.

use super::state::{ConnectionId, LocalId};
use crate::delivery::Verdict;
use crate::handover::{Header, Reply, Request};
use crate::message::fold;
use crate::serve::handed::Body;
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
}

pub(super) enum What {
    /// A message, for this program's own workers.
    Ours { request: Box<Request>, body: Body, users: BTreeSet<String> },
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
    /// Whom it is for: each recipient once, folded, as deliveries to one address are counted.
    pub(super) fn users(&self) -> impl Iterator<Item = &String> {
        match &self.what {
            What::Ours { users, .. } => Some(users.iter()),
            What::Plain(_) => None,
        }
        .into_iter()
        .flatten()
    }

    /// The body for a worker, which is told how much time is left. `None` for one of ours whose header cannot be written.
    ///
    /// It is handed out once, so that its bytes need not be kept. A file stays until the job is done: the worker reads it.
    pub(super) fn take_body(&mut self, now: Instant) -> Option<Vec<u8>> {
        let left = self.time_left(now);
        match &mut self.what {
            What::Plain(body) => Some(std::mem::take(body)),
            What::Ours { request, body, .. } => {
                let time_left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                let header = Header::Deliver(Request { time_left_ms, ..request.as_ref().clone() });
                let frame = header.frame(body.in_memory()).ok();
                if let Body::Memory(bytes) = body {
                    *bytes = Vec::new();
                }
                frame
            }
        }
    }

    pub(super) fn time_left(&self, now: Instant) -> Duration {
        self.time.saturating_sub(now.saturating_duration_since(self.arrived))
    }

    /// What a worker has answered, if it is one verdict for each recipient of this very request, and whether the worker leaves.
    pub(super) fn read_answer(&self, body: &[u8]) -> Option<(Vec<Verdict>, bool)> {
        let What::Ours { request, .. } = &self.what else { return None };
        let Ok((Header::Reply(Reply { id, results, leaving }), _)) = Header::read(body) else { return None };
        if id != request.id || results.len() != request.recipients.len() {
            return None;
        }
        let verdicts: Result<Vec<Verdict>, _> = results.into_iter().map(Verdict::try_from).collect();
        Some((verdicts.ok()?, leaving))
    }
}

/// The addresses of a request, folded, each once.
pub(super) fn users(request: &Request) -> BTreeSet<String> {
    request.recipients.iter().map(|recipient| fold(&recipient.address)).collect()
}
