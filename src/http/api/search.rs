//! Searches of messages, in pages, for those that the token covers.

use super::call::{ApiRequest, linked};
use super::messages::shown;
use super::problem::{ApiFailure, Problem};
use crate::base::timestamp;
use crate::ledger::Database;
use crate::operations::{notifications, search};
use axum::response::Response;
use serde_json::json;
use std::time::{Duration, Instant};

/// How long a search may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(25);
/// After this long a page ends: the next one goes on.
const LONG_ENOUGH: Duration = Duration::from_secs(3);
/// The longest text to search for, in characters.
const LONGEST: usize = 1000;

/// The messages that match `q`, the newest first, without their header fields.
pub(super) fn messages(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    let began = Instant::now();
    call.query.reject_unknown(&["cursor", "limit", "q"])?;
    let limit = call.query.limit()?;
    let text = call.query.one("q")?.unwrap_or_default();
    let meanings = search::meanings(text);
    if meanings.1.is_empty() || text.chars().count() > LONGEST {
        let wanted = format!("a text of at most {LONGEST} characters is wanted");
        return Err(Problem::wrong_parameter("q", wanted).into());
    }
    // The meaning of the first page, so that all have the same.
    let mut start = call.query.cursor(search::read_start)?;
    let (site, bounds) = (&call.api.settings.site, &call.token.bounds);
    // Addresses of the envelope that the token does not cover may be blind copies.
    let visible = (!bounds.is_everything()).then_some((&bounds.addresses[..], &bounds.domains[..]));
    let mut items = Vec::new();
    loop {
        let (found, taken_as) = search::messages(site, database, meanings, visible, start, limit - items.len())?;
        items.extend(notifications::messages(database, &found.ids)?.iter().filter_map(|message| shown(call, message)));
        start = found.next.map(|before| (taken_as, before));
        let is_cut_short = found.looked_back_to.is_some() || began.elapsed() > LONG_ENOUGH;
        if start.is_some() && items.len() < limit && !is_cut_short {
            continue;
        }
        let next = start.map(|start| format!("1.{}", search::start_as_text(start)));
        let body = json!({
            "items": items,
            "next": next,
            "taken_as": taken_as,
            "searched_back_to": found.looked_back_to.map(timestamp::exact),
            // Which address was the last one is not for every token.
            "more_addresses": found.searched_up_to.is_some(),
        });
        return Ok(linked(&call.query, next.map(|next| ("cursor", next)), body));
    }
}
