//! Delivers several copies of one message together: all are uploaded, the lock is checked once, and then each gets its last
//! CRLF. A copy that lacks its last CRLF is not stored, so the check protects all of them.

use super::copy_attempt::{Attempt, End};
use super::report::Manner;
use super::resolve::{Failure, LockLost, UnderLock, end_of, new_copy, resolve};
use crate::base::deadline::Deadline;
use crate::mailbox::{Appended, MailboxError, MailboxFailure, Pace};
use std::time::{Duration, Instant};

/// How long one mailbox may keep the others waiting while their answers are read in turn.
const TURN: Duration = Duration::from_millis(5);

pub(super) struct CopyProgress<'t, 'm> {
    attempt: &'t mut Attempt<'m>,
    stage: Stage,
    began: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    ToAppend,
    /// The server has all bytes except the last CRLF.
    Uploaded,
    /// The last CRLF was sent, or was withheld.
    Completed,
    Ended,
}

#[derive(Clone, Copy)]
pub(super) struct Round {
    /// Whether the copies are only searched for, and not appended.
    pub look_only: bool,
    /// How long one copy may delay the others of the message, if there are others.
    pub patience: Option<Duration>,
}

/// Finds, adopts or appends each of these copies. A failure of one copy leaves the others alone; only a lost lock ends the
/// round.
pub(super) fn deliver_round<'t, 'm: 't>(
    under_lock: &mut UnderLock<'_, '_>,
    attempts: impl Iterator<Item = &'t mut Attempt<'m>>,
    Round { look_only, patience }: Round,
) -> Result<(), LockLost> {
    let began = Instant::now();
    let tries: &mut [CopyProgress<'_, '_>] =
        &mut attempts.map(|attempt| CopyProgress { attempt, stage: Stage::Ended, began }).collect::<Vec<_>>();
    let share = Share::of(patience);
    for it in tries.iter_mut() {
        it.set_patience(share.until());
        let resolved = resolve(under_lock, it.attempt);
        it.set_patience(None);
        match resolved {
            Ok(Some(end)) => it.ends(end),
            Ok(None) if look_only => {}
            Ok(None) => it.stage = Stage::ToAppend,
            Err(failure) => it.fails(failure, under_lock)?,
        }
    }
    // Twice, because a mailbox that was removed meanwhile is recreated once, and its copy is then uploaded again.
    for _ in 0..2 {
        if tries.iter().any(|it| it.stage == Stage::ToAppend) {
            append(under_lock, tries, patience)?;
        }
    }
    for it in tries.iter_mut().filter(|it| it.stage == Stage::ToAppend) {
        let error = it.error(MailboxFailure::NoSuchMailbox, "it is removed time and again");
        it.fails(Failure::NothingStored(error), under_lock)?;
    }
    Ok(())
}

fn append(
    under_lock: &mut UnderLock<'_, '_>,
    tries: &mut [CopyProgress<'_, '_>],
    patience: Option<Duration>,
) -> Result<(), LockLost> {
    upload(under_lock, tries, patience)?;
    if tries.iter().all(|it| it.stage != Stage::Uploaded) {
        return Ok(());
    }
    // The lock is checked first, because its check is a round trip to the database. So the check of the caller, which costs
    // nothing, is as fresh as possible.
    let held = under_lock.is_held();
    let caller_gone = held && under_lock.delivery.caller.is_gone();
    let go_ahead = held && !caller_gone;
    let share = Share::of(patience);
    for it in tries.iter_mut().filter(|it| it.stage == Stage::Uploaded) {
        match it.attempt.open_mailbox() {
            Some(mailbox) if go_ahead => {
                // Even this write can block: a server that has stopped reading accepts no further byte.
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
            it.fails(Failure::CallerGone, under_lock)?;
        }
    }
    await_answers(under_lock, tries, patience)
}

/// Uploads the copies one after the other. A copy fails if its mailbox stops accepting bytes, or if its upload would not fit
/// into the remaining time. The uploaded copies are still completed and recorded, so each retry has fewer left.
fn upload(
    under_lock: &mut UnderLock<'_, '_>,
    tries: &mut [CopyProgress<'_, '_>],
    patience: Option<Duration>,
) -> Result<(), LockLost> {
    let (delivery, share) = (under_lock.delivery, Share::of(patience));
    for it in tries.iter_mut().filter(|it| it.stage == Stage::ToAppend) {
        let new = new_copy(delivery, it.attempt);
        let size = new.bytes.len() as u64;
        if patience.is_some() && !delivery.upload_time.fits(size) {
            let error = it.error(MailboxFailure::TimedOut, "the line is too slow for one more upload in this try");
            let end = end_of(Failure::NothingStored(error), under_lock, it.attempt)?;
            it.ends(end);
            continue;
        }
        let began = Instant::now();
        let pace = share.until().map(|until| {
            let stall = until.remaining();
            Pace { stall, until: delivery.upload_time.until(size, stall) }
        });
        let Some(mailbox) = it.attempt.open_mailbox() else {
            it.fails(not_open(), under_lock)?;
            continue;
        };
        match mailbox.upload(&new, pace) {
            Ok(()) => {
                delivery.upload_time.note(size, began.elapsed());
                it.stage = Stage::Uploaded;
            }
            Err(appended) => it.appended(appended, under_lock)?,
        }
    }
    Ok(())
}

/// The time limit that mailboxes share which are used one after the other. A mailbox that hangs may use all of it; each of
/// the others then still has a fifth.
struct Share(Option<(Deadline, Duration)>);

impl Share {
    fn of(patience: Option<Duration>) -> Self {
        Self(patience.map(|patience| (Deadline::after(patience), patience / 5)))
    }

    fn until(&self) -> Option<Deadline> {
        self.0.map(|(all, least)| all.or_after(least))
    }
}

/// Unreachable: only a copy with an open mailbox is appended. `Unknown` is the safe answer, since the next attempt searches.
fn not_open() -> Failure {
    Failure::Unknown(MailboxError::new(MailboxFailure::Internal, "appending", "to a mailbox that is not open"))
}

/// Reads the answers to the completed uploads, in the order in which they arrive. After the first answer, the other
/// mailboxes have `patience`.
///
/// That limit applies from the beginning if another copy is already delivered, if only one copy is left, or if the message
/// has other batches. In these cases recipients wait whose results cannot be recorded before.
fn await_answers(
    under_lock: &mut UnderLock<'_, '_>,
    tries: &mut [CopyProgress<'_, '_>],
    patience: Option<Duration>,
) -> Result<(), LockLost> {
    let alone = tries.iter().filter(|it| it.stage == Stage::Completed).count() == 1;
    let others_wait =
        alone || under_lock.delivery.is_one_of_several || tries.iter().any(|it| it.attempt.end.is_there());
    let mut until: Option<Deadline> = patience.filter(|_| others_wait).map(Deadline::after);
    while tries.iter().any(|it| it.stage == Stage::Completed) {
        for it in tries.iter_mut().filter(|it| it.stage == Stage::Completed) {
            let Some(mailbox) = it.attempt.open_mailbox() else {
                it.fails(not_open(), under_lock)?;
                continue;
            };
            // Each mailbox is asked once more after the limit: others may have answered while one mailbox was slow.
            let over = until.is_some_and(|until| until.passed());
            if patience.is_some() && !mailbox.is_answered_within(TURN) {
                if !over {
                    continue;
                }
                mailbox.patient_until(until);
            }
            let appended = mailbox.answer();
            mailbox.patient_until(None);
            it.appended(appended, under_lock)?;
            until = until.or(patience.map(Deadline::after));
        }
    }
    Ok(())
}

impl CopyProgress<'_, '_> {
    fn set_patience(&mut self, until: Option<Deadline>) {
        if let Some(mailbox) = self.attempt.open_mailbox() {
            mailbox.patient_until(until);
        }
    }

    fn error(&self, failure: MailboxFailure, detail: &str) -> MailboxError {
        MailboxError::new(failure, format!("appending to {}", self.attempt.mailbox_name), detail)
    }

    fn ends(&mut self, end: End) {
        self.stage = Stage::Ended;
        self.attempt.end = end;
    }

    fn fails(&mut self, failure: Failure, under_lock: &mut UnderLock<'_, '_>) -> Result<(), LockLost> {
        if let Failure::NothingStored(error) | Failure::Unknown(error) = &failure {
            self.attempt.note_hanging(error, self.began.elapsed(), under_lock.delivery.policy.slow_mailbox_timeout);
        }
        let end = end_of(failure, under_lock, self.attempt)?;
        self.ends(end);
        Ok(())
    }

    fn appended(&mut self, appended: Appended, under_lock: &mut UnderLock<'_, '_>) -> Result<(), LockLost> {
        let failure = match appended {
            Appended::Stored(placement) => {
                self.ends(End::Done(Manner::Appended(placement)));
                return Ok(());
            }
            Appended::Recreated => {
                self.stage = Stage::ToAppend;
                return Ok(());
            }
            Appended::Withheld => Failure::LockLost,
            Appended::Refused(error) | Appended::NotSent(error) => Failure::NothingStored(error),
            Appended::Unknown(error) => Failure::Unknown(error),
        };
        self.fails(failure, under_lock)
    }
}
