//! An embedded site: `/proc/locks` says which of its files are locked. A lock of our own, to find out, would be in the way
//! of a delivery that asks in the same moment. Who waits does not show: waiting for a file's lock is asking again and again.

use super::{Entry, Listing, Name, askers, meaning};
use crate::database::{Database, DatabaseError, DatabaseFailure};
use crate::lock::file::read_note;
use crate::lock::{LockName, hex};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(super) fn list(
    database: &mut dyn Database,
    directory: Option<&Path>,
    only: Option<&LockName>,
) -> Result<Listing, DatabaseError> {
    let local = |error: io::Error| {
        DatabaseError::new(DatabaseFailure::Local, "looking which locks are held", error.to_string())
    };
    let directory = directory.unwrap_or(Path::new(".")).join("locks");
    let locked = locked(&std::fs::read_to_string("/proc/locks").map_err(local)?);
    let askers = askers(database, only)?;
    let mut listing = Listing::default();
    let files = match std::fs::read_dir(&directory) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(listing),
        Err(error) => return Err(local(error)),
    };
    for file in files {
        let file = file.map_err(local)?;
        let lock = file.file_name().to_string_lossy().into_owned();
        if only.is_some_and(|only| hex(only.digest()) != lock) {
            continue;
        }
        let Ok(digest) = <[u8; 32]>::try_from(bytes(&lock)) else { continue };
        // Let go in this very moment.
        let Ok(mut open) = File::open(file.path()) else { continue };
        if !locked.contains(&open.metadata().map_err(local)?.ino()) {
            continue;
        }
        let holder = read_note(&mut open).unwrap_or_default();
        let asker = askers.iter().find(|asker| asker.digest == digest && asker.pid == holder.pid);
        let name = meaning(database, &digest, &digest)?;
        let application = match (&name, &holder.queue_id) {
            (Some(Name::Program(_)), _) => "lock exec".into(),
            (_, Some(queue_id)) => format!("delivery {queue_id}"),
            (_, None) => "delivery".into(),
        };
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

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let pair = |at| hexadecimal.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    (0..hexadecimal.len()).step_by(2).map_while(pair).collect()
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
        assert_eq!(bytes("00ff"), [0, 255]);
        assert_ne!(bytes("README").len(), 32);
    }
}
