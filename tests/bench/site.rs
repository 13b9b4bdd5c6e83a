//! A site to deliver to: a database of its own on PostgreSQL, users of its own on Dovecot, a configuration file, messages.

use crate::floor::{Calls, STAGES, Servers};
use crate::process::{self, Ended};
use crate::support::database::{Connection, Engine};
use crate::support::imap::Imap;
use crate::support::imap_server::somebody;
use crate::support::postgres::{TestDatabase, tcp};
use crate::support::{env, env_if_there, host_and_port, server};
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The author who lives here, and has a Sent mailbox.
pub const MEMBER: &str = "lisa@mail.example";
/// The author who does not.
pub const STRANGER: &str = "ann@elsewhere.example";

/// The size of an ordinary message, in bytes.
pub const SIZE: usize = 8_000;

/// Which way a delivery reaches the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In the clear.
    Plain,
    /// Both connections under TLS.
    Tls,
    /// By these ports of this machine: PostgreSQL's, Dovecot's.
    Ports(u16, u16),
}

pub struct Site {
    pub servers: Servers,
    /// Who has the INBOX that everything goes into.
    pub user: String,
    member: String,
    directory: PathBuf,
    database: TestDatabase,
}

/// One delivery by the program.
pub struct Delivery {
    pub ended: Ended,
    /// In milliseconds, as its log says; [`STAGES`].
    pub stages: [f64; STAGES.len()],
    /// From the beginning of `main` to the verdict, likewise.
    pub total: f64,
}

impl Site {
    pub fn set_up() -> Self {
        let database = TestDatabase::migrated("POSTGRES17");
        let [user, member] = ["bench", "lisa"].map(somebody);
        let mut admin = database.admin();
        for (address, user) in [(format!("{user}@mail.example"), &user), (MEMBER.to_owned(), &member)] {
            admin.execute("INSERT INTO addresses (address, imap_user) VALUES ($1, $2)", &[&address, user]).unwrap();
        }
        // Some more, so that an index is used as it would be.
        admin
            .batch_execute(
                "INSERT INTO addresses SELECT 'user' || n || '@mail.example', 'user' || n FROM generate_series(1, 10000) n; \
                 ANALYZE addresses",
            )
            .unwrap();
        let directory = std::env::temp_dir().join(format!("maildrop-bench-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        // Deliveries write their log here as another user than ours.
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        let described = database.server(tcp(&database.host, 5432), &database.name);
        let password = described.password.map(|secret| secret.expose().to_owned()).unwrap();
        let servers = Servers {
            postgres: (database.host.clone(), 5432),
            database: database.name.clone(),
            role: database.name.clone(),
            password,
            imap: host_and_port(server("DOVECOT"), 143),
        };
        let site = Self { servers, user, member, directory, database };
        site.write("database-password", &site.servers.password);
        site.write("imap-password", "service-secret");
        site
    }

    /// Lets users of the mailbox store have addresses: `user@mail.example`.
    pub fn add_users(&self, users: &[String]) {
        let insert = "INSERT INTO addresses (address, imap_user) SELECT name || '@mail.example', name FROM unnest($1::text[]) name";
        self.database.admin().execute(insert, &[&users]).unwrap();
    }

    /// How many messages are in a mailbox, which is created if it is a new user's INBOX.
    pub fn messages(&self, user: &str, mailbox: &str) -> usize {
        let answer = self.log_in(user).run(&format!("STATUS {mailbox} (MESSAGES)")).unwrap();
        let line = answer.iter().map(|response| response.text.as_str()).find(|text| text.contains("MESSAGES")).unwrap();
        let number = line.rsplit_once("MESSAGES ").unwrap().1.trim_end().trim_end_matches(')');
        number.parse().unwrap_or_else(|_| panic!("{line}"))
    }

    /// How many sessions with the database there were so far, this one among them.
    pub fn sessions(&self) -> usize {
        let asked = "SELECT sessions FROM pg_stat_database WHERE datname = current_database()";
        self.database.value(asked).and_then(|number| number.parse().ok()).expect("a number")
    }

    /// A session of the administrator's.
    #[cfg(not(feature = "test-faults"))]
    pub fn administrator(&self) -> postgres::Client {
        self.database.admin()
    }

    /// Runs statements as administrator.
    pub fn execute(&self, sql: &str) {
        self.database.admin().batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// A file beside the configuration.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// A configuration file.
    pub fn configuration(&self, way: Way) -> PathBuf {
        let here = self.directory.display();
        let (host, port) = &self.servers.postgres;
        let (imap_host, imap_port) = &self.servers.imap;
        let (host, port, imap_host, imap_port) = match way {
            Way::Plain => (host.as_str(), *port, imap_host.as_str(), *imap_port),
            Way::Tls => (host.as_str(), *port, imap_host.as_str(), imap_port + 850),
            Way::Ports(postgres, imap) => ("127.0.0.1", postgres, "127.0.0.1", imap),
        };
        let ca = format!("ca_file = \"{}\"", env("MAILDROP_TEST_CA"));
        let (tls, encryption, ca) = if way == Way::Tls { ("verify", "tls", ca.as_str()) } else { ("off", "none", "") };
        let (database, role) = (&self.servers.database, &self.servers.role);
        let text = format!(
            "[database]\nengine = \"postgresql\"\nhost = \"{host}\"\nport = {port}\ndatabase = \"{database}\"\n\
             user = \"{role}\"\npassword_file = \"{here}/database-password\"\ntls = \"{tls}\"\n{ca}\n"
        );
        let text = text + &self.beside_the_database(imap_host, imap_port, encryption, ca);
        let name = match way {
            Way::Plain => "plain.toml",
            Way::Tls => "tls.toml",
            Way::Ports(..) => "ports.toml",
        };
        self.write(name, &text)
    }

    /// What a configuration file says of all but the database.
    pub fn beside_the_database(&self, host: &str, port: u16, encryption: &str, ca: &str) -> String {
        let here = self.directory.display();
        format!(
            "[imap]\nhost = \"{host}\"\nport = {port}\nencryption = \"{encryption}\"\n{ca}\n\
             user = \"service\"\npassword_file = \"{here}/imap-password\"\n\
             [log]\nto = \"file\"\nfile = \"{here}/log\"\nformat = \"json\"\n"
        )
    }

    /// The program, as Postfix would run it.
    pub fn command(&self, configuration: &Path, user: &str) -> Command {
        let mut command = Command::new(program());
        command.arg("--config").arg(configuration);
        command.args(["--sender", STRANGER, "--queue-id", "4cBxyz1234z9rs", "--recipient"]);
        command.arg(format!("{user}@mail.example"));
        command
    }

    /// One delivery by the program.
    pub fn deliver(&self, configuration: &Path, user: &str, message: &[u8]) -> Delivery {
        let log = self.directory.join("log");
        let _ = fs::remove_file(&log);
        let ended = process::run(&mut self.command(configuration, user), message);
        assert!(ended.output.starts_with("2."), "{}", ended.output);
        let log = fs::read_to_string(&log).unwrap();
        // The last record; before it may stand that a mailbox was created.
        let record: serde_json::Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        assert_eq!(record["message"], "delivered", "{record}");
        let milliseconds =
            |name: &str| record[format!("{name}_ms")].as_f64().unwrap_or_else(|| panic!("{name}: {record}"));
        Delivery { ended, stages: STAGES.map(milliseconds), total: milliseconds("total") }
    }

    /// The floor in a process of its own.
    pub fn floor(&self, calls: Calls, user: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["floor", calls.name(), user]).args(self.servers.to_arguments());
        command
    }

    fn log_in(&self, user: &str) -> Imap {
        let (host, port) = &self.servers.imap;
        Imap::login(&format!("{host}:{port}"), user, "secret")
    }

    /// What the servers say of themselves.
    pub fn servers_describe_themselves(&self) -> String {
        let postgres = self.database.value("SELECT current_setting('server_version')").unwrap_or_default();
        let durable =
            self.database.value("SELECT current_setting('fsync') || '/' || current_setting('synchronous_commit')");
        format!("PostgreSQL {postgres} (fsync/synchronous_commit {})", durable.unwrap_or_default())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for (user, mailbox) in [(&self.user, "INBOX"), (&self.member, "Sent")] {
            let mut imap = self.log_in(user);
            if imap.run(&format!("SELECT {mailbox}")).is_ok() {
                let _ = imap.run("STORE 1:* +FLAGS.SILENT (\\Deleted)");
                let _ = imap.run("EXPUNGE");
            }
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Waits until the servers named here answer their first question: they may have been started just now.
pub fn wait_for_servers() {
    let patience = Instant::now() + Duration::from_secs(60);
    let engines = [Engine::Postgres17, Engine::Mariadb118, Engine::Mysql9];
    for engine in
        engines.into_iter().filter(|engine| env_if_there(&format!("MAILDROP_TEST_{}", engine.variable())).is_some())
    {
        while let Err(error) = Connection::try_open_at(engine, &engine.address(), None) {
            assert!(Instant::now() < patience, "{engine:?}: {error}");
            sleep(Duration::from_millis(100));
        }
    }
    while let Err(error) = TcpStream::connect(host_and_port(server("DOVECOT"), 143)) {
        assert!(Instant::now() < patience, "Dovecot: {error}");
        sleep(Duration::from_millis(100));
    }
}

/// The program under test.
pub fn program() -> &'static str {
    env!("CARGO_BIN_EXE_maildrop_command")
}

/// A message that nobody has sent before, as Postfix's pipe(8) hands it over, of about this many bytes.
pub fn message(author: &str, size: usize) -> Vec<u8> {
    let id = uuid::Uuid::now_v7();
    let mut text = format!(
        "Return-Path: <{author}>\n\
         Delivered-To: scuba@mail.example\n\
         Received: from relay.elsewhere.example (relay.elsewhere.example [192.0.2.7])\n\
         \t(using TLSv1.3 with cipher TLS_AES_256_GCM_SHA384 (256/256 bits))\n\
         \tby mx1.mail.example (Postfix) with ESMTPS id 4cBxyz1234z9rs\n\
         \tfor <scuba@mail.example>; Thu, 20 Nov 2025 16:00:00 +0000 (UTC)\n\
         DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/relaxed; d=elsewhere.example; s=2025;\n\
         \th=from:to:subject:date:message-id; bh=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=;\n\
         \tb=dzdVyOfAKCdLXdJOc9G2q8LoXSlEniSbav+yuU4zGeeruD00lszZVoG4ZHRNiYzR\n\
         Authentication-Results: mx1.mail.example; dkim=pass header.d=elsewhere.example; spf=pass\n\
         \tsmtp.mailfrom={author}; dmarc=pass header.from=elsewhere.example\n\
         From: =?utf-8?q?Some_B=C3=B6dy?= <{author}>\n\
         To: Scuba <scuba@mail.example>, \"Doug\" <doug@mail.example>\n\
         Subject: =?utf-8?b?V2llIHdhcidzIGJlaW0gVGF1Y2hlbj8=?= and some more words\n\
         Date: Thu, 20 Nov 2025 17:00:00 +0100\n\
         Message-ID: <{id}@elsewhere.example>\n\
         MIME-Version: 1.0\n\
         Content-Type: text/plain; charset=utf-8\n\
         Content-Transfer-Encoding: 8bit\n\
         User-Agent: A bench\n\
         \n"
    )
    .into_bytes();
    while text.len() < size {
        text.extend_from_slice(
            "All work and no play makes Jack a dull boy; nothing but Arbeit und kein Spaß. \n".as_bytes(),
        );
    }
    text
}

/// With the line ends that IMAP wants.
pub fn with_crlf(message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(message.len() * 2);
    for byte in message {
        if *byte == b'\n' {
            bytes.push(b'\r');
        }
        bytes.push(*byte);
    }
    bytes
}
