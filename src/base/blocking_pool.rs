//! Blocking work on behalf of code that must not block: each piece has a thread of its own, few run at once, and few wait. No client has
//! more than half of a pool, and what may take long has no more than half of it, whoever asks: what is quick has the rest.

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

/// What is asked while `request` is answered is asked for this client: a token, or somebody's login.
pub(crate) async fn asked_by<T>(client: String, request: impl Future<Output = T>) -> T {
    CLIENT.scope(client, request).await
}

/// Whether work may take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Short,
    Long,
}

/// Why a piece of work was not done, or nobody knows what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotDone {
    /// There was no thread for it in time.
    #[error("too much else is done at once")]
    Busy,
    #[error("it has not ended in time")]
    TooLate,
    /// Its thread could not begin, or has panicked, which the log tells.
    #[error("an internal error, which the log has")]
    Failed,
}

#[derive(Debug)]
pub(crate) struct BlockingPool {
    threads: u32,
    running: Arc<Semaphore>,
    /// Those that run, and those that wait for that.
    admitted: Arc<Semaphore>,
    long: Arc<Semaphore>,
    /// Those clients that have asked for something that is not done yet, and how much more each may have done now.
    clients: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// The permits of one piece of work, until it is done, whether anybody awaits that or not.
type Permits = [Option<OwnedSemaphorePermit>; 4];

impl BlockingPool {
    /// So many run at once, and so many wait for that at most: whoever comes then is refused at once.
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

    /// What `work` sends, within `patience`, the wait for a thread included. `work` is given the time that is left of that: where nobody
    /// awaits it any more, it goes on until then, and keeps its thread.
    ///
    /// # Errors
    /// Where it was not done in time. It may not be done, or done in part: what belongs together is to be one change.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        length: Length,
        patience: Duration,
        work: impl FnOnce(Deadline, oneshot::Sender<T>) + Send + 'static,
    ) -> Result<T, NotDone> {
        let end = Instant::now() + patience;
        let permits = timeout_at(end, self.permits(length)).await.map_err(|_| NotDone::Busy)??;
        // A little less, so that a statement that takes too long fails under its own name before nobody awaits it any more.
        let left = end.saturating_duration_since(Instant::now()).saturating_sub(patience / 16);
        if left.is_zero() {
            return Err(NotDone::Busy);
        }
        let (tell, told) = oneshot::channel();
        let deadline = Deadline::after(left);
        in_a_thread(permits, move || work(deadline, tell))?;
        timeout_at(end, told).await.map_err(|_| NotDone::TooLate)?.map_err(|_| NotDone::Failed)
    }

    /// Begins what goes on after the request that asked for it, if there is a thread for it now.
    ///
    /// # Errors
    /// Where it has not begun.
    pub(crate) fn begin(&self, work: impl FnOnce() + Send + 'static) -> Result<(), NotDone> {
        let permit = Arc::clone(&self.running).try_acquire_owned().map_err(|_| NotDone::Busy)?;
        in_a_thread([Some(permit), None, None, None], work)
    }

    /// Whether all that runs has ended within this time.
    pub(crate) async fn ends_within(&self, patience: Duration) -> bool {
        timeout(patience, self.running.acquire_many(self.threads)).await.is_ok()
    }

    /// Waits for the client's share first, so that it fills no queue in which others wait.
    async fn permits(&self, length: Length) -> Result<Permits, NotDone> {
        let own = CLIENT.try_with(Clone::clone).ok().map(|client| {
            let mut all = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
            // A permit, and whoever waits for one, holds its semaphore.
            all.retain(|_, own| Arc::strong_count(own) > 1);
            let half = (self.threads / 2).max(1) as usize;
            Arc::clone(all.entry(client).or_insert_with(|| Arc::new(Semaphore::new(half))))
        });
        // None of them is ever closed.
        let own = match own {
            Some(own) => own.acquire_owned().await.ok(),
            None => None,
        };
        let long = match length {
            Length::Long => Arc::clone(&self.long).acquire_owned().await.ok(),
            Length::Short => None,
        };
        let admitted = Arc::clone(&self.admitted).try_acquire_owned().map_err(|_| NotDone::Busy)?;
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

fn in_a_thread(permits: Permits, work: impl FnOnce() + Send + 'static) -> Result<(), NotDone> {
    let work = move || {
        // What it was to send goes with it, so that nobody waits for that.
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            error!("work for a request has panicked");
        }
        drop(permits);
    };
    let started = std::thread::Builder::new().name("blocking".into()).spawn(work);
    started.map(drop).map_err(|problem| {
        error!(%problem, "there is no thread for the work of a request");
        NotDone::Failed
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
    ) -> Result<T, NotDone> {
        pool.run(Length::Short, patience, |_, tell| drop(tell.send(work()))).await
    }

    /// Work that is done once the first is dropped.
    fn gated() -> (Sender<()>, impl FnOnce() + Send) {
        let (open, gate): (_, Receiver<()>) = channel();
        (open, move || assert!(gate.recv().is_err()))
    }

    #[tokio::test]
    async fn work_that_panics_leaves_its_thread_to_others() {
        let pool = BlockingPool::new(THREADS, 0);
        for _ in 0..=THREADS {
            assert_eq!(run(&pool, LONG, || panic!("as a bug would")).await, Err::<(), _>(NotDone::Failed));
        }
        let in_time = pool.run(Length::Short, LONG, |deadline, tell| {
            tell.send(!deadline.passed()).unwrap();
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
            assert_eq!(run(&pool, SOON, work).await, Err(NotDone::TooLate));
        }
        assert_eq!(run(&pool, SOON, || ()).await, Err(NotDone::Busy));
        assert_eq!(pool.begin(|| ()), Err(NotDone::Busy));
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
        // With the gate shut.
        while !waiting.iter().any(|one| one.is_finished()) {
            tokio::task::yield_now().await;
        }
        drop(gate);
        let mut done = vec![first.await.unwrap()];
        for one in waiting {
            done.push(one.await.unwrap());
        }
        assert_eq!(done.iter().filter(|done| **done == Err(NotDone::Busy)).count(), 1, "{done:?}");
        assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 3, "{done:?}");
    }
}
