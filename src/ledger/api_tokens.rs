//! The tokens of the API. Only a token's digest is stored.

use super::{Database, time_span};
use crate::base::timestamp;
use crate::database::{Columns, DatabaseError, FromRow, Query, Value, unreadable};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use uuid::Uuid;

/// The mail that a token may access. Empty: all mail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Bounds {
    /// In the form that events have: folded.
    pub(crate) domains: Vec<String>,
    pub(crate) addresses: Vec<String>,
    /// `scuba/INBOX`.
    pub(crate) mailboxes: Vec<String>,
}

impl Bounds {
    pub(crate) fn is_everything(&self) -> bool {
        self.domains.is_empty() && self.addresses.is_empty() && self.mailboxes.is_empty()
    }

    /// Whether they include an address, which is folded.
    pub(crate) fn hold_address(&self, address: &str) -> bool {
        let domain = address.rsplit_once('@').map_or("", |(_, domain)| domain);
        self.is_everything()
            || self.addresses.iter().any(|one| one == address)
            || self.domains.iter().any(|one| one == domain)
    }

    /// Whether they include a copy for this recipient, in this mailbox.
    pub(crate) fn hold_copy(&self, recipient: &str, user: &str, mailbox: &str) -> bool {
        let is_it = |name: &String| name.split_once('/') == Some((user, mailbox));
        // In the same way as subscriptions are matched.
        self.hold_address(&recipient.to_lowercase()) || self.mailboxes.iter().any(is_it)
    }

    /// Whether they include everything that this resource covers.
    pub(crate) fn hold_resource(&self, resource: &str, id: &str) -> bool {
        self.is_everything()
            || match resource {
                "domain" => self.domains.iter().any(|one| one == id),
                "address" => self.hold_address(id),
                "mailbox" => self.mailboxes.iter().any(|one| one == id),
                // A message may have copies in any mailbox.
                _ => false,
            }
    }
}

/// A token to be made.
#[derive(Clone, Debug)]
pub(crate) struct NewApiToken<'a> {
    pub(crate) digest: [u8; 32],
    pub(crate) name: &'a str,
    pub(crate) scopes: Vec<&'static str>,
    pub(crate) bounds: Bounds,
    /// In requests a second.
    pub(crate) rate: u32,
    pub(crate) expires_after: Option<Duration>,
}

/// A token as it is stored.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ApiToken {
    pub(crate) id: Uuid,
    pub(crate) name: String,
    pub(crate) scopes: Vec<String>,
    pub(crate) bounds: Bounds,
    pub(crate) rate: u32,
    #[serde(serialize_with = "timestamp::serialize")]
    pub(crate) created_at: i64,
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub(crate) expires_at: Option<i64>,
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub(crate) revoked_at: Option<i64>,
    /// To the hour.
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub(crate) last_used_at: Option<i64>,
    /// Whether it is valid now.
    pub(crate) valid: bool,
}

impl FromRow for ApiToken {
    fn from_row(columns: &mut Columns<'_>) -> Result<Self, DatabaseError> {
        Ok(Self {
            id: columns.read()?,
            name: columns.read()?,
            scopes: columns.read::<String>()?.split(' ').map(ToOwned::to_owned).collect(),
            bounds: columns.read()?,
            rate: columns.read()?,
            created_at: columns.read()?,
            expires_at: columns.read()?,
            revoked_at: columns.read()?,
            last_used_at: columns.read()?,
            valid: columns.read()?,
        })
    }
}

const OF_A_TOKEN: &str = "token:";

/// The owner of the subscriptions that a token of this name makes.
pub(crate) fn owner(name: &str) -> String {
    format!("{OF_A_TOKEN}{name}")
}

/// Whether this is the owner of a token's subscriptions, and none of the site's own.
pub(crate) fn is_owner(owner: &str) -> bool {
    owner.starts_with(OF_A_TOKEN)
}

const READING: &str = "reading the tokens of the API";

/// How often the use of a token is recorded.
const USED_EACH: Duration = Duration::from_hours(1);

/// Makes a token; returns its id.
///
/// # Errors
/// If the database fails.
pub(crate) fn create(database: &mut dyn Database, new: &NewApiToken<'_>) -> Result<Uuid, DatabaseError> {
    let (id, now) = (Uuid::now_v7(), time_span::now(database)?);
    let expires_at = new.expires_after.map(|after| now.saturating_add(time_span::microseconds(after)));
    let bounds = serde_json::to_string(&new.bounds).map_err(|error| unreadable(error.to_string()))?;
    let insert = "INSERT INTO api_tokens (digest, id, name, scopes, bounds, rate, created_at, expires_at) \
                  VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
    let values = [
        Value::Bytes(&new.digest),
        Value::Uuid(id),
        Value::Text(new.name),
        Value::Text(&new.scopes.join(" ")),
        Value::Text(&bounds),
        Value::Integer(new.rate.into()),
        Value::Moment(now),
        expires_at.map_or(Value::Null, Value::Moment),
    ];
    database.change("making a token of the API", insert, &values)?;
    Ok(id)
}

/// All tokens, the oldest first, including invalid ones.
///
/// # Errors
/// If the database fails.
pub(crate) fn list(database: &mut dyn Database) -> Result<Vec<ApiToken>, DatabaseError> {
    read(database, "ORDER BY t.id", &[])
}

/// The token with this digest, if it is valid. Records its use.
///
/// # Errors
/// If the database fails.
pub(crate) fn with_digest(database: &mut dyn Database, digest: &[u8; 32]) -> Result<Option<ApiToken>, DatabaseError> {
    let token = read(database, "WHERE t.digest = ?", &[Value::Bytes(digest)])?.pop().filter(|token| token.valid);
    let Some(token) = token else { return Ok(None) };
    let each = time_span::microseconds(USED_EACH);
    // By this host's clock: precision does not matter.
    if token.last_used_at.is_none_or(|used| timestamp::now().saturating_sub(used) > each) {
        let now = database.dialect().now();
        let used = format!("UPDATE api_tokens SET last_used_at = {now} WHERE digest = ?");
        database.change("writing down that a token was used", &used, &[Value::Bytes(digest)])?;
    }
    Ok(Some(token))
}

fn read(database: &mut dyn Database, which: &str, values: &[Value<'_>]) -> Result<Vec<ApiToken>, DatabaseError> {
    let dialect = database.dialect();
    let now = dialect.now();
    let moment = |column| dialect.microseconds(column);
    let sql = format!(
        "SELECT {}, t.name, t.scopes, t.bounds, t.rate, {}, {}, {}, {}, \
         t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > {now}) \
         FROM api_tokens t {which}",
        dialect.uuid("t.id"),
        moment("t.created_at"),
        moment("t.expires_at"),
        moment("t.revoked_at"),
        moment("t.last_used_at"),
    );
    database.query(READING, &sql, values)
}

/// Revokes a token, and disables the subscriptions of its name, unless another token of that name is still valid.
/// `None` if there is no such token, or if it was revoked before.
///
/// # Errors
/// If the database fails; in that case nothing is changed.
pub(crate) fn revoke(database: &mut dyn Database, id: Uuid) -> Result<Option<ApiToken>, DatabaseError> {
    let found = read(database, "WHERE t.id = ?", &[Value::Uuid(id)])?.pop();
    let Some(found) = found.filter(|token| token.revoked_at.is_none()) else { return Ok(None) };
    let now = database.dialect().now();
    let revoked = format!("UPDATE api_tokens SET revoked_at = {now} WHERE id = ? AND revoked_at IS NULL");
    let disabled = format!(
        "UPDATE subscriptions SET state_reason = 'its token was revoked', state = 'disabled', updated_at = {now} \
         WHERE owner = ? AND state <> 'disabled' AND NOT EXISTS (SELECT 1 FROM api_tokens t WHERE t.name = ? \
         AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > {now}))"
    );
    let owner = owner(&found.name);
    // The name's tokens are locked first. If two users revoke its last two tokens at once, the second transaction sees
    // the changes of the first. InnoDB, too, locks each row that an UPDATE finds, whether its values change or not
    // (MySQL manual, "Locks Set by Different SQL Statements in InnoDB").
    let locked = "UPDATE api_tokens SET last_used_at = last_used_at WHERE name = ?";
    database.execute_together(
        "revoking a token of the API",
        &[
            (locked, &[Value::Text(&found.name)]),
            (&revoked, &[Value::Uuid(id)]),
            (&disabled, &[Value::Text(&owner), Value::Text(&found.name)]),
        ],
    )?;
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_for_what_its_bounds_name_and_for_nothing_beside_it() {
        let bounds = Bounds {
            domains: vec!["mail.axial.net".into()],
            addresses: vec!["doug@axial.net".into()],
            mailboxes: vec!["lisa/Sent/Old".into()],
        };
        for (resource, id, held) in [
            ("domain", "mail.axial.net", true),
            ("domain", "axial.net", false),
            ("address", "scuba@mail.axial.net", true),
            ("address", "doug@axial.net", true),
            ("address", "scuba@axial.net", false),
            ("address", "scuba@x.mail.axial.net", false),
            ("mailbox", "lisa/Sent/Old", true),
            ("mailbox", "lisa/Sent", false),
            ("message", "ab", false),
            ("all", "", false),
        ] {
            assert_eq!(bounds.hold_resource(resource, id), held, "{resource} {id}");
            assert!(Bounds::default().hold_resource(resource, id), "{resource} {id}");
        }
        assert!(bounds.hold_copy("Doug@axial.net", "doug", "INBOX") && bounds.hold_copy("x@y", "lisa", "Sent/Old"));
        assert!(!bounds.hold_copy("x@y", "lisa", "Sent") && !bounds.hold_copy("x", "x", "x"));
        assert!(!bounds.hold_copy("a@mail.axial.net@evil.example", "a", "INBOX"));
    }
}
