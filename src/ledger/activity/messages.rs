//! Finds the messages of a sender, or with a part of a subject, for a search in attempts. Also reads the messages of
//! the attempts that are shown.

use super::super::Database;
use super::{By, Tried};
use crate::database::{DatabaseError, Query, Value};
use std::collections::BTreeSet;

/// The most messages of a sender, or with a subject, that a statement names: more than a page shows.
const MOST_MESSAGES: usize = 200;

impl By {
    /// The condition on a message `m` of the sender, or with the subject, as SQL; and the text of each of its values.
    pub(super) fn of_message(&self) -> Option<(&'static str, String)> {
        match self {
            Self::Address { address, .. } => Some(("lower(m.sender) = ?", address.clone())),
            Self::Piece(piece) => {
                Some(("(lower(m.subject) LIKE ? ESCAPE '!' OR lower(m.header_from) LIKE ? ESCAPE '!')", like(piece)))
            }
            Self::Lock(_) | Self::QueueId(..) => None,
        }
    }
}

/// The messages of the sender, or with the subject, of a search.
pub(super) enum Messages {
    /// All of them that were recorded in the searched time, by their identities.
    Named(Vec<[u8; 32]>),
    /// They are too many to be named in a statement. For each attempt its message is tested, which reads one row by its
    /// key. So a slice costs no more than its attempts; and what is found is next to all of them.
    TooMany,
}

impl Messages {
    /// Adds the messages recorded from `begin` up to, not including, `end`.
    pub(super) fn add(
        &mut self,
        database: &mut dyn Database,
        by: Option<&By>,
        (begin, end): (i64, i64),
    ) -> Result<(), DatabaseError> {
        let Self::Named(named) = self else { return Ok(()) };
        let Some((condition, text)) = by.and_then(By::of_message) else { return Ok(()) };
        let sql = format!(
            "SELECT {} FROM messages m WHERE m.recorded_at >= ? AND m.recorded_at < ? AND {condition} LIMIT {}",
            database.dialect().hex("m.identity"),
            MOST_MESSAGES + 1
        );
        let mut values = vec![Value::Moment(begin), Value::Moment(end)];
        values.extend(condition.matches('?').map(|_| Value::Text(&text)));
        named.extend(database.query::<[u8; 32]>("looking for messages", &sql, &values)?);
        if named.len() > MOST_MESSAGES {
            *self = Self::TooMany;
        }
        Ok(())
    }

    /// The condition on the attempts `a` at them, as SQL with its values. `text` is that of [`By::of_message`]. `None`:
    /// there are no messages.
    pub(super) fn condition<'a>(&'a self, by: &By, text: &'a str) -> Option<(String, Vec<Value<'a>>)> {
        match self {
            Self::Named(named) if named.is_empty() => None,
            Self::Named(named) => {
                Some((among(named.len()), named.iter().map(|identity| Value::Bytes(identity)).collect()))
            }
            Self::TooMany => {
                let (condition, _) = by.of_message()?;
                let values = condition.matches('?').map(|_| Value::Text(text)).collect();
                // No EXISTS, which a server may turn into a scan of all messages.
                let whose = format!(
                    "(SELECT CASE WHEN {condition} THEN 1 ELSE 0 END FROM messages m WHERE m.identity = a.identity) = 1"
                );
                Some((whose, values))
            }
        }
    }
}

/// The LIKE pattern for a text that contains this part.
fn like(piece: &str) -> String {
    let escaped = piece.to_lowercase().replace('!', "!!").replace('%', "!%").replace('_', "!_");
    format!("%{escaped}%")
}

fn among(messages: usize) -> String {
    format!("a.identity IN ({})", vec!["?"; messages].join(", "))
}

/// Adds the fields of the attempts' messages. Those of the newest attempts were usually recorded last, and are
/// adjacent: only the others are looked up one by one.
pub(super) fn add_messages(
    database: &mut dyn Database,
    tried: &mut [Tried],
    are_newest: bool,
) -> Result<(), DatabaseError> {
    let mut missing: BTreeSet<[u8; 32]> = tried.iter().map(|one| one.identity).collect();
    let last =
        format!("(SELECT identity, header_from, subject FROM messages ORDER BY id DESC LIMIT {})", 2 * missing.len());
    for from in are_newest.then_some(last.as_str()).into_iter().chain(["messages"]) {
        if missing.is_empty() {
            break;
        }
        let sql = format!(
            "SELECT {}, a.header_from, a.subject FROM {from} a WHERE {}",
            database.dialect().hex("a.identity"),
            among(missing.len())
        );
        let values: Vec<Value<'_>> = missing.iter().map(|identity| Value::Bytes(identity)).collect();
        let rows: Vec<([u8; 32], Option<String>, Option<String>)> =
            database.query("reading whose messages these are", &sql, &values)?;
        for (identity, from, subject) in rows {
            missing.remove(&identity);
            for one in tried.iter_mut().filter(|one| one.identity == identity) {
                (one.from, one.subject) = (from.clone(), subject.clone());
            }
        }
    }
    Ok(())
}
