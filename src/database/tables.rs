//! Questions that people ask of the tables: what `trace`, `stats`, `audit`, `prune` and `replay` read and change.
//!
//! A delivery's statements are written for each engine, to save round trips. These here are written once, in the SQL that the
//! engines share, with `?` for a value; where engines differ, a [`Dialect`] says how. Values cross as they do in a delivery: as
//! hexadecimal digits, or bound.
//!
//! What is selected comes as text: bytes through [`Dialect::hex`], moments through [`Dialect::microseconds`]. Long answers
//! are asked for in pages (`WHERE key > ? ORDER BY key LIMIT 500`), so that memory stays flat.

use super::DatabaseError;
use crate::base::hex;
use std::str::FromStr;

/// A value in the place of a `?`.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// A number.
    Integer(i64),
    Text(&'a str),
    /// Bytes: a digest, a UUID (on PostgreSQL a column of type uuid wants [`Value::Uuid`]).
    Bytes(&'a [u8]),
    Uuid(uuid::Uuid),
    /// A moment, in microseconds since 1970.
    Moment(i64),
    Null,
}

/// The tables, for questions in SQL.
pub trait Tables {
    /// How this engine writes what engines write differently.
    fn dialect(&self) -> Dialect;

    /// The rows that a statement brings. Under a lock, too: it is a statement like any other, with a snapshot of its own.
    ///
    /// # Errors
    /// Where the server cannot be asked, or refuses the statement.
    fn select(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, DatabaseError>;

    /// Changes rows in a transaction of its own (within the lock's, on PostgreSQL, while a lock is held), and says how many.
    ///
    /// # Errors
    /// Where it may not be committed.
    fn change(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<u64, DatabaseError>;

    /// Several changes, all of them or none, in one round trip (within the lock's transaction likewise).
    ///
    /// # Errors
    /// Where they may not be committed.
    fn change_together(&mut self, doing: &str, changes: &[(&str, &[Value<'_>])]) -> Result<(), DatabaseError>;
}

/// How an engine writes what engines write differently.
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

    /// A moment, column or expression, as microseconds since 1970.
    #[must_use]
    pub fn microseconds(self, moment: &str) -> String {
        match self {
            Self::Postgresql => format!("(extract(epoch FROM {moment}) * 1000000)::bigint"),
            Self::Mysql | Self::Mariadb => format!("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {moment})"),
            Self::Sqlite => moment.to_owned(),
        }
    }

    /// The present moment by the database's clock, to compare columns with.
    #[must_use]
    pub fn now(self) -> &'static str {
        match self {
            Self::Postgresql => "clock_timestamp()",
            Self::Mysql | Self::Mariadb => "UTC_TIMESTAMP(6)",
            Self::Sqlite => "CAST(unixepoch('subsec') * 1000000 AS INTEGER)",
        }
    }
}

/// A row of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row(pub(super) Vec<Option<String>>);

impl Row {
    /// A column as text; `None` for NULL.
    #[must_use]
    pub fn text(&self, index: usize) -> Option<&str> {
        self.0.get(index).and_then(Option::as_deref)
    }

    /// A column as a number, or whatever else can be read from text; `None` for NULL.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn value<T: FromStr>(&self, index: usize) -> Result<Option<T>, DatabaseError> {
        let unreadable = |text: &str| unreadable(format!("column {} of the answer is {text:?}", index + 1));
        self.text(index).map(|text| text.parse().map_err(|_| unreadable(text))).transpose()
    }

    /// A column that came through [`Dialect::hex`] as bytes; `None` for NULL.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn bytes(&self, index: usize) -> Result<Option<Vec<u8>>, DatabaseError> {
        let unreadable = || unreadable(format!("column {} of the answer is no hexadecimal number", index + 1));
        self.text(index).map(|text| hex::decode(text).ok_or_else(unreadable)).transpose()
    }

    /// A column that came through [`Dialect::hex`] as that many bytes.
    ///
    /// # Errors
    /// Where it is NULL or something else.
    pub fn digest<const N: usize>(&self, index: usize) -> Result<[u8; N], DatabaseError> {
        let unreadable = || unreadable(format!("column {} of the answer does not have {N} bytes", index + 1));
        self.bytes(index)?.and_then(|bytes| bytes.try_into().ok()).ok_or_else(unreadable)
    }
}

/// An answer that is not what was asked for.
pub(crate) fn unreadable(detail: String) -> DatabaseError {
    DatabaseError::other("reading the ledger", detail)
}

/// The statement with a literal in the place of each `?`.
pub(super) fn filled(
    doing: &str,
    sql: &str,
    values: &[Value<'_>],
    literal: impl Fn(Value<'_>) -> String,
) -> Result<String, DatabaseError> {
    let pieces: Vec<&str> = sql.split('?').collect();
    let [first, rest @ ..] = pieces.as_slice() else { return Ok(String::new()) };
    if rest.len() != values.len() {
        let detail = format!("a statement with {} places for {} values", rest.len(), values.len());
        return Err(DatabaseError::other(doing, detail));
    }
    let mut filled = (*first).to_owned();
    for (value, piece) in values.iter().zip(rest) {
        filled.push_str(&literal(*value));
        filled.push_str(piece);
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_gets_its_value() {
        let literal = |value: Value<'_>| format!("<{value:?}>");
        let filled = |sql, values: &[Value<'_>]| filled("x", sql, values, literal).ok();
        assert_eq!(filled("a ? b ?", &[Value::Integer(1), Value::Null]).as_deref(), Some("a <Integer(1)> b <Null>"));
        assert_eq!(filled("a", &[]).as_deref(), Some("a"));
        assert_eq!(filled("a ?", &[]), None);
        assert_eq!(filled("a", &[Value::Null]), None);
    }
}
