//! The lock of a message, which is named after its Message-ID.

use crate::lock::LockName;
use crate::message::{Message, message_id_as_stored};

/// The lock of `message`, named after its Message-ID, or after an id generated from its content if it has none.
pub fn lock_of(namespace: &str, message: &Message) -> LockName {
    // The negative control of the two-host test: with a unique name, each process gets its lock at once.
    #[cfg(feature = "test-without-lock")]
    let namespace = &format!("{namespace} {}", uuid::Uuid::now_v7());
    lock_of_message_id(namespace, message.lock_subject())
}

/// The lock of all messages with this Message-ID. Bytes beyond ASCII count as `X`, because Cyrus stores them so; see
/// [`Identity`](crate::message::Identity). Callers of the SQL functions have to write `X` as well.
pub fn lock_of_message_id(namespace: &str, message_id: &[u8]) -> LockName {
    LockName::new(namespace, bare_message_id(&message_id_as_stored(message_id)))
}

/// The id between its angle brackets, or the trimmed text without brackets. `<123@example.com>` and `123@example.com` have
/// one lock, as in the SQL functions. Case counts (RFC 5322 section 3.6.4).
pub fn bare_message_id(id: &[u8]) -> &[u8] {
    let id = id.trim_ascii();
    match id.strip_prefix(b"<") {
        Some(rest) => rest.iter().position(|&b| b == b'>').map_or(rest, |end| &rest[..end]),
        None => id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::DEFAULT_NAMESPACE;

    /// Computed by another program (Python's hashlib): namespace, Message-ID, PostgreSQL's key, MySQL's name. The SQL
    /// functions are tested with the same list.
    const VECTORS: &str = include_str!("../../tests/lock_names.json");

    #[test]
    fn every_release_and_every_language_says_the_same_name() {
        let vectors: Vec<(String, String, i64, String)> = serde_json::from_str(VECTORS).unwrap();
        assert!(vectors.len() >= 15);
        for (namespace, message_id, key, name) in vectors {
            let lock = LockName::new(&namespace, bare_message_id(message_id.as_bytes()));
            assert_eq!((lock.postgres_key(), lock.mysql_name()), (key, name), "{namespace:?} {message_id:?}");
            if message_id.is_ascii() {
                assert_eq!(lock_of_message_id(&namespace, message_id.as_bytes()), lock, "{namespace:?} {message_id:?}");
            }
        }
    }

    /// Cyrus stores the first id as the second, and the ledger treats both as one message.
    #[test]
    fn messages_of_one_identity_have_one_lock() {
        let message = |id: &[u8]| Message::receive([b"Message-ID: ", id, b"\nDate: x\n\nx\n"].concat()).unwrap();
        for (id, stored) in [
            (&b"<a\xfc@example.com>"[..], &b"<aX@example.com>"[..]),
            ("<grüße@例え.jp>".as_bytes(), b"<grXXXXe@XXXXXX.jp>"),
            (b"a\x80\xff b", b"aXX b"),
            (b"<123-abc@mail.google.com>", b"<123-abc@mail.google.com>"),
        ] {
            let (came, given_back) = (message(id), message(stored));
            assert_eq!(came.identity(), given_back.identity(), "{id:?}");
            let lock = lock_of(DEFAULT_NAMESPACE, &came);
            assert_eq!(lock, lock_of(DEFAULT_NAMESPACE, &given_back), "{id:?}");
            assert_eq!(lock, lock_of_message_id(DEFAULT_NAMESPACE, id), "{id:?}");
            assert_eq!(lock, LockName::new(DEFAULT_NAMESPACE, bare_message_id(stored)), "{id:?}");
        }
    }

    #[test]
    fn an_id_that_is_no_text_has_a_name_too() {
        let lock = LockName::new(DEFAULT_NAMESPACE, bare_message_id(b"<\xff\xfe@example.com>"));
        assert_eq!(lock.postgres_key(), -6_433_812_475_294_849_147);
    }
}
