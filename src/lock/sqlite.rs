//! The named lock of `--embedded`: a file lock beside the SQLite ledger.

use super::{Acquired, Holder, LockName, NamedLock};
use crate::base::hex;
use crate::database::sqlite::file_locks::{FileLockResult, Note};
use crate::database::{DatabaseError, SqliteDatabase};
use std::time::Duration;

impl NamedLock for SqliteDatabase {
    fn acquire(&mut self, name: &LockName, wait: Duration) -> Result<Acquired, DatabaseError> {
        Ok(match self.locks.acquire(&file_name(name), wait)? {
            FileLockResult::Held => Acquired::Held,
            FileLockResult::Busy(note) => Acquired::Busy(note.map(Holder::from)),
        })
    }

    fn still_held(&mut self, name: &LockName) -> Result<bool, DatabaseError> {
        self.locks.still_held(&file_name(name))
    }

    /// From now on, statements may run past the deadline: the holder keeps the lock for as long as it needs.
    fn keep(&mut self, _silence: Duration) -> Result<(), DatabaseError> {
        self.kept = true;
        Ok(())
    }

    fn holder(&mut self, name: &LockName) -> Result<Option<Holder>, DatabaseError> {
        let holder = self.locks.holder(&file_name(name))?;
        Ok(holder.map(|note| note.map(Holder::from).unwrap_or_default()))
    }

    fn release(&mut self, name: &LockName) -> Result<(), DatabaseError> {
        self.locks.release(&file_name(name));
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::database::Client;
    use std::path::Path;

    fn session(directory: &Path, queue_id: &str) -> SqliteDatabase {
        let client = Client { host: "mx1".into(), pid: 17, queue_id: Some(queue_id.into()) };
        SqliteDatabase::open(directory, &client, Deadline::after(Duration::from_hours(1))).unwrap()
    }

    #[test]
    fn a_lock_excludes_others_of_the_same_name_until_it_is_released() {
        let directory = tempfile::tempdir().unwrap();
        let (mut one, mut other) = (session(directory.path(), "4bONE"), session(directory.path(), "4bTWO"));
        let (name, another) = (LockName::new("maildrop", b"1@x"), LockName::new("maildrop", b"2@x"));
        assert!(!one.still_held(&name).unwrap() && other.holder(&name).unwrap().is_none());
        assert!(matches!(one.acquire(&name, Duration::ZERO), Ok(Acquired::Held)));
        assert!(one.still_held(&name).unwrap() && !one.still_held(&another).unwrap());
        let Ok(Acquired::Busy(Some(holder))) = other.acquire(&name, Duration::ZERO) else { panic!("two hold it") };
        assert_eq!(
            (holder.host.as_deref(), holder.pid, holder.queue_id.as_deref()),
            (Some("mx1"), Some(17), Some("4bONE"))
        );
        assert_eq!(other.holder(&name).unwrap().unwrap().queue_id.as_deref(), Some("4bONE"));
        assert!(matches!(other.acquire(&another, Duration::ZERO), Ok(Acquired::Held)));
        one.release(&name).unwrap();
        assert!(!one.still_held(&name).unwrap() && other.holder(&name).unwrap().is_none());
        assert!(matches!(other.acquire(&name, Duration::ZERO), Ok(Acquired::Held)));
    }

    #[test]
    fn the_statements_of_who_keeps_a_lock_outlast_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let mut session = session(directory.path(), "4b");
        session.deadline = Deadline::after(Duration::ZERO);
        let ask = |session: &mut SqliteDatabase| session.patiently("asking", |_| Ok(())).is_ok();
        assert!(!ask(&mut session));
        session.keep(Duration::from_secs(1)).unwrap();
        assert!(ask(&mut session));
    }
}
