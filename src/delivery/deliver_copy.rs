//! One copy, under the lock: it is found, adopted, has to be appended, or is recorded as owed.

use super::other_attempts::{OtherAttempts, is_above, newest_from, search_from};
use super::report::{CopyReport, Deferral, Manner, Refusal};
use super::{Delivery, NotOpened, OwedCopy, Whose};
use crate::base::deadline::Deadline;
use crate::ledger::event::Standing;
use crate::ledger::{Cause, CopyKey, CopyRecord, CopyState, DeliveredAt, Ledger, Outcome};
use crate::mailbox::{
    Found, FoundCopy, Mailbox, MailboxError, MailboxFailure, Matching, NewCopy, Placement, Position, Removal, Wanted,
    look_everywhere,
};
use crate::message::Role;
use std::time::Duration;
use time::OffsetDateTime;
use tracing::{info, warn};

/// Why a copy that is left to its author's mail program is owed.
const LEFT_TO_THE_AUTHOR: &str = "left to the author's own mail program, whose copy `replay --owed` looks for";

/// A copy owed by this delivery.
pub(super) struct Copy<'m> {
    pub key: CopyKey,
    pub role: Role,
    whose: Whose,
    /// Whether it is left to the author's own mail program for now.
    left: bool,
    pub user: String,
    pub mailbox_name: String,
    /// Where its mailbox stood before this attempt was journalled.
    pub position: Option<Position>,
    mailbox: Result<&'m mut dyn Mailbox, Option<MailboxError>>,
    /// Whether its mailbox, which was open, has let us wait, and then nothing came of it.
    has_hung: bool,
}

impl<'m> Copy<'m> {
    /// Asks where the mailbox stands.
    pub fn ask_position(delivery: &Delivery<'_>, owed: OwedCopy<'m>) -> Self {
        let OwedCopy { role, whose, user, mailbox_name, mailbox } = owed;
        let key = CopyKey::new(delivery.message.identity(), role, &user, &mailbox_name);
        let left = matches!(mailbox, Err(NotOpened::LeftToTheAuthor));
        let asked = mailbox.and_then(|mailbox| Ok(mailbox.position().map(|position| (mailbox, position))?));
        let (mailbox, position) = match asked {
            Ok((mailbox, position)) => (Ok(mailbox), position),
            Err(NotOpened::Trouble(error)) => (Err(Some(error)), None),
            Err(NotOpened::LeftToTheAuthor) => (Err(None), None),
        };
        Self { key, role, whose, left, user, mailbox_name, position, mailbox, has_hung: false }
    }

    /// Whether it is a recipient's, and not the author's.
    pub fn is_recipients(&self) -> bool {
        matches!(self.whose, Whose::Recipients(_))
    }

    /// Whose it is, by their places in [`Delivery::recipients`]; nobody's of them if it is the author's.
    pub fn recipients(&self) -> &[usize] {
        match &self.whose {
            Whose::Recipients(places) => places,
            Whose::Authors => &[],
        }
    }

    /// Its mailbox, if that is open.
    pub fn within_reach(&mut self) -> Option<&mut (dyn Mailbox + 'm)> {
        match &mut self.mailbox {
            Ok(mailbox) => Some(&mut **mailbox),
            Err(_) => None,
        }
    }

    /// Until when its mailbox may take for what it is asked next.
    pub fn is_patient_until(&mut self, until: Option<Deadline>) {
        if let Some(mailbox) = self.within_reach() {
            mailbox.patient_until(until);
        }
    }

    /// It has failed so, after so long.
    pub fn has_failed(&mut self, failure: &Failure, took: Duration, patience: Duration) {
        if let Failure::NothingStored(error) | Failure::Unknown(error) = failure {
            // What stands between may give up before we do.
            let has_hung = error.failure == MailboxFailure::TimedOut || took >= patience;
            self.has_hung |= has_hung && self.mailbox.is_ok();
        }
    }

    /// Whether its mailbox, which was open, has let us wait, and then nothing came of it.
    pub fn has_hung(&self) -> bool {
        self.has_hung
    }

    /// Whether its mailbox could not be opened.
    pub fn is_out_of_reach(&self) -> bool {
        matches!(self.mailbox, Err(Some(_)))
    }

    /// How it ends if nothing at all is tried because mailboxes are out of reach.
    pub fn out_of_reach(&mut self) -> End {
        match self.mailbox.as_mut().err().and_then(Option::take) {
            Some(error) => End::failed(Deferral::Mailbox(error), None),
            None => End::NotTried,
        }
    }

    /// Whether this attempt is in the journal: its mailbox is within reach, so something may be appended.
    pub fn journalled(&self) -> bool {
        self.mailbox.is_ok()
    }

    /// Its row in the ledger.
    pub fn record<'a>(&'a self, recipient: &'a str, state: CopyState<'a>) -> CopyRecord<'a> {
        CopyRecord { key: self.key, role: self.role, user: &self.user, mailbox: &self.mailbox_name, recipient, state }
    }

    /// What is said of it afterwards.
    pub fn report(&self, manner: Manner) -> CopyReport {
        CopyReport { role: self.role, user: self.user.clone(), mailbox: self.mailbox_name.clone(), manner }
    }
}

/// How a copy ended up in this run.
pub(super) enum End {
    /// It is where it belongs, or is recorded as owed.
    Done(Manner),
    /// It is not there, or that is not known.
    Failed {
        refusal: Refusal,
        /// For the ledger; `None` where the attempt stays open: an APPEND was sent and its answer is missing.
        outcome: Option<Outcome>,
        /// Of an author's copy: the recipients who have to come back to look for it, by their places.
        bearers: Vec<usize>,
    },
    /// The sender's copy was tried for long enough, and what came of the last APPEND is not known: it is recorded as owed, and
    /// our attempt stays open, so that a later one searches first.
    GivenUp(String),
    /// The ledger has it as delivered; an earlier attempt died, and what it may have left could not be looked for.
    Unchecked,
    /// It was not tried, because no recipient's copy is there.
    NotTried,
}

impl End {
    pub fn failed(refusal: impl Into<Refusal>, outcome: Option<Outcome>) -> Self {
        Self::Failed { refusal: refusal.into(), outcome, bearers: Vec::new() }
    }

    /// Whether the copy is where it belongs.
    pub fn is_there(&self) -> bool {
        matches!(self, Self::Done(_) | Self::GivenUp(_) | Self::Unchecked)
    }

    /// Whether our attempt at it stays open, or it is to be tried again.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::GivenUp(_))
    }

    /// Who has to come back to look for the author's copy.
    pub fn bearers(&self) -> &[usize] {
        match self {
            Self::Failed { bearers, .. } => bearers,
            _ => &[],
        }
    }

    /// What the ledger's row of the copy is to say; `None` where it stays as it is.
    pub fn state(&self) -> Option<CopyState<'_>> {
        match self {
            Self::Done(Manner::Appended(placement) | Manner::Adopted(placement)) => {
                Some(CopyState::Delivered(*placement))
            }
            Self::Done(Manner::Owed(reason)) | Self::GivenUp(reason) => Some(CopyState::Owed(reason)),
            Self::Done(Manner::AlreadyThere) | Self::Unchecked | Self::Failed { .. } | Self::NotTried => None,
        }
    }

    /// How the copy stands now, for whoever is told of it; `None` where it stands as it stood.
    pub fn standing(&self) -> Option<Standing<'_>> {
        match (self.state(), self) {
            (Some(CopyState::Delivered(placement)), _) => Some(Standing::Delivered(placement)),
            (Some(CopyState::Owed(reason)), _) => Some(Standing::Owed(reason)),
            (None, Self::Failed { outcome: Some(Outcome::Refused(why)), .. }) => Some(Standing::Refused(why)),
            (None, _) => None,
        }
    }

    /// How our attempt ended; `None` where it stays open, so that the next one looks.
    pub fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::Done(manner) => Some(manner.outcome()),
            Self::GivenUp(_) => None,
            Self::Unchecked => Some(Outcome::AlreadyThereUnchecked),
            Self::Failed { outcome, .. } => outcome.clone(),
            Self::NotTried => Some(Outcome::Deferred(Cause::RecipientsCopyFailed, None)),
        }
    }

    /// Whether the earlier attempts that died end with it: their copies were looked for.
    pub fn ends_earlier_attempts(&self) -> bool {
        matches!(self, Self::Done(Manner::Appended(_) | Manner::Adopted(_) | Manner::AlreadyThere))
    }
}

/// The lock was lost: nothing more may be appended, removed or recorded.
pub(super) struct LockLost;

/// Why a copy is not where it belongs.
pub(super) enum Failure {
    LockLost,
    /// Nothing was stored.
    CallerGone,
    /// An earlier attempt for the same recipient, or at a copy that is owed, began only so long ago: what it sent may still land.
    /// Nothing was stored.
    Unsettled(Duration),
    /// Nothing was stored.
    NothingStored(MailboxError),
    /// It was sent, and the answer is missing, or tells of a failure.
    Unknown(MailboxError),
}

/// How a copy that failed ends: it is deferred, refused for good, or recorded as owed.
pub(super) fn end_of(
    failure: Failure,
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    copy: &Copy<'_>,
    others: &OtherAttempts,
    keys: &[CopyKey],
) -> Result<End, LockLost> {
    let authors = !copy.is_recipients();
    let deferred = |deferral, cause| Ok(End::failed(deferral, Some(Outcome::Deferred(cause, None))));
    let error = match failure {
        Failure::LockLost => return Err(LockLost),
        Failure::CallerGone => return deferred(Deferral::CallerGone, Cause::CallerGone),
        Failure::Unsettled(age) => return deferred(Deferral::Unsettled(age), Cause::Unsettled),
        Failure::Unknown(error) => {
            warn!(%error, role = copy.role.as_str(), "the outcome of an append is unknown; the next attempt looks for it");
            // The recipient has the message: a server that never answers about the Sent copy must not make Postfix bounce it.
            if authors && past_retrying(delivery, database, keys) {
                let reason = format!("the outcome of an append is unknown: {error}");
                warn!(reason, user = copy.user, mailbox = copy.mailbox_name, "the Sent copy stays owed");
                return Ok(End::GivenUp(reason));
            }
            return Ok(End::failed(Deferral::Unknown(error), None));
        }
        Failure::NothingStored(error) => error,
    };
    let over_quota_refuses = error.failure == MailboxFailure::OverQuota && delivery.policy.over_quota_refuses;
    let outcome = Some(if over_quota_refuses && !authors {
        Outcome::Refused(format!("{}: {error}", error.failure.as_str()))
    } else {
        Outcome::Deferred(Cause::Mailbox(error.failure), Some(error.to_string()))
    });
    if !authors {
        let refusal =
            if over_quota_refuses { Refusal::OverQuota(error) } else { Refusal::Deferred(Deferral::Mailbox(error)) };
        return Ok(End::failed(refusal, outcome));
    }
    // The recipient's copy decides the exit: the sender's is tried for a while, and then stays owed in the ledger.
    // The service account has just logged in for the recipient, so a login refused now is about this author: where a rule gives
    // a whole domain mailboxes, From can name a user who does not exist.
    let not_let_in = error.failure == MailboxFailure::AccessDenied;
    let for_good = !error.trying_again_can_help() || over_quota_refuses || not_let_in;
    // What people restore is recorded as delivered, and never becomes owed: they see the failure.
    if delivery.restore || (!for_good && !past_retrying(delivery, database, keys)) {
        return Ok(End::failed(Deferral::Mailbox(error), outcome));
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
fn past_retrying(delivery: &Delivery<'_>, database: &mut dyn Ledger, keys: &[CopyKey]) -> bool {
    match database.first_attempt_age(keys) {
        Ok(age) => age >= delivery.policy.sent_retry_for,
        Err(error) => {
            warn!(%error, "the age of the first attempt is not known");
            false
        }
    }
}

/// How a copy ends that need not be appended: by what the ledger says, or by looking. `None`: it has to be.
pub(super) fn find_or_adopt(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    copy: &mut Copy<'_>,
    others: &OtherAttempts,
) -> Result<Option<End>, Failure> {
    if let Some(age) = others.unsettled {
        return match &others.owed {
            Some(reason) if others.stays_owed => {
                let (user, mailbox) = (&copy.user, &copy.mailbox_name);
                info!(user, mailbox, began_ago = ?age, "the Sent copy stays owed: an earlier attempt at it may still land");
                Ok(Some(End::Done(Manner::Owed(reason.clone()))))
            }
            _ => Err(Failure::Unsettled(age)),
        };
    }
    let died_before = others.died_before();
    if copy.left {
        return Ok(Some(match others.delivered {
            None => End::Done(Manner::Owed(LEFT_TO_THE_AUTHOR.into())),
            Some(_) if died_before => End::Unchecked,
            Some(_) => End::Done(Manner::AlreadyThere),
        }));
    }
    let there = |manner| Ok(Some(End::Done(manner)));
    // Nearly all messages have one recipient, and are never searched for. A delivered copy is looked for only if an earlier
    // run for this recipient died: what it had sent may have landed since.
    if others.delivered.is_some() && !died_before && !delivery.restore {
        return there(Manner::AlreadyThere);
    }
    let authors = !copy.is_recipients();
    let mailbox: &mut dyn Mailbox = match &mut copy.mailbox {
        Ok(mailbox) => &mut **mailbox,
        Err(trouble) => {
            let told_already = || {
                let doing = format!("opening {}", copy.mailbox_name);
                MailboxError::new(MailboxFailure::Unreachable, doing, "it is out of reach")
            };
            return Err(Failure::NothingStored(trouble.take().unwrap_or_else(told_already)));
        }
    };
    let message = delivery.message;
    let floor = others.floor(copy.position);
    let wanted = Wanted {
        message_id: message.message_id(),
        identity: message.identity(),
        role: copy.role,
        matching: Matching::Identity,
        since: search_from(floor),
        not_before: others.first_began(delivery.arrived),
    };
    if let Some(recorded) = others.delivered {
        if died_before {
            let manner = recheck_recorded(delivery, database, mailbox, &wanted, floor, recorded)?;
            if !delivery.restore || manner != Manner::AlreadyThere {
                return there(manner);
            }
        }
    } else if !others.is_empty() {
        let found = mailbox.find(&wanted).map_err(Failure::NothingStored)?;
        // Keep the lowest, marked \Deleted or not: then all who look keep the same one. Passing over one that its owner has
        // just marked would take that one out while an expunge of the other may still be under way, from a delivery that has
        // lost its lock; and both would be gone. Beside a marked one nothing is removed.
        //
        // One below the floor is ours if the server lowered UIDNEXT, or was there before: the mailbox then has the message all
        // the same. But a marked one is passed over, since its owner may have deleted it long ago: in doubt a second copy, never
        // none. And one below is taken only where there is none above, so no copy is ever taken out for its sake.
        let first = found.copies.iter().find(|copy| is_above(copy, floor));
        if let Some(keep) = first.or_else(|| found.copies.iter().find(|copy| !copy.deleted)) {
            info!(role = copy.role.as_str(), placement = ?keep.placement, "found the copy of an attempt that never ended");
            take_out_all_but(delivery, database, mailbox, &wanted, &found, floor, keep.placement)?;
            return there(Manner::Adopted(keep.placement));
        }
    }
    if delivery.restore || others.forgotten {
        let (not_before, newest) = if others.forgotten {
            // What was appended last may be in no index yet: so the newest are compared in any case.
            let newest =
                newest_from(copy.position).map(|at| Placement { uid_validity: at.uid_validity, uid: at.uid_next });
            (came_at(delivery), newest)
        } else {
            (delivery.arrived, None)
        };
        let everywhere = Wanted { not_before, ..wanted };
        let recorded = others.delivered.and_then(|at| at.placement).or(newest);
        let found = look_everywhere(mailbox, &everywhere, recorded, copy.position.is_some());
        let found = found.map_err(Failure::NothingStored)?;
        if others.forgotten {
            let (role, user, mailbox) = (copy.role.as_str(), &copy.user, &copy.mailbox_name);
            info!(role, user, mailbox, found = found.len(), "looked for a copy that the database may have forgotten");
        }
        if found.iter().any(|copy| others.delivered.is_some_and(|at| at.placement == copy.placement)) {
            return there(Manner::AlreadyThere);
        }
        if let Some(keep) = found.iter().find(|copy| !copy.deleted).or(found.first()) {
            return there(Manner::Adopted(keep.placement));
        }
    }
    if authors && delivery.policy.look_in_sent && wanted.message_id.is_some() {
        let by_message_id =
            Wanted { matching: Matching::MessageId, since: None, not_before: sent_on(delivery), ..wanted };
        let found = mailbox.find(&by_message_id).map_err(Failure::NothingStored)?;
        if let Some(keep) = found.copies.first() {
            return there(Manner::Adopted(keep.placement));
        }
    }
    Ok(None)
}

/// What is appended for a copy.
pub(super) fn new_copy<'a>(delivery: &Delivery<'a>, copy: &Copy<'_>) -> NewCopy<'a> {
    let (message, authors) = (delivery.message, !copy.is_recipients());
    NewCopy {
        bytes: if authors { message.without_prepended_lines() } else { message.as_received() },
        identity: message.identity(),
        role: copy.role,
        seen: authors,
        arrived: delivery.arrived,
    }
}

/// Looks again for a copy that is recorded, after an earlier run for the same recipient died: takes out what that run
/// left, or adopts it if the recorded one is gone.
fn recheck_recorded(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    mailbox: &mut dyn Mailbox,
    wanted: &Wanted<'_>,
    floor: Option<Position>,
    recorded: DeliveredAt,
) -> Result<Manner, Failure> {
    // The search has to reach down to the recorded copy, too.
    let since = wanted.since.map(|since| match recorded.placement {
        Some(recorded) if recorded.uid_validity == since.uid_validity => {
            Position { uid_next: since.uid_next.min(recorded.uid), ..since }
        }
        _ => since,
    });
    let found = mailbox.find(&Wanted { since, ..*wanted }).map_err(Failure::NothingStored)?;
    let is_recorded = |copy: &&FoundCopy| match recorded.placement {
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

/// Takes out every copy found but the one to keep. Only this can destroy mail: so under the lock, asked for at the last moment;
/// under an unchanged UIDVALIDITY; nothing below the floor, which its owner may have put there; and [`Mailbox::remove`]
/// compares the bytes of both.
fn take_out_all_but(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    mailbox: &mut dyn Mailbox,
    wanted: &Wanted<'_>,
    found: &Found,
    floor: Option<Position>,
    keep: Option<Placement>,
) -> Result<(), Failure> {
    let Some((keep, floor)) = keep.zip(floor).filter(|_| found.in_range) else { return Ok(()) };
    let above = found.copies.iter().filter(|copy| is_above(copy, Some(floor))).filter_map(|copy| copy.placement);
    for extra in above.filter(|&placement| placement != keep) {
        // Where the answer is missing, the expunge may still be carried out after we are gone (seen on Dovecot and Cyrus):
        // our attempt stays open, so that no other relies on what is there before it is settled.
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
pub(super) fn still_held(delivery: &Delivery<'_>, database: &mut dyn Ledger) -> bool {
    match database.still_held(delivery.lock) {
        Ok(held) => held,
        Err(error) => {
            warn!(%error, "the lock's connection is gone, and the lock with it");
            false
        }
    }
}

/// The moment since which a copy of the message may be in a mailbox.
fn came_at(delivery: &Delivery<'_>) -> OffsetDateTime {
    let came = time::Duration::try_from(delivery.came.unwrap_or(delivery.policy.queue_lifetime));
    came.ok().and_then(|came| delivery.arrived.checked_sub(came)).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// The day from which the author's own copy can be in Sent: the message's Date, unless that is nonsense, which must not make
/// the search cover years.
fn sent_on(delivery: &Delivery<'_>) -> OffsetDateTime {
    let date = delivery.message.date().and_then(|date| OffsetDateTime::from_unix_timestamp(date).ok());
    let a_week = time::Duration::days(7);
    match date {
        Some(date) if date <= delivery.arrived && delivery.arrived - date <= a_week => date,
        _ => delivery.arrived,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_says_whether_the_copy_is_there_and_whether_somebody_has_to_come_back() {
        for (end, is_there, is_open) in [
            (End::Done(Manner::AlreadyThere), true, false),
            (End::failed(Deferral::LockLost, None), false, true),
            (End::GivenUp("why".into()), true, true),
            (End::Unchecked, true, false),
            (End::NotTried, false, false),
        ] {
            assert_eq!((end.is_there(), end.is_open()), (is_there, is_open));
        }
    }
}
