//! An hour without a database, and an hour without a front, on a simulated clock.
//!
//! The broker, the master's pauses before a restart, and a worker's pauses before it connects again are real, and get the
//! simulated time. The processes, the results of deliveries, and the messages, one a second, are simulated.

use super::broker::state::{Action, Broker, ConnectionId, Event, LocalId, Settings};
use super::inflight_message::Body;
use super::master::restarts::Restarts;
use super::shunt::{CrashRecords, WorkerEnd};
use crate::base::back_off::BackOff;
use crate::delivery::Verdict;
use crate::protocol::control::End;
use crate::protocol::zmtp::{FIRST_PAUSE, INTERVAL, LONGEST_PAUSE};
use crate::protocol::{DatabaseState, Header, Logins, Recipient, Reply, Request};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use uuid::Uuid;

const HOUR: Duration = Duration::from_hours(1);
const MINUTE: Duration = Duration::from_mins(1);
const WORKERS: usize = 4;
/// The time from a process's start until it is ready.
const START: Duration = Duration::from_millis(200);
const MESSAGE: &[u8] = b"Subject: x\r\n\r\nx\r\n";

/// The kind of outage in this hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hour {
    /// The database is unavailable: workers stay, and defer their messages. The watchdog ends a few workers that hang.
    WithoutDatabase,
    /// The same, and the front is killed once.
    AndAFrontThatIsKilled,
    /// A worker ends as soon as it has begun, as if it required a database.
    WithoutWorkers,
    /// A front ends as soon as it has begun.
    WithoutFront,
}

/// The master's slot for a worker.
struct Slot {
    restarts: Restarts,
    back_off: BackOff,
    /// When the slot's process began.
    since: Instant,
    process: Process,
    /// How many messages the worker has delivered since the end of the hour.
    delivered: usize,
}

enum Process {
    /// No process runs until this time.
    None(Instant),
    /// The worker connects to the broker at this time.
    Looks(Instant),
    Waits(ConnectionId),
    Delivers {
        by: ConnectionId,
        address: Vec<u8>,
        id: Uuid,
        recipients: usize,
        until: Instant,
        dies: bool,
    },
}

struct OutageWorld {
    hour: Hour,
    now: Instant,
    /// The end of the hour.
    over: Instant,
    slots: Vec<Slot>,
    front: Option<Broker>,
    front_restarts: Restarts,
    front_since: Instant,
    /// When the next front begins.
    front_due: Instant,
    /// When the front is killed.
    front_killed: Option<Instant>,
    connections: u64,
    /// The number of connections before this front began.
    before_this_front: u64,
    messages: u64,
    next_message: Instant,
    /// The messages that this front has not answered.
    open: BTreeSet<LocalId>,
    random: u64,
}

impl OutageWorld {
    fn new(hour: Hour, seed: u64) -> Self {
        let now = Instant::now();
        // The default configuration.
        let restarts = || Restarts::new(10);
        let slot = |_| Slot {
            restarts: restarts(),
            back_off: BackOff::new(FIRST_PAUSE, LONGEST_PAUSE),
            since: now,
            process: Process::None(now),
            delivered: 0,
        };
        let mut world = Self {
            hour,
            now,
            over: now + HOUR,
            slots: (0..WORKERS).map(slot).collect(),
            front: None,
            front_restarts: restarts(),
            front_since: now,
            front_due: now,
            front_killed: None,
            connections: 0,
            before_this_front: 0,
            messages: 0,
            next_message: now,
            open: BTreeSet::new(),
            random: seed,
        };
        if hour == Hour::AndAFrontThatIsKilled {
            let after = HOUR.mul_f64(world.below(1000) as f64 / 1000.0);
            world.front_killed = Some(now + after);
        }
        world
    }

    /// Knuth's linear congruential generator; only its upper bits are used.
    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % limit
    }

    fn is_over(&self) -> bool {
        self.now >= self.over
    }

    /// Simulates all events until this time.
    fn run_until(&mut self, end: Instant) {
        loop {
            let processes = self.slots.iter().filter_map(|slot| match slot.process {
                Process::None(due) | Process::Looks(due) | Process::Delivers { until: due, .. } => Some(due),
                Process::Waits(_) => None,
            });
            let front = self.front.as_ref().map_or(self.front_due, Broker::next_tick);
            let next = processes.chain([front, self.next_message]).chain(self.front_killed).min().unwrap();
            if next > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(next);
            self.turn();
        }
    }

    fn turn(&mut self) {
        if self.front_killed.is_some_and(|at| self.now >= at) {
            self.front_killed = None;
            self.end_the_front();
        }
        if self.front.is_none() && self.now >= self.front_due {
            self.start_the_front();
        }
        for at in 0..WORKERS {
            self.turn_of(at);
        }
        if self.now >= self.next_message {
            self.next_message = self.now + INTERVAL;
            self.message();
        }
        let beating: Vec<_> = self.slots.iter().filter_map(Slot::connection).collect();
        for connection in beating {
            self.handle(Event::WorkerBeat { connection });
        }
        if let Some(front) = self.front.as_mut().filter(|front| self.now >= front.next_tick()) {
            let actions = front.tick(self.now);
            self.done(actions);
        }
    }

    fn start_the_front(&mut self) {
        self.front_since = self.now;
        if self.hour == Hour::WithoutFront && !self.is_over() {
            self.end_the_front();
            return;
        }
        self.before_this_front = self.connections;
        let settings = Settings {
            worker_wait: Duration::from_secs(30),
            workers: WORKERS,
            max_per_recipient: 2,
            patience: Duration::from_secs(5),
            recipient_delimiter: String::new(),
            mailbox_sessions: 8,
            longest_delivery: 4 * MINUTE,
            run: self.connections,
        };
        self.front = Some(Broker::new(settings, CrashRecords::default(), self.now));
    }

    fn end_the_front(&mut self) {
        let lived = if self.front.take().is_some() { self.now - self.front_since } else { Duration::ZERO };
        self.front_due = self.now + self.front_restarts.died(lived) + START;
        self.open.clear();
        for slot in &mut self.slots {
            if let Process::Waits(_) = slot.process {
                slot.process = Process::Looks(self.now + slot.back_off.pause());
            }
        }
    }

    fn turn_of(&mut self, at: usize) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        match &mut slot.process {
            Process::None(due) if self.now >= *due => {
                (slot.since, slot.back_off) = (self.now, BackOff::new(FIRST_PAUSE, LONGEST_PAUSE));
                if self.hour == Hour::WithoutWorkers && self.now < self.over {
                    slot.process = Process::None(self.now + slot.restarts.died(Duration::ZERO));
                } else {
                    slot.process = Process::Looks(self.now + START);
                }
            }
            Process::Looks(due) if self.now >= *due => {
                if self.front.is_none() {
                    *due = self.now + slot.back_off.pause();
                    return;
                }
                self.connections += 1;
                let connection = ConnectionId(self.connections);
                slot.process = Process::Waits(connection);
                self.handle(Event::WorkerReady { connection, name: b"x".to_vec(), pid: i32::try_from(at).ok() });
            }
            Process::Delivers { until, .. } if self.now >= *until => self.ends_its_delivery(at),
            Process::None(_) | Process::Looks(_) | Process::Waits(_) | Process::Delivers { .. } => {}
        }
    }

    /// The worker's message in progress is delivered, or deferred, or the worker dies.
    fn ends_its_delivery(&mut self, at: usize) {
        let (now, is_over) = (self.now, self.is_over());
        let slot = &mut self.slots[at];
        let Process::Delivers { by, address, id, recipients, dies, .. } =
            std::mem::replace(&mut slot.process, Process::None(now))
        else {
            return;
        };
        if dies {
            slot.process = Process::None(now + slot.restarts.died(now - slot.since));
            let (pid, end) = (u32::try_from(at).unwrap(), End::Signal(signal_hook::consts::SIGKILL));
            self.handle(Event::WorkerGone { connection: by });
            self.handle(Event::ProcessEnded(WorkerEnd { pid, end, by_us: false, output: Vec::new() }));
            return;
        }
        let is_ours = self.front.is_some() && by.0 > self.before_this_front;
        let slot = &mut self.slots[at];
        slot.delivered += usize::from(is_over);
        if !is_ours {
            // The worker's broker has gone meanwhile: the reply is dropped.
            slot.process = Process::Looks(now + slot.back_off.pause());
            return;
        }
        slot.process = Process::Waits(by);
        let (verdict, database) = if is_over {
            (Verdict::delivered("INBOX appended"), DatabaseState::There)
        } else {
            let why = "the database cannot be reached";
            (Verdict::deferred(crate::delivery::StatusDetail::SYSTEM, why), DatabaseState::Away(why.into()))
        };
        let results = vec![verdict; recipients];
        let reply = Reply { id, results, leaving: false, logins: Logins::default(), database };
        let body = Header::Reply(reply).frame(b"").unwrap();
        self.handle(Event::WorkerAnswered { connection: by, address, body });
    }
}

impl OutageWorld {
    fn handle(&mut self, event: Event) {
        let Some(front) = &mut self.front else { return };
        let actions = front.handle(event, self.now);
        self.done(actions);
    }

    fn done(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Beat { connection } => {
                    if let Some(slot) = self.slots.iter_mut().find(|slot| slot.connection() == Some(connection)) {
                        slot.back_off = BackOff::new(FIRST_PAUSE, LONGEST_PAUSE);
                    }
                }
                Action::Work { connection, address, body } => self.begins_a_delivery(connection, address, &body),
                Action::Answer { id, verdicts } => {
                    assert!(self.open.remove(&id), "answered once");
                    assert!(self.is_over() || verdicts.iter().all(|verdict| verdict.class() == 4), "{verdicts:?}");
                }
                // In these tests no worker is unresponsive, no message crashes a worker, and there are no clients.
                other => panic!("{other:?}"),
            }
        }
    }

    fn begins_a_delivery(&mut self, by: ConnectionId, address: Vec<u8>, body: &[u8]) {
        let Ok((Header::Deliver(request), _)) = Header::read(body) else { panic!("no request") };
        let (until, dies) = self.what_it_meets(Duration::from_millis(request.time_left_ms));
        let (id, recipients) = (request.id, request.recipients.len());
        let slot = self.slots.iter_mut().find(|slot| matches!(slot.process, Process::Waits(it) if it == by));
        slot.expect("it waits").process = Process::Delivers { by, address, id, recipients, until, dies };
    }

    /// When a delivery that begins now, with this much time, ends. Also whether its worker ends with it.
    fn what_it_meets(&mut self, time: Duration) -> (Instant, bool) {
        let moment = Duration::from_millis(50);
        if self.is_over() {
            return (self.now + moment, false);
        }
        let chance = self.below(100);
        let (after, dies) = match chance {
            // Connections are refused, or not answered, until `database.failover_timeout` is over.
            0..50 => (Duration::from_secs(25), false),
            // An open session ends.
            50..80 => (moment, false),
            // The server does not answer.
            80..98 => (Duration::from_secs(30), false),
            // The delivery exceeds its deadline, and the watchdog ends the worker.
            _ => (time + Duration::from_secs(3), true),
        };
        // Retries succeed at most 16 s after the database is back: ten seconds for a connection, and six for a pause.
        let met = self.over + Duration::from_secs(16);
        if dies && self.now + after > self.over {
            (met.min(self.now + time), false)
        } else {
            ((self.now + after).min(met), dies)
        }
    }

    /// A message comes over LMTP.
    fn message(&mut self) {
        self.messages += 1;
        let recipient = Recipient { address: format!("{}@x", self.messages % 50), original: None };
        let request = Box::new(Request {
            id: Uuid::from_u128(u128::from(self.messages)),
            time_left_ms: 240_000,
            ..Request::new("lisa@gmail.com".into(), vec![recipient], MESSAGE.len() as u64)
        });
        if self.front.is_some() {
            let id = LocalId(self.messages);
            self.open.insert(id);
            self.handle(Event::Submitted { id, request, body: Body::Memory(MESSAGE.to_vec()) });
        }
    }

    fn workers_that_take_work(&self) -> usize {
        let gauges = self.front.as_ref().map(|front| front.gauges(self.now)).unwrap_or_default();
        gauges.ready + gauges.busy
    }

    #[track_caller]
    fn all_are_back(&self) {
        assert_eq!(self.workers_that_take_work(), WORKERS);
        let delivered: Vec<_> = self.slots.iter().map(|slot| slot.delivered).collect();
        assert!(delivered.iter().all(|count| *count > 0), "{delivered:?}");
        assert_eq!(self.front.as_ref().unwrap().database_away(), None);
    }
}

impl Slot {
    fn connection(&self) -> Option<ConnectionId> {
        match &self.process {
            Process::Waits(connection) | Process::Delivers { by: connection, .. } => Some(*connection),
            Process::None(_) | Process::Looks(_) => None,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2) })]

    #[test]
    fn a_minute_after_an_hour_without_a_database_all_workers_deliver(seed: u64) {
        for hour in [Hour::WithoutDatabase, Hour::AndAFrontThatIsKilled] {
            let mut world = OutageWorld::new(hour, seed);
            world.run_until(world.over - Duration::from_millis(1));
            if hour == Hour::WithoutDatabase {
                prop_assert!(world.front.as_ref().unwrap().database_away().is_some());
                prop_assert!(world.slots.iter().all(|slot| !slot.restarts.is_throttled()));
            }
            world.run_until(world.over + MINUTE);
            world.all_are_back();
            // No message stays unanswered.
            world.next_message = world.now + HOUR;
            world.run_until(world.now + 5 * MINUTE);
            prop_assert_eq!(&world.open, &BTreeSet::new());
        }
    }
}

/// The longest pauses of the master and of a worker. After them, no operator need intervene, whatever happened in the hour.
#[test]
fn who_died_for_an_hour_is_back_after_its_longest_pause() {
    for (hour, longest) in [(Hour::WithoutWorkers, MINUTE), (Hour::WithoutFront, MINUTE + Duration::from_secs(32))] {
        let mut world = OutageWorld::new(hour, 1);
        world.run_until(world.over - Duration::from_millis(1));
        assert_eq!(world.workers_that_take_work(), 0, "{hour:?}");
        // A process takes a moment to begin, and each worker must deliver something.
        world.run_until(world.over + longest + Duration::from_secs(2));
        world.all_are_back();
    }
}
