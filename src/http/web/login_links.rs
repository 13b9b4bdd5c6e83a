//! Logins: the current sessions, and how to end them.

use super::Answered;
use super::layout::{Column, Screen, moment, table};
use super::list_file::{self, FileQuery};
use super::visit::Visit;
use crate::ledger::web_sessions;
use crate::operations::web_logins;
use axum::extract::{Form, Query};
use axum::response::{IntoResponse, Redirect};
use maud::{Render, html};
use serde::Deserialize;
use tracing::info;

const COLUMNS: [Column; 5] = [("Name", ""), ("Role", ""), ("Since", "t"), ("Last request", "t"), ("End", "")];

pub(super) async fn show(visit: Visit, Query(file): Query<FileQuery>) -> Answered {
    let lifetimes = visit.page.settings.lifetimes;
    let sessions = visit.ask(move |database| web_sessions::sessions(database, lifetimes)).await?;
    if let Some(format) = file.format {
        let columns = "name,role,created_at,last_seen_at,id";
        return Ok(list_file::send(&visit, format, "logins", columns, sessions, false));
    }
    let rows = sessions.iter().map(|one| {
        let end = html! {
            form method="post" action="/logins/end" {
                input type="hidden" name="id" value=(one.id);
                button { "Log " @if one.id == visit.viewer.id { "yourself" } @else { (one.name) } " out" span .unseen { ", login " (one.id) } }
            }
        };
        [one.name.render(), one.role.as_str().render(), moment(one.created_at), moment(one.last_seen_at), end]
    });
    let command = web_logins::command_for_link(&visit.page.site, &visit.page.settings.origin, "NAME", "ROLE");
    let main = html! {
        (table("", "Current logins, the newest first", COLUMNS, rows))
        (list_file::links("/logins"))
        p .hint { "To let others in: " code { (command) } "." }
    };
    Ok(visit.screen(Screen::Logins, &main))
}

#[derive(Deserialize)]
pub(super) struct Which {
    id: String,
}

pub(super) async fn end(visit: Visit, Form(Which { id }): Form<Which>) -> Answered {
    info!(by = visit.viewer.name, login = id, "a login to the page is ended");
    let by = visit.clone();
    visit.ask(move |database| web_logins::end(database, by.actor(), &id)).await?;
    Ok(Redirect::to("/logins").into_response())
}
