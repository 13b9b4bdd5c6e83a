//! What `check` verifies of a database: whether it gives the guarantees that lock and ledger rely on.

mod file_system;
pub(crate) mod rights;
pub(crate) mod rows;
mod settings;

use self::FindingState::{Bad, Good, Warning};
pub(crate) use self::settings::FORGETS;
use self::settings::Settings;
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
    let ask = match database.dialect() {
        // The system_identifier would not do: a standby shares it with its primary.
        Dialect::Postgresql => "SELECT 'the one that is up since ' || pg_postmaster_start_time()",
        Dialect::Mysql => "SELECT CONCAT('hostname ', @@hostname, ', port ', @@port, ', server_uuid ', @@server_uuid)",
        Dialect::Mariadb => "SELECT CONCAT('hostname ', @@hostname, ', port ', @@port, ', server_id ', @@server_id)",
        Dialect::Sqlite => "SELECT file FROM pragma_database_list WHERE name = 'main'",
    };
    only(database, "asking which server it is", ask)
}

fn only<T: FromRow>(database: &mut dyn Database, doing: &str, sql: &str) -> Result<T, DatabaseError> {
    database.query_first(doing, sql, &[])?.ok_or_else(|| DatabaseError::other(doing, "no answer"))
}

/// The findings on the server, its lock, the tables and our rights on them.
///
/// # Errors
/// If the server does not answer.
pub fn inspect(database: &mut dyn Database, wanted: Requirements) -> Result<Vec<Finding>, DatabaseError> {
    let mut findings = Vec::new();
    if database.dialect() == Dialect::Sqlite {
        findings.push(file_system::inspect(&server(database)?));
    } else {
        let fix = "name the primary: a lock on another server excludes nobody";
        findings.push(match database.is_read_only()? {
            true => Bad.finding("writes", "the server takes none", fix),
            false => good("writes", "the server takes them"),
        });
        let settings = Settings::read(database)?;
        findings.extend(settings::inspect(&settings, wanted, !database.lacks_sync_standby()));
    }
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
        Ok(false) => Bad.finding(what, "it did not stay with the connection", fix),
        Err(error) => Bad.finding(what, error.to_string(), fix),
    }
}

/// Whether all required tables exist.
pub(crate) fn is_complete(migrations: &[MigrationStatus]) -> bool {
    !migrations.iter().any(|migration| !migration.optional && migration.state == MigrationState::Pending)
}

/// `migrate` applies all missing migrations, so only the first missing one is reported.
fn schema(all: &[MigrationStatus]) -> Vec<Finding> {
    let is_missing = |migration: &&MigrationStatus| migration.state == MigrationState::Pending;
    let first = all.iter().find(|migration| is_missing(migration) && !migration.optional).map(|first| first.number);
    let shown =
        all.iter().filter(|migration| !is_missing(migration) || first.is_none_or(|first| migration.number <= first));
    let findings = shown.map(|migration| {
        let what = format!("migration {:04}_{}", migration.number, migration.name);
        let run = "run `maildrop_command migrate`";
        match migration.state {
            MigrationState::Applied => good(what, "applied"),
            MigrationState::Newer => good(what, "applied by a newer release"),
            MigrationState::Pending if migration.optional => Warning.finding(what, "left out", run),
            MigrationState::Pending => Bad.finding(what, "not applied", run),
            MigrationState::Edited => {
                Bad.finding(what, "applied with another text", "recreate the database: docs/upgrade.md")
            }
        }
    });
    findings.collect()
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

impl FindingState {
    /// With what fixes the setting; if it is correct, with advice.
    pub(crate) fn finding(self, what: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { what: what.into(), state: self, found: found.into(), fix: Some(fix.into()) }
    }
}

pub(crate) fn good(what: impl Into<String>, found: impl Into<String>) -> Finding {
    Finding { fix: None, ..Good.finding(what, found, "") }
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
