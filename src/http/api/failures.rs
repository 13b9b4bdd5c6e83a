//! Deliveries that failed before their journal, and were not delivered since.

use super::call::{ApiRequest, page, visible};
use super::problem::ApiFailure;
use crate::base::{hex, timestamp};
use crate::ledger::failures::{FailureCursor, FailuresOf, failed_deliveries};
use crate::ledger::{Database, FailedDelivery};
use crate::message::shown_sender;
use axum::response::Response;
use serde_json::{Value, json};

pub(super) fn list(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&["cursor", "limit"])?;
    let (limit, after) = (call.query.limit()?, call.query.cursor(FailureCursor::from_text)?);
    let read = |last: &Option<_>, most| failed_deliveries(database, FailuresOf::Since(0), last.as_ref(), most);
    let show = |failure: &FailedDelivery| {
        let sees = call.token.bounds.hold_address(&failure.recipient);
        (Some(failure.cursor()), sees.then(|| shown(call, failure)))
    };
    let (items, last, goes_on) = visible(limit, after, read, show)?;
    Ok(page(&call.query, items, last.filter(|_| goes_on)))
}

fn shown(call: &ApiRequest, failure: &FailedDelivery) -> Value {
    json!({
        "message": hex::encode(failure.identity.as_bytes()),
        "message_id": failure.message_id,
        "recipient": failure.recipient,
        "sender": failure.sender.as_deref().map(shown_sender),
        "from": failure.author,
        "subject": failure.subject,
        "queue_id": failure.queue_id,
        "host": failure.host,
        "state": if failure.is_refused() { "refused" } else { "deferred" },
        "cause": call.reason(&failure.cause.reason()),
        "tries": failure.count,
        "first_at": timestamp::exact(failure.first_at),
        "last_at": timestamp::exact(failure.last_at),
    })
}
