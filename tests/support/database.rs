//! A fresh database for one test, on any of the engines, and questions to it that every engine answers alike.

use crate::support::postgres::{create_database, drop_database};
use crate::support::{env, host_and_port, server};
use mysql::prelude::Queryable;
use std::path::PathBuf;
use std::time::Duration;

/// The administrator of every test server.
pub const ADMINISTRATOR: (&str, &str) = ("tester", "tester-secret");

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Postgres17,
    Mysql9,
    Mariadb118,
    Postgres15,
    Postgres18,
    Mariadb1011,
}

impl Engine {
    /// Its name among the test servers.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Postgres17 => "POSTGRES17",
            Self::Mysql9 => "MYSQL9",
            Self::Mariadb118 => "MARIADB118",
            Self::Postgres15 => "POSTGRES15",
            Self::Postgres18 => "POSTGRES18",
            Self::Mariadb1011 => "MARIADB1011",
        }
    }

    /// A word for names.
    pub fn short(self) -> &'static str {
        match self {
            Self::Postgres17 => "pg",
            Self::Mysql9 => "my",
            Self::Mariadb118 => "ma",
            Self::Postgres15 => "pg15",
            Self::Postgres18 => "pg18",
            Self::Mariadb1011 => "ma1011",
        }
    }

    /// PostgreSQL, or one of the other two.
    pub fn is_postgres(self) -> bool {
        matches!(self, Self::Postgres15 | Self::Postgres17 | Self::Postgres18)
    }

    pub fn port(self) -> u16 {
        if self.is_postgres() { 5432 } else { 3306 }
    }

    /// Its host and port.
    pub fn address(self) -> (String, u16) {
        host_and_port(server(self.variable()), self.port())
    }
}

/// A connection as administrator.
pub enum Connection {
    Postgres(Box<postgres::Client>),
    Mysql(Box<mysql::Conn>),
}

impl Connection {
    /// `database` is the one to be in, where there is one.
    pub fn open(engine: Engine, database: Option<&str>) -> Self {
        Self::open_at(engine, &engine.address(), database)
    }

    /// The same, on a server elsewhere.
    pub fn open_at(engine: Engine, address: &(String, u16), database: Option<&str>) -> Self {
        Self::try_open_at(engine, address, database).unwrap_or_else(|error| panic!("{engine:?} answers: {error}"))
    }

    /// The same, where it may not answer yet.
    pub fn try_open_at(engine: Engine, address: &(String, u16), database: Option<&str>) -> Result<Self, String> {
        let (host, port) = address.clone();
        let (user, password) = ADMINISTRATOR;
        if engine.is_postgres() {
            let options = Self::postgres_options(address, database);
            let client = options.connect(postgres::NoTls).map_err(|error| format!("{error:?}"))?;
            Ok(Self::Postgres(Box::new(client)))
        } else {
            // MySQL's caching_sha2_password sends a password in full over TLS only.
            let tls = mysql::SslOpts::default().with_root_cert_path(Some(PathBuf::from(env("MAILDROP_TEST_CA"))));
            let options = mysql::OptsBuilder::new()
                .ip_or_hostname(Some(host))
                .tcp_port(port)
                .user(Some(user))
                .pass(Some(password))
                .db_name(database)
                .ssl_opts(Some(tls));
            Ok(Self::Mysql(Box::new(mysql::Conn::new(options).map_err(|error| error.to_string())?)))
        }
    }

    /// How to connect to a PostgreSQL as administrator.
    pub fn postgres_options((host, port): &(String, u16), database: Option<&str>) -> postgres::Config {
        let (user, password) = ADMINISTRATOR;
        let mut options = postgres::Config::new();
        options.host(host).port(*port).user(user).password(password).dbname(database.unwrap_or("postgres"));
        options.connect_timeout(Duration::from_secs(10));
        options
    }

    /// The answer to a question that has one column of texts, NULL left out.
    pub fn texts(&mut self, sql: &str) -> Vec<String> {
        match self {
            Self::Postgres(client) => {
                let rows = client.query(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
                rows.iter().filter_map(|row| row.get(0)).collect()
            }
            Self::Mysql(connection) => {
                let rows: Vec<Option<String>> = connection.query(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
                rows.into_iter().flatten().collect()
            }
        }
    }

    /// Runs one statement.
    pub fn execute(&mut self, sql: &str) {
        match self {
            Self::Postgres(client) => client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}")),
            Self::Mysql(connection) => connection.query_drop(sql).unwrap_or_else(|error| panic!("{sql}: {error}")),
        }
    }
}

/// A database of its own. Dropped, it is removed, unless the test failed.
pub struct Database {
    pub engine: Engine,
    pub name: String,
    address: (String, u16),
    /// Only ever absent while it is dropped.
    connection: Option<Connection>,
    roles: Vec<String>,
}

impl Database {
    /// Makes one. Give each run of a test another name.
    pub fn create(engine: Engine, name: &str) -> Self {
        Self::create_at(engine, engine.address(), name)
    }

    /// The same, on a server elsewhere.
    pub fn create_at(engine: Engine, address: (String, u16), name: &str) -> Self {
        match &mut Connection::open_at(engine, &address, None) {
            Connection::Postgres(client) => {
                create_database(client, name, "").unwrap_or_else(|error| panic!("creating {name}: {error:?}"));
            }
            mysql @ Connection::Mysql(_) => mysql.execute(&format!("CREATE DATABASE {name}")),
        }
        let connection = Some(Connection::open_at(engine, &address, Some(name)));
        Self { engine, name: name.to_owned(), address, connection, roles: Vec::new() }
    }

    /// Another connection as administrator.
    pub fn session(&self) -> Connection {
        Connection::open_at(self.engine, &self.address, Some(&self.name))
    }

    /// Reconnects: its server was killed, or cut off.
    pub fn connect_again(&mut self) {
        self.connection = Some(self.session());
    }

    /// Connects to another server, which has taken over.
    pub fn is_now_at(&mut self, address: (String, u16)) {
        self.address = address;
        self.connect_again();
    }

    /// Runs one statement.
    pub fn execute(&mut self, sql: &str) {
        self.connection.as_mut().unwrap().execute(sql);
    }

    /// The answer to a question that has one number.
    pub fn count(&mut self, sql: &str) -> i64 {
        match self.connection.as_mut().unwrap() {
            Connection::Postgres(client) => {
                client.query_one(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
            }
            Connection::Mysql(connection) => {
                connection.query_first(sql).unwrap_or_else(|error| panic!("{sql}: {error}")).expect("a row")
            }
        }
    }

    /// Asks a question whose answer does not matter.
    pub fn ask(&mut self, sql: &str) {
        match self.connection.as_mut().unwrap() {
            Connection::Postgres(client) => {
                client.query(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            }
            Connection::Mysql(connection) => {
                let _: Vec<mysql::Row> = connection.query(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
            }
        }
    }

    /// The answer to a question that has one column of texts, NULL left out.
    pub fn texts(&mut self, sql: &str) -> Vec<String> {
        self.connection.as_mut().unwrap().texts(sql)
    }

    /// Lets a user of the mailbox store have this address.
    pub fn add_address(&mut self, address: &str, imap_user: &str) {
        let values = format!("'{}', '{imap_user}'", address.replace('\'', "''"));
        self.execute(&format!("INSERT INTO addresses (address, imap_user) VALUES ({values})"));
    }

    /// A subscriber to everything.
    pub fn subscribe(&mut self) {
        self.execute(if self.engine.is_postgres() {
            "INSERT INTO subscriptions (id, owner, callback_url, callback_digest, resource, created_at, updated_at) \
             VALUES (gen_random_uuid(), 'test', 'https://example.com/', decode(repeat('00', 32), 'hex'), 'all', now(), now())"
        } else {
            "INSERT INTO subscriptions (id, owner, callback_url, callback_digest, target_digest, resource, types, description, \
             created_at, updated_at) VALUES (UNHEX(REPLACE(UUID(), '-', '')), 'test', 'https://example.com/', REPEAT('a', 32), \
             REPEAT('b', 32), 'all', '[]', '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))"
        });
    }

    /// A role that may read the table `addresses` and nothing else, as the recipients' map of Postfix wants it.
    pub fn create_reader_of_addresses(&mut self, role: &str, password: &str) {
        let role = self.create_role(role, password);
        self.execute(&format!("GRANT SELECT ON addresses TO {role}"));
    }

    /// A role with what `sql/*/grants.sql` gives.
    pub fn create_role_of_grants_file(&mut self, role: &str, password: &str) {
        let role = self.create_role(role, password);
        self.grant(&role, include_str!("../../sql/postgres/grants.sql"), include_str!("../../sql/mysql/grants.sql"));
    }

    /// A role with what `sql/*/grants-operator.sql` gives, and no more.
    pub fn create_operator(&mut self, role: &str, password: &str) {
        let role = self.create_role(role, password);
        self.grant(
            &role,
            include_str!("../../sql/postgres/grants-operator.sql"),
            include_str!("../../sql/mysql/grants-operator.sql"),
        );
    }

    /// A role with what `sql/*/grants-notifier.sql` gives, and no more.
    pub fn create_notifier(&mut self, role: &str, password: &str) {
        let role = self.create_role(role, password);
        self.grant(
            &role,
            include_str!("../../sql/postgres/grants-notifier.sql"),
            include_str!("../../sql/mysql/grants-notifier.sql"),
        );
    }

    /// A role with what `sql/*/grants-web.sql` gives, and no more.
    pub fn create_page(&mut self, role: &str, password: &str) {
        let role = self.create_role(role, password);
        self.grant(
            &role,
            include_str!("../../sql/postgres/grants-web.sql"),
            include_str!("../../sql/mysql/grants-web.sql"),
        );
    }

    /// The same, and what a page that may open mailboxes has besides, as `docs/web-ui.md` says.
    pub fn create_page_with_mailboxes(&mut self, role: &str, password: &str) {
        self.create_page(role, password);
        self.let_open_mailboxes(role);
    }

    /// Those of a page, and what `sql/*/grants-api.sql` gives.
    pub fn create_page_with_api(&mut self, role: &str, password: &str) {
        let role = self.create_role(role, password);
        for (postgres, mysql) in [
            (include_str!("../../sql/postgres/grants-web.sql"), include_str!("../../sql/mysql/grants-web.sql")),
            (include_str!("../../sql/postgres/grants-api.sql"), include_str!("../../sql/mysql/grants-api.sql")),
        ] {
            self.grant(&role, postgres, mysql);
        }
    }

    /// What `sql/*/grants-api-content.sql` gives, to a role that is there.
    pub fn let_hand_out_sources(&mut self, role: &str) {
        let role = if self.engine.is_postgres() { role.to_owned() } else { format!("'{role}'@'%'") };
        self.grant(
            &role,
            include_str!("../../sql/postgres/grants-api-content.sql"),
            include_str!("../../sql/mysql/grants-api-content.sql"),
        );
    }

    /// The rights of a page that may open mailboxes, beside those that the role has.
    pub fn let_open_mailboxes(&mut self, role: &str) {
        let role = if self.engine.is_postgres() { role.to_owned() } else { format!("'{role}'@'%'") };
        self.grant(&role, include_str!("../../sql/postgres/grants.sql"), "");
        self.grant(
            &role,
            include_str!("../../sql/postgres/grants-web-mailboxes.sql"),
            include_str!("../../sql/mysql/grants-web-mailboxes.sql"),
        );
    }

    /// An operator with the rights of deliveries: for `replay`.
    pub fn create_operator_who_delivers(&mut self, role: &str, password: &str) {
        let role = self.create_role(role, password);
        self.grant(&role, include_str!("../../sql/postgres/grants.sql"), "");
        self.grant(
            &role,
            include_str!("../../sql/postgres/grants-operator.sql"),
            include_str!("../../sql/mysql/grants-operator.sql"),
        );
    }

    fn grant(&mut self, role: &str, postgres: &str, mysql: &str) {
        let grants = if self.engine.is_postgres() {
            postgres.replace(":\"role\"", role)
        } else {
            let mysql = mysql.replace("'maildrop_operator'@'%'", role).replace("'maildrop_notifier'@'%'", role);
            let mysql = mysql.replace("'maildrop_web'@'%'", role);
            let mysql = mysql.replace("'maildrop'@'%'", role);
            mysql.replace("maildrop.", &format!("{}.", self.name))
        };
        let lines: Vec<&str> = grants.lines().filter(|line| !line.starts_with("--")).collect();
        for statement in lines.join("\n").split(';').filter(|statement| !statement.trim().is_empty()) {
            self.execute(statement);
        }
    }

    fn create_role(&mut self, name: &str, password: &str) -> String {
        let role = if self.engine.is_postgres() {
            self.execute(&format!("CREATE ROLE {name} LOGIN PASSWORD '{password}'"));
            name.to_owned()
        } else {
            let role = format!("'{name}'@'%'");
            self.execute(&format!("CREATE USER {role} IDENTIFIED BY '{password}'"));
            role
        };
        self.roles.push(role.clone());
        role
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the database {} on {:?} is left for you to look at", self.name, self.engine);
            return;
        }
        self.connection = None;
        let mut connection = Connection::open_at(self.engine, &self.address, None);
        match &mut connection {
            Connection::Postgres(client) => {
                drop_database(client, &self.name).unwrap_or_else(|error| panic!("dropping {}: {error:?}", self.name))
            }
            Connection::Mysql(_) => connection.execute(&format!("DROP DATABASE {}", self.name)),
        }
        for role in &self.roles {
            let what = if self.engine.is_postgres() { "ROLE" } else { "USER" };
            connection.execute(&format!("DROP {what} {role}"));
        }
    }
}
