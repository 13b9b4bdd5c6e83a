//! Walks through the attempts or the messages of a span of time, a page at a time, so that memory stays flat and no
//! statement takes long, whatever the tables have grown to.
//!
//! How the rows of a span of time are found is the engine's matter. A B-tree brings them in order, page after page:
//! attempts on MySQL, MariaDB and SQLite lie in the order of their UUIDs (version 7), messages have an index by time.
//! PostgreSQL has block range indexes, which bring all rows of a slice of time, unordered: there the slices are made as
//! wide as a page needs, by what the last one held, and each row is looked at about twice.

use crate::database::{Database, DatabaseError, Dialect, Row, Value};
use std::time::Duration;
use uuid::Uuid;

/// How far the clocks of hosts, which the UUIDs of attempts come from, may be from the database's, in microseconds.
const CLOCKS_DIFFER: i64 = 3_600_000_000;

/// Of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// Rows of `attempts`, as `a`, that began in the span.
    Attempts,
    /// Rows of `messages`, as `m`, that were recorded in the span.
    Messages,
}

/// A walk.
pub(super) struct Pages {
    of: Of,
    /// Microseconds since 1970: from this one on,
    from: i64,
    /// and before this one.
    until: i64,
    /// How wide the next slice is, in microseconds.
    width: i64,
    limit: usize,
    /// The last row, where the next page goes on after it.
    last: Option<Last>,
    over: bool,
}

#[derive(Clone, Copy)]
enum Last {
    Attempt { began: i64, attempt: Uuid, copy_key: [u8; 32] },
    Message { recorded: i64, id: i64 },
}

/// A page: first come the walk's own columns, then those that were asked for.
pub(super) struct Page {
    pub(super) rows: Vec<Row>,
    /// The first column that was asked for.
    pub(super) first: usize,
}

impl Pages {
    /// From `from` up to, not including, `until`, both in microseconds since 1970.
    pub(super) fn new(of: Of, from: i64, until: i64, limit: usize) -> Self {
        let from = from.max(0);
        Self { of, from, until, width: until.saturating_sub(from).max(1), limit, last: None, over: false }
    }

    /// The next rows that meet `condition`; `None` at the end. `columns` and `condition` are SQL, `asked` the values in the
    /// condition's places.
    pub(super) fn next(
        &mut self,
        database: &mut dyn Database,
        columns: &str,
        condition: &str,
        asked: &[Value<'_>],
    ) -> Result<Option<Page>, DatabaseError> {
        let dialect = database.dialect();
        let by_uuid = self.of == Of::Attempts && dialect != Dialect::Postgresql;
        while !self.over && self.from < self.until {
            let end = if by_uuid { self.until } else { self.from.saturating_add(self.width).min(self.until) };
            let (table, time, order, own) = match self.of {
                Of::Attempts if by_uuid => ("attempts a", "a.started_at", "a.attempt, a.copy_key", 3),
                Of::Attempts => ("attempts a", "a.started_at", "a.started_at, a.attempt, a.copy_key", 3),
                Of::Messages => ("messages m", "m.recorded_at", "m.recorded_at, m.id", 2),
            };
            let mut keys = vec![dialect.microseconds(time)];
            match self.of {
                Of::Attempts => keys.extend([dialect.uuid("a.attempt"), dialect.hex("a.copy_key")]),
                Of::Messages => keys.push("m.id".into()),
            }
            let mut bounds = vec![format!("{time} >= ? AND {time} < ?")];
            let mut values = vec![Value::Moment(self.from), Value::Moment(end)];
            if by_uuid {
                let first = match self.last {
                    Some(Last::Attempt { attempt, .. }) => attempt,
                    _ => first_uuid_of(self.from.saturating_sub(CLOCKS_DIFFER)),
                };
                bounds.push("a.attempt >= ? AND a.attempt < ?".into());
                values
                    .extend([Value::Uuid(first), Value::Uuid(first_uuid_of(self.until.saturating_add(CLOCKS_DIFFER)))]);
            }
            match &self.last {
                Some(Last::Attempt { attempt, copy_key, .. }) if by_uuid => {
                    bounds.push("(a.attempt > ? OR (a.attempt = ? AND a.copy_key > ?))".into());
                    values.extend([Value::Uuid(*attempt), Value::Uuid(*attempt), Value::Bytes(copy_key)]);
                }
                Some(Last::Attempt { began, attempt, copy_key }) => {
                    bounds.push("(a.started_at, a.attempt, a.copy_key) > (?, ?, ?)".into());
                    values.extend([Value::Moment(*began), Value::Uuid(*attempt), Value::Bytes(copy_key)]);
                }
                Some(Last::Message { recorded, id }) => {
                    bounds.push("(m.recorded_at > ? OR (m.recorded_at = ? AND m.id > ?))".into());
                    values.extend([Value::Moment(*recorded), Value::Moment(*recorded), Value::Integer(*id)]);
                }
                None => {}
            }
            values.extend_from_slice(asked);
            let sql = format!(
                "SELECT {}, {columns} FROM {table} WHERE {} AND ({condition}) ORDER BY {order} LIMIT {}",
                keys.join(", "),
                bounds.join(" AND "),
                self.limit
            );
            let rows = database.select("reading the ledger", &sql, &values)?;
            self.go_on(&rows, by_uuid, end)?;
            if !rows.is_empty() {
                return Ok(Some(Page { rows, first: own }));
            }
        }
        Ok(None)
    }

    /// Where the next page begins.
    fn go_on(&mut self, rows: &[Row], by_uuid: bool, end: i64) -> Result<(), DatabaseError> {
        let full = rows.len() >= self.limit;
        match rows {
            [first, .., last] | [first @ last] if full => {
                let time = |row: &Row| row.value::<i64>(0).map(Option::unwrap_or_default);
                let (began, ended) = (time(first)?, time(last)?);
                self.last = Some(match self.of {
                    Of::Attempts => Last::Attempt {
                        began: ended,
                        attempt: Uuid::from_bytes(last.digest(1)?),
                        copy_key: last.digest(2)?,
                    },
                    Of::Messages => Last::Message { recorded: ended, id: last.value(1)?.unwrap_or_default() },
                });
                if !by_uuid {
                    self.from = ended;
                    self.width = ended.saturating_sub(began).max(1000);
                }
            }
            _ => {
                self.over = by_uuid || end >= self.until;
                self.from = end;
                self.last = None;
                self.width = self.width.saturating_mul(2);
            }
        }
        Ok(())
    }
}

/// The lowest UUID of version 7 that begins with this moment (RFC 9562 section 5.7: milliseconds in its first 48 bits).
pub(super) fn first_uuid_of(microseconds: i64) -> Uuid {
    let milliseconds = u64::try_from(microseconds / 1000).unwrap_or(0).min((1 << 48) - 1);
    Uuid::from_u128(u128::from(milliseconds) << 80)
}

/// What finds the attempts since a moment, as SQL with its values.
pub(super) fn attempts_since(dialect: Dialect, since: i64) -> (&'static str, Vec<Value<'static>>) {
    if dialect == Dialect::Postgresql {
        return ("a.started_at >= ?", vec![Value::Moment(since)]);
    }
    let first = first_uuid_of(since.saturating_sub(CLOCKS_DIFFER));
    ("a.started_at >= ? AND a.attempt >= ?", vec![Value::Moment(since), Value::Uuid(first)])
}

/// What finds the attempts before a moment, as SQL with its values.
pub(super) fn attempts_before(dialect: Dialect, before: i64) -> (&'static str, Vec<Value<'static>>) {
    if dialect == Dialect::Postgresql {
        return ("a.started_at < ?", vec![Value::Moment(before)]);
    }
    let beyond = first_uuid_of(before.saturating_add(CLOCKS_DIFFER));
    ("a.started_at < ? AND a.attempt < ?", vec![Value::Moment(before), Value::Uuid(beyond)])
}

/// What finds again the attempts that a page of them covers, as SQL with its values.
pub(super) fn attempts_of(
    dialect: Dialect,
    page: &Page,
) -> Result<Option<(&'static str, [Value<'static>; 2])>, DatabaseError> {
    let ([first, .., last] | [first @ last]) = page.rows.as_slice() else { return Ok(None) };
    Ok(Some(if dialect == Dialect::Postgresql {
        let time = |row: &Row| row.value(0).map(Option::unwrap_or_default).map(Value::Moment);
        ("started_at >= ? AND started_at <= ?", [time(first)?, time(last)?])
    } else {
        let attempt = |row: &Row| row.digest(1).map(|bytes| Value::Uuid(Uuid::from_bytes(bytes)));
        ("attempt >= ? AND attempt <= ?", [attempt(first)?, attempt(last)?])
    }))
}

/// The present moment by the database's clock, in microseconds since 1970.
pub(super) fn now(database: &mut dyn Database) -> Result<i64, DatabaseError> {
    let dialect = database.dialect();
    let rows =
        database.select("asking for the time", &format!("SELECT {}", dialect.microseconds(dialect.now())), &[])?;
    Ok(rows.first().map(|row| row.value(0)).transpose()?.flatten().unwrap_or_default())
}

/// A span of time in microseconds.
pub(super) fn microseconds(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_of_a_moment_is_below_those_made_in_it() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let first = first_uuid_of(microseconds(now));
        let made = Uuid::now_v7();
        assert!(first <= made && made < first_uuid_of(microseconds(now) + 60_000_000));
        assert_eq!(first_uuid_of(-5), Uuid::nil());
    }
}
