//! The broker's sockets: who connects, what is said on each connection, and the loop that asks [`state`](super::state) what to do.
//!
//! One task for each connection reads, writes and knows no more than ZMTP; one loop decides.

use super::state::{Action, Broker, ConnectionId, Event, LocalId};
use super::{Counters, Standing};
use crate::base::listener::is_trusted;
use crate::delivery::Verdict;
use crate::protocol::Header;
use crate::protocol::zmtp::{
    Connection, FromWorker, NoPirate, Settings, SocketType, ToWorker, ZmtpError, from_client, to_client,
};
use crate::service::inflight_message::{Body, Handed};
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

/// How long a peer may take for its handshake, and to read the last that it is told.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long a process that connects as a worker may be unknown to the master: a worker may be faster than what is said of it. One that
/// is refused tries again.
const TO_BE_NAMED: Duration = Duration::from_secs(1);
/// How much is read at once.
const PIECE: usize = 64 << 10;
/// How many events may wait for the loop: then connections are read no further.
const WAITING_EVENTS: usize = 256;
/// The pause after a connection could not be accepted: this process, or the system, has too many files open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The processes that the master has started as workers, by their numbers.
pub type Started = HashSet<i32>;

/// What connects to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    Clients,
    Workers,
}

/// How the broker stands, for whoever asks.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub standing: Standing,
    pub counters: Counters,
    /// Why the last delivery that asked the database could not use it.
    pub database_away: Option<String>,
}

/// What reaches the loop.
enum Input {
    Opened(ConnectionId, mpsc::UnboundedSender<Order>),
    Event(Event),
    Closed(ConnectionId, Peers),
}

/// What a connection's task is to do.
enum Order {
    SendToWorker(ToWorker),
    SendToClient(Vec<u8>),
    Close,
}

/// Makes the loop and what feeds it.
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
    /// `longest_frame` is what one frame of a peer may have, in bytes; `spool` says which messages of clients wait in files.
    #[must_use]
    pub fn new(longest_frame: usize, spool: Spool) -> Self {
        let (input, inbox) = mpsc::channel(WAITING_EVENTS);
        let (spool, last_connection) = (Arc::new(spool), Arc::default());
        Self { input, inbox, longest_frame, spool, last_connection, listeners: Vec::new(), writer: None }
    }

    /// Serves those who connect from now on, `most` at once: others wait until the system takes no more of them. With `admitted`, only
    /// these processes are served.
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

    /// Has what is known of messages that crash workers written down, in the folder of the file queue.
    ///
    /// # Errors
    /// Where the system gives us no thread.
    pub fn write_crashes(&mut self, queue: PathBuf) -> io::Result<()> {
        self.writer = Some(writer::start(queue)?);
        Ok(())
    }

    /// Runs the broker until `stop` comes with the time that is left then, or its sender is dropped; and then until nobody can hand it
    /// a message any more, and all that it had is answered.
    pub async fn run(
        mut self,
        broker: Broker,
        mut handed: mpsc::Receiver<Handed>,
        mut asked: mpsc::Receiver<oneshot::Sender<Report>>,
        mut ended: mpsc::Receiver<WorkerEnd>,
        mut stop: oneshot::Receiver<Duration>,
    ) {
        let writer = self.writer.take();
        let mut at = Loop { broker, connections: HashMap::new(), local: HashMap::new(), last_local: 0, writer };
        let mut until: Option<Instant> = None;
        let (mut may_hand, mut may_ask, mut may_end) = (true, true, true);
        while until.is_none_or(|until| Instant::now() < until && (may_hand || !at.broker.is_idle())) {
            let tick = at.broker.next_tick();
            tokio::select! {
                Some(input) = self.inbox.recv() => at.take(input),
                message = handed.recv(), if may_hand => match message {
                    Some(message) => at.take_handed(message),
                    None => may_hand = false,
                },
                asker = asked.recv(), if may_ask => match asker {
                    // It may have gone meanwhile.
                    Some(asker) => drop(asker.send(at.report())),
                    None => may_ask = false,
                },
                worker = ended.recv(), if may_end => match worker {
                    Some(worker) => at.event(Event::ProcessEnded(worker)),
                    None => may_end = false,
                },
                within = &mut stop, if until.is_none() => {
                    until = Some(Instant::now() + within.unwrap_or_default());
                    // Whoever connects now is to find nobody, and not somebody who takes nothing.
                    self.listeners.drain(..).for_each(|listener| listener.abort());
                    at.event(Event::Stop);
                }
                () = sleep_until(tick.into()) => {}
            }
            // What peers have said by now counts before what they have not.
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
        // The last answers go out.
        drop(at);
        drop(self.input);
        let _ = timeout(HANDSHAKE, async { while self.inbox.recv().await.is_some() {} }).await;
    }
}

/// Why somebody is refused.
#[derive(Debug, Error)]
enum MayNotConnect {
    #[error("user {0} is neither the service's user nor root")]
    User(u32),
    #[error("the system does not tell who it is: {0}")]
    Unknown(#[from] io::Error),
}

/// Only this process's user and root: a client is believed who has logged in, and a worker gets everybody's mail.
fn may_connect(stream: &UnixStream) -> Result<Option<i32>, MayNotConnect> {
    let peer = stream.peer_cred()?;
    if is_trusted(peer.uid()) { Ok(peer.pid()) } else { Err(MayNotConnect::User(peer.uid())) }
}

/// The loop's own: the broker, and how its peers are reached.
struct Loop {
    broker: Broker,
    connections: HashMap<ConnectionId, mpsc::UnboundedSender<Order>>,
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

    fn take_handed(&mut self, Handed { request, message, answer }: Handed) {
        self.last_local += 1;
        let id = LocalId(self.last_local);
        self.local.insert(id, answer);
        self.event(Event::Handed { id, request: Box::new(request), body: message });
    }

    fn event(&mut self, event: Event) {
        let actions = self.broker.handle(event, Instant::now());
        self.act(actions);
    }

    fn report(&self) -> Report {
        Report {
            standing: self.broker.standing(Instant::now()),
            counters: self.broker.counters().clone(),
            database_away: self.broker.database_away().map(str::to_owned),
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        for order in self.broker.orders() {
            // What is not written down is known for as long as this process lives.
            if self.writer.as_ref().is_some_and(|writer| writer.try_send(order).is_err()) {
                warn!("what is known of a message that crashed a worker is not written down: the disk is too slow");
            }
        }
        for action in actions {
            match action {
                Action::Beat { connection } => self.order(connection, Order::SendToWorker(ToWorker::Heartbeat)),
                Action::Work { connection, address, body } => {
                    let request = ToWorker::Request { client: address, body };
                    self.order(connection, Order::SendToWorker(request));
                }
                Action::Tell { connection, body } => self.order(connection, Order::SendToClient(body)),
                Action::Answer { id, verdicts } => {
                    if let Some(Err(_)) = self.local.remove(&id).map(|asker| asker.send(verdicts)) {
                        debug!("the LMTP client has hung up before it was answered");
                    }
                }
                Action::EndWorker { connection, pid } => {
                    match pid {
                        Some(pid) => {
                            warn!(pid, "a worker is killed");
                            self.signal(connection, pid, Signal::KILL);
                        }
                        None => warn!("a worker whose process is not known is cut off"),
                    }
                    self.order(connection, Order::Close);
                }
                Action::RetireWorker { connection, pid } => self.signal(connection, pid, Signal::TERM),
                Action::CloseWorker { connection } | Action::CloseClient { connection } => {
                    self.order(connection, Order::Close);
                }
            }
        }
    }

    /// Sends a signal to the process at the other end.
    fn signal(&self, connection: ConnectionId, pid: i32, signal: Signal) {
        // The connection is still open: no other process can have this number by now. And never this process itself.
        let may_end = |pid: &Pid| self.connections.contains_key(&connection) && *pid != getpid();
        if let Some(pid) = Pid::from_raw(pid).filter(may_end)
            && let Err(error) = kill_process(pid, signal)
        {
            warn!(pid = pid.as_raw_nonzero(), %error, "it cannot be ended");
        }
    }

    fn order(&self, connection: ConnectionId, order: Order) {
        // Where it is closed, that is on its way to us as well.
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

/// Why a conversation is over.
#[derive(Debug, Error)]
enum Over {
    #[error("the other side has closed it")]
    Closed,
    #[error("its handshake took too long")]
    HandshakeTooLong,
    #[error("it was to be closed")]
    AsOrdered,
    #[error("its message cannot be kept: {0}")]
    NotKept(io::Error),
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
        // The loop ends last.
        let _ = self.input.send(Input::Opened(self.id, orders)).await;
        match self.talk(stream, obey).await {
            over @ (Over::Closed | Over::AsOrdered) => debug!(id = self.id.0, peers = ?self.peers, %over),
            over => info!(id = self.id.0, peers = ?self.peers, why = %over, "a connection is cut off"),
        }
        let _ = self.input.send(Input::Closed(self.id, self.peers)).await;
    }

    /// Whether the process at the other end is one of those that are served.
    async fn is_admitted(&mut self) -> bool {
        let (Some(admitted), pid) = (&mut self.admitted, self.pid) else { return true };
        let known = admitted.wait_for(|started| pid.is_some_and(|pid| started.contains(&pid)));
        matches!(timeout(TO_BE_NAMED, known).await, Ok(Ok(_)))
    }

    async fn talk<S>(&self, stream: S, mut obey: mpsc::UnboundedReceiver<Order>) -> Over
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
                read = reader.read(&mut piece) => match read {
                    Ok(0) => return Over::Closed,
                    Err(error) => return error.into(),
                    Ok(length) => {
                        if let Err(over) = self.heard(&mut connection, piece.get(..length).unwrap_or_default()).await {
                            return over;
                        }
                    }
                },
                written = writer.write(connection.outgoing()), if writes => match written {
                    Ok(length) => connection.wrote(length),
                    // What it has said before it closed is still to be read.
                    Err(error) => {
                        debug!(%error, id = self.id.0, "nothing more can be said to this peer");
                        takes_what_we_write = false;
                    }
                },
                order = obey.recv() => match order {
                    // There is no use in keeping what cannot be written.
                    Some(Order::SendToWorker(_) | Order::SendToClient(_)) if !takes_what_we_write => {}
                    Some(Order::SendToWorker(word)) => connection.send(&word.frames()),
                    Some(Order::SendToClient(body)) => connection.send(&to_client(&body)),
                    Some(Order::Close) | None => {
                        // The last that it is told may not all be out.
                        let rest = writer.write_all(connection.outgoing());
                        if takes_what_we_write && !matches!(timeout(HANDSHAKE, rest).await, Ok(Ok(()))) {
                            debug!(id = self.id.0, "a peer did not read the last that it was told");
                        }
                        return Over::AsOrdered;
                    }
                },
                () = &mut handshake, if connection.peer().is_none() => return Over::HandshakeTooLong,
            }
        }
    }

    /// What a client has said. A large message waits in a file, as one does that comes by LMTP; it is written on a thread of its own,
    /// since all others wait for this one.
    async fn client_said(&self, body: Vec<u8>) -> Result<Event, Over> {
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
        kept.await.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(Over::NotKept)
    }

    /// Understands what was read, and tells the loop.
    async fn heard(&self, connection: &mut Connection, bytes: &[u8]) -> Result<(), Over> {
        // What came before a mistake counts.
        let fed = connection.feed(bytes);
        loop {
            let Some(frames) = connection.next()? else { return Ok(fed?) };
            let event = match self.peers {
                Peers::Clients => self.client_said(from_client(frames)?).await?,
                Peers::Workers => match FromWorker::parse(frames)? {
                    FromWorker::Ready => {
                        let name = connection.peer().and_then(|peer| peer.identity.clone()).unwrap_or_default();
                        Event::WorkerReady { connection: self.id, name, pid: self.pid }
                    }
                    FromWorker::Heartbeat => Event::WorkerBeat { connection: self.id },
                    FromWorker::Reply { client, body } => {
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
