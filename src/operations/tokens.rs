//! Tokens of the API: how one looks, what it may do, and what becomes of it (`ledger::api_tokens` has the SQL).
//!
//! `mdt_`, 256 random bits in 43 digits of base 62, and six digits of a checksum, by which those who look for secrets in what was
//! published by mistake tell a token from any other text; and we need not ask the database about what is none.

use super::operations_log::{Came, logged};
use crate::database::DatabaseError;
use crate::ledger::Database;
use crate::ledger::api_tokens::{self, NewApiToken};
pub(crate) use crate::ledger::api_tokens::{ApiToken, Bounds, list, owner};
use crate::ledger::operations_log::{Actor, Operation};
use sha2::{Digest, Sha256};
use std::fmt;
use std::time::Duration;
use thiserror::Error;
use uuid::Uuid;

/// The longest name of a token.
const LONGEST_NAME: usize = 48;

/// How many requests a second are allowed where nobody says otherwise.
pub(crate) const RATE: u32 = 50;

/// What a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    SubscriptionsRead,
    /// To read them as well.
    SubscriptionsWrite,
    EventsRead,
    MessagesRead,
    /// To read messages themselves.
    MessagesContent,
    /// To bring messages.
    MessagesWrite,
    /// What it brings is written by its envelope sender, who is to have a copy in Sent.
    Sent,
}

/// Their names, as `--scope` takes them.
pub(crate) const SCOPES: [&str; 7] = [
    "subscriptions:read",
    "subscriptions:write",
    "events:read",
    "messages:read",
    "messages:content",
    "messages:write",
    "sent",
];

impl Scope {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::SubscriptionsRead => "subscriptions:read",
            Self::SubscriptionsWrite => "subscriptions:write",
            Self::EventsRead => "events:read",
            Self::MessagesRead => "messages:read",
            Self::MessagesContent => "messages:content",
            Self::MessagesWrite => "messages:write",
            Self::Sent => "sent",
        }
    }

    /// Whether a token has it.
    pub(crate) fn is_of(self, token: &ApiToken) -> bool {
        let has = |scope: Self| token.scopes.iter().any(|one| one == scope.as_str());
        has(self) || (self == Self::SubscriptionsRead && has(Self::SubscriptionsWrite))
    }
}

/// A token's text, which lets in whoever has it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TokenText(String);

/// There are no random numbers.
#[derive(Clone, Copy, Debug, Error)]
#[error("the system has no random numbers")]
pub(crate) struct NoRandomNumbers;

impl TokenText {
    pub(crate) fn random() -> Result<Self, NoRandomNumbers> {
        let mut bytes = [0; 32];
        ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes).map_err(|_| NoRandomNumbers)?;
        Ok(Self::of(bytes))
    }

    fn of(bytes: [u8; 32]) -> Self {
        let random = base62(&bytes, 43);
        let checksum = base62(&crc32(random.as_bytes()).to_be_bytes(), 6);
        Self(format!("mdt_{random}{checksum}"))
    }

    /// Reads one.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (random, checksum) = text.strip_prefix("mdt_")?.split_at_checked(43)?;
        let right = base62(&crc32(random.as_bytes()).to_be_bytes(), 6) == checksum;
        (right && random.bytes().all(|byte| byte.is_ascii_alphanumeric())).then(|| Self(text.to_owned()))
    }

    /// What is kept of it.
    #[must_use]
    pub(crate) fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }

    /// The text itself, for the one who is given it.
    #[must_use]
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenText(…)")
    }
}

/// Bytes as one number, in that many digits.
fn base62(bytes: &[u8], digits: usize) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let (mut number, mut text) = (bytes.to_vec(), vec![b'0'; digits]);
    for place in text.iter_mut().rev() {
        let mut rest = 0;
        for byte in &mut number {
            let value = rest * 256 + usize::from(*byte);
            // Less than 256, as rest is less than 62.
            *byte = u8::try_from(value / 62).unwrap_or(u8::MAX);
            rest = value % 62;
        }
        *place = DIGITS.get(rest).copied().unwrap_or(b'0');
    }
    text.into_iter().map(char::from).collect()
}

/// The checksum of zip, PNG and Ethernet (CRC-32, ISO 3309).
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// A token as somebody wants it.
#[derive(Clone, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a str,
    pub(crate) scopes: Vec<&'static str>,
    pub(crate) bounds: Bounds,
    pub(crate) rate: u32,
    pub(crate) expires_after: Option<Duration>,
}

/// Why there is no new token.
#[derive(Debug, Error)]
pub(crate) enum NotMade {
    #[error("the name {0:?}: letters, digits, and . _ - are wanted, {LONGEST_NAME} at most")]
    Name(String),
    #[error(transparent)]
    Random(#[from] NoRandomNumbers),
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// Makes a token: its id and its text, which is nowhere else.
///
/// # Errors
/// Where its name is none, or where the database fails.
pub(crate) fn create(
    database: &mut dyn Database,
    by: Actor<'_>,
    wanted: Wanted<'_>,
) -> Result<(Uuid, TokenText), NotMade> {
    let Wanted { name, scopes, bounds, rate, expires_after } = wanted;
    let right = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(right) {
        return Err(NotMade::Name(name.to_owned()));
    }
    let text = TokenText::random()?;
    let new = NewApiToken { digest: text.digest(), name, scopes, bounds, rate, expires_after };
    let came = |id: &Uuid| Came::to(format!("{name}, for {}", new.scopes.join(" "))).with(*id);
    let create = |database: &mut dyn Database| api_tokens::create(database, &new);
    Ok((logged(database, by, Operation::MadeToken, Some(name), create, came)?, text))
}

/// Has a token count no more. `None` where there is no such token that was not revoked before.
///
/// # Errors
/// Where the database fails, or the operations log cannot be written.
pub(crate) fn revoke(database: &mut dyn Database, by: Actor<'_>, id: Uuid) -> Result<Option<ApiToken>, DatabaseError> {
    let came = |revoked: &Option<ApiToken>| match revoked {
        Some(token) => Came::to(token.name.as_str()),
        None => Came::to("there is none that counts"),
    };
    let revoke = |database: &mut dyn Database| api_tokens::revoke(database, id);
    logged(database, by, Operation::RevokedToken, Some(&id.to_string()), revoke, came)
}

/// The token that somebody shows, if it counts.
///
/// # Errors
/// Where the database cannot be asked.
pub(crate) fn shown(database: &mut dyn Database, text: &TokenText) -> Result<Option<ApiToken>, DatabaseError> {
    api_tokens::with_digest(database, &text.digest())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_by_its_checksum_and_shows_itself_nowhere() {
        // By Python: zlib.crc32, int.from_bytes and divmod.
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!((base62(&[0; 32], 43), base62(&[0, 62], 3)), ("0".repeat(43), "010".to_owned()));
        assert_eq!(base62(&[255; 32], 43), "yhjskwdA6OZ1AL1YmHWZWm8LLG7HjnuCA2j5rOw8Xp1");
        let token = TokenText::random().unwrap();
        assert_eq!(token.expose().len(), 4 + 43 + 6);
        assert_eq!(TokenText::parse(token.expose()), Some(token.clone()));
        assert_ne!(token, TokenText::random().unwrap());
        assert_eq!(format!("{token:?}"), "TokenText(…)");
        let (all, text) = (token.expose().len(), token.expose());
        for wrong in ["", "mdt_", &text[..all - 1], &text[1..], &format!("{text}0"), &text.replace("mdt_", "mdt-")] {
            assert_eq!(TokenText::parse(wrong), None, "{wrong}");
        }
        for at in 4..all {
            let other = if text.as_bytes()[at] == b'7' { "8" } else { "7" };
            let mut wrong = text.to_owned();
            wrong.replace_range(at..=at, other);
            assert_eq!(TokenText::parse(&wrong), None, "{wrong}");
        }
        assert_eq!(TokenText::parse(&format!("mdt_{}ä", "0".repeat(42))), None);
    }

    #[test]
    fn who_may_change_subscriptions_may_read_them_and_nothing_else() {
        let scopes = [
            Scope::SubscriptionsRead,
            Scope::SubscriptionsWrite,
            Scope::EventsRead,
            Scope::MessagesRead,
            Scope::MessagesContent,
            Scope::MessagesWrite,
            Scope::Sent,
        ];
        assert_eq!(scopes.map(Scope::as_str), SCOPES);
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
        for (has, wants) in SCOPES.iter().flat_map(|has| scopes.map(|wants| (has, wants))) {
            let expected =
                *has == wants.as_str() || (*has == "subscriptions:write" && wants == Scope::SubscriptionsRead);
            assert_eq!(wants.is_of(&token(has)), expected, "{has} {wants:?}");
        }
    }
}
