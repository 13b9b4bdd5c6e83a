//! Three notifiers on one database, killed, stopped and cut off from it at random moments, while deliveries write events. Afterwards
//! every receiver was notified of every event. Twice it was notified only of what a struck notifier had under way, or had not written down.
//!
//! What it had not written down is little: an answer that was taken in before another one of that receiver, which is written down, is
//! written down, too. And there is an end to it however slow the database is, since more than so many are written down before more is sent.
//!
//! As long as its kin: `MAILDROP_TEST_KILLS=500 tests/run -- real_` (support/run.rs) makes more than ten thousand notifications.

use crate::notifications::event_delivery::{Notifier, happen, subscribe};
use crate::notifications::event_schema::hold_to_the_document;
use crate::support::database::{Connection, Engine};
use crate::support::program::{PATIENCE, Running, wait_until};
use crate::support::receivers::{Came, Receivers};
use crate::support::run::{Random, faults, note};
use crate::support::site_fixture::Scene;
use mysql::prelude::Queryable;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};
use uuid::Uuid;

on_two_engines!(notifiers_are_killed_stopped_and_cut_off_at_random_moments);

/// Milliseconds until each receiver answers. The last one is notified in order.
const ANSWERS: [u64; 5] = [0, 0, 5, 50, 1];
const IN_ORDER: u32 = 4;
/// How many requests each may have at once, as a subscription has it that says nothing else.
const AT_ONCE: usize = 4;
/// How many answers of one receiver are written down at the latest before more is sent to it.
const WRITTEN_AT_ONCE: usize = 50;

/// A receiver, and an event.
type NotifiedEvent = (u32, u128);

fn notifiers_are_killed_stopped_and_cut_off_at_random_moments(engine: Engine) {
    let mut run = Run::new(engine);
    run.notifiers = (0..3).map(|_| run.start()).collect();
    let wanted = faults(24);
    while run.kills + run.cuts + run.stops < wanted {
        run.deliveries_write_events();
        std::thread::sleep(run.random.below(Duration::from_millis(300)));
        match run.kills + run.cuts + run.stops {
            // It takes as long as a lease.
            number if number % 60 == 10 => run.stop(),
            number if number % 8 == 7 => run.cut_off(),
            _ => run.kill(),
        }
        run.finish_deliveries();
    }
    wait_until("all are notified", || {
        run.scene.database.count("SELECT (SELECT count(*) FROM outbox) + (SELECT count(*) FROM notifications)") == 0
    });
    run.notifiers.drain(..).for_each(|notifier| notifier.process.end());
    run.count();
}

struct Struck {
    process: Notifier,
    log: String,
}

struct Run {
    scene: Scene,
    random: Random,
    receivers: Receivers,
    /// By their numbers.
    subscriptions: Vec<Uuid>,
    notifiers: Vec<Struck>,
    started: usize,
    /// Messages that are not delivered yet, and how many there were.
    queue: Vec<(String, Running)>,
    delivered: usize,
    happened: BTreeSet<u128>,
    kills: usize,
    stops: usize,
    cuts: usize,
    /// Whether the fault before this one has cut all off from the database.
    were_cut_off: bool,
    /// The requests that may come once more, by their places among all that came: each of them once.
    may_come_again: BTreeSet<usize>,
    /// How many others may: what a stopped notifier had handed to its other thread, and what was not sent yet.
    others: usize,
    /// By [`Fault`].
    left: [Left; 3],
}

/// What has struck a notifier.
#[derive(Clone, Copy)]
enum Fault {
    Killed,
    /// When the fault before had cut all off from the database, or its last round with the database had failed.
    KilledAfterACut,
    Stopped,
}

/// What notifiers had not written down when they were struck.
#[derive(Default)]
struct Left {
    notifiers: usize,
    under_way: usize,
    /// Answered within 100 ms, and earlier.
    answered: [usize; 2],
    /// How long ago the oldest of these was answered.
    oldest: Duration,
    /// The most of one receiver.
    most: usize,
}

impl Display for Left {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { notifiers, under_way, answered: [late, earlier], oldest, most } = self;
        write!(
            f,
            "{notifiers} with {under_way} under way, {late} answered within 100 ms and {earlier} earlier, the oldest {oldest:.0?} before, \
             {most} of one receiver at most"
        )
    }
}

impl Run {
    fn new(engine: Engine) -> Self {
        let (mut scene, receivers) = (Scene::with(engine, &["doug"]), Receivers::start());
        let subscriptions = ANSWERS.iter().zip(0..).map(|(after, number)| {
            let in_order = [("in_order", if number == IN_ORDER { "true" } else { "false" })];
            subscribe(&mut scene, ("all", ""), &receivers.url(204, Duration::from_millis(*after), number), &in_order)
        });
        Self {
            subscriptions: subscriptions.collect(),
            scene,
            random: Random::seeded(),
            receivers,
            notifiers: Vec::new(),
            started: 0,
            queue: Vec::new(),
            delivered: 0,
            happened: BTreeSet::new(),
            kills: 0,
            stops: 0,
            cuts: 0,
            were_cut_off: false,
            may_come_again: BTreeSet::new(),
            others: 0,
            left: Default::default(),
        }
    }

    /// With a log of its own, and answers that are waited for so briefly that a lease is over soon.
    fn start(&mut self) -> Struck {
        // On a busy machine many are not answered in time. Neither an event nor a receiver rests for longer than a second then.
        let retry = format!("[{}]", vec!["\"1s\""; PATIENCE.as_secs() as usize].join(", "));
        let common = Notifier::configuration(&mut self.scene, &retry, "");
        let log = self.scene.path(&format!("notifier-{}.log", self.started));
        let text = std::fs::read_to_string(common).unwrap().replace("timeout = \"200s\"", "timeout = \"1s\"");
        let text = text.replace(&format!("{:?}", self.scene.path("log")), &format!("{log:?}"));
        let config = self.scene.path(&format!("notifier-{}.toml", self.started));
        std::fs::write(&config, text).unwrap();
        self.started += 1;
        Struck { process: Notifier::start_at(&config), log }
    }

    /// Some by the program, others as it would have written them.
    fn deliveries_write_events(&mut self) {
        for _ in 0..2 {
            let message = self.scene.message(&format!("m{}", self.delivered));
            let running = self.scene.start("doug", &[], &message);
            self.queue.push((message, running));
            self.delivered += 1;
        }
        let ids = happen(&mut self.scene, 8, "message.delivered");
        self.happened.extend(ids.iter().map(|id| u128::from_str_radix(id.trim_start_matches("evt_"), 16).unwrap()));
    }

    /// Each is tried until it is delivered, as Postfix would.
    fn finish_deliveries(&mut self) {
        for (message, running) in self.queue.drain(..) {
            let mut outcome = running.end();
            while outcome.exit != Some(0) {
                outcome.deferred("4.");
                outcome = self.scene.deliver("doug", &message);
            }
        }
    }

    fn one_of_them(&mut self) -> usize {
        usize::try_from(self.random.next() % self.notifiers.len() as u64).unwrap()
    }

    fn kill(&mut self) {
        let at = self.one_of_them();
        let moment = Instant::now();
        let Struck { process, log } = self.notifiers.remove(at);
        // It is gone when this returns.
        drop(process);
        if let Some(by) = leased_by(&log) {
            let cut_off = self.were_cut_off || is_cut_off(&log);
            self.struck(&by, moment, if cut_off { Fault::KilledAfterACut } else { Fault::Killed });
            // Its leases are over.
            let hour_ago =
                if self.is_postgres() { "now() - interval '1 hour'" } else { "UTC_TIMESTAMP(6) - INTERVAL 1 HOUR" };
            self.scene.execute_beside_others(&format!(
                "UPDATE subscription_queues SET leased_until = {hour_ago} WHERE {by}",
                by = self.of(&by)
            ));
        }
        self.kills += 1;
        self.were_cut_off = false;
        let next = self.start();
        self.notifiers.push(next);
    }

    /// For longer than its leases last, so that others take over; then it goes on.
    fn stop(&mut self) {
        let at = self.one_of_them();
        wait_until("it has begun", || leased_by(&self.notifiers[at].log).is_some());
        let by = leased_by(&self.notifiers[at].log).unwrap();
        let moment = Instant::now();
        self.notifiers[at].process.signal(Signal::STOP);
        let leased = self.struck(&by, moment, Fault::Stopped);
        self.others += leased * AT_ONCE;
        let now = if self.is_postgres() { "now()" } else { "UTC_TIMESTAMP(6)" };
        let left = format!("SELECT count(*) FROM subscription_queues WHERE {} AND leased_until > {now}", self.of(&by));
        wait_until("its leases are over", || self.scene.database.count(&left) == 0);
        self.notifiers[at].process.signal(Signal::CONT);
        self.stops += 1;
        self.were_cut_off = false;
    }

    /// All of them, from the database. Nobody is notified anything twice for that.
    fn cut_off(&mut self) {
        let role = format!("{}_n", self.scene.run);
        let mut administrator = self.scene.session();
        if self.is_postgres() {
            administrator.texts(&format!(
                "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE usename = '{role}'"
            ));
        } else {
            let sessions = format!("SELECT CAST(id AS char) FROM information_schema.processlist WHERE user = '{role}'");
            for session in administrator.texts(&sessions) {
                let Connection::Mysql(connection) = &mut administrator else { unreachable!("it is one of MySQL's") };
                // It may have ended by itself.
                let _ = connection.query_drop(format!("KILL {session}"));
            }
        }
        self.cuts += 1;
        self.were_cut_off = true;
    }

    fn is_postgres(&self) -> bool {
        self.scene.database.engine.is_postgres()
    }

    /// What this one has leased.
    fn of(&self, by: &Uuid) -> String {
        if self.is_postgres() { format!("leased_by = '{by}'") } else { format!("leased_by = X'{}'", by.simple()) }
    }

    /// A subscription and an event in hexadecimal digits, with a blank between.
    fn received_in(&self, subscription: &str, event: &str) -> String {
        let digits = |column: &str| {
            if self.is_postgres() {
                format!("replace({column}::text, '-', '')")
            } else {
                format!("LOWER(HEX({column}))")
            }
        };
        format!("{}, ' ', {}", digits(subscription), digits(event))
    }

    /// What stands there, and what comes after it.
    fn read<'a>(&self, line: &'a str) -> (NotifiedEvent, &'a str) {
        let mut words = line.splitn(3, ' ');
        let mut next = || words.next().unwrap();
        let (subscription, event) = (next(), next());
        let number = self.subscriptions.iter().position(|id| id.simple().to_string() == subscription).unwrap();
        ((u32::try_from(number).unwrap(), u128::from_str_radix(event, 16).unwrap()), next())
    }

    /// Notes what has come by way of this one, which sends nothing any more, and is not recorded as sent. How many it had leased.
    fn struck(&mut self, by: &Uuid, moment: Instant, fault: Fault) -> usize {
        self.receivers.all_is_noted();
        let of = self.of(by);
        let leased = self.scene.database.count(&format!("SELECT count(*) FROM subscription_queues WHERE {of}"));
        // With how often each has failed.
        let pending = self.scene.database.texts(&format!(
            "SELECT concat({}, ' ', n.tries) FROM notifications n JOIN events e ON e.position = n.event \
             JOIN subscription_queues q ON q.subscription = n.subscription WHERE q.{of}",
            self.received_in("n.subscription", "e.event")
        ));
        let pending: BTreeMap<NotifiedEvent, bool> = pending
            .iter()
            .map(|line| {
                let (notified, tries) = self.read(line);
                (notified, tries != "0")
            })
            .collect();
        let came = self.receivers.look(<[Came]>::to_vec);
        let last: BTreeMap<NotifiedEvent, usize> =
            came.iter().zip(0..).map(|(one, place)| ((one.receiver, one.event), place)).collect();
        // What an earlier one has left, and this one had not come to, is that one's.
        let left: Vec<(NotifiedEvent, usize)> = last
            .into_iter()
            .filter(|(notified, place)| pending.contains_key(notified) && !self.may_come_again.contains(place))
            .collect();
        for (receiver, id) in (0..).zip(&self.subscriptions) {
            // What has failed is written down, and comes again.
            let left: Vec<&Came> = left
                .iter()
                .filter(|(notified, _)| notified.0 == receiver && !pending[notified])
                .map(|(_, place)| &came[*place])
                .collect();
            let of_it = came.iter().filter(|one| one.receiver == receiver);
            let mut written: BTreeMap<u128, Instant> = BTreeMap::new();
            for one in of_it.filter(|one| !pending.contains_key(&(receiver, one.event))) {
                // The first time: a second one is written down as well, by somebody else perhaps.
                if let Some(answered) = one.answered {
                    written.entry(one.event).or_insert(answered);
                }
            }
            let last_written = written.values().max();
            let before = left.iter().filter(|one| one.answered.is_some_and(|at| Some(&at) < last_written)).count();
            assert!(before < AT_ONCE, "{id}: {before} were taken in before one that is written down: {left:?}");
            let most = WRITTEN_AT_ONCE + 2 * AT_ONCE;
            assert!(left.len() < most, "{id}: {} are not written down", left.len());
            self.left[fault as usize].most = self.left[fault as usize].most.max(left.len());
        }
        let counted = &mut self.left[fault as usize];
        counted.notifiers += 1;
        for (_, place) in &left {
            match came[*place].answered.map(|answered| moment.saturating_duration_since(answered)) {
                None | Some(Duration::ZERO) => counted.under_way += 1,
                Some(before) => {
                    counted.answered[usize::from(before > Duration::from_millis(100))] += 1;
                    counted.oldest = counted.oldest.max(before);
                }
            }
        }
        self.may_come_again.extend(left.into_iter().map(|(_, place)| place));
        leased.try_into().unwrap()
    }

    /// How often each was answered, or not answered in time, so that it comes again.
    fn failed(&mut self) -> BTreeMap<NotifiedEvent, usize> {
        let failed = format!(
            "SELECT concat({}, ' ', count(*)) FROM notification_attempts a JOIN events e ON e.position = a.event \
             WHERE a.status IS NULL OR a.status > 299 GROUP BY a.subscription, e.event",
            self.received_in("a.subscription", "e.event")
        );
        let failed = self.scene.database.texts(&failed);
        failed
            .iter()
            .map(|line| {
                let (notified, times) = self.read(line);
                (notified, times.parse().unwrap())
            })
            .collect()
    }

    /// Everything that the ledger says, at every receiver.
    fn count(mut self) {
        let hex = if self.is_postgres() { "replace(event::text, '-', '')" } else { "HEX(event)" };
        let events = self.scene.database.texts(&format!("SELECT {hex} FROM events ORDER BY position"));
        let events: Vec<u128> = events.iter().map(|event| u128::from_str_radix(event, 16).unwrap()).collect();
        let place: BTreeMap<u128, usize> = events.iter().copied().zip(0..).collect();
        assert_eq!(
            (place.len(), events.len()),
            (events.len(), self.happened.len() + self.delivered),
            "an event for each change"
        );
        assert!(self.happened.iter().all(|event| place.contains_key(event)));
        let came = self.receivers.look(<[Came]>::to_vec);
        hold_to_the_document(&self.receivers.bodies(), &[]);
        let mut times: BTreeMap<NotifiedEvent, usize> = BTreeMap::new();
        came.iter().for_each(|one| *times.entry((one.receiver, one.event)).or_default() += 1);
        let all = (0..ANSWERS.len() as u32).flat_map(|receiver| events.iter().map(move |event| (receiver, *event)));
        let lost: Vec<NotifiedEvent> = all.filter(|notified| !times.contains_key(notified)).collect();
        let mut again = self.failed();
        for place in &self.may_come_again {
            *again.entry((came[*place].receiver, came[*place].event)).or_default() += 1;
        }
        let more = |(notified, times): (&NotifiedEvent, &usize)| {
            (times - 1).saturating_sub(again.get(notified).copied().unwrap_or_default())
        };
        let (twice, unexplained): (usize, usize) =
            (times.values().map(|times| times - 1).sum(), times.iter().map(more).sum());
        let logs = (0..self.started).map(|number| self.scene.path(&format!("notifier-{number}.log")));
        let long = |log: String| std::fs::read_to_string(log).unwrap_or_default().matches(LONG_ROUND).count();
        let long: usize = logs.map(long).sum();
        let Self { kills, stops, cuts, left: [killed, after_a_cut, stopped], others, .. } = self;
        note(&format!(
            "{:?}, notifiers struck: notifications {}, faults {} (killed {kills}, stopped {stops}, all cut off {cuts}), lost {}, sent twice \
             {twice}, by no fault {}; rounds with the database that were long {long}; not written down were, of killed ones, \
             {killed}; of killed ones when all had been cut off, {after_a_cut}; of stopped ones, {stopped}\n",
            self.scene.database.engine,
            events.len() * ANSWERS.len(),
            kills + stops + cuts,
            lost.len(),
            unexplained.saturating_sub(others),
        ));
        assert!(lost.is_empty(), "{lost:?}");
        assert!(unexplained <= others, "{unexplained} were sent twice for no reason");
        // In order, whatever ended in between: what came again apart, each came after all before it.
        let mut known = BTreeSet::new();
        let in_order = came.iter().filter(|one| one.receiver == IN_ORDER).map(|one| place[&one.event]);
        let in_order: Vec<usize> = in_order.filter(|place| known.insert(*place)).collect();
        assert!(in_order.is_sorted(), "{in_order:?}");
    }
}

/// What a notifier logs of a round that took longer than answers are to wait.
const LONG_ROUND: &str = "a round with the database was a long one";

/// Whether its last round with the database has failed, as far as it knows.
fn is_cut_off(log: &str) -> bool {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let last = |what| log.rfind(what);
    last("round with the database has failed") > last("rounds with the database succeed again")
}

/// The name that its leases have, once it has one.
fn leased_by(log: &str) -> Option<Uuid> {
    let log = std::fs::read_to_string(log).ok()?;
    let name = log.split("leased_by=").nth(1)?;
    name.get(..36)?.parse().ok()
}
