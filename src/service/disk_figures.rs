//! Figures from the disk and about processes: the content of the file queue, the timer's state file, the memory use.

use super::timer::written_down;
use crate::base::summary_cache::{Summary, SummaryCache};
use crate::config::Service;
use crate::protocol::control::{Role, Status, Task};
use crate::queue::{Queue, State, Waiting};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::warn;

/// For this time, the figures are not read again.
const FRESH: Duration = Duration::from_secs(5);
/// How long a caller waits for new figures before it gets the last ones: a folder of a million files takes a while.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DiskFigures {
    /// The file queue, by folder. `None` if it could not be read.
    pub queue: Option<Vec<(State, Waiting)>>,
    pub timer: Vec<Task>,
    /// The memory use of each process, in bytes: role, number within the role, bytes.
    pub memory: Vec<(Role, u32, u64)>,
}

/// Reads the figures on a thread of its own.
#[derive(Clone)]
pub struct DiskFiguresReader {
    queue: PathBuf,
    /// The timer's state file.
    timer: PathBuf,
    last: SummaryCache<DiskFigures>,
}

impl DiskFiguresReader {
    pub fn of(service: &Service) -> Self {
        Self { queue: service.queue(), timer: service.timer_state(), last: SummaryCache::new(FRESH, PATIENCE) }
    }

    /// The figures. They are at most five seconds old, if they could be read in time.
    pub(super) async fn read(&self, service: Option<&Status>) -> DiskFigures {
        let (queue, timer, processes) = (self.queue.clone(), self.timer.clone(), processes(service));
        let read = async move { tokio::task::spawn_blocking(move || read(&queue, &timer, &processes)).await };
        match self.last.get(read).await {
            Summary::Counted(figures) => figures,
            Summary::UnderWay | Summary::Failed(_) => DiskFigures::default(),
        }
    }
}

fn processes(service: Option<&Status>) -> Vec<(Role, u32, u32)> {
    let processes = service.into_iter().flat_map(|service| &service.processes);
    processes.filter_map(|process| Some((process.role, process.number, process.pid?))).collect()
}

fn read(queue: &Path, timer: &Path, processes: &[(Role, u32, u32)]) -> DiskFigures {
    let waiting = Queue::existing(queue).and_then(|queue| queue.waiting());
    let memory = processes.iter().filter_map(|(role, number, pid)| Some((*role, *number, memory(&pid.to_string())?)));
    DiskFigures {
        queue: waiting.inspect_err(|error| warn!(%error, "the file queue cannot be counted")).ok(),
        timer: written_down(timer),
        memory: memory.collect(),
    }
}

/// The memory use of this process (`self`), or of the one with this id, in bytes. `None` if the system does not report it.
pub(super) fn memory(process: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_process_is_known_until_it_has_ended() {
        assert!(memory(&std::process::id().to_string()).unwrap() > 1 << 20);
        assert_eq!(memory(&u32::MAX.to_string()), None);
    }

    #[tokio::test]
    async fn what_was_read_counts_for_a_while() {
        let directory = tempfile::tempdir().unwrap();
        let service = crate::service::configured(directory.path()).service;
        Queue::open(&service.queue()).unwrap();
        let last = SummaryCache::new(Duration::from_hours(1), PATIENCE);
        let reader = DiskFiguresReader { last, ..DiskFiguresReader::of(&service) };
        // A read that was too slow for one caller serves the next.
        while reader.read(None).await.queue.is_none() {}
        fs::remove_dir_all(service.queue()).unwrap();
        let figures = reader.read(None).await;
        assert!(figures.queue.is_some_and(|queue| !queue.is_empty()));
    }
}
