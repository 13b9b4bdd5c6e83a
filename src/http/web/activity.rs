//! Activity: the recent attempts, the newest first. All filters are in the URL, so that users can share it.

use super::layout::{self, Column, Screen, class, milliseconds, number, or_dash, pager, table, table_with_ids};
use super::list_file::{self, FileFormat, FileQuery};
use super::{Answered, Page, auth, failed};
use crate::base::hex;
use crate::base::summary_cache::{Summary, SummaryCache};
use crate::base::timestamp::{self, time_text};
use crate::database::DatabaseError;
use crate::http::blocking::Unanswered;
use crate::ledger::activity::{self, AttemptCursor, Came, FoundTried, Tried, Wanted};
use crate::ledger::audit_queries::{self, RecordedCopy};
use crate::ledger::message_search::{ListedMessage, MessagePage, read_messages};
use crate::ledger::web_sessions::WebSession;
use crate::ledger::{AttemptResult, Database, FailedDelivery, Outcome, time_span};
use crate::message::Role;
use crate::operations::activity::{AtAGlance, Figures, LATELY, STILL_TRIED, TakenAs, figures, search, search_failed};
use crate::operations::search::{self, Start, read_start};
use crate::site::Site;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use axum::{Extension, Json};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::time::Duration;
use url::form_urlencoded::Serializer;
use uuid::Uuid;

/// How many rows a page has.
const ROWS: usize = 50;
/// How long a search may take: at most three interpretations are tried, each of which ends after a limit (`ledger::activity`).
const PATIENCE: Duration = Duration::from_secs(25);
/// How far back a search goes by default: without and with a name to search for.
const DAY: &str = "1d";
const FIVE_DAYS: &str = "5d";
/// How long the figures above the list may take to compute, and how long a request waits for them. The list does not depend on
/// them.
const FIGURES_PATIENCE: Duration = Duration::from_mins(1);
const FIGURES_WAIT: Duration = Duration::from_secs(1);
/// How long the figures are cached, at least.
const FIGURES_HOLD: Duration = Duration::from_secs(10);
/// After this many seconds the browser polls for new rows of a list.
const POLL: u32 = 5;
/// An attempt becomes visible when its journal is committed, which is later than its time stamp, and gets its outcome later
/// still. So each poll reads again what began within this time, in microseconds. An attempt that takes longer is not counted in
/// a list that is filtered by state.
const OVERLAP: i64 = 15_000_000;
/// How many new rows are counted at most.
const MOST_NEW: usize = 500;

/// The query parameters, as the user typed them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SearchForm {
    q: String,
    state: String,
    role: String,
    host: String,
    user: String,
    since: String,
    until: String,
    /// The last row of the previous page.
    before: String,
    /// The start of a page of messages.
    messages: String,
}

/// The choice of deliveries that have no attempt, because they failed before their journal.
const FAILED: &str = "failed";

/// A choice of a form: the query parameter, its label, and its meaning.
type Choice<T> = (&'static str, &'static str, T);

/// What the words of this screen mean.
const WORDS: [(&str, &str); 7] = [
    ("delivered", "The copy is in the mailbox."),
    ("deferred", "It is not in the mailbox yet. Postfix keeps the mail and tries it again."),
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

const STATES: [Choice<Option<Came>>; 7] = [
    ("", "any", None),
    ("delivered", "delivered", Some(Came::Delivered)),
    ("deferred", "deferred", Some(Came::Deferred)),
    ("refused", "refused", Some(Came::Refused)),
    ("open", "not ended, or never", Some(Came::Unended)),
    ("owed", "owed now", None),
    (FAILED, "failed before delivery", None),
];
const COPIES: [Choice<Option<Role>>; 3] =
    [("", "of recipients", Some(Role::Recipient)), ("sent", "in Sent", Some(Role::Sender)), ("all", "all", None)];

/// The meaning of a choice.
fn meaning<T: Copy>(choices: &[Choice<T>], chosen: &str) -> Option<T> {
    choices.iter().find(|(name, ..)| *name == chosen).map(|(.., meaning)| *meaning)
}

pub(super) async fn show(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    Query(form): Query<SearchForm>,
    Query(file): Query<FileQuery>,
) -> Answered {
    let (wanted, problem) = match form.wanted() {
        Ok(wanted) => (wanted, None),
        Err(problem) => (SearchForm::default().wanted().unwrap_or_default(), Some(problem)),
    };
    let (wants_owed, wants_failed) = (form.state == "owed", form.state == FAILED);
    // A search for a name also finds what has no attempt.
    let adds_failed = !form.q.trim().is_empty() && form.state.is_empty() && form.before.is_empty();
    let (site, what) = (page.site.clone(), form.q.clone());
    let (asks, is_plain) = (problem.is_none(), form.is_a_name_only() && form.q.trim().is_empty());
    let limit = file.limit(ROWS);
    let (start, finds_messages) = (read_start(&form.messages), form.is_a_name_only());
    let find = move |database: &mut dyn Database| {
        if !asks {
            return Ok((SearchResult::Nothing, Vec::new()));
        }
        if wants_owed || wants_failed {
            let failed = match wants_failed {
                true => search_failed(&site, database, &what, &wanted, limit)?,
                false => Vec::new(),
            };
            let owed = wants_owed.then(|| audit_queries::latest_owed(database, limit)).transpose()?;
            return Ok((owed.map_or(SearchResult::Nothing, SearchResult::Owed), failed));
        }
        let mut found = search(&site, database, &what, wanted.clone(), limit)?;
        let mut failed = Vec::new();
        if adds_failed {
            match activity::in_time(search_failed(&site, database, &what, &wanted, limit))? {
                Some(matching) => failed = matching,
                // The page says that nothing before this moment was searched completely.
                None => found.0.looked_back_to = Some(time_span::now(database)?),
            }
        }
        let is_empty = is_plain && found.0.tried.is_empty();
        if is_empty && activity::find(database, &Wanted::default(), 1)?.tried.is_empty() {
            // Nothing was ever delivered. If something has failed, people look for that.
            let failed = search_failed(&site, database, "", &Wanted::default(), limit)?;
            return Ok((if failed.is_empty() { SearchResult::NoneYet } else { SearchResult::Nothing }, failed));
        }
        let taken_as = found.1.filter(|_| finds_messages);
        let listed = taken_as.map(|_| list_messages(&site, database, &what, &found, start)).transpose()?;
        Ok((SearchResult::Tried(found, listed.flatten()), failed))
    };
    if let Some(format) = file.format {
        let found = form.ask(&page, find).await.map_err(|problem| failed(&problem, Some(&viewer)))?;
        return Ok(match found {
            (SearchResult::Nothing, failures) => list_file::send(
                (&page, &viewer),
                format,
                FAILED,
                FAILED_FILE,
                &failures,
                failures.len() >= file.limit(ROWS),
            ),
            (found, _) => found.send_as_file(&page, &viewer, format),
        });
    }
    let blocking = page.blocking.clone();
    let figures = page.figures.get(async move { blocking.ask_long(FIGURES_PATIENCE, figures).await });
    let (figures, found) = tokio::join!(figures, form.ask(&page, find));
    let (found, failures) = found.map_err(|problem| failed(&problem, Some(&viewer)))?;
    // A user who pastes a Message-ID or a queue id wants to see that message.
    if let SearchResult::Tried((FoundTried { tried, .. }, Some(taken_as)), _) = &found
        && matches!(taken_as, TakenAs::MessageId | TakenAs::QueueId)
        && let [first, rest @ ..] = tried.as_slice()
        && rest.iter().all(|other| other.identity == first.identity)
        && form.is_a_name_only()
    {
        return Ok(Redirect::to(&message_path(first)).into_response());
    }
    if let SearchResult::Tried((FoundTried { tried, .. }, _), _) = &found
        && tried.is_empty()
        && let [only] = failures.as_slice()
        && form.is_a_name_only()
    {
        return Ok(Redirect::to(&failed_path(only)).into_response());
    }
    let only_failed = tried_is_empty(&found) && !failures.is_empty();
    let main = html! {
        (figures_above(&figures, &viewer))
        (search_form(&form, problem.as_deref()))
        (layout::help(&WORDS))
        @if wants_failed || !failures.is_empty() { (failed_table(&failures)) }
        @if wants_failed { (list_file::links(&form.path())) }
        @match &found {
            SearchResult::Nothing => {}
            SearchResult::NoneYet => { (live_line(&form, &[])) (first_run(&page.site)) }
            SearchResult::Owed((owed, more)) => { (owed_table(owed, *more)) (list_file::links(&form.path())) }
            SearchResult::Tried(..) if only_failed => {}
            SearchResult::Tried((found, taken_as), listed) => {
                @if form.messages.is_empty() && (listed.is_none() || !found.tried.is_empty()) {
                    (tried_table(&form, found, *taken_as)) (list_file::links(&form.path()))
                }
                @if let Some(listed) = listed { (messages_table(&form, listed)) }
            }
        }
    };
    Ok(layout::page("Activity", Some(Screen::Activity), Some(&viewer), &main).into_response())
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
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    Query(form): Query<SearchForm>,
    Query(After { after }): Query<After>,
) -> Answered {
    let Some(wanted) = form.lives() else { return Ok(auth::nothing_here().await) };
    let wanted = Wanted { since: after.max(wanted.since), ..wanted };
    let find = move |database: &mut dyn Database| {
        let now = time_span::now(database)?;
        let found = activity::find(database, &wanted, MOST_NEW)?;
        let rows = found.tried.iter().map(row_id).collect();
        Ok(New { rows, after: after.max(now.saturating_sub(OVERLAP)) })
    };
    let new = form.ask(&page, find).await.map_err(|problem| failed(&problem, Some(&viewer)))?;
    Ok(Json(new).into_response())
}

pub(super) fn figures_cache() -> SummaryCache<Figures> {
    SummaryCache::new(FIGURES_HOLD, FIGURES_WAIT)
}

/// The columns of the lists as files.
const FILE: &str = "time,state,recipient,role,user,mailbox,author,subject,message_id,took_ms,host,queue_id";
const FAILED_FILE: &str = "first_at,last_at,recipient,count,cause,sender,author,subject,message_id,host,queue_id";
const OWED_FILE: &str = "last_tried,user,mailbox,recipient,reason,author,subject,message_id";

enum SearchResult {
    Nothing,
    /// No delivery was ever tried at this site.
    NoneYet,
    Owed((Vec<RecordedCopy>, bool)),
    Tried((FoundTried, Option<TakenAs>), Option<ListedMessages>),
}

/// A page of recorded messages that match the search text, however old they are.
struct ListedMessages {
    messages: Vec<ListedMessage>,
    page: MessagePage,
    taken_as: TakenAs,
}

/// The recorded messages that have an address like this text; or a part of subject or author, if no attempt has. `None` if there
/// are none.
fn list_messages(
    site: &Site,
    database: &mut dyn Database,
    what: &str,
    (found, taken_as): &(FoundTried, Option<TakenAs>),
    start: Option<Start>,
) -> Result<Option<ListedMessages>, DatabaseError> {
    if matches!(taken_as, Some(TakenAs::MessageId | TakenAs::QueueId)) {
        return Ok(None);
    }
    let (meanings, text) = search::meanings(what);
    let applies = |meaning: &TakenAs| match meaning {
        TakenAs::MessageId | TakenAs::QueueId => false,
        TakenAs::Piece => found.tried.is_empty() || start.is_some(),
        TakenAs::Address | TakenAs::Domain | TakenAs::Beginning => true,
    };
    let meanings: Vec<TakenAs> = meanings.iter().copied().filter(applies).collect();
    let (page, taken_as) = search::messages(site, database, (&meanings, text), None, start, ROWS)?;
    let messages = read_messages(database, &page.ids)?;
    let is_empty = messages.is_empty() && page.next.is_none();
    Ok((!is_empty).then_some(ListedMessages { messages, page, taken_as }))
}

impl SearchResult {
    fn send_as_file(&self, page: &Page, viewer: &WebSession, format: FileFormat) -> Response {
        let (tried, more) = match self {
            Self::Owed((owed, more)) => return owed_file((page, viewer), format, owed, *more),
            Self::Tried((found, _), _) => (found.tried.as_slice(), found.more || found.looked_back_to.is_some()),
            Self::Nothing | Self::NoneYet => (&[][..], false),
        };
        let rows = tried.iter().map(|one| {
            json!({
                "time": timestamp::exact(one.place.began_at), "state": state(one), "recipient": one.recipient, "role": one.role.as_str(),
                "user": one.user, "mailbox": one.mailbox, "author": one.from, "subject": one.subject, "message_id": one.message_id,
                "took_ms": one.took(), "host": one.host, "queue_id": one.queue_id,
            })
        });
        list_file::send((page, viewer), format, "activity", FILE, rows, more)
    }
}

/// Owed Sent copies as a file.
pub(super) fn owed_file(to: (&Page, &WebSession), format: FileFormat, owed: &[RecordedCopy], more: bool) -> Response {
    let rows = owed.iter().map(|one| {
        json!({
            "last_tried": timestamp::exact(one.updated_at), "user": one.user, "mailbox": one.mailbox, "recipient": one.recipient,
            "reason": one.reason, "author": one.from, "subject": one.subject, "message_id": one.message_id,
        })
    });
    list_file::send(to, format, "owed", OWED_FILE, rows, more)
}

/// Whether a search for attempts has found none.
fn tried_is_empty(found: &SearchResult) -> bool {
    matches!(found, SearchResult::Tried((FoundTried { tried, .. }, _), None) if tried.is_empty())
}

impl SearchForm {
    /// Queries the ledger. A search with a filter may have to read nearly all of it, so it counts as a long query.
    async fn ask<T: Send + 'static>(
        &self,
        page: &Page,
        find: impl FnOnce(&mut dyn Database) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Result<T, Unanswered> {
        let is_narrowed = !self.q.trim().is_empty() || !self.is_a_name_only();
        if is_narrowed { page.blocking.ask_long(PATIENCE, find).await } else { page.blocking.ask(find).await }
    }

    fn wanted(&self) -> Result<Wanted, String> {
        let text = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let since = text(&self.since).unwrap_or_else(|| self.usual_since().to_owned());
        let moment = |what: &str, text: &str| timestamp::since(text).map_err(|problem| format!("{what}: {problem}"));
        Ok(Wanted {
            by: None,
            came: meaning(&STATES, &self.state).ok_or("State: there is no such one")?,
            role: meaning(&COPIES, &self.role).ok_or("Copies: there are no such ones")?,
            host: text(&self.host),
            user: text(&self.user),
            since: moment("Since", &since)?,
            until: text(&self.until).map(|until| moment("Until", &until)).transpose()?,
            before: text(&self.before).map(|text| place(&text).ok_or("This address is not complete")).transpose()?,
        })
    }

    /// The filter for new rows, if new rows belong at the head of this list.
    fn lives(&self) -> Option<Wanted> {
        let others = [&self.q, &self.until, &self.before];
        let lives =
            others.iter().all(|text| text.trim().is_empty()) && !["owed", FAILED].contains(&self.state.as_str());
        self.wanted().ok().filter(|_| lives)
    }

    /// The URL that the list polls. A row is new if it began after the last row of a full page, and recently.
    fn live(&self, tried: &[Tried]) -> Option<String> {
        let wanted = self.lives()?;
        let last = tried.get(ROWS - 1).map_or(wanted.since, |last| last.place.began_at);
        let newest = tried.first().map_or(last, |first| first.place.began_at.saturating_sub(OVERLAP));
        let mut query = self.query();
        Some(format!("/activity/new?{}", query.append_pair("after", &newest.max(last).to_string()).finish()))
    }

    fn usual_since(&self) -> &'static str {
        if self.q.trim().is_empty() { DAY } else { FIVE_DAYS }
    }

    /// All filters except for the search text.
    fn filters(&self) -> [(&'static str, &str); 6] {
        let Self { state, role, host, user, since, until, .. } = self;
        [("state", state), ("role", role), ("host", host), ("user", user), ("since", since), ("until", until)]
    }

    /// Whether only the search text is filled in.
    fn is_a_name_only(&self) -> bool {
        self.before.trim().is_empty() && self.filters().iter().all(|(_, text)| text.trim().is_empty())
    }

    /// The query string of this search, without the page.
    fn query(&self) -> Serializer<'static, String> {
        let mut query = Serializer::new(String::new());
        let fields = [("q", self.q.as_str())].into_iter().chain(self.filters());
        query.extend_pairs(fields.filter(|(_, text)| !text.is_empty()));
        query
    }

    /// The URL of this search, without the page.
    fn path(&self) -> String {
        format!("/?{}", self.query().finish())
    }

    /// The URL of the next page of messages.
    fn older_messages(&self, start: Start) -> String {
        format!("/?{}", self.query().append_pair("messages", &search::start_as_text(start)).finish())
    }

    /// The URL of the next, older page.
    fn older(&self, last: &Tried) -> String {
        let mut query = self.query();
        let AttemptCursor { began_at, attempt, key } = last.place;
        query.append_pair("before", &format!("{began_at}.{}.{}", attempt.simple(), hex::encode(&key)));
        format!("/?{}", query.finish())
    }
}

/// Parses the row that [`SearchForm::older`] writes.
fn place(text: &str) -> Option<AttemptCursor> {
    let mut parts = text.split('.');
    let (began_at, attempt, key) = (parts.next()?, parts.next()?, parts.next()?);
    Some(AttemptCursor {
        began_at: began_at.parse().ok()?,
        attempt: Uuid::try_parse(attempt).ok()?,
        key: hex::decode(key)?.try_into().ok()?,
    })
}

/// The URL of a message's screen. Until a copy is delivered, the ledger finds the message only by its lock.
pub(super) fn message_path(tried: &Tried) -> String {
    format!("/messages/{}?lock={}", hex::encode(&tried.identity), hex::encode(tried.lock.digest()))
}

/// The same, of a message that failed before its journal.
fn failed_path(failure: &FailedDelivery) -> String {
    format!("/messages/{}?lock={}", hex::encode(failure.identity.as_bytes()), hex::encode(failure.lock.digest()))
}

/// The URL of the list of deferred copies that are still retried.
pub(super) fn deferred_path() -> String {
    format!("/?state=deferred&since={}", timestamp::span(STILL_TRIED).replace(' ', "+"))
}

fn figures_above(summary: &Summary<Figures>, viewer: &WebSession) -> Markup {
    let figures = if let Summary::Counted(figures) = summary { Some(*figures) } else { None };
    let hour = LATELY.as_secs() / 3600;
    let count =
        |of: fn(&Figures) -> u64| figures.as_ref().map_or_else(|| "…".to_owned(), |figures| number(of(figures)));
    // Subscriptions have a screen of their own, which not all roles may see.
    let at_a_glance =
        figures.and_then(|figures| figures.shown).filter(|_| viewer.role >= Screen::Subscriptions.least());
    let last = match at_a_glance {
        Some(AtAGlance { behind_s, .. }) => {
            let behind = behind_s.and_then(|behind| Duration::try_from_secs_f64(behind).ok());
            let behind = behind.map_or_else(|| "none".to_owned(), timestamp::span);
            (behind, "notifications behind", "The age of the oldest one that waits.", "/subscriptions".to_owned())
        }
        None => {
            let path = format!("/?state=refused&since={hour}h");
            (count(|all| all.refused), "refused, last hour", "Returned to the sender.", path)
        }
    };
    let delivered = format!("/?state=delivered&since={hour}h");
    let all = [
        (count(|all| all.delivered), "delivered, last hour", "In the mailbox.", delivered),
        (count(|all| all.deferred), "deferred now", "Postfix tries them again.", deferred_path()),
        (
            count(|all| all.failed),
            "failed before delivery",
            "No mailbox was open.",
            format!("/?state={FAILED}&since={DAY}"),
        ),
        (count(|all| all.owed), "Sent copies owed", "The service makes them later.", "/?state=owed".to_owned()),
        last,
    ];
    html! {
        @if let Some(trouble) = at_a_glance.and_then(|at_a_glance| notification_trouble(&at_a_glance)) {
            p .bad { (trouble) ". " a href="/subscriptions" { "Subscriptions" } }
        }
        ul .figures aria-label="Now" {
            @for (count, what, meaning, path) in all {
                li { a href=(path) { b { (count) } (what) span .hint { (meaning) } } }
            }
        }
        @match summary {
            Summary::Counted(figures) => p .hint { "Counted " (layout::moment(figures.at)) "." },
            Summary::UnderWay => p .hint role="status" { "The figures are being counted. Reload the page to see them." },
            Summary::Failed(why) => p .bad role="alert" { "The figures could not be counted: " (why) "." },
        }
    }
}

/// The disabled subscriptions and abandoned notifications, in words.
fn notification_trouble(AtAGlance { disabled, given_up, .. }: &AtAGlance) -> Option<String> {
    let several = |count: u64, one: &str, more: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        _ => Some(format!("{} {more}", number(count))),
    };
    let disabled = several(*disabled, "subscription is disabled", "subscriptions are disabled");
    let given_up =
        several(*given_up, "notification was given up within a day", "notifications were given up within a day");
    let both: Vec<String> = disabled.into_iter().chain(given_up).collect();
    (!both.is_empty()).then(|| both.join(", and "))
}

fn search_form(form: &SearchForm, problem: Option<&str>) -> Markup {
    let about = |name: &str| problem.is_some_and(|problem| problem.starts_with(name)).then_some("true");
    let since = form.usual_since();
    let (states, copies) = (STATES.map(|(name, words, _)| (name, words)), COPIES.map(|(name, words, _)| (name, words)));
    let choices = [("state", "State", &form.state, &states[..]), ("role", "Copies", &form.role, &copies[..])];
    html! {
        form .search role="search" method="get" action="/" {
            label .wide for="q" {
                "Search: a Message-ID, a queue id, an address, @domain, the beginning of one, a mailbox's user, or a part of a subject or author"
                input #q name="q" type="search" value=(form.q) placeholder="scuba@mail.axial.net"
                    autocapitalize="none" spellcheck="false";
            }
            @for (name, label, chosen, options) in choices {
                label for=(name) {
                    (label)
                    select id=(name) name=(name) {
                        @for (value, words) in options { option value=(value) selected[chosen == value] { (words) } }
                    }
                }
            }
            @for (name, label, value) in [("host", "Host", &form.host), ("user", "Mailbox's user", &form.user)] {
                label .short for=(name) {
                    (label)
                    input id=(name) name=(name) value=(value) autocapitalize="none" spellcheck="false";
                }
            }
            @for (name, label, value, usual) in [("since", "Since", &form.since, since), ("until", "Until", &form.until, "now")] {
                label .short for=(name) {
                    (label)
                    input id=(name) name=(name) value=(value) placeholder=(usual) list="spans" aria-invalid=[about(label)];
                }
            }
            datalist #spans { @for span in ["1h", "6h", "1d", "7d", "30d"] { option value=(span) {} } }
            button .go { "Search" }
        }
        @if let Some(problem) = problem { p .bad role="alert" { (problem) } }
    }
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

const COLUMNS: [Column; 6] =
    [("Message", ""), ("Recipient", ""), ("State", ""), ("Time", "t"), ("Took", "n"), ("Host", "")];

/// Where the script counts the new rows of a list.
fn live_line(form: &SearchForm, tried: &[Tried]) -> Markup {
    html! {
        @if let Some(live) = form.live(tried) {
            p #live .hint { span data-said role="status" { "New attempts are counted here. " } span data-newer=(live) data-poll=(POLL) role="status" {} }
        }
    }
}

fn tried_table(form: &SearchForm, found: &FoundTried, taken_as: Option<TakenAs>) -> Markup {
    let FoundTried { tried, more, looked_back_to } = found;
    let rows = tried.iter().enumerate().map(|(at, one)| (Some(row_id(one)), row(one, of_the_same(tried, at))));
    html! {
        (live_line(form, tried))
        @if let Some(taken_as) = taken_as { p { "Searched as " (describe(taken_as)) ": " b { (form.q.trim()) } } }
        @if tried.is_empty() {
            p {
                "No attempt matches" @if taken_as != Some(TakenAs::MessageId) { " in this time" } ". "
                span .hint {
                    @if !form.user.trim().is_empty() {
                        "A mailbox's user is compared as a whole. Write it as the lists of this page show it. "
                    }
                    "To search further back, set “Since” to 30d. "
                    "A message that no host has tried to deliver is known to Postfix only."
                }
            }
        } @else {
            (table_with_ids("", "Delivery attempts, the newest first. Each attempt has a row of its own.", COLUMNS, rows))
        }
        @if !tried.is_empty() && matches!(taken_as, Some(TakenAs::Address | TakenAs::Piece)) {
            p .hint { "A message that no host has tried to deliver is known to Postfix only." }
        }
        @if let Some(back) = looked_back_to {
            p role="status" {
                "Attempts before " (layout::moment(*back)) " were not searched. To search them, set “Until” to "
                code { (time_text(*back)) } "."
            }
        }
        @if *more && let Some(last) = tried.last() {
            (pager(&form.older(last), "Older"))
        }
    }
}

fn messages_table(form: &SearchForm, listed: &ListedMessages) -> Markup {
    let ListedMessages { messages, page, taken_as } = listed;
    let text = form.q.trim();
    let rows = messages.iter().map(|message| {
        let path = format!("/messages/{}", hex::encode(&message.identity));
        [
            html! { a href=(path) { (layout::moment(message.recorded_at)) } },
            html! { bdi { (message.from.as_deref().unwrap_or("–")) } },
            html! { bdi { (message.to.as_deref().unwrap_or("–")) } },
            html! { @if let Some(subject) = &message.subject { bdi { (subject) } } @else { code { (message.message_id) } } },
        ]
    });
    let caption = html! {
        "Messages with " (taken_as.as_str()) " like " b { (text) } ", the newest first, however old they are. Times are UTC."
    };
    let columns = [("Recorded", "t"), ("Author", ""), ("To", ""), ("Subject", "")];
    html! {
        (table("", &caption, columns, rows))
        @if let Some(last) = &page.searched_up_to {
            p role="status" { "More addresses or domains begin like this. Those after " code { (last) } " were not looked for." }
        }
        @if let Some(back) = page.looked_back_to {
            p role="status" { "What is older than " (layout::moment(back)) " was not looked for: the next page does." }
        }
        @if let Some(next) = page.next {
            (pager(&form.older_messages((*taken_as, next)), "Older messages"))
        }
    }
}

fn describe(taken_as: TakenAs) -> &'static str {
    match taken_as {
        TakenAs::Domain | TakenAs::Beginning => taken_as.as_str(),
        TakenAs::MessageId => "a Message-ID",
        TakenAs::QueueId => "a queue id",
        TakenAs::Address => "an address or a mailbox's user",
        TakenAs::Piece => {
            "a part of a subject, or of an author's name or address, of messages with a copy (others are found by their \
             recipient)"
        }
    }
}

/// The id by which the script recognizes a row.
fn row_id(tried: &Tried) -> String {
    let AttemptCursor { attempt, key, .. } = tried.place;
    format!("a{}-{}", attempt.simple(), hex::encode(key.get(..6).unwrap_or_default()))
}

/// A hint for an attempt if the list has others for the same copy: the newest one shows the current state.
fn of_the_same(tried: &[Tried], at: usize) -> Option<String> {
    let key = tried.get(at)?.place.key;
    let same = |tried: &[Tried]| tried.iter().filter(|other| other.place.key == key).count();
    let (all, newer) = (same(tried), same(tried.get(..at)?));
    match (all, newer) {
        (..=1, _) => None,
        (_, 0) => Some(format!("the newest of {all} attempts in this list")),
        (..) => Some("an earlier attempt: see the newer one above".into()),
    }
}

fn row(tried: &Tried, of_the_same: Option<String>) -> [Markup; 6] {
    let Tried { is_recorded, .. } = *tried;
    [
        html! {
            a .row href=(message_path(tried)) { (layout::message_name(tried.subject.as_deref(), &tried.message_id, is_recorded)) }
            div .hint { (layout::author(tried.from.as_deref(), is_recorded)) }
        },
        html! {
            (tried.recipient)
            @if tried.role == Role::Sender { div .hint { "copy for " (tried.mailbox) " of " (tried.user) } }
        },
        html! {
            (layout::state(class(tried.result()), &state(tried)))
            @if let Some(note) = of_the_same { div .hint { (note) } }
        },
        layout::moment(tried.place.began_at),
        or_dash(tried.took().map(milliseconds)),
        html! {
            (tried.host)
            @if let Some(queue_id) = &tried.queue_id { div .hint { code { (queue_id) } } }
        },
    ]
}

/// The outcome of an attempt at one copy, in words.
pub(super) fn in_words(outcome: Option<&Outcome>) -> String {
    match outcome {
        None => "not ended: it is under way, or was cut short".into(),
        Some(Outcome::Appended) => "delivered".into(),
        Some(Outcome::Adopted) => "delivered: found in the mailbox".into(),
        Some(Outcome::AlreadyThere | Outcome::AlreadyThereUnchecked) => "delivered: it was there already".into(),
        Some(Outcome::Owed) => "owed".into(),
        Some(Outcome::Busy) => "deferred: another delivery held the lock".into(),
        Some(outcome @ Outcome::Deferred(..)) => format!("deferred: {}", outcome.reason()),
        Some(outcome @ Outcome::Refused(_)) => format!("refused: {}", outcome.reason()),
        Some(Outcome::Died) => "never ended: it was cut short; a later attempt has looked for its copy".into(),
        Some(other) => other.to_string(),
    }
}

fn state(tried: &Tried) -> String {
    match (tried.result(), tried.role) {
        (AttemptResult::Delivered, Role::Sender) if tried.outcome == Some(Outcome::Owed) => "Sent copy owed".into(),
        _ => in_words(tried.outcome.as_ref()),
    }
}

fn failed_table(failures: &[FailedDelivery]) -> Markup {
    let columns: [Column; 7] = [
        ("First", "t"),
        ("Last", "t"),
        ("Recipient", ""),
        ("Author", ""),
        ("Subject", ""),
        ("Cause", ""),
        ("Host", ""),
    ];
    let rows = failures.iter().map(|one| {
        let class = if one.is_refused() { "bad" } else { "wait" };
        [
            html! { a href=(failed_path(one)) { (layout::moment(one.first_at)) } },
            layout::moment(one.last_at),
            html! { (one.recipient) br; span .hint { (tries(one.count)) } },
            html! { @if let Some(author) = &one.author { bdi { (author) } } @else { "–" } },
            html! { @if let Some(subject) = &one.subject { bdi { (subject) } } @else { code { (one.message_id) } } },
            html! { span class=(class) { (in_words(Some(&one.cause))) } },
            html! { (one.host) @if let Some(queue_id) = &one.queue_id { br; span .hint { code { (queue_id) } } } },
        ]
    });
    html! {
        @if failures.is_empty() {
            p { "No delivery failed before it began, in this time." }
        } @else {
            (table("", "Failed before delivery, and not delivered since; the newest first. No mailbox was opened for them. Times are UTC.", columns, rows))
            @if failures.len() >= ROWS { p .hint { "These are the newest " (failures.len()) ". Narrow the time or the search for others." } }
        }
    }
}

/// How often a delivery was tried, in words.
pub(super) fn tries(count: u64) -> String {
    if count == 1 { "1 try".into() } else { format!("{} tries", number(count)) }
}

fn owed_table(owed: &[RecordedCopy], more: bool) -> Markup {
    let caption = html! {
        "Owed Sent copies, the newest first. The service makes them by itself; "
        code { "replay --owed" } " tries all at once."
    };
    let rows = owed.iter().map(|one| {
        [
            html! {
                a .row href=(format!("/messages/{}", hex::encode(one.identity.as_bytes()))) {
                    (layout::message_name(one.subject.as_deref(), &one.message_id, true))
                }
                div .hint { (layout::author(one.from.as_deref(), true)) }
            },
            html! { (one.mailbox) " of " (one.user) },
            html! { (one.reason.as_deref().unwrap_or("no reason is known")) },
            layout::moment(one.updated_at),
        ]
    });
    html! {
        @if owed.is_empty() {
            p { "No Sent copy is owed." }
        } @else {
            (table("", &caption, [("Message", ""), ("Mailbox", ""), ("Reason", ""), ("Last tried", "t")], rows))
            @if more { p { "These are the newest " (owed.len()) ". There are more." } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_found_again_by_the_address_of_the_next_page() {
        let at = AttemptCursor { began_at: 1_790_000_000_000_001, attempt: Uuid::now_v7(), key: [7; 32] };
        let text = format!("{}.{}.{}", at.began_at, at.attempt.simple(), hex::encode(&at.key));
        assert_eq!(place(&text), Some(at));
        for wrong in ["", "1", "1.2.3", "x.y.z", &text[1..text.len() - 1]] {
            assert_eq!(place(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_reported_and_nothing_is_guessed() {
        let form =
            |since: &str, state: &str| SearchForm { since: since.into(), state: state.into(), ..SearchForm::default() };
        assert!(form("2d", "delivered").wanted().is_ok());
        assert!(form("yesterday", "").wanted().unwrap_err().starts_with("Since: "));
        assert!(form("", "gone").wanted().unwrap_err().starts_with("State: "));
    }
}
