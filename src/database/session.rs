//! A session that serves one delivery after another.
//!
//! A session is opened for its first delivery, with its deadline and name. Before it serves another, it is proven to carry nothing
//! over ([`Idle`]); in doubt it is closed.

use super::DatabaseError;
use crate::base::deadline::Deadline;
use std::time::Duration;
use tracing::debug;

/// How long the server may work on a question, in whole milliseconds; never none, which to servers is for ever.
pub(super) fn longest(longest: Duration, deadline: Deadline) -> u128 {
    longest.min(deadline.remaining()).as_millis().max(1)
}

/// What the server's list of sessions says of us: it tells others who holds a lock.
#[derive(Clone, Debug)]
pub struct Client {
    /// This host's name.
    pub host: String,
    /// This process's id.
    pub pid: u32,
    /// Postfix's queue id, if given.
    pub queue_id: Option<String>,
}

/// How long the answer at a session's [`end`](Session::end) is waited for, which a server that is well gives at once, also where there is
/// no other server. It is less than what a worker's watchdog leaves between two deliveries: a server that stands still costs the session,
/// and not the process.
pub(super) const PROOF: Duration = Duration::from_secs(5);

/// Who could read what is sent, or stand in for the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privacy {
    /// Whoever is between the two: it is not encrypted, and goes to another host.
    InClear,
    /// Whoever has a certificate for the host's name from an authority of the `ca_file`, or from a public one.
    CaFileAndPublic,
    /// It is on this machine, or the certificate is by an authority that the system trusts.
    Good,
}

/// A session with a database, whatever the engine, while it serves a delivery.
pub trait Session {
    /// How often the server was waited for since this delivery began, connecting apart.
    fn round_trips(&self) -> u32;

    /// Who could read what is sent.
    fn privacy(&self) -> Privacy {
        Privacy::Good
    }

    /// Whether the server takes no writes, as far as it has said without being asked for it.
    fn said_read_only(&self) -> bool {
        false
    }

    /// Whether it takes none now: what a pooler says for its server may be old. One round trip at most.
    ///
    /// # Errors
    /// Where it does not answer.
    fn is_read_only(&mut self) -> Result<bool, DatabaseError> {
        Ok(self.said_read_only())
    }

    /// Whether no commit comes to an end there, as far as is known without asking: each waits for a standby, and none follows. Such is
    /// a primary whose standby is away for a moment, and one that was left behind when its standby took over.
    fn commits_wait_in_vain(&self) -> bool {
        false
    }

    /// Whether this host has seen meanwhile that another server took over. No round trip.
    ///
    /// # Errors
    /// With [`DatabaseFailure::Behind`](super::DatabaseFailure::Behind), if so.
    fn compare_again(&mut self) -> Result<(), DatabaseError> {
        Ok(())
    }

    /// The next answer is to what a server answers at once, if it answers at all: one of several is given up soon
    /// ([`Limits::let_in`](super::Limits::let_in)), as the next one may do better.
    fn hurry(&mut self) {}

    /// From now on the server itself ends a statement that only reads ([`Tables::select`](super::Tables::select)) once it has taken so
    /// long, or as long as is left of the deadline: it does not go on there for somebody who awaits it no more. PostgreSQL ends
    /// what changes rows as well; MySQL and MariaDB limit its waits for other sessions alone. And a server that says nothing by the
    /// deadline, nor for a little while longer, is given up, whatever it was asked or told: one that stands still and
    /// keeps its connections would never answer. (MySQL's socket has such a limit in any case.) Takes no round trip. For those whom
    /// neither a watchdog nor a person ends; a lock's session has limits of its own. SQLite is this process itself.
    fn end_long_questions(&mut self, _longest: Duration) {}

    /// Lets another delivery begin. Takes no round trip: what the server has to be told goes along with the first statement.
    ///
    /// # Errors
    /// Where the server has ended the session by now, as far as is known without asking, or where a time limit of its socket is
    /// too short for this deadline.
    fn begin(&mut self, client: &Client, deadline: Deadline, _: ByIdle) -> Result<(), DatabaseError>;

    /// Proves that the delivery left nothing behind: no transaction, no lock. One round trip.
    ///
    /// # Errors
    /// Where something is left, or may be: an error came in the conversation, an answer did not come, or the server takes no
    /// writes any more.
    fn end(&mut self, _: ByIdle) -> Result<(), DatabaseError>;
}

/// Makes [`Idle`] the only one that begins and ends deliveries of a session.
pub struct ByIdle(());

/// A session between two deliveries, proven to carry nothing over. All that can be done with it is to begin the next.
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
///     // Begun, or opened anew where there is none, or none any more.
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
/// [`DatabaseError::a_new_session_can_help`] says so. As long as nothing is journalled, the delivery may open a session anew,
/// once.
pub struct Idle<S: Session + ?Sized>(Box<S>);

impl<S: Session + ?Sized> Idle<S> {
    /// Ends what `session` was begun or opened for. `None`, where it may carry anything over: it has been closed, and the log
    /// says why.
    #[must_use]
    pub fn after(mut session: Box<S>) -> Option<Self> {
        match session.end(ByIdle(())) {
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
    /// Where the session cannot serve it; it has been closed, and a new one can.
    pub fn begin(mut self, client: &Client, deadline: Deadline) -> Result<Box<S>, DatabaseError> {
        self.0.begin(client, deadline, ByIdle(()))?;
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that has said nothing of itself.
    struct Plain {
        ends: bool,
    }

    impl Session for Plain {
        fn round_trips(&self) -> u32 {
            0
        }
        fn begin(&mut self, _: &Client, _: Deadline, _: ByIdle) -> Result<(), DatabaseError> {
            Ok(())
        }
        fn end(&mut self, _: ByIdle) -> Result<(), DatabaseError> {
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
        assert!(!session.said_read_only() && !session.is_read_only().unwrap() && !session.commits_wait_in_vain());
    }

    #[test]
    fn a_server_works_on_a_question_for_no_longer_than_is_left_and_never_for_ever() {
        let hour = Duration::from_hours(1);
        assert_eq!(longest(Duration::from_millis(1500), Deadline::after(hour)), 1500);
        assert!((2..=60_000).contains(&longest(hour, Deadline::after(Duration::from_mins(1)))));
        assert_eq!(longest(hour, Deadline::after(Duration::ZERO)), 1);
    }
}
