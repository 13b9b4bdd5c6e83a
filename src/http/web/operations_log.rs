//! Operations: the manual operations and their users, the newest first.

use super::Answered;
use super::layout::{self, Column, Screen, moment, table};
use super::list_file::{self, FileQuery};
use super::visit::Visit;
use crate::base::hex;
use crate::ledger::Database;
use crate::ledger::message_search::subjects;
use crate::ledger::operations_log::{self, Logged};
use axum::extract::Query;
use maud::{Markup, Render, html};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;
use url::form_urlencoded;

/// How many rows one page has.
const ROWS: usize = 50;
/// How long a search may read the log: no index has its texts.
const PATIENCE: Duration = Duration::from_secs(25);

#[derive(Debug, Deserialize)]
pub(super) struct LogQuery {
    before: Option<i64>,
    #[serde(default)]
    q: String,
}

impl LogQuery {
    /// The URL of the same search; with `before`, of its rows before that one.
    fn path(&self, before: Option<i64>) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs([("q", self.q.trim())].into_iter().filter(|(_, text)| !text.is_empty()));
        query.extend_pairs(before.map(|before| ("before", before.to_string())));
        format!("/log?{}", query.finish()).trim_end_matches('?').to_owned()
    }
}

pub(super) async fn show(visit: Visit, Query(asked): Query<LogQuery>, Query(file): Query<FileQuery>) -> Answered {
    let (limit, before, part) = (file.limit(ROWS), asked.before, asked.q.clone());
    let read = move |database: &mut dyn Database| {
        let rows = operations_log::read(database, before, &part, limit + 1)?;
        let identities: Vec<[u8; 32]> = rows.iter().filter_map(identity).collect();
        Ok((subjects(database, "identity", &identities)?, rows))
    };
    let (subjects, rows) = visit.ask_long(PATIENCE, read).await?;
    if let Some(format) = file.format {
        let more = rows.len() > limit;
        return Ok(list_file::send(&visit, format, "operations", FILE, rows, more));
    }
    let main = main(&rows, &subjects, &asked);
    Ok(visit.screen(Screen::Operations, &main))
}

/// The columns of the list as a file.
const FILE: &str = "created_at,actor,role,interface,host,operation,message_id,user,mailbox,target,outcome";

const COLUMNS: [Column; 5] = [("Time", "t"), ("User", ""), ("Operation", ""), ("Object", ""), ("Outcome", "")];

/// The message of an operation.
fn identity(one: &Logged) -> Option<[u8; 32]> {
    hex::decode(one.identity.as_deref()?)?.try_into().ok()
}

fn main(rows: &[Logged], subjects: &BTreeMap<[u8; 32], String>, asked: &LogQuery) -> Markup {
    let later = asked.before.is_some();
    let shown = rows.get(..ROWS).unwrap_or(rows);
    html! {
        p { "What people did here, on the command line and by the API: content that they read, redeliveries, changes of subscriptions, ended logins. Visits of other pages are not recorded." }
        form .search role="search" method="get" action="/log" {
            label .wide for="q" {
                "Search: a part of a user's name, a Message-ID, a mailbox's user or another object"
                input #q name="q" type="search" value=(asked.q) autocapitalize="none" spellcheck="false";
            }
            button .go { "Search" }
        }
        @if shown.is_empty() {
            p { "No " @if later { "older " } "operation " @if asked.q.trim().is_empty() { "is recorded." } @else { "matches." } }
        } @else {
            (table("", "Operations, the newest first", COLUMNS, shown.iter().map(|one| row(one, subjects))))
        }
        @if !shown.is_empty() {
            (list_file::links(&asked.path(asked.before)))
        }
        @if later { p { a href=(asked.path(None)) { "Newest" } } }
        @if let Some(last) = shown.last().filter(|_| rows.len() > ROWS) {
            p { a rel="next" href=(asked.path(Some(last.id))) { "Older" } }
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
