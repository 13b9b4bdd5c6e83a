//! No token and no login has more than half of the threads, and what may take long has no more than half of them, whoever asks: what is
//! quick has the others.

use super::THREADS;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many questions of one client are asked at once, and how many that may take long.
const HALF: usize = THREADS / 2;

tokio::task_local! {
    static CLIENT: String;
}

/// What is asked while `request` is answered is asked for this token or login.
pub(crate) async fn asked_by<T>(client: String, request: impl Future<Output = T>) -> T {
    CLIENT.scope(client, request).await
}

#[derive(Debug)]
pub(super) struct Turns {
    /// Those who have asked something that is not answered yet, and how much more each may ask now.
    clients: Mutex<HashMap<String, Arc<Semaphore>>>,
    long: Arc<Semaphore>,
}

/// Dropped, the next one has it.
pub(super) struct Turn {
    _own: Option<OwnedSemaphorePermit>,
    _long: Option<OwnedSemaphorePermit>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { clients: Mutex::default(), long: Arc::new(Semaphore::new(HALF)) }
    }
}

impl Turns {
    /// Waits until whoever asks has less than its half, and the same for what may take long. What we ask ourselves, for nobody, does not
    /// wait for others of ours.
    pub(super) async fn turn(&self, may_take_long: bool) -> Turn {
        let own = CLIENT.try_with(Clone::clone).ok().map(|client| {
            let mut all = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
            // A permit, and who waits for one, holds its semaphore.
            all.retain(|_, own| Arc::strong_count(own) > 1);
            Arc::clone(all.entry(client).or_insert_with(|| Arc::new(Semaphore::new(HALF))))
        });
        // None of them is ever closed.
        let own = match own {
            Some(own) => own.acquire_owned().await.ok(),
            None => None,
        };
        let long = if may_take_long { Arc::clone(&self.long).acquire_owned().await.ok() } else { None };
        Turn { _own: own, _long: long }
    }

    #[cfg(test)]
    pub(super) fn has_its_share(&self, client: &str) -> bool {
        let all = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(client).is_some_and(|own| own.available_permits() == 0)
    }

    #[cfg(test)]
    pub(super) fn long_ones_have_their_share(&self) -> bool {
        self.long.available_permits() == 0
    }
}
