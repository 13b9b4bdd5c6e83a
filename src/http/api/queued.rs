//! How many bytes of the file queue each token uses, in the memory of this process. Only reading the queue shows what the runners
//! have delivered, and the queue is read again only once a share seems to be full.

use crate::queue::{Queue, QueueError};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The shortest time between two reads of the queue.
const SELDOM: Duration = Duration::from_secs(10);
/// Reading the queue may take at most one part in this many of the time.
const PART_OF_THE_TIME: u32 = 20;

#[derive(Default)]
struct QueuedBytes {
    /// The queue is not read again before this moment; `None`: it was never read.
    again: Option<Instant>,
    /// The bytes in the queue at the last read, by token, and those added since.
    bytes: HashMap<String, u64>,
}

#[derive(Default)]
pub(super) struct Queued(Mutex<QueuedBytes>);

impl Queued {
    /// Counts bytes that are about to be queued. They count until a read of the queue shows that they are gone. If the token
    /// would have more than `share`, returns `false` and counts nothing.
    ///
    /// # Errors
    /// If the queue cannot be read.
    pub(super) fn add(&self, queue: &Queue, bringer: &str, bytes: u64, share: u64) -> Result<bool, QueueError> {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |counted: &QueuedBytes| {
            let own = counted.bytes.get(bringer).copied().unwrap_or_default();
            own.saturating_add(bytes) <= share
        };
        let now = Instant::now();
        if counted.again.is_none_or(|again| again <= now && !fits(&counted)) {
            counted.bytes = queue.bytes_by_submitter()?;
            counted.again = Some(Instant::now() + SELDOM.max(now.elapsed() * PART_OF_THE_TIME));
        }
        let fits = fits(&counted);
        if fits {
            *counted.bytes.entry(bringer.to_owned()).or_default() += bytes;
        }
        Ok(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::LockName;
    use crate::queue::{Envelope, Recipient};
    use std::time::SystemTime;

    #[test]
    fn a_token_has_its_share_of_the_queue_again_once_its_mail_is_delivered() {
        let folder = tempfile::tempdir().unwrap();
        let queue = Queue::open(&folder.path().join("queue")).unwrap();
        let bring = |by: &str| {
            let recipients = vec![Recipient { address: "doug@x".into(), original: None }];
            let mail = Envelope { recipients, injected_by: by.into(), ..Envelope::default() };
            queue.enqueue(&LockName::new("x", by.as_bytes()), mail, b"0123456789", SystemTime::now()).unwrap()
        };
        let held = bring("one").id();
        queue.hold(&held).unwrap();
        // A new process reads the existing queue.
        let queued = Queued::default();
        let add = |by: &str, bytes| queued.add(&queue, by, bytes, 30).unwrap();
        assert!(add("one", 10) && add("one", 10) && !add("one", 1));
        assert!(add("other", 30) && !add("other", 1));
        // All counted bytes but those of the first message were never queued, so they are gone. Yet the queue is not read for
        // each request.
        assert!(!add("one", 1));
        queued.0.lock().unwrap().again = Some(Instant::now());
        assert!(add("one", 20) && !add("one", 1) && !add("other", 31));
        queue.drop_message(&held).unwrap();
        queued.0.lock().unwrap().again = Some(Instant::now());
        assert!(add("one", 30));
    }
}
