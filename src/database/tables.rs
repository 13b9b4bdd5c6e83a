//! The statements of commands on the tables: what `trace`, `stats`, `audit`, `prune` and `replay` read and change.
//!
//! A delivery's statements are written for each engine, to save round trips. These are written once, in the SQL that the
//! engines share, with `?` for a value; [`Dialect`] has the differences. Values are sent as in a delivery: as hexadecimal
//! digits, or bound.
//!
//! Selected values come as text: bytes through [`Dialect::hex`], times through [`Dialect::microseconds`]. Long answers are
//! read in pages (`WHERE key > ? ORDER BY key LIMIT 500`), so that memory stays bounded.

use super::{DatabaseError, FromRow, Row, unreadable};
use crate::base::hex;
use std::borrow::Cow;

/// The value of a `?`.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    Integer(i64),
    Text(&'a str),
    /// Bytes: a digest, a UUID (on PostgreSQL a column of type uuid needs [`Value::Uuid`]).
    Bytes(&'a [u8]),
    Uuid(uuid::Uuid),
    /// A time, in microseconds since 1970.
    Moment(i64),
    /// The text of a JSON value.
    Json(&'a str),
    Null,
}

impl<'a> Value<'a> {
    #[must_use]
    pub fn optional_text(text: Option<&'a str>) -> Self {
        text.map_or(Self::Null, Self::Text)
    }

    pub fn optional_number(number: Option<impl Into<i64>>) -> Self {
        number.map_or(Self::Null, |number| Self::Integer(number.into()))
    }

    #[must_use]
    pub fn optional_uuid(uuid: Option<uuid::Uuid>) -> Self {
        uuid.map_or(Self::Null, Self::Uuid)
    }
}

/// Statements on the tables, in SQL.
pub trait Tables {
    fn dialect(&self) -> Dialect;

    /// The rows that a statement returns. Under a lock as well, the statement has a snapshot of its own.
    ///
    /// # Errors
    /// If the server does not answer, or refuses the statement.
    fn select(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, DatabaseError>;

    /// Changes rows in a transaction of its own, or on PostgreSQL under a lock, in the lock's; returns how many.
    ///
    /// # Errors
    /// If it may not have been committed.
    fn change(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<u64, DatabaseError>;

    /// Runs several statements, all of them or none, in one round trip; returns their rows. On PostgreSQL under a lock, they
    /// run in the lock's transaction.
    ///
    /// # Errors
    /// If they may not have been committed.
    fn execute_together(&mut self, doing: &str, changes: &[(&str, &[Value<'_>])]) -> Result<Vec<Row>, DatabaseError>;

    /// Changes the rows of a table that no other session has locked, in a transaction of its own; returns their keys.
    ///
    /// # Errors
    /// If it may not have been committed.
    fn change_unlocked(&mut self, doing: &str, change: &UnlockedChange<'_>) -> Result<Vec<Row>, DatabaseError>;
}

pub(crate) trait Query: Tables {
    /// All rows.
    ///
    /// # Errors
    /// As [`select`](Tables::select), and if a row does not have the requested columns.
    fn query<T: FromRow>(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<Vec<T>, DatabaseError> {
        self.select(doing, sql, values)?.iter().map(Row::read).collect()
    }

    /// The first row, if there is one.
    ///
    /// # Errors
    /// As [`query`](Self::query).
    fn query_first<T: FromRow>(
        &mut self,
        doing: &str,
        sql: &str,
        values: &[Value<'_>],
    ) -> Result<Option<T>, DatabaseError> {
        self.select(doing, sql, values)?.first().map(Row::read).transpose()
    }

    /// The number in the only row; zero if it is NULL.
    ///
    /// # Errors
    /// As [`query`](Self::query).
    fn query_number(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<i64, DatabaseError> {
        let number = self.query_first::<Option<i64>>(doing, sql, values)?;
        Ok(number.ok_or_else(|| unreadable("an answer without a row".into()))?.unwrap_or_default())
    }
}

impl<D: Tables + ?Sized> Query for D {}

/// A change of those rows of a table that no other session has locked.
#[derive(Clone, Copy, Debug)]
pub struct UnlockedChange<'a> {
    pub table: &'a str,
    /// The column with the rows' keys, which are UUIDs.
    pub key: &'a str,
    pub which: &'a str,
    pub set: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Postgresql,
    /// Oracle's MySQL.
    Mysql,
    Mariadb,
    Sqlite,
}

impl Dialect {
    /// A column of bytes as lower-case hexadecimal digits.
    #[must_use]
    pub fn hex(self, column: &str) -> String {
        match self {
            Self::Postgresql => format!("encode({column}, 'hex')"),
            Self::Mysql | Self::Mariadb | Self::Sqlite => format!("lower(hex({column}))"),
        }
    }

    /// A column with a UUID as 32 lower-case hexadecimal digits.
    #[must_use]
    pub fn uuid(self, column: &str) -> String {
        match self {
            Self::Postgresql => format!("replace({column}::text, '-', '')"),
            Self::Mysql | Self::Mariadb | Self::Sqlite => self.hex(column),
        }
    }

    /// A time, column or expression, as microseconds since 1970.
    #[must_use]
    pub fn microseconds(self, moment: &str) -> String {
        match self {
            Self::Postgresql => format!("(extract(epoch FROM {moment}) * 1000000)::bigint"),
            Self::Mysql | Self::Mariadb => format!("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {moment})"),
            Self::Sqlite => moment.to_owned(),
        }
    }

    /// The present time by the database's clock, for comparison with columns.
    #[must_use]
    pub fn now(self) -> &'static str {
        match self {
            Self::Postgresql => "clock_timestamp()",
            Self::Mysql | Self::Mariadb => "UTC_TIMESTAMP(6)",
            Self::Sqlite => "CAST(unixepoch('subsec') * 1000000 AS INTEGER)",
        }
    }

    /// The beginning of the present hour.
    pub(crate) fn this_hour(self) -> &'static str {
        match self {
            Self::Postgresql => "date_trunc('hour', clock_timestamp())",
            Self::Mysql | Self::Mariadb => "(UTC_DATE() + INTERVAL HOUR(UTC_TIME()) HOUR)",
            Self::Sqlite => "(unixepoch() / 3600 * 3600000000)",
        }
    }

    /// A time in seconds since 1970. A Date field can claim any year. The value is NULL outside the years 1 to 9999 of the
    /// SQL standard, and on MySQL before 1000.
    pub(crate) fn date(self, seconds: Option<i64>) -> Value<'static> {
        const YEAR_1: i64 = -62_135_596_800;
        const YEAR_1000: i64 = -30_610_224_000;
        const YEAR_10000: i64 = 253_402_300_800;
        let first = match self {
            Self::Postgresql | Self::Sqlite => YEAR_1,
            Self::Mysql | Self::Mariadb => YEAR_1000,
        };
        let seconds = seconds.filter(|seconds| (first..YEAR_10000).contains(seconds));
        seconds.map_or(Value::Null, |seconds| Value::Moment(seconds * 1_000_000))
    }

    /// A value in the text of a statement. Whatever a message contains, only digits reach the text, or characters that have
    /// no meaning between quotes: quoting cannot fail, and no setting of the server (`standard_conforming_strings`,
    /// `sql_mode`, a character set) changes the meaning.
    pub(crate) fn literal(self, value: Value<'_>) -> String {
        let is_postgresql = self == Self::Postgresql;
        match value {
            Value::Null => "NULL".into(),
            Value::Integer(number) => number.to_string(),
            // A constant, which the parser reads; `decode` would be a function to find, to plan and to call.
            Value::Bytes(bytes) if is_postgresql => format!(r"E'\\x{}'::bytea", hex::encode(bytes)),
            Value::Bytes(bytes) => format!("X'{}'", hex::encode(bytes)),
            Value::Uuid(uuid) if is_postgresql => format!("'{}'::uuid", uuid.simple()),
            Value::Uuid(uuid) => self.literal(Value::Bytes(uuid.as_bytes())),
            Value::Text(text) if is_postgresql && is_inert(text) => format!("'{text}'::text"),
            Value::Text(text) if is_postgresql => {
                format!("convert_from(decode('{}','hex'),'UTF8')", hex::encode(without_nul(text).as_bytes()))
            }
            Value::Json(json) if is_postgresql => match without_nul_escapes(json) {
                json if is_inert(&json) => format!("'{json}'::jsonb"),
                json => format!("{}::jsonb", self.literal(Value::Text(&json))),
            },
            Value::Text(text) | Value::Json(text) if self == Self::Sqlite => {
                format!("CAST(X'{}' AS TEXT)", hex::encode(text.as_bytes()))
            }
            Value::Text(text) | Value::Json(text) => format!("_utf8mb4 X'{}'", hex::encode(text.as_bytes())),
            // Exact; to_timestamp() would convert through a floating-point number.
            Value::Moment(microseconds) if is_postgresql => {
                format!("('1970-01-01 00:00:00+00'::timestamptz + {microseconds} * interval '1 microsecond')")
            }
            Value::Moment(microseconds) if self == Self::Sqlite => microseconds.to_string(),
            Value::Moment(microseconds) => {
                format!("(TIMESTAMP'1970-01-01 00:00:00' + INTERVAL {microseconds} MICROSECOND)")
            }
        }
    }

    /// Values with commas between them: the inside of an IN list.
    pub(crate) fn list<'a>(self, values: impl IntoIterator<Item = Value<'a>>) -> String {
        values.into_iter().map(|value| self.literal(value)).collect::<Vec<_>>().join(", ")
    }

    /// The same for an IN list that may be empty: nothing equals NULL.
    pub(crate) fn list_or_none<'a>(self, values: impl IntoIterator<Item = Value<'a>>) -> String {
        self.list(values.into_iter().chain([Value::Null]))
    }

    /// The conflict clause of an INSERT: it sets these columns of an existing row with this key.
    pub(crate) fn or_update(self, key: &str, set: &str) -> String {
        match self {
            Self::Postgresql | Self::Sqlite => format!("ON CONFLICT ({key}) DO UPDATE SET {set}"),
            Self::Mysql | Self::Mariadb => format!("ON DUPLICATE KEY UPDATE {set}"),
        }
    }

    /// As [`or_update`](Self::or_update), only for an existing row that meets `which`.
    pub(crate) fn or_update_where(self, table: &str, key: &str, which: &str, set: &[(&str, &str)]) -> String {
        let set = set.iter().map(|(column, value)| match self {
            Self::Postgresql | Self::Sqlite => format!("{column} = {value}"),
            Self::Mysql | Self::Mariadb => {
                format!("{column} = CASE WHEN {which} THEN {value} ELSE {table}.{column} END")
            }
        });
        let update = self.or_update(key, &set.collect::<Vec<_>>().join(", "));
        match self {
            Self::Postgresql | Self::Sqlite => format!("{update} WHERE {which}"),
            Self::Mysql | Self::Mariadb => update,
        }
    }

    /// `INSERT INTO rows`, which leaves existing rows unchanged.
    pub(crate) fn insert_new(self, rows: &str) -> String {
        match self {
            Self::Postgresql | Self::Sqlite => format!("INSERT INTO {rows} ON CONFLICT DO NOTHING"),
            // ON DUPLICATE KEY UPDATE would need the right to change rows.
            Self::Mysql | Self::Mariadb => format!("INSERT IGNORE INTO {rows}"),
        }
    }

    /// A column of JSON as text.
    pub(crate) fn text_of_json(self, column: &str) -> String {
        match self {
            Self::Postgresql => format!("{column}::text"),
            Self::Mysql | Self::Mariadb | Self::Sqlite => format!("CAST({column} AS CHAR)"),
        }
    }

    /// The seconds between two times.
    pub(crate) fn seconds_between(self, from: &str, to: &str) -> String {
        match self {
            Self::Postgresql => format!("extract(epoch FROM {to} - {from})"),
            Self::Mysql | Self::Mariadb => format!("TIMESTAMPDIFF(MICROSECOND, {from}, {to}) / 1e6"),
            Self::Sqlite => format!("({to} - {from}) / 1000000.0"),
        }
    }
}

/// Whether nothing in this text has a meaning between quotes, in any encoding of a client, or in this module: neither a quote, nor
/// a backslash, nor the sign of a place for a value.
fn is_inert(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'\'' | b'\\' | b'?'))
}

/// Text without NUL characters, which PostgreSQL refuses (SQLSTATE 22021). None is expected here, but a refused text would
/// defer its message until Postfix bounces it.
pub(crate) fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{FFFD}").into() } else { text.into() }
}

/// JSON without the escape for NUL, which `jsonb` refuses: PostgreSQL's text has no such character. `\\u0000` is a
/// backslash and five characters, and stays.
fn without_nul_escapes(json: &str) -> Cow<'_, str> {
    const NUL: &str = r"\u0000";
    if !json.contains(NUL) {
        return json.into();
    }
    let mut clean = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(backslash) = rest.find('\\') {
        let (before, escape) = rest.split_at(backslash);
        clean.push_str(before);
        if let Some(after) = escape.strip_prefix(NUL) {
            clean.push_str(r"\ufffd");
            rest = after;
        } else {
            // The backslash and what it escapes, which may be a backslash.
            let end = escape.char_indices().nth(2).map_or(escape.len(), |(end, _)| end);
            let (pair, after) = escape.split_at(end);
            clean.push_str(pair);
            rest = after;
        }
    }
    clean.push_str(rest);
    clean.into()
}

/// The statement with a literal for each `?`.
pub(super) fn interpolate(
    dialect: Dialect,
    doing: &str,
    sql: &str,
    values: &[Value<'_>],
) -> Result<String, DatabaseError> {
    let pieces: Vec<&str> = sql.split('?').collect();
    let [first, rest @ ..] = pieces.as_slice() else { return Ok(String::new()) };
    if rest.len() != values.len() {
        let detail = format!("a statement with {} places for {} values", rest.len(), values.len());
        return Err(DatabaseError::other(doing, detail));
    }
    let mut filled = (*first).to_owned();
    for (value, piece) in values.iter().zip(rest) {
        filled.push_str(&dialect.literal(*value));
        filled.push_str(piece);
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_gets_its_value() {
        let filled = |sql, values: &[Value<'_>]| interpolate(Dialect::Mysql, "x", sql, values).ok();
        assert_eq!(filled("a ? b ?", &[Value::Integer(1), Value::Null]).as_deref(), Some("a 1 b NULL"));
        assert_eq!(filled("a", &[]).as_deref(), Some("a"));
        assert_eq!(filled("a ?", &[]), None);
        assert_eq!(filled("a", &[Value::Null]), None);
    }

    #[test]
    fn nothing_but_digits_gets_between_the_quotes() {
        let hostile = "'); DROP TABLE copies; --\\' \" ` \u{1F600}\u{bf27}\0$$?";
        for (dialect, before, after) in [
            (Dialect::Postgresql, "convert_from(decode('", "','hex'),'UTF8')"),
            (Dialect::Mysql, "_utf8mb4 X'", "'"),
            (Dialect::Mariadb, "_utf8mb4 X'", "'"),
            (Dialect::Sqlite, "CAST(X'", "' AS TEXT)"),
        ] {
            let literal = dialect.literal(Value::Text(hostile));
            let digits = literal.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)).unwrap();
            assert!(digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{literal}");
        }
        assert_eq!(Dialect::Mysql.literal(Value::Text("")), "_utf8mb4 X''");
        assert_eq!(Dialect::Mysql.literal(Value::Bytes(&[0, 0x27, 0xff])), "X'0027ff'");
        assert_eq!(Dialect::Postgresql.literal(Value::optional_text(None)), "NULL");
        assert_eq!(Dialect::Postgresql.literal(Value::Text("<1$;@b> --")), "'<1$;@b> --'::text");
        for text in ["a'", "a\\", "a?", "\u{e9}", "a\n", "\u{7f}"] {
            assert!(!Dialect::Postgresql.literal(Value::Text(text)).contains(text), "{text}");
        }
    }

    #[test]
    fn only_the_escape_for_nul_is_replaced_in_json() {
        for (json, clean) in [
            (r#"["a"]"#, r#"["a"]"#),
            (r#"["\u0000"]"#, r#"["\ufffd"]"#),
            (r#"["\\u0000"]"#, r#"["\\u0000"]"#),
            (r#"["\\\u0000"]"#, r#"["\\\ufffd"]"#),
            (r#"["\u0000é\n\u0000x"]"#, r#"["\ufffdé\n\ufffdx"]"#),
            (r"\u0000\", r"\ufffd\"),
        ] {
            assert_eq!(without_nul_escapes(json), clean);
        }
    }

    #[test]
    fn a_date_outside_the_calendar_is_not_known() {
        let last = 253_402_300_799;
        for (dialect, first) in [(Dialect::Postgresql, -62_135_596_800), (Dialect::Mariadb, -30_610_224_000)] {
            let date = |seconds| match dialect.date(seconds) {
                Value::Moment(moment) => Some(moment),
                _ => None,
            };
            assert_eq!((date(Some(0)), date(None)), (Some(0), None));
            assert_eq!([date(Some(first)), date(Some(last))], [Some(first * 1_000_000), Some(last * 1_000_000)]);
            for absurd in [i64::MIN, i64::MAX, first - 1, last + 1] {
                assert_eq!(date(Some(absurd)), None);
            }
        }
    }
}
