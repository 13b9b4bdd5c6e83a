//! MySQL and MariaDB: whatever a stranger writes into a message or an envelope is stored as it is, and is never SQL.

use crate::support_mysql::{Mail, TestDatabase, on_each_server};
use maildrop_command::ledger::{CopyState, EndedAttempt, Ledger, Outcome, Record};
use maildrop_command::mailbox::{Placement, Position};
use mysql::prelude::Queryable;

on_each_server!(hostile_text_comes_back_as_it_was);

const HOSTILE: [&str; 8] = [
    "'; DROP TABLE copies; -- ",
    "\\'; DELETE FROM attempts; #",
    "\") OR 1=1 /* \u{bf}\u{5c}\u{27} */",
    "`x`\r\n\t\u{1a}\u{1}%_",
    "_utf8mb4 X'27' X'",
    "誠に\u{10ffff}😀e\u{301}\u{feff}",
    " leading and trailing ",
    "",
];

fn hostile_text_comes_back_as_it_was(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    for hostile in HOSTILE {
        let mut mail = Mail::to(hostile);
        mail.message_id = hostile.into();
        let mut journal = mail.journal();
        (journal.queue_id, journal.sender, journal.host) = (Some(hostile), Some(hostile), hostile);
        for copy in &mut journal.copies {
            (copy.user, copy.mailbox) = (hostile, hostile);
            copy.position = Some(Position { uid_validity: 1, uid_next: u32::MAX });
        }
        database.journal(&journal).unwrap();
        let open = database.look(&[mail.inbox()]).unwrap().remove(0).open_attempts.remove(0);
        assert_eq!((open.recipient.as_str(), open.attempt), (hostile, mail.attempt));

        let headers = serde_json::to_string(&[[hostile, hostile]]).unwrap();
        let mut record = mail.record(
            CopyState::Owed(hostile),
            CopyState::Delivered(Some(Placement { uid_validity: u32::MAX, uid: u32::MAX })),
        );
        if let Some(message) = &mut record.message {
            message.sender = hostile;
            (message.from, message.to, message.cc, message.subject) =
                (Some(hostile), Some(hostile), Some(hostile), Some(hostile));
            message.headers = &headers;
            message.raw = Some(hostile.as_bytes());
        }
        for copy in &mut record.copies {
            (copy.user, copy.mailbox, copy.recipient) = (hostile, hostile, hostile);
        }
        record.ended = mail
            .keys()
            .into_iter()
            .map(|key| EndedAttempt { attempt: mail.attempt, key, outcome: Outcome::from_text(hostile), stages: None })
            .collect();
        database.record(&record).unwrap();

        let mut admin = site.admin();
        let mut texts = |query: &str| -> Vec<String> {
            let row: mysql::Row = admin.query_first(query).unwrap().unwrap();
            (0..row.len()).map(|i| row.get(i).unwrap()).collect()
        };
        let last = "ORDER BY attempt DESC, role LIMIT 1";
        for (what, columns) in [
            (
                "attempts",
                format!(
                    "SELECT imap_user, mailbox, message_id, recipient, queue_id, sender, host, outcome FROM attempts {last}"
                ),
            ),
            (
                "messages",
                "SELECT m.message_id, sender, header_from, header_to, header_cc, subject, \
                 JSON_UNQUOTE(JSON_EXTRACT(headers, '$[0][1]')), source \
                 FROM messages m JOIN message_sources s ON s.message_id = m.id ORDER BY m.id DESC LIMIT 1"
                    .into(),
            ),
            (
                "copies",
                "SELECT imap_user, mailbox, recipient, reason FROM copies WHERE state = 'owed' \
                 ORDER BY message DESC LIMIT 1"
                    .into(),
            ),
        ] {
            assert!(
                texts(&columns).iter().all(|text| text == hostile),
                "{what} for {hostile:?}: {:?}",
                texts(&columns)
            );
        }
        let escaped: String = hostile.bytes().map(|b| format!("{b:02x}")).collect();
        let insert = format!(
            "INSERT IGNORE INTO addresses (address, imap_user, inbox) \
             VALUES (LOWER(_utf8mb4 X'{escaped}'), _utf8mb4 X'{escaped}', _utf8mb4 X'{escaped}')"
        );
        admin.query_drop(insert).unwrap();
        let book = database.addresses(&[hostile, "nobody"]).unwrap();
        let [(address, destination)] = book.entries.as_slice() else { panic!("{hostile:?}: {book:?}") };
        assert_eq!((address.as_str(), destination.user.as_str()), (hostile.to_lowercase().as_str(), hostile));
    }
    database.record(&Record::default()).unwrap();
}
