use super::*;
use crate::protocol::Header;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

/// The longest wait for something that must happen.
const LONG: Duration = Duration::from_mins(2);

fn router() -> Settings {
    Settings {
        socket_type: SocketType::Router,
        identity: None,
        longest_frame: 4 << 20,
        most_frames: 3,
        longest_message: 5 << 20,
    }
}

/// A link of which the test plays both the broker and the worker.
struct Scene {
    listener: UnixListener,
    stop: Arc<Stop>,
    wake: Wake,
    assigned: Receiver<Job>,
    answer: Sender<DeliveryReply>,
    link: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

fn link(folder: &Path) -> (Link, Arc<Stop>, Wake, Receiver<Job>, Sender<DeliveryReply>) {
    let config = crate::service::configured(folder);
    let stop = Arc::new(Stop::on_signals().unwrap());
    let (wake, woken) = Wake::pair().unwrap();
    let ((assign, assigned), (answer, answers)) = (channel(), channel());
    let recycling = Arc::new(Recycling::new(1000, Box::new(|| Ok(()))));
    (Link::new(&config, Arc::clone(&stop), recycling, woken, assign, answers), stop, wake, assigned, answer)
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("run")).unwrap();
        let listener = UnixListener::bind(folder.path().join("run/workers.sock")).unwrap();
        let (link, stop, wake, assigned, answer) = link(folder.path());
        let link = Some(thread::spawn(move || link.run()));
        Self { listener, stop, wake, assigned, answer, link, _folder: folder }
    }

    /// The next connection, after its READY.
    fn accept(&self) -> Broker {
        let stream = self.listener.accept().unwrap().0;
        Broker::begun(stream)
    }

    fn job(&self) -> Job {
        self.assigned.recv_timeout(LONG).unwrap()
    }

    fn answer(&self, job: Job, leaving: bool) {
        self.answer_by(job, leaving, b"done".to_vec());
    }

    fn answer_by(&self, job: Job, leaving: bool, body: Vec<u8>) {
        let answer = DeliveryReply { address: job.address, body, leaving };
        self.answer.send(answer).unwrap();
        self.wake.wake();
    }

    /// Waits until the link ends.
    fn ends(mut self) {
        self.link.take().unwrap().join().unwrap();
    }

    fn stop(&self) {
        self.stop.request();
        self.wake.wake();
    }
}

/// Ends the link with its test.
impl Drop for Scene {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Broker(Blocking);

impl Broker {
    fn begun(stream: UnixStream) -> Self {
        let mut broker = Self(Blocking::handshake(stream, router(), Instant::now() + LONG).unwrap());
        assert_eq!(broker.next_header(), Some(PirateMessage::Ready));
        broker
    }

    /// The next message of the worker; `None` if it has closed the connection.
    fn next_header(&mut self) -> Option<PirateMessage> {
        match self.0.receive(Instant::now() + LONG) {
            Ok(frames) => Some(PirateMessage::parse(frames.expect("it says something")).unwrap()),
            Err(BlockingError::Closed) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The next message except heartbeats. Each heartbeat is answered.
    fn next_frame(&mut self) -> Option<PirateMessage> {
        loop {
            match self.next_header() {
                Some(PirateMessage::Heartbeat) => self.say(&PirateMessage::Heartbeat),
                said => return said,
            }
        }
    }

    fn say(&mut self, word: &PirateMessage) {
        self.0.send(&word.frames(), Instant::now() + LONG).unwrap();
    }

    fn request(&mut self, client: &[u8]) {
        self.say(&PirateMessage::Work { client: client.to_vec(), body: b"work".to_vec() });
    }
}

fn done(client: &[u8]) -> PirateMessage {
    PirateMessage::Work { client: client.to_vec(), body: b"done".to_vec() }
}

fn is_farewell(said: Option<PirateMessage>) -> bool {
    let Some(PirateMessage::Work { client, body }) = said else { return false };
    matches!(Header::read(&body), Ok((Header::Reply(reply), _)) if reply.leaving) && client == NOBODY
}

#[test]
fn what_the_broker_hands_out_is_assigned_and_its_answer_goes_back() {
    let scene = Scene::new();
    let mut broker = scene.accept();
    let name = String::from_utf8(broker.0.peer().unwrap().identity.clone().unwrap()).unwrap();
    assert!(name.contains(&format!("/{}/", std::process::id())), "{name}");
    for client in [&b"first"[..], b"second"] {
        broker.request(client);
        let job = scene.job();
        assert_eq!((job.address.as_slice(), job.body.as_slice()), (client, &b"work"[..]));
        scene.answer(job, false);
        assert_eq!(broker.next_frame(), Some(done(client)));
    }
    // The worker sends a heartbeat.
    assert_eq!(broker.next_header(), Some(PirateMessage::Heartbeat));
    // An invalid message is ignored.
    broker.0.send(&[b"nonsense"], Instant::now() + LONG).unwrap();
    broker.request(b"third");
    let job = scene.job();
    // After a request to end, the worker ends once its message is answered. It waits until the broker closes the connection,
    // since another message may be on its way.
    scene.stop();
    scene.answer(job, true);
    assert_eq!(broker.next_frame(), Some(done(b"third")));
    broker.request(b"fourth");
    let job = scene.job();
    scene.answer(job, true);
    assert_eq!(broker.next_frame(), Some(done(b"fourth")));
    drop(broker);
    scene.ends();
}

#[test]
fn stopped_while_idle_it_says_so_and_waits_for_a_goodbye_but_not_for_ever() {
    let scene = Scene::new();
    let mut broker = scene.accept();
    scene.stop();
    assert!(is_farewell(broker.next_frame()));
    drop(broker);
    scene.ends();

    let scene = Scene::new();
    let mut broker = scene.accept();
    scene.stop();
    let began = Instant::now();
    assert!(is_farewell(broker.next_frame()));
    assert_eq!(broker.next_frame(), None);
    assert!(began.elapsed() > GOODBYE / 2);
    scene.ends();
}

#[test]
fn a_broker_that_is_lost_is_looked_for_once_its_message_is_done_and_that_answer_is_dropped() {
    let scene = Scene::new();
    let mut broker = scene.accept();
    broker.request(b"first");
    let job = scene.job();
    drop(broker);
    // Waits for longer than the first pause.
    let comes = |within: Duration| {
        let limit = Timespec::try_from(within).unwrap();
        poll(&mut [PollFd::new(&scene.listener, PollFlags::IN)], Some(&limit)).unwrap() > 0
    };
    assert!(!comes(Duration::from_millis(1500)), "a message is at work");
    scene.answer(job, false);
    let mut broker = scene.accept();
    broker.request(b"second");
    let job = scene.job();
    scene.answer(job, false);
    assert_eq!(broker.next_frame(), Some(done(b"second")), "and nothing before");
}

#[test]
fn a_broker_that_is_silent_is_given_up_unless_a_message_is_at_work() {
    let scene = Scene::new();
    let mut broker = scene.accept();
    broker.request(b"first");
    let job = scene.job();
    // The worker sends four heartbeats and gets none.
    for _ in 0..=LIVENESS {
        assert_eq!(broker.next_header(), Some(PirateMessage::Heartbeat));
    }
    scene.answer(job, false);
    let mut collected = Vec::new();
    while let Some(word) = broker.next_header() {
        collected.push(word);
    }
    assert_eq!(collected.iter().filter(|word| **word == done(b"first")).count(), 1);
    // After the answer, the worker waits as long as after it has connected, and sends a heartbeat each second.
    assert!((LIVENESS as usize / 2..10 * LIVENESS as usize).contains(&collected.len()), "{collected:?}");
    scene.accept();
}

#[test]
fn stopped_it_ends_while_there_is_no_broker() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("run")).unwrap();
    let listener = UnixListener::bind(folder.path().join("run/workers.sock")).unwrap();
    let (link, stop, wake, ..) = link(folder.path());
    let link = thread::spawn(move || link.run());
    // The broker accepts once and goes away: the pause before the next attempt has begun, or is about to begin.
    drop(listener.accept().unwrap());
    drop(listener);
    stop.request();
    wake.wake();
    link.join().unwrap();
}

#[test]
fn a_long_answer_goes_out_as_it_is_read() {
    let scene = Scene::new();
    let mut broker = scene.accept();
    broker.request(b"first");
    // The reply does not fit into the buffer of a socket.
    let body = vec![b'x'; 3 << 20];
    scene.answer_by(scene.job(), false, body.clone());
    assert!(broker.next_frame() == Some(PirateMessage::Work { client: b"first".to_vec(), body }));
}

#[test]
fn who_waits_for_the_broker_is_woken_by_an_answer() {
    let (wake, woken) = Wake::pair().unwrap();
    let is_woken = || {
        let limit = Timespec::try_from(LONG).unwrap();
        let until = Instant::now() + LONG;
        // A signal may end the wait.
        while poll(&mut [PollFd::new(&woken, PollFlags::IN)], Some(&limit)).is_err() && Instant::now() < until {}
        (&woken).read(&mut [0; 64]).ok()
    };
    wake.wake();
    assert_eq!(is_woken(), Some(1));
}

#[test]
fn a_pause_lasts_as_long_as_it_is_to_unless_this_worker_is_to_end() {
    let (mut link, stop, ..) = link(Path::new("/nonexistent"));
    let (began, pause) = (Instant::now(), Duration::from_millis(30));
    assert!(!link.sleep(pause));
    assert!(began.elapsed() >= pause);
    stop.request();
    assert!(link.sleep(LONG));
}
