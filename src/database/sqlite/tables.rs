//! The statements of commands on SQLite's tables.

use super::SqliteDatabase;
use crate::database::tables::{Dialect, Tables, UnlockedChange, Value};
use crate::database::{DatabaseError, Row};
use rusqlite::types::{ToSqlOutput, Value as Bound, ValueRef};
use rusqlite::{Connection, ToSql, params_from_iter};

impl Tables for SqliteDatabase {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn select(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, DatabaseError> {
        self.patiently(doing, |connection| rows(connection, sql, values))
    }

    fn change(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<u64, DatabaseError> {
        let changed = self.writing(doing, |transaction| transaction.execute(sql, params_from_iter(values)))?;
        Ok(changed as u64)
    }

    fn execute_together(&mut self, doing: &str, changes: &[(&str, &[Value<'_>])]) -> Result<Vec<Row>, DatabaseError> {
        self.writing(doing, |transaction| {
            let answers = changes.iter().map(|(sql, values)| rows(transaction, sql, values));
            Ok(answers.collect::<rusqlite::Result<Vec<_>>>()?.concat())
        })
    }

    /// No other session has locked a row: SQLite has one writer at a time.
    fn change_unlocked(&mut self, doing: &str, change: &UnlockedChange<'_>) -> Result<Vec<Row>, DatabaseError> {
        let UnlockedChange { table, key, which, set } = *change;
        let sql = format!("UPDATE {table} SET {set} WHERE {which} RETURNING {}", self.dialect().uuid(key));
        self.writing(doing, |transaction| rows(transaction, &sql, &[]))
    }
}

fn rows(connection: &Connection, sql: &str, values: &[Value<'_>]) -> rusqlite::Result<Vec<Row>> {
    let mut statement = connection.prepare(sql)?;
    let columns = statement.column_count();
    let mut rows = statement.query(params_from_iter(values))?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let cell = |index| row.get_ref(index).map(as_text);
        all.push(Row((0..columns).map(cell).collect::<rusqlite::Result<_>>()?));
    }
    Ok(all)
}

fn as_text(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(text) | ValueRef::Blob(text) => Some(String::from_utf8_lossy(text).into_owned()),
    }
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match *self {
            Self::Integer(number) | Self::Moment(number) => ToSqlOutput::Owned(Bound::Integer(number)),
            Self::Text(text) | Self::Json(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Self::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
            Self::Uuid(uuid) => ToSqlOutput::Owned(Bound::Blob(uuid.as_bytes().to_vec())),
            Self::Null => ToSqlOutput::Owned(Bound::Null),
        })
    }
}
