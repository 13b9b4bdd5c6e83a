//! Locks: the current holders, and the attempts that wait for them.

use super::layout::{self, Column, Screen, or_dash, table};
use super::list_file::{self, FileQuery};
use super::{Answered, Page};
use crate::base::timestamp::span;
use crate::ledger::web_sessions::WebSession;
use crate::operations::locks::{self, Listing, LockEntry};
use axum::Extension;
use axum::extract::{Query, State};
use axum::response::IntoResponse;
use maud::{Markup, html};
use url::form_urlencoded;

pub(super) async fn show(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    Query(file): Query<FileQuery>,
) -> Answered {
    let site = page.site.clone();
    let listing = page.ask(&viewer, move |database| locks::list(database, site.directory(), None)).await?;
    if let Some(format) = file.format {
        let columns = "lock,name,waits,age_s,application,host,pid,session";
        return Ok(list_file::send((&page, &viewer), format, "locks", columns, listing.entries, false));
    }
    Ok(layout::page("Locks", Some(Screen::Locks), Some(&viewer), &main(&listing)).into_response())
}

const COLUMNS: [Column; 6] =
    [("Lock of", ""), ("State", ""), ("For", "n"), ("Program", ""), ("Host", ""), ("Process", "n")];

fn main(listing: &Listing) -> Markup {
    html! {
        p #live { span data-said role="status" { "A delivery holds the lock of its message. " } a href="/locks" { "Refresh" } }
        div data-refresh="2" {
            @if listing.entries.is_empty() {
                p { "No lock is held at this moment." }
            } @else {
                (table("", "Held locks, and the processes that wait for them", COLUMNS, listing.entries.iter().map(row)))
            }
        }
        (list_file::links("/locks"))
    }
}

fn row(entry: &LockEntry) -> [Markup; 6] {
    let name = html! {
        @match &entry.name {
            Some(id) => {
                @let query: String = form_urlencoded::byte_serialize(format!("<{}>", id.trim_matches(['<', '>'])).as_bytes()).collect();
                a href=(format!("/?q={query}")) { (id) }
            }
            None => { code { (entry.lock) } }
        }
    };
    let (class, state) = if entry.waits { ("wait", "waits") } else { ("good", "holds") };
    [
        name,
        html! { span class=(class) { (state) } },
        or_dash(entry.age.map(span)),
        or_dash(entry.application.as_deref()),
        or_dash(entry.host.as_deref()),
        or_dash(entry.pid),
    ]
}
