//! Figures that take long to count. They are counted once for all readers, and only while somebody reads them.

use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::warn;

/// A summary is kept for at least this many times as long as its count took. So counting is a small part of the load.
const SHARE: u32 = 20;
/// For how long after its expiry a summary is still shown while a new one is counted.
const STILL_SHOWN: Duration = Duration::from_mins(1);

pub(crate) struct SummaryCache<T>(Arc<Inner<T>>);

struct Inner<T> {
    /// The minimum time for which a summary is kept.
    hold: Duration,
    /// How long a request waits for a count.
    wait: Duration,
    state: Mutex<CacheState<T>>,
    /// Signals that a count has ended.
    ended: watch::Sender<()>,
}

struct CacheState<T> {
    last: Option<Last<T>>,
    under_way: bool,
}

struct Last<T> {
    summary: Summary<T>,
    at: Instant,
    hold: Duration,
}

#[derive(Clone)]
pub(crate) enum Summary<T> {
    Counted(T),
    UnderWay,
    /// The count failed. The next one starts only once this result has been kept as long as a summary would be.
    Failed(String),
}

impl<T> Clone for SummaryCache<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Clone + Send + 'static> SummaryCache<T> {
    pub(crate) fn new(hold: Duration, wait: Duration) -> Self {
        let state = Mutex::new(CacheState { last: None, under_way: false });
        Self(Arc::new(Inner { hold, wait, state, ended: watch::Sender::default() }))
    }

    /// The last summary if it has not expired; otherwise the result of `count`, or the last summary if that takes too long. The
    /// count goes on even if nobody waits for its result.
    pub(crate) async fn get(
        &self,
        count: impl Future<Output = Result<T, impl Display + 'static>> + Send + 'static,
    ) -> Summary<T> {
        let mut ended = self.0.ended.subscribe();
        {
            let mut state = self.state();
            if let Some(fresh) = state.no_older_than(Duration::ZERO) {
                return fresh;
            }
            if !std::mem::replace(&mut state.under_way, true) {
                tokio::spawn(self.clone().count(count));
            }
        }
        // A timeout needs no handling: the state shows whether the count has ended.
        let _ = timeout(self.0.wait, ended.changed()).await;
        let state = self.state();
        let old = || state.no_older_than(STILL_SHOWN).filter(|old| matches!(old, Summary::Counted(_)));
        state.no_older_than(Duration::ZERO).or_else(old).unwrap_or(Summary::UnderWay)
    }

    async fn count(self, count: impl Future<Output = Result<T, impl Display + 'static>>) {
        let began = Instant::now();
        let summary = match count.await {
            Ok(counted) => Summary::Counted(counted),
            Err(problem) => {
                warn!(%problem, "figures cannot be counted");
                Summary::Failed(problem.to_string())
            }
        };
        let hold = self.0.hold.max(began.elapsed().saturating_mul(SHARE));
        *self.state() = CacheState { last: Some(Last { summary, at: Instant::now(), hold }), under_way: false };
        self.0.ended.send_replace(());
    }

    fn state(&self) -> MutexGuard<'_, CacheState<T>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> CacheState<T> {
    /// The last summary, up to this long after it has expired.
    fn no_older_than(&self, beyond: Duration) -> Option<Summary<T>> {
        let last = self.last.as_ref().filter(|last| last.at.elapsed() < last.hold.saturating_add(beyond));
        last.map(|last| last.summary.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const NEVER: Duration = Duration::from_hours(1);

    #[tokio::test]
    async fn who_looks_at_once_shares_one_count_and_who_looks_later_finds_it() {
        let (cache, counts) = (SummaryCache::new(NEVER, NEVER), Arc::new(AtomicUsize::new(0)));
        let look = || {
            let counts = Arc::clone(&counts);
            cache.get(async move { Ok::<_, String>(counts.fetch_add(1, Ordering::SeqCst)) })
        };
        let (one, other) = tokio::join!(look(), look());
        for summary in [one, other, look().await] {
            assert!(matches!(summary, Summary::Counted(0)));
        }
    }

    #[tokio::test]
    async fn a_request_does_not_wait_for_a_long_count_which_goes_on() {
        let cache = SummaryCache::new(NEVER, Duration::from_millis(1));
        let (end, ended) = tokio::sync::oneshot::channel();
        assert!(matches!(cache.get(async { Ok::<_, String>(ended.await.is_ok()) }).await, Summary::UnderWay));
        end.send(()).unwrap();
        while !matches!(cache.get(async { Ok::<_, String>(false) }).await, Summary::Counted(true)) {}
    }

    #[tokio::test]
    async fn a_count_that_fails_is_not_tried_again_at_once() {
        let cache = SummaryCache::new(NEVER, NEVER);
        for _ in 0..2 {
            let summary = cache.get(async { Err::<(), _>("it is away") }).await;
            assert!(matches!(summary, Summary::Failed(why) if why == "it is away"));
        }
        assert!(matches!(cache.get(async { Ok::<_, String>(()) }).await, Summary::Failed(_)));
    }
}
