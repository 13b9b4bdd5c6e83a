//! Reads the attempts at sending the events of a span of time. Pages keep memory use constant, and no statement takes long.
//!
//! The attempts are found by their events, which have an index on their time: the key of an attempt begins with its event. An index on
//! the attempts' own time would cost a write for each attempt.

use super::if_readable;
use crate::database::{DatabaseError, Query, Value};
use crate::ledger::Database;
use uuid::Uuid;

/// How many attempts are read at once.
const PAGE: usize = 10_000;

/// One attempt at sending a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttemptTiming {
    /// The event's position.
    pub(crate) event: i64,
    pub(crate) subscription: Uuid,
    /// How long after its event the attempt began, in microseconds. Two clocks measure the two times, so it may be negative.
    pub(crate) after: i64,
    /// The HTTP status of the response, if there was one.
    pub(crate) status: Option<u16>,
}

/// Reads the attempts for events committed from `from` until before `until`, in microseconds since 1970, ordered by event,
/// subscription and time.
///
/// Returns `false` if there are no subscribers, as on an embedded site. Also if the tables do not exist yet, or if our role may
/// not read them.
///
/// # Errors
/// If the database does not answer.
pub(crate) fn each_page_of_attempts(
    database: &mut dyn Database,
    (from, until): (i64, i64),
    mut take: impl FnMut(Vec<AttemptTiming>),
) -> Result<bool, DatabaseError> {
    let moments = [Value::Moment(from), Value::Moment(until)];
    let doing = "reading the attempts at notifying subscribers";
    // Without `+ 0`, PostgreSQL would scan the index on the position, and read all older events.
    let ends = "SELECT min(position + 0), max(position + 0) FROM events WHERE created_at >= ? AND created_at < ?";
    let tables = "events notification_attempts";
    let Some(ends) = if_readable(database, tables, |database| database.query_first(doing, ends, &moments))? else {
        return Ok(false);
    };
    let Some((Some(first), Some(last))): Option<(Option<i64>, Option<i64>)> = ends else { return Ok(true) };
    let dialect = database.dialect();
    let sql = |beyond: &str| {
        format!(
            "SELECT a.event, {}, {}, {}, a.status FROM notification_attempts a JOIN events e ON e.position = a.event \
             WHERE a.event >= ? AND a.event <= ? AND e.created_at >= ? AND e.created_at < ? {beyond} \
             ORDER BY a.event, a.subscription, a.started_at LIMIT {PAGE}",
            dialect.uuid("a.subscription"),
            dialect.microseconds("a.started_at"),
            dialect.microseconds("e.created_at"),
        )
    };
    let (begin, go_on) = (sql(""), sql("AND (a.event, a.subscription, a.started_at) > (?, ?, ?)"));
    let mut before: Option<(i64, Uuid, i64)> = None;
    loop {
        let mut values = vec![Value::Integer(before.map_or(first, |(event, ..)| event)), Value::Integer(last)];
        values.extend(moments);
        if let Some((event, subscription, started)) = before {
            values.extend([Value::Integer(event), Value::Uuid(subscription), Value::Moment(started)]);
        }
        let sql = if before.is_some() { &go_on } else { &begin };
        let rows: Vec<(i64, Uuid, i64, i64, Option<u16>)> = database.query(doing, sql, &values)?;
        before = rows.last().map(|(event, subscription, started, ..)| (*event, *subscription, *started));
        let is_last = rows.len() < PAGE;
        let attempts = rows.into_iter().map(|(event, subscription, started, happened, status)| AttemptTiming {
            event,
            subscription,
            after: started.saturating_sub(happened),
            status,
        });
        take(attempts.collect());
        if is_last {
            return Ok(true);
        }
    }
}
