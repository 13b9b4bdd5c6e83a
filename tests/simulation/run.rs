//! One schedule: processes for one or two messages, in turns, with what goes wrong on the way, and Postfix's retries.

use crate::choice::Choice;
use crate::database::Connection;
use crate::environment;
use crate::mailbox::SimulatedMailbox;
use crate::mistake::{self, Database, Mistake, MistakenMailbox, Pending};
use crate::promises;
use crate::scenario::{A_LONG_TIME, GIVEN_UP, Job, Left, Scenario, lock_name};
use crate::world::{Fate, Lingering, Name, Point, SETTLE, World};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};
use maildrop_command::delivery::{self, Caller, Delivery, NoCaller, OwedCopy, Policy, Stages, Whose};
use maildrop_command::message::Message;
use maildrop_command::message::Role;
use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;
use time::OffsetDateTime;

/// It returns what came of each recipient.
type Routine = Coroutine<Fate, Point, Vec<Result<(), String>>>;

struct Running {
    number: usize,
    job: usize,
    /// The recipients that it delivers to, by their places in the job.
    recipients: Vec<usize>,
    at: Point,
    routine: Option<Routine>,
}

thread_local! {
    /// Stacks that coroutines have left: to map a new one for each would cost more than most deliveries.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut routine) = self.routine.take() {
            routine.force_unwind();
            STACKS.with_borrow_mut(|stacks| stacks.push(routine.into_stack()));
        }
    }
}

/// What happened, for people; kept only where somebody will read it.
#[derive(Debug, Default)]
pub struct Trace {
    pub kept: bool,
    pub lines: Vec<String>,
}

impl Trace {
    pub fn say(&mut self, line: impl FnOnce() -> String) {
        if self.kept {
            self.lines.push(line());
        }
    }
}

/// What a schedule came to.
pub enum Ended {
    /// Everybody is done.
    AllDone {
        /// Whether two copies ever stood in one mailbox.
        was_there_twice: bool,
    },
    /// It came to a state from which all that follows has been seen.
    SeenBefore,
}

/// Two messages that bear one Message-ID, for whoever needs the second; and the beginning of the first.
pub type Messages = [Message; 3];

/// Which of them is the beginning of one.
const CUT: usize = 2;

fn messages() -> Rc<Messages> {
    thread_local! {
        static MESSAGES: Rc<Messages> = Rc::new(make_messages());
    }
    MESSAGES.with(Rc::clone)
}

fn make_messages() -> Messages {
    let message = |body: &str| {
        let raw = format!(
            "Delivered-To: someone\nFrom: lisa@gmail.com\nTo: scuba@mail.axial.net, doug@mail.axial.net\n\
             Message-ID: <123-abc@mail.google.com>\n\n{body}\n"
        );
        Message::receive(raw.into_bytes()).expect("it is not empty")
    };
    [message("Hello"), message("Something else under the same name"), message("He")]
}

/// A schedule under way.
struct Schedule<'s> {
    scenario: &'s Scenario,
    world: Rc<RefCell<World>>,
    messages: Rc<Messages>,
    running: Vec<Running>,
    /// Jobs that were deferred, or whose process died.
    waiting: Vec<usize>,
    /// Which recipients of each job are delivered.
    done: Vec<Vec<bool>>,
    /// How often each job was started.
    started: Vec<usize>,
    left: Left,
    /// Who went on last.
    last: Option<usize>,
}

/// Runs one schedule to its end; `Err` says which promise was broken.
pub fn run(scenario: &Scenario, choice: &mut Choice, trace: &mut Trace) -> Result<Ended, String> {
    let mut world = World::new(scenario.engine, scenario.uid_plus);
    world.keeps_before = scenario.left.fail_overs > 0;
    world.keeps_told = matches!(choice, Choice::Every(_));
    world.tick = i64::from(!scenario.one_moment);
    world.several_locks = scenario.has_several_locks();
    let messages = messages();
    scenario.before.prepare(&mut world, &messages[0]);
    let mut schedule = Schedule {
        scenario,
        world: Rc::new(RefCell::new(world)),
        messages,
        running: Vec::new(),
        waiting: Vec::new(),
        done: scenario.jobs.iter().map(|job| vec![false; job.recipients.len()]).collect(),
        started: vec![0; scenario.jobs.len()],
        left: scenario.left,
        last: None,
    };
    for job in 0..scenario.jobs.len() {
        schedule.start(job);
    }
    for _ in 0..3000 {
        if choice.known(|| schedule.state()) {
            return Ok(Ended::SeenBefore);
        }
        if schedule.running.is_empty() {
            environment::settle(&mut schedule.world.borrow_mut(), choice, trace);
            if schedule.waiting.is_empty() {
                let world = schedule.world.borrow();
                promises::ended(scenario, &schedule.done, &schedule.messages, &world)?;
                promises::nothing_cut(schedule.messages[CUT].identity(), &world)?;
                return Ok(Ended::AllDone { was_there_twice: world.was_there_twice });
            }
            // Nobody runs any more, and Postfix's retry comes after `settle`: whatever a dead process had sent has been
            // carried out by then, or never will be.
            for job in std::mem::take(&mut schedule.waiting) {
                trace.say(|| format!("retry of job {job}"));
                schedule.start(job);
            }
            schedule.last = None;
        } else {
            schedule.step(choice, trace)?;
        }
    }
    Err("it does not end".into())
}

impl Schedule<'_> {
    /// Everything that what follows can depend on.
    fn state(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        for process in &self.running {
            (process.number, process.job, process.at).hash(&mut hash);
        }
        (&self.waiting, &self.done, &self.started, self.left, self.last).hash(&mut hash);
        self.world.borrow().hash_state(&mut hash, self.scenario.sent_retry_for < A_LONG_TIME);
        hash.finish()
    }

    fn start(&mut self, job: usize) {
        let number = self.scenario.number_of(job, self.started[job]);
        self.started[job] += 1;
        if self.scenario.is_cut(number) {
            self.world.borrow_mut().orphans.insert(number);
        }
        let recipients: Vec<usize> = (0..self.done[job].len()).filter(|&place| self.is_left(job, place)).collect();
        let (world, messages) = (Rc::clone(&self.world), Rc::clone(&self.messages));
        let mut routine = process(number, self.scenario, job, &recipients, world, messages);
        match routine.resume(Fate::Go) {
            CoroutineResult::Yield(at) => {
                self.running.push(Running { number, job, recipients, at, routine: Some(routine) });
            }
            CoroutineResult::Return(_) => unreachable!("a delivery makes at least one call"),
        }
    }

    /// Something happens by itself, or a process goes on to its next stop.
    fn step(&mut self, choice: &mut Choice, trace: &mut Trace) -> Result<(), String> {
        if self.left.hasty_retries > 0
            && let Some(which) = choice.of(self.waiting.len() + 1).checked_sub(1)
        {
            self.left.hasty_retries -= 1;
            let job = self.waiting.remove(which);
            trace.say(|| format!("hasty retry of job {job}"));
            self.start(job);
            return Ok(());
        }
        let alive: Vec<usize> = self.running.iter().map(|process| process.number).collect();
        if environment::happens(&alive, &mut self.world.borrow_mut(), choice, &mut self.left, trace) {
            return Ok(());
        }
        // Who goes on: the last one, or somebody else.
        let here = self.running.iter().position(|process| Some(process.number) == self.last);
        let which = match here {
            Some(here) if self.left.preemptions == 0 || self.running.len() == 1 => here,
            Some(here) => {
                let picked = (here + choice.of(self.running.len())) % self.running.len();
                self.left.preemptions -= usize::from(picked != here);
                picked
            }
            None => choice.of(self.running.len()),
        };
        let Running { number, job, at, .. } = self.running[which];
        self.last = Some(number);
        let strike = self.strike(number, at, choice);
        let side = if at.after { "after" } else { "before" };
        trace.say(|| format!("process {number} (job {job}) {side} {}: {strike:?}", at.call));
        match strike {
            Strike::Dies { noticed } => {
                let mut died = self.running.remove(which);
                if !noticed {
                    self.leave_unnoticed(&mut died);
                }
                drop(died);
                self.world.borrow_mut().is_gone(number);
                self.is_deferred(job);
            }
            Strike::Meets(fate) => {
                let result = {
                    let process = &mut self.running[which];
                    match process.routine.as_mut().expect("it runs").resume(fate) {
                        CoroutineResult::Yield(at) => {
                            process.at = at;
                            return Ok(());
                        }
                        CoroutineResult::Return(result) => result,
                    }
                };
                let recipients = std::mem::take(&mut self.running[which].recipients);
                drop(self.running.remove(which));
                let unheard = self.world.borrow().orphans.contains(&number);
                let whole = !self.scenario.is_cut(number);
                // All hear it at once.
                for (&place, _) in recipients.iter().zip(&result).filter(|(_, result)| result.is_ok()) {
                    self.done[job][place] = whole && !unheard;
                }
                // As far as this process knows.
                let known = |place: usize| !self.is_left(job, place) || recipients.contains(&place);
                let nobody_comes_back = result.iter().all(Result::is_ok) && (0..self.done[job].len()).all(known);
                for (&place, result) in recipients.iter().zip(&result) {
                    let recipient = self.scenario.jobs[job].recipients[place];
                    match result {
                        Ok(()) if !whole => {
                            trace.say(|| format!("{recipient} is delivered, cut short, and nobody hears of it"));
                        }
                        Ok(()) => {
                            trace.say(|| format!("job {job}: {recipient} is delivered"));
                            let (scenario, world) = (self.scenario, self.world.borrow());
                            let who = (job, recipient);
                            promises::delivered(scenario, number, who, nobody_comes_back, &self.messages, &world)?;
                        }
                        Err(why) => {
                            trace.say(|| format!("job {job}: {recipient} is deferred: {why}"));
                            if !unheard {
                                promises::deferred(self.scenario, number, self.left, &self.world.borrow())?;
                            }
                        }
                    }
                }
                if (0..self.done[job].len()).any(|place| self.is_left(job, place)) {
                    self.is_deferred(job);
                }
                self.world.borrow_mut().is_gone(number);
            }
        }
        Ok(())
    }

    /// Whether a recipient is still to be delivered to: neither delivered, nor given up.
    fn is_left(&self, job: usize, place: usize) -> bool {
        let Job { recipients, full, .. } = &self.scenario.jobs[job];
        let given_up = *full == Some(recipients[place]) && self.started[job] > GIVEN_UP;
        !self.done[job][place] && !given_up
    }

    fn is_deferred(&mut self, job: usize) {
        if self.scenario.jobs[job].retried {
            self.waiting.push(job);
        }
    }

    /// What happens to a process at a point.
    fn strike(&mut self, process: usize, at: Point, choice: &mut Choice) -> Strike {
        if self.left.faults == 0 {
            return Strike::Meets(Fate::Go);
        }
        let world = self.world.borrow();
        let mut strikes = vec![Strike::Dies { noticed: true }, Strike::Meets(Fate::Lose)];
        if !at.after && self.scenario.refusals && matches!(at.call, "position" | "append" | "find") {
            strikes.push(Strike::Meets(Fate::Refuse));
        }
        // It makes a difference where the session has something left to do, or to hold on to.
        let linger = world.holds(process) || (at.is_asking_for_a_change() && !world.severed.contains(&process));
        let lingers = world.lingering.iter().any(|session| session.process == process);
        if linger && !lingers {
            strikes.push(Strike::Dies { noticed: false });
            if at.database {
                strikes.push(Strike::Meets(Fate::LoseUnnoticed));
            }
        }
        drop(world);
        match choice.mishap(strikes.len() + 1).checked_sub(1) {
            None => Strike::Meets(Fate::Go),
            Some(which) => {
                self.left.faults -= 1;
                strikes[which]
            }
        }
    }

    /// A process dies, and the database server does not notice: it goes on with what it was sent, and with the lock.
    fn leave_unnoticed(&mut self, died: &mut Running) {
        if died.at.is_asking_for_a_change() {
            // It hears that the connection is lost, goes on to its next stop, and dies there; without a database it changes
            // nothing on the way.
            if let CoroutineResult::Yield(_) = died.routine.as_mut().expect("it runs").resume(Fate::LoseUnnoticed) {}
        } else {
            self.world.borrow_mut().lingering.push(Lingering { process: died.number, statement: None });
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Strike {
    Meets(Fate),
    Dies { noticed: bool },
}

impl Point {
    /// Whether the database is being sent something that changes it.
    fn is_asking_for_a_change(self) -> bool {
        self.database && !self.after && matches!(self.call, "journal" | "acquire" | "record" | "release")
    }
}

/// Whoever handed a process its message.
#[derive(Debug)]
struct SimulatedCaller {
    number: usize,
    world: Rc<RefCell<World>>,
}

impl Caller for SimulatedCaller {
    fn is_gone(&self) -> bool {
        let mut world = self.world.borrow_mut();
        let gone = world.orphans.contains(&self.number);
        world.tell(self.number, &gone);
        gone
    }
}

/// One process: the real delivery, on simulated servers.
fn process(
    number: usize,
    scenario: &Scenario,
    job: usize,
    recipients: &[usize],
    world: Rc<RefCell<World>>,
    messages: Rc<Messages>,
) -> Routine {
    let recipients: Vec<&'static str> = recipients.iter().map(|&place| scenario.jobs[job].recipients[place]).collect();
    let (job, sent_retry_for, mistake) = (scenario.jobs[job].clone(), scenario.sent_retry_for, scenario.mistake);
    let cut = scenario.is_cut(number);
    let stack = STACKS.with_borrow_mut(Vec::pop).unwrap_or_default();
    Coroutine::with_stack(stack, move |yielder, _| {
        let message = &messages[if cut { CUT } else { job.message }];
        let policy = Policy {
            lock_wait: Duration::ZERO,
            settle: Duration::from_millis(SETTLE.unsigned_abs()),
            sent_retry_for,
            batch_patience: Duration::from_secs(60),
            over_quota_refuses: false,
            look_in_sent: false,
            keep_source_up_to: 0,
        };
        let caller = SimulatedCaller { number, world: Rc::clone(&world) };
        let delivery = Delivery {
            message,
            sender: "lisa@gmail.com",
            recipients: &recipients.iter().map(ToString::to_string).collect::<Vec<_>>(),
            queue_id: None,
            lock: &lock_name(job.namespace),
            attempt: Scenario::attempt_of(number),
            host: "mx1",
            pid: 1,
            arrived: OffsetDateTime::UNIX_EPOCH,
            policy: &policy,
            caller: if mistake == Some(Mistake::NoLookAtTheCaller) { &NoCaller } else { &caller },
            restore: job.restore,
        };
        let pending = Pending::default();
        let mut mailboxes: Vec<Name> = recipients.iter().map(|&recipient| (recipient, "INBOX")).collect();
        mailboxes.extend(job.sent.then_some(("lisa", "Sent")));
        let mut mailboxes: Vec<(Name, MistakenMailbox<'_>)> = mailboxes
            .into_iter()
            .map(|name| {
                let mut mailbox = SimulatedMailbox::new(name, number, Rc::clone(&world), yielder);
                mailbox.full = name.1 == "INBOX" && job.full == Some(name.0);
                (name, MistakenMailbox { mailbox, mistake, pending: Rc::clone(&pending), pretended: None })
            })
            .collect();
        let owed = mailboxes.iter_mut().enumerate().map(|(place, (name, mailbox))| OwedCopy {
            role: if place < recipients.len() { Role::Recipient } else { Role::Sender },
            whose: if place < recipients.len() { Whose::Recipients(vec![place]) } else { Whose::Authors },
            user: name.0.into(),
            mailbox_name: name.1.into(),
            mailbox: Ok(mailbox),
        });
        let owed = owed.collect();
        let connection = Connection { number, world: Rc::clone(&world), yielder, alive: true };
        let mut database = Database::new(connection, mistake, Rc::clone(&pending));
        let results = delivery::deliver(&delivery, &mut database, owed, &mut Stages::default());
        mistake::outcomes(mistake, results)
    })
}
