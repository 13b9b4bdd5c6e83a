//! What `check` verifies of a database: whether it gives the guarantees that lock and ledger rely on. The checks for one engine
//! are in that engine's file.

mod mysql;
mod postgres;
pub(crate) mod rights;
pub(crate) mod rows;
mod sqlite;

use crate::base::deadline;
use crate::database::{DatabaseError, Dialect, FromRow, Query};
use crate::ledger::Database;
use crate::ledger::schema::{self, MigrationState, MigrationStatus};
use crate::lock::{Acquired, LockName};
use serde::Serialize;
use std::time::Duration;
use uuid::Uuid;

/// Product and version, for people: `PostgreSQL 17.6`.
///
/// # Errors
/// If the server does not answer.
pub fn describe(database: &mut dyn Database) -> Result<String, DatabaseError> {
    let (product, version) = match database.dialect() {
        Dialect::Postgresql => ("PostgreSQL", "current_setting('server_version')"),
        Dialect::Mysql => ("MySQL", "VERSION()"),
        Dialect::Mariadb => ("MariaDB", "VERSION()"),
        Dialect::Sqlite => ("SQLite", "sqlite_version()"),
    };
    let version: String = only(database, "asking for the server's version", &format!("SELECT {version}"))?;
    // Debian's PostgreSQL is "17.11 (Debian 17.11-0+deb13u1)".
    Ok(format!("{product} {}", version.split(" (").next().unwrap_or_default()))
}

/// Identifies the server that answers: the same text on each connection to this server, another text on any other.
///
/// # Errors
/// If the server does not answer.
pub fn server(database: &mut dyn Database) -> Result<String, DatabaseError> {
    let doing = "asking which server it is";
    match database.dialect() {
        // The system_identifier would not do: a standby shares it with its primary.
        Dialect::Postgresql => {
            only(database, doing, "SELECT 'the one that is up since ' || pg_postmaster_start_time()")
        }
        Dialect::Mysql | Dialect::Mariadb => mysql::server(database),
        Dialect::Sqlite => sqlite::directory(database),
    }
}

/// A finding on each setting of the server that could be wrong. Examples: a standby; read-only; a commit that is not
/// durable; a cluster on which the lock does not exclude; a time limit shorter than a delivery's.
///
/// # Errors
/// If the server does not answer. A setting that our role may not read is a finding.
pub fn inspect_server(database: &mut dyn Database, wanted: Requirements) -> Result<Vec<Finding>, DatabaseError> {
    match database.dialect() {
        Dialect::Postgresql => postgres::inspect(database, wanted),
        Dialect::Mysql | Dialect::Mariadb => mysql::inspect(database, wanted),
        Dialect::Sqlite => sqlite::inspect(database),
    }
}

fn only<T: FromRow>(database: &mut dyn Database, doing: &str, sql: &str) -> Result<T, DatabaseError> {
    database.query_first(doing, sql, &[])?.ok_or_else(|| DatabaseError::other(doing, "no answer"))
}

/// The findings on the server, its lock, the tables and our rights on them.
///
/// # Errors
/// If the server does not answer.
pub fn inspect(database: &mut dyn Database, wanted: Requirements) -> Result<Vec<Finding>, DatabaseError> {
    let mut findings = inspect_server(database, wanted)?;
    findings.push(named_lock(database));
    let migrations = schema::status(database)?;
    findings.extend(schema(&migrations));
    if is_complete(&migrations) && database.dialect() != Dialect::Sqlite {
        findings.extend(rights::of_deliveries(database)?);
    }
    Ok(findings)
}

/// Takes a lock, asks whether it is held, and releases it. Behind a pooler or a proxy that gives each statement another session,
/// the lock is not held.
fn named_lock(database: &mut dyn Database) -> Finding {
    let what = "named lock";
    let name = LockName::new("maildrop check", Uuid::now_v7().as_bytes());
    let taken = database.acquire(&name, Duration::ZERO).and_then(|acquired| {
        let held = matches!(acquired, Acquired::Held) && database.still_held(&name)?;
        database.release(&name)?;
        Ok(held && !database.still_held(&name)?)
    });
    let fix = "connect to the primary itself, or through a pooler in transaction or session mode: a proxy must keep a connection that has \
                taken a lock on one session";
    match taken {
        Ok(true) => good(what, "taken, still held, let go"),
        Ok(false) => bad(what, "it did not stay with the connection", fix),
        Err(error) => bad(what, error.to_string(), fix),
    }
}

/// Whether all required tables exist.
pub(crate) fn is_complete(migrations: &[MigrationStatus]) -> bool {
    !migrations.iter().any(|migration| !migration.optional && migration.state == MigrationState::Pending)
}

/// `migrate` applies all missing migrations, so only the first missing one is reported.
fn schema(all: &[MigrationStatus]) -> Vec<Finding> {
    let mut missing = false;
    let shown = all.iter().filter_map(|migration| {
        let what = format!("migration {:04}_{}", migration.number, migration.name);
        let run = "run `maildrop_command migrate`";
        let pending = migration.state == MigrationState::Pending;
        if pending && missing {
            return None;
        }
        missing |= pending && !migration.optional;
        Some(match migration.state {
            MigrationState::Applied => good(what, "applied"),
            MigrationState::Newer => good(what, "applied by a newer release"),
            MigrationState::Pending if migration.optional => warning(what, "left out", run),
            MigrationState::Pending => bad(what, "not applied", run),
            MigrationState::Edited => bad(what, "applied with another text", "recreate the database: docs/upgrade.md"),
        })
    });
    shown.collect()
}

/// What a site requires of its database.
#[derive(Clone, Copy, Debug)]
pub struct Requirements {
    /// Whether a commit must also be on another server (`database.durability`).
    pub replicated: bool,
    /// How long a delivery goes on (`delivery.deadline`). `check` itself has another deadline.
    pub deadline: Duration,
}

impl Default for Requirements {
    fn default() -> Self {
        Self { replicated: false, deadline: deadline::OF_A_DELIVERY }
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The setting: `synchronous_commit`.
    pub what: String,
    pub state: FindingState,
    /// The value: `on`.
    pub found: String,
    /// What fixes the setting, or may improve it.
    pub fix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingState {
    /// Correct.
    #[serde(rename = "ok")]
    Good,
    /// The setting works, but could be better.
    Warning,
    /// The setting breaks a guarantee: `check` fails.
    Bad,
}

impl Finding {
    /// Whether the finding says that this server confirms commits which a server that takes over may not have.
    pub(crate) fn is_unreplicated_commit(&self) -> bool {
        self.fix.as_deref().is_some_and(|fix| fix.ends_with(FORGETS))
    }
}

/// What a fail-over costs if no commit waits for a standby.
pub(crate) const FORGETS: &str =
    "a fail-over forgets what has not arrived yet, which is then delivered twice, and is not in the ledger";

pub(crate) fn good(what: impl Into<String>, found: impl Into<String>) -> Finding {
    Finding { what: what.into(), state: FindingState::Good, found: found.into(), fix: None }
}

/// A correct setting, and advice about it.
pub(crate) fn advised(what: impl Into<String>, found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { fix: Some(advice.into()), ..good(what, found) }
}

pub(crate) fn warning(what: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { what: what.into(), state: FindingState::Warning, found: found.into(), fix: Some(fix.into()) }
}

/// A setting that breaks a guarantee if commits have to be replicated.
pub(crate) fn bad_if(
    replicated: bool,
    what: impl Into<String>,
    found: impl Into<String>,
    fix: impl Into<String>,
) -> Finding {
    if replicated { bad(what, found, fix) } else { warning(what, found, fix) }
}

pub(crate) fn bad(what: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { what: what.into(), state: FindingState::Bad, found: found.into(), fix: Some(fix.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_all_missing_migrations_the_first_is_named() {
        use MigrationState::{Applied, Edited, Newer, Pending};
        let (needed, optional) = (false, true);
        for (all, shown) in [
            (
                &[(Applied, needed), (Applied, optional), (Newer, needed)][..],
                &[
                    (FindingState::Good, "applied"),
                    (FindingState::Good, "applied"),
                    (FindingState::Good, "applied by a newer release"),
                ][..],
            ),
            (
                &[(Applied, needed), (Pending, needed), (Pending, needed), (Pending, optional)],
                &[(FindingState::Good, "applied"), (FindingState::Bad, "not applied")],
            ),
            // The one optional migration is reported, though a required one is missing too: a server may have refused it.
            (
                &[(Pending, optional), (Pending, optional), (Pending, needed), (Pending, needed)],
                &[
                    (FindingState::Warning, "left out"),
                    (FindingState::Warning, "left out"),
                    (FindingState::Bad, "not applied"),
                ],
            ),
            (
                &[(Pending, needed), (Edited, needed), (Applied, needed)],
                &[
                    (FindingState::Bad, "not applied"),
                    (FindingState::Bad, "applied with another text"),
                    (FindingState::Good, "applied"),
                ],
            ),
        ] {
            let all = (1..).zip(all).map(|(number, &(state, optional))| MigrationStatus {
                number,
                name: "x".into(),
                optional,
                state,
            });
            let findings = schema(&all.collect::<Vec<_>>());
            let found: Vec<_> = findings.iter().map(|finding| (finding.state, finding.found.as_str())).collect();
            assert_eq!(found, shown);
            assert_eq!(findings[0].what, "migration 0001_x");
        }
    }
}
