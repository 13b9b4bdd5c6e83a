//! What a schedule may contain.

use crate::mistake::Mistake;
use crate::world::{Attempt, Change, Engine, Row, SETTLE, SimulatedBox, Stored, UnderWay, World};
use maildrop_command::ledger::CopyKey;
use maildrop_command::lock::LockName;
use maildrop_command::message::Message;
use maildrop_command::message::Role;
use std::time::Duration;
use uuid::Uuid;

/// Longer than any schedule.
pub const A_LONG_TIME: Duration = Duration::from_secs(1 << 30);

#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub engine: Engine,
    /// Whether the mailbox store tells UIDs and can expunge one (UIDPLUS).
    pub uid_plus: bool,
    /// What has happened before it begins.
    pub before: Before,
    /// The jobs: what Postfix (or an operator) wants delivered.
    pub jobs: Vec<Job>,
    /// How often each of these may happen.
    pub left: Left,
    /// Whether the sender's mailbox may be out of reach, and appends may be refused.
    pub refusals: bool,
    /// Whether all begin in one moment of the database's clock.
    pub one_moment: bool,
    /// For how long a Sent copy is tried before it stays owed.
    pub sent_retry_for: Duration,
    /// A mistake that every process makes.
    pub mistake: Option<Mistake>,
    /// How many workers each host has, where there is a service.
    pub workers: usize,
    /// How many messages for one recipient are at them at once.
    pub max_per_recipient: usize,
}

/// What has happened before a schedule begins. Everything can come about within a schedule, too; but the removal of a second
/// copy, where most harm can be done, is then too rare to be met by what is rare itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    Nothing,
    /// A delivery to scuba died, and its Sent copy is still on its way.
    UnderWay,
    /// The same, but what it appended to INBOX is there, and recorded.
    SentUnderWay,
    /// It came before another one, which somebody appended, recorded, and knows nothing of it.
    BesideRecorded,
    /// Two deliveries died, and left two Sent copies, none of them recorded.
    TwoUnrecorded,
    /// Scuba's copies were delivered, and both mailboxes came back from a backup that is older: under the same UIDVALIDITY,
    /// so that UIDs are given out for a second time.
    WentBack,
    /// They were recreated, and the copies are not in them.
    Recreated,
    /// They were recreated, and the copies are in them.
    Renumbered,
    /// Each mailbox has given a UID to an APPEND of somebody else's that is in flight.
    InFlight,
    /// A delivery to scuba died in a crash of the mailbox store, which lowered UIDNEXT: its copies are below what it had noted.
    Lowered,
    /// What deliveries that died have left lies above what the owners had put there before: in scuba's INBOX beside the
    /// recorded copy, in Sent twice and unrecorded. In doug's they left nothing, and he had done away with what was his.
    AboveOwners,
    /// A delivery to scuba died days ago, and the mailboxes were recreated, its copies in them.
    DaysAgo,
    /// Doug has the message, and his delivery has left the author's copy owed.
    Owed,
}

/// The number of the process that died before it all began.
pub const LONG_DEAD: usize = usize::MAX;

impl Before {
    pub fn prepare(self, world: &mut World, message: &Message) {
        if self == Self::Nothing {
            return;
        }
        if self == Self::InFlight {
            for name in [("scuba", "INBOX"), ("doug", "INBOX"), ("lisa", "Sent")] {
                world.mailbox(name).uid_next += 1;
            }
            return;
        }
        let (inbox, sent) = (("scuba", "INBOX"), ("lisa", "Sent"));
        let identity = *message.identity();
        if self == Self::Owed {
            let doug = ("doug", "INBOX");
            let mailbox = world.mailbox(doug);
            mailbox.messages.push(Stored::new(2, Some(identity)));
            mailbox.uid_next = 3;
            let row = Row::Delivered(Some((1, 2)));
            world.copies.insert(CopyKey::new(&identity, Role::Recipient, doug.0, doug.1), row);
            world.copies.insert(CopyKey::new(&identity, Role::Sender, sent.0, sent.1), Row::Owed);
            return;
        }
        let inbox_key = CopyKey::new(&identity, Role::Recipient, inbox.0, inbox.1);
        let sent_key = CopyKey::new(&identity, Role::Sender, sent.0, sent.1);
        if matches!(self, Self::WentBack | Self::Recreated | Self::Renumbered) {
            for (name, key) in [(inbox, inbox_key), (sent, sent_key)] {
                world.copies.insert(key, Row::Delivered(Some((1, 2))));
                let mailbox = world.mailbox(name);
                *mailbox = SimulatedBox::new(if self == Self::WentBack { 1 } else { 2 });
                if self == Self::Renumbered {
                    mailbox.messages.push(Stored::new(3, Some(identity)));
                    mailbox.uid_next = 4;
                }
            }
            return;
        }
        let days_old = if self == Self::DaysAgo { 3 } else { 0 };
        let started = match self {
            Self::UnderWay | Self::SentUnderWay => world.clock,
            Self::DaysAgo => world.clock - days_old * 24 * 60 * 60 * 1000,
            _ => world.clock - SETTLE - 1000,
        };
        let noted = if matches!(self, Self::Lowered | Self::AboveOwners) { 4 } else { 2 };
        let mut died = |number: u128, recipient: &str, key| {
            let (attempt, recipient) = (Uuid::from_u128(u128::MAX - number), recipient.to_owned());
            let (lock, position) = (*lock_name(NAMESPACE).digest(), Some((1, noted)));
            world.attempts.push(Attempt { attempt, lock, key, recipient, started, ended: false, position });
        };
        if self != Self::SentUnderWay {
            died(0, "scuba", inbox_key);
        }
        died(0, "scuba", sent_key);
        if matches!(self, Self::TwoUnrecorded | Self::AboveOwners) {
            died(1, "doug", sent_key);
        }
        if self == Self::AboveOwners {
            died(1, "doug", CopyKey::new(&identity, Role::Recipient, "doug", "INBOX"));
        }
        if self == Self::DaysAgo {
            for name in [inbox, sent] {
                world.mailbox(name).uid_validity = 2;
            }
        }
        let mut stored = |name, uid| {
            let mailbox = world.mailbox(name);
            mailbox.messages.push(Stored { days_old, ..Stored::new(uid, Some(identity)) });
            mailbox.uid_next = uid + 1;
            mailbox.stray = true;
            mailbox.messages.len() - 1
        };
        if self == Self::AboveOwners {
            stored(inbox, 2);
            let doug = ("doug", "INBOX");
            let owners = [(inbox, stored(inbox, 3)), (sent, stored(sent, 2)), (doug, stored(doug, 2))];
            stored(inbox, 4);
            stored(sent, 4);
            stored(sent, 5);
            for (name, which) in owners {
                let his = &mut world.mailbox(name).messages[which];
                (his.owners, his.deleted) = (true, name == doug);
            }
            world.copies.insert(inbox_key, Row::Delivered(Some((1, 2))));
            return;
        }
        stored(inbox, 2);
        if matches!(self, Self::UnderWay | Self::SentUnderWay) {
            if self == Self::SentUnderWay {
                world.copies.insert(inbox_key, Row::Delivered(Some((1, 2))));
            }
            let what = Change::Append(identity);
            world.under_way.push(UnderWay { mailbox: sent, process: LONG_DEAD, abandoned: true, what });
            return;
        }
        stored(sent, 2);
        if matches!(self, Self::Lowered | Self::DaysAgo) {
            return;
        }
        stored(sent, 3);
        if self == Self::BesideRecorded {
            world.copies.insert(inbox_key, Row::Delivered(Some((1, 2))));
            world.copies.insert(sent_key, Row::Delivered(Some((1, 3))));
        }
    }
}

/// What may still happen in a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Left {
    /// A process dies, a connection is lost, a server says no.
    pub faults: usize,
    /// Another process takes over from one that could go on.
    pub preemptions: usize,
    /// A retry comes before an earlier attempt is settled.
    pub hasty_retries: usize,
    /// The owner of a mailbox takes a copy away, or marks it `\Deleted`.
    pub owner_acts: usize,
    /// A mailbox gets a new UIDVALIDITY.
    pub renumberings: usize,
    /// The database fails over and forgets its last commits.
    pub fail_overs: usize,
    /// The same, and the new primary applies later what it had received of them.
    pub late_fail_overs: usize,
    /// Another server takes over, which has all that was answered, and the former primary still answers.
    pub splits: usize,
    /// The database's clock is set back.
    pub clocks_set_back: usize,
    /// Somebody deletes a whole mailbox; it is recreated when it is next asked for.
    pub mailboxes_deleted: usize,
    /// A mailbox takes back a UID that it had given to an APPEND in flight.
    pub lowerings: usize,
    /// The client dies when its message is written, and does not learn the outcome.
    pub callers_die: usize,
    /// A front dies with all its messages in progress, and the master starts another.
    pub fronts_die: usize,
    /// A worker hangs, and is silent.
    pub stops: usize,
    /// Some seconds pass in the midst of it.
    pub passes: usize,
    /// What a client says to a front arrives late.
    pub late_words: usize,
}

impl Left {
    /// Whether another database server may take over.
    pub fn may_fail_over(self) -> bool {
        self.fail_overs + self.late_fail_overs + self.splits > 0
    }
}

/// One message for its envelope recipients: one by pipe(8), or several by LMTP.
#[derive(Clone, Debug)]
pub struct Job {
    pub recipients: Vec<&'static str>,
    pub message: usize,
    pub sent: bool,
    /// Postfix tries again until it hears 0; an operator's replay that failed may be forgotten.
    pub retried: bool,
    /// Whether the mailboxes may have lost what the ledger has as delivered.
    pub restore: bool,
    /// Whether it brings the author's copy alone, and only while that is owed: what the service does at intervals. Nobody comes back
    /// for what it has left, once another delivery has recorded that copy.
    pub finishes: bool,
    /// The `lock.namespace` of the host that it comes to.
    pub namespace: &'static str,
    /// The recipient whose INBOX never takes the message. After some tries Postfix gives up, and bounces it for that recipient.
    pub full: Option<&'static str>,
    /// Whether its first process gets the beginning of the message only: its writer has died half-way.
    pub cut: bool,
    pub by: By,
}

/// How a job comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// pipe(8) starts a process that delivers.
    Pipe,
    /// lmtp(8) hands it to the front of this host.
    Lmtp(usize),
    /// pipe(8) starts a program that hands it to the front of this host, and delivers only where there is none.
    Client(usize),
}

/// The namespace of every host, unless a scenario says otherwise.
pub const NAMESPACE: &str = "simulation";

pub fn to(recipient: &'static str) -> Job {
    to_all(&[recipient])
}

pub fn to_all(recipients: &[&'static str]) -> Job {
    let recipients = recipients.to_vec();
    Job {
        recipients,
        message: 0,
        sent: true,
        retried: true,
        restore: false,
        finishes: false,
        namespace: NAMESPACE,
        full: None,
        cut: false,
        by: By::Pipe,
    }
}

/// An owed Sent copy is finished, in the name of the recipient whose delivery left it owed.
pub fn finish(recipient: &'static str) -> Job {
    Job { finishes: true, ..to(recipient) }
}

/// After so many tries Postfix gives up.
pub const GIVEN_UP: usize = 3;

/// The name of the lock of all messages here, on a host of that namespace.
pub fn lock_name(namespace: &str) -> LockName {
    LockName::new(namespace, b"123-abc@mail.google.com")
}

pub fn two_recipients(engine: Engine) -> Scenario {
    Scenario {
        name: "two recipients of one message",
        engine,
        uid_plus: true,
        before: Before::Nothing,
        jobs: vec![to("scuba"), to("doug")],
        left: Left {
            faults: 4,
            preemptions: usize::MAX,
            hasty_retries: 2,
            owner_acts: 0,
            renumberings: 0,
            fail_overs: 0,
            late_fail_overs: 0,
            splits: 0,
            clocks_set_back: 0,
            mailboxes_deleted: 0,
            lowerings: 0,
            callers_die: 0,
            fronts_die: 0,
            stops: 0,
            passes: 0,
            late_words: 0,
        },
        refusals: false,
        one_moment: false,
        sent_retry_for: A_LONG_TIME,
        mistake: None,
        workers: 1,
        max_per_recipient: 2,
    }
}

impl Scenario {
    /// The number of the process that is a job's first, second … run.
    pub fn number_of(&self, job: usize, run: usize) -> usize {
        job + run * self.jobs.len()
    }

    /// The name of a process's attempt.
    pub fn attempt_of(process: usize) -> Uuid {
        Uuid::from_u128(process as u128 + 1)
    }

    /// Whether the author's copy may be owed.
    pub fn may_be_owed(&self) -> bool {
        self.sent_retry_for < A_LONG_TIME || self.before == Before::Owed
    }

    /// Whether its hosts have different namespaces.
    pub fn has_several_locks(&self) -> bool {
        self.jobs.iter().any(|job| job.namespace != NAMESPACE)
    }

    /// The job that a process runs; `None` for one that died before it all began.
    pub fn job_of(&self, process: usize) -> Option<usize> {
        (process != LONG_DEAD).then_some(process % self.jobs.len())
    }

    /// The same, with other things happening.
    pub fn with(mut self, name: &'static str, change: impl FnOnce(&mut Left)) -> Self {
        self.name = name;
        change(&mut self.left);
        self
    }
}
