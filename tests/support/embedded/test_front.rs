//! A front, workers and clients in one directory.

use crate::support::clients_and_processes::{child, open, soon, subject};
use maildrop_command::base::log;
use maildrop_command::config::Config;
use maildrop_command::database::{SqliteDatabase, Tables};
use maildrop_command::lock::{Acquired, NamedLock};
use maildrop_command::message::Message;
use maildrop_command::protocol::control::{End, Role, line};
use maildrop_command::protocol::zmtp::{Blocking, Settings, SocketType, from_client, to_client};
use maildrop_command::protocol::{Header, Recipient, Reply, Request, Source};
use maildrop_command::service::master::child_start;
use maildrop_command::service::master::front_channel::ToFront;
use maildrop_command::service::shunt::WorkerEnd;
use maildrop_command::service::timer;
use maildrop_command::service::worker;
use maildrop_command::site::Site;
use maildrop_command::site::embedded::Embedded;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// How long is waited for what has to happen.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until this holds.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// One process of the service. Dropped, it is killed.
pub struct Process(Child);

impl Process {
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits for its end.
    pub fn end(mut self) -> ExitStatus {
        let mut status = None;
        until("the process ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A site with a front.
pub struct Service {
    directory: tempfile::TempDir,
    pub front: Option<Process>,
    /// The master's end of the front's standard input.
    master: Option<UnixStream>,
    /// The workers that were started, which each front learns.
    workers: Mutex<Vec<u32>>,
}

const PROCESS: &str = "support::test_front::a_process";

/// Writes a configuration whose folders are in `directory`, and returns its path. Its servers are not there: what delivers is in a
/// process of [`a_process`].
pub fn configure(directory: &Path) -> PathBuf {
    let file = directory.join("service.toml");
    let [log, run, state] = ["delivery.log", "run", "state"].map(|name| directory.join(name));
    let text = format!(
        "[database]\nfailover_timeout = \"0s\"\nengine = \"postgresql\"\nhost = \"db.invalid\"\ndatabase = \"x\"\nuser = \"x\"\n\
         [imap]\nhost = \"imap.invalid\"\nuser = \"x\"\npassword_file = \"/nonexistent\"\n\
         [log]\nto = \"file\"\nfile = {log:?}\n\
         [service]\nworkers = 1\nruntime_directory = {run:?}\nstate_directory = {state:?}\n"
    );
    fs::write(&file, text).unwrap();
    file
}

/// A worker, or the timer, that delivers to Maildirs in `directory`. With `master`, that one has started it.
pub fn process_in(directory: &Path, role: Role, config: &Path, master: Option<u32>) -> Command {
    let subject = json!({ "directory": directory, "role": role, "config": config, "master": master });
    let mut command = child(PROCESS, &subject.to_string());
    command.stdout(Stdio::null());
    command
}

/// The product's own worker or timer, on a site without servers.
#[test]
fn a_process() {
    let Some(subject) = subject() else { return };
    let subject: Value = serde_json::from_str(&subject).unwrap();
    let path = |key: &str| PathBuf::from(subject[key].as_str().unwrap());
    let (directory, file) = (path("directory"), path("config"));
    let role: Role = serde_json::from_value(subject["role"].clone()).unwrap();
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
    let config = match subject["master"].as_u64() {
        Some(master) => child_start::begin(role, u32::try_from(master).unwrap(), &file, &file).unwrap(),
        None => {
            let target = log::Target::File(directory.join("delivery.log"));
            log::start(&log::Settings { target, level: log::Level::Info, format: log::Format::Text }).unwrap();
            Config::load(&file).unwrap()
        }
    };
    let site = Site::embedded(Embedded::new(directory));
    if role == Role::Timer {
        timer::run(&site, &config.service, config.retention).unwrap();
    } else {
        worker::run(&site, &config, Box::new(|| Ok(()))).unwrap();
    }
    std::process::exit(0);
}

impl Service {
    pub fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap())
    }

    pub fn start_in(directory: tempfile::TempDir) -> Self {
        configure(directory.path());
        let mut service = Self { directory, front: None, master: None, workers: Mutex::default() };
        service.start_front();
        service
    }

    pub fn start_front(&mut self) {
        let (master, stdin) = UnixStream::pair().unwrap();
        self.master = Some(master);
        let config = self.config();
        let mut front = Command::new(env!("CARGO_BIN_EXE_maildropd"));
        front.arg("--config").arg(&config).args(["--role", "front"]).env_clear().stdin(OwnedFd::from(stdin));
        front.args(["--master", &std::process::id().to_string()]).arg("--checked").arg(config);
        self.front = Some(self.started("front", front));
        for pid in self.workers.lock().unwrap().iter() {
            self.tell_front(&ToFront::WorkerStarted { pid: *pid });
        }
        let socket = self.directory.path().join("run/workers.sock");
        until("the front listens", || UnixStream::connect(&socket).is_ok());
    }

    /// A worker that is connected.
    pub fn worker(&self) -> Process {
        self.worker_with(&[])
    }

    pub fn worker_with(&self, environment: &[(&str, &str)]) -> Process {
        let before = self.connected();
        let mut command = process_in(self.path(), Role::Worker, &self.config(), None);
        command.envs(environment.iter().copied());
        let worker = self.started("worker", command);
        self.workers.lock().unwrap().push(worker.pid());
        self.tell_front(&ToFront::WorkerStarted { pid: worker.pid() });
        until("the worker is connected", || self.connected() > before);
        worker
    }

    /// How often a worker has connected.
    pub fn connected(&self) -> usize {
        self.log().matches("connected with the broker").count()
    }

    /// A runner.
    pub fn runner(&self) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
        command.arg("--config").arg(self.config()).args(["--role", "runner"]).env_clear().stdin(Stdio::null());
        self.started("runner", command)
    }

    pub fn config(&self) -> PathBuf {
        self.path().join("service.toml")
    }

    /// One that was killed hears nothing.
    fn tell_front(&self, notice: &ToFront) {
        if let Some(mut master) = self.master.as_ref() {
            let _ = master.write_all(line(notice).as_bytes());
        }
    }

    /// Waits for a worker's end, and tells the front how it has ended, as the master does.
    pub fn bury(&self, worker: Process, by_us: bool) -> ExitStatus {
        let pid = worker.pid();
        let status = worker.end();
        let end = status.signal().map_or_else(|| End::Exit(status.code().unwrap()), End::Signal);
        let errors = fs::read_to_string(self.path().join(format!("stderr.{pid}"))).unwrap_or_default();
        let output = errors.lines().map(str::to_owned).collect();
        self.tell_front(&ToFront::WorkerEnded(WorkerEnd { pid, end, by_us, output }));
        status
    }

    fn started(&self, role: &str, mut command: Command) -> Process {
        // What it says is looked for by its number, which it has only then.
        let errors = self.path().join(format!("stderr of a {role}"));
        let process = Process(command.stderr(fs::File::create(&errors).unwrap()).spawn().unwrap());
        fs::rename(errors, self.path().join(format!("stderr.{}", process.pid()))).unwrap();
        process
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path().join("delivery.log")).unwrap_or_default()
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.path().join("run/clients.sock"))
    }

    /// The messages in the INBOX of `address`.
    pub fn inbox(&self, address: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path().join(address).join("new")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// How many attempts have begun, and not ended.
    pub fn open_attempts(&self) -> usize {
        let sql = "SELECT role FROM attempts WHERE ended_at IS NULL";
        open(self.path()).select("counting", sql, &[]).unwrap().len()
    }

    /// Holds the lock of a message, so that its delivery goes as far as that and no further.
    pub fn hold_lock_of(&self, message: &[u8]) -> SqliteDatabase {
        let site = Site::embedded(Embedded::new(self.path().to_owned()));
        let name = site.lock_name(&Message::receive(message.to_vec()).unwrap());
        let mut database = maildrop_command::ledger::schema::open_embedded(
            self.path(),
            &crate::support::clients_and_processes::client("x"),
            soon(),
        )
        .unwrap();
        assert!(matches!(database.acquire(&name, Duration::ZERO).unwrap(), Acquired::Held));
        database
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the service's log:\n{}", self.log());
        }
    }
}

/// A client on its own connection.
pub struct Client(Blocking);

impl Client {
    pub fn connect(socket: &Path) -> Self {
        let settings = Settings {
            socket_type: SocketType::Dealer,
            identity: None,
            longest_frame: 1 << 20,
            most_frames: 2,
            longest_message: 1 << 20,
        };
        Self(Blocking::connect(socket, settings, Instant::now() + PATIENCE).unwrap())
    }

    pub fn say(&mut self, header: &Header, message: &[u8]) {
        self.say_plain(&header.frame(message).unwrap());
    }

    pub fn say_plain(&mut self, body: &[u8]) {
        self.0.send(&to_client(body), Instant::now() + PATIENCE).unwrap();
    }

    #[track_caller]
    pub fn hear_plain(&mut self) -> Vec<u8> {
        let frames = self.0.receive(Instant::now() + PATIENCE).unwrap().expect("an answer in time");
        from_client(frames).unwrap()
    }

    #[track_caller]
    pub fn hear(&mut self) -> Header {
        Header::read(&self.hear_plain()).unwrap().0
    }

    /// Hands a message over, and lets it begin.
    #[track_caller]
    pub fn hand_over(&mut self, request: &Request, message: &[u8]) {
        self.say(&Header::Deliver(request.clone()), message);
        assert_eq!(self.hear(), Header::Received { id: request.id });
        self.say(&Header::Go { id: request.id }, b"");
    }

    /// What became of it: a line for each recipient.
    #[track_caller]
    pub fn verdicts(&mut self, request: &Request) -> Vec<String> {
        let Header::Reply(Reply { id, results, .. }) = self.hear() else { panic!("no reply") };
        assert_eq!(id, request.id);
        results.iter().map(ToString::to_string).collect()
    }

    /// The same of a message that is answered before it may begin.
    #[track_caller]
    pub fn deliver_at_once(&mut self, request: &Request, message: &[u8]) -> Vec<String> {
        self.say(&Header::Deliver(request.clone()), message);
        self.verdicts(request)
    }

    #[track_caller]
    pub fn deliver(&mut self, request: &Request, message: &[u8]) -> Vec<String> {
        self.hand_over(request, message);
        self.verdicts(request)
    }
}

pub fn message(number: usize) -> Vec<u8> {
    format!("Message-ID: <{number}@x>\r\nFrom: lisa@gmail.com\r\nSubject: {number}\r\n\r\nx\r\n").into_bytes()
}

pub fn request(to: &[&str], message: &[u8]) -> Request {
    Request {
        id: Uuid::now_v7(),
        time_left_ms: 240_000,
        sender: "lisa@gmail.com".into(),
        recipients: to.iter().map(|to| Recipient { address: (*to).into(), original: None }).collect(),
        queue_id: Some("4bXyz".into()),
        client_address: None,
        sasl_username: None,
        lock_wait_ms: Some(120_000),
        no_sent: false,
        size: message.len() as u64,
        file: None,
        source: Source::Mta,
        suspect: false,
        slow: false,
    }
}
