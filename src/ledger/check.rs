//! What `check` asks of a database, a file per engine: does it keep the promises that lock and ledger rely on?

mod mysql;
mod postgres;
pub(crate) mod rows;
mod sqlite;

use crate::base::deadline;
use crate::database::DatabaseError;
use serde::Serialize;
use std::time::Duration;

/// What `check` asks of a database.
pub trait Inspect {
    /// Product and version, for people: `PostgreSQL 17.6`.
    ///
    /// # Errors
    /// Where the server cannot be asked.
    fn describe(&mut self) -> Result<String, DatabaseError>;

    /// A finding on everything that could be wrong with the server: a standby, read-only, a commit that is not durable, a cluster
    /// on which the lock does not exclude, a time limit that is shorter than a delivery's.
    ///
    /// # Errors
    /// Where the server cannot be asked. What our role may not see is a finding.
    fn inspect(&mut self, wanted: Wanted) -> Result<Vec<Finding>, DatabaseError>;

    /// Some address of the table `addresses` to try a login with: no `@domain`, and `not_of` these users.
    ///
    /// # Errors
    /// Where the table cannot be read.
    fn any_address(&mut self, not_of: &[&str]) -> Result<Option<String>, DatabaseError>;

    /// Names the server that answers: the same text on each connection to it, another text on another server.
    ///
    /// # Errors
    /// Where the server cannot be asked.
    fn server(&mut self) -> Result<String, DatabaseError>;
}

/// What a site wants of its database.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// That what was committed is on another server, too (`database.durability`).
    pub replicated: bool,
    /// That nothing is given up for so long (`delivery.deadline`). Looking itself has another deadline.
    pub deadline: Duration,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { replicated: false, deadline: deadline::OF_A_DELIVERY }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at: `synchronous_commit`.
    pub what: String,
    /// How it is.
    pub state: State,
    /// What was found: `on`.
    pub found: String,
    /// What mends it, where something is to be mended.
    pub mend: Option<String>,
}

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    #[serde(rename = "ok")]
    Good,
    /// It works, and could be better.
    Warning,
    /// It breaks a promise: `check` fails.
    Bad,
}

impl Finding {
    /// Whether it says that a server answers commits which the one that takes over may not have.
    pub(crate) fn tells_of_lone_commits(&self) -> bool {
        self.mend.as_deref().is_some_and(|mend| mend.ends_with(FORGETS))
    }
}

/// What a fail-over costs where no commit waits for a standby.
pub(crate) const FORGETS: &str =
    "a fail-over forgets what has not arrived yet, which is then delivered twice, and is not in the ledger";

/// A thing as it should be.
pub(crate) fn good(what: impl Into<String>, found: impl Into<String>) -> Finding {
    Finding { what: what.into(), state: State::Good, found: found.into(), mend: None }
}

/// A thing that works, and could be better.
pub(crate) fn warning(what: impl Into<String>, found: impl Into<String>, mend: impl Into<String>) -> Finding {
    Finding { what: what.into(), state: State::Warning, found: found.into(), mend: Some(mend.into()) }
}

/// A thing that breaks a promise where commits are to be replicated.
pub(crate) fn bad_if(
    replicated: bool,
    what: impl Into<String>,
    found: impl Into<String>,
    mend: impl Into<String>,
) -> Finding {
    if replicated { bad(what, found, mend) } else { warning(what, found, mend) }
}

/// A thing that breaks a promise.
pub(crate) fn bad(what: impl Into<String>, found: impl Into<String>, mend: impl Into<String>) -> Finding {
    Finding { what: what.into(), state: State::Bad, found: found.into(), mend: Some(mend.into()) }
}
