use super::*;
use crate::protocol::zmtp::{Blocking, BlockingError, Message};
use crate::protocol::{DatabaseState, Header, Logins, Reply, Request};
use crate::service::broker::state;
use crate::service::inflight_message::Body;
use crate::service::shunt::CrashRecords;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use tokio::io::{DuplexStream, duplex};
use uuid::Uuid;

const LONGEST_FRAME: usize = 1 << 16;
const BYTES: &[u8] = b"Subject: x\r\n\r\nx\r\n";
/// The longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_mins(2);

fn dealer() -> Settings {
    Settings {
        socket_type: SocketType::Dealer,
        identity: Some(b"host/1/x".to_vec()),
        longest_frame: LONGEST_FRAME,
        most_frames: 3,
        longest_message: LONGEST_FRAME + 512,
    }
}

/// Messages of more than 1,000 bytes are kept in files in this folder.
fn spool(directory: &Path) -> Spool {
    Spool { directory: directory.to_owned(), above: 1000, limit: None }
}

fn conversation(peers: Peers) -> (Conversation, mpsc::Receiver<Input>) {
    let (input, inbox) = mpsc::channel(WAITING_EVENTS);
    let (id, longest_frame, spool) = (ConnectionId(7), LONGEST_FRAME, Arc::new(spool(Path::new("/nonexistent"))));
    (Conversation { id, peers, pid: Some(77), admitted: None, input, longest_frame, spool }, inbox)
}

/// The test's end of a conversation.
struct Peer<S> {
    stream: S,
    connection: Connection,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    /// A peer that has completed its handshake.
    async fn begun(stream: S) -> Self {
        let mut peer = Self { stream, connection: Connection::new(dealer()) };
        while peer.connection.peer().is_none() {
            peer.write().await;
            peer.read().await;
        }
        peer.write().await;
        peer
    }

    async fn write(&mut self) {
        self.stream.write_all(self.connection.outgoing()).await.unwrap();
        let written = self.connection.outgoing().len();
        self.connection.wrote(written);
    }

    /// Reads what has come. Returns `false` at the end of the connection.
    async fn read(&mut self) -> bool {
        let mut piece = vec![0; PIECE];
        let length = self.stream.read(&mut piece).await.unwrap();
        self.connection.feed(&piece[..length]).unwrap();
        length > 0
    }

    async fn say(&mut self, frames: &[&[u8]]) {
        self.connection.send(frames);
        self.write().await;
    }

    async fn receive(&mut self) -> Message {
        loop {
            if let Some(message) = self.connection.next().unwrap() {
                return message;
            }
            assert!(self.read().await, "the connection has ended");
        }
    }
}

async fn event(inbox: &mut mpsc::Receiver<Input>) -> Event {
    match inbox.recv().await {
        Some(Input::Event(event)) => event,
        _ => panic!("no event"),
    }
}

/// A conversation with a peer that has completed its handshake.
struct Talk {
    peer: Peer<DuplexStream>,
    orders: mpsc::UnboundedSender<SocketOrder>,
    inbox: mpsc::Receiver<Input>,
    over: JoinHandle<Result<(), Over>>,
}

async fn talk(peers: Peers) -> Talk {
    let (conversation, inbox) = conversation(peers);
    let (orders, obey) = mpsc::unbounded_channel();
    // A small buffer, so that a long frame does not fit into it.
    let (ours, theirs) = duplex(1000);
    let over = tokio::spawn(async move { conversation.talk(ours, obey).await });
    Talk { peer: Peer::begun(theirs).await, orders, inbox, over }
}

#[tokio::test(start_paused = true)]
async fn what_a_worker_says_reaches_the_loop_and_what_it_is_reported_reaches_it() {
    let Talk { mut peer, orders, mut inbox, over } = talk(Peers::Workers).await;
    let connection = ConnectionId(7);
    peer.say(&PirateMessage::Ready.frames()).await;
    let ready = event(&mut inbox).await;
    assert!(
        matches!(&ready, Event::WorkerReady { connection: at, name, pid: Some(77) } if *at == connection && name == b"host/1/x"),
        "{ready:?}"
    );
    peer.say(&PirateMessage::Heartbeat.frames()).await;
    assert!(matches!(event(&mut inbox).await, Event::WorkerBeat { connection: at } if at == connection));
    peer.say(&PirateMessage::Work { client: b"a".to_vec(), body: b"b".to_vec() }.frames()).await;
    let answered = event(&mut inbox).await;
    assert!(
        matches!(&answered, Event::WorkerAnswered { connection: at, address, body } if *at == connection && address == b"a" && body == b"b"),
        "{answered:?}"
    );
    // After the handshake, the peer has no time limit.
    tokio::time::sleep(HANDSHAKE * 3).await;
    let request = PirateMessage::Work { client: b"a".to_vec(), body: vec![b'x'; 20_000] };
    orders.send(SocketOrder::SendToWorker(request.clone())).unwrap();
    assert_eq!(PirateMessage::parse(peer.receive().await), Ok(request));
    // The last frame is written before the connection is closed.
    orders.send(SocketOrder::SendToWorker(PirateMessage::Heartbeat)).unwrap();
    orders.send(SocketOrder::Close).unwrap();
    assert_eq!(PirateMessage::parse(peer.receive().await), Ok(PirateMessage::Heartbeat));
    assert!(!peer.read().await);
    assert!(over.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_a_client_says_reaches_the_loop_and_its_end_is_seen() {
    let Talk { mut peer, orders, mut inbox, over } = talk(Peers::Clients).await;
    peer.say(&to_client(b"hello")).await;
    assert!(
        matches!(event(&mut inbox).await, Event::ClientSaid { connection: ConnectionId(7), body } if body == b"hello")
    );
    orders.send(SocketOrder::SendToClient(b"good day".to_vec())).unwrap();
    assert_eq!(from_client(peer.receive().await), Ok(b"good day".to_vec()));
    drop(peer);
    assert!(over.await.unwrap().is_ok());
}

#[tokio::test]
async fn a_large_message_of_a_client_waits_in_a_file_and_without_room_its_client_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let message = vec![b'x'; 1001];
    let deliver = |size: usize| Header::Deliver(Request::to(&["doug@x"], size)).frame(&message[..size]).unwrap();
    let Talk { mut peer, mut inbox, over, orders: _orders } = talk(Peers::Clients).await;
    peer.say(&to_client(&deliver(1000))).await;
    assert!(matches!(event(&mut inbox).await, Event::ClientSaid { .. }));
    peer.say(&to_client(&deliver(1001))).await;
    assert!(matches!(over.await.unwrap(), Err(Over::Stream(_))));

    let (conversation, _inbox) = conversation(Peers::Clients);
    let conversation = Conversation { spool: Arc::new(spool(folder.path())), ..conversation };
    let Ok(Event::ClientDelivers { request, body, .. }) = conversation.client_said(deliver(1001)).await else {
        panic!()
    };
    let file = request.file.clone().unwrap();
    assert_eq!((std::fs::read(&file).unwrap(), request.size, body.in_memory()), (message.clone(), 1001, &b""[..]));
    drop(body);
    assert!(!file.exists());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_says_nothing_is_cut_off_and_so_is_one_that_does_not_read_its_last_word() {
    let (silent, _inbox) = conversation(Peers::Clients);
    let (_orders, obey) = mpsc::unbounded_channel();
    let (ours, _theirs) = duplex(1000);
    let began = tokio::time::Instant::now();
    assert!(matches!(silent.talk(ours, obey).await, Err(Over::HandshakeTooLong)));
    // Timers are sometimes a millisecond late.
    assert!((HANDSHAKE..HANDSHAKE * 2).contains(&began.elapsed()), "{:?}", began.elapsed());

    let Talk { mut peer, orders, mut inbox, over } = talk(Peers::Clients).await;
    // The handshake is complete at the other end, too.
    peer.say(&to_client(b"hello")).await;
    event(&mut inbox).await;
    orders.send(SocketOrder::SendToClient(vec![b'x'; 20_000])).unwrap();
    orders.send(SocketOrder::Close).unwrap();
    let began = tokio::time::Instant::now();
    assert!(over.await.unwrap().is_ok());
    assert!((HANDSHAKE..HANDSHAKE * 2).contains(&began.elapsed()), "{:?}", began.elapsed());
    drop(peer);
}

#[tokio::test(start_paused = true)]
async fn what_came_before_a_mistake_counts() {
    let Talk { mut peer, mut inbox, over, orders: _orders } = talk(Peers::Workers).await;
    peer.connection.send(&PirateMessage::Ready.frames());
    // A frame with unknown flags.
    let bytes = [peer.connection.outgoing(), &[0xff; 9]].concat();
    peer.stream.write_all(&bytes).await.unwrap();
    assert!(matches!(event(&mut inbox).await, Event::WorkerReady { .. }));
    assert!(matches!(over.await.unwrap(), Err(Over::Zmtp(_))));

    let Talk { mut peer, mut inbox, over, orders: _orders } = talk(Peers::Workers).await;
    peer.say(&[b"a", b"no delimiter", b"b"]).await;
    assert!(matches!(over.await.unwrap(), Err(Over::NoPirate(_))));
    assert!(inbox.recv().await.is_none());
}

#[tokio::test]
async fn who_reads_no_more_is_still_heard_and_nothing_is_kept_for_him() {
    let (conversation, mut inbox) = conversation(Peers::Clients);
    let (orders, obey) = mpsc::unbounded_channel();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let over = tokio::spawn(async move { conversation.talk(ours, obey).await });
    let mut peer = Peer::begun(theirs).await;
    let stream = peer.stream.into_std().unwrap();
    stream.shutdown(std::net::Shutdown::Read).unwrap();
    peer = Peer { stream: UnixStream::from_std(stream).unwrap(), ..peer };
    for _ in 0..3 {
        orders.send(SocketOrder::SendToClient(b"good day".to_vec())).unwrap();
    }
    peer.say(&to_client(b"hello")).await;
    assert!(matches!(event(&mut inbox).await, Event::ClientSaid { .. }));
    orders.send(SocketOrder::SendToClient(b"good bye".to_vec())).unwrap();
    orders.send(SocketOrder::Close).unwrap();
    // The conversation does not wait for the time that a peer has for reading.
    assert!(over.await.unwrap().is_ok());
}

#[tokio::test]
async fn this_user_may_connect_and_the_system_tells_which_process_it_is() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    assert_eq!(may_connect(&ours).unwrap(), i32::try_from(std::process::id()).ok());
}

/// The channels and sockets of a front that a test uses.
struct BrokerStage {
    clients: PathBuf,
    workers: PathBuf,
    submissions: mpsc::Sender<InflightMessage>,
    ask: mpsc::Sender<oneshot::Sender<Report>>,
    ended: mpsc::Sender<WorkerEnd>,
    stop: oneshot::Sender<Duration>,
}

impl BrokerStage {
    fn report(&self) -> Report {
        let (reply_sender, reply) = oneshot::channel();
        self.ask.blocking_send(reply_sender).unwrap();
        reply.blocking_recv().unwrap()
    }

    fn submit(&self, id: u128) -> oneshot::Receiver<Vec<Verdict>> {
        let (answer, verdicts) = oneshot::channel();
        let message = Body::Memory(BYTES.to_vec());
        self.submissions.blocking_send(InflightMessage { request: request(id), message, answer }).unwrap();
        verdicts
    }

    fn worker(&self) -> TestWorker {
        let until = Instant::now() + PATIENCE;
        let mut worker = TestWorker(Blocking::connect(&self.workers, dealer(), until).unwrap());
        worker.say(&PirateMessage::Ready);
        worker
    }

    fn client(&self) -> Result<Blocking, BlockingError> {
        Blocking::connect(&self.clients, dealer(), Instant::now() + PATIENCE)
    }
}

/// A worker in this process, which the broker never kills.
struct TestWorker(Blocking);

impl TestWorker {
    fn say(&mut self, word: &PirateMessage) {
        self.0.send(&word.frames(), Instant::now() + PATIENCE).unwrap();
    }

    /// The worker's next message. Meanwhile the worker sends heartbeats.
    fn receive(&mut self) -> (Vec<u8>, Vec<u8>) {
        loop {
            match self.0.receive(Instant::now() + Duration::from_millis(200)).unwrap().map(PirateMessage::parse) {
                Some(Ok(PirateMessage::Work { client, body })) => return (client, body),
                None | Some(Ok(PirateMessage::Heartbeat)) => self.say(&PirateMessage::Heartbeat),
                said => panic!("{said:?}"),
            }
        }
    }

    fn answer(&mut self, client: Vec<u8>, id: Uuid, verdict: &Verdict) {
        let results = vec![verdict.clone()];
        let reply = Reply { id, results, leaving: false, logins: Logins::default(), database: DatabaseState::NotAsked };
        self.say(&PirateMessage::Work { client, body: Header::Reply(reply).frame(b"").unwrap() });
    }
}

fn request(id: u128) -> Request {
    Request { id: Uuid::from_u128(id), ..Request::to(&[&format!("doug{id}@x")], BYTES.len()) }
}

/// Runs a broker while `play` runs, and then up to its end.
async fn on_stage(most_clients: usize, play: impl FnOnce(BrokerStage) + Send + 'static) {
    let folder = tempfile::tempdir().unwrap();
    let [clients, workers] = ["clients.sock", "workers.sock"].map(|name| folder.path().join(name));
    let mut sockets = Sockets::new(LONGEST_FRAME, spool(folder.path()));
    sockets.listen(UnixListener::bind(&clients).unwrap(), Peers::Clients, most_clients, None);
    sockets.listen(UnixListener::bind(&workers).unwrap(), Peers::Workers, 4, None);
    let ((submissions, submitted), (ask, asked), (ended, ends)) =
        (mpsc::channel(1), mpsc::channel(1), mpsc::channel(1));
    let (stop, stopped) = oneshot::channel();
    let player = thread::spawn(move || play(BrokerStage { clients, workers, submissions, ask, ended, stop }));
    let settings = state::Settings {
        worker_wait: PATIENCE,
        workers: 1,
        max_per_recipient: 2,
        patience: Duration::from_secs(5),
        recipient_delimiter: String::new(),
        mailbox_sessions: 3,
        longest_delivery: PATIENCE,
        run: 7,
    };
    let broker = Broker::new(settings, CrashRecords::default(), Instant::now());
    sockets.run(broker, submitted, asked, ends, stopped).await;
    player.join().unwrap();
}

#[tokio::test]
async fn what_is_handed_over_goes_to_a_worker_and_each_answer_to_whom_it_is_for() {
    on_stage(8, |stage| {
        // Both messages wait before there is a worker.
        let verdicts = [stage.submit(1), stage.submit(2)];
        let mut client = stage.client().unwrap();
        client.send(&to_client(b"hello"), Instant::now() + PATIENCE).unwrap();
        let mut worker = stage.worker();
        for id in [1, 2] {
            let (address, body) = worker.receive();
            let Ok((Header::Deliver(request), message)) = Header::read(&body) else { panic!("{body:?}") };
            assert_eq!((request.id, message), (Uuid::from_u128(id), BYTES));
            assert_eq!(stage.report().gauges.busy, 1);
            worker.answer(address, request.id, &Verdict::delivered(id.to_string()));
        }
        for (verdicts, id) in verdicts.into_iter().zip(["1", "2"]) {
            assert_eq!(verdicts.blocking_recv().unwrap(), [Verdict::delivered(id)]);
        }
        let (address, body) = worker.receive();
        assert_eq!(body, b"hello");
        worker.say(&PirateMessage::Work { client: address, body: b"good day".to_vec() });
        let answer = client.receive(Instant::now() + PATIENCE).unwrap().unwrap();
        assert_eq!(from_client(answer), Ok(b"good day".to_vec()));
        let report = stage.report();
        assert_eq!((report.counters.dispatched, report.gauges.ready, report.database_away), (3, 1, None));
        // The broker sends heartbeats to its workers.
        while !matches!(
            worker.0.receive(Instant::now() + PATIENCE).unwrap().map(PirateMessage::parse),
            Some(Ok(PirateMessage::Heartbeat))
        ) {}
        // A client that sends an invalid frame is disconnected.
        client.send(&to_client(crate::protocol::MARK), Instant::now() + PATIENCE).unwrap();
        let shown = client.receive(Instant::now() + PATIENCE);
        assert!(matches!(shown, Err(BlockingError::Closed)), "{shown:?}");
        assert_eq!(stage.report().counters.refused_requests, 1);
    })
    .await;
}

#[tokio::test]
async fn a_message_whose_worker_hangs_up_is_answered() {
    on_stage(8, |stage| {
        let verdicts = stage.submit(1);
        let mut worker = stage.worker();
        worker.receive();
        drop(worker);
        assert_eq!(verdicts.blocking_recv().unwrap()[0].class(), 4);
        assert_eq!(stage.report().counters.workers_lost, 1);
    })
    .await;
}

#[tokio::test]
async fn past_the_limit_a_client_waits_until_another_one_hangs_up() {
    on_stage(1, |stage| {
        let first = stage.client().unwrap();
        let waits = Blocking::connect(&stage.clients, dealer(), Instant::now() + Duration::from_millis(100));
        assert!(matches!(waits, Err(BlockingError::TimedOut)));
        drop(first);
        stage.client().unwrap();
    })
    .await;
}

#[tokio::test]
async fn stopped_it_answers_its_messages_and_accepts_no_client() {
    on_stage(8, |stage| {
        let mut worker = stage.worker();
        let verdicts = stage.submit(1);
        let (address, _) = worker.receive();
        let BrokerStage { clients, workers: _, submissions, ask, ended, stop } = stage;
        stop.send(PATIENCE).unwrap();
        // The loop handles the stop in its next turn.
        let gone = || StdUnixStream::connect(&clients).is_err();
        let until = Instant::now() + PATIENCE;
        while !gone() && Instant::now() < until {
            thread::yield_now();
        }
        assert!(gone(), "nobody is let in any more");
        drop((submissions, ended));
        worker.answer(address, Uuid::from_u128(1), &Verdict::delivered("x"));
        assert_eq!(verdicts.blocking_recv().unwrap(), [Verdict::delivered("x")]);
        // All messages are answered, so the broker does not wait until `ask` is dropped.
        let _ = ask;
    })
    .await;
}

/// A compromised process may have the service's user, too.
#[tokio::test(start_paused = true)]
async fn who_is_no_worker_of_the_masters_is_served_only_once_the_master_names_it() {
    let (start, admitted) = watch::channel(Started::from([5]));
    let begin = || {
        let (conversation, inbox) = conversation(Peers::Workers);
        let (ours, theirs) = duplex(1000);
        let conversation = Conversation { admitted: Some(admitted.clone()), ..conversation };
        (tokio::spawn(conversation.run(ours)), theirs, inbox)
    };
    let (over, mut stranger, mut inbox) = begin();
    // The stranger does not even get the greeting.
    assert_eq!(stranger.read(&mut [0; 9]).await.unwrap(), 0);
    over.await.unwrap();
    assert!(inbox.recv().await.is_none(), "the loop never received it");
    // The worker connects before the master's report arrives.
    let (_over, worker, mut inbox) = begin();
    tokio::time::sleep(TO_BE_NAMED / 2).await;
    start.send_modify(|started| started.extend([77]));
    let mut worker = Peer::begun(worker).await;
    worker.say(&PirateMessage::Ready.frames()).await;
    // Dropping this value would end the conversation.
    let opened = inbox.recv().await;
    assert!(matches!(&opened, Some(Input::Opened(ConnectionId(7), _))));
    assert!(matches!(event(&mut inbox).await, Event::WorkerReady { pid: Some(77), .. }));
}
