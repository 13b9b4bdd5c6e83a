//! Databases of our own on the MySQL and MariaDB test servers, and what a delivery writes there.

use crate::support;
use maildrop_command::base::deadline::Deadline;
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::base::secret::Secret;
use maildrop_command::database::{Client, Limits, MysqlDatabase, Server, Tls};
use maildrop_command::ledger::event::{EventState, change};
use maildrop_command::ledger::schema::{Application, Schema};
use maildrop_command::ledger::{
    CopyKey, CopyRecord, CopyState, EndedAttempt, EventRecord, Journal, JournalCopy, MessageRecord, Outcome, Record,
};
use maildrop_command::lock::LockName;
use maildrop_command::mailbox::Position;
use maildrop_command::message::Identity;
use maildrop_command::message::Role;
use mysql::prelude::Queryable;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use uuid::Uuid;

pub const USER: &str = "tester";
pub const PASSWORD: &str = "tester-secret";

/// Makes of each scenario, a function of a server's name, a test for each server.
macro_rules! on_each_server {
    ($($scenario:ident),+ $(,)?) => {
        mod mysql9 { $( #[test] fn $scenario() { super::$scenario("MYSQL9"); } )+ }
        mod mariadb118 { $( #[test] fn $scenario() { super::$scenario("MARIADB118"); } )+ }
        mod mariadb1011 { $( #[test] fn $scenario() { super::$scenario("MARIADB1011"); } )+ }
    };
}
pub(crate) use on_each_server;

/// A database of its own on one of the servers; dropped at the end.
pub struct TestDatabase {
    pub host: String,
    pub database: String,
    users: Mutex<Vec<String>>,
}

impl TestDatabase {
    /// Empty.
    pub fn empty(server: &str) -> Self {
        let database = format!("maildrop_test_{}", Uuid::now_v7().simple());
        let site = Self { host: support::server(server), database, users: Mutex::default() };
        let mut admin = admin(&site.host, None);
        admin.query_drop(format!("CREATE DATABASE {}", site.database)).unwrap();
        site
    }

    /// With the ledger in it.
    pub fn new(server: &str) -> Self {
        let site = Self::empty(server);
        assert!(migrate(&mut site.connect()).iter().all(|application| *application == Application::Done));
        site
    }

    pub fn server(&self) -> Server {
        Server {
            address: Endpoint::Tcp { host: self.host.clone(), port: 3306 },
            database: self.database.clone(),
            user: USER.into(),
            password: Some(Secret::new(PASSWORD.into())),
            tls: Tls::Off,
            limits: Limits::default(),
            timelines: None,
        }
    }

    pub fn connect(&self) -> MysqlDatabase {
        self.connect_for(Duration::from_secs(240))
    }

    pub fn connect_for(&self, span: Duration) -> MysqlDatabase {
        MysqlDatabase::connect(&self.server(), &client(), Deadline::after(span)).unwrap()
    }

    /// A connection that knows nothing of this program.
    pub fn admin(&self) -> mysql::Conn {
        admin(&self.host, Some(&self.database))
    }

    /// A new user, who may do what `grants` says; `DB` and `USER` stand for the database and the user.
    pub fn user(&self, grants: &[String], require: &str) -> Server {
        let user = format!("u{}", &Uuid::now_v7().simple().to_string()[12..]);
        let mut admin = self.admin();
        admin.query_drop(format!("CREATE USER '{user}'@'%' IDENTIFIED BY 'secret' {require}")).unwrap();
        self.users.lock().unwrap().push(user.clone());
        for grant in grants {
            let grant = grant.replace("DB", &self.database).replace("USER", &format!("'{user}'@'%'"));
            admin.query_drop(grant).unwrap();
        }
        Server { user, password: Some(Secret::new("secret".into())), ..self.server() }
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let mut admin = admin(&self.host, None);
        let mut drop = |statement: String| {
            if let Err(error) = admin.query_drop(&statement) {
                eprintln!("{statement}: {error}");
            }
        };
        drop(format!("DROP DATABASE {}", self.database));
        for user in self.users.lock().unwrap().iter() {
            drop(format!("DROP USER '{user}'@'%'"));
        }
    }
}

fn admin(host: &str, database: Option<&str>) -> mysql::Conn {
    let options = mysql::OptsBuilder::new().ip_or_hostname(Some(host)).user(Some(USER)).pass(Some(PASSWORD));
    mysql::Conn::new(options.db_name(database).prefer_socket(false)).unwrap()
}

pub fn client() -> Client {
    Client { host: "mx1.example.com".into(), pid: 4711, queue_id: Some("4XyZ".into()) }
}

/// What `migrate` does, without looking at checksums.
pub fn migrate(database: &mut MysqlDatabase) -> Vec<Application> {
    database.lock_schema().unwrap();
    let applied = database.applied().unwrap();
    let mut applications = Vec::new();
    for migration in database.known() {
        if !applied.iter().any(|applied| applied.number == migration.number) {
            applications.push(database.apply(migration).unwrap());
        }
    }
    database.unlock_schema().unwrap();
    applications
}

/// A name that no other test uses: locks are the server's, not the database's.
pub fn lock_of_its_own() -> LockName {
    LockName::new("maildrop test", Uuid::now_v7().as_bytes())
}

/// One message from Lisa to Scuba and Doug, as one delivery sees it.
pub struct Mail {
    pub identity: Identity,
    pub lock: LockName,
    pub message_id: String,
    pub attempt: Uuid,
    pub recipient: String,
}

impl Mail {
    pub fn to(recipient: &str) -> Self {
        let mut digest = [0x27; 32];
        digest[..16].copy_from_slice(Uuid::now_v7().as_bytes());
        Self {
            identity: Identity::of(&digest),
            lock: lock_of_its_own(),
            message_id: "123-abc@mail.example.com".into(),
            attempt: Uuid::now_v7(),
            recipient: recipient.into(),
        }
    }

    /// The same message on its way to somebody else, or once more.
    pub fn also_to(&self, recipient: &str) -> Self {
        Self {
            identity: self.identity,
            lock: self.lock,
            message_id: self.message_id.clone(),
            attempt: Uuid::now_v7(),
            recipient: recipient.into(),
        }
    }

    pub fn inbox(&self) -> CopyKey {
        CopyKey::new(&self.identity, Role::Recipient, &self.recipient, "INBOX")
    }

    pub fn sent(&self) -> CopyKey {
        CopyKey::new(&self.identity, Role::Sender, "lisa", "Sent")
    }

    pub fn keys(&self) -> [CopyKey; 2] {
        [self.inbox(), self.sent()]
    }

    pub fn journal(&self) -> Journal<'_> {
        let position = Some(Position { uid_validity: u32::MAX, uid_next: 17 });
        Journal {
            attempt: self.attempt,
            identity: &self.identity,
            lock: &self.lock,
            message_id: &self.message_id,
            queue_id: Some("4XyZ"),
            sender: Some("lisa@gmail.example"),
            host: "mx1.example.com",
            pid: 4711,
            copies: vec![
                JournalCopy {
                    key: self.inbox(),
                    role: Role::Recipient,
                    user: &self.recipient,
                    mailbox: "INBOX",
                    recipient: &self.recipient,
                    position,
                },
                JournalCopy {
                    key: self.sent(),
                    role: Role::Sender,
                    user: "lisa",
                    mailbox: "Sent",
                    recipient: &self.recipient,
                    position: None,
                },
            ],
        }
    }

    pub fn message(&self) -> MessageRecord<'_> {
        MessageRecord {
            identity: &self.identity,
            lock: &self.lock,
            message_id: &self.message_id,
            content_digest: self.identity.as_bytes(),
            sender: "lisa@example.com",
            from: Some("Lisa <lisa@example.com>"),
            to: Some("scuba@mail.example.net, doug@mail.example.net"),
            cc: None,
            subject: Some("Grüße 😀"),
            date: Some(1_700_000_000),
            headers: r#"[["From","Lisa <lisa@example.com>"]]"#,
            size: 1234,
            raw: None,
        }
    }

    pub fn inbox_copy<'a>(&'a self, state: CopyState<'a>) -> CopyRecord<'a> {
        CopyRecord {
            key: self.inbox(),
            role: Role::Recipient,
            user: &self.recipient,
            mailbox: "INBOX",
            recipient: &self.recipient,
            state,
        }
    }

    pub fn sent_copy<'a>(&'a self, state: CopyState<'a>) -> CopyRecord<'a> {
        CopyRecord {
            key: self.sent(),
            role: Role::Sender,
            user: "lisa",
            mailbox: "Sent",
            recipient: &self.recipient,
            state,
        }
    }

    pub fn ended(&self, outcome: &str) -> Vec<EndedAttempt<'static>> {
        let outcome = Outcome::from_text(outcome);
        let ended = |key| EndedAttempt { attempt: self.attempt, key, outcome: outcome.clone(), stages: None };
        self.keys().into_iter().map(ended).collect()
    }

    /// Both copies in the given states, attempts ended.
    pub fn record<'a>(&'a self, inbox: CopyState<'a>, sent: CopyState<'a>) -> Record<'a> {
        Record {
            message: Some(self.message()),
            copies: vec![self.inbox_copy(inbox), self.sent_copy(sent)],
            ended: self.ended("delivered"),
            events: [self.inbox_copy(inbox), self.sent_copy(sent)].map(|copy| self.event(&copy)).into(),
        }
    }

    /// What there is to tell of a copy of which nothing was known.
    fn event<'a>(&'a self, copy: &CopyRecord<'a>) -> EventRecord<'a> {
        let before = match copy.state {
            CopyState::Delivered(placement) => EventState::Delivered(placement),
            CopyState::Owed(reason) => EventState::Owed(reason),
        };
        let (kind, diff) = change(copy.role, None, before).unwrap();
        EventRecord {
            event: Uuid::now_v7(),
            kind,
            key: copy.key,
            role: copy.role,
            user: copy.user,
            mailbox: copy.mailbox,
            recipient: copy.recipient,
            identity: &self.identity,
            message_id: &self.message_id,
            manner: None,
            attempt: Some(self.attempt),
            queue_id: None,
            host: "mx1.example.com",
            diff,
        }
    }
}

/// A wire tap between the program and a server: what goes through it is written down, or held up.
pub struct Tap {
    pub address: SocketAddr,
    sent: Arc<Mutex<Vec<u8>>>,
    silent: Arc<AtomicBool>,
}

impl Tap {
    pub fn on(server: &str, listen: &str) -> Self {
        let listener = TcpListener::bind(listen).unwrap();
        let tap = Self { address: listener.local_addr().unwrap(), sent: Arc::default(), silent: Arc::default() };
        let (server, sent, silent) = (server.to_owned(), tap.sent.clone(), tap.silent.clone());
        std::thread::spawn(move || {
            for here in listener.incoming() {
                let (here, there) = (here.unwrap(), TcpStream::connect((server.as_str(), 3306)).unwrap());
                let (sent, silent) = (sent.clone(), silent.clone());
                let (from, to) = (here.try_clone().unwrap(), there.try_clone().unwrap());
                std::thread::spawn(move || pump(from, to, |bytes| sent.lock().unwrap().extend_from_slice(bytes)));
                std::thread::spawn(move || {
                    pump(there, here, |_| {
                        while silent.load(Ordering::SeqCst) {
                            std::thread::sleep(Duration::from_millis(10));
                        }
                    });
                });
            }
        });
        tap
    }

    /// Holds back what the server says, or lets it go.
    pub fn hush(&self, silent: bool) {
        self.silent.store(silent, Ordering::SeqCst);
    }

    /// The texts of the queries since the last call, each one round trip; anything but a query is shown by its number.
    pub fn queries(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.sent.lock().unwrap());
        let mut rest = bytes.as_slice();
        let mut queries = Vec::new();
        while let [a, b, c, sequence, after @ ..] = rest {
            let length = usize::from(*a) | usize::from(*b) << 8 | usize::from(*c) << 16;
            let (packet, next) = after.split_at(length);
            match (sequence, packet) {
                (0, [3, query @ ..]) => queries.push(String::from_utf8(query.to_vec()).unwrap()),
                (0, [command, ..]) => queries.push(format!("command {command}")),
                _ => {}
            }
            rest = next;
        }
        queries
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, mut seen: impl FnMut(&[u8])) {
    let mut buffer = [0; 65536];
    while let Ok(length) = from.read(&mut buffer) {
        if length == 0 {
            break;
        }
        seen(&buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
