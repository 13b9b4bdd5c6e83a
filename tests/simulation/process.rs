//! One process: the real delivery, on simulated servers.

use crate::database::Connection;
use crate::mailbox::SimulatedMailbox;
use crate::mistake::{self, Database, End, Mistake, MistakenMailbox, Pending};
use crate::scenario::{A_LONG_TIME, Scenario, lock_name};
use crate::world::{Fate, Name, Point, SETTLE, World};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::config::HeaderFields;
use maildrop_command::delivery::{
    self, Caller, CopyReport, Delivery, Manner, NoCaller, OwedCopy, Policy, Stages, UploadTime, Whose,
};
use maildrop_command::ledger::CopyKey;
use maildrop_command::message::{Message, Role};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use time::OffsetDateTime;

/// It returns what came of each recipient.
pub type Routine = Coroutine<Fate, Point, Vec<End>>;

/// A process that has begun.
pub struct Running {
    pub number: usize,
    pub job: usize,
    /// The recipients that it delivers to, by their places in the job.
    pub recipients: Vec<usize>,
    /// Whether it was given no more than the beginning of its message.
    pub cut: bool,
    /// The worker that it is a delivery of; `None`: a process of its own.
    pub worker: Option<usize>,
    pub at: Point,
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

/// What a process is given.
pub struct Given {
    pub number: usize,
    pub job: usize,
    pub recipients: Vec<usize>,
    pub cut: bool,
    pub worker: Option<usize>,
    pub message: Rc<Message>,
}

impl Running {
    /// Begins, and comes to its first stop.
    pub fn begin(given: Given, scenario: &Scenario, world: &Rc<RefCell<World>>) -> Self {
        let mut routine = process(&given, scenario, Rc::clone(world));
        let Given { number, job, recipients, cut, worker, .. } = given;
        match routine.resume(Fate::Go) {
            CoroutineResult::Yield(at) => Self { number, job, recipients, cut, worker, at, routine: Some(routine) },
            CoroutineResult::Return(_) => unreachable!("a delivery makes at least one call"),
        }
    }

    /// Goes on to its next stop, or to its end: then it says what came of each recipient.
    pub fn go_on(&mut self, fate: Fate) -> Option<Vec<End>> {
        match self.routine.as_mut().expect("it runs").resume(fate) {
            CoroutineResult::Yield(at) => {
                self.at = at;
                None
            }
            CoroutineResult::Return(ends) => Some(ends),
        }
    }
}

/// The client that handed a process its message.
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

/// The delivery, before it has begun.
fn process(given: &Given, scenario: &Scenario, world: Rc<RefCell<World>>) -> Routine {
    let (number, job, message) = (given.number, &scenario.jobs[given.job], Rc::clone(&given.message));
    let recipients: Vec<&'static str> = given.recipients.iter().map(|&place| job.recipients[place]).collect();
    // A redelivery of owed copies reports what fails: it is owed already.
    let sent_retry_for = if job.finishes { A_LONG_TIME } else { scenario.sent_retry_for };
    let (job, mistake) = (job.clone(), scenario.mistake);
    // A worker knows of no caller: its broker does.
    let looks_at_caller = given.worker.is_none() && mistake != Some(Mistake::NoLookAtTheCaller);
    let stack = STACKS.with_borrow_mut(Vec::pop).unwrap_or_default();
    Coroutine::with_stack(stack, move |yielder, _| {
        let policy = Policy {
            lock_wait: Duration::ZERO,
            append_grace: Duration::from_millis(SETTLE.unsigned_abs()),
            sent_retry_for,
            queue_lifetime: Duration::from_hours(120),
            slow_mailbox_timeout: Duration::from_secs(60),
            author_patience: None,
            opening_patience: None,
            over_quota_refuses: false,
            look_in_sent: false,
            keep_source_up_to: 0,
            headers: HeaderFields::None,
        };
        let caller = SimulatedCaller { number, world: Rc::clone(&world) };
        let delivery = Delivery {
            message: &message,
            sender: Some("lisa@gmail.com"),
            recipients: &recipients.iter().map(ToString::to_string).collect::<Vec<_>>(),
            is_one_of_several: false,
            queue_id: None,
            lock: &lock_name(job.namespace),
            attempt: Scenario::attempt_of(number),
            host: "mx1",
            pid: 1,
            arrived: OffsetDateTime::UNIX_EPOCH,
            // All came when it all began.
            came: u64::try_from(world.borrow().clock).ok().map(Duration::from_millis),
            policy: &policy,
            upload_time: &UploadTime::until_deadline(Deadline::after(Duration::from_secs(3600))),
            caller: if looks_at_caller { &caller } else { &NoCaller },
            restore: job.restore,
        };
        let pending = Pending::default();
        let own = recipients.iter().filter(|_| !job.finishes);
        let mut mailboxes: Vec<Name> = own.map(|&recipient| (recipient, "INBOX")).collect();
        let of_recipients = mailboxes.len();
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
            role: if place < of_recipients { Role::Recipient } else { Role::Sender },
            whose: if place < of_recipients { Whose::Recipients(vec![place]) } else { Whose::Authors },
            user: name.0.into(),
            mailbox_name: name.1.into(),
            mailbox: Ok(mailbox),
        });
        let owed = owed.collect();
        let connection = Connection {
            number,
            world: Rc::clone(&world),
            yielder,
            alive: true,
            heeds_no_warning: mistake == Some(Mistake::CommitsWarningUnheard),
        };
        let mut database = Database::new(connection, mistake, Rc::clone(&pending));
        let results = delivery::deliver(&delivery, &mut database, owed, &mut Stages::default()).recipients;
        // Of a mailbox that never opened the journal has no row, so no end in it says that nobody could look there.
        let sent_is_open = mailboxes.iter().any(|(name, mailbox)| name.1 == "Sent" && mailbox.mailbox.is_open);
        let says_it_is_there = |copy: &CopyReport| copy.role == Role::Sender && copy.manner == Manner::AlreadyThere;
        if !sent_is_open && results.iter().flatten().flat_map(|delivered| &delivered.copies).any(says_it_is_there) {
            let key = CopyKey::new(message.identity(), Role::Sender, "lisa", "Sent");
            let mut world = world.borrow_mut();
            world.unchecked |= world.attempts.iter().any(|earlier| earlier.key == key && !earlier.ended);
        }
        mistake::outcomes(mistake, results)
    })
}
