//! The timer's retry of owed copies: like `replay --owed`, but without a person's request, and only for copies that are due.
//!
//! A copy that fails is retried after a pause that grows with its age. So a copy that can never be finished costs little, and one
//! that can be finished does not wait long. The pause is an eighth of the time from the recording of its message to its last try,
//! and at most [`LONGEST_PAUSE`]. The ledger stores the time of the last try (`copies.updated_at`).
//!
//! Copies that can never be finished must not block others, however many they are. For example, a rule may give a whole domain
//! mailboxes. A program may then write as an author who has no mailbox, and each of its messages leaves such a copy.
//!
//! So copies of users who recently received mail alternate with the copies of all others. In both groups, copies that were never
//! tried alternate with those that were tried longest ago. A user whose login is refused, or whose mailbox hangs, is tried once
//! in a run.
//!
//! A run begins with a login of a user who [recently received mail](store_problem): if the store lets nobody in, no copy is tried.
//!
//! | failure | evidence about | the run |
//! |---|---|---|
//! | the store is unreachable, or ignores on whose behalf we log in | the store | ends after [`IN_A_ROW`] of them |
//! | a mailbox does not answer, loses its connection, or violates the protocol | its user, or the store | passes over this user's other copies; ends after [`IN_A_ROW`] |
//! | a login is refused | its user | passes over this user's other copies |
//! | anything else | this copy | continues |

use super::redelivery::{self, RedeliveryError};
use super::replay::ReplayOutcome;
use super::singleton_lock::Held;
use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::delivery::{Deferral, Refusal};
use crate::ledger::audit_queries::{self, OwedCopyKey};
use crate::ledger::{Database, statistics, time_span};
use crate::mailbox::MailboxFailure;
use crate::site::Site;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::{info, warn};

/// The time limit of one run, unless half of it is too short for a delivery ([`longest_run`]).
const LONGEST_RUN: Duration = Duration::from_hours(1);
/// The time limit of the ledger's query for owed copies.
const LISTING: Duration = Duration::from_mins(10);
/// The longest pause after a failed try of a copy.
const LONGEST_PAUSE: Duration = Duration::from_hours(6);
/// The pause after a failed try is the copy's age divided by this number.
const PART_OF_ITS_AGE: i64 = 8;
/// If the last try is no later than this after the message was recorded, no run has tried the copy: that try is the delivery that
/// left it owed.
const NEVER_TRIED: Duration = Duration::from_mins(1);
/// A run ends after this number of consecutive failures of the mailbox store, since the next copy would fail too.
const IN_A_ROW: u32 = 3;
/// If the logins of this number of users are refused who recently received mail, our own account is, and no run begins: a server
/// may lock out a client that continues.
const REFUSED: usize = 3;
/// The time limit of each of these logins.
const LOGIN: Duration = Duration::from_secs(30);
/// How many copies a run tries of each of the [groups](in_turns) at most. The next run continues with the rest.
const MOST_OF_A_GROUP: usize = 5_000;
/// How much longer than its delivery a copy may take, for the ledger's query before and its update after.
const AROUND_A_DELIVERY: Duration = Duration::from_secs(30);

/// How a run learns that it must end, and how it reports the time limit of its next step.
pub(crate) struct Watched<'a> {
    pub(crate) stop: &'a AtomicBool,
    pub(crate) may_take: &'a mut dyn FnMut(Duration),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwedRun {
    /// Copies that this run delivered to their mailboxes.
    pub(crate) finished: u64,
    /// Copies that were already in their mailboxes, or are no longer owed.
    pub(crate) there_already: u64,
    /// Copies that were tried, and are still owed.
    pub(crate) failed: u64,
    /// Copies that were due but not tried: they need a mailbox that has just failed with another copy.
    pub(crate) passed_over: u64,
    /// Copies that are owed at the end, due or not.
    pub(crate) still_owed: u64,
    /// The error of the first copy that failed.
    pub(crate) first_failure: Option<String>,
    /// Why some due copies were not tried, if a failure was the reason.
    pub(crate) problem: Option<String>,
}

impl OwedRun {
    /// The result in one line.
    pub(crate) fn to_text(&self) -> String {
        let counts = [
            (self.finished, "finished"),
            (self.there_already, "there already"),
            (self.failed, "failed"),
            (self.passed_over, "passed over, since their mailbox has just failed"),
            (self.still_owed, "still owed"),
        ];
        let counts = counts.iter().filter(|(number, _)| *number > 0);
        let counts: Vec<String> = counts.map(|(number, what)| format!("{number} {what}")).collect();
        let mut printed = if counts.is_empty() { "nothing is owed".to_owned() } else { counts.join(", ") };
        if let Some(first) = &self.first_failure {
            printed.push_str("; the first that failed: ");
            printed.push_str(first);
        }
        printed
    }
}

/// The time limit of one run if a delivery may take this `deadline`. The limit always leaves time for the first copy; the next
/// run continues with the rest.
pub(crate) fn longest_run(deadline: Duration) -> Duration {
    LONGEST_RUN.max(deadline.saturating_add(AROUND_A_DELIVERY).saturating_mul(2))
}

/// Finishes the due copies, one after the other, as long as the lock is held.
///
/// # Errors
/// If the ledger cannot list the owed copies.
pub(crate) fn finish_owed(site: &Site, held: &mut Held, watched: &mut Watched<'_>) -> Result<OwedRun, DatabaseError> {
    let all_of_it = Deadline::after(longest_run(site.deadline()));
    (watched.may_take)(LISTING);
    let mut ledger = site.open_database(None, all_of_it)?;
    let plan = Plan::now(site, ledger.as_mut())?;
    let order = in_turns(&plan, ledger.as_mut())?;
    let mut run = OwedRun::default();
    let mut shown = FailureTracker::default();
    if !order.is_empty() {
        (watched.may_take)(LOGIN * REFUSED as u32 + AROUND_A_DELIVERY);
        run.problem = store_problem(site, ledger.as_mut())?;
    }
    for owed in order {
        if run.problem.is_some() || watched.stop.load(Ordering::Acquire) {
            break;
        }
        if shown.should_skip(&owed) {
            run.passed_over += 1;
            continue;
        }
        if all_of_it.remaining() <= site.deadline() + AROUND_A_DELIVERY {
            break;
        }
        (watched.may_take)(site.deadline() + AROUND_A_DELIVERY);
        run.problem = match held.is_still_ours() {
            Err(problem) => Some(problem),
            Ok(()) => match try_to_finish(site, &owed, ledger.as_mut(), &mut shown, &mut run) {
                Err(error) => Some(error.to_string()),
                Ok(()) => shown.problem(),
            },
        };
    }
    match statistics::owed_copies(ledger.as_mut(), None) {
        Ok(count) => run.still_owed = count,
        Err(error) => drop(run.problem.get_or_insert(error.to_string())),
    }
    Ok(run)
}

/// Tries to finish one copy, and counts the result.
///
/// # Errors
/// If the database fails: every other copy would fail too.
fn try_to_finish(
    site: &Site,
    owed: &OwedCopyKey,
    ledger: &mut dyn Database,
    shown: &mut FailureTracker,
    run: &mut OwedRun,
) -> Result<(), RedeliveryError> {
    let is_owed = audit_queries::begin_try(ledger, &owed.key)?;
    let copy = if is_owed { audit_queries::by_key(ledger, &owed.key)? } else { None };
    let Some((copy, false)) = copy else {
        run.there_already += 1;
        return Ok(());
    };
    let deadline = Deadline::after(site.deadline());
    let outcome = ReplayOutcome::guarded(|| {
        let ended = redelivery::finish(site, &copy, deadline);
        match &ended {
            Err(RedeliveryError::Refused(Refusal::Deferred(Deferral::Mailbox(failed) | Deferral::Unknown(failed)))) => {
                shown.note(&copy.user, &[failed.failure]);
            }
            Err(RedeliveryError::OutOfReach { failures, .. }) => shown.note(&copy.recipient, failures),
            Ok(_) | Err(_) => shown.note(&copy.user, &[]),
        }
        match ended {
            Ok(manner) => Ok(manner.into()),
            Err(error) if error.is_of_the_database() => Err(error),
            Err(error) => Ok(error.into()),
        }
    });
    let (user, mailbox, message_id) = (&copy.user, &copy.mailbox, &copy.message_id);
    match outcome? {
        ReplayOutcome::Delivered(_) => {
            info!(message_id, user, mailbox, "an owed copy is finished");
            run.finished += 1;
        }
        ReplayOutcome::AlreadyThere => run.there_already += 1,
        ReplayOutcome::Deferred(why) | ReplayOutcome::Refused(why) => {
            warn!(message_id, user, mailbox, why, "a copy is still owed");
            run.failed += 1;
            run.first_failure.get_or_insert_with(|| format!("{message_id} for {mailbox} of {user}: {why}"));
            audit_queries::still_owed(ledger, &owed.key, &why)?;
        }
    }
    Ok(())
}

/// Why no copy is tried: the store cannot be reached, or does not let in users who recently received mail. A user with an owed
/// copy would prove nothing, since that user may not exist.
fn store_problem(site: &Site, ledger: &mut dyn Database) -> Result<Option<String>, DatabaseError> {
    let mut refused = BTreeSet::new();
    for (user, mailbox) in audit_queries::newest_delivered_to(ledger)? {
        if site.is_service_account(&user) || refused.contains(&user) {
            continue;
        }
        let Err(error) = site.mailbox(&user, &mailbox, Deadline::after(LOGIN)) else { return Ok(None) };
        match FailureScope::of(error.failure) {
            FailureScope::Store => return Ok(Some(format!("the mailbox store: {error}"))),
            FailureScope::Login => drop(refused.insert(user)),
            FailureScope::Copy | FailureScope::Mailbox => return Ok(None),
        }
        if refused.len() == REFUSED {
            let problem = format!("the mailbox store has refused the logins of {REFUSED} users, and let nobody in");
            return Ok(Some(problem));
        }
    }
    Ok(None)
}

/// The figures that decide which copies are due.
struct Plan {
    began: i64,
    /// How long copies are left to their authors' mail programs, in microseconds.
    left_for: Option<i64>,
}

impl Plan {
    fn now(site: &Site, ledger: &mut dyn Database) -> Result<Self, DatabaseError> {
        let left_for = site.left_to_authors_for().map(time_span::microseconds);
        Ok(Self { began: time_span::now(ledger)?, left_for })
    }

    /// Not if the copy is left to its author's mail program, or if its last try is too recent.
    fn is_due(&self, owed: &OwedCopyKey) -> bool {
        let is_left = self.left_for.is_some_and(|left_for| owed.recorded_at > self.began.saturating_sub(left_for));
        !is_left && is_due(self.began, owed.recorded_at, owed.last_try)
    }
}

/// The due copies in the order of their tries. Four groups take turns. The groups are the untried copies and those tried longest
/// ago, each for users who recently received mail and for all others.
fn in_turns(plan: &Plan, ledger: &mut dyn Database) -> Result<Vec<OwedCopyKey>, DatabaseError> {
    let known = match statistics::owed_copies(ledger, None)? {
        0 => BTreeSet::new(),
        _ => audit_queries::lately_delivered_to(ledger)?,
    };
    let mut groups: [VecDeque<OwedCopyKey>; 4] = Default::default();
    let mut after: Option<OwedCopyKey> = None;
    while groups.iter().any(|group| group.len() < MOST_OF_A_GROUP) {
        let from = after.as_ref().map_or((0, &[][..]), |last| (last.last_try, &last.key.as_bytes()[..]));
        let page = audit_queries::owed_after(ledger, from)?;
        let Some(last) = page.last() else { break };
        after = Some(last.clone());
        for owed in page.into_iter().filter(|owed| plan.is_due(owed)) {
            let [untried, untried_strangers, tried, tried_strangers] = &mut groups;
            let group = match (was_tried(owed.recorded_at, owed.last_try), known.contains(&owed.user)) {
                (false, true) => untried,
                (false, false) => untried_strangers,
                (true, true) => tried,
                (true, false) => tried_strangers,
            };
            if group.len() < MOST_OF_A_GROUP {
                group.push_back(owed);
            }
        }
    }
    let mut order = Vec::new();
    while groups.iter().any(|group| !group.is_empty()) {
        order.extend(groups.iter_mut().filter_map(VecDeque::pop_front));
    }
    Ok(order)
}

/// Whether a run has tried to finish a copy. The times are in microseconds.
fn was_tried(recorded_at: i64, last_try: i64) -> bool {
    last_try.saturating_sub(recorded_at) > time_span::microseconds(NEVER_TRIED)
}

/// Whether a copy may be retried. The times are in microseconds. If a clock was set back, no copy waits for the difference.
fn is_due(now: i64, recorded_at: i64, last_try: i64) -> bool {
    let pause = last_try.saturating_sub(recorded_at).max(0) / PART_OF_ITS_AGE;
    let since = now.saturating_sub(last_try);
    since < 0 || since >= pause.min(time_span::microseconds(LONGEST_PAUSE))
}

/// How many copies a failure concerns, beyond the one that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FailureScope {
    /// Only this copy.
    Copy,
    /// The login of this user is refused.
    Login,
    /// This user's mailbox has failed, or the store has.
    Mailbox,
    /// The store has failed, for every user.
    Store,
}

impl FailureScope {
    fn of(failure: MailboxFailure) -> Self {
        use MailboxFailure as F;
        match failure {
            F::Unreachable | F::IdentityIgnored => Self::Store,
            F::ConnectionLost | F::TimedOut | F::Protocol => Self::Mailbox,
            F::AccessDenied | F::LoginRefused => Self::Login,
            F::NoSuchMailbox | F::OverQuota | F::Refused | F::RefusedForGood | F::Local | F::Internal => Self::Copy,
        }
    }
}

/// What this run has learned so far about the mailbox store and about users' mailboxes.
#[derive(Default)]
struct FailureTracker {
    /// Consecutive failures that may be the store's.
    in_a_row: u32,
    /// Users whose copies this run no longer tries, and recipients: the message would come from a mailbox that has failed.
    failed: BTreeSet<String>,
}

impl FailureTracker {
    /// Whether a copy would fail like an earlier one.
    fn should_skip(&self, copy: &OwedCopyKey) -> bool {
        self.failed.contains(&copy.user) || self.failed.contains(&copy.recipient)
    }

    /// Records how a try has ended that concerns this user or recipient. `failures` is empty if no mailbox has failed.
    fn note(&mut self, whose: &str, failures: &[MailboxFailure]) {
        let worst = failures.iter().map(|failure| FailureScope::of(*failure)).max();
        self.in_a_row = if worst >= Some(FailureScope::Mailbox) { self.in_a_row + 1 } else { 0 };
        // If the store has failed, that says nothing about any user.
        if matches!(worst, Some(FailureScope::Login | FailureScope::Mailbox)) {
            self.failed.insert(whose.to_owned());
        }
    }

    /// The reason to end the run, if there is one.
    fn problem(&self) -> Option<String> {
        (self.in_a_row >= IN_A_ROW).then(|| "the mailbox store has failed several times in a row".into())
    }
}

#[cfg(test)]
#[path = "finish_owed_tests.rs"]
mod tests;
