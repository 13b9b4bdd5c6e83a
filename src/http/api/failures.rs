//! Deliveries that failed before their journal, and were not delivered since.

use super::call::{ApiRequest, page};
use super::problem::ApiFailure;
use crate::base::{hex, timestamp};
use crate::ledger::failures::{FailureCursor, FailuresOf, failed_deliveries};
use crate::ledger::{Database, FailedDelivery};
use crate::message::shown_sender;
use axum::response::Response;
use serde_json::{Value, json};

/// How many failures are read at once, and how many at most for one answer. The token may see few of those that are read.
const READ_AT_ONCE: usize = 500;
const READ_AT_MOST: usize = 5000;

pub(super) fn list(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&["cursor", "limit"])?;
    let (limit, mut last) = (call.query.limit()?, call.query.cursor(FailureCursor::from_text)?);
    let (mut items, mut read) = (Vec::new(), 0);
    let goes_on = 'full: loop {
        let failures = failed_deliveries(database, FailuresOf::Since(0), last.as_ref(), READ_AT_ONCE)?;
        for failure in &failures {
            if items.len() == limit {
                break 'full true;
            }
            last = Some(failure.cursor());
            if call.token.bounds.hold_address(&failure.recipient) {
                items.push(shown(call, failure));
            }
        }
        read += failures.len();
        if failures.len() < READ_AT_ONCE {
            break false;
        }
        if read >= READ_AT_MOST {
            break true;
        }
    };
    let next = last.filter(|_| goes_on).map(|last| format!("1.{last}"));
    Ok(page(items, json!(next), &call.query, "cursor", goes_on, json!({})))
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
