//! What happened, and what became of telling it, for those who read it instead of being told, or want to be told again.

use super::{Due, MessageDetail, TEST, event_columns, now};
use crate::base::timestamp;
use crate::database::{DatabaseError, Dialect, Query, Value, columns_of};
use crate::ledger::trace::{self, TracedCopy};
use crate::ledger::{Database, event};
use serde::Serialize;
use uuid::Uuid;

/// Events after this position, in the order of their commits, at most so many. Once one of them is read, none ever appears before
/// it: whoever goes on after the last one misses none.
///
/// # Errors
/// Where they cannot be read.
pub(crate) fn events_after(database: &mut dyn Database, after: i64, most: usize) -> Result<Vec<Due>, DatabaseError> {
    // What is not told has no tries, and is due at no moment.
    let sql = format!(
        "SELECT e.position, 0, {}, 0 FROM events e WHERE e.position > ? ORDER BY e.position LIMIT {most}",
        event_columns(database.dialect())
    );
    database.query("reading events", &sql, &[Value::Integer(after)])
}

/// The event of this id.
///
/// # Errors
/// Where it cannot be read.
pub(crate) fn event(database: &mut dyn Database, event: Uuid) -> Result<Option<Due>, DatabaseError> {
    let sql = format!("SELECT e.position, 0, {}, 0 FROM events e WHERE e.event = ?", event_columns(database.dialect()));
    database.query_first("reading an event", &sql, &[Value::Uuid(event)])
}

/// The position of the newest event; 0 where there is none.
///
/// # Errors
/// Where it cannot be read.
pub(crate) fn newest(database: &mut dyn Database) -> Result<i64, DatabaseError> {
    database.query_number("reading events", "SELECT max(position) FROM events", &[])
}

/// What the ledger has of a message.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) message_id: String,
    pub(crate) detail: MessageDetail,
    pub(crate) recorded_at: i64,
    pub(crate) copies: Vec<TracedCopy>,
}

impl Message {
    /// Whose a copy of it is, as events say it.
    pub(crate) fn address_of(&self, copy: &TracedCopy) -> String {
        event::address(copy.role, &copy.recipient, self.detail.from.as_deref())
    }
}

/// The message of this identity, once it is recorded.
///
/// # Errors
/// Where it cannot be read.
pub(crate) fn message(database: &mut dyn Database, identity: &[u8; 32]) -> Result<Option<Message>, DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT m.id, m.message_id, {}, {} FROM messages m WHERE m.identity = ?",
        dialect.microseconds("m.recorded_at"),
        MessageDetail::columns(dialect, &dialect.text_of_json("m.headers")),
    );
    let Some((id, message_id, recorded_at, detail)) =
        database.query_first("reading a message", &sql, &[Value::Bytes(identity)])?
    else {
        return Ok(None);
    };
    Ok(Some(Message { message_id, recorded_at, detail, copies: trace::copies(database, id)? }))
}

/// A notification that is not told yet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Pending {
    /// The event's position.
    #[serde(skip)]
    pub(crate) position: i64,
    /// The event, as it is told.
    #[serde(serialize_with = "as_event")]
    pub(crate) event: Uuid,
    pub(crate) r#type: String,
    /// `pending` or `failed`.
    pub(crate) state: String,
    pub(crate) tries: u32,
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub(crate) due: Option<i64>,
    pub(crate) last_status: Option<u16>,
    pub(crate) last_error: Option<String>,
    /// When it was given up.
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub(crate) failed: Option<i64>,
}

columns_of! { Pending: position, event, r#type, state, tries, due, last_status, last_error, failed }

fn as_event<S: serde::Serializer>(event: &Uuid, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("evt_{}", event.simple()))
}

/// What a subscription has not been told of, before this position, the newest first; only what is given up, or only what is not.
///
/// # Errors
/// Where it cannot be read.
pub(crate) fn pending(
    database: &mut dyn Database,
    subscription: Uuid,
    before: i64,
    failed: Option<bool>,
    most: usize,
) -> Result<Vec<Pending>, DatabaseError> {
    let which = match failed {
        None => "n.event < ?",
        Some(true) => "n.event < ? AND n.due_at IS NULL",
        Some(false) => "n.event < ? AND n.due_at IS NOT NULL",
    };
    untold(database, subscription, which, before, most)
}

/// What a subscription has not been told of the event at this position. `None`: it was told, or is not to be.
///
/// # Errors
/// Where it cannot be read.
pub(crate) fn pending_one(
    database: &mut dyn Database,
    subscription: Uuid,
    position: i64,
) -> Result<Option<Pending>, DatabaseError> {
    Ok(untold(database, subscription, "n.event = ?", position, 1)?.pop())
}

fn untold(
    database: &mut dyn Database,
    subscription: Uuid,
    which: &str,
    position: i64,
    most: usize,
) -> Result<Vec<Pending>, DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT n.event, {}, e.type, CASE WHEN n.due_at IS NULL THEN 'failed' ELSE 'pending' END, n.tries, {}, n.last_status, n.last_error, {} FROM notifications n \
         JOIN events e ON e.position = n.event WHERE n.subscription = ? AND {which} ORDER BY n.event DESC LIMIT {most}",
        dialect.uuid("e.event"),
        dialect.microseconds("n.due_at"),
        dialect.microseconds("n.failed_at"),
    );
    let values = [Value::Uuid(subscription), Value::Integer(position)];
    database.query("reading what is to be told", &sql, &values)
}

/// A notification that a subscription has taken.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Taken {
    pub(crate) position: i64,
    pub(crate) event: Uuid,
    pub(crate) r#type: String,
    pub(crate) tries: u32,
    /// When the last of them began.
    pub(crate) last: i64,
}

columns_of! { Taken: position, event, r#type, tries, last }

/// How many events are looked at for those that a subscription has taken: what was told has no index of its own by subscription.
const LOOKED_AT: i64 = 5000;

/// What a subscription has taken of the newest events before this position, the newest first; and the position before which
/// it was not looked, where there may be more.
///
/// # Errors
/// Where it cannot be read.
pub(crate) fn taken(
    database: &mut dyn Database,
    subscription: Uuid,
    before: i64,
    most: usize,
) -> Result<(Vec<Taken>, Option<i64>), DatabaseError> {
    let dialect = database.dialect();
    let before = before.min(newest(database)?.saturating_add(1));
    let from = before.saturating_sub(LOOKED_AT);
    let sql = format!(
        "SELECT e.position, {}, e.type, count(*), {} FROM events e \
         JOIN notification_attempts a ON a.event = e.position AND a.subscription = ? \
         WHERE e.position < ? AND e.position >= ? \
         AND NOT EXISTS (SELECT 1 FROM notifications n WHERE n.subscription = ? AND n.event = e.position) \
         GROUP BY e.position, e.event, e.type ORDER BY e.position DESC LIMIT {most}",
        dialect.uuid("e.event"),
        dialect.microseconds("max(a.started_at)"),
    );
    let id = Value::Uuid(subscription);
    let values = [id, Value::Integer(before), Value::Integer(from), id];
    let taken: Vec<Taken> = database.query("reading what was told", &sql, &values)?;
    // Positions begin with 1.
    let onward = match taken.last().filter(|_| taken.len() == most) {
        Some(last) => Some(last.position),
        None => Some(from),
    };
    Ok((taken, onward.filter(|position| *position > 1)))
}

/// A try at telling an event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Told {
    #[serde(skip)]
    pub(crate) position: i64,
    #[serde(skip)]
    pub(crate) subscription: Uuid,
    #[serde(serialize_with = "timestamp::serialize")]
    pub(crate) started: i64,
    /// The host of the notifier.
    pub(crate) host: String,
    pub(crate) milliseconds: u64,
    /// Of the answer, if one came.
    pub(crate) status: Option<u16>,
    pub(crate) outcome: String,
    /// The beginning of the answer, where it may be shown.
    pub(crate) response: Option<String>,
    /// When the next one was to be.
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub(crate) next: Option<i64>,
}

columns_of! { Told: position, subscription, started, host, milliseconds, status, outcome, response, next }

/// The tries at telling these events, the oldest first; of one subscription, or of all. The last ones, where there are more: what came of
/// the newest is what somebody wants to know.
///
/// # Errors
/// Where they cannot be read.
pub(crate) fn tries(
    database: &mut dyn Database,
    positions: &[i64],
    subscription: Option<Uuid>,
    most: usize,
) -> Result<Vec<Told>, DatabaseError> {
    if positions.is_empty() {
        return Ok(Vec::new());
    }
    let dialect = database.dialect();
    let places = vec!["?"; positions.len()].join(", ");
    let mut values: Vec<Value<'_>> = positions.iter().copied().map(Value::Integer).collect();
    let mut of = String::new();
    if let Some(subscription) = subscription {
        of += "AND a.subscription = ?";
        values.push(Value::Uuid(subscription));
    }
    let sql = format!(
        "SELECT a.event, {}, {}, a.host, a.milliseconds, a.status, a.outcome, a.response, {} FROM notification_attempts a \
         WHERE a.event IN ({places}) {of} ORDER BY a.event DESC, a.started_at DESC LIMIT {most}",
        dialect.uuid("a.subscription"),
        dialect.microseconds("a.started_at"),
        dialect.microseconds("a.next_at"),
    );
    let mut told = database.query("reading what was told", &sql, &values)?;
    told.reverse();
    Ok(told)
}

/// Has a subscription be told of one event (its position), again or for the first time, as if it had never been tried.
///
/// # Errors
/// Where it may not be committed.
pub(crate) fn enqueue_event(database: &mut dyn Database, subscription: Uuid, event: i64) -> Result<(), DatabaseError> {
    let dialect = database.dialect();
    let now = now(dialect);
    let again = again(dialect, now);
    let told = format!("INSERT INTO notifications (subscription, event, due_at) VALUES (?, ?, {now}) {again}");
    let (wake, id) = (wake(dialect, now), [Value::Uuid(subscription)]);
    let values = [Value::Uuid(subscription), Value::Integer(event)];
    database.change_together("telling an event once more", &[(&wake, &id), (&told, &values)]).map(drop)
}

/// What makes a notification due again, as if it had never been tried.
pub(super) fn due_again(now: &str) -> String {
    format!("due_at = {now}, tries = 0, failed_at = NULL")
}

/// A notification that is there already is due again.
pub(super) fn again(dialect: Dialect, now: &str) -> String {
    dialect.or_update("subscription, event", &due_again(now))
}

/// A subscription is served at once, whether its receiver rests or not. First of all: whoever settles it waits for its row, and
/// looks for what is due then.
pub(super) fn wake(dialect: Dialect, now: &str) -> String {
    let again = dialect.or_update("subscription", &format!("due_at = {now}, open_until = NULL"));
    format!("INSERT INTO subscription_queues (subscription, due_at) VALUES (?, {now}) {again}")
}

/// Sends a subscription something, to see that it comes; the event's id.
///
/// # Errors
/// Where it may not be committed.
pub(crate) fn test(database: &mut dyn Database, subscription: Uuid, host: &str) -> Result<Uuid, DatabaseError> {
    let (event, now, nothing) = (Uuid::now_v7(), database.dialect().now(), [0; 32]);
    let sql = format!(
        "INSERT INTO outbox (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, subscription, host, diff, \
         created_at) VALUES (?, '{TEST}', ?, ?, '', 'recipient', '', '', '', ?, ?, '{{}}', {now})"
    );
    let values = [
        Value::Uuid(event),
        Value::Bytes(&nothing),
        Value::Bytes(&nothing),
        Value::Uuid(subscription),
        Value::Text(host),
    ];
    database.change("sending a test", &sql, &values)?;
    Ok(event)
}
