//! Deliveries that are killed at random moments, on real servers: the processes by SIGKILL, the lock's connections by the
//! database's administrator, and processes that are stopped until long after their deadline. The test plays Postfix: it
//! tries each recipient again until exit 0. Afterwards every mailbox has every message once.
//!
//! `MAILDROP_TEST_KILLS=500` is a long run: ten times as many of each kind, on each engine. `MAILDROP_TEST_SEED=…` chooses
//! again what a run chose; where a process is by then is not the seed's to choose.

use crate::support::database::{Connection, Engine};
use crate::support::env_if_there;
use crate::support::program::{Outcome, Running};
use crate::support::scene::Scene;
use maildrop_command::lock::{DEFAULT_NAMESPACE, LockName};
use mysql::prelude::Queryable;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

on_each_engine!(
    processes_are_killed_at_random_moments,
    the_locks_connection_is_ended_at_random_moments,
    processes_are_stopped_until_after_their_deadline,
);

const RECIPIENTS: [&str; 3] = ["scuba", "doug", "maria"];

/// How many messages are under way at once.
const MESSAGES: usize = 6;

/// Where Dovecot has done what a killed process had sent it. (In earnest that takes less than `imap.settle`; the ledger
/// is told that ten minutes have passed.)
const DONE_WITHIN: Duration = Duration::from_millis(300);

/// xorshift64*.
struct Random(u64);

impl Random {
    fn seeded() -> Self {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = env_if_there("MAILDROP_TEST_SEED").map_or_else(now, |seed| seed.parse().expect("a number"));
        println!("MAILDROP_TEST_SEED={seed}");
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, limit: Duration) -> Duration {
        Duration::from_nanos(self.next() % (limit.as_nanos() as u64).max(1))
    }

    fn one_in(&mut self, number: u64) -> bool {
        self.next().is_multiple_of(number)
    }
}

/// What one engine's run came to.
#[derive(Debug, Default)]
struct Report {
    messages: usize,
    recipients: usize,
    tries: usize,
    faults: usize,
    /// Tries whose fault came too late, or found nobody.
    untouched: usize,
    /// Copies that were found, and not appended again.
    adopted: usize,
    /// Copies that were taken out again.
    taken_out: usize,
}

/// One message for one recipient, until it is delivered: what Postfix has in its queue.
struct Queued {
    recipient: &'static str,
    message: String,
    delivered: bool,
}

struct Run {
    scene: Scene,
    random: Random,
    report: Report,
    sent: Vec<String>,
    time_passes_as_it_does: bool,
}

impl Run {
    fn new(engine: Engine, change: impl FnOnce(&mut Scene)) -> Self {
        let mut scene = Scene::with(engine, &["lisa", "scuba", "doug", "maria"]);
        change(&mut scene);
        Self {
            scene,
            random: Random::seeded(),
            report: Report::default(),
            sent: Vec::new(),
            time_passes_as_it_does: false,
        }
    }

    /// New messages, each for every recipient.
    fn queue(&mut self, messages: usize) -> Vec<Queued> {
        let mut queue = Vec::new();
        for _ in 0..messages {
            let id = format!("m{}", self.sent.len());
            self.sent.push(id.clone());
            for recipient in RECIPIENTS {
                let message = self.scene.message(&id);
                queue.push(Queued { recipient, message, delivered: false });
            }
        }
        self.report.messages += messages;
        self.report.recipients += queue.len();
        queue
    }

    /// Starts everything that is not delivered; some wait for the lock, some do not.
    fn start(&mut self, queue: &[Queued]) -> BTreeMap<usize, Running> {
        self.start_but(queue, &BTreeMap::new())
    }

    /// The same, but for these.
    fn start_but(&mut self, queue: &[Queued], but: &BTreeMap<usize, Running>) -> BTreeMap<usize, Running> {
        let mut running = BTreeMap::new();
        for (number, queued) in queue.iter().enumerate() {
            if queued.delivered || but.contains_key(&number) {
                continue;
            }
            let wait = if self.random.one_in(3) { "0s" } else { "30s" };
            running.insert(number, self.scene.start(queued.recipient, &["--lock-wait", wait], &queued.message));
            self.report.tries += 1;
        }
        running
    }

    /// How long a try takes with as many at once, to the last of them. The first is slow, with everything still cold.
    fn span_of_a_try(&mut self) -> Duration {
        let mut shortest = Duration::MAX;
        for _ in 0..2 {
            let mut queue = self.queue(MESSAGES);
            let running = self.start(&queue);
            shortest = shortest.min(self.finish(&mut queue, running, &[]));
            self.try_until_delivered(&mut queue);
        }
        shortest
    }

    /// Lies in wait for whoever gets a lock, and strikes two in three of them a random moment later, within `span`; until
    /// all have ended.
    fn hunt(
        &mut self,
        running: &mut BTreeMap<usize, Running>,
        span: Duration,
        mut strike: impl FnMut(&mut Connection, &mut BTreeMap<usize, Running>, &str),
    ) {
        let mut administrator = self.scene.session();
        let names = self.sent.iter().rev().take(MESSAGES).map(|id| self.scene.message_id(id));
        let holders = holders_of(self.scene.database.engine, names);
        let (mut seen, mut due) = (BTreeSet::new(), Vec::new());
        while running.values_mut().any(|delivery| !delivery.has_ended()) {
            for session in administrator.texts(&holders) {
                if seen.insert(session.clone()) && !self.random.one_in(3) {
                    due.push((Instant::now() + self.random.below(span), session));
                }
            }
            due.retain(|(moment, session)| {
                let later = *moment > Instant::now();
                if !later {
                    strike(&mut administrator, running, session);
                }
                later
            });
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A random moment within `span` for each of these.
    fn moments(&mut self, numbers: impl Iterator<Item = usize>, span: Duration) -> Moments {
        let mut moments: Vec<_> = numbers.map(|number| (self.random.below(span), number)).collect();
        moments.sort();
        Moments(moments)
    }

    /// How a try ended: by itself, with 0 or 75 and one line; or killed.
    fn ended(&mut self, queued: &mut Queued, outcome: &Outcome) {
        self.report.adopted += outcome.line.matches("adopted").count();
        match outcome.exit {
            None => {}
            Some(0) => {
                outcome.delivered();
                queued.delivered = true;
            }
            _ => {
                outcome.deferred("4.");
            }
        }
    }

    /// Waits for the end of everything, of which some were struck; says how long it took.
    fn finish(&mut self, queue: &mut [Queued], running: BTreeMap<usize, Running>, struck: &[usize]) -> Duration {
        let mut longest = Duration::ZERO;
        for (number, delivery) in running {
            let outcome = delivery.end();
            longest = longest.max(outcome.took);
            match (struck.contains(&number), outcome.exit) {
                (true, None) => self.report.faults += 1,
                (true, Some(_)) => self.report.untouched += 1,
                (false, exit) => assert!(exit.is_some(), "nobody killed it: {outcome:?}"),
            }
            self.ended(&mut queue[number], &outcome);
        }
        longest
    }

    /// Postfix's later tries, with nothing in their way.
    fn try_until_delivered(&mut self, queue: &mut [Queued]) {
        for tries in 0.. {
            if queue.iter().all(|queued| queued.delivered) {
                break;
            }
            assert!(tries < 60, "in vain: {:?}", self.report);
            self.settle();
            let running = self.start(queue);
            self.finish(queue, running, &[]);
        }
    }

    /// Nobody is at work; ten minutes pass.
    fn settle(&mut self) {
        std::thread::sleep(DONE_WITHIN);
        if !self.time_passes_as_it_does {
            self.scene.ten_minutes_pass();
        }
    }

    /// Counts everything, prints the report, and fails where a copy is missing or there twice.
    fn count(mut self, kind: &str) {
        let (mut lost, mut twice) = (Vec::new(), Vec::new());
        let mut mailboxes: Vec<_> = RECIPIENTS.map(|name| (name, self.scene.inbox(name))).into();
        mailboxes.push(("lisa", self.scene.sent("lisa")));
        for (name, mailbox) in &mailboxes {
            let mut copies: BTreeMap<String, usize> = BTreeMap::new();
            for copy in mailbox {
                *copies.entry(copy.field("Message-ID")).or_default() += 1;
            }
            for id in &self.sent {
                match copies.remove(&self.scene.message_id(id)).unwrap_or_default() {
                    0 => lost.push(format!("{name}: {id}")),
                    1 => {}
                    times => twice.push(format!("{name}: {id}, {times} times")),
                }
            }
            assert!(copies.is_empty(), "{name} has something else: {copies:?}");
        }
        self.report.taken_out = self.scene.log().matches("took out a copy that was there twice").count();
        let engine = self.scene.database.engine;
        println!("{engine:?}, {kind}: {:?}, lost {}, duplicates {}", self.report, lost.len(), twice.len());
        assert!(lost.is_empty() && twice.is_empty(), "lost: {lost:?}; there twice: {twice:?}");

        let (messages, copies) = (self.sent.len() as i64, (self.sent.len() * (RECIPIENTS.len() + 1)) as i64);
        let database = &mut self.scene.database;
        assert_eq!(database.count("SELECT count(*) FROM messages"), messages);
        assert_eq!(database.count("SELECT count(*) FROM copies"), copies);
        assert_eq!(database.count("SELECT count(*) FROM copies WHERE state = 'delivered'"), copies);
        assert_eq!(database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
        // Each row says where its copy is.
        let uids: usize = mailboxes.iter().map(|(_, mailbox)| mailbox.len()).sum();
        assert_eq!(uids as i64, copies);
    }
}

/// How many faults of a kind, of which there are `by_default` for 50 kills.
fn faults(by_default: usize) -> usize {
    let kills = env_if_there("MAILDROP_TEST_KILLS").map_or(50, |kills| kills.parse().expect("a number"));
    by_default * kills / 50
}

/// The first try of each at any moment of it; the second while it holds the lock, where the worst moments are.
fn processes_are_killed_at_random_moments(engine: Engine) {
    let mut run = Run::new(engine, |_| {});
    let mut span = run.span_of_a_try();
    while run.report.faults < faults(50) {
        let mut queue = run.queue(MESSAGES);
        let mut running = run.start(&queue);
        let moments = run.moments(running.keys().copied(), span);
        moments.each(|number| running.get_mut(&number).unwrap().strike());
        let before = run.report.faults;
        run.finish(&mut queue, running, &moments.numbers());
        // The machine has become faster or slower: one in three may be done before its moment, no more.
        let struck = run.report.faults - before;
        span = if struck * 3 < queue.len() * 2 { span * 2 / 3 } else { span * 5 / 4 };
        run.settle();

        let (mut running, mut struck) = (run.start(&queue), Vec::new());
        run.hunt(&mut running, span / 6, |administrator, running, session| {
            if let Some(number) = process_of(administrator, running, session) {
                running.get_mut(&number).unwrap().strike();
                struck.push(number);
            }
        });
        run.finish(&mut queue, running, &struck);
        run.try_until_delivered(&mut queue);
    }
    run.count("SIGKILL");
}

fn the_locks_connection_is_ended_at_random_moments(engine: Engine) {
    let mut run = Run::new(engine, |_| {});
    let span = run.span_of_a_try();
    while run.report.faults < faults(25) {
        let mut queue = run.queue(MESSAGES);
        for _ in 0..2 {
            let (mut running, mut ended) = (run.start(&queue), Vec::new());
            run.hunt(&mut running, span / 6, |administrator, _, session| {
                ended.push(end_session(administrator, session));
            });
            run.report.faults += ended.iter().filter(|ended| **ended).count();
            run.report.untouched += ended.iter().filter(|ended| !**ended).count();
            run.finish(&mut queue, running, &[]);
            run.settle();
        }
        run.try_until_delivered(&mut queue);
    }
    run.count("the lock's connection ended");
}

/// Time passes as it does: nobody tells the ledger otherwise.
fn processes_are_stopped_until_after_their_deadline(engine: Engine) {
    let mut run = Run::new(engine, |scene| {
        scene.configure(|settings| {
            settings.imap_more = "settle = \"3s\"\n".into();
            settings.more = "[delivery]\ndeadline = \"2s\"\n".into();
        });
    });
    run.time_passes_as_it_does = true;
    let span = run.span_of_a_try();
    while run.report.faults < faults(8) {
        let mut queue = run.queue(MESSAGES);
        let (mut running, mut held_up) = (run.start(&queue), BTreeMap::new());
        let coins = run.random.next();
        run.hunt(&mut running, span / 6, |administrator, running, session| {
            let Some(number) = process_of(administrator, running, session) else { return };
            let mut delivery = running.remove(&number).unwrap();
            if delivery.has_ended() {
                // Its session is not gone yet.
                running.insert(number, delivery);
                return;
            }
            delivery.stop();
            // It keeps the lock. Or the server, or a firewall, takes it away.
            if coins >> number & 1 == 0 {
                end_session(administrator, session);
            }
            held_up.insert(number, delivery);
        });
        // The others end, and are tried again, while those are stopped.
        run.finish(&mut queue, running, &[]);
        std::thread::sleep(Duration::from_secs(2));
        let others = run.start_but(&queue, &held_up);
        run.finish(&mut queue, others, &[]);
        for delivery in held_up.values() {
            delivery.go_on();
        }
        run.report.faults += held_up.len();
        run.finish(&mut queue, held_up, &[]);
        run.try_until_delivered(&mut queue);
    }
    run.count("SIGSTOP");
}

/// Which of these processes the database's session belongs to.
fn process_of(administrator: &mut Connection, running: &BTreeMap<usize, Running>, session: &str) -> Option<usize> {
    let pid = format!("SELECT concat(pid, '') FROM attempts WHERE session = {session} AND ended_at IS NULL");
    let pid = administrator.texts(&pid).pop()?;
    running.iter().find(|(_, delivery)| delivery.id().to_string() == pid).map(|(number, _)| *number)
}

/// Asks for the database's sessions that hold the locks of these messages.
fn holders_of(engine: Engine, message_ids: impl Iterator<Item = String>) -> String {
    let names = message_ids.map(|id| LockName::new(DEFAULT_NAMESPACE, id.as_bytes()));
    if engine.is_postgres() {
        let keys: Vec<String> = names.map(|name| name.postgres_key().to_string()).collect();
        format!(
            "SELECT pid::text FROM pg_locks WHERE locktype = 'advisory' AND granted \
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
             AND (classid::bigint << 32) | objid::bigint IN ({})",
            keys.join(", ")
        )
    } else {
        let each: Vec<String> =
            names.map(|name| format!("SELECT CAST(IS_USED_LOCK('{}') AS char)", name.mysql_name())).collect();
        each.join(" UNION ALL ")
    }
}

/// Ends a session; whether it was still there.
fn end_session(administrator: &mut Connection, session: &str) -> bool {
    match administrator {
        Connection::Postgres(_) => {
            administrator.texts(&format!("SELECT pg_terminate_backend({session})::text")).contains(&"true".to_owned())
        }
        Connection::Mysql(connection) => connection.query_drop(format!("KILL {session}")).is_ok(),
    }
}

/// When something happens to which of the tries, in their order.
struct Moments(Vec<(Duration, usize)>);

impl Moments {
    /// Waits for each, from now on.
    fn each(&self, mut happens: impl FnMut(usize)) {
        let began = Instant::now();
        for &(moment, number) in &self.0 {
            std::thread::sleep(moment.saturating_sub(began.elapsed()));
            happens(number);
        }
    }

    fn numbers(&self) -> Vec<usize> {
        self.0.iter().map(|&(_, number)| number).collect()
    }
}
