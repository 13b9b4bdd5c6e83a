//! What a curve is measured on: a database of its own, the users it needs, a configuration file, a log to read.

use crate::site::{SIZE, STRANGER, message, program};
use crate::support::database::{ADMINISTRATOR, Database, Engine};
use crate::support::imap::Imap;
use crate::support::program::wait_for;
use crate::support::{env_if_there, host_and_port, server};
use maildrop_command::config::Config;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub struct Fixture {
    pub engine: Engine,
    /// Processes are run by threads, and a connection to a database is for one at a time.
    database: Mutex<Database>,
    folder: TempDir,
    configuration: PathBuf,
}

/// One run of the program.
pub struct Try {
    /// From the call that started it until it had ended.
    pub took: Duration,
    pub exit: Option<i32>,
    pub output: String,
}

impl Fixture {
    /// With the ledger's tables in it, and these users of the mailbox store, each under `USER@mail.example`.
    pub fn new<'a>(engine: Engine, users: impl IntoIterator<Item = &'a String>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("growth_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut database = Database::create(engine, &name);
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let role = format!("{name}_role");
        let administrator = write("administrator.toml", &configuration(&database, folder.path(), ADMINISTRATOR.0));
        let configuration = write("config.toml", &configuration(&database, folder.path(), &role));
        write("tester-password", ADMINISTRATOR.1);
        write(&format!("{role}-password"), "deliver-secret");
        write("imap-password", "service-secret");
        let migrated = Command::new(program()).args(["migrate", "--config"]).arg(administrator).output().unwrap();
        assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
        database.create_role_of_grants_file(&role, "deliver-secret");
        for user in users {
            database.add_address(&address(user), user);
        }
        Self { engine, database: Mutex::new(database), folder, configuration }
    }

    /// The program, as Postfix would run it.
    pub fn command(&self, user: &str, author: &str) -> Command {
        let mut command = Command::new(program());
        command.arg("--config").arg(&self.configuration);
        command.args(["--sender", author, "--queue-id", "4cBxyz1234z9rs", "--recipient", &address(user)]);
        command
    }

    /// One delivery of a message of the ordinary size.
    pub fn deliver(&self, user: &str) -> Try {
        self.deliver_this(user, &message(STRANGER, SIZE))
    }

    /// One delivery of this message.
    pub fn deliver_this(&self, user: &str, message: &[u8]) -> Try {
        let tried = attempt(&mut self.command(user, STRANGER), message);
        assert_eq!(tried.exit, Some(0), "{}", tried.output);
        tried
    }

    /// What the program has logged of deliveries since this was last asked.
    pub fn log(&self) -> Vec<Value> {
        let path = self.folder.path().join("log");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(&path);
        let records = text.lines().map(|line| serde_json::from_str(line).expect("a record"));
        records.filter(|record: &Value| record["total_ms"].is_number()).collect()
    }

    /// Runs one statement.
    pub fn execute(&self, sql: &str) {
        self.database.lock().unwrap().execute(sql);
    }

    /// How many blocks PostgreSQL has looked at for this database so far, in its memory or on disk: all of them, and those of the
    /// ledger's tables. What a delivery asks of it, by another measure than a clock. No other engine says that of a database.
    pub fn blocks(&self) -> Option<[f64; 2]> {
        let mut database = self.database.lock().unwrap();
        // A session's counts are there once it has ended; ours stays.
        let mut ask = |what: &str| database.count(&format!("SELECT ({what})::bigint"));
        self.engine.is_postgres().then(|| {
            let of_it = "FROM pg_stat_database WHERE datname = current_database()";
            let sessions = format!("SELECT numbackends {of_it}");
            wait_for("the deliveries' sessions end", Duration::from_secs(120), || ask(&sessions) <= 1);
            let tables = "SELECT sum(coalesce(heap_blks_hit + heap_blks_read, 0) + coalesce(idx_blks_hit + idx_blks_read, 0)) \
                 FROM pg_statio_user_tables";
            [format!("SELECT blks_hit + blks_read {of_it}"), tables.to_owned()].map(|sql| ask(&sql) as f64)
        })
    }

    /// The same, of sessions that others have open: they are ended, since a session's counts are there once it has ended.
    pub fn blocks_of_ended_sessions(&self) -> Option<[f64; 2]> {
        if self.engine.is_postgres() {
            // Ours have no name.
            let others = "FROM pg_stat_activity WHERE datname = current_database() AND application_name <> ''";
            self.texts(&format!("SELECT pg_terminate_backend(pid)::text {others}"));
        }
        self.blocks()
    }

    /// The site as somebody sees it who may see all, through this port of this machine if one is named.
    pub fn site_of_the_page(&self, port: Option<u16>) -> maildrop_command::site::Site {
        let (host, own_port) = self.engine.address();
        let text = fs::read_to_string(self.folder.path().join("administrator.toml")).unwrap();
        let own = format!("host = \"{host}\"\nport = {own_port}\n");
        let text = match port {
            Some(port) => text.replacen(&own, &format!("host = \"127.0.0.1\"\nport = {port}\n"), 1),
            None => text,
        };
        let path = self.folder.path().join("page.toml");
        fs::write(&path, text + "[web]\nlisten = \"127.0.0.1:8025\"\n").unwrap();
        maildrop_command::site::Site::configured(Config::load(&path).unwrap()).unwrap()
    }

    /// Another configuration file, of somebody who may do all, with more sections.
    pub fn configuration_with(&self, name: &str, more: &str) -> PathBuf {
        let text = fs::read_to_string(self.folder.path().join("administrator.toml")).unwrap();
        let path = self.folder.path().join(name);
        fs::write(&path, text + more).unwrap();
        path
    }

    /// A path beside the configuration.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Who has the database, as an address for clients of others.
    pub fn database_name(&self) -> String {
        self.database.lock().unwrap().name.clone()
    }

    /// A link that lets somebody in who may see all.
    pub fn link_to_the_page(&self) -> String {
        drop(self.site_of_the_page(None));
        let mut command = Command::new(program());
        command.args(["web", "login", "--name", "anna", "--role", "admin", "--config"]);
        let output = command.arg(self.folder.path().join("page.toml")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Texts that the ledger has.
    pub fn texts(&self, sql: &str) -> Vec<String> {
        self.database.lock().unwrap().session().texts(sql)
    }

    /// A number that the ledger knows.
    pub fn count(&self, sql: &str) -> usize {
        self.database.lock().unwrap().count(sql).try_into().unwrap()
    }
}

fn configuration(database: &Database, folder: &Path, role: &str) -> String {
    let here = folder.display();
    let engine = if database.engine.is_postgres() { "postgresql" } else { "mysql" };
    let (host, port) = database.engine.address();
    let (imap_host, imap_port) = store();
    let name = &database.name;
    let account = |own| format!("roles.{own} = {{ user = \"{role}\", password_file = \"{here}/{role}-password\" }}\n");
    let roles: String = ["operator", "timer", "notifier", "web", "owner"].map(account).concat();
    format!(
        "[database]\nengine = \"{engine}\"\nhost = \"{host}\"\nport = {port}\ndatabase = \"{name}\"\nuser = \"{role}\"\n\
         password_file = \"{here}/{role}-password\"\ntls = \"off\"\n{roles}\
         [imap]\nhost = \"{imap_host}\"\nport = {imap_port}\nencryption = \"none\"\nuser = \"service\"\n\
         password_file = \"{here}/imap-password\"\n\
         [delivery]\nmessage_size_limit = \"100MB\"\n\
         [log]\nto = \"file\"\nfile = \"{here}/log\"\nformat = \"json\"\n"
    )
}

/// The mailbox store: its host and port.
fn store() -> (String, u16) {
    host_and_port(server("DOVECOT"), 143)
}

/// Whether there is such a server.
pub fn has(engine: Engine) -> bool {
    env_if_there(&format!("MAILDROP_TEST_{}", engine.variable())).is_some()
}

pub fn address(user: &str) -> String {
    format!("{user}@mail.example")
}

/// A mail program of this user.
pub fn mail_program(user: &str) -> Imap {
    let (host, port) = store();
    Imap::login(&format!("{host}:{port}"), user, "secret")
}

/// How many messages this mailbox has.
pub fn messages_in(user: &str, mailbox: &str) -> usize {
    let status = mail_program(user).run(&format!("STATUS {mailbox} (MESSAGES)"));
    let Ok(responses) = status else { return 0 };
    let text = &responses[0].text;
    text.split_once("MESSAGES ").unwrap().1.trim_end_matches(')').parse().unwrap()
}

/// Takes out what is in these mailboxes.
pub fn clear<'a>(users: impl IntoIterator<Item = &'a String>) {
    for user in users {
        let mut imap = mail_program(user);
        for mailbox in ["INBOX", "Sent"] {
            if imap.run(&format!("SELECT {mailbox}")).is_ok() {
                let _ = imap.run("STORE 1:* +FLAGS.SILENT (\\Deleted)");
                let _ = imap.run("EXPUNGE");
            }
        }
    }
}

/// Runs a process as pipe(8) would: the message on its standard input, a pipe at its output.
pub fn attempt(command: &mut Command, message: &[u8]) -> Try {
    let began = Instant::now();
    command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    child.stdin.take().expect("a pipe").write_all(message).expect("a reader");
    let mut output = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut output).expect("text");
    let exit = child.wait().expect("a child").code();
    Try { took: began.elapsed(), exit, output }
}
