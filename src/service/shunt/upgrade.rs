//! Makes a new build retry all shunted messages, so that a repaired site delivers them. It retries one at a time, the oldest
//! first, and behind other mail. It passes them to the broker as any client does.

use crate::base::deadline::Deadline;
use crate::config::Config;
use crate::delivery::{NoCaller, StatusDetail, Verdict};
use crate::operations::submission::shunted_request;
use crate::protocol::client::{self, Handover, HandoverResult};
use crate::protocol::{Request, Source};
use crate::queue::{CrashedMessage, Queue};
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::Duration;
use tracing::{info, warn};

/// The pause after an attempt that did not deliver: such messages crash at most one worker a minute.
const PAUSE: Duration = Duration::from_mins(1);

/// Starts the retries in a thread of its own, which is not joined.
///
/// # Errors
/// If the system provides no thread.
pub fn start(config: Config) -> io::Result<()> {
    let run = move || match fs::metadata("/proc/self/exe").map_err(|error| error.to_string()) {
        Ok(program) => try_all(&config, program.ctime()).unwrap_or_else(|error| {
            warn!(error, "shunted messages cannot be read");
        }),
        Err(error) => {
            warn!(error, "when this program was installed is not known: it tries no shunted message by itself")
        }
    };
    thread::Builder::new().name("upgrade".into()).spawn(run).map(drop)
}

/// Retries the shunted messages that have not crashed since `installed`, when this program was installed, in seconds since 1970.
fn try_all(config: &Config, installed: i64) -> Result<(), String> {
    let mut rest = to_be_tried(config, installed)?;
    while let Some(message) = rest.pop_front() {
        match try_one(config, &message) {
            Ok(HandoverResult::Answered(verdicts)) if verdicts.iter().any(|verdict| verdict.class() == 2) => continue,
            // The message may have waited in vain for a worker.
            Ok(HandoverResult::Answered(verdicts)) if verdicts.iter().all(is_congestion) => rest.push_back(message),
            Ok(HandoverResult::NotTaken(_)) => rest.push_back(message),
            Ok(HandoverResult::Answered(_) | HandoverResult::CallerGone | HandoverResult::Lost(_)) => {}
            Err(error) => warn!(id = %message.digest, error, "a shunted message cannot be read"),
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// The messages to retry. Those that Postfix has given up (`maximal_queue_lifetime`) are left to an operator.
fn to_be_tried(config: &Config, installed: i64) -> Result<VecDeque<CrashedMessage>, String> {
    let lifetime = config.delivery.postfix_queue_lifetime;
    let is_due =
        |message: &CrashedMessage| message.is_shunted() && message.changed < installed && message.age() < lifetime;
    let found =
        Queue::open(&config.service.queue()).and_then(|queue| queue.crashed()).map_err(|error| error.to_string())?;
    Ok(found.into_iter().flatten().filter(is_due).collect())
}

fn try_one(config: &Config, message: &CrashedMessage) -> Result<HandoverResult, String> {
    let read = Queue::open(&config.service.queue()).map_err(|error| error.to_string())?.crashed_message(message.digest);
    let (found, bytes) = read.map_err(|error| error.to_string())?.ok_or("it is gone")?;
    let request = Request { source: Source::Upgrade, ..shunted_request(found.envelope) };
    let deadline = Deadline::after(config.delivery.deadline);
    let handing = Handover { request: &request, message: &bytes, caller: &NoCaller, deadline };
    let handed = client::hand_over(&config.service.clients_socket(), handing);
    info!(id = %message.digest, ?handed, "a new build has tried a shunted message");
    Ok(handed)
}

fn is_congestion(verdict: &Verdict) -> bool {
    verdict.detail() == StatusDetail::CONGESTION
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Digest, Envelope, Recipient};
    use std::time::SystemTime;

    #[test]
    fn what_is_shunted_and_crashed_before_this_build_came_is_tried_unless_postfix_has_given_it_up() {
        let folder = tempfile::tempdir().unwrap();
        let config = crate::service::configured(folder.path());
        let (hour, lifetime) = (Duration::from_hours(1), config.delivery.postfix_queue_lifetime);
        let queue = Queue::open(&config.service.queue()).unwrap();
        for (message, crashes, age) in
            [("newer", 2, hour), ("older", 3, 2 * hour), ("suspect", 1, hour), ("too old", 2, lifetime)]
        {
            let recipients = vec![Recipient { address: "a@x".into(), original: None }];
            let envelope = Envelope {
                sender: String::new(),
                queued_at: 0,
                injected_by: "the service".into(),
                may_owe_sent: false,
                reason: None,
                size: 0,
                origin: None,
                recipients,
            };
            let (digest, at) = (Digest::of(message.as_bytes()), SystemTime::now() - age);
            queue.record_crash(digest, crashes, envelope, message.as_bytes(), at).unwrap();
        }
        let changed = queue.crashed().unwrap().into_iter().map(|found| found.unwrap().changed).max().unwrap();
        let tried = |installed: i64| -> Vec<Digest> {
            to_be_tried(&config, installed).unwrap().iter().map(|message| message.digest).collect()
        };
        assert_eq!(tried(changed + 1), [Digest::of(b"older"), Digest::of(b"newer")]);
        assert_eq!(tried(0), [], "the same build has crashed with them");
        // No service takes the message now.
        let message = &to_be_tried(&config, changed + 1).unwrap()[0];
        assert!(matches!(try_one(&config, message), Ok(HandoverResult::NotTaken(_))));
        queue.drop_crashed(message.digest).unwrap();
        assert_eq!(try_one(&config, message), Err("it is gone".into()));
    }
}
