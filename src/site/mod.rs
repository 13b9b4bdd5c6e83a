//! A site: the addresses of its database and its mailboxes, and the users who have one. Either a configuration file describes it,
//! or it is one directory. A delivery is planned (`plan`), its sessions are opened in parallel (`open`), and it is run (`deliver`).
//!
//! ```text
//! parse ── connect: database ∥ IMAP (greeting) ── route ── authenticate: recipient ∥ sender ── deliver
//! ```
//!
//! After the route, a delivery proves that logins lead to the users that they name, unless a recent proof exists (`login_check`).

mod database;
mod deliver;
mod delivery_log;
pub mod embedded;
mod login_check;
mod logins;
mod open;
mod plan;
mod probe;
pub(crate) mod routing;
mod sessions;
mod setup;

pub use deliver::{Envelope, Outcome, Terms};
pub use delivery_log::log_delivery;
pub(crate) use login_check::{RENEWAL, RENEWED_EVERY};
pub(crate) use logins::Logins;
pub(crate) use plan::StateBefore;
pub use probe::Recipient;
pub(crate) use probe::SeenMailboxes;
pub use sessions::Sessions;
pub(crate) use setup::Setup;

use crate::base::deadline::{self, Deadline};
use crate::base::terminal::shell_word;
use crate::config::{self, CONFIGURATION, Config, ConfigError};
use crate::database::Server;
use crate::delivery::{self, Policy};
use crate::imap;
use crate::ledger::LoginCheck;
use crate::lock::LockName;
use crate::mailbox::imap::authorization;
use crate::mailbox::{MailboxError, MailboxFailure, ReadableMailbox};
use crate::message::Message;
use crate::site::routing::Router;
use embedded::Embedded;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The database and mailboxes of a site, and the settings of its deliveries.
#[derive(Clone, Debug)]
pub struct Site {
    kind: Kind,
    /// This host's name.
    host: String,
    /// Whether local authors get a copy, if the configuration enables that.
    sent_copies: bool,
    /// The operator's settings for deliveries.
    policy: Policy,
    /// The time limit of a delivery.
    deadline: Duration,
    /// The namespace of the deliveries' locks.
    namespace: String,
    /// Counts the opened sessions.
    logins: Arc<logins::Counter>,
}

#[derive(Clone, Debug)]
enum Kind {
    Configured(Box<Configured>),
    Embedded(Embedded),
}

/// A site from a configuration, with its passwords.
#[derive(Clone, Debug)]
struct Configured {
    config: Config,
    /// The servers that may be the primary, in the configured order.
    database: Vec<Server>,
    /// `None` for a site [without mailboxes](Site::without_mailboxes).
    imap: Option<imap::Settings>,
    /// The kind of login to the mailbox store, if a login names the user.
    login_check: Option<LoginCheck>,
    router: Router,
}

impl Site {
    /// A site from a configuration. Reads its passwords.
    ///
    /// # Errors
    /// [`ConfigError`] if a password cannot be read.
    pub fn configured(config: Config) -> Result<Self, ConfigError> {
        let imap = config.imap_settings()?;
        Self::with(config, Some(imap))
    }

    /// A site for callers that use only the database: the password of the mailbox store is not read, and no mailbox can be
    /// opened.
    ///
    /// # Errors
    /// [`ConfigError`] if the database's password cannot be read.
    pub fn without_mailboxes(config: Config) -> Result<Self, ConfigError> {
        Self::with(config, None)
    }

    fn with(config: Config, imap: Option<imap::Settings>) -> Result<Self, ConfigError> {
        let host = host_name();
        let login_check = imap.as_ref().filter(|imap| imap.name_the_user());
        let configured = Configured {
            database: config.database_servers()?,
            login_check: login_check.map(|imap| LoginCheck::new(authorization::login_path(imap, &host))),
            imap,
            router: Router::new(config.routing.domain.clone(), config.routing.recipient_delimiter.clone()),
            config,
        };
        let config = &configured.config;
        let (policy, deadline) = (config.policy(), config.delivery.deadline);
        let namespace = config.lock.namespace.clone();
        let kind = Kind::Configured(Box::new(configured));
        Ok(Self { kind, host, sent_copies: true, policy, deadline, namespace, logins: Arc::default() })
    }

    /// A site on one machine, with everything in one directory.
    #[must_use]
    pub fn embedded(embedded: Embedded) -> Self {
        Self {
            kind: Kind::Embedded(embedded),
            host: host_name(),
            sent_copies: true,
            policy: Policy::embedded(),
            deadline: deadline::OF_A_DELIVERY,
            namespace: crate::lock::DEFAULT_NAMESPACE.into(),
            logins: Arc::default(),
        }
    }

    /// This site, but without copies for authors.
    #[must_use]
    pub(crate) fn without_sent_copies(self) -> Self {
        Self { sent_copies: false, ..self }
    }

    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy.clone()
    }

    /// How long a delivery with this deadline waits for a lock that another process holds.
    #[must_use]
    pub(crate) fn lock_wait(&self, deadline: Duration) -> Duration {
        self.config().map_or_else(|| deadline::lock_wait(deadline), |config| config.lock.wait_within(deadline))
    }

    /// How long a Sent copy is left to its author's own mail program, before `replay --owed` searches for it. `None` if
    /// deliveries append it.
    #[must_use]
    pub(crate) fn left_to_authors_for(&self) -> Option<Duration> {
        let sent = &self.config()?.sent;
        (sent.dedup_by == config::DedupBy::Mailbox).then_some(sent.dedup_delay)
    }

    /// How many sessions were opened for deliveries.
    #[must_use]
    pub(crate) fn logins(&self) -> Logins {
        self.logins.so_far()
    }

    #[must_use]
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The namespace of the deliveries' locks.
    #[must_use]
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// This host's name, as in the ledger and in the server's list of sessions.
    #[must_use]
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The directory of an embedded site.
    #[must_use]
    pub(crate) fn directory(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Configured(_) => None,
            Kind::Embedded(embedded) => Some(embedded.directory()),
        }
    }

    /// The options with which a subcommand finds this site: none if its configuration is the default file.
    pub(crate) fn options(&self) -> String {
        let (option, path) = match &self.kind {
            Kind::Configured(site) if site.config.file == Path::new(CONFIGURATION) => return String::new(),
            Kind::Configured(site) => ("config", site.config.file.as_path()),
            Kind::Embedded(embedded) => ("embedded", embedded.directory()),
        };
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        format!(" --{option} {}", shell_word(&path.to_string_lossy()))
    }

    /// The name of the lock that guards `message`.
    #[must_use]
    pub fn lock_name(&self, message: &Message) -> LockName {
        delivery::lock_of(self.namespace(), message)
    }

    /// The name of the lock that guards the messages of a Message-ID.
    #[must_use]
    pub fn lock_of_message_id(&self, message_id: &[u8]) -> LockName {
        delivery::lock_of_message_id(self.namespace(), message_id)
    }

    /// The settings of the IMAP server, if there is one and its password was read.
    fn imap_settings(&self) -> Option<&imap::Settings> {
        self.as_configured()?.imap.as_ref()
    }

    /// Whether mailboxes can be opened: not for a site [without mailboxes](Self::without_mailboxes).
    #[must_use]
    pub(crate) fn opens_mailboxes(&self) -> bool {
        self.as_configured().is_none_or(|site| site.imap.is_some())
    }

    fn as_configured(&self) -> Option<&Configured> {
        match &self.kind {
            Kind::Configured(site) => Some(site),
            Kind::Embedded(_) => None,
        }
    }

    #[must_use]
    pub fn config(&self) -> Option<&Config> {
        self.as_configured().map(|site| &site.config)
    }

    /// A mailbox of a user of the mailbox store, opened with a delivery's kind of login. Creates nothing, and sends no command
    /// about the mailbox.
    ///
    /// # Errors
    /// If the server cannot be reached, or refuses the login.
    pub fn mailbox(
        &self,
        user: &str,
        mailbox: &str,
        deadline: Deadline,
    ) -> Result<Box<dyn ReadableMailbox>, MailboxError> {
        Ok(match &self.kind {
            Kind::Embedded(embedded) => Box::new(embedded.mailbox(user, mailbox)),
            Kind::Configured(site) => Box::new(imap::connect(site.imap()?, deadline)?.open(user, mailbox)?),
        })
    }
}

impl Configured {
    fn imap(&self) -> Result<&imap::Settings, MailboxError> {
        self.imap.as_ref().ok_or_else(|| {
            let detail = "its password was not read: nothing here has to do with mailboxes";
            MailboxError::new(MailboxFailure::Internal, "reaching the mailbox store", detail)
        })
    }
}

/// This host's name, for people who search for the holder of a lock.
fn host_name() -> String {
    gethostname::gethostname().to_string_lossy().into_owned()
}
