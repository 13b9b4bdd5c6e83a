//! Subscriptions: their list, how far behind their notifications are, and actions on them. The screens use the same operations
//! as `subscription` and `notify` on the command line.

pub(super) mod actions;
pub(super) mod notification;
pub(super) mod one;

use super::layout::{self, Column, Screen, number, or_dash, pager, visible};
use super::list_file::{self, FileQuery};
use super::visit::Visit;
use super::{Answered, auth};
use crate::base::timestamp;
use crate::config::{Config, Engine};
use crate::database::{DatabaseError, DatabaseFailure};
use crate::http::blocking_pools::QueryFailure;
use crate::ledger::Database;
use crate::operations::subscriptions::{self, Subscription, SubscriptionState, Those};
use crate::webhook::MasterKey;
use axum::extract::Query;
use axum::response::Response;
use maud::{Markup, Render, html};
use serde::Deserialize;
use std::time::Duration;
use uuid::Uuid;

/// How many rows a page has.
const ROWS: usize = 50;

/// The settings of notifications that this process needs.
#[derive(Clone, Debug, Default)]
pub(super) struct NotificationSettings {
    /// The master key that secrets are derived from, or why it cannot be read; `None` if it is not named.
    key: Option<Result<Box<MasterKey>, String>>,
    /// The URL of the API for other machines: notifications contain the URL of their message.
    api: Option<String>,
}

impl NotificationSettings {
    /// The settings of a configuration. If the key cannot be read, everything but the secrets can be shown.
    pub(super) fn of(config: &Config) -> Self {
        let key = MasterKey::configured(&config.notifications).transpose();
        Self { key: key.map(|key| key.map(Box::new)), api: config.web.public_api() }
    }
}

/// The last row of the previous page, and the action that was just performed.
#[derive(Deserialize)]
pub(super) struct After {
    after: Option<String>,
    done: Option<String>,
}

pub(super) async fn list(
    visit: Visit,
    Query(After { after, done }): Query<After>,
    Query(file): Query<FileQuery>,
) -> Answered {
    if visit.page.site.config().is_none() {
        let content = html! {
            p { "What is delivered into a directory (" code { "--embedded" } ") causes no notifications: subscriptions need a database server." }
        };
        return Ok(visit.screen(Screen::Subscriptions, &content));
    }
    let Ok(after) = after.as_deref().map(Uuid::try_parse).transpose() else { return Ok(auth::nothing_here().await) };
    let limit = file.limit(ROWS);
    let find = move |database: &mut dyn Database| {
        let those = Those { after, ..Those::default() };
        subscriptions::some(database, &those, limit)
    };
    let found = ask(&visit, find).await?;
    if let Some(format) = file.format {
        let more = found.len() == limit;
        return Ok(list_file::send(&visit, format, "subscriptions", FILE, found, more));
    }
    let main = html! {
        @if done.as_deref() == Some("deleted") { p .verdict .good role="status" { "The subscription is deleted." } }
        (table(&found, after))
    };
    Ok(visit.screen(Screen::Subscriptions, &main))
}

/// Returns the result of `work` on the ledger, or the error page.
async fn ask<T: Send + 'static>(
    visit: &Visit,
    work: impl FnOnce(&mut dyn Database) -> Result<T, DatabaseError> + Send + 'static,
) -> Answered<T> {
    visit.page.blocking.query(work).await.map_err(|problem| unanswered(visit, &problem))
}

/// The subscription with this id from a path.
async fn found(visit: &Visit, id: &str) -> Answered<Subscription> {
    let id = Uuid::try_parse(id).ok().filter(|_| visit.page.site.config().is_some());
    let Some(id) = id else { return Err(auth::nothing_here().await) };
    let found = ask(visit, move |database| subscriptions::read(database, Some(id))).await?;
    match found.into_iter().next() {
        Some(one) => Ok(one),
        None => Err(auth::nothing_here().await),
    }
}

/// By default the web UI's database account may not read subscriptions, since a callback URL may contain a password.
fn unanswered(visit: &Visit, problem: &QueryFailure) -> Response {
    let QueryFailure::Database(DatabaseError { failure, .. }) = problem else { return visit.failed(problem) };
    let folder = match visit.page.site.config().map(|config| config.database.engine) {
        Some(Engine::Postgresql) => "postgres",
        _ => "mysql",
    };
    let content = match failure {
        DatabaseFailure::AccessDenied => html! {
            p { "The web UI's database role lacks the rights for this." }
            p { "An administrator of the database grants them with " code { "sql/" (folder) "/grants-api.sql" } ", to the role " code { "database.roles.web" } "." }
            p .hint { "What the database says: " (problem) }
        },
        DatabaseFailure::Schema => html! {
            p { "The tables are those of an older release. " code { "maildrop_command migrate" } " brings them up to date." }
        },
        _ => return visit.failed(problem),
    };
    visit.screen(Screen::Subscriptions, &content)
}

/// The path of one subscription's screen.
fn path(id: Uuid) -> String {
    format!("/subscriptions/{id}")
}

/// The columns of the list as a file.
const FILE: &str =
    "id,owner,description,resource,resource_id,types,callback_url,state,state_reason,pending,given_up,created_at";

const COLUMNS: [Column; 8] = [
    ("Owner", ""),
    ("Mail", ""),
    ("Callback", ""),
    ("State", ""),
    ("Behind", "n"),
    ("Pending", "n"),
    ("Given up", "n"),
    ("Last answer", ""),
];

fn table(all: &[Subscription], after: Option<Uuid>) -> Markup {
    let path = after.map_or_else(|| "/subscriptions".to_owned(), |after| format!("/subscriptions?after={after}"));
    html! {
        @if all.is_empty() {
            p { "There is no subscription." }
        } @else {
            (layout::table("", "Subscriptions, the oldest first", COLUMNS, all.iter().map(row)))
            (list_file::links(&path))
            @if let Some(last) = all.last().filter(|_| all.len() == ROWS) {
                (pager(&format!("/subscriptions?after={}", last.id), "Newer"))
            }
        }
        p .hint { "To add one: " code { "maildrop_command subscription create" } ", or by the REST API." }
    }
}

fn row(one: &Subscription) -> [Markup; 8] {
    let progress = &one.progress;
    let given_up = number(progress.given_up);
    [
        html! { a href=(path(one.id)) { (one.owner) } @if !one.description.is_empty() { " " bdi { (visible(&one.description)) } } },
        of(one).render(),
        html! { code { (one.callback_url) } },
        state(one),
        or_dash(progress.behind_s.map(seconds)),
        number(progress.pending).render(),
        html! { @if progress.given_up > 0 { span .bad { (given_up) } } @else { (given_up) } },
        last_answer(one),
    ]
}

/// The resource of a subscription, in words.
fn of(one: &Subscription) -> String {
    match one.resource.as_str() {
        "all" => "all mail".to_owned(),
        resource => format!("{resource} {}", one.resource_id),
    }
}

/// Its state, the reason, and since when its receiver has failed.
fn state(one: &Subscription) -> Markup {
    let progress = &one.progress;
    let class = match one.state {
        SubscriptionState::Active if progress.failures == 0 => "good",
        SubscriptionState::Disabled => "bad",
        _ => "wait",
    };
    html! {
        span class=(class) { (one.state) }
        @if let Some(why) = &one.state_reason { ": " bdi { (why) } }
        @if let Some(since) = progress.failing_since.filter(|_| progress.failures > 0) { ", failing since " (layout::moment(since)) }
        @if let Some(rest) = progress.rests_s { ", paused for " (seconds(rest)) }
    }
}

/// The last answer of its receiver.
fn last_answer(one: &Subscription) -> Markup {
    let progress = &one.progress;
    let ago = |span: Option<f64>| span.map(|span| format!("{} ago", seconds(span)));
    html! {
        @match (&progress.last_failure, progress.last_success_ago_s) {
            (Some(why), _) => {
                span .bad { "failed" } @if let Some(ago) = ago(progress.last_failure_ago_s) { " " (ago) } ": " bdi { (why) }
            }
            (None, Some(taken)) => { span .good { "accepted" } " " (seconds(taken)) " ago" }
            (None, None) => { "none yet" }
        }
    }
}

/// A duration for people.
fn seconds(span: f64) -> String {
    timestamp::span(Duration::try_from_secs_f64(span).unwrap_or_default())
}
