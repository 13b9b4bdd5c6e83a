//! When a worker is replaced. The end of the process frees memory that grows a little with each delivery, in this program or in a
//! library.

use crate::config::RECYCLE_ABOVE;
use crate::service::disk_figures::memory;
use std::time::{Duration, Instant};
use tracing::info;

/// The age at which a worker is replaced: the database server keeps memory for each session, too.
const LIFE: Duration = Duration::from_hours(1);

#[derive(Clone, Copy)]
pub(super) struct Recycling {
    began: Instant,
    deliveries: u64,
    memory: u64,
}

impl Recycling {
    /// `deliveries` is the number after which a new worker replaces this one.
    pub(super) fn new(deliveries: u64) -> Self {
        Self { began: Instant::now(), deliveries, memory: RECYCLE_ABOVE }
    }

    /// Whether another process must replace this one, after this number of deliveries.
    pub(super) fn is_due(&self, deliveries: u64) -> bool {
        // If the system does not report the memory use, the other two limits must do.
        let memory = memory("self");
        let due = deliveries >= self.deliveries || memory.is_some_and(|memory| memory > self.memory) || self.is_old();
        if due {
            info!(deliveries, memory, age_s = self.began.elapsed().as_secs(), "this worker has served for long enough");
        }
        due
    }

    /// Like [`is_due`](Self::is_due), for an idle worker: only its age counts.
    pub(super) fn is_old(&self) -> bool {
        self.began.elapsed() >= LIFE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_replaced_after_enough_deliveries_or_an_hour_or_with_too_much_memory() {
        let used = memory("self").unwrap();
        assert!(used > 1 << 20, "{used}");
        let recycling = |memory| Recycling { memory, ..Recycling::new(3) };
        assert!(!recycling(used * 100).is_due(2));
        assert!(recycling(used * 100).is_due(3));
        assert!(recycling(used / 2).is_due(0));
        assert!(!recycling(0).is_old());
        let began = Instant::now().checked_sub(LIFE).unwrap();
        let old = Recycling { began, ..recycling(used * 100) };
        assert!(old.is_old() && old.is_due(0));
    }
}
