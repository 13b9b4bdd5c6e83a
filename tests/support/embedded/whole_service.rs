//! The service as it is: a master with the program's own front, workers and runner, on one machine and without servers.

use crate::program::wait_until;
use crate::support::clients_and_processes::{child, soon, subject};
use crate::support::test_front::{Client, process_in};
use crate::support::test_master::{Stage, send};
use maildrop_command::database::SqliteDatabase;
use maildrop_command::lock::{Acquired, NamedLock};
use maildrop_command::message::Message;
use maildrop_command::protocol::control::Role;
use maildrop_command::service::master::{self, Start};
use maildrop_command::site::Site;
use maildrop_command::site::embedded::Embedded;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const MASTER: &str = "support::whole_service::a_master";

/// While this file is there, no worker can be started.
const NO_WORKERS: &str = "no workers";

/// While this file is there, each worker that is started commits the fault that a message orders (src/base/fault_injection.rs).
const FAULTS: &str = "faults of messages";

/// It speaks LMTP at `lmtp` and HTTP at `http` in its folder. Dropped, it is ended.
pub struct Whole(pub Stage);

impl Whole {
    /// With two workers; `more` is what else the configuration says, from `[service]` on.
    pub fn started(more: &str) -> Self {
        let mut whole = Self(Stage::new(""));
        whole.configure(more);
        whole.start();
        whole.0.wait_until_well();
        whole
    }

    pub fn configure(&self, more: &str) {
        let (lmtp, http) = (self.0.path("lmtp"), self.0.path("http"));
        let http = if more.contains("http =") { String::new() } else { format!("http = {http:?}\n") };
        self.0.configure(&format!("workers = 2\nlmtp = [{lmtp:?}]\n{http}{more}"));
    }

    pub fn start(&mut self) {
        self.0.start_as(child(MASTER, self.0.folder.path().to_str().unwrap()));
    }

    /// Ends all workers; none is started in their place until [`workers_come_back`](Self::workers_come_back).
    pub fn workers_go(&self) {
        std::fs::write(self.0.path(NO_WORKERS), "").unwrap();
        self.kill_workers();
    }

    pub fn workers_come_back(&self) {
        std::fs::remove_file(self.0.path(NO_WORKERS)).unwrap();
        assert_eq!(self.0.service(&["restart"]).status.code(), Some(0));
    }

    /// Has messages order faults, from the next start of the service on.
    #[cfg(feature = "test-faults")]
    pub fn let_messages_order_faults(&self) {
        std::fs::write(self.0.path(FAULTS), "").unwrap();
    }

    pub fn kill_workers(&self) {
        for pid in self.pids("worker") {
            send("KILL", pid);
        }
    }

    pub fn pids(&self, role: &str) -> Vec<u64> {
        let status = self.0.status();
        let all = status["processes"].as_array().cloned().unwrap_or_default();
        all.iter().filter(|one| one["role"] == role).filter_map(|one| one["pid"].as_u64()).collect()
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.0.path("run/clients.sock"))
    }

    /// Holds the lock of a message, so that its delivery goes as far as that and no further.
    pub fn hold_lock_of(&self, message: &str) -> SqliteDatabase {
        let folder = self.0.folder.path();
        let site = Site::embedded(Embedded::new(folder.to_owned()));
        let name = site.lock_name(&Message::receive(message.as_bytes().to_vec()).unwrap());
        let client = crate::support::clients_and_processes::client("x");
        let mut database = maildrop_command::ledger::schema::open_embedded(folder, &client, soon()).unwrap();
        assert!(matches!(database.acquire(&name, Duration::ZERO).unwrap(), Acquired::Held));
        database
    }

    /// Asks by HTTP.
    #[track_caller]
    pub fn get(&self, path: &str) -> Response {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
    }

    #[track_caller]
    pub fn ask(&self, request: &str) -> Response {
        let mut stream = UnixStream::connect(self.0.path("http")).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        // A front that dies has said nothing.
        let _ = stream.read_to_string(&mut text);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
        Response { code, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    /// Its figures.
    #[track_caller]
    pub fn figures(&self) -> Figures {
        let response = self.get("/metrics");
        assert_eq!(response.code, 200, "{response:?}");
        let samples = response.body.lines().filter(|line| !line.starts_with('#'));
        Figures(
            samples.map(|line| line.rsplit_once(' ').unwrap()).map(|(k, v)| (k.into(), v.parse().unwrap())).collect(),
        )
    }
}

#[derive(Debug)]
pub struct Response {
    pub code: u16,
    pub head: String,
    pub body: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Figures(pub BTreeMap<String, f64>);

impl Figures {
    /// The sum of all samples of this name whose labels hold all of these.
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let is_it = |key: &str| key.split('{').next() == Some(name) && labels.iter().all(|label| key.contains(label));
        self.0.iter().filter(|(key, _)| is_it(key)).map(|(_, value)| value).sum()
    }

    /// How many replies of each code there were by one way.
    pub fn replies(&self, via: &str) -> BTreeMap<String, u64> {
        let via = format!("via=\"{via}\"");
        let replies =
            self.0.iter().filter(|(key, _)| key.starts_with("maildropd_replies_total{") && key.contains(&via));
        let code = |key: &str| key.split_once("code=\"").unwrap().1.split('"').next().unwrap().to_owned();
        replies.map(|(key, number)| (code(key), *number as u64)).collect()
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        // The master first, which would start others in their place.
        self.0.kill();
        wait_until("nothing of it is left", || {
            let left = processes_of(self.0.folder.path());
            for pid in &left {
                let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status();
            }
            left.is_empty()
        });
    }
}

/// The processes that work in this folder: they were started with its path.
fn processes_of(folder: &Path) -> Vec<u64> {
    let (here, folder) = (u64::from(std::process::id()), folder.as_os_str().as_encoded_bytes());
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let names_it = |pid: &u64| {
        // One that has just been forked looks as its parent does. One that has ended has neither.
        let [arguments, environment] =
            ["cmdline", "environ"].map(|file| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default());
        [arguments, environment].iter().any(|text| text.windows(folder.len()).any(|part| part == folder))
    };
    pids.filter(|pid| *pid != here && names_it(pid)).collect()
}

/// The master, in a process of its own.
#[test]
fn a_master() {
    let Some(folder) = subject() else { return };
    let folder = PathBuf::from(folder);
    let here = folder.clone();
    let start = move |start: &Start<'_>| {
        if start.role == Role::Worker && here.join(NO_WORKERS).exists() {
            return Command::new("false");
        }
        if matches!(start.role, Role::Worker | Role::Timer) {
            let mut command = process_in(&here, start.role, start.checked, Some(std::process::id()));
            if start.role == Role::Worker && here.join(FAULTS).exists() {
                command.env("MAILDROP_TEST_FAULT", "by-message");
            }
            return command;
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
        command.args(["--role", start.role.as_str(), "--number", &start.number.to_string()]);
        command.args(["--master", &std::process::id().to_string()]);
        command.arg("--config").arg(start.file).arg("--checked").arg(start.checked);
        command
    };
    match master::run(&folder.join("config.toml"), Box::new(start)) {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}
