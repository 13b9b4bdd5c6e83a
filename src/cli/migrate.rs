//! `migrate`: the schema in `sql/<engine>/`, applied in order.

use super::site_options::{self, CONFIGURATION};
use super::{complain, say, table};
use crate::base::deadline::Deadline;
use crate::config::Config;
use crate::database::DatabaseFailure;
use crate::operations::migrate::migrate;
use crate::schema::{Application, MigrateError, Migration, MigrationState, MigrationStatus};
use crate::site::Site;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use sysexits::ExitCode;

/// How long a migration may take, the wait for another machine's included. Far longer than a delivery: an index on a
/// large table takes its time, and nobody but an administrator waits.
const PATIENCE: Duration = Duration::from_hours(24);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command migrate --config /root/maildrop-migrate.toml
  maildrop_command migrate --status --config /etc/maildrop_command/config.toml

FILE names a role that may create tables; deliveries have another one (sql/*/grants.sql).

Safe to run from many machines at once, and to run again. A release runs on the schema of the next one, so \
upgrade the schema first, then the machines one by one.")]
pub(crate) struct Arguments {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = CONFIGURATION)]
    config: PathBuf,
    /// Tell how the schema stands, and change nothing
    #[arg(long)]
    status: bool,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let site = match Config::load(&arguments.config).and_then(Site::without_mailboxes) {
        Ok(site) => site,
        Err(error) => {
            complain(&error.to_string());
            return ExitCode::Config;
        }
    };
    if let Err(status) = site_options::watch(&site, PATIENCE) {
        return status;
    }
    match bring_up_to_date(&site, arguments) {
        Ok(()) => ExitCode::Ok,
        Err(error) => {
            let mend = match &error {
                MigrateError::Database(error) if error.failure == DatabaseFailure::AccessDenied => {
                    "the configuration file has to name the role that owns the tables, or may make them, and its password file"
                }
                _ => "`maildrop_command check` shows what is in the way",
            };
            complain(&format!("{error}\n{mend}"));
            ExitCode::Unavailable
        }
    }
}

fn bring_up_to_date(site: &Site, arguments: &Arguments) -> Result<(), MigrateError> {
    let slow = super::Slow::watch("migrating, or waiting for another machine that does");
    let mut progress = |migration: &Migration, application: &Application| {
        if !arguments.json {
            say(&told(migration, application));
        }
    };
    let schema = migrate(site, arguments.status, Deadline::after(PATIENCE), &mut progress)?;
    drop(slow);
    if schema.newer {
        complain("a newer release has migrated this database; this one delivers on it, and adds nothing");
    }
    tell(&schema.migrations, arguments.json);
    Ok(())
}

fn told(migration: &Migration, application: &Application) -> String {
    let Migration { number, name, .. } = migration;
    match application {
        Application::Done => format!("applied {number:04}_{name}"),
        Application::LeftOut(why) => {
            format!("left out {number:04}_{name}, an extra that no delivery needs; the server said: {why}")
        }
    }
}

fn tell(migrations: &[MigrationStatus], json: bool) {
    let word = |standing: &MigrationStatus| match (standing.state, standing.optional) {
        (MigrationState::Applied, _) => "applied",
        (MigrationState::Pending, false) => "pending",
        (MigrationState::Pending, true) => "left out (an extra)",
        (MigrationState::Edited, _) => "EDITED since it was applied",
        (MigrationState::Unknown, _) => "UNKNOWN to this release",
        (MigrationState::Newer, _) => "applied by a newer release",
    };
    if json {
        let all: Vec<_> = migrations
            .iter()
            .map(
                |s| serde_json::json!({ "number": s.number, "name": s.name, "state": word(s), "optional": s.optional }),
            )
            .collect();
        return say(&serde_json::Value::from(all).to_string());
    }
    let rows = migrations.iter().map(|s| [format!("{:04}", s.number), s.name.clone(), word(s).to_owned()]);
    say(&table(["migration", "name", "state"], rows));
}
