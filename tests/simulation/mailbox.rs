//! One process's session with one simulated mailbox.

use crate::world::{Change, Fate, Name, Point, SimulatedBox, Stored, UnderWay, World, placement_parts, position_parts};
use corosensei::Yielder;
use maildrop_command::base::deadline::Deadline;
use maildrop_command::mailbox::{
    Appended, FoundCopies, FoundCopy, Mailbox, MailboxError, MailboxFailure, Matching, NewCopy, Pace, Placement,
    Position, Removal, Wanted,
};
use maildrop_command::message::Identity;
use std::cell::RefCell;
use std::rc::Rc;
use time::OffsetDateTime;

pub struct SimulatedMailbox<'y> {
    pub name: Name,
    pub number: usize,
    pub world: Rc<RefCell<World>>,
    pub yielder: &'y Yielder<Fate, Point>,
    pub alive: bool,
    /// The copy that was uploaded, and whether the lock was lost by then.
    uploaded: Option<(Identity, bool)>,
    /// Whether it takes nothing.
    pub full: bool,
    /// Whether its process was answered its position: else the journal has no row of this copy.
    pub is_open: bool,
}

impl<'y> SimulatedMailbox<'y> {
    pub fn new(name: Name, number: usize, world: Rc<RefCell<World>>, yielder: &'y Yielder<Fate, Point>) -> Self {
        Self { name, number, world, yielder, alive: true, uploaded: None, full: false, is_open: false }
    }
}

impl SimulatedMailbox<'_> {
    fn stop(&self, call: &'static str, after: bool) -> Fate {
        let fate = self.yielder.suspend(Point { call, after, database: false });
        self.world.borrow_mut().tell(self.number, &fate);
        fate
    }

    fn error(&mut self, failure: MailboxFailure) -> MailboxError {
        self.alive &= failure != MailboxFailure::ConnectionLost;
        MailboxError::new(failure, "asking", "the simulation says so")
    }

    fn ask<T>(
        &mut self,
        call: &'static str,
        look: impl FnOnce(&SimulatedBox) -> T,
        notify: impl FnOnce(&T, &mut World, usize),
    ) -> Result<T, MailboxError> {
        if !self.alive {
            return Err(self.error(MailboxFailure::ConnectionLost));
        }
        match self.stop(call, false) {
            Fate::Go => {}
            Fate::Lose | Fate::LoseUnnoticed => return Err(self.error(MailboxFailure::ConnectionLost)),
            Fate::Refuse => return Err(self.error(MailboxFailure::Refused)),
        }
        let result = look(self.world.borrow_mut().mailbox(self.name));
        notify(&result, &mut self.world.borrow_mut(), self.number);
        match self.stop(call, true) {
            Fate::Go => Ok(result),
            _ => Err(self.error(MailboxFailure::ConnectionLost)),
        }
    }

    /// Sends what changes the mailbox: from here on others may run, the process may die, and it is carried out all the
    /// same, now, later, or never. `false`: the connection ended.
    fn send(&mut self, call: &'static str, what: Change) -> bool {
        self.put_under_way(what);
        self.wait_for_server(call)
    }

    fn put_under_way(&mut self, what: Change) {
        let (mailbox, process) = (self.name, self.number);
        self.world.borrow_mut().under_way.push(UnderWay { mailbox, process, abandoned: false, what });
    }

    /// Others may run, while the server has not carried out what is under way.
    fn wait_for_server(&mut self, call: &'static str) -> bool {
        let goes_on = self.stop(call, false) == Fate::Go;
        if !goes_on {
            for mine in self.world.borrow_mut().under_way.iter_mut().filter(|it| it.process == self.number) {
                mine.abandoned |= mine.mailbox == self.name;
            }
        }
        goes_on
    }

    /// What is under way. It stays there while its process lives.
    fn take_mine(&self) -> UnderWay {
        let mut world = self.world.borrow_mut();
        let mine = |it: &UnderWay| it.process == self.number && it.mailbox == self.name && !it.abandoned;
        let which = world.under_way.iter().position(mine).expect("it was sent");
        world.under_way.remove(which)
    }

    /// Whether the process had the lock and has lost it by now: then what it is about to finish must not be finished.
    fn has_lost_the_lock(&self) -> bool {
        self.world.borrow().lost_lock.contains(&self.number)
    }
}

impl Mailbox for SimulatedMailbox<'_> {
    fn position(&mut self) -> Result<Option<Position>, MailboxError> {
        let position =
            |mailbox: &SimulatedBox| Some(Position { uid_validity: mailbox.uid_validity, uid_next: mailbox.uid_next });
        let position = self.ask("position", position, |result, world, me| world.tell(me, &position_parts(*result)))?;
        self.is_open = true;
        Ok(position)
    }

    fn upload(&mut self, copy: &NewCopy<'_>, _: Option<Pace>) -> Result<(), Appended> {
        if !self.alive {
            return Err(Appended::NotSent(self.error(MailboxFailure::ConnectionLost)));
        }
        // While the literal is on its way.
        match self.stop("append", false) {
            Fate::Go => {}
            Fate::Lose | Fate::LoseUnnoticed => {
                return Err(Appended::NotSent(self.error(MailboxFailure::ConnectionLost)));
            }
            Fate::Refuse => return Err(Appended::Refused(self.error(MailboxFailure::OverQuota))),
        }
        if self.full {
            return Err(Appended::Refused(self.error(MailboxFailure::OverQuota)));
        }
        self.uploaded = Some((*copy.identity, self.has_lost_the_lock()));
        Ok(())
    }

    /// The last CRLF is on its way.
    fn complete(&mut self) {
        let (identity, too_late) = self.uploaded.expect("it was uploaded");
        if too_late {
            self.world.borrow_mut().breaks("TWICE: the last CRLF was sent after the lock was lost");
        }
        self.put_under_way(Change::Append(identity));
    }

    fn answer(&mut self) -> Appended {
        let (identity, _) = self.uploaded.take().expect("it was uploaded");
        if !self.wait_for_server("append sent") {
            return Appended::Unknown(self.error(MailboxFailure::ConnectionLost));
        }
        self.take_mine();
        let mut world = self.world.borrow_mut();
        world.about_to_land(self.name, self.number);
        let placement = world.take_in(self.name, identity, Some(self.number));
        world.tell(self.number, &placement_parts(Some(placement)));
        let placement = world.uid_plus.then_some(placement);
        drop(world);
        if self.stop("append reply", true) != Fate::Go {
            return Appended::Unknown(self.error(MailboxFailure::ConnectionLost));
        }
        Appended::Stored(placement)
    }

    fn withhold(&mut self) {
        (self.uploaded, self.alive) = (None, false);
    }

    fn patient_until(&mut self, _: Option<Deadline>) {}

    fn find(&mut self, wanted: &Wanted<'_>) -> Result<FoundCopies, MailboxError> {
        let (identity, since, matching) = (*wanted.identity, wanted.since, wanted.matching);
        let most_days = -(wanted.not_before - OffsetDateTime::UNIX_EPOCH).whole_days();
        // Both messages bear one Message-ID.
        let is_it = move |it: &Stored| match matching {
            Matching::Identity => it.identity == Some(identity),
            Matching::MessageId => it.identity.is_some(),
        };
        let find = |mailbox: &SimulatedBox| {
            let in_range = since.is_some_and(|since| since.uid_validity == mailbox.uid_validity);
            let from = since.filter(|_| in_range).map_or(0, |since| since.uid_next);
            let uid_validity = mailbox.uid_validity;
            // In a search of the whole mailbox by the day.
            let old = |it: &Stored| !in_range && it.days_old > most_days + 1;
            let copies = mailbox.messages.iter().filter(|it| it.uid >= from && is_it(it) && !old(it));
            let mut copies: Vec<FoundCopy> = copies
                .map(|it| FoundCopy { placement: Some(Placement { uid_validity, uid: it.uid }), deleted: it.deleted })
                .collect();
            copies.sort_by_key(|copy| copy.placement.map(|placement| placement.uid));
            FoundCopies { in_range, copies }
        };
        self.ask("find", find, |found, world, me| {
            world.tell(me, &found.in_range);
            for copy in &found.copies {
                world.tell(me, &(placement_parts(copy.placement), copy.deleted));
            }
            world.tell(me, &"");
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
        let identity = Some(*wanted.identity);
        let compare = |mailbox: &SimulatedBox| {
            let renumbered = [extra, keep].iter().any(|copy| copy.uid_validity != mailbox.uid_validity);
            let is_ours = |copy| mailbox.at(copy).filter(|there| there.identity == identity);
            let (extra, keep) = (is_ours(extra), is_ours(keep));
            (renumbered, extra.is_some(), keep.is_some_and(|keep| !keep.deleted), mailbox.owner_acted)
        };
        let compared = self.ask("compare", compare, |result, world, me| world.tell(me, result))?;
        let owner_acted = match compared {
            (true, ..) => return Ok(Removal::Renumbered),
            (_, false, ..) => return Ok(Removal::NotThere),
            (_, _, false, _) => return Ok(Removal::KeeperGone),
            (.., owner_acted) => owner_acted,
        };
        let too_late = self.has_lost_the_lock();
        if !go_ahead() {
            return Ok(Removal::Withheld);
        }
        if too_late {
            self.world.borrow_mut().breaks("LOST: an expunge was sent after the lock was lost");
        }
        self.expunge(extra, owner_acted)
    }
}

impl SimulatedMailbox<'_> {
    /// Both commands are under way before either answer is.
    pub fn expunge(&mut self, extra: Placement, owner_acted: u32) -> Result<Removal, MailboxError> {
        let Placement { uid_validity, uid } = extra;
        let mut calls = ["expunge sent", "expunge marked"].into_iter();
        let mut change = Change::Expunge { uid_validity, uid, marked: false, owner_acted };
        loop {
            let call = calls.next().expect("it has two halves");
            if !self.send(call, change) {
                return Err(self.error(MailboxFailure::ConnectionLost));
            }
            self.take_mine();
            if self.world.borrow_mut().go_on_expunging(self.name, &mut change) {
                break;
            }
        }
        match self.stop("expunge", true) {
            Fate::Go => Ok(Removal::Removed),
            _ => Err(self.error(MailboxFailure::ConnectionLost)),
        }
    }
}
