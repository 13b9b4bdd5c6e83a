//! Deliveries that somebody has begun from the page. They go on without the browser: their screen can be loaded again, and that
//! begins nothing.

use super::log::actor_of;
use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::ledger::operations_log::{self, Affected, Operation};
use crate::ledger::web_sessions::WebSession;
use crate::mailbox_work::{MailboxWork, NotDone};
use crate::operations::again::{Choice, How, Picked, deliver_again};
use crate::operations::replay::ReplayOutcome;
use crate::site::Site;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};
use uuid::Uuid;

/// How many are remembered: the ledger has what came of the others.
const REMEMBERED: usize = 100;

/// How long the database may take for a row of the operations log.
const PATIENCE: Duration = Duration::from_secs(30);

/// Those that this process remembers, the newest last.
#[derive(Clone, Default)]
pub(super) struct Runs(Arc<Mutex<VecDeque<Arc<Run>>>>);

/// Copies that are delivered again, one after the other.
pub(super) struct Run {
    pub(super) id: Uuid,
    pub(super) by: String,
    pub(super) of: usize,
    done: Mutex<Vec<Came>>,
    /// How many are done with. It cannot be asked any more once the run has ended.
    progress: watch::Receiver<usize>,
}

/// What came of one copy.
#[derive(Clone, Debug)]
pub(super) struct Came {
    /// `None` where the ledger does not know it any more, or cannot be asked.
    pub(super) picked: Option<Picked>,
    pub(super) outcome: ReplayOutcome,
}

impl Run {
    /// What came of each that is done with, and whether the run has ended.
    pub(super) fn so_far(&self) -> (Vec<Came>, bool) {
        // Looked at first: what is done when it has ended is all.
        let ended = self.has_ended();
        (whole(&self.done).clone(), ended)
    }

    fn has_ended(&self) -> bool {
        self.progress.has_changed().is_err()
    }

    /// Waits until it has ended, but not for longer than `patience`.
    pub(super) async fn await_end(&self, patience: Duration) {
        let mut progress = self.progress.clone();
        // An error says that it has ended.
        let _ = timeout(patience, async { while progress.changed().await.is_ok() {} }).await;
    }
}

impl Runs {
    /// Begins to deliver these again, in their order.
    ///
    /// # Errors
    /// Where it has not begun: nothing is done then.
    pub(super) fn begin(&self, work: &MailboxWork, by: &WebSession, choices: Vec<Choice>) -> Result<Arc<Run>, NotDone> {
        let (tell, progress) = watch::channel(0);
        let (id, of) = (Uuid::now_v7(), choices.len());
        let run = Arc::new(Run { id, by: by.name.clone(), of, done: Mutex::default(), progress });
        let (begun, by) = (Arc::clone(&run), by.clone());
        work.begin(move |site, stop| {
            for choice in choices {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let came = one(site, &by, choice, stop);
                whole(&begun.done).push(came);
                tell.send_modify(|done| *done += 1);
            }
        })?;
        let mut remembered = whole(&self.0);
        remembered.push_back(Arc::clone(&run));
        while remembered.len() > REMEMBERED {
            remembered.pop_front();
        }
        Ok(run)
    }

    /// The one of this name, where it is remembered.
    pub(super) fn of(&self, id: Uuid) -> Option<Arc<Run>> {
        whole(&self.0).iter().find(|run| run.id == id).cloned()
    }
}

/// Nothing is done that is not in the operations log before.
fn one(site: &Site, by: &WebSession, choice: Choice, stop: &AtomicBool) -> Came {
    let mut begun = false;
    let (picked, outcome) = deliver_again(site, choice, stop, |picked| {
        begun = true;
        log(site, by, picked, "").map_err(|error| format!("it cannot be written into the operations log: {error}"))
    });
    if let (Some(picked), true) = (&picked, begun) {
        let (message_id, copy, result, detail) =
            (&picked.message_id, picked.place(), outcome.as_str(), outcome.detail());
        info!(by = by.name, message_id, copy, result, detail, "a copy was delivered again from the page");
        let told = if outcome.detail() == result { result.to_owned() } else { format!("{result}: {detail}") };
        if let Err(error) = log(site, by, picked, &told) {
            warn!(%error, message_id, copy, "what came of delivering it again is not in the operations log");
        }
    }
    Came { picked, outcome }
}

fn log(site: &Site, by: &WebSession, picked: &Picked, outcome: &str) -> Result<(), DatabaseError> {
    let operation = match picked.choice.how {
        How::Finish => Operation::FinishedOwed,
        How::Restore => Operation::Restored,
        How::Deliver => Operation::DeliveredAgain,
    };
    let affected = Affected {
        identity: Some(picked.identity.as_bytes()),
        message_id: Some(&picked.message_id),
        user: Some(&picked.user),
        mailbox: Some(&picked.mailbox),
        object: Some(&picked.recipient),
    };
    let mut database = site.open_to_ask(Deadline::after(PATIENCE))?;
    operations_log::write(database.as_mut(), actor_of(site, by), operation, affected, outcome)
}

fn whole<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
