//! One message: a summary line, its copies, and the attempts of each host on a time line.

use super::activity::{in_words, tries};
use super::layout::{self, Column, Screen, class, milliseconds, moment, not_blank, number, or_dash, table};
use super::redeliver::{self, Offer};
use super::time_line::{self, in_milliseconds, sign};
use super::visit::Visit;
use super::{Answered, auth, notifications};
use crate::base::hex;
use crate::base::terminal::shell_word;
use crate::base::timestamp::exact;
use crate::ledger::stage_times::STAGES;
use crate::ledger::trace::{Had, LockSpan, MessageTrace, RecordedMessage, TracedAttempt, TracedCopy};
use crate::ledger::web_sessions::{WebRole, WebSession};
use crate::ledger::{CopyKey, FailedDelivery};
use crate::lock::LockName;
use crate::message::Role;
use crate::operations::manual_redelivery::{RedeliveryKind, RedeliveryRequest};
use crate::operations::trace::{RecipientState, TracedMessage, held_then, of_identity};
use axum::extract::{Path, Query};
use maud::{Markup, Render, html};
use serde::Deserialize;

/// How many attempts are shown, the newest; a message that was tried for five days has 130 for each recipient.
const SHOWN: usize = 100;

#[derive(Debug, Deserialize)]
pub(super) struct MessageQuery {
    lock: Option<String>,
}

pub(super) async fn show(
    visit: Visit,
    Path(identity): Path<String>,
    Query(MessageQuery { lock }): Query<MessageQuery>,
) -> Answered {
    let digest = |text: &str| hex::decode(text).and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let Some(identity) = digest(&identity) else { return Ok(auth::nothing_here().await) };
    let lock = lock.as_deref().and_then(digest).map(LockName::from_digest);
    let site = visit.page.site.clone();
    let found = visit.ask(move |database| of_identity(&site, database, identity, lock)).await?;
    let Some((now, message)) = found else { return Ok(auth::nothing_here().await) };
    let title = match (&message.trace.message, message.trace.failures.first()) {
        (Some(recorded), _) => not_blank(recorded.subject.as_deref()).unwrap_or("(no subject)").to_owned(),
        (None, Some(failure)) => not_blank(failure.subject.as_deref()).unwrap_or("(no subject)").to_owned(),
        (None, None) => format!("Message {}", message.trace.message_id),
    };
    let offers = (visit.viewer.role >= Screen::Again.least()).then(|| offers(&message));
    let is_missing = |offer: &Offer| offer.request.kind == RedeliveryKind::Deliver;
    let delivers = visit.page.site.opens_mailboxes() && offers.iter().flatten().any(is_missing);
    let main = html! {
        (main(now, &message, &visit.viewer, delivers))
        @if let Some(offers) = offers { (redeliver::of_message(&visit, &offers)) }
    };
    Ok(visit.page_of(&title, None, &main))
}

/// `delivers`: whether a copy that is missing can be delivered here.
fn main(now: i64, message: &TracedMessage, viewer: &WebSession, delivers: bool) -> Markup {
    let TracedMessage { state, verdict, recipients, trace } = message;
    let rows = recipients.iter().map(|one| {
        let deferred = if one.state == RecipientState::Deferred { "deferred: " } else { "" };
        let state = html! { span class=(class_of(one.state)) { (deferred) (layout::with_moments(&one.summary)) } };
        [one.recipient.render(), state, one.attempts.render()]
    });
    html! {
        p class={ "verdict " (class_of(*state)) } { (layout::with_moments(verdict)) }
        (what_follows(message, delivers))
        p .hint { "As of " (moment(now)) ". Reload the page for what has happened since." }
        @if let Some(holder) = &trace.lock.holder { p { "Its lock is held by " (holder.to_string()) ". " a href="/locks" { "Locks" } } }
        h2 { "Message" }
        (facts(trace))
        @if trace.message.is_some() && viewer.role >= WebRole::Reader {
            p { a href=(format!("/messages/{}/content", trace.identity)) { "Show the content" } " " span .hint { "The operations log records it." } }
        }
        @if recipients.len() > 1 {
            h2 { "Recipients" }
            (table("untitled", "The state of each recipient", [("Recipient", ""), ("State", ""), ("Attempts", "n")], rows))
        }
        h2 { "Copies" }
        @if trace.copies.iter().any(|copy| copy.delivered) && viewer.role >= Screen::Again.least() {
            p { "Is a copy still in its mailbox? “" a href="#again" { "Deliver again" } "” says how to check it." }
        }
        @if trace.copies.is_empty() {
            p { "No mailbox has a copy yet." }
        } @else {
            (table("untitled", "Delivered and owed copies", COPIES, trace.copies.iter().map(copy_row)))
        }
        @if !trace.failures.is_empty() {
            h2 { "Failed before delivery" }
            (table("untitled", "Tries that ended before a mailbox was open", FAILURES, trace.failures.iter().map(failure_row)))
        }
        @if !trace.attempts.is_empty() || trace.failures.is_empty() {
            h2 { "Attempts, on all hosts" }
            (attempts(now, &trace.attempts, trace.message.as_ref()))
        }
        @if let Some(events) = trace.notifications.as_deref().filter(|events| !events.is_empty()) { (notifications::of(events, viewer)) }
    }
}

/// What becomes of the recipients that have no copy yet, and what a person can do.
fn what_follows(TracedMessage { recipients, trace, .. }: &TracedMessage, delivers: bool) -> Markup {
    let unknown: Vec<&FailedDelivery> =
        trace.failures.iter().filter(|failure| !failure.is_over && failure.is_unknown_recipient()).collect();
    let waits = recipients.iter().filter(|one| {
        one.state == RecipientState::Deferred && unknown.iter().all(|failure| failure.recipient != one.recipient)
    });
    html! {
        @if let Some(last) = waits.filter_map(|one| one.last_at).max() {
            p {
                "Last tried " (moment(last)) ". The message waits, usually in Postfix's queue, and is tried again from there. "
                "Its sender need not send it again. Once the cause is fixed, " code { "postqueue -f" } " on the mail server tries it at once."
                @if delivers { " You can also " a href="#again" { "deliver a missing copy" } " here." }
            }
        }
        @for failure in unknown {
            p {
                "The address " b { (failure.recipient) } " is unknown, and " code { "routing.unknown_recipient" }
                @if failure.is_refused() {
                    " rejects such mail: Postfix has returned it to its sender. Add or correct the address, and ask for the message again."
                } @else {
                    " defers such mail. Add or correct the address. Otherwise Postfix returns the message to its sender."
                }
            }
        }
    }
}

/// The copies that can be redelivered: those that are missing come first.
fn offers(TracedMessage { recipients, trace, .. }: &TracedMessage) -> Vec<Offer> {
    let id = shell_word(&trace.message_id);
    let offer = |kind, key, words, options| {
        let request = RedeliveryRequest { kind, copy: CopyKey::from_bytes(key) };
        Offer { request, words, options }
    };
    let not_delivered = |state| matches!(state, RecipientState::Deferred | RecipientState::Refused);
    let failed = recipients.iter().filter(|one| not_delivered(one.state)).filter_map(|one| {
        let mut tried = trace.attempts.iter().rev().flat_map(|attempt| &attempt.copies);
        let copy = tried.find(|copy| copy.role == Role::Recipient && copy.recipient == one.recipient)?;
        let words = format!("deliver it to {} of {}, for {}: {}", copy.mailbox, copy.user, one.recipient, one.summary);
        let options = format!("--message-id {id} --failed --recipient {}", shell_word(&one.recipient));
        Some(offer(RedeliveryKind::Deliver, copy.key, words, options))
    });
    let recorded = trace.copies.iter().map(|copy| {
        let place = format!("{} of {}, for {}", copy.mailbox, copy.user, copy.recipient);
        let mailbox = shell_word(&format!("{}/{}", copy.user, copy.mailbox));
        if !copy.delivered {
            let words = format!("deliver the copy that is owed to {place}");
            return offer(RedeliveryKind::Finish, copy.key, words, format!("--owed --mailbox {mailbox}"));
        }
        let since = shell_word(&exact(copy.delivered_at.unwrap_or(copy.updated_at)));
        let words = format!("check whether it is still in {place}, and restore it if it is not");
        let options = format!("--restore --since {since} --mailbox {mailbox} --message-id {id} --deleted --yes");
        offer(RedeliveryKind::Restore, copy.key, words, options)
    });
    let mut all: Vec<Offer> = failed.chain(recorded).collect();
    all.sort_by_key(|offer| offer.request.kind == RedeliveryKind::Restore);
    all
}

fn class_of(state: RecipientState) -> &'static str {
    match state {
        RecipientState::Delivered => "good",
        RecipientState::UnderWay | RecipientState::Deferred => "wait",
        RecipientState::Owed | RecipientState::Refused => "bad",
    }
}

fn facts(trace: &MessageTrace) -> Markup {
    html! {
        dl {
            dt { "Message-ID" } dd { code { (trace.message_id) } }
            @if let Some(message) = &trace.message {
                dt { "From" } dd { (layout::author(message.from.as_deref(), true)) }
                dt { "To" } dd { bdi { (message.to.as_deref().unwrap_or("–")) } }
                dt { "Envelope sender" } dd { @if message.sender.is_empty() { "<> (the null sender)" } @else { (message.sender) } }
                dt { "Size" } dd { (number(message.size)) " bytes" }
                (first_tried(&trace.failures))
                dt { "First recorded" } dd { (moment(message.recorded_at)) }
            } @else if let Some(failure) = trace.failures.first() {
                dt { "From" } dd { bdi { (failure.author.as_deref().unwrap_or("–")) } }
                dt { "Envelope sender" } dd {
                    @match failure.sender.as_deref() { None => "–", Some("") => "<> (the null sender)", Some(sender) => (sender) }
                }
                (first_tried(&trace.failures))
                dt { "Recorded" } dd { "no: no copy of it was delivered yet" }
            } @else {
                dt { "Recorded" } dd { "no: no copy is delivered yet, so author and subject are not recorded" }
            }
        }
    }
}

/// Since when it was tried in vain, as far as these say.
fn first_tried(failures: &[FailedDelivery]) -> Markup {
    let Some(first) = failures.iter().min_by_key(|failure| failure.first_at) else { return html! {} };
    let count = failures.iter().map(|failure| failure.count).max().unwrap_or_default();
    html! {
        dt { "First tried" }
        dd {
            (moment(first.first_at)) ", failed " (number(count)) @if count == 1 { " time" } @else { " times" }
            " before delivery: " (first.cause.without_detail().reason())
        }
    }
}

const FAILURES: [Column; 6] =
    [("Recipient", ""), ("Tries", "n"), ("First", "t"), ("Last", "t"), ("Last cause", ""), ("Host", "")];

fn failure_row(failure: &FailedDelivery) -> [Markup; 6] {
    [
        html! { (failure.recipient) @if failure.is_over { div .hint { "delivered or refused since" } } },
        tries(failure.count).render(),
        moment(failure.first_at),
        moment(failure.last_at),
        layout::folded(&failure.cause),
        html! { (failure.host) @if let Some(queue_id) = &failure.queue_id { ", queue id " code { (queue_id) } } },
    ]
}

const COPIES: [Column; 5] = [("Mailbox", ""), ("Copy", ""), ("State", ""), ("Time", "t"), ("UIDVALIDITY / UID", "n")];

fn copy_row(copy: &TracedCopy) -> [Markup; 5] {
    let state = if copy.delivered {
        html! { span .good { "delivered" } }
    } else {
        html! { span .bad { "owed:" } " " (copy.reason.as_deref().unwrap_or("no reason is known")) }
    };
    let delivered_at = copy.delivered_at.filter(|_| copy.delivered);
    let uid = copy.uid_validity.zip(copy.uid);
    [
        html! { (copy.mailbox) " of " (copy.user) },
        html! { (layout::role(copy.role)) @if copy.recipient != copy.user { span .hint { " for " (copy.recipient) } } },
        state,
        moment(delivered_at.unwrap_or(copy.updated_at)),
        or_dash(uid.map(|(validity, uid)| format!("{validity} / {uid}"))),
    ]
}

fn attempts(now: i64, all: &[TracedAttempt], message: Option<&RecordedMessage>) -> Markup {
    let shown = all.get(all.len().saturating_sub(SHOWN)..).unwrap_or(all);
    html! {
        @if all.is_empty() {
            p { "The ledger has no attempt any more: they were pruned." }
        } @else {
            (time_line::of(now, shown))
            @if shown.len() < all.len() { p .hint { "These are the newest " (shown.len()) " of " (all.len()) "." } }
            ol .steps { @for attempt in shown { li { (step(now, attempt, message)) } } }
        }
    }
}

fn step(now: i64, attempt: &TracedAttempt, message: Option<&RecordedMessage>) -> Markup {
    let all: f64 = attempt.stages.iter().map(|(_, took)| took).sum();
    html! {
        p {
            (moment(attempt.began_at)) " " b { (attempt.host) } ", process " (attempt.pid)
            @if let Some(queue_id) = &attempt.queue_id { ", queue id " code { (queue_id) } }
            ", for " (recipients_of(attempt))
            @if let Some(sender) = attempt.another_sender(message) { ", envelope sender <" (sender) ">" }
            @if attempt.holds_the_lock { " " span .wait { "holds the lock now" } }
        }
        @for copy in &attempt.copies {
            p {
                (copy.mailbox) " of " (copy.user) ": " (layout::state(class(copy.result()), &in_words(copy.outcome.as_ref())))
                @if let Some(earlier) = &copy.earlier {
                    " (it had been delivered " (moment(earlier.delivered_at))
                    @if let Some(host) = &earlier.host { " by " (host) }
                    @if let Some(sender) = &earlier.sender { ", envelope sender <" (sender) ">" } ")"
                }
            }
        }
        @if let Some(span) = attempt.lock_span() {
            p {
                (lock_in_words(now, span))
                @if let Some(holder) = &attempt.lock_was_held_by { ": it was " b { (held_then(holder)) } } "."
            }
        }
        @if !attempt.stages.is_empty() {
            (stages(attempt, all))
        }
    }
}

/// The envelope recipients of an attempt.
fn recipients_of(attempt: &TracedAttempt) -> String {
    let mut all: Vec<&str> = attempt.copies.iter().map(|copy| copy.recipient.as_str()).collect();
    all.dedup();
    all.join(", ")
}

/// How long an attempt waited for the lock and held it, as the time line shows it.
fn lock_in_words(now: i64, LockSpan { asked_at, waited_until, had }: LockSpan) -> String {
    let waited = in_milliseconds(asked_at, waited_until);
    match had {
        Had::Never => format!("Waited {waited} for the lock, in vain"),
        Had::Until(until) => {
            format!("Waited {waited} for the lock, and held it for {}", in_milliseconds(waited_until, until))
        }
        // The length of the wait is recorded when the attempt ends.
        Had::Still => format!("Holds the lock, {} after it began", in_milliseconds(asked_at, now)),
    }
}

/// A bar of the stages of an attempt, with its legend.
fn stages(attempt: &TracedAttempt, all: f64) -> Markup {
    let colour = |name: &str| format!("stage{}", STAGES.iter().position(|stage| *stage == name).unwrap_or_default());
    let ends = attempt.stages.iter().scan(0.0, |end, (_, took)| {
        *end += took / all.max(f64::MIN_POSITIVE) * 600.0;
        Some(*end)
    });
    let bar: Vec<(f64, &str)> = ends.zip(attempt.stages.iter().map(|(name, _)| *name)).collect();
    html! {
        svg viewBox="0 0 600 10" width="600" height="10" aria-hidden="true" focusable="false" {
            // Each is drawn over the end of the one after it.
            @for (end, name) in bar.iter().rev() { rect class=(colour(name)) width=(format!("{end:.1}")) height="10" {} }
        }
        ul .stages {
            li { "in " (milliseconds(all)) ":" }
            @for (name, took) in &attempt.stages {
                li { (sign(&html! { rect class=(colour(name)) width="24" height="12" {} })) (name) " " (milliseconds(*took)) }
            }
        }
    }
}
