//! `migrate`: the schema in `sql/<engine>/`, applied in order.

use super::progress::Progress;
use super::site_options::watch;
use super::{Ended, complain, fail, help, print, print_line, table};
use crate::base::deadline::Deadline;
use crate::config::{CONFIGURATION, Config, DatabaseRole};
use crate::database::DatabaseFailure;
use crate::ledger::schema::{self, Application, MigrateError, Migration, MigrationState, MigrationStatus};
use crate::site::Site;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use sysexits::ExitCode;

/// The time limit of a migration, with the wait for another machine's: an index on a large table takes long.
const PATIENCE: Duration = Duration::from_hours(24);

#[derive(Debug, Args)]
#[command(after_help = help("migrate"))]
pub(crate) struct Arguments {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = CONFIGURATION)]
    config: PathBuf,
    /// Print the state of the schema, and change nothing
    #[arg(long)]
    status: bool,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    // The deliveries' role may read the state.
    let role = if arguments.status { DatabaseRole::Deliveries } else { DatabaseRole::Owner };
    let config = Config::load(&arguments.config).map(|config| config.acting_as(role));
    let site = config.and_then(Site::without_mailboxes);
    let site = site.map_err(|error| fail(ExitCode::Config, error.to_string()))?;
    watch(&site, PATIENCE)?;
    let migrations = migrate(&site, arguments).map_err(|error| {
        let fix = match &error {
            MigrateError::Database(error) if error.failure == DatabaseFailure::AccessDenied => {
                "database.roles.owner has to be the role that owns the tables, or may make them"
            }
            MigrateError::Database(error) if error.failure == DatabaseFailure::Contention => {
                "its tables were in use all the time: once what holds them has ended (a backup, a session that is idle in a \
                 transaction: pg_stat_activity, SHOW PROCESSLIST), run `maildrop_command migrate` again"
            }
            _ => "`maildrop_command check` shows the reason",
        };
        fail(ExitCode::Unavailable, format!("{error}\n{fix}"))
    })?;
    let value = |s: &MigrationStatus| serde_json::json!({ "number": s.number, "name": s.name, "state": word(s), "optional": s.optional });
    print(arguments.json, &migrations.iter().map(value).collect::<Vec<_>>(), || {
        let rows = migrations.iter().map(|s| [format!("{:04}", s.number), s.name.clone(), word(s).to_owned()]);
        table(["migration", "name", "state"], rows)
    });
    Ok(ExitCode::Ok)
}

/// Applies missing migrations, unless only the status is requested, and returns the state of the schema.
fn migrate(site: &Site, arguments: &Arguments) -> Result<Vec<MigrationStatus>, MigrateError> {
    let progress = Progress::watch("migrating, or waiting for another machine that does");
    let mut database = site.open_database(None, Deadline::after(PATIENCE))?;
    let mut each = |Migration { number, name, .. }: &Migration, application: &Application| {
        if !arguments.json {
            print_line(&match application {
                Application::Done => format!("applied {number:04}_{name}"),
                Application::LeftOut(why) => {
                    format!("left out {number:04}_{name}, an extra that no delivery needs; the server said: {why}")
                }
            });
        }
    };
    let newer = !arguments.status && !schema::migrate(database.as_mut(), &mut each)?.newer.is_empty();
    let migrations = schema::status(database.as_mut())?;
    drop(progress);
    if newer {
        complain("a newer release has migrated this database; this one delivers on it, and adds nothing");
    }
    Ok(migrations)
}

fn word(migration: &MigrationStatus) -> &'static str {
    match (migration.state, migration.optional) {
        (MigrationState::Applied, _) => "applied",
        (MigrationState::Pending, false) => "pending",
        (MigrationState::Pending, true) => "left out (an extra)",
        (MigrationState::Edited, _) => "EDITED since it was applied",
        (MigrationState::Newer, _) => "applied by a newer release",
    }
}
