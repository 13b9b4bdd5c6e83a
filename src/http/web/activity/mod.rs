//! Activity: the recent attempts, the newest first.

mod figures;
mod form;
mod lists;

pub(super) use figures::waiting_deliveries;
pub(super) use lists::{in_words, tries};

use super::layout::{self, Screen};
use super::list_file::{self, FileQuery};
use super::visit::Visit;
use super::{Answered, Page, auth};
use crate::base::hex;
use crate::base::summary_cache::{Summary, SummaryCache};
use crate::base::timestamp;
use crate::database::DatabaseError;
use crate::ledger::activity::{self, FoundTried, ResultFilter, Wanted};
use crate::ledger::audit_queries::{self, RecordedCopy};
use crate::ledger::message_search::{ListedMessage, MessagePage, read_messages};
use crate::ledger::{Database, time_span};
use crate::lock::LockName;
use crate::operations::activity::{FailuresPage, Figures, STILL_TRIED, TakenAs, figures, search, search_failed};
use crate::operations::search::{self, read_start};
use crate::site::Site;
use axum::Json;
use axum::extract::Query;
use axum::response::{IntoResponse, Redirect};
use form::{FAILED, OWED, SearchForm};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How many rows a page has.
const ROWS: usize = 50;
/// How long a search may take: at most three interpretations are tried, each of which ends after a limit (`ledger::activity`).
const PATIENCE: Duration = Duration::from_secs(25);
/// How long the figures above the list may take to compute, and how long a request waits for them. The list does not depend on
/// them.
const FIGURES_PATIENCE: Duration = Duration::from_mins(1);
const FIGURES_WAIT: Duration = Duration::from_secs(1);
/// How long the figures are cached, at least.
const FIGURES_HOLD: Duration = Duration::from_secs(2);
/// An attempt becomes visible when its journal is committed, which is later than its time stamp, and gets its outcome later
/// still. So each poll reads again what began within this time, in microseconds. An attempt that takes longer is not counted in
/// a list that is filtered by state.
const OVERLAP: i64 = 15_000_000;
/// How many new rows are counted at most.
const MOST_NEW: usize = 500;

/// What the words of this screen mean.
const WORDS: [(&str, &str); 8] = [
    ("delivered", "The copy is in the mailbox."),
    ("deferred", "It is not in the mailbox yet. Postfix keeps the mail and tries it again."),
    (
        "failed before delivery",
        "No mailbox was open, so there was no attempt. Unless it was refused, Postfix tries it again.",
    ),
    ("refused", "It cannot be delivered. The mail returns to its sender, and nothing tries it again."),
    ("not ended", "The attempt is in progress, or it was cut short and not retried yet."),
    (
        "never ended",
        "The attempt was cut short, for example by a crash. A later one has searched for its copy, so none is duplicated.",
    ),
    (
        "owed",
        "The mail is delivered, but its copy is missing in the author's Sent mailbox. The service makes it later.",
    ),
    ("shunted", "The message has crashed two workers. The service keeps it and tries it alone."),
];

pub(super) async fn show(visit: Visit, Query(form): Query<SearchForm>, Query(file): Query<FileQuery>) -> Answered {
    let (wanted, problem) = match form.wanted() {
        Ok(wanted) => (wanted, None),
        Err(problem) => (SearchForm::default().wanted().unwrap_or_default(), Some(problem)),
    };
    let (site, asked, limit) = (visit.page.site.clone(), form.clone(), file.limit(ROWS));
    let is_readable = problem.is_none();
    let find = move |database: &mut dyn Database| match is_readable {
        true => find(&site, database, &asked, &wanted, limit),
        false => Ok(SearchResult::Nothing),
    };
    if let Some(format) = file.format {
        let found = form.ask(&visit, find).await?;
        return Ok(lists::send(&visit, format, &found));
    }
    let (figures, found) = tokio::join!(counted(&visit.page), form.ask(&visit, find));
    let found = found?;
    if let SearchResult::Attempts(found) = &found
        && form.is_a_name_only()
        && let Some(path) = found.only_message()
    {
        return Ok(Redirect::to(&path).into_response());
    }
    let main = html! {
        (figures::above(&figures, &visit.viewer))
        (form::inputs(&form, problem.as_deref()))
        (layout::help(&WORDS))
        section #results tabindex="-1" aria-label="Results" {
            @match &found {
                SearchResult::Nothing => {}
                SearchResult::NoneYet => { (lists::live_line(&form, &[])) (first_run(&visit.page.site)) }
                SearchResult::Owed(owed, more) => { (lists::owed(owed, *more)) (list_file::links(&form.path())) }
                SearchResult::Failed(failed) => { (lists::failed(&form, failed)) (list_file::links(&form.path())) }
                SearchResult::Attempts(found) => {
                    @if !found.failed.failures.is_empty() { (lists::failed(&form, &found.failed)) }
                    @let shows_attempts = form.messages.is_empty() && found.shows_attempts();
                    @if shows_attempts { (lists::tried(&form, &found.found, found.taken_as)) }
                    @if shows_attempts || !found.failed.failures.is_empty() { (list_file::links(&form.path())) }
                    @if let Some(messages) = &found.messages { (lists::messages(&form, messages)) }
                }
            }
        }
    };
    Ok(visit.screen(Screen::Activity, &main))
}

fn find(
    site: &Site,
    database: &mut dyn Database,
    form: &SearchForm,
    wanted: &Wanted,
    limit: usize,
) -> Result<SearchResult, DatabaseError> {
    match form.state.as_str() {
        OWED => return audit_queries::latest_owed(database, limit).map(|(owed, more)| SearchResult::Owed(owed, more)),
        FAILED => {
            let after = form.failures_after();
            return search_failed(site, database, &form.q, wanted, after, limit).map(SearchResult::Failed);
        }
        _ => {}
    }
    let (mut found, taken_as) = search(site, database, &form.q, wanted.clone(), limit)?;
    let has_text = !form.q.trim().is_empty();
    let is_plain = !has_text && form.is_a_name_only();
    if is_plain && found.tried.is_empty() && activity::find(database, &Wanted::default(), 1)?.tried.is_empty() {
        // Nothing was ever delivered. If something has failed, people look for that.
        let failed = search_failed(site, database, "", &Wanted::default(), None, limit)?;
        return Ok(if failed.failures.is_empty() { SearchResult::NoneYet } else { SearchResult::Failed(failed) });
    }
    let mut failed = FailuresPage::default();
    // A search for a name, or for what is deferred or refused, also finds what has no attempt.
    let asks_failed = matches!(wanted.result, Some(ResultFilter::Deferred | ResultFilter::Refused))
        || has_text && wanted.result.is_none();
    if asks_failed && form.before.is_empty() {
        match activity::in_time(search_failed(site, database, &form.q, wanted, None, limit))? {
            Some(matching) => failed = matching,
            // The page says that nothing before this moment was searched completely.
            None => found.looked_back_to = Some(time_span::now(database)?),
        }
    }
    let messages = match taken_as.filter(|_| form.is_a_name_only()) {
        None | Some(TakenAs::MessageId | TakenAs::QueueId) => None,
        Some(_) => list_messages(site, database, form, found.tried.is_empty())?,
    };
    Ok(SearchResult::Attempts(FoundAttempts { found, taken_as, failed, messages }))
}

/// The new rows of a list, as the script gets them.
#[derive(Serialize)]
struct New {
    /// The rows' ids in the HTML.
    rows: Vec<String>,
    /// The start of the next poll, so that old rows are not read again each time.
    after: i64,
}

/// The moment after which a row is new, in microseconds, by the database's clock.
#[derive(Deserialize)]
pub(super) struct After {
    after: i64,
}

/// The rows of a list that began or got their outcome after a moment.
pub(super) async fn new_rows(
    visit: Visit,
    Query(form): Query<SearchForm>,
    Query(After { after }): Query<After>,
) -> Answered {
    let Some(wanted) = form.lives() else { return Ok(auth::nothing_here().await) };
    let wanted = Wanted { since: after.max(wanted.since), ..wanted };
    let find = move |database: &mut dyn Database| {
        let now = time_span::now(database)?;
        let found = activity::find(database, &wanted, MOST_NEW)?;
        let rows = found.tried.iter().map(lists::row_id).collect();
        Ok(New { rows, after: after.max(now.saturating_sub(OVERLAP)) })
    };
    let new = form.ask(&visit, find).await?;
    Ok(Json(new).into_response())
}

/// The figures above the list, which Service shows too.
pub(super) async fn counted(page: &Page) -> Summary<Figures> {
    let blocking = page.blocking.clone();
    page.figures.get(async move { blocking.query_long(FIGURES_PATIENCE, figures).await }).await
}

pub(super) fn figures_cache() -> SummaryCache<Figures> {
    SummaryCache::new(FIGURES_HOLD, FIGURES_WAIT)
}

enum SearchResult {
    /// The form has a mistake.
    Nothing,
    /// No delivery was ever tried at this site.
    NoneYet,
    /// Owed Sent copies, and whether there are more.
    Owed(Vec<RecordedCopy>, bool),
    Failed(FailuresPage),
    Attempts(FoundAttempts),
}

/// The attempts that match a search, and what else matches its text.
struct FoundAttempts {
    found: FoundTried,
    taken_as: Option<TakenAs>,
    failed: FailuresPage,
    messages: Option<ListedMessages>,
}

impl FoundAttempts {
    /// The page of the one message that was meant: a user who pastes a Message-ID or a queue id wants to see it.
    fn only_message(&self) -> Option<String> {
        match (self.found.tried.as_slice(), self.failed.failures.as_slice()) {
            ([], [only]) => Some(message_path(only.identity.as_bytes(), &only.lock)),
            ([first, rest @ ..], _)
                if matches!(self.taken_as, Some(TakenAs::MessageId | TakenAs::QueueId))
                    && rest.iter().all(|other| other.identity == first.identity) =>
            {
                Some(message_path(&first.identity, &first.lock))
            }
            _ => None,
        }
    }

    /// Whether the list of attempts is shown. An empty one says that nothing was found.
    fn shows_attempts(&self) -> bool {
        !self.found.tried.is_empty() || self.messages.is_none() && self.failed.failures.is_empty()
    }
}

/// A page of recorded messages that match the search text, however old they are.
struct ListedMessages {
    messages: Vec<ListedMessage>,
    page: MessagePage,
    taken_as: TakenAs,
}

/// The recorded messages that have an address like this text; or a part of subject or author, if `no_attempt` has. `None` if there
/// are none.
fn list_messages(
    site: &Site,
    database: &mut dyn Database,
    form: &SearchForm,
    no_attempt: bool,
) -> Result<Option<ListedMessages>, DatabaseError> {
    let (start, (meanings, text)) = (read_start(&form.messages), search::meanings(&form.q));
    let applies = |meaning: &TakenAs| match meaning {
        TakenAs::MessageId | TakenAs::QueueId => false,
        TakenAs::Piece => no_attempt || start.is_some(),
        TakenAs::Address | TakenAs::Domain | TakenAs::Beginning => true,
    };
    let meanings: Vec<TakenAs> = meanings.iter().copied().filter(applies).collect();
    let (page, taken_as) = search::messages(site, database, (&meanings, text), None, start, ROWS)?;
    let messages = read_messages(database, &page.ids)?;
    let is_empty = messages.is_empty() && page.next.is_none();
    Ok((!is_empty).then_some(ListedMessages { messages, page, taken_as }))
}

/// The URL of a message's page. Until a copy is delivered, the ledger finds the message only by its lock.
pub(super) fn message_path(identity: &[u8; 32], lock: &LockName) -> String {
    format!("/messages/{}?lock={}", hex::encode(identity), hex::encode(lock.digest()))
}

/// The URL of the list of deferred copies that are still retried.
pub(super) fn deferred_path() -> String {
    format!("/?state=deferred&since={}", timestamp::span(STILL_TRIED).replace(' ', "+"))
}

/// What to do first at a site to which nothing was delivered yet.
fn first_run(site: &Site) -> Markup {
    let options = site.options();
    html! {
        h2 { "No mail has come here yet" }
        @if site.config().is_none() {
            p { "This is where each attempt to deliver a message appears. Deliver one, and load this page again:" }
            p {
                code {
                    "printf 'Subject: Hello\\n\\nThe first message\\n' | maildrop_command" (options)
                    " --sender lisa@gmail.com --recipient scuba@mail.axial.net"
                }
            }
            p .hint { "Any address has a mailbox in this directory: the first message creates it." }
        } @else {
            p { "This is where each attempt to deliver a message appears, on all hosts that use this database." }
            ul {
                li { code { "maildrop_command check" (options) } " says whether database and mailbox store are ready." }
                li { "Postfix delivers here once a transport of its " code { "master.cf" } " runs maildrop_command, or once it sends to the service by LMTP." }
                li { "If Postfix has accepted mail that does not appear, " code { "mailq" } " shows why it waits." }
            }
        }
    }
}
