//! The named lock of `--embedded`: a file lock beside the SQLite ledger.

use super::{Acquired, Holder, Holders, LockName, NamedLock};
use crate::base::hex;
use crate::database::sqlite::file_locks::{Asked, Note};
use crate::database::{DatabaseError, SqliteDatabase};
use std::time::Duration;

impl NamedLock for SqliteDatabase {
    fn acquire(&mut self, name: &LockName, wait: Duration) -> Result<Acquired, DatabaseError> {
        Ok(match self.locks.acquire(&file_name(name), wait)? {
            Asked::Held => Acquired::Held,
            Asked::Busy(note) => Acquired::Busy(note.map(Holder::from)),
        })
    }

    fn still_held(&mut self, name: &LockName) -> Result<bool, DatabaseError> {
        self.locks.still_held(&file_name(name))
    }

    /// Statements are no longer bound by a delivery's deadline.
    fn keep(&mut self, _silence: Duration) -> Result<(), DatabaseError> {
        self.kept = true;
        Ok(())
    }

    fn release(&mut self, name: &LockName) -> Result<(), DatabaseError> {
        self.locks.release(&file_name(name));
        Ok(())
    }
}

impl Holders for SqliteDatabase {
    fn holder(&mut self, name: &LockName) -> Result<Option<Holder>, DatabaseError> {
        let holder = self.locks.holder(&file_name(name))?;
        Ok(holder.map(|note| note.map(Holder::from).unwrap_or_default()))
    }
}

impl From<Note> for Holder {
    fn from(note: Note) -> Self {
        let held_for = note.held_for();
        Self { host: Some(note.host), pid: Some(note.pid), queue_id: note.queue_id, session: None, held_for }
    }
}

/// The lock's file in `DIR/locks/`.
fn file_name(name: &LockName) -> String {
    hex::encode(name.digest())
}
