//! The locks of an embedded site. `/proc/locks` shows which of its files are locked. To try a lock instead would defer a delivery
//! that tries it at the same moment. Waiting processes are not shown, because they poll.

use super::{Listing, LockEntry, application};
use crate::base::hex;
use crate::database::sqlite::file_locks::{kernels_locks, read_note};
use crate::database::{DatabaseError, DatabaseFailure};
use crate::ledger::Database;
use crate::ledger::lock_exec_holders::{lock_users, message_of_lock};
use crate::lock::{Holder, LockName};
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
    let locked = locked(&kernels_locks().map_err(local)?);
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
        let Some(name) = lock_of_file(&lock).filter(|name| only.is_none_or(|only| only == name)) else { continue };
        // The lock may just have been released.
        let Ok(mut open) = File::open(file.path()) else { continue };
        if !locked.contains(&open.metadata().map_err(local)?.ino()) {
            continue;
        }
        let mut holder = read_note(&mut open).map(Holder::from).unwrap_or_default();
        let asker = askers.iter().find(|asker| asker.lock == name && asker.pid == holder.pid);
        holder.held_for = holder.held_for.or_else(|| asker.and_then(|asker| asker.age));
        let name = message_of_lock(database, name.digest(), name.digest())?;
        let application = name.as_ref().map(|_| application(holder.queue_id.as_deref()));
        listing.entries.push(LockEntry { lock, name, application, ..LockEntry::from(holder) });
    }
    Ok(listing)
}

/// The inodes locked with flock(2), from lines such as `1: FLOCK ADVISORY WRITE 4711 08:01:131072 0 EOF` (proc_locks(5)), with
/// `->` before waiters. The device is ignored, since some file systems show another one there than in stat(2).
fn locked(locks: &str) -> BTreeSet<u64> {
    let inode = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        (words.next() == Some("FLOCK")).then_some(())?;
        words.nth(3)?.rsplit(':').next()?.parse().ok()
    };
    locks.lines().filter_map(inode).collect()
}

/// The lock that gives a file its name.
fn lock_of_file(name: &str) -> Option<LockName> {
    Some(LockName::from_digest(hex::decode(name)?.try_into().ok()?)).filter(|lock| hex::encode(lock.digest()) == name)
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
        assert_eq!(lock_of_file(&"0f".repeat(32)), Some(LockName::from_digest([0x0f; 32])));
        for other in ["README".to_owned(), "0f".repeat(31), "0f".repeat(33), "0g".repeat(32), "0F".repeat(32)] {
            assert_eq!(lock_of_file(&other), None, "{other}");
        }
    }
}
