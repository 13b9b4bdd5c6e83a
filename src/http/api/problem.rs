//! Problem documents, as RFC 9457 defines them: `application/problem+json`.

use crate::base::problem;
use crate::database::DatabaseError;
use crate::operations::subscriptions::{SubscriptionState, UNANSWERED};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::error::Error;
use std::time::Duration;

/// A problem document. Programs use its type; the texts may change.
#[derive(Debug)]
pub(super) struct Problem(Box<ProblemBody>);

#[derive(Debug)]
struct ProblemBody {
    status: u16,
    kind: &'static str,
    title: &'static str,
    detail: Option<String>,
    errors: Vec<Wrong>,
    retry_after: Option<Duration>,
    authenticate: Option<String>,
}

/// One part of a request that is wrong.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Wrong {
    pub(super) detail: String,
    /// The position in the body: a JSON pointer (RFC 6901).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pointer: Option<String>,
    /// Or the name of the parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parameter: Option<String>,
}

/// Why a request has no answer from the ledger.
#[derive(Debug)]
pub(super) enum ApiFailure {
    Problem(Problem),
    Database(DatabaseError),
}

impl From<Problem> for ApiFailure {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<DatabaseError> for ApiFailure {
    fn from(error: DatabaseError) -> Self {
        Self::Database(error)
    }
}

/// The default of Retry-After (RFC 9110 section 10.2.3).
const A_MOMENT: Duration = Duration::from_secs(2);
/// The default of Retry-After if an administrator has to act first.
const A_WHILE: Duration = Duration::from_secs(60);

impl Problem {
    fn new(status: u16, kind: &'static str, title: &'static str) -> Self {
        let (detail, errors, retry_after, authenticate) = (None, Vec::new(), None, None);
        Self(Box::new(ProblemBody { status, kind, title, detail, errors, retry_after, authenticate }))
    }

    fn with(mut self, detail: impl Into<String>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }

    fn of(mut self, errors: Vec<Wrong>) -> Self {
        self.0.errors = errors;
        self
    }

    fn after(mut self, wait: Duration) -> Self {
        self.0.retry_after = Some(wait);
        self
    }

    fn challenge(mut self, challenge: impl Into<String>) -> Self {
        self.0.authenticate = Some(challenge.into());
        self
    }

    pub(super) fn no_token() -> Self {
        Self::new(401, "no-token", "A token is wanted")
            .challenge("Bearer")
            .with("send it as Authorization: Bearer mdt_…")
    }

    pub(super) fn wrong_token() -> Self {
        Self::new(401, "wrong-token", "This token lets nobody in")
            .challenge("Bearer error=\"invalid_token\"")
            .with("it is mistyped, expired or revoked")
    }

    pub(super) fn out_of_scope(scope: &str) -> Self {
        Self::new(403, "out-of-scope", "This token may not do that")
            .challenge(format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\""))
            .with(format!("it has not the scope {scope}"))
    }

    pub(super) fn out_of_bounds(detail: impl Into<String>) -> Self {
        Self::new(403, "out-of-bounds", "This token is for other mail").with(detail)
    }

    pub(super) fn not_found() -> Self {
        Self::new(404, "not-found", "There is nothing here, or not for this token")
    }

    /// The message exists, but its source is not available.
    pub(super) fn no_source(why: impl Into<String>) -> Self {
        Self::new(404, "no-source", "The message itself is nowhere to be read").with(why)
    }

    pub(super) fn out_of_reach() -> Self {
        Self::new(503, "out-of-reach", "The message itself cannot be read at the moment")
            .after(A_MOMENT)
            .with("a mailbox that may have it does not answer")
    }

    pub(super) fn another_method() -> Self {
        Self::new(405, "another-method", "This cannot be done here")
    }

    pub(super) fn another_media_type(wanted: &str) -> Self {
        Self::new(415, "another-media-type", "The body is of another type than is wanted")
            .with(format!("Content-Type has to be {wanted}"))
    }

    pub(super) fn too_large(largest: usize) -> Self {
        Self::new(413, "too-large", "The body is too large").with(format!("{largest} bytes are allowed"))
    }

    pub(super) fn too_slow() -> Self {
        Self::new(408, "too-slow", "The body took too long to come").after(A_MOMENT)
    }

    pub(super) fn unreadable_body(detail: impl Into<String>) -> Self {
        Self::new(400, "unreadable-body", "The body cannot be read").with(detail)
    }

    pub(super) fn wrong_parameter(parameter: &str, detail: impl Into<String>) -> Self {
        let wrong = Wrong { detail: detail.into(), pointer: None, parameter: Some(parameter.to_owned()) };
        Self::new(400, "wrong-parameter", "A parameter is wrong").of(vec![wrong])
    }

    pub(super) fn wrong_fields(errors: Vec<Wrong>) -> Self {
        Self::new(422, "wrong-fields", "Fields of the body are wrong").of(errors)
    }

    pub(super) fn no_message(detail: impl Into<String>) -> Self {
        Self::new(422, "no-message", "This message cannot be taken in").with(detail)
    }

    /// The database has committed that the recipients are unknown.
    pub(super) fn unknown_recipients(errors: Vec<Wrong>) -> Self {
        Self::new(422, "unknown-recipient", "Nobody has this address; nothing was accepted").of(errors)
    }

    /// The recipients may become known, or it is unknown now whether they exist.
    pub(super) fn not_known_now(errors: Vec<Wrong>) -> Self {
        Self::new(503, "not-known-now", "Mail for a recipient cannot be accepted at the moment; nothing was accepted")
            .of(errors)
            .after(A_WHILE)
    }

    pub(super) fn no_space() -> Self {
        Self::new(507, "no-space", "The disk is full; nothing was accepted").after(A_WHILE)
    }

    pub(super) fn share_is_full() -> Self {
        Self::new(
            507,
            "share-full",
            "This token has too much mail in the queue that is not delivered yet; nothing was accepted",
        )
        .after(A_WHILE)
    }

    pub(super) fn there_already() -> Self {
        Self::new(409, "there-already", "There is such a subscription already")
    }

    pub(super) fn another_state(state: SubscriptionState) -> Self {
        Self::new(409, "another-state", "The subscription is not in the state for it")
            .with(if state == SubscriptionState::Unverified { UNANSWERED.to_owned() } else { format!("it is {state}") })
    }

    pub(super) fn too_many_subscriptions(most: u64) -> Self {
        Self::new(409, "too-many-subscriptions", "There are too many subscriptions").with(format!("{most} are allowed"))
    }

    pub(super) fn too_many_requests(wait: Duration) -> Self {
        Self::new(429, "too-many-requests", "That is too often").after(wait)
    }

    pub(super) fn unavailable() -> Self {
        Self::new(503, "unavailable", "This cannot be answered at the moment").after(A_MOMENT)
    }

    /// Part of the work is done; the next request continues it.
    pub(super) fn goes_on() -> Self {
        Self::unavailable().with("there is much to be done: a part of it is; ask once more, and it goes on")
    }

    pub(super) fn not_set_up(detail: &str) -> Self {
        Self::new(503, "not-set-up", "This is not set up here").after(A_WHILE).with(detail)
    }
}

/// The problem of a body that could not be read whole.
pub(super) fn of_body(error: &(dyn Error + 'static), largest: usize) -> Problem {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // `http_body_util::LengthLimitError`, which cannot be named here: axum owns that dependency.
        if error.to_string() == "length limit exceeded" {
            return Problem::too_large(largest);
        }
        cause = error.source();
    }
    Problem::unreadable_body("it ended too early")
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let shown = *self.0;
        let ProblemBody { kind, title, status, ref detail, ref errors, .. } = shown;
        let document = problem::Problem { kind, title, status, detail: detail.as_deref(), errors };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, document.document()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(problem::MEDIA_TYPE));
        if let Some(wait) = shown.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(wait.as_secs().max(1)));
        }
        if let Some(value) = shown.authenticate.and_then(|value| HeaderValue::try_from(value).ok()) {
            headers.insert(WWW_AUTHENTICATE, value);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    /// Every problem as it is sent.
    const GOLDEN: &str = include_str!("problems.txt");

    /// Clients rely on these texts, so a problem changes only together with this file.
    #[test]
    fn each_problem_is_sent_as_it_always_was() {
        let wrong = |pointer: Option<&str>, parameter: Option<&str>| Wrong {
            detail: "this is wrong".into(),
            pointer: pointer.map(ToOwned::to_owned),
            parameter: parameter.map(ToOwned::to_owned),
        };
        let recipient = || vec![wrong(None, Some("recipient"))];
        let all = [
            ("no_token", Problem::no_token()),
            ("wrong_token", Problem::wrong_token()),
            ("out_of_scope", Problem::out_of_scope("events:read")),
            ("out_of_bounds", Problem::out_of_bounds("it is not for axial.net")),
            ("not_found", Problem::not_found()),
            ("no_source", Problem::no_source("its source is not kept")),
            ("out_of_reach", Problem::out_of_reach()),
            ("another_method", Problem::another_method()),
            ("another_media_type", Problem::another_media_type("application/json")),
            ("too_large", Problem::too_large(65_536)),
            ("too_slow", Problem::too_slow()),
            ("unreadable_body", Problem::unreadable_body("it ended too early")),
            ("wrong_parameter", Problem::wrong_parameter("limit", "1 to 100 is wanted")),
            ("wrong_fields", Problem::wrong_fields(vec![wrong(Some("/types"), None), wrong(Some("/a~1b"), None)])),
            ("no_message", Problem::no_message("it has no header")),
            ("unknown_recipients", Problem::unknown_recipients(recipient())),
            ("not_known_now", Problem::not_known_now(recipient())),
            ("no_space", Problem::no_space()),
            ("share_is_full", Problem::share_is_full()),
            ("there_already", Problem::there_already()),
            ("another_state", Problem::another_state(SubscriptionState::Paused)),
            ("another_state", Problem::another_state(SubscriptionState::Unverified)),
            ("too_many_subscriptions", Problem::too_many_subscriptions(1000)),
            ("too_many_requests", Problem::too_many_requests(Duration::from_millis(1))),
            ("unavailable", Problem::unavailable()),
            ("goes_on", Problem::goes_on()),
            ("not_set_up", Problem::not_set_up("there is no key of secrets")),
        ];
        // The list above has every problem.
        let code = include_str!("problem.rs").split("#[cfg(test)]").next().unwrap_or_default();
        let code = code.split("\nimpl Problem {").nth(1).and_then(|code| code.split("\n}").next()).unwrap_or_default();
        let names = code.lines().filter_map(|line| line.trim().strip_prefix("pub(super) fn ")?.split('(').next());
        let mut known: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        known.dedup();
        assert_eq!(known, names.collect::<Vec<_>>());

        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut sent = String::new();
        for (_, problem) in all {
            let (parts, body) = problem.into_response().into_parts();
            let body = runtime.block_on(axum::body::to_bytes(body, 1 << 16)).unwrap();
            writeln!(sent, "{}", parts.status).unwrap();
            for (name, value) in &parts.headers {
                writeln!(sent, "{name}: {}", value.to_str().unwrap()).unwrap();
            }
            writeln!(sent, "\n{}\n", std::str::from_utf8(&body).unwrap()).unwrap();
        }
        assert_eq!(sent.trim_end(), GOLDEN.trim_end(), "\n{sent}");
    }
}
