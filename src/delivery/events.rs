//! The event of a copy, after its attempt has ended.

use super::Delivery;
use super::copy_attempt::{Attempt, End};
use super::report::Manner;
use crate::ledger::event::{EventRecord, EventState, change};
use uuid::Uuid;

/// The change from the copy's state under the lock to the state that is recorded now; `None` if both are the same.
pub(super) fn event<'a>(
    delivery: &Delivery<'a>,
    attempt: &'a Attempt<'_>,
    recipient: &'a str,
) -> Option<EventRecord<'a>> {
    let Attempt { others, end, .. } = attempt;
    let delivered = others.delivered.map(|at| EventState::Delivered(at.placement));
    let before = delivered.or_else(|| others.owed.as_deref().map(EventState::Owed));
    let (kind, diff) = change(attempt.role, before, end.event_state()?)?;
    let manner = match end {
        End::Done(manner @ (Manner::Appended(_) | Manner::Adopted(_))) => Some(manner.as_str()),
        _ => None,
    };
    Some(EventRecord {
        event: Uuid::now_v7(),
        kind,
        key: attempt.key,
        role: attempt.role,
        user: &attempt.user,
        mailbox: &attempt.mailbox_name,
        recipient,
        identity: delivery.message.identity(),
        message_id: delivery.message.message_id_for_people(),
        manner,
        attempt: Some(delivery.attempt),
        queue_id: delivery.queue_id,
        host: delivery.host,
        diff,
    })
}
