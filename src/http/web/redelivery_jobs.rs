//! Redeliveries that somebody has begun from the web UI. They go on without the browser: their screen can be loaded again, and that
//! begins nothing.

use super::operations_log::actor_of;
use crate::base::deadline::Deadline;
use crate::base::timestamp;
use crate::database::DatabaseError;
use crate::http::blocking::{Blocking, NotDone};
use crate::ledger::operations_log::{self, Affected, Operation};
use crate::ledger::web_sessions::WebSession;
use crate::operations::manual_redelivery::{Kind, Request, SelectedCopy, deliver_again};
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
pub(super) struct Jobs(Arc<Mutex<VecDeque<Job>>>);

/// Copies that are delivered again, one after the other.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) id: Uuid,
    pub(super) by: String,
    /// In microseconds since 1970.
    pub(super) began_at: i64,
    pub(super) of: usize,
    /// What came of those that are done with. Its sender is dropped once the job has ended.
    came: watch::Receiver<Vec<Came>>,
}

/// What came of one copy.
#[derive(Clone, Debug)]
pub(super) struct Came {
    /// `None` where the ledger does not know it any more, or cannot be asked.
    pub(super) copy: Option<SelectedCopy>,
    pub(super) outcome: ReplayOutcome,
}

impl Job {
    /// What came of each that is done with, and whether the job has ended, which is waited for as long as `patience`.
    pub(super) async fn so_far(&mut self, patience: Duration) -> (Vec<Came>, bool) {
        // An error says that it has ended.
        let ended = timeout(patience, async { while self.came.changed().await.is_ok() {} }).await.is_ok();
        (self.came.borrow().clone(), ended)
    }
}

impl Jobs {
    /// Begins to deliver these again, in their order.
    ///
    /// # Errors
    /// Where it has not begun: nothing is done then.
    pub(super) fn begin(&self, blocking: &Blocking, by: &WebSession, requests: Vec<Request>) -> Result<Uuid, NotDone> {
        let (tell, came) = watch::channel(Vec::new());
        let id = Uuid::now_v7();
        let job = Job { id, by: by.name.clone(), began_at: timestamp::now(), of: requests.len(), came };
        let by = by.clone();
        blocking.begin_redelivery(move |site, stop| {
            for request in requests {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let came = one(site, &by, request, stop);
                tell.send_modify(|all| all.push(came));
            }
        })?;
        let mut remembered = self.remembered();
        remembered.push_back(job);
        while remembered.len() > REMEMBERED {
            remembered.pop_front();
        }
        Ok(id)
    }

    /// The one of this name, where it is remembered.
    pub(super) fn of(&self, id: Uuid) -> Option<Job> {
        self.remembered().iter().find(|job| job.id == id).cloned()
    }

    fn remembered(&self) -> MutexGuard<'_, VecDeque<Job>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nothing is done that is not in the operations log before.
fn one(site: &Site, by: &WebSession, request: Request, stop: &AtomicBool) -> Came {
    let mut begun = false;
    let (copy, outcome) = deliver_again(site, request, stop, |copy| {
        begun = true;
        log(site, by, copy, "").map_err(|error| format!("it cannot be written into the operations log: {error}"))
    });
    if let (Some(copy), true) = (&copy, begun) {
        let (message_id, place, result, detail) = (&copy.message_id, copy.place(), outcome.as_str(), outcome.detail());
        info!(by = by.name, message_id, copy = place, result, detail, "a copy was delivered again from the page");
        let told = if detail == result { result.to_owned() } else { format!("{result}: {detail}") };
        if let Err(error) = log(site, by, copy, &told) {
            warn!(%error, message_id, copy = place, "what came of delivering it again is not in the operations log");
        }
    }
    Came { copy, outcome }
}

fn log(site: &Site, by: &WebSession, copy: &SelectedCopy, outcome: &str) -> Result<(), DatabaseError> {
    let operation = match copy.request.kind {
        Kind::Finish => Operation::FinishedOwed,
        Kind::Restore => Operation::Restored,
        Kind::Deliver => Operation::DeliveredAgain,
    };
    let affected = Affected {
        identity: Some(copy.identity.as_bytes()),
        message_id: Some(&copy.message_id),
        user: Some(&copy.user),
        mailbox: Some(&copy.mailbox),
        object: Some(&copy.recipient),
    };
    let mut database = site.open_to_ask(Deadline::after(PATIENCE))?;
    operations_log::write(database.as_mut(), actor_of(site, by), operation, affected, outcome)
}
