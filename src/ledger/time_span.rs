//! Reads the attempts of a span of time in pages. So memory use stays constant and no answer is long, however large the
//! table is. Each engine has a B-tree on their time, which is the database's own: the next page begins after the last
//! row.

use super::Database;
use crate::database::{DatabaseError, Dialect, FromRow, Query, Tables, Value, columns_of};
use std::time::Duration;
use uuid::Uuid;

/// An attempt at a copy, of table `a`, by when it began: the order in which attempts are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AttemptCursor {
    /// In microseconds since 1970.
    pub(crate) began_at: i64,
    pub(crate) attempt: Uuid,
    pub(crate) key: [u8; 32],
}

columns_of! { AttemptCursor: began_at, attempt, key }

impl AttemptCursor {
    /// The expressions that select these columns.
    pub(super) fn columns(dialect: Dialect) -> String {
        format!(
            "{}, {}, {}",
            dialect.microseconds("a.started_at"),
            dialect.uuid("a.attempt"),
            dialect.hex("a.copy_key")
        )
    }

    /// The values of these columns.
    pub(super) fn values(&self) -> [Value<'_>; 3] {
        [Value::Moment(self.began_at), Value::Uuid(self.attempt), Value::Bytes(&self.key)]
    }
}

/// The pages of a span of time, half open.
pub(super) struct Pages {
    /// The next page begins after this one.
    last: AttemptCursor,
    /// In microseconds since 1970.
    until: i64,
    limit: usize,
}

impl Pages {
    /// From `from` up to, not including, `until`, both in microseconds since 1970.
    pub(super) fn new(from: i64, until: i64, limit: usize) -> Self {
        let last = AttemptCursor { began_at: from.max(0), attempt: Uuid::nil(), key: [0; 32] };
        Self { last, until, limit }
    }

    /// The next attempts that meet `condition`, whose values are `asked`; `None` at the end.
    pub(super) fn next<T: FromRow>(
        &mut self,
        database: &mut dyn Tables,
        columns: &str,
        condition: &str,
        asked: &[Value<'_>],
    ) -> Result<Option<Vec<(AttemptCursor, T)>>, DatabaseError> {
        if self.last.began_at >= self.until {
            return Ok(None);
        }
        // MySQL cannot use an index for a comparison of rows alone: the time is compared first.
        let sql = format!(
            "SELECT {}, {columns} FROM attempts a WHERE a.started_at >= ? AND a.started_at < ? \
             AND (a.started_at, a.attempt, a.copy_key) > (?, ?, ?) AND ({condition}) \
             ORDER BY a.started_at, a.attempt, a.copy_key LIMIT {}",
            AttemptCursor::columns(database.dialect()),
            self.limit
        );
        let mut values = vec![Value::Moment(self.last.began_at), Value::Moment(self.until)];
        values.extend(self.last.values());
        values.extend_from_slice(asked);
        let rows: Vec<(AttemptCursor, T)> = database.query("reading the ledger", &sql, &values)?;
        match rows.last().filter(|_| rows.len() >= self.limit) {
            Some((last, _)) => self.last = *last,
            None => self.until = self.last.began_at,
        }
        Ok((!rows.is_empty()).then_some(rows))
    }
}

/// The present time by the database's clock, in microseconds since 1970.
pub fn now(database: &mut dyn Database) -> Result<i64, DatabaseError> {
    let dialect = database.dialect();
    database.query_number("asking for the time", &format!("SELECT {}", dialect.microseconds(dialect.now())), &[])
}

/// A span of time in microseconds.
pub fn microseconds(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// The lowest UUID of version 7 of this time: its milliseconds, and zeros (RFC 9562 section 5.7). For a time that it
/// cannot represent, the nearest.
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

    /// A time in 2026, and a minute.
    const THEN: i64 = 1_790_000_000_000_000;
    const MINUTE: i64 = 60_000_000;

    fn database() -> (tempfile::TempDir, SqliteDatabase) {
        let directory = tempfile::tempdir().unwrap();
        let client = Client { host: "mx1".into(), pid: 1, queue_id: None };
        let deadline = Deadline::after(Duration::from_secs(120));
        let database = crate::ledger::schema::open_embedded(directory.path(), &client, deadline).unwrap();
        (directory, database)
    }

    /// The rows of a walk, in its order, and how many rows its longest page had.
    fn met(database: &mut dyn Tables, until: i64, limit: usize, column: &str) -> (Vec<i64>, usize) {
        let (mut pages, mut met, mut longest) = (Pages::new(THEN, until, limit), Vec::new(), 0);
        while let Some(page) = pages.next::<i64>(database, column, "pid <> ?", &[Value::Integer(0)]).unwrap() {
            longest = longest.max(page.len());
            met.extend(page.into_iter().map(|(_, pid)| pid));
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
        // Two copies each, and hosts whose clocks differ: in the order of their UUIDs the times go up and down.
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
            let (met, longest) = met(&mut database, THEN + 20 * MINUTE, limit, "a.pid");
            assert_eq!((met, longest), (expected.clone(), limit.min(39)), "{limit}");
        }
    }
}
