//! The options that choose a site: a configuration, or the directory of an embedded site.

use super::{Failure, complain, fail};
use crate::base::deadline::Deadline;
use crate::base::log::{self, Level};
use crate::base::server_waits;
use crate::base::terminal::shell_word;
use crate::config::{CONFIGURATION, Config, ConfigError, DatabaseRole};
use crate::ledger::Database;
use crate::ledger::operations_log::Actor;
use crate::operations::operations_log::CommandLine;
use crate::site::Site;
use crate::site::embedded::Embedded;
use clap::{ArgAction, Args};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;
use sysexits::ExitCode;

/// The time limit of one answer from a server that still answers other queries. (`migrate` has a longer one: an index
/// on a large table takes long.)
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
    /// Log to standard error: the results; given twice: the causes; three times: every step
    #[arg(long, short, action = ArgAction::Count)]
    verbose: u8,
}

/// The options of a subcommand that prints what a site has.
#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct QueryOptions {
    #[command(flatten)]
    pub(super) site: SiteOptions,
    /// Print JSON, for programs
    #[arg(long)]
    pub(super) json: bool,
}

/// A site, its database, and the person who changes something in it.
pub(super) struct OperatorSession {
    pub(super) site: Site,
    database: Box<dyn Database>,
    command_line: CommandLine,
}

impl OperatorSession {
    pub(super) fn parts(&mut self) -> (&mut dyn Database, Actor<'_>) {
        (self.database.as_mut(), self.command_line.actor())
    }

    pub(super) fn database(&mut self) -> &mut dyn Database {
        self.database.as_mut()
    }
}

impl SiteOptions {
    /// The site, with its database only.
    pub(super) fn resolve(&self) -> Result<Site, Failure> {
        self.resolve_as(Site::without_mailboxes)
    }

    /// The site that `configured` makes of a configuration, with the database role for people.
    pub(super) fn resolve_as(&self, configured: fn(Config) -> Result<Site, ConfigError>) -> Result<Site, Failure> {
        if let Some(directory) = &self.embedded {
            self.refuse_root()?;
            // Creating a ledger in a mistyped directory would hide the mistake.
            if !directory.join("ledger.sqlite").exists() {
                let text = format!("{} holds no ledger: no delivery has been made there", directory.display());
                return Err(fail(ExitCode::NoInput, text));
            }
            return Ok(Site::embedded(Embedded::new(directory.clone())));
        }
        let file = self.config.clone().unwrap_or_else(|| CONFIGURATION.into());
        let config = Config::load(&file).map(|config| config.acting_as(DatabaseRole::Operator));
        config.and_then(configured).map_err(|error| self.unusable(&error.to_string()))
    }

    /// The failure if the configuration, or the directory, cannot be used.
    pub(super) fn unusable(&self, problem: &str) -> Failure {
        let advice = match (&self.config, &self.embedded) {
            (None, None) => "\ngive another file with --config FILE, or a directory of --embedded with --embedded DIR",
            _ => "",
        };
        fail(ExitCode::Config, format!("{problem}{advice}"))
    }

    /// Refuses root if root must not work in the directory of an embedded site.
    pub(super) fn refuse_root(&self) -> Result<(), Failure> {
        let problem = self.embedded.clone().and_then(|directory| Embedded::new(directory).refuses_root());
        problem.map_or(Ok(()), |problem| Err(fail(ExitCode::NoPerm, problem)))
    }

    /// The options in a suggested command line: ` --config FILE`, or nothing.
    pub(super) fn options(&self) -> String {
        let option = |name: &str, path: &Option<PathBuf>| {
            path.as_ref().map(|path| format!(" --{name} {}", shell_word(&path.to_string_lossy())))
        };
        option("config", &self.config).or_else(|| option("embedded", &self.embedded)).unwrap_or_default()
    }

    /// Logs to standard error: warnings and errors, and more with --verbose. Not for a subcommand that delivers, since
    /// its records belong into the log of all deliveries.
    pub(super) fn log_to_stderr(&self) {
        let level = match self.verbose {
            0 => Level::Warn,
            1 => Level::Info,
            2 => Level::Debug,
            _ => Level::Trace,
        };
        // This fails if a log has already been started.
        let _ = log::to_stderr(level);
    }

    /// The site, with its database only, and a connection for at most `patience`.
    pub(super) fn open(&self, patience: Duration) -> Result<(Site, Box<dyn Database>), Failure> {
        self.open_as(Site::without_mailboxes, patience)
    }

    /// The site that `configured` makes of a configuration, and a connection for at most `patience`.
    pub(super) fn open_as(
        &self,
        configured: fn(Config) -> Result<Site, ConfigError>,
        patience: Duration,
    ) -> Result<(Site, Box<dyn Database>), Failure> {
        self.log_to_stderr();
        let site = self.resolve_as(configured)?;
        let database = connect(&site, patience)?;
        Ok((site, database))
    }

    /// The site and its database, for a person who changes something in it.
    pub(super) fn session(&self) -> Result<OperatorSession, Failure> {
        let (site, database) = self.open(LONGEST_ANSWER)?;
        Ok(OperatorSession { command_line: CommandLine::of(&site), site, database })
    }

    /// The same, for features that an embedded site does not have.
    pub(super) fn configured_session(&self, what: &str) -> Result<OperatorSession, Failure> {
        match self.embedded {
            Some(_) => Err(fail(ExitCode::Config, format!("an embedded site has no {what}"))),
            None => self.session(),
        }
    }
}

/// Connects to the site's database for at most `patience`.
pub(super) fn connect(site: &Site, patience: Duration) -> Result<Box<dyn Database>, Failure> {
    watch(site, patience.min(LONGEST_ANSWER))?;
    Ok(site.open_database(None, Deadline::after(patience))?)
}

/// Ends this process if a server hangs, or if an answer takes longer than `longest`. Not for a delivery, which has its
/// watchdog, and not while a program runs under a lock.
pub(super) fn watch(site: &Site, longest: Duration) -> Result<(), Failure> {
    let print = |text: &str| {
        if std::io::stderr().is_terminal() {
            complain(text);
        }
    };
    let end = |text: &str| {
        complain(text);
        std::process::exit(u8::from(ExitCode::Unavailable).into())
    };
    let watched = server_waits::watch(site.servers(), longest, print, end);
    watched.map_err(|error| fail(ExitCode::OsErr, format!("starting a thread: {error}")))
}
