//! Removes a duplicated copy.
//!
//! No other subcommand destroys mail, so the removal follows the steps of a delivery: a journalled attempt, the message's lock,
//! the ledger read under it, and UID EXPUNGE. A copy is removed only while the recorded copy exists and both have the same
//! filtered form. Both are read immediately before.

use super::DuplicatedCopy;
use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::delivery::Deferral;
use crate::ledger::audit_queries::{self, RecordedCopy};
use crate::ledger::event::{Diff, EventType};
use crate::ledger::{Database, EndedAttempt, EventRecord, Journal, JournalCopy, Outcome, Record};
use crate::lock::Acquired;
use crate::mailbox::{MailboxError, ReadableMailbox, Recorded, Removal};
use crate::message::{Identity, filtered};
use crate::site::Site;
use std::time::Duration;
use thiserror::Error;
use uuid::Uuid;

/// How long to wait for a delivery of the same message.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Why a copy was not removed.
#[derive(Debug, Error)]
pub enum NotRemoved {
    /// The copy has changed, or is gone, since the audit found it. Or the ledger now records another one.
    #[error("{0}: run the audit again")]
    Changed(&'static str),
    /// A delivery of the message is in progress, or was cut short a moment ago.
    #[error("a delivery of this message is under way, or was cut short a moment ago: try again in some minutes")]
    Busy,
    #[error("the server cannot take out a single message (no UIDPLUS), or does not let the service account do it")]
    Unsupported,
    #[error("the lock was lost before anything was done: try again")]
    LockLost,
    /// The mailbox could not be read; nothing was removed.
    #[error("the mailbox store: {0}")]
    Mailbox(#[from] MailboxError),
    /// The answer to the expunge is missing: whether the copy was removed is unknown.
    #[error("the mailbox store: {0}")]
    Unanswered(MailboxError),
    /// The mailbox may belong to another user; nothing was removed.
    #[error(transparent)]
    Unproven(#[from] Deferral),
    /// The ledger or the lock failed. Either nothing was removed, or the removal could not be recorded.
    #[error("the database: {0}")]
    Database(#[from] DatabaseError),
}

/// Removes the copy that the ledger does not have.
///
/// # Errors
/// [`NotRemoved`] says whether the copy may have been removed nevertheless.
pub fn take_out(site: &Site, twice: &DuplicatedCopy, deadline: Deadline) -> Result<(), NotRemoved> {
    let copy = &twice.copy;
    let mut database = site.open_database(None, deadline)?;
    site.prove_login(&copy.user, &copy.mailbox, database.as_mut(), deadline)?;
    let mut mailbox = site.mailbox(&copy.user, &copy.mailbox, deadline)?;
    same_bytes(mailbox.as_mut(), twice)?;
    let key = copy.key();
    let position = mailbox.presence(&[])?.position;
    let attempt = Uuid::now_v7();
    // The removal is journalled like an append: if the answer to the expunge is missing, the server may still execute it. Until
    // that is settled, a delivery must not rely on what it sees in the mailbox.
    database.journal(&Journal {
        attempt,
        identity: &copy.identity,
        lock: &copy.lock,
        message_id: &copy.message_id,
        queue_id: None,
        sender: None,
        host: site.host(),
        pid: std::process::id(),
        copies: vec![JournalCopy {
            key,
            role: copy.role,
            user: &copy.user,
            mailbox: &copy.mailbox,
            recipient: &copy.recipient,
            position,
        }],
    })?;
    let taken = under_lock(site, database.as_mut(), mailbox.as_mut(), twice, attempt);
    // If the answer is missing, the attempt stays open, so that the next delivery searches.
    if !matches!(taken, Err(NotRemoved::Unanswered(_))) {
        let outcome = if taken.is_ok() { Outcome::AuditTookOut } else { Outcome::AuditLeft };
        let ended = EndedAttempt { attempt, key, outcome, stages: None };
        let address = copy.address();
        let event = copy.event(EventType::CopyRemoved, &address, site.host(), Diff::taken_out(twice.extra));
        let events = taken.is_ok().then_some(EventRecord { attempt: Some(attempt), ..event });
        let record = Record { ended: vec![ended], events: events.into_iter().collect(), ..Record::default() };
        let recorded = database.record(&record);
        if let (Err(error), Ok(())) = (recorded, &taken) {
            tracing::warn!(%error, "the copy is out, and its attempt could not be ended: the next delivery will look");
        }
    }
    if let Err(error) = database.release(&copy.lock) {
        tracing::debug!(%error, "the lock was not released; the server frees it with the connection");
    }
    taken
}

fn under_lock(
    site: &Site,
    database: &mut dyn Database,
    mailbox: &mut dyn ReadableMailbox,
    twice: &DuplicatedCopy,
    attempt: Uuid,
) -> Result<(), NotRemoved> {
    let copy = &twice.copy;
    match database.acquire(&copy.lock, LOCK_WAIT)? {
        Acquired::Held => {}
        Acquired::Busy(_) => return Err(NotRemoved::Busy),
    }
    let history = database.look(&[copy.key()])?.into_iter().next();
    let history = history.ok_or(NotRemoved::Changed("the ledger does not know the copy any more"))?;
    if history.delivered.and_then(|delivered| delivered.placement) != Some(twice.keep) {
        return Err(NotRemoved::Changed("the ledger has the copy elsewhere now"));
    }
    // A delivery may have recorded the copy meanwhile: one mailbox can be both the recipient's and the sender's.
    let own = audit_queries::of_message(database, copy.message)?;
    let in_mailbox = |other: &RecordedCopy| (&other.user, &other.mailbox) == (&copy.user, &copy.mailbox);
    if own.iter().any(|other| in_mailbox(other) && other.placement == Some(twice.extra)) {
        return Err(NotRemoved::Changed("the ledger has the copy too many as one of its own now"));
    }
    let append_grace = site.policy().append_grace.as_secs_f64();
    if history.open_attempts.iter().any(|open| open.attempt != attempt && open.age < append_grace) {
        return Err(NotRemoved::Busy);
    }
    same_bytes(mailbox, twice)?;
    let removal = mailbox.remove(twice.extra, twice.keep, &copy.wanted(), &mut || {
        database.still_held(&copy.lock).unwrap_or_else(|error| {
            tracing::warn!(%error, "the lock's connection is gone, and the lock with it");
            false
        })
    });
    match removal.map_err(NotRemoved::Unanswered)? {
        Removal::Removed => Ok(()),
        Removal::KeeperGone => Err(NotRemoved::Changed("the copy to keep is gone, or is marked as deleted")),
        Removal::NotThere => Err(NotRemoved::Changed("the copy too many is not there any more")),
        Removal::TellsMore => Err(NotRemoved::Changed("the copy too many has a Bcc that the one to keep has not")),
        Removal::Renumbered => Err(NotRemoved::Changed("the mailbox has been renumbered")),
        Removal::Unsupported => Err(NotRemoved::Unsupported),
        Removal::Withheld => Err(NotRemoved::LockLost),
    }
}

/// Checks that both copies still exist with the same filtered form. A redelivered copy lacks the fields that may name other
/// recipients.
fn same_bytes(mailbox: &mut dyn ReadableMailbox, twice: &DuplicatedCopy) -> Result<(), NotRemoved> {
    let mut read = |placement| mailbox.read(&Recorded { placement: Some(placement), ..twice.copy.recorded() });
    let extra = read(twice.extra)?.ok_or(NotRemoved::Changed("the copy too many is not there any more"))?;
    let keep = read(twice.keep)?.ok_or(NotRemoved::Changed("the copy to keep is not there any more"))?;
    if Identity::of(&keep) != twice.copy.identity || filtered(extra) != filtered(keep) {
        return Err(NotRemoved::Changed("the two differ in more than what may name another recipient"));
    }
    Ok(())
}
