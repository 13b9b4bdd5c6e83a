//! The files that a site needs to go live, generated from a few answers: configuration, database, mailbox store and
//! Postfix. A page has the instructions in order. The files are texts. The caller writes them, and nothing on the
//! system is changed.

mod database;
mod mailboxes;
mod page;
mod postfix;

use crate::base::endpoint::Endpoint;
use crate::base::secret::Secret;
use crate::operations::dovecot_settings::{DovecotHere, MailUid};
use crate::operations::tokens::{NoRandomNumbers, random_text};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

pub(crate) use database::{DatabaseUrl, ServerEngine};
pub(crate) use mailboxes::MailboxStore;

/// The answers that only the site can give. All of them are checked, since they get into SQL, patterns and configuration files.
#[derive(Clone, Debug)]
pub(crate) struct Answers {
    /// The domains whose mail is delivered here, in lower case; at least one.
    pub domains: Vec<Domain>,
    pub database: DatabaseUrl,
    pub imap: ServerAddress,
    pub store: MailboxStore,
    /// The output of doveconf, if the mailbox store is a Dovecot on this machine.
    pub dovecot: Option<DovecotHere>,
    /// The name under which the site's own filter writes Authentication-Results (RFC 8601).
    pub authserv_id: Domain,
    /// The addresses of the mail hosts, as the mailbox store sees them.
    pub mail_hosts: Vec<IpAddr>,
    /// Whether the mail hosts were given, and not guessed.
    pub mail_hosts_are_named: bool,
}

impl Answers {
    fn domain(&self) -> &str {
        &self.domains[0].0
    }

    /// The owner of the mailboxes' files.
    fn mail_uid(&self) -> &MailUid {
        self.dovecot.as_ref().map_or(&MailUid::Unknown, |dovecot| &dovecot.mail_uid)
    }

    /// The `dovecot_config_version` of an instance for deliveries, if one is possible. Its file is for Dovecot 2.4, and
    /// its processes serve mailboxes of one uid.
    fn version_of_an_instance(&self) -> Option<&str> {
        match (self.store, self.mail_uid()) {
            (MailboxStore::Dovecot, MailUid::One(_)) => self.dovecot.as_ref()?.config_version.as_deref(),
            _ => None,
        }
    }

    /// The server that deliveries log in to.
    fn imap_for_deliveries(&self) -> ServerAddress {
        match self.version_of_an_instance() {
            Some(_) => ServerAddress { port: Some(mailboxes::PORT_OF_INSTANCE), ..self.imap.clone() },
            None => self.imap.clone(),
        }
    }
}

/// The passwords of the accounts, and the salt of the hash for Dovecot.
#[derive(Debug)]
pub(crate) struct Passwords {
    /// The role of deliveries.
    pub database: Secret,
    /// The role of people who administer deliveries.
    pub operator: Secret,
    /// The owner of the tables.
    pub owner: Secret,
    /// The role with which Postfix looks up recipients.
    pub maps: Secret,
    /// The role of the web UI and the API.
    pub web: Secret,
    /// The role of the notifier.
    pub notifier: Secret,
    /// What the secrets of subscriptions are derived from: 32 characters, and no line end.
    pub notification_key: Secret,
    pub imap: Secret,
    /// Random characters.
    pub salt: [u8; 16],
}

impl Passwords {
    /// New passwords, in characters without a special meaning in SQL, a URL or a configuration file.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub(crate) fn random() -> Result<Self, NoRandomNumbers> {
        let new = || random_text().map(Secret::new);
        let (database, operator, owner, maps, web, notifier, imap) =
            (new()?, new()?, new()?, new()?, new()?, new()?, new()?);
        // 192 random bits.
        let notification_key = Secret::new(random_text()?.chars().take(32).collect());
        let salt = random_text()?.as_bytes().first_chunk().copied().unwrap_or_default();
        Ok(Self { database, operator, owner, maps, web, notifier, notification_key, imap, salt })
    }
}

/// A file to be written.
#[derive(Debug)]
pub(crate) struct File {
    /// The path below the folder.
    pub path: &'static str,
    /// The purpose, in a few words.
    pub about: &'static str,
    pub text: String,
}

/// All files, the page first. Some contain passwords: each must be written with mode 0600.
pub(crate) fn files(answers: &Answers, passwords: &Passwords) -> Vec<File> {
    let file = |(path, about, text)| File { path, about, text };
    let password = |secret: &Secret| format!("{}\n", secret.expose());
    let url = &answers.database;
    let files = [
        ("GOING-LIVE.md", "the commands in their order, with the way back: read this", page::page(answers)),
        ("config.toml", "the configuration, without passwords", database::configuration(answers)),
        ("database.password", "the role of deliveries", password(&passwords.database)),
        ("operator.password", "the role of people", password(&passwords.operator)),
        ("owner.password", "the owner of the tables", password(&passwords.owner)),
        ("web.password", "the role of the web UI and the API", password(&passwords.web)),
        ("notifier.password", "the role of the notifier", password(&passwords.notifier)),
        ("notifications.key", "what signs notifications", passwords.notification_key.expose().to_owned()),
        ("imap.password", "the account on the mailbox store", password(&passwords.imap)),
        ("database.sql", "the roles, and the database", database::roles(answers, passwords)),
        ("rights.sql", "what each role may do, once there are tables", database::rights(url)),
        ("take-back.sql", "the way back: removes the database and its roles", database::take_back(url)),
        ("addresses.sql", "who lives here: yours to write", database::addresses(answers)),
        ("web.toml", "the configuration of the web UI and the API", database::web_configuration(answers)),
        ("web.sql", "their role, and what it may do", database::web_role(url, passwords)),
        ("web-take-back.sql", "the way back: removes that role", database::take_back_role(url, &url.web())),
        ("notifications.toml", "the configuration of notifications", database::notifier_configuration(url)),
        ("notifications.sql", "the notifier's role, and what it may do", database::notifier_role(url, passwords)),
        (
            "notifications-take-back.sql",
            "the way back: removes that role",
            database::take_back_role(url, &url.notifier()),
        ),
        ("postfix/main.cf.maildrop", "Postfix's settings", postfix::main_cf(answers)),
        ("postfix/main.cf.maildropd", "the same for the service", postfix::MAIN_CF_SERVICE.into()),
        ("postfix/master.cf.maildrop", "Postfix's transport: a process per recipient", postfix::MASTER_CF.into()),
        ("postfix/master.cf.maildropd", "Postfix's transport: the service", postfix::MASTER_CF_SERVICE.into()),
        ("postfix/maildrop-header-checks", "no strangers with our authserv-id", postfix::header_checks(answers)),
        ("postfix/maildrop-recipients.cf", "the map of who lives here", postfix::recipients(answers, passwords)),
        (
            "systemd/maildrop-command-proof.service",
            "renews the proof of logins; the package has it",
            postfix::PROOF.into(),
        ),
        ("systemd/maildrop-command-proof.timer", "when, without the service", postfix::PROOF_TIMER.into()),
        ("systemd/maildrop-command-owed.service", "makes owed copies; the package has it", postfix::OWED.into()),
        ("systemd/maildrop-command-owed.timer", "when, without the service", postfix::OWED_TIMER.into()),
        ("systemd/maildropd.service", "the service's unit; the package has it", postfix::UNIT.into()),
        ("systemd/maildropd.socket", "its socket; the package has it", postfix::SOCKET.into()),
    ];
    let password_of_the_map = postfix::recipients_password(answers, passwords)
        .map(|text| ("postfix/maildrop-recipients.pgpass", "the password of that map", text));
    files.into_iter().chain(password_of_the_map).chain(mailboxes::files(answers, passwords)).map(file).collect()
}

/// A template in which each value replaces `{{its name}}`.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(&format!("{{{{{name}}}}}"), value))
}

/// Why an answer cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unusable(&'static str);

/// A domain, in lower case: letters and digits of any script, hyphens and dots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domain(String);

impl FromStr for Domain {
    type Err = Unusable;

    fn from_str(text: &str) -> Result<Self, Unusable> {
        let text = text.to_lowercase();
        let is_label = |label: &str| {
            !label.is_empty()
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.chars().all(|c| c.is_alphanumeric() || c == '-')
        };
        if text.split('.').all(is_label) {
            Ok(Self(text))
        } else {
            Err(Unusable("this is no domain: mail.axial.net is"))
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A server: a name or an address, and its port if it is not the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerAddress {
    pub host: String,
    pub port: Option<u16>,
}

impl FromStr for ServerAddress {
    type Err = Unusable;

    /// `imap.axial.net`, `imap.axial.net:1993`, `192.0.2.25`, `[2001:db8::25]:993`.
    fn from_str(text: &str) -> Result<Self, Unusable> {
        const WRONG: Unusable =
            Unusable("this is no server: imap.axial.net, or imap.axial.net:1993, or [2001:db8::25]:993");
        let Some(Endpoint::Tcp { host, port }) = Endpoint::parse(text, Some(0)) else { return Err(WRONG) };
        let is_name = host.is_ascii() && host.parse::<Domain>().is_ok();
        if !is_name && host.parse::<IpAddr>().is_err() {
            return Err(WRONG);
        }
        Ok(Self { host, port: Some(port).filter(|port| *port != 0) })
    }
}

impl ServerAddress {
    pub(crate) fn is_on_this_machine(&self) -> bool {
        Endpoint::Tcp { host: self.host.clone(), port: 0 }.is_on_this_machine()
    }

    /// The key `host`, and `port` if there is one.
    fn keys(&self) -> String {
        let port = self.port.map(|port| format!("port = {port}\n")).unwrap_or_default();
        format!("host = \"{}\"\n{port}", self.host)
    }

    /// The form of a URL, or of a Postfix map.
    fn with_port(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        self.port.map_or_else(|| host.clone(), |port| format!("{host}:{port}"))
    }
}

#[cfg(test)]
mod tests;
