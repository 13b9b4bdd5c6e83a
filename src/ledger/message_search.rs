//! Recorded messages, the newest first, in pages: by Message-ID, by identity, or by a part of subject or author.

use super::Database;
use super::activity::{FIRST_SLICE, LONG_ENOUGH, WIDEST_SLICE, like};
use crate::database::{DatabaseError, Query, Value, columns_of};
use crate::lock::LockName;
use std::collections::BTreeMap;
use std::time::Instant;

/// Characters that a list shows of a field.
const SHOWN: usize = 300;
/// How many subjects are read for one page.
const MOST_SUBJECTS: usize = 1_000;

/// Recorded messages, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MessagePage {
    /// `messages.id`.
    pub(crate) ids: Vec<i64>,
    /// The next page begins before this one.
    pub(crate) next: Option<i64>,
    /// How far back the search went, if it was cut short: in microseconds since 1970.
    pub(crate) looked_back_to: Option<i64>,
    /// The last address or domain that was searched, if more begin like this.
    pub(crate) searched_up_to: Option<String>,
}

impl MessagePage {
    /// Of one more message than the limit, if there are so many.
    pub(super) fn of(mut ids: Vec<i64>, limit: usize) -> Self {
        let more = ids.len() > limit;
        ids.truncate(limit);
        Self { next: ids.last().copied().filter(|_| more), ids, ..Self::default() }
    }
}

/// A recorded message, as a list shows it.
#[derive(Clone, Debug)]
pub(crate) struct ListedMessage {
    pub(crate) identity: [u8; 32],
    pub(crate) lock: LockName,
    /// In microseconds since 1970.
    pub(crate) recorded_at: i64,
    pub(crate) message_id: String,
    pub(crate) from: Option<String>,
    pub(crate) to: Option<String>,
    pub(crate) subject: Option<String>,
}

columns_of! { ListedMessage: identity, lock, recorded_at, message_id, from, to, subject }

/// These messages, the newest first. Those that were pruned meanwhile are missing.
///
/// # Errors
/// If they cannot be read.
pub(crate) fn read_messages(database: &mut dyn Database, ids: &[i64]) -> Result<Vec<ListedMessage>, DatabaseError> {
    let dialect = database.dialect();
    let field = |name: &str| format!("substr(m.{name}, 1, {SHOWN})");
    let sql = format!(
        "SELECT {}, {}, {}, {}, {}, {}, {} FROM messages m WHERE m.id IN ({}) ORDER BY m.id DESC",
        dialect.hex("m.identity"),
        dialect.hex("m.lock_digest"),
        dialect.microseconds("m.recorded_at"),
        field("message_id"),
        field("header_from"),
        field("header_to"),
        field("subject"),
        dialect.list_or_none(ids.iter().map(|id| Value::Integer(*id)))
    );
    database.query("reading the messages", &sql, &[])
}

/// The subjects of recorded messages, by these digests in a column, `identity` or `lock_digest`. A message without a subject is
/// missing. A Message-ID's lock may have many messages: the newest counts.
pub(crate) fn subjects(
    database: &mut dyn Database,
    column: &'static str,
    digests: &[[u8; 32]],
) -> Result<BTreeMap<[u8; 32], String>, DatabaseError> {
    let (dialect, list) = (database.dialect(), digests.iter().map(|digest| Value::Bytes(digest)));
    let sql = format!(
        "SELECT {}, substr(m.subject, 1, {SHOWN}) FROM messages m WHERE m.{column} IN ({}) AND m.subject <> '' \
         ORDER BY m.id DESC LIMIT {MOST_SUBJECTS}",
        dialect.hex(&format!("m.{column}")),
        dialect.list_or_none(list)
    );
    let mut found: Vec<([u8; 32], String)> = database.query("reading subjects", &sql, &[])?;
    found.reverse();
    Ok(found.into_iter().collect())
}

/// The messages with this lock, before `before`.
///
/// # Errors
/// As for all functions below: if the database fails.
pub(crate) fn with_lock(
    database: &mut dyn Database,
    lock: &LockName,
    before: Option<i64>,
    limit: usize,
) -> Result<MessagePage, DatabaseError> {
    let sql = format!(
        "SELECT m.id FROM messages m WHERE m.lock_digest = ? AND m.id < ? ORDER BY m.id DESC LIMIT {}",
        limit + 1
    );
    let values = [Value::Bytes(lock.digest()), Value::Integer(before.unwrap_or(i64::MAX))];
    Ok(MessagePage::of(database.query("looking for a Message-ID", &sql, &values)?, limit))
}

/// Those of these messages that are recorded, before `before`.
pub(crate) fn with_identities(
    database: &mut dyn Database,
    identities: &[[u8; 32]],
    before: Option<i64>,
    limit: usize,
) -> Result<MessagePage, DatabaseError> {
    if identities.is_empty() {
        return Ok(MessagePage::default());
    }
    let sql = format!(
        "SELECT m.id FROM messages m WHERE m.identity IN ({}) AND m.id < ? ORDER BY m.id DESC LIMIT {}",
        database.dialect().list(identities.iter().map(|identity| Value::Bytes(identity))),
        limit + 1
    );
    let values = [Value::Integer(before.unwrap_or(i64::MAX))];
    Ok(MessagePage::of(database.query("looking for messages", &sql, &values)?, limit))
}

/// The messages with this part in subject or author, before `before`; case does not matter. It reads backwards in slices, and
/// stops after a while: the page then says how far it looked, and the next one goes on there.
pub(crate) fn containing(
    database: &mut dyn Database,
    piece: &str,
    before: Option<i64>,
    limit: usize,
) -> Result<MessagePage, DatabaseError> {
    let (began, pattern) = (Instant::now(), like(piece));
    let (mut end, mut width, mut ids) = (before.unwrap_or(i64::MAX), FIRST_SLICE, Vec::<i64>::new());
    loop {
        let doing = "looking for a part of a subject or author";
        let begin = format!("SELECT id FROM messages WHERE id < ? ORDER BY id DESC LIMIT 1 OFFSET {}", width - 1);
        let begin: Option<i64> = database.query_first(doing, &begin, &[Value::Integer(end)])?;
        let sql = format!(
            "SELECT m.id FROM messages m WHERE m.id >= ? AND m.id < ? AND (lower(m.subject) LIKE ? ESCAPE '!' \
             OR lower(m.header_from) LIKE ? ESCAPE '!') ORDER BY m.id DESC LIMIT {}",
            limit + 1 - ids.len()
        );
        let (first, pattern) = (Value::Integer(begin.unwrap_or(i64::MIN)), Value::Text(&pattern));
        ids.extend(database.query::<i64>(doing, &sql, &[first, Value::Integer(end), pattern, pattern])?);
        let Some(begin) = begin.filter(|_| ids.len() <= limit) else { return Ok(MessagePage::of(ids, limit)) };
        if began.elapsed() > LONG_ENOUGH {
            let recorded =
                format!("SELECT {} FROM messages m WHERE m.id = ?", database.dialect().microseconds("m.recorded_at"));
            let looked_back_to = database.query_first(doing, &recorded, &[Value::Integer(begin)])?;
            return Ok(MessagePage { ids, next: Some(begin), looked_back_to, searched_up_to: None });
        }
        (end, width) = (begin, (4 * width).min(WIDEST_SLICE));
    }
}
