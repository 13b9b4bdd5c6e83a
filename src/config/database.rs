//! `[database]`: the servers of the database that every machine shares, and how long a delivery waits for them.

use super::Config;
use super::password_file::PasswordFile;
use super::source::{ConfigError, Source};
use super::values;
use crate::base::endpoint::Endpoint;
use crate::database::Tls;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The checked section `[database]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Database {
    pub engine: Engine,
    /// The servers that may be the primary, in the order in which they are tried.
    pub addresses: Vec<Endpoint>,
    /// The database (PostgreSQL) or schema (MySQL).
    pub database: String,
    /// Our accounts there, by role. The account of deliveries always exists.
    pub accounts: BTreeMap<DatabaseRole, Account>,
    pub tls: Tls,
    /// For how long a delivery waits for a server that takes writes.
    pub failover_timeout: Duration,
    /// What `check` requires of the server's replication.
    pub durability: Durability,
}

/// The part of the program that uses the database; each has an account with rights of its own (sql/*/grants*.sql). A role
/// never uses another role's account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DatabaseRole {
    /// Deliveries by pipe(8) and by the workers.
    #[default]
    #[serde(skip)]
    Deliveries,
    /// The subcommands: `trace`, `stats`, `audit`, `replay`, `prune` and others.
    Operator,
    Timer,
    Notifier,
    Web,
    /// `migrate`.
    Owner,
}

impl DatabaseRole {
    /// The configuration key of its account.
    pub fn key(self) -> &'static str {
        match self {
            Self::Deliveries => "database.user",
            Self::Operator => "database.roles.operator",
            Self::Timer => "database.roles.timer",
            Self::Notifier => "database.roles.notifier",
            Self::Web => "database.roles.web",
            Self::Owner => "database.roles.owner",
        }
    }

    /// What an error message says about the rights that the account needs.
    fn rights(self) -> &'static str {
        match self {
            Self::Deliveries => "the rights of grants.sql",
            Self::Operator | Self::Timer => "the rights of grants.sql and grants-operator.sql",
            Self::Notifier => "the rights of grants-notifier.sql",
            Self::Web => "the rights of grants-web.sql",
            Self::Owner => "the right to make tables",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub user: String,
    /// `None` if the database identifies us by the unix socket.
    pub password: Option<PasswordFile>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    Postgresql,
    /// MySQL or MariaDB.
    Mysql,
}

/// Which servers have to store a commit before the server answers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The primary. `check` warns of standbys that no commit waits for.
    #[default]
    Local,
    /// Another server as well, so that a fail-over loses no commit. `check` fails if a commit may be on the primary alone.
    Replicated,
}

/// `[database]` as it is written in the file.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub(super) struct DatabaseSection {
    engine: Option<Engine>,
    host: Option<String>,
    hosts: Option<Vec<String>>,
    port: Option<u16>,
    #[serde(deserialize_with = "values::optional_path")]
    socket: Option<PathBuf>,
    database: Option<String>,
    user: Option<String>,
    #[serde(deserialize_with = "values::optional_path")]
    password_file: Option<PathBuf>,
    roles: BTreeMap<DatabaseRole, AccountSection>,
    tls: Option<TlsKey>,
    #[serde(deserialize_with = "values::optional_path")]
    ca_file: Option<PathBuf>,
    #[serde(deserialize_with = "values::optional_duration")]
    failover_timeout: Option<Duration>,
    durability: Durability,
}

/// An account of a role other than deliveries.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccountSection {
    user: String,
    #[serde(default, deserialize_with = "values::optional_path")]
    password_file: Option<PathBuf>,
}

impl Config {
    /// This configuration, for another part of the program.
    pub fn acting_as(self, role: DatabaseRole) -> Self {
        Self { role, ..self }
    }

    /// The account of this part of the program.
    ///
    /// # Errors
    /// If this part of the program has no account.
    pub fn account(&self) -> Result<&Account, ConfigError> {
        self.database.accounts.get(&self.role).ok_or_else(|| {
            let key = self.role.key();
            let (_, name) = key.rsplit_once('.').unwrap_or(("", key));
            let problem = format!(
                "{key}: it is missing: say {name} = {{ user = \"...\", password_file = \"...\" }} in [database.roles], with {}",
                self.role.rights()
            );
            ConfigError { file: self.file.clone(), line: None, problem }
        })
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TlsKey {
    Off,
    Verify,
}

/// How long a delivery waits for a server that takes writes, unless configured otherwise: longer than most fail-overs take.
const FAILOVER_TIMEOUT: Duration = Duration::from_mins(1);

impl DatabaseSection {
    pub(super) fn check(self, source: &Source<'_>, deadline: Duration) -> Result<Database, ConfigError> {
        let section = source.section("database");
        let engine =
            section.required("engine", self.engine, "say \"postgresql\" or \"mysql\" (which MariaDB is, too)")?;
        let port = match engine {
            Engine::Postgresql => 5432,
            Engine::Mysql => 3306,
        };
        let has_two = self.hosts.is_some() && (self.host.is_some() || self.socket.is_some());
        section.refuse_first(&[(has_two, "hosts", "there is a host or socket, too: leave out one of them")])?;
        let addresses = match self.hosts {
            None => vec![section.address(self.host, self.port, self.socket, port)?],
            Some(hosts) => servers(source, &hosts, self.port.unwrap_or(port))?,
        };
        let are_sockets = addresses.iter().all(|address| matches!(address, Endpoint::Socket(_)));
        let wants_tls = are_sockets && matches!(self.tls, Some(TlsKey::Verify));
        section.refuse_first(&[(wants_tls, "tls", "a unix socket is never encrypted: leave it out")])?;
        // By default only connections within this machine are unencrypted.
        let tls = match self.tls {
            None if addresses.iter().all(Endpoint::is_on_this_machine) => TlsKey::Off,
            tls => tls.unwrap_or(TlsKey::Verify),
        };
        let tls = match (tls, self.ca_file) {
            (TlsKey::Verify, ca_file) => Tls::Verify { ca_file },
            (TlsKey::Off, None) => Tls::Off,
            (TlsKey::Off, Some(_)) => {
                let problem = "the connection is not encrypted: say tls = \"verify\", or leave it out";
                return Err(source.error("database.ca_file", problem));
            }
        };
        // The rest of the deadline is for the delivery itself.
        let failover_timeout = self.failover_timeout.unwrap_or(FAILOVER_TIMEOUT.min(deadline / 2));
        let user = section.text("user", self.user, "name our role in the database")?;
        let password = PasswordFile::named(self.password_file, "database");
        let mut accounts = BTreeMap::from([(DatabaseRole::Deliveries, Account { user, password })]);
        for (role, AccountSection { user, password_file }) in self.roles {
            let section = source.section(role.key());
            section.refuse_first(&[(user.is_empty(), "user", "it is empty: name our role in the database")])?;
            accounts.insert(role, Account { user, password: PasswordFile::named(password_file, role.key()) });
        }
        Ok(Database {
            engine,
            addresses,
            database: section.text("database", self.database, "name the database that the tables are in")?,
            accounts,
            tls,
            failover_timeout,
            durability: self.durability,
        })
    }
}

fn servers(source: &Source<'_>, hosts: &[String], port: u16) -> Result<Vec<Endpoint>, ConfigError> {
    let key = "database.hosts";
    source.section("database").refuse_first(&[
        (port == 0, "port", "0 is no port"),
        (hosts.is_empty(), "hosts", "it is empty: name the servers that may be the primary"),
    ])?;
    let mut servers = Vec::with_capacity(hosts.len());
    for host in hosts {
        let server = Endpoint::parse(host, Some(port)).ok_or_else(|| {
            let problem = format!(
                "{host:?} is no server, such as \"db1\", \"db1:{port}\", \"[2001:db8::1]:{port}\" or \"/run/…\", a socket"
            );
            source.error(key, &problem)
        })?;
        source.refuse_if(servers.contains(&server), key, || format!("{host:?} is listed twice"))?;
        servers.push(server);
    }
    Ok(servers)
}
