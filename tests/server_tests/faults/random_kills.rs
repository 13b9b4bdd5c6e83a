//! Deliveries that are killed at random moments, on real servers: the processes by SIGKILL, the lock's connections by the
//! database's administrator, and processes that are stopped until long after their deadline. The test plays Postfix.
//! Afterwards every mailbox has every message once.
//!
//! These, and all of their kin, ten times as long: `MAILDROP_TEST_KILLS=500 tests/run -- real_` (support/run.rs).

use crate::support::database::{Connection, Engine};
use crate::support::program::{Running, wait_for};
use crate::support::run::{MESSAGES, Random, Run};
use mysql::prelude::Queryable;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

on_each_engine!(
    processes_are_killed_at_random_moments,
    the_locks_connection_is_ended_at_random_moments,
    processes_are_stopped_until_after_their_deadline,
);

/// The first try of each at any moment of it; the second while it holds the lock, where the worst moments are.
fn processes_are_killed_at_random_moments(engine: Engine) {
    let mut run = Run::new(engine);
    let mut span = run.span_of_a_try();
    while run.goes_on(50) {
        let mut queue = run.queue(MESSAGES);
        let mut running = run.start(&queue);
        let moments = moments(&mut run.random, running.keys().copied(), span);
        moments.each(|number| running.get_mut(&number).unwrap().strike());
        let before = run.report.faults;
        run.finish(&mut queue, running, &moments.numbers());
        // The machine has become faster or slower: one in three may be done before its moment, no more.
        let struck = run.report.faults - before;
        span = if struck * 3 < queue.len() * 2 { span * 2 / 3 } else { span * 5 / 4 };
        run.settle();

        let (mut running, mut struck) = (run.start(&queue), Vec::new());
        hunt(&mut run, &mut running, |administrator, running, session| {
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
    let mut run = Run::new(engine);
    run.span_of_a_try();
    while run.goes_on(25) {
        let mut queue = run.queue(MESSAGES);
        for _ in 0..2 {
            let (mut running, mut ended) = (run.start(&queue), Vec::new());
            hunt(&mut run, &mut running, |administrator, _, session| {
                ended.push(end_session(administrator, session));
            });
            run.report.faults += ended.iter().filter(|ended| **ended).count();
            run.report.missed += ended.iter().filter(|ended| !**ended).count();
            run.finish(&mut queue, running, &[]);
            run.settle();
        }
        run.try_until_delivered(&mut queue);
    }
    run.count("the lock's connection ended");
}

/// Time passes as it does: nobody tells the ledger otherwise.
fn processes_are_stopped_until_after_their_deadline(engine: Engine) {
    let mut run = Run::new(engine);
    let span = run.span_of_a_try();
    let deadline = run.set_deadline(Duration::from_secs(2), span, Some(Duration::from_secs(1)));
    run.time_passes_as_it_does = true;
    while run.goes_on(8) {
        let coins = run.random.next();
        // It keeps the lock. Or the server, or a firewall, takes it away.
        let is_taken = |number: usize| coins >> number & 1 == 0;
        stopped_for(&mut run, is_taken, |_, _| std::thread::sleep(deadline));
    }
    // Once, past every time limit: until the server itself has taken all their locks away. Who is struck holds the lock
    // more often than not; where nobody had, again.
    let mut stopped = false;
    for _ in 0..50 {
        if stopped {
            break;
        }
        let limit = run.deadline() + Duration::from_secs(120);
        stopped_for(
            &mut run,
            |_| false,
            |run, held_up| {
                if held_up.is_empty() {
                    return;
                }
                stopped = true;
                let mut administrator = run.scene.session();
                let holders = run.holders();
                wait_for("the server to end the sessions that hold locks", limit, || {
                    administrator.texts(&holders).is_empty()
                });
            },
        );
    }
    assert!(stopped, "nobody was stopped while it held the lock");
    run.count("SIGSTOP");
}

/// Stops a process that gets a lock, at a random moment, lets the others end and be tried again meanwhile, and then lets the
/// stopped go on.
fn stopped_for(
    run: &mut Run,
    is_taken: impl Fn(usize) -> bool,
    meanwhile: impl FnOnce(&mut Run, &BTreeMap<usize, Running>),
) {
    let mut queue = run.queue(MESSAGES);
    let (mut running, mut held_up) = (run.start(&queue), BTreeMap::new());
    hunt(run, &mut running, |administrator, running, session| {
        let Some(number) = process_of(administrator, running, session) else { return };
        let mut delivery = running.remove(&number).unwrap();
        if delivery.has_ended() {
            // Its session is not gone yet.
            running.insert(number, delivery);
            return;
        }
        delivery.stop();
        if is_taken(number) {
            end_session(administrator, session);
        }
        held_up.insert(number, delivery);
    });
    run.finish(&mut queue, running, &[]);
    meanwhile(run, &held_up);
    let others = run.start_but(&queue, &held_up);
    run.finish(&mut queue, others, &[]);
    for delivery in held_up.values() {
        delivery.go_on();
    }
    run.report.faults += held_up.len();
    run.finish(&mut queue, held_up, &[]);
    run.try_until_delivered(&mut queue);
}

/// Lies in wait for each process that gets a lock, and strikes two in three of them a random moment later, within the time that
/// others hold theirs for; until all have ended.
fn hunt(
    run: &mut Run,
    running: &mut BTreeMap<usize, Running>,
    mut strike: impl FnMut(&mut Connection, &mut BTreeMap<usize, Running>, &str),
) {
    let mut administrator = run.scene.session();
    let holders = run.holders();
    // Since when each holds its lock (nobody asks after it was struck), and when it is to be struck.
    let (mut held, mut due): (BTreeMap<String, Option<Instant>>, BTreeMap<String, Instant>) = Default::default();
    while running.values_mut().any(|delivery| !delivery.has_ended()) {
        let there: BTreeSet<String> = administrator.texts(&holders).into_iter().collect();
        held.retain(|session, since| {
            let ended = !there.contains(session);
            if let (true, Some(since)) = (ended, since) {
                run.a_lock_was_held_for(since.elapsed());
            }
            !ended
        });
        for session in there {
            if !held.contains_key(&session) && !run.random.one_in(3) {
                // Long ones are struck before they are measured.
                due.insert(session.clone(), Instant::now() + run.random.below(run.holding * 3 / 2));
            }
            held.entry(session).or_insert_with(|| Some(Instant::now()));
        }
        due.retain(|session, moment| {
            let later = *moment > Instant::now();
            if !later {
                held.insert(session.clone(), None);
                strike(&mut administrator, running, session);
            }
            later
        });
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Which of these processes the database's session belongs to.
fn process_of(administrator: &mut Connection, running: &BTreeMap<usize, Running>, session: &str) -> Option<usize> {
    let pid = format!("SELECT concat(pid, '') FROM attempts WHERE session = {session} AND ended_at IS NULL");
    let pid = administrator.texts(&pid).pop()?;
    running.iter().find(|(_, delivery)| delivery.id().to_string() == pid).map(|(number, _)| *number)
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

/// A random moment within `span` for each of these.
fn moments(random: &mut Random, numbers: impl Iterator<Item = usize>, span: Duration) -> Moments {
    let mut moments: Vec<_> = numbers.map(|number| (random.below(span), number)).collect();
    moments.sort();
    Moments(moments)
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
