//! Events for clients that poll: in the order of their commits, without a gap.

use super::call::{ApiRequest, page};
use super::problem::{ApiFailure, Problem};
use crate::ledger::Database;
use crate::ledger::notifications::TEST;
use crate::operations::notifications;
use crate::webhook::payload;
use axum::response::Response;
use serde_json::{Value, json};

/// How many events are read at once, and how many at most for one answer. The token may see few of the events that are read.
const READ_AT_ONCE: usize = 500;
const READ_AT_MOST: usize = 5000;

pub(super) fn list(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&["after", "limit"])?;
    let limit = call.query.limit()?;
    let mut after = match call.query.one("after")? {
        None => 0,
        Some("now") => notifications::newest(database)?,
        Some(text) => text
            .parse()
            .ok()
            .filter(|after| *after >= 0)
            .ok_or_else(|| Problem::wrong_parameter("after", "what `next` said is wanted, or now"))?,
    };
    let (mut items, mut read) = (Vec::new(), 0);
    let goes_on = 'full: loop {
        let events = notifications::events_after(database, after, READ_AT_ONCE.min(READ_AT_MOST))?;
        for event in &events {
            if items.len() == limit {
                break 'full true;
            }
            after = event.position;
            let sees = call.token.bounds.hold_copy(&event.recipient, &event.imap_user, &event.mailbox);
            if sees && event.event_type != TEST {
                items.push(
                    serde_json::from_str(&payload::render(event, call.api.settings.public.as_deref()))
                        .unwrap_or(Value::Null),
                );
            }
        }
        read += events.len();
        if events.len() < READ_AT_ONCE {
            break false;
        }
        if read >= READ_AT_MOST {
            break true;
        }
    };
    Ok(page(items, json!(after), &call.query, "after", goes_on, json!({})))
}
