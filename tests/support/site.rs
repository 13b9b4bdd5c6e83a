//! A whole mail site for one test: two mail hosts with a Postfix each, one fresh database, one Dovecot; the program and
//! its configuration file where both hosts see them.

use crate::support::database::{ADMINISTRATOR, Database, Engine};
use crate::support::imap::{Imap, InMailbox};
use crate::support::postfix::{self, OPT, Postfix};
use crate::support::{env, env_if_there, host_and_port, server};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Who writes: she has an address elsewhere, and a Sent mailbox here.
pub const LISA: &str = "lisa@gmail.com";

/// What tests vary.
#[derive(Clone, Copy)]
pub struct Options {
    /// Letters and digits, short: it becomes part of names.
    pub name: &'static str,
    pub engine: Engine,
    /// How many recipients live here.
    pub recipients: usize,
    /// The program, in `$MAILDROP_TEST_OPT/bin`.
    pub command: &'static str,
    /// In place of the shipped `--lock-wait`.
    pub lock_wait: Option<&'static str>,
}

impl Options {
    pub fn new(name: &'static str, engine: Engine, recipients: usize) -> Self {
        Self { name, engine, recipients, command: "maildrop_command", lock_wait: None }
    }
}

/// The site. Dropped, everything of it is removed, unless the test failed.
pub struct Site {
    /// Names this run of the test, and nothing else on the servers.
    pub run: String,
    /// `user0@mail.axial.net` and so on.
    pub recipients: Vec<String>,
    /// mx1 and mx2.
    pub hosts: [Postfix; 2],
    pub database: Database,
    folder: Folder,
}

impl Site {
    pub fn set_up(options: &Options) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let run = format!("{}{}{:x}", options.name, options.engine.short(), now.as_millis() & 0xffff_ffff);
        let folder = Folder::make(&run);
        let mut database = Database::create(options.engine, &format!("maildrop_{run}"));

        folder.copy(&PathBuf::from(env("MAILDROP_TEST_CA")), "ca.pem");
        folder.write("imap-password", "service-secret\n");
        // Both hosts append to it, each as a user of its own.
        folder.write("log", "");
        folder.mode("log", 0o666);
        let config = format!("{OPT}/{run}/config.toml");
        // tests/package/check has it come out of the package.
        let installed = env_if_there("MAILDROP_TEST_COMMAND").filter(|_| options.command == "maildrop_command");
        let command = installed.unwrap_or_else(|| format!("{OPT}/bin/{}", options.command));

        // The schema is an administrator's to make; deliveries have a role with what grants.sql gives, and no more.
        let (administrator, password) = ADMINISTRATOR;
        folder.write("administrator.toml", &configuration(&database, &run, administrator, "administrator-password"));
        folder.write("administrator-password", password);
        let administrators = format!("{OPT}/{run}/administrator.toml");
        postfix::on("mx1", &[&command, "migrate", "--config", &administrators]);
        let role = format!("deliver_{run}");
        database.create_role_of_grants_file(&role, "deliver-secret");
        folder.write("config.toml", &configuration(&database, &run, &role, "database-password"));
        folder.write("database-password", "deliver-secret\n");

        let recipients: Vec<String> = (0..options.recipients).map(|n| format!("user{n}@mail.axial.net")).collect();
        for address in recipients.iter().map(String::as_str).chain([LISA]) {
            database.add_address(address, &imap_user(&run, address));
        }
        let reader = format!("reader_{run}");
        database.create_reader_of_addresses(&reader, "reader-secret");

        let site = postfix::Site {
            run: &run,
            command: &command,
            config: &config,
            lock_wait: options.lock_wait,
            map_type: if options.engine.is_postgres() { "pgsql" } else { "mysql" },
            recipients_map: &recipients_map(&database, &run, &reader),
        };
        let hosts = ["mx1", "mx2"].map(|host| Postfix::start(host, &site));
        Self { run, recipients, hosts, database, folder }
    }

    /// Every message of one of this site's mailboxes.
    pub fn mailbox(&self, address: &str, mailbox: &str) -> Vec<InMailbox> {
        Imap::login(&server("DOVECOT"), &imap_user(&self.run, address), "secret").messages(mailbox)
    }

    /// Puts a copy of the configuration file beside it, with `from` replaced by `to`; its path on the mail hosts.
    pub fn other_configuration(&self, name: &str, from: &str, to: &str) -> String {
        let text = std::fs::read_to_string(self.folder.0.join("config.toml")).unwrap();
        assert_eq!(text.matches(from).count(), 1, "{from}: {text}");
        self.file(name, &text.replace(from, to), 0o644)
    }

    /// The configuration file as this machine sees it; its path here.
    pub fn configuration_here(&self) -> String {
        let folder = self.folder.0.to_str().unwrap();
        let text = std::fs::read_to_string(self.folder.0.join("config.toml")).unwrap();
        self.folder.write("config-here.toml", &text.replace(&format!("{OPT}/{}", self.run), folder));
        format!("{folder}/config-here.toml")
    }

    /// The program's log, of both hosts; empty before it has said anything.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.0.join("log")).unwrap_or_default()
    }

    /// Puts a file with these permissions where the mail hosts see it; its path there.
    pub fn file(&self, name: &str, text: &str, mode: u32) -> String {
        self.folder.write(name, text);
        self.folder.mode(name, mode);
        format!("{OPT}/{}/{name}", self.run)
    }

    /// Puts an executable script where the mail hosts see it; its path there.
    pub fn script(&self, name: &str, text: &str) -> String {
        self.file(name, text, 0o755)
    }
}

/// The user that Dovecot knows.
fn imap_user(run: &str, address: &str) -> String {
    format!("{run}-{}", address.split('@').next().unwrap_or_default())
}

/// The fragment of `postfix/` with the site's own values in it.
fn recipients_map(database: &Database, run: &str, reader: &str) -> String {
    let (host, port) = database.engine.address();
    let fragment = if database.engine.is_postgres() {
        include_str!("../../postfix/pgsql-recipients.cf")
    } else {
        include_str!("../../postfix/mysql-recipients.cf")
    };
    fragment
        .replace("postfix_maps", reader)
        .replace("PASSWORD", "reader-secret")
        .replace("/maildrop?", &format!("/{}?", database.name))
        .replace("dbname = maildrop", &format!("dbname = {}", database.name))
        .replace("db.axial.net", &format!("{host}:{port}"))
        .replace("/etc/ssl/certs/ca-certificates.crt", &format!("{OPT}/{run}/ca.pem"))
}

/// The configuration file for a role of the database.
fn configuration(database: &Database, run: &str, role: &str, password_file: &str) -> String {
    let engine = if database.engine.is_postgres() { "postgresql" } else { "mysql" };
    let (host, port) = database.engine.address();
    let (imap_host, imap_port) = host_and_port(server("DOVECOT"), 143);
    let here = format!("{OPT}/{run}");
    format!(
        r#"
[database]
engine = "{engine}"
host = "{host}"
port = {port}
database = "{name}"
user = "{role}"
password_file = "{here}/{password_file}"
tls = "verify"
ca_file = "{here}/ca.pem"

[imap]
host = "{imap_host}"
port = {imap_port}
encryption = "starttls"
ca_file = "{here}/ca.pem"
user = "service"
password_file = "{here}/imap-password"

[log]
to = "file"
file = "{here}/log"
"#,
        name = database.name
    )
}

/// A folder of this run below the one that the mail hosts see as `/opt/maildrop`.
struct Folder(PathBuf);

impl Folder {
    fn make(run: &str) -> Self {
        let path = PathBuf::from(env("MAILDROP_TEST_OPT")).join(run);
        std::fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self(path)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap_or_else(|error| panic!("{name}: {error}"));
        self.mode(name, 0o644);
    }

    fn copy(&self, from: &std::path::Path, name: &str) {
        std::fs::copy(from, self.0.join(name)).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        self.mode(name, 0o644);
    }

    fn mode(&self, name: &str, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(self.0.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.0.join("log")).unwrap_or_default();
            eprintln!(
                "{} is left for you to look at; the program's log ends:\n{}",
                self.0.display(),
                postfix::tail(&log, 20)
            );
        } else {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
