//! Login with a link that works once, and logout.

use super::visit::Visit;
use super::{Answered, Page, auth, layout, not_authenticated};
use crate::http::blocking_pools::Caller;
use crate::ledger::Database;
use crate::ledger::web_sessions;
use crate::operations::web_logins;
use axum::Extension;
use axum::extract::{Form, Query, State};
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{Html, IntoResponse, Redirect, Response};
use maud::{Markup, html};
use serde::Deserialize;
use tracing::info;

#[derive(Debug, Deserialize)]
pub(super) struct To {
    to: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct LoginQuery {
    token: String,
    to: Option<String>,
}

pub(super) async fn form(State(page): State<Page>, Query(To { to }): Query<To>) -> Html<String> {
    layout::page("Log in", None, None, &asked_for(&page, auth::local_path(to.as_deref()), None))
}

fn asked_for(page: &Page, to: &str, problem: Option<&str>) -> Markup {
    let command = web_logins::command_for_link(&page.site, &page.settings.origin, "you", "viewer");
    html! {
        @if let Some(problem) = problem { p .bad role="alert" { (problem) } }
        p { "A link logs you in once, within ten minutes. On the machine of this service, its administrator makes one for a viewer, reader, operator or admin:" }
        p { code { (command) } }
        form .login method="post" action="/login" {
            input type="hidden" name="to" value=(to);
            label for="token" {
                "The code after #"
                input #token name="token" autocomplete="off" autocapitalize="none" spellcheck="false" required;
            }
            div { button { "Go on" } }
        }
    }
}

/// Shows which user a link logs in; the login itself needs a click. So a user who follows another person's link does not become
/// that person unawares (login CSRF). Programs that only fetch links, as mail filters do, do not use them up.
pub(super) async fn look(
    State(page): State<Page>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Form(LoginQuery { token, to }): Form<LoginQuery>,
) -> Response {
    let (now, lifetimes, link) = (session(&headers), page.settings.lifetimes, token.clone());
    let look = move |database: &mut dyn Database| {
        let Some(person) = web_logins::look(database, &link)? else { return Ok(None) };
        let now = now.map(|now| web_sessions::session(database, &now, lifetimes)).transpose()?.flatten();
        Ok(Some((person, now)))
    };
    let client = |((name, _), _): &((String, _), _)| auth::login_of(name);
    let found = page.blocking.authenticate(&caller, web_logins::digest(token.trim()), client, look);
    let to = auth::local_path(to.as_deref());
    match found.await {
        Ok(Some(((name, role), now))) => {
            let shown = html! {
                p { "This link is one of " strong { (page.settings.origin) } ". It logs you in as " strong { (name) } ", with the role " strong { (role.as_str()) } "." }
                @if let Some(now) = now { p { "You are logged in as " strong { (now.name) } ". That login ends." } }
                p .hint { "Content that you read, and what you deliver again or change, is recorded under that name. If you have not asked for a link, go no further." }
                form .login method="post" action="/login/confirm" {
                    input type="hidden" name="token" value=(token.trim());
                    input type="hidden" name="to" value=(to);
                    div { button { "Log in as " (name) } }
                }
            };
            layout::page("Is this you?", None, None, &shown).into_response()
        }
        Ok(None) => not_good(&page, to),
        Err(problem) => not_authenticated(&problem),
    }
}

pub(super) async fn log_in(
    State(page): State<Page>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Form(LoginQuery { token, to }): Form<LoginQuery>,
) -> Response {
    let old = session(&headers);
    let digest = web_logins::digest(token.trim());
    let log_in = move |database: &mut dyn Database| web_logins::log_in(database, &token, old.as_ref());
    let client = |person: &web_logins::LoggedIn| auth::login_of(&person.name);
    let found = page.blocking.authenticate(&caller, digest, client, log_in).await;
    let to = auth::local_path(to.as_deref());
    match found {
        Ok(Some(person)) => {
            page.blocking.is_valid(web_logins::digest(&person.token), auth::login_of(&person.name));
            info!(name = person.name, role = person.role.as_str(), "somebody has logged in to the page");
            let cookie = auth::cookie(&person.token, page.settings.lifetimes.longest.as_secs());
            ([(SET_COOKIE, cookie)], Redirect::to(to)).into_response()
        }
        Ok(None) => not_good(&page, to),
        Err(problem) => not_authenticated(&problem),
    }
}

/// The digest of this browser's login token.
fn session(headers: &HeaderMap) -> Option<[u8; 32]> {
    auth::token(headers).map(web_logins::digest)
}

fn not_good(page: &Page, to: &str) -> Response {
    let problem = "This link was used already, is older than ten minutes, or is not complete. Ask for another one.";
    let shown = asked_for(page, to, Some(problem));
    (StatusCode::FORBIDDEN, layout::page("Log in", None, None, &shown)).into_response()
}

pub(super) async fn log_out(visit: Visit, headers: HeaderMap) -> Answered {
    let digest = session(&headers).unwrap_or_default();
    visit.ask(move |database| web_sessions::end(database, &digest)).await?;
    info!(name = visit.viewer.name, "somebody has logged out of the page");
    Ok(([(SET_COOKIE, auth::cookie("", 0))], Redirect::to("/login")).into_response())
}
