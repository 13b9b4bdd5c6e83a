//! Finishes owed copies without anybody asking for it: what `replay --owed` does, for those that are due.
//!
//! A copy that fails is tried again after a pause that grows with its age, so that one that can never be finished costs little, and
//! one that can is not left for long. The pause is an eighth of the time from when its message was recorded to its last try, which
//! the ledger has (`copies.updated_at`), and at most [`LONGEST_PAUSE`].

use super::one_host::Held;
use super::redelivery::{self, RedeliveryError};
use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::delivery::{Deferral, Manner, Refusal};
use crate::ledger::recorded::{self, RecordedCopy, Selection};
use crate::ledger::{Database, time_span};
use crate::mailbox::MailboxFailure;
use crate::site::Site;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::{info, warn};

/// How long one run goes on at most. The next one goes on with the rest.
pub(crate) const LONGEST_RUN: Duration = Duration::from_hours(1);
/// How long the ledger may take to say what is owed.
const LISTING: Duration = Duration::from_mins(10);
/// How long a copy that fails is left alone at most.
const LONGEST_PAUSE: Duration = Duration::from_hours(6);
/// The part of its age for which a copy that fails is left alone.
const PART_OF_ITS_AGE: i64 = 8;
/// So many failures of the mailbox store in a row, and a run ends: the next copy would fare the same.
const IN_A_ROW: u32 = 3;
/// How much longer than its delivery a copy may take: it is asked about, and written down.
const AROUND_A_DELIVERY: Duration = Duration::from_secs(30);

/// How a run learns that it is to end, and tells how long what follows may take.
pub(crate) struct Watched<'a> {
    pub(crate) stop: &'a AtomicBool,
    pub(crate) may_take: &'a mut dyn FnMut(Duration),
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwedRun {
    /// Copies that are in their mailboxes now.
    pub(crate) finished: u64,
    /// Copies that were there already, or are not owed any more.
    pub(crate) there_already: u64,
    /// Copies that were tried, and are owed still.
    pub(crate) failed: u64,
    /// Copies that were not tried, and were due.
    pub(crate) left: u64,
    /// Copies that have failed, and are tried again later.
    pub(crate) not_due: u64,
    /// Copies that are left to their authors' own mail programs for a while yet.
    pub(crate) left_to_authors: u64,
    /// Why the first that failed did.
    pub(crate) first_failure: Option<String>,
    /// Why not all that were due were tried, where something is amiss.
    pub(crate) problem: Option<String>,
}

impl OwedRun {
    /// In one line.
    pub(crate) fn told(&self) -> String {
        let counts = [
            (self.finished, "finished"),
            (self.there_already, "there already"),
            (self.failed, "failed"),
            (self.left, "left for the next run"),
            (self.not_due, "to be tried again later"),
            (self.left_to_authors, "left to their authors' mail programs for now"),
        ];
        let counts = counts.iter().filter(|(number, _)| *number > 0);
        let counts: Vec<String> = counts.map(|(number, what)| format!("{number} {what}")).collect();
        let mut told = if counts.is_empty() { "nothing is owed".to_owned() } else { counts.join(", ") };
        if let Some(first) = &self.first_failure {
            told.push_str("; the first that failed: ");
            told.push_str(first);
        }
        told
    }
}

/// Finishes what is due, one copy after the other, for as long as the lock is ours.
///
/// # Errors
/// Where the ledger cannot say what is owed.
pub(crate) fn finish_owed(site: &Site, held: &mut Held, watched: &mut Watched<'_>) -> Result<OwedRun, DatabaseError> {
    let all_of_it = Deadline::after(LONGEST_RUN);
    (watched.may_take)(LISTING);
    let mut ledger = site.open_database(None, all_of_it)?;
    let (mut run, due) = due(site, ledger.as_mut())?;
    run.left = due.len() as u64;
    let mut in_a_row = 0;
    for copy in due {
        if watched.stop.load(Ordering::Acquire) || all_of_it.remaining() <= site.deadline() + AROUND_A_DELIVERY {
            break;
        }
        (watched.may_take)(site.deadline() + AROUND_A_DELIVERY);
        if let Err(problem) = held.is_still_ours() {
            run.problem = Some(problem);
            break;
        }
        run.left -= 1;
        let ended = match recorded::begin_try(ledger.as_mut(), &copy.key()) {
            Ok(true) => finish(site, &copy),
            Ok(false) => End::ThereAlready,
            Err(error) => End::Nowhere(error.to_string()),
        };
        in_a_row = if matches!(ended, End::Failed { of_the_store: true, .. }) { in_a_row + 1 } else { 0 };
        let (user, mailbox, message_id) = (&copy.user, &copy.mailbox, &copy.message_id);
        match ended {
            End::Finished => {
                info!(message_id, user, mailbox, "an owed copy is finished");
                run.finished += 1;
            }
            End::ThereAlready => run.there_already += 1,
            End::Failed { why, .. } => {
                warn!(message_id, user, mailbox, why, "a copy is still owed");
                run.failed += 1;
                run.first_failure.get_or_insert_with(|| format!("{message_id} for {mailbox} of {user}: {why}"));
                if let Err(error) = recorded::still_owed(ledger.as_mut(), &copy.key(), &why) {
                    run.problem = Some(error.to_string());
                }
            }
            End::Nowhere(why) => {
                run.left += 1;
                run.problem = Some(why);
            }
        }
        if in_a_row == IN_A_ROW {
            run.problem.get_or_insert_with(|| "the mailbox store has failed several times in a row".into());
        }
        if run.problem.is_some() {
            break;
        }
    }
    Ok(run)
}

/// What is due, the one that was tried longest ago first; and how many are owed besides.
fn due(site: &Site, ledger: &mut dyn Database) -> Result<(OwedRun, Vec<RecordedCopy>), DatabaseError> {
    let owed = recorded::owed_with_last_try(ledger, &Selection { since: 0, mailbox: None })?;
    let now = time_span::now(ledger)?;
    let left_for = site.left_to_authors_for().map(time_span::microseconds);
    let (mut run, mut due) = (OwedRun::default(), Vec::new());
    for (last_try, copy) in owed {
        if left_for.is_some_and(|left_for| copy.recorded_at > now.saturating_sub(left_for)) {
            run.left_to_authors += 1;
        } else if is_due(now, copy.recorded_at, last_try) {
            due.push(copy);
        } else {
            run.not_due += 1;
        }
    }
    Ok((run, due))
}

/// Whether a copy may be tried again; in microseconds. A clock that was set back makes none wait for what it was set back by.
fn is_due(now: i64, recorded_at: i64, last_try: i64) -> bool {
    let pause = last_try.saturating_sub(recorded_at).max(0) / PART_OF_ITS_AGE;
    let since = now.saturating_sub(last_try);
    since < 0 || since >= pause.min(time_span::microseconds(LONGEST_PAUSE))
}

/// What came of one copy.
enum End {
    Finished,
    ThereAlready,
    /// It is owed still; whether that is because of the mailbox store as a whole, as far as one can tell.
    Failed {
        why: String,
        of_the_store: bool,
    },
    /// The database fails: no other copy would fare better.
    Nowhere(String),
}

fn finish(site: &Site, copy: &RecordedCopy) -> End {
    let deadline = Deadline::after(site.deadline());
    // After a panic in one delivery, which the log has, the next one may succeed.
    let ended = catch_unwind(AssertUnwindSafe(|| redelivery::finish(site, copy, deadline)));
    let error = match ended {
        Ok(Ok(Manner::AlreadyThere | Manner::Adopted(_))) => return End::ThereAlready,
        Ok(Ok(Manner::Owed(why))) => return End::Failed { why, of_the_store: false },
        Ok(Ok(Manner::Appended(_))) => return End::Finished,
        Ok(Err(error)) => error,
        Err(_) => return End::Failed { why: "an internal error, which the log has".into(), of_the_store: false },
    };
    let why = error.to_string();
    match error {
        RedeliveryError::Database(_) | RedeliveryError::Refused(Refusal::Deferred(Deferral::Database(_))) => {
            End::Nowhere(why)
        }
        RedeliveryError::Refused(Refusal::Deferred(Deferral::Mailbox(error) | Deferral::Unknown(error))) => {
            End::Failed { why, of_the_store: is_of_the_store(error.failure) }
        }
        RedeliveryError::OutOfReach(_) => End::Failed { why, of_the_store: true },
        RedeliveryError::Refused(_) | RedeliveryError::NoSource(_) | RedeliveryError::SourcesDenied(_) => {
            End::Failed { why, of_the_store: false }
        }
    }
}

fn is_of_the_store(failure: MailboxFailure) -> bool {
    use MailboxFailure as F;
    match failure {
        F::Unreachable
        | F::AccessDenied
        | F::LoginRefused
        | F::IdentityIgnored
        | F::ConnectionLost
        | F::TimedOut
        | F::Protocol => true,
        F::NoSuchMailbox | F::OverQuota | F::Refused | F::RefusedForGood | F::Local | F::Internal => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000_000;
    const DAY: i64 = 24 * 60 * MINUTE;

    /// How often a copy that always fails is tried up to this age, where it is looked every five minutes.
    fn tries(age: i64) -> usize {
        let (mut last_try, mut tries) = (0, 0);
        for now in (0..age).step_by(usize::try_from(5 * MINUTE).unwrap()) {
            if is_due(now, 0, last_try) {
                (last_try, tries) = (now, tries + 1);
            }
        }
        tries
    }

    #[test]
    fn what_fails_is_tried_less_and_less_often_and_never_given_up() {
        let hour = tries(DAY / 24);
        let (day, week, month) = (tries(DAY), tries(7 * DAY), tries(30 * DAY));
        assert!((8..=12).contains(&hour), "{hour} in its first hour");
        assert!((25..=50).contains(&day), "{day} on its first day");
        assert!((45..=75).contains(&week), "{week} in its first week");
        // Then every six hours.
        assert_eq!(month - tries(20 * DAY), 40);
    }

    #[test]
    fn a_copy_that_was_given_up_after_a_day_is_tried_within_hours() {
        assert!(!is_due(DAY + 2 * 60 * MINUTE, 0, DAY));
        assert!(is_due(DAY + 3 * 60 * MINUTE, 0, DAY));
        // One that was only just recorded, at once.
        assert!(is_due(0, 0, 0));
    }

    #[test]
    fn a_clock_that_was_set_back_holds_nothing_up() {
        assert!(is_due(0, DAY, DAY));
        assert!(is_due(DAY, 0, 30 * DAY));
        assert!(is_due(i64::MAX, i64::MIN, 0));
    }

    #[test]
    fn a_run_is_told_in_one_line() {
        assert_eq!(OwedRun::default().told(), "nothing is owed");
        let run = OwedRun { finished: 3, failed: 1, left: 2, first_failure: Some("full".into()), ..OwedRun::default() };
        assert_eq!(run.told(), "3 finished, 1 failed, 2 left for the next run; the first that failed: full");
    }
}
