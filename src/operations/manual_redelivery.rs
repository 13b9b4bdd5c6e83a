//! Redelivery of copies that a person has selected: preview and execution, copy by copy. The deliveries are those of `replay`
//! with `--owed`, `--restore` and `--failed`. A copy that is selected twice is delivered once, since each delivery looks under
//! the message's lock.

use super::audit::{self, NotInPlace};
use super::redelivery;
use super::replay::{self, ReplayOutcome, TOO_LARGE, message_of};
use crate::base::deadline::Deadline;
use crate::base::hex;
use crate::base::text_enum::text_enum;
use crate::base::timestamp::span;
use crate::database::DatabaseError;
use crate::ledger::audit_queries::{self, DeliveredCopy, Mailboxes, RecordedCopy};
use crate::ledger::deliveries::{DeliveryQuery, KnownDelivery, each_delivery, known_delivery};
use crate::ledger::operations_log::{self, Actor, Affected, Operation};
use crate::ledger::{CopyKey, Database, Outcome, time_span};
use crate::lock::LockName;
use crate::message::{Identity, Role};
use crate::site::Site;
use std::fmt;
use std::time::Duration;
use tracing::warn;

/// How long the database may take for a row of the operations log.
const PATIENCE: Duration = Duration::from_secs(30);

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

/// What became of a request, or would. In a preview, `Delivered` has the text of what would be done.
#[derive(Clone, Debug)]
pub(crate) struct CopyOutcome {
    /// `None` if the ledger does not know the copy any more, or cannot be queried.
    pub(crate) copy: Option<SelectedCopy>,
    pub(crate) outcome: ReplayOutcome,
    /// Whether the message to append may name another recipient: its Received fields stay, since the identity covers them.
    pub(crate) may_name_others: bool,
}

/// What the ledger has of a copy that is to be delivered.
enum Known {
    Recorded(Box<RecordedCopy>),
    Tried(Box<KnownDelivery>),
}

/// Finds the copy of a request. What the ledger has of it is an error if there is nothing to deliver.
fn find(
    site: &Site,
    database: &mut dyn Database,
    RedeliveryRequest { kind, copy }: RedeliveryRequest,
) -> Result<(SelectedCopy, Result<Known, ReplayOutcome>), ReplayOutcome> {
    let unknown = || ReplayOutcome::Refused("the ledger does not know it any more".into());
    if kind == RedeliveryKind::Deliver {
        let known = known_delivery(database, &copy)?.ok_or_else(unknown)?;
        return Ok((SelectedCopy::tried(copy, &known), Ok(Known::Tried(known.into()))));
    }
    let (copy, delivered) = audit_queries::by_key(database, &copy)?.ok_or_else(unknown)?;
    let is_wanted = match (kind, delivered) {
        (RedeliveryKind::Restore, true) => Ok(()),
        (RedeliveryKind::Restore, false) => Err(ReplayOutcome::Refused("it is not delivered, but owed".into())),
        (_, true) => Err(ReplayOutcome::AlreadyThere),
        (_, false) => may_be_finished(site, database, &copy),
    };
    Ok((SelectedCopy::of(&copy, kind), is_wanted.map(|()| Known::Recorded(copy.into()))))
}

/// An owed copy is not finished as long as its author's own mail program may still save one.
fn may_be_finished(site: &Site, database: &mut dyn Database, copy: &RecordedCopy) -> Result<(), ReplayOutcome> {
    let Some(left_for) = site.left_to_authors_for() else { return Ok(()) };
    let due = copy.recorded_at.saturating_add(time_span::microseconds(left_for));
    match u64::try_from(due.saturating_sub(time_span::now(database)?)) {
        Err(_) | Ok(0) => Ok(()),
        Ok(wait) => Err(ReplayOutcome::Deferred(format!(
            "it is left to its author's own mail program for {} more (sent.dedup_delay)",
            span(Duration::from_micros(wait))
        ))),
    }
}

/// Previews a request. Nothing is written, created or locked.
pub(crate) fn preview(site: &Site, request: RedeliveryRequest, deadline: Deadline) -> CopyOutcome {
    let mut copy = None;
    let mut look = || {
        if deadline.passed() {
            return Err(ReplayOutcome::Deferred("there was no time to search the mailbox".into()));
        }
        let mut database = site.open_to_ask(deadline)?;
        let (selected, known) = find(site, database.as_mut(), request)?;
        copy = Some(selected);
        match known? {
            Known::Tried(known) => replayed(site, database.as_mut(), *known, true),
            Known::Recorded(recorded) => planned(site, database.as_mut(), request.kind, &recorded, deadline),
        }
    };
    let (outcome, may_name_others) = look().unwrap_or_else(|outcome| (outcome, false));
    CopyOutcome { copy, outcome, may_name_others }
}

/// What would be done about a recorded copy, if there is a message to deliver, and whether that may name another recipient.
fn planned(
    site: &Site,
    database: &mut dyn Database,
    kind: RedeliveryKind,
    copy: &RecordedCopy,
    deadline: Deadline,
) -> Result<(ReplayOutcome, bool), ReplayOutcome> {
    let mut done = "it is looked for there, and appended";
    if kind == RedeliveryKind::Restore {
        let this = DeliveredCopy { message: copy.message, role: copy.role, placement: copy.placement, lowest: None };
        let mailboxes = Mailboxes::from([((copy.user.clone(), copy.mailbox.clone()), vec![this])]);
        let seen = audit::look(site, database, &mailboxes, deadline, &mut |_| {})?;
        if let Some((_, _, error)) = seen.unseen.first() {
            return Err(ReplayOutcome::Deferred(format!("its mailbox cannot be looked at: {error}")));
        }
        match seen.gone.first() {
            Some((_, gone)) if gone.now().is_none() => done = why_gone(*gone),
            _ => return Err(ReplayOutcome::AlreadyThere),
        }
    }
    let wanted = (copy.message, &copy.identity);
    let (message, _) = redelivery::message_and_its_place(site, database, wanted, Some(copy.key()), deadline)?;
    Ok((ReplayOutcome::Delivered(done.to_owned()), message.keeps_received_for_others()))
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

/// Redelivers a copy, only after an entry in the operations log.
pub(crate) fn deliver_again(site: &Site, request: RedeliveryRequest, by: Actor<'_>) -> CopyOutcome {
    let found = site
        .open_to_ask(Deadline::after(site.deadline()))
        .map_err(ReplayOutcome::from)
        .and_then(|mut database| find(site, database.as_mut(), request));
    let (copy, known) = match found {
        Ok(found) => found,
        Err(outcome) => return CopyOutcome { copy: None, outcome, may_name_others: false },
    };
    let outcome = known.and_then(|known| {
        log(site, by, &copy, "").map_err(|error| {
            ReplayOutcome::Deferred(format!("it cannot be written into the operations log: {error}"))
        })?;
        let outcome = deliver(site, request.kind, known).unwrap_or_else(ReplayOutcome::from);
        let (result, detail) = (outcome.as_str(), outcome.detail());
        let shown = if detail == result { result.to_owned() } else { format!("{result}: {detail}") };
        if let Err(error) = log(site, by, &copy, &shown) {
            warn!(%error, message_id = copy.message_id, shown, "the outcome of a redelivery is not in the operations log");
        }
        Ok(outcome)
    });
    CopyOutcome { copy: Some(copy), outcome: outcome.unwrap_or_else(|outcome| outcome), may_name_others: false }
}

fn log(site: &Site, by: Actor<'_>, copy: &SelectedCopy, outcome: &str) -> Result<(), DatabaseError> {
    let operation = match copy.request.kind {
        RedeliveryKind::Finish => Operation::FinishedOwed,
        RedeliveryKind::Restore => Operation::Restored,
        RedeliveryKind::Deliver => Operation::DeliveredAgain,
    };
    let affected = Affected {
        identity: Some(copy.identity.as_bytes()),
        message_id: Some(&copy.message_id),
        user: Some(&copy.user),
        mailbox: Some(&copy.mailbox),
        object: Some(&copy.recipient),
    };
    let mut database = site.open_to_ask(Deadline::after(PATIENCE))?;
    operations_log::write(database.as_mut(), by, operation, affected, outcome)
}

fn deliver(site: &Site, kind: RedeliveryKind, known: Known) -> Result<ReplayOutcome, DatabaseError> {
    match known {
        Known::Tried(known) => ReplayOutcome::guarded(|| {
            let mut database = site.open_database(None, Deadline::after(site.deadline()))?;
            Ok(replayed(site, database.as_mut(), *known, false).map_or_else(|outcome| outcome, |(outcome, _)| outcome))
        }),
        Known::Recorded(recorded) if kind == RedeliveryKind::Restore => {
            redelivery::redeliver(site, &recorded, redelivery::restore)
        }
        Known::Recorded(recorded) => redelivery::redeliver(site, &recorded, redelivery::finish),
    }
}

/// Replays one delivery of the ledger, or reports what would be done, and whether the message may name another recipient.
fn replayed(
    site: &Site,
    database: &mut dyn Database,
    known: KnownDelivery,
    dry_run: bool,
) -> Result<(ReplayOutcome, bool), ReplayOutcome> {
    let (message, envelope) = message_of(site, database, known)?;
    let limit = site.config().and_then(|config| config.delivery.message_size_limit);
    if limit.is_some_and(|limit| message.size() > limit) {
        return Err(ReplayOutcome::Refused(TOO_LARGE.into()));
    }
    let envelope = envelope.envelopes().next().ok_or_else(ReplayOutcome::internal_error)?;
    let envelope = envelope.map_err(ReplayOutcome::Refused)?;
    let outcome = replay::deliver(site, database, &message, &envelope, dry_run);
    Ok((outcome, message.keeps_received_for_others()))
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
