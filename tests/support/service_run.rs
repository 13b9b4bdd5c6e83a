//! The service under load, with faults in its way: mail by LMTP, by `--via` and by the file queue, without a pause. The test plays
//! Postfix: it keeps what was not answered 250, or 0, and tries it again. Afterwards it counts: copies, rows, and what is left.
//!
//! `MAILDROP_TEST_KILLS=10000` is a long run: so many faults of each kind, on each engine. `MAILDROP_TEST_SECONDS=600` ends it
//! after that time, however many there were.

use super::queue_of_tests::{Counts, QueueOfTests};
use crate::support::database::Engine;
use crate::support::env_if_there;
use crate::support::event_rows::each_change_was_reported_once;
use crate::support::lmtp;
use crate::support::program::{Running, program, wait_until};
use crate::support::run::{Random, Report};
use crate::support::service::Service;
use crate::support::site_fixture::{LISA, Scene};
use maildrop_command::queue::{Entry, Queue};
use std::collections::VecDeque;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const RECIPIENTS: [&str; 3] = ["scuba", "doug", "maria"];
/// So many messages of each transport are under way at once, those that wait for their next try too.
const AT_ONCE: usize = 12;
/// How long after a try the next one comes, at least.
const PAUSE: Duration = Duration::from_millis(500);
/// So that the deliveries that a fault has ended are settled while the run goes on.
const DEADLINE: &str = "20s";
const SETTLE: &str = "24s";

/// The engines of a run: one in the test suite, all in a long run.
pub fn engines() -> &'static [Engine] {
    if long().is_some() { &[Engine::Postgres17, Engine::Mysql9, Engine::Mariadb118] } else { &[Engine::Postgres17] }
}

fn long() -> Option<usize> {
    env_if_there("MAILDROP_TEST_KILLS").map(|faults| faults.parse().expect("a number"))
}

/// Runs this on each engine of the run, all at once.
pub fn on_the_engines(scenario: impl Fn(Engine) + Sync) {
    std::thread::scope(|scope| {
        for &engine in engines() {
            let scenario = &scenario;
            scope.spawn(move || scenario(engine));
        }
    });
}

/// A transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    /// All recipients in one transaction.
    Lmtp,
    /// A process for each recipient.
    Via,
    /// A file in the queue, for all recipients.
    Queue,
}

/// Mail that has been accepted by nobody yet.
struct Waiting {
    transport: Transport,
    id: String,
    to: Vec<&'static str>,
    /// When it is tried.
    due: Instant,
}

/// What the clients share.
#[derive(Default)]
struct Load {
    waiting: Mutex<VecDeque<Waiting>>,
    sent: Mutex<Vec<String>>,
    /// Nothing new any more.
    is_over: AtomicBool,
    /// Clients end.
    stop: AtomicBool,
    under_way: AtomicUsize,
    tries: AtomicUsize,
    accepted: AtomicUsize,
    deferred: AtomicUsize,
    adopted: AtomicUsize,
    refused_connections: AtomicUsize,
}

impl Load {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap()
    }

    /// What is due by this transport, or something new.
    fn next(&self, transport: Transport) -> Option<Waiting> {
        let mut waiting = self.waiting();
        let now = Instant::now();
        if let Some(at) = waiting.iter().position(|one| one.transport == transport && one.due <= now) {
            self.under_way.fetch_add(1, Ordering::SeqCst);
            return waiting.remove(at);
        }
        let many = waiting.iter().filter(|one| one.transport == transport).count() >= AT_ONCE;
        if many || self.is_over.load(Ordering::SeqCst) {
            return None;
        }
        let mut sent = self.sent.lock().unwrap();
        let id = format!("m{}", sent.len());
        sent.push(id.clone());
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let one = |to: &[&'static str]| Waiting { transport, id: id.clone(), to: to.into(), due: now };
        if transport != Transport::Via {
            return Some(one(&RECIPIENTS));
        }
        // The others at the same time, by other clients.
        waiting.extend(RECIPIENTS[1..].iter().map(|to| one(&[to])));
        Some(one(&RECIPIENTS[..1]))
    }

    /// It was tried: these recipients have it.
    fn tried(&self, mut one: Waiting, delivered: &[&str]) {
        self.tries.fetch_add(one.to.len(), Ordering::SeqCst);
        self.accepted.fetch_add(delivered.len(), Ordering::SeqCst);
        one.to.retain(|to| !delivered.contains(to));
        if !one.to.is_empty() {
            self.deferred.fetch_add(one.to.len(), Ordering::SeqCst);
            one.due = Instant::now() + PAUSE;
            self.waiting().push_back(one);
        }
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }

    fn is_done(&self) -> bool {
        self.waiting().is_empty() && self.under_way.load(Ordering::SeqCst) == 0
    }
}

/// A site with a service under load.
pub struct ServiceRun {
    pub scene: Scene,
    pub random: Random,
    pub report: Report,
    service: Option<Service>,
    load: Arc<Load>,
    began: Instant,
}

impl ServiceRun {
    /// More lines of `[service]`.
    pub fn new(mut scene: Scene, serve: &str) -> Self {
        for name in RECIPIENTS.into_iter().chain(["lisa"]) {
            scene.member(name);
        }
        scene.database.subscribe();
        scene.configure(|settings| {
            settings.imap_more = format!("append_grace = \"{SETTLE}\"\n");
            settings.more += &format!("[delivery]\ndeadline = \"{DEADLINE}\"\n[lock]\nwait = \"5s\"\n");
        });
        let serve = format!("workers = 2\nrunners = 1\nrestarts = 1000\n{serve}");
        let service = Service::start_with(&mut scene, &serve, &[]);
        let (random, report, load) = (Random::seeded(), Report::default(), Arc::default());
        Self { scene, random, report, service: Some(service), load, began: Instant::now() }
    }

    pub fn service(&mut self) -> &mut Service {
        self.service.as_mut().expect("it runs")
    }

    /// Whether there are more faults to come: so many in the test suite.
    pub fn goes_on(&self, by_default: usize) -> bool {
        let limit = env_if_there("MAILDROP_TEST_SECONDS").map(|limit| limit.parse().expect("a number"));
        let in_time = limit.is_none_or(|limit| self.began.elapsed() < Duration::from_secs(limit));
        // One of each, however long that takes.
        self.report.faults < by_default || in_time && self.report.faults < long().unwrap_or(by_default)
    }

    /// Starts the service in place of one that was killed.
    pub fn start_again(&mut self) {
        // The old one first: its end is waited for.
        self.service = None;
        self.service = Some(Service::start_again(&self.scene));
    }

    /// How many connections nobody took so far.
    pub fn refused(&self) -> usize {
        self.load.refused_connections.load(Ordering::SeqCst)
    }

    /// Waits until so many recipients more have their mail: it flows again.
    #[track_caller]
    pub fn wait_for_deliveries(&self, count: usize) {
        let accepted = || self.load.accepted.load(Ordering::SeqCst);
        let before = accepted();
        wait_until("mail flows", || accepted() >= before + count);
    }

    /// Has mail flow while `faults` happen, and then until all of it is delivered; counts it, and fails where a copy is missing or
    /// duplicated.
    pub fn under_load(mut self, kind: &str, faults: impl FnOnce(&mut Self)) {
        let load = Arc::clone(&self.load);
        let clients = Clients::of(&self.scene);
        std::thread::scope(|scope| {
            let at_the_end = StopAtTheEnd(&load);
            for transport in
                [Transport::Lmtp, Transport::Lmtp, Transport::Via, Transport::Via, Transport::Via, Transport::Queue]
            {
                let (clients, load) = (&clients, &load);
                scope.spawn(move || clients.deliver(transport, load));
            }
            faults(&mut self);
            load.is_over.store(true, Ordering::SeqCst);
            drop(at_the_end);
        });
        self.settle();
        load.stop.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let at_the_end = StopAtTheEnd(&load);
            for transport in [Transport::Lmtp, Transport::Via, Transport::Via, Transport::Queue] {
                let (clients, load) = (&clients, &load);
                scope.spawn(move || clients.deliver(transport, load));
            }
            wait_until("all is accepted", || load.is_done());
            drop(at_the_end);
        });
        let queue = clients.queue();
        // What was tried in vain would be tried again after a pause that doubles, up to an hour; and so each time.
        wait_until("the file queue is empty", || {
            let now = SystemTime::now();
            let after = now.duration_since(UNIX_EPOCH).unwrap().as_micros() as i64;
            let waits = |entry: &&Entry| entry.next_try.is_some_and(|at| at > after);
            for entry in queue.list().unwrap().iter().filter(waits) {
                // A runner may have taken it.
                if queue.hold(&entry.id).is_ok() {
                    queue.release(&entry.id, None, false, now).unwrap();
                }
            }
            queue.counts().unwrap() == Counts::default()
        });
        self.count(kind);
    }

    /// Nobody is at work, and ten minutes pass.
    fn settle(&mut self) {
        if let Some(service) = self.service.take() {
            service.end();
        }
        self.scene.wait_for_dovecot();
        self.scene.database.connect_again();
        self.scene.ten_minutes_pass();
        self.service = Some(Service::start_again(&self.scene));
    }

    fn count(mut self, kind: &str) {
        self.service.take().unwrap().end();
        let load = Arc::clone(&self.load);
        let sent = load.sent.lock().unwrap();
        let mut mailboxes: Vec<_> = RECIPIENTS.map(|name| (name, self.scene.inbox(name))).into();
        mailboxes.push(("lisa", self.scene.sent("lisa")));
        let Self { mut scene, mut report, .. } = self;
        for (name, mailbox) in &mailboxes {
            let wanted = sent.iter().map(|id| scene.message_id(id));
            report.compare(name, wanted, mailbox.iter().map(|copy| copy.field("Message-ID")));
        }
        let counted = |number: &AtomicUsize| number.load(Ordering::SeqCst);
        report.deliveries = sent.len() * RECIPIENTS.len();
        (report.tries, report.deferred) = (counted(&load.tries), counted(&load.deferred));
        let log = scene.log();
        report.adopted = log.matches(" adopted").count();
        report.taken_out = log.matches("removed a duplicate copy").count();
        report.tell(scene.database.engine, kind);

        let (messages, copies) = (sent.len() as i64, (sent.len() * (RECIPIENTS.len() + 1)) as i64);
        let database = &mut scene.database;
        assert_eq!(database.count("SELECT count(*) FROM messages"), messages);
        assert_eq!(database.count("SELECT count(*) FROM copies"), copies);
        assert_eq!(database.count("SELECT count(*) FROM copies WHERE state = 'delivered'"), copies);
        assert_eq!(database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
        each_change_was_reported_once(database);
    }
}

/// Clients end, even where the test fails first.
struct StopAtTheEnd<'a>(&'a Load);

impl Drop for StopAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

/// What all clients go by.
struct Clients {
    folder: String,
    /// A message whose id is `the-id`.
    template: String,
}

impl Clients {
    fn of(scene: &Scene) -> Self {
        Self { folder: scene.path(""), template: scene.message("the-id") }
    }

    fn path(&self, name: &str) -> String {
        format!("{}{name}", self.folder)
    }

    fn queue(&self) -> Queue {
        Queue::open(self.path("state/queue").as_ref()).unwrap()
    }

    fn deliver(&self, transport: Transport, load: &Load) {
        while !load.stop.load(Ordering::SeqCst) {
            // What is accepted is not delivered: the file queue is not to grow longer than a runner can take.
            let is_full = transport == Transport::Queue && self.queue().counts().unwrap().new >= AT_ONCE;
            let Some(one) = (if is_full { None } else { load.next(transport) }) else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            let message = self.template.replace("the-id", &one.id);
            let delivered = match transport {
                Transport::Lmtp => self.by_lmtp(&one, &message, load),
                Transport::Via => self.by_the_thin_client(&one, &message, load),
                Transport::Queue => self.by_the_file_queue(&one, &message),
            };
            load.tried(one, &delivered);
        }
    }

    fn by_lmtp(&self, one: &Waiting, message: &str, load: &Load) -> Vec<&'static str> {
        let to: Vec<String> = one.to.iter().map(|name| address(name)).collect();
        match lmtp::attempt(Path::new(&self.path("lmtp")), LISA, &to, message) {
            Ok(replies) => {
                let delivered = one.to.iter().zip(&replies).filter(|(_, reply)| is_delivered(reply));
                load.adopted
                    .fetch_add(replies.iter().filter(|reply| reply.contains("adopted")).count(), Ordering::SeqCst);
                delivered.map(|(to, _)| *to).collect()
            }
            Err(lmtp::Failed::Connecting) => {
                load.refused_connections.fetch_add(1, Ordering::SeqCst);
                Vec::new()
            }
            // No reply: a client without one keeps the message.
            Err(lmtp::Failed::Later) => Vec::new(),
        }
    }

    fn by_the_thin_client(&self, one: &Waiting, message: &str, load: &Load) -> Vec<&'static str> {
        let (config, socket) = (self.path("config.toml"), self.path("run/clients.sock"));
        let to = address(one.to[0]);
        let command = program(&[
            "--config",
            &config,
            "--recipient",
            &to,
            "--sender",
            LISA,
            "--via",
            &socket,
            "--lock-wait",
            "1s",
        ]);
        let mut running = Running::start(command, message.as_bytes());
        wait_until("the thin client ends", || running.has_ended());
        let exit = running.status().code();
        let (line, _) = running.outputs();
        assert!(matches!(exit, Some(0 | 75)), "{exit:?}: {line}");
        load.adopted.fetch_add(line.matches("adopted").count(), Ordering::SeqCst);
        if exit == Some(0) { one.to.clone() } else { Vec::new() }
    }

    /// Whether it is accepted.
    fn by_the_file_queue(&self, one: &Waiting, message: &str) -> Vec<&'static str> {
        let config = self.path("config.toml");
        let mut command = program(&["inject", "--sender", LISA, "--as-author", "--config", &config]);
        for name in &one.to {
            command.args(["--recipient", &address(name)]);
        }
        let file = self.path(&format!("{}.eml", one.id));
        std::fs::write(&file, message).unwrap();
        let output = command.arg(&file).stdin(Stdio::null()).output().unwrap();
        std::fs::remove_file(file).unwrap();
        let exit = output.status.code();
        assert!(matches!(exit, Some(0 | 75)), "{output:?}");
        if exit == Some(0) { one.to.clone() } else { Vec::new() }
    }
}

fn address(name: &str) -> String {
    format!("{name}@mail.axial.net")
}

/// Nothing bounces: neither a fault nor its end makes Postfix give up a message.
fn is_delivered(reply: &str) -> bool {
    assert!(reply.starts_with('2') || reply.starts_with('4'), "{reply}");
    reply.starts_with('2')
}
