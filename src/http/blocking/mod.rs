//! What blocks, done on behalf of a server whose thread must not: questions to the ledger, work with mailboxes and messages. One for a
//! process.
//!
//! The ledger and IMAP are blocking, and PostgreSQL's client must not be called inside a runtime. Each kind of work has a
//! [pool](BlockingPool) of its own, so that none waits for another kind.

mod authentication;

use authentication::Memory;
pub(crate) use authentication::{Caller, NotAuthenticated};

pub use crate::base::blocking_pool::NotDone;
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

/// How many questions are asked of the ledger at once, each by a session of its own; and how many of what was not valid of late.
const QUESTIONS: u32 = 4;
const UNKNOWN_CREDENTIALS: u32 = 2;
/// How many looks into mailboxes are taken at once.
const LOOKS: u32 = 4;
/// How many messages are read at once for people. Whoever wrote these messages holds up other readers at most.
const READERS: u32 = 4;
/// How many messages are written into the file queue at once.
const TAKEN_IN: u32 = 4;
/// How often the master of the service is asked at once.
const CONTROL: u32 = 2;
/// How many redeliveries, and lists of them, run at once.
const REDELIVERIES: u32 = 2;
/// How many pieces of work of a kind may wait for a thread.
const WAITING: u32 = 64;
/// A session that rested for longer than this is asked something small first: a server, or a firewall, may have ended it.
const TRUSTED_FOR: Duration = Duration::from_secs(1);
/// After so long without a question it is opened anew.
const KEPT_FOR: Duration = Duration::from_mins(1);

/// A kind of work beside questions to the ledger.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Looks into mailboxes.
    Look,
    /// Reads what is in a message, for people.
    Read,
    /// Writes a message into the file queue.
    TakeIn,
    /// Asks the master of the service.
    Control,
}

#[derive(Clone)]
pub struct Blocking(Arc<Inner>);

struct Inner {
    site: Site,
    /// How long a question may take.
    patience: Duration,
    questions: BlockingPool,
    unknown_credentials: BlockingPool,
    looks: BlockingPool,
    readers: BlockingPool,
    taken_in: BlockingPool,
    control: BlockingPool,
    redeliveries: BlockingPool,
    /// Whether redeliveries are to end.
    stop: AtomicBool,
    /// Sessions between two questions, and since when they rest: the newest is the last.
    resting: Mutex<Vec<(Idle<dyn Database>, Instant)>>,
    clients: Mutex<Memory>,
}

/// Why there is no answer from the ledger.
#[derive(Debug, Error)]
pub enum Unanswered {
    #[error("the database has not answered: {0}")]
    NotDone(#[from] NotDone),
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl Unanswered {
    /// Whether asking once more, a little later, may help.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::NotDone(why) => *why != NotDone::Failed,
            Self::Database(error) => error.may_pass() || error.trying_again_at_once_can_help(),
        }
    }
}

impl Blocking {
    /// For `site`, where each question may take `patience`, the wait for a thread included.
    #[must_use]
    pub fn new(site: Site, patience: Duration) -> Self {
        let pool = |threads| BlockingPool::new(threads, WAITING);
        Self(Arc::new(Inner {
            site,
            patience,
            questions: pool(QUESTIONS),
            unknown_credentials: pool(UNKNOWN_CREDENTIALS),
            looks: pool(LOOKS),
            readers: pool(READERS),
            taken_in: pool(TAKEN_IN),
            control: pool(CONTROL),
            redeliveries: pool(REDELIVERIES),
            stop: AtomicBool::new(false),
            resting: Mutex::default(),
            clients: Mutex::default(),
        }))
    }

    /// What `work` finds in the ledger. Where nobody awaits it any more, it may not be done, or done in part: what belongs together
    /// is to be one change.
    ///
    /// # Errors
    /// Where there is no answer in time, or the database fails.
    pub async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Database) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Result<T, Unanswered> {
        self.ask_in(&self.0.questions, Length::Short, self.0.patience, work).await
    }

    /// The same, for what may take long: it waits for others of that kind, and may take `patience`.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn ask_long<T: Send + 'static>(
        &self,
        patience: Duration,
        work: impl FnOnce(&mut dyn Database) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Result<T, Unanswered> {
        self.ask_in(&self.0.questions, Length::Long, patience, work).await
    }

    async fn ask_in<T: Send + 'static>(
        &self,
        pool: &BlockingPool,
        length: Length,
        patience: Duration,
        work: impl FnOnce(&mut dyn Database) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Result<T, Unanswered> {
        let inner = Arc::clone(&self.0);
        let answer = pool.run(length, patience, move |deadline, tell| {
            let mut session = match inner.session(deadline) {
                Ok(session) => session,
                Err(problem) => {
                    warn!(%problem, "there is no session with the database");
                    return drop(tell.send(Err(problem)));
                }
            };
            let answer = work(session.as_mut());
            let sound = answer.is_ok();
            // Whoever asked may have gone.
            drop(tell.send(answer));
            // In doubt it is closed.
            if let Some(idle) = sound.then(|| Idle::after(session)).flatten() {
                whole(&inner.resting).push((idle, Instant::now()));
            }
        });
        Ok(answer.await??)
    }

    /// What `work` comes to, within `patience` and the deadline of a delivery, the wait for a thread included. It has to end soon after
    /// the deadline that it is given, since a thread cannot be ended.
    ///
    /// # Errors
    /// Where it was not done, or nobody knows.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        kind: Work,
        patience: Duration,
        work: impl FnOnce(&Site, Deadline) -> T + Send + 'static,
    ) -> Result<T, NotDone> {
        let pool = match kind {
            Work::Look => &self.0.looks,
            Work::Read => &self.0.readers,
            Work::TakeIn => &self.0.taken_in,
            Work::Control => &self.0.control,
        };
        let inner = Arc::clone(&self.0);
        let done = pool.run(Length::Short, patience.min(inner.site.deadline()), move |deadline, tell| {
            drop(tell.send(work(&inner.site, deadline)));
        });
        done.await
    }

    /// Begins a redelivery, which goes on after the request that asked for it, and says itself what comes of it. It is to end soon after
    /// its flag is set.
    ///
    /// # Errors
    /// Where it has not begun.
    pub(crate) fn begin_redelivery(
        &self,
        work: impl FnOnce(&Site, &AtomicBool) + Send + 'static,
    ) -> Result<(), NotDone> {
        let inner = Arc::clone(&self.0);
        self.0.redeliveries.begin(move || work(&inner.site, &inner.stop))
    }

    /// Has redeliveries end after the delivery in progress, and waits for that: a delivery that is cut short is safe, but the next one
    /// of that copy then waits until its append has settled.
    pub(crate) async fn end(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
        let patience = self.0.site.deadline();
        if !self.0.redeliveries.ends_within(patience).await {
            error!(within = ?patience, "a redelivery is cut short");
        }
    }
}

impl Inner {
    fn session(&self, deadline: Deadline) -> Result<Box<dyn Database>, DatabaseError> {
        // What a database's list of sessions says of these.
        let client = Client { host: self.site.host().to_owned(), pid: std::process::id(), queue_id: None };
        let resting = whole(&self.resting).pop();
        if let Some((idle, since)) = resting.filter(|(_, since)| since.elapsed() < KEPT_FOR)
            && let Ok(mut session) = idle.begin(&client, deadline)
        {
            // What nobody awaits any more does not go on in the server; and a server that hangs does not have this thread for ever.
            session.end_long_questions(deadline.remaining());
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
