//! What `stats` counts: attempts of a span of time, messages recorded in it, copies that are owed now.

use super::time_span::{AttemptCursor, Pages};
use super::{Database, Outcome};
use crate::database::{DatabaseError, Query, Value};
use crate::message::Role;
use uuid::Uuid;

/// Rows of a page. The rows of one attempt are in one page, or in two consecutive ones.
const PAGE: usize = 4000;

/// An attempt's part in one copy.
pub(crate) struct TriedCopy {
    pub(crate) attempt: Uuid,
    pub(crate) role: Role,
    /// `None` if it has not ended.
    pub(crate) outcome: Option<Outcome>,
    /// How long the stages of the whole attempt took; see `stage_times::read`.
    pub(crate) stages: Option<String>,
}

/// Calls `see` for each page of attempts from `from` up to, not including, `until`, in microseconds since 1970.
pub(crate) fn each_page_of_attempts(
    database: &mut dyn Database,
    from: i64,
    until: i64,
    mut see: impl FnMut(Vec<TriedCopy>),
) -> Result<(), DatabaseError> {
    let mut pages = Pages::new(from, until, PAGE);
    while let Some(page) = pages.next(database, "a.role, a.outcome, a.stages", "1 = 1", &[])? {
        let tried =
            |(AttemptCursor { attempt, .. }, (role, outcome, stages))| TriedCopy { attempt, role, outcome, stages };
        see(page.into_iter().map(tried).collect());
    }
    Ok(())
}

/// How many messages were recorded from a time up to, not including, another, and their bytes.
pub(crate) fn recorded_messages(
    database: &mut dyn Database,
    from: i64,
    until: i64,
) -> Result<(u64, u64), DatabaseError> {
    let sql = "SELECT count(*), coalesce(sum(size), 0) FROM messages WHERE recorded_at >= ? AND recorded_at < ?";
    let counted = database.query_first("counting messages", sql, &[Value::Moment(from), Value::Moment(until)])?;
    Ok(counted.unwrap_or_default())
}

/// How many owed copies were last tried before a time.
pub(crate) fn owed_copies(database: &mut dyn Database, before: Option<i64>) -> Result<u64, DatabaseError> {
    let (condition, values) = match before {
        None => ("", vec![]),
        Some(before) => (" AND updated_at < ?", vec![Value::Moment(before)]),
    };
    let sql = format!("SELECT count(*) FROM copies WHERE state = 'owed'{condition}");
    Ok(database.query_number("counting what is owed", &sql, &values)?.unsigned_abs())
}
