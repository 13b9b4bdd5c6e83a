//! Which servers said nothing when they were last asked: for a while, others are asked first.
//!
//! Only the order hangs on it: nobody is left out. So what cannot be read or written costs time, and nothing else.

use crate::base::timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tracing::{debug, warn};

/// For how long others go by what one process has written down, in microseconds. Then one of them tries the server in its turn.
const LASTS: i64 = 60_000_000;
/// After so long, what nobody tried again (its server is in no configuration any more) is written down no more.
const FORGOTTEN: i64 = 60 * LASTS;

/// Those that said nothing. A process remembers for itself until they let it in; others, deliveries by pipe(8) above all, know of it by a
/// file, which is there only as long as some server is in it.
#[derive(Debug, Default)]
pub(super) struct Silent {
    file: Option<PathBuf>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Those that said nothing to this process.
    here: BTreeSet<String>,
    /// Those that were in the file when it was last read.
    in_file: BTreeSet<String>,
}

impl Silent {
    /// Beside the file of what was seen.
    pub(super) fn beside(seen: Option<&Path>) -> Self {
        let with = |end: &str, path: &Path| {
            let mut name = OsString::from(path);
            name.push(end);
            PathBuf::from(name)
        };
        Self { file: seen.map(|seen| with(".silent", seen)), ..Self::default() }
    }

    /// Those that are asked last, of those that are `ours`. What was written down too long ago is written down anew, by the one process
    /// that tries that server in its turn: meanwhile the others still ask it last.
    pub(super) fn asked_last(&self, ours: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = &self.file else { return known.here.clone() };
        let (written, now) = (read(file), timestamp::now());
        let (mut last, mut in_turn) = (known.here.clone(), BTreeSet::new());
        for (server, at) in &written {
            if (0..LASTS).contains(&(now - at)) {
                last.insert(server.clone());
            } else if ours(server) && !known.here.contains(server) {
                in_turn.insert(server.clone());
            }
        }
        if !in_turn.is_empty() {
            change(file, |all| all.extend(in_turn.into_iter().map(|server| (server, now))));
        }
        known.in_file = written.into_keys().collect();
        last
    }

    /// It said nothing.
    pub(super) fn insert(&self, server: &str) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.here.insert(server.to_owned());
        if let Some(file) = &self.file {
            change(file, |all| all.extend([(server.to_owned(), timestamp::now())]));
            known.in_file.insert(server.to_owned());
        }
    }

    /// It let us in.
    pub(super) fn remove(&self, server: &str) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.here.remove(server);
        if known.in_file.remove(server)
            && let Some(file) = &self.file
        {
            change(file, |all| all.retain(|name, _| name != server));
        }
    }

    /// Whether there is none, as far as this process knows.
    pub(super) fn is_empty(&self) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.here.is_empty() && known.in_file.is_empty()
    }
}

/// The servers, and when each said nothing. A line that is none of ours counts for nothing.
fn read(file: &Path) -> BTreeMap<String, i64> {
    let text = match fs::read(file) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                debug!(%error, file = %file.display(), "which servers say nothing cannot be read");
            }
            return BTreeMap::new();
        }
    };
    let line = |line: &str| {
        let (at, server) = line.split_once(' ')?;
        Some((server.to_owned(), timestamp::read_exact(at)?))
    };
    String::from_utf8_lossy(&text).lines().filter_map(line).collect()
}

fn change(file: &Path, change: impl FnOnce(&mut BTreeMap<String, i64>)) {
    let mut all = read(file);
    change(&mut all);
    let now = timestamp::now();
    all.retain(|_, at| now - *at < FORGOTTEN);
    match replace(file, &all) {
        Ok(()) => {}
        // Another process writes just now, or has written the same.
        Err(error) if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) => {
            debug!(%error, file = %file.display(), "another process writes which servers say nothing");
        }
        Err(error) => {
            warn!(%error, file = %file.display(), "cannot be written: each delivery waits for a server that says nothing");
        }
    }
}

/// By another file, so that whoever reads it has the whole of it. It need not outlive a crash of the machine.
fn replace(file: &Path, all: &BTreeMap<String, i64>) -> io::Result<()> {
    if all.is_empty() {
        return fs::remove_file(file);
    }
    let text: String = all.iter().map(|(server, at)| format!("{} {server}\n", timestamp::exact(*at))).collect();
    let new = file.with_extension("silent.new");
    // Whose writer has died.
    if let Err(error) = fs::remove_file(&new)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    OpenOptions::new().write(true).create_new(true).mode(0o664).open(&new)?.write_all(text.as_bytes())?;
    fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(silent: &Silent) -> Vec<String> {
        silent.asked_last(|_| true).into_iter().collect()
    }

    /// What this process and others, which begin now, know; and the file.
    fn in_a_folder() -> (tempfile::TempDir, impl Fn() -> Silent, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let seen = folder.path().join("database.seen");
        let file = folder.path().join("database.seen.silent");
        (folder, move || Silent::beside(Some(&seen)), file)
    }

    fn write(file: &Path, server: &str, ago: i64) {
        fs::write(file, format!("{} {server}\n", timestamp::exact(timestamp::now() - ago))).unwrap();
    }

    #[test]
    fn others_know_who_said_nothing_until_it_lets_anybody_in() {
        let (_folder, process, file) = in_a_folder();
        let one = process();
        assert!(last(&one).is_empty() && one.is_empty() && !file.exists());
        one.insert("db1 port 5432");
        one.insert("/run/a socket");
        let two = process();
        assert_eq!(last(&two), ["/run/a socket", "db1 port 5432"]);
        two.remove("db1 port 5432");
        assert_eq!(last(&process()), ["/run/a socket"]);
        // Whom it said nothing to remembers until it lets him in.
        assert_eq!(last(&one), ["/run/a socket", "db1 port 5432"]);
        for server in last(&one) {
            one.remove(&server);
        }
        assert!(last(&one).is_empty() && one.is_empty() && !file.exists());
    }

    #[test]
    fn after_a_while_one_process_tries_it_in_its_turn() {
        let (_folder, process, file) = in_a_folder();
        write(&file, "db1", LASTS);
        assert!(process().asked_last(|server| server != "db1").is_empty(), "of another site");
        assert!(last(&process()).is_empty());
        assert_eq!(last(&process()), ["db1"]);
        // A clock was set.
        write(&file, "db1", -LASTS);
        assert!(last(&process()).is_empty());
        assert_eq!(last(&process()), ["db1"]);
    }

    #[test]
    fn one_that_nobody_asks_any_more_is_forgotten() {
        let (_folder, process, file) = in_a_folder();
        write(&file, "db0", FORGOTTEN);
        process().insert("db1");
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.ends_with(" db1\n") && !text.contains("db0"), "{text}");
    }

    #[test]
    fn a_damaged_file_is_as_none_and_is_mended_by_the_next_that_writes() {
        let (_folder, process, file) = in_a_folder();
        for damage in [&b"\xff\xfe\n\n2026-11-23T23:59:59Z\nnever db1\n2026-"[..], b"", &[0; 4096]] {
            fs::write(&file, damage).unwrap();
            assert!(last(&process()).is_empty());
            // Somebody died while he wrote.
            fs::write(file.with_extension("silent.new"), damage).unwrap();
            process().insert("db1");
            assert_eq!(last(&process()), ["db1"]);
            assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 1);
        }
    }

    #[test]
    fn without_a_file_or_a_folder_a_process_remembers_for_itself() {
        for silent in [Silent::beside(None), Silent::beside(Some(Path::new("/nowhere/database.seen")))] {
            silent.insert("db1");
            assert_eq!(last(&silent), ["db1"]);
            silent.remove("db1");
            assert!(last(&silent).is_empty());
        }
    }
}
