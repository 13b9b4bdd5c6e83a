//! What is to be seen on the disk and of processes: how much is in the file queue, what is set aside, how much memory is used.

use crate::base::summary_cache::{Summary, SummaryCache};
use crate::config::Serve;
use crate::handover::control::{Role, Status};
use crate::queue::{Queue, State, Waiting};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::warn;

/// How old a look may be, at least.
const FRESH: Duration = Duration::from_secs(10);
/// How long is waited for a new look; then the last one counts. A folder of a million files takes a while.
const PATIENCE: Duration = Duration::from_secs(2);

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The file queue, by folder. `None` where it could not be read.
    pub queue: Option<Vec<(State, Waiting)>>,
    /// Messages that are set aside, for they ended workers. `None` where there is no such folder.
    pub shunted: Option<u64>,
    /// The memory that each process has, in bytes.
    pub memory: Vec<(Role, u32, u64)>,
}

/// Looks, now and then, on a thread of its own.
pub(super) struct Files {
    queue: PathBuf,
    shunted: PathBuf,
    seen: SummaryCache<Seen>,
}

impl Files {
    pub(super) fn of(serve: &Serve) -> Self {
        let shunted = serve.state_directory.join("shunted");
        Self { queue: serve.queue(), shunted, seen: SummaryCache::new(FRESH, PATIENCE) }
    }

    /// What was seen within the last ten seconds, or what is seen now.
    pub(super) async fn looked_at(&self, service: Option<&Status>) -> Seen {
        let (queue, shunted, processes) = (self.queue.clone(), self.shunted.clone(), processes(service));
        let look = async move { tokio::task::spawn_blocking(move || look(&queue, &shunted, &processes)).await };
        match self.seen.get(look).await {
            Summary::Counted(seen) => seen,
            Summary::UnderWay | Summary::Failed(_) => Seen::default(),
        }
    }
}

fn processes(service: Option<&Status>) -> Vec<(Role, u32, u32)> {
    let processes = service.into_iter().flat_map(|service| &service.processes);
    processes.filter_map(|process| Some((process.role, process.number, process.pid?))).collect()
}

fn look(queue: &Path, shunted: &Path, processes: &[(Role, u32, u32)]) -> Seen {
    let waiting = Queue::existing(queue).and_then(|queue| queue.waiting());
    let memory = processes.iter().filter_map(|(role, number, pid)| Some((*role, *number, memory(*pid)?)));
    Seen {
        queue: waiting.inspect_err(|error| warn!(%error, "the file queue cannot be counted")).ok(),
        shunted: files(shunted)
            .inspect_err(|error| warn!(%error, "what is set aside cannot be counted"))
            .ok()
            .flatten(),
        memory: memory.collect(),
    }
}

/// How many messages there are in a folder, by their names; `None` where it is not there.
fn files(folder: &Path) -> io::Result<Option<u64>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    // Each has the SHA-256 of its message for a name.
    let is_one = |name: &[u8]| name.len() == 64 && name.iter().all(u8::is_ascii_hexdigit);
    Ok(Some(names.filter(|name| is_one(name.as_encoded_bytes())).count() as u64))
}

/// How much memory a process has, in bytes. `None` where it has ended.
fn memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_aside_is_counted_and_a_folder_that_is_not_there_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("shunted");
        assert_eq!(files(&folder).unwrap(), None);
        fs::create_dir(&folder).unwrap();
        assert_eq!(files(&folder).unwrap(), Some(0));
        fs::write(folder.join("0f".repeat(32)), "").unwrap();
        for other in ["1.new".to_owned(), "0f".repeat(31), "0f".repeat(33), "0g".repeat(32)] {
            fs::write(folder.join(other), "").unwrap();
        }
        assert_eq!(files(&folder).unwrap(), Some(1));
        assert!(files(&folder.join("1.new")).is_err(), "what is no folder is not the same as none");
        assert!(memory(std::process::id()).unwrap() > 1 << 20);
        assert_eq!(memory(u32::MAX), None);
    }

    #[tokio::test]
    async fn what_was_seen_counts_for_a_while() {
        let directory = tempfile::tempdir().unwrap();
        let serve = crate::serve::configured(directory.path()).serve;
        Queue::open(&serve.queue()).unwrap();
        fs::create_dir(serve.state_directory.join("shunted")).unwrap();
        let files = Files { seen: SummaryCache::new(Duration::from_hours(1), PATIENCE), ..Files::of(&serve) };
        // A look that is not waited for any more still counts for who asks next.
        while files.looked_at(None).await.shunted.is_none() {}
        fs::remove_dir(serve.state_directory.join("shunted")).unwrap();
        let seen = files.looked_at(None).await;
        assert!(seen.queue.is_some_and(|queue| !queue.is_empty()) && seen.shunted == Some(0));
    }
}
