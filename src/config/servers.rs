//! `[imap]`, and what it has in common with `[database]`: where a server is, and who we are to it.

use super::password_file::PasswordFile;
use super::source::{ConfigError, Source};
use super::values;
use crate::base::endpoint::Endpoint;
use crate::imap::{Encryption, Locks, Mechanism};
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// `[imap]`: the server that the mailboxes are on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imap {
    /// How to reach it.
    pub address: Endpoint,
    /// How a TCP connection is encrypted; a unix socket never is.
    pub encryption: Encryption,
    /// The CA certificates to trust, PEM; the system's where none is named.
    pub ca_file: Option<PathBuf>,
    /// The service account.
    pub user: String,
    /// Where its password is.
    pub password: PasswordFile,
    /// Whether the service account acts for the mailbox's user: the authorization identity of SASL PLAIN.
    pub act_for_user: bool,
    /// How to log in.
    pub mechanism: Mechanism,
    /// The login name where `act_for_user` is off; `{user}` in it stands for the mailbox's user. `None`: the service
    /// account's own, and then the names of mailboxes have to say whose they are.
    pub login_user: Option<String>,
    /// How long after its beginning an attempt that never ended may still land its APPEND. Longer than
    /// `delivery.deadline`.
    pub settle: Duration,
    /// What becomes of a message for a mailbox that is over quota.
    pub over_quota: OverQuota,
}

/// What becomes of a message for a mailbox that is over quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverQuota {
    /// It waits with Postfix (4.2.2).
    #[default]
    Defer,
    /// It goes back to its sender (5.2.2).
    Reject,
}

/// `[imap]` as it is in the file.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ImapSection {
    host: Option<String>,
    port: Option<u16>,
    socket: Option<PathBuf>,
    encryption: Option<Encryption>,
    ca_file: Option<PathBuf>,
    user: Option<String>,
    password_file: Option<PathBuf>,
    act_for_user: Option<bool>,
    mechanism: Mechanism,
    login_user: Option<String>,
    #[serde(deserialize_with = "values::optional_duration")]
    settle: Option<Duration>,
    over_quota: OverQuota,
}

impl ImapSection {
    pub(super) fn check(self, source: &Source<'_>, deadline: Duration) -> Result<Imap, ConfigError> {
        let section = Section { source, name: "imap" };
        // The port depends on the encryption, and the encryption on where the server is.
        let address = section.address(self.host, self.port, self.socket, 0)?;
        let encryption = match (self.encryption, &address) {
            (Some(Encryption::StartTls | Encryption::Implicit), Endpoint::Socket(_)) => {
                return Err(section.error("encryption", "a unix socket is never encrypted: leave it out"));
            }
            (Some(encryption), _) => encryption,
            (None, address) if address.is_on_this_machine() => Encryption::None,
            (None, _) => Encryption::Implicit,
        };
        let address = match address {
            Endpoint::Tcp { host, port: 0 } => {
                Endpoint::Tcp { host, port: if encryption == Encryption::Implicit { 993 } else { 143 } }
            }
            address => address,
        };
        let ca_file = section.path("ca_file", self.ca_file)?;
        if ca_file.is_some() && encryption == Encryption::None {
            return Err(section.error(
                "ca_file",
                "the connection is not encrypted: say encryption = \"tls\" or \"starttls\", or leave it out",
            ));
        }
        if self.mechanism == Mechanism::Login && self.act_for_user == Some(true) {
            return Err(
                section.error("mechanism", "LOGIN cannot act for another user: say \"plain\", or act_for_user = false")
            );
        }
        // Another way to log in is given, so it is not by acting for the user.
        let otherwise = self.mechanism == Mechanism::Login || self.login_user.is_some();
        let act_for_user = self.act_for_user.unwrap_or(!otherwise);
        if act_for_user && self.login_user.is_some() {
            return Err(section.error("login_user", "it is used only with act_for_user = false: leave out one of them"));
        }
        if let Some(login_user) = &self.login_user
            && (login_user.is_empty() || login_user.replace("{user}", "").contains(['{', '}']))
        {
            return Err(section.error("login_user", "only {user} can stand in it, as in \"{user}*service\""));
        }
        let user = section.text("user", self.user, "name the service account that appends for everybody")?;
        let password = section.password(self.password_file)?;
        let mend = "name the file that the service account's password is in";
        let password = section.required("password_file", password, mend)?;
        Ok(Imap {
            address,
            encryption,
            ca_file,
            user,
            password,
            act_for_user,
            mechanism: self.mechanism,
            login_user: self.login_user,
            settle: self.settle.unwrap_or(deadline + SETTLED_AFTER),
            over_quota: self.over_quota,
        })
    }
}

/// How long after the deadline, by which every delivery has ended, its APPEND is taken for settled where nobody says otherwise: on
/// any server, since the configuration does not say which one it is; and half a minute more.
const SETTLED_AFTER: Duration = Locks::MayOutliveIt.late().saturating_add(Duration::from_secs(30));

/// A section being checked.
pub(super) struct Section<'a> {
    pub source: &'a Source<'a>,
    pub name: &'static str,
}

impl Section<'_> {
    pub(super) fn error(&self, key: &str, problem: &str) -> ConfigError {
        self.source.error(&[self.name, key], problem)
    }

    pub(super) fn required<T>(&self, key: &str, value: Option<T>, mend: &str) -> Result<T, ConfigError> {
        value.ok_or_else(|| self.error(key, &format!("it is missing: {mend}")))
    }

    pub(super) fn text(&self, key: &str, value: Option<String>, mend: &str) -> Result<String, ConfigError> {
        self.required(key, value.filter(|text| !text.trim().is_empty()), mend)
    }

    /// pipe(8) runs us in Postfix's queue directory: a relative path would lead nowhere.
    pub(super) fn path(&self, key: &str, path: Option<PathBuf>) -> Result<Option<PathBuf>, ConfigError> {
        match path {
            Some(path) if !path.is_absolute() => Err(self.error(key, NOT_ABSOLUTE)),
            path => Ok(path),
        }
    }

    pub(super) fn address(
        &self,
        host: Option<String>,
        port: Option<u16>,
        socket: Option<PathBuf>,
        default_port: u16,
    ) -> Result<Endpoint, ConfigError> {
        // An IPv6 address has two colons at least.
        if let Some(host) = &host
            && (host.starts_with('[') || host.matches(':').count() == 1)
        {
            let problem = "it is a name or an address, and nothing else: the number goes into port, and an IPv6 address stands \
                           without brackets";
            return Err(self.error("host", problem));
        }
        match (host.filter(|host| !host.trim().is_empty()), self.path("socket", socket)?) {
            (Some(_), Some(_)) => Err(self.error("socket", "there is a host, too: leave out one of them")),
            (None, None) => {
                Err(self.error("host", "it is missing: name the server's host, or its unix socket as socket"))
            }
            (None, Some(_)) if port.is_some() => Err(self.error("port", "a unix socket has none: leave it out")),
            (None, Some(socket)) => Ok(Endpoint::Socket(socket)),
            (Some(_), None) if port == Some(0) => Err(self.error("port", "0 is no port")),
            (Some(host), None) => Ok(Endpoint::Tcp { host, port: port.unwrap_or(default_port) }),
        }
    }

    pub(super) fn password(&self, file: Option<PathBuf>) -> Result<Option<PasswordFile>, ConfigError> {
        let key = format!("{}.password_file", self.name);
        Ok(self.path("password_file", file)?.map(|path| PasswordFile { path, key }))
    }
}

/// What is said of a relative path.
pub(super) const NOT_ABSOLUTE: &str = "the path has to begin with /: pipe(8) runs us in Postfix's queue directory";
