//! One site on real servers: a fresh database, members with mailboxes on Dovecot, and a configuration file. The test starts
//! deliveries itself, as Postfix would; where Postfix is to start them, `mail_hosts.rs` puts two of them before such a site.

use crate::support::database::{ADMINISTRATOR, Connection, Database, Engine};
use crate::support::imap::{Imap, InMailbox};
use crate::support::own_server::OwnServer;
use crate::support::postfix::OPT;
use crate::support::program::{Outcome, Running, feed, program, wait_for, wait_until};
use crate::support::{env, env_if_there, host_and_port, server};
use maildrop_command::config::Config;
use maildrop_command::lock::DEFAULT_NAMESPACE;
use maildrop_command::site::Site;
use mysql::prelude::Queryable;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

/// The same on PostgreSQL and on one that is like MySQL: for what does not depend on the engine.
macro_rules! on_two_engines {
    ($($scenario:ident),+ $(,)?) => {
        mod postgres17 { $( #[test] fn $scenario() { super::$scenario($crate::support::database::Engine::Postgres17); } )+ }
        mod mysql9 { $( #[test] fn $scenario() { super::$scenario($crate::support::database::Engine::Mysql9); } )+ }
    };
}

/// The same for the other versions of them that are supported.
macro_rules! on_each_other_version {
    ($($scenario:ident),+ $(,)?) => {
        mod postgres15 { $( #[test] fn $scenario() { super::$scenario($crate::support::database::Engine::Postgres15); } )+ }
        mod postgres18 { $( #[test] fn $scenario() { super::$scenario($crate::support::database::Engine::Postgres18); } )+ }
        mod mariadb1011 { $( #[test] fn $scenario() { super::$scenario($crate::support::database::Engine::Mariadb1011); } )+ }
    };
}

/// What the configuration file says.
#[derive(Clone)]
pub struct Settings {
    pub database: (String, u16),
    pub role: String,
    pub database_password: String,
    pub imap: (String, u16),
    pub imap_password: String,
    /// The authority that signed the certificates of both servers; `None`: they are spoken to without encryption.
    pub ca_file: Option<String>,
    /// More lines of `[database]`; with `hosts` among them, there is no `host`.
    pub database_more: String,
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
    /// What the program calls that folder, where it runs on another host.
    seen_as: Option<String>,
    /// Where the members' own mail programs look: the program may be sent there by another way.
    dovecot: (String, u16),
    /// What it runs in; `None` where it is a plain process.
    dovecot_container: Option<String>,
}

impl Scene {
    /// A site whose schema is up to date, and where nobody lives.
    pub fn empty(engine: Engine) -> Self {
        Self::bare(engine).migrated()
    }

    /// The same, with a database on this server.
    pub fn with_database_on(engine: Engine, database: &OwnServer) -> Self {
        Self::bare_with_database_on(engine, database).migrated()
    }

    /// A site with an empty database on this server.
    pub fn bare_with_database_on(engine: Engine, database: &OwnServer) -> Self {
        let (dovecot, container) = shared_dovecot();
        Self::bare_at(engine, database.address(), dovecot, container)
    }

    /// The same, with mailboxes on this server.
    pub fn with_mailboxes_on(engine: Engine, dovecot: &OwnServer) -> Self {
        Self::bare_at(engine, engine.address(), dovecot.address(), Some(dovecot.container.clone())).migrated()
    }

    /// The same, with both on these servers.
    pub fn on(engine: Engine, database: &OwnServer, dovecot: &OwnServer) -> Self {
        Self::bare_at(engine, database.address(), dovecot.address(), Some(dovecot.container.clone())).migrated()
    }

    fn migrated(self) -> Self {
        let scene = self;
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
        let (dovecot, container) = shared_dovecot();
        Self::bare_at(engine, engine.address(), dovecot, container)
    }

    /// A site with an empty database, whose folder both mail hosts see, and whose servers are spoken to under TLS.
    pub fn for_mail_hosts(engine: Engine) -> Self {
        Self::for_mail_hosts_with_database_at(engine, engine.address())
    }

    /// The same, with the database on this server.
    pub fn for_mail_hosts_with_database_at(engine: Engine, database: (String, u16)) -> Self {
        let (dovecot, container) = shared_dovecot();
        let run = Self::next_run();
        let folder = tempfile::Builder::new().prefix(&run).rand_bytes(0).tempdir_in(env("MAILDROP_TEST_OPT")).unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let seen_as = format!("{OPT}/{run}");
        let mut scene = Self::made(run, engine, database, dovecot, container, folder, Some(seen_as));
        scene.file("ca.pem", &std::fs::read_to_string(env("MAILDROP_TEST_CA")).unwrap(), 0o644);
        // Both hosts append to it, each as a user of its own.
        scene.file("log", "", 0o666);
        let ca_file = scene.seen("ca.pem");
        scene.configure(|settings| settings.ca_file = Some(ca_file));
        scene
    }

    fn bare_at(
        engine: Engine,
        database: (String, u16),
        dovecot: (String, u16),
        dovecot_container: Option<String>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::made(Self::next_run(), engine, database, dovecot, dovecot_container, folder, None)
    }

    /// A name that no other run of a test has.
    fn next_run() -> String {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() & 0xffff_ffff;
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        format!("s{now:x}x{:x}x{number}", std::process::id())
    }

    fn made(
        run: String,
        engine: Engine,
        database: (String, u16),
        dovecot: (String, u16),
        dovecot_container: Option<String>,
        folder: tempfile::TempDir,
        seen_as: Option<String>,
    ) -> Self {
        let settings = Settings {
            database: database.clone(),
            role: ADMINISTRATOR.0.into(),
            database_password: ADMINISTRATOR.1.into(),
            imap: dovecot.clone(),
            imap_password: "service-secret".into(),
            ca_file: None,
            database_more: "failover_timeout = \"0s\"\n".into(),
            imap_more: String::new(),
            more: String::new(),
        };
        let database = Database::create_at(engine, database, &format!("maildrop_{run}"));
        let scene = Self { database, run, settings, folder, seen_as, dovecot, dovecot_container };
        scene.write_configuration();
        scene
    }

    /// A path in the site's own folder.
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// The same, as the program calls it.
    pub fn seen(&self, name: &str) -> String {
        self.seen_as.as_ref().map_or_else(|| self.path(name), |folder| format!("{folder}/{name}"))
    }

    /// Puts a file with these permissions there; its path, as the program calls it.
    pub fn file(&self, name: &str, text: &str, mode: u32) -> String {
        std::fs::write(self.path(name), text).unwrap_or_else(|error| panic!("{name}: {error}"));
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
        self.seen(name)
    }

    /// The configuration file for a program that runs here; its path.
    pub fn configuration_here(&self) -> String {
        let text = std::fs::read_to_string(self.path("config.toml")).unwrap();
        self.file("config-here.toml", &text.replace(&self.seen(""), &self.path("")), 0o644);
        self.path("config-here.toml")
    }

    /// Changes the configuration file.
    pub fn configure(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings);
        self.write_configuration();
    }

    /// Writes another configuration file beside it, with a change, but for the passwords; the path.
    pub fn other_configuration(&self, name: &str, change: impl FnOnce(&mut Settings)) -> String {
        let mut settings = self.settings.clone();
        change(&mut settings);
        self.write(name, &settings);
        self.path(name)
    }

    fn write_configuration(&self) {
        // On a mail host deliveries run as another user.
        let mode = if self.seen_as.is_some() { 0o644 } else { 0o600 };
        let secret = |name: &str, password: &str| {
            self.file(name, &format!("{password}\n"), mode);
        };
        secret("database.password", &self.settings.database_password);
        secret("imap.password", &self.settings.imap_password);
        self.write("config.toml", &self.settings);
    }

    fn write(&self, file: &str, settings: &Settings) {
        let Settings { database, database_more, role, imap, ca_file, imap_more, more, .. } = settings;
        let host = if database_more.contains("hosts = ") {
            String::new()
        } else {
            format!("host = \"{}\"\nport = {}\n", database.0, database.1)
        };
        let postgres = self.database.engine.is_postgres();
        let engine = if postgres { "postgresql" } else { "mysql" };
        let log = if more.contains("[log]") {
            String::new()
        } else {
            format!("[log]\nto = \"file\"\nfile = \"{}\"\nlevel = \"debug\"\n", self.seen("log"))
        };
        let (tls, encryption) = match ca_file {
            Some(file) => (format!("verify\"\nca_file = \"{file}"), format!("starttls\"\nca_file = \"{file}")),
            None => ("off".into(), "none".into()),
        };
        let (database_password, imap_password) = (self.seen("database.password"), self.seen("imap.password"));
        // One account for all that is done, unless a test says otherwise.
        let account =
            |name| format!("roles.{name} = {{ user = \"{role}\", password_file = \"{database_password}\" }}\n");
        let roles: String = ["operator", "timer", "notifier", "web", "owner"]
            .into_iter()
            .filter(|name| !database_more.contains(&format!("roles.{name} ")))
            .map(account)
            .collect();
        let text = format!(
            r#"[database]
engine = "{engine}"
{host}database = "{}"
user = "{role}"
password_file = "{database_password}"
{roles}tls = "{tls}"
{database_more}
[imap]
host = "{}"
port = {}
encryption = "{encryption}"
user = "service"
password_file = "{imap_password}"
{imap_more}
{more}
{log}"#,
            self.database.name, imap.0, imap.1
        );
        std::fs::write(self.path(file), text).unwrap();
    }

    /// Lets somebody live here; the address.
    pub fn member(&mut self, name: &str) -> String {
        let address = format!("{name}@mail.axial.net");
        self.database.add_address(&address, &self.user(name));
        address
    }

    /// The user that Dovecot knows, by name or by address.
    pub fn user(&self, name: &str) -> String {
        format!("{}-{}", name.split('@').next().unwrap_or_default(), self.run)
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
        self.command_by(&self.path("config.toml"), recipient, more)
    }

    /// The same, with another configuration.
    pub fn command_by(&self, config: &str, recipient: &str, more: &[&str]) -> Command {
        let recipient = if recipient.contains('@') { recipient.into() } else { format!("{recipient}@mail.axial.net") };
        let mut command = program(&["--config", config, "--recipient", &recipient]);
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

    /// The site, for code that is called and not run.
    pub fn site(&self) -> Site {
        let config = Config::load(self.path("config.toml").as_ref()).unwrap();
        Site::configured(config).unwrap()
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
        let (host, port) = &self.dovecot;
        Imap::login(&format!("{host}:{port}"), &self.user(name), "secret")
    }

    /// Waits until Dovecot has executed the commands of processes that are no more. It serves each session by a process of
    /// its own, which first finishes what it has heard. After a crash that may take it two minutes: so long it believes in a
    /// lock of the dead (seen: "APPEND … running for 109.635, 109.557 in locks").
    pub fn wait_for_dovecot(&self) {
        let Some(container) = &self.dovecot_container else {
            std::thread::sleep(Duration::from_millis(300));
            return;
        };
        let ours = format!("*-{}", self.run);
        // For one such lock after another.
        wait_for("no session is left", Duration::from_secs(600), || {
            let mut doveadm = Command::new("docker");
            doveadm.args(["exec", container, "doveadm", "-c", "/srv/dovecot.conf", "who", "-1", &ours]);
            let printed = doveadm.output().expect("docker runs");
            // (The engine, too, has more to do at times than it can.)
            if !printed.status.success() {
                eprintln!("{printed:?}");
            }
            // One line is the heading.
            printed.status.success() && printed.stdout.iter().filter(|byte| **byte == b'\n').count() <= 1
        });
    }

    /// The database, as the program opens it.
    pub fn open_database(&self) -> Box<dyn maildrop_command::ledger::Database> {
        use maildrop_command::{base::deadline::Deadline, config::Config, site::Site};
        let config = Config::load(std::path::Path::new(&self.path("config.toml"))).unwrap();
        let deadline = Deadline::after(std::time::Duration::from_secs(120));
        Site::configured(config).unwrap().open_database(None, deadline).unwrap()
    }

    /// The program's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Another connection to the database, that knows nothing of this program.
    pub fn session(&self) -> Connection {
        self.database.session()
    }

    /// Takes the lock of a message, as another program or a DBA would.
    pub fn hold(&self, message_id: &str) -> Connection {
        self.hold_in(DEFAULT_NAMESPACE, message_id)
    }

    /// The same, where `lock.namespace` is another.
    pub fn hold_in(&self, namespace: &str, message_id: &str) -> Connection {
        let json = program(&["lock", "key", "--json", "--namespace", namespace, message_id]).output().unwrap().stdout;
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let mut session = self.session();
        let taken = if self.database.engine.is_postgres() {
            format!("SELECT pg_try_advisory_lock({})::text", json["postgresql"].as_str().unwrap())
        } else {
            format!("SELECT CASE GET_LOCK('{}', 0) WHEN 1 THEN 'true' END", json["mysql"].as_str().unwrap())
        };
        assert_eq!(session.texts(&taken), ["true"]);
        session
    }

    /// Makes it ten minutes later for the ledger: attempts that never ended are settled.
    pub fn ten_minutes_pass(&mut self) {
        self.minutes_pass(10);
    }

    /// Makes it so much later for the ledger.
    pub fn minutes_pass(&mut self, minutes: u32) {
        let ago = if self.database.engine.is_postgres() {
            format!("interval '{minutes} minutes'")
        } else {
            format!("INTERVAL {minutes} MINUTE")
        };
        self.execute_beside_others(&format!("UPDATE attempts SET started_at = started_at - {ago}"));
    }

    /// Runs one statement that changes rows which the program changes, too. The server may still be at work on the last that a
    /// process said before it died, and break a deadlock with that.
    pub fn execute_beside_others(&self, sql: &str) {
        let mut session = self.session();
        wait_until("rows can be changed that others change", || match try_execute(&mut session, sql) {
            Ok(()) => true,
            Err(error) if error.contains("eadlock") || error.contains("try restarting transaction") => false,
            Err(error) => panic!("{sql}: {error}"),
        });
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
            let killed = session.texts(&list);
            for id in &killed {
                // It may have ended by itself.
                let _ = try_execute(&mut session, &format!("KILL {id}"));
            }
            // The server frees the lock when the session has noticed. (Meanwhile the program may have opened another.)
            wait_until("the killed sessions are gone", || !session.texts(&list).iter().any(|id| killed.contains(id)));
        }
    }
}

/// Runs one statement, which may fail: what the server said.
fn try_execute(session: &mut Connection, sql: &str) -> Result<(), String> {
    match session {
        Connection::Postgres(client) => client.batch_execute(sql).map_err(|error| format!("{error:?}")),
        Connection::Mysql(connection) => connection.query_drop(sql).map_err(|error| error.to_string()),
    }
}

/// Where it is, and what it runs in.
fn shared_dovecot() -> ((String, u16), Option<String>) {
    (host_and_port(server("DOVECOT"), 143), env_if_there("MAILDROP_TEST_DOVECOT_CONTAINER"))
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            self.folder.disable_cleanup(true);
            eprintln!("{} is left for you to look at", self.folder.path().display());
            let from = log.len() - log.len().min(6000);
            eprintln!("the program's log ends:\n{}", String::from_utf8_lossy(&log.as_bytes()[from..]));
        }
    }
}
