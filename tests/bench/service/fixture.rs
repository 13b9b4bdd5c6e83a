//! The service on the servers of the image `bench`, and Dovecot's own LMTP beside it.

use crate::peer::{DOVECOT_ALSO, DOVECOT_CONF, identity};
use crate::site::{Site, Way, program, wait_for_servers};
use crate::support::database::Engine;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const DOVECOT_LOG: &str = "/srv/dovecot/log";
/// As long as anything may take to begin or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// How mailboxes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Maildir,
    Sdbox,
}

impl Format {
    /// By this the configuration of Dovecot knows it (`tests/images/start/dovecot`).
    fn prefix(self) -> &'static str {
        match self {
            Self::Maildir => "maildir",
            Self::Sdbox => "sdbox",
        }
    }
}

/// What is otherwise than measurements have it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Otherwise<'a> {
    /// In its files' names, where several run.
    pub name: &'a str,
    /// A configuration with another database than PostgreSQL.
    pub configuration: Option<&'a Path>,
    /// Lines of `[database]` and of `[imap]` that say where another server is.
    pub database: Option<&'a str>,
    pub imap: Option<&'a str>,
    /// Lines of `[delivery]`.
    pub delivery: &'a str,
    pub environment: &'a [(&'a str, &'a str)],
}

pub struct Fixture<'a> {
    pub site: &'a Site,
    /// The service's.
    folder: PathBuf,
}

impl<'a> Fixture<'a> {
    pub fn set_up(site: &'a Site) -> Self {
        assert!(fs::exists(DOVECOT_CONF).unwrap_or(false), "the servers are in the image `bench`: tests/bench/run");
        let folder = site.write("service", "");
        fs::remove_file(&folder).expect("a file of ours");
        fs::create_dir(&folder).expect("a folder");
        let (uid, gid) = identity("maildrop");
        std::os::unix::fs::chown(&folder, Some(uid), Some(gid)).expect("root");
        let log = site.write("log", "");
        fs::set_permissions(&log, fs::Permissions::from_mode(0o666)).expect("a file of ours");
        Self { site, folder }
    }

    /// Dovecot with LMTP, as it comes, where each login and each connection has a process of its own; or with processes
    /// that go on to the next.
    pub fn dovecot(&self, processes_are_kept: bool) {
        let kept = if processes_are_kept { "restart_request_count = unlimited\n  process_min_avail = 2\n" } else { "" };
        let settings = format!(
            "log_path = {DOVECOT_LOG}\nprotocols = imap lmtp\nservice imap {{\n  {kept}}}\nservice lmtp {{\n  {kept}  \
             unix_listener lmtp {{\n    mode = 0666\n  }}\n}}\nprotocol lmtp {{\n  auth_username_format = %{{user | username}}\n}}\n"
        );
        fs::write(DOVECOT_ALSO, settings).expect("Dovecot's folder");
        let reload = Command::new("doveadm").args(["-c", DOVECOT_CONF, "reload"]).output().expect("doveadm runs");
        assert!(reload.status.success(), "{reload:?}");
        wait_for_servers();
        let socket = Self::dovecots_socket();
        until("Dovecot speaks LMTP", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    }

    /// A file of the service's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn dovecots_socket() -> PathBuf {
        "/srv/dovecot/run/lmtp".into()
    }

    /// How many logins by IMAP there were so far.
    pub fn imap_logins() -> usize {
        let log = fs::read_to_string(DOVECOT_LOG).unwrap_or_default();
        log.lines().filter(|line| line.contains("imap-login: ") && line.contains("Logged in: user=")).count()
    }

    /// So many users with an INBOX, which is empty. `name` tells them from others.
    pub fn users(&self, format: Format, name: &str, count: usize) -> Vec<String> {
        let users: Vec<String> = (0..count).map(|number| format!("{}-{name}-{number}", format.prefix())).collect();
        self.site.add_users(&users);
        for user in &users {
            self.site.messages(user, "INBOX");
        }
        users
    }

    /// Starts the service with these lines of `[service]`, as the user of deliveries, and waits until it is well.
    pub fn start(&self, serve: &str) -> Service {
        self.start_with(serve, &Otherwise::default())
    }

    /// The same, with something otherwise.
    pub fn start_with(&self, serve: &str, otherwise: &Otherwise<'_>) -> Service {
        let plain = otherwise.configuration.map_or_else(|| self.site.configuration(Way::Plain), Path::to_path_buf);
        let mut plain = fs::read_to_string(plain).expect("a configuration");
        // By unix sockets, as Dovecot's LMTP.
        let (postgres, imap) = (&self.site.servers.postgres, &self.site.servers.imap);
        let mariadb = Engine::Mariadb118.address();
        for ((host, port), otherwise, socket) in [
            (postgres, otherwise.database, "socket = \"/srv/sockets/.s.PGSQL.5432\"\n"),
            (&mariadb, otherwise.database, "socket = \"/srv/sockets/mysql.sock\"\n"),
            (imap, otherwise.imap, "socket = \"/srv/sockets/imap\"\n"),
        ] {
            plain = plain.replace(&format!("host = \"{host}\"\nport = {port}\n"), otherwise.unwrap_or(socket));
        }
        let (here, name) = (self.folder.display(), otherwise.name);
        let text = format!(
            "{plain}[delivery]\n{}[service]\nlmtp = [\"{here}/lmtp{name}\"]\nruntime_directory = \"{here}/run{name}\"\n\
             state_directory = \"{here}/state{name}\"\n{serve}",
            otherwise.delivery
        );
        let config = self.site.write(&format!("service{name}.toml"), &text);
        let (uid, gid) = identity("maildrop");
        let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
        command.arg("--config").arg(&config).env_clear().stdin(Stdio::null()).stdout(Stdio::null()).uid(uid).gid(gid);
        command.envs(otherwise.environment.iter().copied());
        let master = command.spawn().expect("maildropd starts");
        let mut service = Service {
            socket: self.path(&format!("lmtp{name}")),
            clients: self.path(&format!("run{name}/clients.sock")),
            config,
            master,
        };
        until("the service is well", || {
            assert!(service.master.try_wait().expect("a child").is_none(), "maildropd has ended");
            service.status()["state"] == "well"
        });
        service
    }
}

/// The service. Dropped, it ends.
pub struct Service {
    /// Where it speaks LMTP.
    pub socket: PathBuf,
    /// The socket of thin clients.
    pub clients: PathBuf,
    pub config: PathBuf,
    master: Child,
}

impl Service {
    /// What `service status --json` says.
    pub fn status(&self) -> Value {
        let mut command = Command::new(program());
        let printed =
            command.args(["service", "status", "--json", "--config"]).arg(&self.config).output().expect("it runs");
        serde_json::from_slice(&printed.stdout).unwrap_or_default()
    }

    /// The processes of this role, `front` or `worker`.
    pub fn processes(&self, role: &str) -> Vec<Pid> {
        let status = self.status();
        let all = status["processes"].as_array().into_iter().flatten();
        let of_role = all.filter(|process| process["role"] == role);
        of_role.filter_map(|process| Pid::from_raw(i32::try_from(process["pid"].as_i64()?).ok()?)).collect()
    }

    /// The memory of the processes of this role that is in use, the most of one of them, in MB.
    pub fn memory(&self, role: &str) -> f64 {
        let of_one = |pid: Pid| {
            let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok()).unwrap_or_default() / 1000.0
        };
        self.processes(role).into_iter().map(of_one).fold(0.0, f64::max)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.master), Signal::TERM);
        let _ = self.master.wait();
    }
}

/// Waits for something that comes about within a minute.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(5));
    }
}
