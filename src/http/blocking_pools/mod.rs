//! Blocking work of a server whose own thread must not block: ledger queries, and work with mailboxes and messages. A process has
//! one instance.
//!
//! The ledger and IMAP are blocking, and PostgreSQL's client must not be called inside an async runtime. Each kind of work has
//! a [pool](BlockingPool) of its own, so that no kind waits for another.

mod authentication;

use authentication::Memory;
pub(crate) use authentication::{Caller, NotAuthenticated};

pub use crate::base::blocking_pool::Rejected;
use crate::base::blocking_pool::{BlockingPool, Length};
use crate::base::deadline::Deadline;
use crate::database::{Client, DatabaseError, Idle};
use crate::ledger::Database;
use crate::site::Site;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use thiserror::Error;
use tracing::{error, warn};

/// How many pieces of work of one kind may wait for a thread.
const WAITING: u32 = 64;
/// A session that was idle for longer is tested with a small query first: a server, or a firewall, may have closed it.
const TRUSTED_FOR: Duration = Duration::from_secs(1);
/// After this idle time a session is replaced by a new one.
const KEPT_FOR: Duration = Duration::from_mins(1);

/// A kind of work.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Queries the ledger.
    Query,
    /// Looks up credentials that were not valid recently.
    UnknownCredential,
    /// Searches mailboxes.
    Look,
    /// Reads the content of a message, for people. A message that is slow to read delays only other readers.
    Read,
    /// Writes a message into the file queue.
    TakeIn,
    /// Sends a request to the service's master.
    Control,
    /// Delivers copies again.
    Redelivery,
}

impl Work {
    const ALL: [Self; 7] =
        [Self::Query, Self::UnknownCredential, Self::Look, Self::Read, Self::TakeIn, Self::Control, Self::Redelivery];

    /// How many pieces of it run at once.
    fn threads(self) -> u32 {
        match self {
            Self::Query | Self::Look | Self::Read | Self::TakeIn => 4,
            Self::UnknownCredential | Self::Control | Self::Redelivery => 2,
        }
    }
}

#[derive(Clone)]
pub struct Blocking(Arc<Inner>);

struct Inner {
    site: Site,
    /// How long a ledger query may take.
    patience: Duration,
    /// In the order of [`Work::ALL`].
    pools: [BlockingPool; Work::ALL.len()],
    /// Whether redeliveries have to stop.
    stop: AtomicBool,
    /// Idle sessions, and since when they are idle: the newest is the last.
    resting: Mutex<Vec<(Idle<dyn Database>, Instant)>>,
    clients: Mutex<Memory>,
}

/// Why the ledger gave no answer.
#[derive(Debug, Error)]
pub enum QueryFailure {
    #[error("the database has not answered: {0}")]
    Rejected(#[from] Rejected),
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl QueryFailure {
    /// Whether a retry a little later may help.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Rejected(why) => *why != Rejected::Failed,
            Self::Database(error) => error.may_pass() || error.trying_again_at_once_can_help(),
        }
    }
}

impl Blocking {
    /// Work on `site`. Each query may take `patience`, the wait for a thread included.
    #[must_use]
    pub fn new(site: Site, patience: Duration) -> Self {
        Self(Arc::new(Inner {
            site,
            patience,
            pools: Work::ALL.map(|work| BlockingPool::new(work.threads(), WAITING)),
            stop: AtomicBool::new(false),
            resting: Mutex::default(),
            clients: Mutex::default(),
        }))
    }

    /// Returns the result of `work` on the ledger. If the caller stops waiting, `work` may not be done, or only in part. So
    /// changes that belong together must be one transaction.
    ///
    /// # Errors
    /// If there is no answer in time, or if the database fails.
    pub async fn query<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Database) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Result<T, QueryFailure> {
        self.query_with(Work::Query, Length::Short, self.0.patience, |_, database, _| work(database)).await
    }

    /// Like [`query`](Self::query), for long queries: few of them run at once, and each may take `patience`.
    ///
    /// # Errors
    /// As [`query`](Self::query).
    pub async fn query_long<T: Send + 'static>(
        &self,
        patience: Duration,
        work: impl FnOnce(&mut dyn Database) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Result<T, QueryFailure> {
        self.query_with(Work::Query, Length::Long, patience, |_, database, _| work(database)).await
    }

    /// Like [`query`](Self::query), for work of another kind that also reads the ledger, within `patience` and the deadline of a
    /// delivery.
    ///
    /// # Errors
    /// As [`query`](Self::query).
    pub(crate) async fn query_in_pool<T: Send + 'static>(
        &self,
        kind: Work,
        patience: Duration,
        work: impl FnOnce(&Site, &mut dyn Database, Deadline) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Result<T, QueryFailure> {
        self.query_with(kind, Length::Short, patience.min(self.0.site.deadline()), work).await
    }

    async fn query_with<T: Send + 'static>(
        &self,
        kind: Work,
        length: Length,
        patience: Duration,
        work: impl FnOnce(&Site, &mut dyn Database, Deadline) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Result<T, QueryFailure> {
        let inner = Arc::clone(&self.0);
        let answer = self.pool(kind).run(length, patience, move |deadline, result| {
            let mut session = match inner.session(deadline) {
                Ok(session) => session,
                Err(problem) => return drop(result.send(Err(problem))),
            };
            let answer = work(&inner.site, session.as_mut(), deadline);
            let sound = answer.is_ok();
            // The caller may have stopped waiting.
            drop(result.send(answer));
            // A session is kept only after a success: after an error, its state is unknown.
            if let Some(idle) = sound.then(|| Idle::after(session)).flatten() {
                whole(&inner.resting).push((idle, Instant::now()));
            }
        });
        let answer: Result<T, QueryFailure> = async { Ok(answer.await??) }.await;
        if let Err(problem) = &answer
            && whole(&self.0.clients).may_log(Instant::now())
        {
            warn!(%problem, "a request is not answered");
        }
        answer
    }

    /// Returns the result of `work`, within `patience` and the deadline of a delivery, the wait for a thread included. `work`
    /// must end soon after the deadline that it gets, since a thread cannot be stopped.
    ///
    /// # Errors
    /// If the work was not done, or its result is unknown.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        kind: Work,
        patience: Duration,
        work: impl FnOnce(&Site, Deadline) -> T + Send + 'static,
    ) -> Result<T, Rejected> {
        let inner = Arc::clone(&self.0);
        let done = self.pool(kind).run(Length::Short, patience.min(inner.site.deadline()), move |deadline, result| {
            drop(result.send(work(&inner.site, deadline)));
        });
        done.await
    }

    fn pool(&self, kind: Work) -> &BlockingPool {
        &self.0.pools[kind as usize]
    }

    /// Starts a redelivery, which continues after the request that started it and reports its own results. A redelivery must end
    /// soon after its stop flag is set.
    ///
    /// # Errors
    /// If the redelivery could not start.
    pub(crate) fn begin_redelivery(
        &self,
        work: impl FnOnce(&Site, &AtomicBool) + Send + 'static,
    ) -> Result<(), Rejected> {
        let inner = Arc::clone(&self.0);
        self.pool(Work::Redelivery).begin(move || work(&inner.site, &inner.stop))
    }

    /// Stops the redeliveries after the delivery in progress, and waits for their end. A delivery that is cut short is safe, but
    /// the next delivery of that copy waits until its APPEND has settled.
    pub(crate) async fn end(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
        let patience = self.0.site.deadline();
        if !self.pool(Work::Redelivery).ends_within(patience).await {
            error!(within = ?patience, "a redelivery is cut short");
        }
    }
}

impl Inner {
    fn session(&self, deadline: Deadline) -> Result<Box<dyn Database>, DatabaseError> {
        // The database shows this text in its list of sessions.
        let client = Client { host: self.site.host().to_owned(), pid: std::process::id(), queue_id: None };
        let resting = whole(&self.resting).pop();
        if let Some((idle, since)) = resting.filter(|(_, since)| since.elapsed() < KEPT_FOR)
            && let Ok(mut session) = idle.begin(&client, deadline)
        {
            // A query whose caller has gone must not run on in the server. A server that hangs must not block this thread for
            // ever.
            session.limit_statement_time(deadline.remaining());
            if since.elapsed() < TRUSTED_FOR
                || session.select("looking whether the session is there", "SELECT 1", &[]).is_ok()
            {
                return Ok(session);
            }
        }
        self.site.open_to_ask(deadline)
    }
}

fn whole<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
