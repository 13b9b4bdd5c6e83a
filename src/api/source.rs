//! The source of a message, for who may read it: by the same code, and with the same line in the operations log, as on the page.

use super::call::Call;
use super::problem::Problem;
use super::shares::Share;
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
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long it may take to find it: a request may take a little longer.
const PATIENCE: Duration = Duration::from_secs(25);
/// How long it may take to send: whoever reads so slowly that it takes longer leaves the place to others.
const SENDING: Duration = Duration::from_mins(10);
/// How much of it is given to a connection at once, in bytes.
const PIECE: usize = 16 << 10;

/// Hands it out, if the token may see a copy of it: in the form for display, since who else has got it is not for everybody who may read it.
pub(super) async fn hand_out(call: Call) -> Result<Response, Problem> {
    call.query.only(&[])?;
    let identity = hex::decode(&call.id).and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let identity = identity.ok_or_else(Problem::not_found)?;
    let (api, who, bounds) = (Arc::clone(&call.api), call.token.name.clone(), call.token.bounds);
    let token = call.token.id;
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
    // Who reads slowly keeps the memory that a message takes: few do at once, and leave places to other tokens.
    let place = api.sources.take(token, 1).ok_or_else(Problem::unavailable)?;
    let shared = Arc::clone(&api);
    let read = move |database: &mut dyn Database, mailboxes: Option<Deadline>| -> Result<_, DatabaseError> {
        let actor = Actor { who: &who, way: "api", role: None, host: shared.settings.site.host() };
        let wanted = Look { actor, operation: Operation::Downloaded, object: Some("source"), noted: None };
        let bytes = |message: &Message| Ok(Some(message.as_received().to_vec()));
        look(&shared.settings.site, database, &identity, wanted, mailboxes, bytes)
    };
    let found = match &api.mailboxes {
        Some(mailboxes) => {
            let looked = mailboxes.look(PATIENCE, move |site, deadline| {
                let mut database = site.open_to_ask(deadline)?;
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

fn answer(message: Vec<u8>, place: Share) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("message/rfc822")),
        // Where it is opened in a browser: it is a stranger's.
        (CONTENT_DISPOSITION, HeaderValue::from_static("attachment; filename=\"message.eml\"")),
    ];
    (headers, Body::new(Sent::begin(message, place))).into_response()
}

/// A body that is sent piece by piece. hyper drops a body once it has its last frame, and keeps that until it is written: of a body in
/// one frame it would have the whole message, for whoever does not read, while its place is another one's. So it is given a piece as it
/// has written what came before, and the message keeps its place until the last piece is taken, the connection is gone, or the time is over.
struct Sent {
    left: u64,
    pieces: mpsc::Receiver<Bytes>,
}

impl Sent {
    fn begin(message: Vec<u8>, place: Share) -> Self {
        let (give, pieces) = mpsc::channel(1);
        let left = message.len() as u64;
        tokio::spawn(async move {
            let all = async {
                for piece in message.chunks(PIECE) {
                    // A part of the whole would keep all of it.
                    if give.send(Bytes::copy_from_slice(piece)).await.is_err() {
                        break;
                    }
                }
            };
            if timeout(SENDING, all).await.is_err() {
                tracing::info!(within = ?SENDING, "a message that the API hands out was not read, and is cut off");
            }
            drop(place);
        });
        Self { left, pieces }
    }
}

impl hyper::body::Body for Sent {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match ready!(self.pieces.poll_recv(context)) {
            Some(piece) => {
                self.left = self.left.saturating_sub(piece.len() as u64);
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            None if self.left > 0 => Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into()))),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::shares::Shares;
    use axum::body::to_bytes;
    use hyper::body::Body as _;
    use std::future::poll_fn;
    use uuid::Uuid;

    const TOKEN: Uuid = Uuid::nil();

    /// No time passes while anything is to be done.
    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(future)
    }

    fn message(pieces: usize) -> Vec<u8> {
        (0..pieces * PIECE + 1).map(|number| (number % 251) as u8).collect()
    }

    #[test]
    fn a_message_comes_whole_and_its_place_is_given_back() {
        run(async {
            for message in [Vec::new(), b"x".to_vec(), message(9)] {
                let shares = Shares::of(2);
                let sent = Sent::begin(message.clone(), shares.take(TOKEN, 1).unwrap());
                assert_eq!(sent.size_hint().exact(), Some(message.len() as u64));
                assert_eq!(to_bytes(Body::new(sent), usize::MAX).await.unwrap(), message);
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert!(shares.take(TOKEN, 1).is_some());
            }
        });
    }

    #[test]
    fn what_is_not_read_keeps_its_place_for_so_long_and_is_cut_off_then() {
        run(async {
            let shares = Shares::of(2);
            let mut sent = Sent::begin(message(9), shares.take(TOKEN, 1).unwrap());
            let mut next = async || poll_fn(|context| Pin::new(&mut sent).poll_frame(context)).await.unwrap();
            next().await.unwrap();
            tokio::time::sleep(SENDING - Duration::from_secs(1)).await;
            assert!(shares.take(TOKEN, 1).is_none());
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert!(shares.take(TOKEN, 1).is_some());
            // What is on its way by then, and no more.
            next().await.unwrap();
            assert_eq!(next().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn who_has_gone_leaves_the_place_to_others() {
        run(async {
            let shares = Shares::of(2);
            let sent = Sent::begin(message(9), shares.take(TOKEN, 1).unwrap());
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(shares.take(TOKEN, 1).is_none());
            drop(sent);
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(shares.take(TOKEN, 1).is_some());
        });
    }
}
