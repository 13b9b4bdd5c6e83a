//! Fallbacks for a record, or a journal, that the server refuses: first without the author's text, then a record without events.
//!
//! A header field may break a rule of the site's database: a constraint, a trigger, the longest entry of an index. By then the
//! copies are in their mailboxes. A message that is deferred for its subject would be deferred at each retry, until it bounces.
//! So it is recorded without these fields. The same holds for the journal, which is written first and contains the Message-ID.

use super::{EventRecord, Journal, MessageRecord, Record};
use crate::database::{DatabaseError, DatabaseFailure};
use tracing::warn;

/// The most characters of a text that are kept.
const LONGEST: usize = 255;

/// Writes the record. If the server refuses a value, this writes the record without anything from the message's header. If the
/// server refuses that too, or the events' tables or rights are missing (older schema or grants), this writes the record without
/// its events.
///
/// # Errors
/// The error of `write` for the last record.
pub(super) fn record_with_fallback(
    record: &Record<'_>,
    mut write: impl FnMut(&Record<'_>) -> Result<(), DatabaseError>,
) -> Result<(), DatabaseError> {
    use DatabaseFailure::{AccessDenied, Refused, Schema};
    match record_without_header(record, &mut write) {
        Err(error) if !record.events.is_empty() && matches!(error.failure, AccessDenied | Refused | Schema) => {
            let pending = Record { events: Vec::new(), ..record.clone() };
            record_without_header(&pending, &mut write)?;
            warn!(
                %error,
                "no notification is sent of this delivery: the tables outbox and subscriptions want `migrate`, and grants.sql"
            );
            Ok(())
        }
        written => written,
    }
}

/// Writes the record. If the server refuses a value, this writes the record without anything from the message's header.
///
/// # Errors
/// The error of `write` for the last record.
fn record_without_header(
    record: &Record<'_>,
    mut write: impl FnMut(&Record<'_>) -> Result<(), DatabaseError>,
) -> Result<(), DatabaseError> {
    let refusal = match write(record) {
        Err(error) if error.failure == DatabaseFailure::Refused => error,
        written => return written,
    };
    let Some(message) = &record.message else { return Err(refusal) };
    warn!(
        message_id = message.message_id,
        error = %refusal,
        "the database refuses the record of this message; it is recorded without its header fields and its source"
    );
    let (ascii_id, sender) = (to_printable_ascii(message.message_id), to_printable_ascii(message.sender));
    let message = MessageRecord {
        message_id: &ascii_id,
        sender: &sender,
        from: None,
        to: None,
        cc: None,
        subject: None,
        date: None,
        headers: "[]",
        raw: None,
        ..message.clone()
    };
    let events = record.events.iter().cloned();
    let events = events.map(|event| EventRecord { message_id: &ascii_id, queue_id: None, ..event }).collect();
    write(&Record { message: Some(message), copies: record.copies.clone(), ended: record.ended.clone(), events })
}

/// Writes the journal. If the server refuses a value, this writes the journal with a printable Message-ID, and without the queue
/// id and the envelope sender. No decision depends on these.
///
/// # Errors
/// The error of `write` for the last journal.
pub(super) fn journal_with_fallback(
    journal: &Journal<'_>,
    mut write: impl FnMut(&Journal<'_>) -> Result<(), DatabaseError>,
) -> Result<(), DatabaseError> {
    let refusal = match write(journal) {
        Err(error) if error.failure == DatabaseFailure::Refused => error,
        written => return written,
    };
    warn!(
        message_id = journal.message_id,
        error = %refusal,
        "the database refuses the journal of this message; it is written without its Message-ID, its queue id and its envelope sender"
    );
    let message_id = to_printable_ascii(journal.message_id);
    write(&Journal {
        message_id: &message_id,
        queue_id: None,
        sender: None,
        copies: journal.copies.clone(),
        ..*journal
    })
}

/// Printable ASCII, of limited length.
fn to_printable_ascii(text: &str) -> String {
    text.chars().take(LONGEST).map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::event::{Diff, EventType};
    use crate::ledger::{CopyKey, CopyRecord, CopyState, EndedAttempt, JournalCopy, Outcome};
    use crate::lock::LockName;
    use crate::message::{Identity, Role};
    use uuid::Uuid;

    const HOSTILE: &str = "a\u{1F4A9} b\n";

    fn refuses(failure: DatabaseFailure) -> DatabaseError {
        DatabaseError::new(failure, "writing", "the test says so")
    }

    fn message<'a>(identity: &'a Identity, lock: &'a LockName) -> MessageRecord<'a> {
        MessageRecord {
            identity,
            lock,
            message_id: HOSTILE,
            content_digest: &[7; 32],
            sender: HOSTILE,
            from: Some(HOSTILE),
            to: Some(HOSTILE),
            cc: Some(HOSTILE),
            subject: Some(HOSTILE),
            date: Some(1),
            headers: HOSTILE,
            size: 3,
            raw: Some(b"raw"),
        }
    }

    fn event(identity: &Identity) -> EventRecord<'_> {
        EventRecord {
            event: Uuid::from_u128(2),
            kind: EventType::MessageDelivered,
            key: CopyKey::from_bytes([3; 32]),
            role: Role::Recipient,
            user: "doug",
            mailbox: "INBOX",
            recipient: "doug@x",
            identity,
            message_id: HOSTILE,
            manner: Some("appended"),
            attempt: None,
            queue_id: Some("4cXyz"),
            host: "mx1",
            diff: Diff::default(),
        }
    }

    fn journal<'a>(identity: &'a Identity, lock: &'a LockName) -> Journal<'a> {
        let key = CopyKey::from_bytes([3; 32]);
        let copy =
            JournalCopy { key, role: Role::Sender, user: "lisa", mailbox: "Sent", recipient: "doug@x", position: None };
        Journal {
            attempt: Uuid::from_u128(1),
            identity,
            lock,
            message_id: HOSTILE,
            queue_id: Some("4cXyz"),
            sender: Some(HOSTILE),
            host: "mx1",
            pid: 1,
            copies: vec![copy],
        }
    }

    #[test]
    fn a_record_that_is_refused_is_written_once_more_without_what_the_author_wrote() {
        let (identity, lock, key) = (Identity::of(b"x"), LockName::new("test", b"x"), CopyKey::from_bytes([3; 32]));
        let copy = CopyRecord {
            key,
            role: Role::Recipient,
            user: "doug",
            mailbox: "INBOX",
            recipient: "doug@x",
            state: CopyState::Delivered(None),
        };
        let ended = EndedAttempt { attempt: Uuid::from_u128(1), key, outcome: Outcome::Appended, stages: None };
        let whole = Record {
            message: Some(message(&identity, &lock)),
            copies: vec![copy],
            ended: vec![ended],
            events: vec![event(&identity)],
        };
        let mut written = Vec::new();
        record_with_fallback(&whole, |record| {
            written.push(format!("{record:?}"));
            if written.len() == 1 { Err(refuses(DatabaseFailure::Refused)) } else { Ok(()) }
        })
        .unwrap();
        let bare = MessageRecord {
            message_id: "a? b?",
            sender: "a? b?",
            from: None,
            to: None,
            cc: None,
            subject: None,
            date: None,
            headers: "[]",
            raw: None,
            ..message(&identity, &lock)
        };
        let shown = EventRecord { message_id: "a? b?", queue_id: None, ..event(&identity) };
        let bare = Record { message: Some(bare), events: vec![shown], ..whole.clone() };
        assert_eq!(written, [format!("{whole:?}"), format!("{bare:?}")]);
    }

    #[test]
    fn a_record_is_written_without_its_events_where_their_tables_or_rights_are_missing() {
        let (identity, lock) = (Identity::of(b"x"), LockName::new("test", b"x"));
        let message = || Some(message(&identity, &lock));
        let whole = Record { message: message(), events: vec![event(&identity)], ..Record::default() };
        for failure in [DatabaseFailure::Schema, DatabaseFailure::AccessDenied, DatabaseFailure::Refused] {
            let mut written = Vec::new();
            record_with_fallback(&whole, |record| {
                written.push(record.events.len());
                if record.events.is_empty() { Ok(()) } else { Err(refuses(failure)) }
            })
            .unwrap();
            assert_eq!(written.last(), Some(&0), "{failure:?}");
        }
        // The error of the message's own tables is returned, and nothing is recorded twice.
        let mut times = 0;
        let none = Record { events: Vec::new(), ..whole.clone() };
        let error = record_with_fallback(&none, |_| {
            times += 1;
            Err(refuses(DatabaseFailure::Schema))
        });
        assert_eq!((error.unwrap_err().failure, times), (DatabaseFailure::Schema, 1));
    }

    #[test]
    fn a_journal_that_is_refused_is_written_once_more_without_what_names_the_message() {
        let (identity, lock) = (Identity::of(b"x"), LockName::new("test", b"x"));
        let whole = journal(&identity, &lock);
        let mut written = Vec::new();
        journal_with_fallback(&whole, |journal| {
            written.push(format!("{journal:?}"));
            if written.len() == 1 { Err(refuses(DatabaseFailure::Refused)) } else { Ok(()) }
        })
        .unwrap();
        let bare = Journal { message_id: "a? b?", queue_id: None, sender: None, ..whole.clone() };
        assert_eq!(written, [format!("{whole:?}"), format!("{bare:?}")]);
    }

    #[test]
    fn what_is_no_refusal_of_a_value_is_not_tried_again() {
        let (identity, lock) = (Identity::of(b"x"), LockName::new("test", b"x"));
        let whole = Record { message: Some(message(&identity, &lock)), ..Record::default() };
        let times = |record: &Record<'_>, failure| {
            let mut times = 0;
            let error = record_with_fallback(record, |_| {
                times += 1;
                Err(refuses(failure))
            });
            assert_eq!(error.unwrap_err().failure, failure);
            times
        };
        for failure in [DatabaseFailure::ConnectionLost, DatabaseFailure::Contention, DatabaseFailure::Other] {
            assert_eq!(times(&whole, failure), 1);
            let mut times = 0;
            let error = journal_with_fallback(&journal(&identity, &lock), |_| {
                times += 1;
                Err(refuses(failure))
            });
            assert_eq!((error.unwrap_err().failure, times), (failure, 1));
        }
        // A record without a message is not retried either: it has no text of the author.
        assert_eq!(times(&Record::default(), DatabaseFailure::Refused), 1);
    }

    #[test]
    fn what_is_left_is_printable_ascii_of_at_most_so_many_characters() {
        assert_eq!(to_printable_ascii("<a b@x>~\t\u{e9}"), "<a b@x>~??");
        assert_eq!(to_printable_ascii(&"x".repeat(LONGEST + 1)), "x".repeat(LONGEST));
    }
}
