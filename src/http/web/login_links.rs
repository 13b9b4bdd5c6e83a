//! Logins: the current sessions, and how to end them.

use super::layout::{self, Column, Screen, moment, table};
use super::list_file::{self, FileQuery};
use super::operations_log::actor;
use super::{Answered, Page};
use crate::ledger::web_sessions::{self, WebSession};
use crate::operations::web_logins;
use axum::Extension;
use axum::extract::{Form, Query, State};
use axum::response::{IntoResponse, Redirect};
use maud::{Render, html};
use serde::Deserialize;
use tracing::info;

const COLUMNS: [Column; 5] = [("Name", ""), ("Role", ""), ("Since", "t"), ("Last request", "t"), ("End", "")];

pub(super) async fn show(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    Query(file): Query<FileQuery>,
) -> Answered {
    let lifetimes = page.settings.lifetimes;
    let sessions = page.ask(&viewer, move |database| web_sessions::sessions(database, lifetimes)).await?;
    if let Some(format) = file.format {
        let columns = "name,role,created_at,last_seen_at,id";
        return Ok(list_file::send((&page, &viewer), format, "logins", columns, sessions, false));
    }
    let rows = sessions.iter().map(|one| {
        let end = html! {
            form method="post" action="/logins/end" {
                input type="hidden" name="id" value=(one.id);
                button { "Log " @if one.id == viewer.id { "yourself" } @else { (one.name) } " out" span .unseen { ", login " (one.id) } }
            }
        };
        [one.name.render(), one.role.as_str().render(), moment(one.created_at), moment(one.last_seen_at), end]
    });
    let command = web_logins::command_for_link(&page.site, &page.settings.origin, "NAME", "ROLE");
    let main = html! {
        (table("", "Current logins, the newest first", COLUMNS, rows))
        (list_file::links("/logins"))
        p .hint { "To let others in: " code { (command) } "." }
    };
    Ok(layout::page("Logins", Some(Screen::Logins), Some(&viewer), &main).into_response())
}

#[derive(Deserialize)]
pub(super) struct Which {
    id: String,
}

pub(super) async fn end(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    Form(Which { id }): Form<Which>,
) -> Answered {
    info!(by = viewer.name, login = id, "a login to the page is ended");
    let (by, shared) = (viewer.clone(), page.clone());
    page.ask(&viewer, move |database| web_logins::end(database, actor(&shared.site, &by), &id)).await?;
    Ok(Redirect::to("/logins").into_response())
}
