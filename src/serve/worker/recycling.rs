//! When a worker has served for long enough: memory that grows a little with each delivery, in this program or a library of it, is
//! given back by its end.

use super::WorkerSettings;
use std::fs;
use std::time::{Duration, Instant};
use tracing::info;

/// The longest life of a worker: the database's server keeps memory for each session, too.
pub(super) const LIFE: Duration = Duration::from_hours(1);

pub(super) struct Recycling {
    began: Instant,
    deliveries: u64,
    memory: u64,
}

impl Recycling {
    pub(super) fn new(settings: &WorkerSettings) -> Self {
        Self { began: Instant::now(), deliveries: settings.recycle_after, memory: settings.recycle_above }
    }

    /// Whether another process is to go on, after so many deliveries.
    pub(super) fn is_due(&self, deliveries: u64) -> bool {
        let memory = memory();
        let due = deliveries >= self.deliveries
            || self.began.elapsed() >= LIFE
            || memory.is_some_and(|memory| memory > self.memory);
        if due {
            info!(deliveries, memory, age_s = self.began.elapsed().as_secs(), "this worker has served for long enough");
        }
        due
    }
}

/// How much memory this process uses, in bytes. `None` where the system does not tell: then the other two limits have to do.
fn memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_recycled_after_enough_deliveries_or_with_too_much_memory() {
        let used = memory().unwrap();
        assert!(used > 1 << 20, "{used}");
        let recycling = |memory| Recycling { began: Instant::now(), deliveries: 3, memory };
        assert!(!recycling(used * 100).is_due(2));
        assert!(recycling(used * 100).is_due(3));
        assert!(recycling(used / 2).is_due(0));
    }
}
