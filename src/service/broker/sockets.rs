//! The broker's sockets: its connections, and the loop that passes events to [`state`](super::state) and carries out the
//! actions.
//!
//! One task for each connection reads and writes, and knows only ZMTP. One loop decides.

use super::state::{Action, Broker, ConnectionId, Event, LocalId};
use super::{Counters, Gauges};
use crate::base::listener::is_trusted;
use crate::delivery::Verdict;
use crate::protocol::Header;
use crate::protocol::zmtp::{
    Connection, NoPirate, PirateMessage, Settings, SocketType, ZmtpError, from_client, to_client,
};
use crate::service::inflight_message::{Body, InflightMessage};
use crate::service::lmtp::Spool;
use crate::service::shunt::writer;
use crate::service::shunt::{Order as WriterOrder, WorkerEnd};
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

/// The time limit for a peer's handshake, and for reading its last frames.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long the broker waits until the master has reported a worker that connects: the worker may connect before the report
/// arrives. A refused worker retries.
const TO_BE_NAMED: Duration = Duration::from_secs(1);
/// How many bytes one read takes at most.
const PIECE: usize = 64 << 10;
/// How many events may wait for the loop. While the channel is full, connections are not read.
const WAITING_EVENTS: usize = 256;
/// The pause after a connection could not be accepted, because this process or the system has too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The ids of the processes that the master has started as workers.
pub type Started = HashSet<i32>;

/// The kind of peers on a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    Clients,
    Workers,
}

/// The state of the broker, for the control socket and for metrics.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub gauges: Gauges,
    pub counters: Counters,
    /// Why the last delivery that used the database could not use it; `None` if it could.
    pub database_away: Option<String>,
}

impl Report {
    /// Requests a report from the broker; `None` if its loop has ended.
    pub(in crate::service) async fn request(ask: &mpsc::Sender<oneshot::Sender<Self>>) -> Option<Self> {
        let (reply_sender, reply) = oneshot::channel();
        ask.send(reply_sender).await.ok()?;
        reply.await.ok()
    }
}

/// Input of the loop.
enum Input {
    Opened(ConnectionId, mpsc::UnboundedSender<SocketOrder>),
    Event(Event),
    Closed(ConnectionId, Peers),
}

/// An order to a connection's task.
enum SocketOrder {
    SendToWorker(PirateMessage),
    SendToClient(Vec<u8>),
    Close,
}

/// The listeners of the broker, and the channel from their connections to its loop.
pub struct Sockets {
    input: mpsc::Sender<Input>,
    inbox: mpsc::Receiver<Input>,
    longest_frame: usize,
    spool: Arc<Spool>,
    last_connection: Arc<AtomicU64>,
    listeners: Vec<JoinHandle<()>>,
    writer: Option<SyncSender<WriterOrder>>,
}

impl Sockets {
    /// `longest_frame` is the limit for a peer's frame, in bytes. `spool` decides which messages of clients are kept in files.
    pub fn new(longest_frame: usize, spool: Spool) -> Self {
        let (input, inbox) = mpsc::channel(WAITING_EVENTS);
        let (spool, last_connection) = (Arc::new(spool), Arc::default());
        Self { input, inbox, longest_frame, spool, last_connection, listeners: Vec::new(), writer: None }
    }

    /// Serves the connections of a listener, at most `most` at once; the others stay in the system's backlog. With `admitted`,
    /// only these processes are served.
    pub fn listen(
        &mut self,
        listener: UnixListener,
        peers: Peers,
        most: usize,
        admitted: Option<watch::Receiver<Started>>,
    ) {
        let (input, last, longest_frame) = (self.input.clone(), Arc::clone(&self.last_connection), self.longest_frame);
        let spool = Arc::clone(&self.spool);
        self.listeners.push(tokio::spawn(async move {
            let places = Arc::new(Semaphore::new(most));
            while let Ok(place) = Arc::clone(&places).acquire_owned().await {
                let id = ConnectionId(last.fetch_add(1, Ordering::Relaxed) + 1);
                let (stream, pid) = match listener.accept().await {
                    Ok((stream, _)) => match may_connect(&stream) {
                        Ok(pid) => (stream, pid),
                        Err(refusal) => {
                            warn!(%refusal, ?peers, "a connection is refused");
                            continue;
                        }
                    },
                    Err(error) => {
                        warn!(%error, ?peers, "a connection cannot be accepted");
                        sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                };
                let (input, admitted, spool) = (input.clone(), admitted.clone(), Arc::clone(&spool));
                let conversation = Conversation { id, peers, pid, admitted, input, longest_frame, spool };
                tokio::spawn(async move {
                    conversation.run(stream).await;
                    drop(place);
                });
            }
        }));
    }

    /// Stores the records of messages that crash workers in the folder of the file queue.
    ///
    /// # Errors
    /// If the system provides no thread.
    pub fn write_crashes(&mut self, queue: PathBuf) -> io::Result<()> {
        self.writer = Some(writer::start(queue)?);
        Ok(())
    }

    /// Runs the broker. Once `stop` receives the time that is left, or its sender is dropped, the broker takes no new
    /// connections. The broker ends when all senders of messages are gone and all jobs are answered, or when that time is over.
    pub async fn run(
        mut self,
        broker: Broker,
        mut submitted: mpsc::Receiver<InflightMessage>,
        mut asked: mpsc::Receiver<oneshot::Sender<Report>>,
        mut ended: mpsc::Receiver<WorkerEnd>,
        mut stop: oneshot::Receiver<Duration>,
    ) {
        let writer = self.writer.take();
        let mut at = Loop { broker, connections: HashMap::new(), local: HashMap::new(), last_local: 0, writer };
        let mut until: Option<Instant> = None;
        let (mut may_submit, mut may_ask, mut may_end) = (true, true, true);
        while until.is_none_or(|until| Instant::now() < until && (may_submit || !at.broker.is_idle())) {
            let tick = at.broker.next_tick();
            tokio::select! {
                Some(input) = self.inbox.recv() => at.take(input),
                message = submitted.recv(), if may_submit => match message {
                    Some(message) => at.take_submission(message),
                    None => may_submit = false,
                },
                asker = asked.recv(), if may_ask => match asker {
                    // The client that asked may have gone meanwhile.
                    Some(asker) => drop(asker.send(at.report())),
                    None => may_ask = false,
                },
                worker = ended.recv(), if may_end => match worker {
                    Some(worker) => at.event(Event::ProcessEnded(worker)),
                    None => may_end = false,
                },
                within = &mut stop, if until.is_none() => {
                    until = Some(Instant::now() + within.unwrap_or_default());
                    // A client that connects now must fail at once, instead of waiting for a broker that accepts nothing.
                    self.listeners.drain(..).for_each(|listener| listener.abort());
                    at.event(Event::Stop);
                }
                () = sleep_until(tick.into()) => {}
            }
            // Events that have arrived count before timeouts do.
            for _ in 0..WAITING_EVENTS {
                let Ok(input) = self.inbox.try_recv() else { break };
                at.take(input);
            }
            let now = Instant::now();
            if now >= tick {
                let actions = at.broker.tick(now);
                at.act(actions);
            }
        }
        // The connections still write their last frames.
        drop(at);
        drop(self.input);
        let _ = timeout(HANDSHAKE, async { while self.inbox.recv().await.is_some() {} }).await;
    }
}

/// Only this process's user and root may connect: the broker trusts a client's claim of the login, and a worker gets everybody's
/// mail.
fn may_connect(stream: &UnixStream) -> io::Result<Option<i32>> {
    let (peer, who) = (stream.peer_cred()?, "neither the service's user nor root");
    if is_trusted(peer.uid()) { Ok(peer.pid()) } else { Err(io::Error::other(format!("user {} is {who}", peer.uid()))) }
}

/// The state of the loop: the broker, and the channels to its peers.
struct Loop {
    broker: Broker,
    connections: HashMap<ConnectionId, mpsc::UnboundedSender<SocketOrder>>,
    local: HashMap<LocalId, oneshot::Sender<Vec<Verdict>>>,
    last_local: u64,
    writer: Option<SyncSender<WriterOrder>>,
}

impl Loop {
    fn take(&mut self, input: Input) {
        match input {
            Input::Opened(id, orders) => drop(self.connections.insert(id, orders)),
            Input::Event(event) => self.event(event),
            Input::Closed(connection, peers) => {
                self.connections.remove(&connection);
                self.event(match peers {
                    Peers::Clients => Event::ClientGone { connection },
                    Peers::Workers => Event::WorkerGone { connection },
                });
            }
        }
    }

    fn take_submission(&mut self, InflightMessage { request, message, answer }: InflightMessage) {
        self.last_local += 1;
        let id = LocalId(self.last_local);
        self.local.insert(id, answer);
        self.event(Event::Submitted { id, request: Box::new(request), body: message });
    }

    fn event(&mut self, event: Event) {
        let actions = self.broker.handle(event, Instant::now());
        self.act(actions);
    }

    fn report(&self) -> Report {
        Report {
            gauges: self.broker.gauges(Instant::now()),
            counters: self.broker.counters().clone(),
            database_away: self.broker.database_away().map(str::to_owned),
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        for order in self.broker.orders() {
            // A record that cannot be stored is kept only in the memory of this process.
            if self.writer.as_ref().is_some_and(|writer| writer.try_send(order).is_err()) {
                warn!("what is known of a message that crashed a worker is not written down: the disk is too slow");
            }
        }
        for action in actions {
            match action {
                Action::Beat { connection } => {
                    self.order(connection, SocketOrder::SendToWorker(PirateMessage::Heartbeat))
                }
                Action::Work { connection, address, body } => {
                    let request = PirateMessage::Work { client: address, body };
                    self.order(connection, SocketOrder::SendToWorker(request));
                }
                Action::SendToClient { connection, body } => self.order(connection, SocketOrder::SendToClient(body)),
                Action::Answer { id, verdicts } => {
                    if let Some(Err(_)) = self.local.remove(&id).map(|asker| asker.send(verdicts)) {
                        debug!("the LMTP client has hung up before it was answered");
                    }
                }
                Action::EndWorker { connection, pid } => {
                    match pid {
                        Some(pid) => {
                            warn!(pid, "a worker is killed");
                            self.kill(connection, pid);
                        }
                        None => warn!("a worker whose process is not known is cut off"),
                    }
                    self.order(connection, SocketOrder::Close);
                }
                Action::CloseWorker { connection } | Action::CloseClient { connection } => {
                    self.order(connection, SocketOrder::Close);
                }
            }
        }
    }

    /// Kills the process at the other end.
    fn kill(&self, connection: ConnectionId, pid: i32) {
        // While the connection is open, no other process can have this id. This process never kills itself.
        let may_end = |pid: &Pid| self.connections.contains_key(&connection) && *pid != getpid();
        if let Some(pid) = Pid::from_raw(pid).filter(may_end)
            && let Err(error) = kill_process(pid, Signal::KILL)
        {
            warn!(pid = pid.as_raw_nonzero(), %error, "it cannot be ended");
        }
    }

    fn order(&self, connection: ConnectionId, order: SocketOrder) {
        // If the connection is closed, the event that reports this is on its way.
        if let Some(orders) = self.connections.get(&connection) {
            let _ = orders.send(order);
        }
    }
}

/// One connection.
struct Conversation {
    id: ConnectionId,
    peers: Peers,
    pid: Option<i32>,
    /// The processes that are served; `None`: all.
    admitted: Option<watch::Receiver<Started>>,
    input: mpsc::Sender<Input>,
    longest_frame: usize,
    spool: Arc<Spool>,
}

/// Why a connection is cut off.
#[derive(Debug, Error)]
enum Over {
    #[error("its handshake took too long")]
    HandshakeTooLong,
    #[error(transparent)]
    Stream(#[from] io::Error),
    #[error(transparent)]
    Zmtp(#[from] ZmtpError),
    #[error(transparent)]
    NoPirate(#[from] NoPirate),
}

impl Conversation {
    async fn run<S: AsyncRead + AsyncWrite + Unpin>(mut self, stream: S) {
        if !self.is_admitted().await {
            warn!(pid = self.pid, peers = ?self.peers, "a connection is refused: the master has started no such process");
            return;
        }
        let (orders, obey) = mpsc::unbounded_channel();
        // This send does not fail, since the loop outlives the connections.
        let _ = self.input.send(Input::Opened(self.id, orders)).await;
        match self.talk(stream, obey).await {
            Ok(()) => debug!(id = self.id.0, peers = ?self.peers, "a connection is closed"),
            Err(why) => info!(id = self.id.0, peers = ?self.peers, %why, "a connection is cut off"),
        }
        let _ = self.input.send(Input::Closed(self.id, self.peers)).await;
    }

    /// Whether the process at the other end is admitted.
    async fn is_admitted(&mut self) -> bool {
        let (Some(admitted), pid) = (&mut self.admitted, self.pid) else { return true };
        let known = admitted.wait_for(|started| pid.is_some_and(|pid| started.contains(&pid)));
        matches!(timeout(TO_BE_NAMED, known).await, Ok(Ok(_)))
    }

    /// Talks until the peer has closed the connection, or the loop closes it.
    async fn talk<S>(&self, stream: S, mut obey: mpsc::UnboundedReceiver<SocketOrder>) -> Result<(), Over>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut connection = Connection::new(Settings {
            socket_type: SocketType::Router,
            identity: None,
            longest_frame: self.longest_frame,
            most_frames: 3,
            longest_message: self.longest_frame.saturating_add(512),
        });
        let mut piece = vec![0; PIECE];
        let mut takes_what_we_write = true;
        let handshake = sleep(HANDSHAKE);
        tokio::pin!(handshake);
        loop {
            let writes = takes_what_we_write && !connection.outgoing().is_empty();
            tokio::select! {
                read = reader.read(&mut piece) => match read? {
                    0 => return Ok(()),
                    length => self.received(&mut connection, piece.get(..length).unwrap_or_default()).await?,
                },
                written = writer.write(connection.outgoing()), if writes => match written {
                    Ok(length) => connection.wrote(length),
                    // What the peer sent before it closed must still be read.
                    Err(error) => {
                        debug!(%error, id = self.id.0, "nothing more can be said to this peer");
                        takes_what_we_write = false;
                    }
                },
                order = obey.recv() => match order {
                    // The peer no longer reads.
                    Some(SocketOrder::SendToWorker(_) | SocketOrder::SendToClient(_)) if !takes_what_we_write => {}
                    Some(SocketOrder::SendToWorker(word)) => connection.send(&word.frames()),
                    Some(SocketOrder::SendToClient(body)) => connection.send(&to_client(&body)),
                    Some(SocketOrder::Close) | None => {
                        // Part of the last frames may not be written yet.
                        let rest = writer.write_all(connection.outgoing());
                        if takes_what_we_write && !matches!(timeout(HANDSHAKE, rest).await, Ok(Ok(()))) {
                            debug!(id = self.id.0, "a peer did not read its last message");
                        }
                        return Ok(());
                    }
                },
                () = &mut handshake, if connection.peer().is_none() => return Err(Over::HandshakeTooLong),
            }
        }
    }

    /// The event of a client's frame. A large message is kept in a file, like a large one over LMTP. A thread of its own writes
    /// the file, since all connections share this thread.
    async fn client_said(&self, body: Vec<u8>) -> io::Result<Event> {
        let (connection, spool) = (self.id, Arc::clone(&self.spool));
        if body.len() as u64 <= spool.above {
            return Ok(Event::ClientSaid { connection, body });
        }
        let kept = tokio::task::spawn_blocking(move || {
            if let Ok((Header::Deliver(mut request), message)) = Header::read(&body)
                && message.len() as u64 > spool.above
            {
                let file = spool.keep(message)?;
                request.file = Some(file.path().to_owned());
                return Ok(Event::ClientDelivers { connection, request: Box::new(request), body: Body::File(file) });
            }
            Ok(Event::ClientSaid { connection, body })
        });
        let kept = kept.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        kept.map_err(|error| io::Error::new(error.kind(), format!("its message cannot be kept: {error}")))
    }

    /// Parses the bytes that were read, and sends the events to the loop.
    async fn received(&self, connection: &mut Connection, bytes: &[u8]) -> Result<(), Over> {
        // Frames before an error are still handled.
        let fed = connection.feed(bytes);
        loop {
            let Some(frames) = connection.next()? else { return Ok(fed?) };
            let event = match self.peers {
                Peers::Clients => self.client_said(from_client(frames)?).await?,
                Peers::Workers => match PirateMessage::parse(frames)? {
                    PirateMessage::Ready => {
                        let name = connection.peer().and_then(|peer| peer.identity.clone()).unwrap_or_default();
                        Event::WorkerReady { connection: self.id, name, pid: self.pid }
                    }
                    PirateMessage::Heartbeat => Event::WorkerBeat { connection: self.id },
                    PirateMessage::Work { client, body } => {
                        Event::WorkerAnswered { connection: self.id, address: client, body }
                    }
                },
            };
            let _ = self.input.send(Input::Event(event)).await;
        }
    }
}

#[cfg(test)]
#[path = "sockets_tests.rs"]
mod tests;
