//! Stores the crash records, in a thread of its own, since a disk may be slow.
//!
//! A record that cannot be written lasts only as long as this process. The message is still with its holder, and the next crash
//! is written once more.

use super::{CrashRecords, Order};
use crate::protocol::{Request, Source};
use crate::queue::{CrashedMessage, Digest, Envelope, MessageHolder, Origin, Queue, QueueError};
use crate::service::inflight_message::Body;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use tracing::{error, warn};

/// How many orders may wait: each may contain a whole message.
const WAITING: usize = 16;
/// A suspect without a new attempt for this time is dropped when a front starts: a holder that still has the message retries more
/// often.
const SUSPECT_FOR: Duration = Duration::from_hours(24 * 7);

/// The stored records of an earlier process. A record that cannot be read is logged, and stays.
pub fn remembered(queue: &Path, now: Instant) -> CrashRecords {
    let messages = read(queue).unwrap_or_else(|error| {
        error!(%error, "which messages have crashed workers is not known");
        Vec::new()
    });
    CrashRecords::remembered(messages, now)
}

fn read(queue: &Path) -> Result<Vec<CrashedMessage>, QueueError> {
    let queue = Queue::open(queue)?;
    let mut remembered = Vec::new();
    for found in queue.crashed()? {
        match found {
            Ok(message) if !message.is_shunted() && message.age() > SUSPECT_FOR => {
                queue.drop_crashed(message.digest)?;
            }
            Ok(message) => remembered.push(message),
            Err(error) => warn!(%error, "what is known of a message that crashed workers cannot be read"),
        }
    }
    Ok(remembered)
}

/// Starts the writer with the folder of the file queue. The writer ends once the returned sender is dropped and all orders are
/// carried out.
///
/// # Errors
/// If the system provides no thread.
pub fn start(queue: PathBuf) -> io::Result<SyncSender<Order>> {
    let (order, orders) = sync_channel(WAITING);
    let run = move || orders.into_iter().for_each(|order| obey(&queue, order));
    thread::Builder::new().name("shunt".into()).spawn(run)?;
    Ok(order)
}

/// Opens the queue for each order, since its folders may have been replaced.
fn obey(queue: &Path, order: Order) {
    let (digest, written) = match order {
        Order::Crashed { digest, crashes, reason, request, body } => {
            (digest, record(queue, digest, crashes, envelope(*request, reason), &body))
        }
        Order::Remove(digest) => (digest, Queue::open(queue).and_then(|queue| queue.drop_crashed(digest)).map(drop)),
    };
    if let Err(error) = written {
        error!(id = %digest, %error, "what is known of a message that crashed a worker cannot be written down");
    }
}

fn record(queue: &Path, digest: Digest, crashes: u32, envelope: Envelope, body: &Body) -> Result<(), QueueError> {
    let bytes =
        body.bytes().map_err(|error| QueueError::of_io("reading a message to be written below", queue, error))?;
    Queue::open(queue)?.record_crash(digest, crashes, envelope, &bytes, SystemTime::now())
}

/// The envelope of a message, for its file.
fn envelope(request: Request, reason: String) -> Envelope {
    Envelope {
        sender: request.sender,
        queued_at: 0,
        injected_by: "the service".into(),
        may_owe_sent: !request.no_sent,
        reason: Some(reason),
        size: request.size,
        origin: Some(Origin {
            holder: if request.source == Source::Queue { MessageHolder::Queue } else { MessageHolder::Mta },
            queue_id: request.queue_id,
            client_address: request.client_address,
            sasl_username: request.sasl_username,
        }),
        recipients: request.recipients,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::submission::shunted_request;
    use crate::service::inflight_message::MessageFile;
    use std::fs;

    fn crash(message: &str, crashes: u32, body: Body) -> Order {
        let request = Request {
            queue_id: Some("4bXyz".into()),
            client_address: Some("192.0.2.1".into()),
            sasl_username: Some("lisa".into()),
            no_sent: true,
            ..Request::to(&["a@x", "b@x"], message.len())
        };
        let digest = Digest::of(message.as_bytes());
        Order::Crashed { digest, crashes, reason: "it crashed".into(), request: Box::new(request), body }
    }

    #[test]
    fn what_crashed_a_worker_is_there_with_its_envelope_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue");
        let mut file = MessageFile::create(folder.path().join("spooled")).unwrap();
        file.append(b"large").unwrap();
        obey(&path, crash("large", 1, Body::File(file)));
        assert_eq!(remembered(&path, Instant::now()).suspects(), 1);
        obey(&path, crash("large", 2, Body::Memory(b"large".to_vec())));
        let (queue, digest) = (Queue::existing(&path).unwrap(), Digest::of(b"large"));
        let (found, message) = queue.crashed_message(digest).unwrap().unwrap();
        assert_eq!((found.crashes, message.as_slice()), (2, &b"large"[..]));
        let again = shunted_request(found.envelope);
        assert_eq!((again.queue_id.as_deref(), again.sasl_username.as_deref()), (Some("4bXyz"), Some("lisa")));
        assert_eq!((again.client_address.as_deref(), again.size, again.no_sent), (Some("192.0.2.1"), 5, true));
        obey(&path, Order::Remove(digest));
        assert!(queue.crashed().unwrap().is_empty());
    }

    #[test]
    fn a_suspect_is_forgotten_after_a_week_and_a_shunted_message_never() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue");
        let long_ago = SystemTime::now() - SUSPECT_FOR - Duration::from_secs(60);
        for (message, crashes) in [("suspect", 1), ("shunted", 2)] {
            let bytes = Body::Memory(message.into());
            let envelope = envelope(Request::to(&["a@x"], message.len()), String::new());
            let Body::Memory(bytes) = bytes else { unreachable!() };
            let digest = Digest::of(&bytes);
            Queue::open(&path).unwrap().record_crash(digest, crashes, envelope, &bytes, long_ago).unwrap();
        }
        assert_eq!(remembered(&path, Instant::now()).suspects(), 0);
        let left = Queue::existing(&path).unwrap().crashed().unwrap();
        assert!(left.len() == 1 && left[0].as_ref().unwrap().is_shunted());
    }

    #[test]
    fn a_queue_that_was_removed_is_recreated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue");
        for _ in 0..2 {
            obey(&path, crash("x", 2, Body::Memory(b"x".to_vec())));
            assert!(Queue::existing(&path).unwrap().crashed_message(Digest::of(b"x")).unwrap().is_some());
            fs::remove_dir_all(&path).unwrap();
        }
    }
}
