//! Whether an embedded database is on a disk of this machine.

use super::FindingState::{Bad, Warning};
use super::{Finding, good};
use rustix::fs::{FsWord, statfs};

/// The types of file systems that other machines may have mounted as well (statfs(2)): there, neither SQLite's WAL nor flock
/// excludes them.
const SHARED: [(FsWord, &str); 4] = [(0x6969, "NFS"), (0xFF53_4D42, "CIFS"), (0xFE53_4D42, "SMB"), (0x0102_1997, "9P")];

pub(super) fn inspect(file: &str) -> Finding {
    let (what, fix) = ("file system", "choose a directory on a disk of this machine");
    let found = match statfs(file) {
        Ok(found) => found.f_type,
        Err(error) => return Warning.finding(what, error.to_string(), fix),
    };
    match SHARED.iter().find(|(shared, _)| found == *shared) {
        Some((_, name)) => Bad.finding(what, *name, fix),
        None => good(what, "of this machine"),
    }
}
