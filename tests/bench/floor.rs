//! The floor: what the servers themselves take. The calls of one delivery and nothing else, written down one after the
//! other, with the ready-made PostgreSQL client and a bare socket. It looks at nothing, decides nothing, checks nothing
//! that a socket would not force on it, and knows its answers beforehand.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use postgres::types::Type;
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The stages of a delivery, as the program's log names them.
pub const STAGES: [&str; 9] =
    ["connect", "route", "authenticate", "position", "journal", "lock", "look", "append", "record"];

/// How long each of [`STAGES`] took.
pub type Stages = [Duration; 9];

/// Which calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// The very ones that a delivery makes.
    Same,
    /// As few as can bring a message into a mailbox and a row into a table: no journal, no lock, no look.
    Fewest,
    /// A bare APPEND: connect, log in, append, and no database.
    Append,
    /// The same with a STATUS before it, as a delivery has to ask.
    StatusAppend,
}

impl Calls {
    const NAMES: [(Self, &'static str); 4] = [
        (Self::Same, "same"),
        (Self::Fewest, "fewest"),
        (Self::Append, "append"),
        (Self::StatusAppend, "status-append"),
    ];

    /// As an argument of a process.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(calls, _)| *calls == self).expect("a name").1
    }

    pub fn named(name: &str) -> Self {
        Self::NAMES.iter().find(|(_, known)| *known == name).expect("such calls").0
    }
}

/// Where the servers are, and who we are to them.
#[derive(Clone, Debug)]
pub struct Servers {
    pub postgres: (String, u16),
    pub database: String,
    pub role: String,
    pub password: String,
    pub imap: (String, u16),
}

impl Servers {
    /// As arguments of a process.
    pub fn to_arguments(&self) -> Vec<String> {
        let (host, port) = &self.postgres;
        let (imap_host, imap_port) = &self.imap;
        let texts = [host, &port.to_string(), &self.database, &self.role, &self.password, imap_host];
        texts.into_iter().cloned().chain([imap_port.to_string()]).collect()
    }

    pub fn from_arguments(arguments: &[String]) -> Self {
        let text = |n: usize| arguments[n].clone();
        let port = |n: usize| arguments[n].parse().expect("a port");
        Self {
            postgres: (text(0), port(1)),
            database: text(2),
            role: text(3),
            password: text(4),
            imap: (text(5), port(6)),
        }
    }
}

/// Brings one message, with CRLF line ends, into the user's INBOX.
pub fn deliver(servers: &Servers, user: &str, message: &[u8], calls: Calls) -> Stages {
    let mut stages = Stages::default();
    let mut began = Instant::now();
    let mut stage = |place: usize| {
        stages[place] = began.elapsed();
        began = Instant::now();
    };
    let attempt = Uuid::now_v7();
    let mut digest: [u8; 32] = Sha256::digest(attempt.as_bytes()).into();
    // As of a message without a Date.
    digest[..2].fill(0);
    let key = i64::from_be_bytes(digest[..8].try_into().expect("8 bytes"));
    let (hex, attempt) = (hex(&digest), attempt.to_string());

    // connect: the two handshakes side by side.
    let greeting = std::thread::spawn({
        let address = servers.imap.clone();
        move || Imap::connect(&address)
    });
    let mut postgres = matches!(calls, Calls::Same | Calls::Fewest).then(|| connect(servers));
    let mut imap;
    if calls == Calls::Same {
        stage(0);
        let postgres = postgres.as_mut().expect("a connection");
        let asked = vec![format!("{user}@mail.example"), "@mail.example".to_owned()];
        let rows = postgres.query_typed(ADDRESSES, &[(&asked, Type::TEXT_ARRAY)]).expect("addresses");
        assert!(!rows.is_empty());
        stage(1);
        imap = greeting.join().expect("a greeting");
    } else {
        imap = greeting.join().expect("a greeting");
        stage(0);
    }
    let response = STANDARD.encode(format!("{user}\0service\0service-secret"));
    imap.say(format!("A1 AUTHENTICATE PLAIN {response}\r\n").as_bytes());
    imap.hear("A1 OK");
    stage(2);

    if matches!(calls, Calls::Same | Calls::StatusAppend) {
        imap.say(b"A2 STATUS \"INBOX\" (UIDVALIDITY UIDNEXT)\r\n");
        imap.hear("A2 OK");
        stage(3);
    }
    if calls == Calls::Same {
        let postgres = postgres.as_mut().expect("a connection");
        let journalled = postgres.execute_typed(
            JOURNAL,
            &[
                (&attempt, Type::TEXT),
                (&&digest[..], Type::BYTEA),
                (&user, Type::TEXT),
                (&i64::from(std::process::id()), Type::INT8),
            ],
        );
        assert_eq!(journalled.expect("the journal"), 1);
        stage(4);
        // The look rides with the lock.
        let lock_and_look = format!(
            "{BEGIN}; SELECT pg_try_advisory_xact_lock({key}); \
             SELECT c.uid, a.attempt, a.recipient, extract(epoch FROM clock_timestamp() - a.started_at) \
             FROM unnest(ARRAY[decode('{hex}','hex')]) k (copy_key) \
             LEFT JOIN copies c ON c.copy_key = k.copy_key AND c.state = 'delivered' \
             LEFT JOIN attempts a ON a.copy_key = k.copy_key AND a.ended_at IS NULL"
        );
        postgres.simple_query(&lock_and_look).expect("the lock");
        stage(5);
        stage(6);
    }
    let length = message.len();
    imap.say(format!("A3 APPEND \"INBOX\" \"20-Nov-2025 16:00:00 +0000\" {{{length}+}}\r\n").as_bytes());
    imap.say(message);
    if calls == Calls::Same {
        let held = format!("SELECT EXISTS (SELECT FROM pg_locks l WHERE l.pid = pg_backend_pid() AND {LOCKED} {key})");
        postgres.as_mut().expect("a connection").simple_query(&held).expect("the lock");
    }
    imap.say(b"\r\n");
    imap.hear("A3 OK");
    stage(7);

    let message_row = format!(
        "INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, header_from, header_to, \
         subject, headers, size, recorded_at) VALUES (decode('{hex}','hex'), decode('{hex}','hex'), '{attempt}', \
         decode('{hex}','hex'), 'ann@elsewhere.example', 'ann@elsewhere.example', '{user}@mail.example', 'A bench', \
         '[[\"Subject\",\"A bench\"]]', {length}, clock_timestamp()) ON CONFLICT (identity) DO NOTHING"
    );
    match (calls, &mut postgres) {
        (Calls::Same, Some(postgres)) => {
            let record = format!(
                "SAVEPOINT record; {message_row}; \
                 INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, uid_validity, uid, \
                 delivered_at, updated_at) VALUES (decode('{hex}','hex'), \
                 (SELECT id FROM messages WHERE identity = decode('{hex}','hex')), 'recipient', '{user}', 'INBOX', \
                 '{user}@mail.example', 'delivered', 1, 1, clock_timestamp(), clock_timestamp()) \
                 ON CONFLICT (copy_key) DO NOTHING; \
                 UPDATE attempts SET ended_at = clock_timestamp(), outcome = 'delivered' \
                 WHERE copy_key = decode('{hex}','hex') AND attempt = '{attempt}' AND ended_at IS NULL; COMMIT"
            );
            postgres.simple_query(&record).expect("the record");
        }
        (Calls::Fewest, Some(postgres)) => {
            postgres.simple_query(&message_row).expect("the record");
        }
        _ => {}
    }
    stage(8);
    stages
}

const ADDRESSES: &str = "SELECT a.address::text, a.imap_user::text, a.inbox::text, a.sent::text, t.empty \
    FROM (SELECT NOT EXISTS (SELECT FROM addresses) AS empty) t LEFT JOIN addresses a ON a.address = ANY ($1)";

const JOURNAL: &str = "INSERT INTO attempts (attempt, identity, lock_digest, message_id, recipient, host, pid, session, \
    copy_key, role, imap_user, mailbox, uid_validity, uid_next, started_at) \
    SELECT $1::uuid, $2, $2, $1, $3, 'mx1.example.com', $4, pg_backend_pid(), $2, 'recipient', $3, 'INBOX', 1, 1, \
    clock_timestamp()";

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
    SELECT set_config('idle_in_transaction_session_timeout', '270000', true), \
    set_config('statement_timeout', '240000', true), set_config('lock_timeout', '0', true), \
    CASE WHEN current_setting('server_version_num')::int >= 170000 \
    THEN set_config('transaction_timeout', '0', true) END";

const LOCKED: &str = "l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted \
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
    AND (l.classid::bigint << 32) | l.objid::bigint =";

fn connect(servers: &Servers) -> postgres::Client {
    let (host, port) = &servers.postgres;
    let mut config = postgres::Config::new();
    config.host(host).port(*port).dbname(&servers.database).user(&servers.role).password(&servers.password);
    config.ssl_mode(postgres::config::SslMode::Disable).connect(postgres::NoTls).expect("PostgreSQL")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A socket on which the right answers are expected.
struct Imap(BufReader<TcpStream>);

impl Imap {
    fn connect((host, port): &(String, u16)) -> Self {
        let stream = TcpStream::connect((host.as_str(), *port)).expect("Dovecot");
        stream.set_nodelay(true).expect("a socket");
        let mut imap = Self(BufReader::new(stream));
        imap.hear("* OK");
        imap
    }

    fn say(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("a connection");
    }

    fn hear(&mut self, expected: &str) {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.0.read_line(&mut line).expect("a connection") > 0, "Dovecot closed instead of {expected}");
            if line.starts_with(expected) {
                return;
            }
            assert!(line.starts_with('*'), "{line} instead of {expected}");
        }
    }
}
