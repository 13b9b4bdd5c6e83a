//! A session that serves one delivery after another.
//!
//! A session is opened for its first delivery, with that delivery's deadline and name. Before it serves another, [`Idle`]
//! proves that it carries nothing over; in doubt it is closed.

use super::DatabaseError;
use crate::base::deadline::Deadline;
use std::time::Duration;
use tracing::debug;

/// How long the server may work on a statement, in whole milliseconds; never 0, which servers take as no limit.
pub(super) fn longest(longest: Duration, deadline: Deadline) -> u128 {
    longest.min(deadline.remaining()).as_millis().max(1)
}

/// What the server's list of sessions shows of us, so that other processes see who holds a lock.
#[derive(Clone, Debug)]
pub struct Client {
    pub host: String,
    pub pid: u32,
    pub queue_id: Option<String>,
}

/// How long to wait for the answer at a session's [`end`](Session::end), even if there is no other server. A healthy server
/// answers at once. The limit is shorter than what a worker's watchdog allows between two deliveries, so that a server that
/// hangs costs the session, and not the process.
pub(super) const RESET_TIMEOUT: Duration = Duration::from_secs(5);

/// A session with a database, whatever the engine, while it serves a delivery.
pub trait Session {
    /// How many round trips to the server there were since this delivery began, without those of connecting.
    fn round_trips(&self) -> u32;

    /// Whether the server has reported, without being asked, that it takes no writes.
    fn said_read_only(&self) -> bool {
        false
    }

    /// Whether the server takes no writes now, because a pooler's report may be outdated. At most one round trip.
    ///
    /// # Errors
    /// If the server does not answer.
    fn is_read_only(&mut self) -> Result<bool, DatabaseError> {
        Ok(self.said_read_only())
    }

    /// Whether commits cannot finish, as far as the last answer shows: each waits for a standby, and none follows. The
    /// standby may be away for a moment, or have taken over and left this server behind.
    fn lacks_sync_standby(&self) -> bool {
        false
    }

    /// Fails if this process has noticed meanwhile that another server took over. No round trip.
    ///
    /// # Errors
    /// [`DatabaseFailure::Behind`](super::DatabaseFailure::Behind).
    fn check_still_primary(&mut self) -> Result<(), DatabaseError> {
        Ok(())
    }

    /// Says that a healthy server answers the next statement at once. Of several servers, an unresponsive one is then given
    /// up soon ([`Limits::login`](super::Limits::login)), because another may answer.
    fn expect_fast_reply(&mut self) {}

    /// From now on the server itself ends a statement that only reads ([`Tables::select`](super::Tables::select)) after this
    /// time, or at the deadline if that is sooner. Otherwise it would continue for a client that no longer waits. PostgreSQL
    /// ends statements that change rows as well; MySQL and MariaDB limit only their waits for other sessions.
    ///
    /// A server that does not answer any statement by a few seconds after the deadline is given up, since one that hangs
    /// would never answer. Takes no round trip.
    ///
    /// For processes that neither a watchdog nor a person ends. A lock's session has limits of its own, and SQLite runs in
    /// this process.
    fn limit_statement_time(&mut self, _longest: Duration) {}

    /// Begins another delivery. Takes no round trip: the settings are sent with the first statement.
    ///
    /// # Errors
    /// If the server is known to have ended the session, or if a time limit of its socket is too short for this deadline.
    fn begin(&mut self, client: &Client, deadline: Deadline, _: Sealed) -> Result<(), DatabaseError>;

    /// Proves that the delivery left nothing behind: no transaction, no lock. One round trip.
    ///
    /// # Errors
    /// If something is left, or may be left because of an error or a missing answer; or if the server takes no writes any
    /// more.
    fn end(&mut self, _: Sealed) -> Result<(), DatabaseError>;
}

/// Only [`Idle`] can create this, so that only [`Idle`] begins and ends deliveries of a session.
pub struct Sealed(());

/// A session between two deliveries, proven to carry nothing over. The only operation on it is to begin the next
/// delivery.
///
/// ```no_run
/// # use maildrop_command::base::deadline::Deadline;
/// # use maildrop_command::database::{Client, DatabaseError, Idle};
/// # use maildrop_command::ledger::Database;
/// # fn connect(_: &Client, _: Deadline) -> Result<Box<dyn Database>, DatabaseError> { unimplemented!() }
/// # fn deliver(_: &mut dyn Database) {}
/// # fn serve(deliveries: Vec<(Client, Deadline)>) -> Result<(), DatabaseError> {
/// let mut idle: Option<Idle<dyn Database>> = None;
/// for (client, deadline) in deliveries {
///     // The idle session begins the delivery; without a usable one, a new session is opened.
///     let begun = idle.take().map(|idle| idle.begin(&client, deadline));
///     let mut database = match begun {
///         Some(Ok(database)) => database,
///         Some(Err(_)) | None => connect(&client, deadline)?,
///     };
///     deliver(database.as_mut());
///     idle = Idle::after(database);
/// }
/// # Ok(())
/// # }
/// ```
///
/// A server may have ended the session unnoticed. Then the first statement fails, and
/// [`DatabaseError::a_new_session_can_help`] is true. As long as nothing is journalled, the delivery may open a new session,
/// once.
pub struct Idle<S: Session + ?Sized>(Box<S>);

impl<S: Session + ?Sized> Idle<S> {
    /// Ends the delivery that `session` was opened or begun for. `None` if the session may carry anything over: it has been
    /// closed, and the log says why.
    #[must_use]
    pub fn after(mut session: Box<S>) -> Option<Self> {
        match session.end(Sealed(())) {
            Ok(()) => Some(Self(session)),
            Err(error) => {
                debug!(%error, "this database session is not used again");
                None
            }
        }
    }

    /// Begins another delivery.
    ///
    /// # Errors
    /// If the session cannot serve the delivery. The session has been closed; a new one can serve the delivery.
    pub fn begin(mut self, client: &Client, deadline: Deadline) -> Result<Box<S>, DatabaseError> {
        self.0.begin(client, deadline, Sealed(()))?;
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session whose server has reported nothing.
    struct Plain {
        ends: bool,
    }

    impl Session for Plain {
        fn round_trips(&self) -> u32 {
            0
        }
        fn begin(&mut self, _: &Client, _: Deadline, _: Sealed) -> Result<(), DatabaseError> {
            Ok(())
        }
        fn end(&mut self, _: Sealed) -> Result<(), DatabaseError> {
            if self.ends { Ok(()) } else { Err(DatabaseError::other("ending", "a lock is still held")) }
        }
    }

    #[test]
    fn a_session_that_may_carry_something_over_is_not_used_again() {
        assert!(Idle::after(Box::new(Plain { ends: true })).is_some());
        assert!(Idle::after(Box::new(Plain { ends: false })).is_none());
    }

    #[test]
    fn one_that_has_sent_nothing_of_itself_takes_writes() {
        let mut session = Plain { ends: true };
        assert!(!session.said_read_only() && !session.is_read_only().unwrap() && !session.lacks_sync_standby());
    }

    #[test]
    fn a_server_works_on_a_question_for_no_longer_than_is_left_and_never_for_ever() {
        let hour = Duration::from_hours(1);
        assert_eq!(longest(Duration::from_millis(1500), Deadline::after(hour)), 1500);
        assert!((2..=60_000).contains(&longest(hour, Deadline::after(Duration::from_mins(1)))));
        assert_eq!(longest(hour, Deadline::after(Duration::ZERO)), 1);
    }
}
