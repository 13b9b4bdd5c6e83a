//! Delivering again what somebody has picked, copy by copy: what would happen, and doing it. The deliveries are those of `replay`:
//! `--owed`, `--restore` and `--failed`. What is picked twice is delivered once: each looks under the message's lock first.

use super::audit::{self, Gone};
use super::redelivery::{self, RedeliveryError};
use super::replay::{List, Replay, ReplayError, ReplayOutcome, Tally};
use crate::base::deadline::Deadline;
use crate::base::hex;
use crate::base::timestamp::span;
use crate::database::DatabaseError;
use crate::ledger::activity::{self, By, Came, Tried, Wanted};
use crate::ledger::deliveries::{DeliveryQuery, KnownDelivery, TriedDelivery, each_delivery, known_delivery};
use crate::ledger::recorded::{self, DeliveredCopy, Mailboxes, RecordedCopy, Selection};
use crate::ledger::{CopyKey, Database, Outcome, time_span};
use crate::lock::LockName;
use crate::message::{Identity, Role};
use crate::operations::replay::PartialEnvelope;
use crate::site::Site;
use std::fmt;
use std::sync::atomic::AtomicBool;

/// Of so many attempts at a message the last one at a copy is looked for.
const MOST_TRIES: usize = 500;

/// In which way a copy is delivered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// It is owed, and is finished: `replay --owed`.
    Finish,
    /// Its mailbox has lost it, and gets it back: `replay --restore --deleted`.
    Restore,
    /// Its recipient has none, after one attempt at least: `replay --failed`.
    Deliver,
}

impl How {
    const ALL: [(&'static str, Self); 3] =
        [("finish", Self::Finish), ("restore", Self::Restore), ("deliver", Self::Deliver)];
}

/// A copy that somebody has picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) how: How,
    pub(crate) copy: CopyKey,
}

impl Choice {
    /// Reads what [`Display`](fmt::Display) writes.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (how, key) = text.split_once('-')?;
        let (_, how) = How::ALL.into_iter().find(|(name, _)| *name == how)?;
        let key = hex::decode(key).and_then(|bytes| bytes.try_into().ok())?;
        Some(Self { how, copy: CopyKey::from_bytes(key) })
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = How::ALL.into_iter().find(|(_, how)| *how == self.how).map_or("", |(name, _)| name);
        write!(f, "{name}-{}", hex::encode(self.copy.as_bytes()))
    }
}

/// What people are told of a copy that can be picked.
#[derive(Clone, Debug)]
pub(crate) struct Picked {
    pub(crate) choice: Choice,
    pub(crate) identity: Identity,
    pub(crate) lock: LockName,
    pub(crate) message_id: String,
    pub(crate) subject: Option<String>,
    pub(crate) role: Role,
    pub(crate) recipient: String,
    /// The mailbox's user.
    pub(crate) user: String,
    pub(crate) mailbox: String,
    /// Why it is owed.
    pub(crate) reason: Option<String>,
}

impl Picked {
    pub(crate) fn of(copy: &RecordedCopy, how: How) -> Self {
        let RecordedCopy { identity, lock, message_id, subject, role, recipient, user, mailbox, reason, .. } =
            copy.clone();
        let choice = Choice { how, copy: copy.key() };
        Self { choice, identity, lock, message_id, subject, role, recipient, user, mailbox, reason }
    }

    fn tried(copy: CopyKey, known: KnownDelivery) -> Self {
        let KnownDelivery { identity, lock, message_id, subject, recipient, user, mailbox, .. } = known;
        let (choice, role) = (Choice { how: How::Deliver, copy }, Role::Recipient);
        Self { choice, identity, lock, message_id, subject, role, recipient, user, mailbox, reason: None }
    }

    /// `INBOX of doug, for doug@mail.axial.net`.
    pub(crate) fn place(&self) -> String {
        format!("{} of {}, for {}", self.mailbox, self.user, self.recipient)
    }
}

/// What would come of delivering a copy again now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prospect {
    /// This would be done.
    Would {
        what: String,
        /// Whether what is appended may name another recipient: its Received fields are left, since the identity covers them.
        may_name_others: bool,
    },
    /// There is nothing to do.
    Nothing(String),
    /// It cannot be done now, or not at all.
    Cannot(String),
}

/// A copy as the ledger has it.
enum Found {
    /// The second: whether it is delivered; else it is owed.
    Copy(Box<RecordedCopy>, bool),
    Tried {
        delivered: bool,
    },
}

fn find(database: &mut dyn Database, choice: Choice) -> Result<Option<(Picked, Found)>, DatabaseError> {
    if choice.how == How::Deliver {
        let known = known_delivery(database, &choice.copy)?;
        return Ok(known.map(|known| {
            let delivered = known.delivered;
            (Picked::tried(choice.copy, known), Found::Tried { delivered })
        }));
    }
    let found = recorded::by_key(database, &choice.copy)?;
    Ok(found.map(|(copy, delivered)| (Picked::of(&copy, choice.how), Found::Copy(Box::new(copy), delivered))))
}

/// What would come of this. Nothing is written, created or locked. `None` beside it where the ledger knows no such copy.
///
/// # Errors
/// The ledger cannot be read.
pub(crate) fn plan(
    site: &Site,
    choice: Choice,
    deadline: Deadline,
) -> Result<(Option<Picked>, Prospect), DatabaseError> {
    let mut database = site.open_to_ask(deadline)?;
    let database = database.as_mut();
    let Some((picked, found)) = find(database, choice)? else { return Ok((None, unknown())) };
    let prospect = match found {
        Found::Tried { delivered: true } => Prospect::Nothing(HAS_IT.into()),
        Found::Tried { .. } => {
            let (outcome, may_name_others) = replayed(site, &picked, true, &AtomicBool::new(false));
            match outcome {
                ReplayOutcome::Delivered(what) => Prospect::Would { what, may_name_others },
                ReplayOutcome::AlreadyThere => Prospect::Nothing(HAS_IT.into()),
                ReplayOutcome::Refused(why) | ReplayOutcome::Deferred(why) => {
                    // Whose it is, the list says already.
                    let whose = format!("{} to {}: ", picked.message_id, picked.recipient);
                    Prospect::Cannot(why.strip_prefix(&whose).unwrap_or(&why).to_owned())
                }
            }
        }
        Found::Copy(copy, delivered) => match (choice.how, delivered) {
            (How::Restore, true) => restoring(site, database, &copy, deadline)?,
            (How::Restore, false) => Prospect::Cannot(NOT_DELIVERED.into()),
            (_, true) => Prospect::Nothing(NOT_OWED.into()),
            (_, false) => match left_to_its_author(site, database, &copy)? {
                Some(left) => Prospect::Cannot(left),
                None => from_its_source(site, database, &copy, "it is looked for there, and appended", deadline)?,
            },
        },
    };
    Ok((Some(picked), prospect))
}

const HAS_IT: &str = "the recipient has it";
const NOT_DELIVERED: &str = "it is not delivered, but owed";
const NOT_OWED: &str = "it is not owed any more";

fn unknown() -> Prospect {
    Prospect::Cannot("the ledger does not know it any more".into())
}

/// Why an owed copy is not finished yet, where its author's own mail program may save one.
fn left_to_its_author(
    site: &Site,
    database: &mut dyn Database,
    copy: &RecordedCopy,
) -> Result<Option<String>, DatabaseError> {
    let Some(left_for) = site.left_to_authors_for() else { return Ok(None) };
    let due = copy.recorded_at.saturating_add(time_span::microseconds(left_for));
    let wait = u64::try_from(due.saturating_sub(time_span::now(database)?)).ok().filter(|wait| *wait > 0);
    Ok(wait.map(|wait| {
        let wait = span(std::time::Duration::from_micros(wait));
        format!("it is left to its author's own mail program for {wait} more (sent.look_after)")
    }))
}

fn restoring(
    site: &Site,
    database: &mut dyn Database,
    copy: &RecordedCopy,
    deadline: Deadline,
) -> Result<Prospect, DatabaseError> {
    let this = DeliveredCopy { message: copy.message, role: copy.role, placement: copy.placement, lowest: None };
    let mailboxes = Mailboxes::from([((copy.user.clone(), copy.mailbox.clone()), vec![this])]);
    let seen = audit::look(site, database, &mailboxes, deadline, &mut |_| {})?;
    if let Some((_, _, error)) = seen.unseen.first() {
        return Ok(Prospect::Cannot(format!("its mailbox cannot be looked at: {error}")));
    }
    let Some((_, gone)) = seen.gone.first() else { return Ok(Prospect::Nothing("it is there".into())) };
    if let Some(at) = gone.now() {
        return Ok(Prospect::Nothing(format!("it is there, under uid {} by now", at.uid)));
    }
    from_its_source(site, database, copy, why_gone(*gone), deadline)
}

/// Why a copy is gone, and what is done about it.
pub(crate) fn why_gone(gone: Gone) -> &'static str {
    match gone {
        Gone::OlderMailbox => "its mailbox has lost it, having come back from a backup: it is appended",
        Gone::NewMailbox => "its mailbox has lost it, having been made anew: it is appended",
        Gone::NoMailbox => "its mailbox is not there any more: it is made, if need be, and gets it",
        Gone::Removed => "most likely its owner has deleted or filed it: it is brought back",
        Gone::Renumbered(_) | Gone::Elsewhere(_) => "it is there",
    }
}

/// What would be done, where there is something to do it with.
fn from_its_source(
    site: &Site,
    database: &mut dyn Database,
    copy: &RecordedCopy,
    done: &str,
    deadline: Deadline,
) -> Result<Prospect, DatabaseError> {
    let wanted = (copy.message, &copy.identity);
    match redelivery::message_of_ledger(site, database, wanted, Some(copy.key()), deadline) {
        Ok(message) => {
            let may_name_others = message.keeps_received_for_others();
            Ok(Prospect::Would { what: done.to_owned(), may_name_others })
        }
        Err(RedeliveryError::Database(error)) => Err(error),
        // Then the author's own is looked for.
        Err(RedeliveryError::NoSource(_) | RedeliveryError::SourcesDenied(_))
            if copy.reason.is_some() && site.left_to_authors_for().is_some() =>
        {
            let what = "its author's own is looked for there: nothing is left to append".into();
            Ok(Prospect::Would { what, may_name_others: false })
        }
        Err(why) => Ok(Prospect::Cannot(why.to_string())),
    }
}

/// What the ledger knows of whether the cause is gone, for which a copy has not come to its mailbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LastTry {
    /// When the last attempt at the copy began, in microseconds since 1970.
    pub(crate) began_at: i64,
    /// `None` where it has not ended.
    pub(crate) outcome: Option<Outcome>,
    pub(crate) since: Since,
}

/// Whether that mailbox has taken anything since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// The last copy that was put into it, by the beginning of its attempt.
    Taken(i64),
    Nothing,
    /// Nothing was found, and not all was looked at.
    NotKnown,
}

/// The last attempt at a copy that has not come, and what its mailbox has taken since. `None` where no attempt is known.
///
/// # Errors
/// The ledger cannot be read.
pub(crate) fn last_try(site: &Site, picked: &Picked, deadline: Deadline) -> Result<Option<LastTry>, DatabaseError> {
    /// One user's deliveries may go to several folders.
    const LATEST: usize = 50;
    let mut database = site.open_to_ask(deadline)?;
    let database = database.as_mut();
    let by = Some(By::Lock(picked.lock));
    let found = activity::find(database, &Wanted { by, role: Some(picked.role), ..Wanted::default() }, MOST_TRIES)?;
    let Some(last) = found.tried.into_iter().find(|tried| tried.place.key == *picked.choice.copy.as_bytes()) else {
        return Ok(None);
    };
    let (began_at, user) = (last.place.began_at, Some(picked.user.clone()));
    let later = Wanted { came: Some(Came::Delivered), user, since: began_at.saturating_add(1), ..Wanted::default() };
    let found = activity::find(database, &later, LATEST)?;
    // What is there already, or is owed, says nothing of whether the mailbox takes any.
    let taken = |one: &&Tried| one.mailbox == picked.mailbox && one.outcome == Some(Outcome::Appended);
    let since = match found.tried.iter().find(taken) {
        Some(one) => Since::Taken(one.place.began_at),
        None if found.more || found.looked_back_to.is_some() => Since::NotKnown,
        None => Since::Nothing,
    };
    Ok(Some(LastTry { began_at, outcome: last.outcome, since }))
}

/// Delivers it again. `begin` is called first, with what it is; where that says why not, nothing is done.
pub(crate) fn deliver_again(
    site: &Site,
    choice: Choice,
    stop: &AtomicBool,
    begin: impl FnOnce(&Picked) -> Result<(), String>,
) -> (Option<Picked>, ReplayOutcome) {
    let found = site.open_to_ask(Deadline::after(site.deadline())).and_then(|mut database| {
        let found = find(database.as_mut(), choice)?;
        let left = match &found {
            Some((_, Found::Copy(copy, false))) => left_to_its_author(site, database.as_mut(), copy)?,
            _ => None,
        };
        Ok((found, left))
    });
    let (found, left) = match found {
        Ok(found) => found,
        Err(error) => return (None, error.into()),
    };
    let Some((picked, found)) = found else {
        return (None, ReplayOutcome::Refused("the ledger does not know it any more".into()));
    };
    let there = match (&found, choice.how) {
        (Found::Copy(..), How::Restore) => false,
        (Found::Copy(_, delivered) | Found::Tried { delivered }, _) => *delivered,
    };
    if let (Found::Copy(_, false), How::Restore) = (&found, choice.how) {
        return (Some(picked), ReplayOutcome::Refused(NOT_DELIVERED.into()));
    }
    if let Some(left) = left {
        return (Some(picked), ReplayOutcome::Deferred(left));
    }
    if there {
        return (Some(picked), ReplayOutcome::AlreadyThere);
    }
    if let Err(why) = begin(&picked) {
        return (Some(picked), ReplayOutcome::Deferred(why));
    }
    let outcome = match found {
        Found::Tried { .. } => replayed(site, &picked, false, stop).0,
        Found::Copy(copy, _) => {
            let how = if choice.how == How::Restore { redelivery::restore } else { redelivery::finish };
            let mut outcome = ReplayOutcome::Deferred("it was ended early".into());
            let copies = std::slice::from_ref(copy.as_ref());
            match redelivery::redeliver(site, copies, how, stop, |_, came| outcome = came) {
                Ok(()) => outcome,
                Err(error) => ReplayOutcome::Refused(error.to_string()),
            }
        }
    };
    (Some(picked), outcome)
}

/// Replays one delivery of the ledger, or says what would be done; and whether what is appended may name another recipient.
fn replayed(site: &Site, picked: &Picked, dry_run: bool, stop: &AtomicBool) -> (ReplayOutcome, bool) {
    let replay = Replay {
        site,
        size_limit: site.config().and_then(|config| config.delivery.message_size_limit),
        envelope: PartialEnvelope::default(),
        jobs: 1,
        dry_run,
        stop,
    };
    let replayed = || -> Result<Option<(ReplayOutcome, bool)>, ReplayError> {
        let list = List::new()?;
        list.add_delivery(&TriedDelivery { began_at: 0, copy: picked.choice.copy, lock: picked.lock })?;
        let mut outcome = None;
        replay.run(list, &mut Tally::default(), |_, report| {
            if let Some(report) = report {
                outcome = Some((report.outcome, report.may_name_others));
            }
        })?;
        Ok(outcome)
    };
    match replayed() {
        Ok(outcome) => outcome.unwrap_or_else(|| (ReplayOutcome::Deferred("it was ended early".into()), false)),
        Err(error) => (ReplayOutcome::Deferred(error.to_string()), false),
    }
}

/// A delivery that did not succeed, and what came of its last attempt: `None` where that has not ended.
pub(crate) type Failed = (Picked, Option<Outcome>);

/// The deliveries that were tried since a moment and did not succeed, each once, at most `limit`; and whether there
/// are more.
pub(crate) fn failed(
    database: &mut dyn Database,
    since: i64,
    limit: usize,
) -> Result<(Vec<Failed>, bool), DatabaseError> {
    /// Why no more are read.
    enum Enough {
        Full,
        Failed(DatabaseError),
    }
    impl From<DatabaseError> for Enough {
        fn from(error: DatabaseError) -> Self {
            Self::Failed(error)
        }
    }
    let query = DeliveryQuery { locks: Vec::new(), since: Some(since), failed: true, recipients: Vec::new() };
    let mut copies: Vec<CopyKey> = Vec::new();
    let more = match each_delivery(database, &query, |tried| {
        if copies.contains(&tried.copy) {
            return Ok(());
        }
        if copies.len() == limit {
            return Err(Enough::Full);
        }
        copies.push(tried.copy);
        Ok(())
    }) {
        Ok(()) => false,
        Err(Enough::Full) => true,
        Err(Enough::Failed(error)) => return Err(error),
    };
    let mut found = Vec::with_capacity(copies.len());
    for copy in copies {
        let Some(mut known) = known_delivery(database, &copy)? else { continue };
        let came_to = known.came_to.take();
        found.push((Picked::tried(copy, known), came_to));
    }
    Ok((found, more))
}

/// What a mailbox has lost, or its owner has taken out.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    pub(crate) copies: Vec<(Picked, Gone)>,
    /// How many were looked for, in how many mailboxes.
    pub(crate) looked_for: (usize, usize),
    /// Mailboxes that could not be looked at, and why.
    pub(crate) unseen: Vec<String>,
}

/// Looks for what should be in the mailboxes of a user, or in one, and is not.
///
/// # Errors
/// The ledger cannot be read.
pub(crate) fn lost(site: &Site, mailbox: &str, since: i64, until: Deadline) -> Result<Lost, DatabaseError> {
    let mut database = site.open_to_ask(until)?;
    let selection = Selection { since, mailbox: Some(mailbox) };
    let seen = redelivery::lost_by(site, database.as_mut(), &selection, until)?;
    let unseen = seen.unseen.iter().map(|(user, mailbox, error)| format!("{mailbox} of {user}: {error}"));
    let copies = seen.gone.iter().map(|(copy, gone)| (Picked::of(copy, How::Restore), *gone));
    Ok(Lost { looked_for: (seen.copies, seen.mailboxes), unseen: unseen.collect(), copies: copies.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read_as_it_is_written() {
        for (_, how) in How::ALL {
            let choice = Choice { how, copy: CopyKey::from_bytes([0xa7; 32]) };
            assert_eq!(Choice::read(&choice.to_string()), Some(choice));
        }
        for wrong in ["", "finish", "finish-", "finish-00", &format!("delete-{}", "00".repeat(32))] {
            assert_eq!(Choice::read(wrong), None, "{wrong}");
        }
    }
}
