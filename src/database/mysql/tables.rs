//! The statements of commands on MySQL's and MariaDB's tables.

use super::MysqlDatabase;
use crate::database::tables::{Dialect, Tables, UnlockedChange, Value, interpolate};
use crate::database::{DatabaseError, Row};
use uuid::Uuid;

impl Tables for MysqlDatabase {
    fn dialect(&self) -> Dialect {
        self.product
    }

    fn select(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, DatabaseError> {
        let sql = self.in_time(interpolate(self.dialect(), doing, sql, values)?);
        Ok(self.run(doing, &sql, 1)?.concat())
    }

    fn change(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<u64, DatabaseError> {
        let sql = interpolate(self.dialect(), doing, sql, values)?;
        self.retrying(|database| {
            database.run(doing, &sql, 1)?;
            Ok(database.connection(doing)?.affected_rows())
        })
    }

    fn execute_together(&mut self, doing: &str, changes: &[(&str, &[Value<'_>])]) -> Result<Vec<Row>, DatabaseError> {
        let mut statements = vec!["START TRANSACTION".to_owned()];
        for (sql, values) in changes {
            statements.push(interpolate(self.dialect(), doing, sql, values)?);
        }
        statements.push("COMMIT".to_owned());
        let batch = statements.join("; ");
        Ok(self.retrying(|database| database.run(doing, &batch, statements.len()))?.concat())
    }

    fn change_unlocked(&mut self, doing: &str, change: &UnlockedChange<'_>) -> Result<Vec<Row>, DatabaseError> {
        let (dialect, UnlockedChange { table, key, which, set }) = (self.dialect(), *change);
        // An UPDATE has no SKIP LOCKED, and does not respect that of a subquery.
        let unlocked =
            format!("START TRANSACTION; SELECT {} FROM {table} WHERE {which} FOR UPDATE SKIP LOCKED", dialect.hex(key));
        self.retrying(|database| {
            let found = database.run(doing, &unlocked, 2)?.concat();
            if found.is_empty() {
                return database.run(doing, "COMMIT", 1).map(|_| found);
            }
            let keys = found.iter().map(Row::read).collect::<Result<Vec<Uuid>, _>>()?;
            let keys = dialect.list(keys.into_iter().map(Value::Uuid));
            database.run(doing, &format!("UPDATE {table} SET {set} WHERE {key} IN ({keys}); COMMIT"), 2)?;
            Ok(found)
        })
    }
}
