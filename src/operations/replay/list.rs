//! The list of messages to be replayed: the location and age of each. The list is on disk, since it may be long.

use super::entry::Location;
use super::{Form, ReplayError};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The list is in a temporary file that no other process can open, and that disappears with this process.
#[derive(Debug)]
pub(crate) struct List(Connection);

impl List {
    pub(crate) fn new() -> Result<Self, ReplayError> {
        // For a database without a name, SQLite creates a file in $SQLITE_TMPDIR or $TMPDIR, and unlinks it once it is open
        // (https://sqlite.org/inmemorydb.html#temp_db). The list uses no more memory than the cache of 1 MB.
        let connection = Connection::open("")?;
        connection.execute_batch(
            "PRAGMA temp_store = FILE; PRAGMA cache_size = -1024; PRAGMA journal_mode = OFF;
             CREATE TABLE entries (id INTEGER PRIMARY KEY, at INTEGER, form TEXT, file BLOB, offset INTEGER,
                                   length INTEGER, UNIQUE (file, offset));
             CREATE INDEX by_age ON entries (at, file, offset);
             BEGIN",
        )?;
        Ok(Self(connection))
    }

    /// Adds a message that arrived at `at`, or a delivery that began then, unless the list already has that location: then the
    /// earlier time counts.
    pub(crate) fn add(&self, at: i64, location: &Location) -> Result<(), ReplayError> {
        let mut insert = self.0.prepare_cached(
            "INSERT INTO entries (at, form, file, offset, length) VALUES (?, ?, ?, ?, ?)
             ON CONFLICT (file, offset) DO UPDATE SET at = min(at, excluded.at)",
        )?;
        let Location { form, file, offset, length, .. } = location;
        let (file, length) = (file.as_os_str().as_bytes(), length.map(u64::cast_signed));
        insert.execute(params![at, form.as_str(), file, offset.cast_signed(), length])?;
        Ok(())
    }

    /// The number of entries.
    pub(crate) fn count(&self) -> Result<u64, ReplayError> {
        let count: i64 = self.0.query_row("SELECT count(*) FROM entries", [], |row| row.get(0))?;
        Ok(count.cast_unsigned())
    }

    /// Takes the oldest entry out. Entries of equal age are in the order of their files, and of their offsets in a file.
    pub(crate) fn take_oldest(&self) -> Result<Option<Location>, ReplayError> {
        // With the index, no sort delays the first delivery.
        let mut take = self.0.prepare_cached(
            "DELETE FROM entries WHERE id = (SELECT id FROM entries INDEXED BY by_age ORDER BY at, file, offset LIMIT 1)
             RETURNING form, file, offset, length",
        )?;
        Ok(take.query_row([], location).optional()?)
    }
}

fn location(row: &Row<'_>) -> rusqlite::Result<Location> {
    let form = Form::parse(row.get_ref(0)?.as_str()?).unwrap_or(Form::Message);
    let (offset, length): (i64, Option<i64>) = (row.get(2)?, row.get(3)?);
    let (offset, length) = (offset.cast_unsigned(), length.map(i64::cast_unsigned));
    Ok(Location { offset, length, ..Location::whole(form, OsString::from_vec(row.get(1)?)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::CopyKey;

    #[test]
    fn a_delivery_of_the_ledger_is_there_once_as_old_as_its_first_attempt() {
        let list = List::new().unwrap();
        let copy = |byte| Location::in_ledger(CopyKey::from_bytes([byte; 32]));
        for began_at in [9, 1, 5] {
            list.add(began_at, &copy(7)).unwrap();
        }
        list.add(2, &copy(8)).unwrap();
        assert_eq!(list.count().unwrap(), 2);
        for byte in [7, 8] {
            assert_eq!(list.take_oldest().unwrap(), Some(copy(byte)));
        }
        assert!(list.take_oldest().unwrap().is_none());
    }
}
