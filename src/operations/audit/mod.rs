//! Compares the ledger with the mailboxes.
//!
//! An audit finds recorded copies that are gone, duplicated copies, copies that are still owed, and attempts that never ended. It
//! changes nothing; [`take_out`] removes a duplicate. Mailboxes are read by ranges of UIDs, from the lowest that a copy in
//! question could have.

mod in_mailbox;
mod take_out;

pub use take_out::{NotRemoved, take_out};

use crate::base::deadline::Deadline;
use crate::base::timestamp;
use crate::database::DatabaseError;
use crate::ledger::audit_queries::{self, Mailboxes, RecordedCopy, Selection};
use crate::ledger::{Database, NeverEnded, deliveries};
use crate::mailbox::{MailboxError, Placement};
use crate::site::Site;
use in_mailbox::LookError;
use std::time::Duration;

/// The time limit for one mailbox.
const PATIENCE: Duration = Duration::from_mins(10);

/// The extent and the findings of an audit.
#[derive(Debug, Default)]
pub struct Audit {
    /// The number of recorded copies that were searched for.
    pub copies: usize,
    pub mailboxes: usize,
    pub gone: Vec<(RecordedCopy, NotInPlace)>,
    pub twice: Vec<DuplicatedCopy>,
    pub never_ended: Vec<NeverEnded>,
    pub owed: Vec<RecordedCopy>,
    /// Mailboxes that could not be read, or not completely: user, mailbox, error.
    pub unseen: Vec<(String, String, MailboxError)>,
}

/// Why a copy is not at its recorded place, as far as the store shows it: users also delete and file their mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotInPlace {
    /// Lost. Under the same UIDVALIDITY the mailbox has not yet assigned this UID, or has assigned it to another message.
    OlderMailbox,
    /// Lost. The mailbox has another UIDVALIDITY, and contains neither the copy nor anything that arrived after it.
    NewMailbox,
    /// Lost. The mailbox no longer exists.
    NoMailbox,
    /// Not lost. The mailbox has another UIDVALIDITY, and contains the copy at this place.
    Renumbered(Placement),
    /// Not lost. The copy is in the same mailbox under another UID: the mailbox's owner, or a program, has put it back.
    Elsewhere(Placement),
    /// The copy is not in the mailbox, but later messages are. Most likely the owner has deleted it, or filed it elsewhere.
    Removed,
}

impl NotInPlace {
    /// Whether most likely the mailbox has lost the copy, rather than that its owner has removed it.
    pub(crate) fn is_loss(self) -> bool {
        matches!(self, Self::OlderMailbox | Self::NewMailbox | Self::NoMailbox)
    }

    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OlderMailbox => "older mailbox",
            Self::NewMailbox => "new mailbox",
            Self::NoMailbox => "no mailbox",
            Self::Renumbered(_) => "renumbered",
            Self::Elsewhere(_) => "elsewhere",
            Self::Removed => "removed",
        }
    }

    /// The present place of the copy, if it is in its mailbox.
    pub fn now(self) -> Option<Placement> {
        match self {
            Self::Renumbered(at) | Self::Elsewhere(at) => Some(at),
            _ => None,
        }
    }
}

/// A duplicated copy.
#[derive(Debug)]
pub struct DuplicatedCopy {
    /// The copy that the ledger has, which stays.
    pub copy: RecordedCopy,
    /// The place of the ledger's copy.
    pub keep: Placement,
    /// The place of the duplicate.
    pub extra: Placement,
    /// Whether the filtered forms of both are equal. If not, they differ in fields that were added in transit, and a person must
    /// decide which to keep.
    pub same: bool,
}

/// Audits the ledger and the mailboxes. `each` receives the number of finished mailboxes, and their total.
///
/// # Errors
/// If the ledger cannot be read. A mailbox that cannot be read is in [`Audit::unseen`].
pub fn audit(
    site: &Site,
    database: &mut dyn Database,
    selection: &Selection<'_>,
    each: &mut dyn FnMut(usize, usize),
) -> Result<Audit, DatabaseError> {
    let mailboxes = audit_queries::delivered(database, selection)?;
    let never_ended = deliveries::never_ended(database, selection, site.deadline())?;
    let (owed, _) = audit_queries::owed_by_now(database, selection, site.left_to_authors_for())?;
    let of = mailboxes.len();
    let found = look(site, database, &mailboxes, never(), &mut |done| each(done, of))?;
    Ok(Audit { never_ended, owed, ..found })
}

/// A deadline for callers without a limit.
pub(crate) fn never() -> Deadline {
    Deadline::after(timestamp::LONGEST)
}

/// Audits these mailboxes until the deadline. `each` receives the number of finished mailboxes.
pub(crate) fn look(
    site: &Site,
    database: &mut dyn Database,
    mailboxes: &Mailboxes,
    until: Deadline,
    each: &mut dyn FnMut(usize),
) -> Result<Audit, DatabaseError> {
    let mut audit = Audit::default();
    for ((user, mailbox), copies) in mailboxes {
        audit.mailboxes += 1;
        audit.copies += copies.len();
        let looked = site
            .mailbox(user, mailbox, Deadline::after(PATIENCE).or_sooner(until))
            .map_err(LookError::from)
            .and_then(|mut opened| in_mailbox::look(database, opened.as_mut(), (user, mailbox), copies));
        match looked {
            Ok(found) => {
                audit.gone.extend(found.gone);
                audit.twice.extend(found.twice);
            }
            Err(LookError::Mailbox(error)) => audit.unseen.push((user.clone(), mailbox.clone(), error)),
            Err(LookError::Database(error)) => return Err(error),
        }
        each(audit.mailboxes);
    }
    Ok(audit)
}
