//! How far the histories of database servers reach that this host has seen: a server that was the primary before a fail-over, and
//! still answers, has a shorter one than who took over. (What it commits is refused by its standbys, where it waits for them; where
//! it does not, nothing else would keep deliveries off it.)
//!
//! On PostgreSQL the timeline counts, which a promotion makes one higher; on MySQL the view of a group (Group Replication), which
//! each change of its members makes one higher. Only servers of one origin compare.

use super::silent::Silent;
use crate::base::files::sync_directory;
use crate::base::timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tracing::{info, warn};

/// How far a server's history reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct History {
    /// Where it began: `postgresql/7412345678901234567`. Nothing but letters, digits, `/`, `-` and `:`.
    pub origin: String,
    /// Its timeline, or view.
    pub reach: u64,
}

/// What this host has seen.
///
/// Deliveries are processes of their own, and know of each other by a file. It is only ever appended to, by a line of one write, so
/// that whoever reads it meanwhile, or after a crash, has what was there before. Without a file, a process remembers for itself.
#[derive(Debug, Default)]
pub struct Seen {
    file: Option<PathBuf>,
    memory: Mutex<BTreeMap<String, u64>>,
    /// The servers that were found to be no primary only once they were asked something.
    suspects: Mutex<BTreeSet<String>>,
    /// The servers that said nothing when they were last asked.
    pub(super) silent: Silent,
}

impl Seen {
    /// What is in this file, if there is one.
    #[must_use]
    pub fn new(file: Option<PathBuf>) -> Self {
        Self { file, ..Self::default() }
    }

    /// The same where there are several servers, so that it matters to others which of them say nothing.
    #[must_use]
    pub fn of_several(file: Option<PathBuf>) -> Self {
        Self { silent: Silent::beside(file.as_deref()), file, ..Self::default() }
    }

    /// This server has not said on connecting that it is no primary: from now on it is asked before it is used.
    pub(crate) fn suspect(&self, server: &str) {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner).insert(server.to_owned());
    }

    /// Whether it is to be asked before it is used.
    pub(crate) fn suspects(&self, server: &str) -> bool {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner).contains(server)
    }

    /// Takes note of a server's history. `Err` is what is wrong with it: another server of the same origin reached further.
    pub(crate) fn compare(&self, history: &History, server: &str) -> Result<(), String> {
        let (furthest, in_file) = self.furthest(&history.origin);
        match furthest {
            Some(furthest) if history.reach < furthest => {
                self.suspect(server);
                let reset = match &self.file {
                    Some(file) if in_file => format!("remove {}", file.display()),
                    _ => "restart what has run for longer than that".into(),
                };
                Err(format!(
                    "it is at {} of {}, and this host has seen {furthest}: it has missed a fail-over, or was restored; if it \
                     is the right one, {reset}",
                    history.reach, history.origin,
                ))
            }
            Some(furthest) if history.reach == furthest => Ok(()),
            _ => {
                self.note(history, server);
                Ok(())
            }
        }
    }

    /// The furthest reach that was seen, and whether that is from the file.
    fn furthest(&self, origin: &str) -> (Option<u64>, bool) {
        match self.file.as_deref().map(|file| read(file, origin)) {
            Some(Ok(furthest)) => (furthest, true),
            Some(Err(error)) => {
                warn!(%error, "database.seen_file cannot be read: a server that has missed a fail-over may not be told");
                (self.remembered(origin), false)
            }
            None => (self.remembered(origin), false),
        }
    }

    fn remembered(&self, origin: &str) -> Option<u64> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).get(origin).copied()
    }

    fn note(&self, history: &History, server: &str) {
        info!(origin = history.origin, reach = history.reach, server, "a database server that was not seen before");
        if let Some(file) = &self.file
            && let Err(error) = append(file, history, server)
        {
            warn!(%error, "database.seen_file cannot be written: other deliveries do not know of this server");
        }
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.insert(history.origin.clone(), history.reach);
    }
}

/// The highest number after this origin. A line that is none of ours, or was cut short, counts for nothing.
fn read(file: &Path, origin: &str) -> io::Result<Option<u64>> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let reach = |line: &str| {
        let mut words = line.split(' ');
        let reach = (words.next()? == origin).then(|| words.next()?.parse().ok()).flatten();
        // With nothing behind it, it may be half a number.
        reach.filter(|_| words.next().is_some())
    };
    Ok(text.lines().filter_map(reach).max())
}

fn append(file: &Path, history: &History, server: &str) -> io::Result<()> {
    let mut open = OpenOptions::new();
    let mut open = open.append(true).create(true).mode(0o664).open(file)?;
    let at = timestamp::told(timestamp::now());
    // Begins a new line, where somebody was cut short in the middle of one.
    open.write_all(format!("\n{} {} {at} {server}\n", history.origin, history.reach).as_bytes())?;
    open.sync_all()?;
    file.parent().map_or(Ok(()), sync_directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(origin: &str, reach: u64) -> History {
        History { origin: origin.into(), reach }
    }

    #[test]
    fn a_shorter_history_of_one_origin_is_told_and_every_other_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("seen");
        for seen in [Seen::new(None), Seen::new(Some(file.clone()))] {
            for (origin, reach) in [("a", 9), ("a", 9), ("a", 10), ("b", 1), ("a", 10)] {
                assert_eq!(seen.compare(&at(origin, reach), "db1"), Ok(()), "{origin} {reach}");
            }
            let said = seen.compare(&at("a", 9), "db1").unwrap_err();
            assert!(said.contains("it is at 9 of a, and this host has seen 10"), "{said}");
            assert_eq!(seen.compare(&at("b", 1), "db1"), Ok(()));
        }
        // Another process.
        let said = Seen::new(Some(file.clone())).compare(&at("a", 9), "db1").unwrap_err();
        assert!(said.ends_with(&format!("remove {}", file.display())), "{said}");
        let lines = fs::read_to_string(&file).unwrap();
        assert_eq!(lines.lines().filter(|line| !line.is_empty()).count(), 3, "{lines}");
    }

    #[test]
    fn the_file_can_be_removed_and_a_line_that_was_cut_short_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("seen");
        let seen = Seen::new(Some(file.clone()));
        seen.compare(&at("a", 2), "db2").unwrap();
        fs::remove_file(&file).unwrap();
        seen.compare(&at("a", 1), "db1").unwrap();
        fs::write(&file, "a 1 then\nnonsense\n\na x\na 77").unwrap();
        seen.compare(&at("a", 3), "db3").unwrap();
        let said = seen.compare(&at("a", 2), "db2").unwrap_err();
        assert!(said.contains("has seen 3"), "{said}");
    }

    #[test]
    fn one_that_is_behind_is_asked_from_then_on_and_of_several_it_is_known_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let seen = Seen::of_several(Some(folder.path().join("seen")));
        seen.compare(&at("a", 2), "db2").unwrap();
        assert!(!seen.suspects("db1"));
        Seen::new(Some(folder.path().join("seen"))).compare(&at("a", 1), "db1").unwrap_err();
        seen.compare(&at("a", 1), "db1").unwrap_err();
        assert!(seen.suspects("db1") && !seen.suspects("db2"));
        seen.suspect("db3");
        assert!(seen.suspects("db3"));
    }

    #[test]
    fn a_file_that_cannot_be_had_leaves_the_memory() {
        let folder = tempfile::tempdir().unwrap();
        // A directory is no file.
        let seen = Seen::new(Some(folder.path().to_owned()));
        seen.compare(&at("a", 2), "db2").unwrap();
        let said = seen.compare(&at("a", 1), "db1").unwrap_err();
        assert!(said.ends_with("restart what has run for longer than that"), "{said}");
    }
}
