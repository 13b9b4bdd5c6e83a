//! A site: where its database and its mailboxes are, and who lives here. Opens what one delivery needs, side by side.
//!
//! ```text
//! parse ── connect: database ∥ IMAP (greeting) ── route ── authenticate: recipient ∥ sender ── deliver
//! ```

use crate::config::{self, Config, ConfigError, Engine, Trust};
use crate::database::{Client, Database, DatabaseError, MysqlDatabase, PostgresDatabase, Server, SqliteDatabase};
use crate::deadline::Deadline;
use crate::delivery::{self, Deferral, Delivered, Delivery, OwedCopy, Policy, Refusal, Stages};
use crate::embedded::Embedded;
use crate::ledger::{self, CopyHistory, CopyKey};
use crate::lock::LockName;
use crate::mailbox::imap::{self, ImapMailbox};
use crate::mailbox::{Mailbox, MailboxError, MailboxFailure, Role};
use crate::message::authentication_results::Vouched;
use crate::message::{Address, Message};
use crate::routing::{Destination, Party, Route, Router};
use std::thread;
use std::time::Instant;
use time::OffsetDateTime;
use tracing::info;
use uuid::Uuid;

/// A site.
#[derive(Debug)]
pub struct Site {
    kind: Kind,
    /// This host's name.
    host: String,
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

/// What a delivery is owed where, before anything is opened.
struct Routes {
    recipient: Destination,
    /// The author's, if a Sent copy is owed.
    sender: Option<Destination>,
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
        Ok(Self { kind: Kind::Configured(Box::new(configured)), host: host_name() })
    }

    /// One machine with everything under one directory.
    #[must_use]
    pub fn embedded(embedded: Embedded) -> Self {
        Self { kind: Kind::Embedded(embedded), host: host_name() }
    }

    /// What the operator has chosen about deliveries.
    #[must_use]
    pub fn policy(&self) -> Policy {
        match &self.kind {
            Kind::Configured(site) => site.config.policy(),
            Kind::Embedded(_) => Policy::embedded(),
        }
    }

    /// The name of the lock that guards `message`.
    #[must_use]
    pub fn lock_name(&self, message: &Message) -> LockName {
        let namespace = match &self.kind {
            Kind::Configured(site) => &site.config.lock.namespace,
            Kind::Embedded(_) => crate::lock::DEFAULT_NAMESPACE,
        };
        LockName::of_message(namespace, message)
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
            Kind::Configured(site) => Some(Beside::start("imap", {
                let settings = site.imap.clone();
                move || imap::connect(&settings, deadline)
            })),
            Kind::Embedded(_) => None,
        };
        let mut database = self.open_database(envelope.queue_id.as_deref(), deadline).map_err(Deferral::Database)?;
        stages.connect = began.elapsed();

        let began = Instant::now();
        let routes = self.route(message, envelope, database.as_mut())?;
        stages.route = began.elapsed();

        let began = Instant::now();
        let owed = self.open_mailboxes(routes, greeting, deadline);
        stages.authenticate = began.elapsed();

        let recipient = envelope.recipient.folded().to_string();
        let delivery = Delivery {
            message,
            sender: &envelope.sender,
            recipient: &recipient,
            queue_id: envelope.queue_id.as_deref(),
            lock: &self.lock_name(message),
            attempt: Uuid::now_v7(),
            host: &self.host,
            pid: std::process::id(),
            arrived: OffsetDateTime::now_utc(),
            policy,
        };
        delivery::deliver(&delivery, database.as_mut(), owed, stages)
    }

    /// What [`deliver`](Self::deliver) would do, a line for each copy. Nothing is written, created or locked.
    ///
    /// # Errors
    /// [`Refusal`], as a delivery would end with.
    pub fn plan(&self, message: &Message, envelope: &Envelope, deadline: Deadline) -> Result<Vec<String>, Refusal> {
        let mut database = self.open_database(envelope.queue_id.as_deref(), deadline).map_err(Deferral::Database)?;
        let Routes { recipient, sender } = self.route(message, envelope, database.as_mut())?;
        let mut copies = vec![(Role::Recipient, recipient.user.as_str(), recipient.inbox.as_str())];
        copies.extend(sender.iter().map(|sender| (Role::Sender, sender.user.as_str(), sender.sent.as_str())));
        copies.dedup_by_key(|(_, user, mailbox)| (*user, *mailbox));
        let key = |(role, user, mailbox): &(Role, &str, &str)| CopyKey::new(message.identity(), *role, user, mailbox);
        let keys: Vec<CopyKey> = copies.iter().map(key).collect();
        let histories = database.look(&keys).map_err(Deferral::Database)?;
        let line = |(copy, history): (&(Role, &str, &str), &CopyHistory)| {
            let (role, user, mailbox) = copy;
            let what = match (&history.delivered, history.open_attempts.len()) {
                (Some(ledger::Delivered { placement: Some(at) }), 0) => format!("there already (uid {})", at.uid),
                (Some(_), 0) => "there already".into(),
                (None, 0) => "to be appended".into(),
                (_, open) => format!("to be looked for: {open} attempts at it have not ended"),
            };
            format!("{mailbox} of {user} ({}): {what}", role.as_str())
        };
        Ok(copies.iter().zip(&histories).map(line).collect())
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

    /// Hears the greeting of the mailbox store.
    ///
    /// # Errors
    /// [`MailboxError`]
    pub fn try_greeting(&self, deadline: Deadline) -> Result<String, MailboxError> {
        let Kind::Configured(site) = &self.kind else { return Ok("Maildir".into()) };
        Ok(imap::connect(&site.imap, deadline)?.describe())
    }

    /// Where the recipient's copy goes, and whether one is owed to the author.
    fn route(&self, message: &Message, envelope: &Envelope, database: &mut dyn Database) -> Result<Routes, Refusal> {
        let site = match &self.kind {
            Kind::Embedded(embedded) => {
                let recipient = embedded.recipient(&envelope.recipient.to_string());
                let sender = message.from_address().and_then(|from| embedded.sender(&from.to_string()));
                return Ok(Routes { recipient, sender });
            }
            Kind::Configured(site) => site,
        };
        let sent = &site.config.sent;
        let author = message.from_address().filter(|author| author_vouched_for(sent, message, envelope, author));
        let router = &site.router;
        let mut lookups = router.lookups(&envelope.recipient, Party::Recipient);
        lookups.extend(author.iter().flat_map(|author| router.lookups(author, Party::Sender)));
        let lookups: Vec<&str> = lookups.iter().map(String::as_str).collect();
        let book = database.addresses(&lookups).map_err(Deferral::Database)?;
        let recipient = match router.route(&envelope.recipient, Party::Recipient, &book) {
            Route::To(destination) => destination,
            Route::Unknown => return Err(Refusal::UnknownRecipient),
            Route::TableEmpty => return Err(Deferral::NobodyKnown.into()),
        };
        let sender = match author.map(|author| router.route(author, Party::Sender, &book)) {
            Some(Route::To(destination)) => Some(destination),
            Some(Route::Unknown | Route::TableEmpty) | None => None,
        };
        Ok(Routes { recipient, sender })
    }

    /// Opens the mailboxes that copies are owed to, and asks where they stand, side by side.
    fn open_mailboxes(
        &self,
        routes: Routes,
        greeting: Option<Beside<imap::Connection>>,
        deadline: Deadline,
    ) -> Vec<OwedCopy<'static>> {
        let Routes { recipient, sender } = routes;
        // Where Sent is the very INBOX that the recipient's copy goes to, a note to oneself is there once.
        let sender = sender.filter(|sender| (&sender.user, &sender.sent) != (&recipient.user, &recipient.inbox));
        let (recipients_mailbox, senders_mailbox) = match &self.kind {
            Kind::Embedded(embedded) => (
                Ok(Box::new(embedded.mailbox(&recipient.user, &recipient.inbox)) as Box<dyn Mailbox>),
                sender.as_ref().map(|sender| Ok(Box::new(embedded.mailbox(&sender.user, &sender.sent)) as _)),
            ),
            Kind::Configured(site) => {
                // A server that hangs for the sender's mailbox, and for no other, must leave the recipient's copy its time:
                // at the whole deadline the delivery ends, and would end so at each retry, until Postfix bounces.
                let senders_deadline = deadline.half_way();
                let senders = sender.as_ref().map(|sender| {
                    let (settings, sender) = (site.imap.clone(), sender.clone());
                    Beside::start("imap-sender", move || {
                        imap::connect(&settings, senders_deadline)?
                            .authenticate(&sender.user)?
                            .open(&sender.sent)
                            .ask_position()
                    })
                });
                let doing = "opening the recipient's mailbox";
                let greeted = match greeting {
                    Some(greeting) => greeting.finish(doing),
                    None => imap::connect(&site.imap, deadline),
                };
                let recipients = greeted
                    .and_then(|connection| connection.authenticate(&recipient.user))
                    .and_then(|session| session.open(&recipient.inbox).ask_position());
                let senders = senders.map(|senders| senders.finish("opening the sender's mailbox"));
                let boxed = |mailbox: ImapMailbox| Box::new(mailbox) as Box<dyn Mailbox>;
                (recipients.map(boxed), senders.map(|senders| senders.map(boxed)))
            }
        };
        let mut owed = vec![OwedCopy {
            role: Role::Recipient,
            user: recipient.user,
            mailbox_name: recipient.inbox,
            mailbox: recipients_mailbox,
        }];
        if let (Some(sender), Some(mailbox)) = (sender, senders_mailbox) {
            owed.push(OwedCopy { role: Role::Sender, user: sender.user, mailbox_name: sender.sent, mailbox });
        }
        owed
    }
}

/// Whether a Sent copy may be made for this author at all. A forged From must not write into a member's mailbox.
fn author_vouched_for(sent: &config::Sent, message: &Message, envelope: &Envelope, author: &Address) -> bool {
    if !sent.enabled {
        return false;
    }
    match sent.trust {
        Trust::Header => true,
        // Who may send as whom is Postfix's to say (smtpd_sender_login_maps), and it says so of the envelope sender only:
        // a member who has logged in can still write anybody's name into the From field.
        Trust::Authenticated
            if envelope.sasl_username.as_deref().is_some_and(|name| !name.is_empty())
                && Address::parse(&envelope.sender).is_ok_and(|sender| sender.folded() == author.folded()) =>
        {
            true
        }
        Trust::Authenticated => {
            let vouched = match &sent.authserv_id {
                Some(ours) => message.authentication_results(ours),
                None => Vouched::No("the client did not log in as the author".into()),
            };
            if let Vouched::No(why) = &vouched {
                info!(%author, %why, "no Sent copy: nobody vouches for the author");
            }
            vouched == Vouched::Yes
        }
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

/// A piece of work on a thread of its own, whose result is fetched later. A panic in it is a failure like any other.
struct Beside<T>(Result<thread::JoinHandle<Result<T, MailboxError>>, std::io::Error>);

impl<T: Send + 'static> Beside<T> {
    fn start(name: &str, work: impl FnOnce() -> Result<T, MailboxError> + Send + 'static) -> Self {
        #[cfg(feature = "test-faults")]
        let work = {
            let name = name.to_owned();
            move || {
                crate::fault::at(&name);
                work()
            }
        };
        Self(thread::Builder::new().name(name.into()).spawn(work))
    }

    fn finish(self, doing: &str) -> Result<T, MailboxError> {
        let failed = |detail: String| MailboxError::new(MailboxFailure::Local, doing, detail);
        let handle = self.0.map_err(|error| failed(format!("no thread could be started: {error}")))?;
        handle.join().unwrap_or_else(|_| Err(failed("an internal error; the log has the details".into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    fn message(from: &str) -> Message {
        Message::receive(format!("From: {from}\nSubject: x\n\nx\n").into_bytes()).unwrap()
    }

    fn envelope(sender: &str, sasl_username: &str) -> Envelope {
        Envelope {
            sender: sender.into(),
            recipient: Address::parse("doug@axial.net").unwrap(),
            original_recipient: None,
            queue_id: None,
            client_address: None,
            sasl_username: Some(sasl_username.into()),
        }
    }

    #[test]
    fn a_member_who_logged_in_is_the_author_of_what_bears_the_members_own_name_only() {
        let sent = config::Sent { trust: Trust::Authenticated, ..config::Sent::default() };
        let vouched = |from: &str, sender: &str, sasl_username: &str| {
            let message = message(from);
            let author = message.from_address().unwrap();
            author_vouched_for(&sent, &message, &envelope(sender, sasl_username), author)
        };
        assert!(vouched("Lisa <Lisa@axial.net>", "lisa@axial.net", "lisa"));
        assert!(!vouched("The Boss <boss@axial.net>", "mallory@axial.net", "mallory"));
        assert!(!vouched("lisa@axial.net", "lisa@axial.net", ""));
        assert!(!vouched("lisa@axial.net", "", "lisa"));
    }

    /// Greets, lets doug in, and never answers a login for lisa: one backend of many behind one proxy that hangs.
    fn hang_for_lisa(stream: TcpStream) -> Option<()> {
        let mut out = stream.try_clone().ok()?;
        out.write_all(b"* OK [CAPABILITY IMAP4rev1 SASL-IR AUTH=PLAIN UIDPLUS] ready\r\n").ok()?;
        for line in BufReader::new(stream).lines() {
            let line = line.ok()?;
            let tag = line.split(' ').next()?;
            // base64 of "lisa\0"
            if line.contains(" AUTHENTICATE PLAIN bGlzYQ") {
                continue;
            }
            if line.contains(" STATUS ") {
                out.write_all(b"* STATUS INBOX (UIDVALIDITY 1 UIDNEXT 1)\r\n").ok()?;
            }
            out.write_all(format!("{tag} OK [CAPABILITY IMAP4rev1 UIDPLUS] done\r\n").as_bytes()).ok()?;
        }
        Some(())
    }

    #[test]
    fn a_senders_mailbox_that_hangs_leaves_the_recipients_copy_its_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || hang_for_lisa(stream));
            }
        });
        let directory = tempfile::tempdir().unwrap();
        let (file, password) = (directory.path().join("config.toml"), directory.path().join("password"));
        std::fs::write(&password, "secret\n").unwrap();
        let text = format!(
            "[database]\nengine = \"postgresql\"\nhost = \"127.0.0.1\"\ndatabase = \"x\"\nuser = \"x\"\n\
             [imap]\nhost = \"127.0.0.1\"\nport = {port}\nuser = \"service\"\npassword_file = {password:?}\n"
        );
        std::fs::write(&file, text).unwrap();
        let site = Site::configured(Config::load(&file).unwrap()).unwrap();
        let destination = |user: &str| Destination { user: user.into(), inbox: "INBOX".into(), sent: "Sent".into() };
        let routes = Routes { recipient: destination("doug"), sender: Some(destination("lisa")) };

        let deadline = Deadline::after(Duration::from_secs(2));
        let owed = site.open_mailboxes(routes, None, deadline);
        assert!(deadline.remaining() > Duration::from_millis(500), "the sender's mailbox has used up the time of both");
        let [recipient, sender] = owed.as_slice() else { panic!("two copies are owed") };
        assert!(recipient.mailbox.is_ok());
        assert_eq!(sender.mailbox.as_ref().err().map(|error| error.failure), Some(MailboxFailure::TimedOut));
    }
}
