//! The client's side: hands a message over to the service, as a lazy pirate does (<https://zguide.zeromq.org/docs/chapter4/>):
//! asks, waits a little, asks again on a new connection, and gives up after three tries.
//!
//! ```text
//! Deliver ──▶   a message, which waits in the broker
//!         ◀── Received
//! Go      ──▶   only now it is given to a worker
//!         ◀── Reply
//! ```
//!
//! Before Go nothing can have been delivered: the message is still the client's. After Go it may have been, and without an answer
//! it is deferred.

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
use tracing::{debug, warn};
use uuid::Uuid;

/// How long one try may take, to the word that the message has arrived.
const PATIENCE: Duration = Duration::from_millis(2500);

const TRIES: u32 = 3;

/// How long the last word may take to a service that did not answer: it is a courtesy.
const CANCEL: Duration = Duration::from_millis(100);

/// What is left of the time, at its end, for the log and the line.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The path of the service's socket, as `--via` names it.
///
/// # Errors
/// Where it is not absolute: under pipe(8) the working directory is Postfix's queue.
pub(crate) fn socket_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err("it wants the socket's whole path, from / on".into()) }
}

/// A message to be handed over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handing<'a> {
    /// All that is known of it. How much time is left is filled in with each try.
    pub request: &'a Request,
    /// Its bytes.
    pub message: &'a [u8],
    /// Who gave it to us: once he is gone, nothing of it may be delivered.
    pub caller: &'a dyn Caller,
    /// When the answer has to be here.
    pub deadline: Deadline,
}

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Handed {
    /// The service has never said that it has the message: nothing was delivered, and nothing will be.
    NotTaken(NotTaken),
    /// The service had the message, and the caller was gone by then. It was taken back: nothing was delivered.
    CallerGone,
    /// The service has answered, before Go by nothing but deferrals: a verdict for each recipient, in the request's order.
    Answered(Vec<Verdict>),
    /// The message may have been delivered, and nobody can say.
    Lost(Lost),
}

/// Why the service did not take a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotTaken {
    /// For people.
    pub why: String,
    /// Whether there is no service at all, or none that may have mail of ours: then another message would fare the same.
    pub no_service: bool,
}

/// Why nobody can say what became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The connection was lost after Go.
    Connection,
    /// No answer has come in time.
    Silent,
    /// The answer makes no sense.
    Nonsense,
}

/// Why a try came to nothing. No Go was sent.
enum Failed {
    /// Another connection may help.
    Try(String),
    /// Nothing will.
    ForGood(NotTaken),
}

/// Hands a message over, and waits for what becomes of it.
pub(crate) fn hand_over(socket: &Path, handing: Handing<'_>) -> Handed {
    let patience = for_one_try(handing.deadline.remaining());
    let mut reason = String::new();
    for number in 1..=TRIES {
        let until = Instant::now() + patience;
        match handing.once(socket, until, number == TRIES) {
            Ok(handed) => return handed,
            Err(Failed::Try(why)) => {
                debug!(id = %handing.request.id, number, why, "the service did not take the message");
                reason = why;
            }
            Err(Failed::ForGood(not_taken)) => return Handed::NotTaken(not_taken),
        }
    }
    Handed::NotTaken(NotTaken { why: reason, no_service: false })
}

impl Handing<'_> {
    /// One try: what came of it, as soon as no other try may follow.
    fn once(&self, socket: &Path, until: Instant, last: bool) -> Result<Handed, Failed> {
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
        let Some(answer) = connection.receive(until).map_err(failed)? else {
            if last {
                self.cancel(&mut connection);
            }
            return Err(Failed::Try("it does not answer in time".into()));
        };
        match read(answer) {
            Ok(Header::Received { id }) if id == self.id() => {}
            Ok(Header::Reply(reply)) if reply.id == self.id() => return Ok(self.refused(reply)),
            Ok(_) => return Err(Failed::Try("its answer is about something else".into())),
            Err(problem) => return Err(Failed::Try(problem)),
        }
        // What was read may be the beginning of a message: see `StandardStreams`.
        if self.caller.is_gone() {
            self.cancel(&mut connection);
            return Ok(Handed::CallerGone);
        }
        Ok(self.go(&mut connection))
    }

    /// Nothing is delivered by anybody else any more.
    fn go(&self, connection: &mut Blocking) -> Handed {
        let until = Instant::now() + for_the_answer(self.deadline.remaining());
        let lost = |error: &dyn std::fmt::Display| {
            warn!(id = %self.id(), %error, queue_id = self.queue_id(), "the service had the message, and was lost");
            Handed::Lost(Lost::Connection)
        };
        let gone = Header::Go { id: self.id() }.frame(b"").map_err(|error| lost(&error));
        let sent = gone.and_then(|go| connection.send(&to_client(&go), until).map_err(|error| lost(&error)));
        let answer = match sent.and_then(|()| connection.receive(until).map_err(|error| lost(&error))) {
            Err(lost) => return lost,
            Ok(None) => {
                let queue_id = self.queue_id();
                warn!(id = %self.id(), queue_id, "the service has the message, and has not answered");
                return Handed::Lost(Lost::Silent);
            }
            Ok(Some(answer)) => answer,
        };
        match read(answer) {
            Ok(Header::Reply(reply)) => self.verdicts(reply).map_or_else(|why| self.nonsense(why), Handed::Answered),
            Ok(_) => self.nonsense("it is no reply"),
            Err(problem) => self.nonsense(&problem),
        }
    }

    /// A reply where a receipt is due: the service may defer a message without a word from us, and nothing else.
    fn refused(&self, reply: Reply) -> Handed {
        match self.verdicts(reply) {
            Ok(verdicts) if verdicts.iter().all(|verdict| verdict.class() == 4) => Handed::Answered(verdicts),
            Ok(_) => self.nonsense("it was not told to go on, and says that it did"),
            Err(problem) => self.nonsense(problem),
        }
    }

    /// One for each recipient.
    fn verdicts(&self, reply: Reply) -> Result<Vec<Verdict>, &'static str> {
        if reply.id != self.id() {
            return Err("it is about another message");
        }
        if reply.results.len() != self.request.recipients.len() {
            return Err("it has another number of results than there are recipients");
        }
        let verdicts = reply.results.into_iter().map(Verdict::try_from).collect::<Result<_, _>>();
        verdicts.map_err(|_| "its status code is none of ours")
    }

    fn nonsense(&self, problem: &str) -> Handed {
        warn!(id = %self.id(), problem, queue_id = self.queue_id(), "the service's answer makes no sense");
        Handed::Lost(Lost::Nonsense)
    }

    /// The message is not the service's any more. That no Go has come says the same: it may fail.
    fn cancel(&self, connection: &mut Blocking) {
        let frame = Header::Cancel { id: self.id() }.frame(b"");
        let sent = frame.map(|frame| connection.send(&to_client(&frame), Instant::now() + CANCEL));
        debug!(id = %self.id(), ?sent, "taken back");
    }

    fn id(&self) -> Uuid {
        self.request.id
    }

    fn queue_id(&self) -> Option<&str> {
        self.request.queue_id.as_deref()
    }

    fn request(&self) -> Request {
        let left = for_the_service(self.deadline.remaining());
        Request { time_left_ms: milliseconds(left), ..self.request.clone() }
    }
}

/// How long one try may take, of the time that is left: a delivery from here needs time as well.
fn for_one_try(left: Duration) -> Duration {
    PATIENCE.min(left / (TRIES + 1) / 2)
}

/// How long the answer is waited for: a little less than what is left, so that the log has it before the watchdog ends the process.
fn for_the_answer(left: Duration) -> Duration {
    left.saturating_sub(LAST_WORDS.min(left / 20))
}

/// How much time the service has: a little less than what is left, so that its answer is here before our own end.
fn for_the_service(left: Duration) -> Duration {
    left.saturating_sub(Duration::from_secs(1).min(left / 10))
}

/// A span of time as requests have it.
pub(crate) fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
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
        // A service that is stopped costs no seconds.
        BlockingError::NobodyThere(_) => for_good(error.to_string(), true),
        _ => Failed::Try(error.to_string()),
    }
}

/// Whether the program that listens may read this mail: it is root's, our own user's, or of the user whose folder the socket is in.
fn peer_may_have_it(socket: &Path, stream: &UnixStream) -> Result<(), String> {
    let problem = |error: std::io::Error| format!("who listens on {} cannot be told: {error}", socket.display());
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

    /// In milliseconds: what is left, one try, the wait for the answer, the service's time.
    #[test]
    fn tries_answer_and_service_have_their_parts_of_the_time() {
        for (left, one_try, answer, service) in
            [(240_000, 2500, 239_800, 239_000), (8000, 1000, 7800, 7200), (1000, 125, 950, 900), (0, 0, 0, 0)]
        {
            let parts = [for_one_try, for_the_answer, for_the_service].map(|part| part(Duration::from_millis(left)));
            assert_eq!(parts, [one_try, answer, service].map(Duration::from_millis), "{left}");
        }
    }

    /// The file queue waits for the one, and puts a single message off for the other.
    #[test]
    fn no_service_at_all_and_one_that_does_not_take_this_message_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clients.sock");
        let request = Request { source: Source::Queue, ..Request::to(&["doug@x"], 0) };
        let deadline = Deadline::after(Duration::from_mins(4));
        let handing = Handing { request: &request, message: b"", caller: &NoCaller, deadline };
        let is_missing = || match hand_over(&path, handing) {
            Handed::NotTaken(not_taken) => not_taken.no_service,
            other => panic!("{other:?}"),
        };
        assert!(is_missing());
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            // It hangs up at each try.
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
