//! Questions that people ask of MySQL's and MariaDB's tables.

use super::{Answer, MysqlDatabase, Product, column};
use crate::database::DatabaseError;
use crate::database::tables::{Dialect, Row, Tables, UnlockedChange, Value, filled};

impl Tables for MysqlDatabase {
    fn dialect(&self) -> Dialect {
        match self.product() {
            Product::Mysql => Dialect::Mysql,
            Product::Mariadb => Dialect::Mariadb,
        }
    }

    fn select(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, DatabaseError> {
        let sql = self.in_time(filled(self.dialect(), doing, sql, values)?);
        all_rows(doing, &self.run(doing, &sql, 1)?)
    }

    fn change(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<u64, DatabaseError> {
        let sql = filled(self.dialect(), doing, sql, values)?;
        self.retrying(|database| {
            database.run(doing, &sql, 1)?;
            Ok(database.connection(doing)?.affected_rows())
        })
    }

    fn change_together(&mut self, doing: &str, changes: &[(&str, &[Value<'_>])]) -> Result<Vec<Row>, DatabaseError> {
        let mut statements = vec!["START TRANSACTION".to_owned()];
        for (sql, values) in changes {
            statements.push(filled(self.dialect(), doing, sql, values)?);
        }
        statements.push("COMMIT".to_owned());
        let batch = statements.join("; ");
        all_rows(doing, &self.retrying(|database| database.run(doing, &batch, statements.len()))?)
    }

    fn change_unlocked(&mut self, doing: &str, change: &UnlockedChange<'_>) -> Result<Vec<Row>, DatabaseError> {
        let (dialect, UnlockedChange { table, key, which, set }) = (self.dialect(), *change);
        // An UPDATE has no SKIP LOCKED, and does not keep to that of a subquery.
        let unlocked =
            format!("START TRANSACTION; SELECT {} FROM {table} WHERE {which} FOR UPDATE SKIP LOCKED", dialect.hex(key));
        self.retrying(|database| {
            let found = all_rows(doing, &database.run(doing, &unlocked, 2)?)?;
            if found.is_empty() {
                return database.run(doing, "COMMIT", 1).map(|_| found);
            }
            let keys = found.iter().map(|row| row.digest::<16>(0)).collect::<Result<Vec<_>, _>>()?;
            let keys = dialect.list(keys.iter().map(|key| Value::Bytes(key)));
            database.run(doing, &format!("UPDATE {table} SET {set} WHERE {key} IN ({keys}); COMMIT"), 2)?;
            Ok(found)
        })
    }
}

fn all_rows(doing: &str, answers: &[Answer]) -> Result<Vec<Row>, DatabaseError> {
    Ok(answers.iter().map(|answer| rows(doing, answer)).collect::<Result<Vec<_>, _>>()?.concat())
}

/// What a statement has answered, as text.
pub(crate) fn rows(doing: &str, answer: &Answer) -> Result<Vec<Row>, DatabaseError> {
    let rows = answer.iter().map(|row| {
        let cell = |index| {
            let cell: Option<Vec<u8>> = column(row, index, doing)?;
            Ok(cell.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
        };
        (0..row.len()).map(cell).collect::<Result<_, DatabaseError>>().map(Row)
    });
    rows.collect()
}
