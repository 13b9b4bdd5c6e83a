//! The audit: does what the ledger says still hold in the mailboxes?
//!
//! Four things are looked for: recorded copies that are gone, copies that are there twice, copies that are still owed, and
//! attempts that never ended. It only looks; [`take_out`] mends the second, one copy at a time, under the message's lock.
//! Mailboxes are read by ranges of UIDs, from the lowest that a copy in question could have got.
//!
//! Why a copy is gone is hard to tell from outside: users delete and file their mail. What can be known is in [`Gone`].

mod in_mailbox;
mod take_out;

pub use take_out::{NotTaken, take_out};

use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::ledger::recorded::{self, Mailboxes, RecordedCopy, Selection};
use crate::ledger::{Database, NeverEnded, deliveries};
use crate::mailbox::{MailboxError, Placement};
use crate::site::Site;
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
    /// Copies that are not where the ledger has them.
    pub gone: Vec<(RecordedCopy, Gone)>,
    /// Copies that are there twice.
    pub twice: Vec<Twice>,
    /// Attempts that never ended.
    pub never_ended: Vec<NeverEnded>,
    /// Copies that deliveries left owed.
    pub owed: Vec<RecordedCopy>,
    /// Mailboxes that could not be looked at, or not to the end: user, mailbox, why.
    pub unseen: Vec<(String, String, MailboxError)>,
}

/// Why a copy is not where the ledger has it, as far as the mailbox tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The mailbox is an older one than the copy was stored in: under the same UIDVALIDITY it has yet to give out this UID,
    /// or has given it to another message. The copy is lost.
    OlderMailbox,
    /// The mailbox has another UIDVALIDITY, as one made anew has; the copy is not in it, and nothing that came after it is.
    NewMailbox,
    /// The mailbox is not there any more.
    NoMailbox,
    /// The mailbox has another UIDVALIDITY, and the copy is in it, here: nothing is lost.
    Renumbered(Placement),
    /// It is in the same mailbox under another UID: its owner, or a program, has put it back.
    Elsewhere(Placement),
    /// The mailbox is the same, and goes on, or has another UIDVALIDITY and what came later; the copy is not in it. Its owner
    /// has most likely deleted it, or filed it elsewhere.
    Removed,
}

impl Gone {
    /// Whether the mailbox has lost it, and not its owner, most likely.
    #[must_use]
    pub(crate) fn is_loss(self) -> bool {
        matches!(self, Self::OlderMailbox | Self::NewMailbox | Self::NoMailbox)
    }

    /// The word that programs get.
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
            Self::OlderMailbox | Self::NewMailbox | Self::NoMailbox | Self::Removed => None,
        }
    }
}

/// A copy that is there twice.
#[derive(Debug)]
pub struct Twice {
    /// The one that the ledger has. It stays.
    pub copy: RecordedCopy,
    /// Where that one is.
    pub keep: Placement,
    /// Where the other one is.
    pub extra: Placement,
    /// Whether the two are the same to the last byte. If not, they differ in what was added on the way, and only people can
    /// tell which to keep.
    pub same_bytes: bool,
}

/// Looks through the ledger and the mailboxes. `each` hears how many mailboxes are done, of how many.
///
/// # Errors
/// The ledger cannot be read; a mailbox that cannot be read is told in the [`Audit`].
pub fn audit(
    site: &Site,
    database: &mut dyn Database,
    selection: &Selection<'_>,
    each: &mut dyn FnMut(usize, usize),
) -> Result<Audit, DatabaseError> {
    let mailboxes = recorded::delivered(database, selection)?;
    let never_ended = deliveries::never_ended(database, selection, site.deadline())?;
    let (owed, _) = recorded::owed_by_now(database, selection, site.left_to_authors_for())?;
    let of = mailboxes.len();
    let found = look(site, database, &mailboxes, &mut |done| each(done, of))?;
    Ok(Audit { never_ended, owed, ..found })
}

/// Looks through these mailboxes. `each` hears how many are done.
pub(crate) fn look(
    site: &Site,
    database: &mut dyn Database,
    mailboxes: &Mailboxes,
    each: &mut dyn FnMut(usize),
) -> Result<Audit, DatabaseError> {
    let mut audit = Audit::default();
    for ((user, mailbox), copies) in mailboxes {
        audit.mailboxes += 1;
        audit.copies += copies.len();
        let looked = site
            .mailbox(user, mailbox, Deadline::after(PATIENCE))
            .and_then(|mut opened| in_mailbox::look(database, opened.as_mut(), (user, mailbox), copies));
        match looked {
            Ok(found) => {
                let found = found?;
                audit.gone.extend(found.gone);
                audit.twice.extend(found.twice);
            }
            Err(error) => audit.unseen.push((user.clone(), mailbox.clone(), error)),
        }
        each(audit.mailboxes);
    }
    Ok(audit)
}
