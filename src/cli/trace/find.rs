//! Which messages are meant.

use crate::cli::pages;
use crate::database::{Database, DatabaseError, Value};
use crate::lock::LockName;
use crate::message::Address;
use crate::site::Site;

/// As what something was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum As {
    MessageId,
    QueueId,
    Address,
}

/// What was asked for, and as what it was looked for last.
pub(super) struct Asked {
    pub(super) what: String,
    pub(super) taken_as: As,
    /// Whether it could have been something else.
    pub(super) guessed: bool,
}

/// A message, by its names.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) identity: [u8; 32],
    pub(super) lock: LockName,
    /// When something was last tried, or when it was recorded, in microseconds since 1970.
    newest: i64,
}

/// The newest messages that are meant, and whether there are more.
pub(super) fn find(
    site: &Site,
    database: &mut dyn Database,
    what: &str,
    since: i64,
    limit: usize,
) -> Result<(Asked, Vec<Found>, bool), DatabaseError> {
    let what = what.trim();
    let asked = |taken_as, guessed| Asked { what: what.to_owned(), taken_as, guessed };
    if what.starts_with('<') {
        let (found, more) = by_message_id(site, database, what, limit)?;
        return Ok((asked(As::MessageId, false), found, more));
    }
    if !what.contains('@') {
        let (found, more) = by_queue_id(database, what, since, limit)?;
        return Ok((asked(As::QueueId, false), found, more));
    }
    let (found, more) = by_message_id(site, database, what, limit)?;
    if !found.is_empty() {
        return Ok((asked(As::MessageId, true), found, more));
    }
    let (found, more) = by_address(database, what, since, limit)?;
    Ok((asked(As::Address, true), found, more))
}

fn by_message_id(
    site: &Site,
    database: &mut dyn Database,
    message_id: &str,
    limit: usize,
) -> Result<(Vec<Found>, bool), DatabaseError> {
    let lock = site.lock_of_message_id(message_id.as_bytes());
    let digest = [Value::Bytes(lock.digest())];
    let mut found = select(database, ATTEMPTS, "a.lock_digest = ?", &digest, limit)?;
    found.extend(select(database, MESSAGES, "m.lock_digest = ?", &digest, limit)?);
    Ok(newest(found, limit))
}

fn by_queue_id(
    database: &mut dyn Database,
    queue_id: &str,
    since: i64,
    limit: usize,
) -> Result<(Vec<Found>, bool), DatabaseError> {
    let (bound, mut values) = pages::attempts_since(database.dialect(), since);
    values.push(Value::Text(queue_id));
    let found = select(database, ATTEMPTS, &format!("{bound} AND a.queue_id = ?"), &values, limit)?;
    Ok(newest(found, limit))
}

fn by_address(
    database: &mut dyn Database,
    address: &str,
    since: i64,
    limit: usize,
) -> Result<(Vec<Found>, bool), DatabaseError> {
    // As the ledger keeps it: see `Delivery::recipient`.
    let folded =
        Address::parse(address).map_or_else(|_| address.to_lowercase(), |address| address.folded().to_string());
    let (bound, mut values) = pages::attempts_since(database.dialect(), since);
    values.extend([Value::Text(&folded), Value::Text(&folded), Value::Text(address)]);
    let condition = format!("{bound} AND (a.recipient = ? OR a.imap_user = ? OR a.imap_user = ?)");
    let mut found = select(database, ATTEMPTS, &condition, &values, limit)?;
    let sent = [Value::Moment(since), Value::Text(&folded)];
    found.extend(select(database, MESSAGES, "m.recorded_at >= ? AND lower(m.sender) = ?", &sent, limit)?);
    Ok(newest(found, limit))
}

/// Where messages are named.
struct Table {
    name: &'static str,
    /// How it is called in conditions.
    alias: &'static str,
    newest: &'static str,
    /// A message has one row, and many attempts.
    grouped: &'static str,
}

const ATTEMPTS: Table =
    Table { name: "attempts", alias: "a", newest: "max(a.started_at)", grouped: "GROUP BY a.identity, a.lock_digest" };
const MESSAGES: Table = Table { name: "messages", alias: "m", newest: "m.recorded_at", grouped: "" };

fn select(
    database: &mut dyn Database,
    Table { name, alias, newest, grouped }: Table,
    condition: &str,
    values: &[Value<'_>],
    limit: usize,
) -> Result<Vec<Found>, DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT {}, {}, {} FROM {name} {alias} WHERE {condition} {grouped} ORDER BY {newest} DESC LIMIT {}",
        dialect.hex(&format!("{alias}.identity")),
        dialect.hex(&format!("{alias}.lock_digest")),
        dialect.microseconds(newest),
        limit + 1
    );
    let rows = database.select("looking for the message", &sql, values)?;
    let found = rows.iter().map(|row| {
        Ok(Found {
            identity: row.digest(0)?,
            lock: LockName::from_digest(row.digest(1)?),
            newest: row.value(2)?.unwrap_or_default(),
        })
    });
    found.collect()
}

/// Each of them once, the newest first. Whoever is among the newest `limit` is among the newest `limit` of the table that
/// makes it so.
fn newest(mut found: Vec<Found>, limit: usize) -> (Vec<Found>, bool) {
    found.sort_by_key(|found| std::cmp::Reverse(found.newest));
    let mut once: Vec<Found> = Vec::new();
    for candidate in found {
        if !once.iter().any(|other| (other.identity, other.lock) == (candidate.identity, candidate.lock)) {
            once.push(candidate);
        }
    }
    let more = once.len() > limit;
    once.truncate(limit);
    (once, more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_both_tables_know_is_one_and_the_newest_come_first() {
        let found = |identity, newest| Found { identity: [identity; 32], lock: LockName::from_digest([0; 32]), newest };
        let all = vec![found(1, 10), found(2, 30), found(3, 20), found(1, 40)];
        let names = |(found, more): (Vec<Found>, bool)| (found.iter().map(|f| f.identity[0]).collect::<Vec<_>>(), more);
        assert_eq!(names(newest(all.clone(), 3)), (vec![1, 2, 3], false));
        assert_eq!(names(newest(all, 2)), (vec![1, 2], true));
    }
}
