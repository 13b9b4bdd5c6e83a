//! The list of what is to be replayed: where each message is, and how old it is. On disk, so that it may be long.

use crate::ledger::CopyKey;
use crate::operations::replay::ReplayError;
use crate::operations::replay::lines::Window;
use crate::operations::replay::source::{Form, Source};
use crate::site::Site;
use rusqlite::{Connection, Row, params};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What the form of a message is written as in the list; a ledger's copy has none.
const LEDGER: i64 = -1;

/// Where a message is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Piece(Piece),
    /// In the ledger, as the source of this copy.
    Ledger(CopyKey),
}

/// A part of a file with a message in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// How it is written there.
    pub(crate) form: Form,
    /// Which file; `None` is standard input.
    pub(crate) path: Option<PathBuf>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Piece {
    /// The length of what reaches to the end of its file, wherever that is.
    pub(crate) const TO_THE_END: u64 = i64::MAX as u64;

    /// Opens it. Standard input has been opened already.
    pub fn open(&self, stdin: Option<&File>) -> io::Result<Window> {
        let file = match (&self.path, stdin) {
            (Some(path), _) => File::open(path)?,
            (None, Some(stdin)) => stdin.try_clone()?,
            (None, None) => return Err(io::Error::other("standard input is not at hand")),
        };
        Ok(Window::new(file, self.offset, self.length))
    }
}

/// An entry of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// How old it is: when the message arrived there, in microseconds since 1970.
    pub(crate) at: i64,
    pub(crate) place: Location,
    /// The digest of its lock's name, where that is known without reading the message.
    pub(crate) lock: Option<[u8; 32]>,
}

/// What is to be replayed, in a temporary file that no other process can open, and that is gone with this one.
#[derive(Debug)]
pub struct List(Connection);

impl List {
    /// An empty list.
    fn new() -> Result<Self, ReplayError> {
        // No name: a file of SQLite's own in $SQLITE_TMPDIR or $TMPDIR, unlinked as soon as it is open
        // (https://sqlite.org/inmemorydb.html#temp_db). The cache is what it takes of memory, 1 MB.
        let connection = Connection::open("")?;
        connection.execute_batch(
            "PRAGMA temp_store = FILE; PRAGMA cache_size = -1024; PRAGMA journal_mode = OFF;
             CREATE TABLE entries (id INTEGER PRIMARY KEY, at INTEGER, form INTEGER, path BLOB, offset INTEGER,
                                   length INTEGER, lock BLOB, UNIQUE (form, path, offset));
             CREATE INDEX by_age ON entries (at, path, offset);
             BEGIN",
        )?;
        Ok(Self(connection))
    }

    /// What these sources hold. `form` says how files are written; where it does not, their beginning does. `stdin` is standard
    /// input, if it is one of them.
    pub fn of(sources: &[Source], form: Option<Form>, stdin: Option<&File>, site: &Site) -> Result<Self, ReplayError> {
        let list = Self::new()?;
        sources.iter().try_for_each(|source| source.list(form, stdin, site, &list))?;
        Ok(list)
    }

    /// Adds an entry, unless that very place is in the list.
    pub(crate) fn add(&self, entry: &Entry) -> Result<(), ReplayError> {
        let mut insert = self.0.prepare_cached(
            "INSERT INTO entries (at, form, path, offset, length, lock) VALUES (?, ?, ?, ?, ?, ?)
             ON CONFLICT (form, path, offset) DO UPDATE SET at = min(at, excluded.at)",
        )?;
        let lock = entry.lock.as_ref().map(<[u8; 32]>::as_slice);
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        match &entry.place {
            Location::Piece(Piece { form, path, offset, length }) => {
                let path = path.as_ref().map(|path| path.as_os_str().as_bytes()).unwrap_or_default();
                insert.execute(params![entry.at, form.number(), path, number(*offset), number(*length), lock])?
            }
            Location::Ledger(key) => insert.execute(params![entry.at, LEDGER, key.as_bytes(), 0, 0, lock])?,
        };
        Ok(())
    }

    /// How many entries there are.
    pub(crate) fn count(&self) -> Result<u64, ReplayError> {
        let count: i64 = self.0.query_row("SELECT count(*) FROM entries", [], |row| row.get(0))?;
        Ok(u64::try_from(count).unwrap_or_default())
    }

    /// Shows the entries, the oldest first; those of one age by name, and in their order within a file.
    pub(crate) fn each(&self, mut see: impl FnMut(Entry) -> ControlFlow<()>) -> Result<(), ReplayError> {
        // By an index, so that nothing has to be sorted before the first message is delivered.
        let mut select = self.0.prepare(
            "SELECT at, form, path, offset, length, lock FROM entries INDEXED BY by_age ORDER BY at, path, offset",
        )?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            if see(entry(row)?).is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    let bytes: Vec<u8> = row.get(2)?;
    let number = |index| row.get(index).map(|number: i64| u64::try_from(number).unwrap_or_default());
    let place = match (Form::of_number(row.get(1)?), <[u8; 32]>::try_from(bytes.as_slice())) {
        (Some(form), _) => Location::Piece(Piece {
            form,
            path: (!bytes.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(&bytes))),
            offset: number(3)?,
            length: number(4)?,
        }),
        (None, Ok(key)) => Location::Ledger(CopyKey::from_bytes(key)),
        (None, Err(_)) => return Err(rusqlite::Error::InvalidQuery),
    };
    let lock: Option<Vec<u8>> = row.get(5)?;
    Ok(Entry { at: row.get(0)?, place, lock: lock.and_then(|lock| lock.try_into().ok()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_comes_first_and_each_place_once() {
        let list = List::new().unwrap();
        let piece = |name: &str| {
            Location::Piece(Piece {
                form: Form::Message,
                path: Some(name.into()),
                offset: 0,
                length: Piece::TO_THE_END,
            })
        };
        let ledger = Location::Ledger(CopyKey::from_bytes([7; 32]));
        let all = [(5, piece("new")), (3, piece("b")), (3, piece("a")), (9, ledger.clone()), (1, ledger.clone())];
        for (at, place) in all {
            let lock = (place == ledger).then_some([9; 32]);
            list.add(&Entry { at, place, lock }).unwrap();
        }
        let mut seen = Vec::new();
        list.each(|entry| {
            seen.push(entry);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(list.count().unwrap(), 4);
        let places: Vec<&Location> = seen.iter().map(|entry| &entry.place).collect();
        assert_eq!(places, [&ledger, &piece("a"), &piece("b"), &piece("new")]);
        assert_eq!((seen[0].at, seen[0].lock, seen[1].lock), (1, Some([9; 32]), None));
    }
}
