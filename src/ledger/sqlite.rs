//! The ledger in SQLite (`sql/sqlite/`).

use super::{CopyHistory, CopyKey, FailureRecord, Journal, Ledger, Record, failures, record_fallback, statements};
use crate::database::{DatabaseError, Dialect, SqliteDatabase, Tables};
use std::time::Duration;

const DIALECT: Dialect = Dialect::Sqlite;

impl Ledger for SqliteDatabase {
    fn try_journal(&mut self, journal: &Journal<'_>) -> Result<(), DatabaseError> {
        if journal.copies.is_empty() {
            return Ok(());
        }
        self.change(statements::JOURNALLING, &statements::journal(DIALECT, journal), &[]).map(drop)
    }

    fn record_failures(&mut self, failures: &[FailureRecord<'_>]) -> Result<(), DatabaseError> {
        failures::record_with_fallback(failures, DIALECT, |statements| {
            self.change_briefly(failures::RECORDING_FAILURES, &statements)
        })
    }

    fn look(&mut self, copies: &[CopyKey]) -> Result<Vec<CopyHistory>, DatabaseError> {
        let doing = "looking at what is known of the copies";
        let [attempts, recorded] = statements::look(DIALECT, copies);
        let (attempts, recorded) = (self.select(doing, &attempts, &[])?, self.select(doing, &recorded, &[])?);
        statements::histories(copies, &attempts, &recorded)
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), DatabaseError> {
        record_fallback::record_with_fallback(record, |record| {
            let after = statements::after_message(DIALECT, record, false)?;
            self.writing(statements::RECORDING, |transaction| {
                if let Some(message) = &record.message {
                    transaction.execute(&statements::message(DIALECT, message, false), [])?;
                    if let Some(raw) = message.raw {
                        transaction.execute(&statements::source(DIALECT, message, "?"), [raw])?;
                    }
                }
                for statement in &after {
                    transaction.execute(statement, [])?;
                }
                Ok(())
            })
        })
    }

    fn first_attempt_age(&mut self, copies: &[CopyKey]) -> Result<Duration, DatabaseError> {
        statements::first_attempt_age(self, copies)
    }
}
