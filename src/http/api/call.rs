//! An authenticated request, and helpers to parse it and to answer it.

use super::Api;
use super::problem::{ApiFailure, Problem, Wrong};
use crate::base::timestamp;
use crate::database::DatabaseError;
use crate::ledger::operations_log::Actor;
use crate::ledger::{Database, public_reason};
use crate::operations::subscriptions::{self, Subscription};
use crate::operations::tokens::{self, ApiToken};
use axum::Json;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::http::header::LINK;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use url::form_urlencoded;
use uuid::Uuid;

/// A request: its token and its parameters.
pub(super) struct ApiRequest {
    pub(super) api: Arc<Api>,
    pub(super) token: ApiToken,
    /// The value of `{id}` in the path; empty if the path has none.
    pub(super) id: String,
    pub(super) query: Query,
    pub(super) body: Bytes,
}

impl ApiRequest {
    /// The owner of the token's subscriptions.
    pub(super) fn owner(&self) -> String {
        tokens::owner(&self.token.name)
    }

    /// The actor in the operations log.
    pub(super) fn actor(&self) -> Actor<'_> {
        Actor { name: &self.token.name, interface: "api", role: None, host: self.api.settings.site.host() }
    }

    /// Whether the token may see the subscription.
    pub(super) fn sees(&self, one: &Subscription) -> bool {
        one.owner == self.owner() && self.token.bounds.hold_resource(&one.resource, &one.resource_id)
    }

    /// A reason of the ledger, as the token may see it: only a token for all mail sees what names hosts of the site.
    pub(super) fn reason<'a>(&self, reason: &'a str) -> &'a str {
        if self.token.bounds.is_everything() { reason } else { public_reason(reason) }
    }

    /// The subscription that the path names.
    pub(super) fn subscription(&self, database: &mut dyn Database) -> Result<Subscription, ApiFailure> {
        let id = Uuid::try_parse(&self.id).map_err(|_| Problem::not_found())?;
        let found = subscriptions::read(database, Some(id))?.into_iter().next();
        Ok(found.filter(|one| self.sees(one)).ok_or_else(Problem::not_found)?)
    }

    pub(super) fn fields(&self) -> Result<Fields, Problem> {
        match serde_json::from_slice(&self.body) {
            Ok(Value::Object(object)) => Ok(Fields { object, wrong: Vec::new() }),
            Ok(_) => Err(Problem::unreadable_body("a JSON object is wanted")),
            Err(error) => Err(Problem::unreadable_body(format!("it is no JSON: {error}"))),
        }
    }
}

/// Text that a database accepts, and that cannot trick a person who reads it.
fn is_plain(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(text: &str) -> Result<Self, Problem> {
        let pairs = form_urlencoded::parse(text.as_bytes()).into_owned().collect::<Vec<_>>();
        match pairs.iter().find(|(name, value)| !is_plain(name) || !is_plain(value)) {
            Some((name, _)) => Err(Problem::wrong_parameter(name, "it has a control character in it")),
            None => Ok(Self(pairs)),
        }
    }

    /// Refuses unknown parameters: a misspelt one must not be ignored silently.
    pub(super) fn reject_unknown(&self, known: &[&str]) -> Result<(), Problem> {
        match self.0.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            Some((name, _)) => Err(Problem::wrong_parameter(name, format!("known here: {}", known.join(", ")))),
            None => Ok(()),
        }
    }

    /// Each value of a parameter.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The value of a parameter that may be given once.
    pub(super) fn one(&self, name: &str) -> Result<Option<&str>, Problem> {
        let mut all = self.all(name);
        match (all.next(), all.next()) {
            (_, Some(_)) => Err(Problem::wrong_parameter(name, "it is given twice")),
            (value, None) => Ok(value),
        }
    }

    /// Refuses a space in an address: a form's decoder makes one of each `+` (URL Standard, section 5.1).
    pub(super) fn check_address(&self, name: &str) -> Result<(), Problem> {
        match self.all(name).find(|address| address.contains(' ')) {
            Some(_) => Err(Problem::wrong_parameter(name, "it has a space in it: write + as %2B")),
            None => Ok(()),
        }
    }

    /// The value of a parameter that is one of these words.
    pub(super) fn word<const N: usize>(
        &self,
        name: &str,
        words: [&'static str; N],
    ) -> Result<Option<&'static str>, Problem> {
        let Some(value) = self.one(name)? else { return Ok(None) };
        let word = words.into_iter().find(|word| *word == value);
        word.map(Some).ok_or_else(|| Problem::wrong_parameter(name, format!("known: {}", words.join(", "))))
    }

    /// The page size.
    pub(super) fn limit(&self) -> Result<usize, Problem> {
        let Some(text) = self.one("limit")? else { return Ok(50) };
        let number = text.parse().ok().filter(|number| (1..=100).contains(number));
        number.ok_or_else(|| Problem::wrong_parameter("limit", "a number from 1 to 100 is wanted"))
    }

    /// The position from which the page starts: the `cursor` that the previous page returned.
    pub(super) fn cursor<T>(&self, read: impl Fn(&str) -> Option<T>) -> Result<Option<T>, Problem> {
        let Some(text) = self.one("cursor")? else { return Ok(None) };
        // The prefix is the version of the format: cursors of other releases are refused.
        let cursor = text.strip_prefix("1.").and_then(read);
        cursor.map(Some).ok_or_else(|| Problem::wrong_parameter("cursor", "it is none that was given out here"))
    }

    /// The query string with this parameter replaced, for the link to the next page.
    fn with(&self, name: &str, value: &str) -> String {
        let others = self.0.iter().filter(|(known, _)| known != name);
        form_urlencoded::Serializer::for_suffix(String::from("?"), 1)
            .extend_pairs(others)
            .append_pair(name, value)
            .finish()
    }
}

/// The fields of a body, each read once. All errors are reported together.
pub(super) struct Fields {
    object: Map<String, Value>,
    wrong: Vec<Wrong>,
}

impl Fields {
    /// Reads a field; `None` if it is absent or wrong. JSON's null stands for the default, if there is one (RFC 7396).
    fn take<T>(&mut self, name: &str, default: Option<T>, read: impl FnOnce(Value) -> Result<T, String>) -> Option<T> {
        let read = match (self.object.remove(name)?, default) {
            (Value::Null, Some(default)) => return Some(default),
            (value, _) => read(value),
        };
        read.map_err(|detail| self.is_wrong(name, detail)).ok()
    }

    pub(super) fn is_wrong(&mut self, name: &str, detail: impl Into<String>) {
        let pointer = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        self.wrong.push(Wrong { detail: detail.into(), pointer: Some(pointer), parameter: None });
    }

    pub(super) fn text(&mut self, name: &str, default: Option<&str>, longest: usize) -> Option<String> {
        self.take(name, default.map(ToOwned::to_owned), |value| match value {
            Value::String(text) if text.chars().count() > longest => {
                Err(format!("it is longer than {longest} characters"))
            }
            Value::String(text) if !is_plain(&text) => Err("it has a control character in it".into()),
            Value::String(text) => Ok(text),
            _ => Err("text is wanted".into()),
        })
    }

    pub(super) fn word<const N: usize>(
        &mut self,
        name: &str,
        default: Option<&'static str>,
        words: [&'static str; N],
    ) -> Option<&'static str> {
        self.take(name, default, |value| {
            let word = words.into_iter().find(|word| value.as_str() == Some(word));
            word.ok_or_else(|| format!("one of these is wanted: {}", words.join(", ")))
        })
    }

    pub(super) fn flag(&mut self, name: &str) -> Option<bool> {
        self.take(name, Some(false), |value| value.as_bool().ok_or_else(|| "true or false is wanted".into()))
    }

    pub(super) fn number(&mut self, name: &str, default: u8, among: RangeInclusive<u8>) -> Option<u8> {
        self.take(name, Some(default), |value| {
            let number = value.as_u64().and_then(|number| u8::try_from(number).ok());
            let wanted = || format!("a number from {} to {} is wanted", among.start(), among.end());
            number.filter(|number| among.contains(number)).ok_or_else(wanted)
        })
    }

    /// Types of events; an empty list stands for all.
    pub(super) fn types(&mut self, name: &str) -> Option<Vec<&'static str>> {
        self.take(name, Some(Vec::new()), |value| {
            let known = || format!("a list of these is wanted: {}", subscriptions::TYPES.join(", "));
            let Value::Array(named) = value else { return Err(known()) };
            let named = named.into_iter().map(|name| match name {
                Value::String(name) if subscriptions::TYPES.contains(&name.as_str()) => Ok(name),
                _ => Err(known()),
            });
            Ok(subscriptions::types(&named.collect::<Result<Vec<_>, _>>()?))
        })
    }

    /// A moment (RFC 3339), in microseconds since 1970; `Some(None)` if the field is null.
    pub(super) fn moment(&mut self, name: &str) -> Option<Option<i64>> {
        self.take(name, Some(None), |value| {
            let moment = value.as_str().and_then(timestamp::read_exact);
            // The range that all databases can store and compare: from 1970 to the end of the year 9999.
            let moment = moment.filter(|moment| (0..253_402_300_800_000_000).contains(moment));
            moment.map(Some).ok_or_else(|| "a moment is wanted, such as 2026-11-20T03:00:00Z".into())
        })
    }

    /// The position of an event: the `next` of an earlier answer.
    pub(super) fn position(&mut self, name: &str) -> Option<Option<i64>> {
        self.take(name, Some(None), |value| {
            let position = value.as_i64().filter(|position| *position >= 0);
            position.map(Some).ok_or_else(|| "the next of an answer is wanted".into())
        })
    }

    /// Reports a required field that is missing.
    pub(super) fn required<T>(&mut self, name: &str, value: Option<T>) -> Option<T> {
        let pointer = format!("/{name}");
        // A field that is present but wrong is in the list already.
        if value.is_none() && !self.wrong.iter().any(|wrong| wrong.pointer.as_deref() == Some(&pointer)) {
            self.is_wrong(name, "it is missing");
        }
        value
    }

    /// Ends the reading of a body.
    ///
    /// # Errors
    /// If a field is wrong or unknown.
    pub(super) fn end(mut self) -> Result<(), Problem> {
        let left: Vec<String> = self.object.keys().cloned().collect();
        for name in left {
            self.is_wrong(&name, "there is no such field");
        }
        if self.wrong.is_empty() { Ok(()) } else { Err(Problem::wrong_fields(self.wrong)) }
    }
}

pub(super) fn ok(body: Value) -> Response {
    Json(body).into_response()
}

pub(super) fn accepted(body: Value) -> Response {
    (StatusCode::ACCEPTED, Json(body)).into_response()
}

/// A page of items, and the cursor of the next one, if there are more.
pub(super) fn page(query: &Query, items: Vec<Value>, next: Option<impl fmt::Display>) -> Response {
    // The version of the format: [`Query::cursor`] checks it.
    let next = next.map(|next| format!("1.{next}"));
    let body = json!({ "items": items, "next": next });
    linked(query, next.map(|next| ("cursor", next)), body)
}

/// An answer with a link to the next page (RFC 8288): the parameter, and its value there.
pub(super) fn linked(query: &Query, next: Option<(&str, String)>, body: Value) -> Response {
    let link = next.map(|(parameter, at)| [(LINK, format!("<{}>; rel=\"next\"", query.with(parameter, &at)))]);
    (link, ok(body)).into_response()
}

/// How many rows are read at once, and how many at most for one answer. The token may see few of those that are read.
const READ_AT_ONCE: usize = 500;
const READ_AT_MOST: usize = 5000;

/// Reads rows from `at` on, until there are as many visible items as `limit` allows. `read` gets a position and the number of
/// rows; `show` returns the position of a row, and its item if the token may see it. Returns the items, the position that was
/// reached, and whether there may be more.
///
/// # Errors
/// If the rows cannot be read.
pub(super) fn visible<Row, At>(
    limit: usize,
    mut at: At,
    mut read: impl FnMut(&At, usize) -> Result<Vec<Row>, DatabaseError>,
    show: impl Fn(&Row) -> (At, Option<Value>),
) -> Result<(Vec<Value>, At, bool), DatabaseError> {
    let (mut items, mut count) = (Vec::new(), 0);
    loop {
        let rows = read(&at, READ_AT_ONCE)?;
        for row in &rows {
            if items.len() == limit {
                return Ok((items, at, true));
            }
            let item;
            (at, item) = show(row);
            items.extend(item);
        }
        count += rows.len();
        if rows.len() < READ_AT_ONCE || count >= READ_AT_MOST {
            return Ok((items, at, rows.len() == READ_AT_ONCE));
        }
    }
}
