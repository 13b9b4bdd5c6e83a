//! Writes the changes of the command line into the operations log, under the name of the user who runs it. If that
//! fails, the changes stay, and the log of deliveries gets a warning.

use super::replay::ReplayOutcome;
use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::ledger::Database;
use crate::ledger::operations_log::{Actor, Affected, Operation, write};
use crate::site::Site;
use nix::unistd::User;
use rustix::process::getuid;
use std::time::Duration;
use tracing::warn;
use uuid::Uuid;

/// The time limit of the database for an entry.
const PATIENCE: Duration = Duration::from_secs(30);
/// The number of consecutive failures after which no entry is tried any more.
const IN_A_ROW: u32 = 3;

/// Records the copies that this process redelivers.
pub(crate) struct OperationsLog<'a> {
    site: &'a Site,
    by: CommandLine,
    database: Option<(Box<dyn Database>, Deadline)>,
    failures: u32,
}

impl<'a> OperationsLog<'a> {
    /// An operations log for the command line.
    pub(crate) fn of(site: &'a Site) -> Self {
        Self { site, by: CommandLine::of(site), database: None, failures: 0 }
    }

    /// Records a delivered copy. A copy that was already delivered, or that failed, has changed nothing.
    pub(crate) fn delivered(&mut self, operation: Operation, affected: Affected<'_>, outcome: &ReplayOutcome) {
        let ReplayOutcome::Delivered(how) = outcome else { return };
        if self.failures >= IN_A_ROW {
            return;
        }
        match self.write(operation, affected, how) {
            Ok(()) => self.failures = 0,
            Err(error) => {
                (self.database, self.failures) = (None, self.failures + 1);
                warn!(%error, "what was delivered again is not in the operations log");
            }
        }
    }

    fn write(&mut self, operation: Operation, affected: Affected<'_>, how: &str) -> Result<(), DatabaseError> {
        let kept = self.database.take().filter(|(_, deadline)| deadline.remaining() > PATIENCE / 2);
        let kept = match kept {
            Some(kept) => kept,
            None => {
                let deadline = Deadline::after(PATIENCE);
                (self.site.open_database(None, deadline)?, deadline)
            }
        };
        write(self.database.insert(kept).0.as_mut(), self.by.actor(), operation, affected, how)
    }
}

/// The person who works on the command line.
pub(crate) struct CommandLine {
    who: String,
    host: String,
}

impl CommandLine {
    pub(crate) fn of(site: &Site) -> Self {
        Self { who: os_user(), host: site.host().to_owned() }
    }

    pub(crate) fn actor(&self) -> Actor<'_> {
        Actor { name: &self.who, interface: COMMAND_LINE, role: None, host: &self.host }
    }
}

const COMMAND_LINE: &str = "command line";

/// Performs a change of one object, and records who made it and its result. For the web UI and the API an entry is
/// written before the change, and if that fails, the change is not made. The command line is the operator's: its change
/// is made in any case.
///
/// # Errors
/// If the work fails, or if the entry before it cannot be written.
pub(crate) fn logged<T, E: From<DatabaseError>>(
    database: &mut dyn Database,
    by: Actor<'_>,
    operation: Operation,
    object: Option<&str>,
    work: impl FnOnce(&mut dyn Database) -> Result<T, E>,
    outcome: impl FnOnce(&T) -> Came,
) -> Result<T, E> {
    let affected = Affected { object, ..Affected::default() };
    if by.interface != COMMAND_LINE {
        write(database, by, operation, affected, "")?;
    }
    let done = work(database)?;
    let Came { operation: other, object: its, outcome } = outcome(&done);
    let affected = Affected { object: its.as_deref().or(object), ..affected };
    note(database, by, other.unwrap_or(operation), affected, &outcome);
    Ok(done)
}

/// Records a change that has been made. A failure to record it undoes nothing.
pub(crate) fn write_down(
    database: &mut dyn Database,
    by: Actor<'_>,
    operation: Operation,
    object: &str,
    outcome: &str,
) {
    note(database, by, operation, Affected { object: Some(object), ..Affected::default() }, outcome);
}

fn note(database: &mut dyn Database, by: Actor<'_>, operation: Operation, affected: Affected<'_>, outcome: &str) {
    if let Err(error) = write(database, by, operation, affected, outcome) {
        warn!(%error, operation = operation.as_str(), "what was done is not in the operations log");
    }
}

/// The result of a change, for the operations log.
#[derive(Default)]
pub(crate) struct Came {
    /// The operation, if the result is another one than requested.
    operation: Option<Operation>,
    /// The object, if it is known only after the change.
    object: Option<String>,
    outcome: String,
}

impl Came {
    pub(crate) fn to(outcome: impl Into<String>) -> Self {
        Self { outcome: outcome.into(), ..Self::default() }
    }

    pub(crate) fn unless_unchanged(changed: bool, outcome: &str) -> Self {
        Self::to(if changed { outcome } else { "it was in another state" })
    }

    pub(crate) fn with(self, object: Uuid) -> Self {
        Self { object: Some(object.to_string()), ..self }
    }

    pub(crate) fn instead(self, operation: Operation) -> Self {
        Self { operation: Some(operation), ..self }
    }
}

/// Records that a secret is about to be shown. If that fails, only the operator on the command line is shown it.
///
/// # Errors
/// If the entry cannot be written.
pub(crate) fn shown(
    database: &mut dyn Database,
    by: Actor<'_>,
    operation: Operation,
    object: Uuid,
) -> Result<(), DatabaseError> {
    let object = object.to_string();
    if by.interface == COMMAND_LINE {
        write_down(database, by, operation, &object, "shown");
        return Ok(());
    }
    write(database, by, operation, Affected { object: Some(&object), ..Affected::default() }, "shown")
}

/// The user who runs this process; under sudo(8), the user who called it.
fn os_user() -> String {
    let uid = getuid();
    if uid.is_root()
        && let Some(caller) = std::env::var("SUDO_USER").ok().filter(|caller| !caller.is_empty())
    {
        return caller;
    }
    name_of(uid.as_raw()).unwrap_or_else(|| format!("uid {}", uid.as_raw()))
}

/// The name of a user in any database of nsswitch.conf(5), such as a directory's (getpwuid_r(3)).
fn name_of(uid: u32) -> Option<String> {
    Some(User::from_uid(uid.into()).ok()??.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_the_name_that_the_system_gives() {
        assert_eq!(name_of(0).as_deref(), Some("root"));
        assert_eq!(name_of(u32::MAX - 7), None);
    }
}
