//! What `trace` reads: the messages that match a Message-ID, a queue id or an address, with all copies of each and all
//! attempts at it. Messages that nobody has yet are found by the attempts.

mod model;

use super::audit_queries::EarlierDelivery;
use super::columns::IS_DELIVERED;
use super::delivery_locks::lock_users;
use super::failures::{FailedDelivery, FailuresOf, STILL_FAILED, failed_deliveries};
use super::message_addresses::AddressPattern;
use super::message_search::ListedMessage;
use super::{AttemptResult, Database, Outcome};
use crate::base::hex;
use crate::database::{DatabaseError, Query, Value, columns_of};
use crate::lock::{Holder, LockName};
use crate::message::Role;
pub(crate) use model::{
    Had, HeldLock, LockHeldThen, LockSpan, MessageTrace, RecordedMessage, TracedAttempt, TracedCopy, TriedCopy,
};
use std::collections::BTreeMap;
use std::time::Duration;
use uuid::Uuid;

/// Rows of one answer.
const PAGE: usize = 500;

/// The search key for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By<'a> {
    /// The lock of a Message-ID. It has an index, so its age does not matter.
    Lock(&'a LockName),
    /// A queue id, among the attempts since this time, or among those with the lock of its message.
    QueueId(&'a str, i64, Option<LockName>),
    /// An envelope recipient, a mailbox's user or an envelope sender, among the attempts since this time. The user's name is as
    /// it was given.
    Addresses { pattern: &'a AddressPattern, user: &'a str, since: i64 },
}

/// A message's identity and lock.
#[derive(Clone, Copy)]
pub(crate) struct FoundMessage {
    pub(crate) identity: [u8; 32],
    pub(crate) lock: LockName,
    /// When something was last tried, or when it was recorded, in microseconds since 1970.
    newest: i64,
}

columns_of! { FoundMessage: identity, lock, newest }

impl From<&FailedDelivery> for FoundMessage {
    fn from(failed: &FailedDelivery) -> Self {
        Self { identity: *failed.identity.as_bytes(), lock: failed.lock, newest: failed.last_at }
    }
}

impl From<&ListedMessage> for FoundMessage {
    fn from(listed: &ListedMessage) -> Self {
        Self { identity: listed.identity, lock: listed.lock, newest: listed.recorded_at }
    }
}

/// The newest messages that match, at most `limit`, and whether there are more.
pub(crate) fn find(
    database: &mut dyn Database,
    by: By<'_>,
    limit: usize,
) -> Result<(Vec<FoundMessage>, bool), DatabaseError> {
    let mut found;
    match by {
        By::Lock(lock) => {
            let digest = [Value::Bytes(lock.digest())];
            found = select(database, ATTEMPTS, "a.lock_digest = ?", &digest, limit)?;
            found.extend(select(database, MESSAGES, "m.lock_digest = ?", &digest, limit)?);
            found.extend(select_failed(database, "f.lock_digest = ?", &digest, limit)?);
        }
        By::QueueId(queue_id, since, None) => {
            let values = [Value::Moment(since), Value::Text(queue_id)];
            found = select(database, ATTEMPTS, "a.started_at >= ? AND a.queue_id = ?", &values, limit)?;
            found.extend(select_failed(database, "f.first_at >= ? AND f.queue_id = ?", &values, limit)?);
        }
        By::QueueId(queue_id, _, Some(lock)) => {
            let values = [Value::Bytes(lock.digest()), Value::Text(queue_id)];
            found = select(database, ATTEMPTS, "a.lock_digest = ? AND a.queue_id = ?", &values, limit)?;
        }
        By::Addresses { pattern: AddressPattern::Address(address), user, since } => {
            let address = Value::Text(address);
            let values = [Value::Moment(since), address, address, Value::Text(user), address];
            let condition = "a.started_at >= ? AND (a.recipient = ? OR a.imap_user IN (?, ?) OR lower(a.sender) = ?)";
            found = select(database, ATTEMPTS, condition, &values, limit)?;
        }
        By::Addresses { pattern, user, since } => {
            let like = pattern.like();
            let like = Value::Text(&like);
            let values = [Value::Moment(since), like, Value::Text(user), like];
            let condition = "a.started_at >= ? AND (a.recipient LIKE ? ESCAPE '!' OR a.imap_user = ? OR lower(a.sender) LIKE ? ESCAPE '!')";
            found = select(database, ATTEMPTS, condition, &values, limit)?;
        }
    }
    Ok(newest(found, limit))
}

/// A message by its identity, if it was recorded, if it failed before its journal, or if `lock` has the lock that guards it.
pub(crate) fn find_identity(
    database: &mut dyn Database,
    identity: [u8; 32],
    lock: Option<LockName>,
) -> Result<Option<FoundMessage>, DatabaseError> {
    let values = [Value::Bytes(&identity)];
    let mut found = select(database, MESSAGES, "m.identity = ?", &values, 1)?;
    if found.is_empty() && lock.is_none() {
        found = select_failed(database, "f.identity = ?", &values, 1)?;
    }
    Ok(found.into_iter().next().or(lock.map(|lock| FoundMessage { identity, lock, newest: 0 })))
}

/// A table that contains messages' identities and locks.
struct Table {
    name: &'static str,
    /// Its alias in conditions.
    alias: &'static str,
    newest: &'static str,
    /// A message has one row, and many attempts.
    grouped: &'static str,
}

const ATTEMPTS: Table =
    Table { name: "attempts", alias: "a", newest: "max(a.started_at)", grouped: "GROUP BY a.identity, a.lock_digest" };
const FAILURES: Table =
    Table { name: "failures", alias: "f", newest: "max(f.last_at)", grouped: "GROUP BY f.identity, f.lock_digest" };
const MESSAGES: Table = Table { name: "messages", alias: "m", newest: "m.recorded_at", grouped: "" };

fn select(
    database: &mut dyn Database,
    Table { name, alias, newest, grouped }: Table,
    condition: &str,
    values: &[Value<'_>],
    limit: usize,
) -> Result<Vec<FoundMessage>, DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT {}, {}, {} FROM {name} {alias} WHERE {condition} {grouped} ORDER BY {newest} DESC LIMIT {}",
        dialect.hex(&format!("{alias}.identity")),
        dialect.hex(&format!("{alias}.lock_digest")),
        dialect.microseconds(newest),
        limit + 1
    );
    database.query("looking for the message", &sql, values)
}

/// The messages that failed before their journal, and were not delivered since.
fn select_failed(
    database: &mut dyn Database,
    condition: &str,
    values: &[Value<'_>],
    limit: usize,
) -> Result<Vec<FoundMessage>, DatabaseError> {
    select(database, FAILURES, &format!("{condition} AND {STILL_FAILED}"), values, limit)
}

/// Removes duplicates, and keeps the newest `limit`, the newest first. The newest `limit` of all are among the newest
/// `limit` of their own tables.
pub(crate) fn newest(mut found: Vec<FoundMessage>, limit: usize) -> (Vec<FoundMessage>, bool) {
    found.sort_by_key(|found| std::cmp::Reverse(found.newest));
    let mut once: Vec<FoundMessage> = Vec::new();
    for candidate in found {
        if !once.iter().any(|other| (other.identity, other.lock) == (candidate.identity, candidate.lock)) {
            once.push(candidate);
        }
    }
    let more = once.len() > limit;
    once.truncate(limit);
    (once, more)
}

/// Reads everything about a message. `holder` is the present holder of its lock.
pub(crate) fn read(
    database: &mut dyn Database,
    found: &FoundMessage,
    holder: Option<Holder>,
) -> Result<MessageTrace, DatabaseError> {
    let sql = format!(
        "SELECT m.id, m.message_id, m.sender, m.header_from, m.header_to, m.subject, m.size, {}, \
         EXISTS (SELECT 1 FROM message_sources s WHERE s.message_id = m.id) FROM messages m WHERE m.identity = ?",
        database.dialect().microseconds("m.recorded_at")
    );
    let (message, copies) = match database.query_first("reading the message", &sql, &[Value::Bytes(&found.identity)])? {
        Some((id, message)) => (Some(message), copies_of(database, &[id])?.remove(&id).unwrap_or_default()),
        None => (None, Vec::new()),
    };
    let holder = holder.map(|holder| identified(database, &found.lock, holder)).transpose()?;
    let mut attempts = attempts(database, found)?;
    let recorded = message.as_ref().map(|message: &RecordedMessage| message.message_id.clone());
    let failures = failed_deliveries(database, FailuresOf::Message(&found.identity), None, PAGE)?;
    let message_id = recorded
        .or(attempts.last().map(|attempt| attempt.message_id.clone()))
        .or(failures.first().map(|failure| failure.message_id.clone()))
        .unwrap_or_default();
    for attempt in &mut attempts {
        attempt.holds_the_lock = holder.as_ref().is_some_and(|holder| holds(attempt, holder));
    }
    let mut trace = MessageTrace {
        message_id,
        identity: hex::encode(&found.identity),
        lock: HeldLock { name: found.lock, holder },
        message,
        copies,
        attempts,
        failures,
        notifications: None,
    };
    explain_adopted_copies(&mut trace);
    for (index, holder) in who_had_the_lock(&trace.attempts) {
        trace.attempts[index].lock_was_held_by = Some(holder);
    }
    Ok(trace)
}

/// Completes a lock's holder: if the server knows only the session, the journal has its process.
fn identified(database: &mut dyn Database, lock: &LockName, holder: Holder) -> Result<Holder, DatabaseError> {
    if holder.host.is_some() {
        return Ok(holder);
    }
    let mut users = lock_users(database, Some(lock))?.into_iter().map(|user| user.process);
    let same = |process: &Holder| process.session.is_some() && process.session == holder.session;
    Ok(users.find(same).unwrap_or(holder))
}

/// Whether this attempt is the one that holds the lock.
fn holds(attempt: &TracedAttempt, holder: &Holder) -> bool {
    let named = holder.host.as_deref() == Some(&attempt.host) && holder.pid == Some(attempt.pid);
    let same_session = holder.session.is_some() && holder.session == attempt.session;
    attempt.result() == AttemptResult::Open && (named || same_session)
}

/// For each attempt that ended because another had the lock, by its index: the attempt that had it. The journal does
/// not record that. But it has the beginning and the end of each attempt that had the lock at some time, by one clock,
/// the database's. No holder is named if none of them had it then, or if several seem to. (Others can have it: `lock
/// exec`, another message with the same Message-ID, a process that was killed.)
fn who_had_the_lock(attempts: &[TracedAttempt]) -> Vec<(usize, LockHeldThen)> {
    let busy = |attempt: &&TracedAttempt| attempt.copies.iter().any(|copy| copy.outcome == Some(Outcome::Busy));
    // How long an attempt had the lock, if it had it at that time.
    let had_it_at = |attempt: &TracedAttempt, at: i64| {
        let LockSpan { waited_until: from, had, .. } = attempt.lock_span()?;
        let since = |until: i64| Duration::from_micros(u64::try_from(until - from).unwrap_or_default());
        match had {
            Had::Still if from <= at => Some(None),
            Had::Until(until) if from <= at && at <= until => Some(Some(since(until))),
            _ => None,
        }
    };
    let waited = attempts.iter().enumerate().filter(|(_, attempt)| busy(attempt));
    let held = waited.filter_map(|(index, attempt)| {
        let gave_up = attempt.ended_at?;
        let mut holders = attempts.iter().filter_map(|other| Some((other, had_it_at(other, gave_up)?)));
        match (holders.next(), holders.next()) {
            (Some((TracedAttempt { host, pid, queue_id, .. }, held_for)), None) => {
                let (host, queue_id) = (host.clone(), queue_id.clone());
                Some((index, LockHeldThen { host, pid: *pid, queue_id, held_for }))
            }
            _ => None,
        }
    });
    held.collect()
}

/// Fills in, for each recipient's copy that an attempt found in its mailbox, the delivery that had brought it.
fn explain_adopted_copies(trace: &mut MessageTrace) {
    let brought_by = |key: &[u8; 32]| {
        let brought = |tried: &&TriedCopy| {
            tried.key == *key && matches!(tried.outcome, Some(Outcome::Appended | Outcome::Adopted))
        };
        let bringing = trace
            .attempts
            .iter()
            .filter_map(|attempt| attempt.copies.iter().find(brought).map(|tried| (tried.ended_at, attempt)));
        bringing.min_by_key(|(ended_at, _)| *ended_at).map(|(_, attempt)| attempt)
    };
    let delivered = trace.copies.iter().filter(|copy| copy.delivered);
    let earlier: Vec<([u8; 32], EarlierDelivery)> = delivered
        .map(|copy| {
            let by = brought_by(&copy.key);
            let earlier = EarlierDelivery {
                queue_id: by.and_then(|by| by.queue_id.clone()),
                host: by.map(|by| by.host.clone()),
                sender: by.and_then(|by| by.sender.clone()),
                delivered_at: copy.delivered_at.unwrap_or(copy.updated_at),
            };
            (copy.key, earlier)
        })
        .collect();
    for tried in trace.attempts.iter_mut().flat_map(|attempt| &mut attempt.copies) {
        if tried.outcome == Some(Outcome::AlreadyThere) && tried.role == Role::Recipient {
            tried.earlier = earlier.iter().find(|(key, _)| *key == tried.key).map(|(_, earlier)| earlier.clone());
        }
    }
}

/// The copies of each of these messages (`messages.id`), those of recipients first.
pub(super) fn copies_of(
    database: &mut dyn Database,
    messages: &[i64],
) -> Result<BTreeMap<i64, Vec<TracedCopy>>, DatabaseError> {
    let mut copies: BTreeMap<i64, Vec<TracedCopy>> = BTreeMap::new();
    let dialect = database.dialect();
    let sql = format!(
        "SELECT c.message, {}, c.role, c.imap_user, c.mailbox, c.recipient, {IS_DELIVERED}, c.uid_validity, c.uid, c.reason, {}, {} \
         FROM copies c WHERE c.message IN ({}) AND (c.message > ? OR (c.message = ? AND c.copy_key > ?)) \
         ORDER BY c.message, c.copy_key LIMIT {PAGE}",
        dialect.hex("c.copy_key"),
        dialect.microseconds("c.delivered_at"),
        dialect.microseconds("c.updated_at"),
        dialect.list_or_none(messages.iter().map(|id| Value::Integer(*id)))
    );
    let mut last = (i64::MIN, [0; 32]);
    loop {
        let after = [Value::Integer(last.0), Value::Integer(last.0), Value::Bytes(&last.1)];
        let rows: Vec<(i64, TracedCopy)> = database.query("reading the copies", &sql, &after)?;
        let next = rows.last().filter(|_| rows.len() == PAGE).map(|(message, copy)| (*message, copy.key));
        for (message, copy) in rows {
            copies.entry(message).or_default().push(copy);
        }
        let Some(next) = next else { break };
        last = next;
    }
    for copies in copies.values_mut() {
        copies.sort_by(|a, b| (a.role == Role::Sender, &a.user).cmp(&(b.role == Role::Sender, &b.user)));
    }
    Ok(copies)
}

fn attempts(database: &mut dyn Database, found: &FoundMessage) -> Result<Vec<TracedAttempt>, DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT {}, a.message_id, a.recipient, a.queue_id, a.sender, a.host, a.pid, a.session, {}, a.stages, \
         {}, a.role, a.imap_user, a.mailbox, a.recipient, a.outcome, {} FROM attempts a \
         WHERE a.lock_digest = ? AND a.identity = ? AND (a.attempt > ? OR (a.attempt = ? AND a.copy_key > ?)) \
         ORDER BY a.attempt, a.copy_key LIMIT {PAGE}",
        dialect.uuid("a.attempt"),
        dialect.microseconds("a.started_at"),
        dialect.hex("a.copy_key"),
        dialect.microseconds("a.ended_at")
    );
    let mut attempts: Vec<TracedAttempt> = Vec::new();
    let mut last = (Uuid::nil(), [0; 32]);
    loop {
        let (attempt, key) = (Value::Uuid(last.0), Value::Bytes(&last.1));
        let (lock, identity) = (Value::Bytes(found.lock.digest()), Value::Bytes(&found.identity));
        let rows: Vec<(TracedAttempt, TriedCopy)> =
            database.query("reading the attempts", &sql, &[lock, identity, attempt, attempt, key])?;
        let is_last = rows.len() < PAGE;
        for (read, tried) in rows {
            last = (read.attempt, tried.key);
            match attempts.last_mut().filter(|attempt| attempt.attempt == read.attempt) {
                Some(attempt) => {
                    attempt.ended_at = attempt.ended_at.zip(tried.ended_at).map(|(one, other)| one.max(other));
                    attempt.copies.push(tried);
                    attempt.copies.sort_by_key(|copy| copy.role == Role::Sender);
                    if !read.stages.is_empty() {
                        attempt.stages = read.stages;
                    }
                }
                None => attempts.push(TracedAttempt { ended_at: tried.ended_at, copies: vec![tried], ..read }),
            }
        }
        if is_last {
            // UUIDs come from the hosts' clocks; the order of time is that of the database's clock.
            attempts.sort_by_key(|attempt| (attempt.began_at, attempt.attempt));
            return Ok(attempts);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ledger::Cause;

    /// An attempt of process 1, with its wait for the lock in milliseconds.
    pub(crate) fn attempt(
        host: &str,
        began_at: i64,
        ended: Option<(i64, Outcome)>,
        waited: Option<f64>,
    ) -> TracedAttempt {
        let (ended_at, outcome) = ended.unzip();
        let (user, mailbox) = ("lisa".to_owned(), "INBOX".to_owned());
        TracedAttempt {
            attempt: Uuid::nil(),
            message_id: String::new(),
            recipient: String::new(),
            queue_id: None,
            sender: None,
            host: host.to_owned(),
            pid: 1,
            session: None,
            began_at,
            ended_at,
            holds_the_lock: false,
            lock_was_held_by: None,
            copies: vec![TriedCopy {
                key: [0; 32],
                role: Role::Recipient,
                user,
                mailbox,
                recipient: String::new(),
                outcome,
                ended_at,
                earlier: None,
            }],
            stages: waited.map(|waited| ("lock", waited)).into_iter().collect(),
        }
    }

    #[test]
    fn who_had_the_lock_is_named_where_exactly_one_had_it_when_another_gave_up() {
        let named = |attempts: &[TracedAttempt]| -> Vec<(usize, String)> {
            who_had_the_lock(attempts).into_iter().map(|(index, by)| (index, by.host)).collect()
        };
        let busy = |at| attempt("mx2", 1_000, Some((at, Outcome::Busy)), Some(0.2));
        // It got the lock 2 ms after its journal, and released it with its record.
        let had_it = || attempt("mx1", 0, Some((9_000, Outcome::Appended)), Some(2.0));
        for (at, expected) in [(1_999, None), (2_000, Some("mx1")), (9_000, Some("mx1")), (9_001, None)] {
            let expected: Vec<(usize, String)> = expected.map(|host| (1, host.to_owned())).into_iter().collect();
            assert_eq!(named(&[had_it(), busy(at)]), expected, "{at}");
        }
        let for_how_long = |attempts: &[TracedAttempt]| who_had_the_lock(attempts)[0].1.held_for;
        assert_eq!(for_how_long(&[had_it(), busy(3_000)]), Some(Duration::from_millis(7)));
        // Two that seem to have had it: the holder is ambiguous.
        assert_eq!(named(&[had_it(), attempt("mx3", 0, Some((8_000, Outcome::Died)), Some(1.0)), busy(3_000)]), []);
        // An attempt that never ended is named only if it has the lock now.
        let killed = attempt("mx1", 0, None, None);
        let now = TracedAttempt { holds_the_lock: true, ..killed.clone() };
        assert_eq!(named(&[killed, busy(3_000)]), []);
        assert_eq!(named(&[now.clone(), busy(3_000)]), [(1, "mx1".to_owned())]);
        assert_eq!(for_how_long(&[now.clone(), busy(3_000)]), None);
        // It has the lock now, and began later.
        assert_eq!(named(&[TracedAttempt { began_at: 3_001, ..now }, busy(3_000)]), []);
        // An attempt that never reached the lock, and one that itself found it held.
        assert_eq!(named(&[attempt("mx1", 0, Some((9_000, Outcome::Appended)), None), busy(3_000), busy(4_000)]), []);
    }

    #[test]
    fn an_attempt_waits_for_the_lock_from_its_journal_on_and_has_it_to_its_end() {
        let span = |attempt: TracedAttempt| {
            attempt.lock_span().map(|LockSpan { asked_at, waited_until, had }| (asked_at, waited_until, had))
        };
        let ended = |outcome| attempt("mx1", 1_000, Some((9_000, outcome)), Some(2.0));
        assert_eq!(span(ended(Outcome::Appended)), Some((1_000, 3_000, Had::Until(9_000))));
        assert_eq!(span(ended(Outcome::Busy)), Some((1_000, 3_000, Had::Never)));
        assert_eq!(span(ended(Outcome::Deferred(Cause::LockUnanswered, None))), Some((1_000, 3_000, Had::Never)));
        // The clock of its host and the database's run at different speeds.
        assert_eq!(
            span(attempt("mx1", 1_000, Some((2_500, Outcome::Busy)), Some(2.0))),
            Some((1_000, 2_500, Had::Never))
        );
        let open = attempt("mx1", 1_000, None, None);
        assert_eq!(span(open.clone()), None);
        assert_eq!(span(TracedAttempt { holds_the_lock: true, ..open }), Some((1_000, 1_000, Had::Still)));
        // No stage measured the wait: it never asked for the lock.
        assert_eq!(span(attempt("mx1", 1_000, Some((9_000, Outcome::Appended)), None)), None);
    }

    #[test]
    fn a_message_that_both_tables_know_is_one_and_the_newest_come_first() {
        let lock = LockName::from_digest([0; 32]);
        let found = |identity, newest| FoundMessage { identity: [identity; 32], lock, newest };
        let all = vec![found(1, 10), found(2, 30), found(3, 20), found(1, 40)];
        let names = |(found, more): (Vec<FoundMessage>, bool)| {
            (found.iter().map(|found| found.identity[0]).collect::<Vec<_>>(), more)
        };
        assert_eq!(names(newest(all.clone(), 3)), (vec![1, 2, 3], false));
        assert_eq!(names(newest(all, 2)), (vec![1, 2], true));
    }
}
