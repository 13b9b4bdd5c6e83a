//! One schedule: processes for one or two messages, in turns, with what goes wrong on the way, and Postfix's retries.

use crate::choice::Choice;
use crate::mistake::{self, Database, Mistake, MistakenMailbox, Pending};
use crate::world::{Box_, Engine, Fate, Point, Process, Row, SETTLE, SimulatedMailbox, World};
use corosensei::{Coroutine, CoroutineResult};
use maildrop_command::delivery::{self, Delivery, OwedCopy, Policy, Stages};
use maildrop_command::ledger::CopyKey;
use maildrop_command::lock::LockName;
use maildrop_command::mailbox::{MailboxError, Role};
use maildrop_command::message::Message;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

/// Longer than any schedule.
pub const A_LONG_TIME: Duration = Duration::from_secs(1 << 30);

/// What a schedule may contain.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub engine: Engine,
    /// Whether the mailbox store tells UIDs and can expunge one (UIDPLUS).
    pub uid_plus: bool,
    /// The jobs: what Postfix (or an operator) wants delivered.
    pub jobs: Vec<Job>,
    /// How many faults may happen in one schedule.
    pub faults: usize,
    /// How often another process may take over from one that could go on.
    pub preemptions: usize,
    /// How often a retry may come before an earlier attempt is settled.
    pub hasty_retries: usize,
    /// How often the owner of a mailbox takes a copy away.
    pub user_deletes: usize,
    /// How often a mailbox gets a new UIDVALIDITY.
    pub renumberings: usize,
    /// Whether the sender's mailbox may be out of reach, and appends may be refused.
    pub refusals: bool,
    /// How often the database fails over and forgets its last commits.
    pub fail_overs: usize,
    /// How often the database's clock is set back.
    pub clocks_set_back: usize,
    /// How often somebody deletes a whole mailbox; it is made anew when it is next asked for.
    pub mailboxes_deleted: usize,
    /// For how long a Sent copy is tried before it stays owed.
    pub sent_retry_for: Duration,
    /// A mistake that every process makes.
    pub mistake: Option<Mistake>,
}

/// One message for one envelope recipient.
#[derive(Clone, Debug)]
pub struct Job {
    pub recipient: &'static str,
    pub message: usize,
    pub sent: bool,
    /// Postfix tries again until it hears 0; an operator's replay that failed may be forgotten.
    pub retried: bool,
}

type Routine = Coroutine<Fate, Point, Result<(), String>>;

struct Running {
    number: usize,
    job: usize,
    routine: Routine,
    at: Point,
}

/// What a schedule came to.
#[derive(Debug, Default)]
pub struct Trace(pub Vec<String>);

/// Two messages that bear one Message-ID, for whoever needs the second.
fn messages() -> Rc<[Message; 2]> {
    thread_local! {
        static MESSAGES: Rc<[Message; 2]> = Rc::new(make_messages());
    }
    MESSAGES.with(Rc::clone)
}

fn make_messages() -> [Message; 2] {
    let message = |body: &str| {
        let raw = format!(
            "Delivered-To: someone\nFrom: lisa@gmail.com\nTo: scuba@mail.axial.net, doug@mail.axial.net\n\
             Message-ID: <123-abc@mail.google.com>\n\n{body}\n"
        );
        Message::receive(raw.into_bytes()).expect("it is not empty")
    };
    [message("Hello"), message("Something else under the same name")]
}

/// Runs one schedule to its end; `Err` says which promise was broken.
pub fn run(scenario: &Scenario, choice: &mut Choice, trace: &mut Trace) -> Result<(), String> {
    let world = Rc::new(RefCell::new(World::new(scenario.engine, scenario.uid_plus)));
    let messages = messages();
    let mut running: Vec<Running> = Vec::new();
    let mut waiting: Vec<usize> = Vec::new();
    let mut done = vec![false; scenario.jobs.len()];
    let mut left = Left {
        faults: scenario.faults,
        preemptions: scenario.preemptions,
        hasty_retries: scenario.hasty_retries,
        user_deletes: scenario.user_deletes,
        renumberings: scenario.renumberings,
        fail_overs: scenario.fail_overs,
        clocks_set_back: scenario.clocks_set_back,
        mailboxes_deleted: scenario.mailboxes_deleted,
    };
    let mut number = 0;
    let mut start = |job: usize, running: &mut Vec<Running>| {
        number += 1;
        let mut routine = process(number, scenario, job, Rc::clone(&world), Rc::clone(&messages));
        match routine.resume(Fate::Go) {
            CoroutineResult::Yield(at) => running.push(Running { number, job, routine, at }),
            CoroutineResult::Return(_) => unreachable!("a delivery makes at least one call"),
        }
    };
    for job in 0..scenario.jobs.len() {
        start(job, &mut running);
    }
    let mut last = 0;
    let mut steps = 0;
    loop {
        steps += 1;
        if steps > 3000 {
            return Err("it does not end".into());
        }
        if running.is_empty() {
            let Some(job) = waiting.pop() else { break };
            // Nobody runs any more, and Postfix's retry comes after `settle`: whatever a dead process had sent has
            // landed by then, or never will.
            settle(&world, choice, trace);
            trace.0.push(format!("retry of job {job}"));
            start(job, &mut running);
            for job in waiting.drain(..) {
                start(job, &mut running);
            }
            last = 0;
            continue;
        }
        if !waiting.is_empty() && left.hasty_retries > 0 && choice.of(2) == 1 {
            left.hasty_retries -= 1;
            let job = waiting.remove(0);
            trace.0.push(format!("hasty retry of job {job}"));
            start(job, &mut running);
        }
        let alive: Vec<usize> = running.iter().map(|process| process.number).collect();
        disturb(&alive, &world, choice, &mut left, trace);
        // Who goes on: the last one, or somebody else.
        let here = running.iter().position(|process| process.number == last);
        let which = match here {
            Some(here) if left.preemptions == 0 || running.len() == 1 => here,
            Some(here) => {
                let picked = (here + choice.of(running.len())) % running.len();
                left.preemptions -= usize::from(picked != here);
                picked
            }
            None => choice.of(running.len()),
        };
        let process = &mut running[which];
        last = process.number;
        let fate = fate(scenario, process.at, choice, &mut left);
        let at = process.at;
        let side = if at.after { "after" } else { "before" };
        let Some(fate) = fate else {
            let died = running.remove(which);
            trace.0.push(format!("process {} (job {}) dies {side} {}", died.number, died.job, at.call));
            drop(died.routine);
            world.borrow_mut().forget(died.number);
            world.borrow_mut().dead.push(died.number);
            if scenario.jobs[died.job].retried {
                waiting.push(died.job);
            }
            continue;
        };
        trace.0.push(format!("process {} (job {}) {side} {}: {fate:?}", process.number, process.job, at.call));
        match process.routine.resume(fate) {
            CoroutineResult::Yield(at) => process.at = at,
            CoroutineResult::Return(result) => {
                let ended = running.remove(which);
                world.borrow_mut().forget(ended.number);
                world.borrow_mut().dead.push(ended.number);
                match result {
                    Ok(()) => {
                        trace.0.push(format!("job {} is delivered", ended.job));
                        done[ended.job] = true;
                        delivered(scenario, &scenario.jobs[ended.job], &messages, &world.borrow())?;
                    }
                    Err(why) => {
                        trace.0.push(format!("job {} is deferred: {why}", ended.job));
                        if scenario.jobs[ended.job].retried {
                            waiting.push(ended.job);
                        }
                    }
                }
            }
        }
    }
    settle(&world, choice, trace);
    ended(scenario, &done, &messages, &world.borrow())
}

struct Left {
    faults: usize,
    preemptions: usize,
    hasty_retries: usize,
    user_deletes: usize,
    renumberings: usize,
    fail_overs: usize,
    clocks_set_back: usize,
    mailboxes_deleted: usize,
}

/// What happens to a process at a point; `None`: it dies there.
fn fate(scenario: &Scenario, at: Point, choice: &mut Choice, left: &mut Left) -> Option<Fate> {
    if left.faults == 0 {
        return Some(Fate::Go);
    }
    let can_refuse = scenario.refusals && !at.after && matches!(at.call, "position" | "append" | "find");
    let fate = match choice.mishap(if can_refuse { 4 } else { 3 }) {
        0 => return Some(Fate::Go),
        1 => None,
        2 => Some(Fate::Lose),
        _ => Some(Fate::Refuse),
    };
    left.faults -= 1;
    fate
}

/// Time passes until every dead process's APPEND has landed, or never will.
fn settle(world: &Rc<RefCell<World>>, choice: &mut Choice, trace: &mut Trace) {
    let mut world = world.borrow_mut();
    while !world.late.is_empty() {
        let lands = choice.of(2) == 0;
        trace.0.push(format!(
            "what process {} sent {}",
            world.late[0].process,
            if lands { "lands" } else { "is lost" }
        ));
        if lands { world.land(0) } else { drop(world.late.remove(0)) }
    }
    world.clock += SETTLE + 1.0;
}

/// What happens by itself: an APPEND of a dead process lands, an owner deletes a copy, a mailbox is renumbered.
fn disturb(alive: &[usize], world: &Rc<RefCell<World>>, choice: &mut Choice, left: &mut Left, trace: &mut Trace) {
    let mut world = world.borrow_mut();
    let dead = |world: &World, which: usize| world.late[which].process;
    let late =
        (0..world.late.len()).find(|&which| world.late[which].abandoned || world.dead.contains(&dead(&world, which)));
    if let Some(which) = late
        && choice.mishap(2) == 1
    {
        trace.0.push(format!("what process {} sent lands", dead(&world, which)));
        world.land(which);
    }
    // A lock that is lost while its holder is busy elsewhere: in the very moment between its last look and its APPEND.
    let holders: Vec<usize> =
        alive.iter().copied().filter(|process| world.locks.values().any(|h| h == process)).collect();
    if left.faults > 0
        && let Some(&holder) = holders.first()
        && choice.mishap(2) == 1
    {
        left.faults -= 1;
        trace.0.push(format!("the server ends the connection of process {holder}, and frees its lock"));
        world.sever(holder);
    }
    if left.fail_overs > 0 {
        let commits = choice.mishap(5);
        if commits > 0 {
            left.fail_overs -= 1;
            trace.0.push(format!("the database fails over, and forgets {} commits", commits - 1));
            world.fail_over(commits - 1, alive.iter().copied());
        }
    }
    if left.clocks_set_back > 0 && choice.mishap(2) == 1 {
        left.clocks_set_back -= 1;
        trace.0.push("the database's clock is set back".into());
        world.clock -= 2.5 * SETTLE;
    }
    if left.mailboxes_deleted > 0 {
        let names: Vec<_> = world.boxes.keys().cloned().collect();
        let picked = choice.mishap(names.len() + 1);
        if picked > 0 {
            left.mailboxes_deleted -= 1;
            trace.0.push(format!("{:?} is deleted, and made anew", names[picked - 1]));
            let mailbox: &mut Box_ = world.mailbox(&names[picked - 1]);
            *mailbox = Box_ { uid_validity: mailbox.uid_validity + 1, uid_next: 1, touched: true, ..Box_::default() };
        }
    }
    if left.user_deletes > 0 {
        let names: Vec<_> =
            world.boxes.iter().filter(|(_, b)| !b.messages.is_empty()).map(|(n, _)| n.clone()).collect();
        let picked = choice.mishap(names.len() + 1);
        if picked > 0 {
            let name = &names[picked - 1];
            left.user_deletes -= 1;
            trace.0.push(format!("the owner of {name:?} takes a copy away"));
            let mailbox: &mut Box_ = world.mailbox(name);
            mailbox.messages.remove(0);
            mailbox.touched = true;
        }
    }
    if left.renumberings > 0 {
        let names: Vec<_> = world.boxes.keys().cloned().collect();
        let picked = choice.mishap(names.len() + 1);
        if picked > 0 {
            left.renumberings -= 1;
            trace.0.push(format!("{:?} gets a new UIDVALIDITY", names[picked - 1]));
            let mailbox: &mut Box_ = world.mailbox(&names[picked - 1]);
            mailbox.uid_validity += 1;
            for (n, message) in (1..).zip(mailbox.messages.iter_mut()) {
                message.0 = n;
            }
            mailbox.uid_next = u32::try_from(mailbox.messages.len()).expect("few") + 1;
            mailbox.touched = true;
        }
    }
}

/// One process: the real delivery, on simulated servers.
fn process(
    number: usize,
    scenario: &Scenario,
    job: usize,
    world: Rc<RefCell<World>>,
    messages: Rc<[Message; 2]>,
) -> Routine {
    let (job, sent_retry_for, mistake) = (scenario.jobs[job].clone(), scenario.sent_retry_for, scenario.mistake);
    Coroutine::new(move |yielder, _| {
        let message = &messages[job.message];
        let policy = Policy {
            lock_wait: Duration::ZERO,
            settle: Duration::from_secs_f64(SETTLE),
            sent_retry_for,
            over_quota_refuses: false,
            look_in_sent: false,
            keep_source_up_to: 0,
        };
        let delivery = Delivery {
            message,
            sender: "lisa@gmail.com",
            recipient: job.recipient,
            queue_id: None,
            lock: &LockName::new("simulation", b"123-abc@mail.google.com"),
            attempt: Uuid::from_u128(number as u128),
            host: "mx1",
            pid: 1,
            arrived: OffsetDateTime::UNIX_EPOCH,
            policy: &policy,
        };
        let pending = Pending::default();
        let open = |role: Role, user: &str, mailbox: &str| OwedCopy {
            role,
            user: user.into(),
            mailbox_name: mailbox.into(),
            mailbox: Ok::<_, MailboxError>(Box::new(MistakenMailbox {
                mailbox: SimulatedMailbox {
                    name: (user.into(), mailbox.into()),
                    number,
                    world: Rc::clone(&world),
                    yielder,
                    alive: true,
                },
                mistake,
                pending: Rc::clone(&pending),
            })),
        };
        let mut owed = vec![open(Role::Recipient, job.recipient, "INBOX")];
        if job.sent {
            owed.push(open(Role::Sender, "lisa", "Sent"));
        }
        let process = Process { number, world: Rc::clone(&world), yielder, database_alive: true };
        let mut database = Database::new(process, mistake, Rc::clone(&pending));
        match delivery::deliver(&delivery, &mut database, owed, &mut Stages::default()) {
            Ok(_) => Ok(()),
            Err(refusal) => mistake::outcome(mistake, &refusal),
        }
    })
}

/// The copies that a job owes.
fn owed(job: &Job, messages: &[Message; 2]) -> Vec<((String, String), CopyKey)> {
    let identity = messages[job.message].identity();
    let mut owed = vec![(
        (job.recipient.to_owned(), "INBOX".to_owned()),
        CopyKey::new(identity, Role::Recipient, job.recipient, "INBOX"),
    )];
    if job.sent {
        let name = ("lisa".to_owned(), "Sent".to_owned());
        owed.push((name, CopyKey::new(identity, Role::Sender, "lisa", "Sent")));
    }
    owed
}

/// A sender's copy that could not be appended for long enough stays owed, and is no loss.
fn may_stay_owed(scenario: &Scenario, name: &(String, String)) -> bool {
    name.1 == "Sent" && scenario.sent_retry_for < A_LONG_TIME
}

/// Exit 0 was said: the copies are there, and recorded.
fn delivered(scenario: &Scenario, job: &Job, messages: &[Message; 2], world: &World) -> Result<(), String> {
    let identity = messages[job.message].identity();
    for (name, key) in owed(job, messages) {
        match world.copies.get(&key) {
            Some(Row::Delivered(_)) => {}
            Some(Row::Owed) if may_stay_owed(scenario, &name) => continue,
            None if world.forgot => {}
            other => return Err(format!("exit 0, but the ledger has {other:?} for {name:?}")),
        }
        let mailbox = world.boxes.get(&name);
        let there = mailbox.is_some_and(|mailbox| mailbox.messages.iter().any(|(_, what)| what == identity));
        if !there && !mailbox.is_some_and(|mailbox| mailbox.touched) {
            return Err(format!("LOST: exit 0, but no copy in {name:?}"));
        }
    }
    Ok(())
}

/// All processes have finished or died, and every retry has run.
fn ended(scenario: &Scenario, done: &[bool], messages: &[Message; 2], world: &World) -> Result<(), String> {
    if world.two_at_once {
        return Err("TWICE: the holder of the lock appended a copy beside another one".into());
    }
    if world.last_copy_removed {
        return Err("LOST: the last copy was taken out".into());
    }
    if !world.locks.is_empty() {
        return Err("a lock is still held".into());
    }
    for (job, done) in scenario.jobs.iter().zip(done) {
        if !done && job.retried {
            return Err(format!("{} was never delivered", job.recipient));
        }
        if !done {
            continue;
        }
        let identity = messages[job.message].identity();
        for (name, key) in owed(job, messages) {
            let stays_owed = world.copies.get(&key) == Some(&Row::Owed) && may_stay_owed(scenario, &name);
            let Some(mailbox) = world.boxes.get(&name) else { return Err(format!("LOST: no {name:?}")) };
            let copies = mailbox.messages.iter().filter(|(_, what)| what == identity).count();
            if copies == 0 && !mailbox.touched && !stays_owed {
                return Err(format!("LOST: no copy in {name:?}"));
            }
            // In doubt a second copy, never none: where an owner or a renumbering had a hand in it, where a forgotten
            // replay left one behind, where the database forgot, where a sender's
            // copy was given up while its APPEND was still on its way, or where the store cannot expunge.
            let excused = mailbox.touched
                || world.forgot
                || !scenario.uid_plus
                || scenario.jobs.iter().any(|job| !job.retried)
                || may_stay_owed(scenario, &name);
            if copies > 1 && !excused {
                return Err(format!("TWICE: {copies} copies in {name:?}"));
            }
        }
    }
    Ok(())
}
