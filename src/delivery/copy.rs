//! One copy: found, adopted, appended, or left for later. Called under the lock.

use super::outcome::{CopyReport, Deferral, Manner, Refusal};
use super::{Delivery, NotOpened, OwedCopy};
use crate::ledger::{Cause, CopyHistory, CopyKey, CopyRecord, CopyState, Ledger, OpenAttempt, Outcome};
use crate::lock::{LockName, NamedLock};
use crate::mailbox::{
    Appended, Found, FoundCopy, Mailbox, MailboxError, MailboxFailure, Matching, NewCopy, Placement, Position, Removal,
    Wanted, look_everywhere,
};
use crate::message::Role;
use std::time::Duration;
use time::OffsetDateTime;
use tracing::{info, warn};

/// How far below the UIDNEXT that an attempt noted its copy may have ended up. A server that crashes may give UIDs out again
/// that it had given to APPENDs in flight in that mailbox: Dovecot commits them one after the other, and "next_uid was lowered
/// (101 -> 100)" is what it was seen to say. This is as many as a host delivers at once (`maxproc`, 20, in
/// postfix/master.cf.maildrop), and as few as cost little: one more header each in the FETCH of a search, which the first
/// delivery of a message to several makes as well (on Dovecot, of 4 KB each, some 3 ms; 64 of them 10 ms).
const IN_FLIGHT: u32 = 20;

/// Why a copy that is left to its author's mail program is owed.
const LEFT_TO_THE_AUTHOR: &str = "left to the author's own mail program, whose copy `replay --owed` looks for";

/// A copy owed by this delivery.
pub(super) struct Copy<'m> {
    pub key: CopyKey,
    pub role: Role,
    /// Whether it is the author's.
    authors: bool,
    /// Whether it is left to the author's own mail program for now.
    left: bool,
    pub user: String,
    pub mailbox_name: String,
    /// Where its mailbox stood before this attempt was journalled.
    pub position: Option<Position>,
    mailbox: Result<Box<dyn Mailbox + 'm>, Option<MailboxError>>,
}

impl<'m> Copy<'m> {
    /// Asks where the mailbox stands.
    pub(crate) fn stand(delivery: &Delivery<'_>, owed: OwedCopy<'m>) -> Self {
        let OwedCopy { role, authors, user, mailbox_name, mailbox } = owed;
        let key = CopyKey::new(delivery.message.identity(), role, &user, &mailbox_name);
        let left = matches!(mailbox, Err(NotOpened::LeftToTheAuthor));
        let stands = mailbox.and_then(|mut mailbox| Ok(mailbox.position().map(|position| (mailbox, position))?));
        let (mailbox, position) = match stands {
            Ok((mailbox, position)) => (Ok(mailbox), position),
            Err(NotOpened::Trouble(error)) => (Err(Some(error)), None),
            Err(NotOpened::LeftToTheAuthor) => (Err(None), None),
        };
        Self { key, role, authors, left, user, mailbox_name, position, mailbox }
    }

    /// Why its mailbox is out of reach, if it is.
    pub(crate) fn take_trouble(&mut self) -> Option<MailboxError> {
        self.mailbox.as_mut().err().and_then(Option::take)
    }

    /// Whether this attempt is in the journal: its mailbox is within reach, so that something may be appended.
    pub(crate) fn journalled(&self) -> bool {
        self.mailbox.is_ok()
    }

    /// Its row in the ledger.
    pub(crate) fn record<'a>(&'a self, delivery: &Delivery<'a>, state: CopyState<'a>) -> CopyRecord<'a> {
        CopyRecord {
            key: self.key,
            role: self.role,
            user: &self.user,
            mailbox: &self.mailbox_name,
            recipient: delivery.recipient,
            state,
        }
    }

    /// What is said of it afterwards.
    pub fn report(&self, manner: Manner) -> CopyReport {
        CopyReport { role: self.role, user: self.user.clone(), mailbox: self.mailbox_name.clone(), manner }
    }
}

/// What is known of one copy from before: whether it is delivered, and who else set out to deliver it and has not ended.
pub(super) struct OtherAttempts {
    /// Where the ledger has it, once it is delivered.
    delivered: Option<Option<Placement>>,
    others: Vec<OpenAttempt>,
    /// Which of them were for this very recipient, and are settled: earlier runs for it that died.
    died: Vec<bool>,
}

impl OtherAttempts {
    /// Reads what the ledger showed under the lock, a value for each copy.
    ///
    /// # Errors
    /// With what the journal is to say of it: [`Deferral::JournalForgotten`] where our own attempt is not in it;
    /// [`Deferral::OtherLock`] where somebody delivers this message under another lock than ours; [`Deferral::Unsettled`]
    /// where an earlier attempt for this very recipient is so young that its APPEND may still land.
    pub(crate) fn read(
        delivery: &Delivery<'_>,
        copies: &[Copy<'_>],
        histories: &[CopyHistory],
    ) -> Result<Vec<Self>, (Cause, Deferral)> {
        let forgotten = || (Cause::JournalForgotten, Deferral::JournalForgotten);
        let mine = |attempt: &&OpenAttempt| attempt.attempt == delivery.attempt;
        let own_age = histories.iter().flat_map(|h| &h.open_attempts).find(mine).map(|attempt| attempt.age);
        let own_age = own_age.ok_or_else(forgotten)?;
        if let Some(host) = under_another_lock(delivery, histories) {
            return Err((Cause::OtherLock, Deferral::OtherLock(host)));
        }
        let mut all = Vec::with_capacity(copies.len());
        for copy in copies {
            let history = histories.iter().find(|history| history.key == copy.key).ok_or_else(forgotten)?;
            let journalled = history.open_attempts.iter().any(|attempt| mine(&attempt));
            if copy.journalled() && !journalled {
                return Err(forgotten());
            }
            let others: Vec<OpenAttempt> =
                history.open_attempts.iter().filter(|attempt| !mine(attempt)).cloned().collect();
            let settle = delivery.policy.settle;
            let mut died = Vec::with_capacity(others.len());
            for other in &others {
                // One that began after us is no earlier run that died, but a twin that waits for our lock: a second alias
                // of the same recipient. Deferring to it, as it defers to us, would keep both from ever delivering. An
                // age below zero is a clock that was set back, and says nothing.
                let began_after_us = other.age >= 0.0
                    && (other.age < own_age || (other.age == own_age && other.attempt > delivery.attempt));
                let earlier = other.recipient == delivery.recipient && !began_after_us;
                if earlier && !settle.is_zero() && other.age < settle.as_secs_f64() {
                    let age = Duration::from_secs_f64(other.age.max(0.0));
                    return Err((Cause::Unsettled, Deferral::Unsettled(age)));
                }
                died.push(earlier);
            }
            let delivered = history.delivered.map(|delivered| delivered.placement);
            all.push(Self { delivered, others, died });
        }
        Ok(all)
    }

    /// The earlier attempts for this very recipient that never ended, and are settled. (A twin that waits for our lock
    /// is none of them; it ends itself.)
    pub(crate) fn earlier_of_this_recipient(&self) -> impl Iterator<Item = &OpenAttempt> {
        self.others.iter().zip(&self.died).filter(|(_, died)| **died).map(|(other, _)| other)
    }

    /// When the first of them began: no copy of theirs arrived before that. By the database's clock, as a span before
    /// `now`.
    fn first_began(&self, now: OffsetDateTime) -> OffsetDateTime {
        let oldest = self.others.iter().map(|other| other.age).fold(0.0, f64::max);
        now.checked_sub(time::Duration::saturating_seconds_f64(oldest)).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }

    /// The lowest UIDNEXT of the attempts that never ended: nothing below it is ever taken out, for it may be its owner's.
    /// `None` where one of them saw another UIDVALIDITY than `today`'s, or none at all.
    fn floor(&self, today: Option<Position>) -> Option<Position> {
        let today = today?;
        let mut lowest = today;
        for other in &self.others {
            let position = other.position.filter(|position| position.uid_validity == today.uid_validity)?;
            lowest.uid_next = lowest.uid_next.min(position.uid_next);
        }
        Some(lowest)
    }
}

/// Where a search begins: below the floor by what a crash of the server can have lowered UIDNEXT by. Without a floor, `None`,
/// the whole mailbox is searched.
fn search_from(floor: Option<Position>) -> Option<Position> {
    floor.map(|floor| Position { uid_next: floor.uid_next.saturating_sub(IN_FLIGHT).max(1), ..floor })
}

/// Whether a copy lies where attempts that never ended may have left one, as far as UIDNEXT tells. Without a floor it may
/// lie anywhere.
fn is_above(copy: &FoundCopy, floor: Option<Position>) -> bool {
    floor.is_none_or(|floor| {
        let is_above = |place: Placement| place.uid_validity == floor.uid_validity && place.uid >= floor.uid_next;
        copy.placement.is_some_and(is_above)
    })
}

/// Whether somebody else delivers one of our copies, or has just delivered it, under another lock than ours: then the lock
/// excludes nobody. The journal excludes him all the same: each of the two journals before he looks, so that of two who run
/// at once at least one sees the other, and is put off. Both may be; which of them came first does not show, since a row can
/// be older than another one and be committed later.
///
/// It counts for as long as an attempt may run or land. Past that an attempt is dead, and is searched for like any other,
/// whatever its lock: that is how a namespace that was changed on purpose comes to an end.
///
/// Says which host it is, if that is known.
fn under_another_lock(delivery: &Delivery<'_>, histories: &[CopyHistory]) -> Option<Option<String>> {
    // The negative control of the two-host test: there each process has a lock of its own, and nothing is to see it.
    if cfg!(feature = "test-without-lock") {
        return None;
    }
    let settle = delivery.policy.settle.as_secs_f64();
    let is_another = |lock: &LockName, age: f64| lock != delivery.lock && age < settle;
    let attempts = histories.iter().flat_map(|history| &history.open_attempts);
    let recorded = histories.iter().filter_map(|history| history.recorded);
    attempts
        .filter(|open| is_another(&open.lock, open.age))
        .map(|open| Some(open.host.clone()))
        .chain(recorded.filter(|(lock, age)| is_another(lock, *age)).map(|_| None))
        .next()
}

/// How a copy ended up in this run.
pub(super) enum End {
    /// It is where it belongs, or is recorded as owed.
    Done(Manner),
    /// It is not there, or nobody knows.
    Failed {
        /// What the caller hears.
        refusal: Refusal,
        /// What the ledger hears; `None` where the attempt stays open: an APPEND was sent and its answer is missing.
        outcome: Option<Outcome>,
    },
    /// The sender's copy was tried for long enough, and nobody knows whether the last APPEND came to anything: it is
    /// recorded as owed, and our attempt stays open, so that whoever brings it later looks first.
    GivenUp(String),
    /// The ledger has it as delivered; an earlier attempt died, and what it may have left could not be looked for.
    Unchecked,
    /// It was not tried, because the copy before it failed.
    NotTried,
}

impl End {
    /// What the ledger's row of the copy is to say; `None` where it stays as it is.
    pub(crate) fn state(&self) -> Option<CopyState<'_>> {
        match self {
            Self::Done(Manner::Appended(placement) | Manner::Adopted(placement)) => {
                Some(CopyState::Delivered(*placement))
            }
            Self::Done(Manner::Owed(reason)) | Self::GivenUp(reason) => Some(CopyState::Owed(reason)),
            Self::Done(Manner::AlreadyThere) | Self::Unchecked | Self::Failed { .. } | Self::NotTried => None,
        }
    }

    /// How the ledger says that our attempt ended; `None` where it stays open, so that the next one looks.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::Done(manner) => Some(manner.outcome()),
            Self::GivenUp(_) => None,
            Self::Unchecked => Some(Outcome::AlreadyThereUnchecked),
            Self::Failed { outcome, .. } => outcome.clone(),
            Self::NotTried => Some(Outcome::Deferred(Cause::RecipientsCopyFailed, None)),
        }
    }

    /// Whether the earlier attempts that never ended are settled with it: their copies were looked for.
    pub(crate) fn settles_earlier_attempts(&self) -> bool {
        matches!(self, Self::Done(Manner::Appended(_) | Manner::Adopted(_) | Manner::AlreadyThere))
    }
}

/// The lock was lost: nothing more may be appended, removed or recorded.
pub(super) struct LockLost;

/// Why a copy is not where it belongs.
enum Failure {
    LockLost,
    /// Nothing was stored.
    CallerGone,
    /// Nothing was stored.
    NothingStored(MailboxError),
    /// It was sent, and the answer is missing.
    Unknown(MailboxError),
}

/// Delivers one copy: it is there already, or is adopted, appended, or recorded as owed.
pub(super) fn settle<D>(
    delivery: &Delivery<'_>,
    database: &mut D,
    copy: &mut Copy<'_>,
    others: &OtherAttempts,
    keys: &[CopyKey],
) -> Result<End, LockLost>
where
    D: NamedLock + Ledger + ?Sized,
{
    if copy.left {
        let died_before = others.earlier_of_this_recipient().next().is_some();
        return Ok(match others.delivered {
            None => End::Done(Manner::Owed(LEFT_TO_THE_AUTHOR.into())),
            Some(_) if died_before => End::Unchecked,
            Some(_) => End::Done(Manner::AlreadyThere),
        });
    }
    let error = match bring(delivery, database, copy, others) {
        Ok(manner) => return Ok(End::Done(manner)),
        Err(Failure::LockLost) => return Err(LockLost),
        Err(Failure::CallerGone) => {
            let outcome = Some(Outcome::Deferred(Cause::CallerGone, None));
            return Ok(End::Failed { refusal: Deferral::CallerGone.into(), outcome });
        }
        Err(Failure::Unknown(error)) => {
            warn!(%error, role = copy.role.as_str(), "the outcome of an append is unknown; the next attempt looks for it");
            // The recipient has the message: a server that never says what came of the sender's copy must not make
            // Postfix bounce it.
            if copy.authors && past_retrying(delivery, database, keys) {
                let reason = format!("the outcome of an append is unknown: {error}");
                warn!(reason, user = copy.user, mailbox = copy.mailbox_name, "the Sent copy stays owed");
                return Ok(End::GivenUp(reason));
            }
            let refusal = Deferral::Unknown(error).into();
            return Ok(End::Failed { refusal, outcome: None });
        }
        Err(Failure::NothingStored(error)) => error,
    };
    let over_quota_refuses = error.failure == MailboxFailure::OverQuota && delivery.policy.over_quota_refuses;
    let outcome = Some(if over_quota_refuses && !copy.authors {
        Outcome::Refused(format!("{}: {error}", error.failure.as_str()))
    } else {
        Outcome::Deferred(Cause::Mailbox(error.failure), Some(error.to_string()))
    });
    if !copy.authors {
        let refusal =
            if over_quota_refuses { Refusal::OverQuota(error) } else { Refusal::Deferred(Deferral::Mailbox(error)) };
        return Ok(End::Failed { refusal, outcome });
    }
    // The recipient's copy decides the exit: the sender's is tried for a while, and then stays owed in the ledger.
    // The same account has just logged in for the recipient, so a login that is refused is about this author: by a rule for
    // a whole domain everybody there lives here, whatever somebody writes into From.
    let not_let_in = error.failure == MailboxFailure::AccessDenied;
    let for_good = !error.trying_again_can_help() || over_quota_refuses || not_let_in;
    // What people restore is recorded as delivered, and never becomes owed: they hear of the failure.
    if delivery.restore || (!for_good && !past_retrying(delivery, database, keys)) {
        return Ok(End::Failed { refusal: Deferral::Mailbox(error).into(), outcome });
    }
    if others.delivered.is_some() {
        warn!(%error, "an earlier attempt that died could not be looked after; its mailbox may hold a copy too many");
        return Ok(End::Unchecked);
    }
    let reason = error.to_string();
    warn!(reason, user = copy.user, mailbox = copy.mailbox_name, "the Sent copy stays owed");
    Ok(End::Done(Manner::Owed(reason)))
}

/// Whether the delivery has gone on for longer than the operator wants a Sent copy tried. In doubt it has not.
fn past_retrying<D: Ledger + ?Sized>(delivery: &Delivery<'_>, database: &mut D, keys: &[CopyKey]) -> bool {
    match database.first_attempt_age(keys) {
        Ok(age) => age >= delivery.policy.sent_retry_for,
        Err(error) => {
            warn!(%error, "the age of the first attempt is not known");
            false
        }
    }
}

/// Sees that there is one copy in the mailbox: by the ledger's word, by looking, or by appending it.
fn bring<D>(
    delivery: &Delivery<'_>,
    database: &mut D,
    copy: &mut Copy<'_>,
    others: &OtherAttempts,
) -> Result<Manner, Failure>
where
    D: NamedLock + ?Sized,
{
    // A message with one recipient, which is nearly all of them, never searches. A copy that is delivered is looked for
    // only if an earlier run for this very recipient died: what it had sent may have landed since.
    let died_before = others.earlier_of_this_recipient().next().is_some();
    if others.delivered.is_some() && !died_before && !delivery.restore {
        return Ok(Manner::AlreadyThere);
    }
    let mailbox = match &mut copy.mailbox {
        Ok(mailbox) => mailbox.as_mut(),
        Err(trouble) => {
            let trouble = trouble.take().unwrap_or_else(|| out_of_reach(&copy.mailbox_name));
            return Err(Failure::NothingStored(trouble));
        }
    };
    let message = delivery.message;
    let floor = others.floor(copy.position);
    let wanted = Wanted {
        message_id: message.message_id_for_search(),
        identity: message.identity(),
        role: copy.role,
        matching: Matching::Identity,
        since: search_from(floor),
        not_before: others.first_began(delivery.arrived),
    };
    if let Some(recorded) = others.delivered {
        if died_before {
            let manner = tidy(delivery, database, mailbox, &wanted, floor, recorded)?;
            if !delivery.restore || manner != Manner::AlreadyThere {
                return Ok(manner);
            }
        }
    } else if !others.others.is_empty() {
        let found = mailbox.find(&wanted).map_err(Failure::NothingStored)?;
        // The lowest, marked \Deleted or not: so whoever looks has the same one to keep. Whoever passed over one that its
        // owner has just marked would take that one out, while an expunge of the other may still be under way from a
        // delivery that has lost its lock; and both would be gone. Beside a keeper that is marked nothing is removed.
        //
        // One below the floor is ours if the server lowered UIDNEXT. It may also have been there before: brought by another
        // program, or put there by its owner. Nothing is lost then either, for what its author wrote is in the mailbox, as
        // with any copy that is there already. One that is marked is passed over: its owner may have done away with it
        // long before this message came, and in doubt there is a second copy, never none. And it is taken only where none
        // lies above: so whatever lies below, no copy is taken out for its sake.
        let first = found.copies.iter().find(|copy| is_above(copy, floor));
        if let Some(keep) = first.or_else(|| found.copies.iter().find(|copy| !copy.deleted)) {
            info!(role = copy.role.as_str(), placement = ?keep.placement, "found the copy of an attempt that never ended");
            take_out_all_but(delivery, database, mailbox, &wanted, &found, floor, keep.placement)?;
            return Ok(Manner::Adopted(keep.placement));
        }
    }
    if delivery.restore {
        let everywhere = Wanted { not_before: delivery.arrived, ..wanted };
        let (recorded, has_uids) = (others.delivered.flatten(), copy.position.is_some());
        let found = look_everywhere(mailbox, &everywhere, recorded, has_uids).map_err(Failure::NothingStored)?;
        if found.iter().any(|copy| others.delivered == Some(copy.placement)) {
            return Ok(Manner::AlreadyThere);
        }
        if let Some(keep) = found.iter().find(|copy| !copy.deleted).or(found.first()) {
            return Ok(Manner::Adopted(keep.placement));
        }
    }
    if copy.authors && delivery.policy.look_in_sent && wanted.message_id.is_some() {
        let by_message_id =
            Wanted { matching: Matching::MessageId, since: None, not_before: sent_on(delivery), ..wanted };
        let found = mailbox.find(&by_message_id).map_err(Failure::NothingStored)?;
        if let Some(keep) = found.copies.first() {
            return Ok(Manner::Adopted(keep.placement));
        }
    }
    let new = NewCopy {
        bytes: if copy.authors { message.without_prepended_lines() } else { message.as_received() },
        identity: message.identity(),
        role: copy.role,
        seen: copy.authors,
        arrived: delivery.arrived,
    };
    let mut caller_gone = false;
    let mut go_ahead = || {
        // The caller last: its look costs nothing, and the other one is a round trip to the database.
        let held = still_held(delivery, database);
        caller_gone = held && delivery.caller.is_gone();
        held && !caller_gone
    };
    match mailbox.append(&new, &mut go_ahead) {
        Appended::Stored(placement) => Ok(Manner::Appended(placement)),
        Appended::Withheld if caller_gone => Err(Failure::CallerGone),
        Appended::Withheld => Err(Failure::LockLost),
        Appended::Refused(error) | Appended::NotSent(error) => Err(Failure::NothingStored(error)),
        Appended::Unknown(error) => Err(Failure::Unknown(error)),
    }
}

/// Looks again for a copy that is recorded, after an earlier run for the same recipient died: takes out what that run
/// left, or adopts it if the recorded one is gone.
fn tidy<D>(
    delivery: &Delivery<'_>,
    database: &mut D,
    mailbox: &mut dyn Mailbox,
    wanted: &Wanted<'_>,
    floor: Option<Position>,
    recorded: Option<Placement>,
) -> Result<Manner, Failure>
where
    D: NamedLock + ?Sized,
{
    // The search has to reach down to the recorded copy, too.
    let since = wanted.since.map(|since| match recorded {
        Some(recorded) if recorded.uid_validity == since.uid_validity => {
            Position { uid_next: since.uid_next.min(recorded.uid), ..since }
        }
        _ => since,
    });
    let found = mailbox.find(&Wanted { since, ..*wanted }).map_err(Failure::NothingStored)?;
    let is_recorded = |copy: &&FoundCopy| match recorded {
        Some(recorded) => copy.placement == Some(recorded),
        // No UID was told when it was stored (no UIDPLUS): the lowest is taken for it.
        None => !copy.deleted && is_above(copy, floor),
    };
    match found.copies.iter().find(is_recorded) {
        Some(keep) => {
            take_out_all_but(delivery, database, mailbox, wanted, &found, floor, keep.placement)?;
            Ok(Manner::AlreadyThere)
        }
        // Its owner has moved or deleted it, or the mailbox was renumbered: what is left is adopted, nothing removed.
        None => match found.copies.iter().find(|copy| !copy.deleted) {
            Some(left) => Ok(Manner::Adopted(left.placement)),
            None => Ok(Manner::AlreadyThere),
        },
    }
}

/// Takes out every copy found but the one to keep. This is the only thing here that can destroy mail: under the lock,
/// asked for at the last moment; under an unchanged UIDVALIDITY; nothing below the floor, which its owner may have put
/// there; and [`Mailbox::remove`] compares the bytes of both.
fn take_out_all_but<D>(
    delivery: &Delivery<'_>,
    database: &mut D,
    mailbox: &mut dyn Mailbox,
    wanted: &Wanted<'_>,
    found: &Found,
    floor: Option<Position>,
    keep: Option<Placement>,
) -> Result<(), Failure>
where
    D: NamedLock + ?Sized,
{
    let Some((keep, floor)) = keep.zip(floor).filter(|_| found.in_range) else { return Ok(()) };
    let above = found.copies.iter().filter(|copy| is_above(copy, Some(floor))).filter_map(|copy| copy.placement);
    for extra in above.filter(|&placement| placement != keep) {
        // Where the answer is missing, the expunge may still be carried out after we are gone (seen on Dovecot and Cyrus):
        // our attempt stays open, so that nobody looks again, and relies on what he sees, before that is settled.
        let removal =
            mailbox.remove(extra, keep, wanted, &mut || still_held(delivery, database)).map_err(Failure::Unknown)?;
        match removal {
            Removal::Removed => info!(?extra, ?keep, "took out a copy that was there twice"),
            Removal::Withheld => return Err(Failure::LockLost),
            left => warn!(?extra, ?keep, ?left, "a copy is there twice, and was left"),
        }
    }
    Ok(())
}

/// Whether the lock is still ours; a connection that cannot tell holds none.
fn still_held<D: NamedLock + ?Sized>(delivery: &Delivery<'_>, database: &mut D) -> bool {
    match database.still_held(delivery.lock) {
        Ok(held) => held,
        Err(error) => {
            warn!(%error, "the lock's connection is gone, and the lock with it");
            false
        }
    }
}

/// The day from which a member's own copy of the message can be in Sent: its Date, unless that is nonsense, which must
/// not make the search cover years.
fn sent_on(delivery: &Delivery<'_>) -> OffsetDateTime {
    let date = delivery.message.date().and_then(|date| OffsetDateTime::from_unix_timestamp(date).ok());
    let a_week = time::Duration::days(7);
    match date {
        Some(date) if date <= delivery.arrived && delivery.arrived - date <= a_week => date,
        _ => delivery.arrived,
    }
}

/// A mailbox whose trouble has been told already.
fn out_of_reach(mailbox_name: &str) -> MailboxError {
    MailboxError::new(MailboxFailure::Unreachable, format!("opening {mailbox_name}"), "it is out of reach")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::Policy;
    use crate::lock::LockName;
    use crate::message::Message;
    use uuid::Uuid;

    const SETTLE: Duration = Duration::from_mins(10);

    fn position(uid_validity: u32, uid_next: u32) -> Option<Position> {
        Some(Position { uid_validity, uid_next })
    }

    /// Attempts by their age in seconds, where the mailbox stood, and whether they were for this recipient and died.
    fn others(attempts: &[(f64, Option<Position>, bool)]) -> OtherAttempts {
        let open = |(number, &(age, position, _)): (usize, &(f64, Option<Position>, bool))| OpenAttempt {
            host: String::new(),
            lock: LockName::from_digest([0; 32]),
            attempt: Uuid::from_u128(number as u128),
            recipient: String::new(),
            age,
            position,
        };
        OtherAttempts {
            delivered: None,
            others: attempts.iter().enumerate().map(open).collect(),
            died: attempts.iter().map(|&(_, _, died)| died).collect(),
        }
    }

    /// Which of these attempts, by age and recipient, a delivery to doug that began 5 seconds ago takes for its own that died.
    fn died(settle: Duration, attempts: &[(f64, &str)]) -> Result<Vec<usize>, Deferral> {
        let message = Message::receive(b"Subject: x\r\n\r\nx\r\n".to_vec()).unwrap();
        let own = Uuid::from_u128(100);
        let lock = crate::delivery::lock_of("maildrop", &message);
        let delivery = Delivery {
            message: &message,
            sender: "",
            recipient: "doug",
            queue_id: None,
            lock: &lock,
            attempt: own,
            host: "mx1",
            pid: 1,
            arrived: OffsetDateTime::UNIX_EPOCH,
            policy: &Policy { settle, ..Policy::embedded() },
            restore: false,
            caller: &crate::delivery::NoCaller,
        };
        let (role, user, mailbox_name) = (Role::Recipient, "doug".to_owned(), "INBOX".to_owned());
        let mailbox = Err(out_of_reach("INBOX").into());
        let copy = Copy::stand(&delivery, OwedCopy { role, authors: false, user, mailbox_name, mailbox });
        let open = |attempt, age, recipient: &str| OpenAttempt {
            attempt,
            recipient: recipient.into(),
            host: "mx1".into(),
            lock,
            age,
            position: None,
        };
        let mut open_attempts: Vec<OpenAttempt> = attempts
            .iter()
            .enumerate()
            .map(|(number, &(age, recipient))| open(Uuid::from_u128(number as u128), age, recipient))
            .collect();
        open_attempts.push(open(own, 5.0, "doug"));
        let history = CopyHistory { key: copy.key, delivered: None, recorded: None, open_attempts };
        let others = OtherAttempts::read(&delivery, &[copy], &[history]).map_err(|(_, deferral)| deferral)?;
        Ok(others[0].earlier_of_this_recipient().map(|earlier| earlier.attempt.as_u128() as usize).collect())
    }

    /// Of the others, whoever tries them again looks after their copies, and ends them. One that began later waits for our lock.
    #[test]
    fn only_what_was_tried_for_this_recipient_and_is_settled_is_looked_after_and_ended() {
        let all = [(600.0, "doug"), (600.0, "scuba"), (4.9, "doug"), (5.1, "scuba")];
        assert_eq!(died(SETTLE, &all).unwrap(), [0]);
        for unsettled in [599.9, 5.1, -1.0] {
            assert!(matches!(died(SETTLE, &[(unsettled, "doug")]), Err(Deferral::Unsettled(_))), "{unsettled}");
        }
        // Where nothing can come later of whoever has lost the lock, nobody waits.
        assert_eq!(
            died(Duration::ZERO, &[(5.1, "doug"), (4.9, "doug"), (5.1, "scuba"), (-1.0, "doug")]).unwrap(),
            [0, 3]
        );
    }

    #[test]
    fn no_copy_arrived_before_the_first_attempt_began() {
        let now = OffsetDateTime::UNIX_EPOCH + time::Duration::days(20_000);
        let began = |ages: &[f64]| {
            let attempts: Vec<_> = ages.iter().map(|&age| (age, None, false)).collect();
            (now - others(&attempts).first_began(now)).whole_seconds()
        };
        assert_eq!(began(&[]), 0);
        assert_eq!(began(&[60.0, 259_200.0, 600.0]), 259_200);
        // A clock that was set back.
        assert_eq!(began(&[-60.0]), 0);
        assert_eq!(others(&[(f64::MAX, None, false)]).first_began(now), OffsetDateTime::UNIX_EPOCH);
    }

    #[test]
    fn nothing_below_the_lowest_uidnext_is_taken_out_and_a_bounded_number_of_uids_below_is_searched() {
        let floor = |noted: &[Option<Position>], today| {
            let attempts: Vec<_> = noted.iter().map(|&noted| (0.0, noted, false)).collect();
            others(&attempts).floor(today)
        };
        assert_eq!(floor(&[position(1, 900), position(1, 800)], position(1, 1000)), position(1, 800));
        // UIDNEXT was lowered since.
        assert_eq!(floor(&[position(1, 900)], position(1, 890)), position(1, 890));
        assert_eq!(floor(&[position(1, 900), position(2, 800)], position(1, 1000)), None);
        assert_eq!(floor(&[position(1, 900), None], position(1, 1000)), None);
        assert_eq!(floor(&[position(1, 900)], None), None);

        assert_eq!(search_from(position(1, 900)), position(1, 900 - IN_FLIGHT));
        assert_eq!(search_from(position(1, 3)), position(1, 1));
        assert_eq!(search_from(None), None);

        let is_above = |uid_validity, uid, floor| {
            is_above(&FoundCopy { placement: Some(Placement { uid_validity, uid }), deleted: false }, floor)
        };
        assert!(is_above(1, 900, position(1, 900)) && is_above(1, 1, None));
        assert!(!is_above(1, 899, position(1, 900)) && !is_above(2, 900, position(1, 900)));
    }
}
