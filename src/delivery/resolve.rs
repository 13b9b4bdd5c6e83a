//! Decides about one copy under the lock: it is already there, is adopted, is recorded as owed, or has to be appended.

use super::copy_attempt::{Attempt, End};
use super::other_attempts::{is_above, newest_from, search_from};
use super::report::{Deferral, Manner, Refusal};
use super::{Delivery, NotOpened};
use crate::ledger::{Cause, CopyKey, DeliveredAt, Ledger, Outcome};
use crate::mailbox::{
    FoundCopies, FoundCopy, Mailbox, MailboxError, MailboxFailure, Matching, NewCopy, Placement, Position, Removal,
    Wanted, look_everywhere,
};
use std::time::Duration;
use time::OffsetDateTime;
use tracing::{info, warn};

/// The recorded reason of an owed copy that is left to its author's mail program.
const LEFT_TO_THE_AUTHOR: &str = "left to the author's own mail program, whose copy `replay --owed` looks for";

pub(super) struct UnderLock<'u, 'd> {
    pub delivery: &'u Delivery<'d>,
    pub database: &'u mut dyn Ledger,
    pub keys: &'u [CopyKey],
}

impl UnderLock<'_, '_> {
    /// Whether this delivery still holds the lock. A connection that fails holds none.
    pub fn is_held(&mut self) -> bool {
        match self.database.still_held(self.delivery.lock) {
            Ok(held) => held,
            Err(error) => {
                warn!(%error, "the lock's connection is gone, and the lock with it");
                false
            }
        }
    }

    /// Whether `sent.retry_for` has passed since the first attempt. If that age is unknown, the retries continue.
    fn is_past_retrying(&mut self) -> bool {
        match self.database.first_attempt_age(self.keys) {
            Ok(age) => age >= self.delivery.policy.sent_retry_for,
            Err(error) => {
                warn!(%error, "the age of the first attempt is not known");
                false
            }
        }
    }
}

/// From now on no copy may be appended, removed or recorded.
pub(super) struct LockLost;

/// Why a copy is not in its mailbox.
pub(super) enum Failure {
    LockLost,
    /// The caller has died. Nothing was stored.
    CallerGone,
    /// An earlier attempt is only this old, so its APPEND may still land. This attempt stored nothing.
    Unsettled(Duration),
    /// The mailbox store failed or refused the copy, and nothing was stored.
    NothingStored(MailboxError),
    /// The copy was sent. The answer is missing, or does not say whether the server stored the copy.
    Unknown(MailboxError),
}

/// How a failed copy ends: deferred, refused for good, or recorded as owed.
pub(super) fn end_of(
    failure: Failure,
    under_lock: &mut UnderLock<'_, '_>,
    attempt: &Attempt<'_>,
) -> Result<End, LockLost> {
    let (delivery, authors) = (under_lock.delivery, !attempt.is_recipients());
    let deferred = |deferral, cause| Ok(End::failed(deferral, Some(Outcome::Deferred(cause, None))));
    let error = match failure {
        Failure::LockLost => return Err(LockLost),
        Failure::CallerGone => return deferred(Deferral::CallerGone, Cause::CallerGone),
        Failure::Unsettled(age) => return deferred(Deferral::Unsettled(age), Cause::Unsettled),
        Failure::Unknown(error) => {
            warn!(%error, role = attempt.role.as_str(), "the outcome of an append is unknown; the next attempt looks for it");
            // The recipient's copy is delivered: a server that never answers about the Sent copy must not make Postfix bounce
            // the message.
            if authors && under_lock.is_past_retrying() {
                let reason = format!("the outcome of an append is unknown: {error}");
                warn!(reason, user = attempt.user, mailbox = attempt.mailbox_name, "the Sent copy stays owed");
                return Ok(End::OwedUnknown(reason));
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
    // The recipient's copy decides the result: the author's is retried for a while, and then stays owed in the ledger. The
    // service account has just logged in for the recipient, so a refused access concerns this author alone. If a rule gives
    // mailboxes to a whole domain, From can name a user who does not exist.
    let not_let_in = error.failure == MailboxFailure::AccessDenied;
    let for_good = !error.trying_again_can_help() || over_quota_refuses || not_let_in;
    // A restored copy is recorded as delivered already, and never becomes owed: the person who restores it sees the failure.
    if delivery.restore || (!for_good && !under_lock.is_past_retrying()) {
        return Ok(End::failed(Deferral::Mailbox(error), outcome));
    }
    if attempt.others.delivered.is_some() {
        warn!(%error, "an earlier attempt that died could not be looked after; its mailbox may hold a copy too many");
        return Ok(End::UnverifiedDuplicate);
    }
    let reason = format!("{}: {error}", error.failure.as_str());
    warn!(reason, user = attempt.user, mailbox = attempt.mailbox_name, "the Sent copy stays owed");
    Ok(End::Done(Manner::Owed(reason)))
}

/// The end of a copy that the ledger or a search shows; `None` if the copy has to be appended.
pub(super) fn resolve(under_lock: &mut UnderLock<'_, '_>, attempt: &mut Attempt<'_>) -> Result<Option<End>, Failure> {
    let (delivery, authors) = (under_lock.delivery, !attempt.is_recipients());
    let Attempt { role, user, mailbox_name, position, mailbox, others, .. } = attempt;
    let (role, position) = (*role, *position);
    if let Some(age) = others.unsettled {
        return match &others.owed {
            Some(reason) if others.defer_to_owed => {
                let mailbox = mailbox_name;
                info!(user, mailbox, began_ago = ?age, "the Sent copy stays owed: an earlier attempt at it may still land");
                Ok(Some(End::Done(Manner::Owed(reason.clone()))))
            }
            _ => Err(Failure::Unsettled(age)),
        };
    }
    let died_before = others.died_before();
    let done = |manner| Ok(Some(End::Done(manner)));
    // Nearly all deliveries end or append without a search. A delivered copy is searched for only if an earlier attempt for
    // this recipient died: its APPEND may have landed since.
    if others.delivered.is_some() && !died_before && !delivery.restore {
        return done(Manner::AlreadyThere);
    }
    let mailbox: &mut dyn Mailbox = match mailbox {
        Ok(mailbox) => &mut **mailbox,
        Err(NotOpened::Trouble(error)) => return Err(Failure::NothingStored(error.clone())),
        Err(NotOpened::LeftToTheAuthor) => {
            return Ok(Some(match others.delivered {
                None => End::Done(Manner::Owed(LEFT_TO_THE_AUTHOR.into())),
                Some(_) if died_before => End::UnverifiedDuplicate,
                Some(_) => End::Done(Manner::AlreadyThere),
            }));
        }
    };
    let message = delivery.message;
    let floor = others.floor(position);
    let wanted = Wanted {
        message_id: message.message_id(),
        identity: message.identity(),
        role,
        matching: Matching::Identity,
        since: search_from(floor),
        not_before: others.first_began(delivery.arrived),
    };
    if let Some(recorded) = others.delivered {
        if died_before {
            let manner = recheck_recorded(under_lock, mailbox, &wanted, floor, recorded)?;
            if !delivery.restore || manner != Manner::AlreadyThere {
                return done(manner);
            }
        }
    } else if !others.is_empty() {
        let found = mailbox.find(&wanted).map_err(Failure::NothingStored)?;
        // Keep the lowest copy at or above `floor`, even if it is marked `\Deleted`: then all deliveries keep the same one.
        //
        // If the marked copy were passed over, another one would be kept and the marked one removed. A delivery that has
        // lost its lock may still be expunging that other one: then both would be gone. If the kept copy is marked, no copy
        // is removed (`Mailbox::remove`).
        //
        // A copy below `floor` is ours if the server lowered UIDNEXT; otherwise it was there before. In both cases the
        // mailbox has the message. A marked copy below is passed over, since its owner may have deleted it long ago: in
        // doubt there is a second copy, never none. A copy below counts only if there is none above, so it never causes a
        // removal.
        let first = found.copies.iter().find(|copy| is_above(copy, floor));
        if let Some(keep) = first.or_else(|| found.copies.iter().find(|copy| !copy.deleted)) {
            info!(role = role.as_str(), placement = ?keep.placement, "found the copy of an attempt that never ended");
            remove_duplicates_except(under_lock, mailbox, &wanted, &found, floor, keep.placement)?;
            return done(Manner::Adopted(keep.placement));
        }
    }
    if delivery.restore || others.forgotten {
        let (not_before, newest) = if others.forgotten {
            // The server's index may not have the newest messages yet, so these are compared one by one.
            let newest = newest_from(position).map(|at| Placement { uid_validity: at.uid_validity, uid: at.uid_next });
            (came_at(delivery), newest)
        } else {
            (delivery.arrived, None)
        };
        let everywhere = Wanted { not_before, ..wanted };
        let recorded = others.delivered.and_then(|at| at.placement).or(newest);
        let found = look_everywhere(mailbox, &everywhere, recorded, position.is_some());
        let found = found.map_err(Failure::NothingStored)?;
        if others.forgotten {
            let (role, mailbox) = (role.as_str(), mailbox_name);
            info!(role, user, mailbox, found = found.len(), "looked for a copy that the database may have forgotten");
        }
        if found.iter().any(|copy| others.delivered.is_some_and(|at| at.placement == copy.placement)) {
            return done(Manner::AlreadyThere);
        }
        if let Some(keep) = found.iter().find(|copy| !copy.deleted).or(found.first()) {
            return done(Manner::Adopted(keep.placement));
        }
    }
    if authors && delivery.policy.look_in_sent && wanted.message_id.is_some() {
        let by_message_id =
            Wanted { matching: Matching::MessageId, since: None, not_before: sent_on(delivery), ..wanted };
        let found = mailbox.find(&by_message_id).map_err(Failure::NothingStored)?;
        if let Some(keep) = found.copies.first() {
            return done(Manner::Adopted(keep.placement));
        }
    }
    Ok(None)
}

/// The author's copy lacks the lines that were prepended for a recipient, and is marked `\Seen`.
pub(super) fn new_copy<'a>(delivery: &Delivery<'a>, attempt: &Attempt<'_>) -> NewCopy<'a> {
    let (message, authors) = (delivery.message, !attempt.is_recipients());
    NewCopy {
        bytes: if authors { message.without_prepended_lines() } else { message.as_received() },
        identity: message.identity(),
        role: attempt.role,
        seen: authors,
        arrived: delivery.arrived,
    }
}

/// Searches for a recorded copy after an earlier attempt for the same recipient died. Removes that attempt's copy, or adopts
/// it if the recorded one is gone.
fn recheck_recorded(
    under_lock: &mut UnderLock<'_, '_>,
    mailbox: &mut dyn Mailbox,
    wanted: &Wanted<'_>,
    floor: Option<Position>,
    recorded: DeliveredAt,
) -> Result<Manner, Failure> {
    // The recorded copy may be below the start of the search.
    let since = wanted.since.map(|since| match recorded.placement {
        Some(recorded) if recorded.uid_validity == since.uid_validity => {
            Position { uid_next: since.uid_next.min(recorded.uid), ..since }
        }
        _ => since,
    });
    let found = mailbox.find(&Wanted { since, ..*wanted }).map_err(Failure::NothingStored)?;
    let is_recorded = |copy: &&FoundCopy| match recorded.placement {
        Some(recorded) => copy.placement == Some(recorded),
        // The server reported no UID when it stored the copy (no UIDPLUS), so the lowest copy counts as the recorded one.
        None => !copy.deleted && is_above(copy, floor),
    };
    match found.copies.iter().find(is_recorded) {
        Some(keep) => {
            remove_duplicates_except(under_lock, mailbox, wanted, &found, floor, keep.placement)?;
            Ok(Manner::AlreadyThere)
        }
        // The owner has moved or deleted the recorded copy, or UIDVALIDITY changed. The remaining copy is adopted, and none
        // is removed.
        None => match found.copies.iter().find(|copy| !copy.deleted) {
            Some(left) => Ok(Manner::Adopted(left.placement)),
            None => Ok(Manner::AlreadyThere),
        },
    }
}

/// Removes each copy that was found except the one to keep. Only this function can destroy mail, so it has four conditions:
///
/// - the lock is held, checked at the last moment;
/// - UIDVALIDITY has not changed;
/// - no copy below `floor` is removed, since it may have been there before;
/// - [`Mailbox::remove`] compares the bytes of both copies.
fn remove_duplicates_except(
    under_lock: &mut UnderLock<'_, '_>,
    mailbox: &mut dyn Mailbox,
    wanted: &Wanted<'_>,
    found: &FoundCopies,
    floor: Option<Position>,
    keep: Option<Placement>,
) -> Result<(), Failure> {
    let Some((keep, floor)) = keep.zip(floor).filter(|_| found.in_range) else { return Ok(()) };
    let above = found.copies.iter().filter(|copy| is_above(copy, Some(floor))).filter_map(|copy| copy.placement);
    for extra in above.filter(|&placement| placement != keep) {
        // If the answer is missing, the server may still expunge after this process has ended (seen on Dovecot and Cyrus).
        // The attempt then stays open, so no other delivery relies on this mailbox before `imap.append_grace` has passed.
        let removal = mailbox.remove(extra, keep, wanted, &mut || under_lock.is_held()).map_err(Failure::Unknown)?;
        match removal {
            Removal::Removed => info!(?extra, ?keep, "removed a duplicate copy"),
            Removal::Withheld => return Err(Failure::LockLost),
            left => warn!(?extra, ?keep, ?left, "a duplicate copy was not removed"),
        }
    }
    Ok(())
}

/// The earliest time at which a copy of the message can have arrived in a mailbox: no copy is older than the message.
fn came_at(delivery: &Delivery<'_>) -> OffsetDateTime {
    let came = time::Duration::try_from(delivery.came.unwrap_or(delivery.policy.queue_lifetime));
    came.ok().and_then(|came| delivery.arrived.checked_sub(came)).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// The first day on which the author's own copy can be in Sent: the message's Date, if it is plausible. Otherwise the search
/// could cover years.
fn sent_on(delivery: &Delivery<'_>) -> OffsetDateTime {
    let date = delivery.message.date().and_then(|date| OffsetDateTime::from_unix_timestamp(date).ok());
    let a_week = time::Duration::days(7);
    match date {
        Some(date) if date <= delivery.arrived && delivery.arrived - date <= a_week => date,
        _ => delivery.arrived,
    }
}
