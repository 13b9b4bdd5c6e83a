//! The actions on a subscription. Each is recorded in the operations log first, and is not performed if that fails.

use super::super::layout::{Screen, moment, number, visible};
use super::super::visit::Visit;
use super::super::{Answered, auth};
use super::{Subscription, ask, found, of, path};
use crate::base::timestamp;
use crate::database::DatabaseError;
use crate::ledger::Database;
use crate::ledger::operations_log::Actor;
use crate::ledger::time_span;
use crate::operations::subscriptions::SubscriptionState;
use crate::operations::{notifications, subscriptions};
use crate::webhook::{ROTATION, payload};
use axum::extract::{Form, Path};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use serde::Deserialize;
use tracing::info;
use uuid::Uuid;

/// The name of the performed action, for the redirect URL, and how many notifications it concerned.
type Done = (&'static str, Option<u64>);

/// The action that a form requests.
enum Action {
    Test,
    Pause,
    Resume,
    NewSecret,
    /// Sends one notification again.
    Redeliver(Uuid),
    /// Sends all notifications again that were given up since this moment.
    Recover(i64),
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(in crate::http::web) struct Fields {
    /// `evt_…`
    event: String,
    since: String,
}

pub(in crate::http::web) async fn act(
    visit: Visit,
    Path((id, action)): Path<(String, String)>,
    Form(Fields { event, since }): Form<Fields>,
) -> Answered {
    let action = match action.as_str() {
        "test" => Some(Action::Test),
        "pause" => Some(Action::Pause),
        "resume" => Some(Action::Resume),
        "new-secret" => Some(Action::NewSecret),
        "redeliver" => payload::read_id(&event).map(Action::Redeliver),
        "recover" => match timestamp::since(since.trim()) {
            Ok(since) => Some(Action::Recover(since)),
            Err(problem) => return Ok(not_done(&id, &visit, &problem.to_string())),
        },
        _ => None,
    };
    let Some(action) = action else { return Ok(auth::nothing_here().await) };
    let one = found(&visit, &id).await?;
    let (of, by) = (one.id, visit.clone());
    let done = ask(&visit, move |database| action.perform(database, by.actor(), &one));
    let (words, many) = done.await?;
    info!(by = visit.viewer.name, subscription = %of, done = words, "a subscription was worked on by the page");
    let many = many.map(|many| format!("&many={many}")).unwrap_or_default();
    Ok(Redirect::to(&format!("{}?done={words}{many}", path(of))).into_response())
}

/// The error page for an unreadable moment.
fn not_done(id: &str, visit: &Visit, problem: &str) -> Response {
    let back = Uuid::try_parse(id).map_or_else(|_| "/subscriptions".to_owned(), path);
    let main = html! { p .bad { "Given up since: " (problem) "." } p { a href=(back) { "Back" } } };
    let page = visit.page_of("Nothing was done", Screen::Subscriptions, &main);
    (StatusCode::UNPROCESSABLE_ENTITY, page).into_response()
}

impl Action {
    fn perform(self, database: &mut dyn Database, by: Actor<'_>, one: &Subscription) -> Result<Done, DatabaseError> {
        let (changed, words) = match self {
            Self::Test => {
                let is_active = one.state == SubscriptionState::Active;
                if is_active {
                    notifications::test(database, by, one.id)?;
                }
                (is_active, "tested")
            }
            Self::Pause => (subscriptions::pause(database, by, one.id)?, "paused"),
            Self::Resume => (subscriptions::resume(database, by, one.id)?, "resumed"),
            Self::NewSecret => (subscriptions::new_secret(database, by, one.id)?, "renewed"),
            // The receiver has not answered the verification request yet.
            Self::Redeliver(_) | Self::Recover(_) if one.state == SubscriptionState::Unverified => (true, "unverified"),
            Self::Redeliver(event) => {
                let due = notifications::event_of(database, one, event)?;
                if let Some(due) = &due {
                    notifications::enqueue_event(database, by, one.id, (event, due.position))?;
                }
                return Ok(("again", Some(due.is_some().into())));
            }
            Self::Recover(since) => {
                let soon = Some(notifications::soon());
                let many = notifications::redeliver(database, by, Some(one.id), Some(since), soon)?;
                let words = if many.next.is_none() { "again" } else { "some-again" };
                return Ok((words, Some(many.notifications)));
            }
        };
        Ok((if changed { words } else { "unchanged" }, None))
    }
}

/// Asks whether the subscription is to be deleted, and says what is lost.
pub(in crate::http::web) async fn confirm_delete(visit: Visit, Path(id): Path<String>) -> Answered {
    let one = found(&visit, &id).await?;
    let content = html! {
        p { "This subscription of " b { (one.owner) } " notifies " code { (one.callback_url) } " of " (of(&one)) "." }
        @if !one.description.is_empty() { p { "Its description: " bdi { (visible(&one.description)) } } }
        p { "Deleting it cannot be undone:" }
        ul {
            li { "Its receiver gets no notification any more." }
            li { "Notifications that are not accepted yet are lost: " (number(one.progress.pending)) " pending, " (number(one.progress.given_up)) " given up." }
            li { "Its secret is lost. A new subscription has another one." }
        }
        @if one.state == SubscriptionState::Active { p { "To stop the notifications and keep them, pause it instead." } }
        form .actions method="post" action={ (path(one.id)) "/delete" } {
            button .danger { "Delete this subscription" }
            a href=(path(one.id)) { "Keep it" }
        }
    };
    Ok(visit.page_of("Delete the subscription?", Screen::Subscriptions, &content))
}

/// Deletes the subscription. One with very many notifications needs several requests.
pub(in crate::http::web) async fn delete(visit: Visit, Path(id): Path<String>) -> Answered {
    let one = found(&visit, &id).await?;
    let (of, by) = (one.id, visit.clone());
    let delete = move |database: &mut dyn Database| {
        subscriptions::delete(database, by.actor(), &one, Some(notifications::soon()))
    };
    let is_gone = ask(&visit, delete).await?;
    info!(by = visit.viewer.name, subscription = %of, is_gone, "a subscription is deleted by the page");
    let next = if is_gone { "/subscriptions?done=deleted".to_owned() } else { format!("{}?done=deleting", path(of)) };
    Ok(Redirect::to(&next).into_response())
}

/// Shows the secret once: the URL does not contain it, and the browser does not cache it.
pub(in crate::http::web) async fn secret(visit: Visit, Path(id): Path<String>) -> Answered {
    let one = found(&visit, &id).await?;
    let key = match &visit.page.settings.notifications.key {
        Some(Ok(key)) => Ok(key),
        Some(Err(problem)) => Err(problem.as_str()),
        None => Err("it is not named in the configuration, so no notification is sent"),
    };
    let key = match key {
        Ok(key) => key,
        Err(missing) => {
            let content = html! {
                p { "The secret cannot be shown: it is derived from the file " code { "notifications.secret_key_file" } ", and the web UI cannot read that: " (missing) "." }
                p { a href=(path(one.id)) { "Back" } }
            };
            return Ok(visit.page_of("Secret", Screen::Subscriptions, &content));
        }
    };
    let (of, by) = (one.id, visit.clone());
    let logged = move |database: &mut dyn Database| subscriptions::shows_secret(database, by.actor(), of);
    ask(&visit, logged).await?;
    info!(by = visit.viewer.name, subscription = %one.id, "the secret of a subscription is shown");
    let until = one.secret_rotated_at.map(|at| at.saturating_add(time_span::microseconds(ROTATION)));
    let content = html! {
        p { "It signs what " a href=(path(one.id)) { (one.owner) } " receives at " code { (one.callback_url) } ":" }
        pre #secret tabindex="0" { (key.secret(one.id, one.secret_generation).expose()) }
        @if let Some(until) = until.filter(|until| *until > timestamp::now()) { p { "The previous secret signs beside it until " (moment(until)) "." } }
        p .hint { "Anybody who has it can sign for you. The operations log records that you have seen it." }
    };
    Ok(visit.page_of("Secret", Screen::Subscriptions, &content))
}
