//! A message as it came, for who may read it: by the same code, and with the same line in the operations log, as on the page.

use super::call::Call;
use super::problem::Problem;
use super::{Api, ask, unanswered_as};
use crate::base::deadline::Deadline;
use crate::base::hex;
use crate::database::DatabaseError;
use crate::ledger::Database;
use crate::ledger::operations_log::{Actor, Operation};
use crate::ledger_threads::Unanswered;
use crate::mailbox_work::NotDone;
use crate::message::Message;
use crate::operations::content::{Found, Look, look};
use crate::operations::notifications;
use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// How long it may take to find it: a request may take a little longer.
const PATIENCE: Duration = Duration::from_secs(25);

/// Hands it out, if the token may see a copy of it. The lines that pipe(8) has prepended for one recipient are left out: who else has got
/// it is not for everybody who may read it.
pub(super) async fn hand_out(call: Call) -> Result<Response, Problem> {
    call.query.only(&[])?;
    let identity = hex::decode(&call.id).and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let identity = identity.ok_or_else(Problem::not_found)?;
    let (api, who, bounds) = (Arc::clone(&call.api), call.token.name.clone(), call.token.bounds);
    let seen = ask(&api.threads, move |database| {
        let found = notifications::message(database, &identity)?;
        Ok(found.is_some_and(|message| {
            let sees = |copy| bounds.hold_copy(&message.address_of(copy), &copy.user, &copy.mailbox);
            bounds.is_everything() || message.copies.iter().any(sees)
        }))
    });
    if !seen.await? {
        return Err(Problem::not_found());
    }
    // Who reads slowly keeps the memory that a message takes: few do at once.
    let place = Arc::clone(&api.sources).try_acquire_owned().map_err(|_| Problem::unavailable())?;
    let shared = Arc::clone(&api);
    let read = move |database: &mut dyn Database, mailboxes: Option<Deadline>| -> Result<_, DatabaseError> {
        let actor = Actor { who: &who, way: "api", role: None, host: shared.settings.site.host() };
        let wanted = Look { actor, operation: Operation::Downloaded, object: Some("source"), noted: None };
        let bytes = |message: &Message| Some(message.without_prepended_lines().to_vec());
        look(&shared.settings.site, database, &identity, wanted, mailboxes, bytes)
    };
    let found = match &api.mailboxes {
        Some(mailboxes) => {
            let looked = mailboxes.look(PATIENCE, move |site, deadline| {
                let mut database = site.open_database(None, deadline)?;
                read(database.as_mut(), Some(deadline))
            });
            let looked = looked.await.map_err(|not_done| match not_done {
                NotDone::Busy | NotDone::Failed => Problem::unavailable(),
                NotDone::TooLate => Problem::out_of_reach(),
            })?;
            looked.map_err(Unanswered::from)
        }
        None => api.threads.ask_within(PATIENCE, move |database| read(database, None)).await,
    };
    match found.map_err(|unanswered| unanswered_as(&unanswered))? {
        Found::Shown(message, _) => Ok(answer(message, place)),
        Found::Unknown => Err(Problem::not_found()),
        Found::Nowhere { may_pass: true, .. } => Err(Problem::out_of_reach()),
        Found::Nowhere { why, .. } => Err(Problem::no_source(why_for_others(&api, why))),
    }
}

/// What is said of mailboxes names those of others: that is for the operations log.
fn why_for_others(api: &Api, why: String) -> String {
    if api.mailboxes.is_some() {
        "it is in no mailbox any more, and its source is not kept (record.raw)".into()
    } else {
        why
    }
}

fn answer(message: Vec<u8>, place: OwnedSemaphorePermit) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("message/rfc822")),
        // Where it is opened in a browser: it is a stranger's.
        (CONTENT_DISPOSITION, HeaderValue::from_static("attachment; filename=\"message.eml\"")),
    ];
    (headers, Body::new(Held { message: Some(message.into()), _place: place })).into_response()
}

/// A body that keeps its place until it is sent, or the connection is gone.
struct Held {
    message: Option<Bytes>,
    _place: OwnedSemaphorePermit,
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Poll::Ready(self.message.take().map(|message| Ok(Frame::data(message))))
    }

    fn is_end_stream(&self) -> bool {
        self.message.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.message.as_ref().map_or(0, |message| message.len() as u64))
    }
}
