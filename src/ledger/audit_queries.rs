//! What `audit` and `replay` read: delivered copies with their locations, owed copies, and their messages. Long answers
//! come in parts: a span of time, or a few hundred rows.

use super::columns::IS_DELIVERED;
use super::event::{self, Diff, EventRecord, EventState, EventType, change};
use super::{CopyKey, Database, statements, time_span};
use crate::base::timestamp;
use crate::database::{DatabaseError, DatabaseFailure, Dialect, Query, Value, columns_of};
use crate::lock::LockName;
use crate::mailbox::{MailboxError, Matching, Placement, ReadableMailbox, Recorded, Wanted, look_everywhere};
use crate::message::{Identity, Role};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

/// An hour, in microseconds.
const HOUR: i64 = 3_600_000_000;
/// A message may be this much older than its last copy: Postfix tries for five days (maximal_queue_lifetime).
const LATE: i64 = 7 * 24 * HOUR;
/// How many rows one answer holds.
const PAGE: usize = 500;
/// How many messages are searched for users who recently received mail.
const NEWEST_MESSAGES: i64 = 100_000;
/// The number of messages whose copies are read at once.
const MESSAGES_AT_ONCE: i64 = 1000;
/// The most users that are remembered as having received mail: more would take much memory.
const ENOUGH_USERS: usize = 20_000;

const DOING: &str = "reading the ledger";

/// The manner of a copy that another program has put into the mailbox, as in a delivery's record.
const ADOPTED: &str = "adopted";

/// A copy as the ledger has it, and the recorded fields of its message; for programs, without the fields of the ledger.
#[derive(Clone, Debug, Serialize)]
pub struct RecordedCopy {
    /// The row id of the message.
    #[serde(skip)]
    pub message: i64,
    /// The message's identity.
    #[serde(skip)]
    pub identity: Identity,
    /// The lock that guards it. It cannot be computed from a mailbox's bytes: Cyrus stores X for each byte beyond
    /// ASCII.
    #[serde(skip)]
    pub lock: LockName,
    /// The Message-ID for people, with angle brackets; generated if the message has none.
    pub message_id: String,
    /// The envelope sender; empty for the null sender.
    #[serde(skip)]
    pub sender: String,
    pub subject: Option<String>,
    /// The author, as the message names them.
    #[serde(skip)]
    pub from: Option<String>,
    /// When the message was first recorded, in microseconds since 1970.
    #[serde(serialize_with = "timestamp::serialize")]
    pub recorded_at: i64,
    pub role: Role,
    /// The mailbox's user.
    pub user: String,
    pub mailbox: String,
    /// The envelope recipient of the delivery that brought it, or owes it.
    pub recipient: String,
    /// Its location, if the server reported it.
    #[serde(flatten)]
    pub placement: Option<Placement>,
    /// Why it is owed; `None` if it is delivered.
    pub reason: Option<String>,
    /// When it was last tried, in microseconds since 1970.
    #[serde(skip)]
    pub updated_at: i64,
}

columns_of! { RecordedCopy:
    message, identity, message_id, sender, subject, from, recorded_at, lock, role, user, mailbox, recipient, placement, reason, updated_at
}

impl RecordedCopy {
    /// Its key in the ledger.
    #[must_use]
    pub(crate) fn key(&self) -> CopyKey {
        CopyKey::new(&self.identity, self.role, &self.user, &self.mailbox)
    }

    /// The address that it belongs to, as events name it: the recipient's; of the author's copy, the author's.
    #[must_use]
    pub(crate) fn address(&self) -> String {
        event::address(self.role, &self.recipient, self.from.as_deref())
    }

    /// An event of the copy, without an attempt. `address` is the one that it belongs to.
    pub(crate) fn event<'a>(&'a self, kind: EventType, address: &'a str, host: &'a str, diff: Diff) -> EventRecord<'a> {
        EventRecord {
            event: Uuid::now_v7(),
            kind,
            key: self.key(),
            role: self.role,
            user: &self.user,
            mailbox: &self.mailbox,
            recipient: address,
            identity: &self.identity,
            message_id: &self.message_id,
            manner: None,
            attempt: None,
            queue_id: None,
            host,
            diff,
        }
    }

    /// The copy in the form in which a mailbox looks it up.
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

    /// The search for the copy under any UID.
    #[must_use]
    pub(crate) fn wanted(&self) -> Wanted<'_> {
        Wanted {
            message_id: Some(&self.message_id),
            identity: &self.identity,
            role: self.role,
            matching: Matching::Identity,
            since: None,
            not_before: self.arrived(),
        }
    }

    /// Its present location in its mailbox; `None` if it is not there. The inner `None` is a store without UIDs.
    pub fn locate(
        &self,
        mailbox: &mut dyn ReadableMailbox,
        has_uids: bool,
    ) -> Result<Option<Option<Placement>>, MailboxError> {
        let found = look_everywhere(mailbox, &self.wanted(), self.placement, has_uids)?;
        Ok(found.iter().find(|copy| !copy.deleted).or(found.first()).map(|copy| copy.placement))
    }
}

/// A filter on copies.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a> {
    /// The copies that a backup of this time (in microseconds since 1970) does not have. Their messages were recorded
    /// since, or recorded in the week before and delivered since.
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

/// A delivered copy in few bytes: a week of them has to fit into memory.
#[derive(Clone, Copy, Debug)]
pub struct DeliveredCopy {
    /// The row id of its message.
    pub message: i64,
    pub role: Role,
    /// Its location, if the server reported it.
    pub placement: Option<Placement>,
    /// The lowest UID that any attempt at it could have got, under the same UIDVALIDITY.
    pub lowest: Option<u32>,
}

columns_of! { DeliveredCopy: message, role, placement, lowest }

/// Mailboxes, as (user, mailbox), and the copies that were delivered to them.
pub(crate) type Mailboxes = BTreeMap<(String, String), Vec<DeliveredCopy>>;

/// Which copies are recorded as delivered, by mailbox.
pub fn delivered(database: &mut dyn Database, selection: &Selection<'_>) -> Result<Mailboxes, DatabaseError> {
    let dialect = database.dialect();
    let now = time_span::now(database)?;
    // Ids are nearly in the order of time: an hour is more than races and a clock that was set back account for.
    let first = format!("SELECT {} FROM messages ORDER BY id LIMIT 1", dialect.microseconds("recorded_at"));
    let Some(first) = database.query_first::<i64>(DOING, &first, &[])? else { return Ok(Mailboxes::new()) };
    let sql = "SELECT c.imap_user, c.mailbox, m.id, c.role, c.uid_validity, c.uid, \
               (SELECT MIN(a.uid_next) FROM attempts a \
                WHERE a.copy_key = c.copy_key AND a.uid_validity = c.uid_validity) \
               FROM messages m JOIN copies c ON c.message = m.id \
               WHERE m.recorded_at >= ? AND m.recorded_at < ? AND c.state = 'delivered' \
               AND (m.recorded_at >= ? OR c.updated_at >= ?)";
    let mut mailboxes = Mailboxes::new();
    // An hour at a time: each engine finds it by its index on the time, and none has to sort.
    let mut from = selection.since.saturating_sub(LATE).max(first.saturating_sub(HOUR));
    let since = Value::Moment(selection.since);
    while from < now.saturating_add(HOUR) {
        let to = from.saturating_add(HOUR);
        let rows: Vec<(String, String, DeliveredCopy)> =
            database.query(DOING, sql, &[Value::Moment(from), Value::Moment(to), since, since])?;
        for (user, mailbox, delivered) in rows {
            if selection.has(&user, &mailbox) {
                mailboxes.entry((user, mailbox)).or_default().push(delivered);
            }
        }
        from = to;
    }
    Ok(mailboxes)
}

/// The columns of a [`RecordedCopy`].
fn columns(database: &dyn Database) -> String {
    let dialect = database.dialect();
    format!(
        "m.id, {}, m.message_id, m.sender, m.subject, m.header_from, {}, {}, \
         c.role, c.imap_user, c.mailbox, c.recipient, c.uid_validity, c.uid, c.reason, {}",
        dialect.hex("m.identity"),
        dialect.microseconds("m.recorded_at"),
        dialect.hex("m.lock_digest"),
        dialect.microseconds("c.updated_at"),
    )
}

/// These copies of one mailbox in full, as far as the ledger still has them. Request some hundreds at a time.
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
    let mut all: Vec<RecordedCopy> = database.query(DOING, &sql, &values)?;
    // One mailbox may be both a recipient's and a sender's.
    all.retain(|one| copies.iter().any(|asked| (asked.message, asked.role) == (one.message, one.role)));
    Ok(all)
}

/// All delivered copies of one message, recipients' first.
pub fn of_message(database: &mut dyn Database, message: i64) -> Result<Vec<RecordedCopy>, DatabaseError> {
    let sql = format!(
        "SELECT {} FROM messages m JOIN copies c ON c.message = m.id \
         WHERE m.id = ? AND c.state = 'delivered' ORDER BY c.role, c.imap_user, c.mailbox",
        columns(database)
    );
    database.query(DOING, &sql, &[Value::Integer(message)])
}

/// A copy by its key, and whether it is delivered; otherwise it is owed. `None` if the ledger has no such copy.
pub(crate) fn by_key(
    database: &mut dyn Database,
    key: &CopyKey,
) -> Result<Option<(RecordedCopy, bool)>, DatabaseError> {
    let sql = format!(
        "SELECT {}, {IS_DELIVERED} FROM copies c JOIN messages m ON m.id = c.message WHERE c.copy_key = ?",
        columns(database)
    );
    database.query_first(DOING, &sql, &[Value::Bytes(key.as_bytes())])
}

/// The owed copies, the last tried first, at most `limit`; and whether there are more.
pub(crate) fn latest_owed(
    database: &mut dyn Database,
    limit: usize,
) -> Result<(Vec<RecordedCopy>, bool), DatabaseError> {
    let sql = format!(
        "SELECT {} FROM copies c JOIN messages m ON m.id = c.message WHERE c.state = 'owed' \
         ORDER BY c.updated_at DESC LIMIT {}",
        columns(database),
        limit + 1
    );
    let mut owed = database.query(DOING, &sql, &[])?;
    let more = owed.len() > limit;
    owed.truncate(limit);
    Ok((owed, more))
}

/// The earlier delivery of a copy that a later one found in the mailbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EarlierDelivery {
    /// Postfix's queue id, if it was given; `None` also if the attempt is no longer kept.
    pub queue_id: Option<String>,
    /// Its host; `None` if the attempt is no longer kept.
    pub host: Option<String>,
    /// The envelope sender of that delivery; empty for the null sender. `None` if the attempt is no longer kept, or if its
    /// program recorded none. The message's own sender may differ: it is that of the first delivery recorded for any
    /// recipient.
    pub sender: Option<String>,
    /// In microseconds since 1970.
    #[serde(serialize_with = "timestamp::serialize")]
    pub delivered_at: i64,
}

columns_of! { EarlierDelivery: queue_id, host, sender, delivered_at }

/// The delivery that brought this copy, if it is delivered: one row by its key, and the attempts at it.
pub fn earlier_delivery(database: &mut dyn Database, copy: &CopyKey) -> Result<Option<EarlierDelivery>, DatabaseError> {
    let sql = format!(
        "SELECT a.queue_id, a.host, a.sender, {} FROM copies c \
         LEFT JOIN attempts a ON a.copy_key = c.copy_key AND a.outcome IN ('appended', 'adopted') \
         WHERE c.copy_key = ? AND c.state = 'delivered' ORDER BY a.ended_at LIMIT 1",
        database.dialect().microseconds("c.delivered_at")
    );
    database.query_first("asking how a copy came to be there", &sql, &[Value::Bytes(copy.as_bytes())])
}

/// The copies that deliveries left owed, oldest last try first. [`Selection::since`] is about that last try.
pub fn owed(database: &mut dyn Database, selection: &Selection<'_>) -> Result<Vec<RecordedCopy>, DatabaseError> {
    let sql = format!(
        "SELECT {} FROM copies c JOIN messages m ON m.id = c.message \
         WHERE c.state = 'owed' AND c.updated_at >= ? AND c.copy_key > ? ORDER BY c.copy_key LIMIT {PAGE}",
        columns(database)
    );
    let (mut owed, mut after): (Vec<RecordedCopy>, Vec<u8>) = Default::default();
    loop {
        let page: Vec<RecordedCopy> =
            database.query(DOING, &sql, &[Value::Moment(selection.since), Value::Bytes(&after)])?;
        let next = page.last().filter(|_| page.len() == PAGE).map(|last| last.key().as_bytes().to_vec());
        owed.extend(page.into_iter().filter(|copy| selection.has(&copy.user, &copy.mailbox)));
        match next {
            Some(next) => after = next,
            None => break,
        }
    }
    owed.sort_by_key(|copy| copy.updated_at);
    Ok(owed)
}

/// The fields that decide whether an owed copy may be retried. There may be very many, so the messages' fields are left
/// out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwedCopyKey {
    pub(crate) key: CopyKey,
    pub(crate) user: String,
    pub(crate) recipient: String,
    /// In microseconds since 1970, as `recorded_at`.
    pub(crate) last_try: i64,
    pub(crate) recorded_at: i64,
}

columns_of! { OwedCopyKey: key, user, recipient, last_try, recorded_at }

/// The next owed copies, some hundreds at most, in the order of their last tries, after the one with this last try and
/// key. Empty after the last copy.
pub(crate) fn owed_after(
    database: &mut dyn Database,
    (last_try, key): (i64, &[u8]),
) -> Result<Vec<OwedCopyKey>, DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT {}, c.imap_user, c.recipient, {}, {} FROM copies c JOIN messages m ON m.id = c.message \
         WHERE c.state = 'owed' AND c.updated_at >= ? AND (c.updated_at > ? OR c.copy_key > ?) \
         ORDER BY c.updated_at, c.copy_key LIMIT {PAGE}",
        dialect.hex("c.copy_key"),
        dialect.microseconds("c.updated_at"),
        dialect.microseconds("m.recorded_at")
    );
    database.query(DOING, &sql, &[Value::Moment(last_try), Value::Moment(last_try), Value::Bytes(key)])
}

/// The mailboxes, with their users, of delivered copies of the newest messages: at most some dozens.
pub(crate) fn newest_delivered_to(database: &mut dyn Database) -> Result<Vec<(String, String)>, DatabaseError> {
    let sql = "SELECT c.imap_user, c.mailbox FROM messages m JOIN copies c ON c.message = m.id \
               WHERE c.state = 'delivered' ORDER BY m.id DESC LIMIT 50";
    database.query(DOING, sql, &[])
}

/// The users of delivered copies: of the newest messages, and of some ten thousand users.
///
/// No index contains the users, since each index costs every delivery. This reads the copies of a thousand messages at
/// a time.
pub(crate) fn lately_delivered_to(database: &mut dyn Database) -> Result<BTreeSet<String>, DatabaseError> {
    let newest = database.query_number(DOING, "SELECT MAX(id) FROM messages", &[])?;
    let oldest = newest.saturating_sub(NEWEST_MESSAGES).max(0);
    let sql = "SELECT DISTINCT imap_user FROM copies WHERE message > ? AND message <= ? AND state = 'delivered'";
    let (mut users, mut until) = (BTreeSet::new(), newest);
    while until > oldest && users.len() < ENOUGH_USERS {
        let from = until.saturating_sub(MESSAGES_AT_ONCE).max(oldest);
        users.extend(database.query::<String>(DOING, sql, &[Value::Integer(from), Value::Integer(until)])?);
        until = from;
    }
    Ok(users)
}

/// Records that an owed copy is about to be tried. So it is not the first of the next list, even if the try kills this
/// process. `false` if it is not owed any more.
///
/// # Errors
/// If the database fails.
pub(crate) fn begin_try(database: &mut dyn Database, copy: &CopyKey) -> Result<bool, DatabaseError> {
    let now = database.dialect().now();
    let sql = format!("UPDATE copies SET updated_at = {now} WHERE copy_key = ? AND state = 'owed'");
    Ok(database.change("beginning to finish a copy", &sql, &[Value::Bytes(copy.as_bytes())])? > 0)
}

/// Records why a copy is still owed.
///
/// # Errors
/// If the database fails.
pub(crate) fn still_owed(database: &mut dyn Database, copy: &CopyKey, reason: &str) -> Result<(), DatabaseError> {
    let sql = "UPDATE copies SET reason = ? WHERE copy_key = ? AND state = 'owed'";
    let values = [Value::Text(reason), Value::Bytes(copy.as_bytes())];
    database.change("writing down why a copy is owed", sql, &values).map(drop)
}

/// Records an owed copy as delivered, because its author's own mail program has saved one there, and writes the event.
/// A copy that is not owed any more stays unchanged.
///
/// # Errors
/// If the database fails; in that case nothing is recorded.
pub(crate) fn adopt_owed(
    database: &mut dyn Database,
    copy: &RecordedCopy,
    placement: Option<Placement>,
    host: &str,
) -> Result<(), DatabaseError> {
    let doing = "recording the author's own copy";
    let dialect = database.dialect();
    let now = dialect.now();
    let key = copy.key();
    let adopt = format!(
        "UPDATE copies SET state = 'delivered', uid_validity = ?, uid = ?, reason = NULL, delivered_at = {now}, \
         updated_at = {now} WHERE copy_key = ? AND state = 'owed'"
    );
    let values = [
        Value::optional_number(placement.map(|at| at.uid_validity)),
        Value::optional_number(placement.map(|at| at.uid)),
        Value::Bytes(key.as_bytes()),
    ];
    let before = EventState::Owed(copy.reason.as_deref().unwrap_or_default());
    let Some((kind, diff)) = change(copy.role, Some(before), EventState::Delivered(placement)) else { return Ok(()) };
    let address = copy.address();
    let event = EventRecord { manner: Some(ADOPTED), ..copy.event(kind, &address, host, diff) };
    // The event depends on the change: this runs without the lock.
    let written = match dialect {
        Dialect::Sqlite => database.change(doing, &adopt, &values).map(drop),
        Dialect::Postgresql => {
            let if_adopted =
                statements::event(dialect, &event, "FROM adopted WHERE EXISTS (SELECT FROM subscriptions)");
            database.change(doing, &format!("WITH adopted AS ({adopt} RETURNING 1) {if_adopted}"), &values).map(drop)
        }
        // Subscriptions are read before the transaction, so that it waits for no session that changes one.
        Dialect::Mysql | Dialect::Mariadb => {
            let if_adopted = statements::event(dialect, &event, "FROM (SELECT 1 AS one) one WHERE ROW_COUNT() > 0");
            match database.select(doing, "SELECT id FROM subscriptions LIMIT 1", &[]) {
                Ok(subscribed) if subscribed.is_empty() => database.change(doing, &adopt, &values).map(drop),
                Ok(_) => database.execute_together(doing, &[(&adopt, &values), (&if_adopted, &[])]).map(drop),
                Err(error) => Err(error),
            }
        }
    };
    match written {
        // A schema, or grants, of an older release: recorded without an event.
        Err(error) if matches!(error.failure, DatabaseFailure::Schema | DatabaseFailure::AccessDenied) => {
            database.change(doing, &adopt, &values).map(drop)
        }
        written => written,
    }
}

/// The owed copies that are due, and how many are not. Copies of messages recorded less than `left_for` ago are left to
/// their authors' mail programs.
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

/// The row id of the message with this identity, its Message-ID for people, and its size in bytes.
pub(crate) fn message_with(
    database: &mut dyn Database,
    identity: &[u8; 32],
) -> Result<Option<(i64, String, u64)>, DatabaseError> {
    let sql = "SELECT id, message_id, size FROM messages WHERE identity = ?";
    database.query_first(DOING, sql, &[Value::Bytes(identity)])
}

/// How many bytes of a source are read at once. As text, in a row and in the protocol's buffer, it takes four times as
/// much.
pub(super) const SOURCE_PART: usize = 4 << 20;

/// The message as it was received for its first recipient, if the ledger keeps sources. Its memory use is little more
/// than its size.
pub fn source(database: &mut dyn Database, message: i64) -> Result<Option<Vec<u8>>, DatabaseError> {
    let mut source = Vec::new();
    loop {
        let part = database.dialect().hex(&format!("substr(source, {}, {SOURCE_PART})", source.len() + 1));
        let sql = format!("SELECT {part}, length(source) FROM message_sources WHERE message_id = ?");
        // `None` also if it is pruned meanwhile.
        let Some((part, size)) = database.query_first::<(Vec<u8>, usize)>(DOING, &sql, &[Value::Integer(message)])?
        else {
            return Ok(None);
        };
        source.reserve_exact(size.saturating_sub(source.len()));
        source.extend_from_slice(&part);
        if part.is_empty() || source.len() >= size {
            return Ok(Some(source));
        }
    }
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
