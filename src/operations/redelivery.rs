//! Redelivery of copies that the ledger knows: Sent copies that deliveries left owed, and copies that a mailbox has lost.
//!
//! The message comes from the ledger's stored sources, or else from another copy of it. The rest is an ordinary delivery of that
//! one copy: journal, lock, look, append, record. So a redelivery may run at the same time as deliveries and other redeliveries.

use crate::base::deadline::Deadline;
use crate::database::{DatabaseError, DatabaseFailure};
use crate::delivery::{Deferral, Manner, Refusal};
use crate::ledger::audit_queries::{self, RecordedCopy, Selection};
use crate::ledger::{CopyKey, Database};
use crate::mailbox::{MailboxError, MailboxFailure, Matching, ReadableMailbox, Recorded, Wanted};
use crate::message::{Identity, Message, was_made_up};
use crate::operations::audit::{self, Audit};
use crate::operations::replay::ReplayOutcome;
use crate::site::Site;
use thiserror::Error;

/// [`finish`] or [`restore`].
pub(crate) type Redelivery = fn(&Site, &RecordedCopy, Deadline) -> Result<Manner, RedeliveryError>;

/// Why a copy could not be redelivered.
#[derive(Debug, Error)]
pub enum RedeliveryError {
    /// No copy of the message is left, and no source of it is kept that our role may read.
    #[error("nothing is left of the message to deliver: {0}")]
    NoSource(String),
    /// No source of the message is kept, and mailboxes that may have a copy of it could not be read. A retry may succeed.
    #[error("the message could not be read: {why}")]
    OutOfReach { why: String, failures: Vec<MailboxFailure> },
    /// The delivery deferred or refused the copy.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The ledger could not be read.
    #[error("the database: {0}")]
    Database(#[from] DatabaseError),
}

impl RedeliveryError {
    /// Whether every other copy would fail too.
    pub(crate) fn is_of_the_database(&self) -> bool {
        matches!(self, Self::Database(_) | Self::Refused(Refusal::Deferred(Deferral::Database(_))))
    }
}

impl From<Manner> for ReplayOutcome {
    fn from(manner: Manner) -> Self {
        match manner {
            Manner::AlreadyThere | Manner::Adopted(_) => Self::AlreadyThere,
            Manner::Owed(why) => Self::Refused(why),
            Manner::Appended(_) => Self::Delivered(manner.as_str().into()),
        }
    }
}

impl From<RedeliveryError> for ReplayOutcome {
    fn from(error: RedeliveryError) -> Self {
        match error {
            RedeliveryError::Refused(refusal) => Self::from(&refusal),
            RedeliveryError::Database(_) | RedeliveryError::OutOfReach { .. } => Self::Deferred(error.to_string()),
            RedeliveryError::NoSource(_) => Self::Refused(error.to_string()),
        }
    }
}

/// Finds the copies that the ledger has as delivered, but that are no longer in their mailboxes under any UID ([`Audit::gone`]).
/// This changes nothing, and stops at the deadline.
/// # Errors
/// If the ledger cannot be read. A mailbox that cannot be read is in [`Audit::unseen`].
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

/// Redelivers one copy with `how`.
///
/// # Errors
/// If our role may not read the ledger: every copy would fail for the same reason.
pub(crate) fn redeliver(site: &Site, copy: &RecordedCopy, how: Redelivery) -> Result<ReplayOutcome, DatabaseError> {
    let deadline = Deadline::after(site.deadline());
    ReplayOutcome::guarded(|| match how(site, copy, deadline) {
        Ok(manner) => Ok(manner.into()),
        Err(RedeliveryError::Database(error)) if error.failure == DatabaseFailure::AccessDenied => Err(error),
        Err(error) => Ok(error.into()),
    })
}

/// Finishes a copy that is owed. The author was authenticated when the message arrived.
///
/// # Errors
/// If the copy could not be delivered; it stays owed.
pub fn finish(site: &Site, copy: &RecordedCopy, deadline: Deadline) -> Result<Manner, RedeliveryError> {
    match redeliver_one(site, copy, false, deadline) {
        // Recipients may have filed or deleted their copies meanwhile, but the author's own copy may still exist.
        Err(why @ RedeliveryError::NoSource(_)) if site.left_to_authors_for().is_some() => {
            authors_own(site, copy, deadline)?.ok_or(why)
        }
        ended => ended,
    }
}

/// Redelivers a lost copy, unless it is in its mailbox after all. The search runs under the lock, whatever an earlier search has
/// found.
///
/// # Errors
/// If the copy could not be delivered; the ledger is unchanged.
pub fn restore(site: &Site, copy: &RecordedCopy, deadline: Deadline) -> Result<Manner, RedeliveryError> {
    redeliver_one(site, copy, true, deadline)
}

fn redeliver_one(
    site: &Site,
    copy: &RecordedCopy,
    restore: bool,
    deadline: Deadline,
) -> Result<Manner, RedeliveryError> {
    let message = {
        let mut database = site.open_database(None, deadline)?;
        let wanted = (copy.message, &copy.identity);
        message_and_its_place(site, database.as_mut(), wanted, Some(copy.key()), deadline)?.0
    };
    Ok(site.deliver_again(copy, &message, restore, deadline)?)
}

/// If no message is left to deliver, searches for the copy that the author's mail program has saved. No lock is needed: nothing
/// is appended, and the record of another process stays as it is.
fn authors_own(site: &Site, copy: &RecordedCopy, deadline: Deadline) -> Result<Option<Manner>, RedeliveryError> {
    let out_of_reach = |error| RedeliveryError::Refused(Refusal::Deferred(Deferral::Mailbox(error)));
    // The mail program may have dated the copy with the day on which the message was written.
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

/// The place where a message was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MessageSource {
    /// The ledger's stored sources.
    Ledger,
    Mailbox {
        user: String,
        mailbox: String,
    },
}

/// Reads a recorded message from the ledger's stored sources, or from any copy. `target` is the copy to be delivered: it is read
/// last, and returned as it is stored. From anywhere else, the message comes in its [filtered form](Message::for_any_recipient),
/// since it may be a blind recipient's.
///
/// # Errors
/// If the message is found nowhere, if a mailbox that may have it cannot be read, or if the database fails.
pub(crate) fn message_and_its_place(
    site: &Site,
    database: &mut dyn Database,
    (message, identity): (i64, &Identity),
    target: Option<CopyKey>,
    deadline: Deadline,
) -> Result<(Message, MessageSource), RedeliveryError> {
    let same = |bytes: Vec<u8>| Message::receive(bytes).ok().filter(|message| message.identity() == identity);
    let mut why = match audit_queries::source(database, message) {
        Ok(source) => match source.and_then(same) {
            Some(message) => return Ok((message.for_any_recipient(), MessageSource::Ledger)),
            None => "its source is not kept (record.keep_source)".to_owned(),
        },
        // Most messages need no source: another copy exists, which the deliveries' role can read.
        Err(error) if error.failure == DatabaseFailure::AccessDenied => {
            format!(
                "its source, if it is kept (record.keep_source), is not for our role to read (grants-operator.sql): {error}"
            )
        }
        Err(error) => return Err(error.into()),
    };
    let mut failures = Vec::new();
    let mut others = audit_queries::of_message(database, message)?;
    // The copy to be delivered comes last: it may exist after all.
    others.sort_by_key(|other| Some(other.key()) == target);
    for other in &others {
        let read = site
            .mailbox(&other.user, &other.mailbox, deadline)
            .and_then(|mut mailbox| read_wherever_it_is(mailbox.as_mut(), other));
        match read.map(|bytes| bytes.and_then(same)) {
            Ok(Some(message)) => {
                let place = MessageSource::Mailbox { user: other.user.clone(), mailbox: other.mailbox.clone() };
                let message = as_it_came(site, message, other);
                let is_the_target = Some(other.key()) == target;
                return Ok((if is_the_target { message } else { message.for_any_recipient() }, place));
            }
            Ok(None) => why += &format!("; not in {} of {} any more", other.mailbox, other.user),
            Err(error) => {
                // A missing mailbox has no copy.
                if error.trying_again_can_help() && error.failure != MailboxFailure::NoSuchMailbox {
                    failures.push(error.failure);
                }
                why += &format!("; {error}");
            }
        }
    }
    Err(match failures.is_empty() {
        true => RedeliveryError::NoSource(why),
        false => RedeliveryError::OutOfReach { why, failures },
    })
}

/// The message of a copy, with the Message-ID that gives its lock the name: Cyrus stores X for each byte beyond ASCII. If the
/// ledger's text does not give exactly that lock, the message stays unchanged.
fn as_it_came(site: &Site, message: Message, copy: &RecordedCopy) -> Message {
    let is_its_name = site.lock_of_message_id(copy.message_id.as_bytes()) == copy.lock;
    if is_its_name && message.message_id().is_some() { message.with_message_id(&copy.message_id) } else { message }
}

/// The bytes of a copy, under its recorded UID or another one.
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
    match copy.locate(mailbox, has_uids)? {
        Some(placement) => mailbox.read(&Recorded { placement, ..recorded }),
        None => Ok(None),
    }
}
