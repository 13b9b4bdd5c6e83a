//! A master in a process of its own, and the front and workers that it starts: this test binary, started again. How each of them
//! behaves is in a file that bears its name.

use crate::program::wait_until;
use crate::support::clients_and_processes::{child, subject};
use maildrop_command::base::listener::Listener;
use maildrop_command::base::readiness;
use maildrop_command::protocol::control::Role;
use maildrop_command::service::master::front_channel::{FromFront, FrontReport, ToFront, to_the_master};
use maildrop_command::service::master::{self, Start, child_start, listeners};
use rustix::process::{Pid, test_kill_process};
use serde_json::{Map, Value, json};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

const MASTER: &str = "support::test_master::a_master";
const PROCESS: &str = "support::test_master::a_process";

/// A site without servers: what is not asked need not be there.
const SITE: &str = "\
[database]
failover_timeout = \"0s\"
engine = \"postgresql\"
host = \"db.invalid\"
database = \"maildrop\"
user = \"maildrop\"
roles.timer = { user = \"operator\" }
roles.notifier = { user = \"notifier\" }
roles.web = { user = \"web\" }
[imap]
host = \"imap.invalid\"
user = \"service\"
password_file = \"/nowhere\"
";

/// A service, and its folder. Dropped, its master is killed, and all that it started ends.
pub struct Stage {
    pub folder: tempfile::TempDir,
    master: Option<Child>,
}

impl Stage {
    /// With two workers; `more` is what else the section says.
    pub fn new(more: &str) -> Self {
        let stage = Self { folder: tempfile::tempdir().unwrap(), master: None };
        stage.configure(&format!("workers = 2\n{more}"));
        stage
    }

    pub fn started(more: &str) -> Self {
        let mut stage = Self::new(more);
        stage.start();
        stage.wait_until_well();
        stage
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn configure(&self, serve: &str) {
        let here = self.folder.path().display();
        let text = format!(
            "{SITE}[service]\nruntime_directory = \"{here}/run\"\nstate_directory = \"{here}/state\"\n{serve}\n[log]\nto = \
             \"file\"\nfile = \"{here}/log\"\n"
        );
        fs::write(self.path("config.toml"), text).unwrap();
    }

    /// How the process of this name behaves from its next start on: `front`, `worker`, `worker 2`, `runner`, `timer`.
    pub fn let_behave(&self, who: &str, how: &str) {
        fs::write(self.path(who), how).unwrap();
    }

    /// The command that starts the master.
    pub fn command(&self) -> Command {
        let mut command = child(MASTER, self.folder.path().to_str().unwrap());
        command.stdout(Stdio::null());
        command
    }

    pub fn start(&mut self) {
        self.start_as(self.command());
    }

    pub fn start_as(&mut self, mut command: Command) {
        self.master = Some(command.spawn().unwrap());
    }

    pub fn master(&mut self) -> &mut Child {
        self.master.as_mut().unwrap()
    }

    /// Waits for the master's end.
    pub fn end(&mut self) -> ExitStatus {
        let mut master = self.master.take().unwrap();
        wait_until("the master ends", || master.try_wait().unwrap().is_some());
        master.wait().unwrap()
    }

    /// Kills the master, where one runs.
    pub fn kill(&mut self) {
        if let Some(mut master) = self.master.take() {
            let _ = master.kill();
            let _ = master.wait();
        }
    }

    pub fn signal(&self, name: &str) {
        send(name, u64::from(self.master.as_ref().unwrap().id()));
    }

    /// `maildrop_command service …`.
    pub fn service(&self, arguments: &[&str]) -> Output {
        self.service_command(arguments).output().unwrap()
    }

    pub fn service_command(&self, arguments: &[&str]) -> Command {
        let mut command = crate::program::program(&["service"]);
        command.args(arguments).arg("--config").arg(self.path("config.toml")).stdin(Stdio::null());
        command
    }

    /// How it is, if it says so.
    pub fn status(&self) -> Value {
        let output = self.service(&["status", "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    /// Waits until it is so; returns how it is then.
    #[track_caller]
    pub fn wait(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut status = Value::Null;
        wait_until(what, || {
            status = self.status();
            is_so(&status)
        });
        status
    }

    #[track_caller]
    pub fn wait_until_well(&self) -> Value {
        self.wait("it is well, and all are ready", |status| {
            let all = status["processes"].as_array().is_some_and(|all| all.iter().all(|one| one["ready"] == true));
            status["state"] == "well" && all
        })
    }

    /// The lines of a file in the folder; none where it is not there.
    pub fn lines(&self, name: &str) -> Vec<String> {
        fs::read_to_string(self.path(name)).unwrap_or_default().lines().map(str::to_owned).collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal.
pub fn send(name: &str, pid: u64) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap();
    assert!(sent.success(), "kill -{name} {pid}");
}

/// The process ids of front and workers.
pub fn pids(status: &Value) -> Vec<u64> {
    let all = status["processes"].as_array().unwrap().iter();
    all.filter(|one| one["role"] == "front" || one["role"] == "worker").filter_map(|one| one["pid"].as_u64()).collect()
}

/// Whether there is such a process: not one that has ended, and that nobody has waited for.
pub fn lives(pid: u64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

/// The master, in a process of its own.
#[test]
fn a_master() {
    let Some(folder) = subject() else { return };
    let folder = PathBuf::from(folder);
    let start = move |start: &Start<'_>| {
        let folder = start.file.parent().unwrap();
        let subject = json!({
            "folder": folder, "role": start.role, "number": start.number, "file": start.file,
            "checked": start.checked, "master": std::process::id(),
        });
        child(PROCESS, &subject.to_string())
    };
    match master::run(&folder.join("config.toml"), Box::new(start)) {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}

/// The front, a worker, a runner, or the timer.
#[test]
fn a_process() {
    let Some(subject) = subject() else { return };
    // Before there is a thread.
    let listeners = listeners::inherited().unwrap();
    let subject: Value = serde_json::from_str(&subject).unwrap();
    let path = |key: &str| PathBuf::from(subject[key].as_str().unwrap());
    let (folder, number) = (path("folder"), subject["number"].as_u64().unwrap());
    let role: Role = serde_json::from_value(subject["role"].clone()).unwrap();
    let front = role == Role::Front;
    let name = if front { "front".to_owned() } else { format!("{} {number}", role.as_str()) };
    let master = u32::try_from(subject["master"].as_u64().unwrap()).unwrap();
    let behaviour = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let behaviour = behaviour(&name).or_else(|| behaviour(name.split(' ').next().unwrap())).unwrap_or_default();
    while behaviour == "late" && !folder.join("go").exists() {
        thread::sleep(Duration::from_millis(5));
    }
    let server = fs::read_to_string(folder.join("server")).unwrap_or_default();
    let database = fs::read_to_string(folder.join("database")).unwrap_or_default();
    let ends = Signals::new([SIGTERM]).unwrap();
    if let Err(error) = child_start::begin(role, master, &path("file"), &path("checked")) {
        eprintln!("{error}");
        std::process::exit(78);
    }
    match behaviour.as_str() {
        "die" => {
            eprintln!("no database, no mail");
            std::process::exit(70);
        }
        "abort" => std::process::abort(),
        "look around" => look_around(&folder, &name, [&server, &database], master),
        _ => {}
    }
    if front {
        let behaviour = behaviour.clone();
        let folder = folder.clone();
        thread::spawn(move || talk(&behaviour, &folder));
        for listener in listeners.lmtp {
            thread::spawn(move || greet(&listener));
        }
    } else {
        assert!(listeners.lmtp.is_empty() && listeners.http.is_empty(), "workers and runners get no listener");
        readiness::report_readiness(true);
    }
    wait_for_the_end(ends, &behaviour, &folder, &name)
}

/// Tries what none that talks with others is to do, and writes down what came of it.
fn look_around(folder: &Path, name: &str, [server, database]: [&str; 2], master: u32) {
    let note_result = |what: &str, came: io::Result<()>, well: &str| {
        let denied = |error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => "Permission denied".to_owned(),
            _ => error.to_string(),
        };
        format!("{what}: {}", came.map_or_else(denied, |()| well.to_owned()))
    };
    let own = own_folder(name);
    let read = |what: &str, file: &Path| note_result(what, fs::read(file).map(drop), "read");
    let master = Pid::from_raw(i32::try_from(master).unwrap()).unwrap();
    let seen = [
        note_result("password", fs::read(folder.join("secret/password")).map(drop), "read"),
        note_result("server", TcpStream::connect(server).map(drop), "connected"),
        note_result(
            "configuration",
            fs::OpenOptions::new().append(true).open(folder.join("run/config.toml")).map(drop),
            "written",
        ),
        note_result("own folder", fs::write(folder.join(format!("{own}/{name}")), ""), "written"),
        note_result("suspects", fs::write(folder.join(format!("state/suspects of {name}")), ""), "written"),
        note_result("program", Command::new("true").status().map(drop), "started"),
        read("password of the database", &folder.join("secret/database")),
        read("key", &folder.join("secret/key")),
        read("hosts", Path::new("/etc/hosts")),
        note_result("database", TcpStream::connect(database).map(drop), "connected"),
        read("key of the control socket", &folder.join("run/control.key")),
        note_result("master", test_kill_process(master).map_err(io::Error::from), "sent a signal"),
    ];
    seen.iter().for_each(|line| note(folder, &format!("{own}/seen by {name}"), line));
}

/// Where it may write.
pub fn own_folder(name: &str) -> &'static str {
    match name.split(' ').next() {
        Some("runner" | "web") => "state/queue",
        Some("notifier") => "logs",
        _ => "state",
    }
}

fn wait_for_the_end(mut ends: Signals, behaviour: &str, folder: &Path, name: &str) {
    for _ in ends.forever() {
        // Runners and the timer end beside the front.
        let file = match name.split(' ').next() {
            Some("runner") => "ends of runners",
            Some("timer") => "ends of the timer",
            _ => "ends",
        };
        note(folder, file, &format!("{name} is asked to end"));
        if behaviour == "deaf" {
            continue;
        }
        // The message in progress.
        while behaviour == "slow" && !folder.join("finish").exists() {
            thread::sleep(Duration::from_millis(5));
        }
        note(folder, file, &format!("{name} ends"));
        std::process::exit(0);
    }
}

/// The front: it notes which workers have ended.
fn talk(behaviour: &str, folder: &Path) {
    let to_master = to_the_master().unwrap();
    to_master.set_nonblocking(false).unwrap();
    let say = || {
        let known = Map::from_iter([("queue_length".to_owned(), json!(3))]);
        let timer = fs::read(folder.join("state/timer.json"));
        let timer = timer.map(|text| serde_json::from_slice(&text).unwrap()).unwrap_or_default();
        let report = FrontReport { accepting: true, database_away: None, known, timer };
        let report = FromFront::Status(report);
        let _ = (&to_master).write_all((serde_json::to_string(&report).unwrap() + "\n").as_bytes());
    };
    say();
    if behaviour == "die late" {
        std::process::exit(70);
    }
    for line in BufReader::new(&to_master).lines() {
        let Ok(line) = line else { return };
        match serde_json::from_str(&line).unwrap() {
            ToFront::Ask => say(),
            ToFront::Service { status } => assert!(status.processes.len() >= 4),
            ToFront::WorkerStarted { .. } => {}
            ToFront::WorkerEnded(_) => note(folder, "notices", &line),
        }
    }
}

fn greet(listener: &Listener) {
    loop {
        match listener {
            Listener::Unix(socket) => drop(socket.accept().unwrap().0.write_all(b"220\r\n")),
            Listener::Tcp(socket) => drop(socket.accept().unwrap().0.write_all(b"220\r\n")),
        }
    }
}

fn note(folder: &Path, file: &str, line: &str) {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(folder.join(file)).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}
