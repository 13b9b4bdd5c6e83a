//! The list of messages to be replayed: the location and age of each. The list is on disk, since it may be long.

use super::entry::{Location, Piece, ReplayEntry};
use super::{Form, ReplayError};
use crate::base::hex;
use crate::ledger::CopyKey;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The forms of pieces by their numbers in the list. A copy in the ledger has the next number.
const FORMS: [Form; 4] = [Form::Message, Form::Mbox, Form::QueueFile, Form::Failures];

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
             CREATE TABLE entries (id INTEGER PRIMARY KEY, at INTEGER, form INTEGER, path BLOB, offset INTEGER,
                                   length INTEGER, UNIQUE (form, path, offset));
             CREATE INDEX by_age ON entries (at, path, offset);
             BEGIN",
        )?;
        Ok(Self(connection))
    }

    /// Adds a message that arrived at `at`, unless the list already has that location.
    pub(crate) fn add_piece(&self, at: i64, piece: &Piece) -> Result<(), ReplayError> {
        let form = FORMS.iter().position(|form| *form == piece.form).unwrap_or_default();
        // An empty path is standard input.
        let path = piece.path.as_ref().map(|path| path.as_os_str().as_bytes()).unwrap_or_default();
        self.add(at, form, path, (piece.offset, piece.length))
    }

    /// Adds a delivery of the ledger, with the time of its first attempt.
    pub(crate) fn add_delivery(&self, began_at: i64, copy: CopyKey) -> Result<(), ReplayError> {
        self.add(began_at, FORMS.len(), hex::encode(copy.as_bytes()).as_bytes(), (0, None))
    }

    fn add(&self, at: i64, form: usize, path: &[u8], (offset, length): (u64, Option<u64>)) -> Result<(), ReplayError> {
        let mut insert = self.0.prepare_cached(
            "INSERT INTO entries (at, form, path, offset, length) VALUES (?, ?, ?, ?, ?)
             ON CONFLICT (form, path, offset) DO UPDATE SET at = min(at, excluded.at)",
        )?;
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        insert.execute(params![at, number(form as u64), path, number(offset), length.map(number)])?;
        Ok(())
    }

    /// The number of entries.
    pub(crate) fn count(&self) -> Result<u64, ReplayError> {
        let count: i64 = self.0.query_row("SELECT count(*) FROM entries", [], |row| row.get(0))?;
        Ok(u64::try_from(count).unwrap_or_default())
    }

    /// Takes the oldest entry out. Entries of equal age are in the order of their paths, and of their offsets in a file.
    pub(crate) fn take_oldest(&self) -> Result<Option<ReplayEntry>, ReplayError> {
        // With the index, no sort delays the first delivery.
        let mut take = self.0.prepare_cached(
            "DELETE FROM entries WHERE id = (SELECT id FROM entries INDEXED BY by_age ORDER BY at, path, offset LIMIT 1)
             RETURNING form, path, offset, length",
        )?;
        Ok(take.query_row([], entry).optional()?)
    }
}

fn entry(row: &Row<'_>) -> rusqlite::Result<ReplayEntry> {
    let (form, path): (i64, Vec<u8>) = (row.get(0)?, row.get(1)?);
    let number =
        |index| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(index)?.and_then(|n| u64::try_from(n).ok()));
    let source = match usize::try_from(form).ok().and_then(|form| FORMS.get(form)) {
        Some(form) => Location::Piece(Piece {
            form: *form,
            path: (!path.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(&path))),
            offset: number(2)?.unwrap_or_default(),
            length: number(3)?,
        }),
        None => Location::Ledger { ledger: String::from_utf8_lossy(&path).into_owned() },
    };
    Ok(ReplayEntry::new(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_of_the_ledger_is_there_once_as_old_as_its_first_attempt() {
        let list = List::new().unwrap();
        for began_at in [9, 1, 5] {
            list.add_delivery(began_at, CopyKey::from_bytes([7; 32])).unwrap();
        }
        list.add_delivery(2, CopyKey::from_bytes([8; 32])).unwrap();
        assert_eq!(list.count().unwrap(), 2);
        for key in ["07", "08"] {
            let ledger = Location::Ledger { ledger: key.repeat(32) };
            assert_eq!(list.take_oldest().unwrap().map(|entry| entry.source), Some(ledger));
        }
        assert!(list.take_oldest().unwrap().is_none());
    }
}
