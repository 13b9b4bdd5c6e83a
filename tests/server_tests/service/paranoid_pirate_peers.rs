//! Our broker and our worker with the programs of ZeroMQ's guide: its lazy pirate client, its paranoid pirate queue, its paranoid pirate
//! worker, on our unix sockets in place of their TCP ports. Each test has a container of its own.
//!
//! The programs (`lpclient.py`, `ppqueue.py` and `ppworker.py` of <https://github.com/booksbyus/zguide>, examples/Python) are no part
//! of this project. They lie beside the source tree, in `shared/peers/zguide`, or where `MAILDROP_TEST_ZGUIDE` says; without them
//! these tests did not run, and `tests/run` says so. It is the one lack that CI does not count as a failure.

use crate::support::not_run::did_not_run;
use crate::support::{container, env_if_there};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

/// Where the service's sockets are, in the container.
const RUN: &str = "/site/run";

/// A site whose servers nobody asks: the guide's words are no mail.
const SITE: &str = "\
[database]
engine = \"postgresql\"
host = \"db.invalid\"
database = \"x\"
user = \"x\"
[imap]
host = \"imap.invalid\"
user = \"x\"
password_file = \"/site/password\"
[log]
to = \"file\"
file = \"/site/log\"
[service]
runtime_directory = \"/site/run\"
state_directory = \"/site/state\"
";

/// A container with the guide's programs and ours. Dropped, it is removed with all that runs in it.
struct Machine(String);

impl Machine {
    fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/peers/zguide");
        let guide = env_if_there("MAILDROP_TEST_ZGUIDE").unwrap_or_else(|| beside.into());
        if !Path::new(&guide).is_dir() {
            eprintln!("{guide}: the guide's programs are not there, nothing was tried");
            if let Some(list) = std::env::var_os("MAILDROP_TEST_NOT_RUN") {
                did_not_run("ZGUIDE", Path::new(&list));
            }
            return None;
        }
        let image = docker(&["inspect", "--format", "{{.Image}}", &container("PEERS")]);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let machine = Self(format!("maildrop-test-zguide-{}-{number}", std::process::id()));
        // It ends by itself, should this process be killed.
        docker(&[
            "run",
            "--detach",
            "--rm",
            "--init",
            "--network",
            "none",
            "--name",
            &machine.0,
            "--entrypoint",
            "sleep",
            &image,
            "600",
        ]);
        docker(&["cp", env!("CARGO_BIN_EXE_maildropd"), &format!("{}:/maildropd", machine.0)]);
        docker(&["cp", &guide, &format!("{}:/zguide", machine.0)]);
        let prepare = format!("mkdir -m 700 -p {RUN} && cat > /site/config.toml && echo x > /site/password");
        let mut written = Command::new("docker");
        written.args(["exec", "--interactive", &machine.0, "sh", "-c", &format!("umask 077; {prepare}")]);
        let mut written = written.stdin(Stdio::piped()).spawn().expect("docker runs");
        written.stdin.take().expect("its input").write_all(SITE.as_bytes()).expect("it is read");
        assert!(written.wait().expect("docker runs").success());
        Some(machine)
    }

    /// Starts a program, and reads what it says.
    fn start(&self, program: &[&str]) -> Program {
        let mut command = Command::new("docker");
        command.args(["exec", &self.0, "sh", "-c", "exec \"$@\" 2>&1", "sh"]).args(program);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("docker runs");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let (sender, printed) = mpsc::channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Program { child, printed }
    }

    /// One of the guide's programs, with our sockets in place of its ports.
    fn guide(&self, program: &str) -> Program {
        let script = format!(
            "import re\ntext = open('/zguide/{program}.py').read()\n\
             for port, name in (('5555', 'clients'), ('5556', 'workers')):\n    \
             text = re.sub('tcp://[^:]+:' + port, 'ipc://{RUN}/' + name + '.sock', text)\n\
             exec(compile(text, '{program}.py', 'exec'), {{'__name__': '__main__'}})"
        );
        self.start(&["python3", "-u", "-c", &script])
    }

    fn ours(&self, role: &str) -> Program {
        self.start(&["/maildropd", "--config", "/site/config.toml", "--role", role])
    }

    /// Waits until there are sockets for workers.
    fn until_listening(&self) {
        let began = Instant::now();
        let socket = format!("{RUN}/workers.sock");
        while !Command::new("docker").args(["exec", &self.0, "test", "-S", &socket]).status().unwrap().success() {
            assert!(began.elapsed() < PATIENCE, "nobody listens for workers");
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rm", "--force", &self.0]).stdout(Stdio::null()).status();
    }
}

#[track_caller]
fn docker(arguments: &[&str]) -> String {
    let output = Command::new("docker").args(arguments).output().expect("docker runs");
    assert!(output.status.success(), "docker {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
}

struct Program {
    child: Child,
    printed: Receiver<String>,
}

impl Program {
    #[track_caller]
    fn line(&self) -> String {
        self.printed.recv_timeout(PATIENCE).expect("it says something")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The client's next answers are right, one after the other. It gives up waiting after 2.5 s and asks once more, three times at most,
/// as on a machine with much else to do it may have to.
#[track_caller]
fn answered(client: &Program, from: usize, count: usize) {
    for number in from..from + count {
        let mut line = client.line();
        let on_the_way = ["Connecting to server", "Sending", "No response", "Reconnecting", "Resending"];
        while on_the_way.iter().any(|sent| line.contains(sent)) {
            line = client.line();
        }
        assert_eq!(line, format!("INFO: Server replied OK (b'{number}')"));
    }
}

#[test]
fn the_guides_client_by_our_broker_to_our_worker() {
    let Some(machine) = Machine::new() else { return };
    let _front = machine.ours("front");
    machine.until_listening();
    let _worker = machine.ours("worker");
    answered(&machine.guide("lpclient"), 0, 1000);
}

/// Each of the guide's workers answers three requests, and then crashes or stops for a while as chance has it.
#[test]
fn the_guides_client_by_our_broker_to_the_guides_workers() {
    let Some(machine) = Machine::new() else { return };
    let _front = machine.ours("front");
    machine.until_listening();
    let workers = [machine.guide("ppworker"), machine.guide("ppworker")];
    let client = machine.guide("lpclient");
    answered(&client, 0, 4);
    // They hear our heartbeats while they wait: nobody is taken for dead.
    for worker in &workers {
        let mut heard = Vec::new();
        while !heard.iter().any(|line: &String| line == "I: Queue heartbeat") {
            heard.push(worker.line());
        }
        assert!(!heard.iter().any(|line| line.starts_with("W: ") || line.starts_with("E: ")), "{heard:?}");
    }
}

#[test]
fn the_guides_client_by_the_guides_queue_to_our_worker() {
    let Some(machine) = Machine::new() else { return };
    let _queue = machine.guide("ppqueue");
    machine.until_listening();
    let _worker = machine.ours("worker");
    answered(&machine.guide("lpclient"), 0, 1000);
}
