//! The options that say on which site a subcommand works: a configured one, or one embedded directory.

use super::complain;
use crate::base::deadline::Deadline;
use crate::base::log::{self, Level};
use crate::base::server_waits;
use crate::config::Config;
use crate::config::ConfigError;
use crate::database::{DatabaseError, DatabaseFailure};
use crate::ledger::Database;
use crate::site::Site;
use crate::site::embedded::Embedded;
use clap::{ArgAction, Args};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;
use sysexits::ExitCode;

/// Where the configuration is if nobody says so. A delivery has no such default: it is told by master.cf.
pub(super) const CONFIGURATION: &str = "/etc/maildrop_command/config.toml";

/// For how long one answer of a server's is waited for, as long as the server answers other questions. (`migrate` has more
/// patience: an index on a large table takes its time.)
pub(super) const LONGEST_ANSWER: Duration = Duration::from_hours(1);

/// Which site.
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
    /// The site, of which the database alone is asked; or the status to exit with, once what is wrong has been told.
    pub(super) fn resolve(&self) -> Result<Site, ExitCode> {
        self.resolve_as(Site::without_mailboxes)
    }

    /// The same for who looks into mailboxes, too.
    pub(super) fn resolve_with_mailboxes(&self) -> Result<Site, ExitCode> {
        self.resolve_as(Site::configured)
    }

    fn resolve_as(&self, configured: fn(Config) -> Result<Site, ConfigError>) -> Result<Site, ExitCode> {
        if let Some(directory) = &self.embedded {
            self.refuse_root()?;
            // A ledger made by mistyping the directory's name would say that nothing ever happened.
            if !directory.join("ledger.sqlite").exists() {
                complain(&format!("{} holds no ledger: no delivery has been made there", directory.display()));
                return Err(ExitCode::NoInput);
            }
            return Ok(Site::embedded(Embedded::new(directory.clone())));
        }
        let file = self.config.clone().unwrap_or_else(|| CONFIGURATION.into());
        Config::load(&file).and_then(configured).map_err(|error| {
            complain(&error.to_string());
            if self.config.is_none() {
                complain("give another file with --config FILE, or a directory of --embedded with --embedded DIR");
            }
            ExitCode::Config
        })
    }

    /// The status to exit with where root must not work in the directory of an embedded site, once that has been told.
    pub(super) fn refuse_root(&self) -> Result<(), ExitCode> {
        match self.embedded.clone().and_then(|directory| Embedded::new(directory).refuses_root()) {
            None => Ok(()),
            Some(problem) => {
                complain(&problem);
                Err(ExitCode::NoPerm)
            }
        }
    }

    /// What leads another of our commands to the same site, for a command line that is told: ` --config FILE`, or nothing.
    pub(super) fn options(&self) -> String {
        let option = |name: &str, path: &Option<PathBuf>| {
            path.as_ref().map(|path| format!(" --{name} {}", shell_word(&path.to_string_lossy())))
        };
        option("config", &self.config).or_else(|| option("embedded", &self.embedded)).unwrap_or_default()
    }

    /// Sends the records of this process to standard error: warnings and errors, and more if that was asked for. Not for a
    /// subcommand that delivers: a delivery's record belongs where all of them are.
    pub(super) fn log_to_stderr(&self) {
        let level = match self.verbose {
            0 => Level::Warn,
            1 => Level::Info,
            2 => Level::Debug,
            _ => Level::Trace,
        };
        // It has one already, and with it a place for them.
        let _ = log::to_stderr(level);
    }

    /// The site, of which the database alone is asked, and a connection to it for at most `patience`.
    pub(super) fn open(&self, patience: Duration) -> Result<(Site, Box<dyn Database>), ExitCode> {
        self.open_as(Site::without_mailboxes, patience)
    }

    /// The same for who looks into mailboxes, too.
    pub(super) fn open_with_mailboxes(&self, patience: Duration) -> Result<(Site, Box<dyn Database>), ExitCode> {
        self.open_as(Site::configured, patience)
    }

    fn open_as(
        &self,
        configured: fn(Config) -> Result<Site, ConfigError>,
        patience: Duration,
    ) -> Result<(Site, Box<dyn Database>), ExitCode> {
        self.log_to_stderr();
        let site = self.resolve_as(configured)?;
        watch(&site, patience.min(LONGEST_ANSWER))?;
        let database = site.open_database(None, Deadline::after(patience)).map_err(|error| failed(&error))?;
        Ok((site, database))
    }
}

/// Watches over what this process waits for: a server that stands still would hold it up without end, and so would an answer
/// that takes longer than `longest`. Not for a delivery, which has its watchdog, and not while a program runs under a lock.
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

/// A word as a shell has to be given it.
pub(super) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Tells of a failure at the database, with what mends it, and gives the status to exit with.
pub(super) fn failed(error: &DatabaseError) -> ExitCode {
    let mend = match error.failure {
        DatabaseFailure::AccessDenied => {
            "the role in the configuration lacks a right: sql/*/grants-operator.sql has what people need"
        }
        DatabaseFailure::Schema => "run `maildrop_command migrate` as the role that owns the tables",
        _ => "`maildrop_command check` shows what is in the way",
    };
    complain(&format!("{error}\n{mend}"));
    ExitCode::Unavailable
}
