//! `check`: each of the database's servers, where there are several.

use super::database;
use crate::base::deadline::Deadline;
use crate::ledger::Finding;
use crate::ledger::check::{bad, good, warning};
use crate::site::Site;
use rustix::fs::Access;
use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Whether each can be used, and whether one at most takes writes.
pub(super) fn look(site: &Site, deadline: Deadline) -> Vec<Finding> {
    let file = site.config().and_then(|config| config.database.seen_file.as_deref());
    let mut findings: Vec<Finding> = file.map(seen_file).into_iter().collect();
    if site.config().is_none_or(|config| config.database.addresses.len() < 2) {
        return findings;
    }
    let mut primaries: Vec<(String, String)> = Vec::new();
    for (name, opened) in site.open_each_database(deadline) {
        let what = format!("server {name}");
        let asked = opened.and_then(|mut database| Ok((database.is_read_only()?, database.server()?)));
        findings.push(match asked {
            Ok((true, _)) => good(what, "takes no writes: passed over for as long as that is so"),
            Ok((false, server)) => {
                primaries.push((name, server));
                good(what, "takes writes")
            }
            Err(error) if error.may_pass() => {
                let mend = "deliveries pass it over; if it is to take over one day, see to it";
                warning(what, error.to_string(), mend)
            }
            Err(error) => database::failed(&what, &error),
        });
    }
    if let [(first, server), rest @ ..] = &primaries[..]
        && let Some((other, _)) = rest.iter().find(|(_, other)| other != server)
    {
        let mend = "stop the one that was primary before (docs/hosts.md, \"Two primaries\"): a lock on one excludes nobody who asks \
                    the other, and deliveries use the first of the list";
        findings.push(bad("one primary", format!("{first} and {other} both take writes"), mend));
    }
    findings
}

/// Whether there is a folder for it, and whoever delivers may write it, as far as can be told.
fn seen_file(file: &Path) -> Finding {
    let (what, told) = ("database.seen_file", file.display().to_string());
    let Some(folder) = file.parent().and_then(|folder| fs::metadata(folder).ok()).filter(Metadata::is_dir) else {
        let mend =
            "make its folder, and give it to who delivers: until then a former primary is not told from the new one";
        return warning(what, format!("{told}: its folder is not there"), mend);
    };
    match why_not_to_be_written(file, &folder) {
        None => good(what, told),
        Some(why) if is_another_user(&folder) => warning(
            what,
            format!("{told}: {why}"),
            "run this as the user who delivers: whether that one may write it cannot be told",
        ),
        Some(why) => {
            let mend = "give it to who delivers, and its folder, too: otherwise each delivery asks for itself which server has taken over, \
                        and one that is answered by the former primary alone is not told";
            bad(what, format!("{told}: {why}"), mend)
        }
    }
}

/// Whether this process is neither root's nor the user's whose folder it is, who mostly is the one who delivers.
fn is_another_user(folder: &Metadata) -> bool {
    let us = rustix::process::geteuid();
    !us.is_root() && us.as_raw() != folder.uid()
}

/// Opens it to append to it, which changes nothing. Where there is none, whether one could be made.
fn why_not_to_be_written(file: &Path, folder: &Metadata) -> Option<String> {
    let found = match fs::metadata(file) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let made = rustix::fs::access(file.parent()?, Access::WRITE_OK | Access::EXEC_OK);
            return made.err().map(|error| format!("no file can be made there: {}", io::Error::from(error)));
        }
        Err(error) => return Some(error.to_string()),
    };
    if !found.is_file() {
        return Some("it is no file".into());
    }
    if let Err(error) = OpenOptions::new().append(true).open(file) {
        return Some(error.to_string());
    }
    // Root may write to any. Whoever delivers is mostly the user whose folder it is, and never root.
    let by_root = rustix::process::geteuid().is_root() && folder.uid() != 0;
    let of_its_owner = found.uid() == folder.uid() && found.mode() & 0o200 != 0;
    let of_its_group = found.gid() == folder.gid() && found.mode() & 0o020 != 0;
    let may_be_written = of_its_owner || of_its_group || found.mode() & 0o002 != 0;
    (by_root && !may_be_written).then(|| {
        let [of, in_folder] = [found.uid(), folder.uid()];
        format!("it is of user {of}, and its folder of user {in_folder}; mode {:o}", found.mode() & 0o777)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::check::State;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, chown};

    const NOBODY: u32 = 65_534;

    #[test]
    fn a_file_that_nobody_can_write_is_bad_and_looking_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("seen");
        let state = || seen_file(&file).state;
        assert_eq!(state(), State::Good);
        assert!(!file.exists());
        fs::write(&file, "a 1 then db1\n").unwrap();
        assert_eq!(state(), State::Good);
        assert_eq!(fs::read_to_string(&file).unwrap(), "a 1 then db1\n");
        assert_eq!(seen_file(&folder.path().join("nowhere/seen")).state, State::Warning);
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(state(), State::Bad);
    }

    /// As root, who may write to any: whether the user whose folder it is may.
    #[test]
    fn a_file_of_roots_in_another_users_folder_is_bad() {
        let folder = tempfile::tempdir().unwrap();
        if chown(folder.path(), Some(NOBODY), Some(NOBODY)).is_err() {
            // Whoever is not root is told by the system.
            return;
        }
        let file = folder.path().join("seen");
        fs::write(&file, "").unwrap();
        let found = seen_file(&file);
        assert_eq!(found.state, State::Bad);
        assert!(found.found.contains(&format!("of user 0, and its folder of user {NOBODY}")), "{}", found.found);
        // By its group, or by anybody, it may be written.
        for (user, group, mode, state) in [
            (NOBODY, NOBODY, 0o644, State::Good),
            (NOBODY, NOBODY, 0o444, State::Bad),
            (0, NOBODY, 0o664, State::Good),
            (0, NOBODY, 0o644, State::Bad),
            (0, 0, 0o664, State::Bad),
            (0, 0, 0o666, State::Good),
        ] {
            chown(&file, Some(user), Some(group)).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            assert_eq!(seen_file(&file).state, state, "{user} {group} {mode:o}");
        }
    }
}
