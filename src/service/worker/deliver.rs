//! Delivers one message to its recipients.

use crate::base::deadline::Deadline;
use crate::config::BESIDE_A_MESSAGE;
use crate::database::DatabaseFailure;
use crate::delivery::{Deferral, Delivered, NoCaller, Policy, Refusal, StatusDetail, Verdict};
use crate::message::{Address, EnvelopeSender, Message};
use crate::protocol::{DatabaseState, Recipient, Request};
use crate::site::{self, Envelope, Outcome, Sessions, Site, Terms};
use memchr::{memchr_iter, memmem};
use rustix::fs::OFlags;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use tracing::warn;

/// Delivers a message to all of its recipients. Returns a verdict for each, in their order, and the state of the database.
pub(super) fn to_all(
    site: &Site,
    sessions: &mut Sessions,
    messages: &Path,
    request: &Request,
    bytes: Vec<u8>,
    left: Duration,
) -> (Vec<Verdict>, DatabaseState) {
    let (began, deadline) = (Instant::now(), Deadline::after(left));
    // Without an authenticated author, there is no Sent copy.
    let without_sent = request.no_sent.then(|| site.clone().without_sent_copies());
    let site = without_sent.as_ref().unwrap_or(site);
    let keep_source_up_to = site.policy().keep_source_up_to;
    let message = match message(request, bytes, messages, keep_source_up_to) {
        Ok(message) => message,
        Err(verdict) => {
            let queue_id = request.queue_id.as_deref().unwrap_or_default();
            warn!(queue_id, %verdict, "no message");
            return (vec![verdict; request.recipients.len()], DatabaseState::NotAsked);
        }
    };
    if message.nul_bytes_replaced() > 0 {
        warn!(
            message_id = message.message_id_for_people(),
            nul_bytes = message.nul_bytes_replaced(),
            "NUL bytes, which an IMAP literal cannot carry, were replaced by 0x80"
        );
    }
    // Only a recipient whose address cannot be parsed is deferred for that.
    let envelopes: Vec<Result<Envelope, Verdict>> =
        request.recipients.iter().map(|recipient| envelope(request, recipient)).collect();
    let to: Vec<Envelope> = envelopes.iter().filter_map(|envelope| envelope.as_ref().ok()).cloned().collect();
    let mut policy = site.policy();
    policy.lock_wait =
        lock_wait(request.lock_wait_ms.map_or_else(|| site.lock_wait(left), Duration::from_millis), left);
    set_patience(&mut policy, request.slow, left);
    let terms = Terms { policy: &policy, caller: &NoCaller, deadline };
    #[cfg(feature = "test-faults")]
    {
        crate::base::fault_injection::at("before");
        crate::base::fault_injection::of(message.as_received());
    }
    let outcomes = if to.is_empty() { Vec::new() } else { site.deliver_to_all(sessions, &message, &to, &terms) };
    #[cfg(feature = "test-faults")]
    crate::base::fault_injection::at("after");
    let lock = site.lock_name(&message);
    let found = found(outcomes.iter().map(|outcome| &outcome.result));
    let mut outcomes = outcomes.into_iter();
    let verdict = |envelope: Result<Envelope, Verdict>| {
        let envelope = match envelope {
            Ok(envelope) => envelope,
            Err(verdict) => return verdict,
        };
        let Some(Outcome { result, stages, .. }) = outcomes.next() else {
            return Verdict::deferred(StatusDetail::SYSTEM, "an internal error");
        };
        let verdict = match &result {
            Ok(delivered) => Verdict::from(delivered),
            Err(refusal) => Verdict::from(refusal),
        };
        site::log_delivery(&message, &envelope, &lock, &result, &verdict, &stages, began);
        verdict
    };
    (envelopes.into_iter().map(verdict).collect(), found)
}

/// How long to wait for the lock. Some time must be left for the delivery, even if the message has waited long for a worker.
fn lock_wait(usual: Duration, left: Duration) -> Duration {
    usual.min(left / 2)
}

/// The state of the database, as the results of the recipients show it.
fn found<'a>(results: impl Iterator<Item = &'a Result<Delivered, Refusal>>) -> DatabaseState {
    let mut found = DatabaseState::NotAsked;
    for result in results {
        let Err(refusal @ Refusal::Deferred(Deferral::Database(error))) = result else { return DatabaseState::There };
        match error.failure {
            // The database has answered, and the failure concerns only this delivery.
            DatabaseFailure::Contention
            | DatabaseFailure::InDoubt
            | DatabaseFailure::Refused
            | DatabaseFailure::Other => {
                return DatabaseState::There;
            }
            // The next delivery will show whether the database is available.
            DatabaseFailure::ConnectionLost => {}
            DatabaseFailure::Unreachable
            | DatabaseFailure::AccessDenied
            | DatabaseFailure::TimedOut
            | DatabaseFailure::Schema
            | DatabaseFailure::ReadOnly
            | DatabaseFailure::Behind
            | DatabaseFailure::Unsupported
            | DatabaseFailure::Local => found = DatabaseState::Away(Verdict::from(refusal).text().to_owned()),
        }
    }
    found
}

/// The envelope for one recipient, or a verdict if the address is invalid.
fn envelope(request: &Request, recipient: &Recipient) -> Result<Envelope, Verdict> {
    let address = Address::parse(&recipient.address).map_err(|error| {
        warn!(problem = %error, "no envelope");
        Verdict::deferred(StatusDetail::SYSTEM_CONFIGURATION, format!("the envelope recipient: {error}"))
    })?;
    Ok(Envelope {
        sender: Some(EnvelopeSender::for_the_record(&request.sender)),
        recipient: address,
        original_recipient: recipient.original.clone(),
        queue_id: request.queue_id.clone(),
        client_address: request.client_address.clone(),
        sasl_username: request.sasl_username.clone(),
    })
}

/// The largest message, in bytes, that is delivered without checking whether [`BESIDE_A_MESSAGE`] is free.
const SMALL: usize = 1 << 20;

/// The message, from the frame or from its file. A verdict if it cannot be read, or if this process cannot get the memory for its
/// delivery (RLIMIT_AS). `check` warns if messages may be that large.
fn message(request: &Request, bytes: Vec<u8>, messages: &Path, keep_source_up_to: u64) -> Result<Message, Verdict> {
    let failed = |text: String| Verdict::deferred(StatusDetail::SYSTEM, text);
    let mut bytes = match &request.file {
        None => bytes,
        Some(file) => read(file, request.size, messages).map_err(|error| {
            warn!(file = %file.display(), size = request.size, %error, "a message that waits in a file");
            if error.kind() == io::ErrorKind::OutOfMemory {
                return too_large();
            }
            failed("the message's file cannot be read".into())
        })?,
    };
    let source = if bytes.len() as u64 <= keep_source_up_to { bytes.len().saturating_mul(2) } else { 0 };
    // By how many bytes the message grows when each LF gets a CR.
    let crs = memchr_iter(b'\n', &bytes).count() - memmem::find_iter(&bytes, b"\r\n").count();
    // A small message needs little additional memory, and is delivered whatever the limit is.
    let rest = if bytes.len() > SMALL { usize::try_from(BESIDE_A_MESSAGE).unwrap_or(usize::MAX) } else { 0 };
    let beside = rest.saturating_add(source);
    if bytes.try_reserve_exact(crs + 2).is_err() || Vec::<u8>::new().try_reserve_exact(beside).is_err() {
        warn!(size = bytes.len(), "a message takes more memory than service.worker_memory leaves for it");
        return Err(too_large());
    }
    Message::receive(bytes).map_err(|error| failed(error.to_string()))
}

fn too_large() -> Verdict {
    Verdict::deferred(StatusDetail::SYSTEM_FULL, "the message takes more memory than service.worker_memory allows")
}

/// Reads a message from a file in the service's own folder, and from no other. Otherwise a client could read, through this
/// process, a file that the client may not read.
fn read(file: &Path, size: u64, messages: &Path) -> io::Result<Vec<u8>> {
    if file.parent() != Some(messages) || file.file_name().is_none() {
        return Err(io::Error::other("it is not in the service's folder"));
    }
    // A pipe must not block this process, and a link must not lead elsewhere.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits();
    let mut opened = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(file)?;
    let metadata = opened.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if metadata.len() != size {
        return Err(io::Error::other("it is of another size than was said"));
    }
    let mut bytes = Vec::new();
    let length = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
    bytes.try_reserve_exact(length)?;
    // The file does not grow: its writer is done.
    opened.by_ref().take(size).read_to_end(&mut bytes)?;
    if bytes.len() == length { Ok(bytes) } else { Err(io::Error::other("it is of another size than was said")) }
}

/// Limits how long mailboxes may take to open, so that one that hangs does not block one worker after the other. If all
/// recipients were slow before, the limit is half of the remaining time. A single slow recipient gets all of it: otherwise
/// nothing would ever be delivered to a mailbox that is always slow.
fn set_patience(policy: &mut Policy, are_slow: bool, left: Duration) {
    let alone = policy.slow_mailbox_timeout.saturating_mul(4);
    policy.author_patience = Some(alone);
    if are_slow {
        policy.slow_mailbox_timeout = alone.max(left / 2);
    } else {
        policy.opening_patience = Some(alone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::DatabaseError;
    use crate::site::embedded::Embedded;
    use std::fs;

    const BYTES: &[u8] = b"Message-ID: <1@x>\r\nSubject: x\r\n\r\nx\r\n";

    fn request(to: &[&str]) -> Request {
        Request::to(to, BYTES.len())
    }

    fn deliver(directory: &Path, request: &Request, bytes: &[u8]) -> Vec<String> {
        let site = Site::embedded(Embedded::new(directory.join("mail")));
        crate::base::files::create_directory(&directory.join("mail")).unwrap();
        let (mut sessions, left) = (Sessions::default(), Duration::from_secs(240));
        let (verdicts, _) = to_all(&site, &mut sessions, &directory.join("messages"), request, bytes.to_vec(), left);
        verdicts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn no_more_than_half_of_the_time_that_is_left_is_waited_for_the_lock() {
        let seconds = Duration::from_secs;
        assert_eq!(lock_wait(seconds(30), seconds(100)), seconds(30));
        assert_eq!(lock_wait(seconds(30), seconds(10)), seconds(5));
        assert_eq!(lock_wait(seconds(30), seconds(0)), seconds(0));
    }

    #[test]
    fn each_recipient_has_a_verdict_in_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let verdicts = deliver(directory.path(), &request(&["doug@x", "nobody", "scuba@x", "Doug@x"]), BYTES);
        let [first, second, third, fourth] = verdicts.as_slice() else { panic!("{verdicts:?}") };
        assert!(first.starts_with("2.0.0 INBOX appended"), "{first}");
        assert_eq!(second, "4.3.5 the envelope recipient: it has no @domain");
        assert!(third.starts_with("2.0.0 INBOX appended"), "{third}");
        assert_eq!(fourth, first);
    }

    #[test]
    fn the_database_is_away_where_no_recipient_could_be_delivered_to_for_its_sake() {
        let error = |failure| DatabaseError { failure, doing: "connecting".into(), detail: "no".into() };
        let failed = |failure| Err(Refusal::Deferred(Deferral::Database(error(failure))));
        let found = |results: &[Result<Delivered, Refusal>]| found(results.iter());
        assert_eq!(found(&[]), DatabaseState::NotAsked);
        for failure in [
            DatabaseFailure::Unreachable,
            DatabaseFailure::AccessDenied,
            DatabaseFailure::TimedOut,
            DatabaseFailure::Schema,
            DatabaseFailure::ReadOnly,
            DatabaseFailure::Behind,
            DatabaseFailure::Unsupported,
            DatabaseFailure::Local,
        ] {
            let text = Verdict::from(&Refusal::Deferred(Deferral::Database(error(failure)))).text().to_owned();
            assert_eq!(found(&[failed(failure), failed(failure)]), DatabaseState::Away(text), "{failure:?}");
            assert_eq!(
                found(&[failed(failure), Err(Deferral::Busy(None).into())]),
                DatabaseState::There,
                "{failure:?}"
            );
        }
        for failure in [DatabaseFailure::Contention, DatabaseFailure::InDoubt, DatabaseFailure::Refused] {
            assert_eq!(found(&[failed(failure)]), DatabaseState::There, "{failure:?}");
        }
        assert_eq!(found(&[failed(DatabaseFailure::ConnectionLost)]), DatabaseState::NotAsked);
    }

    #[test]
    fn the_author_gets_no_copy_where_the_request_says_so() {
        let directory = tempfile::tempdir().unwrap();
        // Lisa is a local user once she has a mailbox.
        deliver(directory.path(), &request(&["lisa@x"]), BYTES);
        for (number, no_sent) in [(2, true), (3, false)] {
            let bytes = format!("From: lisa@x\r\nMessage-ID: <{number}@x>\r\n\r\nx\r\n").into_bytes();
            let request = Request { no_sent, size: bytes.len() as u64, ..request(&["doug@x"]) };
            let verdicts = deliver(directory.path(), &request, &bytes);
            assert!(verdicts[0].starts_with("2.0.0 INBOX appended"), "{verdicts:?}");
            assert_eq!(verdicts[0].contains("Sent"), !no_sent, "{verdicts:?}");
        }
    }

    #[test]
    fn an_empty_message_is_deferred_for_each_recipient() {
        let directory = tempfile::tempdir().unwrap();
        let verdicts = deliver(directory.path(), &request(&["doug@x", "scuba@x"]), b"");
        assert_eq!(verdicts, ["4.3.0 the message is empty"; 2]);
    }

    #[test]
    fn a_message_in_a_file_is_read_from_the_services_folder_alone() {
        let directory = tempfile::tempdir().unwrap();
        let messages = directory.path().join("messages");
        fs::create_dir(&messages).unwrap();
        let place = |name: &str| messages.join(name);
        fs::write(place("good"), BYTES).unwrap();
        fs::write(directory.path().join("elsewhere"), BYTES).unwrap();
        fs::create_dir(place("folder")).unwrap();
        std::os::unix::fs::symlink(directory.path().join("elsewhere"), place("link")).unwrap();
        // Without NONBLOCK, open(2) would block: the pipe has no writer.
        let pipe = rustix::fs::mknodat(rustix::fs::CWD, place("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0);
        pipe.unwrap();
        let from = |file: std::path::PathBuf| Request { file: Some(file), ..request(&["doug@x"]) };
        for wrong in [
            directory.path().join("elsewhere"),
            messages.join("../elsewhere"),
            place("link"),
            place("folder"),
            place("pipe"),
            place("missing"),
        ] {
            let verdicts = deliver(directory.path(), &from(wrong), b"");
            assert_eq!(verdicts, ["4.3.0 the message's file cannot be read"]);
        }
        for size in [1, 1000] {
            let verdicts = deliver(directory.path(), &Request { size, ..from(place("good")) }, b"");
            assert_eq!(verdicts, ["4.3.0 the message's file cannot be read"]);
        }
        let verdicts = deliver(directory.path(), &from(place("good")), b"");
        assert!(verdicts[0].starts_with("2.0.0 INBOX appended"), "{verdicts:?}");
    }

    /// This test has the default memory limit of a worker.
    #[test]
    fn what_does_not_fit_into_the_memory_of_a_worker_is_deferred_and_the_key_named() {
        use rustix::process::{Resource, Rlimit, setrlimit};
        setrlimit(Resource::As, Rlimit { current: Some(1_000_000_000), maximum: None }).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let messages = directory.path().join("messages");
        fs::create_dir(&messages).unwrap();
        let file = messages.join("large");
        let of = |size: u64| Request { file: Some(file.clone()), size, ..request(&["doug@x"]) };
        for size in [800_000_000, 2_000_000_000] {
            fs::File::create(&file).unwrap().set_len(size).unwrap();
            let verdicts = deliver(directory.path(), &of(size), b"");
            assert_eq!(verdicts, ["4.3.1 the message takes more memory than service.worker_memory allows"], "{size}");
        }
        // Each line end becomes two bytes.
        fs::write(&file, vec![b'\n'; 450_000_000]).unwrap();
        let verdicts = deliver(directory.path(), &of(450_000_000), b"");
        assert_eq!(verdicts, ["4.3.1 the message takes more memory than service.worker_memory allows"]);
        fs::write(&file, [BYTES, &vec![b'\n'; 50_000_000]].concat()).unwrap();
        let verdicts = deliver(directory.path(), &of(50_000_000 + BYTES.len() as u64), b"");
        assert!(verdicts[0].starts_with("2.0.0 INBOX appended"), "{verdicts:?}");
    }

    #[test]
    fn mailboxes_that_were_slow_before_have_the_time_that_they_take() {
        let [five, twenty, sixty] = [5, 20, 60].map(Duration::from_secs);
        for (are_slow, opening, batch) in [(false, Some(twenty), five), (true, None, sixty)] {
            let mut policy = Policy { slow_mailbox_timeout: five, ..Policy::embedded() };
            set_patience(&mut policy, are_slow, 2 * sixty);
            assert_eq!((policy.opening_patience, policy.slow_mailbox_timeout), (opening, batch));
            assert_eq!(policy.author_patience, Some(twenty));
        }
    }
}
