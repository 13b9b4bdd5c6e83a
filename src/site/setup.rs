//! The setup of a process that delivers: its site, its log and its limits, from a configuration file or for one directory.

use super::Site;
use super::embedded::Embedded;
use crate::base::files::create_directory;
use crate::base::{deadline, log};
use crate::config::{Config, DatabaseRole};
use crate::delivery::Policy;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Postfix's default limit (`command_time_limit`, `<transport>_time_limit`), for a site without a configuration.
const POSTFIX_TIME_LIMIT: Duration = Duration::from_secs(1000);

/// The site, the log, and the limits of a delivery. No password has been read yet.
pub(crate) struct Setup {
    pub(crate) place: SiteSource,
    /// The directory of an embedded site, if it was created just now: its name may be a mistake.
    pub(crate) created: Option<PathBuf>,
    pub(crate) log: log::Settings,
    /// The time after which Postfix kills a delivery and bounces its message.
    pub(crate) bounced_at: Duration,
    /// The largest message, in bytes.
    pub(crate) size_limit: Option<u64>,
    /// The time limit of a delivery.
    pub(crate) deadline: Duration,
    /// The time after which no copy of an attempt can arrive any more.
    pub(crate) append_grace: Duration,
}

pub(crate) enum SiteSource {
    Configured(Box<Config>),
    Embedded(Embedded),
}

impl SiteSource {
    /// Creates the site and reads its passwords. The error is a text for people.
    pub fn site(self) -> Result<Site, String> {
        match self {
            Self::Configured(config) => Site::configured(*config).map_err(|error| error.to_string()),
            Self::Embedded(embedded) => Ok(Site::embedded(embedded)),
        }
    }
}

impl Setup {
    /// Reads a configuration file, for the database role of this part of the program. The error is a text for people.
    pub fn configured(file: &Path, role: DatabaseRole) -> Result<Self, String> {
        let config = Config::load(file).map_err(|error| error.to_string())?.acting_as(role);
        Ok(Self {
            log: config.log_settings(),
            bounced_at: config.delivery.postfix_time_limit,
            size_limit: config.delivery.message_size_limit,
            deadline: config.delivery.deadline,
            append_grace: config.policy().append_grace,
            created: None,
            place: SiteSource::Configured(Box::new(config)),
        })
    }

    /// Uses one directory, which is created if it is missing. The error is a text for people.
    pub fn embedded(directory: &Path) -> Result<Self, String> {
        let fails = |error: io::Error| format!("{}: {error}", directory.display());
        let directory = std::path::absolute(directory).map_err(fails)?;
        let log = log::Settings {
            target: log::Target::File(directory.join("delivery.log")),
            level: log::Level::Info,
            format: log::Format::Text,
        };
        let embedded = Embedded::new(directory.clone());
        if let Some(problem) = embedded.refuses_root() {
            return Err(problem);
        }
        let is_missing = !directory.exists();
        create_directory(&directory).map_err(fails)?;
        Ok(Self {
            created: is_missing.then_some(directory),
            place: SiteSource::Embedded(embedded),
            log,
            bounced_at: POSTFIX_TIME_LIMIT,
            size_limit: None,
            deadline: deadline::OF_A_DELIVERY,
            append_grace: Policy::embedded().append_grace,
        })
    }
}
