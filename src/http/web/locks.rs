//! Locks: who holds one now, and who waits for it.

use super::layout::{self, Screen};
use super::{Answered, Page};
use crate::base::timestamp::span;
use crate::ledger::web_sessions::WebSession;
use crate::operations::locks::{self, Entry, Listing};
use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use maud::{Markup, html};
use url::form_urlencoded;

pub(super) async fn show(State(page): State<Page>, Extension(viewer): Extension<WebSession>) -> Answered {
    let site = page.site.clone();
    let listing = page.ask(&viewer, move |database| locks::list(database, site.directory(), None)).await?;
    Ok(layout::page("Locks", Some(Screen::Locks), Some(&viewer), &main(&listing)).into_response())
}

fn main(listing: &Listing) -> Markup {
    html! {
        p #live { span data-said role="status" { "While a message is delivered, its lock is held. " } a href="/locks" { "Look again" } }
        div data-refresh="2" {
            @if listing.entries.is_empty() {
                p { "No lock is held at this moment." }
            } @else {
                table .rows {
                    caption { "Locks that are held, and who waits for them" }
                    thead { tr { th scope="col" { "Named after" } th scope="col" { "State" } th .n scope="col" { "For" } th scope="col" { "Who" } th scope="col" { "Host" } th .n scope="col" { "Process" } } }
                    tbody { @for entry in &listing.entries { (row(entry)) } }
                }
            }
            @for hidden in &listing.hidden {
                p .hint { "Not shown: " (hidden.what) ". An administrator can have it shown: " code { (hidden.grant) } }
            }
        }
    }
}

fn row(entry: &Entry) -> Markup {
    html! {
        tr {
            td data-label="Named after" {
                @match &entry.name {
                    Some(id) => {
                        @let query: String = form_urlencoded::byte_serialize(format!("<{}>", id.trim_matches(['<', '>'])).as_bytes()).collect();
                        a href=(format!("/?q={query}")) { (id) }
                    }
                    None => { code { (entry.lock) } }
                }
            }
            td data-label="State" class=(if entry.waits { "wait" } else { "good" }) { @if entry.waits { "waits" } @else { "holds" } }
            td .n data-label="For" { (entry.age.map_or_else(|| "–".to_owned(), span)) }
            td data-label="Who" { (entry.application.as_deref().unwrap_or("–")) }
            td data-label="Host" { (entry.host.as_deref().unwrap_or("–")) }
            td .n data-label="Process" { (entry.pid.map_or_else(|| "–".to_owned(), |pid| pid.to_string())) }
        }
    }
}
