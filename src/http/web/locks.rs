//! Locks: the current holders, and the attempts that wait for them.

use super::Answered;
use super::layout::{self, Column, Screen, or_dash, table};
use super::list_file::{self, FileQuery};
use super::visit::Visit;
use crate::base::timestamp::span;
use crate::ledger::Database;
use crate::ledger::message_search::subjects;
use crate::operations::locks::{self, Listing, LockEntry};
use crate::site::Site;
use axum::extract::Query;
use maud::{Markup, html};
use std::collections::BTreeMap;
use url::form_urlencoded;

pub(super) async fn show(visit: Visit, Query(file): Query<FileQuery>) -> Answered {
    let site = visit.page.site.clone();
    let read = move |database: &mut dyn Database| {
        let listing = locks::list(database, site.directory(), None)?;
        let digests: Vec<[u8; 32]> = listing.entries.iter().filter_map(|entry| digest(&site, entry)).collect();
        Ok((subjects(database, "lock_digest", &digests)?, listing))
    };
    let (subjects, listing) = visit.ask(read).await?;
    if let Some(format) = file.format {
        let columns = "lock,name,waits,age_s,application,host,pid,session";
        return Ok(list_file::send(&visit, format, "locks", columns, listing.entries, false));
    }
    Ok(visit.screen(Screen::Locks, &main(&visit.page.site, &listing, &subjects)))
}

const COLUMNS: [Column; 6] =
    [("Lock of", ""), ("State", ""), ("For", "n"), ("Program", ""), ("Host", ""), ("Process", "n")];

/// The lock of a Message-ID.
fn digest(site: &Site, entry: &LockEntry) -> Option<[u8; 32]> {
    Some(*site.lock_of_message_id(entry.name.as_ref()?.as_bytes()).digest())
}

fn main(site: &Site, listing: &Listing, subjects: &BTreeMap<[u8; 32], String>) -> Markup {
    let subject = |entry: &LockEntry| subjects.get(&digest(site, entry)?);
    html! {
        p #live { span data-said role="status" { "A delivery holds the lock of its message. " } a href="/locks" { "Refresh" } }
        div data-refresh="2" {
            @if listing.entries.is_empty() {
                p { "No lock is held at this moment." }
            } @else {
                (table("", "Held locks, and the processes that wait for them", COLUMNS, listing.entries.iter().map(|entry| row(entry, subject(entry)))))
            }
        }
        (list_file::links("/locks"))
    }
}

fn row(entry: &LockEntry, subject: Option<&String>) -> [Markup; 6] {
    let name = html! {
        @match &entry.name {
            Some(id) => {
                @let query: String = form_urlencoded::byte_serialize(format!("<{}>", id.trim_matches(['<', '>'])).as_bytes()).collect();
                a href=(format!("/?q={query}")) { (layout::message_name(subject.map(String::as_str), id, false)) }
            }
            None => { code { (entry.lock) } }
        }
    };
    let (class, state) = if entry.waits { ("wait", "waits") } else { ("good", "holds") };
    [
        name,
        html! { span class=(class) { (state) } },
        or_dash(entry.process.held_for.map(span)),
        or_dash(entry.application.as_deref()),
        or_dash(entry.process.host.as_deref()),
        or_dash(entry.process.pid),
    ]
}
