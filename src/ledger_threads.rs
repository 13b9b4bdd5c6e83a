//! Threads that ask the ledger on behalf of code that must not block: each has a session of its own, which is opened anew when it is
//! broken. Uses `base`, `database`, `ledger` and `site`.
//!
//! The ledger is blocking, and its PostgreSQL client must not be called inside a runtime. So whoever serves many connections from
//! one thread hands its questions over, and awaits the answers. Few questions may wait: whoever comes when the queue is full hears
//! so at once, and does not make the queue longer.

use crate::base::deadline::Deadline;
use crate::database::{Client, DatabaseError, Idle};
use crate::ledger::Database;
use crate::site::Site;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::oneshot;
use tracing::{error, warn};

/// How many questions are asked at once, each by a session of its own.
const THREADS: usize = 4;
/// How many may wait for a thread.
const WAITING: usize = 64;
/// A session that rested for longer than this is asked something small first: a server, or a firewall, may have ended it.
const TRUSTED_FOR: Duration = Duration::from_secs(1);
/// After so long without a question it is opened anew.
const KEPT_FOR: Duration = Duration::from_mins(1);

/// A question: what it does with a session, or with the failure to have one. It answers whether the session may be used again.
type Question = Box<dyn FnOnce(Result<&mut dyn Database, DatabaseError>) -> bool + Send>;

struct Asked {
    by: Deadline,
    question: Question,
}

/// The threads. They end once the last clone is dropped.
#[derive(Clone)]
pub struct LedgerThreads {
    queue: SyncSender<Asked>,
    patience: Duration,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum Unanswered {
    #[error("too many questions wait for the database")]
    Busy,
    #[error("the database has not answered in time")]
    TooLate,
    /// Its thread has ended over it, which the log tells.
    #[error("the question could not be asked")]
    Failed,
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl Unanswered {
    /// Whether asking once more, a little later, may help.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Busy | Self::TooLate => true,
            Self::Failed => false,
            Self::Database(error) => error.may_pass() || error.trying_again_at_once_can_help(),
        }
    }
}

impl LedgerThreads {
    /// Threads that ask the ledger of `site`, where each question may take `patience`, the wait for a thread included.
    ///
    /// # Errors
    /// Where the system gives us no threads.
    pub fn start(site: &Site, patience: Duration) -> io::Result<Self> {
        let (queue, asked) = sync_channel(WAITING);
        let asked = Arc::new(Mutex::new(asked));
        for _ in 0..THREADS {
            let (site, asked) = (site.clone(), Arc::clone(&asked));
            std::thread::Builder::new().name("ledger".into()).spawn(move || answer(&site, &asked))?;
        }
        Ok(Self { queue, patience })
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
        self.ask_within(self.patience, work).await
    }

    /// The same, for what may take longer, or has to be quick.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn ask_within<T: Send + 'static>(
        &self,
        patience: Duration,
        work: impl FnOnce(&mut dyn Database) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Result<T, Unanswered> {
        let (tell, told) = oneshot::channel();
        let question: Question = Box::new(move |session| {
            let answer = session.and_then(work);
            let sound = answer.is_ok();
            // Whoever asked may have gone.
            let _ = tell.send(answer);
            sound
        });
        let by = Deadline::after(patience);
        self.queue.try_send(Asked { by, question }).map_err(|_| Unanswered::Busy)?;
        match tokio::time::timeout(patience, told).await {
            Ok(Ok(answer)) => Ok(answer?),
            Ok(Err(_)) => Err(Unanswered::Failed),
            Err(_) => Err(Unanswered::TooLate),
        }
    }
}

/// A session between two questions, and since when it rests.
type Resting = Option<(Idle<dyn Database>, Instant)>;

fn answer(site: &Site, asked: &Mutex<Receiver<Asked>>) {
    let mut resting: Resting = None;
    loop {
        // One waits for a question, the others for their turn.
        let next = asked.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Asked { by, question }) = next else { return };
        if by.passed() {
            continue;
        }
        let mut session = match open(site, resting.take(), by) {
            Ok(session) => session,
            Err(problem) => {
                warn!(%problem, "there is no session with the database");
                question(Err(problem));
                continue;
            }
        };
        match catch_unwind(AssertUnwindSafe(|| question(Ok(session.as_mut())))) {
            Ok(true) => resting = Idle::after(session).map(|idle| (idle, Instant::now())),
            // In doubt it is closed.
            Ok(false) => {}
            Err(_) => error!("a question to the ledger has panicked"),
        }
    }
}

fn open(site: &Site, resting: Resting, by: Deadline) -> Result<Box<dyn Database>, DatabaseError> {
    let client = Client { host: site.host().to_owned(), pid: std::process::id(), queue_id: None };
    if let Some((idle, since)) = resting.filter(|(_, since)| since.elapsed() < KEPT_FOR)
        && let Ok(mut session) = idle.begin(&client, by)
        && (since.elapsed() < TRUSTED_FOR
            || session.select("looking whether the session is there", "SELECT 1", &[]).is_ok())
    {
        return Ok(session);
    }
    site.open_database(None, by)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::embedded::Embedded;
    use std::sync::Condvar;

    fn threads(directory: &std::path::Path, patience: Duration) -> LedgerThreads {
        LedgerThreads::start(&Site::embedded(Embedded::new(directory.to_owned())), patience).unwrap()
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn a_question_that_fails_or_panics_leaves_the_threads_for_others() {
        let directory = tempfile::tempdir().unwrap();
        let threads = threads(directory.path(), Duration::from_mins(2));
        run(async {
            for _ in 0..THREADS * 2 {
                let failed = threads.ask(|database| database.select("asking", "SELECT nothing", &[])).await;
                assert!(matches!(failed, Err(Unanswered::Database(_))), "{failed:?}");
                let panicked: Result<(), _> = threads.ask(|_| panic!("as a bug would")).await;
                assert!(matches!(panicked, Err(Unanswered::Failed)), "{panicked:?}");
                let rows = threads.ask(|database| database.select("asking", "SELECT 1", &[])).await.unwrap();
                assert_eq!(rows[0].text(0), Some("1"));
            }
        });
    }

    /// So many questions that one of them finds the queue full, none of which is answered before the gate is opened.
    async fn asked_at_once(threads: &LedgerThreads) -> Vec<Result<(), Unanswered>> {
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let pass = |gate: &(Mutex<bool>, Condvar)| {
            let closed = gate.0.lock().unwrap();
            drop(gate.1.wait_while(closed, |open| !*open).unwrap());
        };
        let questions: Vec<_> = (0..THREADS + WAITING + 1)
            .map(|_| {
                let (threads, gate) = (threads.clone(), Arc::clone(&gate));
                let question = move |_: &mut dyn Database| {
                    pass(&gate);
                    Ok(())
                };
                tokio::spawn(async move { threads.ask(question).await })
            })
            .collect();
        // All of them have asked once this task has its turn again; those that are to hear something while the gate is shut, have.
        tokio::task::yield_now().await;
        if threads.patience < Duration::from_secs(1) {
            tokio::time::sleep(2 * threads.patience).await;
        }
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        let mut answers = Vec::new();
        for question in questions {
            answers.push(question.await.unwrap());
        }
        answers
    }

    #[test]
    fn who_comes_when_the_queue_is_full_hears_so_at_once_and_the_others_are_answered() {
        let directory = tempfile::tempdir().unwrap();
        let threads = threads(directory.path(), Duration::from_mins(2));
        let answers = run(asked_at_once(&threads));
        assert!(answers.iter().any(|answer| matches!(answer, Err(Unanswered::Busy))));
        let answered = answers.iter().filter(|answer| answer.is_ok()).count();
        let busy = answers.iter().filter(|answer| matches!(answer, Err(Unanswered::Busy))).count();
        assert!(answered >= WAITING && answered + busy == answers.len(), "{answered} answered, {busy} busy");
    }

    #[test]
    fn who_waits_for_too_long_hears_so() {
        let directory = tempfile::tempdir().unwrap();
        let threads = threads(directory.path(), Duration::from_millis(50));
        let answers = run(asked_at_once(&threads));
        assert!(answers.iter().all(Result::is_err));
        assert!(answers.iter().any(|answer| matches!(answer, Err(Unanswered::TooLate))));
    }
}
