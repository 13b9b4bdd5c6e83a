//! One subscription: its settings, its actions and its notifications.

use super::super::layout::{Screen, moment, number, or_dash, pager, table, visible};
use super::super::list_file::{self, FileQuery};
use super::super::visit::Visit;
use super::super::{Answered, auth};
use super::{ROWS, Subscription, ask, found, last_answer, of, path, seconds, state};
use crate::operations::notifications::{self, Pending, Taken};
use crate::operations::subscriptions::{SubscriptionState, UNANSWERED};
use crate::webhook::payload;
use axum::extract::{Path, Query};
use maud::{Markup, Render, html};
use serde::Deserialize;
use uuid::Uuid;

/// The query parameters.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::http::web) struct Asked {
    /// Which notifications are listed: the first entry of [`SHOWN`] by default.
    show: String,
    /// The last position of the previous page.
    before: Option<String>,
    /// The action that was just performed, and the number of notifications it concerned.
    done: String,
    many: Option<u64>,
}

/// The lists of notifications: the query parameter, and its label.
const SHOWN: [(&str, &str); 4] =
    [("", "Not accepted yet"), ("pending", "Pending"), ("given_up", "Given up"), ("taken", "Accepted")];

/// The notifications of one page, and the position before which there may be more.
enum NotificationPage {
    Pending(Vec<Pending>, Option<i64>),
    Taken(Vec<Taken>, Option<i64>),
}

pub(in crate::http::web) async fn show(
    visit: Visit,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
    Query(file): Query<FileQuery>,
) -> Answered {
    let limit = file.limit(ROWS);
    let before = asked.before.as_deref().map(str::parse::<i64>).transpose();
    let known = SHOWN.iter().any(|(name, _)| *name == asked.show);
    let (Ok(before), true) = (before, known) else { return Ok(auth::nothing_here().await) };
    let one = found(&visit, &id).await?;
    let (id, show, before) = (one.id, asked.show.clone(), before.unwrap_or(i64::MAX));
    let read = ask(&visit, move |database| {
        let given_up = match show.as_str() {
            "taken" => {
                let (taken, onward) = notifications::taken(database, id, before, limit)?;
                return Ok(NotificationPage::Taken(taken, onward));
            }
            "pending" => Some(false),
            "given_up" => Some(true),
            _ => None,
        };
        let found = notifications::pending(database, id, before, given_up, limit)?;
        let onward = found.last().filter(|_| found.len() == limit).map(|last| last.position);
        Ok(NotificationPage::Pending(found, onward))
    });
    let (found, to) = (read.await?, &visit);
    match (file.format, found) {
        (Some(format), NotificationPage::Pending(all, onward)) => {
            let columns = "event,type,state,tries,due_at,given_up_at,last_status,last_error";
            Ok(list_file::send(to, format, "notifications", columns, all, onward.is_some()))
        }
        (Some(format), NotificationPage::Taken(all, onward)) => {
            let columns = "event,type,tries,last_at";
            Ok(list_file::send(to, format, "notifications", columns, all, onward.is_some()))
        }
        (None, found) => Ok(visit.page_of("Subscription", Screen::Subscriptions, &main(&one, &asked, &found))),
    }
}

fn main(one: &Subscription, asked: &Asked, found: &NotificationPage) -> Markup {
    let (NotificationPage::Pending(_, onward) | NotificationPage::Taken(_, onward)) = found;
    html! {
        @if let Some(done) = done(asked) { p .verdict .good role="status" { (done) } }
        (settings(one))
        h2 { "Actions" }
        (actions(one))
        h2 { "Notifications" }
        nav .tabs aria-label="Notifications by state" {
            ul {
                @for (name, words) in SHOWN {
                    li { a href=(address(one.id, name, None)) aria-current=[(asked.show == name).then_some("true")] { (words) } }
                }
            }
        }
        @match found {
            NotificationPage::Pending(found, _) => { (pending(one.id, found)) }
            NotificationPage::Taken(found, onward) => { (taken(one.id, found, *onward)) }
        }
        (list_file::links(&address(one.id, &asked.show, asked.before.as_deref().and_then(|before| before.parse().ok()))))
        @if onward.is_some() { (pager(&address(one.id, &asked.show, *onward), "Older")) }
    }
}

/// The URL of one page of notifications.
fn address(id: Uuid, show: &str, before: Option<i64>) -> String {
    let before = before.map(|position| format!("&before={position}")).unwrap_or_default();
    format!("{}?show={show}{before}", path(id))
}

/// The performed action in words. Anybody may have written the URL, so its text is not shown.
fn done(asked: &Asked) -> Option<String> {
    let many = asked.many.unwrap_or_default();
    Some(match asked.done.as_str() {
        "tested" => "A test notification is being sent. Reload this page for its result, which is under Accepted or under Pending.".to_owned(),
        "paused" => "It gets nothing now. Its notifications are kept.".to_owned(),
        "resumed" => "It gets notifications again, beginning with those that were kept.".to_owned(),
        "unverified" => format!("Nothing was done: {UNANSWERED}."),
        "unchanged" => "Nothing was done: its state has changed meanwhile.".to_owned(),
        "deleting" => {
            "A part of its notifications is deleted, and it is disabled. Delete it once more to continue.".to_owned()
        }
        "renewed" => "It has another secret. The old one also signs for a day.".to_owned(),
        "again" if many == 1 => "1 notification is due again.".to_owned(),
        "again" => format!("{} notifications are due again.", number(many)),
        "some-again" => {
            format!(
                "{} notifications are due again, and there are more: send all of them again once more.",
                number(many)
            )
        }
        _ => return None,
    })
}

fn settings(one: &Subscription) -> Markup {
    let progress = &one.progress;
    html! {
        dl {
            dt { "Id" } dd { code { (one.id) } }
            dt { "Owner" } dd { (one.owner) }
            @if !one.description.is_empty() { dt { "Description" } dd { bdi { (visible(&one.description)) } } }
            dt { "Mail" } dd { (of(one)) }
            dt { "Types" } dd { @if one.types.is_empty() { "all" } @else { (one.types.join(", ")) } }
            dt { "Callback" } dd { code { (one.callback_url) } }
            dt { "State" } dd { (state(one)) }
            dt { "Last answer" } dd { (last_answer(one)) @if progress.failures > 1 { ", " (number(progress.failures.into())) " times in a row" } }
            dt { "Pending" } dd { (number(progress.pending)) @if let Some(behind) = progress.behind_s { ", the oldest of them for " (seconds(behind)) } }
            dt { "Given up" } dd { (number(progress.given_up)) }
            dt { "Detail" } dd { (one.detail) }
            dt { "Requests" } dd { @if one.in_order { "one after the other, in order" } @else { (one.max_in_flight) " at once" } }
            dt { "Secret" } dd { "number " (one.secret_generation) @if let Some(at) = one.secret_rotated_at { ", since " (moment(at)) } }
            dt { "Created" } dd { (moment(one.created_at)) }
            @if let Some(at) = one.expires_at { dt { "Expires" } dd { (moment(at)) } }
        }
    }
}

fn actions(one: &Subscription) -> Markup {
    let path = path(one.id);
    let button = |action: &str, words: &str| {
        html! { form method="post" action={ (path) "/" (action) } { button { (words) } } }
    };
    html! {
        div .actions {
            @match one.state {
                SubscriptionState::Active => { (button("test", "Send a test")) (button("pause", "Pause")) }
                SubscriptionState::Paused | SubscriptionState::Disabled => { (button("resume", "Resume")) }
                SubscriptionState::Unverified => {}
            }
            (button("secret", "Show the secret"))
            (button("new-secret", "Replace the secret"))
            a .button .danger href={ (path) "/delete" } { "Delete …" }
        }
        @if one.state == SubscriptionState::Unverified { p .hint { "Its receiver has not answered the verification request yet. It gets nothing until then." } }
        @if one.progress.given_up > 0 && one.state != SubscriptionState::Unverified {
            form .search method="post" action={ (path) "/recover" } {
                label .short for="since" {
                    "Given up since"
                    input #since name="since" value="1d" autocapitalize="none" spellcheck="false" aria-describedby="since-hint";
                }
                button { "Send all of them again" }
                p .hint #since-hint { "2d or 90m (ago), 2026-11-20, or 2026-11-20T03:00:00Z. They have the same webhook-id as before." }
            }
        }
    }
}

fn pending(subscription: Uuid, found: &[Pending]) -> Markup {
    let columns = [
        ("Event", ""),
        ("Type", ""),
        ("State", ""),
        ("Tries", "n"),
        ("Due", "t"),
        ("Last answer", ""),
        ("Send again", ""),
    ];
    let rows = found.iter().map(|one| {
        [
            event_link(subscription, one.event),
            one.r#type.render(),
            notification_state(one),
            one.tries.render(),
            or_dash(one.due_at.map(moment)),
            html! { bdi { (one.last_error.as_deref().unwrap_or("–")) } },
            again(subscription, one.event),
        ]
    });
    html! {
        @if found.is_empty() {
            p { "There are none." }
        } @else {
            (table("untitled", "Notifications, the newest first", columns, rows))
        }
    }
}

fn taken(subscription: Uuid, found: &[Taken], onward: Option<i64>) -> Markup {
    let columns = [("Event", ""), ("Type", ""), ("Tries", "n"), ("Last try", "t"), ("Send again", "")];
    let rows = found.iter().map(|one| {
        let (event, again) = (event_link(subscription, one.event), again(subscription, one.event));
        [event, one.r#type.render(), one.tries.render(), moment(one.last_at), again]
    });
    html! {
        @if found.is_empty() {
            p { @if onward.is_some() { "No notification of these events was accepted. There are older ones." } @else { "There are none." } }
        } @else {
            (table("untitled", "Accepted notifications, the newest first", columns, rows))
        }
    }
}

fn event_link(subscription: Uuid, event: Uuid) -> Markup {
    let id = payload::id(event);
    html! { a href={ (path(subscription)) "/events/" (id) } { code { (id) } } }
}

/// The state of a notification that the receiver has not accepted.
pub(super) fn notification_state(one: &Pending) -> Markup {
    html! {
        @match one.due_at {
            None => { span .bad { "given up" } @if let Some(at) = one.given_up_at { " " (moment(at)) } }
            Some(_) => { span .wait { "pending" } }
        }
    }
}

/// The button that sends it again.
pub(super) fn again(subscription: Uuid, event: Uuid) -> Markup {
    let id = payload::id(event);
    html! {
        form method="post" action={ (path(subscription)) "/redeliver" } {
            input type="hidden" name="event" value=(id);
            button { "Send again" span .unseen { " " (id) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_very_many_that_are_due_again_it_is_reported_that_there_are_more() {
        let said = |words: &str, many| {
            done(&Asked { done: words.to_owned(), many: Some(many), ..Asked::default() }).unwrap_or_default()
        };
        assert_eq!(said("again", 2), "2 notifications are due again.");
        let some = said("some-again", 40_000);
        assert!(some.ends_with(" notifications are due again, and there are more: send all of them again once more."));
        assert!(some.starts_with("40"), "{some}");
        assert_eq!(done(&Asked { done: "<b>anything</b>".to_owned(), ..Asked::default() }), None);
    }
}
