//! Decides by the Message-ID which messages of a mailbox may be the wanted one.

use crate::mailbox::{Matching, Position, Wanted};
use crate::message::{
    message_id_as_stored, message_id_for_people, message_id_for_search, message_id_in, without_brackets,
};

/// Whether the message with this header may be the wanted one.
///
/// With [`Matching::Identity`], doubtful messages pass, because all their bytes are compared afterwards. A server may parse
/// an odd header differently, and may change bytes beyond ASCII (Cyrus writes an X for each such byte: `munge8bit`,
/// imapd.conf(5)).
///
/// A search without `since` covers all messages of some days, and reading thousands of them whole would exceed the deadline.
/// So a message with a Message-ID passes only if a store may return the wanted id as that one, or if the wanted id was not
/// UTF-8. A message without a Message-ID always passes.
pub(super) fn may_be(header: &[u8], wanted: &Wanted<'_>, since: Option<Position>) -> bool {
    let by_bytes = wanted.matching == Matching::Identity;
    let id = message_id_in(header);
    let Some(id) = id.as_deref().map(message_id_for_people) else { return by_bytes };
    let Some(wanted) = wanted.message_id else { return by_bytes && since.is_some() };
    let (id, wanted) = (without_brackets(&id), without_brackets(wanted));
    if id == wanted {
        return true;
    }
    // U+FFFD replaces bytes that were not UTF-8.
    let may_differ = if since.is_some() {
        !wanted.is_ascii()
    } else {
        wanted.contains(char::REPLACEMENT_CHARACTER) || as_stored(id) == as_stored(wanted)
    };
    by_bytes && may_differ
}

fn as_stored(id: &str) -> Vec<u8> {
    message_id_as_stored(id.as_bytes())
}

/// The Message-ID for the server's SEARCH: only one that the server reads as we do, and only if nothing else has to match.
/// Otherwise a copy could be missed: of two Message-ID fields, for example, Cyrus uses the last.
pub(super) fn searchable<'a>(wanted: &Wanted<'a>) -> Option<&'a str> {
    wanted.message_id.filter(|_| wanted.matching == Matching::MessageId).and_then(message_id_for_search)
}

/// The Message-ID of the message with this header, as each store returns it: Cyrus writes an X for a byte beyond ASCII.
pub(super) fn message_id(header: &[u8]) -> Option<Vec<u8>> {
    message_id_in(header).as_deref().map(message_id_as_stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Identity, Message, Role};
    use time::macros::datetime;

    fn wanted<'a>(message_id: Option<&'a str>, matching: Matching, identity: &'a Identity) -> Wanted<'a> {
        let not_before = datetime!(2026-01-01 0:00 UTC);
        Wanted { message_id, identity, role: Role::Recipient, matching, since: None, not_before }
    }

    #[test]
    fn the_doubtful_pass_where_all_bytes_are_looked_at_afterwards() {
        let identity = Identity::of(b"");
        let since = Some(Position { uid_validity: 1, uid_next: 1 });
        let may_be =
            |header: &str, id, matching| super::may_be(header.as_bytes(), &wanted(id, matching, &identity), since);
        for matching in [Matching::Identity, Matching::MessageId] {
            assert!(may_be("Message-ID: <a@b>\r\n\r\n", Some("a@b"), matching));
            assert!(may_be("message-id:\r\n <a@b>\r\n\r\n", Some("<a@b>"), matching));
            assert!(!may_be("Message-ID: <A@b>\r\n\r\n", Some("a@b"), matching));
            assert!(!may_be("Message-ID: <xa@b>\r\n\r\n", Some("a@b"), matching));
            assert!(may_be("Message-ID: <ü@b>\r\n\r\n", Some("ü@b"), matching));
        }
        assert!(may_be("Message-ID: <XX@b>\r\n\r\n", Some("ü@b"), Matching::Identity));
        assert!(!may_be("Message-ID: <XX@b>\r\n\r\n", Some("ü@b"), Matching::MessageId));
        assert!(may_be("\r\n", Some("a@b"), Matching::Identity));
        assert!(may_be("\r\n", None, Matching::Identity));
        assert!(may_be("Message-ID: <a@b>\r\n\r\n", None, Matching::Identity));
        assert!(!may_be("\r\n", Some("a@b"), Matching::MessageId));
        assert!(!may_be("\r\n", None, Matching::MessageId));
        // In a search of some days, a message with a Message-ID cannot be the message without one.
        let among_all =
            |header: &str, id| super::may_be(header.as_bytes(), &wanted(id, Matching::Identity, &identity), None);
        assert!(!among_all("Message-ID: <a@b>\r\n\r\n", None));
        for (header, id) in [
            ("\r\n", None),
            ("Message-ID:\r\n\r\n", None),
            ("\r\n", Some("a@b")),
            ("Message-ID: <XX@b>\r\n\r\n", Some("ü@b")),
            ("Message-ID: <20261126 0800.17@printer>\r\n\r\n", Some("<20261126 0800.17@printer>")),
            ("Message-ID: <a@b>\r\n\r\n", Some("<\u{fffd}@b>")),
        ] {
            assert!(among_all(header, id), "{header} {id:?}");
        }
        for other in ["Message-ID: <XXX@b>\r\n\r\n", "Message-ID: <a@b>\r\n\r\n"] {
            assert!(!among_all(other, Some("ü@b")) && !among_all(other, Some("<a b@c>")), "{other}");
        }
    }

    #[test]
    fn an_eight_bit_id_matches_itself() {
        let header = b"Message-ID: <a\xff\xfeb@c>\r\n\r\n";
        let message = Message::receive(header.to_vec()).unwrap();
        let identity = *message.identity();
        assert!(super::may_be(header, &wanted(message.message_id(), Matching::MessageId, &identity), None));
    }

    #[test]
    fn a_server_is_only_asked_for_what_it_cannot_misread() {
        let identity = Identity::of(b"");
        let searchable = |id| super::searchable(&wanted(Some(id), Matching::MessageId, &identity));
        assert_eq!(searchable("<123-abc@mail.google.com>"), Some("123-abc@mail.google.com"));
        assert_eq!(searchable("a$b%c@d"), Some("a$b%c@d"));
        let long = "x".repeat(501);
        for odd in ["", "<>", "a b@c", "ü@c", "a\"b", "a\\b", "=?utf-8?q?a?=@b", "<a@b> (c)", &long] {
            assert_eq!(searchable(odd), None, "{odd}");
        }
        assert_eq!(super::searchable(&wanted(Some("<a@b>"), Matching::Identity, &identity)), None);
    }
}
