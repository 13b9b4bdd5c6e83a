//! Redeliveries started in the web UI. They continue without the browser: reloading a job's screen starts nothing.

use super::visit::Visit;
use crate::base::timestamp;
use crate::http::blocking_pools::Rejected;
use crate::operations::manual_redelivery::{CopyOutcome, RedeliveryRequest, deliver_again};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use uuid::Uuid;

/// How many jobs are remembered: the ledger has the results of the others.
const REMEMBERED: usize = 100;

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
    outcomes: watch::Receiver<Vec<CopyOutcome>>,
}

impl RedeliveryJob {
    /// Waits up to `patience` for the job's end. Returns the results so far, and whether the job has ended.
    pub(super) async fn so_far(&mut self, patience: Duration) -> (Vec<CopyOutcome>, bool) {
        // The channel's error says that the job has ended.
        let ended = timeout(patience, async { while self.outcomes.changed().await.is_ok() {} }).await.is_ok();
        (self.outcomes.borrow().clone(), ended)
    }
}

impl Jobs {
    /// Starts to redeliver these copies, in their order.
    ///
    /// # Errors
    /// If the job could not start; nothing is done then.
    pub(super) fn begin(&self, visit: &Visit, requests: Vec<RedeliveryRequest>) -> Result<Uuid, Rejected> {
        let (results_sender, outcomes) = watch::channel(Vec::new());
        let id = Uuid::now_v7();
        let job = RedeliveryJob {
            id,
            by: visit.viewer.name.clone(),
            began_at: timestamp::now(),
            of: requests.len(),
            outcomes,
        };
        let by = visit.clone();
        visit.page.blocking.begin_redelivery(move |site, stop| {
            for request in requests {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let outcome = deliver_again(site, request, by.actor());
                results_sender.send_modify(|all| all.push(outcome));
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
