//! Redelivery of owed copies, failed copies, and copies that a mailbox has lost: selection, preview and execution.
//!
//! ```text
//! a list, or a message ── select ──▶ preview ── confirm ──▶ a job ──▶ its results
//! ```

use super::activity::{deferred_path, in_words, owed_file};
use super::layout::{self, Column, Screen, table};
use super::list_file::{self, FileFormat, FileQuery};
use super::redelivery_jobs::CopyResult;
use super::{Answered, Page, failed};
use crate::base::deadline::Deadline;
use crate::base::hex;
use crate::base::terminal::shell_word;
use crate::base::timestamp;
use crate::database::DatabaseError;
use crate::http::blocking_pools::{QueryFailure, Rejected, Work};
use crate::ledger::audit_queries::{self, Selection};
use crate::ledger::web_sessions::WebSession;
use crate::ledger::{Database, failures};
use crate::message::Role;
use crate::operations::manual_redelivery::{
    self, Preview, RedeliveryKind, RedeliveryRequest, SelectedCopy, preview, why_gone,
};
use crate::operations::redelivery;
use crate::operations::replay::ReplayOutcome;
use crate::site::Site;
use axum::Extension;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, Render, html};
use serde::Deserialize;
use serde_json::json;
use std::time::Duration;
use url::form_urlencoded;
use uuid::Uuid;

/// How many copies are listed, and redelivered in one job. The command line handles more.
const MOST: usize = 100;
/// How long a search in mailboxes may take: less than any request may.
const LOOK: Duration = Duration::from_secs(25);
/// How long the screen of a job waits for its end before it shows the results so far.
const AWAITED: Duration = Duration::from_secs(5);
/// How far back copies are listed by default.
const DAY: &str = "1d";

const SECTIONS: [(&str, &str); 3] =
    [("/again", "Owed"), ("/again/failed", "Failed"), ("/again/lost", "Lost by a mailbox")];

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RedeliverQuery {
    since: String,
    mailbox: String,
}

impl RedeliverQuery {
    fn since(&self) -> &str {
        if self.since.trim().is_empty() { DAY } else { self.since.trim() }
    }

    fn since_field(&self) -> Markup {
        html! {
            label .short {
                "Since"
                input name="since" value=(self.since()) autocapitalize="none" spellcheck="false";
            }
        }
    }
}

/// A copy of a list: why it is listed, and whether it is selected by default.
struct ListedCopy {
    copy: SelectedCopy,
    why: String,
    selected: bool,
}

/// Copies of a list as a file.
fn copies_file(
    to: (&Page, &WebSession),
    format: FileFormat,
    name: &str,
    copies: &[ListedCopy],
    more: bool,
) -> Response {
    let columns = "user,mailbox,role,recipient,reason,subject,message_id";
    let rows = copies.iter().map(|ListedCopy { copy, why, .. }| {
        json!({
            "user": copy.user, "mailbox": copy.mailbox, "role": copy.role.as_str(), "recipient": copy.recipient, "reason": why,
            "subject": copy.subject, "message_id": copy.message_id,
        })
    });
    list_file::send(to, format, name, columns, rows, more)
}

/// Sent copies that deliveries left owed.
pub(super) async fn owed(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    Query(file): Query<FileQuery>,
) -> Answered {
    let limit = file.limit(MOST);
    let (copies, more) = page.ask(&viewer, move |database| audit_queries::latest_owed(database, limit)).await?;
    if let Some(format) = file.format {
        return Ok(owed_file((&page, &viewer), format, &copies, more));
    }
    let listed = |copy: &audit_queries::RecordedCopy| ListedCopy {
        copy: SelectedCopy::of(copy, RedeliveryKind::Finish),
        why: copy.reason.clone().unwrap_or_default(),
        selected: true,
    };
    let copies: Vec<ListedCopy> = copies.iter().map(listed).collect();
    let shown = html! {
        p {
            "An owed copy is missing in its author's Sent mailbox; the mail itself is delivered. "
            "The service makes it by itself later. " (deferred())
        }
        @if copies.is_empty() { p { "No Sent copy is owed." } } @else {
            (select(&page, &copies))
            (more_by(more, &command(&page.site, "--owed")))
            (list_file::links("/again"))
        }
    };
    Ok(screen("/again", &viewer, &shown))
}

/// Recent attempts that have not delivered their copy.
pub(super) async fn not_delivered(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    Query(asked): Query<RedeliverQuery>,
    Query(file): Query<FileQuery>,
) -> Answered {
    let limit = file.limit(MOST);
    let form = html! {
        form .search method="get" action="/again/failed" { (asked.since_field()) div { button { "Show" } } }
    };
    let since = match timestamp::since(asked.since()) {
        Ok(since) => since,
        Err(problem) => return Ok(screen("/again/failed", &viewer, &html! { (form) (mistake(&problem)) })),
    };
    let find = move |database: &mut dyn Database| {
        Ok((manual_redelivery::failed(database, since, limit)?, failures::count(database, since)?))
    };
    let found = page.blocking.query_long(LOOK, find).await;
    let ((copies, more), before_delivery) = found.map_err(|problem| failed(&problem, Some(&viewer)))?;
    let listed = |(copy, last_outcome): (_, Option<_>)| ListedCopy {
        copy,
        why: in_words(last_outcome.as_ref()),
        selected: true,
    };
    let copies: Vec<ListedCopy> = copies.into_iter().map(listed).collect();
    if let Some(format) = file.format {
        return Ok(copies_file((&page, &viewer), format, "failed", &copies, more));
    }
    let command = command(&page.site, &format!("--failed --since {}", shell_word(asked.since())));
    let path = format!(
        "/again/failed?since={}",
        form_urlencoded::byte_serialize(asked.since().as_bytes()).collect::<String>()
    );
    let shown = html! {
        p {
            "Copies that were not delivered, the oldest first: refused, deferred, or never ended. " (deferred())
        }
        @if before_delivery > 0 {
            p {
                a href=(path.replace("/again/failed?", "/?state=failed&")) { (layout::number(before_delivery)) " failed before delivery" }
                ": they have no attempt yet, and Postfix tries them again."
            }
        }
        (form)
        @if copies.is_empty() { p { "No attempt has failed since then." } } @else {
            (select(&page, &copies))
            (more_by(more, &command))
            (list_file::links(&path))
        }
    };
    Ok(screen("/again/failed", &viewer, &shown))
}

/// A hint to the list of deferred mail, since users may look for it here first.
fn deferred() -> Markup {
    html! {
        "Postfix tries deferred mail again by itself: " a href=(deferred_path()) { "what is deferred now" }
        ". The page of a message can deliver it at once."
    }
}

/// The copies that the mailboxes of one user have lost.
pub(super) async fn lost(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    Query(asked): Query<RedeliverQuery>,
    Query(file): Query<FileQuery>,
) -> Response {
    let limit = file.limit(MOST);
    let mailbox = asked.mailbox.trim().to_owned();
    let head = html! {
        p {
            "Copies that were delivered since that time, and that the mailbox has lost: "
            "it was restored from an old backup, or recreated."
        }
        form .search method="get" action="/again/lost" {
            label {
                "A user, or one mailbox of a user: scuba, scuba/Sent"
                input name="mailbox" value=(mailbox) autocapitalize="none" spellcheck="false" required;
            }
            (asked.since_field())
            div { button { "Search the mailbox" } }
        }
    };
    let shown = |more: &Markup| screen("/again/lost", &viewer, &html! { (head) (more) });
    if mailbox.is_empty() {
        return shown(&html! {});
    }
    let since = match timestamp::since(asked.since()) {
        Ok(since) => since,
        Err(problem) => return shown(&mistake(&problem)),
    };
    let (since_word, mailbox_word) = (shell_word(asked.since()), shell_word(&mailbox));
    let command = command(&page.site, &format!("--restore --since {since_word} --mailbox {mailbox_word}"));
    if !page.site.opens_mailboxes() {
        return shown(&by_the_command_line(&command));
    }
    let searched = mailbox.clone();
    let look = page.blocking.query_in_pool(Work::Look, LOOK, move |site, database, until| {
        redelivery::lost(site, database, &Selection { since, mailbox: Some(&searched) }, until)
    });
    let audit = match look.await {
        Ok(audit) => audit,
        Err(problem @ QueryFailure::Database(_)) => return failed(&problem, Some(&viewer)),
        Err(QueryFailure::Rejected(why)) => {
            let unknown = html! { p .bad role="alert" { "The mailbox could not be searched: " (why) "." } };
            return shown(&html! { (unknown) (by_the_command_line(&command)) });
        }
    };
    let copies: Vec<ListedCopy> = audit
        .gone
        .iter()
        .take(limit)
        .map(|(copy, gone)| ListedCopy {
            copy: SelectedCopy::of(copy, RedeliveryKind::Restore),
            why: why_gone(*gone).to_owned(),
            selected: gone.is_loss(),
        })
        .collect();
    if let Some(format) = file.format {
        return copies_file((&page, &viewer), format, "lost", &copies, audit.gone.len() > limit);
    }
    let query = form_urlencoded::Serializer::new(String::new())
        .extend_pairs([("mailbox", mailbox.as_str()), ("since", asked.since())])
        .finish();
    shown(&html! {
        @for (user, mailbox, error) in &audit.unseen { p .bad { "Not searched: " (mailbox) " of " (user) ": " (error) } }
        @if audit.copies == 0 {
            p .bad {
                "Nothing was delivered to a mailbox of that name since then. Write the name as these lists show it."
            }
        } @else if audit.mailboxes > audit.unseen.len() {
            p {
                "Copies recorded: " (audit.copies)
                ". Mailboxes searched: " (audit.mailboxes - audit.unseen.len()) " of " (audit.mailboxes)
                ". Gone: " (audit.gone.len()) ". "
                @if !copies.is_empty() { "A copy that its owner has probably deleted or filed is not selected." }
                @else if audit.unseen.is_empty() { "All of them are in their mailboxes." }
            }
        }
        @if !copies.is_empty() { (select(&page, &copies)) (list_file::links(&format!("/again/lost?{query}"))) }
        (more_by(audit.gone.len() > MOST, &command))
    })
}

fn mistake(problem: &str) -> Markup {
    html! { p .bad role="alert" { "Since: " (problem) } }
}

fn screen(path: &str, viewer: &WebSession, shown: &Markup) -> Response {
    let main = html! {
        nav .tabs aria-label="Lists" {
            ul {
                @for (section, name) in SECTIONS {
                    li { a href=(section) aria-current=[(section == path).then_some("true")] { (name) } }
                }
            }
        }
        (shown)
    };
    page_of("Deliver again", viewer, &main)
}

fn page_of(title: &str, viewer: &WebSession, main: &Markup) -> Response {
    layout::page(title, Some(Screen::Again), Some(viewer), main).into_response()
}

/// The command line for the same, for more copies, or if the web UI may not open mailboxes.
fn command(site: &Site, options: &str) -> String {
    let place = site.directory().map(|directory| format!(" --embedded {}", shell_word(&directory.to_string_lossy())));
    format!("maildrop_command replay{} {options}", place.unwrap_or_default())
}

fn more_by(more: bool, command: &str) -> Markup {
    html! {
        @if more {
            p { "There are more than these " (MOST) ". All of them on the command line: " code { (command) } }
        } @else {
            p .hint { "The same on the command line: " code { (command) } }
        }
    }
}

fn by_the_command_line(command: &str) -> Markup {
    html! { p { "The web UI may not open mailboxes (" code { "web.allow_mailbox_access" } "). On the command line: " code { (command) } } }
}

/// A form to select some of these copies.
fn select(page: &Page, copies: &[ListedCopy]) -> Markup {
    let caption = "Copies that can be delivered again";
    let [message, mailbox, recipient] = DESCRIBED;
    if !page.site.opens_mailboxes() {
        let rows = copies.iter().map(|ListedCopy { copy, why, .. }| row(Some(copy), why.render()));
        return html! {
            (table("untitled", caption, [message, mailbox, recipient, ("Reason", "")], rows))
            p { "The web UI may not open mailboxes (" code { "web.allow_mailbox_access" } "), so it delivers nothing." }
        };
    }
    let rows = copies.iter().map(|ListedCopy { copy, why, selected }| {
        let pick = html! {
            input type="checkbox" name="copy" value=(copy.request) checked[*selected] aria-label={ (copy.place()) ": " (subject(copy)) };
        };
        let [message, mailbox, recipient] = described(Some(copy));
        [pick, message, mailbox, recipient, why.render()]
    });
    html! {
        form method="post" action="/again/plan" {
            (table("untitled", caption, [("Select", ""), message, mailbox, recipient, ("Reason", "")], rows))
            p { button .go { "What would happen?" } }
        }
    }
}

fn subject(copy: &SelectedCopy) -> &str {
    copy.subject.as_deref().filter(|subject| !subject.trim().is_empty()).unwrap_or(&copy.message_id)
}

const DESCRIBED: [Column; 3] = [("Message", ""), ("Mailbox", ""), ("Recipient", "")];

/// The table cells that identify the copy.
fn described(copy: Option<&SelectedCopy>) -> [Markup; 3] {
    let Some(copy) = copy else { return [(); 3].map(|()| html! { "not known" }) };
    let (identity, lock) = (hex::encode(copy.identity.as_bytes()), hex::encode(copy.lock.digest()));
    [
        html! { a href={ "/messages/" (identity) "?lock=" (lock) } { bdi { (subject(copy)) } } },
        html! { (copy.mailbox) " of " (copy.user) @if copy.role == Role::Sender { span .hint { " (Sent copy)" } } },
        html! { (copy.recipient) },
    ]
}

fn row(copy: Option<&SelectedCopy>, last: Markup) -> [Markup; 4] {
    let [message, mailbox, recipient] = described(copy);
    [message, mailbox, recipient, last]
}

/// A table of copies, and of what comes of each.
fn outcomes(caption: impl Render, head: &'static str, rows: impl Iterator<Item = [Markup; 4]>) -> Markup {
    let [message, mailbox, recipient] = DESCRIBED;
    table("", caption, [message, mailbox, recipient, (head, "")], rows)
}

/// The section on the screen of a message, for users who may redeliver.
pub(super) fn of_message(page: &Page, copies: &[(RedeliveryRequest, String)], commands: &[String]) -> Markup {
    html! {
        h2 #again { "Deliver again" }
        @if copies.is_empty() {
            p { "There is nothing to deliver again." }
        } @else if !page.site.opens_mailboxes() {
            p {
                "The web UI may not open mailboxes (" code { "web.allow_mailbox_access" } "). On the command line; without "
                code { "--yes" } ", " code { "--restore" } " only shows what is gone:"
            }
            @for options in commands { p { code { (command(&page.site, options)) } } }
        } @else {
            form method="post" action="/again/plan" {
                fieldset {
                    legend { "Select copies. A copy that is in its mailbox is not delivered again." }
                    p .hint {
                        "“What would happen?” searches each selected mailbox, and says whether the copy is there now. It changes nothing."
                    }
                    @for (at, (request, printed)) in copies.iter().take(MOST).enumerate() {
                        label .check {
                            input type="checkbox" name="copy" value=(request) checked[at == 0 && request.kind != RedeliveryKind::Restore];
                            span { (printed) }
                        }
                    }
                }
                p { button .go { "What would happen?" } }
            }
        }
    }
}

/// The copies that a form names, or why they cannot be parsed.
fn requests(body: &str) -> Result<Vec<RedeliveryRequest>, &'static str> {
    let mut requests: Vec<RedeliveryRequest> = Vec::new();
    for (_, value) in form_urlencoded::parse(body.as_bytes()).filter(|(name, _)| name == "copy") {
        let request = RedeliveryRequest::read(&value).ok_or("This form is not complete: go back to the list.")?;
        if !requests.contains(&request) {
            requests.push(request);
        }
    }
    match requests.len() {
        0 => Err("Nothing was selected. Go back, and select a copy."),
        1..=MOST => Ok(requests),
        _ => Err("More copies were selected than can be delivered again at once."),
    }
}

/// The copies that a form asks for, or the error page.
async fn asked_for(page: &Page, viewer: &WebSession, body: &str) -> Answered<Vec<RedeliveryRequest>> {
    let no = |status: StatusCode, reason: &str| {
        let content = html! { p .bad role="alert" { (reason) } p { a href="/again" { "Deliver again" } } };
        (status, layout::page("Nothing was done", None, Some(viewer), &content)).into_response()
    };
    if !page.site.opens_mailboxes() {
        return Err(no(
            StatusCode::CONFLICT,
            "The web UI may not open mailboxes (web.allow_mailbox_access in its configuration).",
        ));
    }
    requests(body).map_err(|problem| no(StatusCode::BAD_REQUEST, problem))
}

/// Shows a preview of the redelivery. Nothing is written, created or locked.
pub(super) async fn would(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    body: String,
) -> Answered {
    let requests = asked_for(&page, &viewer, &body).await?;
    let no_time = || ReplayOutcome::Deferred("there was no time to search the mailbox".into());
    let look = move |site: &Site, deadline: Deadline| {
        let look = |request| match deadline.passed() {
            true => Ok(Preview { copy: None, outcome: no_time(), may_name_others: false }),
            false => preview(site, request, deadline),
        };
        requests.into_iter().map(look).collect::<Result<Vec<_>, DatabaseError>>()
    };
    let previews = page.blocking.run(Work::Look, LOOK, look).await.map_err(|why| not_done(why, &viewer))?;
    let previews = previews.map_err(|problem| failed(&problem.into(), Some(&viewer)))?;
    let (asked_about, sure): (Vec<_>, Vec<_>) = previews
        .iter()
        .filter(|one| matches!(one.outcome, ReplayOutcome::Delivered(_)))
        .filter_map(|one| Some((one.copy.as_ref()?, one.may_name_others)))
        .partition(|(_, may_name_others)| *may_name_others);
    let rows = previews.iter().map(|one| row(one.copy.as_ref(), would_happen(&one.outcome)));
    let main = html! {
        (outcomes("Nothing is done yet.", "What would happen", rows))
        @if asked_about.is_empty() && sure.is_empty() {
            p {
                @if previews.iter().any(|one| one.outcome.failed()) { "None of this can be done here. " } @else { "There is nothing to do. " }
                a href="/again" { "Deliver again" }
            }
        } @else {
            form method="post" action="/again/start" {
                @for (copy, _) in &sure { input type="hidden" name="copy" value=(copy.request); }
                @if !asked_about.is_empty() {
                    fieldset {
                        legend { "May these be delivered with the address of another recipient?" }
                        p .hint {
                            "A message without Message-ID or Date is identified by its Received lines, so they are not changed. "
                            "They may say for whom the copy was received that it is taken from."
                        }
                        @for (copy, _) in &asked_about {
                            label .check {
                                input type="checkbox" name="copy" value=(copy.request);
                                span { (subject(copy)) ", to " (copy.place()) }
                            }
                        }
                    }
                }
                p {
                    button .go {
                        @match sure.as_slice() {
                            _ if !asked_about.is_empty() => { "Deliver the selected copies" }
                            [(one, _)] => { "Deliver it to " (one.place()) }
                            several => { "Deliver these " (several.len()) " copies" }
                        }
                    }
                }
            }
        }
    };
    Ok(page_of("What would happen", &viewer, &main))
}

fn would_happen(outcome: &ReplayOutcome) -> Markup {
    match outcome {
        ReplayOutcome::Delivered(what) => html! { span .good { (what) } },
        ReplayOutcome::AlreadyThere => html! { "nothing: it is there" },
        ReplayOutcome::Deferred(why) | ReplayOutcome::Refused(why) => {
            layout::state("bad", &format!("it cannot be done: {why}"))
        }
    }
}

/// Starts the job, and redirects to its screen.
pub(super) async fn start(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    body: String,
) -> Answered {
    let requests = asked_for(&page, &viewer, &body).await?;
    let id = page.jobs.begin(&page.blocking, &viewer, requests).map_err(|why| not_done(why, &viewer))?;
    Ok(Redirect::to(&format!("/again/runs/{id}")).into_response())
}

/// Shows the results so far.
pub(super) async fn job(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    Path(id): Path<String>,
) -> Response {
    let found = Uuid::parse_str(&id).ok().and_then(|id| page.jobs.of(id));
    let Some(mut job) = found else {
        let content = html! {
            p {
                "This process of the web UI does not remember it any more. "
                "The page of each message says what was delivered."
            }
        };
        return (StatusCode::NOT_FOUND, layout::page("Not found", None, Some(&viewer), &content)).into_response();
    };
    let (came, ended) = job.so_far(AWAITED).await;
    let (class, verdict) = verdict(&came, job.of, ended);
    let begun = html! { "Begun by " (job.by) ", " (layout::moment(job.began_at)) "." };
    let rows = came.iter().map(|one| row(one.copy.as_ref(), outcome_text(&one.outcome)));
    let main = html! {
        @if !ended {
            p #live {
                span data-said role="status" { "It continues without this page. " }
                a href={ "/again/runs/" (job.id) } { "Refresh" }
            }
        }
        div data-refresh=[(!ended).then_some("2")] {
            p class={ "verdict " (class) } { (verdict) }
            (outcomes(begun, "Result", rows))
        }
        p { a href="/again" { "Deliver again" } }
    };
    page_of("Delivered again", &viewer, &main)
}

/// The class and text of the summary line.
fn verdict(came: &[CopyResult], of: usize, ended: bool) -> (&'static str, String) {
    if !ended {
        return ("wait", format!("Under way: {} of {of} done with.", came.len()));
    }
    let count = |is: fn(&ReplayOutcome) -> bool| came.iter().filter(|one| is(&one.outcome)).count();
    let failed = count(ReplayOutcome::failed);
    let class = if failed > 0 || came.len() < of { "bad" } else { "good" };
    if let ([one], 1) = (came, of) {
        let place = one.copy.as_ref().map(|copy| format!(" {}", copy.place())).unwrap_or_default();
        let line = match &one.outcome {
            ReplayOutcome::Delivered(how) => format!("DELIVERED to{place}: {how}."),
            ReplayOutcome::AlreadyThere => format!("ALREADY THERE:{place}. Nothing was done."),
            ReplayOutcome::Deferred(why) => format!("NOT DELIVERED to{place}, but may be later: {why}."),
            ReplayOutcome::Refused(why) => format!("NOT DELIVERED to{place}: {why}."),
        };
        return (class, line);
    }
    let counts = [
        (count(|outcome| matches!(outcome, ReplayOutcome::Delivered(_))), "delivered"),
        (count(|outcome| matches!(outcome, ReplayOutcome::AlreadyThere)), "already there"),
        (failed, "not delivered"),
        (of - came.len(), "not tried, since the process was ended"),
    ];
    let counts = counts.iter().filter(|(number, _)| *number > 0);
    let counts: Vec<String> = counts.map(|(number, what)| format!("{number} {what}")).collect();
    (class, format!("{}.", counts.join(", ")))
}

fn outcome_text(outcome: &ReplayOutcome) -> Markup {
    match outcome {
        ReplayOutcome::Delivered(how) => layout::state("good", &format!("delivered: {how}")),
        ReplayOutcome::AlreadyThere => html! { span .good { "already there" } },
        ReplayOutcome::Deferred(why) => layout::state("wait", &format!("not now: {why}")),
        ReplayOutcome::Refused(why) => layout::state("bad", &format!("not as it is: {why}")),
    }
}

fn not_done(why: Rejected, viewer: &WebSession) -> Response {
    let content = html! {
        p .bad role="alert" { "Nothing was done: " (why) "." }
        @if why == Rejected::Busy { p { "Others use it now. Try again in a moment." } }
    };
    (StatusCode::SERVICE_UNAVAILABLE, layout::page("Nothing was done", None, Some(viewer), &content)).into_response()
}
