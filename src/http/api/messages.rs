//! Messages: what the ledger knows about them, and their submission by HTTP.

use super::call::{ApiRequest, accepted, ok};
use super::problem::{self, ApiFailure, Problem, Wrong};
use super::{BODY_OF_A_MESSAGE, QUEUED_BY_A_TOKEN, ask, check_length, unanswered_as};
use crate::base::fair_quota::{FairQuota, Reservation};
use crate::base::{hex, timestamp};
use crate::delivery::Deferral;
use crate::http::blocking_pools::Work;
use crate::ledger::Database;
use crate::ledger::notifications::history::Message;
use crate::ledger::submissions::{self, Submission};
use crate::ledger::trace::TracedCopy;
use crate::message::{Address, EnvelopeSender, Role, shown_sender};
use crate::operations::notifications;
use crate::operations::submission::{self, Accepted, NotAccepted, NotKnown};
use crate::operations::submission_status::{StatusUnknown, SubmissionStatus, SubmittedRecipient, status};
use crate::operations::tokens::Scope;
use crate::queue::{Envelope, Recipient};
use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::Response;
use hyper::body::Body as _;
use serde_json::{Value, json};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

pub(super) fn show(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&[])?;
    let identity = hex::decode(&call.id).and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let identity = identity.ok_or_else(Problem::not_found)?;
    let found = notifications::message(database, &identity)?.ok_or_else(Problem::not_found)?;
    let mut message = shown(call, &found).ok_or_else(Problem::not_found)?;
    if let Some(fields) = message.as_object_mut() {
        let headers = serde_json::from_str(&found.detail.headers).unwrap_or(Value::Null);
        fields.insert("headers".into(), headers);
    }
    Ok(ok(message))
}

/// A message without its header fields, as the token may see it; `None` if it is not for this token.
pub(super) fn shown(call: &ApiRequest, found: &Message) -> Option<Value> {
    let copies = copies(call, found, |_| true);
    if copies.is_empty() && !call.token.bounds.is_everything() {
        return None;
    }
    let detail = &found.detail;
    Some(json!({
        "id": hex::encode(&found.identity),
        "message_id": found.message_id,
        "sender": shown_sender(&detail.sender),
        "from": detail.from,
        "to": detail.to,
        "cc": detail.cc,
        "subject": detail.subject,
        "date": detail.date.map(timestamp::exact),
        "size": detail.size,
        "recorded_at": timestamp::exact(found.recorded_at),
        "copies": copies,
    }))
}

/// Those of these copies of a message that the token covers.
fn copies(call: &ApiRequest, found: &Message, which: impl Fn(&TracedCopy) -> bool) -> Vec<Value> {
    let sees = |copy: &&TracedCopy| {
        which(copy) && call.token.bounds.hold_copy(&found.address_of(copy), &copy.user, &copy.mailbox)
    };
    let of_copy = |copy: &TracedCopy| {
        json!({
            "copy": hex::encode(&copy.key),
            "role": copy.role.as_str(),
            "address": found.address_of(copy),
            "user": copy.user,
            "mailbox": copy.mailbox,
            "state": if copy.delivered { "delivered" } else { "owed" },
            "uid_validity": copy.uid_validity,
            "uid": copy.uid,
            "reason": copy.reason.as_deref().map(|reason| call.reason(reason)),
            "delivered_at": copy.delivered_at.map(timestamp::exact),
        })
    };
    found.copies.iter().filter(sees).map(of_copy).collect()
}

/// What became of a message that this token's owner has submitted. For anybody else there is none.
pub(super) fn show_submission(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&[])?;
    // MySQL refuses to compare an id with other characters than those of its column.
    if !call.id.is_ascii() {
        return Err(Problem::not_found().into());
    }
    let settings = &call.api.settings;
    let status = match status(database, (settings.site.host(), &settings.queue), &call.id) {
        Err(StatusUnknown::Queue(error)) => {
            tracing::error!(%error, "the API cannot read the queue");
            return Err(Problem::unavailable().into());
        }
        Err(StatusUnknown::Database(error)) => return Err(error.into()),
        Ok(status) => status.filter(|status| status.submission.owner == call.owner()),
    };
    let SubmissionStatus { submission, accepted_at, mut recipients, message } =
        status.ok_or_else(Problem::not_found)?;
    recipients.retain(|recipient| call.token.bounds.hold_address(&recipient.address));
    let first = recipients.iter().map(|recipient| recipient.state).min().ok_or_else(Problem::not_found)?;
    // Other submissions of the same message may have had other recipients.
    let is_of_it = |copy: &TracedCopy| copy.role == Role::Sender || submission.recipients.contains(&copy.recipient);
    let of_recipient = |recipient: &SubmittedRecipient| {
        json!({
            "address": recipient.address,
            "state": recipient.state.as_str(),
            "reason": recipient.reason.as_deref().map(|reason| call.reason(reason)),
            "tries": recipient.tries,
            "next_try_at": recipient.next_try.map(timestamp::exact),
        })
    };
    Ok(ok(json!({
        "id": call.id,
        "state": first.as_str(),
        "host": submission.host,
        "accepted_at": timestamp::exact(accepted_at),
        "message": hex::encode(&submission.identity),
        "message_id": message.as_ref().map(|message| &message.message_id),
        "recipients": recipients.iter().map(of_recipient).collect::<Vec<_>>(),
        "copies": message.map(|message| copies(call, &message, is_of_it)).unwrap_or_default(),
    })))
}

/// How long writing a message to the disk may take: as long as a request.
const WRITING: Duration = Duration::from_secs(30);

/// Puts a message into the file queue of the service. Once this has answered, the message is safely on disk.
pub(super) async fn take_in(call: ApiRequest, headers: &HeaderMap, body: Body) -> Result<Response, Problem> {
    call.query.reject_unknown(&["author", "recipient", "sender"])?;
    let (api, settings) = (Arc::clone(&call.api), &call.api.settings);
    let as_author = call.query.word("author", ["true", "false"])? == Some("true");
    if as_author && !Scope::Sent.is_of(&call.token) {
        return Err(Problem::out_of_scope(Scope::Sent.as_str()));
    }
    call.query.check_address("sender")?;
    call.query.check_address("recipient")?;
    let sender = call.query.one("sender")?.unwrap_or_default();
    let sender = EnvelopeSender::parse(sender)
        .map_err(|error| Problem::wrong_parameter("sender", error.to_string()))?
        .to_string();
    // Only a token that covers an author may write into the author's Sent mailbox.
    let is_within = |address: Address| call.token.bounds.hold_address(&address.folded().to_string());
    if as_author && !call.token.bounds.is_everything() && !Address::parse(&sender).is_ok_and(is_within) {
        return Err(Problem::out_of_bounds(format!("it may not speak for {sender}")));
    }
    let recipients = recipients(&call)?;
    // This comes before the body is read, so that unknown recipients and too large messages cost nothing.
    let (known, door) = (recipients.clone(), Arc::clone(&api));
    let known =
        ask(&api.blocking, move |database| match submission::check_recipients(&door.settings.site, &known, database) {
            Ok(known) => Ok(known),
            Err(Deferral::Database(error)) => Err(error.into()),
            Err(other) => Err(Problem::not_known_now(vec![wrong(other.to_string())]).into()),
        });
    if let Err(NotKnown { problems, for_good }) = known.await? {
        let errors = problems.iter().map(|(to, refusal)| wrong(format!("{to}: {refusal}"))).collect();
        return Err(if for_good { Problem::unknown_recipients(errors) } else { Problem::not_known_now(errors) });
    }
    let largest = usize::try_from(settings.largest_message).unwrap_or(usize::MAX);
    let (raw, share) = read(headers, body, largest, &api.memory, &call.token.id.to_string()).await?;
    let mail = Envelope {
        sender,
        recipients: recipients.iter().map(|to| Recipient { address: to.to_string(), original: None }).collect(),
        injected_by: format!("API, by {}", call.token.name),
        may_owe_sent: as_author,
        ..Envelope::default()
    };
    let size = raw.len();
    let (queued, owner) = (Arc::clone(&api), call.owner());
    // A thread is taken only after the body has arrived, since the client determines how long that takes.
    let written = api.blocking.query_in_pool(Work::TakeIn, WRITING, move |site, database, _| {
        // The thread holds the memory until the message is written, even if the client has gone.
        let _held = share;
        let settings = &queued.settings;
        let take_in = || -> Result<Option<String>, NotAccepted> {
            let queue = submission::queue(&settings.queue)?;
            let share = queue.half_of_the_disk()?.min(QUEUED_BY_A_TOKEN);
            if !queued.queued.add(&queue, &mail.injected_by, size as u64, share)? {
                return Ok(None);
            }
            let announce = |accepted: &Accepted| {
                let submission = Submission {
                    owner,
                    host: site.host().to_owned(),
                    identity: *accepted.identity.as_bytes(),
                    lock: accepted.lock,
                    recipients: recipients.iter().map(|to| to.folded().to_string()).collect(),
                };
                submissions::record(database, &accepted.id, &submission)
            };
            submission::take_in(&settings.site, &queue, mail, raw, settings.largest_message, announce).map(Some)
        };
        match take_in() {
            // The session may be broken.
            Err(NotAccepted::Database(error)) => Err(error),
            other => Ok(other),
        }
    });
    match written.await {
        Ok(Ok(None)) => Err(Problem::share_is_full()),
        Ok(Ok(Some(id))) => {
            tracing::info!(id, size, by = call.token.name, "mail was taken in by the API");
            Ok(accepted(json!({ "id": id, "size": size })))
        }
        Ok(Err(NotAccepted::TooLarge(_))) => Err(Problem::too_large(largest)),
        Ok(Err(error @ (NotAccepted::NoMessage(_) | NotAccepted::AnotherAuthor))) => {
            Err(Problem::no_message(error.to_string()))
        }
        Ok(Err(NotAccepted::Queue(error))) => {
            tracing::error!(%error, "mail could not be taken in by the API");
            Err(if error.is_no_space() { Problem::no_space() } else { Problem::unavailable() })
        }
        Ok(Err(NotAccepted::Database(_))) => Err(Problem::unavailable()),
        Err(unanswered) => Err(unanswered_as(&unanswered)),
    }
}

/// Reads the body of a message of at most `largest` bytes. Also returns the reservation for its buffer. If the token has not
/// enough memory at the moment, the received part is dropped at once.
pub(super) async fn read(
    headers: &HeaderMap,
    mut body: Body,
    largest: usize,
    memory: &Arc<FairQuota>,
    token: &str,
) -> Result<(Vec<u8>, Reservation), Problem> {
    // The announced length limits the size of the buffer.
    let expected = check_length(headers, largest)?.unwrap_or(largest);
    let mut share = memory.take(token, 0).ok_or_else(Problem::unavailable)?;
    let mut raw = Vec::new();
    let all = async {
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let frame = frame.map_err(|error| problem::of_body(error.into_inner().as_ref(), largest))?;
            let Ok(piece) = frame.into_data() else { continue };
            if piece.len() > largest.saturating_sub(raw.len()) {
                return Err(Problem::too_large(largest));
            }
            reserve_buffer(&mut raw, piece.len(), expected, &mut share)?;
            raw.extend_from_slice(&piece);
        }
        Ok(())
    };
    timeout(BODY_OF_A_MESSAGE, all).await.map_err(|_| Problem::too_slow())??;
    Ok((raw, share))
}

/// Reserves space for `more` bytes. The buffer doubles, up to `expected`, so that its bytes are rarely moved.
fn reserve_buffer(raw: &mut Vec<u8>, more: usize, expected: usize, share: &mut Reservation) -> Result<(), Problem> {
    let (now, needed) = (raw.capacity(), raw.len() + more);
    if needed <= now {
        return Ok(());
    }
    let wanted = needed.max(now.saturating_mul(2).min(expected));
    if !share.take_more(wanted - now) || raw.try_reserve_exact(wanted - raw.len()).is_err() {
        return Err(Problem::unavailable());
    }
    Ok(())
}

fn wrong(detail: String) -> Wrong {
    Wrong { detail, pointer: None, parameter: Some("recipient".into()) }
}

/// The recipients without duplicates, if the token covers all of them.
fn recipients(call: &ApiRequest) -> Result<Vec<Address>, Problem> {
    let mut recipients: Vec<Address> = Vec::new();
    for text in call.query.all("recipient") {
        let address =
            Address::parse(text).map_err(|error| Problem::wrong_parameter("recipient", format!("{text}: {error}")))?;
        let folded = address.folded();
        if !call.token.bounds.hold_address(&folded.to_string()) {
            return Err(Problem::out_of_bounds(format!("it may not bring mail for {address}")));
        }
        if !recipients.iter().any(|known| known.folded() == folded) {
            recipients.push(address);
        }
    }
    let most = call.api.settings.max_recipients;
    match recipients.len() {
        0 => Err(Problem::wrong_parameter("recipient", "it is missing")),
        number if number > most => Err(Problem::wrong_parameter("recipient", format!("{most} are allowed"))),
        _ => Ok(recipients),
    }
}
