//! Compares the ledger with the mailboxes.
//!
//! It finds recorded copies that are gone, copies that are there twice, copies that are still owed, and attempts that never
//! ended. It only looks; [`take_out`] removes a copy that is there twice. Mailboxes are read by ranges of UIDs, from the lowest
//! that a copy in question could have got.

mod in_mailbox;
mod take_out;

pub use take_out::{NotTaken, take_out};

use crate::base::deadline::Deadline;
use crate::base::timestamp;
use crate::database::DatabaseError;
use crate::ledger::audit_queries::{self, Mailboxes, RecordedCopy, Selection};
use crate::ledger::{Database, NeverEnded, deliveries};
use crate::mailbox::{MailboxError, Placement};
use crate::site::Site;
use in_mailbox::LookError;
use std::time::Duration;

/// How long one mailbox may take to be looked through.
const PATIENCE: Duration = Duration::from_mins(10);

/// What was looked at, and what was found.
#[derive(Debug, Default)]
pub struct Audit {
    /// How many recorded copies were looked for.
    pub copies: usize,
    /// In how many mailboxes.
    pub mailboxes: usize,
    pub gone: Vec<(RecordedCopy, Gone)>,
    pub twice: Vec<Twice>,
    pub never_ended: Vec<NeverEnded>,
    pub owed: Vec<RecordedCopy>,
    /// Mailboxes that could not be looked at, or not to the end: user, mailbox, why.
    pub unseen: Vec<(String, String, MailboxError)>,
}

/// Why a copy is not where the ledger has it, as far as can be told from outside: users delete and file their mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Lost. Under the same UIDVALIDITY the mailbox has yet to give out this UID, or has given it to another message.
    OlderMailbox,
    /// Lost. The mailbox has another UIDVALIDITY, and neither the copy nor anything that came after it.
    NewMailbox,
    /// Lost. There is no such mailbox any more.
    NoMailbox,
    /// Not lost. The mailbox has another UIDVALIDITY, and the copy is in it, here.
    Renumbered(Placement),
    /// Not lost. It is in the same mailbox under another UID: its owner, or a program, has put it back.
    Elsewhere(Placement),
    /// The copy is not in the mailbox, but what came later is: its owner has most likely deleted it, or filed it elsewhere.
    Removed,
}

impl Gone {
    /// Whether the mailbox has most likely lost it, and not its owner.
    #[must_use]
    pub(crate) fn is_loss(self) -> bool {
        matches!(self, Self::OlderMailbox | Self::NewMailbox | Self::NoMailbox)
    }

    /// The word in JSON.
    #[must_use]
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

    /// Where the copy is now, if it is in its mailbox.
    #[must_use]
    pub fn now(self) -> Option<Placement> {
        match self {
            Self::Renumbered(at) | Self::Elsewhere(at) => Some(at),
            _ => None,
        }
    }
}

/// A copy that is there twice.
#[derive(Debug)]
pub struct Twice {
    /// The one that the ledger has, which stays.
    pub copy: RecordedCopy,
    /// Where that one is.
    pub keep: Placement,
    /// Where the other one is.
    pub extra: Placement,
    /// Whether their filtered forms are the same. If not, they differ in what was added on the way, and only people can say which to keep.
    pub same: bool,
}

/// Looks through the ledger and the mailboxes. `each` gets how many mailboxes are done, of how many.
///
/// # Errors
/// When the ledger cannot be read. A mailbox that cannot be read is in [`Audit::unseen`].
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

/// For who has time.
pub(crate) fn never() -> Deadline {
    Deadline::after(timestamp::LONGEST)
}

/// Looks through these mailboxes, as far as it gets by the deadline. `each` gets how many are done.
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
