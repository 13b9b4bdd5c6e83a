//! A subscription that this process has leased: what is sent next, what an answer means, and how the subscription is given back.
//! This module does no input or output.
//!
//! | answer | notification | subscription |
//! |---|---|---|
//! | 2xx | done | its failure count is reset |
//! | 410 | waits | disabled: the receiver wants no more |
//! | 429, 502, 503, 504, or one with Retry-After | retried by the schedule, not before Retry-After | rests by the schedule, and at least that long |
//! | any other, or none | retried by the schedule; given up after its last wait | five failures in a row: rests by the schedule |
//!
//! If the lookup of the host could not begin, or if this machine or its network failed, the receiver has shown nothing. The
//! notification then stays due. The subscription rests for the first step of the schedule, and no failure is counted.
//!
//! When its rest is over, a subscription gets one request. So a receiver that is down costs one request for each step of the
//! schedule, not one for each event.

use super::request_failure::RequestFailure;
use super::send::Sent;
use crate::ledger::notifications::{Due, Leased, Next, StateChange, SubscriptionState, WebhookAttempt};
use crate::ledger::subscriptions::NEVER_ANSWERED;
use crate::webhook::Schedule;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// After this many failures in a row, only one request is sent at a time.
const FAILURES: u32 = 5;
/// Answers are settled this long after the last settlement, or as soon as one subscription has [`SETTLED_AT_ONCE`] of them.
/// Answers are recorded within 100 ms, half of which is for the database.
pub(super) const SETTLED_EACH: Duration = Duration::from_millis(50);
const SETTLED_AT_ONCE: usize = 50;
/// The recorded outcome of a try during which the notifier itself ended.
const ENDED_NOTIFIERS: &str = "the notifier has ended while it sent this";
/// How much of an answer is kept, in bytes.
const KEPT: usize = 1 << 10;

/// A notification whose request is in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InFlight {
    /// How many tries have failed.
    tries: u32,
    due_at: i64,
    /// How much memory the notification takes, in bytes.
    bytes: usize,
}

/// A leased subscription, with its waiting, in-flight and unsettled notifications.
#[derive(Debug)]
pub(super) struct ActiveLease {
    pub(super) leased: Leased,
    /// How many requests the subscription may have at once in this process. These requests count against the notifier's total.
    pub(super) allotment: usize,
    pub(super) waiting: VecDeque<Due>,
    /// The notifications in flight, by the event's position.
    pub(super) in_flight: BTreeMap<i64, InFlight>,
    /// Answers that are not yet recorded in the database.
    pub(super) attempts: Vec<WebhookAttempt>,
    /// The challenge of the verification request in flight.
    pub(super) challenge: Option<String>,
    pub(super) failures: u32,
    /// For how long nothing is sent to the receiver; `None`: no rest.
    pub(super) rests_for: Option<Duration>,
    pub(super) state: Option<StateChange>,
    /// Whether nothing more is sent under this lease. The lease is given back as soon as the requests in flight are answered.
    pub(super) closing: bool,
    /// Whether another notifier may have leased the subscription by now.
    pub(super) lost: bool,
    /// Whether the last read returned all due notifications.
    pub(super) read_to_the_end: bool,
    pub(super) since: Instant,
    /// When this process last knew that it holds the lease.
    pub(super) leased_at: Instant,
    pub(super) settled_at: Instant,
}

impl ActiveLease {
    pub(super) fn new(leased: Leased, allotment: usize, now: Instant) -> Self {
        Self {
            failures: leased.failures,
            closing: !leased.is_served(),
            leased,
            allotment,
            waiting: VecDeque::new(),
            in_flight: BTreeMap::new(),
            attempts: Vec::new(),
            challenge: None,
            rests_for: None,
            state: None,
            lost: false,
            read_to_the_end: false,
            since: now,
            leased_at: now,
            settled_at: now,
        }
    }

    /// Whether the receiver has failed so often that it gets one request at a time.
    pub(super) fn is_probed(&self) -> bool {
        self.failures >= FAILURES
    }

    /// How many requests the subscription could use at once. In order, unverified or probed, it needs no more than one.
    pub(super) fn wanted_slots(&self) -> usize {
        if self.closing || self.lost {
            0
        } else if self.leased.state != SubscriptionState::Active || self.leased.in_order || self.is_probed() {
            1
        } else {
            usize::try_from(self.leased.max_in_flight).unwrap_or(1)
        }
    }

    /// How many requests the subscription may have now.
    pub(super) fn limit(&self) -> usize {
        if self.leased.in_order || self.is_probed() { 1 } else { self.allotment }
    }

    /// How much memory the notifications take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.waiting.iter().map(Due::bytes).chain(self.in_flight.values().map(|asked| asked.bytes)).sum()
    }

    /// Continues the requests of an earlier lease of the same notifier, which had lost that lease meanwhile.
    pub(super) fn take_over(&mut self, earlier: Self) {
        (self.in_flight, self.attempts, self.challenge) = (earlier.in_flight, earlier.attempts, earlier.challenge);
    }

    pub(super) fn requests(&self) -> usize {
        self.in_flight.len() + usize::from(self.challenge.is_some())
    }

    /// The notification to send next, if one may be sent.
    pub(super) fn next(&mut self) -> Option<Due> {
        if self.closing
            || self.lost
            || self.leased.state != SubscriptionState::Active
            || self.requests() >= self.limit()
        {
            return None;
        }
        let due = self.waiting.pop_front()?;
        self.in_flight.insert(due.position, InFlight { tries: due.tries, due_at: due.due_at, bytes: due.bytes() });
        Some(due)
    }

    /// Sends nothing more under this lease.
    pub(super) fn close(&mut self) {
        self.closing = true;
        self.waiting.clear();
    }

    /// Whether the lease can be given back.
    pub(super) fn is_finished(&self) -> bool {
        let done = self.closing || self.lost || (self.waiting.is_empty() && self.read_to_the_end);
        done && self.requests() == 0
    }

    /// The time until the answers must be recorded, if there are any. A later answer does not postpone an earlier one.
    pub(super) fn flush_in(&self, now: Instant) -> Option<Duration> {
        match self.attempts.len() {
            0 => None,
            1..SETTLED_AT_ONCE => Some(SETTLED_EACH.saturating_sub(now.saturating_duration_since(self.settled_at))),
            SETTLED_AT_ONCE.. => Some(Duration::ZERO),
        }
    }

    /// Whether the answers must be recorded now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.flush_in(now).is_some_and(|left| left.is_zero())
    }

    /// Whether more could be sent while requests are in flight.
    pub(super) fn has_room(&self) -> bool {
        !self.leased.in_order && self.waiting.is_empty() && (1..self.limit()).contains(&self.requests())
    }

    /// Whether the next due notifications must be read.
    pub(super) fn wants_more(&self) -> bool {
        let may = !self.closing && !self.lost && !self.read_to_the_end;
        // In order, the next notification is known only when the previous one is settled.
        let settled = !self.leased.in_order || (self.attempts.is_empty() && self.requests() == 0);
        may && settled && self.leased.state == SubscriptionState::Active && self.waiting.len() < self.limit()
    }

    /// Processes the answer to a notification.
    pub(super) fn answered(&mut self, sent: Sent, position: i64, schedule: &Schedule, disable_after: Duration) {
        let InFlight { tries: failed_before, due_at, .. } = self.in_flight.remove(&position).unwrap_or_default();
        let seed = self.seed(position);
        let next = if is_taken(&sent) {
            self.recovered();
            Next::Done
        } else {
            let asked = sent.answer.as_ref().ok().and_then(|answer| answer.retry_after);
            self.failed(&sent, schedule, disable_after);
            schedule.after(failed_before + 1, &seed, asked).map_or(Next::GivenUp, Next::Again)
        };
        self.attempts.push(as_attempt(sent, due_at, next));
    }

    /// The seed that spreads the waits of a notification.
    fn seed(&self, position: i64) -> Vec<u8> {
        [&self.leased.subscription.as_bytes()[..], &position.to_be_bytes()].concat()
    }

    /// Records that notifiers have repeatedly ended while this was their only subscription. The first due notification counts as
    /// failed, and the subscription rests. The receiver has not failed, so this never disables a subscription.
    pub(super) fn ended_notifiers(&mut self, first: Option<&Due>, started_at: i64, schedule: &Schedule) {
        if let Some(due) = first {
            let after = schedule.after(due.tries + 1, &self.seed(due.position), None);
            let (subscription, position) = (self.leased.subscription, Some(due.position));
            let answer = Err(RequestFailure::Failed(ENDED_NOTIFIERS.into()));
            let sent = Sent { subscription, position, started_at, took: Duration::ZERO, answer };
            self.attempts.push(as_attempt(sent, due.due_at, after.map_or(Next::GivenUp, Next::Again)));
        }
        self.rests_for = Some(schedule.after_at_least(2, self.leased.subscription.as_bytes(), None));
        self.close();
    }

    /// Records that the receiver has accepted a notification. The next failure under this lease counts as the first.
    fn recovered(&mut self) {
        (self.failures, self.leased.failures, self.leased.failing_for) = (0, 0, Duration::ZERO);
    }

    /// Records that a request was not tried, for example because the lookup of its host could not begin. The notification stays
    /// due. The other waiting notifications would meet the same obstacle, and would take requests from other subscriptions.
    pub(super) fn not_tried(&mut self, position: Option<i64>, schedule: &Schedule) {
        if let Some(position) = position {
            self.in_flight.remove(&position);
        }
        let rest = schedule.after_at_least(1, self.leased.subscription.as_bytes(), None);
        self.rests_for = Some(self.rests_for.map_or(rest, |other| other.max(rest)));
        self.close();
    }

    /// Counts a failure of a notification or of the verification request.
    pub(super) fn failed(&mut self, sent: &Sent, schedule: &Schedule, disable_after: Duration) {
        self.failures = self.failures.saturating_add(1);
        let (status, asked) = match &sent.answer {
            Ok(answer) => (Some(answer.status), answer.retry_after),
            Err(_) => (None, None),
        };
        let wants_rest = asked.is_some() || matches!(status, Some(429 | 502 | 503 | 504));
        if self.is_probed() || wants_rest {
            let steps = self.failures.saturating_sub(FAILURES - 1).max(1);
            let rest = schedule.after_at_least(steps, self.leased.subscription.as_bytes(), asked);
            self.rests_for = Some(self.rests_for.map_or(rest, |other| other.max(rest)));
            self.close();
        } else if self.leased.in_order {
            // Later notifications wait for the failed one.
            self.close();
        }
        let failing_for = self.leased.failing_for + self.since.elapsed();
        if status == Some(410) {
            self.disable("the receiver answered 410: it wants no more".into());
        } else if self.leased.failures > 0 && failing_for > disable_after {
            let days = humantime::format_duration(Duration::from_secs(failing_for.as_secs()));
            self.disable(format!("nothing was taken for {days}; the last answer: {}", outcome(sent)));
        }
    }

    /// Records that the callback has answered the verification request, or that verification is switched off.
    pub(super) fn verified(&mut self) {
        self.leased.state = SubscriptionState::Active;
        self.state = Some(StateChange::Verified);
        self.leased.lease_limit = None;
        self.recovered();
    }

    /// Records that the callback has not answered the verification request. The request is repeated by the schedule until
    /// `within` has passed. The reason is kept with the subscription, where people look for it.
    pub(super) fn not_verified(&mut self, sent: Sent, problem: String, schedule: &Schedule, within: Duration) {
        self.failures = self.failures.saturating_add(1);
        let asked = sent.answer.as_ref().ok().and_then(|answer| answer.retry_after);
        let rest = schedule.after_at_least(self.failures, self.leased.subscription.as_bytes(), asked);
        self.rests_for = Some(rest);
        self.attempts.push(WebhookAttempt { outcome: problem, ..as_attempt(sent, 0, Next::Again(rest)) });
        self.close();
        if self.leased.age > within {
            self.disable(NEVER_ANSWERED.into());
        }
    }

    /// If `lost`, another notifier may have the lease, so nothing more is sent.
    pub(super) fn mark_lost(&mut self, lost: bool) {
        if lost {
            self.lost = true;
            self.waiting.clear();
        }
    }

    pub(super) fn disable(&mut self, why: String) {
        self.state = Some(StateChange::Disabled(why));
        self.close();
    }
}

/// Whether the receiver has accepted the notification.
pub(super) fn is_taken(sent: &Sent) -> bool {
    sent.answer.as_ref().is_ok_and(|answer| (200..300).contains(&answer.status))
}

/// The result of a try, in one line.
pub(super) fn outcome(sent: &Sent) -> String {
    match &sent.answer {
        Ok(answer) if is_taken(sent) => format!("taken, {}", answer.status),
        Ok(answer) => format!("answered {}", answer.status),
        Err(problem) => problem.to_string(),
    }
}

/// A try as the database stores it.
fn as_attempt(sent: Sent, due_at: i64, next: Next) -> WebhookAttempt {
    let outcome = outcome(&sent);
    let Sent { position, started_at, took, answer, .. } = sent;
    let answer = answer.ok();
    let shown = answer.as_ref().filter(|answer| !answer.is_ours && !answer.body.is_empty());
    let response = shown.map(|answer| {
        let beginning = answer.body.get(..KEPT).unwrap_or(&answer.body);
        // Neither engine stores a NUL in a text.
        String::from_utf8_lossy(beginning).replace('\0', "\u{FFFD}")
    });
    WebhookAttempt {
        position,
        due_at,
        started_at,
        took,
        status: answer.map(|answer| answer.status),
        outcome,
        response,
        next,
    }
}

/// Leased subscriptions and due notifications for tests.
#[cfg(test)]
pub(super) mod samples {
    use super::*;
    use uuid::Uuid;

    pub(in super::super) fn leased(in_order: bool, failures: u32) -> Leased {
        Leased {
            subscription: Uuid::from_u128(1),
            owner: "operator".into(),
            callback_url: "https://example.com/".into(),
            full: false,
            in_order,
            max_in_flight: 3,
            secret_generation: 1,
            secret_age: None,
            state: SubscriptionState::Active,
            age: Duration::ZERO,
            failures,
            failing_for: Duration::ZERO,
            lease_limit: None,
        }
    }

    pub(in super::super) fn due(position: i64) -> Due {
        Due {
            position,
            tries: 0,
            due_at: 0,
            event: Uuid::from_u128(2),
            event_type: "message.delivered".into(),
            copy_key: String::new(),
            identity: String::new(),
            message_id: String::new(),
            role: String::new(),
            recipient: String::new(),
            imap_user: String::new(),
            mailbox: String::new(),
            manner: None,
            attempt: None,
            queue_id: None,
            subscription: None,
            host: String::new(),
            diff: String::new(),
            created_at: 0,
            message: None,
        }
    }
}

#[cfg(test)]
mod tests;
