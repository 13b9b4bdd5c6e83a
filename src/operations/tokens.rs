//! Tokens of the API: format, scopes, creation and revocation (`ledger::api_tokens` has the SQL).
//!
//! A token is `mdt_` and 256 random bits in base64url (RFC 4648 section 5). By this prefix, secret scanners recognize a token in
//! text that was published by mistake.

use super::operations_log::{OperationResult, logged};
use crate::base::text_enum::text_enum;
use crate::database::DatabaseError;
use crate::ledger::Database;
use crate::ledger::api_tokens::{self, NewApiToken};
pub(crate) use crate::ledger::api_tokens::{ApiToken, Bounds, list, owner};
use crate::ledger::operations_log::{Actor, Operation};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};
use sha2::{Digest, Sha256};
use std::fmt;
use std::time::Duration;
use thiserror::Error;
use uuid::Uuid;

/// The longest name of a token.
const LONGEST_NAME: usize = 48;

/// The default limit of requests per second.
pub(crate) const RATE: u32 = 50;

text_enum! {
    /// The permissions of a token, as `--scope` takes them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Scope {
        SubscriptionsRead = "subscriptions:read",
        /// Includes reading subscriptions.
        SubscriptionsWrite = "subscriptions:write",
        EventsRead = "events:read",
        MessagesRead = "messages:read",
        /// Permits reading the content of messages.
        MessagesContent = "messages:content",
        /// Permits submitting messages.
        MessagesWrite = "messages:write",
        /// The envelope sender is the author of a submitted message, and gets a copy in Sent.
        Sent = "sent",
    }
}

impl Scope {
    /// Whether a token has this scope.
    pub(crate) fn is_of(self, token: &ApiToken) -> bool {
        let has = |scope: Self| token.scopes.iter().any(|one| one == scope.as_str());
        has(self) || (self == Self::SubscriptionsRead && has(Self::SubscriptionsWrite))
    }
}

/// The prefix of a token, and its number of random bytes.
const PREFIX: &str = "mdt_";
const RANDOM_BYTES: usize = 32;

/// A token's text. It is a secret: with the text alone, a client can use the API.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TokenText(String);

/// The system's random number generator failed.
#[derive(Clone, Copy, Debug, Error)]
#[error("the system has no random numbers")]
pub(crate) struct NoRandomNumbers;

/// 256 random bits, as text that is valid in a URL and in a cookie.
pub(super) fn random_text() -> Result<String, NoRandomNumbers> {
    let mut bytes = [0; RANDOM_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomNumbers)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

impl TokenText {
    pub(crate) fn random() -> Result<Self, NoRandomNumbers> {
        Ok(Self(format!("{PREFIX}{}", random_text()?)))
    }

    /// Parses the text of a token.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix(PREFIX)?).ok()?;
        (bytes.len() == RANDOM_BYTES).then(|| Self(text.to_owned()))
    }

    /// The digest that the ledger stores.
    pub(crate) fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }

    /// The text itself, to be shown once to the token's owner.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenText(…)")
    }
}

/// The properties of a new token.
#[derive(Clone, Debug)]
pub(crate) struct NewToken<'a> {
    pub(crate) name: &'a str,
    pub(crate) scopes: Vec<&'static str>,
    pub(crate) bounds: Bounds,
    pub(crate) rate: u32,
    pub(crate) expires_after: Option<Duration>,
}

/// Why no token was created.
#[derive(Debug, Error)]
pub(crate) enum NotMade {
    #[error("the name {0:?}: letters, digits, and . _ - are wanted, {LONGEST_NAME} at most")]
    Name(String),
    #[error(transparent)]
    Random(#[from] NoRandomNumbers),
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// Creates a token, and returns its id and its text, which is stored nowhere.
///
/// # Errors
/// If the name is invalid, or if the database fails.
pub(crate) fn create(
    database: &mut dyn Database,
    by: Actor<'_>,
    wanted: NewToken<'_>,
) -> Result<(Uuid, TokenText), NotMade> {
    let NewToken { name, scopes, bounds, rate, expires_after } = wanted;
    let right = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(right) {
        return Err(NotMade::Name(name.to_owned()));
    }
    let text = TokenText::random()?;
    let new = NewApiToken { digest: text.digest(), name, scopes, bounds, rate, expires_after };
    let came = |id: &Uuid| OperationResult::to(format!("{name}, for {}", new.scopes.join(" "))).with(*id);
    let create = |database: &mut dyn Database| api_tokens::create(database, &new);
    Ok((logged(database, by, Operation::MadeToken, Some(name), create, came)?, text))
}

/// Revokes a token. `None` if there is no such token, or if it was revoked before.
///
/// # Errors
/// If the database fails, or if the operations log cannot be written.
pub(crate) fn revoke(database: &mut dyn Database, by: Actor<'_>, id: Uuid) -> Result<Option<ApiToken>, DatabaseError> {
    let came = |revoked: &Option<ApiToken>| match revoked {
        Some(token) => OperationResult::to(token.name.as_str()),
        None => OperationResult::to("there is none that counts"),
    };
    let revoke = |database: &mut dyn Database| api_tokens::revoke(database, id);
    logged(database, by, Operation::RevokedToken, Some(&id.to_string()), revoke, came)
}

/// The token that a client presents, if it is valid.
///
/// # Errors
/// If the database fails.
pub(crate) fn shown(database: &mut dyn Database, text: &TokenText) -> Result<Option<ApiToken>, DatabaseError> {
    api_tokens::with_digest(database, &text.digest())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_only_as_it_was_made_and_shows_itself_nowhere() {
        let token = TokenText::random().unwrap();
        let text = token.expose();
        assert_eq!((text.len(), TokenText::parse(text)), (4 + 43, Some(token.clone())));
        assert_ne!(token, TokenText::random().unwrap());
        assert_eq!(format!("{token:?}"), "TokenText(…)");
        let (short, long) = (&text[..text.len() - 1], format!("{text}0"));
        for wrong in ["", "mdt_", short, &long, &text[1..], &text.replace("mdt_", "mdt-"), &format!("{text}=")] {
            assert_eq!(TokenText::parse(wrong), None, "{wrong}");
        }
        for wrong in ["ä", "+", "/", " "] {
            assert_eq!(
                TokenText::parse(&format!("mdt_{}{wrong}", &text[4..text.len() - wrong.len()])),
                None,
                "{wrong}"
            );
        }
    }

    #[test]
    fn who_may_change_subscriptions_may_read_them_and_nothing_else() {
        let token = |scope: &str| ApiToken {
            id: Uuid::nil(),
            name: "a".into(),
            scopes: vec![scope.to_owned()],
            bounds: Bounds::default(),
            rate: 1,
            created_at: 0,
            expires_at: None,
            revoked_at: None,
            last_used_at: None,
            valid: true,
        };
        for (has, wants) in Scope::TEXTS.iter().flat_map(|has| Scope::ALL.map(|wants| (has, wants))) {
            let expected =
                *has == wants.as_str() || (*has == "subscriptions:write" && wants == Scope::SubscriptionsRead);
            assert_eq!(wants.is_of(&token(has)), expected, "{has} {wants:?}");
        }
    }
}
