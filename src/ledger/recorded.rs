//! What the ledger has recorded, read by people: which copies are where, which are owed, whose message they are.
//!
//! No delivery asks any of this. Long answers come in pieces: a stretch of time, or a few hundred rows.

use super::columns::{number, optional, owned as text_of, placement, role, text};
use super::{CopyKey, Database, time_span};
use crate::database::{DatabaseError, Row, Value};
use crate::lock::LockName;
use crate::mailbox::{MailboxError, Matching, Placement, ReadableMailbox, Recorded, Wanted, look_everywhere};
use crate::message::Role;
use crate::message::{Identity, message_id_for_search};
use std::collections::BTreeMap;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// An hour, in microseconds.
const HOUR: i64 = 3_600_000_000;
/// How much older than its last copy a message may be: Postfix tries for five days (maximal_queue_lifetime).
const LATE: i64 = 7 * 24 * HOUR;
/// How many rows one answer holds.
const PAGE: usize = 500;

const DOING: &str = "reading the ledger";

/// A copy as the ledger has it, and what is known of its message.
#[derive(Clone, Debug)]
pub struct RecordedCopy {
    /// The row of the message.
    pub message: i64,
    /// Whose message it is.
    pub identity: Identity,
    /// The lock that guards it. Never made from a mailbox's bytes: Cyrus stores X for each byte beyond ASCII.
    pub lock: LockName,
    /// The Message-ID for people, angle brackets included; made up where the message has none.
    pub message_id: String,
    /// The envelope sender; empty for the null sender.
    pub sender: String,
    /// The subject.
    pub subject: Option<String>,
    /// When the message was first recorded, in microseconds since 1970.
    pub recorded_at: i64,
    /// Its role.
    pub role: Role,
    /// The mailbox's user.
    pub user: String,
    /// The mailbox.
    pub mailbox: String,
    /// The envelope recipient of the delivery that brought it, or owes it.
    pub recipient: String,
    /// Where it was stored, if the server told.
    pub placement: Option<Placement>,
    /// Why it is owed; `None` where it is delivered.
    pub reason: Option<String>,
}

impl RecordedCopy {
    /// Its name in the ledger.
    #[must_use]
    pub(crate) fn key(&self) -> CopyKey {
        CopyKey::new(&self.identity, self.role, &self.user, &self.mailbox)
    }

    /// What a mailbox is asked about it.
    #[must_use]
    pub(crate) fn recorded(&self) -> Recorded<'_> {
        Recorded { identity: &self.identity, role: self.role, placement: self.placement }
    }

    /// When its message was first recorded, which is about when it arrived.
    #[must_use]
    pub fn arrived(&self) -> OffsetDateTime {
        let nanoseconds = i128::from(self.recorded_at) * 1000;
        OffsetDateTime::from_unix_timestamp_nanos(nanoseconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }

    /// What to look for where it may be under any UID.
    #[must_use]
    pub(crate) fn wanted(&self) -> Wanted<'_> {
        Wanted {
            message_id: message_id_for_search(&self.message_id),
            identity: &self.identity,
            role: self.role,
            matching: Matching::Identity,
            since: None,
            not_before: self.arrived(),
        }
    }

    /// Where in its mailbox it is by now, if it is there at all; the inner `None` is a store without UIDs.
    pub fn whereabouts(
        &self,
        mailbox: &mut dyn ReadableMailbox,
        has_uids: bool,
    ) -> Result<Option<Option<Placement>>, MailboxError> {
        let found = look_everywhere(mailbox, &self.wanted(), self.placement, has_uids)?;
        Ok(found.iter().find(|copy| !copy.deleted).or(found.first()).map(|copy| copy.placement))
    }
}

/// Which copies are meant.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a> {
    /// Of messages recorded since then, in microseconds since 1970, or delivered since then of those recorded in the week
    /// before: a backup of that moment has none of these.
    pub since: i64,
    /// Only this user's (`scuba`), or only this mailbox's (`scuba/Sent`).
    pub mailbox: Option<&'a str>,
}

impl Selection<'_> {
    pub(crate) fn has(&self, user: &str, mailbox: &str) -> bool {
        self.mailbox.is_none_or(|wanted| {
            let of_mailbox = wanted.strip_prefix(user).and_then(|rest| rest.strip_prefix('/'));
            wanted == user || of_mailbox == Some(mailbox)
        })
    }
}

/// A delivered copy in as few bytes as will do: a week of them has to fit into memory.
#[derive(Clone, Copy, Debug)]
pub struct DeliveredCopy {
    /// The row of its message.
    pub message: i64,
    /// Its role.
    pub role: Role,
    /// Where it was stored, if the server told.
    pub placement: Option<Placement>,
    /// The lowest UID that any attempt at it could have got, under the same UIDVALIDITY.
    pub lowest: Option<u32>,
}

/// Mailboxes, as (user, mailbox), and the copies that were delivered to them.
pub(crate) type Mailboxes = BTreeMap<(String, String), Vec<DeliveredCopy>>;

/// Which copies are recorded as delivered, by mailbox.
pub fn delivered(database: &mut dyn Database, selection: &Selection<'_>) -> Result<Mailboxes, DatabaseError> {
    let dialect = database.dialect();
    let now = time_span::now(database)?;
    // Rows come in the order of their times, but for what raced: an hour makes up for that, and for a clock set back.
    let first = format!("SELECT {} FROM messages ORDER BY id LIMIT 1", dialect.microseconds("recorded_at"));
    let first = database.select(DOING, &first, &[])?;
    let Some(first) = first.first().map(|row| number::<i64>(row, 0)).transpose()? else { return Ok(Mailboxes::new()) };
    let sql = "SELECT m.id, c.role, c.imap_user, c.mailbox, c.uid_validity, c.uid, \
               (SELECT MIN(a.uid_next) FROM attempts a \
                WHERE a.copy_key = c.copy_key AND a.uid_validity = c.uid_validity) \
               FROM messages m JOIN copies c ON c.message = m.id \
               WHERE m.recorded_at >= ? AND m.recorded_at < ? AND c.state = 'delivered' \
               AND (m.recorded_at >= ? OR c.updated_at >= ?)";
    let mut mailboxes = Mailboxes::new();
    // An hour at a time, which every engine finds by its index of times and none has to sort.
    let mut from = selection.since.saturating_sub(LATE).max(first.saturating_sub(HOUR));
    let since = Value::Moment(selection.since);
    while from < now.saturating_add(HOUR) {
        let to = from.saturating_add(HOUR);
        for row in database.select(DOING, sql, &[Value::Moment(from), Value::Moment(to), since, since])? {
            let (user, mailbox) = (text(&row, 2)?, text(&row, 3)?);
            if selection.has(user, mailbox) {
                let delivered = DeliveredCopy {
                    message: number(&row, 0)?,
                    role: role(&row, 1)?,
                    placement: placement(&row, 4)?,
                    lowest: row.value(6)?,
                };
                mailboxes.entry((user.to_owned(), mailbox.to_owned())).or_default().push(delivered);
            }
        }
        from = to;
    }
    Ok(mailboxes)
}

const COPY: &str = "c.role, c.imap_user, c.mailbox, c.recipient, c.uid_validity, c.uid, c.reason";
/// How many columns come with a copy.
const COLUMNS: usize = 14;

fn columns(database: &dyn Database) -> String {
    let dialect = database.dialect();
    let (identity, recorded_at) = (dialect.hex("m.identity"), dialect.microseconds("m.recorded_at"));
    format!(
        "m.id, {identity}, m.message_id, m.sender, m.subject, {recorded_at}, {COPY}, {}",
        dialect.hex("m.lock_digest")
    )
}

fn copy(row: &Row) -> Result<RecordedCopy, DatabaseError> {
    Ok(RecordedCopy {
        message: number(row, 0)?,
        identity: Identity::from_bytes(row.digest(1)?),
        message_id: text_of(row, 2)?,
        sender: text_of(row, 3)?,
        subject: optional(row, 4),
        recorded_at: number(row, 5)?,
        role: role(row, 6)?,
        user: text_of(row, 7)?,
        mailbox: text_of(row, 8)?,
        recipient: text_of(row, 9)?,
        placement: placement(row, 10)?,
        reason: optional(row, 12),
        lock: LockName::from_digest(row.digest(13)?),
    })
}

/// All that is known of these copies of one mailbox; what the ledger has dropped meanwhile is left out. Ask for some
/// hundreds at a time.
pub(crate) fn of_mailbox(
    database: &mut dyn Database,
    (user, mailbox): (&str, &str),
    copies: &[DeliveredCopy],
) -> Result<Vec<RecordedCopy>, DatabaseError> {
    if copies.is_empty() {
        return Ok(Vec::new());
    }
    let places = vec!["?"; copies.len()].join(",");
    let sql = format!(
        "SELECT {} FROM messages m JOIN copies c ON c.message = m.id \
         WHERE m.id IN ({places}) AND c.imap_user = ? AND c.mailbox = ? AND c.state = 'delivered' ORDER BY m.id",
        columns(database)
    );
    let mut values: Vec<Value<'_>> = copies.iter().map(|copy| Value::Integer(copy.message)).collect();
    values.extend([Value::Text(user), Value::Text(mailbox)]);
    let rows = database.select(DOING, &sql, &values)?;
    let all: Vec<RecordedCopy> = rows.iter().map(copy).collect::<Result<_, _>>()?;
    // One mailbox may be both a recipient's and a sender's.
    let asked = |one: &RecordedCopy| copies.iter().any(|asked| (asked.message, asked.role) == (one.message, one.role));
    Ok(all.into_iter().filter(asked).collect())
}

/// All delivered copies of one message, recipients' first.
pub fn of_message(database: &mut dyn Database, message: i64) -> Result<Vec<RecordedCopy>, DatabaseError> {
    let sql = format!(
        "SELECT {} FROM messages m JOIN copies c ON c.message = m.id \
         WHERE m.id = ? AND c.state = 'delivered' ORDER BY c.role, c.imap_user, c.mailbox",
        columns(database)
    );
    database.select(DOING, &sql, &[Value::Integer(message)])?.iter().map(copy).collect()
}

/// How a copy that is there came to be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brought {
    /// The envelope sender with which its message was first recorded, whoever that was for; empty for the null sender.
    pub sender: String,
    /// When it was delivered, in microseconds since 1970.
    pub delivered_at: i64,
    /// Postfix's queue id of the delivery that brought it, if it was given.
    pub queue_id: Option<String>,
    /// The host of that delivery; `None` where the attempt is no longer kept.
    pub host: Option<String>,
}

impl Brought {
    /// [`delivered_at`](Self::delivered_at), RFC 3339.
    #[must_use]
    pub(crate) fn moment(&self) -> Option<String> {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.delivered_at) * 1000).ok()?.format(&Rfc3339).ok()
    }
}

/// How this copy came to be there, if it is delivered: one row by its key, and the attempts at it.
pub fn brought(database: &mut dyn Database, copy: &CopyKey) -> Result<Option<Brought>, DatabaseError> {
    let sql = format!(
        "SELECT m.sender, {}, a.queue_id, a.host FROM copies c JOIN messages m ON m.id = c.message \
         LEFT JOIN attempts a ON a.copy_key = c.copy_key AND a.outcome IN ('appended', 'adopted') \
         WHERE c.copy_key = ? AND c.state = 'delivered' ORDER BY a.ended_at LIMIT 1",
        database.dialect().microseconds("c.delivered_at")
    );
    let rows = database.select("asking how a copy came to be there", &sql, &[Value::Bytes(copy.as_bytes())])?;
    let brought = |row: &Row| {
        Ok(Brought {
            sender: text_of(row, 0)?,
            delivered_at: number(row, 1)?,
            queue_id: optional(row, 2),
            host: optional(row, 3),
        })
    };
    rows.first().map(brought).transpose()
}

/// The copies that deliveries left owed, oldest last attempt first. [`Selection::since`] is about that last attempt.
pub fn owed(database: &mut dyn Database, selection: &Selection<'_>) -> Result<Vec<RecordedCopy>, DatabaseError> {
    let (dialect, mut after) = (database.dialect(), Vec::new());
    let (key, updated_at) = (dialect.hex("c.copy_key"), dialect.microseconds("c.updated_at"));
    let sql = format!(
        "SELECT {}, {key}, {updated_at} FROM copies c JOIN messages m ON m.id = c.message \
         WHERE c.state = 'owed' AND c.updated_at >= ? AND c.copy_key > ? ORDER BY c.copy_key LIMIT {PAGE}",
        columns(database)
    );
    let mut owed: Vec<(i64, RecordedCopy)> = Vec::new();
    loop {
        let rows = database.select(DOING, &sql, &[Value::Moment(selection.since), Value::Bytes(&after)])?;
        for row in &rows {
            let copy = copy(row)?;
            if selection.has(&copy.user, &copy.mailbox) {
                owed.push((number(row, COLUMNS + 1)?, copy));
            }
        }
        match rows.last() {
            Some(last) if rows.len() == PAGE => after = last.bytes(COLUMNS)?.unwrap_or_default(),
            _ => break,
        }
    }
    owed.sort_by_key(|(updated_at, _)| *updated_at);
    Ok(owed.into_iter().map(|(_, copy)| copy).collect())
}

/// Records an owed copy as delivered, there: its author's own mail program has saved one. Where it is not owed any more, what
/// another has recorded stays.
///
/// # Errors
/// The database fails; nothing is then recorded.
pub(crate) fn adopt_owed(
    database: &mut dyn Database,
    copy: &CopyKey,
    placement: Option<Placement>,
) -> Result<(), DatabaseError> {
    let now = database.dialect().now();
    let number = |number: Option<u32>| number.map_or(Value::Null, |number| Value::Integer(i64::from(number)));
    let sql = format!(
        "UPDATE copies SET state = 'delivered', uid_validity = ?, uid = ?, reason = NULL, delivered_at = {now}, \
         updated_at = {now} WHERE copy_key = ? AND state = 'owed'"
    );
    let values = [
        number(placement.map(|at| at.uid_validity)),
        number(placement.map(|at| at.uid)),
        Value::Bytes(copy.as_bytes()),
    ];
    database.change("recording the author's own copy", &sql, &values).map(drop)
}

/// Those that are owed by now, and how many are left to their authors' mail programs for a while yet: of messages that were
/// recorded less than `left_for` ago.
pub fn owed_by_now(
    database: &mut dyn Database,
    selection: &Selection<'_>,
    left_for: Option<Duration>,
) -> Result<(Vec<RecordedCopy>, usize), DatabaseError> {
    let mut copies = owed(database, selection)?;
    let all = copies.len();
    if let Some(left_for) = left_for {
        let latest = time_span::now(database)?.saturating_sub(time_span::microseconds(left_for));
        copies.retain(|copy| copy.recorded_at <= latest);
    }
    let left = all - copies.len();
    Ok((copies, left))
}

/// The message as it was received for its first recipient, where the ledger keeps sources.
pub fn source(database: &mut dyn Database, message: i64) -> Result<Option<Vec<u8>>, DatabaseError> {
    let sql = format!("SELECT {} FROM message_sources WHERE message_id = ?", database.dialect().hex("source"));
    let rows = database.select(DOING, &sql, &[Value::Integer(message)])?;
    rows.first().map_or(Ok(None), |row| row.bytes(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_or_one_mailbox_is_selected() {
        let has = |mailbox, user, name| Selection { since: 0, mailbox }.has(user, name);
        assert!(has(None, "scuba", "INBOX"));
        assert!(has(Some("scuba"), "scuba", "INBOX"));
        assert!(has(Some("scuba/INBOX"), "scuba", "INBOX"));
        assert!(has(Some("a/b/INBOX/c"), "a/b", "INBOX/c"));
        assert!(!has(Some("scuba"), "scubadiver", "INBOX"));
        assert!(!has(Some("scuba/Sent"), "scuba", "INBOX"));
        assert!(!has(Some("scuba/"), "scuba", "INBOX"));
    }
}
