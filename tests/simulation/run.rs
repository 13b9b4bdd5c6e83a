//! One schedule: processes for one or two messages, in turns, with what goes wrong on the way, and Postfix's retries.

use crate::choice::Choice;
use crate::environment;
use crate::mistake::End;
use crate::process::{Given, Running};
use crate::promises;
use crate::scenario::{A_LONG_TIME, By, GIVEN_UP, Job, Left, Scenario};
use crate::service::{Around, Effect, Service};
use crate::world::{Fate, Lingering, Point, Row, World};
use maildrop_command::ledger::CopyKey;
use maildrop_command::message::{Message, Role};
use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

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
        was_duplicated: bool,
    },
    /// It came to a state from which all that follows has been seen.
    SeenBefore,
}

/// Two messages that bear one Message-ID, for the scenarios that need the second; and the beginning of the first.
pub type Messages = [Rc<Message>; 3];

/// Which of them is the beginning of one.
pub const CUT: usize = 2;

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
        Rc::new(Message::receive(raw.into_bytes()).expect("it is not empty"))
    };
    [message("Hello"), message("Something else under the same name"), message("He")]
}

/// A schedule under way.
struct Schedule<'s> {
    scenario: &'s Scenario,
    world: Rc<RefCell<World>>,
    messages: Rc<Messages>,
    running: Vec<Running>,
    /// Fronts, brokers, workers and their clients; `None` where each job is a process of its own.
    service: Option<Service<'s>>,
    /// Jobs that were deferred, or whose process died.
    waiting: Vec<usize>,
    /// Which recipients of each job are delivered.
    done: Vec<Vec<bool>>,
    /// How often Postfix has tried each job.
    tried: Vec<usize>,
    /// How many processes have delivered for each job, or died of it.
    started: Vec<usize>,
    left: Left,
    /// Who went on last.
    last: Option<Who>,
}

/// Who may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Who {
    /// The process of this number.
    Process(usize),
    /// The program that pipe(8) has started for this job, and that asks the service.
    Client(usize),
}

/// Runs one schedule to its end; `Err` says which promise was broken.
pub fn run(scenario: &Scenario, choice: &mut Choice, trace: &mut Trace) -> Result<Ended, String> {
    let mut world = World::new(scenario.engine, scenario.uid_plus);
    world.keeps_before = scenario.left.may_fail_over();
    world.keeps_answers = matches!(choice, Choice::Every(_));
    world.tick = i64::from(!scenario.one_moment);
    world.several_locks = scenario.has_several_locks();
    let messages = messages();
    scenario.before.prepare(&mut world, &messages[0]);
    let mut schedule = Schedule {
        scenario,
        world: Rc::new(RefCell::new(world)),
        messages,
        running: Vec::new(),
        service: None,
        waiting: Vec::new(),
        done: scenario.jobs.iter().map(|job| vec![false; job.recipients.len()]).collect(),
        tried: vec![0; scenario.jobs.len()],
        started: vec![0; scenario.jobs.len()],
        left: scenario.left,
        last: None,
    };
    if scenario.jobs.iter().any(|job| job.by != By::Pipe) {
        schedule.service = Some(Service::new(scenario));
        schedule.serve(choice, trace, Service::start_all)?;
    }
    for job in 0..scenario.jobs.len() {
        schedule.start(job, choice, trace)?;
    }
    for _ in 0..3000 {
        if choice.known(|| schedule.state()) {
            return Ok(Ended::SeenBefore);
        }
        let able = schedule.able();
        if !able.is_empty() {
            schedule.step(&able, choice, trace)?;
            continue;
        }
        // Nobody can go on. Somebody may wait for the service.
        if schedule.service.is_some() && schedule.serve(choice, trace, Service::waits)? {
            continue;
        }
        environment::settle(&mut schedule.world.borrow_mut(), choice, trace);
        if schedule.waiting.is_empty() {
            let world = schedule.world.borrow();
            promises::ended(scenario, &schedule.done, &schedule.messages, &world)?;
            promises::nothing_cut(schedule.messages[CUT].identity(), &world)?;
            schedule.service.as_ref().map_or(Ok(()), Service::ended)?;
            return Ok(Ended::AllDone { was_duplicated: world.was_duplicated });
        }
        if schedule.service.is_some() {
            schedule.serve(choice, trace, Service::settled)?;
        }
        // Nobody runs any more, and Postfix's retry comes after `append_grace`: whatever a dead process had sent has been
        // carried out by then, or never will be.
        for job in std::mem::take(&mut schedule.waiting) {
            trace.say(|| format!("retry of job {job}"));
            schedule.start(job, choice, trace)?;
        }
        schedule.last = None;
    }
    Err("it does not end".into())
}

impl<'s> Schedule<'s> {
    /// Everything that what follows can depend on.
    fn state(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        for process in &self.running {
            (process.number, process.job, process.at, process.worker, &process.recipients).hash(&mut hash);
        }
        (&self.waiting, &self.done, &self.tried, &self.started, self.left, self.last).hash(&mut hash);
        if let Some(service) = &self.service {
            service.hash_state(&mut hash);
        }
        self.world.borrow().hash_state(&mut hash, self.scenario.sent_retry_for < A_LONG_TIME);
        hash.finish()
    }

    /// Whether a job would finish what is owed, and nothing is. It comes again as long as others may leave something owed.
    fn has_nothing_to_finish(&mut self, job: usize) -> bool {
        let Job { finishes, message, .. } = self.scenario.jobs[job];
        let key = CopyKey::new(self.messages[message].identity(), Role::Sender, "lisa", "Sent");
        if !finishes || self.world.borrow().copies.get(&key) == Some(&Row::Owed) {
            return false;
        }
        let goes_on = |other: usize| (0..self.done[other].len()).any(|place| self.is_left(other, place));
        let others = (0..self.scenario.jobs.len()).filter(|&other| !self.scenario.jobs[other].finishes);
        if others.filter(|&other| self.scenario.jobs[other].retried).any(goes_on) {
            self.waiting.push(job);
        } else {
            self.done[job].fill(true);
        }
        true
    }

    /// Postfix hands a job over.
    fn start(&mut self, job: usize, choice: &mut Choice, trace: &mut Trace) -> Result<(), String> {
        if self.has_nothing_to_finish(job) {
            trace.say(|| format!("job {job}: nothing is owed"));
            return Ok(());
        }
        let cut = self.scenario.jobs[job].cut && self.tried[job] == 0;
        let recipients: Vec<usize> = (0..self.done[job].len()).filter(|&place| self.is_left(job, place)).collect();
        self.tried[job] += 1;
        let message = Rc::clone(&self.messages[if cut { CUT } else { self.scenario.jobs[job].message }]);
        match self.scenario.jobs[job].by {
            By::Pipe => self.begin(Given { number: 0, job, recipients, cut, worker: None, message }, cut),
            By::Lmtp(host) => {
                self.serve(choice, trace, |service, around| service.lmtp(host, job, recipients, &message, around))?;
            }
            By::Client(host) => {
                self.serve(choice, trace, |service, around| {
                    service.client(host, job, recipients, &message, cut, around)
                })?;
            }
        }
        Ok(())
    }

    /// A process begins. An orphan's caller has died.
    fn begin(&mut self, given: Given, orphan: bool) {
        let number = self.scenario.number_of(given.job, self.started[given.job]);
        self.started[given.job] += 1;
        if orphan {
            self.world.borrow_mut().orphans.insert(number);
        }
        // Of those who come later, some still reach a former primary.
        if let Some(former) = self.world.borrow_mut().former.as_mut().filter(|_| number.is_multiple_of(3)) {
            former.processes.insert(number);
        }
        self.running.push(Running::begin(Given { number, ..given }, self.scenario, &self.world));
    }

    /// Asks the service, and does what comes of it.
    fn serve<T>(
        &mut self,
        choice: &mut Choice,
        trace: &mut Trace,
        ask: impl FnOnce(&mut Service<'s>, &mut Around<'_>) -> Result<T, String>,
    ) -> Result<T, String> {
        let Some(service) = &mut self.service else { unreachable!("its caller has looked for it") };
        let answer = ask(service, &mut Around { choice, left: &mut self.left, trace })?;
        while let Some(effect) = self.service.as_mut().and_then(Service::next_effect) {
            match effect {
                Effect::Begin { worker, job, recipients, cut, message } => {
                    self.begin(Given { number: 0, job, recipients, cut, worker: Some(worker), message }, false);
                }
                Effect::Alone { job, recipients, cut, orphan, message } => {
                    self.begin(Given { number: 0, job, recipients, cut, worker: None, message }, orphan);
                }
                Effect::Replied { job, delivered } => self.check_reply(job, &delivered, trace)?,
                Effect::Deferred { job } => self.is_deferred(job),
                Effect::Kill { worker } => {
                    if let Some(which) = self.running.iter().position(|it| it.worker == Some(worker)) {
                        let Running { number, at, .. } = self.running[which];
                        let noticed = !self.may_linger(number, at) || choice.mishap(2) == 0;
                        self.dies(which, noticed);
                    }
                    let service = self.service.as_mut().expect("it was asked");
                    service.worker_died(worker, &mut Around { choice, left: &mut self.left, trace })?;
                }
            }
        }
        Ok(answer)
    }

    /// Postfix hears what became of a job's recipients, by their places.
    fn check_reply(&mut self, job: usize, replies: &[(usize, bool)], trace: &mut Trace) -> Result<(), String> {
        for &(place, _) in replies.iter().filter(|(_, delivered)| *delivered) {
            self.done[job][place] = true;
        }
        let all = self.done[job].iter().all(|done| *done);
        for &(place, delivered) in replies {
            let recipient = self.scenario.jobs[job].recipients[place];
            trace.say(|| {
                let word = if delivered { "delivered" } else { "deferred" };
                format!("job {job}: Postfix hears that {recipient} is {word}")
            });
            if delivered {
                promises::answered(self.scenario, (job, recipient), all, &self.messages, &self.world.borrow())?;
            }
        }
        if !all {
            self.is_deferred(job);
        }
        Ok(())
    }

    /// Who can go on.
    fn able(&self) -> Vec<Who> {
        let hangs = |worker: usize| self.service.as_ref().is_some_and(|service| service.is_stopped(worker));
        let running = self.running.iter().filter(|process| !process.worker.is_some_and(hangs));
        let clients = self.service.iter().flat_map(Service::able_clients);
        running.map(|process| Who::Process(process.number)).chain(clients.map(Who::Client)).collect()
    }

    /// Something happens by itself, or somebody goes on to his next stop.
    fn step(&mut self, able: &[Who], choice: &mut Choice, trace: &mut Trace) -> Result<(), String> {
        if self.left.hasty_retries > 0
            && let Some(which) = choice.of(self.waiting.len() + 1).checked_sub(1)
        {
            self.left.hasty_retries -= 1;
            let job = self.waiting.remove(which);
            trace.say(|| format!("hasty retry of job {job}"));
            return self.start(job, choice, trace);
        }
        let alive: Vec<usize> = self.running.iter().map(|process| process.number).collect();
        let with_callers = self.running.iter().filter(|process| process.worker.is_none());
        let with_callers: Vec<usize> = with_callers.map(|process| process.number).collect();
        let mut world = self.world.borrow_mut();
        if environment::happens((&alive, &with_callers), &mut world, choice, &mut self.left, trace) {
            return Ok(());
        }
        drop(world);
        if self.service.is_some() && self.serve(choice, trace, Service::happens)? {
            return Ok(());
        }
        // Who goes on: the last one, or somebody else.
        let here = able.iter().position(|who| Some(*who) == self.last);
        let which = match here {
            Some(here) if self.left.preemptions == 0 || able.len() == 1 => here,
            Some(here) => {
                let picked = (here + choice.of(able.len())) % able.len();
                self.left.preemptions -= usize::from(picked != here);
                picked
            }
            None => choice.of(able.len()),
        };
        self.last = Some(able[which]);
        match able[which] {
            Who::Process(number) => self.goes_on(number, choice, trace),
            Who::Client(job) => self.serve(choice, trace, |service, around| service.client_goes_on(job, around)),
        }
    }

    /// A process goes on to its next stop.
    fn goes_on(&mut self, number: usize, choice: &mut Choice, trace: &mut Trace) -> Result<(), String> {
        let which = self.running.iter().position(|it| it.number == number).expect("it was found able");
        let Running { job, at, worker, .. } = self.running[which];
        let strike = self.strike(number, at, choice);
        let side = if at.after { "after" } else { "before" };
        trace.say(|| format!("process {number} (job {job}) {side} {}: {strike:?}", at.call));
        match strike {
            Strike::Dies { noticed } => {
                self.dies(which, noticed);
                match worker {
                    None => self.is_deferred(job),
                    Some(worker) => {
                        self.serve(choice, trace, |service, around| service.worker_died(worker, around))?;
                    }
                }
            }
            Strike::Meets(fate) => {
                if let Some(ends) = self.running[which].go_on(fate) {
                    self.ends(which, &ends, trace)?;
                    if let Some(worker) = worker {
                        self.serve(choice, trace, |service, around| service.finished(worker, &ends, around))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn dies(&mut self, which: usize, noticed: bool) {
        let mut died = self.running.remove(which);
        if !noticed {
            self.leave_unnoticed(&mut died);
        }
        let number = died.number;
        drop(died);
        self.world.borrow_mut().is_gone(number);
    }

    /// A process has ended, and says what came of each recipient.
    fn ends(&mut self, which: usize, ends: &[End], trace: &mut Trace) -> Result<(), String> {
        let Running { number, job, cut, worker, .. } = self.running[which];
        let recipients = std::mem::take(&mut self.running[which].recipients);
        drop(self.running.remove(which));
        let unheard = self.world.borrow().orphans.contains(&number);
        // All hear it at once; but for what a worker has done, of which others tell.
        for (&place, _) in recipients.iter().zip(ends).filter(|(_, end)| worker.is_none() && end.result.is_ok()) {
            self.done[job][place] = !cut && !unheard;
        }
        // As far as this process knows.
        let known = |place: usize| !self.is_left(job, place) || recipients.contains(&place);
        let nobody_comes_back = ends.iter().all(|end| end.result.is_ok()) && (0..self.done[job].len()).all(known);
        for (&place, end) in recipients.iter().zip(ends) {
            let recipient = self.scenario.jobs[job].recipients[place];
            match &end.result {
                Ok(()) if cut => {
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
        if worker.is_none() && (0..self.done[job].len()).any(|place| self.is_left(job, place)) {
            self.is_deferred(job);
        }
        self.world.borrow_mut().is_gone(number);
        Ok(())
    }

    /// Whether a recipient is still to be delivered to: neither delivered, nor given up.
    fn is_left(&self, job: usize, place: usize) -> bool {
        let Job { recipients, full, .. } = &self.scenario.jobs[job];
        let given_up = *full == Some(recipients[place]) && self.tried[job] > GIVEN_UP;
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
        let mut strikes = vec![Strike::Dies { noticed: true }, Strike::Meets(Fate::Lose)];
        if !at.after && self.scenario.refusals && matches!(at.call, "position" | "append" | "find") {
            strikes.push(Strike::Meets(Fate::Refuse));
        }
        if self.may_linger(process, at) {
            strikes.push(Strike::Dies { noticed: false });
            if at.database {
                strikes.push(Strike::Meets(Fate::LoseUnnoticed));
            }
        }
        match choice.mishap(strikes.len() + 1).checked_sub(1) {
            None => Strike::Meets(Fate::Go),
            Some(which) => {
                self.left.faults -= 1;
                strikes[which]
            }
        }
    }

    /// Whether it makes a difference that the database server does not notice the end of a process: its session has
    /// something left to do, or to hold on to.
    fn may_linger(&self, process: usize, at: Point) -> bool {
        let world = self.world.borrow();
        let linger = world.holds(process) || (at.is_asking_for_a_change() && !world.severed.contains(&process));
        linger && world.lingering.iter().all(|session| session.process != process)
    }

    /// A process dies, and the database server does not notice: it goes on with what it was sent, and with the lock.
    fn leave_unnoticed(&mut self, died: &mut Running) {
        if died.at.is_asking_for_a_change() {
            // It hears that the connection is lost, goes on to its next stop, and dies there; without a database it
            // changes nothing on the way.
            let _ = died.go_on(Fate::LoseUnnoticed);
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
        self.database
            && !self.after
            && matches!(self.call, "journal" | "acquire" | "begin epoch" | "record" | "release")
    }
}
