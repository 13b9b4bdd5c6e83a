//! Proves that logins lead to the mailboxes of the users that they name, before anything is appended to a mailbox or taken out of
//! it. A server that ignores that name says OK to everything, and all mail would go into one INBOX.
//!
//! The proof is kept in the ledger, and read together with the addresses. It is renewed each week: servers are upgraded, and proxies
//! changed. The service account's own mailbox is no part of it: its mail goes there in any case.

use super::Site;
use crate::base::deadline::Deadline;
use crate::delivery::Deferral;
use crate::ledger::{Database, WayIn};
use crate::lock::{Acquired, LockName};
use crate::mailbox::imap::authorization;
use crate::mailbox::{MailboxError, MailboxFailure};
use std::time::Duration;
use tracing::{debug, info};

/// For how long a proof holds.
const HOLDS_FOR: Duration = Duration::from_hours(7 * 24);

/// How long to wait for another delivery that is proving it: some servers delay the answer to a failed login by seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the user's own mailbox may take at the first try; at each further one it has twice as long. It may be one that hangs, while all
/// others wait: between two tries any of them may prove it.
const FIRST_TRY: Duration = Duration::from_secs(5);

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
        // One at a time: a hundred failed logins at once look like an attack, and servers lock such hosts out.
        let lock = LockName::new("maildrop way in", &way_in.digest);
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
            let proven = self.prove_under_lock(way_in, (user, mailbox), database, deadline, in_time);
            if let Err(error) = database.release(&lock) {
                debug!(%error, "the lock was not released; the server frees it with the connection");
            }
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

    /// `Ok(Err(…))`: the user's own mailbox was not open in time.
    fn prove_under_lock(
        &self,
        way_in: &WayIn,
        (user, mailbox): (&str, &str),
        database: &mut dyn Database,
        deadline: Deadline,
        in_time: Deadline,
    ) -> Result<Result<(), MailboxError>, Deferral> {
        let Some(site) = self.as_configured() else { return Ok(Ok(())) };
        // The delivery that had the lock before us may have proven it. (On PostgreSQL this statement's snapshot then stays during
        // the logins: for seconds, once a week.)
        if holds(database.look_up(&[], Some(way_in)).map_err(Deferral::Database)?.proven) {
            return Ok(Ok(()));
        }
        let proven = site
            .imap()
            .and_then(|imap| authorization::prove_if_in_time(imap, user, mailbox, deadline, in_time))
            .map_err(Deferral::Mailbox)?;
        let honoured = match proven {
            Ok(honoured) => honoured,
            Err(error) => return Ok(Err(error)),
        };
        info!(way_in = way_in.text, %honoured, "the IMAP server honours the authorization identity");
        database.record_way_in(way_in, &self.host).map(Ok).map_err(Deferral::Database)
    }

    /// Whether the way in is to be proven, where the ledger says that it was so many seconds ago.
    pub(super) fn is_proof_due(&self, proven: Option<f64>) -> bool {
        self.way_in().is_some() && !holds(proven)
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

/// Whether what was proven so many seconds ago still holds. A negative number is a clock that was set back.
fn holds(proven: Option<f64>) -> bool {
    proven.is_some_and(|age| age.abs() < HOLDS_FOR.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_expires_and_one_from_the_future_holds_no_longer_than_another() {
        let day = 86_400.0;
        assert!(holds(Some(0.0)) && holds(Some(6.9 * day)) && holds(Some(-1.0)));
        assert!(!holds(None) && !holds(Some(7.1 * day)) && !holds(Some(-7.1 * day)));
    }
}
