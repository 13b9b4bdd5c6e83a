//! The statements of commands on PostgreSQL's tables.

use super::{Batch, PostgresDatabase, SHOW_COMMIT_WARNINGS, SUPPRESS_NOTICES, Transaction};
use crate::database::tables::{Dialect, Tables, UnlockedChange, Value, interpolate};
use crate::database::{DatabaseError, Row};

impl Tables for PostgresDatabase {
    fn dialect(&self) -> Dialect {
        Dialect::Postgresql
    }

    fn select(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, DatabaseError> {
        let sql = interpolate(Dialect::Postgresql, doing, sql, values)?;
        Ok(self.batch(doing, &format!("{}{sql}", self.time_limit()))?.rows)
    }

    fn change(&mut self, doing: &str, sql: &str, values: &[Value<'_>]) -> Result<u64, DatabaseError> {
        // The count of the statement: the settings around it change no row.
        Ok(self.change_batch(doing, &interpolate(Dialect::Postgresql, doing, sql, values)?)?.count)
    }

    fn execute_together(&mut self, doing: &str, changes: &[(&str, &[Value<'_>])]) -> Result<Vec<Row>, DatabaseError> {
        let changes = changes.iter().map(|(sql, values)| interpolate(Dialect::Postgresql, doing, sql, values));
        let batch = changes.collect::<Result<Vec<_>, _>>()?.join("; ");
        Ok(self.change_batch(doing, &batch)?.rows)
    }

    fn change_unlocked(&mut self, doing: &str, change: &UnlockedChange<'_>) -> Result<Vec<Row>, DatabaseError> {
        let UnlockedChange { table, key, which, set } = *change;
        let sql = format!(
            "WITH unlocked AS (SELECT {key} AS id FROM {table} WHERE {which} FOR UPDATE SKIP LOCKED) \
             UPDATE {table} SET {set} FROM unlocked WHERE {key} = unlocked.id RETURNING {}",
            self.dialect().uuid(key)
        );
        Ok(self.change_batch(doing, &sql)?.rows)
    }
}

impl PostgresDatabase {
    /// Outside of a transaction, the server makes one of the batch (PostgreSQL manual, "Multiple Statements in a Simple
    /// Query"). That one is retried after a deadlock or a lock wait. Within the lock's transaction there is no retry: a
    /// failure would have aborted that transaction, and released the lock.
    fn change_batch(&mut self, doing: &str, sql: &str) -> Result<Batch, DatabaseError> {
        if self.transaction != Transaction::None {
            return self.batch(doing, &format!("{}{sql}", self.limits_of_changes()));
        }
        let answers = self.retrying(|this| {
            let sql = format!("{SUPPRESS_NOTICES} {}{sql}; {SHOW_COMMIT_WARNINGS}", this.limits_of_changes());
            this.batch(doing, &sql)
        })?;
        self.check_commit_warning(doing)?;
        Ok(answers)
    }
}
