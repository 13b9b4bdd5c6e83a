//! What a process that delivers is set up with: the site, its log and the limits, by a configuration file or one directory.

use super::Site;
use super::embedded::Embedded;
use crate::base::log;
use crate::config::Config;
use std::path::Path;
use std::time::Duration;

/// Postfix's limit where no configuration says otherwise (`command_time_limit`, `<transport>_time_limit`).
const POSTFIX_TIME_LIMIT: Duration = Duration::from_secs(1000);

/// The site that is delivered to, its log, and the limits of a delivery.
pub(crate) struct Setup {
    pub(crate) site: Site,
    pub(crate) log: log::Settings,
    /// After this long Postfix kills a delivery, and bounces its message.
    pub(crate) bounced_at: Duration,
    /// The largest message, in bytes.
    pub(crate) size_limit: Option<u64>,
}

impl Setup {
    /// By a configuration file; or what is wrong with it.
    pub fn configured(file: &Path) -> Result<Self, String> {
        let config = Config::load(file).map_err(|error| error.to_string())?;
        let log = config.log_settings();
        let (bounced_at, size_limit) = (config.delivery.postfix_time_limit, config.delivery.message_size_limit);
        let site = Site::configured(config).map_err(|error| error.to_string())?;
        Ok(Self { site, log, bounced_at, size_limit })
    }

    /// In one directory, which is made if it is missing; or what is wrong with it.
    pub fn embedded(directory: &Path) -> Result<Self, String> {
        let log = log::Settings {
            target: log::Target::File(directory.join("delivery.log")),
            level: log::Level::Info,
            format: log::Format::Text,
        };
        let embedded = Embedded::new(directory.to_owned());
        if let Some(problem) = embedded.refuses_root() {
            return Err(problem);
        }
        crate::base::files::create_directory(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let site = Site::embedded(embedded);
        Ok(Self { site, log, bounced_at: POSTFIX_TIME_LIMIT, size_limit: None })
    }
}
