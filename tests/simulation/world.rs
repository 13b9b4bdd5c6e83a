//! A world for deliveries to run in: one database, one mailbox store, a clock, and processes that take turns.
//!
//! Every call of a delivery stops before its effect and after it; the driver of the world decides who goes on, and what
//! goes wrong. The behaviour of the servers that is assumed here is pinned on the real ones in `tests/server_tests/`.
//!
//! A server that loses a client need not notice at once. What was sent to it may be carried out later, when the process has
//! died or has been tried again: an APPEND, an expunge, a statement. A database session that goes on like that keeps its
//! lock until it ends.

use crate::database::Statement;
use crate::scenario::{LONG_DEAD, Scenario};
use maildrop_command::ledger::CopyKey;
use maildrop_command::mailbox::{Placement, Position};
use maildrop_command::message::Identity;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use uuid::Uuid;

/// How long what a dead process has sent may take to be carried out, in milliseconds.
pub const SETTLE: i64 = 300_000;

/// A mailbox's user and name.
pub type Name = (&'static str, &'static str);

/// The answer with which a process goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// All is well.
    Go,
    /// The connection that the call uses ends here; the server frees a lock with it.
    Lose,
    /// The same, but the database server does not notice: it may yet carry out what it was asked, and frees the lock when
    /// it does notice.
    LoseUnnoticed,
    /// The server says no. (Only where it can, before the effect.)
    Refuse,
}

/// Where a process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Point {
    pub call: &'static str,
    pub after: bool,
    /// Whether the call is one to the database.
    pub database: bool,
}

/// How the database's lock behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The lock is a transaction, and its COMMIT frees it.
    Postgresql,
    /// The lock is in the session, and outlives a COMMIT.
    Mysql,
}

#[derive(Clone, Debug, Hash)]
pub struct Attempt {
    pub attempt: Uuid,
    /// The lock that its process asks for, as the journal has it.
    pub lock: [u8; 32],
    pub key: CopyKey,
    pub recipient: String,
    pub started: i64,
    pub ended: bool,
    pub position: Option<(u32, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Row {
    /// With its UIDVALIDITY and UID, if they are known.
    Delivered(Option<(u32, u32)>),
    Owed,
}

/// One message in a mailbox.
#[derive(Clone, Copy, Debug, Hash)]
pub struct Stored {
    pub uid: u32,
    /// Whose copy it is; `None`: somebody else's mail, which is none of ours.
    pub identity: Option<Identity>,
    /// Whether it is marked `\Deleted`.
    pub deleted: bool,
    /// Whether its owner put it there: it is none of ours to take out.
    pub owners: bool,
    /// How many days before it all began it arrived: its INTERNALDATE.
    pub days_old: i64,
}

impl Stored {
    /// One that arrives now.
    pub fn new(uid: u32, identity: Option<Identity>) -> Self {
        Self { uid, identity, deleted: false, owners: false, days_old: 0 }
    }
}

#[derive(Clone, Debug, Hash)]
pub struct SimulatedBox {
    pub uid_validity: u32,
    pub uid_next: u32,
    pub messages: Vec<Stored>,
    /// How often its owner has taken a copy away or marked one, or somebody has deleted it all.
    pub owner_acted: u32,
    /// Whether it was ever renumbered.
    pub renumbered: bool,
    /// A copy has landed whose process had lost the lock.
    pub stray: bool,
    /// It had two copies when the database forgot what it knew, or one has landed since of an attempt that was forgotten: nobody can
    /// know of it, and nobody takes out what he knows nothing of.
    pub beyond_knowing: bool,
}

impl SimulatedBox {
    /// With somebody else's mail in it.
    pub fn new(uid_validity: u32) -> Self {
        let stranger = Stored::new(1, None);
        Self {
            uid_validity,
            uid_next: 2,
            messages: vec![stranger],
            owner_acted: 0,
            renumbered: false,
            stray: false,
            beyond_knowing: false,
        }
    }

    /// The copies that are there, but for what its owner put there.
    fn ours(&self, identity: &Identity) -> impl Iterator<Item = &Stored> {
        self.messages.iter().filter(|there| there.identity.as_ref() == Some(identity) && !there.owners)
    }

    /// Those of them that are not marked `\Deleted`.
    pub fn sound(&self, identity: &Identity) -> usize {
        self.ours(identity).filter(|there| !there.deleted).count()
    }

    pub fn all(&self, identity: &Identity) -> usize {
        self.ours(identity).count()
    }

    /// Whether UIDs are given out of which nothing has come: to APPENDs in flight.
    pub fn can_be_lowered(&self) -> bool {
        self.messages.iter().all(|there| there.uid + 1 < self.uid_next)
    }

    /// It gets a new UIDVALIDITY, as one that is restored or rebuilt does, and its messages come in another order.
    pub fn renumber(&mut self) {
        self.messages.reverse();
        for (uid, message) in (1..).zip(&mut self.messages) {
            message.uid = uid;
        }
        self.uid_validity += 1;
        self.uid_next = u32::try_from(self.messages.len()).expect("few") + 1;
        self.renumbered = true;
    }

    pub fn at(&self, placement: Placement) -> Option<&Stored> {
        let there = self.messages.iter().find(|there| there.uid == placement.uid);
        there.filter(|_| self.uid_validity == placement.uid_validity)
    }
}

/// What an IMAP server was sent and has not carried out yet.
#[derive(Clone, Debug, Hash)]
pub struct UnderWay {
    pub mailbox: Name,
    pub process: usize,
    /// Its process will not hear what comes of it.
    pub abandoned: bool,
    pub what: Change,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    Append(Identity),
    /// STORE `\Deleted`, then UID EXPUNGE.
    Expunge {
        uid_validity: u32,
        uid: u32,
        /// Whether the first half is done.
        marked: bool,
        /// How often the mailbox's owner had acted when the two copies were compared.
        owner_acted: u32,
    },
}

/// A database session whose client is gone, which the server has not noticed.
#[derive(Clone, Debug, Hash)]
pub struct Lingering {
    pub process: usize,
    /// What it is still going to carry out.
    pub statement: Option<Statement>,
}

/// What a database server remembers, and another has that takes over.
#[derive(Clone, Debug)]
pub struct Memory {
    pub attempts: Vec<Attempt>,
    pub copies: BTreeMap<CopyKey, Row>,
    /// The rows of its epochs: their numbers, and since when; `None`: the first.
    pub epochs: Vec<(u64, Option<i64>)>,
}

/// A former primary that still answers.
#[derive(Debug)]
pub struct Former {
    pub memory: Memory,
    pub locks: BTreeMap<[u8; 32], usize>,
    /// The number of its epoch.
    pub epoch: u64,
    /// Who is connected to it.
    pub processes: BTreeSet<usize>,
    /// What comes of a commit there: the wait for the standby ends with a warning, or never.
    pub warns: bool,
}

#[derive(Debug)]
pub struct World {
    pub engine: Engine,
    /// In milliseconds. It goes on with each attempt that is journalled, and when everybody waits for a retry: all that
    /// anybody can tell of the time is which attempt began first, and which are settled.
    pub clock: i64,
    /// How far it goes on with an attempt. Zero: all begin in one moment.
    pub tick: i64,
    pub locks: BTreeMap<[u8; 32], usize>,
    pub attempts: Vec<Attempt>,
    pub copies: BTreeMap<CopyKey, Row>,
    /// Under which lock the message of each copy was recorded first, and when; kept where there are several locks.
    pub recorded: BTreeMap<CopyKey, ([u8; 32], i64)>,
    pub several_locks: bool,
    pub boxes: BTreeMap<Name, SimulatedBox>,
    pub under_way: Vec<UnderWay>,
    pub lingering: Vec<Lingering>,
    /// The processes whose database connection has ended at the server, and which do not know yet.
    pub severed: BTreeSet<usize>,
    /// The running processes that had the lock and have lost it.
    pub lost_lock: BTreeSet<usize>,
    /// The running processes that were answered that the lock is held elsewhere.
    pub saw_busy: BTreeSet<usize>,
    /// The running processes that were answered that it is theirs.
    pub saw_held: BTreeSet<usize>,
    /// The running processes whose caller has died.
    pub orphans: BTreeSet<usize>,
    /// The answers to each process so far, as a hash: that and its start make it what it is.
    pub answers: BTreeMap<usize, u64>,
    /// Whether anybody will ask for [`Self::answers`].
    pub keeps_answers: bool,
    /// The rows of the epochs, and the number of the present one.
    pub epochs: Vec<(u64, Option<i64>)>,
    pub epoch: u64,
    /// Beside the present primary.
    pub former: Option<Former>,
    /// What the present primary has received, and not applied yet.
    pub backlog: Option<Memory>,
    /// Whether rows have come that way: what a delivery saw under the lock may not be what it changes.
    pub applied_late: bool,
    /// What the database held before each of its commits: what a server that fails over may go back to.
    pub before: Vec<Memory>,
    /// Whether it may fail over. Only then are epochs reported.
    pub keeps_before: bool,
    /// Whether commits were ever forgotten.
    pub forgot: bool,
    /// Whether somebody came back for what his delivery had left beside a recorded Sent copy, past the time for which that is tried,
    /// and could not look.
    pub unchecked: bool,
    /// The first promise that was broken.
    pub broken: Option<&'static str>,
    /// Whether a mailbox ever held two copies.
    pub was_duplicated: bool,
    pub uid_plus: bool,
}

impl World {
    pub fn new(engine: Engine, uid_plus: bool) -> Self {
        Self {
            engine,
            clock: 0,
            tick: 1,
            locks: BTreeMap::new(),
            attempts: Vec::new(),
            copies: BTreeMap::new(),
            recorded: BTreeMap::new(),
            several_locks: false,
            boxes: BTreeMap::new(),
            under_way: Vec::new(),
            lingering: Vec::new(),
            severed: BTreeSet::new(),
            lost_lock: BTreeSet::new(),
            saw_busy: BTreeSet::new(),
            saw_held: BTreeSet::new(),
            orphans: BTreeSet::new(),
            answers: BTreeMap::new(),
            keeps_answers: false,
            epochs: vec![(1, None)],
            epoch: 1,
            former: None,
            backlog: None,
            applied_late: false,
            before: Vec::new(),
            keeps_before: false,
            forgot: false,
            unchecked: false,
            broken: None,
            was_duplicated: false,
            uid_plus,
        }
    }

    pub fn mailbox(&mut self, name: Name) -> &mut SimulatedBox {
        self.boxes.entry(name).or_insert_with(|| SimulatedBox::new(1))
    }

    pub fn holds(&self, process: usize) -> bool {
        let of_former = self.former.iter().flat_map(|former| former.locks.values());
        self.locks.values().chain(of_former).any(|holder| *holder == process)
    }

    /// Whether it holds the lock of the present primary.
    fn holds_the_present_one(&self, process: usize) -> bool {
        self.locks.values().any(|holder| *holder == process)
    }

    /// Whether a process is connected to a former primary, and what comes of its commits there.
    pub fn warns(&self, process: usize) -> Option<bool> {
        self.former.as_ref().filter(|former| former.processes.contains(&process)).map(|former| former.warns)
    }

    /// Does something at the server that a process is connected to.
    pub fn at_its_server<T>(&mut self, process: usize, act: impl FnOnce(&mut Self) -> T) -> T {
        if self.warns(process).is_none() {
            return act(self);
        }
        self.change_places();
        let done = act(self);
        self.change_places();
        done
    }

    fn change_places(&mut self) {
        if let Some(former) = &mut self.former {
            std::mem::swap(&mut self.attempts, &mut former.memory.attempts);
            std::mem::swap(&mut self.copies, &mut former.memory.copies);
            std::mem::swap(&mut self.epochs, &mut former.memory.epochs);
            std::mem::swap(&mut self.locks, &mut former.locks);
            std::mem::swap(&mut self.epoch, &mut former.epoch);
        }
    }

    fn memory(&self) -> Memory {
        Memory { attempts: self.attempts.clone(), copies: self.copies.clone(), epochs: self.epochs.clone() }
    }

    fn remember(&mut self, memory: Memory) {
        (self.attempts, self.copies, self.epochs) = (memory.attempts, memory.copies, memory.epochs);
    }

    /// What a process has sent is about to land: after its attempt was forgotten, nobody can know of it.
    pub fn about_to_land(&mut self, name: Name, process: usize) {
        let attempt = Scenario::attempt_of(process);
        // The journal of one that died before it all began is never forgotten.
        let journalled = process != LONG_DEAD;
        if journalled && self.forgot && self.attempts.iter().all(|known| known.attempt != attempt) {
            self.mailbox(name).beyond_knowing = true;
        }
    }

    pub fn breaks(&mut self, promise: &'static str) {
        self.broken.get_or_insert(promise);
    }

    /// Notes the answer to a process.
    pub fn tell(&mut self, process: usize, what: &impl Hash) {
        if self.keeps_answers {
            let so_far = self.answers.entry(process).or_default();
            let mut hash = DefaultHasher::new();
            so_far.hash(&mut hash);
            what.hash(&mut hash);
            *so_far = hash.finish();
        }
    }

    /// A copy arrives. If its sender still holds the lock, it must be the only one: two at once come only of an
    /// APPEND that lands when its process has lost the lock, or of what owners and fail-overs do.
    pub fn take_in(&mut self, name: Name, identity: Identity, sent_by: Option<usize>) -> Placement {
        let holds = sent_by.is_some_and(|process| self.holds_the_present_one(process));
        let mailbox = self.mailbox(name);
        let there = mailbox.all(&identity) > 0;
        let excused = mailbox.owner_acted > 0 || mailbox.renumbered || mailbox.stray || mailbox.beyond_knowing;
        mailbox.stray |= !holds;
        let uid = mailbox.uid_next;
        mailbox.uid_next += 1;
        mailbox.messages.push(Stored::new(uid, Some(identity)));
        let placement = Placement { uid_validity: mailbox.uid_validity, uid };
        self.was_duplicated |= there;
        if there && holds && !excused {
            self.breaks("TWICE: the holder of the lock appended a copy beside another one");
        }
        placement
    }

    /// The next half of what a server was asked to take out. Says whether that was all.
    pub fn go_on_expunging(&mut self, name: Name, change: &mut Change) -> bool {
        let Change::Expunge { uid_validity, uid, marked, owner_acted } = change else { return true };
        let mailbox = self.mailbox(name);
        if mailbox.uid_validity != *uid_validity {
            return true;
        }
        if !*marked {
            mailbox.messages.iter_mut().filter(|there| there.uid == *uid).for_each(|there| there.deleted = true);
            *marked = true;
            return false;
        }
        let taken = mailbox.messages.iter().position(|there| there.uid == *uid && there.deleted);
        let Some(taken) = taken.map(|place| mailbox.messages.remove(place)) else { return true };
        match taken.identity {
            None => self.breaks("LOST: somebody else's mail was taken out"),
            Some(_) if taken.owners => self.breaks("LOST: what its owner put there was taken out"),
            Some(identity) if mailbox.sound(&identity) == 0 && mailbox.owner_acted == *owner_acted => {
                self.breaks("LOST: the last copy was taken out");
            }
            Some(_) => {}
        }
        true
    }

    /// Somebody's connection to the database has ended, and the server frees his locks, if it has noticed.
    pub fn forget(&mut self, process: usize) {
        if self.lingering.iter().all(|lingering| lingering.process != process) {
            if self.holds(process) {
                self.lost_lock.insert(process);
            }
            self.locks.retain(|_, holder| *holder != process);
            if let Some(former) = &mut self.former {
                former.locks.retain(|_, holder| *holder != process);
            }
        }
    }

    /// A process is gone: its connections end. What it had sent may still be carried out.
    pub fn is_gone(&mut self, process: usize) {
        self.forget(process);
        for under_way in self.under_way.iter_mut().filter(|under_way| under_way.process == process) {
            under_way.abandoned = true;
        }
        self.severed.remove(&process);
        self.lost_lock.remove(&process);
        self.saw_busy.remove(&process);
        self.saw_held.remove(&process);
        self.orphans.remove(&process);
        self.answers.remove(&process);
    }

    /// The server ends a process's connection and frees its lock. The process hears of it when it next asks.
    pub fn sever(&mut self, process: usize) {
        self.forget(process);
        self.severed.insert(process);
    }

    /// The database fails over to a server that lacks the last `commits`. Every connection ends with the old one.
    pub fn fail_over(&mut self, commits: usize, processes: &[usize]) {
        self.backlog = None;
        let kept = self.before.len().saturating_sub(commits);
        let gone_back_to = self.before.drain(kept..).next();
        if let Some(memory) = gone_back_to {
            self.remember(memory);
            self.forgot = true;
            for mailbox in self.boxes.values_mut() {
                let identities: BTreeSet<[u8; 32]> =
                    mailbox.messages.iter().filter_map(|it| it.identity).map(|it| *it.as_bytes()).collect();
                mailbox.beyond_knowing |=
                    mailbox.messages.iter().filter(|it| it.identity.is_some()).count() > identities.len();
            }
        }
        self.epoch += 1;
        for lingering in std::mem::take(&mut self.lingering) {
            self.forget(lingering.process);
        }
        processes.iter().for_each(|process| self.sever(*process));
    }

    /// The same, but the new primary has received those commits, and applies them later.
    pub fn fail_over_to_a_late_one(&mut self, commits: usize, processes: &[usize]) {
        let all = self.memory();
        self.fail_over(commits, processes);
        self.backlog = Some(all);
    }

    /// The new primary applies what it had received.
    pub fn catch_up(&mut self) {
        let Some(Memory { attempts, copies, .. }) = self.backlog.take() else { return };
        self.applied_late = true;
        for late in attempts {
            let known = self.attempts.iter_mut().find(|it| (it.attempt, it.key) == (late.attempt, late.key));
            match known {
                Some(known) => known.ended |= late.ended,
                None => self.attempts.push(late),
            }
        }
        for (key, row) in copies {
            self.copies.entry(key).or_insert(row);
        }
    }

    /// Another server takes over, which has all that was answered; the former one still answers those who are connected to it.
    pub fn split(&mut self, warns: bool, processes: &[usize]) {
        let processes = processes.iter().copied().collect();
        let (memory, locks) = (self.memory(), std::mem::take(&mut self.locks));
        self.former = Some(Former { memory, locks, epoch: self.epoch, processes, warns });
        self.epoch += 1;
    }

    /// The former primary is gone.
    pub fn fence(&mut self) {
        let connected = self.former.iter().flat_map(|former| former.processes.clone()).collect::<Vec<_>>();
        self.lingering.retain(|session| !connected.contains(&session.process));
        connected.into_iter().for_each(|process| self.sever(process));
        self.former = None;
    }

    /// A session whose client is gone goes on: it carries out what it was asked, or, with nothing left to do, it ends.
    pub fn linger_on(&mut self, which: usize) {
        let Lingering { process, statement } = &mut self.lingering[which];
        let process = *process;
        if let Some(statement) = statement.take() {
            self.at_its_server(process, |world| statement.carry_out(world, process));
            if self.holds(process) {
                return;
            }
        }
        self.end_lingering(which);
    }

    /// The server notices that the client of a session is gone.
    pub fn end_lingering(&mut self, which: usize) {
        let gone = self.lingering.remove(which).process;
        self.forget(gone);
        self.lost_lock.remove(&gone);
    }

    pub fn about_to_commit(&mut self) {
        if self.keeps_before {
            self.before.push(self.memory());
        }
    }

    /// What a dead process sent goes on: an APPEND lands, an expunge gets half done, or done.
    pub fn land(&mut self, which: usize) {
        let UnderWay { mailbox, mut what, process, .. } = self.under_way[which];
        let done = match what {
            Change::Append(identity) => {
                self.about_to_land(mailbox, process);
                self.take_in(mailbox, identity, None);
                true
            }
            Change::Expunge { .. } => self.go_on_expunging(mailbox, &mut what),
        };
        if done {
            self.under_way.remove(which);
        } else {
            self.under_way[which].what = what;
        }
    }

    /// Everything that what follows can depend on. Attempts that have ended are part of it only where they count: where
    /// somebody asks for how long a copy has been tried. What a fail-over would go back to is not among it.
    pub fn hash_state(&self, hash: &mut impl Hasher, ended_count: bool) {
        self.locks.hash(hash);
        for attempt in self.attempts.iter().filter(|attempt| ended_count || !attempt.ended) {
            (attempt.attempt, attempt.lock, attempt.key, attempt.ended, attempt.position).hash(hash);
            (self.clock - attempt.started).hash(hash);
        }
        self.copies.hash(hash);
        for (key, (lock, at)) in &self.recorded {
            (key, lock, self.clock - at).hash(hash);
        }
        self.boxes.hash(hash);
        self.under_way.hash(hash);
        self.lingering.hash(hash);
        (&self.severed, &self.lost_lock, &self.saw_busy, &self.saw_held, &self.orphans, &self.answers).hash(hash);
        (self.forgot, self.unchecked, self.broken, self.was_duplicated).hash(hash);
    }
}

pub fn placement_parts(placement: Option<Placement>) -> Option<(u32, u32)> {
    placement.map(|placement| (placement.uid_validity, placement.uid))
}

pub fn position_parts(position: Option<Position>) -> Option<(u32, u32)> {
    position.map(|position| (position.uid_validity, position.uid_next))
}
