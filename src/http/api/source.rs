//! The source of a message, for tokens that may read it. The code and the entry in the operations log are those of the web UI.

use super::call::ApiRequest;
use super::problem::Problem;
use super::{Api, ask, unanswered_as};
use crate::base::fair_quota::Reservation;
use crate::base::hex;
use crate::base::sent_body::SentBody;
use crate::http::blocking_pools::{QueryFailure, Rejected, Work};
use crate::ledger::operations_log::{Actor, Operation};
use crate::operations::content::{ContentResult, Look, look};
use crate::operations::notifications;
use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::Duration;

/// How long the search may take, a little less than a request may.
const PATIENCE: Duration = Duration::from_secs(25);

/// Sends the source, if the token may see a copy of the message. The form is the one for display, since not every reader may
/// learn the other recipients.
pub(super) async fn stream(call: ApiRequest) -> Result<Response, Problem> {
    call.query.reject_unknown(&[])?;
    let identity = hex::decode(&call.id).and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let identity = identity.ok_or_else(Problem::not_found)?;
    let (api, who, bounds) = (Arc::clone(&call.api), call.token.name.clone(), call.token.bounds);
    let token = call.token.id.to_string();
    let seen = ask(&api.blocking, move |database| {
        let found = notifications::message(database, &identity)?;
        Ok(found.is_some_and(|message| {
            let sees = |copy| bounds.hold_copy(&message.address_of(copy), &copy.user, &copy.mailbox);
            bounds.is_everything() || message.copies.iter().any(sees)
        }))
    });
    if !seen.await? {
        return Err(Problem::not_found());
    }
    let shared = Arc::clone(&api);
    let read = api.blocking.query_in_pool(Work::Read, PATIENCE, move |site, database, deadline| {
        let actor = Actor { name: &who, interface: "api", role: None, host: site.host() };
        let memory = (&shared.memory, token.as_str());
        let wanted = Look { actor, operation: Operation::Downloaded, object: Some("source"), memory };
        let mailboxes = site.opens_mailboxes().then_some(deadline);
        look(site, database, &identity, wanted, mailboxes, |message| Ok(Some(message.into_received())))
    });
    let found = read.await.map_err(|unanswered| match unanswered {
        QueryFailure::Rejected(Rejected::TooLate) => Problem::out_of_reach(),
        other => unanswered_as(&other),
    });
    match found? {
        ContentResult::Shown(message, share) => Ok(answer(message, share)),
        ContentResult::Busy => Err(Problem::unavailable()),
        ContentResult::Unknown => Err(Problem::not_found()),
        ContentResult::Unavailable { may_pass: true, .. } => Err(Problem::out_of_reach()),
        ContentResult::Unavailable { why, .. } => Err(Problem::no_source(why_for_others(&api, why))),
    }
}

/// The details name mailboxes of other users, so only the operations log has them.
fn why_for_others(api: &Api, why: String) -> String {
    if api.settings.site.opens_mailboxes() {
        "it is in no mailbox any more, and its source is not kept (record.keep_source)".into()
    } else {
        why
    }
}

fn answer(message: Vec<u8>, share: Reservation) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("message/rfc822")),
        // The content is a stranger's, so a browser must download it, not show it.
        (CONTENT_DISPOSITION, HeaderValue::from_static("attachment; filename=\"message.eml\"")),
    ];
    (headers, Body::new(SentBody::begin(message, share))).into_response()
}
