//! Events for clients that poll: in the order of their commits, without a gap.

use super::call::{ApiRequest, linked, visible};
use super::problem::{ApiFailure, Problem};
use crate::ledger::Database;
use crate::ledger::notifications::TEST;
use crate::operations::notifications::{self, Due};
use crate::webhook::payload;
use axum::response::Response;
use serde_json::{Value, json};

pub(super) fn list(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&["after", "limit"])?;
    let limit = call.query.limit()?;
    let after = match call.query.one("after")? {
        None => 0,
        Some("now") => notifications::newest(database)?,
        Some(text) => text
            .parse()
            .ok()
            .filter(|after| *after >= 0)
            .ok_or_else(|| Problem::wrong_parameter("after", "what `next` said is wanted, or now"))?,
    };
    let read = |after: &i64, most| notifications::events_after(database, *after, most);
    let show = |event: &Due| {
        let sees = call.token.bounds.hold_copy(&event.recipient, &event.imap_user, &event.mailbox);
        let item = || {
            let text = payload::render(event, call.api.settings.public.as_deref());
            serde_json::from_str(&text).unwrap_or(Value::Null)
        };
        (event.position, (sees && event.event_type != TEST).then(item))
    };
    let (items, next, goes_on) = visible(limit, after, read, show)?;
    let link = goes_on.then(|| ("after", next.to_string()));
    Ok(linked(&call.query, link, json!({ "items": items, "next": next })))
}
