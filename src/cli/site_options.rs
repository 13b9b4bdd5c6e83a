//! The options that choose a site: a configuration, or the directory of an embedded site.

use super::complain;
use crate::base::deadline::Deadline;
use crate::base::log::{self, Level};
use crate::base::server_waits;
use crate::base::terminal::shell_word;
use crate::config::{Config, ConfigError, DatabaseRole};
use crate::database::{DatabaseError, DatabaseFailure};
use crate::ledger::Database;
use crate::site::Site;
use crate::site::embedded::Embedded;
use clap::{ArgAction, Args};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;
use sysexits::ExitCode;

/// The default of `--config`. A delivery has none: master.cf names the file.
pub(super) const CONFIGURATION: &str = "/etc/maildrop_command/config.toml";

/// How long one answer of a server that answers other questions may take. (`migrate` has more patience: an index on a large
/// table takes its time.)
pub(super) const LONGEST_ANSWER: Duration = Duration::from_hours(1);

#[derive(Clone, Debug, Args)]
#[group(skip)]
pub(super) struct SiteOptions {
    /// The configuration file [default: /etc/maildrop_command/config.toml]
    #[arg(long, value_name = "FILE", conflicts_with = "embedded")]
    pub(super) config: Option<PathBuf>,
    /// The directory of an embedded site, instead of a configuration
    #[arg(long, value_name = "DIR")]
    pub(super) embedded: Option<PathBuf>,
    /// Tell on standard error what is done; twice: how; three times: every step
    #[arg(long, short, action = ArgAction::Count)]
    verbose: u8,
}

impl SiteOptions {
    /// The site, for its database alone.
    pub(super) fn resolve(&self) -> Result<Site, ExitCode> {
        self.resolve_as(Site::without_mailboxes)
    }

    /// The site as `configured` makes it of a configuration, with the role of people in the database.
    pub(super) fn resolve_as(&self, configured: fn(Config) -> Result<Site, ConfigError>) -> Result<Site, ExitCode> {
        if let Some(directory) = &self.embedded {
            self.refuse_root()?;
            // To make a ledger in a mistyped directory would hide the mistake.
            if !directory.join("ledger.sqlite").exists() {
                complain(&format!("{} holds no ledger: no delivery has been made there", directory.display()));
                return Err(ExitCode::NoInput);
            }
            return Ok(Site::embedded(Embedded::new(directory.clone())));
        }
        let file = self.config.clone().unwrap_or_else(|| CONFIGURATION.into());
        let config = Config::load(&file).map(|config| config.acting_as(DatabaseRole::Operator));
        config.and_then(configured).map_err(|error| self.unusable(&error.to_string()))
    }

    /// The status to exit with where the configuration, or the directory, is of no use, once that has been told.
    pub(super) fn unusable(&self, problem: &str) -> ExitCode {
        complain(problem);
        if self.config.is_none() && self.embedded.is_none() {
            complain("give another file with --config FILE, or a directory of --embedded with --embedded DIR");
        }
        ExitCode::Config
    }

    /// Refuses root where it must not work in the directory of an embedded site.
    pub(super) fn refuse_root(&self) -> Result<(), ExitCode> {
        let problem = self.embedded.clone().and_then(|directory| Embedded::new(directory).refuses_root());
        problem.map_or(Ok(()), |problem| {
            complain(&problem);
            Err(ExitCode::NoPerm)
        })
    }

    /// The options as a suggested command line repeats them: ` --config FILE`, or nothing.
    pub(super) fn options(&self) -> String {
        let option = |name: &str, path: &Option<PathBuf>| {
            path.as_ref().map(|path| format!(" --{name} {}", shell_word(&path.to_string_lossy())))
        };
        option("config", &self.config).or_else(|| option("embedded", &self.embedded)).unwrap_or_default()
    }

    /// Logs to standard error: warnings and errors, and more with --verbose. Not for a subcommand that delivers: its records
    /// belong where those of all deliveries are.
    pub(super) fn log_to_stderr(&self) {
        let level = match self.verbose {
            0 => Level::Warn,
            1 => Level::Info,
            2 => Level::Debug,
            _ => Level::Trace,
        };
        // It fails where a log has been started.
        let _ = log::to_stderr(level);
    }

    /// The site, for its database alone, and a connection for at most `patience`.
    pub(super) fn open(&self, patience: Duration) -> Result<(Site, Box<dyn Database>), ExitCode> {
        self.open_as(Site::without_mailboxes, patience)
    }

    /// The site as `configured` makes it of a configuration, and a connection for at most `patience`.
    pub(super) fn open_as(
        &self,
        configured: fn(Config) -> Result<Site, ConfigError>,
        patience: Duration,
    ) -> Result<(Site, Box<dyn Database>), ExitCode> {
        self.log_to_stderr();
        let site = self.resolve_as(configured)?;
        let database = connect(&site, patience)?;
        Ok((site, database))
    }
}

/// Connects to the site's database for at most `patience`.
pub(super) fn connect(site: &Site, patience: Duration) -> Result<Box<dyn Database>, ExitCode> {
    watch(site, patience.min(LONGEST_ANSWER))?;
    site.open_database(None, Deadline::after(patience)).map_err(|error| failed(&error))
}

/// Ends this process when a server stands still, or an answer takes longer than `longest`. Not for a delivery, which has its
/// watchdog, and not while a program runs under a lock.
pub(super) fn watch(site: &Site, longest: Duration) -> Result<(), ExitCode> {
    let tell = |text: &str| {
        if std::io::stderr().is_terminal() {
            complain(text);
        }
    };
    let end = |text: &str| {
        complain(text);
        std::process::exit(u8::from(ExitCode::Unavailable).into())
    };
    server_waits::watch(site.servers(), longest, tell, end).map_err(|error| {
        complain(&format!("starting a thread: {error}"));
        ExitCode::OsErr
    })
}

/// Prints a failure of the database, with what mends it.
pub(super) fn failed(error: &DatabaseError) -> ExitCode {
    let mend = match error.failure {
        DatabaseFailure::AccessDenied => {
            "the role of database.roles.operator lacks a right: sql/*/grants-operator.sql has what people need"
        }
        DatabaseFailure::Schema => "run `maildrop_command migrate` as the role that owns the tables",
        _ => "`maildrop_command check` shows what is in the way",
    };
    complain(&format!("{error}\n{mend}"));
    ExitCode::Unavailable
}
