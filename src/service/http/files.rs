//! What is to be seen on the disk and of processes: how much is in the file queue, how much memory is used.

use crate::base::summary_cache::{Summary, SummaryCache};
use crate::config::Serve;
use crate::protocol::control::{Role, Status};
use crate::queue::{Queue, State, Waiting};
use std::fs;
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
    /// The memory that each process has, in bytes.
    pub memory: Vec<(Role, u32, u64)>,
}

/// Looks, now and then, on a thread of its own.
pub(super) struct Files {
    queue: PathBuf,
    seen: SummaryCache<Seen>,
}

impl Files {
    pub(super) fn of(serve: &Serve) -> Self {
        Self { queue: serve.queue(), seen: SummaryCache::new(FRESH, PATIENCE) }
    }

    /// What was seen within the last ten seconds, or what is seen now.
    pub(super) async fn looked_at(&self, service: Option<&Status>) -> Seen {
        let (queue, processes) = (self.queue.clone(), processes(service));
        let look = async move { tokio::task::spawn_blocking(move || look(&queue, &processes)).await };
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

fn look(queue: &Path, processes: &[(Role, u32, u32)]) -> Seen {
    let waiting = Queue::existing(queue).and_then(|queue| queue.waiting());
    let memory = processes.iter().filter_map(|(role, number, pid)| Some((*role, *number, memory(*pid)?)));
    Seen {
        queue: waiting.inspect_err(|error| warn!(%error, "the file queue cannot be counted")).ok(),
        memory: memory.collect(),
    }
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
    fn the_memory_of_a_process_is_known_until_it_has_ended() {
        assert!(memory(std::process::id()).unwrap() > 1 << 20);
        assert_eq!(memory(u32::MAX), None);
    }

    #[tokio::test]
    async fn what_was_seen_counts_for_a_while() {
        let directory = tempfile::tempdir().unwrap();
        let serve = crate::service::configured(directory.path()).serve;
        Queue::open(&serve.queue()).unwrap();
        let files = Files { seen: SummaryCache::new(Duration::from_hours(1), PATIENCE), ..Files::of(&serve) };
        // A look that is not waited for any more still counts for who asks next.
        while files.looked_at(None).await.queue.is_none() {}
        fs::remove_dir_all(serve.queue()).unwrap();
        let seen = files.looked_at(None).await;
        assert!(seen.queue.is_some_and(|queue| !queue.is_empty()));
    }
}
