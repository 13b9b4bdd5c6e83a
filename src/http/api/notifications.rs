//! Notifications of a subscription, and their redelivery.

use super::call::{ApiRequest, accepted, ok, page};
use super::problem::{ApiFailure, Problem};
use crate::base::timestamp;
use crate::ledger::Database;
use crate::ledger::notifications::TEST;
use crate::operations::notifications::{self, Due};
use crate::operations::subscriptions::{Subscription, SubscriptionState};
use crate::webhook::payload::read_id;
use axum::response::Response;
use serde_json::json;
use uuid::Uuid;

/// How many notification attempts for one event are shown: the last ones.
const MOST_TRIES: usize = 100;

const NO_EVENT: &str = "an event's id is wanted, as in webhook-id: evt_0193a1b2c3d47e5f8a9b0c1d2e3f4a01";

/// The event with this id, if the subscription covers it.
fn event_of(call: &ApiRequest, database: &mut dyn Database, one: &Subscription, id: Uuid) -> Result<Due, ApiFailure> {
    let event = notifications::event_of(database, one, id)?;
    let sees = |event: &Due| {
        event.event_type == TEST || call.token.bounds.hold_copy(&event.recipient, &event.imap_user, &event.mailbox)
    };
    Ok(event.filter(sees).ok_or_else(Problem::not_found)?)
}

pub(super) fn test(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&[])?;
    let one = call.subscription(database)?;
    if one.state != SubscriptionState::Active {
        return Err(Problem::another_state(one.state).into());
    }
    let event = notifications::test(database, call.actor(), one.id)?;
    Ok(accepted(json!({ "event": format!("evt_{}", event.simple()) })))
}

/// Refuses redelivery to an unverified subscription: its notifications would not be sent, and the client would not know why.
fn is_verified(one: &Subscription) -> Result<(), Problem> {
    if one.state == SubscriptionState::Unverified { Err(Problem::another_state(one.state)) } else { Ok(()) }
}

pub(super) fn redeliver(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&[])?;
    let one = call.subscription(database)?;
    let mut fields = call.fields()?;
    let id = fields.text("event", None, 64);
    let id = fields.required("event", id);
    if id.as_deref().is_some_and(|id| read_id(id).is_none()) {
        fields.is_wrong("event", NO_EVENT);
    }
    fields.end()?;
    let id = id.as_deref().and_then(read_id).ok_or_else(Problem::not_found)?;
    let event = event_of(call, database, &one, id)?;
    is_verified(&one)?;
    notifications::enqueue_event(database, call.actor(), one.id, (id, event.position))?;
    Ok(accepted(json!({ "notifications": 1 })))
}

pub(super) fn recover(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&[])?;
    let one = call.subscription(database)?;
    let mut fields = call.fields()?;
    let since = fields.moment("since").flatten();
    let since = fields.required("since", since);
    let until = fields.moment("until").flatten().unwrap_or_else(timestamp::now);
    let only = fields.word("only", Some("given_up"), ["given_up", "all"]).unwrap_or("given_up");
    let after = fields.position("after").flatten();
    fields.end()?;
    is_verified(&one)?;
    let since = since.unwrap_or(until);
    let (span, soon) = ((since, until), Some(notifications::soon()));
    let queued = notifications::enqueue_range(database, call.actor(), one.id, span, after, only == "given_up", soon)?;
    Ok(accepted(match queued.next {
        None => json!({ "notifications": queued.notifications }),
        Some(next) => json!({ "notifications": queued.notifications, "next": next }),
    }))
}

pub(super) fn notifications(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&["cursor", "limit", "state"])?;
    let one = call.subscription(database)?;
    let (limit, before) = (call.query.limit()?, call.query.cursor(|text| text.parse().ok())?);
    let given_up = call.query.word("state", ["pending", "given_up"])?.map(|state| state == "given_up");
    let found = notifications::pending(database, one.id, before.unwrap_or(i64::MAX), given_up, limit)?;
    let next = found.last().filter(|_| found.len() == limit).map(|last| last.position);
    Ok(page(&call.query, found.iter().map(|pending| json!(pending)).collect(), next))
}

pub(super) fn attempts(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&["event"])?;
    let one = call.subscription(database)?;
    let id = call.query.one("event")?.and_then(read_id);
    let id = id.ok_or_else(|| Problem::wrong_parameter("event", NO_EVENT))?;
    let event = event_of(call, database, &one, id)?;
    let attempts = notifications::attempts(database, &[event.position], Some(one.id), MOST_TRIES)?;
    Ok(ok(json!({ "items": attempts })))
}
