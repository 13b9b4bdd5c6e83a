//! A site: where its database and its mailboxes are, and who lives here. Opens what one delivery needs, side by side.
//!
//! ```text
//! parse ── connect: database ∥ IMAP (greeting) ── route ── authenticate: recipient ∥ sender ── deliver
//! ```

mod mailboxes;
mod routes;
mod tell;

use mailboxes::Greeting;
use routes::Routes;
pub use tell::tell;

use crate::config::{self, Config, ConfigError, Engine};
use crate::database::{Client, Database, DatabaseError, MysqlDatabase, PostgresDatabase, Server, SqliteDatabase};
use crate::deadline::{self, Deadline};
use crate::delivery::{self, Deferral, Delivered, Delivery, Manner, OwedCopy, Policy, Refusal, Stages};
use crate::embedded::Embedded;
use crate::ledger::recorded::RecordedCopy;
use crate::ledger::{CopyHistory, CopyKey};
use crate::lock::LockName;
use crate::mailbox::imap;
use crate::mailbox::{Mailbox, MailboxError, Placement, Reading, Role};
use crate::message::{Address, Message};
use crate::routing::{Destination, Party, Route, Router};
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use uuid::Uuid;

/// A site.
#[derive(Debug)]
pub struct Site {
    kind: Kind,
    /// This host's name.
    host: String,
    /// Whether authors who live here get a copy, where the configuration says so.
    sent_copies: bool,
}

#[derive(Debug)]
enum Kind {
    Configured(Box<Configured>),
    Embedded(Embedded),
}

/// What a configuration comes to, its passwords read.
#[derive(Debug)]
struct Configured {
    config: Config,
    database: Server,
    imap: imap::Settings,
    router: Router,
}

/// What Postfix knows of a message besides its bytes.
#[derive(Clone, Debug)]
pub struct Envelope {
    /// The envelope sender; empty for the null sender.
    pub sender: String,
    /// The envelope recipient.
    pub recipient: Address,
    /// The recipient as the sender gave it, before any rewriting.
    pub original_recipient: Option<String>,
    /// Postfix's queue id.
    pub queue_id: Option<String>,
    /// The address of the SMTP client.
    pub client_address: Option<String>,
    /// The SASL user name, if the client logged in.
    pub sasl_username: Option<String>,
}

/// Whose mailbox can be tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// This address's.
    Known(Address, Destination),
    /// This address leads nowhere.
    Unknown(Address),
    /// Nobody's is known.
    Nobody,
}

/// A copy that a delivery owes, and what the ledger says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedCopy {
    /// Why the mailbox gets it.
    pub role: Role,
    /// The mailbox's user.
    pub user: String,
    /// The mailbox.
    pub mailbox: String,
    /// How it stands.
    pub standing: Standing,
}

/// How a copy stands before a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is delivered; where, if the server told.
    ThereAlready(Option<Placement>),
    /// Nobody has tried it, or all who did have ended without it.
    ToBeAppended,
    /// So many attempts at it have not ended: they run now, or have died.
    ToBeLookedFor(usize),
}

impl fmt::Display for PlannedCopy {
    /// `INBOX of doug (recipient): to be appended`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} ({}): ", self.mailbox, self.user, self.role.as_str())?;
        match self.standing {
            Standing::ThereAlready(Some(at)) => write!(f, "there already (uid {})", at.uid),
            Standing::ThereAlready(None) => f.write_str("there already"),
            Standing::ToBeAppended => f.write_str("to be appended"),
            Standing::ToBeLookedFor(open) => write!(f, "to be looked for: {open} attempts at it have not ended"),
        }
    }
}

impl Site {
    /// A site with a configuration, whose passwords are read now.
    ///
    /// # Errors
    /// [`ConfigError`] where a password cannot be read.
    pub fn configured(config: Config) -> Result<Self, ConfigError> {
        let configured = Configured {
            database: config.database_server()?,
            imap: imap_settings(&config.imap, config.imap_password()?),
            router: config.router(),
            config,
        };
        Ok(Self { kind: Kind::Configured(Box::new(configured)), host: host_name(), sent_copies: true })
    }

    /// One machine with everything under one directory.
    #[must_use]
    pub fn embedded(embedded: Embedded) -> Self {
        Self { kind: Kind::Embedded(embedded), host: host_name(), sent_copies: true }
    }

    /// The same site, where no author gets a copy.
    #[must_use]
    pub fn without_sent_copies(self) -> Self {
        Self { sent_copies: false, ..self }
    }

    /// What the operator has chosen about deliveries.
    #[must_use]
    pub fn policy(&self) -> Policy {
        match &self.kind {
            Kind::Configured(site) => site.config.policy(),
            Kind::Embedded(_) => Policy::embedded(),
        }
    }

    /// How long one delivery may take.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        match &self.kind {
            Kind::Configured(site) => site.config.delivery.deadline,
            Kind::Embedded(_) => deadline::OF_A_DELIVERY,
        }
    }

    /// The namespace of its deliveries' locks.
    #[must_use]
    pub fn namespace(&self) -> &str {
        match &self.kind {
            Kind::Configured(site) => &site.config.lock.namespace,
            Kind::Embedded(_) => crate::lock::DEFAULT_NAMESPACE,
        }
    }

    /// This host's name, as the ledger and the server's list of sessions have it.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The name of the lock that guards `message`.
    #[must_use]
    pub fn lock_name(&self, message: &Message) -> LockName {
        LockName::of_message(self.namespace(), message)
    }

    /// The name of the lock that guards the messages of a Message-ID.
    #[must_use]
    pub fn lock_of_message_id(&self, message_id: &[u8]) -> LockName {
        LockName::new(self.namespace(), message_id)
    }

    /// The configuration, if there is one.
    #[must_use]
    pub fn config(&self) -> Option<&Config> {
        match &self.kind {
            Kind::Configured(site) => Some(&site.config),
            Kind::Embedded(_) => None,
        }
    }

    /// Opens a connection to the database.
    ///
    /// # Errors
    /// [`DatabaseError`]
    pub fn open_database(
        &self,
        queue_id: Option<&str>,
        deadline: Deadline,
    ) -> Result<Box<dyn Database>, DatabaseError> {
        let client =
            Client { host: self.host.clone(), pid: std::process::id(), queue_id: queue_id.map(ToOwned::to_owned) };
        Ok(match &self.kind {
            Kind::Configured(site) => match site.config.database.engine {
                Engine::Postgresql => Box::new(PostgresDatabase::connect(&site.database, &client, deadline)?),
                Engine::Mysql => Box::new(MysqlDatabase::connect(&site.database, &client, deadline)?),
            },
            Kind::Embedded(embedded) => Box::new(SqliteDatabase::open(embedded.directory(), &client, deadline)?),
        })
    }

    /// Delivers `message` to the envelope's recipient.
    ///
    /// # Errors
    /// [`Refusal`]
    pub fn deliver(
        &self,
        message: &Message,
        envelope: &Envelope,
        policy: &Policy,
        deadline: Deadline,
        stages: &mut Stages,
    ) -> Result<Delivered, Refusal> {
        let began = Instant::now();
        // The two handshakes run side by side: the IMAP server greets while the database looks at our password.
        let greeting = match &self.kind {
            Kind::Configured(site) => Some(Greeting::awaited(&site.imap, deadline)),
            Kind::Embedded(_) => None,
        };
        let mut database = self.open_database(envelope.queue_id.as_deref(), deadline).map_err(Deferral::Database)?;
        stages.connect = began.elapsed();

        let began = Instant::now();
        let routes = self.route(message, envelope, database.as_mut())?;
        stages.route = began.elapsed();

        let began = Instant::now();
        let (owed, waited_for_imap) = self.open_mailboxes(routes, greeting, deadline);
        stages.authenticate = began.elapsed();
        let attempt = Uuid::now_v7();
        stages.attempt = Some(attempt);

        let recipient = envelope.recipient.folded().to_string();
        let delivery = Delivery {
            message,
            sender: &envelope.sender,
            recipient: &recipient,
            queue_id: envelope.queue_id.as_deref(),
            lock: &self.lock_name(message),
            attempt,
            host: &self.host,
            pid: std::process::id(),
            arrived: OffsetDateTime::now_utc(),
            policy,
            restore: false,
        };
        let result = delivery::deliver(&delivery, database.as_mut(), owed, stages);
        stages.database_round_trips = database.round_trips();
        stages.imap_round_trips = waited_for_imap.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        result
    }

    /// Delivers one copy of the ledger again, to the mailbox that the ledger has: one that is owed, or with `restore` one that
    /// its mailbox may have lost. Whether its author was vouched for has been settled when it was recorded.
    ///
    /// # Errors
    /// [`Refusal`]
    pub fn deliver_again(
        &self,
        copy: &RecordedCopy,
        message: &Message,
        restore: bool,
        deadline: Deadline,
    ) -> Result<Manner, Refusal> {
        let mut database = self.open_database(None, deadline).map_err(Deferral::Database)?;
        let mailbox = self.mailbox(&copy.user, &copy.mailbox, deadline);
        let owed = OwedCopy {
            role: copy.role,
            user: copy.user.clone(),
            mailbox_name: copy.mailbox.clone(),
            mailbox: mailbox.map(|mailbox| mailbox as Box<dyn Mailbox>),
        };
        // Nobody but the operator tries this again: a failure is told, not recorded as owed once more.
        let policy = Policy { sent_retry_for: Duration::MAX, keep_source_up_to: 0, ..self.policy() };
        let delivery = Delivery {
            message,
            sender: &copy.sender,
            recipient: &copy.recipient,
            queue_id: None,
            lock: &copy.lock,
            attempt: Uuid::now_v7(),
            host: &self.host,
            pid: std::process::id(),
            arrived: copy.arrived(),
            policy: &policy,
            restore,
        };
        let delivered = delivery::deliver(&delivery, database.as_mut(), vec![owed], &mut Stages::default())?;
        Ok(delivered.copies.into_iter().next().map_or(Manner::AlreadyThere, |copy| copy.manner))
    }

    /// What [`deliver`](Self::deliver) would do with each copy, the recipient's first. Nothing is written, created or locked.
    ///
    /// # Errors
    /// [`Refusal`], as a delivery would end with.
    pub fn plan(
        &self,
        message: &Message,
        envelope: &Envelope,
        database: &mut dyn Database,
    ) -> Result<Vec<PlannedCopy>, Refusal> {
        let Routes { recipient, sender } = self.route(message, envelope, database)?;
        let mut copies = vec![(Role::Recipient, recipient.user, recipient.inbox)];
        copies.extend(sender.map(|sender| (Role::Sender, sender.user, sender.sent)));
        copies.dedup_by(|(_, a, inbox), (_, b, sent)| a == b && inbox == sent);
        let key =
            |(role, user, mailbox): &(Role, String, String)| CopyKey::new(message.identity(), *role, user, mailbox);
        let keys: Vec<CopyKey> = copies.iter().map(key).collect();
        let histories = database.look(&keys).map_err(Deferral::Database)?;
        let planned = |((role, user, mailbox), history): ((Role, String, String), &CopyHistory)| PlannedCopy {
            role,
            user,
            mailbox,
            standing: match (&history.delivered, history.open_attempts.len()) {
                (Some(delivered), 0) => Standing::ThereAlready(delivered.placement),
                (None, 0) => Standing::ToBeAppended,
                (_, open) => Standing::ToBeLookedFor(open),
            },
        };
        Ok(copies.into_iter().zip(&histories).map(planned).collect())
    }

    /// Whose mailbox `check` may log in to: the one that was named, or some address of the table.
    ///
    /// # Errors
    /// [`DatabaseError`]
    pub fn recipient(&self, named: Option<Address>, database: &mut dyn Database) -> Result<Recipient, DatabaseError> {
        let Kind::Configured(site) = &self.kind else { return Ok(Recipient::Nobody) };
        let address = match named {
            Some(address) => address,
            None => match database.any_address()?.and_then(|address| Address::parse(&address).ok()) {
                Some(address) => address,
                None => return Ok(Recipient::Nobody),
            },
        };
        let lookups = site.router.lookups(&address, Party::Recipient);
        let lookups: Vec<&str> = lookups.iter().map(String::as_str).collect();
        let book = database.addresses(&lookups)?;
        Ok(match site.router.route(&address, Party::Recipient, &book) {
            Route::To(destination) => Recipient::Known(address, destination),
            Route::Unknown | Route::TableEmpty => Recipient::Unknown(address),
        })
    }

    /// Logs in to a mailbox, and says what the server says of itself, and whether it has UIDPLUS. Creates nothing.
    ///
    /// # Errors
    /// [`MailboxError`]
    pub fn try_mailbox(&self, destination: &Destination, deadline: Deadline) -> Result<(String, bool), MailboxError> {
        let Kind::Configured(site) = &self.kind else { return Ok(("Maildir".into(), true)) };
        let session = imap::connect(&site.imap, deadline)?.authenticate(&destination.user)?;
        Ok((session.describe(), session.has_uid_plus()))
    }

    /// A mailbox of a user of the mailbox store, logged in to as a delivery logs in. Creates nothing, and asks nothing of
    /// the mailbox yet.
    ///
    /// # Errors
    /// [`MailboxError`]
    pub fn mailbox(&self, user: &str, mailbox: &str, deadline: Deadline) -> Result<Box<dyn Reading>, MailboxError> {
        Ok(match &self.kind {
            Kind::Embedded(embedded) => Box::new(embedded.mailbox(user, mailbox)),
            Kind::Configured(site) => Box::new(imap::connect(&site.imap, deadline)?.authenticate(user)?.open(mailbox)),
        })
    }

    /// Hears the greeting of the mailbox store.
    ///
    /// # Errors
    /// [`MailboxError`]
    pub fn try_greeting(&self, deadline: Deadline) -> Result<String, MailboxError> {
        let Kind::Configured(site) = &self.kind else { return Ok("Maildir".into()) };
        Ok(imap::connect(&site.imap, deadline)?.describe())
    }
}

/// What the IMAP engine needs to know.
fn imap_settings(imap: &config::Imap, password: config::Secret) -> imap::Settings {
    imap::Settings {
        address: imap.address.clone(),
        encryption: match imap.encryption {
            config::Encryption::None => imap::Encryption::None,
            config::Encryption::Starttls => imap::Encryption::StartTls,
            config::Encryption::Tls => imap::Encryption::Implicit,
        },
        ca_file: imap.ca_file.clone(),
        user: imap.user.clone(),
        password,
        act_for_user: imap.act_for_user,
        login: match imap.mechanism {
            config::Mechanism::Plain => imap::Mechanism::Plain,
            config::Mechanism::Login => imap::Mechanism::Login,
        },
        login_user: imap.login_user.clone(),
    }
}

/// This host's name, for whoever looks for the holder of a lock.
fn host_name() -> String {
    gethostname::gethostname().to_string_lossy().into_owned()
}
