//! No token and no login has more than half of the threads: the slow questions of one leave the others half of them.

use super::THREADS;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many questions of one client are asked at once.
const EACH: usize = THREADS / 2;

tokio::task_local! {
    static CLIENT: String;
}

/// What is asked while `request` is answered is asked for this token or login.
pub(crate) async fn asked_by<T>(client: String, request: impl Future<Output = T>) -> T {
    CLIENT.scope(client, request).await
}

/// Those who have asked something that is not answered yet, and how much more each may ask now.
#[derive(Debug, Default)]
pub(super) struct Clients(Mutex<HashMap<String, Arc<Semaphore>>>);

impl Clients {
    /// Waits until whoever asks has less than its half. `None` where nobody asks but ourselves.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        let client = CLIENT.try_with(Clone::clone).ok()?;
        let own = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // A permit, and who waits for one, holds its semaphore.
            all.retain(|_, own| Arc::strong_count(own) > 1);
            Arc::clone(all.entry(client).or_insert_with(|| Arc::new(Semaphore::new(EACH))))
        };
        // None of them is ever closed.
        own.acquire_owned().await.ok()
    }

    #[cfg(test)]
    pub(super) fn has_its_share(&self, client: &str) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(client).is_some_and(|own| own.available_permits() == 0)
    }
}
