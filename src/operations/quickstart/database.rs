//! The database: its engine and address, its roles and their rights, and the configuration file that names them.

use super::{Answers, MailboxStore, Passwords, ServerAddress, Unusable, fill};
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

    /// An account in MySQL's syntax.
    fn account(name: &str) -> String {
        format!("'{name}'@'%'")
    }
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

/// The SQL that creates the roles and the database, for an administrator of the server.
pub(super) fn roles(answers: &Answers, passwords: &Passwords) -> String {
    let url = &answers.database;
    let accounts = [
        (url.owner(), &passwords.owner, "the owner of the tables, for `migrate`"),
        (url.role.clone(), &passwords.database, "deliveries"),
        (url.operator(), &passwords.operator, "people who look after them"),
        (url.maps(), &passwords.maps, "Postfix, to ask who lives here"),
    ];
    let accounts = accounts.map(|(name, password, about)| {
        let password = password.expose();
        match url.engine {
            ServerEngine::Postgres => format!("-- {about}\nCREATE ROLE {name} LOGIN PASSWORD '{password}';\n"),
            ServerEngine::Mysql => {
                let tls = if url.server.is_on_this_machine() { "" } else { " REQUIRE SSL" };
                format!("-- {about}\nCREATE USER {} IDENTIFIED BY '{password}'{tls};\n", DatabaseUrl::account(&name))
            }
        }
    });
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

/// The SQL from the first statement on: the text above it explains how to run the file alone.
fn statements(sql: &str) -> &str {
    sql.find("\nGRANT").map_or(sql, |at| &sql[at + 1..])
}

/// The SQL that grants each role its rights.
pub(super) fn rights(url: &DatabaseUrl) -> String {
    let (database, operator, maps) = (&url.database, url.operator(), url.maps());
    let (deliveries, people, postfix) = match url.engine {
        ServerEngine::Postgres => {
            let of = |sql: &str, role: &str| statements(sql).replace(":\"role\"", role);
            let (deliveries, more) = (
                include_str!("../../../sql/postgres/grants.sql"),
                include_str!("../../../sql/postgres/grants-operator.sql"),
            );
            let people = format!("{}\n{}", of(deliveries, &operator), of(more, &operator));
            (of(deliveries, &url.role), people, format!("GRANT SELECT ON addresses TO {maps};\n"))
        }
        ServerEngine::Mysql => {
            let of = |sql: &str| {
                statements(sql)
                    .replace(" maildrop.", &format!(" {database}."))
                    .replace("'maildrop'@'%'", &DatabaseUrl::account(&url.role))
                    .replace("'maildrop_operator'@'%'", &DatabaseUrl::account(&operator))
            };
            let postfix = format!("GRANT SELECT ON {database}.addresses TO {};\n", DatabaseUrl::account(&maps));
            let people = of(include_str!("../../../sql/mysql/grants-operator.sql"));
            (of(include_str!("../../../sql/mysql/grants.sql")), people, postfix)
        }
    };
    format!(
        "-- As an administrator of the database server, after `migrate`; and again when notes of an upgrade say so.\n\n\
         -- Deliveries\n\n{deliveries}\n-- People who look after them\n\n{people}\n-- Postfix\n\n{postfix}"
    )
}

/// The SQL that undoes the step.
pub(super) fn take_back(url: &DatabaseUrl) -> String {
    let roles = [url.role.clone(), url.operator(), url.maps(), url.owner()].map(|role| match url.engine {
        ServerEngine::Postgres => format!("DROP ROLE {role};\n"),
        ServerEngine::Mysql => format!("DROP USER {};\n", DatabaseUrl::account(&role)),
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
