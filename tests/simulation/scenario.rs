//! What a schedule may contain.

use crate::mistake::Mistake;
use crate::world::{Attempt, Change, Engine, Row, SETTLE, SimulatedBox, Stored, UnderWay, World};
use maildrop_command::ledger::CopyKey;
use maildrop_command::mailbox::Role;
use maildrop_command::message::Message;
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
}

/// What has happened before a schedule begins. Everything can come about within a schedule, too; but the removal of a second
/// copy, where most harm can be done, is then too rare to be met by what is rare itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    Nothing,
    /// A delivery to scuba died, and its Sent copy is still on its way.
    UnderWay,
    /// It came before another one, which somebody appended, recorded, and knows nothing of it.
    BesideRecorded,
    /// Two deliveries died, and left two Sent copies, none of them recorded.
    TwoUnrecorded,
    /// Scuba's copies were delivered, and both mailboxes came back from a backup that is older: under the same UIDVALIDITY,
    /// so that UIDs are given out for a second time.
    WentBack,
    /// They were made anew, and the copies are not in them.
    MadeAnew,
    /// They were made anew, and the copies are in them.
    Renumbered,
}

/// The number of the process that died before it all began.
const LONG_DEAD: usize = usize::MAX;

impl Before {
    pub fn prepare(self, world: &mut World, message: &Message) {
        if self == Self::Nothing {
            return;
        }
        let (inbox, sent) = (("scuba", "INBOX"), ("lisa", "Sent"));
        let identity = *message.identity();
        let inbox_key = CopyKey::new(&identity, Role::Recipient, inbox.0, inbox.1);
        let sent_key = CopyKey::new(&identity, Role::Sender, sent.0, sent.1);
        if matches!(self, Self::WentBack | Self::MadeAnew | Self::Renumbered) {
            for (name, key) in [(inbox, inbox_key), (sent, sent_key)] {
                world.copies.insert(key, Row::Delivered(Some((1, 2))));
                let mailbox = world.mailbox(name);
                *mailbox = SimulatedBox::new(if self == Self::WentBack { 1 } else { 2 });
                if self == Self::Renumbered {
                    mailbox.messages.push(Stored { uid: 3, identity: Some(identity), deleted: false });
                    mailbox.uid_next = 4;
                }
            }
            return;
        }
        let started = if self == Self::UnderWay { world.clock } else { world.clock - SETTLE - 1000 };
        let mut died = |number: u128, recipient: &str, key| {
            let (attempt, recipient) = (Uuid::from_u128(u128::MAX - number), recipient.to_owned());
            world.attempts.push(Attempt { attempt, key, recipient, started, ended: false, position: Some((1, 2)) });
        };
        died(0, "scuba", inbox_key);
        died(0, "scuba", sent_key);
        if self == Self::TwoUnrecorded {
            died(1, "doug", sent_key);
        }
        let mut stored = |name, uid| {
            let mailbox = world.mailbox(name);
            mailbox.messages.push(Stored { uid, identity: Some(identity), deleted: false });
            mailbox.uid_next = uid + 1;
            mailbox.stray = true;
        };
        stored(inbox, 2);
        if self == Self::UnderWay {
            let what = Change::Append(identity);
            world.under_way.push(UnderWay { mailbox: sent, process: LONG_DEAD, abandoned: true, what });
            return;
        }
        stored(sent, 2);
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
    /// The database's clock is set back.
    pub clocks_set_back: usize,
    /// Somebody deletes a whole mailbox; it is made anew when it is next asked for.
    pub mailboxes_deleted: usize,
}

/// One message for one envelope recipient.
#[derive(Clone, Debug)]
pub struct Job {
    pub recipient: &'static str,
    pub message: usize,
    pub sent: bool,
    /// Postfix tries again until it hears 0; an operator's replay that failed may be forgotten.
    pub retried: bool,
    /// Whether the mailboxes may have lost what the ledger has as delivered.
    pub restore: bool,
}

pub fn to(recipient: &'static str) -> Job {
    Job { recipient, message: 0, sent: true, retried: true, restore: false }
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
            clocks_set_back: 0,
            mailboxes_deleted: 0,
        },
        refusals: false,
        one_moment: false,
        sent_retry_for: A_LONG_TIME,
        mistake: None,
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
