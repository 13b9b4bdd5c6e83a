//! One question that is asked again and again, by a thread with a session of its own.
//!
//! The sessions of the other threads serve whoever comes next, so each is looked at before it is used, and proven to carry nothing over
//! afterwards: three round trips for a question. This one serves nobody else, and only reads, one statement at a time, so that there is
//! nothing that it could carry over: one round trip.

use super::{Database, DatabaseError, Site, Unanswered, client};
use crate::base::deadline::Deadline;
use crate::database::Idle;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tracing::{debug, error};

/// After so long a session is proven to be sound, and given more time.
const HELD_FOR: Duration = Duration::from_mins(1);
/// After so long without a question it is closed.
const RESTS: Duration = Duration::from_secs(10);

type Asked<A, T> = (A, oneshot::Sender<Result<T, Unanswered>>);

/// Its thread ends once the last clone is dropped.
pub struct AskedAgain<A, T> {
    questions: SyncSender<Asked<A, T>>,
    patience: Duration,
}

impl<A, T> Clone for AskedAgain<A, T> {
    fn clone(&self) -> Self {
        Self { questions: self.questions.clone(), patience: self.patience }
    }
}

impl<A: Clone + Send + 'static, T: Send + 'static> AskedAgain<A, T> {
    /// A thread that asks the ledger of `site` by `work`, which only reads, where each answer may take `patience`.
    ///
    /// # Errors
    /// Where the system gives us no thread.
    pub fn start(
        site: &Site,
        patience: Duration,
        work: impl Fn(&mut dyn Database, A) -> Result<T, DatabaseError> + Send + 'static,
    ) -> io::Result<Self> {
        // One is asked while another waits: who asks waits for the answer.
        let (questions, asked) = sync_channel(1);
        let site = site.clone();
        std::thread::Builder::new()
            .name("ledger-again".into())
            .spawn(move || answer(&site, patience, &asked, &work))?;
        Ok(Self { questions, patience })
    }

    /// What it finds now.
    ///
    /// # Errors
    /// Where there is no answer in time, or the database fails.
    pub async fn ask(&self, about: A) -> Result<T, Unanswered> {
        let (tell, told) = oneshot::channel();
        self.questions.try_send((about, tell)).map_err(|_| Unanswered::Busy)?;
        match tokio::time::timeout(self.patience, told).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Unanswered::Failed),
            Err(_) => Err(Unanswered::TooLate),
        }
    }
}

/// A session, and since when it has been held.
type Held = (Box<dyn Database>, Instant);

fn answer<A: Clone, T>(
    site: &Site,
    patience: Duration,
    asked: &Receiver<Asked<A, T>>,
    work: &dyn Fn(&mut dyn Database, A) -> Result<T, DatabaseError>,
) {
    let mut held: Option<Held> = None;
    loop {
        let (about, tell) = match asked.recv_timeout(RESTS) {
            Ok(question) => question,
            Err(RecvTimeoutError::Timeout) => {
                held = None;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if tell.is_closed() {
            continue;
        }
        let asking = || once(site, patience, &mut held, |database| work(database, about.clone()));
        match catch_unwind(AssertUnwindSafe(asking)) {
            // Whoever asked may have gone.
            Ok(answer) => drop(tell.send(answer.map_err(Unanswered::from))),
            Err(_) => error!("a question to the ledger has panicked"),
        }
    }
}

/// Asks once, and once more by another session where the server has ended this one. Only a session without any failure is held on to.
fn once<T>(
    site: &Site,
    patience: Duration,
    held: &mut Option<Held>,
    work: impl Fn(&mut dyn Database) -> Result<T, DatabaseError>,
) -> Result<T, DatabaseError> {
    // As long as it is held, a question has all of its time.
    let by = || Deadline::after(HELD_FOR + patience);
    let sound = match held.take() {
        Some((session, since)) if since.elapsed() < HELD_FOR => Some((session, since)),
        Some((session, _)) => {
            let begun = Idle::after(session).and_then(|idle| idle.begin(&client(site), by()).ok());
            begun.map(|session| (session, Instant::now()))
        }
        None => None,
    };
    if let Some((mut session, since)) = sound {
        session.end_long_questions(patience);
        match work(session.as_mut()) {
            Ok(found) => {
                *held = Some((session, since));
                return Ok(found);
            }
            Err(error) if error.a_new_session_can_help() => debug!(%error, "asking once more, by another session"),
            Err(error) => return Err(error),
        }
    }
    let mut session = site.open_database(None, by())?;
    session.end_long_questions(patience);
    let found = work(session.as_mut())?;
    *held = Some((session, Instant::now()));
    Ok(found)
}
