//! Proves that logins lead to the mailboxes of the users that they name, before anything is appended to a mailbox or taken out of
//! it. A server that ignores that name says OK to everything, and all mail would go into one INBOX.
//!
//! The proof is kept in the ledger, and read together with the addresses. It is renewed once it is six days old: servers are upgraded, and
//! proxies changed. The service account's own mailbox is no part of it: its mail goes there in any case.
//!
//! | the proof is | what a delivery does |
//! |---|---|
//! | less than six days old | nothing |
//! | less than 14 days old | renews it, if nobody else is at it, in little time. Where that cannot be done, the old one counts |
//! | older, or there is none | proves it, or defers its message |
//! | found to be wrong | as without one, from that moment on, in all processes |
//!
//! That a proof cannot be renewed says nothing of where logins lead: a server may begin to delay logins of users who do not exist, or
//! never answer them, and let in those who do as before. That must not stop all mail. It hides no server that begins to ignore the name:
//! one that does not look at it has nothing to delay, answers, and is found out by the first renewal. One that looks at it, and opens the
//! service account's mailbox for everybody, is found out by that mailbox, which is [looked at even where an invented name gets no
//! answer](authorization::renew). Only one that from then on answers the service account's own login no more, either, has a week longer.

use super::Site;
use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::delivery::Deferral;
use crate::imap;
use crate::ledger::{Database, WayIn};
use crate::lock::{Acquired, LockName};
use crate::mailbox::imap::authorization::{self, Honoured};
use crate::mailbox::{MailboxError, MailboxFailure};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};

const DAY: Duration = Duration::from_hours(24);

/// A proof of this age is renewed, if that can be done.
const RENEWED_FROM: Duration = DAY.saturating_mul(6);

/// A proof of this age counts no more.
const HOLDS_FOR: Duration = DAY.saturating_mul(14);

/// How long it may take to renew it, and half of that without the [last look](authorization::renew): logins, two of which some servers
/// delay by seconds.
const RENEWAL: Duration = Duration::from_secs(20);

/// For how long a process that could not renew it leaves that to others. (Under pipe(8) each is a new one: there it is the lock
/// that lets one at a time lose its time.)
const PAUSE: Duration = Duration::from_mins(5);

/// How long to wait for another delivery that is proving it: some servers delay the answer to a failed login by seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the user's own mailbox may take at the first try; at each further one it has twice as long. It may be one that hangs, while all
/// others wait: between two tries any of them may prove it.
const FIRST_TRY: Duration = Duration::from_secs(5);

/// When this process has last failed to renew the proof.
#[derive(Debug, Default)]
pub(super) struct Renewals(Mutex<Option<Instant>>);

/// How a way in is tried: the user, the mailbox, the deadline, and that for the user's own mailbox to be open.
type Prove =
    fn(&imap::Settings, &str, &str, Deadline, Deadline) -> Result<Result<Honoured, MailboxError>, MailboxError>;

impl Site {
    /// Makes sure that logins lead to their users' mailboxes: by the proof in the ledger, or by a new one with this user's `mailbox`.
    ///
    /// # Errors
    /// Where they do not, or where it cannot be proven now.
    pub(crate) fn prove_way_in(
        &self,
        user: &str,
        mailbox: &str,
        database: &mut dyn Database,
        deadline: Deadline,
    ) -> Result<(), Deferral> {
        let Some(way_in) = self.way_in() else { return Ok(()) };
        let proven = database.look_up(&[], Some(way_in)).map_err(Deferral::Database)?.proven;
        self.prove_way_in_unless(proven, (user, mailbox), database, deadline, None)
    }

    /// The same, where the ledger has said how many seconds ago it was proven. Where there are others by whose mailboxes it can be proven,
    /// this one is tried once, and has so long to open.
    pub(super) fn prove_way_in_unless(
        &self,
        proven: Option<f64>,
        (user, mailbox): (&str, &str),
        database: &mut dyn Database,
        deadline: Deadline,
        only_try: Option<Duration>,
    ) -> Result<(), Deferral> {
        let Some(way_in) = self.way_in().filter(|_| self.is_proof_due(proven)) else { return Ok(()) };
        if self.is_service_account(user) {
            return Ok(());
        }
        if let Some(age) = proven.filter(|age| counts(*age)) {
            return self.renew(way_in, age, (user, mailbox), database, deadline, only_try);
        }
        // One at a time: a hundred failed logins at once look like an attack, and servers lock such hosts out.
        let lock = lock_of(way_in);
        let patience = only_try.unwrap_or(PATIENCE).min(deadline.half_way().remaining());
        let (until, mut patience_with_one) = (deadline.half_way(), only_try.unwrap_or(FIRST_TRY));
        loop {
            if let Acquired::Busy(_) = database.acquire(&lock, patience).map_err(Deferral::Database)? {
                let doing = "finding out whether the IMAP server honours the authorization identity";
                let detail = "another delivery has been at it for too long";
                return Err(Deferral::Mailbox(MailboxError::new(MailboxFailure::TimedOut, doing, detail)));
            }
            let in_time =
                if until.passed() { deadline } else { deadline.or_sooner(Deadline::after(patience_with_one)) };
            let prove = authorization::prove_if_in_time;
            let proven = self.prove_under_lock(way_in, (user, mailbox), database, (deadline, in_time), prove);
            release(database, &lock);
            match proven? {
                Ok(()) => return Ok(()),
                Err(error) if only_try.is_some() || until.passed() => return Err(Deferral::Mailbox(error)),
                Err(error) => {
                    debug!(%error, user, "the way in is not proven yet");
                    patience_with_one = patience_with_one.saturating_mul(2);
                }
            }
        }
    }

    /// Renews the proof, of so many seconds ago, if that can be done now. Where it cannot, the old one counts.
    ///
    /// # Errors
    /// Where the server is found to ignore the name, by us or by another delivery: from then on there is no proof. Or where the database
    /// fails.
    fn renew(
        &self,
        way_in: &WayIn,
        age: f64,
        mailbox: (&str, &str),
        database: &mut dyn Database,
        deadline: Deadline,
        only_try: Option<Duration>,
    ) -> Result<(), Deferral> {
        if !self.renewals.may_begin(Instant::now()) {
            return Ok(());
        }
        let lock = lock_of(way_in);
        if let Acquired::Busy(_) = database.acquire(&lock, Duration::ZERO).map_err(Deferral::Database)? {
            return Ok(());
        }
        let deadline = deadline.half_way().or_sooner(Deadline::after(RENEWAL));
        let in_time = deadline.or_sooner(Deadline::after(only_try.unwrap_or(FIRST_TRY)));
        let renewed = self.prove_under_lock(way_in, mailbox, database, (deadline, in_time), authorization::renew);
        release(database, &lock);
        let error = match renewed {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(Deferral::Mailbox(error)) if error.failure != MailboxFailure::IdentityIgnored => error,
            Err(deferral) => return Err(deferral),
        };
        if !database.look_up(&[], Some(way_in)).map_err(Deferral::Database)?.proven.is_some_and(counts) {
            return Err(Deferral::Mailbox(error));
        }
        self.renewals.failed(Instant::now());
        let (way_in, proven_days_ago, user) = (&way_in.text, days(age), mailbox.0);
        warn!(
            way_in,
            proven_days_ago,
            user,
            %error,
            "it cannot be proven anew that the IMAP server honours the authorization identity; the old proof counts for 14 days"
        );
        Ok(())
    }

    /// `Ok(Err(…))`: the user's own mailbox was not open in time.
    fn prove_under_lock(
        &self,
        way_in: &WayIn,
        (user, mailbox): (&str, &str),
        database: &mut dyn Database,
        (deadline, in_time): (Deadline, Deadline),
        prove: Prove,
    ) -> Result<Result<(), MailboxError>, Deferral> {
        let Some(site) = self.as_configured() else { return Ok(Ok(())) };
        // The delivery that had the lock before us may have proven it. (On PostgreSQL this statement's snapshot then stays during
        // the logins: for seconds, every six days.)
        if is_fresh(database.look_up(&[], Some(way_in)).map_err(Deferral::Database)?.proven) {
            return Ok(Ok(()));
        }
        let honoured = match site.imap().and_then(|imap| prove(imap, user, mailbox, deadline, in_time)) {
            Ok(Ok(honoured)) => honoured,
            Ok(Err(error)) => return Ok(Err(error)),
            Err(error) => {
                if error.failure == MailboxFailure::IdentityIgnored
                    // Nobody goes by what was proven before, while others find out the same.
                    && let Err(error) = database.disprove_way_in(way_in, &self.host)
                {
                    warn!(%error, "that the way in is disproved is not written down");
                }
                return Err(Deferral::Mailbox(error));
            }
        };
        info!(way_in = way_in.text, %honoured, "the IMAP server honours the authorization identity");
        database.record_way_in(way_in, &self.host).map(Ok).map_err(Deferral::Database)
    }

    /// Whether the way in is to be proven, or the proof to be renewed, where the ledger says that it was so many seconds ago.
    pub(super) fn is_proof_due(&self, proven: Option<f64>) -> bool {
        self.way_in().is_some() && !is_fresh(proven)
    }

    /// For how many days nobody has renewed the proof, where it counts still and a day has passed on which each delivery would have.
    ///
    /// # Errors
    /// Where the database cannot be asked.
    pub(crate) fn days_of_an_old_proof(&self, database: &mut dyn Database) -> Result<Option<u64>, DatabaseError> {
        let Some(way_in) = self.way_in() else { return Ok(None) };
        let proven = database.look_up(&[], Some(way_in))?.proven;
        Ok(proven.filter(|age| is_overdue(*age)).map(days))
    }

    /// Whether this user is the service account, whose own mail needs no proof, and gives none.
    pub(crate) fn is_service_account(&self, user: &str) -> bool {
        let site = self.as_configured().filter(|site| site.way_in.is_some());
        site.and_then(|site| site.imap.as_ref()).is_some_and(|imap| authorization::is_for_itself(imap, user))
    }

    /// How we log in, where a login names the user. Otherwise the mailboxes' names do, and there is nothing to prove.
    pub(super) fn way_in(&self) -> Option<&WayIn> {
        self.as_configured().and_then(|site| site.way_in.as_ref())
    }
}

impl Renewals {
    fn may_begin(&self, now: Instant) -> bool {
        self.last().is_none_or(|failed| now.saturating_duration_since(failed) >= PAUSE)
    }

    fn failed(&self, now: Instant) {
        *self.last() = Some(now);
    }

    fn last(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock_of(way_in: &WayIn) -> LockName {
    LockName::new("maildrop way in", &way_in.digest)
}

fn release(database: &mut dyn Database, lock: &LockName) {
    if let Err(error) = database.release(lock) {
        debug!(%error, "the lock was not released; the server frees it with the connection");
    }
}

fn days(age: f64) -> u64 {
    Duration::try_from_secs_f64(age.abs()).map_or(0, |age| age.as_secs() / DAY.as_secs())
}

/// Whether what was proven so many seconds ago need not be renewed yet.
fn is_fresh(proven: Option<f64>) -> bool {
    proven.is_some_and(|age| is_within(age, RENEWED_FROM))
}

/// Whether what was proven so many seconds ago counts, though it may have to be renewed.
fn counts(age: f64) -> bool {
    is_within(age, HOLDS_FOR)
}

/// Whether it counts still, and a day has passed on which each delivery would have renewed it.
fn is_overdue(age: f64) -> bool {
    counts(age) && !is_within(age, RENEWED_FROM + DAY)
}

/// A negative age is that of a clock that was set back.
fn is_within(age: f64, span: Duration) -> bool {
    age.abs() < span.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_expires_and_one_from_the_future_holds_no_longer_than_another() {
        let days = |days: f64| days * DAY.as_secs_f64();
        assert!(is_fresh(Some(0.0)) && is_fresh(Some(days(5.9))) && is_fresh(Some(-1.0)));
        assert!(!is_fresh(None) && !is_fresh(Some(days(6.1))) && !is_fresh(Some(days(-6.1))));
        assert!(!is_fresh(Some(days(6.0))) && !counts(days(14.0)));
        assert!(counts(days(6.1)) && counts(days(13.9)) && counts(days(-13.9)));
        assert!(!counts(days(14.1)) && !counts(days(-14.1)));
        assert_eq!([5.9, 6.9, 7.1, 13.9, 14.1].map(|age| is_overdue(days(age))), [false, false, true, true, false]);
        assert_eq!([0.9, 8.0, 13.9, -8.1, f64::INFINITY].map(|age| super::days(days(age))), [0, 8, 13, 8, 0]);
    }

    #[test]
    fn a_process_that_could_not_renew_it_leaves_that_to_others_for_five_minutes() {
        let (renewals, now) = (Renewals::default(), Instant::now());
        assert!(renewals.may_begin(now));
        renewals.failed(now);
        assert!(!renewals.may_begin(now) && !renewals.may_begin(now + Duration::from_secs(299)));
        assert!(renewals.may_begin(now + Duration::from_secs(300)));
    }
}
