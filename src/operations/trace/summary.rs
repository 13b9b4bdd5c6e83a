//! The state of a message (delivered, deferred, under way) and the reason for it.

use super::Times;
use crate::base::timestamp::{milliseconds, span, time_text};
use crate::ledger::trace::{LockHeldThen, MessageTrace, TracedAttempt, TracedCopy};
use crate::ledger::{AttemptResult, FailedDelivery};
use crate::message::Role;
use serde::Serialize;
use std::time::Duration;

/// Postfix waits at most 4000 s between two tries of one message (maximal_backoff_time). After twice that time without a try, no
/// active queue holds the message.
const NOBODY_TRIES: Duration = Duration::from_secs(8000);

/// How many recipients the first line names.
const NAMED: usize = 3;

/// The delivery state of a message, overall or for one recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RecipientState {
    #[serde(rename = "under way")]
    UnderWay,
    Deferred,
    Refused,
    /// Delivered to all recipients that were tried, but the Sent copy is still owed.
    Owed,
    Delivered,
}

/// The delivery state of a message for one envelope recipient.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RecipientSummary {
    pub(crate) recipient: String,
    pub(crate) state: RecipientState,
    /// The state in words.
    pub(crate) summary: String,
    pub(crate) attempts: usize,
    /// When the last attempt began, in microseconds since 1970.
    #[serde(rename = "last_attempt_at", serialize_with = "crate::base::timestamp::serialize_optional")]
    pub(crate) last_at: Option<i64>,
}

/// One summary for each recipient that was tried or has a copy, in alphabetical order.
pub(super) fn of_recipients(trace: &MessageTrace, times: &Times) -> Vec<RecipientSummary> {
    let tried = tries(trace).flat_map(|attempt| &attempt.copies).map(|copy| copy.recipient.as_str());
    // The attempts may have been pruned. The rows of the copies still name their recipients.
    let brought = trace.copies.iter().filter(|copy| copy.role == Role::Recipient).map(|copy| copy.recipient.as_str());
    let failed = trace.failures.iter().map(|failure| failure.recipient.as_str());
    let mut recipients: Vec<&str> = tried.chain(brought).chain(failed).collect();
    recipients.sort_unstable();
    recipients.dedup();
    recipients.into_iter().map(|recipient| of_recipient(trace, recipient, times)).collect()
}

/// The attempts at delivery, without those of `audit`.
fn tries(trace: &MessageTrace) -> impl Iterator<Item = &TracedAttempt> {
    trace.attempts.iter().filter(|attempt| attempt.result() != AttemptResult::Audit)
}

fn of_recipient(trace: &MessageTrace, recipient: &str, times: &Times) -> RecipientSummary {
    let attempts: Vec<TracedAttempt> = tries(trace).filter_map(|attempt| attempt.part_for(recipient)).collect();
    let failure = trace.failures.iter().find(|failure| failure.recipient == recipient);
    let last_at = attempts.last().map(|attempt| attempt.began_at);
    // An attempt that is under way, or began later, says more.
    let is_last = |failure: &&FailedDelivery| !failure.is_over && last_at.is_none_or(|at| at < failure.last_at);
    let (state, shown) = match failure.filter(is_last).filter(|_| !attempts.iter().any(|it| it.holds_the_lock)) {
        Some(failure) => judge_failure(failure, times),
        None => judge(trace, recipient, &attempts, times),
    };
    let failed = failure.map_or(0, |failure| usize::try_from(failure.count).unwrap_or(usize::MAX));
    RecipientSummary {
        recipient: recipient.to_owned(),
        state,
        summary: shown,
        attempts: attempts.len().saturating_add(failed),
        last_at: last_at.max(failure.map(|failure| failure.last_at)),
    }
}

/// The state of a recipient whose last try failed before its journal.
fn judge_failure(failure: &FailedDelivery, times: &Times) -> (RecipientState, String) {
    let FailedDelivery { cause, host, queue_id, last_at, .. } = failure;
    if failure.is_refused() {
        return (RecipientState::Refused, times.reason(cause));
    }
    let mut why = format!("failed before delivery, last at {} on {host}: {}", time_text(*last_at), times.reason(cause));
    why.push_str(&nobody_tries(*last_at, queue_id.as_deref(), host, times));
    (RecipientState::Deferred, why)
}

/// The place to look at if there was no attempt for long; otherwise empty.
fn nobody_tries(last_at: i64, queue_id: Option<&str>, host: &str, times: &Times) -> String {
    let silent = between(last_at, times.now);
    if silent <= NOBODY_TRIES {
        return String::new();
    }
    let queue_id = queue_id.unwrap_or("its queue id");
    format!("; nobody has tried for {}: ask `mailq` and Postfix's log for {queue_id} on {host}", span(silent))
}

fn judge(trace: &MessageTrace, recipient: &str, attempts: &[TracedAttempt], times: &Times) -> (RecipientState, String) {
    if let Some(attempt) = attempts.iter().find(|attempt| attempt.holds_the_lock) {
        let TracedAttempt { host, pid, .. } = attempt;
        let since = span(between(attempt.began_at, times.now));
        return (RecipientState::UnderWay, format!("being delivered now by {host}:{pid}, begun {since} ago"));
    }
    let is_its = |copy: &&TracedCopy| {
        let of_its_attempts = attempts.iter().flat_map(|attempt| &attempt.copies).any(|tried| tried.key == copy.key);
        copy.role == Role::Recipient && (copy.recipient == recipient || of_its_attempts)
    };
    let copy = trace.copies.iter().find(is_its).filter(|copy| copy.delivered);
    let done = attempts.iter().find(|attempt| is_done(trace, attempt));
    match (copy, done, attempts.last()) {
        (Some(copy), done, last) if done.is_some() || last.is_none() => {
            let at = copy.delivered_at.unwrap_or(copy.updated_at);
            (RecipientState::Delivered, format!("delivered {}", time_text(at)))
        }
        // The copy was pruned or never recorded, so the attempt is the only evidence.
        (None, Some(done), _) => (RecipientState::Delivered, format!("delivered {}", time_text(done.began_at))),
        (copy, _, Some(last)) => {
            let (state, mut why) = why_not(last, times);
            if copy.is_some() {
                why = format!("its copy is in the mailbox, but Postfix got no success for it: {why}");
            }
            if state == RecipientState::Deferred {
                why.push_str(&nobody_tries(last.began_at, last.queue_id.as_deref(), &last.host, times));
            }
            (state, why)
        }
        (_, _, None) => (RecipientState::Deferred, "never tried".into()),
    }
}

/// Whether the attempt reported exit status 0 to Postfix. A Sent copy that was given up leaves its attempt open if the
/// last append was not answered; such a copy does not count here.
fn is_done(trace: &MessageTrace, attempt: &TracedAttempt) -> bool {
    let given_up =
        |key| trace.copies.iter().any(|copy| copy.key == key && copy.role == Role::Sender && !copy.delivered);
    let copies = attempt.copies.iter().filter(|tried| tried.ended_at.is_some() || !given_up(tried.key));
    let endings = copies.map(|tried| (tried.role, tried.result()));
    AttemptResult::of_attempt(endings) == AttemptResult::Delivered
        && attempt.copies.iter().any(|tried| tried.ended_at.is_some())
}

fn why_not(last: &TracedAttempt, times: &Times) -> (RecipientState, String) {
    let TracedAttempt { host, pid, began_at, .. } = last;
    let failed = last.copies.iter().find(|tried| tried.result() != AttemptResult::Delivered);
    let outcome = failed.and_then(|tried| tried.outcome.as_ref());
    let reason = || outcome.map(|outcome| times.reason(outcome)).unwrap_or_default();
    let append_grace = span(times.append_grace);
    let deferred_until =
        format!("is deferred until {append_grace} after that beginning, in case its copy still arrives");
    match last.result() {
        AttemptResult::Busy => (RecipientState::Deferred, "another delivery of this message held its lock".into()),
        AttemptResult::Refused => (RecipientState::Refused, reason()),
        AttemptResult::Deferred(_) => {
            let whose = failed.filter(|tried| tried.role == Role::Sender);
            let whose = whose.map(|tried| format!("the copy for {} of {}: ", tried.mailbox, tried.user));
            (RecipientState::Deferred, whose.unwrap_or_default() + &reason())
        }
        AttemptResult::Open if between(*began_at, times.now) < times.deadline => {
            let ago = span(between(*began_at, times.now));
            let until = match times.append_grace.is_zero() {
                true => String::new(),
                false => format!(" (the next try {deferred_until})"),
            };
            let why = format!(
                "{host}:{pid} began {ago} ago and has not ended: it is under way, waits for the lock, or was cut short{until}"
            );
            (RecipientState::UnderWay, why)
        }
        ending @ (AttemptResult::Open | AttemptResult::Died) => {
            let unsettled = ending == AttemptResult::Open && between(*began_at, times.now) < times.append_grace;
            let until = if unsettled { deferred_until + ", and " } else { String::new() };
            let why = format!(
                "the attempt of {host}:{pid} at {} never ended: it was cut short, or never heard what came of its append; \
                 the next try {until}looks for its copy first",
                time_text(*began_at)
            );
            (RecipientState::Deferred, why)
        }
        AttemptResult::Delivered | AttemptResult::Audit => {
            (RecipientState::Delivered, format!("delivered {}", time_text(*began_at)))
        }
    }
}

/// The state of the message, and the first line that is printed about it.
pub(super) fn of_message(trace: &MessageTrace, recipients: &[RecipientSummary]) -> (RecipientState, String) {
    let Some(worst) = recipients.iter().min_by_key(|one| one.state) else {
        return (RecipientState::Deferred, "Recorded, and nothing is known of an attempt: they were pruned.".into());
    };
    let delivered = recipients.iter().filter(|one| one.state == RecipientState::Delivered).count();
    let of = match (recipients.len(), delivered) {
        (1, _) | (_, 0) => String::new(),
        (all, delivered) => format!(" Delivered to {delivered} of {all}."),
    };
    let RecipientSummary { summary: shown, state, .. } = worst;
    let alike: Vec<&RecipientSummary> = recipients.iter().filter(|one| one.state == *state).collect();
    let names: Vec<&str> = alike.iter().take(NAMED).map(|one| one.recipient.as_str()).collect();
    let more = match alike.len() - names.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let recipient = names.join(", ") + &more;
    let times = match alike.iter().map(|one| one.attempts).max().unwrap_or_default() {
        1 => "1 attempt".to_owned(),
        attempts => format!("{attempts} attempts"),
    };
    let line = match state {
        RecipientState::UnderWay => format!("UNDER WAY to {recipient}: {shown}.{of}"),
        RecipientState::Deferred => format!("STILL DEFERRED for {recipient} ({times}): {shown}.{of}"),
        RecipientState::Refused => format!("REFUSED for {recipient}: {shown}.{of}"),
        RecipientState::Owed | RecipientState::Delivered => {
            let to = match recipients {
                [one] => format!("{}: {shown}", one.recipient),
                all => format!("all {} recipients that were tried", all.len()),
            };
            return match trace.copies.iter().find(|copy| !copy.delivered) {
                None => (RecipientState::Delivered, format!("DELIVERED to {to}.")),
                Some(TracedCopy { mailbox, user, reason, .. }) => {
                    let reason = reason.as_deref().unwrap_or("no reason is known");
                    let line = format!("DELIVERED to {to}; the copy for {mailbox} of {user} is OWED: {reason}.");
                    (RecipientState::Owed, line)
                }
            };
        }
    };
    (*state, line)
}

/// The text for the past holder of a lock, because of which another attempt ended as busy.
pub(crate) fn held_then(LockHeldThen { host, pid, queue_id, held_for }: &LockHeldThen) -> String {
    let queue_id = queue_id.as_ref().map(|queue_id| format!(", queue id {queue_id},")).unwrap_or_default();
    match held_for {
        Some(held_for) => {
            format!("held by {host}:{pid}{queue_id} for {}", milliseconds(held_for.as_secs_f64() * 1000.0))
        }
        None => format!("held by {host}:{pid}{queue_id} to this moment"),
    }
}

fn between(earlier: i64, later: i64) -> Duration {
    Duration::from_micros(u64::try_from(later.saturating_sub(earlier)).unwrap_or(0))
}
