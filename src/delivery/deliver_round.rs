//! Some copies of one message, delivered together: all are uploaded, then the lock is asked for once, then all get their last CRLF.

use super::Delivery;
use super::deliver_copy::{Copy, End, Failure, LockLost, end_of, find_or_adopt, new_copy, still_held};
use super::other_attempts::OtherAttempts;
use super::report::Manner;
use crate::base::deadline::Deadline;
use crate::ledger::{CopyKey, Ledger};
use crate::mailbox::{Appended, MailboxError, MailboxFailure};
use std::time::{Duration, Instant};

/// How long the answer of one mailbox is waited for before the next one is asked.
const TURN: Duration = Duration::from_millis(5);

/// One of the copies.
pub(super) struct Try<'t, 'm> {
    pub copy: &'t mut Copy<'m>,
    pub others: &'t OtherAttempts,
    pub end: &'t mut End,
    pub stage: Stage,
    pub began: Instant,
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    ToAppend,
    /// All but its last CRLF is with the server.
    Uploaded,
    /// So is that.
    Completed,
    Ended,
}

/// How the copies of one round are delivered.
#[derive(Clone, Copy)]
pub(super) struct Round {
    /// Whether they are only looked for, and not appended.
    pub look_only: bool,
    /// How long one of them may hold up the others of the message, if there are others.
    pub patience: Option<Duration>,
}

/// Delivers these copies: each is found, adopted or appended, or it fails by itself.
pub(super) fn deliver_round(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    tries: &mut [Try<'_, '_>],
    keys: &[CopyKey],
    Round { look_only, patience }: Round,
) -> Result<(), LockLost> {
    let share = Share::of(patience);
    for it in tries.iter_mut() {
        it.copy.is_patient_until(share.until());
        let found = find_or_adopt(delivery, database, it.copy, it.others);
        it.copy.is_patient_until(None);
        match found {
            Ok(Some(end)) => it.ends(end),
            Ok(None) if look_only => {}
            Ok(None) => it.stage = Stage::ToAppend,
            Err(failure) => it.fails(failure, delivery, database, keys)?,
        }
    }
    // A mailbox that was removed meanwhile is made anew, once.
    for _ in 0..2 {
        if tries.iter().any(|it| it.stage == Stage::ToAppend) {
            append(delivery, database, tries, keys, patience)?;
        }
    }
    for it in tries.iter_mut().filter(|it| it.stage == Stage::ToAppend) {
        let doing = format!("appending to {}", it.copy.mailbox_name);
        let error = MailboxError::new(MailboxFailure::NoSuchMailbox, doing, "it is removed time and again");
        it.fails(Failure::NothingStored(error), delivery, database, keys)?;
    }
    Ok(())
}

/// Appends those that are to be appended.
fn append(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    tries: &mut [Try<'_, '_>],
    keys: &[CopyKey],
    patience: Option<Duration>,
) -> Result<(), LockLost> {
    upload(delivery, database, tries, keys, patience)?;
    if tries.iter().all(|it| it.stage != Stage::Uploaded) {
        return Ok(());
    }
    // The caller last: that look costs nothing, and the other one is a round trip to the database.
    let held = still_held(delivery, database);
    let caller_gone = held && delivery.caller.is_gone();
    let go_ahead = held && !caller_gone;
    let share = Share::of(patience);
    for it in tries.iter_mut().filter(|it| it.stage == Stage::Uploaded) {
        match it.copy.within_reach() {
            Some(mailbox) if go_ahead => {
                // A server that has stopped reading takes not even a last CRLF.
                mailbox.patient_until(share.until());
                mailbox.complete();
                mailbox.patient_until(None);
            }
            Some(mailbox) => mailbox.withhold(),
            None => {}
        }
        it.stage = Stage::Completed;
    }
    if !held {
        return Err(LockLost);
    }
    if caller_gone {
        for it in tries.iter_mut().filter(|it| it.stage == Stage::Completed) {
            it.fails(Failure::CallerGone, delivery, database, keys)?;
        }
    }
    hear_answers(delivery, database, tries, keys, patience)
}

/// Uploads the copies one after the other. A mailbox that does not take its copy in time gets none.
fn upload(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    tries: &mut [Try<'_, '_>],
    keys: &[CopyKey],
    patience: Option<Duration>,
) -> Result<(), LockLost> {
    let share = Share::of(patience);
    for it in tries.iter_mut().filter(|it| it.stage == Stage::ToAppend) {
        let new = new_copy(delivery, it.copy);
        let Some(mailbox) = it.copy.within_reach() else {
            it.fails(unopened(), delivery, database, keys)?;
            continue;
        };
        mailbox.patient_until(share.until());
        let uploaded = mailbox.upload(&new);
        mailbox.patient_until(None);
        match uploaded {
            Ok(()) => it.stage = Stage::Uploaded,
            Err(appended) => it.appended(appended, delivery, database, keys)?,
        }
    }
    Ok(())
}

/// The patience with mailboxes that are asked one after the other. One that hangs may use up the patience of all: then a fifth of it is
/// left for each of the others.
struct Share(Option<(Deadline, Duration)>);

impl Share {
    fn of(patience: Option<Duration>) -> Self {
        Self(patience.map(|patience| (Deadline::after(patience), patience / 5)))
    }

    fn until(&self) -> Option<Deadline> {
        self.0.map(|(all, least)| all.or_after(least))
    }
}

/// What never comes about: only a copy whose mailbox is open is appended.
fn unopened() -> Failure {
    Failure::Unknown(MailboxError::new(MailboxFailure::Internal, "appending", "to a mailbox that is not open"))
}

/// Hears what came of what was completed: whoever answers first is heard first. From then on the others have so long. They have it from
/// the beginning where another copy is there already, where one is the last of its message, or where the message has other batches: all
/// who were delivered to, or are still to be, wait for them; and what was found is not recorded before.
fn hear_answers(
    delivery: &Delivery<'_>,
    database: &mut dyn Ledger,
    tries: &mut [Try<'_, '_>],
    keys: &[CopyKey],
    patience: Option<Duration>,
) -> Result<(), LockLost> {
    let alone = tries.iter().filter(|it| it.stage == Stage::Completed).count() == 1;
    let waited_for = alone || delivery.is_one_of_several || tries.iter().any(|it| it.end.is_there());
    let mut until: Option<Deadline> = patience.filter(|_| waited_for).map(Deadline::after);
    while tries.iter().any(|it| it.stage == Stage::Completed) {
        for it in tries.iter_mut().filter(|it| it.stage == Stage::Completed) {
            let Some(mailbox) = it.copy.within_reach() else {
                it.fails(unopened(), delivery, database, keys)?;
                continue;
            };
            // Each is asked once more at the end: what one of them took to be looked through, others have used to answer.
            let over = until.is_some_and(|until| until.passed());
            if patience.is_some() && !mailbox.is_answered_within(TURN) {
                if !over {
                    continue;
                }
                mailbox.patient_until(until);
            }
            let appended = mailbox.answer();
            mailbox.patient_until(None);
            it.appended(appended, delivery, database, keys)?;
            until = until.or(patience.map(Deadline::after));
        }
    }
    Ok(())
}

impl Try<'_, '_> {
    fn ends(&mut self, end: End) {
        self.stage = Stage::Ended;
        *self.end = end;
    }

    fn fails(
        &mut self,
        failure: Failure,
        delivery: &Delivery<'_>,
        database: &mut dyn Ledger,
        keys: &[CopyKey],
    ) -> Result<(), LockLost> {
        self.copy.has_failed(&failure, self.began.elapsed(), delivery.policy.batch_patience);
        let end = end_of(failure, delivery, database, self.copy, self.others, keys)?;
        self.ends(end);
        Ok(())
    }

    fn appended(
        &mut self,
        appended: Appended,
        delivery: &Delivery<'_>,
        database: &mut dyn Ledger,
        keys: &[CopyKey],
    ) -> Result<(), LockLost> {
        let failure = match appended {
            Appended::Stored(placement) => {
                self.ends(End::Done(Manner::Appended(placement)));
                return Ok(());
            }
            Appended::MadeAnew => {
                self.stage = Stage::ToAppend;
                return Ok(());
            }
            Appended::Withheld => Failure::LockLost,
            Appended::Refused(error) | Appended::NotSent(error) => Failure::NothingStored(error),
            Appended::Unknown(error) => Failure::Unknown(error),
        };
        self.fails(failure, delivery, database, keys)
    }
}
