//! `[notifications]`: who is told by webhook, and how. One process of the service does it.

use super::network::Network;
use super::servers::{NOT_ABSOLUTE, is_credential};
use super::source::{ConfigError, Source};
use super::{Config, values};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `[notifications]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Notifications {
    /// The file of the key that the secrets of subscriptions are derived from, or a systemd credential. `None`: nobody is told anything.
    pub secret_key_file: Option<PathBuf>,
    pub secret_key_credential: Option<String>,
    /// Where credentials are, if that is known. A delivery reads no key, and need not know it.
    #[serde(skip)]
    pub(super) credentials: Option<PathBuf>,
    /// The configuration with the notifier's own role in the database; left out: this one.
    pub config: Option<PathBuf>,
    /// The waits between the tries of one notification.
    #[serde(deserialize_with = "values::durations")]
    pub retry: Vec<Duration>,
    /// How long a request may take, from looking up its host to the last byte of the answer.
    #[serde(deserialize_with = "values::duration")]
    pub timeout: Duration,
    /// A receiver that has taken nothing for so long is told nothing more.
    #[serde(deserialize_with = "values::duration")]
    pub disable_after: Duration,
    /// How many requests are under way at once.
    pub concurrency: usize,
    /// How often it is looked for what is to be told.
    #[serde(deserialize_with = "values::duration")]
    pub poll: Duration,
    /// Whether a callback may be without encryption.
    pub allow_http: bool,
    /// The ports that callbacks may be at.
    pub allow_ports: Vec<u16>,
    /// Networks of our own that callbacks may be in.
    pub allow_networks: Vec<Network>,
    /// Whether a new callback has to answer a question before it is told anything.
    pub verify_callbacks: bool,
    /// The CA certificates, PEM, that sign the receivers' certificates; left out: those that the system trusts.
    pub ca_file: Option<PathBuf>,
}

impl Default for Notifications {
    fn default() -> Self {
        let (minute, hour) = (Duration::from_mins(1), Duration::from_hours(1));
        Self {
            secret_key_file: None,
            secret_key_credential: None,
            credentials: None,
            config: None,
            retry: vec![
                Duration::from_secs(5),
                5 * minute,
                30 * minute,
                2 * hour,
                5 * hour,
                10 * hour,
                14 * hour,
                20 * hour,
                24 * hour,
            ],
            timeout: Duration::from_secs(15),
            disable_after: Duration::from_hours(120),
            concurrency: 512,
            poll: Duration::from_millis(250),
            allow_http: false,
            allow_ports: vec![443],
            allow_networks: Vec::new(),
            verify_callbacks: true,
            ca_file: None,
        }
    }
}

/// The file that a key is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyFile {
    /// What names it: `notifications.secret_key_file`.
    pub(crate) named_by: &'static str,
    /// Where it is, or why that is not known.
    pub(crate) path: Result<PathBuf, String>,
}

impl Notifications {
    /// Whether anybody is told anything.
    #[must_use]
    pub fn has_notifier(&self) -> bool {
        self.secret_key().is_some()
    }

    /// The key that the secrets of subscriptions are derived from.
    pub(crate) fn secret_key(&self) -> Option<KeyFile> {
        let Some(name) = &self.secret_key_credential else {
            let path = Ok(self.secret_key_file.clone()?);
            return Some(KeyFile { named_by: "notifications.secret_key_file", path });
        };
        let missing = "it is no service of systemd's that is run, so that there is no $CREDENTIALS_DIRECTORY: say credentials_directory = \
                       \"/run/…\" at the top of this file, or name a file";
        let path = self.credentials.as_ref().map(|folder| folder.join(name)).ok_or_else(|| missing.to_owned());
        Some(KeyFile { named_by: "notifications.secret_key_credential", path })
    }

    pub(super) fn check(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let wrong = |key: &str, problem: &str| Err(source.error(&["notifications", key], problem));
        if let Some(name) = &self.secret_key_credential {
            let key = "secret_key_credential";
            if self.secret_key_file.is_some() {
                return wrong(key, "there is a secret_key_file, too: leave out one of them");
            }
            if !is_credential(name) {
                return wrong(key, "it is a name, not a path: for a path, say secret_key_file");
            }
        }
        for (key, path) in
            [("secret_key_file", &self.secret_key_file), ("config", &self.config), ("ca_file", &self.ca_file)]
        {
            if path.as_ref().is_some_and(|path| !path.is_absolute()) {
                return wrong(key, NOT_ABSOLUTE);
            }
        }
        if self.retry.is_empty() {
            return wrong("retry", "it is empty: name a wait, such as [\"5s\", \"5m\"]");
        }
        if self.timeout.is_zero() {
            return wrong("timeout", "a request needs time: the default is \"15s\"");
        }
        if self.concurrency == 0 {
            return wrong("concurrency", "0 would let no request out");
        }
        if self.poll.is_zero() {
            return wrong("poll", "0 would ask the database without a pause: the default is \"250ms\"");
        }
        if self.allow_ports.contains(&0) {
            return wrong("allow_ports", "0 is no port");
        }
        Ok(())
    }
}

impl Config {
    /// The configuration that the notifier goes by: the file that `notifications.config` names, or this one.
    ///
    /// # Errors
    /// Where that file cannot be read, is not in order, or is for another site. Its passwords are not read yet.
    pub(crate) fn of_notifier(&self) -> Result<Self, ConfigError> {
        self.of_the_same_site(self.notifications.config.as_deref(), "notifications.config")
    }

    /// The configuration in `file`, which the key `named_by` of this one names; this one where it names none.
    ///
    /// # Errors
    /// As [`of_notifier`](Self::of_notifier).
    pub(super) fn of_the_same_site(&self, file: Option<&Path>, named_by: &str) -> Result<Self, ConfigError> {
        let Some(file) = file else { return Ok(self.clone()) };
        let other = Self::load(file)?;
        let same_database =
            (&other.database.engine, &other.database.database) == (&self.database.engine, &self.database.database);
        let key = match (same_database, other.lock.namespace == self.lock.namespace) {
            (true, true) => return Ok(other),
            (false, _) => "database.database",
            (true, false) => "lock.namespace",
        };
        let problem = format!(
            "{key}: it differs from that in {}, whose {named_by} this file is: it has to be the same site",
            self.file.display()
        );
        Err(ConfigError { file: file.to_owned(), line: None, problem })
    }
}
