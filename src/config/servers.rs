//! `[imap]`, and the types that it shares with `[database]`: the address of a server, and our account there.

use super::password_file::PasswordFile;
use super::source::{ConfigError, Source};
use super::values;
use crate::base::endpoint::Endpoint;
use crate::imap::{Encryption, Locks, Mechanism};
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// The checked section `[imap]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imap {
    pub address: Endpoint,
    /// How a TCP connection is encrypted; a unix socket never is.
    pub encryption: Encryption,
    /// The CA certificates to trust, PEM; those of the system if none is named.
    pub ca_file: Option<PathBuf>,
    pub user: String,
    /// The password file of the service account.
    pub password: PasswordFile,
    /// Whether the service account acts for the mailbox's user: the authorization identity of SASL PLAIN.
    pub act_for_user: bool,
    pub mechanism: Mechanism,
    /// The login name if `act_for_user` is off; `{user}` in it stands for the mailbox's user. `None` for the service
    /// account's own name; then the names of mailboxes must contain their user.
    pub login_user: Option<String>,
    /// For how long after the beginning of an attempt that never ended its APPEND may still be stored. Longer than
    /// `delivery.deadline`.
    pub append_grace: Duration,
    /// What happens to a message for a mailbox that is over quota.
    pub over_quota_action: OverQuotaAction,
}

/// What happens to a message for a mailbox that is over quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverQuotaAction {
    /// Deferred (4.2.2).
    #[default]
    Defer,
    /// Refused for good (5.2.2).
    Reject,
}

/// `[imap]` as it is written in the file.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ImapSection {
    host: Option<String>,
    port: Option<u16>,
    #[serde(deserialize_with = "values::optional_path")]
    socket: Option<PathBuf>,
    encryption: Option<Encryption>,
    #[serde(deserialize_with = "values::optional_path")]
    ca_file: Option<PathBuf>,
    user: Option<String>,
    #[serde(deserialize_with = "values::optional_path")]
    password_file: Option<PathBuf>,
    act_for_user: Option<bool>,
    mechanism: Mechanism,
    login_user: Option<String>,
    #[serde(deserialize_with = "values::optional_duration")]
    append_grace: Option<Duration>,
    over_quota_action: OverQuotaAction,
}

impl ImapSection {
    pub(super) fn check(self, source: &Source<'_>, deadline: Duration) -> Result<Imap, ConfigError> {
        let section = source.section("imap");
        // The default port depends on the encryption, and the default encryption on the host.
        let address = section.address(self.host, self.port, self.socket, 0)?;
        let is_socket = matches!(address, Endpoint::Socket(_));
        let is_encrypted = self.encryption.is_some_and(|is| is != Encryption::None);
        let usual = if address.is_on_this_machine() { Encryption::None } else { Encryption::Implicit };
        let encryption = self.encryption.unwrap_or(usual);
        let address = match address {
            Endpoint::Tcp { host, port: 0 } => {
                Endpoint::Tcp { host, port: if encryption == Encryption::Implicit { 993 } else { 143 } }
            }
            address => address,
        };
        let is_login = self.mechanism == Mechanism::Login;
        // With another kind of login, the service account does not act for the user.
        let act_for_user = self.act_for_user.unwrap_or(!is_login && self.login_user.is_none());
        let bare = self.login_user.as_ref().map(|name| name.replace("{user}", ""));
        let is_odd = bare.is_some_and(|bare| bare.contains(['{', '}'])) || self.login_user.as_deref() == Some("");
        let in_the_clear = self.ca_file.is_some() && encryption == Encryption::None;
        let no_ca = "the connection is not encrypted: say encryption = \"tls\" or \"starttls\", or leave it out";
        let no_other = "LOGIN cannot act for another user: say \"plain\", or act_for_user = false";
        let is_used = "it is used only with act_for_user = false: leave out one of them";
        source.section("imap").refuse_first(&[
            (is_socket && is_encrypted, "encryption", "a unix socket is never encrypted: leave it out"),
            (in_the_clear, "ca_file", no_ca),
            (is_login && self.act_for_user == Some(true), "mechanism", no_other),
            (act_for_user && self.login_user.is_some(), "login_user", is_used),
            (is_odd, "login_user", "only {user} can stand in it, as in \"{user}*service\""),
        ])?;
        let user = section.text("user", self.user, "name the service account that appends for everybody")?;
        let password = PasswordFile::named(self.password_file, "imap");
        let fix = "name the file that the service account's password is in";
        let password = section.required("password_file", password, fix)?;
        Ok(Imap {
            address,
            encryption,
            ca_file: self.ca_file,
            user,
            password,
            act_for_user,
            mechanism: self.mechanism,
            login_user: self.login_user,
            append_grace: self.append_grace.unwrap_or(deadline + APPEND_GRACE),
            over_quota_action: self.over_quota_action,
        })
    }
}

/// The default of `append_grace` is the deadline, by which every delivery has ended, plus this time. The configuration does
/// not name the server's product, so this is the time for any server, and 30 seconds more.
const APPEND_GRACE: Duration = Locks::MayOutliveIt.max_late_append().saturating_add(Duration::from_secs(30));

/// A section being checked.
pub(super) struct Section<'a> {
    pub source: &'a Source<'a>,
    pub name: &'a str,
}

impl Section<'_> {
    /// The error about the first key whose value is wrong. A rule is: whether the value is wrong, the key, and the problem.
    pub(super) fn refuse_first(&self, rules: &[(bool, &str, &str)]) -> Result<(), ConfigError> {
        let broken = rules.iter().find(|(is_wrong, ..)| *is_wrong);
        broken.map_or(Ok(()), |(_, key, problem)| Err(self.source.error(&format!("{}.{key}", self.name), problem)))
    }

    pub(super) fn required<T>(&self, key: &str, value: Option<T>, fix: &str) -> Result<T, ConfigError> {
        value.ok_or_else(|| self.source.error(&format!("{}.{key}", self.name), &format!("it is missing: {fix}")))
    }

    pub(super) fn text(&self, key: &str, value: Option<String>, fix: &str) -> Result<String, ConfigError> {
        self.required(key, value.filter(|text| !text.trim().is_empty()), fix)
    }

    pub(super) fn address(
        &self,
        host: Option<String>,
        port: Option<u16>,
        socket: Option<PathBuf>,
        default_port: u16,
    ) -> Result<Endpoint, ConfigError> {
        // One colon separates a port; an IPv6 address has at least two colons.
        let has_port = host.as_ref().is_some_and(|host| host.starts_with('[') || host.matches(':').count() == 1);
        let host = host.filter(|host| !host.trim().is_empty());
        let is_named = "it is a name or an address, and nothing else: the number goes into port, and an IPv6 address stands without \
                        brackets";
        self.refuse_first(&[
            (has_port, "host", is_named),
            (host.is_some() && socket.is_some(), "socket", "there is a host, too: leave out one of them"),
            (socket.is_some() && port.is_some(), "port", "a unix socket has none: leave it out"),
            (host.is_some() && port == Some(0), "port", "0 is no port"),
        ])?;
        let tcp = host.map(|host| Endpoint::Tcp { host, port: port.unwrap_or(default_port) });
        let fix = "name the server's host, or its unix socket as socket";
        self.required("host", socket.map(Endpoint::Socket).or(tcp), fix)
    }
}
