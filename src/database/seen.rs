//! How far the histories of database servers reach that this host has seen: a server that was the primary before a fail-over, and
//! still answers, has a shorter one than who took over. (What it commits is refused by its standbys, where it waits for them; where
//! it does not, nothing else would keep deliveries off it.)
//!
//! On PostgreSQL the timeline counts, which a promotion makes one higher; on MySQL the view of a group (Group Replication), which
//! each change of its members makes one higher. Only servers of one origin compare.

use super::silent::Silent;
use crate::base::files::{open_to_append, sync, sync_directory};
use crate::base::timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write as _};
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
/// that whoever reads it meanwhile, or after a crash, has what was there before. Without a file, and where it cannot be written, a
/// process remembers for itself.
#[derive(Debug, Default)]
pub struct Seen {
    file: Option<PathBuf>,
    /// The site's servers, by their addresses: other sites may have the same file.
    ours: BTreeSet<String>,
    /// The furthest of each origin that this process has met.
    memory: Mutex<BTreeMap<String, Met>>,
    /// The servers that were found to be no primary only once they were asked something.
    suspects: Mutex<BTreeSet<String>>,
    /// The servers that said nothing when they were last asked.
    pub(super) silent: Silent,
}

#[derive(Clone, Copy, Debug)]
struct Met {
    reach: u64,
    /// Whether it was in the file. From then on that alone counts, as long as it can be read: whoever removes it means so.
    written: bool,
}

/// The furthest reach that was seen, by where it is known from.
#[derive(Clone, Copy, Debug, Default)]
struct Furthest {
    in_file: Option<u64>,
    in_memory: Option<u64>,
    /// Whether the file could be read.
    file_is_read: bool,
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

    /// For a site with these servers.
    #[must_use]
    pub(crate) fn among(self, ours: impl Iterator<Item = String>) -> Self {
        Self { ours: ours.collect(), ..self }
    }

    /// Takes note of a server's history. `Err` is what is wrong with it: another server of the same origin reached further.
    pub(crate) fn compare(&self, history: &History, server: &str) -> Result<(), String> {
        let known = self.furthest(|origin| origin == history.origin, |_| true);
        let furthest = known.in_file.max(known.in_memory);
        if let Some(furthest) = furthest.filter(|furthest| history.reach < *furthest) {
            self.suspect(server);
            let further = |reach: Option<u64>| reach.is_some_and(|reach| history.reach < reach);
            return Err(format!(
                "it is at {} of {}, and this host has seen {furthest}: it has missed a fail-over, or was restored; if it is the \
                 right one, {}",
                history.reach,
                history.origin,
                self.how_to_forget(further(known.in_file), further(known.in_memory)),
            ));
        }
        if furthest.is_none_or(|furthest| furthest < history.reach) {
            info!(origin = history.origin, reach = history.reach, server, "a database server that was not seen before");
        }
        // What could not be written down is tried again.
        let written = known.in_file == Some(history.reach)
            || (known.file_is_read || known.in_memory != Some(history.reach)) && self.write_down(history, server);
        self.remember(history, written);
        Ok(())
    }

    /// Whether one of the site's servers was seen with a history whose origin begins so. If so, how it is forgotten.
    pub(crate) fn knows_any(&self, kind: &str) -> Option<String> {
        let is_ours = |told: &str| {
            self.ours.iter().any(|server| told.strip_suffix(server.as_str()).is_some_and(|at| at.ends_with(' ')))
        };
        let known = self.furthest(|origin| origin.starts_with(kind), is_ours);
        let [in_file, in_memory] = [known.in_file, known.in_memory].map(|reach| reach.is_some());
        (in_file || in_memory).then(|| self.how_to_forget(in_file, in_memory))
    }

    /// What somebody has to do who knows better than what was seen.
    fn how_to_forget(&self, in_file: bool, in_memory: bool) -> String {
        let restart = "restart what has run for longer than that";
        match (&self.file, in_memory) {
            (Some(file), true) if in_file => format!("remove {}, and {restart}", file.display()),
            (Some(file), false) => format!("remove {}", file.display()),
            _ => restart.into(),
        }
    }

    /// Of these origins; in the file, of the lines that end so: with a time and a server.
    fn furthest(&self, whose: impl Fn(&str) -> bool, at: impl Fn(&str) -> bool) -> Furthest {
        let file = match self.file.as_deref().map(|file| read(file, at)) {
            Some(Ok(file)) => Some(file),
            Some(Err(error)) => {
                warn!(%error, "database.seen_file cannot be read: a server that has missed a fail-over may not be told");
                None
            }
            None => None,
        };
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &file {
            for (origin, met) in memory.iter_mut() {
                met.written |= file.get(origin).is_some_and(|in_file| met.reach <= *in_file);
            }
        }
        let counts = |met: &Met| file.is_none() || !met.written;
        let in_memory = memory.iter().filter(|(origin, met)| whose(origin) && counts(met)).map(|(_, met)| met.reach);
        Furthest {
            in_memory: in_memory.max(),
            in_file: file.iter().flatten().filter(|(origin, _)| whose(origin)).map(|(_, reach)| *reach).max(),
            file_is_read: file.is_some(),
        }
    }

    /// Whether it is in the file from now on.
    fn write_down(&self, history: &History, server: &str) -> bool {
        let Some(file) = &self.file else { return false };
        let written = append(file, history, server);
        if let Err(error) = &written {
            warn!(%error, "database.seen_file cannot be written: other deliveries do not know of this server");
        }
        written.is_ok()
    }

    fn remember(&self, history: &History, written: bool) {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let met = memory.entry(history.origin.clone()).or_insert(Met { reach: history.reach, written });
        if met.reach <= history.reach {
            *met = Met { reach: history.reach, written };
        }
    }
}

/// The highest number after each origin, of the lines that end so. A line that is none of ours, or was cut short, counts for nothing.
fn read(file: &Path, at: impl Fn(&str) -> bool) -> io::Result<BTreeMap<String, u64>> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        text => text?,
    };
    let line = |line: &str| -> Option<(String, u64)> {
        let mut parts = line.splitn(3, ' ');
        let (origin, reach) = (parts.next()?.to_owned(), parts.next()?.parse().ok()?);
        // With nothing behind it, it may be half a number. The time, and the server.
        at(parts.next()?).then_some((origin, reach))
    };
    let mut furthest = BTreeMap::new();
    for (origin, reach) in text.lines().filter_map(line) {
        let so_far = furthest.entry(origin).or_insert(reach);
        *so_far = reach.max(*so_far);
    }
    Ok(furthest)
}

fn append(file: &Path, history: &History, server: &str) -> io::Result<()> {
    let mut open = open_to_append(file, 0o664)?;
    let at = timestamp::told(timestamp::now());
    // Begins a new line, where somebody was cut short in the middle of one.
    open.write_all(format!("\n{} {} {at} {server}\n", history.origin, history.reach).as_bytes())?;
    sync(&open)?;
    file.parent().map_or(Ok(()), sync_directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags};
    use std::fs::File;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;

    fn site_of(server: &str, file: &Path) -> Seen {
        Seen::new(Some(file.to_owned())).among(std::iter::once(server.to_owned()))
    }

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
        // A directory is no file; and where there is no folder, there is no file, and none can be made.
        for file in [folder.path().to_owned(), folder.path().join("nowhere/seen")] {
            let seen = Seen::new(Some(file));
            seen.compare(&at("a", 2), "db2").unwrap();
            let said = seen.compare(&at("a", 1), "db1").unwrap_err();
            assert!(said.ends_with("restart what has run for longer than that"), "{said}");
        }
        // What was in it when it could be read, and was met then.
        let file = folder.path().join("seen");
        fs::write(&file, "a 2 then db2\n").unwrap();
        let seen = Seen::new(Some(file.clone()));
        seen.compare(&at("a", 2), "db2").unwrap();
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        seen.compare(&at("a", 1), "db1").unwrap_err();
    }

    /// Others may be able to read it: no process writes the same again and again, once for each delivery.
    #[test]
    fn what_cannot_be_read_is_written_to_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("seen");
        // No text.
        fs::write(&file, b"\xff\n").unwrap();
        let seen = Seen::new(Some(file.clone()));
        for (reach, lines) in [(2, 3), (2, 3), (3, 5)] {
            seen.compare(&at("a", reach), "db2").unwrap();
            assert_eq!(fs::read(&file).unwrap().split(|byte| *byte == b'\n').count() - 1, lines, "{reach}");
        }
    }

    /// A file that can be read, and not written, whoever asks: what its text is.
    fn sealed(text: &str) -> (File, PathBuf) {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(rustix::fs::memfd_create("seen", flags).unwrap());
        file.write_all(text.as_bytes()).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        (file, path)
    }

    /// A primary is left behind and answers. The other one is asked, and has taken over, which cannot be written down.
    #[test]
    fn what_cannot_be_written_down_counts_beside_what_is_in_the_file() {
        let (_file, path) = sealed("a 1 then db1\nb 7 then db7\n");
        let seen = Seen::of_several(Some(path.clone()));
        seen.compare(&at("a", 1), "db1").unwrap();
        seen.compare(&at("a", 2), "db2").unwrap();
        let said = seen.compare(&at("a", 1), "db1").unwrap_err();
        assert!(said.contains("has seen 2") && said.ends_with("restart what has run for longer than that"), "{said}");
        assert!(seen.suspects("db1"));
        seen.compare(&at("a", 2), "db2").unwrap();
        // Both tell of it.
        seen.compare(&at("b", 8), "db8").unwrap();
        let said = seen.compare(&at("b", 6), "db6").unwrap_err();
        let both = format!("remove {}, and restart what has run for longer than that", path.display());
        assert!(said.contains("has seen 8") && said.ends_with(&both), "{said}");
        let said = seen.compare(&at("b", 7), "db7").unwrap_err();
        assert!(said.contains("has seen 8") && !said.contains("remove"), "{said}");
    }

    #[test]
    fn what_could_not_be_written_down_is_written_once_it_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("later/seen");
        let seen = Seen::new(Some(file.clone()));
        seen.compare(&at("a", 2), "db2").unwrap();
        fs::create_dir(folder.path().join("later")).unwrap();
        seen.compare(&at("a", 2), "db2").unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("\na 2 ") && text.lines().count() == 2, "{text}");
        seen.compare(&at("a", 2), "db2").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
        // And from then on the file alone says it.
        fs::remove_file(&file).unwrap();
        seen.compare(&at("a", 1), "db1").unwrap();
        // The same where another process has written it.
        fs::remove_dir_all(folder.path().join("later")).unwrap();
        seen.compare(&at("a", 2), "db2").unwrap();
        fs::create_dir(folder.path().join("later")).unwrap();
        fs::write(&file, "a 3 then db3\n").unwrap();
        seen.compare(&at("a", 2), "db2").unwrap_err();
        fs::remove_file(&file).unwrap();
        seen.compare(&at("a", 1), "db1").unwrap();
    }

    #[test]
    fn what_was_seen_of_a_kind_is_known_until_it_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("seen");
        for (seen, forget) in [
            (Seen::new(None), "restart what has run for longer than that".to_owned()),
            (site_of("db1 port 3306", &file), format!("remove {}", file.display())),
        ] {
            seen.compare(&at("group", 1), "db1 port 3306").unwrap();
            assert_eq!(seen.knows_any("group/"), None);
            seen.compare(&at("group/7b2f/1", 1), "db1 port 3306").unwrap();
            assert_eq!(seen.knows_any("group/"), Some(forget));
        }
        let another_process = site_of("db1 port 3306", &file);
        assert!(another_process.knows_any("group/").is_some());
        assert_eq!(site_of("b1 port 3306", &file).knows_any("group/"), None, "another site has the same file");
        fs::remove_file(&file).unwrap();
        assert_eq!(another_process.knows_any("group/"), None);
    }

    /// The first to make it is an administrator's `check`, after an installation.
    #[test]
    fn a_file_that_root_makes_belongs_to_whom_its_folder_belongs_to() {
        let folder = tempfile::tempdir().unwrap();
        // Only root can give it to somebody else; whoever else makes it has it.
        let _ = std::os::unix::fs::chown(folder.path(), Some(65_534), Some(65_534));
        let file = folder.path().join("seen");
        let seen = Seen::new(Some(file.clone()));
        seen.compare(&at("a", 1), "db1").unwrap();
        seen.compare(&at("a", 2), "db2").unwrap();
        let [file, folder] = [&file, folder.path()].map(|path| fs::metadata(path).unwrap());
        assert_eq!((file.uid(), file.gid()), (folder.uid(), folder.gid()));
    }
}
