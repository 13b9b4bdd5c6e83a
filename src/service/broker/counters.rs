//! The broker's counters, for monitoring.

use crate::protocol::Logins;
use crate::service::counters::{Spans, Traffics};
use serde::Serialize;

/// Counters since the front began, which only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests of clients and the replies to them. (The LMTP server counts its own replies.)
    pub traffics: Traffics,
    /// Messages passed to a worker.
    pub dispatched: u64,
    /// Messages that waited too long for a worker.
    pub waited_too_long: u64,
    /// Recipients that were left out of a delivery, because too many other messages to them were being delivered.
    pub excluded_recipients: u64,
    /// Messages whose worker ended, hung, or did not answer in time.
    pub workers_lost: u64,
    /// Invalid replies: for another message, with a wrong number of results, or from another program.
    pub wrong_answers: u64,
    /// Replies that belong to no message of the worker.
    pub late_answers: u64,
    /// Requests whose client left before a worker had them.
    pub dropped: u64,
    /// Messages that were shunted because they have crashed two workers.
    pub newly_shunted: u64,
    /// Deliveries of shunted messages that were refused without a worker.
    pub refused_shunted: u64,
    /// How long messages waited before a worker got them.
    pub waits: Spans,
    /// Clients that were disconnected because a frame was invalid.
    pub refused_requests: u64,
    /// Heartbeats that are overdue by two seconds or more. For each unresponsive worker, each second counts one.
    pub missed_heartbeats: u64,
    /// The sessions that workers have opened.
    pub logins: Logins,
}

/// The present state of the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gauges {
    /// Messages that wait for a worker.
    pub queued: usize,
    /// Requests whose client has not sent GO yet.
    pub held: usize,
    /// Messages at workers. This number is not serialized: in `service status`, `busy` shows as much.
    #[serde(skip)]
    pub in_work: usize,
    /// Workers that wait for a message.
    pub ready: usize,
    /// Workers with a message that send heartbeats.
    pub busy: usize,
    /// Workers without recent heartbeats, with a message or without.
    pub silent: usize,
    /// Messages that have crashed one worker: they are tried one at a time.
    pub suspects: usize,
}
