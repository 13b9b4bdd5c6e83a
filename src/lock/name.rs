//! The name of a lock: the same on every machine, in every release and in every language.

use crate::message::Message;
use sha2::{Digest, Sha256};
use std::fmt;

/// The namespace where none is configured.
pub const DEFAULT_NAMESPACE: &str = "maildrop";

/// What the namespace of `lock exec` has at its end, after that of the site's deliveries.
pub(crate) const OF_PROGRAMS: &str = " exec";

/// SHA-256 over a length-prefixed namespace and Message-ID:
/// `u32 big-endian length · namespace · u32 big-endian length · Message-ID`.
///
/// The length prefixes keep `a`+`bc` and `ab`+`c` apart. Test vectors in `tests/` and the SQL functions
/// `maildrop_lock_key()` and `maildrop_lock_name()` pin the encoding.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockName([u8; 32]);

impl LockName {
    /// The name for `message_id` in `namespace`. White space around the id, its angle brackets and what follows them
    /// do not count: `<123@example.com>` and `123@example.com` are one name. Case does (RFC 5322 section 3.6.4 gives
    /// no leave to fold it).
    #[must_use]
    pub fn new(namespace: &str, message_id: &[u8]) -> Self {
        let id = bare_message_id(message_id);
        let mut hash = Sha256::new();
        for part in [namespace.as_bytes(), id] {
            // A Message-ID beyond 4 GiB cannot arrive; saturating keeps this total all the same.
            hash.update(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// The name for a program that `lock exec` runs: in a namespace of its own, that no configuration can choose for its
    /// messages, so that a program and a delivery never meet. In SQL: `maildrop_lock_key(NAME, 'maildrop exec')`.
    #[must_use]
    pub fn of_program(namespace: &str, name: &str) -> Self {
        Self::new(&format!("{namespace}{OF_PROGRAMS}"), name.as_bytes())
    }

    /// The name for a message: its Message-ID's, or, where it has none, one made up from its content.
    #[must_use]
    pub fn of_message(namespace: &str, message: &Message) -> Self {
        // The negative control of the two-host test: with a name of its own, every process gets its lock at once.
        #[cfg(feature = "test-without-lock")]
        let namespace = &format!("{namespace} {}", uuid::Uuid::now_v7());
        Self::new(namespace, message.lock_subject())
    }

    /// The name as the ledger keeps it: `lock_digest`.
    #[must_use]
    pub fn from_digest(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    /// The key of the PostgreSQL advisory lock: the first 8 bytes, big-endian, as a signed bigint.
    #[must_use]
    pub fn postgres_key(&self) -> i64 {
        let mut first = [0; 8];
        first.copy_from_slice(&self.0[..8]);
        i64::from_be_bytes(first)
    }

    /// The name of the MySQL lock: `maildrop:` and 48 lower-case hexadecimal digits, 57 ASCII characters.
    /// MySQL takes at most 64 and ignores case, MariaDB takes more and does not; this form is the same to both.
    #[must_use]
    pub fn mysql_name(&self) -> String {
        format!("maildrop:{}", hex(&self.0[..24]))
    }

    /// The whole digest.
    #[must_use]
    pub fn digest(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockName({})", hex(&self.0))
    }
}

/// The id between its angle brackets, or the trimmed text where it has none.
fn bare_message_id(id: &[u8]) -> &[u8] {
    let id = id.trim_ascii();
    match id.strip_prefix(b"<") {
        Some(rest) => rest.iter().position(|&b| b == b'>').map_or(rest, |end| &rest[..end]),
        None => id,
    }
}

/// Lower-case hexadecimal.
#[must_use]
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(if value < 10 { b'0' + value } else { b'a' + value - 10 });
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 0xf));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by another program (Python's hashlib): namespace, Message-ID, PostgreSQL's key, MySQL's name. The SQL
    /// functions are held to the same list.
    const VECTORS: &str = include_str!("../../tests/lock_names.json");

    #[test]
    fn every_release_and_every_language_says_the_same_name() {
        let vectors: Vec<(String, String, i64, String)> = serde_json::from_str(VECTORS).unwrap();
        assert!(vectors.len() >= 15);
        for (namespace, message_id, key, name) in vectors {
            let lock = LockName::new(&namespace, message_id.as_bytes());
            assert_eq!((lock.postgres_key(), lock.mysql_name()), (key, name), "{namespace:?} {message_id:?}");
        }
    }

    #[test]
    fn an_id_that_is_no_text_has_a_name_too() {
        let lock = LockName::new(DEFAULT_NAMESPACE, b"<\xff\xfe@example.com>");
        assert_eq!(lock.postgres_key(), -6_433_812_475_294_849_147);
    }
}
