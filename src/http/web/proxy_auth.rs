//! The user that the proxy in front has authenticated.

use crate::base::timestamp;
use crate::config::{Web, is_name};
use crate::ledger::web_sessions::{WebRole, WebSession};
use axum::http::{HeaderMap, HeaderName};
use std::collections::BTreeMap;
use thiserror::Error;

/// The users that the proxy may name, the header that it uses, and their roles.
#[derive(Clone, Debug)]
pub(super) struct TrustedUsers {
    header: HeaderName,
    roles: BTreeMap<String, WebRole>,
    others: Option<WebRole>,
}

/// Why a user that the proxy names is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum NotTrusted {
    #[error("The proxy in front says twice who you are ({0})")]
    Twice(HeaderName),
    #[error("What the proxy in front says is no name ({0})")]
    NoName(HeaderName),
    #[error("You are logged in as {0}, who has no role here (web.trusted_user_roles)")]
    NoRole(String),
}

impl TrustedUsers {
    /// The settings of a configuration; `None` if the proxy is not trusted.
    pub(super) fn of(web: &Web) -> Option<Self> {
        // An invalid header name was refused when the configuration was read.
        let header = web.trusted_user_header.as_ref()?.to_ascii_lowercase().parse().ok()?;
        Some(Self { header, roles: web.trusted_user_roles.clone(), others: web.trusted_user_role })
    }

    /// The user of a request; `None` if the proxy names no user.
    ///
    /// # Errors
    /// If the proxy names two users or an invalid name, or if the user has no role.
    pub(super) fn who(&self, headers: &HeaderMap) -> Result<Option<WebSession>, NotTrusted> {
        let mut values = headers.get_all(&self.header).iter();
        let Some(name) = values.next() else { return Ok(None) };
        // One of them may come from the browser itself.
        if values.next().is_some() {
            return Err(NotTrusted::Twice(self.header.clone()));
        }
        let name = std::str::from_utf8(name.as_bytes()).ok().filter(|name| is_name(name));
        let name = name.ok_or_else(|| NotTrusted::NoName(self.header.clone()))?.to_owned();
        let Some(role) = self.roles.get(&name).copied().or(self.others) else {
            return Err(NotTrusted::NoRole(name));
        };
        let now = timestamp::now();
        Ok(Some(WebSession { id: String::new(), name, role, created_at: now, last_seen_at: now }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn users(others: Option<WebRole>) -> TrustedUsers {
        let roles = BTreeMap::from([("anna".to_owned(), WebRole::Operator)]);
        let header = Some("X-Forwarded-User".to_owned());
        let web =
            Web { trusted_user_header: header, trusted_user_roles: roles, trusted_user_role: others, ..Web::default() };
        TrustedUsers::of(&web).unwrap()
    }

    fn asked(users: &TrustedUsers, values: &[&[u8]]) -> Result<Option<(String, WebRole)>, NotTrusted> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("x-forwarded-user", HeaderValue::from_bytes(value).unwrap());
        }
        users.who(&headers).map(|who| who.map(|who| (who.name, who.role)))
    }

    #[test]
    fn who_is_named_has_a_role_and_who_is_not_has_that_of_all_others() {
        let anna = Ok(Some(("anna".to_owned(), WebRole::Operator)));
        assert_eq!(asked(&users(None), &[b"anna"]), anna);
        assert_eq!(asked(&users(Some(WebRole::Viewer)), &[b"anna"]), anna);
        assert_eq!(asked(&users(None), &[]), Ok(None));
        assert_eq!(asked(&users(None), &[b"boris"]), Err(NotTrusted::NoRole("boris".into())));
        // Names are case-sensitive.
        assert_eq!(asked(&users(None), &[b"Anna"]), Err(NotTrusted::NoRole("Anna".into())));
        for name in ["boris@example.com", "EXAMPLE\\boris", "Jürgen"] {
            let viewer = Ok(Some((name.to_owned(), WebRole::Viewer)));
            assert_eq!(asked(&users(Some(WebRole::Viewer)), &[name.as_bytes()]), viewer);
        }
    }

    #[test]
    fn what_is_reported_twice_or_is_no_name_is_not_believed() {
        let users = users(Some(WebRole::Admin));
        assert!(matches!(asked(&users, &[b"anna", b"anna"]), Err(NotTrusted::Twice(_))));
        assert!(matches!(asked(&users, &[b"boris", b""]), Err(NotTrusted::Twice(_))));
        for name in [&b""[..], b" ", b"-", b"(null)", b"anna, boris", b"<b>", b"a\tb", b"\xff", b"@", &[b'a'; 65]] {
            assert!(matches!(asked(&users, &[name]), Err(NotTrusted::NoName(_))), "{name:?}");
        }
    }
}
