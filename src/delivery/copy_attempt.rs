//! One copy of a delivery, from the position of its mailbox to the end of the attempt.

use super::other_attempts::OtherAttempts;
use super::report::{CopyReport, Deferral, Manner, Refusal};
use super::{Delivery, NotOpened, OwedCopy, Whose};
use crate::ledger::event::EventState;
use crate::ledger::{Cause, CopyKey, CopyRecord, CopyState, Outcome};
use crate::mailbox::{Mailbox, MailboxError, MailboxFailure, Position};
use crate::message::Role;
use std::time::Duration;

pub(super) struct Attempt<'m> {
    pub key: CopyKey,
    pub role: Role,
    whose: Whose,
    pub user: String,
    pub mailbox_name: String,
    /// The mailbox's position before this attempt was journalled.
    pub position: Option<Position>,
    pub mailbox: Result<&'m mut dyn Mailbox, NotOpened>,
    /// What the ledger showed under the lock; empty until then.
    pub others: OtherAttempts,
    pub end: End,
    /// Whether the mailbox was open, kept the delivery waiting, and then failed.
    pub has_hung: bool,
}

impl<'m> Attempt<'m> {
    /// Reads the mailbox's position first. If that fails, the copy is not journalled: no APPEND can follow.
    pub fn begin(delivery: &Delivery<'_>, owed: OwedCopy<'m>) -> Self {
        let OwedCopy { role, whose, user, mailbox_name, mailbox } = owed;
        let key = CopyKey::new(delivery.message.identity(), role, &user, &mailbox_name);
        let asked = mailbox.and_then(|mailbox| Ok(mailbox.position().map(|position| (mailbox, position))?));
        let (mailbox, position) = match asked {
            Ok((mailbox, position)) => (Ok(mailbox), position),
            Err(why) => (Err(why), None),
        };
        let (others, end) = (OtherAttempts::default(), End::Skipped);
        Self { key, role, whose, user, mailbox_name, position, mailbox, others, end, has_hung: false }
    }

    /// Whether this is a recipient's copy, and not the author's.
    pub fn is_recipients(&self) -> bool {
        matches!(self.whose, Whose::Recipients(_))
    }

    /// The copy's recipients, as indexes into [`Delivery::recipients`]; empty for the author's copy.
    pub fn recipients(&self) -> &[usize] {
        match &self.whose {
            Whose::Recipients(places) => places,
            Whose::Authors => &[],
        }
    }

    pub fn open_mailbox(&mut self) -> Option<&mut (dyn Mailbox + 'm)> {
        match &mut self.mailbox {
            Ok(mailbox) => Some(&mut **mailbox),
            Err(_) => None,
        }
    }

    /// Notes whether an open mailbox has hung: its failure took at least `patience`. The duration counts as well as the
    /// error, since a proxy may give up before this process does.
    pub fn note_hanging(&mut self, error: &MailboxError, took: Duration, patience: Duration) {
        let has_hung = error.failure == MailboxFailure::TimedOut || took >= patience;
        self.has_hung |= has_hung && self.mailbox.is_ok();
    }

    pub fn is_out_of_reach(&self) -> bool {
        matches!(self.mailbox, Err(NotOpened::Trouble(_)))
    }

    pub fn end_out_of_reach(&mut self) {
        if let Err(NotOpened::Trouble(error)) = &self.mailbox {
            self.end = End::failed(Deferral::Mailbox(error.clone()), None);
        }
    }

    /// Whether the attempt is in the journal: its mailbox is open, so a copy may be appended.
    pub fn is_journalled(&self) -> bool {
        self.mailbox.is_ok()
    }

    pub fn record<'a>(&'a self, recipient: &'a str, state: CopyState<'a>) -> CopyRecord<'a> {
        CopyRecord { key: self.key, role: self.role, user: &self.user, mailbox: &self.mailbox_name, recipient, state }
    }

    /// The report of the copy; `None` if it is not in its mailbox.
    pub fn report(&self) -> Option<CopyReport> {
        let manner = match &self.end {
            End::Done(manner) => manner.clone(),
            End::OwedUnknown(reason) => Manner::Owed(reason.clone()),
            End::UnverifiedDuplicate => Manner::AlreadyThere,
            End::Failed { .. } | End::Skipped => return None,
        };
        Some(CopyReport { role: self.role, user: self.user.clone(), mailbox: self.mailbox_name.clone(), manner })
    }
}

pub(super) enum End {
    /// The copy is in its mailbox, or is recorded as owed.
    Done(Manner),
    /// The copy is not in its mailbox, or its state is unknown.
    Failed {
        refusal: Refusal,
        /// For the ledger. `None` keeps the attempt open, so that the next one searches: an APPEND was sent and its answer
        /// is missing.
        outcome: Option<Outcome>,
    },
    /// `sent.retry_for` has passed, and the result of the last APPEND is unknown. The copy is recorded as owed. The attempt
    /// stays open, so that a later one searches first.
    OwedUnknown(String),
    /// The ledger has the copy as delivered. An earlier attempt died, and its mailbox could not be searched, so a second
    /// copy may exist.
    UnverifiedDuplicate,
    /// The copy was not tried, because no recipient's copy is in its mailbox.
    Skipped,
}

impl End {
    pub fn failed(refusal: impl Into<Refusal>, outcome: Option<Outcome>) -> Self {
        Self::Failed { refusal: refusal.into(), outcome }
    }

    /// Whether the copy is in its mailbox, or is recorded as owed.
    pub fn is_there(&self) -> bool {
        matches!(self, Self::Done(_) | Self::OwedUnknown(_) | Self::UnverifiedDuplicate)
    }

    /// Whether the attempt stays open, or has to be repeated.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::OwedUnknown(_))
    }

    /// The new state of the copy's row in the ledger; `None` if it does not change.
    pub fn state(&self) -> Option<CopyState<'_>> {
        match self {
            Self::Done(Manner::Appended(placement) | Manner::Adopted(placement)) => {
                Some(CopyState::Delivered(*placement))
            }
            Self::Done(Manner::Owed(reason)) | Self::OwedUnknown(reason) => Some(CopyState::Owed(reason)),
            Self::Done(Manner::AlreadyThere) | Self::UnverifiedDuplicate | Self::Failed { .. } | Self::Skipped => None,
        }
    }

    /// The copy's state for its event; `None` if it does not change.
    pub fn event_state(&self) -> Option<EventState<'_>> {
        match (self.state(), self) {
            (Some(CopyState::Delivered(placement)), _) => Some(EventState::Delivered(placement)),
            (Some(CopyState::Owed(reason)), _) => Some(EventState::Owed(reason)),
            (None, Self::Failed { outcome: Some(Outcome::Refused(why)), .. }) => Some(EventState::Refused(why)),
            (None, _) => None,
        }
    }

    /// The attempt's outcome in the ledger; `None` if it stays open, so that the next attempt searches.
    pub fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::Done(manner) => Some(manner.outcome()),
            Self::OwedUnknown(_) => None,
            Self::UnverifiedDuplicate => Some(Outcome::AlreadyThereUnchecked),
            Self::Failed { outcome, .. } => outcome.clone(),
            Self::Skipped => Some(Outcome::Deferred(Cause::RecipientsCopyFailed, None)),
        }
    }

    /// Whether the earlier attempts that died end with this one, because their copies were searched for.
    pub fn ends_earlier_attempts(&self) -> bool {
        matches!(self, Self::Done(Manner::Appended(_) | Manner::Adopted(_) | Manner::AlreadyThere))
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
            (End::OwedUnknown("why".into()), true, true),
            (End::UnverifiedDuplicate, true, false),
            (End::Skipped, false, false),
        ] {
            assert_eq!((end.is_there(), end.is_open()), (is_there, is_open));
        }
    }
}
