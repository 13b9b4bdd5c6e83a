//! A database of its own for each test of PostgreSQL, migrated, and a delivery role with no more than the rights of
//! `sql/postgres/grants.sql`.

use maildrop_command::base::deadline::Deadline;
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::base::secret::Secret;
use maildrop_command::database::{Client, Limits, PostgresDatabase, Server, Tls};
use maildrop_command::ledger::event::{EventState, change};
use maildrop_command::ledger::schema;
use maildrop_command::ledger::{
    CopyKey, CopyRecord, CopyState, EndedAttempt, EventRecord, Journal, JournalCopy, MessageRecord, Outcome, Record,
};
use maildrop_command::lock::LockName;
use maildrop_command::mailbox::Position;
use maildrop_command::message::Identity;
use maildrop_command::message::Role;
use postgres::error::SqlState;
use std::time::{Duration, Instant};
use uuid::Uuid;

const SUPERUSER: &str = "tester";
const PASSWORD: &str = "tester-secret";
const GRANTS: &str = include_str!("../../sql/postgres/grants.sql");

/// Makes each scenario a test on each PostgreSQL: `postgres17::the_scenario`.
macro_rules! on_each_postgres {
    ($($scenario:ident),* $(,)?) => {
        mod postgres15 { $(#[test] fn $scenario() { super::$scenario("POSTGRES15") })* }
        mod postgres17 { $(#[test] fn $scenario() { super::$scenario("POSTGRES17") })* }
        mod postgres18 { $(#[test] fn $scenario() { super::$scenario("POSTGRES18") })* }
    };
}
pub(crate) use on_each_postgres;

/// A database on a test server, and a role that delivers into it. Both are gone with the value.
pub struct TestDatabase {
    pub host: String,
    pub name: String,
}

impl TestDatabase {
    /// Makes them, without any table.
    pub fn empty(server: &str) -> Self {
        Self::made_with(server, "")
    }

    /// Makes them, with options for CREATE DATABASE.
    pub fn made_with(server: &str, options: &str) -> Self {
        Self::made_at(super::server(server), options)
    }

    fn made_at(host: String, options: &str) -> Self {
        let name = format!("maildrop_{}", Uuid::new_v7(uuid::Timestamp::now(uuid::NoContext)).simple());
        let mut admin = admin(&host, "postgres");
        create_database(&mut admin, &name, options).unwrap();
        admin.batch_execute(&format!("CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")).unwrap();
        Self { host, name }
    }

    /// Makes them, with the ledger's tables and the delivery role's rights.
    pub fn migrated(server: &str) -> Self {
        Self::migrated_at(super::server(server))
    }

    /// The same, on a server of the test's own.
    pub fn migrated_at(host: String) -> Self {
        let test = Self::made_at(host, "");
        schema::migrate(&mut test.connect_as(SUPERUSER, "migrate"), &mut |_, _| {}).unwrap();
        test.admin().batch_execute(&GRANTS.replace(":\"role\"", &test.name)).unwrap();
        test
    }

    /// A superuser's connection.
    pub fn admin(&self) -> postgres::Client {
        admin(&self.host, &self.name)
    }

    /// Changes the delivery role's settings; sessions that begin afterwards have them.
    pub fn role_setting(&self, setting: &str) {
        self.admin().batch_execute(&format!("ALTER ROLE {} SET {setting}", self.name)).unwrap();
    }

    /// A delivery's connection.
    pub fn connect(&self, queue_id: &str) -> PostgresDatabase {
        self.connect_as(&self.name, queue_id)
    }

    /// A superuser's connection.
    pub fn connect_as_owner(&self) -> PostgresDatabase {
        self.connect_as(SUPERUSER, "owner")
    }

    pub fn connect_as(&self, role: &str, queue_id: &str) -> PostgresDatabase {
        self.connect_to(tcp(&self.host, 5432), role, queue_id)
    }

    /// A delivery's connection by another way: a proxy, a pooler, a socket.
    pub fn connect_by(&self, address: Endpoint, queue_id: &str) -> PostgresDatabase {
        self.connect_to(address, &self.name, queue_id)
    }

    fn connect_to(&self, address: Endpoint, role: &str, queue_id: &str) -> PostgresDatabase {
        PostgresDatabase::connect(&self.server(address, role), &client(queue_id), deadline()).unwrap()
    }

    /// Where the database is, to whom.
    pub fn server(&self, address: Endpoint, role: &str) -> Server {
        Server {
            address,
            database: self.name.clone(),
            user: role.into(),
            password: Some(Secret::new(PASSWORD.into())),
            tls: Tls::Off,
            limits: Limits::default(),
            timelines: None,
        }
    }

    /// The one value of a query, as text.
    pub fn value(&self, sql: &str) -> Option<String> {
        let rows = self.admin().query(&format!("SELECT ({sql})::text"), &[]).unwrap();
        rows[0].get(0)
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let mut admin = admin(&self.host, "postgres");
        let dropped = drop_database(&mut admin, &self.name);
        let role = admin.batch_execute(&format!("DROP ROLE {}", self.name));
        if !std::thread::panicking() {
            dropped.unwrap();
            role.unwrap();
        }
    }
}

/// Makes a database, with options for CREATE DATABASE: somebody, such as autovacuum, may be in the template meanwhile.
pub fn create_database(admin: &mut postgres::Client, name: &str, options: &str) -> Result<(), postgres::Error> {
    until_nobody_is_in_it(admin, &format!("CREATE DATABASE {name} {options}"))
}

/// Drops a database, and ends all sessions in it.
pub fn drop_database(admin: &mut postgres::Client, name: &str) -> Result<(), postgres::Error> {
    until_nobody_is_in_it(admin, &format!("DROP DATABASE {name} WITH (FORCE)"))
}

/// Again and again where others take longer to leave than the five seconds that the server gives them.
fn until_nobody_is_in_it(admin: &mut postgres::Client, statement: &str) -> Result<(), postgres::Error> {
    let began = Instant::now();
    loop {
        let done = admin.batch_execute(statement);
        let in_use = matches!(&done, Err(error) if error.code() == Some(&SqlState::OBJECT_IN_USE));
        if !in_use || began.elapsed() > Duration::from_secs(60) {
            return done;
        }
    }
}

fn admin(host: &str, database: &str) -> postgres::Client {
    postgres::Config::new()
        .host(host)
        .user(SUPERUSER)
        .password(PASSWORD)
        .dbname(database)
        .connect(postgres::NoTls)
        .unwrap()
}

pub fn tcp(host: &str, port: u16) -> Endpoint {
    Endpoint::Tcp { host: host.into(), port }
}

pub fn deadline() -> Deadline {
    Deadline::after(Duration::from_secs(240))
}

pub fn client(queue_id: &str) -> Client {
    Client { host: "mx1.example.com".into(), pid: std::process::id(), queue_id: Some(queue_id.into()) }
}

/// One message as a delivery knows it, with a recipient's and a sender's copy.
pub struct Mail {
    pub message_id: String,
    pub identity: Identity,
    pub lock: LockName,
    pub headers: String,
    pub recipient: String,
    pub subject: String,
}

impl Mail {
    pub fn new(message_id: &str) -> Self {
        let lock = LockName::new("maildrop", message_id.as_bytes());
        Self {
            message_id: message_id.into(),
            // What makes a message's identity is not this test's matter; that it is one of its own is.
            identity: Identity::of(message_id.as_bytes()),
            lock,
            headers: r#"[["Subject","Diving"]]"#.into(),
            recipient: "scuba@mail.example".into(),
            subject: "Diving".into(),
        }
    }

    /// The copies' names: the recipient's, the sender's.
    pub fn keys(&self) -> [CopyKey; 2] {
        [
            CopyKey::new(&self.identity, Role::Recipient, &self.recipient, "INBOX"),
            CopyKey::new(&self.identity, Role::Sender, "lisa", "Sent"),
        ]
    }

    pub fn journal(&self, attempt: Uuid, position: Option<Position>) -> Journal<'_> {
        let [recipient, sender] = self.keys();
        let recipient_of_all = &self.recipient;
        let copy =
            |key, role, user, mailbox| JournalCopy { key, role, user, mailbox, recipient: recipient_of_all, position };
        Journal {
            attempt,
            identity: &self.identity,
            lock: &self.lock,
            message_id: &self.message_id,
            queue_id: Some("4XyZ12"),
            sender: Some("lisa@gmail.example"),
            host: "mx1.example.com",
            pid: 4711,
            copies: vec![
                copy(recipient, Role::Recipient, &self.recipient, "INBOX"),
                copy(sender, Role::Sender, "lisa", "Sent"),
            ],
        }
    }

    pub fn message(&self) -> MessageRecord<'_> {
        MessageRecord {
            identity: &self.identity,
            lock: &self.lock,
            message_id: &self.message_id,
            content_digest: &[7; 32],
            sender: "lisa@gmail.example",
            from: Some("Lisa <lisa@gmail.example>"),
            to: Some("scuba@mail.example"),
            cc: None,
            subject: Some(&self.subject),
            date: Some(1_700_000_000),
            headers: &self.headers,
            size: 4321,
            raw: None,
        }
    }

    /// A record of the recipient's copy in the first state, the sender's in the second, and the attempt's end.
    pub fn record<'a>(&'a self, attempt: Uuid, recipient: CopyState<'a>, sender: CopyState<'a>) -> Record<'a> {
        let keys = self.keys();
        let ended = |key| EndedAttempt { attempt, key, outcome: Outcome::Appended, stages: Some("{\"lock\":0.25}") };
        Record {
            message: Some(self.message()),
            copies: vec![
                CopyRecord {
                    key: keys[0],
                    role: Role::Recipient,
                    user: &self.recipient,
                    mailbox: "INBOX",
                    recipient: &self.recipient,
                    state: recipient,
                },
                CopyRecord {
                    key: keys[1],
                    role: Role::Sender,
                    user: "lisa",
                    mailbox: "Sent",
                    recipient: &self.recipient,
                    state: sender,
                },
            ],
            ended: vec![ended(keys[0]), ended(keys[1])],
            events: vec![
                self.event(attempt, Role::Recipient, recipient, &self.recipient, "INBOX"),
                self.event(attempt, Role::Sender, sender, "lisa", "Sent"),
            ],
        }
    }

    /// What there is to tell of a copy of which nothing was known.
    fn event<'a>(
        &'a self,
        attempt: Uuid,
        role: Role,
        state: CopyState<'a>,
        user: &'a str,
        mailbox: &'a str,
    ) -> EventRecord<'a> {
        let before = match state {
            CopyState::Delivered(placement) => EventState::Delivered(placement),
            CopyState::Owed(reason) => EventState::Owed(reason),
        };
        let (kind, diff) = change(role, None, before).unwrap();
        EventRecord {
            event: Uuid::now_v7(),
            kind,
            key: CopyKey::new(&self.identity, role, user, mailbox),
            role,
            user,
            mailbox,
            recipient: &self.recipient,
            identity: &self.identity,
            message_id: &self.message_id,
            manner: None,
            attempt: Some(attempt),
            queue_id: Some("4XyZ12"),
            host: "mx1.example.com",
            diff,
        }
    }
}
