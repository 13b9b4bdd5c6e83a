//! Reads the attempts or the messages of a span of time in pages, so that memory stays flat and no statement takes long, however
//! large the tables are.
//!
//! On MySQL, MariaDB and SQLite a B-tree has the rows in order: attempts by their UUIDs (version 7), messages by an index on their
//! time. PostgreSQL has a block range index on the time of messages, which finds all rows of a slice of time, unordered: each
//! slice is made about as wide as a page needs, by what the last one held, and each row is read about twice. What there is before the
//! oldest message, by its key, is one slice; the next is an hour, and none is wider than a week. Attempts are read in slices there, too,
//! by a B-tree on their time.

use super::{Database, columns};
use crate::database::{DatabaseError, Dialect, Row, Tables, Value};
use std::time::Duration;
use uuid::Uuid;

/// How far the clocks of hosts, which make the UUIDs of attempts, may be from the database's, in microseconds.
pub(super) const CLOCKS_DIFFER: i64 = 3_600_000_000;

/// How wide the first slice with messages is on PostgreSQL, in microseconds, and how wide it may become while slices are empty: what
/// the server does for one statement stays small, however long the span is.
const FIRST_SLICE: i64 = 3_600_000_000;
const WIDEST_SLICE: i64 = 7 * 24 * FIRST_SLICE;

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
    /// How wide a slice may be.
    widest: i64,
    /// How wide the next one is, where this one ends at the oldest row.
    after_the_oldest: Option<i64>,
    /// Whether the first slice is still to be chosen.
    begins: bool,
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
        let width = until.saturating_sub(from).max(1);
        Self { table, from, until, width, widest: i64::MAX, after_the_oldest: None, begins: true, limit, last: None }
    }

    /// Chooses the first slice.
    fn begin(&mut self, database: &mut dyn Tables) -> Result<(), DatabaseError> {
        let dialect = database.dialect();
        if self.table != Table::Messages || dialect != Dialect::Postgresql {
            return Ok(());
        }
        // Keys are given out in the order of time, nearly: what is older all the same is in the slice before.
        let ask = format!("SELECT {} FROM messages m ORDER BY m.id LIMIT 1", dialect.microseconds("m.recorded_at"));
        let rows = database.select("looking for the oldest message", &ask, &[])?;
        let oldest = rows.first().map_or(Ok(None), |row| row.value::<i64>(0))?;
        let before_it = oldest.map_or(self.width, |oldest| oldest.saturating_sub(self.from));
        let first = if before_it > 0 { before_it } else { FIRST_SLICE };
        (self.width, self.widest) = (first.min(self.width), WIDEST_SLICE);
        self.after_the_oldest = (before_it > 0).then_some(FIRST_SLICE);
        Ok(())
    }

    /// The next rows that meet `condition`, whose values are `asked`; `None` at the end.
    pub(super) fn next(
        &mut self,
        database: &mut dyn Tables,
        columns: &str,
        condition: &str,
        asked: &[Value<'_>],
    ) -> Result<Option<Page>, DatabaseError> {
        if std::mem::take(&mut self.begins) {
            self.begin(database)?;
        }
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
                    self.width = ended.saturating_sub(began).clamp(1000, self.widest);
                }
            }
            _ => {
                // The end of all where it is the end of the span.
                self.from = end;
                self.last = None;
                let twice = || self.width.saturating_mul(2).min(self.widest);
                self.width = self.after_the_oldest.take().unwrap_or_else(twice);
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
        // It is found by its name: the clock of this host is further off than any may be.
        fill(79, 0, THEN + 180 * MINUTE, THEN);
        let mut expected: Vec<i64> = (1..20).flat_map(|pid| [pid, pid]).collect();
        for limit in [1, 2, 3, 7, 37, 38, 39, 100] {
            let (mut met, longest) = met(&mut database, Table::Attempts, THEN + 20 * MINUTE, limit, "a.pid");
            met.sort_unstable();
            assert_eq!((met, longest), (expected.clone(), limit.min(38)), "{limit}");
        }
        // Where they are found by their beginning, they come in its order, and no clock hides any.
        let mut database = LikePostgresql { database, slices: Vec::new() };
        expected.insert(0, 79);
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

    /// Is spoken to as PostgreSQL is, and writes down how wide each slice is, and how many messages are in it.
    struct LikePostgresql {
        database: SqliteDatabase,
        slices: Vec<(i64, i64)>,
    }

    impl Tables for LikePostgresql {
        fn dialect(&self) -> Dialect {
            Dialect::Postgresql
        }

        fn select(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, DatabaseError> {
            if let [Value::Moment(from), Value::Moment(end), ..] = values {
                let count = "SELECT count(*) FROM messages m WHERE m.recorded_at >= ? AND m.recorded_at < ?";
                let rows = self.database.select(doing, count, &values[..2])?;
                self.slices.push((end - from, columns::only_number(&rows)?));
            }
            let sql = sql.replace("(extract(epoch FROM ", "(").replace(") * 1000000)::bigint", ")");
            let sql = sql
                .replace("replace(a.attempt::text, '-', '')", "hex(a.attempt)")
                .replace("encode(a.copy_key, 'hex')", "hex(a.copy_key)");
            self.database.select(doing, &sql, values)
        }

        fn change(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<u64, DatabaseError> {
            self.database.change(doing, sql, values)
        }

        fn change_together(&mut self, doing: &str, changes: &[(&str, &[Value<'_>])]) -> Result<(), DatabaseError> {
            self.database.change_together(doing, changes)
        }
    }

    /// There each row of a slice is looked at, whether it is wanted or not, before any is answered.
    #[test]
    fn no_slice_of_messages_has_more_than_an_hour_of_them_or_a_week_that_was_empty() {
        const HOUR: i64 = 60 * MINUTE;
        let fill = "INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, headers, size, recorded_at) \
                    WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?) \
                    SELECT CAST(printf('%032d', ? + i) AS BLOB), zeroblob(32), 'x', zeroblob(32), '', '[]', 1, ? + i * ? FROM n";
        let walk = |from: i64, until: i64, size: i64, rows: &[(i64, i64, i64)]| {
            let (_directory, mut database) = database();
            for (number, (count, first, each)) in (0..).zip(rows) {
                let values = [*count, number * 100_000, *first, *each].map(Value::Integer);
                database.change("filling", fill, &values).unwrap();
            }
            let (mut pages, mut met) = (Pages::new(Table::Messages, from, until, 20), 0);
            let mut slices = LikePostgresql { database, slices: Vec::new() };
            while let Some(page) = pages.next(&mut slices, "m.size", "m.size = ?", &[Value::Integer(size)]).unwrap() {
                met += page.rows.len();
            }
            (met, slices.slices)
        };
        let until = THEN + 100 * HOUR;
        // One in each minute of a hundred hours: from the beginning of all time, from the first, and from somewhere between them.
        for (from, expected) in [(0, 6000), (THEN, 6000), (THEN + 90 * HOUR, 600), (until, 0)] {
            let (met, slices) = walk(from, until, 1, &[(6000, THEN, MINUTE)]);
            assert_eq!(met, expected);
            let most = slices.iter().map(|(_, rows)| *rows).max().unwrap_or(0);
            assert!(most <= 60 && slices.len() <= 2 + expected / 9, "{most} in one of {} slices", slices.len());
        }
        // None is wanted; and an old one, with nothing for years behind it.
        for (size, rows) in
            [(2, vec![(6000, THEN, MINUTE)]), (1, vec![(1, THEN - 20_000 * HOUR, 0), (6000, THEN, MINUTE)])]
        {
            let (met, slices) = walk(0, until, size, &rows);
            assert_eq!(met, if size == 1 { 6001 } else { 0 });
            assert!(slices.iter().all(|(width, rows)| *width <= 7 * 24 * HOUR || *rows == 0), "{slices:?}");
        }
        // Nobody has written yet; and one came later than its key says.
        assert_eq!(walk(0, until, 1, &[]).0, 0);
        assert_eq!(walk(0, until, 1, &[(10, THEN, MINUTE), (10, THEN - 50 * HOUR, MINUTE)]).0, 20);
    }
}
