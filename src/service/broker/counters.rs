//! What the broker counts, for whoever watches the service.

use crate::protocol::Logins;
use crate::service::counters::{Spans, Traffics};
use serde::Serialize;

/// What has happened since the front began. Numbers only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// What clients have handed over, and what they were told. (The LMTP server counts what it replies.)
    pub traffics: Traffics,
    /// Messages handed to a worker.
    pub handed_out: u64,
    /// Messages that waited for a worker for too long.
    pub waited_too_long: u64,
    /// Recipients whom their message was delivered without, for they had too many others at work.
    pub left_out: u64,
    /// Messages whose worker ended, was silent, or did not answer in time.
    pub workers_lost: u64,
    /// Answers that were none: another message's, of another number of results, or another program's.
    pub wrong_answers: u64,
    /// Answers to nothing that their worker had in hand.
    pub late_answers: u64,
    /// Requests that a client sent again while they were known.
    pub joined: u64,
    /// Requests whose client went, or called them off, before a worker had them.
    pub dropped: u64,
    /// Messages that were shunted, since they had crashed two workers.
    pub newly_shunted: u64,
    /// Tries of shunted messages that were answered without a worker.
    pub refused_shunted: u64,
    /// How long messages waited for a worker that then got them.
    pub waits: Spans,
    /// Clients that were cut off, for they said what makes no sense, or has more recipients than are allowed.
    pub refused_requests: u64,
    /// Heartbeats that were due for two seconds or longer: each second counts one for each worker that is not heard.
    pub missed_heartbeats: u64,
    /// The sessions that workers have opened.
    pub logins: Logins,
}

/// How the broker stands now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// Messages that wait for a worker.
    pub queued: usize,
    /// Requests whose client has yet to say that they may begin.
    pub held: usize,
    /// Messages that workers have.
    pub in_work: usize,
    /// Workers that wait for a message.
    pub ready: usize,
    /// Workers that have one, and are heard.
    pub busy: usize,
    /// Workers that have not been heard for too long, with a message or without.
    pub silent: usize,
    /// Messages that have crashed one worker: their next try has a worker of its own.
    pub suspects: usize,
}
