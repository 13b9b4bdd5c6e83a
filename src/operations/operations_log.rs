//! Writes changes into the operations log. Those of the command line are under the name of the user who runs it. If their entry
//! cannot be written, the changes stay, and the log of deliveries gets a warning.

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

/// Records a run that has redelivered copies, with its command line, in one entry for all copies. Each copy's attempt in the
/// ledger has this host and process.
pub(crate) fn redelivered(site: &Site, operation: Operation, copies: u64) {
    if copies == 0 {
        return;
    }
    let command: Vec<_> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let outcome = format!("{copies} delivered by process {}", std::process::id());
    match site.open_database(None, Deadline::after(PATIENCE)) {
        Ok(mut database) => {
            write_down(database.as_mut(), CommandLine::of(site).actor(), operation, &command.join(" "), &outcome);
        }
        Err(error) => warn!(%error, operation = operation.as_str(), "what was done is not in the operations log"),
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

/// Performs a change of one object, and records who made it and its result. For the web UI and the API, an entry is written
/// before the change; if that fails, the change is not made. The command line belongs to the operator, whose changes are made in
/// any case.
///
/// # Errors
/// If the work fails, or if the entry before it cannot be written.
pub(crate) fn logged<T, E: From<DatabaseError>>(
    database: &mut dyn Database,
    by: Actor<'_>,
    operation: Operation,
    object: Option<&str>,
    work: impl FnOnce(&mut dyn Database) -> Result<T, E>,
    outcome: impl FnOnce(&T) -> OperationResult,
) -> Result<T, E> {
    let affected = Affected { object, ..Affected::default() };
    if by.interface != COMMAND_LINE {
        write(database, by, operation, affected, "")?;
    }
    let done = work(database)?;
    let OperationResult { operation: other, object: its, outcome } = outcome(&done);
    let affected = Affected { object: its.as_deref().or(object), ..affected };
    note(database, by, other.unwrap_or(operation), affected, &outcome);
    Ok(done)
}

/// Records a change that was made. A failure to record it undoes nothing.
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
pub(crate) struct OperationResult {
    /// The operation, if it was another one than requested.
    operation: Option<Operation>,
    /// The object, if it is known only after the change.
    object: Option<String>,
    outcome: String,
}

impl OperationResult {
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

/// Records that a secret is about to be shown. If that fails, only the operator on the command line may see the secret.
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

/// The name of a user in any database of nsswitch.conf(5), such as a directory service (getpwuid_r(3)).
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
