//! Logins: who is logged in now, and ending that.

use super::layout::{self, Screen, moment};
use super::operations_log::actor;
use super::{Answered, Page};
use crate::ledger::web_sessions::{self, WebSession};
use crate::operations::web_logins;
use axum::Extension;
use axum::extract::{Form, State};
use axum::response::{IntoResponse, Redirect};
use maud::html;
use serde::Deserialize;
use tracing::info;

pub(super) async fn show(State(page): State<Page>, Extension(viewer): Extension<WebSession>) -> Answered {
    let lifetimes = page.settings.lifetimes;
    let sessions = page.ask(&viewer, move |database| web_sessions::sessions(database, lifetimes)).await?;
    let main = html! {
        table .rows {
            caption { "Who is logged in, the newest first. Times are UTC." }
            thead { tr { th scope="col" { "Name" } th scope="col" { "Role" } th scope="col" { "Since" } th scope="col" { "Last seen" } th scope="col" { "End it" } } }
            tbody {
                @for one in &sessions {
                    tr {
                        td data-label="Name" { (one.name) }
                        td data-label="Role" { (one.role.as_str()) }
                        td .t data-label="Since" { (moment(one.began_at)) }
                        td .t data-label="Last seen" { (moment(one.seen_at)) }
                        td data-label="End it" {
                            form method="post" action="/logins/end" {
                                input type="hidden" name="id" value=(one.id);
                                button { "Log " @if one.id == viewer.id { "yourself" } @else { (one.name) } " out" span .unseen { ", login " (one.id) } }
                            }
                        }
                    }
                }
            }
        }
        p .hint { "Others are let in by " code { "maildrop_command web login --name NAME --role ROLE" } "." }
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
    page.ask(&viewer, move |database| web_logins::end(database, actor(&shared, &by), &id)).await?;
    Ok(Redirect::to("/logins").into_response())
}
