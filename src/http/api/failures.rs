//! Deliveries that failed before their journal, and were not delivered since.

use super::call::{ApiRequest, page};
use super::problem::ApiFailure;
use crate::base::{hex, timestamp};
use crate::ledger::failures::{FailureCursor, FailuresOf, failed_deliveries};
use crate::ledger::{Database, FailedDelivery};
use crate::message::{Identity, shown_sender};
use axum::response::Response;
use serde_json::{Value, json};

/// How many failures are read at once, and how many at most for one answer. The token may see few of those that are read.
const READ_AT_ONCE: usize = 500;
const READ_AT_MOST: usize = 5000;

pub(super) fn list(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&["cursor", "limit"])?;
    let (limit, mut last) = (call.query.limit()?, call.query.cursor(read_cursor)?);
    let (mut items, mut read) = (Vec::new(), 0);
    let goes_on = 'full: loop {
        let failures = failed_deliveries(database, FailuresOf::Since(0, last.as_ref()), READ_AT_ONCE)?;
        for failure in &failures {
            if items.len() == limit {
                break 'full true;
            }
            last = Some(failure.cursor());
            if call.token.bounds.hold_address(&failure.recipient) {
                items.push(shown(failure));
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
    let next = last.filter(|_| goes_on).map(|last| write_cursor(&last));
    Ok(page(items, json!(next), &call.query, "cursor", goes_on, json!({})))
}

fn shown(failure: &FailedDelivery) -> Value {
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
        "cause": failure.cause.reason(),
        "tries": failure.count,
        "first_at": timestamp::exact(failure.first_at),
        "last_at": timestamp::exact(failure.last_at),
    })
}

fn write_cursor(FailureCursor { first_at, identity, recipient }: &FailureCursor) -> String {
    format!("1.{first_at}.{}.{recipient}", hex::encode(identity.as_bytes()))
}

fn read_cursor(text: &str) -> Option<FailureCursor> {
    let mut parts = text.splitn(3, '.');
    let (first_at, identity, recipient) = (parts.next()?, parts.next()?, parts.next()?);
    let identity = Identity::from_bytes(hex::decode(identity)?.try_into().ok()?);
    Some(FailureCursor { first_at: first_at.parse().ok()?, identity, recipient: recipient.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let cursor = FailureCursor { first_at: 17, identity: Identity::of(b"x"), recipient: "a.b@x.y".into() };
        let text = write_cursor(&cursor);
        assert_eq!(read_cursor(text.strip_prefix("1.").unwrap()), Some(cursor));
        for wrong in ["", "1", "1.2.x", "x.y"] {
            assert_eq!(read_cursor(wrong), None, "{wrong}");
        }
    }
}
