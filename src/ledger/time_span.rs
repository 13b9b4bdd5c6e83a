//! Reads the attempts or the messages of a span of time in pages, so that memory stays flat and no statement takes long, however
//! large the tables are.
//!
//! On MySQL, MariaDB and SQLite a B-tree has the rows in order: attempts by their UUIDs (version 7), messages by an index on their
//! time. PostgreSQL has a block range index on the time of messages, which finds all rows of a slice of time, unordered: each
//! slice is made about as wide as a page needs, by what the last one held, and each row is read about twice. Attempts are read
//! in the same way there.

use super::{Database, columns};
use crate::database::{DatabaseError, Dialect, Row, Value};
use std::time::Duration;
use uuid::Uuid;

/// How far the clocks of hosts, which make the UUIDs of attempts, may be from the database's, in microseconds.
pub(super) const CLOCKS_DIFFER: i64 = 3_600_000_000;

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
    /// How wide the next slice is, in microseconds.
    width: i64,
    limit: usize,
    /// The last row, if the next page begins after it.
    last: Option<Last>,
}

#[derive(Clone, Copy)]
enum Last {
    Attempt { began: i64, attempt: Uuid, copy_key: [u8; 32] },
    Message { recorded: i64, id: i64 },
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
        let from = from.max(0);
        Self { table, from, until, width: until.saturating_sub(from).max(1), limit, last: None }
    }

    /// The next rows that meet `condition`, whose values are `asked`; `None` at the end.
    pub(super) fn next(
        &mut self,
        database: &mut dyn Database,
        columns: &str,
        condition: &str,
        asked: &[Value<'_>],
    ) -> Result<Option<Page>, DatabaseError> {
        let dialect = database.dialect();
        let by_uuid = self.table == Table::Attempts && dialect != Dialect::Postgresql;
        while self.from < self.until {
            let end = if by_uuid { self.until } else { self.from.saturating_add(self.width).min(self.until) };
            let (from_table, time, order) = match self.table {
                Table::Attempts if by_uuid => ("attempts a", "a.started_at", "a.attempt, a.copy_key"),
                Table::Attempts => ("attempts a", "a.started_at", "a.started_at, a.attempt, a.copy_key"),
                Table::Messages => ("messages m", "m.recorded_at", "m.recorded_at, m.id"),
            };
            let moment = dialect.microseconds(time);
            let keys = match self.table {
                Table::Attempts => vec![moment, dialect.uuid("a.attempt"), dialect.hex("a.copy_key")],
                Table::Messages => vec![moment, "m.id".into()],
            };
            let mut bounds = vec![format!("{time} >= ? AND {time} < ?")];
            let mut values = vec![Value::Moment(self.from), Value::Moment(end)];
            if by_uuid {
                let first = match self.last {
                    Some(Last::Attempt { attempt, .. }) => attempt,
                    _ => first_uuid_of(self.from.saturating_sub(CLOCKS_DIFFER)),
                };
                let beyond = first_uuid_of(self.until.saturating_add(CLOCKS_DIFFER));
                bounds.push("a.attempt >= ? AND a.attempt < ?".into());
                values.extend([Value::Uuid(first), Value::Uuid(beyond)]);
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
                "SELECT {}, {columns} FROM {from_table} WHERE {} AND ({condition}) ORDER BY {order} LIMIT {}",
                keys.join(", "),
                bounds.join(" AND "),
                self.limit
            );
            let rows = database.select("reading the ledger", &sql, &values)?;
            self.go_on(&rows, by_uuid, end)?;
            if !rows.is_empty() {
                return Ok(Some(Page { rows, first: keys.len() }));
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
                self.last = Some(match self.table {
                    Table::Attempts => Last::Attempt {
                        began: ended,
                        attempt: Uuid::from_bytes(last.digest(1)?),
                        copy_key: last.digest(2)?,
                    },
                    Table::Messages => Last::Message { recorded: ended, id: last.value(1)?.unwrap_or_default() },
                });
                if !by_uuid {
                    self.from = ended;
                    self.width = ended.saturating_sub(began).max(1000);
                }
            }
            _ => {
                // The end of all where it is the end of the span.
                self.from = end;
                self.last = None;
                self.width = self.width.saturating_mul(2);
            }
        }
        Ok(())
    }
}

/// What finds the attempts since a moment, as SQL with its values.
pub(super) fn attempts_since(dialect: Dialect, since: i64) -> (&'static str, Vec<Value<'static>>) {
    attempts_since_by(dialect, since, CLOCKS_DIFFER)
}

/// The same, where hosts' clocks are believed to be so far at most from the database's, in microseconds.
pub(super) fn attempts_since_by(dialect: Dialect, since: i64, differ: i64) -> (&'static str, Vec<Value<'static>>) {
    if dialect == Dialect::Postgresql {
        return ("a.started_at >= ?", vec![Value::Moment(since)]);
    }
    let first = first_uuid_of(since.saturating_sub(differ));
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

/// What finds the attempts whose UUIDs were made from a moment up to, not including, another one, as SQL with its values: for engines
/// that have them in that order. Their hosts' clocks made the UUIDs, up to [`CLOCKS_DIFFER`] from the database's.
pub(super) fn attempts_named(since: i64, before: i64) -> (&'static str, Vec<Value<'static>>) {
    ("a.attempt >= ? AND a.attempt < ?", [since, before].map(|moment| Value::Uuid(first_uuid_of(moment))).to_vec())
}

/// What finds again the attempts of a page, as SQL with its values.
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

    #[test]
    fn attempts_are_found_by_their_beginning_and_where_names_are_in_the_order_of_time_by_these_too() {
        let (since, before) = (THEN, THEN + 60 * MINUTE);
        let uuid = |microseconds| format!("Uuid({:?})", first_uuid_of(microseconds));
        let told = |(sql, values): (&str, Vec<Value<'_>>)| (sql.to_owned(), format!("{values:?}"));
        for dialect in [Dialect::Mysql, Dialect::Mariadb, Dialect::Sqlite] {
            let (sql, values) = told(attempts_since_by(dialect, since, MINUTE));
            assert_eq!(sql, "a.started_at >= ? AND a.attempt >= ?");
            assert_eq!(values, format!("[Moment({since}), {}]", uuid(since - MINUTE)));
            let (sql, values) = told(attempts_before(dialect, before));
            assert_eq!(sql, "a.started_at < ? AND a.attempt < ?");
            assert_eq!(values, format!("[Moment({before}), {}]", uuid(before + CLOCKS_DIFFER)));
        }
        // There, another index has them in the order of time.
        let of_postgresql = told(attempts_since_by(Dialect::Postgresql, since, MINUTE));
        assert_eq!(of_postgresql, ("a.started_at >= ?".into(), format!("[Moment({since})]")));
        let of_postgresql = told(attempts_before(Dialect::Postgresql, before));
        assert_eq!(of_postgresql, ("a.started_at < ?".into(), format!("[Moment({before})]")));
        let (sql, values) = told(attempts_named(since, before));
        assert_eq!(sql, "a.attempt >= ? AND a.attempt < ?");
        assert_eq!(values, format!("[{}, {}]", uuid(since), uuid(before)));
    }

    /// A moment in 2026, and a minute.
    const THEN: i64 = 1_790_000_000_000_000;
    const MINUTE: i64 = 60_000_000;

    fn database() -> (tempfile::TempDir, SqliteDatabase) {
        let directory = tempfile::tempdir().unwrap();
        let client = Client { host: "mx1".into(), pid: 1, queue_id: None };
        let deadline = Deadline::after(Duration::from_secs(120));
        let database = crate::schema::open_embedded(directory.path(), &client, deadline).unwrap();
        (directory, database)
    }

    /// What a walk meets, in its order, and how many rows its longest page had.
    fn met(database: &mut SqliteDatabase, of: Table, until: i64, limit: usize, column: &str) -> (Vec<i64>, usize) {
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
        // It is found by its name: the clock of this host is further off than any may be.
        fill(79, 0, THEN + 180 * MINUTE, THEN);
        let expected: Vec<i64> = (1..20).flat_map(|pid| [pid, pid]).collect();
        for limit in [1, 2, 3, 7, 37, 38, 39, 100] {
            let (mut met, longest) = met(&mut database, Table::Attempts, THEN + 20 * MINUTE, limit, "a.pid");
            met.sort_unstable();
            assert_eq!((met, longest), (expected.clone(), limit.min(38)), "{limit}");
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
