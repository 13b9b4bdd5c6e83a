//! When a worker is replaced. The end of the process frees memory that grows a little with each delivery, in this program or in a
//! library.
//!
//! A worker stays if no other could begin in its place, for example because a password file was removed. The old worker has
//! already read all that it needs, and goes on delivering.

use super::WorkerSettings;
use crate::service::disk_figures::memory;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The age at which a worker is replaced: the database server keeps memory for each session, too.
const LIFE: Duration = Duration::from_hours(1);
/// The pause before the next check whether another process could begin.
const PAUSE: Duration = Duration::from_mins(1);

/// Checks whether another process could begin in this one's place; `Err` has the reason if not.
pub type Successor = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

pub(super) struct Recycling {
    began: Instant,
    deliveries: u64,
    memory: u64,
    successor: Successor,
    /// The next check happens at this time at the earliest.
    asked_again: Mutex<Instant>,
}

impl Recycling {
    pub(super) fn new(settings: &WorkerSettings, successor: Successor) -> Self {
        let began = Instant::now();
        let (deliveries, memory) = (settings.recycle_after, settings.recycle_above);
        Self { began, deliveries, memory, successor, asked_again: Mutex::new(began) }
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
        let mut asked_again = self.asked_again.lock().unwrap_or_else(PoisonError::into_inner);
        if Instant::now() < *asked_again {
            return false;
        }
        let Err(why) = (self.successor)() else { return true };
        warn!(why, "no new worker could begin: this one, which has served for long enough, goes on until one can");
        *asked_again = Instant::now() + PAUSE;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    fn recycling(deliveries: u64, memory: u64, successor: Successor) -> Recycling {
        let began = Instant::now();
        Recycling { began, deliveries, memory, successor, asked_again: Mutex::new(began) }
    }

    #[test]
    fn a_worker_is_recycled_after_enough_deliveries_or_with_too_much_memory() {
        let used = memory("self").unwrap();
        assert!(used > 1 << 20, "{used}");
        let recycling = |memory| recycling(3, memory, Box::new(|| Ok(())));
        assert!(!recycling(used * 100).is_due(2));
        assert!(recycling(used * 100).is_due(3));
        assert!(recycling(used / 2).is_due(0));
        assert!(!recycling(0).is_due_by_age());
    }

    #[test]
    fn one_that_is_old_goes_on_until_another_could_begin_which_is_not_asked_each_time() {
        let (could, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (answer, count) = (Arc::clone(&could), Arc::clone(&asked));
        let successor: Successor = Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
            if answer.load(Ordering::Relaxed) { Ok(()) } else { Err("no password".into()) }
        });
        let mut worker = recycling(1000, u64::MAX, successor);
        assert!(!worker.is_due_by_age() && !worker.is_due(0));
        assert_eq!(asked.load(Ordering::Relaxed), 0, "it is not old");

        worker.began = Instant::now().checked_sub(LIFE).unwrap();
        assert!(!worker.is_due_by_age() && !worker.is_due(1) && !worker.is_due(1000));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        could.store(true, Ordering::Relaxed);
        assert!(!worker.is_due(1), "it was asked a moment ago");
        *worker.asked_again.get_mut().unwrap() = Instant::now();
        assert!(worker.is_due_by_age() && worker.is_due(1));
    }
}
