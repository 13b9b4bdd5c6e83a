//! The lists of the screen Activity, as tables and as files.

use super::form::{FAILED, SearchForm};
use super::{FoundAttempts, ListedMessages, SearchResult, message_path};
use crate::base::hex;
use crate::base::timestamp::{self, time_text};
use crate::http::web::layout::{self, Column, class, milliseconds, number, or_dash, pager, table, table_with_ids};
use crate::http::web::list_file::{self, FileFormat};
use crate::http::web::visit::Visit;
use crate::ledger::activity::{AttemptCursor, FoundTried, Tried};
use crate::ledger::audit_queries::RecordedCopy;
use crate::ledger::{AttemptResult, Outcome};
use crate::message::Role;
use crate::operations::activity::{FailuresPage, TakenAs};
use axum::response::Response;
use maud::{Markup, html};
use serde_json::json;

/// After this many seconds the browser polls for new rows of a list.
const POLL: u32 = 5;

/// The columns of the lists as files.
const FILE: &str = "started_at,state,recipient,role,user,mailbox,author,subject,message_id,took_ms,host,queue_id";
const FAILED_FILE: &str = "first_at,last_at,recipient,count,cause,sender,author,subject,message_id,host,queue_id";
const OWED_FILE: &str = "last_tried_at,user,mailbox,recipient,reason,author,subject,message_id";

/// The list as a file.
pub(super) fn send(to: &Visit, format: FileFormat, found: &SearchResult) -> Response {
    let (tried, failed, more) = match found {
        SearchResult::Owed(owed, more) => return owed_file(to, format, owed, *more),
        SearchResult::Failed(failed) => {
            return list_file::send(to, format, FAILED, FAILED_FILE, &failed.failures, failed.next.is_some());
        }
        SearchResult::Attempts(FoundAttempts { found, failed, .. }) => {
            let more = found.more || found.looked_back_to.is_some() || failed.next.is_some();
            (found.tried.as_slice(), failed.failures.as_slice(), more)
        }
        SearchResult::Nothing | SearchResult::NoneYet => (&[][..], &[][..], false),
    };
    let failed = failed.iter().map(|one| {
        json!({
            "started_at": timestamp::exact(one.first_at), "state": in_words(Some(&one.cause)), "recipient": one.recipient,
            "role": Role::Recipient.as_str(), "author": one.author, "subject": one.subject, "message_id": one.message_id,
            "host": one.host, "queue_id": one.queue_id,
        })
    });
    let rows = tried.iter().map(|one| {
        json!({
            "started_at": timestamp::exact(one.place.began_at), "state": state(one), "recipient": one.recipient, "role": one.role.as_str(),
            "user": one.user, "mailbox": one.mailbox, "author": one.from, "subject": one.subject, "message_id": one.message_id,
            "took_ms": one.took().map(|took| (took * 100.0).round() / 100.0), "host": one.host, "queue_id": one.queue_id,
        })
    });
    list_file::send(to, format, "activity", FILE, failed.chain(rows), more)
}

/// Owed Sent copies as a file.
fn owed_file(to: &Visit, format: FileFormat, owed: &[RecordedCopy], more: bool) -> Response {
    let rows = owed.iter().map(|one| {
        json!({
            "last_tried_at": timestamp::exact(one.updated_at), "user": one.user, "mailbox": one.mailbox, "recipient": one.recipient,
            "reason": one.reason, "author": one.from, "subject": one.subject, "message_id": one.message_id,
        })
    });
    list_file::send(to, format, "owed", OWED_FILE, rows, more)
}

const COLUMNS: [Column; 6] =
    [("Message", ""), ("Recipient", ""), ("State", ""), ("Time", "t"), ("Took", "n"), ("Host", "")];

const ELSEWHERE: &str = "A message that no host has tried to deliver is known to Postfix only.";

/// Where the script counts the new rows of a list.
pub(super) fn live_line(form: &SearchForm, tried: &[Tried]) -> Markup {
    html! {
        @if let Some(live) = form.live(tried) {
            p #live .hint { span data-said role="status" { "New attempts are counted here. " } span data-newer=(live) data-poll=(POLL) role="status" {} }
        }
    }
}

pub(super) fn tried(form: &SearchForm, found: &FoundTried, taken_as: Option<TakenAs>) -> Markup {
    let FoundTried { tried, more, looked_back_to } = found;
    let rows = tried.iter().enumerate().map(|(at, one)| (Some(row_id(one)), row(one, of_the_same(tried, at))));
    html! {
        (live_line(form, tried))
        @if let Some(taken_as) = taken_as { p { "Searched as " (describe(taken_as)) ": " b { (form.q.trim()) } } }
        @if tried.is_empty() {
            p {
                "No attempt matches" @if taken_as != Some(TakenAs::MessageId) { " in this time" } ". "
                span .hint {
                    @if !form.user.trim().is_empty() {
                        "A mailbox's user is compared as a whole. Write it as the lists of this page show it. "
                    }
                    "To search further back, set “Since” to 30d. "
                    (ELSEWHERE) " One that was refused for its size is only in Postfix's log and in this host's log."
                }
            }
        } @else {
            (table_with_ids("", "Delivery attempts, the newest first. Each attempt has a row of its own.", COLUMNS, rows))
        }
        @if !tried.is_empty() && matches!(taken_as, Some(TakenAs::Address | TakenAs::Piece)) {
            p .hint { (ELSEWHERE) }
        }
        @if let Some(back) = looked_back_to {
            p role="status" {
                "Attempts before " (layout::moment(*back)) " were not searched. To search them, set “Until” to "
                code { (time_text(*back)) } "."
            }
        }
        @if *more && let Some(last) = tried.last() {
            (pager(&form.older(last), "Older"))
        }
    }
}

pub(super) fn messages(form: &SearchForm, listed: &ListedMessages) -> Markup {
    let ListedMessages { messages, page, taken_as } = listed;
    let text = form.q.trim();
    let rows = messages.iter().map(|message| {
        let path = format!("/messages/{}", hex::encode(&message.identity));
        [
            html! { a href=(path) { (layout::moment(message.recorded_at)) } },
            html! { bdi { (message.from.as_deref().unwrap_or("–")) } },
            html! { bdi { (message.to.as_deref().unwrap_or("–")) } },
            html! { @if let Some(subject) = &message.subject { bdi { (subject) } } @else { code { (message.message_id) } } },
        ]
    });
    let caption = html! {
        "Messages with " (taken_as.as_str()) " like " b { (text) } ", the newest first, however old they are."
    };
    let columns = [("Recorded", "t"), ("Author", ""), ("To", ""), ("Subject", "")];
    html! {
        (table("", &caption, columns, rows))
        @if let Some(last) = &page.searched_up_to {
            p role="status" { "More addresses or domains begin like this. Those after " code { (last) } " were not looked for." }
        }
        @if let Some(back) = page.looked_back_to {
            p role="status" { "What is older than " (layout::moment(back)) " was not looked for: the next page does." }
        }
        @if let Some(next) = page.next {
            (pager(&form.older_messages((*taken_as, next)), "Older messages"))
        }
    }
}

fn describe(taken_as: TakenAs) -> &'static str {
    match taken_as {
        TakenAs::Domain | TakenAs::Beginning => taken_as.as_str(),
        TakenAs::MessageId => "a Message-ID",
        TakenAs::QueueId => "a queue id",
        TakenAs::Address => "an address or a mailbox's user",
        TakenAs::Piece => {
            "a part of a subject, or of an author's name or address, of messages with a copy (others are found by their \
             recipient)"
        }
    }
}

/// The id by which the script recognizes a row.
pub(super) fn row_id(tried: &Tried) -> String {
    let AttemptCursor { attempt, key, .. } = tried.place;
    format!("a{}-{}", attempt.simple(), hex::encode(key.get(..6).unwrap_or_default()))
}

/// A hint for an attempt if the list has others for the same copy: the newest one shows the current state.
fn of_the_same(tried: &[Tried], at: usize) -> Option<String> {
    let key = tried.get(at)?.place.key;
    let same = |tried: &[Tried]| tried.iter().filter(|other| other.place.key == key).count();
    let (all, newer) = (same(tried), same(tried.get(..at)?));
    match (all, newer) {
        (..=1, _) => None,
        (_, 0) => Some(format!("the newest of {all} attempts in this list")),
        (..) => Some("an earlier attempt: see the newer one above".into()),
    }
}

fn row(tried: &Tried, of_the_same: Option<String>) -> [Markup; 6] {
    let Tried { is_recorded, .. } = *tried;
    [
        html! {
            a .row href=(message_path(&tried.identity, &tried.lock)) { (layout::message_name(tried.subject.as_deref(), &tried.message_id, is_recorded)) }
            div .hint { (layout::author(tried.from.as_deref(), is_recorded)) }
        },
        html! {
            (tried.recipient)
            @if tried.role == Role::Sender { div .hint { "copy for " (tried.mailbox) " of " (tried.user) } }
        },
        html! {
            (layout::state(class(tried.result()), &state(tried)))
            @if let Some(note) = of_the_same { div .hint { (note) } }
        },
        layout::moment(tried.place.began_at),
        or_dash(tried.took().map(milliseconds)),
        html! {
            (tried.host)
            @if let Some(queue_id) = &tried.queue_id { div .hint { code { (queue_id) } } }
        },
    ]
}

/// The outcome of an attempt at one copy, in words.
pub(in crate::http::web) fn in_words(outcome: Option<&Outcome>) -> String {
    match outcome {
        None => "not ended: it is under way, or was cut short".into(),
        Some(Outcome::Appended) => "delivered".into(),
        Some(Outcome::Adopted) => "delivered: found in the mailbox".into(),
        Some(Outcome::AlreadyThere | Outcome::AlreadyThereUnchecked) => "delivered: it was there already".into(),
        Some(Outcome::Owed) => "owed".into(),
        Some(Outcome::Busy) => "deferred: another delivery held the lock".into(),
        Some(outcome @ Outcome::Deferred(..)) => format!("deferred: {}", outcome.reason()),
        Some(outcome @ Outcome::Refused(_)) => format!("refused: {}", outcome.reason()),
        Some(Outcome::Died) => "never ended: it was cut short; a later attempt has looked for its copy".into(),
        Some(other) => other.to_string(),
    }
}

fn state(tried: &Tried) -> String {
    match (tried.result(), tried.role) {
        (AttemptResult::Delivered, Role::Sender) if tried.outcome == Some(Outcome::Owed) => "Sent copy owed".into(),
        _ => in_words(tried.outcome.as_ref()),
    }
}

pub(super) fn failed(form: &SearchForm, FailuresPage { failures, next }: &FailuresPage) -> Markup {
    let columns: [Column; 6] =
        [("Message", ""), ("Recipient", ""), ("Cause", ""), ("First try", "t"), ("Last try", "t"), ("Host", "")];
    let rows = failures.iter().map(|one| {
        [
            html! {
                a .row href=(message_path(one.identity.as_bytes(), &one.lock)) { (layout::message_name(one.subject.as_deref(), &one.message_id, false)) }
                div .hint { (layout::author(one.author.as_deref(), false)) }
            },
            html! { (one.recipient) div .hint { (tries(one.count)) } },
            layout::folded(&one.cause),
            layout::moment(one.first_at),
            layout::moment(one.last_at),
            html! { (one.host) @if let Some(queue_id) = &one.queue_id { br; span .hint { code { (queue_id) } } } },
        ]
    });
    html! {
        @if failures.is_empty() {
            p { "No delivery failed before it began, in this time." }
        } @else {
            (table("", "Failed before delivery, and not delivered since; the newest first. No mailbox was opened for them.", columns, rows))
        }
        @if let Some(next) = next { (pager(&form.older_failures(next), "Older failures")) }
    }
}

/// How often a delivery was tried, in words.
pub(in crate::http::web) fn tries(count: u64) -> String {
    if count == 1 { "1 try".into() } else { format!("{} tries", number(count)) }
}

pub(super) fn owed(owed: &[RecordedCopy], more: bool) -> Markup {
    let caption = html! {
        "Owed Sent copies, the newest first. The service makes them by itself; "
        code { "replay --owed" } " tries all at once."
    };
    let rows = owed.iter().map(|one| {
        [
            html! {
                a .row href=(format!("/messages/{}", hex::encode(one.identity.as_bytes()))) {
                    (layout::message_name(one.subject.as_deref(), &one.message_id, true))
                }
                div .hint { (layout::author(one.from.as_deref(), true)) }
            },
            html! { (one.mailbox) " of " (one.user) },
            html! { (one.reason.as_deref().unwrap_or("no reason is known")) },
            layout::moment(one.updated_at),
        ]
    });
    html! {
        @if owed.is_empty() {
            p { "No Sent copy is owed." }
        } @else {
            (table("", &caption, [("Message", ""), ("Mailbox", ""), ("Reason", ""), ("Last tried", "t")], rows))
            @if more { p { "These are the newest " (owed.len()) ". There are more." } }
        }
    }
}
