//! A record, and a journal, without what the message's author wrote.
//!
//! The header fields are anybody's to write, and the site's database may have a rule that one of them breaks: a
//! constraint, a trigger, an index with a longest entry. The copies are in their mailboxes by then; deferring the message
//! for a subject would defer it at each retry, until Postfix gives it up. So it is recorded without them, once more. And so
//! is the journal, which is the first to hear of the Message-ID.

use super::{Journal, MessageRecord, Record};
use crate::database::{DatabaseError, DatabaseFailure};
use tracing::warn;

/// How much of a text is kept where it is written without being asked for: characters, of ASCII.
const LONGEST: usize = 255;

/// Writes the record; and if the server refuses a value of it, the same record with nothing from the message's header.
///
/// # Errors
/// Whatever `write` says, of the second record if there was one.
pub(super) fn or_bare(
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
    let (message_id, sender) = (harmless(message.message_id), harmless(message.sender));
    let message = MessageRecord {
        message_id: &message_id,
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
    write(&Record { message: Some(message), copies: record.copies.clone(), ended: record.ended.clone() })
}

/// Writes the journal; and if the server refuses a value of it, the same journal with a Message-ID that is harmless, and
/// without the queue id. Nothing goes by either.
///
/// # Errors
/// Whatever `write` says, of the second journal if there was one.
pub(super) fn journal_or_bare(
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
        "the database refuses the journal of this message; it is written without its Message-ID and its queue id"
    );
    let message_id = harmless(journal.message_id);
    write(&Journal { message_id: &message_id, queue_id: None, copies: journal.copies.clone(), ..*journal })
}

/// Printable ASCII, and not too much of it.
fn harmless(text: &str) -> String {
    text.chars().take(LONGEST).map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}
