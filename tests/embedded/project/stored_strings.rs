//! Strings that are stored: in names of locks, in digests and derived keys, in mailboxes, with receivers and browsers. No renaming may
//! change one of them, or programs of two releases would not exclude each other, or take what the other has stored for something else.

use crate::pages::root;
use std::fs;

/// Each with the file of `src` that contains it, as it stands there.
const STORED: [(&str, &str); 15] = [
    // Names of locks. `tests/lock_names.json` has the digests.
    ("lock/name.rs", "DEFAULT_NAMESPACE: &str = \"maildrop\""),
    ("lock/name.rs", "OF_PROGRAMS: &str = \" exec\""),
    ("ledger/schema/mod.rs", "LockName::new(\"maildrop schema\", b\"migrations\")"),
    ("notifier/event_loop/mod.rs", "PUBLISHER: &str = \"notify/publisher\""),
    ("service/timer.rs", "format!(\"maildropd {}\", kind.name())"),
    // The roles of copies are in their keys.
    ("message/copy_role.rs", "Self::Sender => \"sender\""),
    ("message/copy_role.rs", "Self::Recipient => \"recipient\""),
    // From which the secrets of subscriptions are derived.
    ("webhook/signature.rs", "PURPOSE: &[u8] = b\"maildrop_command webhook secret v1\""),
    ("webhook/signature.rs", "\"whsec_{}\""),
    ("operations/tokens.rs", "PREFIX: &str = \"mdt_\""),
    // Users and mailboxes of the proof of logins.
    ("mailbox/imap/authorization.rs", "INVENTED: &str = \"maildrop-check-0f9c41d27ab3\""),
    ("mailbox/imap/authorization.rs", "\"maildrop-check-{}\""),
    // What browsers keep, and what files of failures begin with.
    ("http/web/auth.rs", "COOKIE_NAME: &str = \"__Host-maildrop\""),
    ("operations/replay/entry.rs", "MARK: &str = \"{\\\"maildrop_command_replay\\\":1\""),
    // What `lock list` recognises sessions by.
    ("database/postgres/application_name.rs", "PROGRAM: &str = \"maildrop\""),
];

#[test]
fn what_is_stored_is_spelt_as_ever() {
    for (file, string) in STORED {
        let text = fs::read_to_string(root().join("src").join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(text.contains(string), "{file} has no `{string}` any more: what is stored under it would not be found");
    }
}
