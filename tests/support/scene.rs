//! One site on real servers, for deliveries that the test itself starts: a fresh database, members with mailboxes on
//! Dovecot, and a configuration file.

use crate::support::database::{ADMINISTRATOR, Connection, Database, Engine};
use crate::support::imap::{Imap, InMailbox};
use crate::support::program::{Outcome, Running, feed, program, wait_until};
use crate::support::{host_and_port, server};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Who writes, in all these scenarios.
pub const LISA: &str = "lisa@mail.axial.net";

/// Makes of each scenario, a function of an engine, a test for each engine.
macro_rules! on_each_engine {
    ($($scenario:ident),+ $(,)?) => {
        mod postgres17 { $( #[test] fn $scenario() { super::$scenario($crate::support::database::Engine::Postgres17); } )+ }
        mod mysql9 { $( #[test] fn $scenario() { super::$scenario($crate::support::database::Engine::Mysql9); } )+ }
        mod mariadb118 { $( #[test] fn $scenario() { super::$scenario($crate::support::database::Engine::Mariadb118); } )+ }
    };
}

/// What the configuration file says.
pub struct Settings {
    pub database: (String, u16),
    pub role: String,
    pub database_password: String,
    pub imap: (String, u16),
    pub imap_password: String,
    /// More lines of `[imap]`.
    pub imap_more: String,
    /// More sections.
    pub more: String,
}

/// The site.
pub struct Scene {
    /// Names this run of the test, and nothing else on the servers.
    pub run: String,
    pub database: Database,
    pub settings: Settings,
    pub folder: tempfile::TempDir,
}

impl Scene {
    /// A site whose schema is up to date, and where nobody lives.
    pub fn empty(engine: Engine) -> Self {
        let scene = Self::bare(engine);
        let migrated = program(&["migrate", "--config", &scene.path("config.toml")]).output().unwrap();
        assert!(migrated.status.success(), "{migrated:?}");
        scene
    }

    /// A site where these live: `scuba` is scuba@mail.axial.net.
    pub fn with(engine: Engine, members: &[&str]) -> Self {
        let mut scene = Self::empty(engine);
        for name in members {
            scene.member(name);
        }
        scene
    }

    /// A site with an empty database.
    pub fn bare(engine: Engine) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() & 0xffff_ffff;
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let run = format!("s{now:x}x{:x}x{number}", std::process::id());
        let settings = Settings {
            database: engine.address(),
            role: ADMINISTRATOR.0.into(),
            database_password: ADMINISTRATOR.1.into(),
            imap: host_and_port(server("DOVECOT"), 143),
            imap_password: "service-secret".into(),
            imap_more: String::new(),
            more: String::new(),
        };
        let database = Database::create(engine, &format!("maildrop_{run}"));
        let scene = Self { database, run, settings, folder: tempfile::tempdir().unwrap() };
        scene.write_configuration();
        scene
    }

    /// A path in the site's own folder.
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Changes the configuration file.
    pub fn configure(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings);
        self.write_configuration();
    }

    fn write_configuration(&self) {
        let Settings { database, role, database_password, imap, imap_password, imap_more, more } = &self.settings;
        let secret = |name: &str, password: &str| {
            std::fs::write(self.path(name), format!("{password}\n")).unwrap();
            std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(0o600)).unwrap();
        };
        secret("database.password", database_password);
        secret("imap.password", imap_password);
        let postgres = self.database.engine.is_postgres();
        let engine = if postgres { "postgresql" } else { "mysql" };
        let log = if more.contains("[log]") {
            String::new()
        } else {
            format!("[log]\nto = \"file\"\nfile = \"{}\"\nlevel = \"debug\"\n", self.path("log"))
        };
        let here = self.folder.path().display();
        let text = format!(
            r#"[database]
engine = "{engine}"
host = "{}"
port = {}
database = "{}"
user = "{role}"
password_file = "{here}/database.password"
tls = "off"

[imap]
host = "{}"
port = {}
encryption = "none"
user = "service"
password_file = "{here}/imap.password"
{imap_more}
{more}
{log}"#,
            database.0, database.1, self.database.name, imap.0, imap.1
        );
        std::fs::write(self.path("config.toml"), text).unwrap();
    }

    /// Lets somebody live here; the address.
    pub fn member(&mut self, name: &str) -> String {
        let address = format!("{name}@mail.axial.net");
        self.database.add_address(&address, &self.user(name));
        address
    }

    /// The user that Dovecot knows.
    pub fn user(&self, name: &str) -> String {
        format!("{name}-{}", self.run)
    }

    /// A message of Lisa's that nobody else has sent.
    pub fn message(&self, id: &str) -> String {
        format!(
            "From: Lisa <{LISA}>\nTo: scuba@mail.axial.net, doug@mail.axial.net\nMessage-ID: {}\nSubject: {id}\n\n{id}\n",
            self.message_id(id)
        )
    }

    /// Its Message-ID.
    pub fn message_id(&self, id: &str) -> String {
        format!("<{id}.{}@mail.google.com>", self.run)
    }

    /// The program, with the configuration, an envelope, and more.
    pub fn command(&self, recipient: &str, more: &[&str]) -> Command {
        let recipient = if recipient.contains('@') { recipient.into() } else { format!("{recipient}@mail.axial.net") };
        let config = self.path("config.toml");
        let mut command = program(&["--config", &config, "--recipient", &recipient]);
        if !more.contains(&"--sender") {
            command.args(["--sender", LISA]);
        }
        command.args(more);
        command
    }

    /// Delivers to `name`, or to an address.
    pub fn deliver(&self, recipient: &str, message: impl AsRef<[u8]>) -> Outcome {
        self.deliver_with(recipient, &[], message)
    }

    /// The same, with more arguments.
    pub fn deliver_with(&self, recipient: &str, more: &[&str], message: impl AsRef<[u8]>) -> Outcome {
        feed(self.command(recipient, more), message.as_ref())
    }

    /// Begins a delivery.
    pub fn start(&self, recipient: &str, more: &[&str], message: impl AsRef<[u8]>) -> Running {
        Running::start(self.command(recipient, more), message.as_ref())
    }

    /// Runs another subcommand.
    pub fn subcommand(&self, arguments: &[&str]) -> std::process::Output {
        program(arguments).args(["--config", &self.path("config.toml")]).output().unwrap()
    }

    pub fn inbox(&self, name: &str) -> Vec<InMailbox> {
        self.mailbox(name, "INBOX")
    }

    pub fn sent(&self, name: &str) -> Vec<InMailbox> {
        self.mailbox(name, "Sent")
    }

    pub fn mailbox(&self, name: &str, mailbox: &str) -> Vec<InMailbox> {
        self.look(name).messages(mailbox)
    }

    /// The member's own mail program.
    pub fn look(&self, name: &str) -> Imap {
        Imap::login(&server("DOVECOT"), &self.user(name), "secret")
    }

    /// The program's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Another connection to the database, that knows nothing of this program.
    pub fn session(&self) -> Connection {
        Connection::open(self.database.engine, Some(&self.database.name))
    }

    /// Makes it ten minutes later for the ledger: attempts that never ended are settled.
    pub fn ten_minutes_pass(&mut self) {
        let ago = if self.database.engine.is_postgres() {
            "started_at - interval '10 minutes'"
        } else {
            "started_at - INTERVAL 10 MINUTE"
        };
        self.database.execute(&format!("UPDATE attempts SET started_at = {ago}"));
    }

    /// What ends every connection of the program to this database, as a failing server or a firewall would.
    pub fn breaker(&mut self) -> impl Fn() + Send + Sync + 'static {
        let (engine, name) = (self.database.engine, self.database.name.clone());
        let own = if engine.is_postgres() { "pg_backend_pid()::text" } else { "CAST(CONNECTION_ID() AS char)" };
        let own = self.database.texts(&format!("SELECT {own}")).remove(0);
        move || {
            let mut session = Connection::open(engine, None);
            if engine.is_postgres() {
                session.execute(&format!(
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name}' AND pid <> {own}"
                ));
                return;
            }
            let list = format!(
                "SELECT CAST(id AS char) FROM information_schema.processlist WHERE db = '{name}' AND id <> {own}"
            );
            for id in session.texts(&list) {
                session.execute(&format!("KILL {id}"));
            }
            // The server frees the lock when the session has heard of it.
            wait_until("the killed sessions are gone", || session.texts(&list).is_empty());
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let from = log.len() - log.len().min(6000);
            eprintln!("the program's log ends:\n{}", String::from_utf8_lossy(&log.as_bytes()[from..]));
        }
    }
}
