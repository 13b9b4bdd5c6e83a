//! The configuration file: TOML, every key documented in `config.example.toml`.
//!
//! What is wrong with it is said in one line that names the file, the line, the key and what mends it. A key that is not
//! known is an error: a misspelt one must not leave a default in force unnoticed.

mod secret;
mod servers;
mod source;
mod values;

pub use secret::{PasswordFile, Secret};
pub use servers::{Database, Encryption, Engine, Imap, Mechanism, OverQuota};
pub use source::ConfigError;

use crate::database::{Address, Server, Tls};
use crate::delivery::Policy;
use crate::log::{self, Format, Level};
use crate::routing::{DomainRule, Router, is_user_template, one_name};
use serde::Deserialize;
use servers::{DatabaseSection, ImapSection, NOT_ABSOLUTE, is_on_this_machine};
use source::Source;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// For how long a mailbox store that was killed may heed the locks of its dead processes: Dovecot 2.4 on Maildir took in an
/// APPEND 110 seconds late.
const DEAD_LOCKS: Duration = Duration::from_mins(2);

/// The whole configuration, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file that it was read from.
    pub file: PathBuf,
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
    /// `[log]`
    pub log: Log,
}

/// `[lock]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lock {
    /// Keeps the locks of different programs, or installations, apart that share a database server.
    pub namespace: String,
    /// How long to wait for a lock held elsewhere. Zero: not at all.
    #[serde(deserialize_with = "values::duration")]
    pub wait: Duration,
}

impl Default for Lock {
    fn default() -> Self {
        Self { namespace: crate::lock::DEFAULT_NAMESPACE.to_owned(), wait: Duration::ZERO }
    }
}

/// `[routing]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Routing {
    /// Postfix's `recipient_delimiter`: a set of characters, none if empty.
    pub recipient_delimiter: String,
    /// What becomes of mail for an address that nobody here bears.
    pub unknown: UnknownRecipient,
    /// `[[routing.domain]]`: rules for whole domains, asked after the table `addresses`.
    pub domain: Vec<Domain>,
}

impl Default for Routing {
    fn default() -> Self {
        Self { recipient_delimiter: "+".into(), unknown: UnknownRecipient::default(), domain: Vec::new() }
    }
}

/// What becomes of mail for an address that nobody here bears.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownRecipient {
    /// It is refused for good: 5.1.1.
    #[default]
    Reject,
    /// It stays with Postfix: 4.1.1. For as long as the table `addresses` is being filled, so that an address which is
    /// not there yet costs no mail.
    Defer,
}

/// `[[routing.domain]]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Domain {
    /// The domain.
    pub name: String,
    /// The user, made from `{address}`, `{local}` and `{domain}`; `{address}` if left out.
    pub user: Option<String>,
    /// The mailbox for arriving mail; `INBOX` if left out.
    pub inbox: Option<String>,
    /// The mailbox for sent mail; `Sent` if left out.
    pub sent: Option<String>,
}

/// `[sent]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sent {
    /// Whether senders who live here get a Sent copy.
    pub enabled: bool,
    /// Where to look whether it is there already.
    pub look: Look,
    /// What makes somebody the author of a message.
    pub trust: Trust,
    /// Whose Authentication-Results count (RFC 8601 section 2.5): the name that our filter signs with.
    pub authserv_id: Option<String>,
    /// Past this time since the first attempt, a Sent copy that cannot be appended stays owed, and the delivery is done.
    #[serde(deserialize_with = "values::duration")]
    pub retry_for: Duration,
}

impl Default for Sent {
    fn default() -> Self {
        Self {
            enabled: true,
            look: Look::default(),
            trust: Trust::default(),
            authserv_id: None,
            retry_for: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// Where to look whether a Sent copy is there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Look {
    /// In the ledger: for members whose mail program saves nothing.
    #[default]
    Ledger,
    /// In the mailbox too, by Message-ID: for members whose mail program saves a copy of its own.
    Mailbox,
}

/// What makes somebody the author of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// The From header says so: whoever forges it puts a copy into a member's Sent mailbox.
    #[default]
    Header,
    /// Besides, the client has authenticated (SASL), or our filter's Authentication-Results say that DMARC passed.
    Authenticated,
}

/// `[record]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Record {
    /// Whether the raw source of messages is kept in the database.
    pub raw: bool,
    /// Of messages of at most this size, in bytes.
    #[serde(deserialize_with = "values::bytes")]
    pub raw_limit: u64,
}

impl Default for Record {
    fn default() -> Self {
        Self { raw: false, raw_limit: 10_000_000 }
    }
}

/// `[delivery]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Delivery {
    /// By when a delivery has ended, whatever happens, counted from its beginning.
    #[serde(deserialize_with = "values::duration")]
    pub deadline: Duration,
    /// What `<transport>_time_limit` is in Postfix's main.cf: at that time it kills the delivery and *bounces* the
    /// message.
    #[serde(deserialize_with = "values::duration")]
    pub postfix_time_limit: Duration,
    /// What `maximal_queue_lifetime` is in Postfix's main.cf, or `bounce_queue_lifetime` if that is longer: until then it
    /// may bring a message back.
    #[serde(deserialize_with = "values::duration")]
    pub postfix_queue_lifetime: Duration,
    /// Larger messages are refused for good (5.3.4), in bytes.
    #[serde(deserialize_with = "values::optional_bytes")]
    pub message_size_limit: Option<u64>,
}

impl Default for Delivery {
    fn default() -> Self {
        Self {
            deadline: crate::deadline::OF_A_DELIVERY,
            postfix_time_limit: Duration::from_secs(1000),
            postfix_queue_lifetime: Duration::from_secs(5 * 24 * 60 * 60),
            message_size_limit: None,
        }
    }
}

/// `[retention]`: what `prune` forgets. What is left out is kept for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Attempts older than this.
    #[serde(deserialize_with = "values::optional_duration")]
    pub attempts_older_than: Option<Duration>,
    /// Raw sources of messages older than this.
    #[serde(deserialize_with = "values::optional_duration")]
    pub sources_older_than: Option<Duration>,
    /// Messages older than this, and all that belongs to them.
    #[serde(deserialize_with = "values::optional_duration")]
    pub messages_older_than: Option<Duration>,
}

impl Retention {
    /// The first of these that forgets what has to be remembered for longer than `least`: its key, and why it has to be.
    ///
    /// What was delivered is known by the ledger alone. As long as a message may come back, from Postfix's queue or after
    /// the end of an attempt that was cut short, a ledger that has forgotten it delivers it again.
    #[must_use]
    pub fn forgets_too_early(&self, least: Duration) -> Option<(&'static str, String)> {
        let ages =
            [("attempts_older_than", self.attempts_older_than), ("messages_older_than", self.messages_older_than)];
        let (key, age) = ages.into_iter().find_map(|(key, age)| Some((key, age.filter(|age| *age <= least)?)))?;
        let span = humantime::format_duration;
        Some((
            key,
            format!(
                "{} is too short: it has to be longer than {}, which is for how long Postfix may bring a message back \
                 (delivery.postfix_queue_lifetime) and imap.settle; a message that is forgotten sooner would be delivered again",
                span(age),
                span(least)
            ),
        ))
    }
}

/// `[log]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Where records go.
    pub to: LogTo,
    /// The file, if they go to a file.
    pub file: Option<PathBuf>,
    /// The least that is logged.
    pub level: Level,
    /// How a record in a file is written.
    pub format: Format,
}

/// Where log records go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogTo {
    /// syslog(3).
    #[default]
    Syslog,
    /// systemd's journal.
    Journald,
    /// A file.
    File,
}

/// The file as it is written.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct File {
    credentials_directory: Option<PathBuf>,
    database: DatabaseSection,
    lock: Lock,
    imap: ImapSection,
    routing: Routing,
    sent: Sent,
    record: Record,
    delivery: Delivery,
    retention: Retention,
    log: Log,
}

impl Config {
    /// Reads and checks the file. The files that passwords are in are not read yet: see
    /// [`database_server`](Self::database_server) and [`imap_password`](Self::imap_password).
    ///
    /// # Errors
    /// [`ConfigError`]
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let unreadable = |problem: String| ConfigError {
            file: path.to_owned(),
            line: None,
            problem: format!("cannot read it: {problem}"),
        };
        let bytes = fs::read(path).map_err(|error| unreadable(error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|_| unreadable("it is not UTF-8".into()))?;
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
        Self::parse(path, &text, credentials.as_deref())
    }

    /// The same for a text that was in the file `path`; `credentials` is what $CREDENTIALS_DIRECTORY says.
    ///
    /// # Errors
    /// [`ConfigError`]
    pub fn parse(path: &Path, text: &str, credentials: Option<&Path>) -> Result<Self, ConfigError> {
        let source = Source { file: path, text };
        let file: File = toml::from_str(text).map_err(|error| source.toml_error(&error))?;
        if file.credentials_directory.as_ref().is_some_and(|folder| !folder.is_absolute()) {
            return Err(source.error(&["credentials_directory"], NOT_ABSOLUTE));
        }
        let credentials = file.credentials_directory.as_deref().or(credentials);
        let config = Self {
            file: path.to_owned(),
            database: file.database.check(&source, credentials)?,
            imap: file.imap.check(&source, credentials)?,
            lock: file.lock,
            routing: file.routing,
            sent: file.sent,
            record: file.record,
            delivery: file.delivery,
            retention: file.retention,
            log: file.log,
        };
        config.check(&source)?;
        Ok(config)
    }

    /// What no section can see for itself, and what no type says.
    fn check(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let span = humantime::format_duration;
        let Delivery { deadline, postfix_time_limit, postfix_queue_lifetime, .. } = self.delivery;
        if deadline.is_zero() {
            return Err(source.error(&["delivery", "deadline"], "a delivery needs time: the default is \"240s\""));
        }
        if deadline >= postfix_time_limit {
            let problem = format!(
                "{} is not below delivery.postfix_time_limit ({}), at which Postfix kills the delivery and bounces the message",
                span(deadline),
                span(postfix_time_limit)
            );
            return Err(source.error(&["delivery", "deadline"], &problem));
        }
        if self.imap.settle <= deadline {
            let problem = format!(
                "{} is not above delivery.deadline ({}): until that has passed, the APPEND of an earlier attempt may still land",
                span(self.imap.settle),
                span(deadline)
            );
            return Err(source.error(&["imap", "settle"], &problem));
        }
        if let Some((key, problem)) = self.retention.forgets_too_early(postfix_queue_lifetime + self.imap.settle) {
            return Err(source.error(&["retention", key], &problem));
        }
        if self.lock.wait >= deadline {
            let problem = format!(
                "{} is not below delivery.deadline ({}): nothing would be left for the delivery",
                span(self.lock.wait),
                span(deadline)
            );
            return Err(source.error(&["lock", "wait"], &problem));
        }
        if self.lock.namespace.is_empty() {
            return Err(source.error(&["lock", "namespace"], "it is empty: leave it out for \"maildrop\""));
        }
        if self.lock.namespace.ends_with(crate::lock::OF_PROGRAMS) {
            let problem = "a namespace that ends in \" exec\" belongs to `lock exec`: give it another end";
            return Err(source.error(&["lock", "namespace"], problem));
        }
        let delimits = |c: char| c.is_ascii_punctuation() && !matches!(c, '@' | '"' | '\\');
        if !self.routing.recipient_delimiter.chars().all(delimits) {
            let problem = "write what Postfix's recipient_delimiter says, such as \"+\" or \"+-\"; \"\" for none";
            return Err(source.error(&["routing", "recipient_delimiter"], problem));
        }
        for (at, domain) in self.routing.domain.iter().enumerate() {
            domain.check(source)?;
            let name = domain.name.to_lowercase();
            if self.routing.domain.iter().take(at).any(|earlier| earlier.name.to_lowercase() == name) {
                let problem = format!("{:?} has a rule already, and only the first would count", domain.name);
                return Err(source.error(&["routing", "domain"], &problem));
            }
        }
        if self.sent.authserv_id.as_ref().is_some_and(|id| id.trim().is_empty()) {
            return Err(source.error(&["sent", "authserv_id"], "it is empty: leave it out, or name your filter's"));
        }
        match (self.log.to, &self.log.file) {
            (LogTo::File, None) => Err(source.error(&["log", "file"], "it is missing: name the file to log to")),
            (LogTo::Syslog | LogTo::Journald, Some(_)) => {
                Err(source.error(&["log", "file"], "it is used only with to = \"file\": leave out one of them"))
            }
            (LogTo::File, Some(file)) if !file.is_absolute() => Err(source.error(&["log", "file"], NOT_ABSOLUTE)),
            _ => Ok(()),
        }
    }

    /// The database server, its password read.
    ///
    /// # Errors
    /// [`ConfigError`] where the file that the password is in cannot be read, or holds none.
    pub fn database_server(&self) -> Result<Server, ConfigError> {
        let Database { address, database, user, password, tls, .. } = self.database.clone();
        let password = password.map(|file| self.password(&file)).transpose()?;
        Ok(Server { address, database, user, password, tls })
    }

    /// The IMAP service account's password.
    ///
    /// # Errors
    /// [`ConfigError`] where the file that it is in cannot be read, or holds none.
    pub fn imap_password(&self) -> Result<Secret, ConfigError> {
        self.password(&self.imap.password)
    }

    fn password(&self, file: &PasswordFile) -> Result<Secret, ConfigError> {
        file.read().map_err(|problem| ConfigError { file: self.file.clone(), line: None, problem })
    }

    /// What a delivery goes by.
    #[must_use]
    pub fn policy(&self) -> Policy {
        Policy {
            lock_wait: self.lock.wait,
            settle: self.imap.settle,
            sent_retry_for: self.sent.retry_for,
            over_quota_refuses: self.imap.over_quota == OverQuota::Reject,
            look_in_sent: self.sent.look == Look::Mailbox,
            keep_source_up_to: if self.record.raw { self.record.raw_limit } else { 0 },
        }
    }

    /// Where the log goes.
    #[must_use]
    pub fn log_settings(&self) -> log::Settings {
        let target = match (self.log.to, &self.log.file) {
            (LogTo::File, Some(file)) => log::Target::File(file.clone()),
            (LogTo::Journald, _) => log::Target::Journald,
            // A file without a name was refused when the file was read.
            (LogTo::Syslog | LogTo::File, _) => log::Target::Syslog,
        };
        log::Settings { target, level: self.log.level, format: self.log.format }
    }

    /// What addresses are routed by.
    #[must_use]
    pub fn router(&self) -> Router {
        let rules = self.routing.domain.iter().map(Domain::rule).collect();
        Router::new(rules, self.routing.recipient_delimiter.clone())
    }

    /// What works, and should be otherwise: files that others can read or write, connections that others can listen to.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut look = |path: &Path, secret: bool| {
            // A file that cannot be looked at is an error where it is used.
            let Ok(found) = fs::metadata(path) else { return };
            let mode = found.permissions().mode() & 0o777;
            let (bad, mend) = if secret { (0o027, "chmod 640, or 600") } else { (0o022, "chmod go-w") };
            if mode & bad != 0 {
                let what =
                    if secret { "others may read it, or more than its owner write it" } else { "others may write it" };
                warnings.push(format!("{}: mode {mode:03o}: {what}: {mend}", path.display()));
            }
        };
        look(&self.file, false);
        for file in self.database.password.iter().chain([&self.imap.password]) {
            look(file.path(), true);
        }
        let plain = |address: &Address, encrypted: bool| !encrypted && !is_on_this_machine(address);
        if plain(&self.database.address, self.database.tls != Tls::Off) {
            warnings.push(format!(
                "{}: database.tls: passwords and mail cross the network in the clear",
                self.file.display()
            ));
        }
        if plain(&self.imap.address, self.imap.encryption != Encryption::None) {
            warnings.push(format!(
                "{}: imap.encryption: passwords and mail cross the network in the clear",
                self.file.display()
            ));
        }
        if self.imap.settle < self.delivery.deadline + DEAD_LOCKS {
            warnings.push(format!(
                "{}: imap.settle: {} is less than {} above delivery.deadline: for so long an IMAP server that was killed may \
                 heed the locks of its dead, and take in an earlier attempt's APPEND only then",
                self.file.display(),
                humantime::format_duration(self.imap.settle),
                humantime::format_duration(DEAD_LOCKS),
            ));
        }
        warnings
    }
}

impl Domain {
    fn check(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let error = |problem: String| Err(source.error(&["routing", "domain"], &problem));
        if self.name.is_empty() || self.name.contains(['@', ' ']) || self.name.ends_with('.') {
            return error(format!("name = {:?} is no domain: write \"example.com\"", self.name));
        }
        let rule = self.rule();
        if !is_user_template(&rule.user) {
            return error(format!(
                "user = {:?} of {}: only {{address}}, {{local}} and {{domain}} can stand in it",
                rule.user, self.name
            ));
        }
        if rule.inbox.is_empty() || rule.sent.is_empty() || one_name(&rule.inbox) == one_name(&rule.sent) {
            return error(format!("inbox and sent of {} have to be the names of two mailboxes", self.name));
        }
        Ok(())
    }

    fn rule(&self) -> DomainRule {
        let or = |text: &Option<String>, default: &str| text.clone().unwrap_or_else(|| default.to_owned());
        DomainRule {
            domain: self.name.clone(),
            user: or(&self.user, "{address}"),
            inbox: or(&self.inbox, "INBOX"),
            sent: or(&self.sent, "Sent"),
        }
    }
}

#[cfg(test)]
mod tests;
