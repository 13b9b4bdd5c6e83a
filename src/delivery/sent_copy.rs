//! Who comes back for the Sent copy: it has no recipient of its own, and Postfix retries recipients alone.

use super::Delivery;
use super::attempt::{Attempt, End};

/// The recipient who is responsible for the Sent copy, by place: the first whose own mailbox is open. In the journal the attempt
/// at the Sent copy is for this recipient, who is not answered 250 while its outcome is unknown, or it has failed: so that
/// somebody comes back to look for it.
pub(super) fn owner(attempts: &[Attempt<'_>]) -> usize {
    let open = attempts.iter().filter(|attempt| attempt.is_journalled());
    open.flat_map(Attempt::recipients).copied().next().unwrap_or_default()
}

/// The recipients, by place, to whom the outcome of the Sent copy matters: its owner. If it failed, further
///
/// - those who left an attempt at it open, until the outcome of that is known;
/// - one whose own copy is there: the Sent copy is not tried without any recipient's, and the owner's may never be there.
pub(super) fn who_retries(delivery: &Delivery<'_>, attempts: &[Attempt<'_>]) -> Vec<usize> {
    let owner = owner(attempts);
    let mut retrying = vec![owner];
    let sent = attempts.iter().find(|attempt| !attempt.is_recipients());
    if let Some(Attempt { end: End::Failed { .. }, others, .. }) = sent {
        let served = attempts.iter().filter(|attempt| attempt.end.is_there()).flat_map(Attempt::recipients);
        retrying.extend(served.copied().min_by_key(|place| (*place != owner, *place)));
        let left_one = |recipient: &String| others.that_died().any(|earlier| earlier.recipient == *recipient);
        retrying.extend(delivery.recipients.iter().enumerate().filter(|(_, name)| left_one(name)).map(|(at, _)| at));
    }
    retrying
}

/// Whether the Sent copy is not there, or this is not known, and somebody sees to it: a recipient of this delivery who was
/// deferred, or the timer, if it is recorded as owed. If no recipient's copy is there, those who were deferred may never take the
/// message, and never come back with success.
pub(super) fn is_seen_to(attempts: &[Attempt<'_>]) -> bool {
    let served = |attempt: &Attempt<'_>| attempt.is_recipients() && attempt.end.is_there();
    let sent = attempts.iter().find(|attempt| !attempt.is_recipients());
    sent.is_some_and(|attempt| attempt.end.is_open()) && attempts.iter().any(served)
}
