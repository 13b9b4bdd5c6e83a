//! `--via`: hands the message over to the running service, as a lazy pirate does (<https://zguide.zeromq.org/docs/chapter4/>):
//! asks, waits a little, asks again on a new connection, and gives up after three tries.
//!
//! ```text
//! Deliver ──▶   a message, which waits in the broker
//!         ◀── Received
//! Go      ──▶   only now it is given to a worker
//!         ◀── Reply
//! ```
//!
//! Before Go nothing can have been delivered, so that the message may be delivered from here. After Go it may have been: nothing
//! is delivered from here, and without an answer it is put off.

use super::incoming::caller_gone;
use crate::base::deadline::Deadline;
use crate::delivery::{Caller, StatusDetail, Verdict};
use crate::handover::{Header, LONGEST_HEADER, Recipient, Reply, Request};
use crate::site::Envelope;
use crate::zmtp::{Blocking, BlockingError, Message, Settings, SocketType, TimedStream, from_client, to_client};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
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

/// Where the service listens for messages.
#[derive(Clone, Debug)]
pub(super) enum Socket {
    Unix(PathBuf),
    /// Whoever listens there cannot be asked who he is: for tests.
    Loopback(SocketAddr),
}

impl FromStr for Socket {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(address) = text.strip_prefix("tcp://") {
            let address = address.parse::<SocketAddr>().ok().filter(|address| address.ip().is_loopback());
            return address
                .map(Self::Loopback)
                .ok_or_else(|| "over TCP only to this machine, tcp://127.0.0.1:PORT".into());
        }
        let path = PathBuf::from(text);
        // Under pipe(8) the working directory is Postfix's queue.
        if path.is_absolute() {
            Ok(Self::Unix(path))
        } else {
            Err("it wants the socket's whole path, from / on".into())
        }
    }
}

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Handed {
    /// The service has the message, or may have it, or it is not to be delivered by anybody.
    Over(Verdict),
    /// The service does not have the message, and will not deliver it. Why.
    NotOver(String),
}

/// A message to be handed over.
struct Handing<'a> {
    id: Uuid,
    envelope: &'a Envelope,
    lock_wait: Option<Duration>,
    raw: &'a [u8],
    caller: &'a dyn Caller,
    deadline: Deadline,
}

/// Why a try came to nothing. No Go was sent.
enum Failed {
    /// Another connection may help.
    Try(String),
    /// Nothing will.
    ForGood(String),
}

/// Hands a message over, and waits for what becomes of it.
pub(super) fn hand_over(
    socket: &Socket,
    envelope: &Envelope,
    lock_wait: Option<Duration>,
    raw: &[u8],
    caller: &dyn Caller,
    deadline: Deadline,
) -> Handed {
    let handing = Handing { id: Uuid::now_v7(), envelope, lock_wait, raw, caller, deadline };
    // A delivery from here needs time as well.
    let patience = PATIENCE.min(deadline.remaining() / (TRIES + 1) / 2);
    let mut reason = String::new();
    for number in 1..=TRIES {
        let until = Instant::now() + patience;
        match handing.once(socket, until, number == TRIES) {
            Ok(verdict) => {
                debug!(id = %handing.id, queue_id = envelope.queue_id, %verdict, "handed over to the service");
                return Handed::Over(verdict);
            }
            Err(Failed::Try(why)) => {
                debug!(id = %handing.id, number, why, "the service did not take the message");
                reason = why;
            }
            Err(Failed::ForGood(why)) => return Handed::NotOver(why),
        }
    }
    Handed::NotOver(reason)
}

impl Handing<'_> {
    fn once(&self, socket: &Socket, until: Instant, last: bool) -> Result<Verdict, Failed> {
        // Replies are small.
        let longest = LONGEST_HEADER + 8;
        let settings = Settings {
            socket_type: SocketType::Dealer,
            identity: None,
            longest_frame: longest,
            most_frames: 2,
            longest_message: longest,
        };
        match socket {
            Socket::Unix(path) => {
                let connection = Blocking::connect_unix(path, settings, until).map_err(failed)?;
                peer_may_have_it(path, connection.stream()).map_err(Failed::ForGood)?;
                self.on(connection, until, last)
            }
            Socket::Loopback(address) => {
                self.on(Blocking::connect_tcp(*address, settings, until).map_err(failed)?, until, last)
            }
        }
    }

    /// Once on a connection: the verdict, as soon as anything but a delivery from here has to follow.
    fn on<S: TimedStream>(&self, mut connection: Blocking<S>, until: Instant, last: bool) -> Result<Verdict, Failed> {
        let frame = Header::Deliver(self.request()).frame(self.raw);
        let frame = frame.map_err(|error| Failed::ForGood(format!("it cannot be handed over: {error}")))?;
        connection.send(&to_client(&frame), until).map_err(failed)?;
        drop(frame);
        let Some(answer) = connection.receive(until).map_err(failed)? else {
            if last {
                self.cancel(&mut connection);
            }
            return Err(Failed::Try("it does not answer in time".into()));
        };
        match read(answer) {
            Ok(Header::Received { id }) if id == self.id => {}
            Ok(Header::Reply(reply)) if reply.id == self.id => return Ok(self.refused(reply)),
            Ok(_) => return Err(Failed::Try("its answer is about something else".into())),
            Err(problem) => return Err(Failed::Try(problem)),
        }
        // What was read may be the beginning of a message: see `StandardStreams`.
        if self.caller.is_gone() {
            self.cancel(&mut connection);
            let verdict = caller_gone();
            warn!(verdict = %verdict, queue_id = self.envelope.queue_id, "no message");
            return Ok(verdict);
        }
        Ok(self.go(&mut connection))
    }

    /// Nothing is delivered from here any more.
    fn go<S: TimedStream>(&self, connection: &mut Blocking<S>) -> Verdict {
        // A little less, so that the log has it before the watchdog ends the process.
        let left = self.deadline.remaining();
        let until = Instant::now() + left.saturating_sub(LAST_WORDS.min(left / 20));
        let lost = |error: &dyn std::fmt::Display| {
            warn!(id = %self.id, %error, queue_id = self.envelope.queue_id, "the service had the message, and was lost");
            Verdict::deferred(StatusDetail::BAD_CONNECTION, "the connection to the delivery service was lost")
        };
        let gone = Header::Go { id: self.id }.frame(b"").map_err(|error| lost(&error));
        let sent = gone.and_then(|go| connection.send(&to_client(&go), until).map_err(|error| lost(&error)));
        let answer = match sent.and_then(|()| connection.receive(until).map_err(|error| lost(&error))) {
            Err(verdict) => return verdict,
            Ok(None) => {
                warn!(id = %self.id, queue_id = self.envelope.queue_id, "the service has the message, and has not answered");
                return Verdict::deferred(StatusDetail::NO_ANSWER, "the delivery service has not answered in time");
            }
            Ok(Some(answer)) => answer,
        };
        match read(answer) {
            Ok(Header::Reply(reply)) => self.verdict(reply).unwrap_or_else(|problem| self.nonsense(problem)),
            Ok(_) => self.nonsense("it is no reply"),
            Err(problem) => self.nonsense(&problem),
        }
    }

    /// A reply where a receipt is due: the service may put a message off without a word from us, and nothing else.
    fn refused(&self, reply: Reply) -> Verdict {
        match self.verdict(reply) {
            Ok(verdict) if verdict.class() == 4 => verdict,
            Ok(_) => self.nonsense("it was not told to go on, and says that it did"),
            Err(problem) => self.nonsense(problem),
        }
    }

    fn verdict(&self, reply: Reply) -> Result<Verdict, &'static str> {
        if reply.id != self.id {
            return Err("it is about another message");
        }
        let [told] = <[_; 1]>::try_from(reply.results).map_err(|_| "it has another number of results than one")?;
        Verdict::try_from(told).map_err(|_| "its status code is none of ours")
    }

    fn nonsense(&self, problem: &str) -> Verdict {
        warn!(id = %self.id, problem, queue_id = self.envelope.queue_id, "the service's answer makes no sense");
        Verdict::deferred(StatusDetail::SYSTEM, "the delivery service's answer makes no sense")
    }

    /// The message is not the service's any more. That no Go has come says the same: it may fail.
    fn cancel<S: TimedStream>(&self, connection: &mut Blocking<S>) {
        let frame = Header::Cancel { id: self.id }.frame(b"");
        let sent = frame.map(|frame| connection.send(&to_client(&frame), Instant::now() + CANCEL));
        debug!(id = %self.id, ?sent, "taken back");
    }

    fn request(&self) -> Request {
        let envelope = self.envelope;
        let left = self.deadline.remaining();
        // A little less, so that its answer is here before our own end.
        let left = left.saturating_sub(Duration::from_secs(1).min(left / 10));
        Request {
            id: self.id,
            time_left_ms: milliseconds(left),
            sender: envelope.sender.clone(),
            recipients: vec![Recipient {
                address: envelope.recipient.to_string(),
                original: envelope.original_recipient.clone(),
            }],
            queue_id: envelope.queue_id.clone(),
            client_address: envelope.client_address.clone(),
            sasl_username: envelope.sasl_username.clone(),
            lock_wait_ms: self.lock_wait.map(milliseconds),
            size: self.raw.len() as u64,
            file: None,
        }
    }
}

fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn read(answer: Message) -> Result<Header, String> {
    let body = from_client(answer).map_err(|error| error.to_string())?;
    Header::read(&body).map(|(header, _)| header).map_err(|error| error.to_string())
}

fn failed(error: BlockingError) -> Failed {
    match error {
        // A service that is stopped costs no seconds.
        BlockingError::NobodyThere(_) => Failed::ForGood(error.to_string()),
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

    #[test]
    fn a_message_goes_to_root_to_our_own_user_and_to_the_folders_owner_alone() {
        assert!(may_have_it(0, 1, 2));
        assert!(may_have_it(1, 1, 2));
        assert!(may_have_it(2, 1, 2));
        assert!(!may_have_it(3, 1, 2));
        assert!(!may_have_it(3, 0, 0));
    }

    #[test]
    fn a_socket_is_a_whole_path_or_on_this_machine() {
        assert!(matches!("/run/maildropd/clients.sock".parse(), Ok(Socket::Unix(_))));
        assert!(matches!("tcp://127.0.0.1:5555".parse(), Ok(Socket::Loopback(_))));
        for text in ["", "clients.sock", "./x", "tcp://192.0.2.1:25", "tcp://localhost:25", "tcp://127.0.0.1"] {
            assert!(text.parse::<Socket>().is_err(), "{text}");
        }
    }
}
