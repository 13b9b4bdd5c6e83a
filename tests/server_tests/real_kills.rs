//! Deliveries that are killed at random moments, on real servers: the processes by SIGKILL, the lock's connections by the
//! database's administrator, and processes that are stopped until long after their deadline. The test plays Postfix: it
//! tries each recipient again until exit 0. Afterwards every mailbox has every message once.
//!
//! `MAILDROP_TEST_KILLS=500` is a long run: that many kills on each engine, of each kind. `MAILDROP_TEST_SEED=…`
//! repeats what a run chose (when a process is where is not the seed's to choose).

use crate::support::database::{Connection, Engine};
use crate::support::env_if_there;
use crate::support::program::{Outcome, Running};
use crate::support::scene::Scene;
use maildrop_command::lock::{DEFAULT_NAMESPACE, LockName};
use mysql::prelude::Queryable;
use std::collections::BTreeMap;
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
    id: String,
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
                queue.push(Queued { recipient, id: id.clone(), message, delivered: false });
            }
        }
        self.report.messages += messages;
        self.report.recipients += queue.len();
        queue
    }

    /// Starts everything that is not delivered; some wait for the lock, some do not.
    fn start(&mut self, queue: &[Queued]) -> BTreeMap<usize, Running> {
        self.start_but(queue, &[])
    }

    /// The same, but for these.
    fn start_but(&mut self, queue: &[Queued], but: &[usize]) -> BTreeMap<usize, Running> {
        let mut running = BTreeMap::new();
        for (number, queued) in queue.iter().enumerate() {
            if queued.delivered || but.contains(&number) {
                continue;
            }
            let wait = if self.random.one_in(3) { "0s" } else { "30s" };
            running.insert(number, self.scene.start(queued.recipient, &["--lock-wait", wait], &queued.message));
            self.report.tries += 1;
        }
        running
    }

    /// How long a try takes with as many at once, to the last of them.
    fn span_of_a_try(&mut self) -> Duration {
        let mut queue = self.queue(MESSAGES);
        let running = self.start(&queue);
        let longest = self.finish(&mut queue, running, &[]);
        self.try_until_delivered(&mut queue);
        longest
    }

    /// A random moment within `span` for one in so many of these.
    fn moments(&mut self, numbers: impl Iterator<Item = usize>, one_in: u64, span: Duration) -> Moments {
        let chosen: Vec<usize> = numbers.filter(|_| self.random.one_in(one_in)).collect();
        let mut moments: Vec<_> = chosen.into_iter().map(|number| (self.random.below(span), number)).collect();
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

/// How many faults of a kind.
fn faults(by_default: usize) -> usize {
    env_if_there("MAILDROP_TEST_KILLS")
        .map_or(by_default, |kills| kills.parse().expect("MAILDROP_TEST_KILLS is a number"))
}

fn processes_are_killed_at_random_moments(engine: Engine) {
    let mut run = Run::new(engine, |_| {});
    let span = run.span_of_a_try();
    while run.report.faults < faults(50) {
        let mut queue = run.queue(MESSAGES);
        // The first try of each is killed, and the second of some.
        for one_in in [1, 2] {
            let mut running = run.start(&queue);
            let struck = run.moments(running.keys().copied(), one_in, span);
            struck.each(|number| running.get_mut(&number).unwrap().strike());
            run.finish(&mut queue, running, &struck.numbers());
            run.settle();
        }
        run.try_until_delivered(&mut queue);
    }
    run.count("SIGKILL");
}

fn the_locks_connection_is_ended_at_random_moments(engine: Engine) {
    let mut run = Run::new(engine, |_| {});
    let span = run.span_of_a_try();
    let mut administrator = run.scene.session();
    while run.report.faults < faults(25) {
        let mut queue = run.queue(MESSAGES);
        for _ in 0..2 {
            let running = run.start(&queue);
            let ended = run.moments(running.keys().copied(), 1, span);
            ended.each(|number| {
                let message_id = run.scene.message_id(&queue[number].id);
                let mut holder = || lock_holder(&mut administrator, &message_id);
                // Not all the same moment of holding it: as long as the record takes on a busy machine.
                let soon = Instant::now() + span / 4;
                while holder().is_none() && Instant::now() < soon {
                    std::thread::sleep(Duration::from_millis(3));
                }
                std::thread::sleep(run.random.below(span / 10));
                let ended = holder().is_some_and(|session| end_session(&mut administrator, &session));
                *(if ended { &mut run.report.faults } else { &mut run.report.untouched }) += 1;
            });
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
    let mut administrator = run.scene.session();
    while run.report.faults < faults(8) {
        let mut queue = run.queue(MESSAGES);
        let running = run.start(&queue);
        let stopped = run.moments(running.keys().copied(), 2, span);
        stopped.each(|number| running[&number].stop());
        // They are held up with whatever they hold, the lock perhaps. The server or a firewall takes it from some.
        for queued in queue.iter().step_by(RECIPIENTS.len()) {
            if run.random.one_in(2) {
                if let Some(session) = lock_holder(&mut administrator, &run.scene.message_id(&queued.id)) {
                    end_session(&mut administrator, &session);
                }
            }
        }
        // The others end, and are tried again, while those are stopped.
        let (held_up, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            running.into_iter().partition(|(number, _)| stopped.numbers().contains(number));
        run.finish(&mut queue, others, &[]);
        std::thread::sleep(Duration::from_secs(2));
        let others = run.start_but(&queue, &stopped.numbers());
        run.finish(&mut queue, others, &[]);
        for (_, delivery) in &held_up {
            delivery.go_on();
        }
        for (number, delivery) in held_up {
            let outcome = delivery.end();
            *(if outcome.took > Duration::from_secs(2) {
                &mut run.report.faults
            } else {
                &mut run.report.untouched
            }) += 1;
            run.ended(&mut queue[number], &outcome);
        }
        run.try_until_delivered(&mut queue);
    }
    run.count("SIGSTOP");
}

/// The database's session that holds the lock of a message.
fn lock_holder(administrator: &mut Connection, message_id: &str) -> Option<String> {
    let name = LockName::new(DEFAULT_NAMESPACE, message_id.as_bytes());
    let question = match administrator {
        Connection::Postgres(_) => format!(
            "SELECT pid::text FROM pg_locks WHERE locktype = 'advisory' AND granted \
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
             AND (classid::bigint << 32) | objid::bigint = {}",
            name.postgres_key()
        ),
        Connection::Mysql(_) => format!("SELECT CAST(IS_USED_LOCK('{}') AS char)", name.mysql_name()),
    };
    administrator.texts(&question).pop()
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
