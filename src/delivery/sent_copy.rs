//! Decides which recipient's retry covers the Sent copy: Postfix retries recipients only, and the Sent copy has none of its
//! own.

use super::Delivery;
use super::copy_attempt::{Attempt, End};

/// The recipient who is responsible for the Sent copy, by index: the first with an open mailbox. The journal names this
/// recipient in the attempt at the Sent copy. The recipient is not answered 250 while that attempt has failed or its outcome
/// is unknown, so that a retry searches for the copy.
pub(super) fn owner(attempts: &[Attempt<'_>]) -> usize {
    let open = attempts.iter().filter(|attempt| attempt.is_journalled());
    open.flat_map(Attempt::recipients).copied().next().unwrap_or_default()
}

/// The recipients, by index, whose results depend on the Sent copy: its owner. If the copy failed, also
///
/// - those who left an attempt at it open, until that attempt's outcome is known;
/// - one whose own copy is delivered. The owner's copy may never be, and without any recipient's copy the Sent copy is not
///   appended.
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

/// Whether the Sent copy is missing or in doubt, and a retry of it is certain. A deferred recipient of this delivery retries
/// it, or the timer if it is recorded as owed. If no recipient's copy is delivered, no retry is certain: these recipients
/// may never be delivered.
pub(super) fn retry_is_certain(attempts: &[Attempt<'_>]) -> bool {
    let served = |attempt: &Attempt<'_>| attempt.is_recipients() && attempt.end.is_there();
    let sent = attempts.iter().find(|attempt| !attempt.is_recipients());
    sent.is_some_and(|attempt| attempt.end.is_open()) && attempts.iter().any(served)
}
