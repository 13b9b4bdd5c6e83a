//! Mistakes that a delivery could make, each made on purpose: a scheduler that does not find them proves nothing.
//!
//! The delivery itself is not touched. Each mistake stands between it and the world, and does to its calls what the
//! mistaken program would do: skip one, make it too early or too late, or take its answer for another.
//!
//! Two of them leave the mailboxes right in the end, because a retry tidies up: reading the journal once, and not
//! asking for the lock before the last CRLF. They only let two copies stand there for a while, and more often than need
//! be. So these are held to promises about the moment: the holder of the lock never appends beside another copy, and
//! a process that lost the lock during its APPEND does not finish it.

use crate::database::Connection;
use crate::mailbox::SimulatedMailbox;
use crate::scenario::Scenario;
use crate::world::{Name, Row, SETTLE};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::database::DatabaseError;
use maildrop_command::delivery::{Deferral, Delivered, Refusal, Verdict};
use maildrop_command::ledger::{
    CopyHistory, CopyKey, EndedAttempt, Epoch, FailureRecord, Journal, Ledger, OpenAttempt, Outcome, Record,
};
use maildrop_command::lock::{Acquired, Holder, LockName, NamedLock};
use maildrop_command::mailbox::{
    Appended, FoundCopies, FoundCopy, Mailbox, MailboxError, NewCopy, Pace, Placement, Position, Removal, Wanted,
};
use maildrop_command::message::Identity;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Everybody believes to have the lock.
    NoLock,
    /// A process that finds the lock held says that the message is delivered.
    BusyIsDone,
    /// The ledger is read before the lock is taken, and not again.
    LookBeforeLock,
    /// The attempts of others are read before the lock is taken, and not again.
    JournalReadOnce,
    /// Nobody sees anybody else's attempt: no journal.
    NoJournal,
    /// Under which lock somebody else delivers is not looked at.
    OtherLockUnseen,
    /// What an attempt that never ended has left is not searched for.
    NeverSearch,
    /// A copy that is recorded is never looked for again.
    NoRecheck,
    /// An attempt for the same recipient is taken for settled at once.
    NoSettle,
    /// A copy too many is taken out without looking whether the one to keep is there.
    NoKeeper,
    /// The copy is recorded before it is appended.
    RecordBeforeAppend,
    /// An APPEND whose answer is lost is taken for stored, and the delivery for done.
    UnknownIsDone,
    /// An attempt whose APPEND's answer is lost ends all the same.
    UnknownEnds,
    /// Whether the lock is still held is not asked again: not before the last CRLF, and not before an expunge.
    NeverAskAgain,
    /// The lock is let go before the record commits.
    LetGoBeforeRecord,
    /// A search that the server refuses is taken for one that found nothing.
    FailedSearchIsNothing,
    /// A copy that failed does not keep the delivery from being done.
    FailedCopyIsDone,
    /// Where one copy failed, the other one is not recorded either.
    PartialNotRecorded,
    /// An expunge whose answer is lost is taken for done.
    LostExpungeIsDone,
    /// An expunge goes by the UID alone, and looks neither at UIDVALIDITY nor at what bears it.
    ExpungeUnseen,
    /// A search begins at the UIDNEXT that the attempts had noted, and not below it.
    SearchFromNoted,
    /// What lies below the UIDNEXT that the attempts had noted is taken out, too.
    NoFloor,
    /// A search of the whole mailbox passes over what arrived before this run began.
    SearchFromToday,
    /// A delivery ends the attempts of all others at that copy.
    EndsEverybodys,
    /// Of two copies the one to keep is the first that is not marked `\Deleted`, and not the first.
    KeepsTheUnmarked,
    /// The recipients are answered before the record has committed, or whatever came of it.
    ReplyBeforeRecord,
    /// Of several recipients, one whose copy failed is answered as if it was there.
    OneLeftOut,
    /// What an earlier attempt for another of the recipients has sent to Sent is taken for settled.
    OnlyTheBearersCount,
    /// Of a copy that is owed, what an attempt for somebody else's recipient has sent is taken for settled: as if that one came back.
    OnlyOursCountWhereOwed,
    /// Nobody knows of epochs: what the database has forgotten is appended again.
    NoEpoch,
    /// The beginning of an epoch is read from a host's clock, which is fast.
    EpochByAHostsClock,
    /// A commit that comes with a warning, since its wait for a standby was ended, is taken for one that is on the standby.
    CommitsWarningUnheard,
    /// The end of what was written is taken for the end of the message: nobody asks whether its writer still lives.
    NoLookAtTheCaller,
    /// A broker takes a heartbeat for READY, as the guide's queue does: a worker that beats while it works gets another
    /// request.
    ReadyByHeartbeat,
    /// A broker gives what a worker had, that is dead or silent, to another one at once.
    HandedOn,
    /// A broker lets a message begin before its client has said Go.
    BeginsWithoutGo,
    /// A front says one word more to a client of LMTP than there are recipients.
    OneReplyTooMany,
    /// A front tells the recipients' verdicts in another order than theirs.
    RepliesInAnotherOrder,
}

/// What came of one recipient's delivery.
pub struct End {
    pub result: Result<(), String>,
    /// What the client of the service is answered.
    pub verdict: Verdict,
}

/// What becomes of the outcomes, a value for each recipient of a process.
pub fn outcomes(mistake: Option<Mistake>, results: Vec<Result<Delivered, Refusal>>) -> Vec<End> {
    let one_is_delivered = results.iter().any(Result::is_ok);
    let outcome = |result: Result<Delivered, Refusal>| {
        let verdict = result.as_ref().map_or_else(Verdict::from, Verdict::from);
        let mistaken = || End { result: Ok(()), verdict: Verdict::delivered("INBOX appended") };
        match (mistake, result) {
            (_, Ok(_)) => End { result: Ok(()), verdict },
            (Some(Mistake::BusyIsDone), Err(Refusal::Deferred(Deferral::Busy(_))))
            | (Some(Mistake::UnknownIsDone), Err(Refusal::Deferred(Deferral::Unknown(_))))
            | (Some(Mistake::FailedCopyIsDone), Err(Refusal::Deferred(Deferral::Mailbox(_)))) => mistaken(),
            (Some(Mistake::OneLeftOut), Err(_)) if one_is_delivered => mistaken(),
            (_, Err(Refusal::Deferred(Deferral::Busy(_)))) => End { result: Err("busy".into()), verdict },
            (_, Err(refusal)) => End { result: Err(refusal.to_string()), verdict },
        }
    };
    results.into_iter().map(outcome).collect()
}

/// What two mailboxes and a database of one process share.
pub type Pending = Rc<RefCell<Vec<(Name, Identity)>>>;

/// A database, with a mistake in front of it or none.
pub struct Database<'y> {
    pub process: Connection<'y>,
    pub mistake: Option<Mistake>,
    pub pending: Pending,
    /// What was read too early.
    stale: Vec<CopyHistory>,
    attempt: Uuid,
    recipients: Vec<String>,
    lock: Option<LockName>,
}

impl<'y> Database<'y> {
    pub fn new(process: Connection<'y>, mistake: Option<Mistake>, pending: Pending) -> Self {
        Self { process, mistake, pending, stale: Vec::new(), attempt: Uuid::nil(), recipients: Vec::new(), lock: None }
    }
}

impl NamedLock for Database<'_> {
    fn acquire(&mut self, name: &LockName, wait: Duration) -> Result<Acquired, DatabaseError> {
        if self.mistake == Some(Mistake::NoLock) {
            return Ok(Acquired::Held);
        }
        self.lock = Some(*name);
        self.process.acquire(name, wait)
    }

    fn still_held(&mut self, name: &LockName) -> Result<bool, DatabaseError> {
        if self.mistake == Some(Mistake::NeverAskAgain) {
            return Ok(true);
        }
        Ok(self.process.still_held(name)? || self.mistake == Some(Mistake::NoLock))
    }

    fn holder(&mut self, name: &LockName) -> Result<Option<Holder>, DatabaseError> {
        self.process.holder(name)
    }

    fn release(&mut self, name: &LockName) -> Result<(), DatabaseError> {
        self.process.release(name)
    }
}

impl Ledger for Database<'_> {
    fn try_journal(&mut self, journal: &Journal<'_>) -> Result<(), DatabaseError> {
        self.process.try_journal(journal)?;
        self.attempt = journal.attempt;
        self.recipients = journal.copies.iter().map(|copy| copy.recipient.to_owned()).collect();
        if matches!(self.mistake, Some(Mistake::LookBeforeLock | Mistake::JournalReadOnce)) {
            let keys: Vec<CopyKey> = journal.copies.iter().map(|copy| copy.key).collect();
            self.stale = self.process.look(&keys)?;
        }
        Ok(())
    }

    fn record_failures(&mut self, failures: &[FailureRecord<'_>]) -> Result<(), DatabaseError> {
        self.process.record_failures(failures)
    }

    fn look(&mut self, copies: &[CopyKey]) -> Result<Vec<CopyHistory>, DatabaseError> {
        let mut histories = self.process.look(copies)?;
        for history in &mut histories {
            let stale = self.stale.iter().find(|stale| stale.key == history.key);
            match (self.mistake, stale) {
                (Some(Mistake::LookBeforeLock), Some(stale)) => *history = stale.clone(),
                (Some(Mistake::JournalReadOnce), Some(stale)) => {
                    history.open_attempts.clone_from(&stale.open_attempts);
                }
                (Some(Mistake::NoJournal), _) => {
                    history.open_attempts.retain(|open| open.attempt == self.attempt);
                }
                (Some(Mistake::OtherLockUnseen), _) => {
                    history.recorded = None;
                    for open in &mut history.open_attempts {
                        open.lock = self.lock.unwrap_or(open.lock);
                    }
                }
                (Some(Mistake::NoRecheck), _) if history.delivered.is_some() => {
                    let ours = |recipient: &String| self.recipients.contains(recipient);
                    history.open_attempts.retain(|open| open.attempt == self.attempt || !ours(&open.recipient));
                }
                (Some(Mistake::NoSettle), _) => {
                    for open in history.open_attempts.iter_mut().filter(|open| open.attempt != self.attempt) {
                        open.age += 2.0 * Duration::from_millis(SETTLE.unsigned_abs()).as_secs_f64();
                    }
                }
                (Some(Mistake::OnlyTheBearersCount), _) => {
                    let ours = |open: &&OpenAttempt| open.attempt == self.attempt;
                    let bearer = history.open_attempts.iter().find(ours).map(|open| open.recipient.clone());
                    let others = history.open_attempts.iter_mut();
                    let others = others.filter(|open| bearer.as_ref().is_some_and(|bearer| *bearer != open.recipient));
                    others.for_each(|open| open.recipient = "somebody else".into());
                }
                (Some(Mistake::OnlyOursCountWhereOwed), _) if history.owed.is_some() => {
                    let ours = |open: &&mut OpenAttempt| self.recipients.contains(&open.recipient);
                    for open in history.open_attempts.iter_mut().filter(|open| !ours(open)) {
                        open.age += 2.0 * Duration::from_millis(SETTLE.unsigned_abs()).as_secs_f64();
                    }
                }
                (Some(Mistake::NoFloor), _) => {
                    let positions = history.open_attempts.iter_mut().filter_map(|open| open.position.as_mut());
                    positions.for_each(|position| position.uid_next = 1);
                }
                _ => {}
            }
        }
        Ok(histories)
    }

    fn epoch(&mut self) -> Result<Epoch, DatabaseError> {
        let epoch = self.process.epoch()?;
        Ok(match self.mistake {
            Some(Mistake::NoEpoch) => Epoch::default(),
            Some(Mistake::EpochByAHostsClock) => Epoch { age: epoch.age.map(|age| age + 3.0 * 3600.0), ..epoch },
            _ => epoch,
        })
    }

    fn begin_epoch(&mut self) -> Result<(), DatabaseError> {
        self.process.begin_epoch()
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), DatabaseError> {
        if self.mistake == Some(Mistake::ReplyBeforeRecord) {
            // It learns nothing of the outcome.
            let _ = self.process.record(record);
            return Ok(());
        }
        if self.mistake == Some(Mistake::LetGoBeforeRecord)
            && let Some(lock) = &self.lock
        {
            self.process.release(lock)?;
        }
        let failed = |ended: &EndedAttempt<'_>| matches!(ended.outcome, Outcome::Deferred(..));
        if self.mistake == Some(Mistake::PartialNotRecorded) && record.ended.iter().any(failed) {
            self.process.record(&Record { copies: Vec::new(), ..record.clone() })?;
        } else {
            self.process.record(record)?;
        }
        if self.mistake == Some(Mistake::UnknownEnds) {
            for attempt in &mut self.process.world.borrow_mut().attempts {
                attempt.ended |= attempt.attempt == self.attempt;
            }
        }
        if self.mistake == Some(Mistake::EndsEverybodys) {
            let delivers = |key| record.copies.iter().any(|copy| copy.key == key);
            for attempt in &mut self.process.world.borrow_mut().attempts {
                attempt.ended |= delivers(attempt.key);
            }
        }
        for (name, identity) in self.pending.borrow_mut().drain(..) {
            self.process.world.borrow_mut().take_in(name, identity, Some(self.process.number));
        }
        Ok(())
    }

    fn first_attempt_age(&mut self, copies: &[CopyKey]) -> Result<Duration, DatabaseError> {
        self.process.first_attempt_age(copies)
    }
}

/// A mailbox, with a mistake in front of it or none.
pub struct MistakenMailbox<'y> {
    pub mailbox: SimulatedMailbox<'y>,
    pub mistake: Option<Mistake>,
    pub pending: Pending,
    /// What is recorded before it is appended.
    pub pretended: Option<Identity>,
}

impl MistakenMailbox<'_> {
    /// The lowest UIDNEXT that other attempts at this copy have noted, and have not ended. (Down to where a copy is
    /// recorded it is looked for in any case.)
    fn noted(&self, wanted: &Wanted<'_>) -> Option<Position> {
        let (user, name) = self.mailbox.name;
        let key = CopyKey::new(wanted.identity, wanted.role, user, name);
        let mine = Scenario::attempt_of(self.mailbox.number);
        let world = self.mailbox.world.borrow();
        if world.copies.contains_key(&key) {
            return None;
        }
        let others = world.attempts.iter().filter(|it| it.key == key && !it.ended && it.attempt != mine);
        let (uid_validity, uid_next) = others.filter_map(|it| it.position).min()?;
        Some(Position { uid_validity, uid_next })
    }
}

impl Mailbox for MistakenMailbox<'_> {
    fn position(&mut self) -> Result<Option<Position>, MailboxError> {
        self.mailbox.position()
    }

    fn upload(&mut self, copy: &NewCopy<'_>, pace: Option<Pace>) -> Result<(), Appended> {
        if self.mistake == Some(Mistake::RecordBeforeAppend) {
            self.pretended = Some(*copy.identity);
            return Ok(());
        }
        self.mailbox.upload(copy, pace)
    }

    fn complete(&mut self) {
        match self.pretended {
            Some(identity) => self.pending.borrow_mut().push((self.mailbox.name, identity)),
            None => self.mailbox.complete(),
        }
    }

    fn answer(&mut self) -> Appended {
        match self.pretended.take() {
            Some(_) => Appended::Stored(None),
            None => self.mailbox.answer(),
        }
    }

    fn withhold(&mut self) {
        self.pretended = None;
        self.mailbox.withhold();
    }

    fn patient_until(&mut self, until: Option<Deadline>) {
        self.mailbox.patient_until(until);
    }

    fn find(&mut self, wanted: &Wanted<'_>) -> Result<FoundCopies, MailboxError> {
        let since = match self.mistake {
            Some(Mistake::SearchFromNoted) => self.noted(wanted).or(wanted.since),
            _ => wanted.since,
        };
        let not_before = match self.mistake {
            Some(Mistake::SearchFromToday) => OffsetDateTime::UNIX_EPOCH,
            _ => wanted.not_before,
        };
        let mut found = match self.mailbox.find(&Wanted { since, not_before, ..*wanted }) {
            Err(_) if self.mistake == Some(Mistake::FailedSearchIsNothing) => FoundCopies::default(),
            found => found?,
        };
        match self.mistake {
            Some(Mistake::NeverSearch) => found.copies.clear(),
            Some(Mistake::KeepsTheUnmarked) => found.copies.sort_by_key(|copy| copy.deleted),
            Some(Mistake::NoKeeper) => {
                // It believes the ledger that the recorded copy is there.
                let (user, name) = self.mailbox.name;
                let key = CopyKey::new(wanted.identity, wanted.role, user, name);
                let world = self.mailbox.world.borrow();
                if let Some(&Row::Delivered(Some((uid_validity, uid)))) = world.copies.get(&key) {
                    let placement = Some(Placement { uid_validity, uid });
                    let recorded = FoundCopy { placement, deleted: false };
                    found.copies.retain(|copy| copy.placement != recorded.placement);
                    found.copies.insert(0, recorded);
                }
            }
            _ => {}
        }
        Ok(found)
    }

    fn remove(
        &mut self,
        extra: Placement,
        keep: Placement,
        wanted: &Wanted<'_>,
        go_ahead: &mut dyn FnMut() -> bool,
    ) -> Result<Removal, MailboxError> {
        let by_uid = |mailbox: &SimulatedMailbox<'_>| {
            let mut world = mailbox.world.borrow_mut();
            let there = world.mailbox(mailbox.name);
            (Placement { uid_validity: there.uid_validity, ..extra }, there.owner_acted)
        };
        match self.mistake {
            Some(Mistake::LostExpungeIsDone) => {
                Ok(self.mailbox.remove(extra, keep, wanted, go_ahead).unwrap_or(Removal::Removed))
            }
            Some(Mistake::NoKeeper) => self.mailbox.expunge(extra, by_uid(&self.mailbox).1),
            Some(Mistake::ExpungeUnseen) => {
                // A process that looks at nothing still takes the time to select the mailbox.
                let (extra, owner_acted) = by_uid(&self.mailbox);
                if go_ahead() { self.mailbox.expunge(extra, owner_acted) } else { Ok(Removal::Withheld) }
            }
            _ => self.mailbox.remove(extra, keep, wanted, go_ahead),
        }
    }
}
