//! The database: its engine and address, its roles and their rights, and the configuration that names them.

use super::{Answers, MailboxStore, Passwords, ServerAddress, Unusable, fill};
use crate::base::secret::Secret;
use postgres_protocol::password::scram_sha_256;
use ring::digest;
use std::fmt::Write as _;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerEngine {
    Postgres,
    /// Also MariaDB.
    Mysql,
}

/// `postgresql://db.axial.net/maildrop`: the database, its server, and the role of deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatabaseUrl {
    pub engine: ServerEngine,
    /// The program with which people connect to it.
    pub client: &'static str,
    pub server: ServerAddress,
    pub database: String,
    /// The role of deliveries. The names of the other roles begin with it.
    pub role: String,
}

impl FromStr for DatabaseUrl {
    type Err = Unusable;

    fn from_str(text: &str) -> Result<Self, Unusable> {
        let (scheme, rest) = text.split_once("://").ok_or(Unusable(
            "this is no database: postgresql://db.axial.net/maildrop, or mysql://db.axial.net/maildrop",
        ))?;
        let (engine, client) = match scheme {
            "postgresql" | "postgres" => (ServerEngine::Postgres, "psql"),
            "mysql" => (ServerEngine::Mysql, "mysql"),
            "mariadb" => (ServerEngine::Mysql, "mariadb"),
            _ => return Err(Unusable("the database is postgresql://, mysql:// or mariadb://")),
        };
        let (authority, database) = rest.split_once('/').unwrap_or((rest, "maildrop"));
        let (role, server) = authority.rsplit_once('@').unwrap_or(("maildrop", authority));
        if role.contains(':') {
            return Err(Unusable("no password belongs here: new ones are made"));
        }
        // Valid without quotation marks in SQL; for MySQL at most 32 characters with a suffix.
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_lowercase())
                && name.len() <= 22
                && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        };
        if !is_name(role) || !is_name(database) {
            return Err(Unusable(
                "the names of the role and of the database are a to z, 0 to 9 and _, up to 22 of them",
            ));
        }
        let server =
            server.parse().map_err(|_| Unusable("there is no server between :// and the name of the database"))?;
        Ok(Self { engine, server, client, database: database.to_owned(), role: role.to_owned() })
    }
}

const MYSQL_ONLY: &str = "-- If this fails, the server is MariaDB: run quickstart again with --database mariadb://...\n\
                          SELECT @@server_uuid INTO @is_mysql;\n";

impl DatabaseUrl {
    pub(super) fn operator(&self) -> String {
        format!("{}_operator", self.role)
    }

    pub(super) fn owner(&self) -> String {
        format!("{}_owner", self.role)
    }

    pub(super) fn maps(&self) -> String {
        format!("{}_postfix", self.role)
    }

    pub(super) fn web(&self) -> String {
        format!("{}_web", self.role)
    }

    pub(super) fn notifier(&self) -> String {
        format!("{}_notify", self.role)
    }

    /// An account in MySQL's syntax.
    fn account(name: &str) -> String {
        format!("'{name}'@'%'")
    }

    /// The statement that creates a role. A server logs statements as they came, so it has no password if that is possible.
    fn create_role(&self, name: &str, password: &Secret) -> String {
        let password = password.expose();
        let tls = if self.server.is_on_this_machine() { "" } else { " REQUIRE SSL" };
        match (self.engine, self.client) {
            (ServerEngine::Postgres, _) => {
                format!("CREATE ROLE {name} LOGIN PASSWORD '{}';\n", scram_sha_256(password.as_bytes()))
            }
            (ServerEngine::Mysql, "mariadb") => {
                let (account, hash) = (Self::account(name), native_password_hash(password));
                format!("CREATE USER {account} IDENTIFIED VIA mysql_native_password USING '{hash}'{tls};\n")
            }
            // MySQL replaces it in its logs (reference manual, "Passwords and Logging"). MariaDB does not, but has no such
            // variable: its client ends at the error, before it sends the password.
            (ServerEngine::Mysql, _) => {
                let account = Self::account(name);
                format!("{MYSQL_ONLY}CREATE USER {account} IDENTIFIED BY '{password}'{tls};\n")
            }
        }
    }

    /// The statements of a `grants*.sql`, which grants to the role `example`, for the role `name`.
    fn grant_to(&self, name: &str, example: &str, sql: &str) -> String {
        match self.engine {
            ServerEngine::Postgres => sql.replace(":\"role\"", name),
            ServerEngine::Mysql => sql
                .replace(" maildrop.", &format!(" {}.", self.database))
                .replace(&Self::account(example), &Self::account(name)),
        }
    }
}

/// The password as MariaDB's `mysql_native_password` stores it: SHA-1, twice. It has 256 random bits, which no list contains.
fn native_password_hash(password: &str) -> String {
    let once = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, password.as_bytes());
    let twice = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, once.as_ref());
    twice.as_ref().iter().fold("*".to_owned(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02X}");
        text
    })
}

/// The configuration file.
pub(super) fn configuration(answers: &Answers) -> String {
    let url = &answers.database;
    let engine = match url.engine {
        ServerEngine::Postgres => "postgresql",
        ServerEngine::Mysql => "mysql",
    };
    let values: [(&str, &str); 8] = [
        ("engine", engine),
        ("server", &url.server.keys()),
        ("database", &url.database),
        ("deliveries", &url.role),
        ("operator", &url.operator()),
        ("owner", &url.owner()),
        ("imap", &answers.imap_for_deliveries().keys()),
        ("authserv_id", &answers.authserv_id.to_string()),
    ];
    fill(include_str!("templates/config.toml.in"), &values)
}

/// The part of the configuration that step 9 of the page adds.
pub(super) fn web_configuration(answers: &Answers) -> String {
    let values = [("web", answers.database.web()), ("domain", answers.domain().to_owned())];
    fill(include_str!("templates/web.toml.in"), &values.each_ref().map(|(name, value)| (*name, value.as_str())))
}

/// The part of the configuration that step 10 of the page adds.
pub(super) fn notifier_configuration(url: &DatabaseUrl) -> String {
    fill(include_str!("templates/notifications.toml.in"), &[("notifier", &url.notifier())])
}

/// The SQL that creates the roles and the database, for an administrator of the server.
pub(super) fn roles(answers: &Answers, passwords: &Passwords) -> String {
    let url = &answers.database;
    let accounts = [
        (url.owner(), &passwords.owner, "the owner of the tables, for `migrate`"),
        (url.role.clone(), &passwords.database, "deliveries"),
        (url.operator(), &passwords.operator, "people who look after them"),
        (url.maps(), &passwords.maps, "Postfix, to ask who lives here"),
    ];
    let accounts = accounts.map(|(name, password, about)| format!("-- {about}\n{}", url.create_role(&name, password)));
    let (database, owner) = (&url.database, url.owner());
    let create = match url.engine {
        ServerEngine::Postgres => {
            format!("CREATE DATABASE {database} OWNER {owner} ENCODING 'UTF8' TEMPLATE template0;\n")
        }
        ServerEngine::Mysql => format!(
            "CREATE DATABASE {database};\nGRANT ALL PRIVILEGES ON {database}.* TO {};\n",
            DatabaseUrl::account(&owner)
        ),
    };
    format!("-- As an administrator of the database server, once.\n\n{}\n{create}", accounts.concat())
}

/// The file of this name for the engine, from its first statement on: the text above it explains how to run the file alone.
macro_rules! grants {
    ($engine:expr, $name:literal) => {{
        let sql = match $engine {
            ServerEngine::Postgres => include_str!(concat!("../../../sql/postgres/", $name)),
            ServerEngine::Mysql => include_str!(concat!("../../../sql/mysql/", $name)),
        };
        sql.find("\nGRANT").map_or(sql, |at| &sql[at + 1..])
    }};
}

/// The SQL that grants each role its rights.
pub(super) fn rights(url: &DatabaseUrl) -> String {
    let (operator, maps) = (url.operator(), url.maps());
    let of_deliveries = grants!(url.engine, "grants.sql");
    let mut people = url.grant_to(&operator, "maildrop_operator", grants!(url.engine, "grants-operator.sql"));
    let postfix = match url.engine {
        // On MySQL, that file has the rights of deliveries, too.
        ServerEngine::Postgres => {
            people.insert_str(0, &format!("{}\n", url.grant_to(&operator, "maildrop", of_deliveries)));
            format!("GRANT SELECT ON addresses TO {maps};\n")
        }
        ServerEngine::Mysql => {
            format!("GRANT SELECT ON {}.addresses TO {};\n", url.database, DatabaseUrl::account(&maps))
        }
    };
    let deliveries = url.grant_to(&url.role, "maildrop", of_deliveries);
    format!(
        "-- As an administrator of the database server, after `migrate`; and again when notes of an upgrade say so.\n\n\
         -- Deliveries\n\n{deliveries}\n-- People who look after them\n\n{people}\n-- Postfix\n\n{postfix}"
    )
}

/// The SQL that creates the role of the web UI and the API, with its rights.
pub(super) fn web_role(url: &DatabaseUrl, passwords: &Passwords) -> String {
    let files = [grants!(url.engine, "grants-web.sql"), grants!(url.engine, "grants-api.sql")];
    let rights = files.map(|sql| url.grant_to(&url.web(), "maildrop_web", sql)).join("\n");
    role_with_rights(&url.create_role(&url.web(), &passwords.web), &rights)
}

/// The SQL that creates the role of the notifier, with its rights.
pub(super) fn notifier_role(url: &DatabaseUrl, passwords: &Passwords) -> String {
    let rights = url.grant_to(&url.notifier(), "maildrop_notifier", grants!(url.engine, "grants-notifier.sql"));
    role_with_rights(&url.create_role(&url.notifier(), &passwords.notifier), &rights)
}

fn role_with_rights(role: &str, rights: &str) -> String {
    format!("-- As an administrator of the database server, in this database, after `migrate`.\n\n{role}\n{rights}")
}

/// The SQL that removes one role and its rights.
pub(super) fn take_back_role(url: &DatabaseUrl, role: &str) -> String {
    match url.engine {
        ServerEngine::Postgres => format!("DROP OWNED BY {role};\nDROP ROLE {role};\n"),
        ServerEngine::Mysql => format!("DROP USER {};\n", DatabaseUrl::account(role)),
    }
}

/// The SQL that undoes the step.
pub(super) fn take_back(url: &DatabaseUrl) -> String {
    // The roles of the web UI and of notifications are there only after the steps 9 and 10.
    let roles = [url.role.clone(), url.operator(), url.maps(), url.web(), url.notifier(), url.owner()];
    let roles = roles.map(|role| match url.engine {
        ServerEngine::Postgres => format!("DROP ROLE IF EXISTS {role};\n"),
        ServerEngine::Mysql => format!("DROP USER IF EXISTS {};\n", DatabaseUrl::account(&role)),
    });
    format!(
        "-- As an administrator of the database server, once nothing is delivered any more. THE LEDGER IS GONE AFTER THIS: what Postfix\n\
         -- or anybody brings again is delivered again.\n\nDROP DATABASE {};\n{}",
        url.database,
        roles.concat()
    )
}

/// The SQL for the table of addresses: a commented-out example, which inserts no row.
pub(super) fn addresses(answers: &Answers) -> String {
    let domain = answers.domain();
    // Debian's Cyrus has all mailboxes below INBOX.
    let (column, value) = match answers.store {
        MailboxStore::Cyrus => (", sent", ", 'INBOX.Sent'"),
        MailboxStore::Dovecot | MailboxStore::Dovecot23 => ("", ""),
    };
    format!(
        "-- Who lives here, in lower case; `imap_user` is the name by which the mailbox store knows them. Write them all, before\n\
         -- Postfix asks: it refuses everybody who is missing.\n\
         --\n\
         -- INSERT INTO addresses (address, imap_user{column}) VALUES\n\
         --     ('scuba@{domain}', 'scuba'{value}),\n\
         --     ('doug@{domain}', 'doug'{value});\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `SELECT PASSWORD('secret')` answers on MariaDB.
    #[test]
    fn a_password_is_hashed_as_mariadb_stores_it() {
        assert_eq!(native_password_hash("secret"), "*14E65567ABDB5135D0CFD9A70B3032C179A49EE7");
    }
}
