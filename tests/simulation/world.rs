//! A world for deliveries to run in: one database, one mailbox store, a clock, and processes that take turns.
//!
//! Every call of a delivery stops before its effect and after it; whoever steers the world decides who goes on, and what
//! goes wrong. The behaviour of the servers that is assumed here is pinned on the real ones in `tests/server_tests/`.

use corosensei::Yielder;
use maildrop_command::database::{DatabaseError, DatabaseFailure};
use maildrop_command::ledger::{CopyHistory, CopyKey, CopyState, Delivered, Journal, Ledger, OpenAttempt, Record};
use maildrop_command::lock::{Acquired, LockName, NamedLock};
use maildrop_command::mailbox::{
    Appended, Found, FoundCopy, Mailbox, MailboxError, MailboxFailure, Matching, NewCopy, Placement, Position, Removal,
    Wanted,
};
use maildrop_command::message::Identity;
use maildrop_command::routing::AddressBook;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

/// How long an APPEND of a dead process may take to land, in seconds.
pub const SETTLE: f64 = 300.0;

/// What a process is told when it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// All is well.
    Go,
    /// The connection that the call uses ends here; the server frees a lock with it.
    Lose,
    /// The server says no. (Only where it can, before the effect.)
    Refuse,
}

/// Where a process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub call: &'static str,
    pub after: bool,
}

/// How the database's lock behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The lock is a transaction, and its COMMIT frees it.
    Postgresql,
    /// The lock is in the session, and outlives a COMMIT.
    Mysql,
}

#[derive(Clone, Debug)]
pub struct Attempt {
    pub attempt: Uuid,
    pub key: CopyKey,
    pub recipient: String,
    pub started: f64,
    pub ended: bool,
    pub position: Option<Position>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    Delivered(Option<Placement>),
    Owed,
}

#[derive(Debug, Default)]
pub struct Box_ {
    pub uid_validity: u32,
    pub uid_next: u32,
    pub messages: Vec<(u32, Identity)>,
    /// Someone but us took a copy away, or the store renumbered it.
    pub touched: bool,
    /// A copy has landed whose process had lost the lock.
    pub stray: bool,
}

/// An APPEND that was sent and not yet taken in.
#[derive(Debug)]
pub struct InFlight {
    pub mailbox: (String, String),
    pub identity: Identity,
    pub process: usize,
    /// Its process has lost the connection, and will not hear what comes of it.
    pub abandoned: bool,
}

#[derive(Debug)]
pub struct World {
    pub engine: Engine,
    pub clock: f64,
    pub locks: BTreeMap<[u8; 32], usize>,
    pub attempts: Vec<Attempt>,
    pub copies: BTreeMap<CopyKey, Row>,
    pub boxes: BTreeMap<(String, String), Box_>,
    pub late: Vec<InFlight>,
    /// The processes that have ended, one way or the other.
    pub dead: Vec<usize>,
    /// The processes whose database connection has ended at the server, and which do not know yet.
    pub severed: BTreeSet<usize>,
    /// What the database held before each of its commits: what a server that fails over may go back to.
    pub before: Vec<(Vec<Attempt>, BTreeMap<CopyKey, Row>)>,
    /// Whether commits were ever forgotten.
    pub forgot: bool,
    /// Whether a delivery has taken out the last copy of its message.
    pub last_copy_removed: bool,
    /// Whether a holder of the lock has appended what was there.
    pub two_at_once: bool,
    pub uid_plus: bool,
}

impl World {
    pub fn new(engine: Engine, uid_plus: bool) -> Self {
        Self {
            engine,
            clock: 0.0,
            locks: BTreeMap::new(),
            attempts: Vec::new(),
            copies: BTreeMap::new(),
            boxes: BTreeMap::new(),
            late: Vec::new(),
            dead: Vec::new(),
            severed: BTreeSet::new(),
            before: Vec::new(),
            forgot: false,
            last_copy_removed: false,
            two_at_once: false,
            uid_plus,
        }
    }

    pub fn mailbox(&mut self, name: &(String, String)) -> &mut Box_ {
        self.boxes.entry(name.clone()).or_insert_with(|| Box_ { uid_validity: 1, uid_next: 1, ..Box_::default() })
    }

    /// A copy arrives. Where whoever sent it still holds the lock, it must be the only one: two at once come only of an
    /// APPEND that lands when its process has lost the lock, or of what owners and fail-overs do.
    pub fn take_in(&mut self, name: &(String, String), identity: Identity, sent_by: Option<usize>) -> Placement {
        let holds = sent_by.is_some_and(|process| self.locks.values().any(|holder| *holder == process));
        let forgot = self.forgot;
        let mailbox = self.mailbox(name);
        let there = mailbox.messages.iter().any(|(_, what)| *what == identity);
        let excused = mailbox.touched || mailbox.stray || forgot;
        mailbox.stray |= !holds;
        if there && holds && !excused {
            self.two_at_once = true;
        }
        let mailbox = self.mailbox(name);
        let uid = mailbox.uid_next;
        mailbox.uid_next += 1;
        mailbox.messages.push((uid, identity));
        Placement { uid_validity: mailbox.uid_validity, uid }
    }

    /// A process is gone: its connections end, and the server frees its locks.
    pub fn forget(&mut self, process: usize) {
        self.locks.retain(|_, holder| *holder != process);
    }

    /// The server ends a process's connection and frees its lock. The process hears of it when it next asks.
    pub fn sever(&mut self, process: usize) {
        self.forget(process);
        self.severed.insert(process);
    }

    /// The database fails over to a server that lacks the last `commits`. Every connection ends with the old one.
    pub fn fail_over(&mut self, commits: usize, processes: impl Iterator<Item = usize>) {
        let kept = self.before.len().saturating_sub(commits);
        if let Some((attempts, copies)) = self.before.drain(kept..).next() {
            (self.attempts, self.copies, self.forgot) = (attempts, copies, true);
        }
        processes.for_each(|process| self.sever(process));
    }

    fn about_to_commit(&mut self) {
        self.before.push((self.attempts.clone(), self.copies.clone()));
    }

    /// An APPEND of a process that died lands after all.
    pub fn land(&mut self, which: usize) {
        let landed = self.late.remove(which);
        self.take_in(&landed.mailbox, landed.identity, None);
    }
}

/// One process's sight of the world.
pub struct Process<'y> {
    pub number: usize,
    pub world: Rc<RefCell<World>>,
    pub yielder: &'y Yielder<Fate, Point>,
    pub database_alive: bool,
}

impl Process<'_> {
    fn stop(&self, call: &'static str, after: bool) -> Fate {
        let fate = self.yielder.suspend(Point { call, after });
        self.world.borrow_mut().clock += 0.001;
        fate
    }

    fn lost(&mut self) -> DatabaseError {
        self.database_alive = false;
        self.world.borrow_mut().forget(self.number);
        DatabaseError::new(DatabaseFailure::ConnectionLost, "asking", "the connection ended")
    }

    /// A call to the database: lost before its effect, or after it.
    fn ask<T>(&mut self, call: &'static str, effect: impl FnOnce(&mut World, usize) -> T) -> Result<T, DatabaseError> {
        if !self.database_alive || self.stop(call, false) != Fate::Go || self.severed() {
            return Err(self.lost());
        }
        let result = effect(&mut self.world.borrow_mut(), self.number);
        if self.stop(call, true) != Fate::Go {
            return Err(self.lost());
        }
        Ok(result)
    }

    fn severed(&self) -> bool {
        self.world.borrow().severed.contains(&self.number)
    }
}

impl NamedLock for Process<'_> {
    fn acquire(&mut self, name: &LockName, _wait: Duration) -> Result<Acquired, DatabaseError> {
        let name = *name.digest();
        self.ask("acquire", |world, me| {
            if *world.locks.entry(name).or_insert(me) == me { Acquired::Held } else { Acquired::Busy(None) }
        })
    }

    fn still_held(&mut self, name: &LockName) -> Result<bool, DatabaseError> {
        let name = *name.digest();
        self.ask("still held", |world, me| world.locks.get(&name) == Some(&me))
    }

    fn release(&mut self, name: &LockName) -> Result<(), DatabaseError> {
        let name = *name.digest();
        self.ask("release", |world, me| {
            if world.locks.get(&name) == Some(&me) {
                world.locks.remove(&name);
            }
        })
    }
}

impl Ledger for Process<'_> {
    fn addresses(&mut self, _addresses: &[&str]) -> Result<AddressBook, DatabaseError> {
        Ok(AddressBook::default())
    }

    fn journal(&mut self, journal: &Journal<'_>) -> Result<(), DatabaseError> {
        self.ask("journal", |world, _| {
            world.about_to_commit();
            for copy in &journal.copies {
                world.attempts.push(Attempt {
                    attempt: journal.attempt,
                    key: copy.key,
                    recipient: journal.recipient.to_owned(),
                    started: world.clock,
                    ended: false,
                    position: copy.position,
                });
            }
        })
    }

    fn look(&mut self, copies: &[CopyKey]) -> Result<Vec<CopyHistory>, DatabaseError> {
        self.ask("look", |world, _| {
            let history = |key: &CopyKey| CopyHistory {
                key: *key,
                delivered: match world.copies.get(key) {
                    Some(Row::Delivered(placement)) => Some(Delivered { placement: *placement }),
                    Some(Row::Owed) | None => None,
                },
                open_attempts: world
                    .attempts
                    .iter()
                    .filter(|attempt| attempt.key == *key && !attempt.ended)
                    .map(|attempt| OpenAttempt {
                        attempt: attempt.attempt,
                        recipient: attempt.recipient.clone(),
                        age: world.clock - attempt.started,
                        position: attempt.position,
                    })
                    .collect(),
            };
            copies.iter().map(history).collect()
        })
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), DatabaseError> {
        self.ask("record", |world, me| {
            world.about_to_commit();
            for copy in &record.copies {
                let row = match copy.state {
                    CopyState::Delivered(placement) => Row::Delivered(placement),
                    CopyState::Owed(_) => Row::Owed,
                };
                let delivered = matches!(world.copies.get(&copy.key), Some(Row::Delivered(_)));
                if !(delivered && row == Row::Owed) {
                    world.copies.insert(copy.key, row);
                }
            }
            for ended in &record.ended {
                for attempt in &mut world.attempts {
                    attempt.ended |= attempt.attempt == ended.attempt && attempt.key == ended.key;
                }
            }
            if world.engine == Engine::Postgresql {
                world.forget(me);
            }
        })
    }

    fn first_attempt_age(&mut self, copies: &[CopyKey]) -> Result<Duration, DatabaseError> {
        self.ask("first attempt", |world, _| {
            let first = world.attempts.iter().filter(|a| copies.contains(&a.key)).map(|a| a.started);
            let first = first.fold(world.clock, f64::min);
            Duration::try_from_secs_f64(world.clock - first).unwrap_or_default()
        })
    }
}

/// One process's session with one mailbox.
pub struct SimulatedMailbox<'y> {
    pub name: (String, String),
    pub number: usize,
    pub world: Rc<RefCell<World>>,
    pub yielder: &'y Yielder<Fate, Point>,
    pub alive: bool,
}

impl SimulatedMailbox<'_> {
    fn stop(&self, call: &'static str, after: bool) -> Fate {
        let fate = self.yielder.suspend(Point { call, after });
        self.world.borrow_mut().clock += 0.001;
        fate
    }

    fn error(&mut self, failure: MailboxFailure) -> MailboxError {
        self.alive &= failure != MailboxFailure::ConnectionLost;
        MailboxError::new(failure, "asking", "the simulation says so")
    }

    fn ask<T>(&mut self, call: &'static str, effect: impl FnOnce(&mut Box_) -> T) -> Result<T, MailboxError> {
        if !self.alive {
            return Err(self.error(MailboxFailure::ConnectionLost));
        }
        match self.stop(call, false) {
            Fate::Go => {}
            Fate::Lose => return Err(self.error(MailboxFailure::ConnectionLost)),
            Fate::Refuse => return Err(self.error(MailboxFailure::Refused)),
        }
        let result = effect(self.world.borrow_mut().mailbox(&self.name));
        match self.stop(call, true) {
            Fate::Go => Ok(result),
            Fate::Lose | Fate::Refuse => Err(self.error(MailboxFailure::ConnectionLost)),
        }
    }
}

impl Mailbox for SimulatedMailbox<'_> {
    fn position(&mut self) -> Result<Option<Position>, MailboxError> {
        self.ask("position", |mailbox| {
            Some(Position { uid_validity: mailbox.uid_validity, uid_next: mailbox.uid_next })
        })
    }

    fn append(&mut self, copy: &NewCopy<'_>, go_ahead: &mut dyn FnMut() -> bool) -> Appended {
        if !self.alive {
            return Appended::NotSent(self.error(MailboxFailure::ConnectionLost));
        }
        match self.stop("append", false) {
            Fate::Go => {}
            Fate::Lose => return Appended::NotSent(self.error(MailboxFailure::ConnectionLost)),
            Fate::Refuse => return Appended::Refused(self.error(MailboxFailure::OverQuota)),
        }
        if !go_ahead() {
            self.alive = false;
            return Appended::Withheld;
        }
        // The last CRLF is on its way: from here on others may run, the process may die, and the message lands all the
        // same, now, later, or never.
        let identity = *copy.identity;
        let in_flight = InFlight { mailbox: self.name.clone(), identity, process: self.number, abandoned: false };
        self.world.borrow_mut().late.push(in_flight);
        if self.stop("append sent", false) != Fate::Go {
            for flight in &mut self.world.borrow_mut().late {
                flight.abandoned |= flight.process == self.number && flight.mailbox == self.name;
            }
            return Appended::Unknown(self.error(MailboxFailure::ConnectionLost));
        }
        let placement = {
            let mut world = self.world.borrow_mut();
            let mine = |flight: &InFlight| {
                flight.process == self.number && flight.mailbox == self.name && flight.identity == identity
            };
            match world.late.iter().position(mine) {
                Some(which) => {
                    world.late.remove(which);
                    world.take_in(&self.name, identity, Some(self.number))
                }
                None => unreachable!("what is in flight stays there while its process lives"),
            }
        };
        if self.stop("append reply", true) != Fate::Go {
            return Appended::Unknown(self.error(MailboxFailure::ConnectionLost));
        }
        Appended::Stored(self.world.borrow().uid_plus.then_some(placement))
    }

    fn find(&mut self, wanted: &Wanted<'_>) -> Result<Found, MailboxError> {
        let (identity, since) = (*wanted.identity, wanted.since);
        assert_eq!(wanted.matching, Matching::Identity);
        self.ask("find", |mailbox| {
            let in_range = since.is_some_and(|since| since.uid_validity == mailbox.uid_validity);
            let from = since.filter(|_| in_range).map_or(0, |since| since.uid_next);
            let uid_validity = mailbox.uid_validity;
            let copies = mailbox.messages.iter().filter(|(uid, what)| *uid >= from && *what == identity);
            let placed = |&(uid, _): &(u32, Identity)| FoundCopy {
                placement: Some(Placement { uid_validity, uid }),
                deleted: false,
            };
            Found { in_range, copies: copies.map(placed).collect() }
        })
    }

    fn remove(
        &mut self,
        extra: Placement,
        keep: Placement,
        wanted: &Wanted<'_>,
        go_ahead: &mut dyn FnMut() -> bool,
    ) -> Result<Removal, MailboxError> {
        if !self.world.borrow().uid_plus {
            return Ok(Removal::Unsupported);
        }
        let identity = *wanted.identity;
        let there = |mailbox: &Box_, placement: Placement| {
            mailbox.uid_validity == placement.uid_validity && mailbox.messages.contains(&(placement.uid, identity))
        };
        let checked = self.ask("compare", |mailbox| (there(mailbox, extra), there(mailbox, keep)))?;
        match checked {
            (_, false) => return Ok(Removal::KeeperGone),
            (false, _) => return Ok(Removal::NotThere),
            (true, true) => {}
        }
        if !go_ahead() {
            return Ok(Removal::Withheld);
        }
        self.ask("expunge", |mailbox| {
            if mailbox.uid_validity != extra.uid_validity {
                return Removal::Renumbered;
            }
            mailbox.messages.retain(|(uid, _)| *uid != extra.uid);
            Removal::Removed
        })
    }
}
