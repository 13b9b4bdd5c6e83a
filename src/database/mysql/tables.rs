//! Questions that people ask of MySQL's and MariaDB's tables.

use super::{MysqlDatabase, Product, column, sql as literal};
use crate::database::DatabaseError;
use crate::database::tables::{Dialect, Row, Tables, Value, filled};

impl Tables for MysqlDatabase {
    fn dialect(&self) -> Dialect {
        match self.product() {
            Product::Mysql => Dialect::Mysql,
            Product::Mariadb => Dialect::Mariadb,
        }
    }

    fn select(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, DatabaseError> {
        let sql = self.in_time(filled(doing, sql, values, write)?);
        let answers = self.run(doing, &sql, 1)?;
        let rows = answers.iter().flatten();
        rows.map(|row| {
            let cell = |index| {
                let cell: Option<Vec<u8>> = column(row, index, doing)?;
                Ok(cell.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
            };
            (0..row.len()).map(cell).collect::<Result<_, DatabaseError>>().map(Row)
        })
        .collect()
    }

    fn change(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<u64, DatabaseError> {
        let sql = filled(doing, sql, values, write)?;
        self.retrying(|database| {
            database.run(doing, &sql, 1)?;
            Ok(database.connection(doing)?.affected_rows())
        })
    }

    fn change_together(&mut self, doing: &str, changes: &[(&str, &[Value<'_>])]) -> Result<(), DatabaseError> {
        let mut statements = vec!["START TRANSACTION".to_owned()];
        for (sql, values) in changes {
            statements.push(filled(doing, sql, values, write)?);
        }
        statements.push("COMMIT".to_owned());
        let batch = statements.join("; ");
        self.retrying(|database| database.run(doing, &batch, statements.len()).map(|_| ()))
    }
}

fn write(value: Value<'_>) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Text(text) => literal::text(text),
        Value::Bytes(bytes) => literal::bytes(bytes),
        Value::Uuid(uuid) => literal::bytes(uuid.as_bytes()),
        Value::Moment(microseconds) => {
            format!("(TIMESTAMP'1970-01-01 00:00:00' + INTERVAL {microseconds} MICROSECOND)")
        }
        Value::Null => "NULL".into(),
    }
}
