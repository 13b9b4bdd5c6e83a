//! A worker's side of the Paranoid Pirate's protocol: READY, heartbeats, requests and replies, and a new connection if the broker
//! is unresponsive.
//!
//! If the connection is lost during a delivery, the worker connects again only after that delivery: READY means that another
//! message may come. The reply is dropped, since the broker deferred the message when the connection ended. The ledger has the
//! result, where the next attempt finds it.

use super::recycling::Recycling;
use crate::base::back_off::BackOff;
use crate::base::readiness;
use crate::base::stop::Stop;
use crate::config::Config;
use crate::protocol::zmtp::{
    Blocking, BlockingError, FIRST_PAUSE, INTERVAL, LIVENESS, LONGEST_PAUSE, Message, PirateMessage, Settings,
    SocketType,
};
use crate::service::front::longest_frame;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};
use uuid::Uuid;

/// How long a connect, or a write, may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a worker that ends waits until the broker closes the connection. The broker closes it once no more messages are on
/// their way.
const GOODBYE: Duration = Duration::from_secs(3);
/// Replaces a client's address in a reply that belongs to no message.
const NOBODY: &[u8] = b"leaving";

/// A request from the broker.
pub(super) struct Job {
    pub(super) address: Vec<u8>,
    pub(super) body: Vec<u8>,
    pub(super) received: Instant,
}

/// The reply to a request.
pub(super) struct DeliveryReply {
    pub(super) address: Vec<u8>,
    pub(super) body: Vec<u8>,
    /// Whether the reply reports that this worker ends.
    pub(super) leaving: bool,
}

/// Wakes the thread that waits for the broker.
pub(super) struct Wake(UnixStream);

impl Wake {
    pub(super) fn pair() -> io::Result<(Self, UnixStream)> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        Ok((Self(wake), woken))
    }

    pub(super) fn wake(&self) {
        // If the buffer is full, the other side is about to wake up.
        let _ = (&self.0).write(&[0]);
    }
}

pub(super) struct Link {
    broker: PathBuf,
    longest_frame: usize,
    stop: Arc<Stop>,
    recycling: Arc<Recycling>,
    woken: UnixStream,
    assign: Sender<Job>,
    answers: Receiver<DeliveryReply>,
    /// How many jobs have no reply yet.
    at_work: usize,
    back_off: BackOff,
}

impl Link {
    pub(super) fn new(
        config: &Config,
        stop: Arc<Stop>,
        recycling: Arc<Recycling>,
        woken: UnixStream,
        assign: Sender<Job>,
        answers: Receiver<DeliveryReply>,
    ) -> Self {
        Self {
            broker: config.service.workers_socket(),
            longest_frame: longest_frame(config),
            stop,
            recycling,
            woken,
            assign,
            answers,
            at_work: 0,
            back_off: BackOff::new(FIRST_PAUSE, LONGEST_PAUSE),
        }
    }

    /// Talks with the broker until this worker must end.
    pub(super) fn run(mut self) {
        loop {
            let end = Blocking::connect(&self.broker, self.settings(), Instant::now() + PATIENCE)
                .and_then(|connection| self.talk(connection));
            readiness::report_readiness(false);
            while self.at_work > 0 {
                if self.answers.recv().is_err() {
                    return;
                }
                self.at_work -= 1;
                info!("an answer is dropped, for the broker that it was for has gone: the next attempt finds it done");
            }
            match end {
                Ok(()) => return,
                Err(_) if self.is_to_end() => return,
                Err(why) => {
                    let pause = self.back_off.pause();
                    warn!(broker = %self.broker.display(), %why, pause_s = pause.as_secs(), "no broker: tried again after a pause");
                    if self.sleep(pause) {
                        return;
                    }
                }
            }
        }
    }

    /// The settings of a new connection, with a unique name.
    fn settings(&self) -> Settings {
        let host = gethostname::gethostname().to_string_lossy().chars().take(64).collect::<String>();
        // The lower half of a version 7 UUID is random (RFC 9562 section 5.7).
        let name = format!("{host}/{}/{:016x}", std::process::id(), Uuid::now_v7().as_u64_pair().1);
        Settings {
            socket_type: SocketType::Dealer,
            identity: Some(name.into_bytes()),
            longest_frame: self.longest_frame,
            most_frames: 3,
            longest_message: self.longest_frame.saturating_add(512),
        }
    }

    fn is_to_end(&self) -> bool {
        if self.recycling.is_due_by_age() {
            self.stop.request();
        }
        self.stop.is_requested()
    }

    /// Talks until this worker is done; an error means that the connection is lost.
    fn talk(&mut self, mut connection: Blocking) -> Result<(), BlockingError> {
        say(&mut connection, &PirateMessage::Ready)?;
        readiness::report_readiness(true);
        info!(broker = %self.broker.display(), "connected with the broker");
        let mut heard = Instant::now();
        let mut next_beat = heard + INTERVAL;
        let mut leaving: Option<Instant> = None;
        loop {
            while let Ok(answer) = self.answers.try_recv() {
                self.at_work -= 1;
                say(&mut connection, &PirateMessage::Work { client: answer.address, body: answer.body })?;
                // The time of a delivery does not count as silence of the broker.
                heard = Instant::now();
                if answer.leaving {
                    leaving = Some(heard);
                }
            }
            if self.is_to_end() && leaving.is_none() && self.at_work == 0 {
                // A message that the broker has just sent is still delivered: the broker closes the connection once there are no
                // more.
                say(&mut connection, &farewell())?;
                leaving = Some(Instant::now());
            }
            match self.listen(&mut connection) {
                Ok(true) => {
                    heard = Instant::now();
                    self.back_off.reset();
                }
                Ok(false) => {}
                Err(BlockingError::Closed) if leaving.is_some() => return Ok(()),
                Err(error) => return Err(error),
            }
            let now = Instant::now();
            if self.at_work == 0 {
                if leaving.is_some_and(|since| now.saturating_duration_since(since) > GOODBYE) {
                    return Ok(());
                }
                // During a delivery the connection is kept: the reply can go on no other.
                if now.saturating_duration_since(heard) > INTERVAL * LIVENESS {
                    return Err(io::Error::other("it is silent").into());
                }
            }
            if now >= next_beat {
                next_beat = now + INTERVAL;
                say(&mut connection, &PirateMessage::Heartbeat)?;
            }
            self.wait(Some(connection.stream().as_fd()), next_beat.saturating_duration_since(now));
        }
    }

    /// Handles the frames that have arrived. Returns whether there were any.
    fn listen(&mut self, connection: &mut Blocking) -> Result<bool, BlockingError> {
        // A timeout of a socket would be at least a tick of the kernel's clock, up to 10 ms: each reply would wait for that.
        ioctl_fionbio(connection.stream(), true).map_err(io::Error::from)?;
        let mut is_any = false;
        while let Some(frames) = connection.receive(Instant::now())? {
            is_any = true;
            self.take(frames);
        }
        ioctl_fionbio(connection.stream(), false).map_err(io::Error::from)?;
        Ok(is_any)
    }

    fn take(&mut self, frames: Message) {
        match PirateMessage::parse(frames) {
            Ok(PirateMessage::Heartbeat | PirateMessage::Ready) => {}
            Ok(PirateMessage::Work { client, body }) => {
                let job = Job { address: client, body, received: Instant::now() };
                // The send fails only if the other thread has ended, and this process is ending too.
                if self.assign.send(job).is_ok() {
                    self.at_work += 1;
                }
            }
            Err(problem) => debug!(%problem, "the broker has said what is nothing"),
        }
    }

    /// Waits for data, for a wake-up, or for the time to end.
    fn wait(&mut self, connection: Option<std::os::fd::BorrowedFd<'_>>, at_most: Duration) {
        let mut waited = vec![PollFd::new(&self.woken, PollFlags::IN)];
        if let Some(connection) = &connection {
            waited.push(PollFd::new(connection, PollFlags::IN));
        }
        let stop = self.stop.as_fd();
        // After a request to stop, this descriptor stays readable.
        if !self.stop.is_requested() {
            waited.push(PollFd::new(&stop, PollFlags::IN));
        }
        // A signal may end the wait early, which does no harm.
        let _ = Timespec::try_from(at_most).map(|limit| poll(&mut waited, Some(&limit)));
        let mut wakes = [0; 64];
        while (&self.woken).read(&mut wakes).is_ok_and(|length| length == wakes.len()) {}
    }

    /// Waits for this time, or until this worker must end. Returns whether it must.
    fn sleep(&mut self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        while !self.is_to_end() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.wait(None, left);
        }
        true
    }
}

fn say(connection: &mut Blocking, word: &PirateMessage) -> Result<(), BlockingError> {
    connection.send(&word.frames(), Instant::now() + PATIENCE)
}

/// The reply of a worker that ends. It belongs to no message.
fn farewell() -> PirateMessage {
    use crate::protocol::{Header, Reply};
    let reply = Header::Reply(Reply { leaving: true, ..Reply::default() });
    // Encoding such a short header does not fail.
    PirateMessage::Work { client: NOBODY.to_vec(), body: reply.frame(&[]).unwrap_or_default() }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
