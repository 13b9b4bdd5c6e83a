//! Reads events and the state of their notifications, for the API and the web UI, and queues events for redelivery.

use super::{Due, MessageDetail, TEST, event_columns, now};
use crate::base::timestamp;
use crate::database::{DatabaseError, Dialect, Query, Value, columns_of};
use crate::ledger::trace::{self, TracedCopy};
use crate::ledger::{Database, event};
use serde::Serialize;
use uuid::Uuid;

/// At most `most` events after this position, in the order of their commits. No event ever appears before one that was read: a
/// client that continues after the last position misses none.
///
/// # Errors
/// If the events cannot be read.
pub(crate) fn events_after(database: &mut dyn Database, after: i64, most: usize) -> Result<Vec<Due>, DatabaseError> {
    // An event alone has neither tries nor a due time: both are read as 0.
    let sql = format!(
        "SELECT e.position, 0, {}, 0 FROM events e WHERE e.position > ? ORDER BY e.position LIMIT {most}",
        event_columns(database.dialect())
    );
    database.query("reading events", &sql, &[Value::Integer(after)])
}

/// The event with this id.
///
/// # Errors
/// If the database does not answer.
pub(crate) fn event(database: &mut dyn Database, event: Uuid) -> Result<Option<Due>, DatabaseError> {
    let sql = format!("SELECT e.position, 0, {}, 0 FROM events e WHERE e.event = ?", event_columns(database.dialect()));
    database.query_first("reading an event", &sql, &[Value::Uuid(event)])
}

/// The position of the newest event; 0 if there is none.
///
/// # Errors
/// If the database does not answer.
pub(crate) fn newest(database: &mut dyn Database) -> Result<i64, DatabaseError> {
    database.query_number("reading events", "SELECT max(position) FROM events", &[])
}

/// What the ledger has recorded about a message.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) identity: [u8; 32],
    pub(crate) message_id: String,
    pub(crate) detail: MessageDetail,
    pub(crate) recorded_at: i64,
    pub(crate) copies: Vec<TracedCopy>,
}

impl Message {
    /// The address that a copy belongs to, as events name it.
    pub(crate) fn address_of(&self, copy: &TracedCopy) -> String {
        event::address(copy.role, &copy.recipient, self.detail.from.as_deref())
    }
}

/// The message with this identity; `None` if it is not recorded yet.
///
/// # Errors
/// If the message cannot be read.
pub(crate) fn message(database: &mut dyn Database, identity: &[u8; 32]) -> Result<Option<Message>, DatabaseError> {
    let headers = database.dialect().text_of_json("m.headers");
    Ok(read_messages(database, "m.identity = ?", &[Value::Bytes(identity)], &headers)?.pop())
}

/// The messages with these ids (`messages.id`), the newest first, without their header fields.
///
/// # Errors
/// If the messages cannot be read.
pub(crate) fn messages(database: &mut dyn Database, ids: &[i64]) -> Result<Vec<Message>, DatabaseError> {
    let ids = database.dialect().list_or_none(ids.iter().map(|id| Value::Integer(*id)));
    read_messages(database, &format!("m.id IN ({ids})"), &[], "''")
}

fn read_messages(
    database: &mut dyn Database,
    which: &str,
    values: &[Value<'_>],
    headers: &str,
) -> Result<Vec<Message>, DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT m.id, {}, m.message_id, {}, {} FROM messages m WHERE {which} ORDER BY m.id DESC",
        dialect.hex("m.identity"),
        dialect.microseconds("m.recorded_at"),
        MessageDetail::columns(dialect, headers),
    );
    let found: Vec<(i64, [u8; 32], String, i64, MessageDetail)> = database.query("reading messages", &sql, values)?;
    let ids: Vec<i64> = found.iter().map(|(id, ..)| *id).collect();
    let mut copies = trace::copies_of(database, &ids)?;
    let message = |(id, identity, message_id, recorded_at, detail)| Message {
        identity,
        message_id,
        recorded_at,
        detail,
        copies: copies.remove(&id).unwrap_or_default(),
    };
    Ok(found.into_iter().map(message).collect())
}

/// A notification that its receiver has not accepted yet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Pending {
    /// The event's position.
    #[serde(skip)]
    pub(crate) position: i64,
    /// The event's id, as notifications contain it.
    #[serde(serialize_with = "as_event")]
    pub(crate) event: Uuid,
    pub(crate) r#type: String,
    /// `pending` or `given_up`.
    pub(crate) state: String,
    pub(crate) tries: u32,
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub(crate) due_at: Option<i64>,
    pub(crate) last_status: Option<u16>,
    pub(crate) last_error: Option<String>,
    /// When the notifier gave the notification up.
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub(crate) given_up_at: Option<i64>,
}

columns_of! { Pending: position, event, r#type, state, tries, due_at, last_status, last_error, given_up_at }

fn as_event<S: serde::Serializer>(event: &Uuid, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("evt_{}", event.simple()))
}

/// The undelivered notifications of a subscription whose events are before this position, the newest first. `given_up`
/// selects only those that were given up (`true`), or only those that were not (`false`).
///
/// # Errors
/// If the notifications cannot be read.
pub(crate) fn pending(
    database: &mut dyn Database,
    subscription: Uuid,
    before: i64,
    given_up: Option<bool>,
    most: usize,
) -> Result<Vec<Pending>, DatabaseError> {
    let which = match given_up {
        None => "n.event < ?",
        Some(true) => "n.event < ? AND n.due_at IS NULL",
        Some(false) => "n.event < ? AND n.due_at IS NOT NULL",
    };
    undelivered(database, subscription, which, before, most)
}

/// The subscription's notification of the event at this position. `None` if it was delivered, or if the subscription
/// does not get this event.
///
/// # Errors
/// If the notification cannot be read.
pub(crate) fn pending_one(
    database: &mut dyn Database,
    subscription: Uuid,
    position: i64,
) -> Result<Option<Pending>, DatabaseError> {
    Ok(undelivered(database, subscription, "n.event = ?", position, 1)?.pop())
}

fn undelivered(
    database: &mut dyn Database,
    subscription: Uuid,
    which: &str,
    position: i64,
    most: usize,
) -> Result<Vec<Pending>, DatabaseError> {
    let dialect = database.dialect();
    let sql = format!(
        "SELECT n.event, {}, e.type, CASE WHEN n.due_at IS NULL THEN 'given_up' ELSE 'pending' END, n.tries, {}, n.last_status, n.last_error, {} FROM notifications n \
         JOIN events e ON e.position = n.event WHERE n.subscription = ? AND {which} ORDER BY n.event DESC LIMIT {most}",
        dialect.uuid("e.event"),
        dialect.microseconds("n.due_at"),
        dialect.microseconds("n.given_up_at"),
    );
    let values = [Value::Uuid(subscription), Value::Integer(position)];
    database.query("reading pending notifications", &sql, &values)
}

/// A notification that the receiver of a subscription has accepted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Taken {
    #[serde(skip)]
    pub(crate) position: i64,
    #[serde(serialize_with = "as_event")]
    pub(crate) event: Uuid,
    pub(crate) r#type: String,
    pub(crate) tries: u32,
    /// When the last try began.
    #[serde(serialize_with = "timestamp::serialize")]
    pub(crate) last_at: i64,
}

columns_of! { Taken: position, event, r#type, tries, last_at }

/// How many events are searched for those that a subscription has received. The search is limited, since `notification_attempts`
/// has no index by subscription.
const LOOKED_AT: i64 = 5000;

/// The notifications that a subscription has received, of the newest events before this position, the newest first. With them
/// comes the position at which the search stopped, if older events may be left.
///
/// # Errors
/// If the database does not answer.
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
    let taken: Vec<Taken> = database.query("reading sent notifications", &sql, &values)?;
    // Positions begin with 1.
    let onward = match taken.last().filter(|_| taken.len() == most) {
        Some(last) => Some(last.position),
        None => Some(from),
    };
    Ok((taken, onward.filter(|position| *position > 1)))
}

/// One try at sending a notification.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct NotificationAttempt {
    #[serde(skip)]
    pub(crate) position: i64,
    #[serde(skip)]
    pub(crate) subscription: Uuid,
    #[serde(serialize_with = "timestamp::serialize")]
    pub(crate) started_at: i64,
    /// The host of the notifier.
    pub(crate) host: String,
    pub(crate) milliseconds: u64,
    /// The HTTP status of the response, if there was one.
    pub(crate) status: Option<u16>,
    pub(crate) outcome: String,
    /// The beginning of the response, if it may be shown.
    pub(crate) response: Option<String>,
    /// When the next try was due.
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub(crate) next_at: Option<i64>,
}

columns_of! { NotificationAttempt: position, subscription, started_at, host, milliseconds, status, outcome, response, next_at }

/// The tries at sending these events to one subscription or to all, the oldest first. If there are more than `most`, these are
/// the last ones, since readers need the newest result.
///
/// # Errors
/// If the database does not answer.
pub(crate) fn attempts(
    database: &mut dyn Database,
    positions: &[i64],
    subscription: Option<Uuid>,
    most: usize,
) -> Result<Vec<NotificationAttempt>, DatabaseError> {
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
    let mut attempts = database.query("reading the tries at notifications", &sql, &values)?;
    attempts.reverse();
    Ok(attempts)
}

/// Queues one event (its position) for a subscription: for the first time, or as a redelivery with its tries reset.
///
/// # Errors
/// If the database fails; the change may then be committed or not.
pub(crate) fn enqueue_event(database: &mut dyn Database, subscription: Uuid, event: i64) -> Result<(), DatabaseError> {
    let dialect = database.dialect();
    let now = now(dialect);
    let again = again(dialect, now);
    let insert = format!("INSERT INTO notifications (subscription, event, due_at) VALUES (?, ?, {now}) {again}");
    let (wake, id) = (wake(dialect, now), [Value::Uuid(subscription)]);
    let values = [Value::Uuid(subscription), Value::Integer(event)];
    database.execute_together("sending an event again", &[(&wake, &id), (&insert, &values)]).map(drop)
}

/// The assignments that make a notification due now, with its tries reset.
pub(super) fn due_again(now: &str) -> String {
    format!("due_at = {now}, tries = 0, given_up_at = NULL")
}

/// The clause of an INSERT that makes an existing notification due now.
pub(super) fn again(dialect: Dialect, now: &str) -> String {
    dialect.or_update("subscription, event", &due_again(now))
}

/// Makes a subscription due now, and ends a pause of its receiver. This must be the first statement of its transaction: a
/// notifier that settles the subscription waits for this row, and only then reads what is due.
pub(super) fn wake(dialect: Dialect, now: &str) -> String {
    let again = dialect.or_update("subscription", &format!("due_at = {now}, paused_until = NULL"));
    format!("INSERT INTO subscription_queues (subscription, due_at) VALUES (?, {now}) {again}")
}

/// Queues a test notification for a subscription, and returns the event's id.
///
/// # Errors
/// If the database fails; the event may then be queued or not.
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
