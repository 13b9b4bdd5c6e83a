//! A session that serves one delivery after another.
//!
//! A session is opened for its first delivery, with that delivery's deadline and name. Before it serves another, it is
//! proven to carry nothing over ([`Idle`]); in doubt it is closed.

use super::DatabaseError;
use crate::base::deadline::Deadline;
use std::time::Duration;
use tracing::debug;

/// How long the server may work on a statement, in whole milliseconds; never 0, which servers take as no limit.
pub(super) fn longest(longest: Duration, deadline: Deadline) -> u128 {
    longest.min(deadline.remaining()).as_millis().max(1)
}

/// What the server's list of sessions shows of us: other processes see there who holds a lock.
#[derive(Clone, Debug)]
pub struct Client {
    /// This host's name.
    pub host: String,
    /// This process's id.
    pub pid: u32,
    /// Postfix's queue id, if given.
    pub queue_id: Option<String>,
}

/// How long to wait for the answer at a session's [`end`](Session::end), even if there is no other server. A healthy
/// server answers at once. The limit is less than what a worker's watchdog leaves between two deliveries. So a server
/// that hangs costs the session, and not the process.
pub(super) const RESET_TIMEOUT: Duration = Duration::from_secs(5);

/// Who could read the traffic, or impersonate the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privacy {
    /// Any machine in between: the connection is not encrypted, and goes to another host.
    InClear,
    /// Any machine with a certificate for the host's name from an authority of the `ca_file`, or from a public one.
    CaFileAndPublic,
    /// The server is on this machine, or its certificate is by an authority that the system trusts.
    Good,
}

/// A session with a database, whatever the engine, while it serves a delivery.
pub trait Session {
    /// How many round trips to the server there were since this delivery began, without those of connecting.
    fn round_trips(&self) -> u32;

    /// Who could read the traffic.
    fn privacy(&self) -> Privacy {
        Privacy::Good
    }

    /// Whether the server takes no writes, as far as it has reported without being asked.
    fn said_read_only(&self) -> bool {
        false
    }

    /// Whether it takes none now: a pooler's report of its server may be outdated. One round trip at most.
    ///
    /// # Errors
    /// If it does not answer.
    fn is_read_only(&mut self) -> Result<bool, DatabaseError> {
        Ok(self.said_read_only())
    }

    /// Whether no commit can finish there, as far as is known without asking: each waits for a standby, and none
    /// follows. That is so on a primary whose standby is away for a moment, and on one that was left behind when its
    /// standby took over.
    fn lacks_sync_standby(&self) -> bool {
        false
    }

    /// Whether this host has seen meanwhile that another server took over. No round trip.
    ///
    /// # Errors
    /// If so, with [`DatabaseFailure::Behind`](super::DatabaseFailure::Behind).
    fn check_still_primary(&mut self) -> Result<(), DatabaseError> {
        Ok(())
    }

    /// The next statement is one that a server answers at once, if it answers at all. If there are several servers, an
    /// unresponsive one is given up soon ([`Limits::let_in`](super::Limits::let_in)), as the next one may do better.
    fn expect_fast_reply(&mut self) {}

    /// From now on the server itself ends a statement that only reads ([`Tables::select`](super::Tables::select)) after
    /// this time, or at the deadline if that is sooner. So it does not continue for a client that no longer waits.
    /// PostgreSQL ends statements that change rows as well; MySQL and MariaDB limit only their waits for other
    /// sessions. A server that does not answer by the deadline, and for a little while longer, is given up after any
    /// statement. One that hangs and keeps its connections would never answer. (MySQL's socket has such a limit in any
    /// case.) Takes no round trip. For processes that neither a watchdog nor a person ends; a lock's session has limits
    /// of its own. SQLite runs in this process.
    fn limit_statement_time(&mut self, _longest: Duration) {}

    /// Begins another delivery. Takes no round trip: the settings are sent with the first statement.
    ///
    /// # Errors
    /// If the server has ended the session by now, as far as is known without asking. If a time limit of its socket is
    /// too short for this deadline.
    fn begin(&mut self, client: &Client, deadline: Deadline, _: Sealed) -> Result<(), DatabaseError>;

    /// Proves that the delivery left nothing behind: no transaction, no lock. One round trip.
    ///
    /// # Errors
    /// If something is left, or may be: an error came in the conversation, or an answer did not come. If the server takes
    /// no writes any more.
    fn end(&mut self, _: Sealed) -> Result<(), DatabaseError>;
}

/// Lets only [`Idle`] begin and end deliveries of a session.
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
/// A server may have ended the session without our knowing. Then the first statement fails, and
/// [`DatabaseError::a_new_session_can_help`] says so. As long as nothing is journalled, the delivery may open a new
/// session, once.
pub struct Idle<S: Session + ?Sized>(Box<S>);

impl<S: Session + ?Sized> Idle<S> {
    /// Ends the delivery that `session` was begun or opened for. `None` if it may carry anything over: it has been
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
    /// If the session cannot serve it; it has been closed, and a new one can.
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
    fn one_that_has_said_nothing_of_itself_takes_writes() {
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
