//! Deliver again: what is owed, what failed, what a mailbox has lost; what would happen, and doing it.
//!
//! ```text
//! a list, or a message ── pick ──▶ what would happen ── confirm ──▶ a run ──▶ what came of it
//! ```

use super::activity::{deferred_path, in_words};
use super::layout::{self, Screen};
use super::runs::Came;
use super::{Page, failed};
use crate::base::hex;
use crate::base::terminal::shell_word;
use crate::base::timestamp;
use crate::database::DatabaseError;
use crate::ledger::recorded;
use crate::ledger::web_sessions::WebSession;
use crate::mailbox_work::{MailboxWork, NotDone};
use crate::message::Role;
use crate::operations::again::{self, Choice, How, LastTry, Lost, Picked, Prospect, Since, last_try, plan, why_gone};
use crate::operations::replay::ReplayOutcome;
use crate::site::Site;
use axum::Extension;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use serde::Deserialize;
use std::time::{Duration, Instant};
use url::form_urlencoded;
use uuid::Uuid;

/// How many copies are listed, and are delivered again at once. The command line does more.
const MOST: usize = 100;
/// How long a look into mailboxes may take: less than any request may.
const LOOK: Duration = Duration::from_secs(25);
/// Whether a cause is gone is looked for no longer: what would happen is told all the same.
const LOOK_FOR_CAUSES: Duration = Duration::from_secs(5);
/// How long the screen of a run waits for its end before it shows what there is.
const AWAITED: Duration = Duration::from_secs(5);
/// How far back is looked, unless somebody says.
const DAY: &str = "1d";

const SECTIONS: [(&str, &str); 3] =
    [("/again", "Owed"), ("/again/failed", "Failed"), ("/again/lost", "Lost by a mailbox")];

#[derive(Debug, Default, Deserialize)]
pub(super) struct Asked {
    #[serde(default)]
    since: String,
    #[serde(default)]
    mailbox: String,
}

impl Asked {
    fn since(&self) -> &str {
        if self.since.trim().is_empty() { DAY } else { self.since.trim() }
    }
}

/// Sent copies that deliveries left owed.
pub(super) async fn owed(State(page): State<Page>, Extension(viewer): Extension<WebSession>) -> Response {
    let found = page.ledger.ask(|database| recorded::newest_owed(database, MOST)).await;
    let (copies, more) = match found {
        Ok((copies, more)) => (copies.iter().map(|copy| Picked::of(copy, How::Finish)).collect::<Vec<_>>(), more),
        Err(problem) => return failed(&problem, Some(&viewer)),
    };
    let command = command(&page.site, "--owed");
    let shown = html! {
        p {
            "Sent copies that deliveries left owed: the mail itself is delivered. "
            "The service finishes them by itself, sooner or later. " (deferred())
        }
        @if copies.is_empty() {
            p { "No Sent copy is owed." }
        } @else {
            (pick(&page, &copies, |copy| (copy.reason.clone().unwrap_or_default(), true)))
            (more_by(more, &command))
        }
    };
    screen("/again", &viewer, &shown)
}

/// What was tried lately and has not come to its recipient.
pub(super) async fn not_delivered(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    Query(asked): Query<Asked>,
) -> Response {
    let form = html! {
        form .search method="get" action="/again/failed" { (since_field(&asked)) div { button { "Look" } } }
    };
    let since = match timestamp::since(asked.since()) {
        Ok(since) => since,
        Err(problem) => return screen("/again/failed", &viewer, &html! { (form) (mistake(&problem)) }),
    };
    let found = page.ledger.ask_long(LOOK, move |database| again::failed(database, since, MOST)).await;
    let (copies, more) = match found {
        Ok(found) => found,
        Err(problem) => return failed(&problem, Some(&viewer)),
    };
    let (copies, came_to): (Vec<Picked>, Vec<_>) = copies.into_iter().unzip();
    let why = |copy: &Picked| {
        let at = copies.iter().position(|one| one.choice == copy.choice);
        at.and_then(|at| came_to.get(at)).map(|came_to| in_words(came_to.as_ref())).unwrap_or_default()
    };
    let command = command(&page.site, &format!("--failed --since {}", shell_word(asked.since())));
    let shown = html! {
        p {
            "What was tried, and has not come to its recipient, the oldest first: refused, deferred, or never ended. " (deferred())
        }
        (form)
        @if copies.is_empty() { p { "Nothing of that time has failed." } }
        @else { (pick(&page, &copies, |copy| (why(copy), true))) (more_by(more, &command)) }
    };
    screen("/again/failed", &viewer, &shown)
}

/// Where the mail is that has not come yet, and that somebody may look for here first.
fn deferred() -> Markup {
    html! {
        "Postfix tries deferred mail again by itself: " a href=(deferred_path()) { "what is deferred now" }
        ". On the screen of each message it can be delivered at once."
    }
}

/// What the mailboxes of one user have lost.
pub(super) async fn lost(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    Query(asked): Query<Asked>,
) -> Response {
    let mailbox = asked.mailbox.trim().to_owned();
    let form = html! {
        form .search method="get" action="/again/lost" {
            label {
                "A user, or one mailbox: scuba, scuba/Sent"
                input name="mailbox" value=(mailbox) autocapitalize="none" spellcheck="false" required;
            }
            (since_field(&asked))
            div { button { "Look into it" } }
        }
    };
    let told = html! {
        p {
            "What was delivered since that moment, and is not in the mailbox any more: "
            "since it came back from an old backup, or was made anew."
        }
        (form)
    };
    let shown = |more: &Markup| screen("/again/lost", &viewer, &html! { (told) (more) });
    if mailbox.is_empty() {
        return shown(&html! {});
    }
    let since = match timestamp::since(asked.since()) {
        Ok(since) => since,
        Err(problem) => return shown(&mistake(&problem)),
    };
    let (since_word, mailbox_word) = (shell_word(asked.since()), shell_word(&mailbox));
    let command = command(&page.site, &format!("--restore --since {since_word} --mailbox {mailbox_word}"));
    let Some(work) = &page.mailboxes else { return shown(&by_the_command_line(&command)) };
    match work.look(LOOK, move |site, until| again::lost(site, &mailbox, since, until)).await {
        Ok(Ok(lost)) => shown(&lost_copies(&page, &lost, &command)),
        Ok(Err(problem)) => database_failed(&problem, &viewer),
        Err(why) => shown(
            &html! { p .bad role="alert" { "Nothing is known of it: " (why) "." } (by_the_command_line(&command)) },
        ),
    }
}

fn lost_copies(page: &Page, lost: &Lost, command: &str) -> Markup {
    let (looked_for, mailboxes) = lost.looked_for;
    let (copies, gone): (Vec<Picked>, Vec<_>) = lost.copies.iter().take(MOST).cloned().unzip();
    let why = |copy: &Picked| {
        let gone = copies.iter().position(|one| one.choice == copy.choice).and_then(|at| gone.get(at).copied());
        gone.map_or_else(|| (String::new(), false), |gone| (why_gone(gone).to_owned(), gone.is_loss()))
    };
    html! {
        @for unseen in &lost.unseen { p .bad { "Not looked at: " (unseen) } }
        @if looked_for == 0 {
            p .bad {
                "Nothing was delivered to a mailbox of that name since then. Write it as the lists of this page show it."
            }
        } @else {
            p {
                "Copies looked for: " (looked_for) ". Mailboxes: " (mailboxes) ". Gone: " (lost.copies.len()) ". "
                @if !lost.copies.is_empty() { "Where its owner has most likely deleted or filed one, its box is not ticked." }
                @else if lost.unseen.is_empty() { "All of them are where they were put." }
            }
        }
        @if !copies.is_empty() { (pick(page, &copies, why)) }
        (more_by(lost.copies.len() > MOST, command))
    }
}

fn since_field(asked: &Asked) -> Markup {
    html! {
        label .short {
            "Since"
            input name="since" value=(asked.since()) autocapitalize="none" spellcheck="false";
        }
    }
}

fn mistake(problem: &str) -> Markup {
    html! { p .bad role="alert" { "Since: " (problem) } }
}

fn screen(path: &str, viewer: &WebSession, shown: &Markup) -> Response {
    let main = html! {
        nav .tabs aria-label="What is missing" {
            ul {
                @for (section, name) in SECTIONS {
                    li { a href=(section) aria-current=[(section == path).then_some("true")] { (name) } }
                }
            }
        }
        (shown)
    };
    layout::page("Deliver again", Some(Screen::Again), Some(viewer), &main).into_response()
}

/// What does the same for more of them, or where the page may not.
fn command(site: &Site, options: &str) -> String {
    let place = site.directory().map(|directory| format!(" --embedded {}", shell_word(&directory.to_string_lossy())));
    format!("maildrop_command replay{} {options}", place.unwrap_or_default())
}

fn more_by(more: bool, command: &str) -> Markup {
    html! {
        @if more {
            p { "There are more than these " (MOST) ". All at once, as an operator of the command line: " code { (command) } }
        } @else {
            p .hint { "The same on the command line: " code { (command) } }
        }
    }
}

fn by_the_command_line(command: &str) -> Markup {
    html! { p { "This page may not open mailboxes (web.mailboxes). On the command line: " code { (command) } } }
}

fn heads(names: &[&str]) -> Markup {
    html! { thead { tr { @for name in names { th scope="col" { (name) } } } } }
}

/// A form to pick some of these. `told` says what else there is to say of one, and whether it is picked unless somebody says
/// otherwise.
fn pick(page: &Page, copies: &[Picked], told: impl Fn(&Picked) -> (String, bool)) -> Markup {
    let offered = page.mailboxes.is_some();
    let names = ["Pick", "Message", "Mailbox", "Recipient", "Why"];
    html! {
        form method="post" action="/again/plan" {
            table .rows {
                caption .unseen { "Copies that can be delivered again" }
                (heads(names.get(usize::from(!offered)..).unwrap_or(&names)))
                tbody {
                    @for copy in copies {
                        @let (why, picked) = told(copy);
                        tr {
                            @if offered {
                                td data-label="Pick" {
                                    input type="checkbox" name="copy" value=(copy.choice) checked[picked]
                                        aria-label={ (copy.place()) ": " (subject(copy)) };
                                }
                            }
                            (described(copy))
                            td data-label="Why" { (why) }
                        }
                    }
                }
            }
            @if offered { p { button { "What would happen?" } } }
            @else { p { "This page may not open mailboxes (web.mailboxes), so it delivers nothing." } }
        }
    }
}

fn subject(copy: &Picked) -> &str {
    copy.subject.as_deref().filter(|subject| !subject.trim().is_empty()).unwrap_or(&copy.message_id)
}

/// The cells that say which copy it is.
fn described(copy: &Picked) -> Markup {
    html! {
        td data-label="Message" { a href=(path_of(copy)) { bdi { (subject(copy)) } } }
        td data-label="Mailbox" {
            (copy.mailbox) " of " (copy.user)
            @if copy.role == Role::Sender { span .hint { " (Sent copy)" } }
        }
        td data-label="Recipient" { (copy.recipient) }
    }
}

fn path_of(copy: &Picked) -> String {
    format!("/messages/{}?lock={}", hex::encode(copy.identity.as_bytes()), hex::encode(copy.lock.digest()))
}

/// On the screen of a message, for who may deliver again.
pub(super) fn of_message(page: &Page, copies: &[(Choice, String)], commands: &[String]) -> Markup {
    html! {
        h2 #again { "Deliver again" }
        @if copies.is_empty() {
            p { "There is nothing to deliver again." }
        } @else if page.mailboxes.is_none() {
            p { "This page may not open mailboxes (web.mailboxes). On the command line:" }
            @for options in commands { p { code { (command(&page.site, options)) } } }
        } @else {
            form method="post" action="/again/plan" {
                fieldset {
                    legend { "What is delivered stays delivered: what is there is not put there again." }
                    p .hint {
                        "“What would happen?” looks into each mailbox that is picked, and says whether the copy is there now. It changes nothing."
                    }
                    @for (at, (choice, told)) in copies.iter().take(MOST).enumerate() {
                        label .check {
                            input type="checkbox" name="copy" value=(choice) checked[at == 0 && choice.how != How::Restore];
                            span { (told) }
                        }
                    }
                }
                p { button { "What would happen?" } }
            }
        }
    }
}

/// The copies that a form names; or why they cannot be read.
fn choices(body: &str) -> Result<Vec<Choice>, &'static str> {
    let mut choices: Vec<Choice> = Vec::new();
    for (name, value) in form_urlencoded::parse(body.as_bytes()) {
        if name != "copy" {
            continue;
        }
        let choice = Choice::read(&value).ok_or("This form is not complete: go back to the list.")?;
        if !choices.contains(&choice) {
            choices.push(choice);
        }
    }
    match choices.len() {
        0 => Err("Nothing was picked: go back, and pick something."),
        1..=MOST => Ok(choices),
        _ => Err("More were picked than are delivered again at once."),
    }
}

/// What a form asks for, and where that is done; or the answer that says why not.
fn asked_for<'a>(
    page: &'a Page,
    viewer: &WebSession,
    body: &str,
) -> Result<(&'a MailboxWork, Vec<Choice>), Box<Response>> {
    let no = |status: StatusCode, told: &str| {
        let told = html! { p .bad role="alert" { (told) } p { a href="/again" { "Deliver again" } } };
        Box::new((status, layout::page("Nothing was done", None, Some(viewer), &told)).into_response())
    };
    let mailboxes = page.mailboxes.as_ref();
    let work = mailboxes.ok_or_else(|| {
        no(StatusCode::CONFLICT, "This page may not open mailboxes (web.mailboxes in its configuration).")
    })?;
    Ok((work, choices(body).map_err(|problem| no(StatusCode::BAD_REQUEST, problem))?))
}

/// What would happen. Nothing is written, created or locked.
pub(super) async fn would(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    body: String,
) -> Response {
    let (work, choices) = match asked_for(&page, &viewer, &body) {
        Ok(asked) => asked,
        Err(answer) => return *answer,
    };
    let looked = work.look(LOOK, move |site, deadline| {
        let look = |choice: Choice| match deadline.passed() {
            true => Ok((None, Prospect::Cannot("there was no time to look".into()))),
            false => plan(site, choice, deadline),
        };
        let planned = choices.into_iter().map(look).collect::<Result<Vec<_>, DatabaseError>>()?;
        let began = Instant::now();
        let with_last = |(picked, prospect): (Option<Picked>, Prospect)| {
            let asks = matches!(prospect, Prospect::Would { .. }) && began.elapsed() < LOOK_FOR_CAUSES;
            let missing = picked.as_ref().filter(|picked| asks && picked.choice.how != How::Restore);
            let last = missing.map(|picked| last_try(site, picked, deadline)).transpose()?.flatten();
            Ok((picked, prospect, last))
        };
        planned.into_iter().map(with_last).collect::<Result<Vec<_>, DatabaseError>>()
    });
    let planned = match looked.await {
        Ok(Ok(planned)) => planned,
        Ok(Err(problem)) => return database_failed(&problem, &viewer),
        Err(why) => return not_done(why, &viewer),
    };
    let would: Vec<(&Picked, bool)> = planned
        .iter()
        .filter_map(|(picked, prospect, _)| match prospect {
            Prospect::Would { may_name_others, .. } => Some((picked.as_ref()?, *may_name_others)),
            Prospect::Nothing(_) | Prospect::Cannot(_) => None,
        })
        .collect();
    let asked_about: Vec<&Picked> = would.iter().filter(|(_, asked)| *asked).map(|(copy, _)| *copy).collect();
    let main = html! {
        table .rows {
            caption { "Nothing is done yet." }
            (heads(&["Message", "Mailbox", "Recipient", "What would happen"]))
            tbody {
                @for (picked, prospect, last) in &planned {
                    tr { (known(picked.as_ref())) td data-label="Would happen" { (prospect_told(prospect)) @if let (Some(picked), Some(last)) = (picked, last) { br; (last_told(picked, last)) } } }
                }
            }
        }
        @if would.is_empty() {
            p {
                @if planned.iter().any(|(_, prospect, _)| matches!(prospect, Prospect::Cannot(_))) {
                    "Nothing of this can be done from here. "
                } @else {
                    "There is nothing to do. "
                }
                a href="/again" { "Deliver again" }
            }
        } @else {
            form method="post" action="/again/start" {
                @for (copy, asked) in &would { @if !asked { input type="hidden" name="copy" value=(copy.choice); } }
                @if !asked_about.is_empty() {
                    fieldset {
                        legend { "May these be delivered with the address of another recipient?" }
                        p .hint {
                            "A message without Message-ID or Date is told from the next one by its Received lines, so they are not changed. "
                            "They may say for whom the copy was received that it is taken from."
                        }
                        @for copy in &asked_about {
                            label .check {
                                input type="checkbox" name="copy" value=(copy.choice);
                                span { (subject(copy)) ", to " (copy.place()) }
                            }
                        }
                    }
                }
                p {
                    button .go {
                        @match would.as_slice() {
                            [_, ..] if !asked_about.is_empty() => { "Deliver what is chosen" }
                            [(one, _)] => { "Deliver it to " (one.place()) }
                            several => { "Deliver these " (several.len()) " copies" }
                        }
                    }
                }
            }
        }
    };
    layout::page("What would happen", Some(Screen::Again), Some(&viewer), &main).into_response()
}

fn known(picked: Option<&Picked>) -> Markup {
    match picked {
        Some(copy) => described(copy),
        None => html! {
            td data-label="Message" { "not known" }
            td data-label="Mailbox" { "–" }
            td data-label="Recipient" { "–" }
        },
    }
}

fn prospect_told(prospect: &Prospect) -> Markup {
    match prospect {
        Prospect::Would { what, .. } => html! { span .good { (what) } },
        Prospect::Nothing(text) => html! { "nothing: " (text) },
        Prospect::Cannot(text) => html! { span .bad { "it cannot be done: " (text) } },
    }
}

/// Whether the cause is gone, as far as the ledger knows.
fn last_told(picked: &Picked, last: &LastTry) -> Markup {
    let came = match (picked.choice.how, &picked.reason) {
        (How::Finish, Some(reason)) => format!("owed: {reason}"),
        (How::Finish, None) => "owed".to_owned(),
        _ => in_words(last.outcome.as_ref()),
    };
    html! {
        span .hint {
            "Last tried " (layout::moment(last.began_at)) ", " (came) ". "
            @match last.since {
                Since::Taken(at) => { "Since then the mailbox has taken other mail, the last " (layout::moment(at)) "." }
                Since::Nothing => { "Since then nothing else has come into this mailbox: whether the cause is gone is not known." }
                Since::NotKnown => { "Whether the cause is gone is not known." }
            }
        }
    }
}

/// Begins it, and leads to where what comes of it is shown.
pub(super) async fn start(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    body: String,
) -> Response {
    let begun = asked_for(&page, &viewer, &body).map(|(work, choices)| page.runs.begin(work, &viewer, choices));
    match begun {
        Ok(Ok(run)) => Redirect::to(&format!("/again/runs/{}", run.id)).into_response(),
        Ok(Err(why)) => not_done(why, &viewer),
        Err(answer) => *answer,
    }
}

/// What came of it so far.
pub(super) async fn run(
    State(page): State<Page>,
    Extension(viewer): Extension<WebSession>,
    Path(id): Path<String>,
) -> Response {
    let found = Uuid::parse_str(&id).ok().and_then(|id| page.runs.of(id));
    let Some(run) = found else {
        let told = html! {
            p {
                "This process of the page does not know of it any more. "
                "What was delivered is on the screen of each message."
            }
        };
        return (StatusCode::NOT_FOUND, layout::page("Not found", None, Some(&viewer), &told)).into_response();
    };
    run.await_end(AWAITED).await;
    let (came, ended) = run.so_far();
    let (class, verdict) = verdict(&came, run.of, ended);
    let main = html! {
        @if !ended { p #live { span data-said role="status" { "It goes on, whoever looks. " } a href={ "/again/runs/" (run.id) } { "Look again" } } }
        div data-refresh=[(!ended).then_some("2")] {
            p class={ "verdict " (class) } { (verdict) }
            table .rows {
                caption { "Begun by " (run.by) ", " (moment_of(run.id)) "." }
                (heads(&["Message", "Mailbox", "Recipient", "What came of it"]))
                tbody {
                    @for one in &came {
                        tr { (known(one.picked.as_ref())) td data-label="Came of it" { (outcome_told(&one.outcome)) } }
                    }
                }
            }
        }
        p { a href="/again" { "Deliver again" } }
    };
    layout::page("Delivered again", Some(Screen::Again), Some(&viewer), &main).into_response()
}

/// When it began: that is in its name (RFC 9562 section 5.7).
fn moment_of(run: Uuid) -> Markup {
    let began = run.get_timestamp().map(|began| began.to_unix());
    let microseconds = began.map_or(0, |(seconds, rest)| seconds.saturating_mul(1_000_000) + u64::from(rest / 1000));
    layout::moment(i64::try_from(microseconds).unwrap_or_default())
}

/// All of it in one line, and how good that is.
fn verdict(came: &[Came], of: usize, ended: bool) -> (&'static str, String) {
    if !ended {
        return ("wait", format!("Under way: {} of {of} done with.", came.len()));
    }
    let count = |is: fn(&ReplayOutcome) -> bool| came.iter().filter(|one| is(&one.outcome)).count();
    let failed = count(ReplayOutcome::failed);
    let class = if failed > 0 || came.len() < of { "bad" } else { "good" };
    if let ([one], 1) = (came, of) {
        let place = one.picked.as_ref().map(|copy| format!(" {}", copy.place())).unwrap_or_default();
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

fn outcome_told(outcome: &ReplayOutcome) -> Markup {
    match outcome {
        ReplayOutcome::Delivered(how) => html! { span .good { "delivered: " (how) } },
        ReplayOutcome::AlreadyThere => html! { span .good { "already there" } },
        ReplayOutcome::Deferred(why) => html! { span .wait { "not now: " (why) } },
        ReplayOutcome::Refused(why) => html! { span .bad { "not as it is: " (why) } },
    }
}

fn not_done(why: NotDone, viewer: &WebSession) -> Response {
    let told = html! {
        p .bad role="alert" { "Nothing was done: " (why) "." }
        @if why == NotDone::Busy { p { "Others are at it. Try again in a moment." } }
    };
    (StatusCode::SERVICE_UNAVAILABLE, layout::page("Nothing was done", None, Some(viewer), &told)).into_response()
}

fn database_failed(problem: &DatabaseError, viewer: &WebSession) -> Response {
    failed(&problem.clone().into(), Some(viewer))
}
