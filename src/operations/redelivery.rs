//! Delivering again what the ledger knows: Sent copies that deliveries left owed, and copies that a mailbox has lost.
//!
//! The message comes from the ledger's sources where they are kept, else from another copy of it. The rest is an ordinary
//! delivery of that one copy: journal, lock, look, append, record. So it may run beside deliveries and beside itself.

use crate::base::deadline::Deadline;
use crate::database::{DatabaseError, DatabaseFailure};
use crate::delivery::{Manner, Refusal};
use crate::ledger::audit_queries::{self, RecordedCopy, Selection};
use crate::ledger::{CopyKey, Database};
use crate::mailbox::{MailboxError, MailboxFailure, Matching, ReadableMailbox, Recorded, Wanted};
use crate::message::{Identity, Message, was_made_up};
use crate::operations::audit::{self, Audit};
use crate::operations::replay::ReplayOutcome;
use crate::site::Site;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use thiserror::Error;

/// [`finish`] or [`restore`].
pub(crate) type Redelivery = fn(&Site, &RecordedCopy, Deadline) -> Result<Manner, RedeliveryError>;

/// Why a copy could not be delivered again.
#[derive(Debug, Error)]
pub enum RedeliveryError {
    /// No source of the message is kept, and no copy of it is left.
    #[error("nothing is left of the message to deliver: {0}")]
    NoSource(String),
    /// No source of the message is kept, and a mailbox that may hold a copy of it could not be read. Later it may be.
    #[error("the message could not be read: {}", .0.why)]
    OutOfReach(OutOfReach),
    /// No copy of the message is left, and the sources that are kept are not for our role to read.
    #[error("no copy of the message is left, and its source, if it is kept, is not for our role to read: {0}")]
    SourcesDenied(DatabaseError),
    /// The delivery ended so.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The ledger could not be read.
    #[error("the database: {0}")]
    Database(#[from] DatabaseError),
}

/// Mailboxes that could not be read, and may be later.
#[derive(Debug)]
pub struct OutOfReach {
    pub(crate) why: String,
    /// Whose they are, and what has failed at each.
    pub(crate) mailboxes: Vec<(String, MailboxFailure)>,
}

impl From<RedeliveryError> for ReplayOutcome {
    fn from(error: RedeliveryError) -> Self {
        match error {
            RedeliveryError::Refused(refusal) => Self::from(&refusal),
            RedeliveryError::Database(_) | RedeliveryError::OutOfReach(_) => Self::Deferred(error.to_string()),
            RedeliveryError::NoSource(_) | RedeliveryError::SourcesDenied(_) => Self::Refused(error.to_string()),
        }
    }
}

/// Which of the copies that the ledger has as delivered are not in their mailboxes any more, under whatever UID: those are
/// [`Audit::gone`]. Looks only, as far as it gets by the deadline.
///
/// # Errors
/// The ledger cannot be read. A mailbox that cannot be read is in [`Audit::unseen`].
pub fn lost(
    site: &Site,
    database: &mut dyn Database,
    selection: &Selection<'_>,
    until: Deadline,
) -> Result<Audit, DatabaseError> {
    let mailboxes = audit_queries::delivered(database, selection)?;
    let mut audit = audit::look(site, database, &mailboxes, until, &mut |_| {})?;
    audit.gone.retain(|(_, gone)| gone.now().is_none());
    Ok(audit)
}

/// Delivers these copies again by `how`, one after the other, until `stop` is set. `listen` is called with what came of each.
///
/// # Errors
/// The ledger may not be read: it would say so of each of them.
pub(crate) fn redeliver(
    site: &Site,
    copies: &[RecordedCopy],
    how: Redelivery,
    stop: &AtomicBool,
    mut listen: impl FnMut(&RecordedCopy, ReplayOutcome),
) -> Result<(), DatabaseError> {
    for copy in copies.iter().take_while(|_| !stop.load(Ordering::Relaxed)) {
        let deadline = Deadline::after(site.deadline());
        // After a panic in one delivery, which the log has, the next one may succeed.
        let outcome = match catch_unwind(AssertUnwindSafe(|| how(site, copy, deadline))) {
            Ok(Ok(Manner::AlreadyThere | Manner::Adopted(_))) => ReplayOutcome::AlreadyThere,
            Ok(Ok(Manner::Owed(why))) => ReplayOutcome::Refused(why),
            Ok(Ok(manner)) => ReplayOutcome::Delivered(manner.as_str().into()),
            // The role for deliveries reads no sources: this is for people's.
            Ok(Err(RedeliveryError::SourcesDenied(error))) => return Err(error),
            Ok(Err(RedeliveryError::Database(error))) if error.failure == DatabaseFailure::AccessDenied => {
                return Err(error);
            }
            Ok(Err(error)) => error.into(),
            Err(_) => ReplayOutcome::internal_error(),
        };
        listen(copy, outcome);
    }
    Ok(())
}

/// Finishes a copy that is owed. Its author was vouched for when the message came.
///
/// # Errors
/// The copy could not be delivered, and stays owed.
pub fn finish(site: &Site, copy: &RecordedCopy, deadline: Deadline) -> Result<Manner, RedeliveryError> {
    finish_and_tell(site, copy, deadline, &mut |_| {})
}

/// The same. `listen` is told where the message was found: if that is a mailbox, its user was let in, whatever comes of the rest.
pub(crate) fn finish_and_tell(
    site: &Site,
    copy: &RecordedCopy,
    deadline: Deadline,
    listen: &mut dyn FnMut(&Place),
) -> Result<Manner, RedeliveryError> {
    match redeliver_one(site, copy, false, deadline, listen) {
        // Recipients may have filed or deleted it meanwhile; whoever wrote it need not have.
        Err(why @ (RedeliveryError::NoSource(_) | RedeliveryError::SourcesDenied(_)))
            if site.left_to_authors_for().is_some() =>
        {
            authors_own(site, copy, deadline)?.ok_or(why)
        }
        ended => ended,
    }
}

/// Delivers a lost copy again, unless it is in its mailbox after all: that is looked for under the lock, whatever was seen
/// before.
///
/// # Errors
/// The copy could not be delivered; the ledger stays as it was.
pub fn restore(site: &Site, copy: &RecordedCopy, deadline: Deadline) -> Result<Manner, RedeliveryError> {
    redeliver_one(site, copy, true, deadline, &mut |_| {})
}

fn redeliver_one(
    site: &Site,
    copy: &RecordedCopy,
    restore: bool,
    deadline: Deadline,
    listen: &mut dyn FnMut(&Place),
) -> Result<Manner, RedeliveryError> {
    let message = {
        let mut database = site.open_database(None, deadline)?;
        let wanted = (copy.message, &copy.identity);
        let (message, place) = message_and_its_place(site, database.as_mut(), wanted, Some(copy.key()), deadline)?;
        listen(&place);
        message
    };
    Ok(site.deliver_again(copy, &message, restore, deadline)?)
}

/// Looks for the copy that the author's mail program has saved, where nothing is left to deliver. Nothing is appended, so that
/// no lock is needed: what another has recorded meanwhile stays.
fn authors_own(site: &Site, copy: &RecordedCopy, deadline: Deadline) -> Result<Option<Manner>, RedeliveryError> {
    let out_of_reach = |error: MailboxError| {
        let (why, mailboxes) = (error.to_string(), vec![(copy.user.clone(), error.failure)]);
        RedeliveryError::OutOfReach(OutOfReach { why, mailboxes })
    };
    // It may bear the day on which it was written.
    let not_before = copy.arrived() - time::Duration::weeks(1);
    let wanted = Wanted { matching: Matching::MessageId, not_before, ..copy.wanted() };
    if was_made_up(&copy.message_id) {
        return Ok(None);
    }
    let mut mailbox = site.mailbox(&copy.user, &copy.mailbox, deadline).map_err(out_of_reach)?;
    let found = mailbox.find(&wanted).map_err(out_of_reach)?;
    let Some(own) = found.copies.first() else { return Ok(None) };
    let mut database = site.open_database(None, deadline)?;
    audit_queries::adopt_owed(database.as_mut(), copy, own.placement, site.host())?;
    Ok(Some(Manner::Adopted(own.placement)))
}

/// Where a message was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Among the sources that the ledger keeps.
    Ledger,
    Mailbox {
        user: String,
        mailbox: String,
    },
}

/// A message that the ledger has recorded, from the sources that it keeps or from any copy. `target` is the copy that it is wanted for: it is
/// tried last, and as it stands there it is that copy. From anywhere else the message comes in its [filtered
/// form](Message::for_any_recipient), since it may be a blind recipient's.
///
/// # Errors
/// It is found nowhere, or somewhere nobody could look; or the database fails.
pub(crate) fn message_and_its_place(
    site: &Site,
    database: &mut dyn Database,
    (message, identity): (i64, &Identity),
    target: Option<CopyKey>,
    deadline: Deadline,
) -> Result<(Message, Place), RedeliveryError> {
    let same = |bytes: Vec<u8>| Message::receive(bytes).ok().filter(|message| message.identity() == identity);
    let denied = match audit_queries::source(database, message) {
        Ok(source) => match source.and_then(same) {
            Some(message) => return Ok((message.for_any_recipient(), Place::Ledger)),
            None => None,
        },
        // Most messages need no source: another copy is there. The role of deliveries reads those.
        Err(error) if error.failure == DatabaseFailure::AccessDenied => Some(error),
        Err(error) => return Err(error.into()),
    };
    let mut why = String::from("its source is not kept (record.raw)");
    let mut out_of_reach = Vec::new();
    let mut others = audit_queries::of_message(database, message)?;
    // The lost copy itself comes last: it may be there after all.
    others.sort_by_key(|other| Some(other.key()) == target);
    for other in &others {
        let read = site
            .mailbox(&other.user, &other.mailbox, deadline)
            .and_then(|mut mailbox| read_wherever_it_is(mailbox.as_mut(), other));
        match read {
            Ok(Some(bytes)) => {
                if let Some(message) = same(bytes) {
                    let place = Place::Mailbox { user: other.user.clone(), mailbox: other.mailbox.clone() };
                    let message = as_it_came(site, message, other);
                    let is_the_target = Some(other.key()) == target;
                    return Ok((if is_the_target { message } else { message.for_any_recipient() }, place));
                }
            }
            Ok(None) => {
                let _ = write!(why, "; not in {} of {} any more", other.mailbox, other.user);
            }
            Err(error) => {
                // A mailbox that is not there holds nothing.
                if error.trying_again_can_help() && error.failure != MailboxFailure::NoSuchMailbox {
                    out_of_reach.push((other.user.clone(), error.failure));
                }
                let _ = write!(why, "; {error}");
            }
        }
    }
    Err(match denied {
        _ if !out_of_reach.is_empty() => RedeliveryError::OutOfReach(OutOfReach { why, mailboxes: out_of_reach }),
        Some(error) => RedeliveryError::SourcesDenied(error),
        None => RedeliveryError::NoSource(why),
    })
}

/// The message of a copy, under the name that its lock is named after: the bytes may come from Cyrus, which stores X for each
/// byte beyond ASCII. Where the ledger's text is not that name to the last byte, it stays as it is.
fn as_it_came(site: &Site, message: Message, copy: &RecordedCopy) -> Message {
    let is_its_name = site.lock_of_message_id(copy.message_id.as_bytes()) == copy.lock;
    if is_its_name && message.message_id().is_some() { message.with_message_id(&copy.message_id) } else { message }
}

/// The bytes of a copy, under its recorded UID or another.
fn read_wherever_it_is(
    mailbox: &mut dyn ReadableMailbox,
    copy: &RecordedCopy,
) -> Result<Option<Vec<u8>>, MailboxError> {
    let recorded = copy.recorded();
    let same = |bytes: &Vec<u8>| Identity::of(bytes) == copy.identity;
    if let Some(bytes) = mailbox.read(&recorded)?.filter(same) {
        return Ok(Some(bytes));
    }
    let has_uids = mailbox.presence(&[])?.position.is_some();
    match copy.whereabouts(mailbox, has_uids)? {
        Some(placement) => mailbox.read(&Recorded { placement, ..recorded }),
        None => Ok(None),
    }
}
