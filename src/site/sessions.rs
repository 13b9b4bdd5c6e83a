//! The database session and the users' IMAP sessions that one delivery may leave to the next.

use super::open::Greeting;
use super::{Site, Terms};
use crate::database::{DatabaseError, Idle, RetryUntil};
use crate::imap;
use crate::ledger::Database;
use crate::ledger::failures::WRITE_TIMEOUT;
use crate::mailbox::ImapMailbox;
use std::time::{Duration, Instant};
use tracing::debug;

/// How many IMAP sessions are kept at most, unless the configuration sets the number.
const KEPT: usize = 8;
/// How long an unused session is kept.
const IDLE: Duration = Duration::from_mins(1);
/// How long a session is kept at all: a user's rights and the server of the mailboxes may change.
const AGE: Duration = Duration::from_mins(10);
/// For how long a process with waiting clients does not open an author's mailbox after it has timed out.
pub(super) const SILENT: Duration = Duration::from_mins(5);

/// The sessions of one process with the servers of one [`Site`], which deliveries use one after the other.
///
/// A delivery opens the sessions that it needs and that are missing. [`end`](Self::end) then keeps the sessions that another
/// delivery may use. A process that delivers once does not call it.
#[derive(Default)]
pub struct Sessions {
    /// The sessions of the last delivery, until [`end`](Self::end).
    pub(super) used_database: Option<Box<dyn Database>>,
    pub(super) used_mailboxes: Vec<ImapMailbox>,
    /// The sessions between two deliveries.
    database: Option<Idle<dyn Database>>,
    pub(super) kept: Kept<imap::Session>,
    pub(super) silent: UnresponsiveUsers,
}

/// The connections that are opened before the route of a message is known.
pub(super) struct Opened {
    pub(super) database: Box<dyn Database>,
    pub(super) greeting: Option<Greeting>,
    /// Whether the database session has served another delivery: the server may have ended it meanwhile.
    pub(super) has_served: bool,
}

impl Sessions {
    /// The connections at the start of a delivery: the kept database session, or a new one. If it is new and no user's session is
    /// kept, this first begins a connection to the IMAP server. So that server sends its greeting while the database checks our
    /// password. Sessions of a delivery that was not [ended](Self::end) are closed.
    pub(super) fn for_a_delivery(
        &mut self,
        site: &Site,
        queue_id: Option<&str>,
        terms: &Terms<'_>,
        patience: &mut RetryUntil,
    ) -> Result<Opened, DatabaseError> {
        let Terms { policy, deadline, .. } = terms;
        self.used_database = None;
        self.used_mailboxes.clear();
        self.kept.at_most = site.mailbox_sessions();
        match self.database.take().map(|idle| idle.begin(&site.client(queue_id), *deadline)) {
            Some(Ok(mut database)) => {
                // The kept session may hang by now. The next statement looks up addresses, which is fast.
                database.expect_fast_reply();
                return Ok(Opened { database, greeting: None, has_served: true });
            }
            Some(Err(error)) => debug!(%error, "the session with the database is reopened"),
            None => {}
        }
        let imap = site.imap_settings().filter(|_| self.kept.is_empty());
        let greeting =
            imap.map(|imap| Greeting::begin(imap, deadline.leaving(WRITE_TIMEOUT).or_within(policy.opening_patience)));
        let database = site.await_database(queue_id, terms, patience)?;
        Ok(Opened { database, greeting, has_served: false })
    }

    /// Ends the last delivery: keeps the sessions that another delivery may use, and closes the rest.
    pub fn end(&mut self) {
        self.database = self.used_database.take().and_then(Idle::after);
        self.keep_mailboxes();
    }

    /// Keeps the users' sessions that another delivery may use, and closes the others.
    pub(super) fn keep_mailboxes(&mut self) {
        let now = Instant::now();
        for mailbox in self.used_mailboxes.drain(..) {
            if let Some(session) = mailbox.end() {
                self.kept.keep(session.user().to_owned(), session.since(), session, now);
            }
        }
    }
}

impl Site {
    /// How many users' sessions one process keeps. This also limits the number of mailboxes to which a message is delivered under
    /// one lock.
    pub(super) fn mailbox_sessions(&self) -> usize {
        self.config().map_or(KEPT, |config| config.service.mailbox_sessions)
    }
}

/// Sessions by their users; the last used one is at the end.
pub(super) struct Kept<S> {
    entries: Vec<KeptSession<S>>,
    pub(super) at_most: usize,
}

struct KeptSession<S> {
    user: String,
    session: S,
    since: Instant,
    used: Instant,
}

impl<S> Default for Kept<S> {
    fn default() -> Self {
        Self { entries: Vec::new(), at_most: KEPT }
    }
}

impl<S> Kept<S> {
    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes and returns a session of exactly this user: no other user may get it.
    pub(super) fn take(&mut self, user: &str, now: Instant) -> Option<S> {
        self.drop_old(now);
        let at = self.entries.iter().rposition(|entry| entry.user == user)?;
        Some(self.entries.remove(at).session)
    }

    fn keep(&mut self, user: String, since: Instant, session: S, now: Instant) {
        self.entries.push(KeptSession { user, session, since, used: now });
        self.drop_old(now);
        if self.entries.len() > self.at_most {
            let oldest = self.entries.remove(0);
            debug!(user = oldest.user, "an IMAP session is closed, for others are used more");
        }
    }

    fn drop_old(&mut self, now: Instant) {
        let span = |since: Instant| now.saturating_duration_since(since);
        self.entries.retain(|entry| span(entry.used) < IDLE && span(entry.since) < AGE);
    }
}

/// Authors whose mailbox has recently timed out, with the time until which that mailbox is not opened.
#[derive(Default)]
pub(super) struct UnresponsiveUsers(Vec<(String, Instant)>);

impl UnresponsiveUsers {
    /// Notes the user for this span from now.
    pub(super) fn note(&mut self, user: &str, now: Instant, span: Duration) {
        self.drop_old(now);
        self.0.push((user.to_owned(), now + span));
    }

    pub(super) fn holds(&mut self, user: &str, now: Instant) -> bool {
        self.drop_old(now);
        self.0.iter().any(|(silent, _)| silent == user)
    }

    fn drop_old(&mut self, now: Instant) {
        self.0.retain(|(_, until)| now < *until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_users_session_is_that_users_alone_and_is_handed_out_once() {
        let now = Instant::now();
        let mut kept = Kept::default();
        kept.keep("lisa".into(), now, 1, now);
        kept.keep("doug".into(), now, 2, now);
        kept.keep("lisa".into(), now, 3, now);
        assert_eq!(kept.take("lis", now), None);
        assert_eq!(kept.take("lisa@x", now), None);
        assert_eq!(kept.take("lisa", now), Some(3));
        assert_eq!(kept.take("lisa", now), Some(1));
        assert_eq!(kept.take("lisa", now), None);
        assert_eq!(kept.take("doug", now), Some(2));
    }

    #[test]
    fn who_did_not_answer_is_left_alone_for_so_long() {
        let (now, mut silent) = (Instant::now(), UnresponsiveUsers::default());
        silent.note("lisa", now, 60 * SECOND);
        assert!(silent.holds("lisa", now + 59 * SECOND) && !silent.holds("lis", now));
        assert!(!silent.holds("lisa", now + 60 * SECOND) && silent.0.is_empty());
        // The longer of two spans counts.
        silent.note("lisa", now, 600 * SECOND);
        silent.note("lisa", now, 60 * SECOND);
        assert!(silent.holds("lisa", now + 599 * SECOND) && !silent.holds("lisa", now + 600 * SECOND));
    }

    #[test]
    fn the_one_that_was_not_used_for_longest_makes_room() {
        let now = Instant::now();
        let mut kept = Kept::default();
        for number in 0..KEPT {
            kept.keep(format!("user{number}"), now, number, now);
        }
        let first = kept.take("user0", now).unwrap();
        kept.keep("user0".into(), now, first, now);
        kept.keep("another".into(), now, 100, now);
        assert_eq!(kept.entries.len(), KEPT);
        assert_eq!(kept.take("user1", now), None);
        assert_eq!((kept.take("user0", now), kept.take("another", now)), (Some(0), Some(100)));
    }

    #[test]
    fn none_is_kept_idle_or_in_all_for_longer_than_its_time() {
        let began = Instant::now();
        let mut kept = Kept::default();
        kept.keep("idle".into(), began, 1, began);
        assert_eq!(kept.take("idle", began + IDLE - SECOND), Some(1));
        kept.keep("idle".into(), began, 1, began);
        assert_eq!(kept.take("idle", began + IDLE), None);
        // A session's total age counts, however busy the session is.
        kept.keep("old".into(), began, 2, began + AGE - SECOND);
        assert_eq!(kept.take("old", began + AGE - SECOND), Some(2));
        kept.keep("old".into(), began, 2, began + AGE - SECOND);
        assert_eq!(kept.take("old", began + AGE), None);
        kept.keep("older".into(), began, 3, began + AGE);
        assert!(kept.is_empty());
    }
}
