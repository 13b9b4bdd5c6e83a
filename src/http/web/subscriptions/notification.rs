//! One notification: its payload, its tries and their answers.

use super::super::layout::{Screen, message_name, milliseconds, moment, table, visible};
use super::super::visit::Visit;
use super::super::{Answered, auth};
use super::one::{again, notification_state};
use super::{Subscription, ask, found, path};
use crate::base::hex;
use crate::ledger::message_search::subjects;
use crate::operations::notifications::{self, Due, NotificationAttempt, Pending};
use crate::webhook::payload;
use axum::extract::Path;
use maud::{Markup, Render, html};
use uuid::Uuid;

/// How many tries are shown: the last ones, in ascending order.
const MOST_TRIES: usize = 100;

pub(in crate::http::web) async fn show(visit: Visit, Path((id, event)): Path<(String, String)>) -> Answered {
    let Some(event) = payload::read_id(&event) else { return Ok(auth::nothing_here().await) };
    let one = found(&visit, &id).await?;
    let asked = one.clone();
    let read = ask(&visit, move |database| {
        let Some(due) = notifications::event_of(database, &asked, event)? else { return Ok(None) };
        let pending = notifications::pending_one(database, asked.id, due.position)?;
        let attempts = notifications::attempts(database, &[due.position], Some(asked.id), MOST_TRIES)?;
        let identity: Option<[u8; 32]> = hex::decode(&due.identity).and_then(|identity| identity.try_into().ok());
        let subject = subjects(database, "identity", identity.as_slice())?.into_values().next();
        Ok(Some((due, subject, pending, attempts)))
    });
    let Some((due, subject, pending, attempts)) = read.await? else { return Ok(auth::nothing_here().await) };
    let main = main(
        &one,
        (&due, subject.as_deref()),
        pending.as_ref(),
        &attempts,
        visit.page.settings.notifications.api.as_deref(),
    );
    Ok(visit.page_of("Notification", Screen::Subscriptions, &main))
}

fn main(
    one: &Subscription,
    (due, subject): (&Due, Option<&str>),
    pending: Option<&Pending>,
    attempts: &[NotificationAttempt],
    api: Option<&str>,
) -> Markup {
    html! {
        p {
            @match (pending, attempts) {
                (Some(pending), _) => { (notification_state(pending)) @if let Some(at) = pending.due_at { ", due " (moment(at)) } }
                (None, []) => { "It was never sent: it is older than the subscription, or of a type that it does not name." }
                (None, _) => { span .good { "accepted" } }
            }
        }
        (again(one.id, due.event))
        dl {
            dt { "Subscription" } dd { a href=(path(one.id)) { (one.owner) } " " code { (one.callback_url) } }
            dt { "Event" } dd { code { (payload::id(due.event)) } }
            dt { "Type" } dd { (due.event_type) }
            dt { "Time" } dd { (moment(due.created_at)) }
            @if !due.message_id.is_empty() {
                dt { "Message" } dd { a href={ "/messages/" (due.identity) } { (message_name(subject, &due.message_id, false)) } }
                dt { "Mailbox" } dd { (due.mailbox) " of " (due.imap_user) }
            }
        }
        h2 { "Tries" }
        @if attempts.is_empty() {
            p { "None yet." }
        } @else {
            ol .steps {
                @for printed in attempts { (try_of(printed)) }
            }
        }
        h2 { "What is sent" }
        (request(one.id, due, api))
    }
}

fn try_of(printed: &NotificationAttempt) -> Markup {
    let class = if printed.status.is_some_and(|status| (200..300).contains(&status)) { "good" } else { "bad" };
    html! {
        li {
            p { (moment(printed.started_at)) " from " (printed.host) ", " (milliseconds(printed.milliseconds as f64)) ": " span class=(class) { bdi { (printed.outcome) } } }
            @if let Some(next) = printed.next_at { p .hint { "The next one was to be " (moment(next)) "." } }
            @match printed.response.as_deref().filter(|response| !response.is_empty()) {
                Some(response) => {
                    p { "The beginning of the answer:" }
                    pre tabindex="0" { (visible(response)) }
                }
                None => { p .hint { @if printed.status.is_some() { "Nothing is kept of the answer's text." } @else { "There was no answer." } } }
            }
        }
    }
}

fn request(subscription: Uuid, due: &Due, api: Option<&str>) -> Markup {
    let always = payload::headers(&payload::id(due.event), subscription);
    let each_time = [
        ("webhook-timestamp", "when the try was made, in seconds since 1970"),
        ("webhook-signature", "of the secret, or of two while it is replaced"),
        ("maildrop-attempt", "which try it is, from 1"),
    ];
    let fields = always.into_iter().map(|(name, value)| [name.render(), html! { code { (value) } }]);
    let fields = fields.chain(each_time.map(|(name, meaning)| [name.render(), meaning.render()]));
    html! {
        p { "A POST, whose body has the same bytes in each try. The signature is not kept: it is made of the secret, the moment and the body." }
        (table("narrow untitled", "Header fields", [("Field", ""), ("Value", "")], fields))
        pre tabindex="0" { (payload::render(due, api)) }
    }
}
