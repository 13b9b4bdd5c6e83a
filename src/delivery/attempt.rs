//! One copy of a delivery, from where its mailbox stands to how it ends.

use super::other_attempts::OtherAttempts;
use super::report::{CopyReport, Deferral, Manner, Refusal};
use super::{Delivery, NotOpened, OwedCopy, Whose};
use crate::ledger::event::Standing;
use crate::ledger::{Cause, CopyKey, CopyRecord, CopyState, Outcome};
use crate::mailbox::{Mailbox, MailboxError, MailboxFailure, Position};
use crate::message::Role;
use std::time::Duration;

/// The attempt at one copy.
pub(super) struct Attempt<'m> {
    pub key: CopyKey,
    pub role: Role,
    whose: Whose,
    pub user: String,
    pub mailbox_name: String,
    /// Where its mailbox stood before this attempt was journalled.
    pub position: Option<Position>,
    pub mailbox: Result<&'m mut dyn Mailbox, NotOpened>,
    /// What the ledger showed under the lock; nothing before.
    pub others: OtherAttempts,
    pub end: End,
    /// Whether its mailbox, which was open, has let us wait, and then nothing came of it.
    pub has_hung: bool,
}

impl<'m> Attempt<'m> {
    /// Asks where the mailbox stands.
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

    /// Whether it is at a recipient's copy, and not at the author's.
    pub fn is_recipients(&self) -> bool {
        matches!(self.whose, Whose::Recipients(_))
    }

    /// Whose the copy is, by their places in [`Delivery::recipients`]; empty for the author's.
    pub fn recipients(&self) -> &[usize] {
        match &self.whose {
            Whose::Recipients(places) => places,
            Whose::Authors => &[],
        }
    }

    /// Its mailbox, if that is open.
    pub fn open_mailbox(&mut self) -> Option<&mut (dyn Mailbox + 'm)> {
        match &mut self.mailbox {
            Ok(mailbox) => Some(&mut **mailbox),
            Err(_) => None,
        }
    }

    /// Notes whether a mailbox that was open has hung: it failed after so long. What stands between may give up before we do.
    pub fn note_hanging(&mut self, error: &MailboxError, took: Duration, patience: Duration) {
        let has_hung = error.failure == MailboxFailure::TimedOut || took >= patience;
        self.has_hung |= has_hung && self.mailbox.is_ok();
    }

    /// Whether its mailbox could not be opened.
    pub fn is_out_of_reach(&self) -> bool {
        matches!(self.mailbox, Err(NotOpened::Trouble(_)))
    }

    /// Its end if nothing is tried, since mailboxes are out of reach.
    pub fn end_out_of_reach(&mut self) {
        if let Err(NotOpened::Trouble(error)) = &self.mailbox {
            self.end = End::failed(Deferral::Mailbox(error.clone()), None);
        }
    }

    /// Whether it is in the journal: its mailbox is open, so something may be appended.
    pub fn is_journalled(&self) -> bool {
        self.mailbox.is_ok()
    }

    /// The copy's row in the ledger.
    pub fn record<'a>(&'a self, recipient: &'a str, state: CopyState<'a>) -> CopyRecord<'a> {
        CopyRecord { key: self.key, role: self.role, user: &self.user, mailbox: &self.mailbox_name, recipient, state }
    }

    /// What is reported of the copy afterwards; `None` where it is not there.
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

/// How an attempt ended.
pub(super) enum End {
    /// The copy is where it belongs, or is recorded as owed.
    Done(Manner),
    /// The copy is not there, or that is not known.
    Failed {
        refusal: Refusal,
        /// For the ledger; `None` where the attempt stays open: an APPEND was sent and its answer is missing.
        outcome: Option<Outcome>,
    },
    /// The Sent copy was tried for long enough, and what came of the last APPEND is not known: it is recorded as owed, and
    /// the attempt stays open, so that a later one searches first.
    OwedUnknown(String),
    /// The ledger has the copy as delivered; an earlier attempt died, and what it may have left could not be looked for.
    UnverifiedDuplicate,
    /// It was not tried, because no recipient's copy is there.
    Skipped,
}

impl End {
    pub fn failed(refusal: impl Into<Refusal>, outcome: Option<Outcome>) -> Self {
        Self::Failed { refusal: refusal.into(), outcome }
    }

    /// Whether the copy is where it belongs.
    pub fn is_there(&self) -> bool {
        matches!(self, Self::Done(_) | Self::OwedUnknown(_) | Self::UnverifiedDuplicate)
    }

    /// Whether the attempt stays open, or is to be made again.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::OwedUnknown(_))
    }

    /// What the ledger's row of the copy is to say; `None` where it stays as it is.
    pub fn state(&self) -> Option<CopyState<'_>> {
        match self {
            Self::Done(Manner::Appended(placement) | Manner::Adopted(placement)) => {
                Some(CopyState::Delivered(*placement))
            }
            Self::Done(Manner::Owed(reason)) | Self::OwedUnknown(reason) => Some(CopyState::Owed(reason)),
            Self::Done(Manner::AlreadyThere) | Self::UnverifiedDuplicate | Self::Failed { .. } | Self::Skipped => None,
        }
    }

    /// How the copy stands now, for its event; `None` where it stands as it stood.
    pub fn standing(&self) -> Option<Standing<'_>> {
        match (self.state(), self) {
            (Some(CopyState::Delivered(placement)), _) => Some(Standing::Delivered(placement)),
            (Some(CopyState::Owed(reason)), _) => Some(Standing::Owed(reason)),
            (None, Self::Failed { outcome: Some(Outcome::Refused(why)), .. }) => Some(Standing::Refused(why)),
            (None, _) => None,
        }
    }

    /// The attempt's outcome in the ledger; `None` where it stays open, so that the next one looks.
    pub fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::Done(manner) => Some(manner.outcome()),
            Self::OwedUnknown(_) => None,
            Self::UnverifiedDuplicate => Some(Outcome::AlreadyThereUnchecked),
            Self::Failed { outcome, .. } => outcome.clone(),
            Self::Skipped => Some(Outcome::Deferred(Cause::RecipientsCopyFailed, None)),
        }
    }

    /// Whether the earlier attempts that died end with it: their copies were looked for.
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
