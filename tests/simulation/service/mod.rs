//! The service on two hosts: on each a front with its broker and its workers, whose deliveries are the simulation's
//! processes, and Postfix, which hands messages over by LMTP or by the program of pipe(8).
//!
//! The brokers and the sessions of LMTP are the real ones. Here is what is between them: who is connected with whom,
//! who hangs, and the time, which goes on where nobody can do anything before, or where a schedule has it so.

mod client;
mod front;
mod happenings;

use crate::choice::Choice;
use crate::mistake::End;
use crate::run::Trace;
use crate::scenario::{By, Left, Scenario};
use client::{Client, Stage};
use front::Front;
use maildrop_command::message::Message;
use maildrop_command::protocol::{DatabaseState, Header, Logins, Reply};
use maildrop_command::service::broker::state::{Action, ConnectionId, Event};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// After so many seconds a worker that is silent gets nothing new; and after so many it is given up.
const SILENT: u32 = 4;
const DEAD: u32 = 11;
/// By then everybody has been answered.
const LONGEST: u32 = 300;

/// What decides, and what is reported.
pub struct Around<'a> {
    pub choice: &'a mut Choice,
    pub left: &'a mut Left,
    pub trace: &'a mut Trace,
}

/// What comes of something at the service, for the schedule to do.
pub enum Effect {
    /// A worker begins a delivery.
    Begin { worker: usize, job: usize, recipients: Vec<usize>, cut: bool, message: Rc<Message> },
    /// The program that pipe(8) has started delivers by itself.
    Alone { job: usize, recipients: Vec<usize>, cut: bool, orphan: bool, message: Rc<Message> },
    /// Postfix hears what became of these recipients: whether each is delivered, or deferred.
    Replied { job: usize, delivered: Vec<(usize, bool)> },
    /// Postfix hears nothing, and tries again.
    Deferred { job: usize },
    /// A worker's process is killed.
    Kill { worker: usize },
}

/// A request that a front was given.
struct Asked {
    job: usize,
    cut: bool,
    message: Rc<Message>,
    /// Whether a worker has had it.
    given: bool,
    /// Whether its client delivers it by itself.
    alone: bool,
}

/// A worker: one process after the other.
struct Worker {
    host: usize,
    alive: bool,
    /// It hangs, and is silent.
    stopped: bool,
    connection: Option<ConnectionId>,
    work: Option<Work>,
}

/// The message that a worker delivers.
struct Work {
    connection: ConnectionId,
    /// Which front it is for.
    life: u64,
    address: Vec<u8>,
    id: Uuid,
    job: usize,
}

pub struct Service<'s> {
    scenario: &'s Scenario,
    began: Instant,
    now: Duration,
    fronts: Vec<Front>,
    workers: Vec<Worker>,
    asked: BTreeMap<Uuid, Asked>,
    /// By their jobs.
    clients: BTreeMap<usize, Client>,
    last_client: u128,
    effects: VecDeque<Effect>,
}

impl<'s> Service<'s> {
    pub fn new(scenario: &'s Scenario) -> Self {
        let began = Instant::now();
        let host = |job: &crate::scenario::Job| match job.by {
            By::Pipe => None,
            By::Lmtp(host) | By::Client(host) => Some(host),
        };
        let hosts: BTreeSet<usize> = scenario.jobs.iter().filter_map(host).collect();
        let hosts = hosts.last().map_or(0, |last| last + 1);
        let worker = |host| Worker { host, alive: false, stopped: false, connection: None, work: None };
        Self {
            scenario,
            began,
            now: Duration::ZERO,
            fronts: (0..hosts).map(|_| Front::new(scenario.mistake, scenario.max_per_recipient, began)).collect(),
            workers: (0..hosts).flat_map(|host| (0..scenario.workers).map(move |_| worker(host))).collect(),
            asked: BTreeMap::new(),
            clients: BTreeMap::new(),
            last_client: 0,
            effects: VecDeque::new(),
        }
    }

    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    pub fn is_stopped(&self, worker: usize) -> bool {
        self.workers[worker].stopped
    }

    /// The clients that have something to do.
    pub fn able_clients(&self) -> impl Iterator<Item = usize> {
        let able = self.clients.iter().filter(|(_, client)| matches!(client.stage, Stage::HasReceipt(_)));
        able.map(|(job, _)| *job)
    }

    pub fn hash_state(&self, hash: &mut impl Hasher) {
        (self.now, self.last_client).hash(hash);
        self.fronts.iter().for_each(|front| front.hash_state(hash));
        for worker in &self.workers {
            (worker.alive, worker.stopped, worker.connection).hash(hash);
            let work = worker.work.as_ref();
            work.map(|work| (work.connection, work.life, &work.address, work.job)).hash(hash);
        }
        for (job, client) in &self.clients {
            job.hash(hash);
            client.hash_state(hash);
        }
    }

    /// All is over: no front has a message in progress.
    pub fn ended(&self) -> Result<(), String> {
        let idle = self.fronts.iter().all(Front::is_idle) && self.clients.is_empty();
        if idle { Ok(()) } else { Err("a front keeps what nobody waits for".into()) }
    }

    /// The master starts what is not there, and each process without a connection makes one.
    pub fn start_all(&mut self, around: &mut Around<'_>) -> Result<(), String> {
        for front in self.fronts.iter_mut().filter(|front| !front.up) {
            front.start(self.began + self.now);
        }
        for worker in 0..self.workers.len() {
            self.workers[worker].alive = true;
            self.connect(worker, around)?;
        }
        Ok(())
    }

    /// READY means that another message may come: a worker that still delivers one waits with it.
    fn connect(&mut self, which: usize, around: &mut Around<'_>) -> Result<(), String> {
        let worker = &mut self.workers[which];
        let front = &mut self.fronts[worker.host];
        if !worker.alive || worker.stopped || worker.work.is_some() || worker.connection.is_some() || !front.up {
            return Ok(());
        }
        let (connection, host) = (ConnectionId(front.id()), worker.host);
        worker.connection = Some(connection);
        // Of the first host the system tells which process it is; on the others a broker can but close the connection.
        let pid = (host == 0).then(|| i32::try_from(which).expect("few"));
        self.event(host, Event::WorkerReady { connection, name: b"worker".to_vec(), pid }, around)
    }

    fn event(&mut self, host: usize, event: Event, around: &mut Around<'_>) -> Result<(), String> {
        let actions = self.fronts[host].handle(event, self.began + self.now, self.began);
        self.act(host, actions, around)
    }

    fn act(&mut self, host: usize, actions: Vec<Action>, around: &mut Around<'_>) -> Result<(), String> {
        for action in actions {
            match action {
                Action::Beat { .. } => {}
                Action::Work { connection, address, body } => self.work(host, connection, address, &body, around)?,
                Action::SendToClient { connection, body } => self.tell(host, connection, &body, around)?,
                Action::Answer { id, verdicts } => {
                    if let Some((job, delivered)) = self.fronts[host].answer(id, verdicts)? {
                        self.effects.push_back(Effect::Replied { job, delivered });
                    }
                }
                Action::EndWorker { connection, pid } => {
                    around.trace.say(|| format!("the front of host {host} ends the worker at {connection:?}"));
                    let which = self.workers.iter().position(|it| it.host == host && it.connection == Some(connection));
                    match (which, pid) {
                        (Some(worker), Some(_)) => self.effects.push_back(Effect::Kill { worker }),
                        (Some(worker), None) => self.workers[worker].connection = None,
                        (None, _) => {}
                    }
                }
                Action::CloseWorker { .. } => {
                    return Err("a worker that stays is let go".into());
                }
                Action::CloseClient { connection } => self.client_is_sent_away(host, connection, around)?,
            }
        }
        Ok(())
    }

    /// A front hands a message to a worker.
    fn work(
        &mut self,
        host: usize,
        connection: ConnectionId,
        address: Vec<u8>,
        body: &[u8],
        around: &mut Around<'_>,
    ) -> Result<(), String> {
        let at = |worker: &Worker| worker.host == host && worker.connection == Some(connection);
        let which = self.workers.iter().position(at).ok_or("a message is handed to a worker that is not there")?;
        let Ok((Header::Deliver(request), bytes)) = Header::read(body) else { return Err("no request".into()) };
        let asked = self.asked.get_mut(&request.id).ok_or("a request that nobody has made")?;
        let job = asked.job;
        around.trace.say(|| format!("job {job} is handed to worker {which} (of host {host})"));
        if self.workers[which].work.is_some() {
            return Err("a worker that still delivers a message is given another one".into());
        }
        if std::mem::replace(&mut asked.given, true) {
            return Err("a message is handed to a second worker".into());
        }
        if asked.alone {
            return Err("a worker is handed what its client delivers by itself".into());
        }
        let message = Message::receive(bytes.to_vec()).map_err(|error| error.to_string())?;
        if message.identity() != asked.message.identity() {
            return Err("a message has another identity at the worker than it had at Postfix".into());
        }
        let users = &self.scenario.jobs[job].recipients;
        let place = |address: &str| users.iter().position(|user| name(user) == address);
        let recipients: Option<Vec<usize>> = request.recipients.iter().map(|it| place(&it.address)).collect();
        let recipients = recipients.ok_or("a recipient whom nobody has named")?;
        let (cut, message, id) = (asked.cut, Rc::new(message), request.id);
        let life = self.fronts[host].lives;
        self.workers[which].work = Some(Work { connection, life, address, id, job });
        self.effects.push_back(Effect::Begin { worker: which, job, recipients, cut, message });
        Ok(())
    }

    /// A worker's delivery has ended: it answers by the connection that the message came by, or, where that is lost,
    /// not at all.
    pub fn finished(&mut self, which: usize, ends: &[End], around: &mut Around<'_>) -> Result<(), String> {
        let worker = &mut self.workers[which];
        let Some(Work { connection, life, address, id, .. }) = worker.work.take() else { return Ok(()) };
        let host = worker.host;
        let results = ends.iter().map(|end| end.verdict.clone()).collect();
        let reply = Header::Reply(Reply {
            id,
            results,
            leaving: false,
            logins: Logins::default(),
            database: DatabaseState::NotAsked,
        });
        let body = reply.frame(b"").map_err(|error| error.to_string())?;
        // Where its broker has cut it off, what it had written before it noticed may be read after all.
        if self.fronts[host].up && self.fronts[host].lives == life {
            self.event(host, Event::WorkerAnswered { connection, address, body }, around)?;
        }
        self.connect(which, around)
    }

    /// A worker's process is gone.
    pub fn worker_died(&mut self, which: usize, around: &mut Around<'_>) -> Result<(), String> {
        let worker = &mut self.workers[which];
        (worker.alive, worker.stopped, worker.work) = (false, false, None);
        let host = worker.host;
        match worker.connection.take() {
            Some(connection) if self.fronts[host].up => self.event(host, Event::WorkerGone { connection }, around),
            _ => Ok(()),
        }
    }

    /// Postfix hands a message over by LMTP.
    pub fn lmtp(
        &mut self,
        host: usize,
        job: usize,
        recipients: Vec<usize>,
        message: &Rc<Message>,
        around: &mut Around<'_>,
    ) -> Result<(), String> {
        let front = &mut self.fronts[host];
        if !front.up {
            around.trace.say(|| format!("lmtp(8) of job {job}: no front"));
            self.effects.push_back(Effect::Deferred { job });
            return Ok(());
        }
        let users = &self.scenario.jobs[job].recipients;
        let addresses: Vec<String> = recipients.iter().map(|&place| name(users[place])).collect();
        around.trace.say(|| format!("lmtp(8) of job {job}: to {addresses:?}"));
        let event = front.lmtp(job, recipients, &addresses, message.as_received())?;
        if let Event::Submitted { request, .. } = &event {
            let (message, cut) = (Rc::clone(message), false);
            self.asked.insert(request.id, Asked { job, cut, message, given: false, alone: false });
        }
        self.event(host, event, around)
    }

    /// A front dies. Its clients and workers notice.
    fn front_dies(&mut self, host: usize, around: &mut Around<'_>) -> Result<(), String> {
        around.trace.say(|| format!("the front of host {host} dies"));
        let jobs: Vec<usize> = self.fronts[host].sessions.values().map(|lmtp| lmtp.job).collect();
        self.effects.extend(jobs.into_iter().map(|job| Effect::Deferred { job }));
        self.fronts[host].die();
        for worker in self.workers.iter_mut().filter(|worker| worker.host == host) {
            worker.connection = None;
        }
        let clients = self.clients.iter().filter(|(_, client)| client.host == host);
        for job in clients.map(|(job, _)| *job).collect::<Vec<_>>() {
            self.client_is_cut_off(job, around)?;
        }
        Ok(())
    }

    fn continues(&mut self, which: usize, around: &mut Around<'_>) -> Result<(), String> {
        around.trace.say(|| format!("worker {which} goes on"));
        self.workers[which].stopped = false;
        self.connect(which, around)
    }

    /// Time passes: each process that does not hang beats each second.
    fn pass(&mut self, seconds: u32, around: &mut Around<'_>) -> Result<(), String> {
        around.trace.say(|| format!("{seconds} s pass"));
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            self.start_all(around)?;
            for worker in 0..self.workers.len() {
                let Worker { host, stopped, connection, .. } = self.workers[worker];
                if let Some(connection) = connection.filter(|_| !stopped) {
                    self.event(host, Event::WorkerBeat { connection }, around)?;
                }
            }
            self.clients_lose_patience(around)?;
            for host in 0..self.fronts.len() {
                let actions = self.fronts[host].tick(self.began + self.now, self.began);
                self.act(host, actions, around)?;
            }
        }
        Ok(())
    }

    /// Nobody can go on. Whether there is somebody who waits for something here, which has happened now.
    pub fn waits(&mut self, around: &mut Around<'_>) -> Result<bool, String> {
        if let Some(which) = self.workers.iter().position(|worker| worker.stopped) {
            // One that is cut off by its broker goes on in the end; one that can be killed may be.
            if self.workers[which].connection.is_some() && around.choice.of(2) == 1 {
                self.pass(DEAD, around)?;
            } else {
                self.continues(which, around)?;
            }
            return Ok(true);
        }
        let late = (0..self.fronts.len()).find_map(|host| Some((host, self.late_words(host).next()?)));
        let awaited = self.clients.values().any(|client| client.stage == Stage::AwaitsReceipt);
        if let Some((host, connection)) = late {
            if awaited && around.choice.of(2) == 1 {
                self.pass(SILENT, around)?;
            } else {
                self.next_word_arrives(host, connection, around)?;
            }
            return Ok(true);
        }
        let is_busy = |service: &Self| {
            !service.clients.is_empty() || service.fronts.iter().any(|front| !front.sessions.is_empty())
        };
        if !is_busy(self) {
            return Ok(false);
        }
        for _ in 0..LONGEST {
            self.pass(1, around)?;
            if !self.effects.is_empty() || self.able_clients().next().is_some() || !is_busy(self) {
                return Ok(true);
            }
        }
        Err("somebody waits for a front, and is not answered".into())
    }

    /// Everybody waits for a retry, for long.
    pub fn settled(&mut self, around: &mut Around<'_>) -> Result<(), String> {
        self.now += Duration::from_millis(crate::world::SETTLE.unsigned_abs());
        self.pass(1, around)
    }
}

/// A user's address.
fn name(user: &str) -> String {
    format!("{user}@mail.axial.net")
}
