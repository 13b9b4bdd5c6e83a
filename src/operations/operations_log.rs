//! Writes into the operations log what the command line has done, under the name of whoever runs it. What is done stays done
//! where that fails: the log of deliveries has a warning then.

use super::replay::ReplayOutcome;
use crate::base::deadline::Deadline;
use crate::database::DatabaseError;
use crate::ledger::Database;
use crate::ledger::operations_log::{Actor, Affected, Operation, write, write_all};
use crate::site::Site;
use nix::unistd::User;
use rustix::process::getuid;
use std::time::{Duration, Instant};
use tracing::warn;
use uuid::Uuid;

/// So many rows are written at once, or those of so long.
const AT_ONCE: usize = 100;
const AT_LEAST_EACH: Duration = Duration::from_secs(1);
/// How long the database may take for it.
const PATIENCE: Duration = Duration::from_secs(30);
/// After so many failures in a row no more is tried.
const IN_A_ROW: u32 = 3;

/// What was done to one copy, or for one recipient.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub(crate) identity: Option<[u8; 32]>,
    pub(crate) message_id: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) mailbox: Option<String>,
    /// A recipient.
    pub(crate) object: Option<String>,
}

/// What this process has done, as far as it is not written down yet.
pub(crate) struct OperationsLog<'a> {
    site: &'a Site,
    by: CommandLine,
    rows: Vec<(Operation, Done, String)>,
    database: Option<(Box<dyn Database>, Deadline)>,
    written: Instant,
    failures: u32,
}

impl<'a> OperationsLog<'a> {
    /// Of the command line.
    pub(crate) fn of(site: &'a Site) -> Self {
        let by = CommandLine::of(site);
        Self { site, by, rows: Vec::new(), database: None, written: Instant::now(), failures: 0 }
    }

    /// Adds what was delivered. What was there already, or failed, changed nothing.
    pub(crate) fn delivered(&mut self, operation: Operation, done: impl FnOnce() -> Done, outcome: &ReplayOutcome) {
        if let ReplayOutcome::Delivered(how) = outcome {
            self.rows.push((operation, done(), how.clone()));
        }
        self.now_and_then();
    }

    /// Writes down what there is, if it is much or has waited.
    pub(crate) fn now_and_then(&mut self) {
        if self.rows.len() >= AT_ONCE || self.written.elapsed() >= AT_LEAST_EACH {
            self.write();
        }
    }

    /// Writes down what there is.
    fn write(&mut self) {
        self.written = Instant::now();
        if self.rows.is_empty() || self.failures >= IN_A_ROW {
            self.rows.clear();
            return;
        }
        let rows = std::mem::take(&mut self.rows);
        match self.try_to_write(&rows) {
            Ok(()) => self.failures = 0,
            Err(error) => {
                (self.database, self.failures) = (None, self.failures + 1);
                warn!(%error, deliveries = rows.len(), "what was delivered again is not in the operations log");
            }
        }
    }

    fn try_to_write(&mut self, rows: &[(Operation, Done, String)]) -> Result<(), DatabaseError> {
        let kept = self.database.take().filter(|(_, deadline)| deadline.remaining() > PATIENCE / 2);
        let kept = match kept {
            Some(kept) => kept,
            None => {
                let deadline = Deadline::after(PATIENCE);
                (self.site.open_database(None, deadline)?, deadline)
            }
        };
        let database = self.database.insert(kept).0.as_mut();
        let actor = self.by.actor();
        let rows: Vec<(Operation, Affected<'_>, &str)> = rows
            .iter()
            .map(|(operation, done, outcome)| {
                let affected = Affected {
                    identity: done.identity.as_ref(),
                    message_id: done.message_id.as_deref(),
                    user: done.user.as_deref(),
                    mailbox: done.mailbox.as_deref(),
                    object: done.object.as_deref(),
                };
                (*operation, affected, outcome.as_str())
            })
            .collect();
        write_all(database, actor, &rows)
    }
}

impl Drop for OperationsLog<'_> {
    fn drop(&mut self) {
        self.write();
    }
}

/// Who does something by the command line.
pub(crate) struct CommandLine {
    who: String,
    host: String,
}

impl CommandLine {
    pub(crate) fn of(site: &Site) -> Self {
        Self { who: os_user(), host: site.host().to_owned() }
    }

    pub(crate) fn actor(&self) -> Actor<'_> {
        Actor { who: &self.who, way: COMMAND_LINE, role: None, host: &self.host }
    }
}

const COMMAND_LINE: &str = "command line";

/// Does something to one thing, and writes down who has, and what came of it. Whoever comes from elsewhere, by the page or the API, is
/// written down before, and nothing is done where that cannot be. The command line is the operator's: there it is done all the same.
///
/// # Errors
/// Those of the work, and where it cannot be written down that it begins.
pub(crate) fn logged<T, E: From<DatabaseError>>(
    database: &mut dyn Database,
    by: Actor<'_>,
    operation: Operation,
    object: Option<&str>,
    work: impl FnOnce(&mut dyn Database) -> Result<T, E>,
    outcome: impl FnOnce(&T) -> Came,
) -> Result<T, E> {
    let affected = Affected { object, ..Affected::default() };
    if by.way != COMMAND_LINE {
        write(database, by, operation, affected, "")?;
    }
    let done = work(database)?;
    let Came { operation: other, object: its, outcome } = outcome(&done);
    let affected = Affected { object: its.as_deref().or(object), ..affected };
    note(database, by, other.unwrap_or(operation), affected, &outcome);
    Ok(done)
}

/// Writes down what is done. That it cannot be written down undoes nothing.
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

/// What came of something, for the operations log.
#[derive(Default)]
pub(crate) struct Came {
    /// Where it came to something else than was asked for.
    operation: Option<Operation>,
    /// What it was done to, where that is known only now.
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

/// Writes down what is about to be shown. Where that cannot be, nobody is shown it but the operator.
///
/// # Errors
/// Where it cannot be written down.
pub(crate) fn shown(
    database: &mut dyn Database,
    by: Actor<'_>,
    operation: Operation,
    object: Uuid,
) -> Result<(), DatabaseError> {
    let object = object.to_string();
    if by.way == COMMAND_LINE {
        write_down(database, by, operation, &object, "shown");
        return Ok(());
    }
    write(database, by, operation, Affected { object: Some(&object), ..Affected::default() }, "shown")
}

/// Who runs this process: by sudo(8) the one who called it.
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
