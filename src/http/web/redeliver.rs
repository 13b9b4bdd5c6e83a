//! Redelivery of owed copies, failed copies, and copies that a mailbox has lost.
//!
//! ```text
//! a list, or a message ── select ──▶ what would happen ── confirm ──▶ a job ──▶ its results
//! ```

use super::Answered;
use super::activity::{deferred_path, in_words};
use super::layout::{self, Screen, table};
use super::list_file::{self, FileQuery};
use super::visit::Visit;
use crate::base::hex;
use crate::base::terminal::shell_word;
use crate::base::timestamp;
use crate::http::blocking_pools::{QueryFailure, Rejected, Work};
use crate::ledger::audit_queries::{self, Selection};
use crate::ledger::{Database, failures};
use crate::message::Role;
use crate::operations::manual_redelivery::{
    self, CopyOutcome, RedeliveryKind, RedeliveryRequest, SelectedCopy, preview, why_gone,
};
use crate::operations::redelivery;
use crate::operations::replay::ReplayOutcome;
use crate::site::Site;
use axum::extract::{Path, Query};
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

const OWED: &str = "/again";
const FAILED: &str = "/again/failed";
const LOST: &str = "/again/lost";
const PLAN: &str = "/again/plan";
const WOULD: &str = "What would happen?";
const SECTIONS: [(&str, &str); 3] = [(OWED, "Owed"), (FAILED, "Failed"), (LOST, "Lost by a mailbox")];

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

    /// The URL of this list.
    fn path(&self, section: &str) -> String {
        let mailbox = Some(("mailbox", self.mailbox.trim())).filter(|(_, mailbox)| !mailbox.is_empty());
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(mailbox.into_iter().chain([("since", self.since())]));
        format!("{section}?{}", query.finish())
    }
}

/// A copy of a list: why it is listed, and whether it is selected by default.
struct ListedCopy {
    copy: SelectedCopy,
    why: String,
    selected: bool,
}

/// One of the three lists: what is offered for redelivery.
struct CopyList {
    section: &'static str,
    /// The URL, with its query.
    path: String,
    /// What is above the copies.
    head: Markup,
    copies: Vec<ListedCopy>,
    more: bool,
    /// What is said if there is none.
    none: &'static str,
    /// The options of `replay` for the same.
    options: String,
}

impl CopyList {
    fn send(&self, visit: &Visit, file: &FileQuery) -> Response {
        let Self { section, path, head, copies, more, none, options } = self;
        if let Some(format) = file.format {
            let name = section.rsplit('/').next().filter(|name| *name != "again").unwrap_or("owed");
            let rows = copies.iter().map(|ListedCopy { copy, why, .. }| {
                json!({
                    "user": copy.user, "mailbox": copy.mailbox, "role": copy.role.as_str(), "recipient": copy.recipient,
                    "reason": why, "subject": copy.subject, "message_id": copy.message_id,
                })
            });
            let columns = "user,mailbox,role,recipient,reason,subject,message_id";
            return list_file::send(visit, format, name, columns, rows, *more);
        }
        let opens = visit.page.site.opens_mailboxes();
        let rows = copies.iter().map(|one| (Some(&one.copy), one.why.render(), opens.then_some(one.selected)));
        let copies_table = table_of("Copies that can be delivered again", "Reason", rows);
        let shown = html! {
            (head)
            @if copies.is_empty() { p { (none) } } @else {
                @if opens { (form_of(PLAN, WOULD, &copies_table)) } @else { (copies_table) p { (mailboxes_are_closed()) } }
                (list_file::links(path))
            }
            @if *more { p { "There are more than these " (MOST) "." } }
            p .hint { "The same on the command line: " code { (command(&visit.page.site, options)) } }
        };
        self::shown(section, visit, &shown)
    }
}

/// A page of a section.
fn shown(section: &str, visit: &Visit, content: &Markup) -> Response {
    let main = html! {
        nav .tabs aria-label="Lists" {
            ul {
                @for (path, name) in SECTIONS {
                    li { a href=(path) aria-current=[(section == path).then_some("true")] { (name) } }
                }
            }
        }
        (content)
    };
    visit.screen(Screen::Again, &main)
}

/// Sent copies that deliveries left owed.
pub(super) async fn owed(visit: Visit, Query(file): Query<FileQuery>) -> Answered {
    let limit = file.limit(MOST);
    let (copies, more) = visit.ask(move |database| audit_queries::latest_owed(database, limit)).await?;
    let listed = |copy: &audit_queries::RecordedCopy| ListedCopy {
        copy: SelectedCopy::of(copy, RedeliveryKind::Finish),
        why: copy.reason.clone().unwrap_or_default(),
        selected: true,
    };
    let head = html! {
        p {
            "An owed copy is missing in its author's Sent mailbox; the mail itself is delivered. "
            "The service makes it by itself later. " (deferred())
        }
    };
    let (section, copies, options) = (OWED, copies.iter().map(listed).collect(), "--owed".into());
    let list = CopyList { section, path: section.into(), head, copies, more, none: "No Sent copy is owed.", options };
    Ok(list.send(&visit, &file))
}

/// Recent attempts that have not delivered their copy.
pub(super) async fn not_delivered(
    visit: Visit,
    Query(asked): Query<RedeliverQuery>,
    Query(file): Query<FileQuery>,
) -> Answered {
    let (limit, path) = (file.limit(MOST), asked.path(FAILED));
    let form = html! {
        form .search method="get" action=(FAILED) { (asked.since_field()) div { button { "Show" } } }
    };
    let since = match timestamp::since(asked.since()) {
        Ok(since) => since,
        Err(problem) => return Ok(shown(FAILED, &visit, &html! { (form) (mistake(&problem)) })),
    };
    let find = move |database: &mut dyn Database| {
        Ok((manual_redelivery::failed(database, since, limit)?, failures::count(database, since)?))
    };
    let ((copies, more), before_delivery) = visit.ask_long(LOOK, find).await?;
    let listed = |(copy, outcome): manual_redelivery::Failed| ListedCopy {
        copy,
        why: in_words(outcome.as_ref()),
        selected: true,
    };
    let head = html! {
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
    };
    let (section, copies) = (FAILED, copies.into_iter().map(listed).collect());
    let options = format!("--failed --since {}", shell_word(asked.since()));
    let list = CopyList { section, path, head, copies, more, none: "No attempt has failed since then.", options };
    Ok(list.send(&visit, &file))
}

/// A hint to the list of deferred mail, since users may look for it here first.
fn deferred() -> Markup {
    html! {
        "Postfix tries deferred mail again by itself: " a href=(deferred_path()) { "what is deferred now" }
        ". The page of a message can deliver it at once."
    }
}

/// The copies that the mailboxes of one user have lost.
pub(super) async fn lost(visit: Visit, Query(asked): Query<RedeliverQuery>, Query(file): Query<FileQuery>) -> Answered {
    let (limit, mailbox) = (file.limit(MOST), asked.mailbox.trim().to_owned());
    let form = html! {
        p {
            "Copies that were delivered since that time, and that the mailbox has lost: "
            "it was restored from an old backup, or recreated."
        }
        form .search method="get" action=(LOST) {
            label {
                "A user, or one mailbox of a user: scuba, scuba/Sent"
                input name="mailbox" value=(mailbox) autocapitalize="none" spellcheck="false" required;
            }
            (asked.since_field())
            div { button { "Search the mailbox" } }
        }
    };
    let shown = |more: &Markup| shown(LOST, &visit, &html! { (form) (more) });
    if mailbox.is_empty() {
        return Ok(shown(&html! {}));
    }
    let since = match timestamp::since(asked.since()) {
        Ok(since) => since,
        Err(problem) => return Ok(shown(&mistake(&problem))),
    };
    let options = format!("--restore --since {} --mailbox {}", shell_word(asked.since()), shell_word(&mailbox));
    if !visit.page.site.opens_mailboxes() {
        let command = command(&visit.page.site, &options);
        return Ok(shown(&html! { p { (mailboxes_are_closed()) " On the command line: " code { (command) } } }));
    }
    let look = visit.page.blocking.query_in_pool(Work::Look, LOOK, move |site, database, until| {
        redelivery::lost(site, database, &Selection { since, mailbox: Some(&mailbox) }, until)
    });
    let audit = look.await.map_err(|problem| match problem {
        QueryFailure::Rejected(why) => not_done(why, &visit),
        problem @ QueryFailure::Database(_) => visit.failed(&problem),
    })?;
    let listed = |(copy, gone): &(audit_queries::RecordedCopy, _)| ListedCopy {
        copy: SelectedCopy::of(copy, RedeliveryKind::Restore),
        why: why_gone(*gone).to_owned(),
        selected: gone.is_loss(),
    };
    let searched = audit.mailboxes - audit.unseen.len();
    let head = html! {
        (form)
        @for (user, mailbox, error) in &audit.unseen { p .bad { "Not searched: " (mailbox) " of " (user) ": " (error) } }
        @if audit.copies > 0 && searched > 0 {
            p {
                "Copies recorded: " (audit.copies) ". Mailboxes searched: " (searched) " of " (audit.mailboxes)
                ". Gone: " (audit.gone.len()) ". "
                @if !audit.gone.is_empty() { "A copy that its owner has probably deleted or filed is not selected." }
            }
        }
    };
    let none = match audit.copies {
        0 => "Nothing was delivered to a mailbox of that name since then. Write the name as these lists show it.",
        _ if audit.unseen.is_empty() => "All of them are in their mailboxes.",
        _ => "",
    };
    let copies = audit.gone.iter().take(limit).map(listed).collect();
    let (section, path, more) = (LOST, asked.path(LOST), audit.gone.len() > limit);
    Ok(CopyList { section, path, head, copies, more, none, options }.send(&visit, &file))
}

fn mistake(problem: &str) -> Markup {
    html! { p .bad role="alert" { "Since: " (problem) } }
}

/// The command line for the same, for more copies, or if the web UI may not open mailboxes.
fn command(site: &Site, options: &str) -> String {
    let place = site.directory().map(|directory| format!(" --embedded {}", shell_word(&directory.to_string_lossy())));
    format!("maildrop_command replay{} {options}", place.unwrap_or_default())
}

fn mailboxes_are_closed() -> Markup {
    html! { "The web UI may not open mailboxes (" code { "web.allow_mailbox_access" } "), so it delivers nothing." }
}

/// A row of a table of copies: what is said of the copy, and, if it can be selected, whether it is by default.
type CopyRow<'a> = (Option<&'a SelectedCopy>, Markup, Option<bool>);

/// A table of copies. `last` is the name of the column with what is said of them.
fn table_of<'a>(caption: impl Render, last: &'static str, rows: impl Iterator<Item = CopyRow<'a>>) -> Markup {
    let rows = rows.map(|(copy, words, selected)| match copy {
        None => [html! { "not known" }, html! { "not known" }, html! { "not known" }, words],
        Some(copy) => {
            let (identity, lock) = (hex::encode(copy.identity.as_bytes()), hex::encode(copy.lock.digest()));
            let message = html! {
                @if let Some(selected) = selected {
                    input type="checkbox" name="copy" value=(copy.request) checked[selected] aria-label={ (copy.place()) ": " (subject(copy)) };
                    " "
                }
                a href={ "/messages/" (identity) "?lock=" (lock) } { bdi { (subject(copy)) } }
            };
            let sent = copy.role == Role::Sender;
            let mailbox = html! { (copy.mailbox) " of " (copy.user) @if sent { span .hint { " (Sent copy)" } } };
            [message, mailbox, copy.recipient.render(), words]
        }
    });
    table("", caption, [("Message", ""), ("Mailbox", ""), ("Recipient", ""), (last, "")], rows)
}

fn subject(copy: &SelectedCopy) -> &str {
    layout::not_blank(copy.subject.as_deref()).unwrap_or(&copy.message_id)
}

/// A form that sends the selected copies.
fn form_of(action: &str, button: &str, copies: &Markup) -> Markup {
    html! { form method="post" action=(action) { (copies) p { button .go { (button) } } } }
}

/// A copy of a message that can be redelivered, as its screen shows it.
pub(super) struct Offer {
    pub(super) request: RedeliveryRequest,
    pub(super) words: String,
    /// The options of `replay` for the same.
    pub(super) options: String,
}

/// The section on the screen of a message, for users who may redeliver.
pub(super) fn of_message(visit: &Visit, offers: &[Offer]) -> Markup {
    html! {
        h2 #again { "Deliver again" }
        @if offers.is_empty() {
            p { "There is nothing to deliver again." }
        } @else if !visit.page.site.opens_mailboxes() {
            p {
                (mailboxes_are_closed()) " On the command line; without " code { "--yes" } ", " code { "--restore" }
                " only shows what is gone:"
            }
            @for offer in offers { p { code { (command(&visit.page.site, &offer.options)) } } }
        } @else {
            (form_of(PLAN, WOULD, &html! {
                fieldset {
                    legend { "Select copies. A copy that is in its mailbox is not delivered again." }
                    p .hint {
                        "“" (WOULD) "” searches each selected mailbox, and says whether the copy is there now. It changes nothing."
                    }
                    @for (at, Offer { request, words, .. }) in offers.iter().take(MOST).enumerate() {
                        label .check {
                            input type="checkbox" name="copy" value=(request) checked[at == 0 && request.kind != RedeliveryKind::Restore];
                            span { (words) }
                        }
                    }
                }
            }))
        }
    }
}

/// The copies that a form names, or why nothing is done.
fn requests(visit: &Visit, body: &str) -> Result<Vec<RedeliveryRequest>, (StatusCode, Markup)> {
    if !visit.page.site.opens_mailboxes() {
        return Err((StatusCode::CONFLICT, mailboxes_are_closed()));
    }
    let bad = |why: &str| Err((StatusCode::BAD_REQUEST, why.render()));
    let mut requests: Vec<RedeliveryRequest> = Vec::new();
    for (_, value) in form_urlencoded::parse(body.as_bytes()).filter(|(name, _)| name == "copy") {
        match RedeliveryRequest::read(&value) {
            None => return bad("This form is not complete: go back to the list."),
            Some(request) if requests.contains(&request) => {}
            Some(request) => requests.push(request),
        }
    }
    match requests.len() {
        0 => bad("Nothing was selected. Go back, and select a copy."),
        1..=MOST => Ok(requests),
        _ => bad("More copies were selected than can be delivered again at once."),
    }
}

fn nothing_done((status, why): (StatusCode, Markup), visit: &Visit) -> Response {
    let content = html! { p .bad role="alert" { (why) } p { a href="/again" { "Deliver again" } } };
    visit.refusal(status, "Nothing was done", &content)
}

fn not_done(why: Rejected, visit: &Visit) -> Response {
    let shown = html! { (why) "." @if why == Rejected::Busy { " Others use it now. Try again in a moment." } };
    nothing_done((StatusCode::SERVICE_UNAVAILABLE, shown), visit)
}

/// Shows a preview of the redelivery. Nothing is written, created or locked.
pub(super) async fn show_preview(visit: Visit, body: String) -> Answered {
    let requests = requests(&visit, &body).map_err(|problem| nothing_done(problem, &visit))?;
    let look = move |site: &Site, deadline| {
        requests.into_iter().map(|request| preview(site, request, deadline)).collect::<Vec<_>>()
    };
    let previews = visit.page.blocking.run(Work::Look, LOOK, look).await.map_err(|why| not_done(why, &visit))?;
    let is_possible = |one: &CopyOutcome| matches!(one.outcome, ReplayOutcome::Delivered(_));
    let rows = previews.iter().map(|one| {
        let words = html! {
            @match &one.outcome {
                ReplayOutcome::Delivered(what) => {
                    span .good { (what) }
                    @if one.may_name_others { "; " span .bad { "its Received fields may name another recipient" } }
                }
                ReplayOutcome::AlreadyThere => "nothing: it is there",
                ReplayOutcome::Deferred(why) | ReplayOutcome::Refused(why) => {
                    (layout::state("bad", &format!("it cannot be done: {why}")))
                }
            }
        };
        (one.copy.as_ref(), words, is_possible(one).then_some(!one.may_name_others))
    });
    let copies = table_of("Nothing is done yet.", "What would happen", rows);
    let main = html! {
        @if previews.iter().any(is_possible) {
            (form_of("/again/start", "Deliver the selected copies", &copies))
            @if previews.iter().any(|one| one.may_name_others) {
                p .hint {
                    "A message without Message-ID or Date is identified by its Received lines, so they are not changed. They may "
                    "say for whom the copy was received that it is taken from. Select it only if its reader may see that address."
                }
            }
        } @else {
            (copies)
            p {
                @if previews.iter().any(|one| one.outcome.failed()) { "None of this can be done here. " } @else { "There is nothing to do. " }
                a href="/again" { "Deliver again" }
            }
        }
    };
    Ok(visit.page_of("What would happen", Screen::Again, &main))
}

/// Starts the job, and redirects to its screen.
pub(super) async fn start(visit: Visit, body: String) -> Answered {
    let requests = requests(&visit, &body).map_err(|problem| nothing_done(problem, &visit))?;
    let id = visit.page.jobs.begin(&visit, requests).map_err(|why| not_done(why, &visit))?;
    Ok(Redirect::to(&format!("/again/runs/{id}")).into_response())
}

/// Shows the results so far.
pub(super) async fn job(visit: Visit, Path(id): Path<String>) -> Response {
    let found = Uuid::parse_str(&id).ok().and_then(|id| visit.page.jobs.of(id));
    let Some(mut job) = found else {
        let content = html! {
            p {
                "This process of the web UI does not remember it any more. "
                "The page of each message says what was delivered."
            }
        };
        return visit.refusal(StatusCode::NOT_FOUND, "Not found", &content);
    };
    let (outcomes, ended) = job.so_far(AWAITED).await;
    let (class, verdict) = verdict(&outcomes, job.of, ended);
    let begun = html! { "Begun by " (job.by) ", " (layout::moment(job.began_at)) "." };
    let rows = outcomes.iter().map(|one| (one.copy.as_ref(), outcome_text(&one.outcome), None));
    let main = html! {
        @if !ended {
            p #live {
                span data-said role="status" { "It continues without this page. " }
                a href={ "/again/runs/" (job.id) } { "Refresh" }
            }
        }
        div data-refresh=[(!ended).then_some("2")] {
            p class={ "verdict " (class) } { (verdict) }
            (table_of(begun, "Result", rows))
        }
        p { a href="/again" { "Deliver again" } }
    };
    visit.page_of("Delivered again", Screen::Again, &main)
}

/// The class and text of the summary line.
fn verdict(outcomes: &[CopyOutcome], of: usize, ended: bool) -> (&'static str, String) {
    if !ended {
        return ("wait", format!("Under way: {} of {of} done with.", outcomes.len()));
    }
    let count = |is: fn(&ReplayOutcome) -> bool| outcomes.iter().filter(|one| is(&one.outcome)).count();
    let failed = count(ReplayOutcome::failed);
    let class = if failed > 0 || outcomes.len() < of { "bad" } else { "good" };
    if let ([one], 1) = (outcomes, of) {
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
        (of - outcomes.len(), "not tried, since the process was ended"),
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
