//! Logins to the web UI, and links that create them. Only the digests of both are stored.

use super::{Database, time_span};
use crate::base::text_enum::text_enum;
use crate::base::timestamp;
use crate::database::{DatabaseError, Query, Value, columns_of};
use serde::{Deserialize, Serialize};
use std::time::Duration;

text_enum! {
    /// A user's role in the web UI; each includes the rights of those before it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum WebRole {
        /// See the results of messages, but not their contents.
        Viewer = "viewer",
        /// See the contents of messages.
        Reader = "reader",
        /// Redeliver messages.
        Operator = "operator",
        /// See who is logged in, and log others out.
        Admin = "admin",
    }
}

/// A login.
#[derive(Clone, Debug, Serialize)]
pub struct WebSession {
    /// The id by which people name the login: the beginning of its digest, which does not allow a login. Empty if a
    /// proxy authenticates the user: then there is no login to end.
    pub id: String,
    pub name: String,
    pub role: WebRole,
    /// In microseconds since 1970, by the database's clock.
    #[serde(serialize_with = "timestamp::serialize")]
    pub created_at: i64,
    #[serde(serialize_with = "timestamp::serialize")]
    pub last_seen_at: i64,
}

columns_of! { WebSession: id, name, role, created_at, last_seen_at }

/// How long a login lasts without a request, and at most.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    pub idle: Duration,
    pub longest: Duration,
}

impl Lifetimes {
    /// The lifetimes of logins that last seven days at most.
    #[must_use]
    pub fn of(idle: Duration) -> Self {
        Self { idle, longest: LONGEST }
    }
}

/// How often the activity of a login is recorded, in microseconds.
const SEEN_EACH: i64 = 60_000_000;

/// The maximum lifetime of a login.
const LONGEST: Duration = Duration::from_hours(24 * 7);

/// How many hexadecimal digits of a digest identify a login.
const ID_DIGITS: usize = 12;

/// Stores a link that logs `name` in once, within this time; deletes expired links and logins.
pub(crate) fn make_login(
    database: &mut dyn Database,
    digest: &[u8; 32],
    name: &str,
    role: WebRole,
    within: Duration,
) -> Result<(), DatabaseError> {
    let now = time_span::now(database)?;
    let expires = now.saturating_add(time_span::microseconds(within));
    let insert = "INSERT INTO web_logins (digest, name, role, created_at, expires_at) VALUES (?, ?, ?, ?, ?)";
    let values = [
        Value::Bytes(digest),
        Value::Text(name),
        Value::Text(role.as_str()),
        Value::Moment(now),
        Value::Moment(expires),
    ];
    // The row of a login whose browser never came back would stay for ever.
    let over = now.saturating_sub(time_span::microseconds(LONGEST));
    let changes: [(&str, &[Value<'_>]); 3] = [
        (insert, &values),
        ("DELETE FROM web_logins WHERE expires_at < ?", &[Value::Moment(now)]),
        ("DELETE FROM web_sessions WHERE created_at < ?", &[Value::Moment(over)]),
    ];
    database.execute_together("making a login", &changes).map(drop)
}

/// The name and role of a link; `None` if it is not valid any more.
pub(crate) fn login(
    database: &mut dyn Database,
    digest: &[u8; 32],
) -> Result<Option<(String, WebRole)>, DatabaseError> {
    let good = [Value::Bytes(digest), Value::Moment(time_span::now(database)?)];
    let sql = "SELECT name, role FROM web_logins WHERE digest = ? AND expires_at > ?";
    database.query_first("reading a link", sql, &good)
}

/// Logs a user in with a link, which is used up; returns their name and role. `None` if the link is not valid any more.
pub(crate) fn redeem(
    database: &mut dyn Database,
    login: &[u8; 32],
    session: &[u8; 32],
) -> Result<Option<(String, WebRole)>, DatabaseError> {
    let doing = "logging in";
    let now = time_span::now(database)?;
    let good = [Value::Bytes(login), Value::Moment(now)];
    let Some((name, role)) = self::login(database, login)? else { return Ok(None) };
    // Of two at once, only one deletes the row.
    if database.change(doing, "DELETE FROM web_logins WHERE digest = ? AND expires_at > ?", &good)? != 1 {
        return Ok(None);
    }
    let insert = "INSERT INTO web_sessions (digest, name, role, created_at, last_seen_at) VALUES (?, ?, ?, ?, ?)";
    let (role_name, now) = (Value::Text(role.as_str()), Value::Moment(now));
    database.change(doing, insert, &[Value::Bytes(session), Value::Text(&name), role_name, now, now])?;
    Ok(Some((name, role)))
}

/// The login with this digest, if it is still valid; its idle time starts again.
pub(crate) fn session(
    database: &mut dyn Database,
    digest: &[u8; 32],
    lifetimes: Lifetimes,
) -> Result<Option<WebSession>, DatabaseError> {
    let condition = "WHERE digest = ?";
    let Some((found, now)) = select(database, condition, &[Value::Bytes(digest)])?.into_iter().next() else {
        return Ok(None);
    };
    let over = |since: i64, limit: Duration| now.saturating_sub(since) > time_span::microseconds(limit);
    if over(found.created_at, lifetimes.longest) || over(found.last_seen_at, lifetimes.idle) {
        database.change("ending a login", "DELETE FROM web_sessions WHERE digest = ?", &[Value::Bytes(digest)])?;
        return Ok(None);
    }
    if now.saturating_sub(found.last_seen_at) > SEEN_EACH {
        let seen = [Value::Moment(now), Value::Bytes(digest)];
        database.change("going on with a login", "UPDATE web_sessions SET last_seen_at = ? WHERE digest = ?", &seen)?;
    }
    Ok(Some(found))
}

/// All valid logins, the newest first.
pub(crate) fn sessions(database: &mut dyn Database, lifetimes: Lifetimes) -> Result<Vec<WebSession>, DatabaseError> {
    let now = time_span::now(database)?;
    let since = |limit| Value::Moment(now.saturating_sub(time_span::microseconds(limit)));
    let condition = "WHERE created_at > ? AND last_seen_at > ? ORDER BY created_at DESC";
    let found = select(database, condition, &[since(lifetimes.longest), since(lifetimes.idle)])?;
    Ok(found.into_iter().map(|(session, _)| session).collect())
}

/// Ends the login with this digest.
pub(crate) fn end(database: &mut dyn Database, digest: &[u8; 32]) -> Result<(), DatabaseError> {
    database.change("logging out", "DELETE FROM web_sessions WHERE digest = ?", &[Value::Bytes(digest)]).map(drop)
}

/// Ends the login with this id; `false` if there is none.
pub(crate) fn end_named(database: &mut dyn Database, id: &str) -> Result<bool, DatabaseError> {
    let digest = database.dialect().hex("digest");
    let sql = format!("DELETE FROM web_sessions WHERE substr({digest}, 1, {ID_DIGITS}) = ?");
    Ok(database.change("ending a login", &sql, &[Value::Text(id)])? > 0)
}

/// The matching logins, with the database's clock.
fn select(
    database: &mut dyn Database,
    condition: &str,
    values: &[Value<'_>],
) -> Result<Vec<(WebSession, i64)>, DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT substr({}, 1, {ID_DIGITS}), name, role, {}, {}, {} FROM web_sessions {condition}",
        dialect.hex("digest"),
        dialect.microseconds("created_at"),
        dialect.microseconds("last_seen_at"),
        dialect.microseconds(dialect.now()),
    );
    database.query("reading who is logged in", &sql, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables store these names, and each role includes the rights of those before it.
    #[test]
    fn each_role_has_its_name_and_its_rank() {
        assert_eq!(WebRole::ALL.map(WebRole::as_str), ["viewer", "reader", "operator", "admin"]);
        assert!(WebRole::ALL.is_sorted());
    }
}
