//! A site: where its database and its mailboxes are, and who lives here. Opens what one delivery needs, side by side.
//! Uses all rooms below it.
//!
//! ```text
//! parse ── connect: database ∥ IMAP (greeting) ── route ── authenticate: recipient ∥ sender ── deliver
//! ```
//!
//! Once a week, behind the route, one delivery finds out whether logins lead to whom they name (`way_in`).

mod delivery_log;
pub mod embedded;
mod login_check;
mod mailboxes;
mod routes;
mod sessions;
mod setting;

pub use delivery_log::log_delivery;
use mailboxes::Owed;
use routes::{Routes, role_of_sent};
use sessions::Opened;
pub use sessions::Sessions;
pub(crate) use setting::Setting;

use crate::base::deadline::{self, Deadline};
use crate::base::server_waits::{self, Whom};
use crate::config::{self, Config, ConfigError, Engine};
use crate::database::{Client, DatabaseError, DatabaseFailure, MysqlDatabase, PostgresDatabase, Server};
use crate::delivery::{
    self, Caller, CopyReport, Deferral, Delivered, Delivery, Manner, NoCaller, OwedCopy, Policy, Refusal, Stages,
};
use crate::imap;
use crate::ledger::Database;
use crate::ledger::Destination;
use crate::ledger::recorded::{self, Brought, RecordedCopy};
use crate::ledger::{CopyHistory, CopyKey, WayIn};
use crate::lock::LockName;
use crate::mailbox::imap::authorization::{self, Honoured};
use crate::mailbox::{ImapMailbox, MailboxError, MailboxFailure, Placement, ReadableMailbox};
use crate::message::Role;
use crate::message::{Address, Message};
use crate::routing::{Party, Route, Router};
use crate::schema;
use embedded::Embedded;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use tracing::{debug, warn};
use uuid::Uuid;

/// A site.
#[derive(Clone, Debug)]
pub struct Site {
    kind: Kind,
    /// This host's name.
    host: String,
    /// Whether authors who live here get a copy, where the configuration says so.
    sent_copies: bool,
    /// What the operator has chosen about deliveries.
    policy: Policy,
    /// How long one may take.
    deadline: Duration,
    /// The namespace of their locks.
    namespace: String,
}

#[derive(Clone, Debug)]
enum Kind {
    Configured(Box<Configured>),
    Embedded(Embedded),
}

/// What a configuration comes to, its passwords read.
#[derive(Clone, Debug)]
struct Configured {
    config: Config,
    database: Server,
    /// `None` for a site [without mailboxes](Site::without_mailboxes).
    imap: Option<imap::Settings>,
    /// How we log in there, where that says for whom.
    way_in: Option<WayIn>,
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

/// By what rules, for whom and until when a message is delivered.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// What the operator has chosen.
    pub policy: &'a Policy,
    /// Whoever handed the message over.
    pub caller: &'a dyn Caller,
    /// When the delivery has ended, whatever happens.
    pub deadline: Deadline,
}

/// Whose mailbox can be tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// This address's.
    Known(Address, Destination),
    /// This address leads nowhere.
    Unknown(Address),
    /// There is no address to try.
    Nobody,
}

/// What was seen of a user's mailboxes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tried {
    /// What the server says of itself.
    pub said: String,
    /// Whether it has UIDPLUS.
    pub uid_plus: bool,
    /// What we may do in INBOX.
    pub inboxs_rights: imap::Rights,
    /// What we may do in Sent.
    pub sents_rights: imap::Rights,
}

/// A copy that a delivery owes, and what the ledger says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedCopy {
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
pub(crate) enum Standing {
    /// It is delivered; where, if the server told.
    ThereAlready(Option<Placement>),
    /// Nobody has tried it, or all who did have ended without it.
    ToBeAppended,
    /// Its author's own mail program is about to save one: see [`Site::left_to_authors_for`].
    ToBeLeft,
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
            Standing::ToBeLeft => f.write_str("to be left to the author's own mail program"),
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
        let imap = imap_settings(&config.imap, config.imap_password()?);
        Self::with(config, Some(imap))
    }

    /// The same for who asks the database alone: the password of the mailbox store is not read, and no mailbox can be opened.
    ///
    /// # Errors
    /// [`ConfigError`] where the database's password cannot be read.
    pub(crate) fn without_mailboxes(config: Config) -> Result<Self, ConfigError> {
        Self::with(config, None)
    }

    fn with(config: Config, imap: Option<imap::Settings>) -> Result<Self, ConfigError> {
        let host = host_name();
        let way_in = imap.as_ref().filter(|imap| imap.name_the_user());
        let configured = Configured {
            database: config.database_server()?,
            way_in: way_in.map(|imap| WayIn::new(authorization::way_in(imap, &host))),
            imap,
            router: config.router(),
            config,
        };
        let config = &configured.config;
        let (policy, deadline) = (config.policy(), config.delivery.deadline);
        let namespace = config.lock.namespace.clone();
        Ok(Self { kind: Kind::Configured(Box::new(configured)), host, sent_copies: true, policy, deadline, namespace })
    }

    /// One machine with everything under one directory.
    #[must_use]
    pub fn embedded(embedded: Embedded) -> Self {
        Self {
            kind: Kind::Embedded(embedded),
            host: host_name(),
            sent_copies: true,
            policy: Policy::embedded(),
            deadline: deadline::OF_A_DELIVERY,
            namespace: crate::lock::DEFAULT_NAMESPACE.into(),
        }
    }

    /// The same site, where no author gets a copy.
    #[must_use]
    pub(crate) fn without_sent_copies(self) -> Self {
        Self { sent_copies: false, ..self }
    }

    /// What the operator has chosen about deliveries.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy.clone()
    }

    /// How long a delivery waits for a lock held elsewhere that has to end by another deadline than the site's.
    #[must_use]
    pub(crate) fn lock_wait(&self, deadline: Duration) -> Duration {
        self.config().map_or_else(|| deadline::lock_wait(deadline), |config| config.lock.wait_within(deadline))
    }

    /// For how long a Sent copy is left to its author's own mail program, before `replay --owed` looks for that one's;
    /// `None` where deliveries make it.
    #[must_use]
    pub(crate) fn left_to_authors_for(&self) -> Option<Duration> {
        let sent = &self.config()?.sent;
        (sent.look == config::Look::Mailbox).then_some(sent.look_after)
    }

    /// How long one delivery may take.
    #[must_use]
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The namespace of its deliveries' locks.
    #[must_use]
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// This host's name, as the ledger and the server's list of sessions have it.
    #[must_use]
    pub(crate) fn host(&self) -> &str {
        &self.host
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

    /// How the IMAP server is reached, if there is one and its password was read.
    fn imap_settings(&self) -> Option<&imap::Settings> {
        self.set_up()?.imap.as_ref()
    }

    /// What its configuration comes to, if it has one.
    fn set_up(&self) -> Option<&Configured> {
        match &self.kind {
            Kind::Configured(site) => Some(site),
            Kind::Embedded(_) => None,
        }
    }

    /// The configuration, if there is one.
    #[must_use]
    pub fn config(&self) -> Option<&Config> {
        self.set_up().map(|site| &site.config)
    }

    /// Opens a session with the database.
    ///
    /// # Errors
    /// Where it cannot be reached in time, refuses us, or (embedded) cannot be made.
    pub fn open_database(
        &self,
        queue_id: Option<&str>,
        deadline: Deadline,
    ) -> Result<Box<dyn Database>, DatabaseError> {
        let client = self.client(queue_id);
        Ok(match &self.kind {
            Kind::Configured(site) => match site.config.database.engine {
                Engine::Postgresql => Box::new(PostgresDatabase::connect(&site.database, &client, deadline)?),
                Engine::Mysql => Box::new(MysqlDatabase::connect(&site.database, &client, deadline)?),
            },
            Kind::Embedded(embedded) => Box::new(schema::open_embedded(embedded.directory(), &client, deadline)?),
        })
    }

    /// What a database's list of sessions says of us.
    fn client(&self, queue_id: Option<&str>) -> Client {
        Client { host: self.host.clone(), pid: std::process::id(), queue_id: queue_id.map(ToOwned::to_owned) }
    }

    /// Delivers a message to the envelope's recipient by `sessions`; what is not open yet is opened.
    ///
    /// # Errors
    /// Where the message is to be tried again, which is nearly always, or is refused for good: [`Refusal`] says why.
    pub fn deliver(
        &self,
        sessions: &mut Sessions,
        message: &Message,
        envelope: &Envelope,
        terms: &Terms<'_>,
        stages: &mut Stages,
    ) -> Result<Delivered, Refusal> {
        let queue_id = envelope.queue_id.as_deref();
        let Opened { mut database, greeting, took, has_served } =
            sessions.for_a_delivery(self, queue_id, terms.deadline)?;
        stages.connect = took;
        let mut routed = self.route_or_refuse(message, envelope, database.as_mut(), stages);
        // The server has ended the session since: nothing is written down yet.
        if let Err(Refusal::Deferred(Deferral::Database(error))) = &routed
            && has_served
            && error.a_new_session_can_help()
        {
            debug!(%error, "the session with the database is opened anew");
            let began = Instant::now();
            database = self.open_database(queue_id, terms.deadline).map_err(Deferral::Database)?;
            stages.connect += began.elapsed();
            routed = self.route_or_refuse(message, envelope, database.as_mut(), stages);
        }
        let result = routed.and_then(|routes| {
            let began = Instant::now();
            let Routes { recipient: to, proven, .. } = &routes;
            self.prove_way_in_unless(*proven, &to.user, &to.inbox, database.as_mut(), terms.deadline)?;
            let mut owed = self.open_mailboxes(routes, greeting, &mut sessions.kept, terms.deadline);
            stages.authenticate = began.elapsed();
            let result = self.deliver_copies(message, envelope, terms, database.as_mut(), &mut owed, stages);
            sessions.used_mailboxes = owed.into_iter().filter_map(Owed::into_imap_mailbox).collect();
            stages.imap_round_trips = sessions.used_mailboxes.iter().map(ImapMailbox::round_trips).sum();
            result
        });
        stages.database_round_trips = database.round_trips();
        sessions.used_database = Some(database);
        result
    }

    fn route_or_refuse(
        &self,
        message: &Message,
        envelope: &Envelope,
        database: &mut dyn Database,
        stages: &mut Stages,
    ) -> Result<Routes, Refusal> {
        let began = Instant::now();
        let routes = self.route(message, envelope, database).map_err(|refusal| match refusal {
            Refusal::UnknownRecipient => self.refuse(envelope, database),
            other => other,
        })?;
        stages.route = began.elapsed();
        Ok(routes)
    }

    fn deliver_copies(
        &self,
        message: &Message,
        envelope: &Envelope,
        terms: &Terms<'_>,
        database: &mut dyn Database,
        owed: &mut [Owed],
        stages: &mut Stages,
    ) -> Result<Delivered, Refusal> {
        let attempt = Uuid::now_v7();
        stages.attempt = Some(attempt);
        let delivery = Delivery {
            message,
            sender: &envelope.sender,
            recipient: &envelope.recipient.folded().to_string(),
            queue_id: envelope.queue_id.as_deref(),
            lock: &self.lock_name(message),
            attempt,
            host: &self.host,
            pid: std::process::id(),
            arrived: OffsetDateTime::now_utc(),
            policy: terms.policy,
            caller: terms.caller,
            restore: false,
        };
        let copies = owed.iter_mut().map(Owed::lend).collect();
        let mut delivered = delivery::deliver(&delivery, database, copies, stages)?;
        delivered.brought = how_it_came(message, &delivered.copies, database);
        Ok(delivered)
    }

    /// Delivers one copy of the ledger again, to the mailbox that the ledger has: one that is owed, or with `restore` one that
    /// its mailbox may have lost. Whether its author was vouched for has been settled when it was recorded.
    ///
    /// # Errors
    /// Where the copy is not there afterwards, or that is not known: [`Refusal`] says why.
    pub(crate) fn deliver_again(
        &self,
        copy: &RecordedCopy,
        message: &Message,
        restore: bool,
        deadline: Deadline,
    ) -> Result<Manner, Refusal> {
        let mut database = self.open_database(None, deadline).map_err(Deferral::Database)?;
        self.prove_way_in(&copy.user, &copy.mailbox, database.as_mut(), deadline)?;
        let mut mailbox = self.mailbox(&copy.user, &copy.mailbox, deadline);
        let owed = OwedCopy {
            role: copy.role,
            // Nobody else's copy is ever owed.
            authors: !restore || copy.role == Role::Sender,
            user: copy.user.clone(),
            mailbox_name: copy.mailbox.clone(),
            mailbox: match &mut mailbox {
                Ok(mailbox) => Ok(mailbox.as_mut()),
                Err(error) => Err(error.clone().into()),
            },
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
            caller: &NoCaller,
            restore,
        };
        let delivered = delivery::deliver(&delivery, database.as_mut(), vec![owed], &mut Stages::default())?;
        Ok(delivered.copies.into_iter().next().map_or(Manner::AlreadyThere, |copy| copy.manner))
    }

    /// What [`deliver`](Self::deliver) would do with each copy, the recipient's first. Nothing is written, created or locked.
    ///
    /// # Errors
    /// Where a delivery would end with this refusal before it has opened a mailbox.
    pub(crate) fn plan(
        &self,
        message: &Message,
        envelope: &Envelope,
        database: &mut dyn Database,
    ) -> Result<Vec<PlannedCopy>, Refusal> {
        let Routes { recipient, sender, .. } = self.route(message, envelope, database)?;
        let mut copies = vec![(Role::Recipient, recipient.user, recipient.inbox)];
        copies.extend(sender.map(|sender| (role_of_sent(&sender), sender.user, sender.sent)));
        copies.dedup_by(|(_, a, inbox), (_, b, sent)| a == b && inbox == sent);
        let key =
            |(role, user, mailbox): &(Role, String, String)| CopyKey::new(message.identity(), *role, user, mailbox);
        let keys: Vec<CopyKey> = copies.iter().map(key).collect();
        let histories = database.look(&keys).map_err(Deferral::Database)?;
        // The author's comes second.
        let left_from = if self.left_to_authors_for().is_some() { 1 } else { usize::MAX };
        let planned =
            |(at, ((role, user, mailbox), history)): (usize, ((Role, String, String), &CopyHistory))| PlannedCopy {
                role,
                user,
                mailbox,
                standing: match (&history.delivered, history.open_attempts.len()) {
                    (Some(delivered), 0) => Standing::ThereAlready(delivered.placement),
                    (None, _) if at >= left_from => Standing::ToBeLeft,
                    (None, 0) => Standing::ToBeAppended,
                    (_, open) => Standing::ToBeLookedFor(open),
                },
            };
        Ok(copies.into_iter().zip(&histories).enumerate().map(planned).collect())
    }

    /// Whose mailbox `check` may log in to: the one that was named, or some address of the table, of a user `other_than` these.
    ///
    /// # Errors
    /// Where the database does not answer, or not with addresses.
    pub fn recipient(
        &self,
        named: Option<Address>,
        other_than: &[&str],
        database: &mut dyn Database,
    ) -> Result<Recipient, DatabaseError> {
        let Some(site) = self.set_up() else { return Ok(Recipient::Nobody) };
        let address = match named {
            Some(address) => address,
            None => match database.any_address(other_than)?.and_then(|address| Address::parse(&address).ok()) {
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

    /// Logs in to a user's mailboxes, and looks at them. Creates nothing.
    ///
    /// # Errors
    /// Where the server cannot be reached, or does not let us in.
    pub(crate) fn try_mailboxes(&self, to: &Destination, deadline: Deadline) -> Result<Tried, MailboxError> {
        let Some(site) = self.set_up() else { return Ok(Tried::default()) };
        let mut inbox = imap::connect(site.imap()?, deadline)?.open(&to.user, &to.inbox)?;
        let inboxs_rights = inbox.my_rights()?;
        let sents_rights = if site.config.sent.enabled {
            imap::connect(site.imap()?, deadline)?.open(&to.user, &to.sent)?.my_rights()?
        } else {
            imap::Rights::Unknown
        };
        Ok(Tried { said: inbox.describe(), uid_plus: inbox.has_uid_plus(), inboxs_rights, sents_rights })
    }

    /// Finds out whether logins lead to the mailboxes of those whom they name; `None` where they name nobody.
    ///
    /// # Errors
    /// `IdentityIgnored` where they do not; any other failure leaves it open.
    pub(crate) fn try_way_in(&self, to: &Destination, deadline: Deadline) -> Result<Option<Honoured>, MailboxError> {
        match self.set_up().filter(|site| site.way_in.is_some()) {
            Some(site) => authorization::prove(site.imap()?, &to.user, "INBOX", deadline).map(Some),
            None => Ok(None),
        }
    }

    /// Whether the INBOXes of two users are one; `None` where that cannot be told.
    ///
    /// # Errors
    /// Where the server cannot be reached, or does not let both in.
    pub fn are_one(&self, users: [&str; 2], deadline: Deadline) -> Result<Option<bool>, MailboxError> {
        match self.set_up().filter(|site| site.way_in.is_some()) {
            Some(site) => authorization::are_one(site.imap()?, users, deadline),
            None => Ok(Some(false)),
        }
    }

    /// A mailbox of a user of the mailbox store, logged in to as a delivery logs in. Creates nothing, and asks nothing of
    /// the mailbox yet.
    ///
    /// # Errors
    /// Where the server cannot be reached, or does not let us in.
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

    /// The servers that whoever works on this site waits for, and how each is asked whether it still answers: for
    /// [`server_waits::watch`]. None of an embedded site.
    pub(crate) fn servers(&self) -> Vec<server_waits::Server> {
        let Some(configured) = self.set_up() else { return Vec::new() };
        let site = self.clone();
        let database = server_waits::Server {
            whom: Whom::Database,
            name: format!("the database at {}", configured.database.address),
            ask: Arc::new(move |deadline| {
                let asked = site.open_database(None, deadline);
                // Whatever it says, it says something.
                let answered =
                    asked.and_then(|mut database| database.select("asking whether it answers", "SELECT 1", &[]));
                let silent = |failure| matches!(failure, DatabaseFailure::Unreachable | DatabaseFailure::TimedOut);
                answered.err().is_none_or(|error| !silent(error.failure))
            }),
        };
        let site = self.clone();
        let mailbox_store = configured.imap.as_ref().map(|imap| server_waits::Server {
            whom: Whom::MailboxStore,
            name: format!("the mailbox store at {}", imap.address),
            ask: Arc::new(move |deadline| {
                let silent = |failure| matches!(failure, MailboxFailure::Unreachable | MailboxFailure::TimedOut);
                site.try_greeting(deadline).err().is_none_or(|error| !silent(error.failure))
            }),
        });
        std::iter::once(database).chain(mailbox_store).collect()
    }

    /// Hears the greeting of the mailbox store.
    ///
    /// # Errors
    /// Where the server cannot be reached, or does not greet us.
    pub(crate) fn try_greeting(&self, deadline: Deadline) -> Result<String, MailboxError> {
        let Some(site) = self.set_up() else { return Ok("Maildir".into()) };
        Ok(imap::connect(site.imap()?, deadline)?.describe())
    }
}

impl Configured {
    fn imap(&self) -> Result<&imap::Settings, MailboxError> {
        let detail = "its password was not read: nothing here has to do with mailboxes";
        self.imap
            .as_ref()
            .ok_or_else(|| MailboxError::new(MailboxFailure::Internal, "reaching the mailbox store", detail))
    }
}

/// How the recipient's copy came to be there, where it was there already: somebody may ask who had sent that one. All is
/// recorded by now, and the lock is free; so whatever comes of the question, the message is delivered.
fn how_it_came(message: &Message, copies: &[CopyReport], database: &mut dyn Database) -> Option<Brought> {
    let is_there = |copy: &&CopyReport| copy.role == Role::Recipient && copy.manner == Manner::AlreadyThere;
    let copy = copies.iter().find(is_there)?;
    let key = CopyKey::new(message.identity(), copy.role, &copy.user, &copy.mailbox);
    recorded::brought(database, &key).unwrap_or_else(|error| {
        warn!(%error, "how the copy that was there already came to be there is not known");
        None
    })
}

/// What the IMAP engine needs to know.
fn imap_settings(imap: &config::Imap, password: crate::base::secret::Secret) -> imap::Settings {
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
