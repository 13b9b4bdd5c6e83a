//! Reads the attempts or the messages of a span of time in pages, so that memory stays flat and no answer is long, however large the
//! tables are. Each engine has a B-tree on their time, which is the database's own: the next page begins behind the last row.

use super::{Database, columns};
use crate::database::{DatabaseError, Row, Tables, Value};
use std::time::Duration;
use uuid::Uuid;

/// The table that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    /// Rows of `attempts`, as `a`, that began in the span.
    Attempts,
    /// Rows of `messages`, as `m`, that were recorded in the span.
    Messages,
}

/// A walk through the rows of a span of time, half open.
pub(super) struct Pages {
    table: Table,
    /// In microseconds since 1970, as the end.
    from: i64,
    until: i64,
    limit: usize,
    /// The last row, if the next page begins after it.
    last: Option<Last>,
}

#[derive(Clone, Copy)]
enum Last {
    Attempt { attempt: Uuid, copy_key: [u8; 32] },
    Message { id: i64 },
}

/// A page: first the columns by which the next page is found, then those that were asked for.
pub(super) struct Page {
    pub(super) rows: Vec<Row>,
    /// The first column that was asked for.
    pub(super) first: usize,
}

impl Pages {
    /// From `from` up to, not including, `until`, both in microseconds since 1970.
    pub(super) fn new(table: Table, from: i64, until: i64, limit: usize) -> Self {
        Self { table, from: from.max(0), until, limit, last: None }
    }

    /// The next rows that meet `condition`, whose values are `asked`; `None` at the end.
    pub(super) fn next(
        &mut self,
        database: &mut dyn Tables,
        columns: &str,
        condition: &str,
        asked: &[Value<'_>],
    ) -> Result<Option<Page>, DatabaseError> {
        if self.from >= self.until {
            return Ok(None);
        }
        let dialect = database.dialect();
        let (from_table, time, order) = match self.table {
            Table::Attempts => ("attempts a", "a.started_at", "a.started_at, a.attempt, a.copy_key"),
            Table::Messages => ("messages m", "m.recorded_at", "m.recorded_at, m.id"),
        };
        let moment = dialect.microseconds(time);
        let keys = match self.table {
            Table::Attempts => vec![moment, dialect.uuid("a.attempt"), dialect.hex("a.copy_key")],
            Table::Messages => vec![moment, "m.id".into()],
        };
        // By itself a comparison of rows finds no place in an index of MySQL's: the time is compared first.
        let mut values = vec![Value::Moment(self.from), Value::Moment(self.until)];
        let behind = match &self.last {
            Some(Last::Attempt { attempt, copy_key }) => {
                values.extend([Value::Moment(self.from), Value::Uuid(*attempt), Value::Bytes(copy_key)]);
                " AND (a.started_at, a.attempt, a.copy_key) > (?, ?, ?)"
            }
            Some(Last::Message { id }) => {
                values.extend([Value::Moment(self.from), Value::Integer(*id)]);
                " AND (m.recorded_at, m.id) > (?, ?)"
            }
            None => "",
        };
        values.extend_from_slice(asked);
        let sql = format!(
            "SELECT {}, {columns} FROM {from_table} WHERE {time} >= ? AND {time} < ?{behind} AND ({condition}) \
             ORDER BY {order} LIMIT {}",
            keys.join(", "),
            self.limit
        );
        let rows = database.select("reading the ledger", &sql, &values)?;
        self.go_on(&rows)?;
        Ok((!rows.is_empty()).then_some(Page { rows, first: keys.len() }))
    }

    /// Where the next page begins.
    fn go_on(&mut self, rows: &[Row]) -> Result<(), DatabaseError> {
        match rows.last().filter(|_| rows.len() >= self.limit) {
            Some(last) => {
                self.from = last.value(0)?.unwrap_or_default();
                self.last = Some(match self.table {
                    Table::Attempts => {
                        Last::Attempt { attempt: Uuid::from_bytes(last.digest(1)?), copy_key: last.digest(2)? }
                    }
                    Table::Messages => Last::Message { id: last.value(1)?.unwrap_or_default() },
                });
            }
            None => self.from = self.until,
        }
        Ok(())
    }
}

/// When the first row of a page was made, and the last one, in microseconds since 1970.
pub(super) fn ends(page: &Page) -> Result<Option<[i64; 2]>, DatabaseError> {
    let ([first, .., last] | [first @ last]) = page.rows.as_slice() else { return Ok(None) };
    Ok(Some([columns::number(first, 0)?, columns::number(last, 0)?]))
}

/// The present moment by the database's clock, in microseconds since 1970.
pub fn now(database: &mut dyn Database) -> Result<i64, DatabaseError> {
    let dialect = database.dialect();
    let rows =
        database.select("asking for the time", &format!("SELECT {}", dialect.microseconds(dialect.now())), &[])?;
    columns::only_number(&rows)
}

/// A span of time in microseconds.
pub fn microseconds(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// The lowest UUID of version 7 of this moment: its milliseconds, and zeros (RFC 9562 section 5.7). For a moment that it cannot
/// hold, the nearest.
#[cfg(test)]
pub(crate) fn first_uuid_of(microseconds: i64) -> Uuid {
    let milliseconds = u128::try_from(microseconds / 1000).unwrap_or(0).min((1 << 48) - 1);
    Uuid::from_u128(milliseconds << 80)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::database::{Client, SqliteDatabase, Tables};

    #[test]
    fn a_moment_names_the_first_attempt_that_could_have_begun_then() {
        let now = Uuid::now_v7();
        let microseconds = i64::try_from(now.as_u128() >> 80).unwrap() * 1000;
        assert!(first_uuid_of(microseconds) < now);
        assert!(first_uuid_of(microseconds + 1000) > now);
        assert_eq!(first_uuid_of(-5), Uuid::nil());
        assert_eq!(first_uuid_of(i64::MAX), Uuid::from_u128(((1 << 48) - 1) << 80));
    }

    /// A moment in 2026, and a minute.
    const THEN: i64 = 1_790_000_000_000_000;
    const MINUTE: i64 = 60_000_000;

    fn database() -> (tempfile::TempDir, SqliteDatabase) {
        let directory = tempfile::tempdir().unwrap();
        let client = Client { host: "mx1".into(), pid: 1, queue_id: None };
        let deadline = Deadline::after(Duration::from_secs(120));
        let database = crate::ledger::schema::open_embedded(directory.path(), &client, deadline).unwrap();
        (directory, database)
    }

    /// What a walk meets, in its order, and how many rows its longest page had.
    fn met(database: &mut dyn Tables, of: Table, until: i64, limit: usize, column: &str) -> (Vec<i64>, usize) {
        let (mut pages, mut met, mut longest) = (Pages::new(of, THEN, until, limit), Vec::new(), 0);
        while let Some(page) = pages.next(database, column, "pid <> ?", &[Value::Integer(0)]).unwrap() {
            longest = longest.max(page.rows.len());
            met.extend(page.rows.iter().map(|row| row.value::<i64>(page.first).unwrap().unwrap()));
        }
        (met, longest)
    }

    #[test]
    fn each_attempt_of_a_span_is_met_once_however_short_the_pages() {
        let (_directory, mut database) = database();
        let sql = "INSERT INTO attempts (attempt, copy_key, role, imap_user, mailbox, identity, lock_digest, message_id, \
                   recipient, host, pid, started_at) \
                   VALUES (?, ?, 'recipient', 'lisa', 'INBOX', ?, ?, 'x', 'lisa@x', 'mx1', ?, ?)";
        let mut fill = |pid: i64, copy: u8, named: i64, began: i64| {
            // Keys begin with a day.
            let (attempt, keys) = (first_uuid_of(named), [[[0; 16], [copy; 16]].concat(), vec![7; 32]]);
            let values = [
                Value::Uuid(attempt),
                Value::Bytes(&keys[0]),
                Value::Bytes(&keys[1]),
                Value::Bytes(&keys[1]),
                Value::Integer(pid),
                Value::Moment(began),
            ];
            database.change("filling", sql, &values).unwrap();
        };
        // Two copies each, and hosts whose clocks differ: in the order of their names the times go up and down.
        for pid in 0..20 {
            let skew = if pid % 2 == 0 { 30 * MINUTE } else { -30 * MINUTE };
            for copy in 0..2 {
                fill(pid, copy, THEN + pid * MINUTE + skew, THEN + pid * MINUTE);
            }
        }
        fill(77, 0, THEN + 1000, THEN - 1);
        fill(78, 0, THEN + 2000, THEN + 20 * MINUTE);
        // The clock of this host is hours ahead.
        fill(79, 0, THEN + 180 * MINUTE, THEN);
        let expected: Vec<i64> = [79].into_iter().chain((1..20).flat_map(|pid| [pid, pid])).collect();
        for limit in [1, 2, 3, 5, 7, 38, 39, 40, 100] {
            let (met, longest) = met(&mut database, Table::Attempts, THEN + 20 * MINUTE, limit, "a.pid");
            assert_eq!((met, longest), (expected.clone(), limit.min(39)), "{limit}");
        }
    }

    #[test]
    fn each_message_of_a_span_is_met_once_in_the_order_of_time() {
        let (_directory, mut database) = database();
        let sql = "INSERT INTO messages (id, identity, lock_digest, message_id, content_digest, sender, headers, size, \
                   recorded_at) VALUES (?, ?, ?, 'x', ?, '', '[]', 1, ?)";
        let mut fill = |id: i64, at: i64| {
            let (identity, other) = ([u8::try_from(id).unwrap(); 32], [7; 32]);
            let (identity, other) = (Value::Bytes(&identity), Value::Bytes(&other));
            let values = [Value::Integer(id), identity, other, other, Value::Moment(at)];
            database.change("filling", sql, &values).unwrap();
        };
        // Some at one moment, some far from the others.
        for id in 0..30 {
            fill(id, THEN + id / 4 * MINUTE);
        }
        for id in 30..35 {
            fill(id, THEN + id * 600 * MINUTE);
        }
        fill(90, THEN - 1);
        fill(91, THEN + 40 * 600 * MINUTE);
        let expected: Vec<i64> = (0..35).collect();
        for limit in [1, 2, 3, 4, 5, 34, 35, 36] {
            let met = |database: &mut SqliteDatabase, until: i64| {
                let (mut pages, mut met) = (Pages::new(Table::Messages, THEN, until, limit), Vec::new());
                while let Some(page) = pages.next(database, "m.size", "m.size = ?", &[Value::Integer(1)]).unwrap() {
                    assert!(page.rows.len() <= limit);
                    met.extend(page.rows.iter().map(|row| row.value::<i64>(1).unwrap().unwrap()));
                    assert!(page.rows.iter().all(|row| row.value::<i64>(page.first).unwrap() == Some(1)));
                }
                met
            };
            assert_eq!(met(&mut database, THEN + 40 * 600 * MINUTE), expected, "{limit}");
            assert!(met(&mut database, THEN).is_empty(), "{limit}");
        }
    }
}
