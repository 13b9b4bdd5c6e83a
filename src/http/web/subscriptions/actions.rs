//! What is done with a subscription. Each action stands in the operations log before it is done, and where that cannot be written,
//! nothing is done.

use super::super::layout::{self, Screen, moment};
use super::super::operations_log::actor;
use super::super::{Answered, Page, auth};
use super::{Key, Subscription, ask, found, path, shown};
use crate::base::timestamp;
use crate::database::DatabaseError;
use crate::ledger::Database;
use crate::ledger::operations_log::Actor;
use crate::ledger::time_span;
use crate::ledger::web_sessions::WebSession;
use crate::operations::subscriptions::SubscriptionState;
use crate::operations::{notifications, subscriptions};
use crate::webhook::{ROTATION, payload};
use axum::Extension;
use axum::extract::{Form, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect};
use maud::html;
use serde::Deserialize;
use tracing::info;
use uuid::Uuid;

/// A page of ours was asked by somebody, for something to be done.
type Of = (State<Page>, Extension<WebSession>, Path<String>);

/// What was done: as the address of the subscription says it.
struct Done {
    words: &'static str,
    many: Option<u64>,
}

impl Done {
    const fn of(words: &'static str) -> Self {
        Self { words, many: None }
    }

    const fn again(many: u64) -> Self {
        Self { words: "again", many: Some(many) }
    }

    /// Of very many, a part.
    const fn some_again(many: u64) -> Self {
        Self { words: "some-again", many: Some(many) }
    }

    const fn changed(changed: bool, words: &'static str) -> Self {
        Self::of(if changed { words } else { "unchanged" })
    }

    /// Where its receiver has not answered its first question yet, nothing is sent again.
    fn unless_unverified(
        one: &Subscription,
        act: impl FnOnce() -> Result<Self, DatabaseError>,
    ) -> Result<Self, DatabaseError> {
        if one.state == SubscriptionState::Unverified { Ok(Self::of("unverified")) } else { act() }
    }
}

pub(in crate::http::web) async fn test(page: State<Page>, viewer: Extension<WebSession>, id: Path<String>) -> Answered {
    done((page, viewer, id), |database, by, one| {
        let is_active = one.state == SubscriptionState::Active;
        if is_active {
            notifications::test(database, by, one.id)?;
        }
        Ok(Done::changed(is_active, "tested"))
    })
    .await
}

pub(in crate::http::web) async fn pause(
    page: State<Page>,
    viewer: Extension<WebSession>,
    id: Path<String>,
) -> Answered {
    let pause = |database: &mut dyn Database, by: Actor<'_>, one: &Subscription| {
        Ok(Done::changed(subscriptions::pause(database, by, one.id)?, "paused"))
    };
    done((page, viewer, id), pause).await
}

pub(in crate::http::web) async fn resume(
    page: State<Page>,
    viewer: Extension<WebSession>,
    id: Path<String>,
) -> Answered {
    let resume = |database: &mut dyn Database, by: Actor<'_>, one: &Subscription| {
        Ok(Done::changed(subscriptions::resume(database, by, one.id)?, "resumed"))
    };
    done((page, viewer, id), resume).await
}

pub(in crate::http::web) async fn new_secret(
    page: State<Page>,
    viewer: Extension<WebSession>,
    id: Path<String>,
) -> Answered {
    let renew = |database: &mut dyn Database, by: Actor<'_>, one: &Subscription| {
        Ok(Done::changed(subscriptions::new_secret(database, by, one.id)?, "renewed"))
    };
    done((page, viewer, id), renew).await
}

#[derive(Deserialize)]
pub(in crate::http::web) struct Which {
    /// `evt_…`
    event: String,
}

/// One notification, once more.
pub(in crate::http::web) async fn redeliver(
    page: State<Page>,
    viewer: Extension<WebSession>,
    id: Path<String>,
    Form(Which { event }): Form<Which>,
) -> Answered {
    let Some(event) = payload::read_id(&event) else { return Ok(auth::nothing_here().await) };
    done((page, viewer, id), move |database, by, one| {
        Done::unless_unverified(one, || {
            let Some(due) = notifications::event_of(database, one, event)? else { return Ok(Done::again(0)) };
            notifications::tell_one(database, by, one.id, (event, due.position))?;
            Ok(Done::again(1))
        })
    })
    .await
}

#[derive(Deserialize)]
pub(in crate::http::web) struct Since {
    since: String,
}

/// All that were given up since then, once more.
pub(in crate::http::web) async fn recover(
    page: State<Page>,
    viewer: Extension<WebSession>,
    id: Path<String>,
    Form(Since { since }): Form<Since>,
) -> Answered {
    let since = match timestamp::since(since.trim()) {
        Ok(since) => since,
        Err(problem) => {
            let told = html! { p .bad { "Given up since: " (problem) "." } p { a href=(path_of(&id)) { "Back" } } };
            let page = layout::page("Nothing was done", Some(Screen::Subscriptions), Some(&viewer), &told);
            return Ok((StatusCode::UNPROCESSABLE_ENTITY, page).into_response());
        }
    };
    done((page, viewer, id), move |database, by, one| {
        Done::unless_unverified(one, || {
            let many = notifications::redeliver(database, by, Some(one.id), Some(since), Some(notifications::soon()))?;
            let done = if many.next.is_none() { Done::again } else { Done::some_again };
            Ok(done(many.notifications))
        })
    })
    .await
}

/// The secret, this once: nothing of it is in the address, nor kept by the browser.
pub(in crate::http::web) async fn secret(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    Path(id): Path<String>,
) -> Answered {
    let one = found(&page, &viewer, &id).await?;
    let missing = match &page.settings.telling.key {
        Key::Read(_) => None,
        Key::NotNamed => Some("it is not named in the configuration, so that nobody is told anything"),
        Key::Unreadable(problem) => Some(problem.as_str()),
    };
    if let Some(missing) = missing {
        let told = html! {
            p { "The secret cannot be shown: it is derived from the file " code { "notifications.secret_key_file" } ", and the page cannot read that: " (missing) "." }
            p { a href=(path(one.id)) { "Back" } }
        };
        return Ok(shown("Secret", &viewer, &told));
    }
    let (of, by, shared) = (one.id, viewer.clone(), page.clone());
    let logged = move |database: &mut dyn Database| subscriptions::shows_secret(database, actor(&shared, &by), of);
    ask(&page, &viewer, logged).await?;
    info!(by = viewer.name, subscription = %one.id, "the secret of a subscription is shown");
    let Key::Read(key) = &page.settings.telling.key else { return Ok(auth::nothing_here().await) };
    let until = one.secret_rotated_at.map(|at| at.saturating_add(time_span::microseconds(ROTATION)));
    let told = html! {
        p { "It signs what " a href=(path(one.id)) { (one.owner) } " is told at " code { (one.callback_url) } ":" }
        pre #secret tabindex="0" { (key.secret(one.id, one.secret_generation).expose()) }
        @if let Some(until) = until.filter(|until| *until > timestamp::now()) { p { "The one before it signs beside it until " (moment(until)) "." } }
        p .hint { "Whoever has it can sign for you. That you have looked at it is in the operations log." }
    };
    Ok(shown("Secret", &viewer, &told))
}

/// Where a subscription of this id is shown, if it is one.
fn path_of(id: &str) -> String {
    Uuid::try_parse(id).map_or_else(|_| "/subscriptions".to_owned(), path)
}

async fn done(
    (State(page), Extension(viewer), Path(id)): Of,
    work: impl FnOnce(&mut dyn Database, Actor<'_>, &Subscription) -> Result<Done, DatabaseError> + Send + 'static,
) -> Answered {
    let one = found(&page, &viewer, &id).await?;
    let (of, by, shared) = (one.id, viewer.clone(), page.clone());
    let done = ask(&page, &viewer, move |database| work(database, actor(&shared, &by), &one)).await?;
    let Done { words, many } = done;
    info!(by = viewer.name, subscription = %of, done = words, "a subscription was worked on by the page");
    let many = many.map(|many| format!("&many={many}")).unwrap_or_default();
    Ok(Redirect::to(&format!("{}?done={words}{many}", path(of))).into_response())
}
