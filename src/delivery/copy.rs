//! One copy: found, adopted, appended, or left for later. Called under the lock.

use super::outcome::{CopyReport, Deferral, Manner, Refusal};
use super::{Delivery, OwedCopy};
use crate::ledger::{CopyHistory, CopyKey, CopyRecord, CopyState, Ledger, OpenAttempt};
use crate::lock::NamedLock;
use crate::mailbox::{
    Appended, Found, Mailbox, MailboxError, MailboxFailure, Matching, NewCopy, Placement, Position, Removal, Role,
    Wanted, look_everywhere,
};
use std::time::Duration;
use time::OffsetDateTime;
use tracing::{info, warn};

/// A copy owed by this delivery.
pub(super) struct Copy<'m> {
    pub key: CopyKey,
    pub role: Role,
    pub user: String,
    pub mailbox_name: String,
    /// Where its mailbox stood before this attempt was journalled.
    pub position: Option<Position>,
    mailbox: Result<Box<dyn Mailbox + 'm>, Option<MailboxError>>,
}

impl<'m> Copy<'m> {
    /// Asks where the mailbox stands.
    pub fn stand(delivery: &Delivery<'_>, owed: OwedCopy<'m>) -> Self {
        let OwedCopy { role, user, mailbox_name, mailbox } = owed;
        let key = CopyKey::new(delivery.message.identity(), role, &user, &mailbox_name);
        let stands = mailbox.and_then(|mut mailbox| mailbox.position().map(|position| (mailbox, position)));
        let (mailbox, position) = match stands {
            Ok((mailbox, position)) => (Ok(mailbox), position),
            Err(error) => (Err(Some(error)), None),
        };
        Self { key, role, user, mailbox_name, position, mailbox }
    }

    /// Why its mailbox is out of reach, if it is.
    pub fn take_trouble(&mut self) -> Option<MailboxError> {
        self.mailbox.as_mut().err().and_then(Option::take)
    }

    /// Whether this attempt is in the journal: its mailbox is within reach, so that something may be appended.
    pub fn journalled(&self) -> bool {
        self.mailbox.is_ok()
    }

    /// Its row in the ledger.
    pub fn record<'a>(&'a self, delivery: &Delivery<'a>, state: CopyState<'a>) -> CopyRecord<'a> {
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
    /// Which of them were for this very recipient: an earlier run for it that died.
    of_this_recipient: Vec<bool>,
}

impl OtherAttempts {
    /// Reads what the ledger showed under the lock, a value for each copy.
    ///
    /// # Errors
    /// [`Deferral::JournalForgotten`] where our own attempt is not in it; [`Deferral::Unsettled`] where an earlier
    /// attempt for this very recipient is so young that its APPEND may still land.
    pub fn read(
        delivery: &Delivery<'_>,
        copies: &[Copy<'_>],
        histories: &[CopyHistory],
    ) -> Result<Vec<Self>, Deferral> {
        let mine = |attempt: &&OpenAttempt| attempt.attempt == delivery.attempt;
        let own_age = histories.iter().flat_map(|h| &h.open_attempts).find(mine).map(|attempt| attempt.age);
        let own_age = own_age.ok_or(Deferral::JournalForgotten)?;
        let mut all = Vec::with_capacity(copies.len());
        for copy in copies {
            let history = histories.iter().find(|history| history.key == copy.key).ok_or(Deferral::JournalForgotten)?;
            let journalled = history.open_attempts.iter().any(|attempt| mine(&attempt));
            if copy.journalled() && !journalled {
                return Err(Deferral::JournalForgotten);
            }
            let others: Vec<OpenAttempt> =
                history.open_attempts.iter().filter(|attempt| !mine(attempt)).cloned().collect();
            for other in others.iter().filter(|other| other.recipient == delivery.recipient) {
                // One that began after us is no earlier run that died, but a twin that waits for our lock: a second alias
                // of the same recipient. Deferring to it, as it defers to us, would keep both from ever delivering. An
                // age below zero is a clock that was set back, and says nothing.
                let began_after_us = other.age >= 0.0
                    && (other.age < own_age || (other.age == own_age && other.attempt > delivery.attempt));
                if !began_after_us && other.age < delivery.policy.settle.as_secs_f64() {
                    return Err(Deferral::Unsettled(Duration::from_secs_f64(other.age.max(0.0))));
                }
            }
            let of_this_recipient = others.iter().map(|other| other.recipient == delivery.recipient).collect();
            let delivered = history.delivered.map(|delivered| delivered.placement);
            all.push(Self { delivered, others, of_this_recipient });
        }
        Ok(all)
    }

    /// The earlier attempts for this very recipient that never ended, and are settled. (A twin that waits for our lock
    /// is none of them; it ends itself.)
    pub fn earlier_of_this_recipient(&self, settle: Duration) -> impl Iterator<Item = &OpenAttempt> {
        let pairs = self.others.iter().zip(&self.of_this_recipient);
        pairs.filter(move |(other, same)| **same && other.age >= settle.as_secs_f64()).map(|(other, _)| other)
    }

    /// When the first of them began: no copy of theirs arrived before that. By the database's clock, as a span before
    /// `now`.
    fn first_began(&self, now: OffsetDateTime) -> OffsetDateTime {
        let oldest = self.others.iter().map(|other| other.age).fold(0.0, f64::max);
        now.checked_sub(time::Duration::saturating_seconds_f64(oldest)).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }

    /// Where a search begins: at the lowest UIDNEXT of the attempts that never ended. `None`, the whole mailbox, where
    /// one of them saw another UIDVALIDITY than `today`'s, or none at all.
    fn search_from(&self, today: Option<Position>) -> Option<Position> {
        let today = today?;
        let mut lowest = today;
        for other in &self.others {
            let position = other.position.filter(|position| position.uid_validity == today.uid_validity)?;
            lowest.uid_next = lowest.uid_next.min(position.uid_next);
        }
        Some(lowest)
    }
}

/// How a copy ended up in this run.
pub(super) enum End {
    /// It is where it belongs, or is recorded as owed.
    Done(Manner),
    /// It is not there, or nobody knows.
    Failed {
        /// What the caller hears.
        refusal: Refusal,
        /// What the ledger hears.
        outcome: String,
        /// Whether the attempt stays open: an APPEND was sent and its answer is missing.
        open: bool,
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
    pub fn state(&self) -> Option<CopyState<'_>> {
        match self {
            Self::Done(Manner::Appended(placement) | Manner::Adopted(placement)) => {
                Some(CopyState::Delivered(*placement))
            }
            Self::Done(Manner::Owed(reason)) | Self::GivenUp(reason) => Some(CopyState::Owed(reason)),
            Self::Done(Manner::AlreadyThere) | Self::Unchecked | Self::Failed { .. } | Self::NotTried => None,
        }
    }

    /// How the ledger says that our attempt ended.
    pub fn outcome(&self) -> &str {
        match self {
            Self::Done(manner) => manner.as_str(),
            Self::GivenUp(_) => "unknown",
            Self::Unchecked => "already there; not looked for",
            Self::Failed { outcome, .. } => outcome,
            Self::NotTried => "deferred: the recipient's copy failed",
        }
    }

    /// Whether our attempt stays open, so that the next one looks.
    pub fn stays_open(&self) -> bool {
        matches!(self, Self::Failed { open: true, .. } | Self::GivenUp(_))
    }

    /// Whether the earlier attempts that never ended are settled with it: their copies were looked for.
    pub fn settles_earlier_attempts(&self) -> bool {
        matches!(self, Self::Done(Manner::Appended(_) | Manner::Adopted(_) | Manner::AlreadyThere))
    }
}

/// The lock was lost: nothing more may be appended, removed or recorded.
pub(super) struct LockLost;

/// Why a copy is not where it belongs.
enum Failure {
    LockLost,
    /// Nothing was stored.
    NothingStored(MailboxError),
    /// It was sent, and the answer is missing.
    Unknown(MailboxError),
}

/// Sees one copy home: already there, adopted, appended, or owed.
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
    let error = match bring(delivery, database, copy, others) {
        Ok(manner) => return Ok(End::Done(manner)),
        Err(Failure::LockLost) => return Err(LockLost),
        Err(Failure::Unknown(error)) => {
            warn!(%error, role = copy.role.as_str(), "the outcome of an append is unknown; the next attempt looks for it");
            // The recipient has the message: a server that never says what came of the sender's copy must not make
            // Postfix bounce it.
            if copy.role == Role::Sender && past_retrying(delivery, database, keys) {
                let reason = format!("the outcome of an append is unknown: {error}");
                warn!(reason, user = copy.user, mailbox = copy.mailbox_name, "the Sent copy stays owed");
                return Ok(End::GivenUp(reason));
            }
            let refusal = Deferral::Unknown(error).into();
            return Ok(End::Failed { refusal, outcome: "unknown".into(), open: true });
        }
        Err(Failure::NothingStored(error)) => error,
    };
    let over_quota_refuses = error.failure == MailboxFailure::OverQuota && delivery.policy.over_quota_refuses;
    let refused = over_quota_refuses && copy.role == Role::Recipient;
    let outcome = format!("{}: {}: {error}", if refused { "refused" } else { "deferred" }, error.failure.as_str());
    if copy.role == Role::Recipient {
        let refusal =
            if over_quota_refuses { Refusal::OverQuota(error) } else { Refusal::Deferred(Deferral::Mailbox(error)) };
        return Ok(End::Failed { refusal, outcome, open: false });
    }
    // The recipient's copy decides the exit: the sender's is tried for a while, and then stays owed in the ledger.
    // The same account has just logged in for the recipient, so a login that is refused is about this author: by a rule for
    // a whole domain everybody there lives here, whatever somebody writes into From.
    let not_let_in = error.failure == MailboxFailure::AccessDenied;
    let for_good = !error.trying_again_can_help() || over_quota_refuses || not_let_in;
    // What people restore is recorded as delivered, and never becomes owed: they hear of the failure.
    if delivery.restore || (!for_good && !past_retrying(delivery, database, keys)) {
        return Ok(End::Failed { refusal: Deferral::Mailbox(error).into(), outcome, open: false });
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
    let died_before = others.earlier_of_this_recipient(delivery.policy.settle).next().is_some();
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
    let wanted = Wanted {
        message_id: message.message_id_for_search(),
        identity: message.identity(),
        role: copy.role,
        matching: Matching::Identity,
        since: others.search_from(copy.position),
        not_before: others.first_began(delivery.arrived),
    };
    if let Some(recorded) = others.delivered {
        if died_before {
            let manner = tidy(delivery, database, mailbox, &wanted, recorded)?;
            if !delivery.restore || manner != Manner::AlreadyThere {
                return Ok(manner);
            }
        }
    } else if !others.others.is_empty() {
        let found = mailbox.find(&wanted).map_err(Failure::NothingStored)?;
        // The lowest, marked \Deleted or not: so whoever looks has the same one to keep. Whoever passed over one that its
        // owner has just marked would take that one out, while an expunge of the other may still be under way from a
        // delivery that has lost its lock; and both would be gone. Beside a keeper that is marked nothing is removed.
        if let Some(keep) = found.copies.first() {
            info!(role = copy.role.as_str(), placement = ?keep.placement, "found the copy of an attempt that never ended");
            take_out_all_but(delivery, database, mailbox, &wanted, &found, keep.placement)?;
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
    if copy.role == Role::Sender && delivery.policy.look_in_sent && wanted.message_id.is_some() {
        let by_message_id =
            Wanted { matching: Matching::MessageId, since: None, not_before: sent_on(delivery), ..wanted };
        let found = mailbox.find(&by_message_id).map_err(Failure::NothingStored)?;
        if let Some(keep) = found.copies.first() {
            return Ok(Manner::Adopted(keep.placement));
        }
    }
    let new = NewCopy {
        bytes: match copy.role {
            Role::Recipient => message.as_received(),
            Role::Sender => message.without_prepended_lines(),
        },
        identity: message.identity(),
        role: copy.role,
        seen: copy.role == Role::Sender,
        arrived: delivery.arrived,
    };
    match mailbox.append(&new, &mut || still_held(delivery, database)) {
        Appended::Stored(placement) => Ok(Manner::Appended(placement)),
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
    recorded: Option<Placement>,
) -> Result<Manner, Failure>
where
    D: NamedLock + ?Sized,
{
    // The search has to reach down to the recorded copy, too; what is taken out lies above the attempts' UIDNEXT.
    let floor = wanted.since;
    let since = floor.map(|floor| match recorded {
        Some(recorded) if recorded.uid_validity == floor.uid_validity => {
            Position { uid_next: floor.uid_next.min(recorded.uid), ..floor }
        }
        _ => floor,
    });
    let found = mailbox.find(&Wanted { since, ..*wanted }).map_err(Failure::NothingStored)?;
    let is_recorded = |copy: &&crate::mailbox::FoundCopy| match recorded {
        Some(recorded) => copy.placement == Some(recorded),
        // No UID was told when it was stored (no UIDPLUS): the lowest is taken for it.
        None => !copy.deleted,
    };
    match found.copies.iter().find(is_recorded) {
        Some(keep) => {
            let above = |copy: &crate::mailbox::FoundCopy| match (copy.placement, floor) {
                (Some(placement), Some(floor)) => placement.uid >= floor.uid_next,
                _ => false,
            };
            let copies = found.copies.iter().copied().filter(above).collect();
            let extra = Found { in_range: found.in_range, copies };
            take_out_all_but(delivery, database, mailbox, wanted, &extra, keep.placement)?;
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
/// asked for at the last moment; under an unchanged UIDVALIDITY; and [`Mailbox::remove`] compares the bytes of both.
fn take_out_all_but<D>(
    delivery: &Delivery<'_>,
    database: &mut D,
    mailbox: &mut dyn Mailbox,
    wanted: &Wanted<'_>,
    found: &Found,
    keep: Option<Placement>,
) -> Result<(), Failure>
where
    D: NamedLock + ?Sized,
{
    let Some(keep) = keep.filter(|_| found.in_range) else { return Ok(()) };
    for extra in found.copies.iter().filter_map(|copy| copy.placement).filter(|&placement| placement != keep) {
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
