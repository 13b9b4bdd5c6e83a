//! One process's connection to the simulated database.

use crate::world::{Attempt, Engine, Fate, Lingering, Point, Row, World, placement_parts, position_parts};
use corosensei::Yielder;
use maildrop_command::database::{DatabaseError, DatabaseFailure};
use maildrop_command::ledger::{
    CopyHistory, CopyKey, CopyState, DeliveredAt, Epoch, FailureRecord, Journal, Ledger, OpenAttempt, Outcome, Record,
};
use maildrop_command::lock::{Acquired, Holder, LockName, NamedLock};
use maildrop_command::mailbox::{Placement, Position};
use maildrop_command::message::Role;
use std::cell::RefCell;
use std::hash::Hash;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

/// What changes something at the server.
#[derive(Clone, Debug, Hash)]
pub enum Statement {
    Acquire([u8; 32]),
    Release([u8; 32]),
    Journal(Vec<Attempt>),
    BeginEpoch,
    Record {
        lock: Option<[u8; 32]>,
        copies: Vec<(CopyKey, Role, Row)>,
        ended: Vec<(Uuid, CopyKey)>,
        events: Vec<ReportedEvent>,
    },
}

/// What a record tells of a copy.
#[derive(Clone, Debug, Hash)]
pub struct ReportedEvent {
    key: CopyKey,
    kind: &'static str,
    diff: String,
}

/// Whether there is one event for each copy that is about to change, and none else; and whether the row that was there, with what the
/// event says has changed, is the one that will be there.
fn tells_what_changes(copies: &[(CopyKey, Role, Row)], events: &[ReportedEvent], world: &World) -> bool {
    // A copy that is refused for good has no row.
    let about =
        |key: &CopyKey| events.iter().filter(|event| event.key == *key && event.kind != "message.refused").count();
    let mut changed = 0;
    for (key, role, row) in copies {
        let before = world.copies.get(key);
        let (is_owed, was_delivered) = (*row == Row::Owed, matches!(before, Some(Row::Delivered(_))));
        let changes = before != Some(row) && !(is_owed && was_delivered);
        changed += usize::from(changes);
        if about(key) != usize::from(changes) {
            return false;
        }
        let Some(event) = events.iter().find(|event| event.key == *key) else { continue };
        let diff: serde_json::Value = serde_json::from_str(&event.diff).expect("JSON");
        let folded = |field: &str, was: serde_json::Value| match diff.get(field) {
            // What it was is as true as what it is.
            Some(change) if change["---"] != was => None,
            Some(change) => Some(change["+++"].clone()),
            None => Some(was),
        };
        let (mut was, is) = (fields(before), fields(Some(row)));
        for (field, value) in &mut was {
            match folded(field, value.take()) {
                Some(now) => *value = now,
                None => return false,
            }
        }
        let of_sender = *role == Role::Sender;
        let kind = match (before, row) {
            (Some(Row::Delivered(_)), _) => "copy.restored",
            (_, Row::Delivered(_)) if of_sender => "sent.delivered",
            (_, Row::Delivered(_)) => "message.delivered",
            (_, Row::Owed) => "sent.owed",
        };
        if was != is || event.kind != kind {
            return false;
        }
    }
    events.iter().filter(|event| event.kind != "message.refused").count() == changed
}

/// A row as diffs speak of it.
fn fields(row: Option<&Row>) -> [(&'static str, serde_json::Value); 3] {
    let state = row.map(|row| if *row == Row::Owed { "owed" } else { "delivered" });
    let place = match row {
        Some(Row::Delivered(place)) => *place,
        _ => None,
    };
    [
        ("state", state.into()),
        ("uid_validity", place.map(|(uid_validity, _)| uid_validity).into()),
        ("uid", place.map(|(_, uid)| uid).into()),
    ]
}

impl Statement {
    /// What the server does, for the session of `process`. Says whether that has the lock, where it asked for it.
    pub fn carry_out(self, world: &mut World, process: usize) -> bool {
        match self {
            Self::Acquire(name) => return *world.locks.entry(name).or_insert(process) == process,
            Self::Release(name) => {
                if world.locks.get(&name) == Some(&process) {
                    world.locks.remove(&name);
                }
            }
            Self::Journal(attempts) => {
                world.about_to_commit();
                world.clock += world.tick;
                let started = world.clock;
                world.attempts.extend(attempts.into_iter().map(|attempt| Attempt { started, ..attempt }));
            }
            Self::BeginEpoch => {
                world.about_to_commit();
                if world.epochs.last().map(|(epoch, _)| *epoch) != Some(world.epoch) {
                    let since = (!world.epochs.is_empty()).then_some(world.clock);
                    world.epochs.push((world.epoch, since));
                }
            }
            Self::Record { lock, copies, ended, events } => {
                world.about_to_commit();
                if !world.several_locks && !world.applied_late && !tells_what_changes(&copies, &events, world) {
                    world.breaks("UNTOLD: what a record tells is not what it changes");
                }
                for (key, _, row) in copies {
                    if let Some(lock) = lock.filter(|_| world.several_locks) {
                        world.recorded.entry(key).or_insert((lock, world.clock));
                    }
                    let delivered = matches!(world.copies.get(&key), Some(Row::Delivered(_)));
                    if !(delivered && row == Row::Owed) {
                        world.copies.insert(key, row);
                    }
                }
                for (name, key) in ended {
                    for attempt in world.attempts.iter_mut().filter(|attempt| attempt.attempt == name) {
                        attempt.ended |= attempt.key == key;
                    }
                }
                if world.engine == Engine::Postgresql {
                    world.locks.retain(|_, holder| *holder != process);
                }
            }
        }
        false
    }
}

/// One process's connection.
pub struct Connection<'y> {
    pub number: usize,
    pub world: Rc<RefCell<World>>,
    pub yielder: &'y Yielder<Fate, Point>,
    pub alive: bool,
    /// Whether it takes the warning that comes with a commit for nothing.
    pub heeds_no_warning: bool,
}

impl Connection<'_> {
    fn stop(&self, call: &'static str, after: bool) -> Fate {
        let fate = self.yielder.suspend(Point { call, after, database: true });
        self.world.borrow_mut().tell(self.number, &fate);
        fate
    }

    /// The connection has ended. Where the server does not notice, it may still carry out `statement`.
    fn lost(&mut self, fate: Fate, statement: Option<Statement>) -> DatabaseError {
        if self.alive {
            self.alive = false;
            let mut world = self.world.borrow_mut();
            if fate == Fate::LoseUnnoticed && !world.severed.contains(&self.number) {
                world.lingering.push(Lingering { process: self.number, statement });
            }
            world.forget(self.number);
        }
        DatabaseError::new(DatabaseFailure::ConnectionLost, "asking", "the connection ended")
    }

    /// A call to the database: lost before its effect, or after it.
    fn call<T: Clone>(
        &mut self,
        call: &'static str,
        statement: Option<Statement>,
        effect: impl FnOnce(&mut World, usize, Option<Statement>) -> T,
        notify: impl FnOnce(&T, &mut World, usize),
    ) -> Result<T, DatabaseError> {
        if !self.alive {
            return Err(self.lost(Fate::Lose, None));
        }
        let fate = self.stop(call, false);
        if fate != Fate::Go || self.world.borrow().severed.contains(&self.number) {
            return Err(self.lost(fate, statement));
        }
        let commits =
            matches!(&statement, Some(Statement::Journal(_) | Statement::BeginEpoch | Statement::Record { .. }));
        let warns = self.world.borrow().warns(self.number).filter(|_| commits);
        if warns == Some(false) {
            // Its standbys have another primary, and never answer.
            return Err(self.lost(Fate::Lose, None));
        }
        let me = self.number;
        let result = self.world.borrow_mut().at_its_server(me, |world| effect(world, me, statement));
        if warns == Some(true) && !self.heeds_no_warning {
            return Err(DatabaseError::new(DatabaseFailure::InDoubt, "asking", "the wait for a standby was ended"));
        }
        // From here on the answer is on its way.
        notify(&result, &mut self.world.borrow_mut(), self.number);
        let fate = self.stop(call, true);
        if fate != Fate::Go {
            return Err(self.lost(fate, None));
        }
        Ok(result)
    }

    fn ask<T: Clone>(
        &mut self,
        call: &'static str,
        look: impl FnOnce(&World, usize) -> T,
        notify: impl FnOnce(&T, &mut World, usize),
    ) -> Result<T, DatabaseError> {
        self.call(call, None, |world, me, _| look(&*world, me), notify)
    }

    fn carry_out(&mut self, call: &'static str, statement: Statement) -> Result<bool, DatabaseError> {
        let carry_out = |world: &mut World, me, statement: Option<Statement>| {
            statement.is_some_and(|statement| statement.carry_out(world, me))
        };
        self.call(call, Some(statement), carry_out, |answer, world, me| world.tell(me, answer))
    }
}

impl NamedLock for Connection<'_> {
    /// Waiting for the lock is left out: a process that waits, and gets it or does not, has asked for it later.
    fn acquire(&mut self, name: &LockName, _wait: Duration) -> Result<Acquired, DatabaseError> {
        if self.carry_out("acquire", Statement::Acquire(*name.digest()))? {
            self.world.borrow_mut().saw_held.insert(self.number);
            return Ok(Acquired::Held);
        }
        self.world.borrow_mut().saw_busy.insert(self.number);
        Ok(Acquired::Busy(None))
    }

    fn still_held(&mut self, name: &LockName) -> Result<bool, DatabaseError> {
        let held = |world: &World, me| world.locks.get(name.digest()) == Some(&me);
        self.ask("still held", held, |answer, world, me| world.tell(me, answer))
    }

    fn holder(&mut self, _: &LockName) -> Result<Option<Holder>, DatabaseError> {
        Ok(None)
    }

    fn release(&mut self, name: &LockName) -> Result<(), DatabaseError> {
        self.carry_out("release", Statement::Release(*name.digest())).map(drop)
    }
}

impl Ledger for Connection<'_> {
    fn try_journal(&mut self, journal: &Journal<'_>) -> Result<(), DatabaseError> {
        let attempts = journal.copies.iter().map(|copy| Attempt {
            attempt: journal.attempt,
            lock: *journal.lock.digest(),
            key: copy.key,
            recipient: copy.recipient.to_owned(),
            started: 0,
            ended: false,
            position: position_parts(copy.position),
        });
        self.carry_out("journal", Statement::Journal(attempts.collect())).map(drop)
    }

    /// The site records failures, which is not simulated.
    fn record_failures(&mut self, _: &[FailureRecord<'_>]) -> Result<(), DatabaseError> {
        Ok(())
    }

    fn look(&mut self, copies: &[CopyKey]) -> Result<Vec<CopyHistory>, DatabaseError> {
        let history = |world: &World, key: &CopyKey| CopyHistory {
            key: *key,
            owed: matches!(world.copies.get(key), Some(Row::Owed)).then(String::new),
            delivered: match world.copies.get(key) {
                Some(Row::Delivered(place)) => {
                    Some(DeliveredAt { placement: place.map(|(uid_validity, uid)| Placement { uid_validity, uid }) })
                }
                Some(Row::Owed) | None => None,
            },
            recorded: world
                .recorded
                .get(key)
                .map(|(lock, at)| (LockName::from_digest(*lock), seconds(world.clock - at))),
            open_attempts: world
                .attempts
                .iter()
                .filter(|attempt| attempt.key == *key && !attempt.ended)
                .map(|attempt| OpenAttempt {
                    attempt: attempt.attempt,
                    recipient: attempt.recipient.clone(),
                    host: String::new(),
                    lock: LockName::from_digest(attempt.lock),
                    age: seconds(world.clock - attempt.started),
                    position: attempt.position.map(|(uid_validity, uid_next)| Position { uid_validity, uid_next }),
                })
                .collect(),
        };
        let look = |world: &World, _| copies.iter().map(|key| history(world, key)).collect::<Vec<_>>();
        self.ask("look", look, |histories, world, me| {
            for history in histories {
                world.tell(me, &history.delivered.map(|delivered| placement_parts(delivered.placement)));
                world.tell(me, &history.owed);
                world.tell(me, &history.recorded.map(|(lock, age)| (*lock.digest(), age.to_bits())));
                for open in &history.open_attempts {
                    // The recipient is that of the attempt.
                    world.tell(me, &(open.attempt, open.age.to_bits(), position_parts(open.position)));
                }
                world.tell(me, &"");
            }
        })
    }

    fn epoch(&mut self) -> Result<Epoch, DatabaseError> {
        if !self.world.borrow().keeps_before {
            return Ok(Epoch::default());
        }
        let asked = |world: &World, _| {
            let (last, since) = world.epochs.last().copied().unzip();
            (world.epoch, last, since.flatten().map(|since| world.clock - since))
        };
        let (present, last, age) = self.ask("epoch", asked, |result, world, me| world.tell(me, result))?;
        Ok(Epoch { present: Some(present.to_string()), last: last.map(|last| last.to_string()), age: age.map(seconds) })
    }

    fn begin_epoch(&mut self) -> Result<(), DatabaseError> {
        self.carry_out("begin epoch", Statement::BeginEpoch).map(drop)
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), DatabaseError> {
        let rows = record.copies.iter().map(|copy| {
            let row = match copy.state {
                CopyState::Delivered(placement) => Row::Delivered(placement_parts(placement)),
                CopyState::Owed(_) => Row::Owed,
            };
            (copy.key, copy.role, row)
        });
        let reported = record.events.iter().map(|event| ReportedEvent {
            key: event.key,
            kind: event.kind.as_str(),
            diff: event.diff.as_json(),
        });
        let changes = reported.collect();
        let unchecked = record.ended.iter().any(|ended| ended.outcome == Outcome::AlreadyThereUnchecked);
        self.world.borrow_mut().unchecked |= unchecked;
        let ended = record.ended.iter().map(|ended| (ended.attempt, ended.key)).collect();
        let lock = record.message.as_ref().map(|message| *message.lock.digest());
        self.carry_out("record", Statement::Record { lock, copies: rows.collect(), ended, events: changes }).map(drop)
    }

    fn first_attempt_age(&mut self, copies: &[CopyKey]) -> Result<Duration, DatabaseError> {
        let age = |world: &World, _| {
            let first = world.attempts.iter().filter(|a| copies.contains(&a.key)).map(|a| a.started).min();
            Duration::try_from_secs_f64(seconds(world.clock - first.unwrap_or(world.clock))).unwrap_or_default()
        };
        self.ask("first attempt", age, |age, world, me| world.tell(me, age))
    }
}

#[allow(clippy::cast_precision_loss, reason = "a schedule is far shorter than 2^52 milliseconds")]
fn seconds(milliseconds: i64) -> f64 {
    milliseconds as f64 / 1000.0
}
