//! Whether a database keeps the promises that lock and ledger rest on: what `check` asks, a file per engine.

mod mysql;
mod postgres;
pub(crate) mod rows;
mod sqlite;

use crate::database::DatabaseError;
use serde::Serialize;

/// What `check` asks of a database: does it keep the promises that a delivery rests on?
pub trait Inspect {
    /// Product and version, for people: `PostgreSQL 17.6`.
    ///
    /// # Errors
    /// Where the server cannot be asked.
    fn describe(&mut self) -> Result<String, DatabaseError>;

    /// What could be wrong with the server, each looked at: a standby, a read-only server, a commit that is not durable,
    /// a cluster on which the lock does not exclude.
    ///
    /// # Errors
    /// Where the server cannot be asked. What our role may not see is a finding.
    fn inspect(&mut self) -> Result<Vec<Finding>, DatabaseError>;

    /// Some address of the table `addresses` that is no `@domain`, and `not_of` these users, to try a login with; `None` if it
    /// has none.
    ///
    /// # Errors
    /// Where the table cannot be read.
    fn any_address(&mut self, not_of: &[&str]) -> Result<Option<String>, DatabaseError>;

    /// Which server answers: the same words on every connection to it, and others on another server.
    ///
    /// # Errors
    /// Where the server cannot be asked.
    fn server(&mut self) -> Result<String, DatabaseError>;
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

/// It is as it should be.
pub(crate) fn good(what: impl Into<String>, found: impl Into<String>) -> Finding {
    Finding { what: what.into(), state: State::Good, found: found.into(), mend: None }
}

/// It works, and could be better.
pub(crate) fn warning(what: impl Into<String>, found: impl Into<String>, mend: impl Into<String>) -> Finding {
    Finding { what: what.into(), state: State::Warning, found: found.into(), mend: Some(mend.into()) }
}

/// It breaks a promise.
pub(crate) fn bad(what: impl Into<String>, found: impl Into<String>, mend: impl Into<String>) -> Finding {
    Finding { what: what.into(), state: State::Bad, found: found.into(), mend: Some(mend.into()) }
}
