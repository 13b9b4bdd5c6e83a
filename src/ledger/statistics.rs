//! What `stats` counts: attempts of a span of time, messages recorded in it, copies that are owed now.

use super::time_span::{Pages, Table};
use super::{Database, Outcome, columns};
use crate::database::{DatabaseError, Value};
use crate::message::Role;
use uuid::Uuid;

/// Rows of a page. The rows of one attempt lie in one page, or in two pages after each other.
const PAGE: usize = 4000;

/// An attempt's part in one copy.
pub(crate) struct TriedCopy {
    pub(crate) attempt: Uuid,
    pub(crate) role: Role,
    /// `None` where it has not ended.
    pub(crate) outcome: Option<Outcome>,
    /// How long the stages of the whole attempt took; see `stage_times::read`.
    pub(crate) stages: Option<String>,
}

/// Calls `see` for each page of what was tried from `from` up to, not including, `until`, in microseconds since 1970.
pub(crate) fn each_page_of_attempts(
    database: &mut dyn Database,
    from: i64,
    until: i64,
    mut see: impl FnMut(Vec<TriedCopy>),
) -> Result<(), DatabaseError> {
    let mut pages = Pages::new(Table::Attempts, from, until, PAGE);
    let asked = "a.role, CASE WHEN a.ended_at IS NULL THEN 0 ELSE 1 END, a.outcome, a.stages";
    while let Some(page) = pages.next(database, asked, "1 = 1", &[])? {
        let first = page.first;
        let tried = page.rows.iter().map(|row| {
            let ended = columns::number::<u8>(row, first + 1)? == 1;
            Ok(TriedCopy {
                attempt: Uuid::from_bytes(row.digest(1)?),
                role: columns::role(row, first)?,
                outcome: ended.then(|| columns::outcome(row, first + 2)),
                stages: columns::optional(row, first + 3),
            })
        });
        see(tried.collect::<Result<_, DatabaseError>>()?);
    }
    Ok(())
}

/// How many messages were recorded from a moment up to, not including, another, and their bytes.
pub(crate) fn recorded_messages(
    database: &mut dyn Database,
    from: i64,
    until: i64,
) -> Result<(u64, u64), DatabaseError> {
    let sql = "SELECT count(*), coalesce(sum(size), 0) FROM messages WHERE recorded_at >= ? AND recorded_at < ?";
    let rows = database.select("counting messages", sql, &[Value::Moment(from), Value::Moment(until)])?;
    rows.first().map_or(Ok((0, 0)), |row| Ok((columns::number(row, 0)?, columns::number(row, 1)?)))
}

/// How many copies are owed that were last tried before a moment.
pub(crate) fn owed_copies(database: &mut dyn Database, before: Option<i64>) -> Result<u64, DatabaseError> {
    let (condition, values) = match before {
        None => ("", vec![]),
        Some(before) => (" AND updated_at < ?", vec![Value::Moment(before)]),
    };
    let sql = format!("SELECT count(*) FROM copies WHERE state = 'owed'{condition}");
    columns::only_number(&database.select("counting what is owed", &sql, &values)?)
}
