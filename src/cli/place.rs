//! Where a subcommand for people works: on a configured site, or on one embedded directory.

use super::complain;
use crate::config::Config;
use crate::database::{Database, DatabaseError, DatabaseFailure};
use crate::deadline::Deadline;
use crate::embedded::Embedded;
use crate::log::{self, Level};
use crate::site::Site;
use clap::{ArgAction, Args};
use std::path::PathBuf;
use std::time::Duration;
use sysexits::ExitCode;

/// Where the configuration is if nobody says so. A delivery has no such default: it is told by master.cf.
pub(super) const CONFIGURATION: &str = "/etc/maildrop_command/config.toml";

/// Which site.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub(super) struct Place {
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

impl Place {
    /// The site, or the status to exit with, once what is wrong has been told.
    pub(super) fn site(&self) -> Result<Site, ExitCode> {
        if let Some(directory) = &self.embedded {
            // A ledger made by mistyping the directory's name would say that nothing ever happened.
            if !directory.join("ledger.sqlite").exists() {
                complain(&format!("{} holds no ledger: no delivery has been made there", directory.display()));
                return Err(ExitCode::NoInput);
            }
            return Ok(Site::embedded(Embedded::new(directory.clone())));
        }
        let file = self.config.clone().unwrap_or_else(|| CONFIGURATION.into());
        Config::load(&file).and_then(Site::configured).map_err(|error| {
            complain(&error.to_string());
            if self.config.is_none() {
                complain("give another file with --config FILE, or a directory of --embedded with --embedded DIR");
            }
            ExitCode::Config
        })
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

    /// The site, and a connection to its database for at most `patience`.
    pub(super) fn open(&self, patience: Duration) -> Result<(Site, Box<dyn Database>), ExitCode> {
        self.log_to_stderr();
        let site = self.site()?;
        let database = site.open_database(None, Deadline::after(patience)).map_err(|error| failed(&error))?;
        Ok((site, database))
    }
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
