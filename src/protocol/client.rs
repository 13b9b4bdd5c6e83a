//! The client's side of a delivery through the service: a Lazy Pirate (<https://zguide.zeromq.org/docs/chapter4/>). It sends
//! the message, waits a little, retries on a new connection, and gives up after three attempts.
//!
//! ```text
//! Deliver ──▶   a message, which waits in the broker
//!         ◀── Received
//! Go      ──▶   only now it is given to a worker
//!         ◀── Reply
//! ```
//!
//! Before Go nothing can have been delivered, so the client may deliver the message itself. After Go the message may have
//! been delivered, so it is deferred if no answer comes.

use super::{Header, LONGEST_HEADER, Reply, Request};
use crate::base::deadline::Deadline;
use crate::delivery::{Caller, Verdict};
use crate::protocol::zmtp::{Blocking, BlockingError, Message, Settings, SocketType, from_client, to_client};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;
use tracing::{debug, warn};
use uuid::Uuid;

/// How long one attempt may take until the service confirms the message.
const PATIENCE: Duration = Duration::from_millis(2500);

const TRIES: u32 = 3;

/// The time that is kept for the log and the line of output.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The path of the service's socket, as `--via` names it.
///
/// # Errors
/// If the path is not absolute: under pipe(8), the working directory is Postfix's queue directory.
pub(crate) fn socket_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err("it wants the socket's whole path, from / on".into()) }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Handover<'a> {
    /// Each attempt sets the remaining time in it.
    pub request: &'a Request,
    pub message: &'a [u8],
    /// The program that passed the message to us. If it has died, nothing may be delivered.
    pub caller: &'a dyn Caller,
    /// When the answer has to be available.
    pub deadline: Deadline,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HandoverResult {
    /// The service has never confirmed the message: nothing was delivered, and nothing will be.
    NotTaken(NotTaken),
    /// The caller had died when the service confirmed the message. Go was not sent, so nothing was delivered.
    CallerGone,
    /// The service's verdict for each recipient, in the request's order. An answer before Go has only deferrals.
    Answered(Vec<Verdict>),
    /// The message may have been delivered; the result is unknown.
    Lost(Lost),
}

/// Why the service did not take a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotTaken {
    /// The reason, for people.
    pub why: String,
    /// Whether no service runs, or none that may read our mail. Other messages would then fail in the same way.
    pub no_service: bool,
}

/// Why the result is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Lost {
    #[error("the connection to the delivery service was lost")]
    Connection,
    #[error("the delivery service has not answered in time")]
    Silent,
    #[error("the delivery service's answer makes no sense")]
    Nonsense,
}

/// Why an attempt failed. Go was not sent.
enum Failed {
    /// An attempt on another connection may succeed.
    Try(String),
    /// No attempt will succeed.
    ForGood(NotTaken),
}

/// Passes a message to the service, and waits for the result.
pub(crate) fn hand_over(socket: &Path, handover: Handover<'_>) -> HandoverResult {
    let patience = for_one_try(handover.deadline.remaining());
    let mut reason = String::new();
    for number in 1..=TRIES {
        let until = Instant::now() + patience;
        match handover.once(socket, until) {
            Ok(handed) => return handed,
            Err(Failed::Try(why)) => {
                debug!(id = %handover.request.id, number, why, "the service did not take the message");
                reason = why;
            }
            Err(Failed::ForGood(not_taken)) => return HandoverResult::NotTaken(not_taken),
        }
    }
    HandoverResult::NotTaken(NotTaken { why: reason, no_service: false })
}

impl Handover<'_> {
    /// One attempt. `Ok` if no further attempt may follow. Without Go, the end of the connection withdraws the message.
    fn once(&self, socket: &Path, until: Instant) -> Result<HandoverResult, Failed> {
        // Replies are small.
        let longest = LONGEST_HEADER + 8;
        let settings = Settings {
            socket_type: SocketType::Dealer,
            identity: None,
            longest_frame: longest,
            most_frames: 2,
            longest_message: longest,
        };
        let mut connection = Blocking::connect(socket, settings, until).map_err(failed)?;
        peer_may_have_it(socket, connection.stream()).map_err(|why| for_good(why, true))?;
        let frame = Header::Deliver(self.request()).frame(self.message);
        let frame = frame.map_err(|error| for_good(format!("it cannot be handed over: {error}"), false))?;
        connection.send(&to_client(&frame), until).map_err(failed)?;
        drop(frame);
        let answer = connection.receive(until).map_err(failed)?;
        let answer = answer.ok_or_else(|| Failed::Try("it does not answer in time".into()))?;
        match read(answer).map_err(Failed::Try)? {
            Header::Received { id } if id == self.id() => {}
            Header::Reply(reply) if reply.id == self.id() => return Ok(self.ended(self.refused(reply))),
            _ => return Err(Failed::Try("its answer is about something else".into())),
        }
        // If the caller has died, the bytes may be only the beginning of a message: see [`Caller::is_gone`].
        if self.caller.is_gone() {
            return Ok(HandoverResult::CallerGone);
        }
        Ok(self.ended(self.go(&mut connection)))
    }

    fn ended(&self, result: Result<Vec<Verdict>, (Lost, String)>) -> HandoverResult {
        match result {
            Ok(verdicts) => HandoverResult::Answered(verdicts),
            Err((lost, problem)) => {
                warn!(id = %self.id(), %lost, problem, queue_id = self.request.queue_id, "the service had the message");
                HandoverResult::Lost(lost)
            }
        }
    }

    /// Sends Go, and waits for the answer. From here on, only the service delivers the message.
    fn go(&self, connection: &mut Blocking) -> Result<Vec<Verdict>, (Lost, String)> {
        let until = Instant::now() + for_the_answer(self.deadline.remaining());
        let lost = |error: BlockingError| (Lost::Connection, error.to_string());
        let go = Header::Go { id: self.id() }.frame(b"").map_err(|error| (Lost::Connection, error.to_string()))?;
        connection.send(&to_client(&go), until).map_err(lost)?;
        let answer = connection.receive(until).map_err(lost)?;
        match read(answer.ok_or_else(|| (Lost::Silent, String::new()))?).map_err(nonsense)? {
            Header::Reply(reply) => self.verdicts(reply).map_err(nonsense),
            _ => Err(nonsense("it is no reply")),
        }
    }

    /// The verdicts of a reply that came instead of Received. Without Go the service may only defer the message.
    fn refused(&self, reply: Reply) -> Result<Vec<Verdict>, (Lost, String)> {
        let verdicts = self.verdicts(reply).map_err(nonsense)?;
        match verdicts.iter().all(|verdict| verdict.class() == 4) {
            true => Ok(verdicts),
            false => Err(nonsense("it got no Go, and says that it delivered")),
        }
    }

    fn verdicts(&self, reply: Reply) -> Result<Vec<Verdict>, &'static str> {
        if reply.id != self.id() {
            return Err("it is about another message");
        }
        if reply.results.len() != self.request.recipients.len() {
            return Err("it has another number of results than there are recipients");
        }
        Ok(reply.results)
    }

    fn id(&self) -> Uuid {
        self.request.id
    }

    fn request(&self) -> Request {
        let left = for_the_service(self.deadline.remaining());
        Request { time_left_ms: milliseconds(left), ..self.request.clone() }
    }
}

/// How long one attempt may take: all attempts together get less than half of the time left, because this process may have
/// to deliver the message itself.
fn for_one_try(left: Duration) -> Duration {
    PATIENCE.min(left / (TRIES + 1) / 2)
}

/// How long to wait for the answer: a little less than the time left, so that the result is logged before the watchdog ends
/// the process.
fn for_the_answer(left: Duration) -> Duration {
    left.saturating_sub(LAST_WORDS.min(left / 20))
}

/// How much time the service gets: a little less than the time left, so that its answer comes before our own deadline.
fn for_the_service(left: Duration) -> Duration {
    left.saturating_sub(Duration::from_secs(1).min(left / 10))
}

/// A duration in the unit of requests.
pub(crate) fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn nonsense(problem: impl Into<String>) -> (Lost, String) {
    (Lost::Nonsense, problem.into())
}

fn for_good(why: String, no_service: bool) -> Failed {
    Failed::ForGood(NotTaken { why, no_service })
}

fn read(answer: Message) -> Result<Header, String> {
    let body = from_client(answer).map_err(|error| error.to_string())?;
    Header::read(&body).map(|(header, _)| header).map_err(|error| error.to_string())
}

fn failed(error: BlockingError) -> Failed {
    match error {
        // If the service is stopped, retries would only waste time.
        BlockingError::NobodyThere(_) => for_good(error.to_string(), true),
        _ => Failed::Try(error.to_string()),
    }
}

/// Checks whether the listening program may read this mail: it runs as root, as our own user, or as the owner of the socket's
/// folder.
fn peer_may_have_it(socket: &Path, stream: &UnixStream) -> Result<(), String> {
    let problem = |error: std::io::Error| format!("the listener of {} is unknown: {error}", socket.display());
    let peer = socket_peercred(stream).map_err(|error| problem(error.into()))?.uid.as_raw();
    let folder = socket.parent().unwrap_or(socket);
    let owner = fs::metadata(folder).map_err(problem)?.uid();
    if may_have_it(peer, geteuid().as_raw(), owner) {
        return Ok(());
    }
    Err(format!("user {peer} listens on {}, in a folder of user {owner}", socket.display()))
}

fn may_have_it(peer: u32, ours: u32, owner: u32) -> bool {
    [0, ours, owner].contains(&peer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::NoCaller;
    use crate::protocol::Source;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_message_goes_to_root_to_our_own_user_and_to_the_folders_owner_alone() {
        assert!(may_have_it(0, 1, 2));
        assert!(may_have_it(1, 1, 2));
        assert!(may_have_it(2, 1, 2));
        assert!(!may_have_it(3, 1, 2));
        assert!(!may_have_it(3, 0, 0));
    }

    /// In milliseconds: the remaining time, one attempt, the wait for the answer, the service's time.
    #[test]
    fn tries_answer_and_service_have_their_parts_of_the_time() {
        for (left, one_try, answer, service) in
            [(240_000, 2500, 239_800, 239_000), (8000, 1000, 7800, 7200), (1000, 125, 950, 900), (0, 0, 0, 0)]
        {
            let parts = [for_one_try, for_the_answer, for_the_service].map(|part| part(Duration::from_millis(left)));
            assert_eq!(parts, [one_try, answer, service].map(Duration::from_millis), "{left}");
        }
    }

    /// With no service, the file queue waits; with one that refuses, it defers the single message.
    #[test]
    fn no_service_at_all_and_one_that_does_not_take_this_message_are_distinguished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clients.sock");
        let request = Request { source: Source::Queue, ..Request::to(&["doug@x"], 0) };
        let deadline = Deadline::after(Duration::from_mins(4));
        let handover = Handover { request: &request, message: b"", caller: &NoCaller, deadline };
        let is_missing = || match hand_over(&path, handover) {
            HandoverResult::NotTaken(not_taken) => not_taken.no_service,
            other => panic!("{other:?}"),
        };
        assert!(is_missing());
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            // The peer closes each connection.
            scope.spawn(|| (0..TRIES).for_each(|_| drop(listener.accept().unwrap())));
            assert!(!is_missing());
        });
        drop(listener);
        assert!(is_missing());
    }

    #[test]
    fn a_socket_is_a_whole_path() {
        assert_eq!(socket_path("/run/maildropd/clients.sock"), Ok("/run/maildropd/clients.sock".into()));
        for text in ["", "clients.sock", "./x", "tcp://127.0.0.1:5555"] {
            assert!(socket_path(text).is_err(), "{text}");
        }
    }
}
