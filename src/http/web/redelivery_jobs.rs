//! Redeliveries started in the web UI. They continue without the browser: reloading a job's screen starts nothing.

use super::operations_log::actor;
use crate::base::deadline::Deadline;
use crate::base::timestamp;
use crate::database::DatabaseError;
use crate::http::blocking_pools::{Blocking, Rejected};
use crate::ledger::operations_log::{self, Affected, Operation};
use crate::ledger::web_sessions::WebSession;
use crate::operations::manual_redelivery::{RedeliveryKind, RedeliveryRequest, SelectedCopy, deliver_again};
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

/// How many jobs are remembered: the ledger has the results of the others.
const REMEMBERED: usize = 100;

/// How long the database may take for a row of the operations log.
const PATIENCE: Duration = Duration::from_secs(30);

/// The jobs that this process remembers, the newest last.
#[derive(Clone, Default)]
pub(super) struct Jobs(Arc<Mutex<VecDeque<RedeliveryJob>>>);

/// Copies that are redelivered, one after the other.
#[derive(Clone)]
pub(super) struct RedeliveryJob {
    pub(super) id: Uuid,
    pub(super) by: String,
    /// In microseconds since 1970.
    pub(super) began_at: i64,
    pub(super) of: usize,
    /// The results so far. The sender is dropped once the job has ended.
    came: watch::Receiver<Vec<CopyResult>>,
}

/// The result for one copy.
#[derive(Clone, Debug)]
pub(super) struct CopyResult {
    /// `None` if the ledger does not know the copy any more, or cannot be queried.
    pub(super) copy: Option<SelectedCopy>,
    pub(super) outcome: ReplayOutcome,
}

impl RedeliveryJob {
    /// Waits up to `patience` for the job's end. Returns the results so far, and whether the job has ended.
    pub(super) async fn so_far(&mut self, patience: Duration) -> (Vec<CopyResult>, bool) {
        // The channel's error says that the job has ended.
        let ended = timeout(patience, async { while self.came.changed().await.is_ok() {} }).await.is_ok();
        (self.came.borrow().clone(), ended)
    }
}

impl Jobs {
    /// Starts to redeliver these copies, in their order.
    ///
    /// # Errors
    /// If the job could not start; nothing is done then.
    pub(super) fn begin(
        &self,
        blocking: &Blocking,
        by: &WebSession,
        requests: Vec<RedeliveryRequest>,
    ) -> Result<Uuid, Rejected> {
        let (results_sender, came) = watch::channel(Vec::new());
        let id = Uuid::now_v7();
        let job = RedeliveryJob { id, by: by.name.clone(), began_at: timestamp::now(), of: requests.len(), came };
        let by = by.clone();
        blocking.begin_redelivery(move |site, stop| {
            for request in requests {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let came = one(site, &by, request, stop);
                results_sender.send_modify(|all| all.push(came));
            }
        })?;
        let mut remembered = self.remembered();
        remembered.push_back(job);
        while remembered.len() > REMEMBERED {
            remembered.pop_front();
        }
        Ok(id)
    }

    /// The job with this id, if it is remembered.
    pub(super) fn of(&self, id: Uuid) -> Option<RedeliveryJob> {
        self.remembered().iter().find(|job| job.id == id).cloned()
    }

    fn remembered(&self) -> MutexGuard<'_, VecDeque<RedeliveryJob>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Redelivers one copy, only after an entry in the operations log.
fn one(site: &Site, by: &WebSession, request: RedeliveryRequest, stop: &AtomicBool) -> CopyResult {
    let mut begun = false;
    let (copy, outcome) = deliver_again(site, request, stop, |copy| {
        begun = true;
        log(site, by, copy, "").map_err(|error| format!("it cannot be written into the operations log: {error}"))
    });
    if let (Some(copy), true) = (&copy, begun) {
        let (message_id, place, result, detail) = (&copy.message_id, copy.place(), outcome.as_str(), outcome.detail());
        info!(by = by.name, message_id, copy = place, result, detail, "a copy was delivered again from the page");
        let shown = if detail == result { result.to_owned() } else { format!("{result}: {detail}") };
        if let Err(error) = log(site, by, copy, &shown) {
            warn!(%error, message_id, copy = place, "what came of delivering it again is not in the operations log");
        }
    }
    CopyResult { copy, outcome }
}

fn log(site: &Site, by: &WebSession, copy: &SelectedCopy, outcome: &str) -> Result<(), DatabaseError> {
    let operation = match copy.request.kind {
        RedeliveryKind::Finish => Operation::FinishedOwed,
        RedeliveryKind::Restore => Operation::Restored,
        RedeliveryKind::Deliver => Operation::DeliveredAgain,
    };
    let affected = Affected {
        identity: Some(copy.identity.as_bytes()),
        message_id: Some(&copy.message_id),
        user: Some(&copy.user),
        mailbox: Some(&copy.mailbox),
        object: Some(&copy.recipient),
    };
    let mut database = site.open_to_ask(Deadline::after(PATIENCE))?;
    operations_log::write(database.as_mut(), actor(site, by), operation, affected, outcome)
}
