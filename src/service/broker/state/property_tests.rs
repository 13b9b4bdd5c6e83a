//! For any events in any order, each request is answered once, unless its client has left. No request is ever at two workers.

use super::tests::{SETTINGS, request};
use super::*;
use crate::protocol::control::End;
use crate::queue::Digest;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashSet};

/// The next event.
#[derive(Clone, Debug)]
enum Step {
    /// A new worker sends READY.
    Ready,
    /// Time passes, and all workers that are not stopped send heartbeats.
    Pass {
        milliseconds: u64,
    },
    /// A worker is stopped, or continues.
    Stop(usize),
    /// A worker ends.
    Die(usize),
    /// A worker ends, and the master reports whether by a crash, before or after the end of its connection.
    DieOf {
        at: usize,
        crashed_itself: bool,
        notified_first: bool,
    },
    /// A worker replies to its last message in this way.
    Answer(usize, Answered),
    /// The LMTP server passes a message on.
    Submit {
        user: u8,
    },
    /// A client sends a request, or GO. The connection is new, or the previous one.
    Deliver {
        request: u8,
        again: bool,
    },
    Go(u8),
    /// Another program's client sends a request.
    Plain,
    /// A client disconnects.
    Leave(usize),
}

#[derive(Clone, Copy, Debug)]
enum Answered {
    Well,
    Twice,
    Wrongly,
    Leaving,
    ToNothing,
}

fn step() -> impl Strategy<Value = Step> {
    let answered = prop_oneof![
        6 => Just(Answered::Well),
        1 => Just(Answered::Twice),
        1 => Just(Answered::Wrongly),
        1 => Just(Answered::Leaving),
        1 => Just(Answered::ToNothing),
    ];
    prop_oneof![
        3 => Just(Step::Ready),
        4 => (1_u64..4000).prop_map(|milliseconds| Step::Pass { milliseconds }),
        1 => (0_usize..8).prop_map(Step::Stop),
        1 => (0_usize..8).prop_map(Step::Die),
        3 => (0_usize..8, prop::bool::weighted(0.8), any::<bool>())
            .prop_map(|(at, crashed_itself, notified_first)| Step::DieOf { at, crashed_itself, notified_first }),
        6 => (0_usize..8, answered).prop_map(|(worker, how)| Step::Answer(worker, how)),
        3 => (0_u8..3).prop_map(|user| Step::Submit { user }),
        3 => (0_u8..6, any::<bool>()).prop_map(|(request, again)| Step::Deliver { request, again }),
        3 => (0_u8..6).prop_map(Step::Go),
        1 => Just(Step::Plain),
        1 => (0_usize..8).prop_map(Step::Leave),
    ]
}

/// A worker, as the test models it.
struct Outside {
    connection: ConnectionId,
    stopped: bool,
    /// The address and the body of its message in progress.
    current: Option<(Vec<u8>, Vec<u8>)>,
}

struct BrokerWorld {
    broker: Broker,
    now: Instant,
    last_connection: u64,
    workers: Vec<Outside>,
    clients: Vec<ConnectionId>,
    /// Messages from LMTP that are not answered yet.
    local: BTreeSet<LocalId>,
    last_local: u64,
    /// The requests of clients that are not answered yet.
    named: BTreeSet<(Uuid, ConnectionId)>,
    /// Each address that a worker has received.
    dispatched: HashSet<Vec<u8>>,
    /// The recipients of each request.
    asked: BTreeMap<Uuid, Vec<String>>,
    /// The recipients of each request in its last delivery by a worker.
    recipients_of: BTreeMap<Uuid, Vec<String>>,
    /// How often each message, by its digest, was with a worker that crashed.
    deaths: BTreeMap<String, u32>,
    /// A client has just sent GO without a request of its own.
    asked_for_nothing: bool,
}

impl BrokerWorld {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            broker: Broker::new(SETTINGS, CrashRecords::default(), now),
            now,
            last_connection: 0,
            workers: Vec::new(),
            clients: Vec::new(),
            local: BTreeSet::new(),
            last_local: 1000,
            named: BTreeSet::new(),
            dispatched: HashSet::new(),
            asked: BTreeMap::new(),
            recipients_of: BTreeMap::new(),
            deaths: BTreeMap::new(),
            asked_for_nothing: false,
        }
    }

    fn connection(&mut self) -> ConnectionId {
        self.last_connection += 1;
        ConnectionId(self.last_connection)
    }

    fn event(&mut self, event: Event) {
        let actions = self.broker.handle(event, self.now);
        self.done(actions);
    }

    fn done(&mut self, actions: Vec<Action>) {
        let mut closed = Vec::new();
        for action in actions {
            match action {
                Action::Beat { connection } => assert!(self.workers.iter().any(|w| w.connection == connection)),
                Action::Work { connection, address, body } => {
                    assert!(self.dispatched.insert(address.clone()), "dispatched twice");
                    let worker = self.workers.iter_mut().find(|worker| worker.connection == connection);
                    let worker = worker.expect("a worker that is there");
                    assert!(worker.current.is_none(), "one message at a time");
                    if let Ok((Header::Deliver(request), _)) = Header::read(&body) {
                        let to = addresses(&request);
                        assert!(!to.is_empty(), "a message to nobody");
                        self.recipients_of.insert(request.id, to);
                    }
                    worker.current = Some((address, body));
                    self.nobody_is_at_more_than_allowed();
                }
                Action::SendToClient { connection, body, .. } => {
                    assert!(self.clients.contains(&connection), "a client that is there");
                    if let Ok((Header::Reply(reply), _)) = Header::read(&body) {
                        self.is_shunted_with_reason(&reply.results[0]);
                        self.only_those_are_delivered_whom_a_worker_had(reply.id, &reply.results);
                        assert!(self.named.remove(&(reply.id, connection)), "answered once, where it was sent");
                    }
                }
                Action::Answer { id, verdicts } => {
                    assert!(self.local.remove(&id), "answered once");
                    self.only_those_are_delivered_whom_a_worker_had(Uuid::from_u128(id.0.into()), &verdicts);
                    self.is_shunted_with_reason(&verdicts[0]);
                }
                Action::EndWorker { connection, .. } | Action::CloseWorker { connection } => {
                    self.workers.retain(|worker| worker.connection != connection);
                }
                Action::CloseClient { connection } => closed.push(connection),
            }
        }
        for connection in closed {
            assert!(self.asked_for_nothing, "all else that clients say makes sense");
            self.leave(connection);
        }
    }

    fn leave(&mut self, connection: ConnectionId) {
        self.clients.retain(|client| *client != connection);
        self.named.retain(|(_, client)| *client != connection);
        self.event(Event::ClientGone { connection });
    }

    /// No recipient or message has more workers than allowed. Only messages at workers count: a worker may still have one that
    /// was deferred meanwhile.
    fn nobody_is_at_more_than_allowed(&self) {
        let (mut at_work, mut of_one): (BTreeMap<String, usize>, BTreeMap<String, usize>) = Default::default();
        for (_, body) in self.workers.iter().filter_map(|worker| worker.current.as_ref()) {
            if let Ok((Header::Deliver(request), _)) = Header::read(body) {
                for address in addresses(&request) {
                    *at_work.entry(address).or_default() += 1;
                }
                if let Some(queue_id) = request.queue_id {
                    *of_one.entry(queue_id).or_default() += 1;
                }
            }
        }
        assert!(of_one.values().all(|count| *count <= 2), "{of_one:?}");
        assert!(at_work.values().all(|count| *count <= SETTINGS.max_per_recipient), "{at_work:?}");
    }

    fn only_those_are_delivered_whom_a_worker_had(&self, id: Uuid, verdicts: &[Verdict]) {
        assert_eq!(verdicts.len(), 2);
        for (to, verdict) in self.asked[&id].iter().zip(verdicts) {
            let had = self.recipients_of.get(&id).is_some_and(|dispatched| dispatched.contains(to));
            assert!(verdict.class() == 4 || had, "{verdict} of one who was left out");
        }
    }

    /// No message is refused unless it has crashed two workers.
    fn is_shunted_with_reason(&self, verdict: &Verdict) {
        if let Some((_, id)) = verdict.text().strip_prefix("shunted: ").and_then(|text| text.split_once('(')) {
            let deaths = self.deaths.get(id.trim_end_matches(')')).copied().unwrap_or_default();
            assert!(deaths >= 2, "{verdict}: {:?}", self.deaths);
        }
    }

    /// The master reports how a worker has ended.
    fn ended(&mut self, pid: i32, end: End) {
        let pid = u32::try_from(pid).unwrap();
        self.event(Event::ProcessEnded(WorkerEnd { pid, end, by_us: false, output: Vec::new() }));
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ready => {
                let connection = self.connection();
                self.workers.push(Outside { connection, stopped: false, current: None });
                self.event(Event::WorkerReady { connection, name: b"x".to_vec(), pid: Some(pid(connection)) });
            }
            Step::Pass { milliseconds } => {
                self.now += Duration::from_millis(milliseconds);
                let beating = self.workers.iter().filter(|worker| !worker.stopped).map(|worker| worker.connection);
                for connection in beating.collect::<Vec<_>>() {
                    self.event(Event::WorkerBeat { connection });
                }
                let actions = self.broker.tick(self.now);
                self.done(actions);
            }
            Step::Stop(at) => {
                if let Some(worker) = self.workers.get_mut(at) {
                    worker.stopped = !worker.stopped;
                }
            }
            Step::Die(at) if at < self.workers.len() => {
                let connection = self.workers.remove(at).connection;
                self.event(Event::WorkerGone { connection });
            }
            Step::DieOf { at, crashed_itself, notified_first } if at < self.workers.len() => {
                let Outside { connection, current, .. } = self.workers.remove(at);
                if let Some(Ok((Header::Deliver(_), message))) =
                    current.as_ref().filter(|_| crashed_itself).map(|(_, body)| Header::read(body))
                {
                    *self.deaths.entry(Digest::of(message).to_string()).or_default() += 1;
                }
                let end = End::Signal(if crashed_itself { 6 } else { 9 });
                if notified_first {
                    self.ended(pid(connection), end.clone());
                }
                self.event(Event::WorkerGone { connection });
                if !notified_first {
                    self.ended(pid(connection), end);
                }
            }
            Step::Answer(at, how) => self.answer(at, how),
            Step::Submit { user } => {
                self.last_local += 1;
                let id = LocalId(self.last_local);
                self.local.insert(id);
                let request = Box::new(to_two(u128::from(self.last_local), user));
                self.asked.insert(request.id, addresses(&request));
                self.event(Event::Submitted { id, request, body: Body::Memory(message(user)) });
            }
            Step::Deliver { request, again } => {
                let connection = match self.clients.last() {
                    Some(connection) if again => *connection,
                    _ => {
                        let connection = self.connection();
                        self.clients.push(connection);
                        connection
                    }
                };
                let user = request % 3;
                let request = to_two(u128::from(request), user);
                self.asked.insert(request.id, addresses(&request));
                let frame = Header::Deliver(request.clone()).frame(&message(user)).unwrap();
                // A client sends each of its requests once on each connection.
                if !self.named.insert((request.id, connection)) {
                    return;
                }
                self.event(Event::ClientSaid { connection, body: frame });
            }
            Step::Go(request) => {
                let id = Uuid::from_u128(request.into());
                // GO for a request that was answered, or never sent, only closes the client's connection.
                let client = self.clients.last().copied();
                self.asked_for_nothing = !client.is_some_and(|client| self.named.contains(&(id, client)));
                self.say(&Header::Go { id });
                self.asked_for_nothing = false;
            }
            Step::Plain => {
                let connection = self.connection();
                self.clients.push(connection);
                self.event(Event::ClientSaid { connection, body: b"17".to_vec() });
            }
            Step::Leave(at) if at < self.clients.len() => {
                let connection = self.clients[at];
                self.leave(connection);
            }
            Step::Die(_) | Step::DieOf { .. } | Step::Leave(_) => {}
        }
    }

    fn say(&mut self, header: &Header) {
        let Some(connection) = self.clients.last().copied() else { return };
        let body = header.frame(b"").unwrap();
        self.event(Event::ClientSaid { connection, body });
    }

    fn answer(&mut self, at: usize, how: Answered) {
        let Some(worker) = self.workers.get_mut(at) else { return };
        let connection = worker.connection;
        if let Answered::ToNothing = how {
            self.event(Event::WorkerAnswered { connection, address: b"x".to_vec(), body: b"y".to_vec() });
            return;
        }
        let Some((address, body)) = worker.current.take() else { return };
        let answer = match Header::read(&body) {
            Ok((Header::Deliver(request), _)) if !matches!(how, Answered::Wrongly) => {
                let results = vec![Verdict::delivered("INBOX appended"); request.recipients.len()];
                let leaving = matches!(how, Answered::Leaving);
                Header::Reply(Reply { id: request.id, results, leaving, ..Reply::default() }).frame(b"").unwrap()
            }
            _ => body.clone(),
        };
        let said = |address: &[u8], answer: &[u8]| Event::WorkerAnswered {
            connection,
            address: address.to_vec(),
            body: answer.to_vec(),
        };
        self.event(said(&address, &answer));
        if let Answered::Twice = how {
            self.event(said(&address, &answer));
        }
    }
}

/// The id of the process behind a worker's connection.
fn pid(connection: ConnectionId) -> i32 {
    i32::try_from(connection.0).unwrap()
}

/// A message for this user. All have the same size.
fn message(user: u8) -> Vec<u8> {
    format!("Subject: {user}\r\n\r\nx\r\n").into_bytes()
}

fn addresses(request: &Request) -> Vec<String> {
    request.recipients.iter().map(|recipient| recipient.address.clone()).collect()
}

fn to_two(id: u128, user: u8) -> Request {
    let request = request(id, &[&format!("{user}@x"), &format!("{}@x", (user + 1) % 3)]);
    // Some of the requests have the same queue id.
    Request { queue_id: (user == 0).then(|| "4c1".to_owned()), ..request }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn each_request_is_answered_once_and_none_is_ever_at_two_workers(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = BrokerWorld::new();
        for step in steps {
            world.step(step);
            let gauges = world.broker.gauges(world.now);
            prop_assert!(gauges.busy + gauges.ready <= world.workers.len());
        }
        // In the end all requests are answered, even if no worker sends anything more.
        for _ in 0..260 {
            world.now += Duration::from_secs(1);
            let actions = world.broker.tick(world.now);
            world.done(actions);
        }
        prop_assert!(world.local.is_empty(), "{:?}", world.local);
        prop_assert!(world.named.is_empty(), "{:?}", world.named);
        let gauges = world.broker.gauges(world.now);
        prop_assert_eq!(gauges, Gauges { suspects: gauges.suspects, ..Gauges::default() });
        prop_assert!(world.broker.jobs.is_empty());
    }
}
