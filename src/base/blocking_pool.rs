//! Blocking work for code that must not block. Each piece of work has a thread of its own; few run at once, and few wait.
//!
//! A client gets at most half of a pool. Long work of all clients together gets at most half too, so that the rest stays free for
//! short work.

use super::deadline::Deadline;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::error;

tokio::task_local! {
    static CLIENT: String;
}

/// Attributes the work that `request` starts to this client: a token, or the login of a person.
pub(crate) async fn asked_by<T>(client: String, request: impl Future<Output = T>) -> T {
    CLIENT.scope(client, request).await
}

/// Whether work may take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Short,
    Long,
}

/// Why a piece of work was not done, or why its result is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Rejected {
    /// No thread was free in time.
    #[error("too much else is done at once")]
    Busy,
    #[error("it has not ended in time")]
    TooLate,
    /// The thread could not start, or has panicked. The log has the reason.
    #[error("an internal error, which the log has")]
    Failed,
}

#[derive(Debug)]
pub(crate) struct BlockingPool {
    threads: u32,
    running: Arc<Semaphore>,
    /// The pieces of work that run or wait for a thread.
    admitted: Arc<Semaphore>,
    long: Arc<Semaphore>,
    /// The clients with unfinished work, and how much more each of them may start now.
    clients: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// The permits of one piece of work. The work holds them to its end, even if nobody awaits the result any more.
type Permits = [Option<OwnedSemaphorePermit>; 4];

impl BlockingPool {
    /// At most `threads` run at once, and at most `waiting` wait for a thread. Further work is refused at once.
    pub(crate) fn new(threads: u32, waiting: u32) -> Self {
        let semaphore = |permits: u32| Arc::new(Semaphore::new(permits as usize));
        Self {
            threads,
            running: semaphore(threads),
            admitted: semaphore(threads + waiting),
            long: semaphore(threads / 2),
            clients: Mutex::default(),
        }
    }

    /// Returns what `work` sends within `patience`, which includes the wait for a thread. `work` gets the time that is left.
    /// If nobody awaits the result any more, `work` goes on until that time has passed, and keeps its thread.
    ///
    /// # Errors
    /// If the work was not done in time, or if its thread failed. The work may then be undone or partly done. So changes that
    /// belong together must take effect together.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        length: Length,
        patience: Duration,
        work: impl FnOnce(Deadline, oneshot::Sender<T>) + Send + 'static,
    ) -> Result<T, Rejected> {
        let end = Instant::now() + patience;
        let permits = timeout_at(end, self.permits(length)).await.map_err(|_| Rejected::Busy)??;
        // The deadline of `work` is a little earlier. A statement that takes too long then fails with its own error before the
        // wait ends.
        let left = end.saturating_duration_since(Instant::now()).saturating_sub(patience / 16);
        if left.is_zero() {
            return Err(Rejected::Busy);
        }
        let (result_sender, result) = oneshot::channel();
        let deadline = Deadline::after(left);
        in_a_thread(permits, move || work(deadline, result_sender))?;
        timeout_at(end, result).await.map_err(|_| Rejected::TooLate)?.map_err(|_| Rejected::Failed)
    }

    /// Starts work that goes on after the request that asked for it, if a thread is free now.
    ///
    /// # Errors
    /// If no thread is free, or none could start.
    pub(crate) fn begin(&self, work: impl FnOnce() + Send + 'static) -> Result<(), Rejected> {
        let permit = Arc::clone(&self.running).try_acquire_owned().map_err(|_| Rejected::Busy)?;
        in_a_thread([Some(permit), None, None, None], work)
    }

    /// Whether all running work ends within this time.
    pub(crate) async fn ends_within(&self, patience: Duration) -> bool {
        timeout(patience, self.running.acquire_many(self.threads)).await.is_ok()
    }

    /// Waits for the client's own share first, so that one client fills no queue in which others wait.
    async fn permits(&self, length: Length) -> Result<Permits, Rejected> {
        let own = CLIENT.try_with(Clone::clone).ok().map(|client| {
            let mut all = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
            // Each permit, and each task that waits for one, holds a reference to its semaphore.
            all.retain(|_, own| Arc::strong_count(own) > 1);
            let half = (self.threads / 2).max(1) as usize;
            Arc::clone(all.entry(client).or_insert_with(|| Arc::new(Semaphore::new(half))))
        });
        // None of these semaphores is ever closed.
        let own = match own {
            Some(own) => own.acquire_owned().await.ok(),
            None => None,
        };
        let long = match length {
            Length::Long => Arc::clone(&self.long).acquire_owned().await.ok(),
            Length::Short => None,
        };
        let admitted = Arc::clone(&self.admitted).try_acquire_owned().map_err(|_| Rejected::Busy)?;
        let running = Arc::clone(&self.running).acquire_owned().await.ok();
        Ok([running, Some(admitted), long, own])
    }

    #[cfg(test)]
    pub(crate) fn has_its_share(&self, client: &str) -> bool {
        let all = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(client).is_some_and(|own| own.available_permits() == 0)
    }

    #[cfg(test)]
    pub(crate) fn long_ones_have_their_share(&self) -> bool {
        self.long.available_permits() == 0
    }
}

fn in_a_thread(permits: Permits, work: impl FnOnce() + Send + 'static) -> Result<(), Rejected> {
    let work = move || {
        // A panic drops the sender of the work, so the receiver does not wait.
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            error!("work for a request has panicked");
        }
        drop(permits);
    };
    let started = std::thread::Builder::new().name("blocking".into()).spawn(work);
    started.map(drop).map_err(|problem| {
        error!(%problem, "there is no thread for the work of a request");
        Rejected::Failed
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const THREADS: u32 = 4;
    const LONG: Duration = Duration::from_mins(2);
    const SOON: Duration = Duration::from_millis(20);

    async fn run<T: Send + 'static>(
        pool: &BlockingPool,
        patience: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Rejected> {
        pool.run(Length::Short, patience, |_, result| drop(result.send(work()))).await
    }

    /// Work that ends once the returned sender is dropped.
    fn gated() -> (Sender<()>, impl FnOnce() + Send) {
        let (open, gate): (_, Receiver<()>) = channel();
        (open, move || assert!(gate.recv().is_err()))
    }

    #[tokio::test]
    async fn work_that_panics_leaves_its_thread_to_others() {
        let pool = BlockingPool::new(THREADS, 0);
        for _ in 0..=THREADS {
            assert_eq!(run(&pool, LONG, || panic!("as a bug would")).await, Err::<(), _>(Rejected::Failed));
        }
        let in_time = pool.run(Length::Short, LONG, |deadline, result| {
            result.send(!deadline.passed()).unwrap();
        });
        assert_eq!(in_time.await, Ok(true));
    }

    #[tokio::test]
    async fn so_many_run_at_once_and_no_more_whether_anybody_awaits_them_or_not() {
        let pool = BlockingPool::new(THREADS, 1);
        let mut gates = Vec::new();
        for _ in 0..THREADS {
            let (gate, work) = gated();
            gates.push(gate);
            assert_eq!(run(&pool, SOON, work).await, Err(Rejected::TooLate));
        }
        assert_eq!(run(&pool, SOON, || ()).await, Err(Rejected::Busy));
        assert_eq!(pool.begin(|| ()), Err(Rejected::Busy));
        assert!(!pool.ends_within(SOON).await);
        gates.clear();
        assert_eq!(run(&pool, LONG, || ()).await, Ok(()));
        assert!(pool.ends_within(LONG).await);
    }

    #[tokio::test]
    async fn who_comes_when_enough_wait_is_refused_at_once() {
        let pool = Arc::new(BlockingPool::new(1, 2));
        let (gate, work) = gated();
        let first = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { run(&pool, LONG, work).await }
        });
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let pool = Arc::clone(&pool);
                tokio::spawn(async move { run(&pool, LONG, || ()).await })
            })
            .collect();
        // The gate is still shut here.
        while !waiting.iter().any(|one| one.is_finished()) {
            tokio::task::yield_now().await;
        }
        drop(gate);
        let mut done = vec![first.await.unwrap()];
        for one in waiting {
            done.push(one.await.unwrap());
        }
        assert_eq!(done.iter().filter(|done| **done == Err(Rejected::Busy)).count(), 1, "{done:?}");
        assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 3, "{done:?}");
    }
}
