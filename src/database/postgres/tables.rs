//! Questions that people ask of PostgreSQL's tables.

use super::{PostgresDatabase, Transaction, error};
use crate::database::tables::{Dialect, Row, Tables, Value, filled};
use crate::database::{DatabaseError, DatabaseFailure};
use crate::ledger::postgres::literal;
use postgres::SimpleQueryMessage;

impl Tables for PostgresDatabase {
    fn dialect(&self) -> Dialect {
        Dialect::Postgresql
    }

    fn select(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, DatabaseError> {
        let sql = filled(doing, sql, values, write)?;
        self.round_trips += 1;
        let answers = self.client.simple_query(&sql).map_err(|error| error::failed(doing, &error))?;
        let rows = answers.iter().filter_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        rows.map(|row| {
            let cell = |index| row.try_get(index).map(|cell| cell.map(ToOwned::to_owned));
            (0..row.len()).map(cell).collect::<Result<_, _>>().map(Row).map_err(|error| error::failed(doing, &error))
        })
        .collect()
    }

    fn change(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<u64, DatabaseError> {
        let answers = self.change_batch(doing, &filled(doing, sql, values, write)?)?;
        let changed = answers.iter().find_map(|answer| match answer {
            SimpleQueryMessage::CommandComplete(changed) => Some(*changed),
            _ => None,
        });
        changed.ok_or_else(|| DatabaseError::new(DatabaseFailure::Other, doing, "the server did not say what it did"))
    }

    fn change_together(&mut self, doing: &str, changes: &[(&str, &[Value<'_>])]) -> Result<(), DatabaseError> {
        let changes = changes.iter().map(|(sql, values)| filled(doing, sql, values, write));
        let batch = changes.collect::<Result<Vec<_>, _>>()?.join("; ");
        self.change_batch(doing, &batch).map(|_| ())
    }
}

impl PostgresDatabase {
    /// Outside of a transaction, the server makes one of the batch (PostgreSQL manual, "Multiple Statements in a Simple
    /// Query"), and what a deadlock took back is tried again. Within the lock's, that is for whoever holds it to decide.
    fn change_batch(&mut self, doing: &str, sql: &str) -> Result<Vec<SimpleQueryMessage>, DatabaseError> {
        loop {
            self.round_trips += 1;
            match self.client.simple_query(sql).map_err(|error| error::failed(doing, &error)) {
                Err(error) if self.transaction == Transaction::None && self.try_again(&error) => {}
                result => return result,
            }
        }
    }
}

fn write(value: Value<'_>) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Text(text) => literal::text(text),
        Value::Bytes(bytes) => literal::bytes(bytes),
        Value::Uuid(uuid) => literal::uuid(uuid),
        // Exact, where to_timestamp() goes by way of a floating-point number.
        Value::Moment(microseconds) => {
            format!("('1970-01-01 00:00:00+00'::timestamptz + {microseconds} * interval '1 microsecond')")
        }
        Value::Null => literal::null(),
    }
}
