//! The configuration file: TOML, every key documented in `config.example.toml`.
//!
//! An error is one line with the file, the line, the key and the fix. An unknown key is an error, because a misspelt key
//! must not silently leave a default in force.

mod cross_checks;
mod database;
mod network;
mod notifications;
mod password_file;
mod policy;
mod sections;
mod servers;
mod service;
mod source;
mod values;
mod warnings;
mod web;

pub use database::{Account, Database, DatabaseRole, Durability, Engine};
pub use network::{Network, TrustedProxy};
pub use notifications::Notifications;
#[cfg(test)]
pub(crate) use notifications::RETRY;
pub use password_file::PasswordFile;
pub use policy::Policy;
pub use sections::{
    AuthorCheck, DedupBy, Delivery, DomainRule, HeaderFields, Lock, Log, LogTo, Record, Retention, Routing, Sent,
    UnknownRecipient,
};
pub use servers::{Imap, OverQuotaAction};
pub(crate) use service::{BESIDE_A_MESSAGE, RECYCLE_ABOVE, runtime_directory_of};
pub use service::{LARGEST_MESSAGE, MAX_RECIPIENTS, Service};
pub use source::ConfigError;
pub use web::Web;
pub(crate) use web::{SESSION_IDLE, is_name};

use crate::base::log;
use crate::base::secret::Secret;
use crate::database::{KnownTimelines, Limits, Server};
use crate::imap;
use database::DatabaseSection;
use serde::Deserialize;
use servers::ImapSection;
use source::Source;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The default of `--config`. A delivery has no default: master.cf names the file.
pub(crate) const CONFIGURATION: &str = "/etc/maildrop_command/config.toml";

const CONNECT_ONE_OF_SEVERAL: Duration = Duration::from_secs(3);

/// The whole configuration, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file that the configuration was read from.
    pub file: PathBuf,
    pub role: DatabaseRole,
    /// `[database]`
    pub database: Database,
    /// `[lock]`
    pub lock: Lock,
    /// `[imap]`
    pub imap: Imap,
    /// `[routing]`
    pub routing: Routing,
    /// `[sent]`
    pub sent: Sent,
    /// `[record]`
    pub record: Record,
    /// `[delivery]`
    pub delivery: Delivery,
    /// `[retention]`
    pub retention: Retention,
    /// `[service]`
    pub service: Service,
    /// `[notifications]`
    pub notifications: Notifications,
    /// `[web]`
    pub web: Web,
    /// `[log]`
    pub log: Log,
}

/// The file as it is written.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct ConfigFile {
    database: DatabaseSection,
    lock: Lock,
    imap: ImapSection,
    routing: Routing,
    sent: Sent,
    record: Record,
    delivery: Delivery,
    retention: Retention,
    service: Service,
    notifications: Notifications,
    web: Web,
    log: Log,
}

impl Config {
    /// Reads and checks the file. The password files are not read yet: see [`database_servers`](Self::database_servers) and
    /// [`imap_settings`](Self::imap_settings).
    ///
    /// # Errors
    /// If the file cannot be read, is not TOML, has an unknown key, or a value that is not allowed.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::load_with_text(path).map(|(config, _)| config)
    }

    /// As [`load`](Self::load), with the text as it was read.
    pub(crate) fn load_with_text(path: &Path) -> Result<(Self, String), ConfigError> {
        let unreadable = |problem: String| ConfigError {
            file: path.to_owned(),
            line: None,
            problem: format!("cannot read it: {problem}"),
        };
        let bytes = fs::read(path).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => unreadable(format!("{error}: it holds no password: chmod 644")),
            _ => unreadable(error.to_string()),
        })?;
        let text = String::from_utf8(bytes).map_err(|_| unreadable("it is not UTF-8".into()))?;
        Self::parse(path, &text).map(|config| (config, text))
    }

    /// As [`load`](Self::load), for a text that was read from the file `path`.
    ///
    /// # Errors
    /// If the text is not TOML, has an unknown key, or a value that is not allowed.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let source = Source { file: path, text };
        let file: ConfigFile = toml::from_str(text).map_err(|error| source.toml_error(&error))?;
        let config = Self {
            file: path.to_owned(),
            role: DatabaseRole::Deliveries,
            database: file.database.check(&source, file.delivery.deadline)?,
            imap: file.imap.check(&source, file.delivery.deadline)?,
            lock: file.lock,
            routing: file.routing,
            sent: file.sent,
            record: file.record,
            delivery: file.delivery,
            retention: file.retention,
            service: file.service,
            notifications: file.notifications,
            web: file.web,
            log: file.log,
        };
        config.check(&source)?;
        config.check_serve(&source)?;
        config.notifications.check(&source)?;
        config.check_web(&source)?;
        Ok(config)
    }

    /// The database's servers in their order, with the password of our account. Reads the password file.
    ///
    /// # Errors
    /// If this part of the program has no account, or its password file cannot be read, or holds no password.
    pub(crate) fn database_servers(&self) -> Result<Vec<Server>, ConfigError> {
        let Database { addresses, database, tls, .. } = self.database.clone();
        let Account { user, password } = self.account()?.clone();
        let password = password.map(|file| self.password(&file)).transpose()?;
        let several = addresses.len() > 1;
        let mut limits = Limits::default();
        if several {
            // Another server may answer faster.
            limits.connect = CONNECT_ONE_OF_SEVERAL;
        }
        let timelines = several.then(Arc::<KnownTimelines>::default);
        let server = |address| Server {
            address,
            database: database.clone(),
            user: user.clone(),
            password: password.clone(),
            tls: tls.clone(),
            limits,
            timelines: timelines.clone(),
        };
        Ok(addresses.into_iter().map(server).collect())
    }

    /// How to reach the IMAP server and log in. Reads the service account's password file.
    ///
    /// # Errors
    /// If the password file cannot be read, or holds no password.
    pub(crate) fn imap_settings(&self) -> Result<imap::Settings, ConfigError> {
        let Imap { address, encryption, ca_file, user, password, act_for_user, mechanism, login_user, .. } =
            self.imap.clone();
        let (password, login) = (self.password(&password)?, mechanism);
        Ok(imap::Settings { address, encryption, ca_file, user, password, act_for_user, login, login_user })
    }

    fn password(&self, file: &PasswordFile) -> Result<Secret, ConfigError> {
        file.read().map_err(|problem| ConfigError { file: self.file.clone(), line: None, problem })
    }

    pub fn policy(&self) -> Policy {
        Policy {
            lock_wait: self.lock.wait_within(self.delivery.deadline),
            append_grace: self.imap.append_grace,
            sent_retry_for: self.sent.retry_for(self.delivery.postfix_queue_lifetime),
            queue_lifetime: self.delivery.postfix_queue_lifetime,
            slow_mailbox_timeout: self.slow_mailbox_timeout(),
            author_patience: None,
            opening_patience: None,
            over_quota_refuses: self.imap.over_quota_action == OverQuotaAction::Reject,
            look_in_sent: self.sent.dedup_by == DedupBy::Mailbox,
            keep_source_up_to: if self.record.keep_source { self.record.keep_source_max } else { 0 },
            headers: self.record.keep_headers,
        }
    }

    /// The target, level and format of the log.
    pub fn log_settings(&self) -> log::Settings {
        let target = match (self.log.to, &self.log.file) {
            (LogTo::File, Some(file)) => log::Target::File(file.clone()),
            (LogTo::Journald, _) => log::Target::Journald,
            // `Log::to = File` without a name was refused when the configuration was read.
            (LogTo::Syslog | LogTo::File, _) => log::Target::Syslog,
        };
        log::Settings { target, level: self.log.level, format: self.log.format }
    }
}

#[cfg(test)]
mod tests;
