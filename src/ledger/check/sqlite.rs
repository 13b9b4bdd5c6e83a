//! What `check` verifies of an embedded database.

use super::{Finding, FindingState, only};
use crate::database::{DatabaseError, DatabaseFailure};
use crate::ledger::Database;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// File systems that more than one machine may have mounted.
const SHARED_FILE_SYSTEMS: [&str; 11] =
    ["nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "fuse.sshfs", "fuse.glusterfs", "gfs2", "ocfs2"];

/// The directory of the database's file.
pub(super) fn directory(database: &mut dyn Database) -> Result<String, DatabaseError> {
    let file = "SELECT file FROM pragma_database_list WHERE name = 'main'";
    let file: String = only(database, "asking where the database is", file)?;
    Ok(file.rsplit_once('/').map_or(String::new(), |(directory, _)| directory.to_owned()))
}

pub(super) fn inspect(database: &mut dyn Database) -> Result<Vec<Finding>, DatabaseError> {
    let doing = "reading a setting of SQLite";
    let journal_mode: String = only(database, doing, "PRAGMA journal_mode")?;
    let wal = if journal_mode == "wal" { FindingState::Good } else { FindingState::Bad };
    let synchronous: String = only(database, doing, "PRAGMA synchronous")?;
    // 2 is FULL, 3 is EXTRA (https://sqlite.org/pragma.html#pragma_synchronous).
    let durable = if matches!(synchronous.as_str(), "2" | "3") { FindingState::Good } else { FindingState::Bad };
    let directory = directory(database)?;
    let directory = Path::new(&directory);
    Ok(vec![
        finding("journal_mode", wal, journal_mode, Some("PRAGMA journal_mode=WAL")),
        finding("synchronous", durable, synchronous, None),
        inspect_mode(directory)?,
        inspect_file_system(directory),
    ])
}

fn finding(what: &str, state: FindingState, found: impl Into<String>, fix: Option<&str>) -> Finding {
    let fix = fix.filter(|_| state != FindingState::Good).map(ToOwned::to_owned);
    Finding { what: what.into(), state, found: found.into(), fix }
}

/// Whether other users can read the mail.
fn inspect_mode(directory: &Path) -> Result<Finding, DatabaseError> {
    let mode = fs::metadata(directory)
        .map_err(|e| DatabaseError::new(DatabaseFailure::Local, "looking at the directory", e.to_string()))?
        .mode()
        & 0o7777;
    let state = if mode & 0o077 == 0 { FindingState::Good } else { FindingState::Warning };
    let directory = directory.display();
    let (what, fix) = (format!("mode of {directory}"), format!("chmod 0700 {directory}"));
    Ok(finding(&what, state, format!("{mode:04o}"), Some(&fix)))
}

/// Whether another machine could have mounted the same directory: WAL and flock would not exclude it.
fn inspect_file_system(directory: &Path) -> Finding {
    let kind = fs::read_to_string("/proc/self/mountinfo").ok().and_then(|m| file_system(&m, directory));
    let state = match kind.as_deref() {
        None => FindingState::Warning,
        Some(kind) if SHARED_FILE_SYSTEMS.contains(&kind) => FindingState::Bad,
        Some(_) => FindingState::Good,
    };
    let found = kind.unwrap_or_else(|| "not to be found out".into());
    finding("file system", state, found, Some("a directory on a disk of this machine"))
}

/// The kind of the file system that contains `path`, from the text of /proc/self/mountinfo (proc_pid_mountinfo(5)).
fn file_system(mountinfo: &str, path: &Path) -> Option<String> {
    let mut best: Option<(usize, &str)> = None;
    for line in mountinfo.lines() {
        let (left, right) = line.split_once(" - ")?;
        let mount_point = left.split(' ').nth(4)?.replace("\\040", " ");
        let kind = right.split(' ').next()?;
        // The longest mount point counts; of two mounts on the same one, the later.
        if path.starts_with(&mount_point) && best.is_none_or(|(length, _)| mount_point.len() >= length) {
            best = Some((mount_point.len(), kind));
        }
    }
    best.map(|(_, kind)| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /home rw shared:1 - nfs4 server:/home rw
31 30 0:41 / /home/my\\040mail rw - tmpfs none rw
";

    #[test]
    fn the_longest_mount_point_names_the_file_system() {
        let kind = |path| file_system(MOUNTS, Path::new(path));
        assert_eq!(kind("/var/mail").as_deref(), Some("ext4"));
        assert_eq!(kind("/home/lisa/mail").as_deref(), Some("nfs4"));
        assert_eq!(kind("/home/my mail/x").as_deref(), Some("tmpfs"));
        assert_eq!(kind("/homes").as_deref(), Some("ext4"));
    }
}
