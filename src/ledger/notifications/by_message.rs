//! The notifications of one message, for `trace`.

use super::{history, if_readable};
use crate::base::timestamp;
use crate::database::{DatabaseError, Query, Value};
use crate::ledger::Database;
use serde::Serialize;
use std::collections::BTreeMap;
use uuid::Uuid;

/// How many events of a message are read, the oldest first, and how many tries at sending them.
const MOST_EVENTS: usize = 200;
const MOST_TRIES: usize = 2000;

/// An event of a copy, and the state of its notifications.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NotifiedEvent {
    /// The event's id as it is sent: `evt_` and 32 digits.
    pub(crate) event: String,
    pub(crate) r#type: String,
    pub(crate) user: String,
    pub(crate) mailbox: String,
    #[serde(serialize_with = "timestamp::serialize")]
    pub(crate) at: i64,
    pub(crate) subscriptions: Vec<NotifiedSubscription>,
}

/// The state of an event's notification to one subscription.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NotifiedSubscription {
    pub(crate) subscription: Uuid,
    /// `accepted`, `pending`, `given_up`.
    pub(crate) state: &'static str,
    pub(crate) tries: u64,
    /// The outcome of the last try, and when it began.
    pub(crate) last: Option<String>,
    #[serde(serialize_with = "timestamp::serialize_optional")]
    pub(crate) last_at: Option<i64>,
}

/// The events of the message with this identity, and their notifications. `None` if there are no subscribers, as on an embedded
/// site. Also `None` if the tables do not exist yet, or if our role may not read them, as the role of deliveries.
///
/// # Errors
/// If the database does not answer.
pub(crate) fn of_message(
    database: &mut dyn Database,
    identity: &[u8; 32],
) -> Result<Option<Vec<NotifiedEvent>>, DatabaseError> {
    let tables = "events subscriptions notifications notification_attempts";
    if_readable(database, tables, |database| read(database, identity))
}

fn read(database: &mut dyn Database, identity: &[u8; 32]) -> Result<Vec<NotifiedEvent>, DatabaseError> {
    let (dialect, doing) = (database.dialect(), "reading the notifications of the message");
    let sql = format!(
        "SELECT e.position, {}, e.type, e.imap_user, e.mailbox, {} FROM events e WHERE e.identity = ? \
         ORDER BY e.position LIMIT {MOST_EVENTS}",
        dialect.uuid("e.event"),
        dialect.microseconds("e.created_at"),
    );
    let mut events: BTreeMap<i64, NotifiedEvent> = BTreeMap::new();
    type Event = (i64, Uuid, String, String, String, i64);
    for (position, event, r#type, user, mailbox, at) in
        database.query::<Event>(doing, &sql, &[Value::Bytes(identity)])?
    {
        let event = format!("evt_{}", event.simple());
        events.insert(position, NotifiedEvent { event, r#type, user, mailbox, at, subscriptions: Vec::new() });
    }
    let positions: Vec<i64> = events.keys().copied().collect();
    let mut all: BTreeMap<(i64, Uuid), NotifiedSubscription> = BTreeMap::new();
    for one in history::attempts(database, &positions, None, MOST_TRIES)? {
        let to = all.entry((one.position, one.subscription)).or_insert(NotifiedSubscription {
            subscription: one.subscription,
            state: "accepted",
            tries: 0,
            last: None,
            last_at: None,
        });
        to.tries += 1;
        (to.last, to.last_at) = (Some(one.outcome), Some(one.started_at));
    }
    for (position, subscription, is_due) in waiting(database, &positions)? {
        let nothing = NotifiedSubscription { subscription, state: "", tries: 0, last: None, last_at: None };
        let to = all.entry((position, subscription)).or_insert(nothing);
        to.state = if is_due { "pending" } else { "given_up" };
    }
    for ((position, _), to) in all {
        if let Some(event) = events.get_mut(&position) {
            event.subscriptions.push(to);
        }
    }
    Ok(events.into_values().collect())
}

/// The undelivered notifications of these events. The join is by subscription, the first part of the table's key.
fn waiting(database: &mut dyn Database, positions: &[i64]) -> Result<Vec<(i64, Uuid, bool)>, DatabaseError> {
    if positions.is_empty() {
        return Ok(Vec::new());
    }
    let places = vec!["?"; positions.len()].join(", ");
    let sql = format!(
        "SELECT n.event, {}, n.due_at IS NOT NULL FROM subscriptions s \
         JOIN notifications n ON n.subscription = s.id AND n.event IN ({places})",
        database.dialect().uuid("n.subscription"),
    );
    let values: Vec<Value<'_>> = positions.iter().copied().map(Value::Integer).collect();
    database.query("reading pending notifications of the message", &sql, &values)
}
