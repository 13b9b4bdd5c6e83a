//! Operations: the manual operations and their users, the newest first.

use super::layout::{self, Column, Screen, moment, table};
use super::list_file::{self, FileQuery};
use super::{Answered, Page};
use crate::base::hex;
use crate::ledger::Database;
use crate::ledger::message_search::subjects;
use crate::ledger::operations_log::{self, Actor, Logged};
use crate::ledger::web_sessions::WebSession;
use crate::site::Site;
use axum::Extension;
use axum::extract::{Query, State};
use axum::response::IntoResponse;
use maud::{Markup, Render, html};
use serde::Deserialize;
use std::collections::BTreeMap;

/// How many rows one page has.
const ROWS: usize = 50;

/// The user of the web UI as the operations log records it.
pub(super) fn actor<'a>(site: &'a Site, viewer: &'a WebSession) -> Actor<'a> {
    Actor { name: &viewer.name, interface: "web UI", role: Some(viewer.role.as_str()), host: site.host() }
}

#[derive(Debug, Deserialize)]
pub(super) struct PageQuery {
    before: Option<i64>,
}

pub(super) async fn show(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    Query(PageQuery { before }): Query<PageQuery>,
    Query(file): Query<FileQuery>,
) -> Answered {
    let limit = file.limit(ROWS);
    let read = move |database: &mut dyn Database| {
        let rows = operations_log::read(database, before, limit + 1)?;
        let identities: Vec<[u8; 32]> = rows.iter().filter_map(identity).collect();
        Ok((subjects(database, "identity", &identities)?, rows))
    };
    let (subjects, rows) = page.ask(&viewer, read).await?;
    if let Some(format) = file.format {
        let more = rows.len() > limit;
        return Ok(list_file::send((&page, &viewer), format, "operations", FILE, rows, more));
    }
    let main = main(&rows, &subjects, before);
    Ok(layout::page("Operations", Some(Screen::Operations), Some(&viewer), &main).into_response())
}

/// The columns of the list as a file.
const FILE: &str = "created_at,actor,role,interface,host,operation,message_id,user,mailbox,target,outcome";

const COLUMNS: [Column; 5] = [("Time", "t"), ("User", ""), ("Operation", ""), ("Object", ""), ("Outcome", "")];

/// The message of an operation.
fn identity(one: &Logged) -> Option<[u8; 32]> {
    hex::decode(one.identity.as_deref()?)?.try_into().ok()
}

fn main(rows: &[Logged], subjects: &BTreeMap<[u8; 32], String>, before: Option<i64>) -> Markup {
    let later = before.is_some();
    let shown = rows.get(..ROWS).unwrap_or(rows);
    html! {
        p { "What people did here, on the command line and by the API: content that they read, redeliveries, changes of subscriptions, ended logins. Visits of other pages are not recorded." }
        @if shown.is_empty() {
            p { "No " @if later { "older " } "operation is recorded." }
        } @else {
            (table("", "Operations, the newest first", COLUMNS, shown.iter().map(|one| row(one, subjects))))
        }
        @if !shown.is_empty() {
            (list_file::links(&before.map_or_else(|| "/log".to_owned(), |before| format!("/log?before={before}"))))
        }
        @if later { p { a href="/log" { "Newest" } } }
        @if let Some(last) = shown.last().filter(|_| rows.len() > ROWS) {
            p { a rel="next" href=(format!("/log?before={}", last.id)) { "Older" } }
        }
    }
}

fn row(one: &Logged, subjects: &BTreeMap<[u8; 32], String>) -> [Markup; 5] {
    let subject = identity(one).and_then(|identity| subjects.get(&identity));
    let who = html! {
        bdi { (one.actor) }
        span .hint { @if let Some(role) = &one.role { ", " (role) } " by " (one.interface) " on " (one.host) }
    };
    let object = html! {
        @if let Some(message_id) = &one.message_id {
            @match &one.identity {
                Some(identity) => {
                    a href=(format!("/messages/{identity}")) { (layout::message_name(subject.map(String::as_str), message_id, false)) }
                }
                None => { bdi { (message_id) } }
            }
        }
        @if let Some(user) = &one.user { " in " bdi { (one.mailbox.as_deref().unwrap_or("a mailbox")) } " of " bdi { (user) } }
        @if let Some(object) = &one.target { @if one.message_id.is_some() { ", " } bdi { (object) } }
    };
    let outcome = html! { @if one.outcome.is_empty() { span .hint { "begun" } } @else { bdi { (one.outcome) } } };
    [moment(one.created_at), who, one.operation.render(), object, outcome]
}
