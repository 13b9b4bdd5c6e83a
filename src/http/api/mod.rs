//! The REST API: subscriptions, events, and submission of mail by HTTP.
//!
//! `openapi.json` documents the API for its users: a test compares it with [`OPERATIONS`]. [`serve`] checks the token, the rate
//! limit, the scope and the parameters of a request; then the ledger is queried once.
//!
//! Each error is a problem document (RFC 9457). A resource that a token may not see is answered like one that does not exist.

mod call;
mod events;
mod failures;
mod messages;
mod notifications;
mod problem;
mod queued;
mod rates;
mod search;
mod source;
mod subscriptions;

use crate::base::blocking_pool::asked_by;
use crate::base::fair_quota::FairQuota;
use crate::config::{Config, MAX_RECIPIENTS, Notifications};
use crate::database::{DatabaseError, DatabaseFailure};
use crate::http::blocking_pools::{Blocking, Caller, NotAuthenticated, QueryFailure};
use crate::ledger::Database;
use crate::operations::submission;
use crate::operations::tokens::{self, ApiToken, Scope, TokenText};
use crate::site::Site;
use crate::webhook::MasterKey;
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{RawPathParams, Request};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Method, request::Parts};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, any, get, on};
use call::{ApiRequest, Query};
use problem::{ApiFailure, Problem};
use queued::Queued;
use rates::Rates;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::time::timeout;

const DOCUMENT: &str = include_str!("openapi.json");
const BASE: &str = "/api/v1";
/// The largest body that is not a message, in bytes.
const LARGEST_BODY: usize = 64 << 10;
/// The largest message, in bytes, since it is held in memory.
const LARGEST_MESSAGE: u64 = 64 << 20;
/// How many bytes of undelivered mail one token may have in the file queue, but at most half of its file system.
const QUEUED_BY_A_TOKEN: u64 = 1 << 30;
/// How long the transfer of a body may take.
const BODY: Duration = Duration::from_secs(10);
const BODY_OF_A_MESSAGE: Duration = Duration::from_secs(25);

#[derive(Debug)]
pub(crate) struct ApiSettings {
    /// `None`: no notifications are sent, so nobody can subscribe.
    key: Option<MasterKey>,
    notifications: Notifications,
    site: Site,
    queue: PathBuf,
    max_recipients: usize,
    largest_message: u64,
    /// The API's URL for other machines.
    public: Option<String>,
}

/// The key file cannot be read.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct KeyError(String);

impl ApiSettings {
    /// Reads the settings and the key file. `site` must have the database role of the API.
    ///
    /// # Errors
    /// If a key file is named and cannot be read.
    pub(crate) fn of(config: &Config, site: &Site) -> Result<Self, KeyError> {
        let settings = &config.notifications;
        Ok(Self {
            key: MasterKey::configured(settings).map_err(KeyError)?,
            notifications: settings.clone(),
            queue: config.service.queue(),
            max_recipients: MAX_RECIPIENTS as usize,
            largest_message: submission::largest(site).min(LARGEST_MESSAGE),
            public: config.web.public_api(),
            site: site.clone(),
        })
    }
}

struct Api {
    settings: ApiSettings,
    blocking: Blocking,
    rates: Rates,
    /// The memory of messages, those of the web UI included, in bytes. Only the received part of an incoming message counts, so
    /// that a slow body holds up no other message.
    memory: Arc<FairQuota>,
    /// The bytes in the file queue, by token.
    queued: Queued,
}

/// A request's work with the ledger.
type LedgerWork = fn(&ApiRequest, &mut dyn Database) -> Result<Response, ApiFailure>;

/// The work of a request: with the ledger, for long too, with an incoming message, or with the source of a stored one.
#[derive(Clone, Copy)]
enum Work {
    Ledger(LedgerWork),
    Search(LedgerWork),
    Message,
    Source,
}

/// The required media type of a body.
type MediaType = Option<&'static str>;
const NOTHING: MediaType = None;
const JSON: MediaType = Some("application/json");
const MERGE_PATCH: MediaType = Some("application/merge-patch+json");
const MESSAGE: MediaType = Some("message/rfc822");

struct Operation {
    method: Method,
    path: &'static str,
    scope: Scope,
    content: MediaType,
    work: Work,
}

const fn operation(method: Method, path: &'static str, scope: Scope, content: MediaType, work: Work) -> Operation {
    Operation { method, path, scope, content, work }
}

/// All operations. `openapi.json` documents the same ones.
static OPERATIONS: [Operation; 19] = {
    use Scope::SubscriptionsWrite as Write;
    use Scope::{EventsRead, MessagesContent, MessagesRead, MessagesWrite, SubscriptionsRead as Read};
    use Work::Ledger;
    [
        operation(Method::GET, "/subscriptions", Read, NOTHING, Ledger(subscriptions::list)),
        operation(Method::POST, "/subscriptions", Write, JSON, Ledger(subscriptions::create)),
        operation(Method::GET, "/subscriptions/{id}", Read, NOTHING, Ledger(subscriptions::show)),
        operation(Method::PATCH, "/subscriptions/{id}", Write, MERGE_PATCH, Ledger(subscriptions::change)),
        operation(Method::DELETE, "/subscriptions/{id}", Write, NOTHING, Ledger(subscriptions::delete)),
        operation(Method::GET, "/subscriptions/{id}/secret", Write, NOTHING, Ledger(subscriptions::secret)),
        operation(Method::POST, "/subscriptions/{id}/secret", Write, NOTHING, Ledger(subscriptions::new_secret)),
        operation(Method::POST, "/subscriptions/{id}/test", Write, NOTHING, Ledger(notifications::test)),
        operation(Method::POST, "/subscriptions/{id}/redeliver", Write, JSON, Ledger(notifications::redeliver)),
        operation(Method::POST, "/subscriptions/{id}/recover", Write, JSON, Ledger(notifications::recover)),
        operation(
            Method::GET,
            "/subscriptions/{id}/notifications",
            Read,
            NOTHING,
            Ledger(notifications::notifications),
        ),
        operation(Method::GET, "/subscriptions/{id}/attempts", Read, NOTHING, Ledger(notifications::attempts)),
        operation(Method::GET, "/events", EventsRead, NOTHING, Ledger(events::list)),
        operation(Method::GET, "/failures", MessagesRead, NOTHING, Ledger(failures::list)),
        operation(Method::GET, "/messages", MessagesRead, NOTHING, Work::Search(search::messages)),
        operation(Method::GET, "/messages/{id}", MessagesRead, NOTHING, Ledger(messages::show)),
        operation(Method::GET, "/messages/{id}/source", MessagesContent, NOTHING, Work::Source),
        operation(Method::POST, "/messages", MessagesWrite, MESSAGE, Work::Message),
        operation(Method::GET, "/submissions/{id}", MessagesWrite, NOTHING, Ledger(messages::show_submission)),
    ]
};

/// The routes of the API, below `/api`.
pub(crate) fn router(blocking: Blocking, settings: ApiSettings, memory: Arc<FairQuota>) -> Router {
    let api = Arc::new(Api { settings, blocking, rates: Rates::default(), memory, queued: Queued::default() });
    let mut paths: Vec<(&str, MethodRouter)> = Vec::new();
    for operation in &OPERATIONS {
        // Never happens: every method of the table has a filter.
        let Ok(filter) = MethodFilter::try_from(operation.method.clone()) else { continue };
        let api = Arc::clone(&api);
        let answer = move |request: Request| {
            let api = Arc::clone(&api);
            async move { serve(api, operation, request).await.unwrap_or_else(IntoResponse::into_response) }
        };
        match paths.iter_mut().find(|(path, _)| *path == operation.path) {
            Some((_, routes)) => *routes = std::mem::take(routes).on(filter, answer),
            None => paths.push((operation.path, on(filter, answer))),
        }
    }
    let mut router = Router::new().route("/api/openapi.json", get(document));
    for (path, routes) in paths {
        router = router.route(&format!("{BASE}{path}"), routes.fallback(another_method));
    }
    // Only the paths below `/api` belong to the API. Other paths belong to the web UI, if there is one.
    router.route("/api/{*rest}", any(nothing_there)).fallback(nothing_there)
}

async fn document() -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], DOCUMENT).into_response()
}

async fn another_method() -> Problem {
    Problem::another_method()
}

async fn nothing_there() -> Problem {
    Problem::not_found()
}

async fn serve(api: Arc<Api>, operation: &'static Operation, request: Request) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    let caller = parts.extensions.get::<Caller>().cloned().unwrap_or_default();
    let token = authenticate(&api, &caller, &parts.headers).await?;
    // The authentication comes first: a client without a token must not use up a token's rate.
    api.rates.count(token.id, token.rate, Instant::now()).map_err(Problem::too_many_requests)?;
    if !operation.scope.is_of(&token) {
        return Err(Problem::out_of_scope(operation.scope.as_str()));
    }
    let id = path_id(&mut parts).await?;
    let query = Query::parse(parts.uri.query().unwrap_or_default())?;
    check_content(operation.content, &parts.headers)?;
    let call = ApiRequest { api, token, id, query, body: Bytes::new() };
    let mut response = asked_by(call.owner(), answer(operation, call, &parts.headers, body)).await?;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

async fn answer(
    operation: &Operation,
    mut call: ApiRequest,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    match operation.work {
        Work::Message => messages::take_in(call, headers, body).await,
        Work::Source => source::stream(call).await,
        Work::Ledger(work) => {
            if operation.content != NOTHING {
                call.body = read(headers, body, LARGEST_BODY, BODY).await?;
            }
            let api = Arc::clone(&call.api);
            ask(&api.blocking, move |database| work(&call, database)).await
        }
        Work::Search(work) => {
            let api = Arc::clone(&call.api);
            answered(api.blocking.query_long(search::PATIENCE, caught(move |database| work(&call, database))).await)
        }
    }
}

/// The value of `{id}` in the path; empty if there is none.
async fn path_id(parts: &mut Parts) -> Result<String, Problem> {
    use axum::extract::FromRequestParts;
    // An id that is not UTF-8 does not exist.
    let params = RawPathParams::from_request_parts(parts, &()).await.map_err(|_| Problem::not_found())?;
    Ok(params.iter().find(|(name, _)| *name == "id").map(|(_, id)| id.to_owned()).unwrap_or_default())
}

/// The token of a request (RFC 6750).
async fn authenticate(api: &Api, caller: &Caller, headers: &HeaderMap) -> Result<ApiToken, Problem> {
    let Some(header) = headers.get(AUTHORIZATION) else { return Err(Problem::no_token()) };
    let bearer = header.to_str().ok().and_then(|header| header.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
    let text = bearer.and_then(TokenText::parse).ok_or_else(Problem::wrong_token)?;
    let (digest, client) = (text.digest(), |token: &ApiToken| tokens::owner(&token.name));
    let found = api.blocking.authenticate(caller, digest, client, move |database| tokens::shown(database, &text)).await;
    let token = found.map_err(|problem| match problem {
        NotAuthenticated::TooManyFailures { wait } => Problem::too_many_requests(wait),
        NotAuthenticated::QueryFailure(unanswered) => unanswered_as(&unanswered),
    })?;
    token.ok_or_else(Problem::wrong_token)
}

/// The result of `work` on the ledger, or the problem with the request.
async fn ask<T: Send + 'static>(
    blocking: &Blocking,
    work: impl FnOnce(&mut dyn Database) -> Result<T, ApiFailure> + Send + 'static,
) -> Result<T, Problem> {
    answered(blocking.query(caught(work)).await)
}

/// The same work with the problem in its result, since only an error of the database closes its session.
fn caught<T>(
    work: impl FnOnce(&mut dyn Database) -> Result<T, ApiFailure>,
) -> impl FnOnce(&mut dyn Database) -> Result<Result<T, Problem>, DatabaseError> {
    move |database| match work(database) {
        Ok(found) => Ok(Ok(found)),
        Err(ApiFailure::Problem(problem)) => Ok(Err(problem)),
        Err(ApiFailure::Database(error)) => Err(error),
    }
}

fn answered<T>(found: Result<Result<T, Problem>, QueryFailure>) -> Result<T, Problem> {
    found.unwrap_or_else(|unanswered| Err(unanswered_as(&unanswered)))
}

/// The problem document for a ledger that did not answer.
fn unanswered_as(unanswered: &QueryFailure) -> Problem {
    match unanswered {
        // A client must not learn our roles and tables.
        QueryFailure::Database(DatabaseError {
            failure: DatabaseFailure::AccessDenied | DatabaseFailure::Schema,
            ..
        }) => Problem::not_set_up("the database does not let the API do this; its log says why"),
        _ => Problem::unavailable(),
    }
}

fn check_content(wanted: MediaType, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(wanted) = wanted else { return Ok(()) };
    let is = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is = is.split(';').next().unwrap_or_default().trim();
    // Clients may send a change as plain JSON as well.
    let same = is.eq_ignore_ascii_case(wanted)
        || (Some(wanted) == MERGE_PATCH && JSON.is_some_and(|json| is.eq_ignore_ascii_case(json)));
    if same { Ok(()) } else { Err(Problem::another_media_type(wanted)) }
}

/// The announced length of a body, if there is one. If it is too large, nothing of the body is read.
///
/// # Errors
/// If the announced length is larger than `largest`.
fn check_length(headers: &HeaderMap, largest: usize) -> Result<Option<usize>, Problem> {
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let Some(length) = length else { return Ok(None) };
    usize::try_from(length)
        .ok()
        .filter(|length| *length <= largest)
        .map(Some)
        .ok_or_else(|| Problem::too_large(largest))
}

/// Reads a body of at most `largest` bytes.
///
/// # Errors
/// If the body is larger, takes longer than `within`, or ends too early.
async fn read(headers: &HeaderMap, body: Body, largest: usize, within: Duration) -> Result<Bytes, Problem> {
    check_length(headers, largest)?;
    match timeout(within, to_bytes(body, largest)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) => Err(problem::of_body(error.into_inner().as_ref(), largest)),
        Err(_) => Err(Problem::too_slow()),
    }
}

#[cfg(test)]
mod tests;
