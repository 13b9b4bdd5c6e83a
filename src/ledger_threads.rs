//! Threads that ask the ledger on behalf of code that must not block: each has a session of its own, which is opened anew when it is
//! broken. Uses `base`, `database`, `ledger` and `site`.
//!
//! The ledger is blocking, and its PostgreSQL client must not be called inside a runtime. So whoever serves many connections from
//! one thread hands its questions over, and awaits the answers. Few questions may wait: whoever comes when the queue is full hears
//! so at once, and does not make the queue longer. What is asked again and again has a thread of its own (`again`).

mod again;
mod authentication;
mod fair;

pub use again::AskedAgain;
use authentication::Authentication;
pub(crate) use authentication::{Caller, NotAuthenticated};
pub(crate) use fair::asked_by;
use fair::{Turn, Turns};

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

/// A question: what it does with a session, or where there is none with why. It answers whether the session may be used again.
type Question = Box<dyn FnOnce(Result<&mut dyn Database, Unanswered>) -> bool + Send>;

struct Asked {
    by: Deadline,
    question: Question,
}

/// The threads. They end once the last clone is dropped.
#[derive(Clone)]
pub struct LedgerThreads {
    queue: SyncSender<Asked>,
    patience: Duration,
    authentication: Arc<Authentication>,
    turns: Arc<Turns>,
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
        let queue = start_threads(site, THREADS)?;
        let authentication = Arc::new(Authentication::start(site)?);
        Ok(Self { queue, patience, authentication, turns: Arc::default() })
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
        self.ask_in_turn(self.turns.turn(false), self.patience, work).await
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
        self.ask_in_turn(self.turns.turn(true), patience, work).await
    }

    async fn ask_in_turn<T: Send + 'static>(
        &self,
        turn: impl Future<Output = Turn>,
        patience: Duration,
        work: impl FnOnce(&mut dyn Database) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Result<T, Unanswered> {
        let by = Instant::now() + patience;
        let turn = tokio::time::timeout(patience, turn).await.map_err(|_| Unanswered::TooLate)?;
        let work = move |database: &mut dyn Database| {
            // Until the thread is free again, also where nobody awaits the answer any more.
            let _turn = turn;
            work(database)
        };
        ask_at(&self.queue, by.saturating_duration_since(Instant::now()), work).await
    }
}

fn start_threads(site: &Site, threads: usize) -> io::Result<SyncSender<Asked>> {
    let (queue, asked) = sync_channel(WAITING);
    let asked = Arc::new(Mutex::new(asked));
    for _ in 0..threads {
        let (site, asked) = (site.clone(), Arc::clone(&asked));
        std::thread::Builder::new().name("ledger".into()).spawn(move || answer(&site, &asked))?;
    }
    Ok(queue)
}

async fn ask_at<T: Send + 'static>(
    queue: &SyncSender<Asked>,
    patience: Duration,
    work: impl FnOnce(&mut dyn Database) -> Result<T, DatabaseError> + Send + 'static,
) -> Result<T, Unanswered> {
    let (tell, told) = oneshot::channel();
    let question: Question = Box::new(move |session| {
        let answer = session.and_then(|session| Ok(work(session)?));
        let sound = answer.is_ok();
        // Whoever asked may have gone.
        let _ = tell.send(answer);
        sound
    });
    // A little less, so that a statement that takes too long fails under its own name before nobody awaits it any more.
    let by = Deadline::after(patience - patience / 16);
    queue.try_send(Asked { by, question }).map_err(|_| Unanswered::Busy)?;
    match tokio::time::timeout(patience, told).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(Unanswered::Failed),
        Err(_) => Err(Unanswered::TooLate),
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
            // Its time ends a little before nobody awaits it any more.
            question(Err(Unanswered::TooLate));
            continue;
        }
        let mut session = match open(site, resting.take(), by) {
            Ok(session) => session,
            Err(problem) => {
                warn!(%problem, "there is no session with the database");
                question(Err(problem.into()));
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

/// What a database's list of sessions says of these.
fn client(site: &Site) -> Client {
    Client { host: site.host().to_owned(), pid: std::process::id(), queue_id: None }
}

fn open(site: &Site, resting: Resting, by: Deadline) -> Result<Box<dyn Database>, DatabaseError> {
    let client = client(site);
    // What nobody awaits any more does not go on in the server; and a server that stands still does not have this thread for ever.
    let limited = |mut session: Box<dyn Database>| {
        session.end_long_questions(by.remaining());
        session
    };
    if let Some((idle, since)) = resting.filter(|(_, since)| since.elapsed() < KEPT_FOR)
        && let Ok(mut session) = idle.begin(&client, by).map(limited)
        && (since.elapsed() < TRUSTED_FOR
            || session.select("looking whether the session is there", "SELECT 1", &[]).is_ok())
    {
        return Ok(session);
    }
    site.open_to_ask(by)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::hex;
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

    /// What keeps each question from its answer until it is opened.
    #[derive(Default)]
    struct Gate {
        open: Mutex<bool>,
        opened: Condvar,
    }

    impl Gate {
        fn open(&self) {
            *self.open.lock().unwrap() = true;
            self.opened.notify_all();
        }

        fn pass(&self) {
            drop(self.opened.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
        }
    }

    type Answer = tokio::task::JoinHandle<Result<(), Unanswered>>;

    /// So many questions that one of them finds the queue full, none of which is answered before the gate is opened.
    fn ask_at_once(threads: &LedgerThreads, gate: &Arc<Gate>, client: Option<&'static str>) -> Vec<Answer> {
        let ask = |_| {
            let (threads, gate) = (threads.clone(), Arc::clone(gate));
            let question = move |_: &mut dyn Database| {
                gate.pass();
                Ok(())
            };
            tokio::spawn(async move {
                match client {
                    Some(client) => asked_by(client.into(), threads.ask(question)).await,
                    None => threads.ask(question).await,
                }
            })
        };
        (0..=THREADS + WAITING).map(ask).collect()
    }

    async fn until(is_so: impl Fn() -> bool) {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    }

    async fn others_are_answered(threads: &LedgerThreads) {
        for _ in 0..THREADS * 2 {
            let rows = |database: &mut dyn Database| database.select("asking", "SELECT 1", &[]);
            let found = asked_by("another".into(), threads.ask(rows)).await.unwrap();
            assert_eq!(found[0].text(0), Some("1"));
        }
    }

    async fn all(answers: Vec<Answer>) -> Vec<Result<(), Unanswered>> {
        let mut all = Vec::new();
        for answer in answers {
            all.push(answer.await.unwrap());
        }
        all
    }

    #[test]
    fn who_comes_when_the_queue_is_full_hears_so_at_once_and_the_others_are_answered() {
        let directory = tempfile::tempdir().unwrap();
        let threads = threads(directory.path(), Duration::from_mins(2));
        let gate = Arc::new(Gate::default());
        let answers = run(async {
            let mut asked = ask_at_once(&threads, &gate, None);
            // One of them at least is not taken, and hears so although the gate is shut.
            while !asked.iter().any(Answer::is_finished) {
                tokio::task::yield_now().await;
            }
            let (told, waiting) = asked.drain(..).partition::<Vec<_>, _>(Answer::is_finished);
            let mut answers = all(told).await;
            assert!(answers.iter().all(|answer| matches!(answer, Err(Unanswered::Busy))), "{answers:?}");
            gate.open();
            answers.extend(all(waiting).await);
            answers
        });
        let answered = answers.iter().filter(|answer| answer.is_ok()).count();
        let busy = answers.iter().filter(|answer| matches!(answer, Err(Unanswered::Busy))).count();
        assert!(answered >= WAITING && answered + busy == answers.len(), "{answered} answered, {busy} busy");
    }

    /// An on-call engineer finds what she looks for while somebody's script asks for what takes long, as often as it can.
    #[test]
    fn the_slow_questions_of_one_login_leave_half_of_the_threads_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let threads = threads(directory.path(), Duration::from_mins(2));
        let gate = Arc::new(Gate::default());
        run(async {
            let slow = ask_at_once(&threads, &gate, Some("one"));
            until(|| threads.turns.has_its_share("one")).await;
            others_are_answered(&threads).await;
            assert!(!slow.iter().any(Answer::is_finished));
            gate.open();
            assert!(all(slow).await.iter().all(Result::is_ok), "each has had its turn");
        });
    }

    /// A script that asks for page after page, none of which it may see.
    #[test]
    fn one_credential_that_is_shown_again_and_again_leaves_half_of_the_threads_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let threads = threads(directory.path(), Duration::from_mins(2));
        let (gate, credential) = (Arc::new(Gate::default()), [7; 32]);
        threads.is_valid(credential);
        run(async {
            let show = |_| {
                let (threads, gate) = (threads.clone(), Arc::clone(&gate));
                let shown = move |_: &mut dyn Database| {
                    gate.pass();
                    Ok(Some(()))
                };
                tokio::spawn(async move { threads.authenticate(&Caller::default(), credential, shown).await.is_ok() })
            };
            let shown: Vec<_> = (0..=THREADS + WAITING).map(show).collect();
            until(|| threads.turns.has_its_share(&hex::encode(&credential))).await;
            others_are_answered(&threads).await;
            gate.open();
            for shown in shown {
                assert!(shown.await.unwrap(), "each has had its turn");
            }
        });
    }

    /// Two people look for what takes long, and a third one only wants a page.
    #[test]
    fn what_takes_long_leaves_half_of_the_threads_to_what_is_quick_whoever_asks() {
        let directory = tempfile::tempdir().unwrap();
        let threads = threads(directory.path(), Duration::from_mins(2));
        let gate = Arc::new(Gate::default());
        run(async {
            let ask = |number: usize| {
                let (threads, gate) = (threads.clone(), Arc::clone(&gate));
                let question = move |_: &mut dyn Database| {
                    gate.pass();
                    Ok(())
                };
                let long = async move { threads.ask_long(Duration::from_mins(3), question).await };
                tokio::spawn(asked_by(number.to_string(), long))
            };
            let slow: Vec<Answer> = (0..THREADS * 2).map(ask).collect();
            until(|| threads.turns.long_ones_have_their_share()).await;
            others_are_answered(&threads).await;
            assert!(!slow.iter().any(Answer::is_finished));
            gate.open();
            assert!(all(slow).await.iter().all(Result::is_ok), "each has had its turn");
        });
    }

    #[test]
    fn who_waits_for_too_long_hears_so() {
        let directory = tempfile::tempdir().unwrap();
        let threads = threads(directory.path(), Duration::from_secs(2));
        let gate = Arc::new(Gate::default());
        let answers = run(async { all(ask_at_once(&threads, &gate, None)).await });
        gate.open();
        assert!(answers.iter().all(Result::is_err), "{answers:?}");
        // Those that no thread came to, at least. To make the database on a slow disk may take a thread all of this time: then the
        // question that it had hears of the database.
        let too_late = answers.iter().filter(|answer| matches!(answer, Err(Unanswered::TooLate))).count();
        assert!(too_late >= WAITING - THREADS, "{answers:?}");
        assert!(answers.iter().flat_map(|answer| answer.as_ref().err()).all(Unanswered::may_pass), "{answers:?}");
    }

    /// A thread that comes to it after its time says so. It is no question that could not be asked: asking again can help.
    #[test]
    fn a_question_whose_turn_comes_too_late_is_one_that_may_be_asked_again() {
        let (queue, asked) = sync_channel(1);
        let (tell, told) = std::sync::mpsc::channel();
        let question: Question = Box::new(move |session| tell.send(session.err()).is_err());
        queue.send(Asked { by: Deadline::after(Duration::ZERO), question }).unwrap();
        drop(queue);
        let directory = tempfile::tempdir().unwrap();
        answer(&Site::embedded(Embedded::new(directory.path().to_owned())), &Mutex::new(asked));
        let heard = told.recv().unwrap().unwrap();
        assert!(matches!(heard, Unanswered::TooLate) && heard.may_pass(), "{heard:?}");
    }
}
