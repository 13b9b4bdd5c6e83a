//! Changes of any number of notifications: redelivery, giving up, removal.
//!
//! A change is made in batches. Each batch is a transaction that first locks the subscription's row of `subscription_queues`. The
//! publisher (under the lock of publishing) and a notifier that settles the subscription wait for that row: one batch at most.
//!
//! A change that fails half way has changed some notifications and not others; a retry continues with the rest.

use super::history::{again, due_again};
use super::{matches, now};
use crate::base::deadline::Deadline;
use crate::database::{DatabaseError, Query, Value};
use crate::ledger::Database;
use std::time::Duration;
use uuid::Uuid;

/// How many notifications, or events, a batch has: about ten milliseconds of work.
pub(crate) const PIECE: usize = 2000;

/// Before the first event: positions begin with 1.
const BEGIN: i64 = 0;

/// The result of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Many {
    /// How many notifications were changed.
    pub(crate) notifications: u64,
    /// The position of the event after which the change is to continue, if its time was over before the end.
    pub(crate) next: Option<i64>,
}

/// Which notifications of a subscription are changed, and how.
struct Change<'a> {
    doing: &'static str,
    subscription: Uuid,
    /// A condition on `notifications`, and its values. A changed notification does not meet it any more.
    which: &'a str,
    values: &'a [Value<'a>],
    /// The first statement of the transaction, on the subscription's row of `subscription_queues`. Each `?` in it is the
    /// subscription's id.
    queue: &'a str,
    /// `UPDATE notifications SET …`, or `DELETE FROM notifications`.
    change: &'a str,
    /// Whether the newest are changed first.
    newest_first: bool,
}

impl Change<'_> {
    /// Changes the notifications beyond this position, in order, until the end or the deadline, but at least one batch.
    fn make(&self, database: &mut dyn Database, beyond: i64, until: Option<Deadline>) -> Result<Many, DatabaseError> {
        let mut many = Many { notifications: 0, next: Some(beyond) };
        while let Some(beyond) = many.next {
            let (changed, last) = self.piece(database, beyond)?;
            many.notifications += changed as u64;
            many.next = last.filter(|_| changed == PIECE);
            if until.is_some_and(|until| until.passed()) {
                break;
            }
        }
        Ok(many)
    }

    /// Changes one batch; returns the number of notifications in it, and the position of the last.
    fn piece(&self, database: &mut dyn Database, beyond: i64) -> Result<(usize, Option<i64>), DatabaseError> {
        let Self { doing, subscription, which, values, queue, change, newest_first } = *self;
        let (further, no_further, order) = if newest_first { ("<", ">=", "DESC") } else { (">", "<=", "ASC") };
        let id = Value::Uuid(subscription);
        let page = format!(
            "SELECT event FROM notifications WHERE subscription = ? AND event {further} ? AND {which} \
             ORDER BY event {order} LIMIT {PIECE}"
        );
        let events: Vec<i64> = database.query(doing, &page, &[&[id, Value::Integer(beyond)][..], values].concat())?;
        let Some(last) = events.last().copied() else { return Ok((0, None)) };
        let these =
            format!("{change} WHERE subscription = ? AND event {further} ? AND event {no_further} ? AND {which}");
        let of_these = [&[id, Value::Integer(beyond), Value::Integer(last)][..], values].concat();
        let of_queue = vec![id; queue.matches('?').count()];
        database.execute_together(doing, &[(queue, &of_queue), (&these, &of_these)])?;
        Ok((events.len(), Some(last)))
    }
}

/// A condition on notifications, and its values.
type Condition = (String, Vec<Value<'static>>);

/// Those that were given up, since a moment or at any time.
pub(crate) fn given_up_since(since: Option<i64>) -> Condition {
    match since {
        Some(since) => ("due_at IS NULL AND given_up_at >= ?".to_owned(), vec![Value::Moment(since)]),
        None => ("due_at IS NULL".to_owned(), Vec::new()),
    }
}

/// Those that are still to be sent, of one event or of events before a moment.
pub(crate) fn still_pending(event: Option<i64>, before: Option<i64>) -> Condition {
    let mut which = "due_at IS NOT NULL".to_owned();
    let mut values = Vec::new();
    if let Some(event) = event {
        which += " AND event = ?";
        values.push(Value::Integer(event));
    }
    if let Some(before) = before {
        which += " AND EXISTS (SELECT 1 FROM events e WHERE e.position = notifications.event AND e.created_at < ?)";
        values.push(Value::Moment(before));
    }
    (which, values)
}

/// How many notifications meet a condition, of one subscription or of all.
///
/// # Errors
/// If the database fails.
pub(crate) fn count_notifications(
    database: &mut dyn Database,
    subscription: Option<Uuid>,
    (mut which, mut values): Condition,
) -> Result<u64, DatabaseError> {
    if let Some(subscription) = subscription {
        which += " AND subscription = ?";
        values.push(Value::Uuid(subscription));
    }
    let sql = format!("SELECT count(*) FROM notifications WHERE {which}");
    Ok(database.query_number("counting notifications", &sql, &values)?.unsigned_abs())
}

/// How many events since a moment [`enqueue_range`] would queue for a subscription.
///
/// # Errors
/// If the database fails.
pub(crate) fn count_events(database: &mut dyn Database, subscription: Uuid, since: i64) -> Result<u64, DatabaseError> {
    let matching = matches(database.dialect(), "e.created_at >= ? AND s.id = ?");
    let values = [Value::Moment(since), Value::Uuid(subscription)].repeat(matching.matches("s.id = ?").count());
    let sql = format!("SELECT count(*) FROM ({matching}) m");
    Ok(database.query_number("counting events", &sql, &values)?.unsigned_abs())
}

/// Makes notifications that were given up due, and ends the pauses of their receivers. The notifications are those of one
/// subscription or of all, given up since this moment (microseconds since 1970) or at any time.
///
/// If the deadline passes, or a batch fails, the notifications changed so far stay due. A repeated call changes the others.
///
/// # Errors
/// If the database fails; the last batch may then be committed or not.
pub(crate) fn requeue_given_up(
    database: &mut dyn Database,
    subscription: Option<Uuid>,
    since: Option<i64>,
    until: Option<Deadline>,
) -> Result<Many, DatabaseError> {
    let (doing, now) = ("retrying what was given up", now(database.dialect()));
    let (which, values) = given_up_since(since);
    let subscriptions = match subscription {
        Some(subscription) => vec![subscription],
        None => {
            let id = database.dialect().uuid("subscription");
            let sql = format!("SELECT DISTINCT {id} FROM notifications WHERE {which} ORDER BY 1");
            database.query(doing, &sql, &values)?
        }
    };
    // The challenge to a new callback keeps its schedule, even if notifications wait for its answer.
    let queue = format!(
        "UPDATE subscription_queues SET due_at = {now}, paused_until = NULL WHERE subscription = ? \
         AND NOT EXISTS (SELECT 1 FROM subscriptions s WHERE s.id = ? AND s.state = 'unverified')"
    );
    let (mut all, change) = (Many::default(), format!("UPDATE notifications SET {}", due_again(now)));
    let (which, values, queue, change) = (&*which, &*values, &*queue, &*change);
    for subscription in subscriptions {
        let change = Change { doing, subscription, which, values, queue, change, newest_first: false };
        let many = change.make(database, BEGIN, until)?;
        all = Many { notifications: all.notifications + many.notifications, next: many.next };
        if many.next.is_some() {
            break;
        }
    }
    Ok(all)
}

/// Queues for a subscription the events that match it, are of this span of time, and are beyond this position. With
/// `only_given_up`, only those whose notifications were given up. If a batch fails, the notifications of earlier batches stay due.
///
/// # Errors
/// If the database fails; the last batch may then be committed or not.
pub(crate) fn enqueue_range(
    database: &mut dyn Database,
    subscription: Uuid,
    (since, before): (i64, i64),
    beyond: Option<i64>,
    only_given_up: bool,
    until: Option<Deadline>,
) -> Result<Many, DatabaseError> {
    let (dialect, now, doing) = (database.dialect(), now(database.dialect()), "sending again what happened");
    let span = "e.created_at >= ? AND e.created_at < ?";
    let moments = [Value::Moment(since), Value::Moment(before)];
    let id = Value::Uuid(subscription);
    let queue = super::history::wake(dialect, now);
    if only_given_up {
        let which = format!(
            "due_at IS NULL AND EXISTS (SELECT 1 FROM events e WHERE e.position = notifications.event AND {span})"
        );
        let again = format!("UPDATE notifications SET {}", due_again(now));
        let (which, values, queue, change) = (&*which, &moments[..], &*queue, &*again);
        let change = Change { doing, subscription, which, values, queue, change, newest_first: false };
        return change.make(database, beyond.unwrap_or(BEGIN), until);
    }
    // The count makes the planner use the index on the time. With min() alone, it would scan from the oldest event.
    let ends = format!("SELECT count(*), min(e.position), max(e.position) FROM events e WHERE {span}");
    let ends = database.query_first::<(u64, Option<i64>, Option<i64>)>(doing, &ends, &moments)?;
    let Some((_, Some(first), Some(last))) = ends else { return Ok(Many::default()) };
    let mut many = Many { notifications: 0, next: Some(beyond.unwrap_or(BEGIN).max(first.saturating_sub(1))) };
    let matching = matches(dialect, &format!("e.position > ? AND e.position <= ? AND {span} AND s.id = ?"));
    // `AS m` has the column names of the first of the joined queries. A test event is in the past, and belongs only to the
    // subscription that it names.
    let insert = format!(
        "INSERT INTO notifications (subscription, event, due_at) SELECT m.id, m.position, {now} FROM ({matching}) AS m {}",
        again(dialect, now)
    );
    while let Some(beyond) = many.next.filter(|beyond| *beyond < last) {
        let end = beyond.saturating_add(PIECE as i64);
        let of_one = [&[Value::Integer(beyond), Value::Integer(end)][..], &moments, &[id]].concat();
        let values = of_one.repeat(matching.matches("s.id = ?").count());
        let count = database.query_number(doing, &format!("SELECT count(*) FROM ({matching}) m"), &values)?;
        if count > 0 {
            database.execute_together(doing, &[(&queue, &[id]), (&insert, &values)])?;
        }
        many = Many { notifications: many.notifications + count.unsigned_abs(), next: Some(end) };
        if until.is_some_and(|until| until.passed()) {
            break;
        }
    }
    Ok(Many { next: many.next.filter(|beyond| *beyond < last), ..many })
}

/// How long a resumed subscription's notifications are made due, for which a client waits.
const RESUMING: Duration = Duration::from_secs(4);

/// Makes the failed notifications of a subscription due that wait for their next try: as many as a few seconds allow. The
/// others keep their time. None of them is in flight.
///
/// # Errors
/// If the database fails; the last batch may then be committed or not.
pub(in crate::ledger) fn end_waits(database: &mut dyn Database, subscription: Uuid) -> Result<(), DatabaseError> {
    let now = now(database.dialect());
    let change = Change {
        doing: "ending the waits of notifications",
        subscription,
        which: &format!("due_at > {now}"),
        values: &[],
        queue: "SELECT 1 FROM subscription_queues WHERE subscription = ? FOR UPDATE",
        change: &format!("UPDATE notifications SET due_at = {now}"),
        newest_first: false,
    };
    change.make(database, BEGIN, Some(Deadline::after(RESUMING))).map(drop)
}

/// The error recorded with a notification that was given up manually.
const MANUALLY: &str = "dropped manually";

/// Gives up undelivered notifications of a subscription, as if all tries had failed, and returns their number. The notifications
/// are the one of this event (a position), those of events before this moment (microseconds since 1970), or all.
///
/// A request in progress still counts: the receiver's response to it is recorded. The newest are given up first. So, with
/// `in_order`, the notifier meanwhile sends nothing that is about to be given up. If a batch fails, the notifications of earlier
/// batches stay given up, and a repeated call continues.
///
/// # Errors
/// If the database fails; the last batch may then be committed or not.
pub(crate) fn give_up(
    database: &mut dyn Database,
    subscription: Uuid,
    event: Option<i64>,
    before: Option<i64>,
) -> Result<u64, DatabaseError> {
    let now = now(database.dialect());
    let (which, values) = still_pending(event, before);
    // The next notification in order is due at once: it must not wait for the next try of the one given up. A pause of the
    // receiver stays.
    let queue = format!(
        "UPDATE subscription_queues SET due_at = CASE WHEN due_at IS NOT NULL \
         THEN GREATEST({now}, COALESCE(paused_until, {now})) END WHERE subscription = ?"
    );
    let change = format!(
        "UPDATE notifications SET due_at = NULL, given_up_at = {now}, last_status = NULL, last_error = '{MANUALLY}'"
    );
    let change = Change {
        doing: "dropping pending notifications",
        subscription,
        which: &which,
        values: &values,
        queue: &queue,
        change: &change,
        newest_first: true,
    };
    Ok(change.make(database, i64::MAX, None)?.notifications)
}

/// Whether a subscription has more notifications than may be removed in one transaction.
///
/// # Errors
/// If the database fails.
pub(in crate::ledger) fn is_large(database: &mut dyn Database, subscription: Uuid) -> Result<bool, DatabaseError> {
    let sql = format!("SELECT event FROM notifications WHERE subscription = ? ORDER BY event LIMIT 1 OFFSET {PIECE}");
    Ok(!database.select("counting notifications", &sql, &[Value::Uuid(subscription)])?.is_empty())
}

/// Removes a subscription's notifications, except those published meanwhile. Returns whether all were removed before
/// the deadline.
///
/// # Errors
/// If the database fails; the last batch may then be committed or not.
pub(in crate::ledger) fn remove(
    database: &mut dyn Database,
    subscription: Uuid,
    until: Option<Deadline>,
) -> Result<bool, DatabaseError> {
    let change = Change {
        doing: "removing pending notifications of a subscription",
        subscription,
        which: "1 = 1",
        values: &[],
        queue: "UPDATE subscription_queues SET due_at = NULL WHERE subscription = ?",
        change: "DELETE FROM notifications",
        newest_first: false,
    };
    Ok(change.make(database, BEGIN, until)?.next.is_none())
}
