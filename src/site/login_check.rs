//! Proves that logins lead to the mailboxes of the users that they name, before a copy is appended or removed. A server that
//! ignores this name accepts every login, and all mail would go into one INBOX.
//!
//! The ledger keeps the proof; a delivery reads it together with the addresses. The timer renews the proof once a day, because
//! servers are upgraded and proxies change. Mail for the service account needs no proof: its mail goes to its own mailbox in any
//! case.
//!
//! | the proof is | what a delivery does |
//! |---|---|
//! | less than 14 days old | nothing |
//! | older, or there is none | proves it, or defers its message |
//! | found to be wrong | as without one, from that moment on, in all processes |
//!
//! A failed renewal does not show where logins lead. For example, a server may begin to delay the logins of unknown users, or
//! never answer them, and still let in existing users. That must not stop all mail, so the old proof remains valid meanwhile.

use super::open::silent_a_moment_ago;
use super::plan::Destinations;
use super::sessions::UnresponsiveUsers;
use super::{Site, Terms};
use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::delivery::Deferral;
use crate::imap;
use crate::ledger::{Database, Destination, LoginCheck};
use crate::lock::{Acquired, LockName};
use crate::mailbox::imap::authorization;
use crate::mailbox::{MailboxError, MailboxFailure};
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};

/// How often the timer renews a proof.
pub(crate) const RENEWED_EVERY: Duration = Duration::from_hours(24);

/// A proof of this age is renewed. The age is less than a day, since clocks differ; a younger proof comes from another host's
/// timer.
const RENEWED_FROM: Duration = Duration::from_hours(12);

/// A proof of this age is no longer valid.
pub(super) const COUNTS_FOR: Duration = Duration::from_hours(14 * 24);

/// The time limit of a renewal: it consists of logins, two of which some servers delay by seconds.
pub(crate) const RENEWAL: Duration = Duration::from_mins(1);

/// How many users' mailboxes a proof tries.
pub(super) const PROOFS: usize = 3;

/// How long to wait for another delivery that tries to find the proof: some servers delay the answer to a failed login by
/// seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the user's own mailbox may take in the first try; each further try has twice as long. The mailbox may hang while all
/// other deliveries wait. Between two tries, any of them may find the proof.
const FIRST_TRY: Duration = Duration::from_secs(5);

impl Site {
    /// Ensures that logins lead to their users' mailboxes: with the proof in the ledger, or with a new one by this user's
    /// `mailbox`.
    ///
    /// # Errors
    /// If logins do not lead there, or if no proof is possible now.
    pub(crate) fn prove_login(
        &self,
        user: &str,
        mailbox: &str,
        database: &mut dyn Database,
        deadline: Deadline,
    ) -> Result<(), Deferral> {
        match self.age_of_the_proof(database).map_err(Deferral::Database)? {
            Some(_) => Ok(()),
            None => self.prove_login_by_one(COUNTS_FOR, (user, mailbox), database, deadline, None),
        }
    }

    /// Proves the logins to the mailbox store, if a proof is due, with the mailbox of one of the recipients. Of several
    /// recipients, one whose login fails does not delay the others.
    ///
    /// Mail for the service account needs no proof. If that account is the only recipient, the author's copy still needs one,
    /// with the author's mailbox. `Some` is the reason not to open that mailbox.
    pub(super) fn prove_login_by_one_of(
        &self,
        Destinations { recipients, sender, proven }: &Destinations,
        terms: &Terms<'_>,
        database: &mut dyn Database,
        silent: &mut UnresponsiveUsers,
    ) -> Result<Option<MailboxError>, Deferral> {
        if !self.is_proof_due(*proven) {
            return Ok(None);
        }
        let is_another = |to: &&Destination| !self.is_service_account(&to.user);
        let known: Vec<&Destination> = recipients.iter().filter_map(|to| to.as_ref().ok()).collect();
        let others = known.iter().copied().filter(is_another).take(PROOFS);
        let ways: Vec<_> = others.map(|to| (to.user.as_str(), to.inbox.as_str())).collect();
        if !ways.is_empty() {
            let only_try = self.policy.slow_mailbox_timeout;
            return self.prove_login_by(&ways, COUNTS_FOR, database, terms.deadline, only_try).map(|()| None);
        }
        // If the copy is left to the author's mail program, the author's mailbox is not opened now.
        let is_opened = !known.is_empty() && self.left_to_authors_for().is_none();
        let author = sender.as_ref().filter(|_| is_opened).filter(is_another);
        let Some(author) = author else { return Ok(None) };
        if silent.holds(&author.user, Instant::now()) {
            return Ok(Some(silent_a_moment_ago()));
        }
        let patience = terms.policy.author_patience.unwrap_or(self.policy.slow_mailbox_timeout);
        let (mailbox, deadline) = ((author.user.as_str(), author.sent.as_str()), terms.deadline.half_way());
        match self.prove_login_by_one(COUNTS_FOR, mailbox, database, deadline, Some(patience)) {
            Err(Deferral::Mailbox(error)) => Ok(Some(error)),
            proven => proven.map(|()| None),
        }
    }

    /// Finds the proof with one of these mailboxes, unless a proof is younger than `unless_within`. Each mailbox except the last
    /// is tried once, and has `only_try` to open.
    pub(super) fn prove_login_by(
        &self,
        mailboxes: &[(&str, &str)],
        unless_within: Duration,
        database: &mut dyn Database,
        deadline: Deadline,
        only_try: Duration,
    ) -> Result<(), Deferral> {
        let mut left = mailboxes.len();
        for mailbox in mailboxes {
            left -= 1;
            let only_try = (left > 0).then_some(only_try);
            match self.prove_login_by_one(unless_within, *mailbox, database, deadline, only_try) {
                Err(Deferral::Mailbox(error)) if error.failure != MailboxFailure::IdentityIgnored && left > 0 => {
                    debug!(%error, user = mailbox.0, "the login path is proven by another user's mailbox");
                }
                proven => return proven,
            }
        }
        Ok(())
    }

    /// Like [`prove_login_by`](Self::prove_login_by), with one mailbox.
    pub(super) fn prove_login_by_one(
        &self,
        unless_within: Duration,
        (user, mailbox): (&str, &str),
        database: &mut dyn Database,
        deadline: Deadline,
        only_try: Option<Duration>,
    ) -> Result<(), Deferral> {
        let Some(login_check) = self.login_check().filter(|_| !self.is_service_account(user)) else { return Ok(()) };
        // Only one login test runs at a time: a hundred failed logins at once look like an attack, and servers lock such hosts
        // out.
        let lock = lock_of(login_check);
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
            let proven =
                self.prove_under_lock(login_check, unless_within, (user, mailbox), database, (deadline, in_time));
            if let Err(error) = database.release(&lock) {
                debug!(%error, "the lock was not released; the server frees it with the connection");
            }
            match proven {
                // This mailbox may hang. Between two tries, other deliveries may find the proof with theirs.
                Err(Deferral::Mailbox(error))
                    if error.failure == MailboxFailure::TimedOut && only_try.is_none() && !until.passed() =>
                {
                    debug!(%error, user, "the login path is not proven yet");
                    patience_with_one = patience_with_one.saturating_mul(2);
                }
                proven => return proven,
            }
        }
    }

    /// Renews the proof with users of the address table, unless it is fresh, and returns a sentence about the result. Until the
    /// old proof expires, deliveries rely on it even if the renewal fails.
    ///
    /// # Errors
    /// If the server ignores the name: from then on there is no proof. Also if no proof is possible now.
    pub(crate) fn renew_proof(&self, deadline: Deadline) -> Result<&'static str, Deferral> {
        if self.login_check().is_none() {
            return Ok(
                "nothing to renew: no login names a user, or the password of the mailbox store cannot be read here",
            );
        }
        let mut database = self.open_database(None, deadline).map_err(Deferral::Database)?;
        let users = self.some_users(PROOFS, database.as_mut()).map_err(Deferral::Database)?;
        let mailboxes: Vec<(&str, &str)> = users.iter().map(|to| (to.user.as_str(), to.inbox.as_str())).collect();
        self.prove_login_by(&mailboxes, RENEWED_FROM, database.as_mut(), deadline, FIRST_TRY)?;
        Ok(match users.is_empty() {
            true => "no address is known by which to prove it",
            false => "logins lead to the mailboxes of the users that they name",
        })
    }

    fn prove_under_lock(
        &self,
        login_check: &LoginCheck,
        unless_within: Duration,
        (user, mailbox): (&str, &str),
        database: &mut dyn Database,
        (deadline, in_time): (Deadline, Deadline),
    ) -> Result<(), Deferral> {
        let Some(site) = self.as_configured() else { return Ok(()) };
        // The previous holder of the lock may have found the proof. (On PostgreSQL the snapshot of this statement lasts through
        // the logins: for seconds, once a day.)
        let proven = database.look_up(&[], Some(login_check)).map_err(Deferral::Database)?.proven;
        if proven.is_some_and(|age| is_within(age, unless_within)) {
            return Ok(());
        }
        let users = self.some_users(2, database).map_err(Deferral::Database)?;
        let other = users.iter().map(|to| to.user.as_str()).find(|other| *other != user);
        let proven = |imap| authorization::prove(imap, (user, other), mailbox, deadline, in_time);
        let honoured = site.imap().and_then(proven).map_err(|error| {
            if error.failure == MailboxFailure::IdentityIgnored
                // No delivery may rely on the earlier proof once the server is known to ignore the name.
                && let Err(error) = database.record_login_check(login_check, &self.host, false)
            {
                warn!(%error, "that the login path is disproved was not recorded");
            }
            Deferral::Mailbox(error)
        })?;
        info!(login = login_check.text, %honoured, "the IMAP server honours the authorization identity");
        database.record_login_check(login_check, &self.host, true).map_err(Deferral::Database)
    }

    /// Whether a proof must be found before a delivery. `proven` is the age of the ledger's proof, in seconds.
    pub(super) fn is_proof_due(&self, proven: Option<f64>) -> bool {
        self.login_check().is_some() && !proven.is_some_and(counts)
    }

    /// The age of the proof on which deliveries rely; `None` if no proof is valid.
    ///
    /// # Errors
    /// If the database does not answer.
    pub(crate) fn age_of_the_proof(&self, database: &mut dyn Database) -> Result<Option<Duration>, DatabaseError> {
        let Some(login_check) = self.login_check() else { return Ok(None) };
        let proven = database.look_up(&[], Some(login_check))?.proven.filter(|age| counts(*age));
        Ok(proven.and_then(|age| Duration::try_from_secs_f64(age.abs()).ok()))
    }

    /// The settings of the mailbox store, if a login names the user and the store's password was read. In all other cases there
    /// is nothing to prove.
    pub(crate) fn imap_of_named_users(&self) -> Option<&imap::Settings> {
        self.imap_settings().filter(|imap| imap.name_the_user())
    }

    /// Whether this user is the service account. Mail for it needs no proof, and its mailbox provides none.
    pub(crate) fn is_service_account(&self, user: &str) -> bool {
        self.imap_of_named_users().is_some_and(|imap| imap.user == user)
    }

    /// The kind of login, if a login names the user. If the mailboxes' names do that instead, there is nothing to prove.
    pub(super) fn login_check(&self) -> Option<&LoginCheck> {
        self.as_configured().and_then(|site| site.login_check.as_ref())
    }
}

fn lock_of(login_check: &LoginCheck) -> LockName {
    LockName::new("maildrop way in", &login_check.digest)
}

/// Whether a proof of this age, in seconds, is valid.
fn counts(age: f64) -> bool {
    is_within(age, COUNTS_FOR)
}

/// Whether an age, in seconds, is within this span. A clock that was set back makes an age negative.
fn is_within(age: f64, span: Duration) -> bool {
    age.abs() < span.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_expires_and_one_from_the_future_counts_no_longer_than_another() {
        let days = |days: f64| days * RENEWED_EVERY.as_secs_f64();
        assert!(counts(0.0) && counts(days(13.9)) && counts(days(-13.9)));
        assert!(!counts(days(14.0)) && !counts(days(-14.1)) && !counts(f64::INFINITY) && !counts(f64::NAN));
        // The proof is due after the timer's interval even if clocks differ.
        assert!(!is_within(days(0.9), RENEWED_FROM) && is_within(days(0.4), RENEWED_FROM));
    }
}
