//! Redelivery of copies that a person has selected: preview and execution, copy by copy. The deliveries are those of `replay`
//! with `--owed`, `--restore` and `--failed`. A copy that is selected twice is delivered once, since each delivery looks under
//! the message's lock.

use super::audit::{self, NotInPlace};
use super::redelivery::{self, RedeliveryError};
use super::replay::{self, ReplayOutcome, TOO_LARGE, message_of};
use crate::base::deadline::Deadline;
use crate::base::hex;
use crate::base::text_enum::text_enum;
use crate::base::timestamp::span;
use crate::database::DatabaseError;
use crate::ledger::audit_queries::{self, DeliveredCopy, Mailboxes, RecordedCopy};
use crate::ledger::deliveries::{DeliveryQuery, KnownDelivery, each_delivery, known_delivery};
use crate::ledger::{CopyKey, Database, Outcome, time_span};
use crate::lock::LockName;
use crate::message::{Identity, Role};
use crate::site::Site;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

text_enum! {
    /// The kind of a redelivery.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum RedeliveryKind {
        /// The copy is owed, and is finished: `replay --owed`.
        Finish = "finish",
        /// The copy's mailbox has lost it, and it is restored: `replay --restore --deleted`.
        Restore = "restore",
        /// The recipient has no copy after at least one attempt: `replay --failed`.
        Deliver = "deliver",
    }
}

/// A copy that a person wants to redeliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RedeliveryRequest {
    pub(crate) kind: RedeliveryKind,
    pub(crate) copy: CopyKey,
}

impl RedeliveryRequest {
    /// Parses the text that [`Display`](fmt::Display) writes.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (kind, key) = text.split_once('-')?;
        let key = hex::decode(key).and_then(|bytes| bytes.try_into().ok())?;
        Some(Self { kind: RedeliveryKind::parse(kind)?, copy: CopyKey::from_bytes(key) })
    }
}

impl fmt::Display for RedeliveryRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.kind.as_str(), hex::encode(self.copy.as_bytes()))
    }
}

/// A copy as people see it described.
#[derive(Clone, Debug)]
pub(crate) struct SelectedCopy {
    pub(crate) request: RedeliveryRequest,
    pub(crate) identity: Identity,
    pub(crate) lock: LockName,
    pub(crate) message_id: String,
    pub(crate) subject: Option<String>,
    pub(crate) role: Role,
    pub(crate) recipient: String,
    /// The mailbox's user.
    pub(crate) user: String,
    pub(crate) mailbox: String,
}

impl SelectedCopy {
    pub(crate) fn of(copy: &RecordedCopy, kind: RedeliveryKind) -> Self {
        let request = RedeliveryRequest { kind, copy: copy.key() };
        let RecordedCopy { identity, lock, message_id, subject, role, recipient, user, mailbox, .. } = copy.clone();
        Self { request, identity, lock, message_id, subject, role, recipient, user, mailbox }
    }

    fn tried(copy: CopyKey, known: &KnownDelivery) -> Self {
        let (request, role) = (RedeliveryRequest { kind: RedeliveryKind::Deliver, copy }, Role::Recipient);
        let KnownDelivery { identity, lock, message_id, subject, recipient, user, mailbox, .. } = known.clone();
        Self { request, identity, lock, message_id, subject, role, recipient, user, mailbox }
    }

    /// The mailbox, for people: `INBOX of doug, for doug@mail.axial.net`.
    pub(crate) fn place(&self) -> String {
        format!("{} of {}, for {}", self.mailbox, self.user, self.recipient)
    }
}

/// A copy that can be redelivered, as far as the ledger shows.
enum RedeliverableCopy {
    Recorded(Box<RecordedCopy>),
    Tried(Box<KnownDelivery>),
}

/// The description of a copy (`None` if the ledger has no such copy), and either the copy to deliver or the result of the
/// request.
type LocatedCopy = (Option<SelectedCopy>, Result<RedeliverableCopy, ReplayOutcome>);

fn find(site: &Site, database: &mut dyn Database, request: RedeliveryRequest) -> Result<LocatedCopy, DatabaseError> {
    let unknown = || Err(ReplayOutcome::Refused("the ledger does not know it any more".into()));
    let RedeliveryRequest { kind, copy } = request;
    if kind == RedeliveryKind::Deliver {
        let Some(known) = known_delivery(database, &copy)? else { return Ok((None, unknown())) };
        let selected = SelectedCopy::tried(copy, &known);
        let found = if known.delivered {
            Err(ReplayOutcome::AlreadyThere)
        } else {
            Ok(RedeliverableCopy::Tried(Box::new(known)))
        };
        return Ok((Some(selected), found));
    }
    let Some((copy, delivered)) = audit_queries::by_key(database, &copy)? else { return Ok((None, unknown())) };
    let selected = SelectedCopy::of(&copy, kind);
    let found = match (kind, delivered) {
        (RedeliveryKind::Restore, false) => Err(ReplayOutcome::Refused("it is not delivered, but owed".into())),
        (RedeliveryKind::Restore, true) => Ok(RedeliverableCopy::Recorded(Box::new(copy))),
        (_, true) => Err(ReplayOutcome::AlreadyThere),
        (_, false) => match left_to_its_author(site, database, &copy)? {
            Some(left) => Err(ReplayOutcome::Deferred(left)),
            None => Ok(RedeliverableCopy::Recorded(Box::new(copy))),
        },
    };
    Ok((Some(selected), found))
}

/// Why an owed copy is not finished yet: its author's own mail program may still save one.
fn left_to_its_author(
    site: &Site,
    database: &mut dyn Database,
    copy: &RecordedCopy,
) -> Result<Option<String>, DatabaseError> {
    let Some(left_for) = site.left_to_authors_for() else { return Ok(None) };
    let due = copy.recorded_at.saturating_add(time_span::microseconds(left_for));
    let wait = u64::try_from(due.saturating_sub(time_span::now(database)?)).ok().filter(|wait| *wait > 0);
    Ok(wait.map(|wait| {
        let wait = span(Duration::from_micros(wait));
        format!("it is left to its author's own mail program for {wait} more (sent.dedup_delay)")
    }))
}

/// The effect of a request, if it were made now. `Delivered` has the text of that effect.
#[derive(Debug)]
pub(crate) struct Preview {
    /// `None` if the ledger has no such copy.
    pub(crate) copy: Option<SelectedCopy>,
    pub(crate) outcome: ReplayOutcome,
    /// Whether the message to append may name another recipient: its Received fields stay, since the identity covers them.
    pub(crate) may_name_others: bool,
}

/// Previews a request. Nothing is written, created or locked.
///
/// # Errors
/// If the ledger cannot be read.
pub(crate) fn preview(site: &Site, request: RedeliveryRequest, deadline: Deadline) -> Result<Preview, DatabaseError> {
    let mut database = site.open_to_ask(deadline)?;
    let database = database.as_mut();
    let (copy, found) = find(site, database, request)?;
    let (outcome, may_name_others) = match found {
        Err(outcome) => (outcome, false),
        Ok(RedeliverableCopy::Tried(known)) => replayed(site, database, *known, true),
        Ok(RedeliverableCopy::Recorded(recorded)) => match request.kind {
            RedeliveryKind::Restore => restoring(site, database, &recorded, deadline)?,
            _ => from_its_source(site, database, &recorded, "it is looked for there, and appended", deadline)?,
        },
    };
    Ok(Preview { copy, outcome, may_name_others })
}

fn restoring(
    site: &Site,
    database: &mut dyn Database,
    copy: &RecordedCopy,
    deadline: Deadline,
) -> Result<(ReplayOutcome, bool), DatabaseError> {
    let this = DeliveredCopy { message: copy.message, role: copy.role, placement: copy.placement, lowest: None };
    let mailboxes = Mailboxes::from([((copy.user.clone(), copy.mailbox.clone()), vec![this])]);
    let seen = audit::look(site, database, &mailboxes, deadline, &mut |_| {})?;
    if let Some((_, _, error)) = seen.unseen.first() {
        return Ok((ReplayOutcome::Deferred(format!("its mailbox cannot be looked at: {error}")), false));
    }
    match seen.gone.first() {
        Some((_, gone)) if gone.now().is_none() => from_its_source(site, database, copy, why_gone(*gone), deadline),
        _ => Ok((ReplayOutcome::AlreadyThere, false)),
    }
}

/// Why a copy is gone, and what the redelivery does about that.
pub(crate) fn why_gone(gone: NotInPlace) -> &'static str {
    match gone {
        NotInPlace::OlderMailbox => "its mailbox has lost it, having come back from a backup: it is appended",
        NotInPlace::NewMailbox => "its mailbox was recreated, and has lost it: it is appended",
        NotInPlace::NoMailbox => "its mailbox is not there any more: it is made, if need be, and gets it",
        NotInPlace::Removed => "most likely its owner has deleted or filed it: it is brought back",
        NotInPlace::Renumbered(_) | NotInPlace::Elsewhere(_) => "it is there",
    }
}

/// What would be done, if there is a message to deliver.
fn from_its_source(
    site: &Site,
    database: &mut dyn Database,
    copy: &RecordedCopy,
    done: &str,
    deadline: Deadline,
) -> Result<(ReplayOutcome, bool), DatabaseError> {
    let wanted = (copy.message, &copy.identity);
    match redelivery::message_and_its_place(site, database, wanted, Some(copy.key()), deadline) {
        Ok((message, _)) => Ok((ReplayOutcome::Delivered(done.to_owned()), message.keeps_received_for_others())),
        Err(RedeliveryError::Database(error)) => Err(error),
        // The delivery would then search for the author's own copy.
        Err(RedeliveryError::NoSource(_) | RedeliveryError::SourcesDenied(_))
            if copy.reason.is_some() && site.left_to_authors_for().is_some() =>
        {
            let what = "its author's own is looked for there: nothing is left to append";
            Ok((ReplayOutcome::Delivered(what.into()), false))
        }
        Err(why) => Ok((why.into(), false)),
    }
}

/// Redelivers a copy. First `begin` is called with the copy's description; if `begin` returns an error, nothing is done.
pub(crate) fn deliver_again(
    site: &Site,
    request: RedeliveryRequest,
    stop: &AtomicBool,
    begin: impl FnOnce(&SelectedCopy) -> Result<(), String>,
) -> (Option<SelectedCopy>, ReplayOutcome) {
    let found = site
        .open_to_ask(Deadline::after(site.deadline()))
        .and_then(|mut database| find(site, database.as_mut(), request));
    let (copy, found) = match found {
        Ok((Some(copy), Ok(found))) => (copy, found),
        Ok((copy, Err(outcome))) => return (copy, outcome),
        Ok((None, Ok(_))) => return (None, ReplayOutcome::internal_error()),
        Err(error) => return (None, error.into()),
    };
    if let Err(why) = begin(&copy) {
        return (Some(copy), ReplayOutcome::Deferred(why));
    }
    let outcome = match found {
        _ if stop.load(Ordering::Relaxed) => ReplayOutcome::Deferred("it was ended early".into()),
        RedeliverableCopy::Tried(known) => {
            let came = ReplayOutcome::guarded(|| {
                let mut database = site.open_database(None, Deadline::after(site.deadline()))?;
                Ok(replayed(site, database.as_mut(), *known, false).0)
            });
            came.unwrap_or_else(DatabaseError::into)
        }
        RedeliverableCopy::Recorded(recorded) => {
            let how = if request.kind == RedeliveryKind::Restore { redelivery::restore } else { redelivery::finish };
            let came = redelivery::redeliver(site, &recorded, how);
            came.unwrap_or_else(|error| ReplayOutcome::Refused(error.to_string()))
        }
    };
    (Some(copy), outcome)
}

/// Replays one delivery of the ledger, or reports what would be done. Also returns whether the appended message may name another
/// recipient.
fn replayed(site: &Site, database: &mut dyn Database, known: KnownDelivery, dry_run: bool) -> (ReplayOutcome, bool) {
    let (message, envelope) = match message_of(site, database, known) {
        Ok(read) => read,
        Err(outcome) => return (outcome, false),
    };
    let limit = site.config().and_then(|config| config.delivery.message_size_limit);
    let outcome = match envelope.envelopes().next() {
        _ if limit.is_some_and(|limit| message.size() > limit) => ReplayOutcome::Refused(TOO_LARGE.into()),
        Some(Ok(envelope)) => replay::deliver(site, database, &message, &envelope, dry_run),
        Some(Err(why)) => ReplayOutcome::Refused(why),
        None => ReplayOutcome::internal_error(),
    };
    (outcome, message.keeps_received_for_others())
}

/// A delivery that did not succeed, and the result of its last attempt: `None` if that attempt has not ended.
pub(crate) type Failed = (SelectedCopy, Option<Outcome>);

/// The deliveries that were tried since a moment and did not succeed, each once, at most `limit`; and whether there are more.
pub(crate) fn failed(
    database: &mut dyn Database,
    since: i64,
    limit: usize,
) -> Result<(Vec<Failed>, bool), DatabaseError> {
    let query = DeliveryQuery { locks: Vec::new(), since: Some(since), failed: true, recipients: Vec::new() };
    let mut copies: Vec<CopyKey> = Vec::new();
    // `Err(None)` ends the iteration at the limit: there are more.
    let read = each_delivery(database, &query, |_, copy| match copies.contains(&copy) {
        true => Ok(()),
        false if copies.len() == limit => Err(None),
        false => {
            copies.push(copy);
            Ok(())
        }
    });
    if let Err(Some(error)) = read {
        return Err(error);
    }
    let more = read.is_err();
    let mut found = Vec::with_capacity(copies.len());
    for copy in copies {
        let Some(known) = known_delivery(database, &copy)? else { continue };
        found.push((SelectedCopy::tried(copy, &known), known.last_outcome));
    }
    Ok((found, more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_is_written() {
        for kind in RedeliveryKind::ALL {
            let request = RedeliveryRequest { kind, copy: CopyKey::from_bytes([0xa7; 32]) };
            assert_eq!(RedeliveryRequest::read(&request.to_string()), Some(request));
        }
        for wrong in ["", "finish", "finish-", "finish-00", &format!("delete-{}", "00".repeat(32))] {
            assert_eq!(RedeliveryRequest::read(wrong), None, "{wrong}");
        }
    }
}
