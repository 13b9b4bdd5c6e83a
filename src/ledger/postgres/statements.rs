//! The statements that are sent in batches. Those of the record end in a semicolon.
//!
//! Times are `clock_timestamp()`: `now()` is when the lock's transaction began, before anything was appended.

use crate::database::postgres::literal;
use crate::ledger::{CopyKey, CopyRecord, CopyState, EndedAttempt, MessageRecord, WayIn};

pub(super) const DOING: &str = "recording the delivery";

pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;";
pub(super) const BEGIN_AGAIN: &str = "ROLLBACK; BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;";
pub(super) const SAVEPOINT: &str = "SAVEPOINT maildrop_record;";
pub(super) const SAVEPOINT_AGAIN: &str = "ROLLBACK TO SAVEPOINT maildrop_record;";

/// A row for each pair of a copy asked for and an open attempt at it. The clock is read once for all ages, by a subquery that
/// depends on no row: by a clock read for each row, the younger of two attempts may seem the older one.
pub(super) fn look(copies: &[CopyKey]) -> String {
    format!(
        "SELECT k.place, c.copy_key IS NOT NULL, c.uid_validity, c.uid, a.attempt, a.recipient, \
         extract(epoch FROM (SELECT clock_timestamp()) - a.started_at), a.uid_validity, a.uid_next, \
         a.host, encode(a.lock_digest, 'hex'), \
         encode(m.lock_digest, 'hex'), extract(epoch FROM (SELECT clock_timestamp()) - m.recorded_at) \
         FROM unnest({}) WITH ORDINALITY k (copy_key, place) \
         LEFT JOIN copies c ON c.copy_key = k.copy_key AND c.state = 'delivered' \
         LEFT JOIN messages m ON m.id = c.message \
         LEFT JOIN attempts a ON a.copy_key = k.copy_key AND a.ended_at IS NULL \
         ORDER BY k.place, a.started_at, a.attempt",
        keys(copies)
    )
}

/// The age in seconds of the first attempt at any of these copies, ended or not; NULL where there was none.
pub(super) fn first_attempt_age(copies: &[CopyKey]) -> String {
    format!(
        "SELECT extract(epoch FROM clock_timestamp() - min(started_at)) FROM attempts WHERE copy_key = ANY ({})",
        keys(copies)
    )
}

fn keys(copies: &[CopyKey]) -> String {
    let keys: Vec<String> = copies.iter().map(|key| literal::bytes(key.as_bytes())).collect();
    format!("ARRAY[{}]::bytea[]", keys.join(","))
}

/// A way in that was proven just now.
pub(super) fn way_in(way_in: &WayIn, host: &str) -> String {
    format!(
        "INSERT INTO ways_in (digest, way_in, proven_at, host) VALUES ({}, {}, clock_timestamp(), {}) \
         ON CONFLICT (digest) DO UPDATE SET proven_at = excluded.proven_at, host = excluded.host",
        literal::bytes(&way_in.digest),
        literal::text(&way_in.text),
        literal::text(host),
    )
}

/// The message's source, once for all its recipients.
pub(super) const SOURCE: &str = "INSERT INTO message_sources (message_id, source) \
    SELECT id, $2 FROM messages WHERE identity = $1 ON CONFLICT (message_id) DO NOTHING";

/// The message, unless another recipient's delivery has recorded it.
pub(super) fn message(message: &MessageRecord<'_>) -> String {
    format!(
        "INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, header_from, header_to, \
         header_cc, subject, sent_at, headers, size, recorded_at) \
         VALUES ({},{},{},{},{},{},{},{},{},{},{},{},clock_timestamp()) ON CONFLICT (identity) DO NOTHING;",
        literal::bytes(message.identity.as_bytes()),
        literal::bytes(message.lock.digest()),
        literal::text(message.message_id),
        literal::bytes(message.content_digest),
        literal::text(message.sender),
        literal::optional_text(message.from),
        literal::optional_text(message.to),
        literal::optional_text(message.cc),
        literal::optional_text(message.subject),
        literal::moment(message.date),
        literal::json(message.headers),
        i64::try_from(message.size).unwrap_or(i64::MAX),
    )
}

/// Whether the message's source is still to be stored.
pub(super) fn source_is_missing(message: &MessageRecord<'_>) -> String {
    format!("SELECT NOT EXISTS (SELECT FROM message_sources WHERE message_id = {});", message_id(message))
}

/// A copy. A delivered one never becomes owed; only another delivery changes where it is.
pub(super) fn copy(message: &MessageRecord<'_>, copy: &CopyRecord<'_>) -> String {
    let (state, placement, reason, delivered_at) = match copy.state {
        CopyState::Delivered(placement) => ("delivered", placement, None, "clock_timestamp()"),
        CopyState::Owed(reason) => ("owed", None, Some(reason), "NULL::timestamptz"),
    };
    format!(
        "INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, uid_validity, uid, reason, \
         delivered_at, updated_at) \
         VALUES ({},{},'{}',{},{},{},'{state}',{},{},{},{delivered_at},clock_timestamp()) \
         ON CONFLICT (copy_key) DO UPDATE SET (recipient, state, uid_validity, uid, reason, delivered_at, updated_at) = \
         ROW (excluded.recipient, excluded.state, excluded.uid_validity, excluded.uid, excluded.reason, \
         coalesce(copies.delivered_at, excluded.delivered_at), excluded.updated_at) \
         WHERE excluded.state = 'delivered' OR copies.state <> 'delivered';",
        literal::bytes(copy.key.as_bytes()),
        message_id(message),
        copy.role.as_str(),
        literal::text(copy.user),
        literal::text(copy.mailbox),
        literal::text(copy.recipient),
        literal::optional_number(placement.map(|p| p.uid_validity)),
        literal::optional_number(placement.map(|p| p.uid)),
        literal::optional_text(reason),
    )
}

/// An attempt's end. One that has ended stays as it ended.
pub(super) fn ended(ended: &EndedAttempt<'_>) -> String {
    format!(
        "UPDATE attempts SET ended_at = clock_timestamp(), outcome = {}, stages = {} \
         WHERE copy_key = {} AND attempt = {} AND ended_at IS NULL;",
        literal::text(&ended.outcome.to_string()),
        ended.stages.map_or_else(literal::null, literal::json),
        literal::bytes(ended.key.as_bytes()),
        literal::uuid(ended.attempt),
    )
}

fn message_id(message: &MessageRecord<'_>) -> String {
    format!("(SELECT id FROM messages WHERE identity = {})", literal::bytes(message.identity.as_bytes()))
}
