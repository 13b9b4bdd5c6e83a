//! Deliveries by the hundred, with faults in their way. The test plays Postfix: it tries each recipient again until exit 0.
//! Afterwards it counts: copies, rows, and what is still in the queue.
//!
//! `MAILDROP_TEST_KILLS=500` is a long run: ten times as many faults of each kind, on each engine, and at least as many
//! deliveries. `MAILDROP_TEST_SEED=…` chooses again what a run chose; where a process is by then is not the seed's to choose.

use crate::support::database::Engine;
use crate::support::env_if_there;
use crate::support::event_rows::each_change_was_reported_once;
use crate::support::program::{Outcome, PATIENCE, Running};
use crate::support::site_fixture::Scene;
use maildrop_command::delivery::lock_of_message_id;
use maildrop_command::lock::DEFAULT_NAMESPACE;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const RECIPIENTS: [&str; 3] = ["scuba", "doug", "maria"];

/// How many messages are under way at once.
pub const MESSAGES: usize = 6;

/// xorshift64*.
pub struct Random(u64);

impl Random {
    pub fn seeded() -> Self {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = env_if_there("MAILDROP_TEST_SEED").map_or_else(now, |seed| seed.parse().expect("a number"));
        println!("MAILDROP_TEST_SEED={seed}");
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, limit: Duration) -> Duration {
        Duration::from_nanos(self.next() % (limit.as_nanos() as u64).max(1))
    }

    pub fn one_in(&mut self, number: u64) -> bool {
        self.next().is_multiple_of(number)
    }
}

/// What one engine's run came to.
#[derive(Debug, Default)]
pub struct Report {
    /// Messages times recipients.
    pub deliveries: usize,
    /// How often the program was started for them.
    pub tries: usize,
    pub faults: usize,
    /// Faults that came too late, or found nobody.
    pub missed: usize,
    /// Tries that exited 75.
    pub deferred: usize,
    /// Copies that were found, and not appended again.
    pub adopted: usize,
    /// Copies that were taken out again.
    pub taken_out: usize,
    /// Copies that are not where they belong.
    pub lost: Vec<String>,
    /// Copies that are there more than once.
    pub duplicates: Vec<String>,
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { deliveries, tries, faults, missed, deferred, adopted, taken_out, lost, duplicates } = self;
        write!(
            f,
            "deliveries {deliveries}, faults {faults}, lost {}, duplicates {} (tries {tries}, of which deferred {deferred}; \
             faults that hit nothing {missed}; copies adopted {adopted}, taken out {taken_out})",
            lost.len(),
            duplicates.len()
        )
    }
}

impl Report {
    /// Prints it, and fails if a copy is lost or duplicated. `tests/run` shows these lines at its end.
    pub fn tell(&self, engine: Engine, kind: &str) {
        let line = format!("{engine:?}, {kind}: {self}\n");
        note(&line);
        let Self { lost, duplicates, .. } = self;
        assert!(lost.is_empty() && duplicates.is_empty(), "{line}lost: {lost:?}; duplicated: {duplicates:?}");
    }

    /// Notes what is missing from a mailbox, and what is there more than once.
    pub fn compare(&mut self, name: &str, wanted: impl Iterator<Item = String>, there: impl Iterator<Item = String>) {
        let mut copies: BTreeMap<String, usize> = BTreeMap::new();
        for message_id in there {
            *copies.entry(message_id).or_default() += 1;
        }
        for message_id in wanted {
            match copies.remove(&message_id).unwrap_or_default() {
                0 => self.lost.push(format!("{name}: {message_id}")),
                1 => {}
                times => self.duplicates.push(format!("{name}: {message_id}, {times} times")),
            }
        }
        assert!(copies.is_empty(), "{name} has something else: {copies:?}");
    }
}

/// Lines of what `tests/run` shows at its end.
pub fn note(lines: &str) {
    print!("{lines}");
    if let Some(file) = std::env::var_os("MAILDROP_TEST_REPORT") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file).expect("the report opens");
        // In one piece, since other tests write as well.
        file.write_all(lines.as_bytes()).expect("the report can be written");
    }
}

/// One message for one recipient, until it is delivered: what Postfix has in its queue.
pub struct Queued {
    pub recipient: &'static str,
    pub message: String,
    pub delivered: bool,
}

pub struct Run {
    pub scene: Scene,
    pub random: Random,
    pub report: Report,
    pub sent: Vec<String>,
    pub time_passes_as_it_does: bool,
    /// A server that was cut off for a while: what a dead process had written to it may still be on its way.
    pub was_cut_off: Option<SocketAddr>,
    /// How long a delivery holds its lock, by those seen last.
    pub holding: Duration,
    /// The deadline that was set, and how long after it attempts are settled.
    limits: Option<(Duration, Option<Duration>)>,
}

impl Run {
    pub fn new(engine: Engine) -> Self {
        Self::in_scene(Scene::empty(engine))
    }

    /// The same, in a scene where nobody lives yet.
    pub fn in_scene(mut scene: Scene) -> Self {
        for name in RECIPIENTS.into_iter().chain(["lisa"]) {
            scene.member(name);
        }
        scene.database.subscribe();
        Self {
            scene,
            random: Random::seeded(),
            report: Report::default(),
            sent: Vec::new(),
            time_passes_as_it_does: false,
            was_cut_off: None,
            holding: Duration::from_millis(100),
            limits: None,
        }
    }

    pub fn a_lock_was_held_for(&mut self, time: Duration) {
        self.holding = (self.holding * 3 + time) / 4;
    }

    /// Whether it goes on: until there were so many faults (for 50 kills), and as many deliveries as there are to be kills.
    pub fn goes_on(&self, by_default: usize) -> bool {
        self.report.faults < faults(by_default) || self.report.deliveries < faults(50)
    }

    /// New messages, each for every recipient.
    pub fn queue(&mut self, messages: usize) -> Vec<Queued> {
        let mut queue = Vec::new();
        for _ in 0..messages {
            let id = format!("m{}", self.sent.len());
            self.sent.push(id.clone());
            for recipient in RECIPIENTS {
                let message = self.scene.message(&id);
                queue.push(Queued { recipient, message, delivered: false });
            }
        }
        self.report.deliveries += queue.len();
        queue
    }

    /// Starts everything that is not delivered; some wait for the lock, some do not.
    pub fn start(&mut self, queue: &[Queued]) -> BTreeMap<usize, Running> {
        self.start_but(queue, &BTreeMap::new())
    }

    /// The same, but for these.
    pub fn start_but(&mut self, queue: &[Queued], but: &BTreeMap<usize, Running>) -> BTreeMap<usize, Running> {
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
    pub fn span_of_a_try(&mut self) -> Duration {
        let mut shortest = Duration::MAX;
        for _ in 0..2 {
            let mut queue = self.queue(MESSAGES);
            let running = self.start(&queue);
            shortest = shortest.min(self.finish(&mut queue, running, &[]));
            self.try_until_delivered(&mut queue);
        }
        shortest
    }

    /// Gives the tries a deadline that they keep where nothing holds them up, three times what they take as things are; at
    /// least this long. Attempts are settled so long after it, or ten minutes.
    pub fn set_deadline(&mut self, at_least: Duration, span: Duration, settle_after: Option<Duration>) -> Duration {
        let deadline = Duration::from_secs((span * 3).max(at_least).as_secs_f64().ceil() as u64);
        self.limits = Some((deadline, settle_after));
        self.scene.configure(|settings| {
            settings.more = format!("[delivery]\ndeadline = \"{}s\"\n", deadline.as_secs());
            if let Some(after) = settle_after {
                settings.imap_more = format!("append_grace = \"{}s\"\n", (deadline + after).as_secs());
            }
        });
        deadline
    }

    /// The deadline that was set.
    pub fn deadline(&self) -> Duration {
        self.limits.expect("a deadline was set").0
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
                self.report.deferred += 1;
            }
        }
    }

    /// Waits for the end of everything, of which some were struck; says how long it took.
    pub fn finish(&mut self, queue: &mut [Queued], running: BTreeMap<usize, Running>, struck: &[usize]) -> Duration {
        let mut longest = Duration::ZERO;
        for (number, delivery) in running {
            let outcome = delivery.end_within(PATIENCE);
            longest = longest.max(outcome.took);
            match (struck.contains(&number), outcome.exit) {
                (true, None) => self.report.faults += 1,
                (true, Some(_)) => self.report.missed += 1,
                (false, exit) => assert!(exit.is_some(), "nobody killed it: {outcome:?}"),
            }
            self.ended(&mut queue[number], &outcome);
        }
        longest
    }

    /// Postfix's later tries, with nothing in their way.
    pub fn try_until_delivered(&mut self, queue: &mut [Queued]) {
        let began = Instant::now();
        for tries in 0.. {
            if queue.iter().all(|queued| queued.delivered) {
                break;
            }
            // Where attempts settle by the clock, many tries may come before that has passed.
            let in_vain = if self.time_passes_as_it_does { began.elapsed() > PATIENCE * 3 } else { tries >= 60 };
            assert!(!in_vain, "in vain: {}", self.report);
            self.settle();
            let running = self.start(queue);
            let longest = self.finish(queue, running, &[]);
            // The machine may have more to do than when the deadline was chosen.
            if let Some((deadline, settle_after)) = self.limits
                && longest >= deadline
                && tries % 5 == 4
            {
                self.set_deadline(deadline * 2, Duration::ZERO, settle_after);
            }
        }
    }

    /// Asks for the database's sessions that hold the locks of the last messages.
    pub fn holders(&self) -> String {
        let names = self.sent.iter().rev().take(MESSAGES).map(|id| self.scene.message_id(id));
        holders_of(self.scene.database.engine, names)
    }

    /// Nobody is at work; ten minutes pass.
    pub fn settle(&mut self) {
        // A network that was cut for a moment brings the last words of the dead when it is whole again, after as long again
        // at most. (In earnest that is over before `imap.append_grace` is: the kernel gives up after 100 s or so.)
        let began = Instant::now();
        while let Some(on_its_way) = self.was_cut_off.as_ref().and_then(on_its_way_to) {
            assert!(began.elapsed() < PATIENCE, "it never arrives: {on_its_way}");
            std::thread::sleep(Duration::from_millis(50));
        }
        // What a process had sent before it died may land after that. (In earnest within `imap.append_grace`; the ledger is set
        // that ten minutes have passed.)
        self.scene.wait_for_dovecot();
        if !self.time_passes_as_it_does {
            self.scene.ten_minutes_pass();
        }
    }

    /// Counts everything, prints the report, and fails if a copy is lost or duplicated.
    pub fn count(mut self, kind: &str) {
        let mut mailboxes: Vec<_> = RECIPIENTS.map(|name| (name, self.scene.inbox(name))).into();
        mailboxes.push(("lisa", self.scene.sent("lisa")));
        for (name, mailbox) in &mailboxes {
            let wanted = self.sent.iter().map(|id| self.scene.message_id(id));
            self.report.compare(name, wanted, mailbox.iter().map(|copy| copy.field("Message-ID")));
        }
        self.report.taken_out = self.scene.log().matches("removed a duplicate copy").count();
        self.report.tell(self.scene.database.engine, kind);

        let (messages, copies) = (self.sent.len() as i64, (self.sent.len() * (RECIPIENTS.len() + 1)) as i64);
        let database = &mut self.scene.database;
        assert_eq!(database.count("SELECT count(*) FROM messages"), messages);
        assert_eq!(database.count("SELECT count(*) FROM copies"), copies);
        assert_eq!(database.count("SELECT count(*) FROM copies WHERE state = 'delivered'"), copies);
        assert_eq!(database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
        // Each delivery was reported once, whatever became of the process that recorded it.
        let delivered = "FROM outbox WHERE type IN ('message.delivered', 'sent.delivered')";
        for what in ["*", "DISTINCT copy_key"] {
            assert_eq!(database.count(&format!("SELECT count({what}) {delivered}")), copies, "{what}");
        }
        each_change_was_reported_once(database);
        // Each row says where its copy is.
        let uids: usize = mailboxes.iter().map(|(_, mailbox)| mailbox.len()).sum();
        assert_eq!(uids as i64, copies);
    }
}

/// Asks for the database's sessions that hold the locks of these messages.
pub fn holders_of(engine: Engine, message_ids: impl Iterator<Item = String>) -> String {
    let names = message_ids.map(|id| lock_of_message_id(DEFAULT_NAMESPACE, id.as_bytes()));
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

/// How many faults of a kind, of which there are `by_default` for 50 kills.
pub fn faults(by_default: usize) -> usize {
    let kills = env_if_there("MAILDROP_TEST_KILLS").map_or(50, |kills| kills.parse().expect("a number"));
    by_default * kills / 50
}

/// A connection to this server that no process holds any more and whose bytes are not all there yet (proc(5): /proc/net/tcp).
fn on_its_way_to(server: &SocketAddr) -> Option<String> {
    let SocketAddr::V4(server) = server else { panic!("{server}: an address of IPv4") };
    let remote = format!("{:08X}:{:04X}", u32::from_le_bytes(server.ip().octets()), server.port());
    let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // FIN_WAIT1, LAST_ACK, CLOSING (the kernel's tcp_states.h): closed here, and not acknowledged there.
    let is_one = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(2) == Some(&remote.as_str()) && matches!(words.get(3), Some(&"04" | &"09" | &"0B"))
    };
    connections.lines().find(is_one).map(str::to_owned)
}
