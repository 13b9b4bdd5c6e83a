//! When a worker is replaced. The end of the process frees memory that grows a little with each delivery, in this program or in a
//! library.
//!
//! A worker stays if no other could begin in its place, for example because a password file was removed. The old worker has
//! already read all that it needs, and goes on delivering.

use crate::config::RECYCLE_ABOVE;
use crate::service::disk_figures::memory;
use crate::service::error::ServiceError;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The age at which a worker is replaced: the database server keeps memory for each session, too.
const LIFE: Duration = Duration::from_hours(1);
/// The pause before the next check whether another process could begin.
const PAUSE: Duration = Duration::from_mins(1);

/// Checks whether another process could begin in this one's place; `Err` has the reason if not.
pub type Successor = Box<dyn Fn() -> Result<(), ServiceError> + Send + Sync>;

pub(super) struct Recycling {
    began: Instant,
    deliveries: u64,
    memory: u64,
    successor: Successor,
    /// The next check happens at this time at the earliest.
    next_check: Mutex<Instant>,
}

impl Recycling {
    /// `deliveries` is the number after which a new worker replaces this one.
    pub(super) fn new(deliveries: u64, successor: Successor) -> Self {
        let began = Instant::now();
        Self { began, deliveries, memory: RECYCLE_ABOVE, successor, next_check: Mutex::new(began) }
    }

    /// Whether another process must replace this one, after this number of deliveries.
    pub(super) fn is_due(&self, deliveries: u64) -> bool {
        // If the system does not report the memory use, the other two limits must do.
        let memory = memory("self");
        let due = deliveries >= self.deliveries || memory.is_some_and(|memory| memory > self.memory) || self.is_old();
        let due = due && self.another_could_begin();
        if due {
            info!(deliveries, memory, age_s = self.began.elapsed().as_secs(), "this worker has served for long enough");
        }
        due
    }

    /// Like [`is_due`](Self::is_due), for an idle worker: only its age counts.
    pub(super) fn is_due_by_age(&self) -> bool {
        self.is_old() && self.another_could_begin()
    }

    fn is_old(&self) -> bool {
        self.began.elapsed() >= LIFE
    }

    fn another_could_begin(&self) -> bool {
        let mut next_check = self.next_check.lock().unwrap_or_else(PoisonError::into_inner);
        if Instant::now() < *next_check {
            return false;
        }
        let Err(why) = (self.successor)() else { return true };
        warn!(%why, "no new worker could begin: this one, which has served for long enough, goes on until one can");
        *next_check = Instant::now() + PAUSE;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    #[test]
    fn a_worker_is_replaced_after_enough_deliveries_or_an_hour_or_with_too_much_memory() {
        let used = memory("self").unwrap();
        assert!(used > 1 << 20, "{used}");
        let recycling = |memory| Recycling { memory, ..Recycling::new(3, Box::new(|| Ok(()))) };
        assert!(!recycling(used * 100).is_due(2));
        assert!(recycling(used * 100).is_due(3));
        assert!(recycling(used / 2).is_due(0));
        assert!(!recycling(0).is_due_by_age());
        let began = Instant::now().checked_sub(LIFE).unwrap();
        let old = Recycling { began, ..recycling(used * 100) };
        assert!(old.is_due_by_age() && old.is_due(0));
    }

    #[test]
    fn one_that_is_old_goes_on_until_another_could_begin_which_is_not_checked_each_time() {
        let (could, checks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (answer, count) = (Arc::clone(&could), Arc::clone(&checks));
        let successor: Successor = Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
            if answer.load(Ordering::Relaxed) { Ok(()) } else { Err(ServiceError::NoMaster) }
        });
        let mut worker = Recycling { memory: u64::MAX, ..Recycling::new(1000, successor) };
        assert!(!worker.is_due_by_age() && !worker.is_due(0));
        assert_eq!(checks.load(Ordering::Relaxed), 0, "it is not old");

        worker.began = Instant::now().checked_sub(LIFE).unwrap();
        assert!(!worker.is_due_by_age() && !worker.is_due(1) && !worker.is_due(1000));
        assert_eq!(checks.load(Ordering::Relaxed), 1);
        could.store(true, Ordering::Relaxed);
        assert!(!worker.is_due(1), "it was checked a moment ago");
        *worker.next_check.get_mut().unwrap() = Instant::now();
        assert!(worker.is_due_by_age() && worker.is_due(1));
    }
}
