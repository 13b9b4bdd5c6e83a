//! Finishes owed copies without anybody asking for it: what `replay --owed` does, for those that are due.
//!
//! A copy that fails is tried again after a pause that grows with its age, so that one that can never be finished costs
//! little, and one that can is not left for long. The pause is an eighth of the time from when its message was recorded to
//! its last try, which the ledger has (`copies.updated_at`), and at most [`LONGEST_PAUSE`].
//!
//! Copies that can never be finished must not keep others from it, however many they are: where a rule gives a whole domain
//! mailboxes, a program may write as somebody who has none, and each of its messages leaves such a copy. So copies of users
//! to whom mail was delivered of late have their turns beside those of all others, and among both those that were never tried
//! beside those that were tried longest ago. A user who is refused, or whose mailbox hangs, is asked once in a run, and says
//! nothing of the store.
//!
//! | what fails | of what it says something | the run |
//! |---|---|---|
//! | a store that is out of reach, or that ignores on whose behalf we come | of the store | ends after [`IN_A_ROW`] of them |
//! | a mailbox that does not answer, loses its connection, or talks nonsense | of its user, or of the store | passes over this user's other copies; ends after [`IN_A_ROW`] |
//! | a login that is refused | of its user; or, where all are refused, of the store | passes over this user's other copies; after [`REFUSED`] users, if nobody was let in, tries [another](lets_in_another), and ends if that is refused. The next run takes these users last |
//! | anything else | of this copy | goes on |

use super::redelivery::{self, Place, RedeliveryError};
use super::singleton_lock::Held;
use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::delivery::{Deferral, Manner, Refusal};
use crate::ledger::audit_queries::{self, OwedCopyKey, RecordedCopy};
use crate::ledger::{CopyKey, Database, time_span};
use crate::mailbox::MailboxFailure;
use crate::site::Site;
use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::{info, warn};

/// How long one run goes on at most, unless a delivery may take half of it: see [`longest_run`].
const LONGEST_RUN: Duration = Duration::from_hours(1);
/// How long the ledger may take to say what is owed.
const LISTING: Duration = Duration::from_mins(10);
/// How long a copy that fails is left alone at most.
const LONGEST_PAUSE: Duration = Duration::from_hours(6);
/// The part of its age for which a copy that fails is left alone.
const PART_OF_ITS_AGE: i64 = 8;
/// A copy whose last try is no later after its message was recorded was not tried since: it is the try of the delivery that left
/// it owed.
const NEVER_TRIED: Duration = Duration::from_mins(1);
/// So many failures of the mailbox store in a row, and a run ends: the next copy would fare the same.
const IN_A_ROW: u32 = 3;
/// So many users whose logins are refused, while nobody is let in, and somebody to whom mail was delivered of late is tried: a
/// run ends where that is refused, too. Then it is our account that is refused, and a server may lock out whoever goes on.
const REFUSED: usize = 3;
/// Of so many users it is remembered that they were refused.
const MOST_REFUSED: usize = 10_000;
/// To whom mail was delivered is looked up in all messages that may have left something owed, and in so many more.
const MESSAGES_BEHIND: u64 = 100_000;
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
    /// Those of them that need a mailbox which had just failed with another copy.
    pub(crate) passed_over: u64,
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
        let left = match self.passed_over {
            0 => "left for the next run".to_owned(),
            some => format!("left for the next run ({some} need a mailbox that has just failed with another copy)"),
        };
        let counts = [
            (self.finished, "finished"),
            (self.there_already, "there already"),
            (self.failed, "failed"),
            (self.left, left.as_str()),
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

/// How long one run goes on at most, where a delivery may take so long: there is always time for the first copy. The next run
/// goes on with the rest.
pub(crate) fn longest_run(deadline: Duration) -> Duration {
    LONGEST_RUN.max(deadline.saturating_add(AROUND_A_DELIVERY).saturating_mul(2))
}

/// Finishes what is due, one copy after the other, for as long as the lock is ours. `refused` are the users whose logins were
/// refused when they were last tried, by earlier runs of this process: their copies are the last, and it is brought up to date.
///
/// # Errors
/// Where the ledger cannot say what is owed.
pub(crate) fn finish_owed(
    site: &Site,
    held: &mut Held,
    watched: &mut Watched<'_>,
    refused: &mut BTreeSet<String>,
) -> Result<OwedRun, DatabaseError> {
    let all_of_it = Deadline::after(longest_run(site.deadline()));
    (watched.may_take)(LISTING);
    let mut ledger = site.open_database(None, all_of_it)?;
    let plan = Plan::now(site, ledger.as_mut())?;
    let mut run = plan.count(ledger.as_mut())?;
    let mut shown = Shown::default();
    let refused_before = refused.clone();
    let mut turns = Turns::of(&plan, &refused_before, &run, ledger.as_mut())?;
    while let Some(owed) = turns.next(ledger.as_mut())? {
        if shown.rules_out(&owed) {
            run.passed_over += 1;
            continue;
        }
        if watched.stop.load(Ordering::Acquire) || all_of_it.remaining() <= site.deadline() + AROUND_A_DELIVERY {
            break;
        }
        (watched.may_take)(site.deadline() + AROUND_A_DELIVERY);
        if let Err(problem) = held.is_still_ours() {
            run.problem = Some(problem);
            break;
        }
        run.left = run.left.saturating_sub(1);
        try_to_finish(site, &owed, ledger.as_mut(), &mut shown, &mut run);
        if shown.may_be_our_account() {
            (watched.may_take)(site.deadline() + AROUND_A_DELIVERY);
            shown.let_in = lets_in_another(site, ledger.as_mut(), &shown.refused)?;
        }
        run.problem = run.problem.or_else(|| shown.problem());
        if run.problem.is_some() {
            break;
        }
    }
    // Where it is our account that is refused, nothing is known of them.
    if shown.let_in {
        refused.retain(|user| !shown.finished.contains(user));
        refused.append(&mut shown.refused);
        while refused.len() > MOST_REFUSED {
            refused.pop_last();
        }
    }
    Ok(run)
}

/// Tries to finish one copy, and counts what came of it.
fn try_to_finish(site: &Site, owed: &OwedCopyKey, ledger: &mut dyn Database, shown: &mut Shown, run: &mut OwedRun) {
    let begun = match audit_queries::begin_try(ledger, &owed.key) {
        Ok(true) => audit_queries::by_key(ledger, &owed.key),
        Ok(false) => Ok(None),
        Err(error) => Err(error),
    };
    let copy = match begun {
        Ok(Some((copy, false))) => copy,
        Ok(Some((_, true)) | None) => {
            run.there_already += 1;
            return;
        }
        Err(error) => {
            run.left += 1;
            run.problem = Some(error.to_string());
            return;
        }
    };
    let (user, mailbox, message_id) = (&copy.user, &copy.mailbox, &copy.message_id);
    match finish(site, &copy, shown) {
        End::Finished => {
            info!(message_id, user, mailbox, "an owed copy is finished");
            run.finished += 1;
        }
        End::ThereAlready => run.there_already += 1,
        End::Failed(why) => {
            warn!(message_id, user, mailbox, why, "a copy is still owed");
            run.failed += 1;
            run.first_failure.get_or_insert_with(|| format!("{message_id} for {mailbox} of {user}: {why}"));
            if let Err(error) = audit_queries::still_owed(ledger, &owed.key, &why) {
                run.problem = Some(error.to_string());
            }
        }
        End::DatabaseFailed(why) => {
            run.left += 1;
            run.problem = Some(why);
        }
    }
}

/// Whether the store lets in somebody to whom mail was delivered of late. If not, it is our account that is refused, and not
/// those who were: they need not exist.
fn lets_in_another(site: &Site, ledger: &mut dyn Database, refused: &BTreeSet<String>) -> Result<bool, DatabaseError> {
    let others = audit_queries::newest_delivered_to(ledger)?;
    let other = others.iter().find(|(user, _)| !refused.contains(user) && !site.is_service_account(user));
    let Some((user, mailbox)) = other else { return Ok(false) };
    Ok(match site.mailbox(user, mailbox, Deadline::after(site.deadline())) {
        Ok(_) => true,
        Err(error) => comes_after_login(error.failure),
    })
}

/// What one copy is to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    LeftToItsAuthor,
    NotDue,
    /// Nobody has tried it since its delivery.
    Untried,
    Tried,
}

/// By what it is known which copies are due.
struct Plan {
    began: i64,
    /// For how long copies are left to their authors' mail programs.
    left_for: Option<i64>,
}

impl Plan {
    fn now(site: &Site, ledger: &mut dyn Database) -> Result<Self, DatabaseError> {
        let left_for = site.left_to_authors_for().map(time_span::microseconds);
        Ok(Self { began: time_span::now(ledger)?, left_for })
    }

    fn standing(&self, owed: &OwedCopyKey) -> Standing {
        let (recorded_at, last_try) = (owed.recorded_at, owed.last_try);
        if self.left_for.is_some_and(|left_for| recorded_at > self.began.saturating_sub(left_for)) {
            Standing::LeftToItsAuthor
        } else if !is_due(self.began, recorded_at, last_try) {
            Standing::NotDue
        } else if was_tried(recorded_at, last_try) {
            Standing::Tried
        } else {
            Standing::Untried
        }
    }

    /// How many are due, and how many are owed besides.
    fn count(&self, ledger: &mut dyn Database) -> Result<OwedRun, DatabaseError> {
        let (mut run, mut pages) = (OwedRun::default(), Pages::default());
        while let Some(owed) = pages.next(self.began, ledger)? {
            *match self.standing(&owed) {
                Standing::LeftToItsAuthor => &mut run.left_to_authors,
                Standing::NotDue => &mut run.not_due,
                Standing::Untried | Standing::Tried => &mut run.left,
            } += 1;
        }
        Ok(run)
    }
}

/// All that is owed, in the order of the last tries, a page at a time, but for what was tried since the run began.
#[derive(Default)]
struct Pages {
    page: VecDeque<OwedCopyKey>,
    /// The last try and the key of the last that was read. `None`: nothing was read yet.
    after: Option<(i64, CopyKey)>,
    ended: bool,
}

impl Pages {
    fn next(&mut self, began: i64, ledger: &mut dyn Database) -> Result<Option<OwedCopyKey>, DatabaseError> {
        while self.page.is_empty() && !self.ended {
            let after = self.after.as_ref().map_or((0, &[][..]), |(last_try, key)| (*last_try, &key.as_bytes()[..]));
            self.page = audit_queries::owed_after(ledger, after)?.into();
            match self.page.back() {
                Some(last) => self.after = Some((last.last_try, last.key)),
                None => self.ended = true,
            }
            // What has a last try in the future is due: some clock was set back.
            let now = time_span::now(ledger)?;
            self.page.retain(|owed| owed.last_try <= began || owed.last_try > now);
        }
        Ok(self.page.pop_front())
    }
}

/// What is due in the order in which it is tried: what nobody has tried since its delivery and what was tried longest ago, each of
/// users to whom mail was delivered of late and of all others, in turns, so that none waits for others that may never be finished.
/// After all of that the same of the users who were refused before.
struct Turns<'a> {
    plan: &'a Plan,
    refused: &'a BTreeSet<String>,
    /// To whom mail was delivered of late.
    known: BTreeSet<String>,
    of_refused: bool,
    /// With whether the users are known. It is the first one's turn.
    kinds: [(Standing, bool, Pages); 4],
}

impl<'a> Turns<'a> {
    fn of(
        plan: &'a Plan,
        refused: &'a BTreeSet<String>,
        counted: &OwedRun,
        ledger: &mut dyn Database,
    ) -> Result<Self, DatabaseError> {
        let known = match counted.left {
            0 => BTreeSet::new(),
            left => {
                let owed = left + counted.not_due + counted.left_to_authors;
                audit_queries::lately_delivered_to(ledger, owed.saturating_add(MESSAGES_BEHIND))?
            }
        };
        Ok(Self { plan, refused, known, of_refused: false, kinds: Self::from_the_first() })
    }

    fn from_the_first() -> [(Standing, bool, Pages); 4] {
        use Standing::{Tried, Untried};
        [(Untried, true), (Untried, false), (Tried, true), (Tried, false)]
            .map(|(standing, known)| (standing, known, Pages::default()))
    }

    fn next(&mut self, ledger: &mut dyn Database) -> Result<Option<OwedCopyKey>, DatabaseError> {
        loop {
            for _ in 0..self.kinds.len() {
                let [(standing, known, pages), ..] = &mut self.kinds;
                let mut found = None;
                while let Some(owed) = pages.next(self.plan.began, ledger)? {
                    let is_of_refused = self.refused.contains(&owed.user);
                    let is_of_these = self.known.contains(&owed.user) == *known && is_of_refused == self.of_refused;
                    if is_of_these && self.plan.standing(&owed) == *standing {
                        found = Some(owed);
                        break;
                    }
                }
                self.kinds.rotate_left(1);
                if found.is_some() {
                    return Ok(found);
                }
            }
            if self.of_refused || self.refused.is_empty() {
                return Ok(None);
            }
            (self.of_refused, self.kinds) = (true, Self::from_the_first());
        }
    }
}

/// Whether anybody has tried to finish a copy; in microseconds.
fn was_tried(recorded_at: i64, last_try: i64) -> bool {
    last_try.saturating_sub(recorded_at) > time_span::microseconds(NEVER_TRIED)
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
    /// It is owed still; why.
    Failed(String),
    /// The database fails: every other copy would fail, too.
    DatabaseFailed(String),
}

/// What a failure says of other copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blame {
    /// Nothing.
    Copy,
    /// This user is refused the login.
    Login,
    /// This user's mailbox has failed, or the store.
    Mailbox,
    /// The store has failed, whoever comes.
    Store,
}

impl Blame {
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

/// What the copies of a run have shown so far of the mailbox store, and of those whose mailboxes are there.
#[derive(Default)]
struct Shown {
    /// How often the store may have failed since it last has not.
    in_a_row: u32,
    /// Whether anybody was let in.
    let_in: bool,
    /// Whose logins were refused.
    refused: BTreeSet<String>,
    /// Whose copies are in their mailboxes now.
    finished: BTreeSet<String>,
    /// Whose copies are not tried any more.
    users: BTreeSet<String>,
    /// For whose recipients' copies that is so: the message would have to be read from a mailbox that has failed.
    recipients: BTreeSet<String>,
}

impl Shown {
    /// Whether a copy would fare as another one did.
    fn rules_out(&self, copy: &OwedCopyKey) -> bool {
        self.users.contains(&copy.user) || self.recipients.contains(&copy.recipient)
    }

    /// A copy did not fail, or for reasons of its own.
    fn nothing(&mut self) {
        self.in_a_row = 0;
    }

    /// At a copy mailboxes have failed: its own, or those from which its message was to be read.
    fn failed(&mut self, copy: &RecordedCopy, mailboxes: &[(String, MailboxFailure)]) {
        let blames = || mailboxes.iter().map(|(user, failure)| (user, Blame::of(*failure)));
        let any = |blame: Blame| blames().any(|(_, one)| one == blame);
        self.in_a_row = if any(Blame::Store) || any(Blame::Mailbox) { self.in_a_row + 1 } else { 0 };
        // Of no user it says anything where the store has failed.
        if any(Blame::Store) {
            return;
        }
        for (user, blame) in blames().filter(|(_, blame)| *blame != Blame::Copy) {
            self.users.insert(user.clone());
            if blame == Blame::Login {
                self.refused.insert(user.clone());
            }
            if *user != copy.user {
                self.recipients.insert(copy.recipient.clone());
            }
        }
    }

    /// Why the run is to end.
    fn problem(&self) -> Option<String> {
        if self.in_a_row >= IN_A_ROW {
            return Some("the mailbox store has failed several times in a row".into());
        }
        let refused = self.refused.len();
        self.may_be_our_account()
            .then(|| format!("the mailbox store has refused the logins of {refused} users, and let nobody in"))
    }

    /// Whether it may be our account that is refused, and not these users.
    fn may_be_our_account(&self) -> bool {
        self.refused.len() >= REFUSED && !self.let_in
    }
}

fn finish(site: &Site, copy: &RecordedCopy, shown: &mut Shown) -> End {
    let deadline = Deadline::after(site.deadline());
    let mut let_in = false;
    let mut listen = |place: &Place| let_in |= matches!(place, Place::Mailbox { .. });
    // After a panic in one delivery, which the log has, the next one may succeed.
    let ended = catch_unwind(AssertUnwindSafe(|| redelivery::finish_and_tell(site, copy, deadline, &mut listen)));
    shown.let_in |= let_in;
    let error = match ended {
        Ok(Ok(manner)) => {
            shown.let_in = true;
            shown.finished.insert(copy.user.clone());
            shown.nothing();
            return match manner {
                Manner::AlreadyThere | Manner::Adopted(_) => End::ThereAlready,
                Manner::Owed(why) => End::Failed(why),
                Manner::Appended(_) => End::Finished,
            };
        }
        Ok(Err(error)) => error,
        Err(_) => {
            shown.nothing();
            return End::Failed("an internal error, which the log has".into());
        }
    };
    let why = error.to_string();
    match error {
        RedeliveryError::Database(_) | RedeliveryError::Refused(Refusal::Deferred(Deferral::Database(_))) => {
            return End::DatabaseFailed(why);
        }
        RedeliveryError::Refused(Refusal::Deferred(
            ref deferral @ (Deferral::Mailbox(ref error) | Deferral::Unknown(ref error)),
        )) => {
            shown.let_in |= matches!(deferral, Deferral::Unknown(_)) || comes_after_login(error.failure);
            shown.failed(copy, &[(copy.user.clone(), error.failure)]);
        }
        RedeliveryError::OutOfReach(out_of_reach) => shown.failed(copy, &out_of_reach.mailboxes),
        RedeliveryError::Refused(_) | RedeliveryError::NoSource(_) | RedeliveryError::SourcesDenied(_) => {
            shown.nothing();
        }
    }
    End::Failed(why)
}

/// Whether a failure comes only after the login.
fn comes_after_login(failure: MailboxFailure) -> bool {
    matches!(failure, MailboxFailure::NoSuchMailbox | MailboxFailure::OverQuota | MailboxFailure::RefusedForGood)
}

#[cfg(test)]
#[path = "finish_owed_tests.rs"]
mod tests;
