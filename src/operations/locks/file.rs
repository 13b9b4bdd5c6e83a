//! An embedded site: `/proc/locks` says which of its files are locked. A lock of our own, to find out, would be in the way
//! of a delivery that asks in the same moment. Who waits does not show: waiting for a file's lock is asking again and again.

use super::{Entry, Listing, application};
use crate::base::hex;
use crate::database::sqlite::file_locks::read_note;
use crate::database::{DatabaseError, DatabaseFailure};
use crate::ledger::Database;
use crate::ledger::lock_users::{lock_purpose, lock_users};
use crate::lock::Holder;
use crate::lock::LockName;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub fn list(
    database: &mut dyn Database,
    directory: Option<&Path>,
    only: Option<&LockName>,
) -> Result<Listing, DatabaseError> {
    let local = |error: io::Error| {
        DatabaseError::new(DatabaseFailure::Local, "looking which locks are held", error.to_string())
    };
    let directory = directory.unwrap_or(Path::new(".")).join("locks");
    let locked = locked(&std::fs::read_to_string("/proc/locks").map_err(local)?);
    let askers = lock_users(database, only)?;
    let mut listing = Listing::default();
    let files = match std::fs::read_dir(&directory) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(listing),
        Err(error) => return Err(local(error)),
    };
    for file in files {
        let file = file.map_err(local)?;
        let lock = file.file_name().to_string_lossy().into_owned();
        if only.is_some_and(|only| hex::encode(only.digest()) != lock) {
            continue;
        }
        let Some(digest) = digest(&lock) else { continue };
        // Let go in this very moment.
        let Ok(mut open) = File::open(file.path()) else { continue };
        if !locked.contains(&open.metadata().map_err(local)?.ino()) {
            continue;
        }
        let holder = read_note(&mut open).map(Holder::from).unwrap_or_default();
        let asker = askers.iter().find(|asker| asker.digest == digest && asker.pid == holder.pid);
        let name = lock_purpose(database, &digest, &digest)?;
        let application = application(name.as_ref(), holder.queue_id.as_deref());
        listing.entries.push(Entry {
            lock,
            name,
            waits: false,
            application: Some(application),
            host: holder.host,
            pid: holder.pid,
            session: None,
            age: holder.held_for.or_else(|| asker.and_then(|asker| asker.age)),
        });
    }
    Ok(listing)
}

/// The inodes that somebody holds with flock(2), by proc_locks(5): `1: FLOCK  ADVISORY  WRITE 4711 08:01:131072 0 EOF`,
/// with `->` before those that wait. Without the device, which some file systems show otherwise than stat(2) does.
fn locked(locks: &str) -> BTreeSet<u64> {
    let inode = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        (words.next() == Some("FLOCK")).then_some(())?;
        words.nth(3)?.rsplit(':').next()?.parse().ok()
    };
    locks.lines().filter_map(inode).collect()
}

/// The digest that a lock's file is named after.
fn digest(name: &str) -> Option<[u8; 32]> {
    hex::decode(name)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_is_read() {
        let locks = "1: FLOCK  ADVISORY  WRITE 4711 08:01:131072 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 4712 08:01:131073 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 1 00:1a:7 0 EOF\n\nnonsense\n";
        assert_eq!(locked(locks), BTreeSet::from([131_072]));
    }

    #[test]
    fn a_file_that_is_no_lock_is_passed_over() {
        assert_eq!(digest(&"0f".repeat(32)), Some([0x0f; 32]));
        for other in ["README".to_owned(), "0f".repeat(31), "0f".repeat(33), "0g".repeat(32), "0f".repeat(32) + "x"] {
            assert_eq!(digest(&other), None, "{other}");
        }
    }
}
