//! A Postfix of one test's own on one of the two mail hosts: its own queue, log and port, made of the host's stock
//! main.cf and master.cf with the fragments of `postfix/` appended, as an administrator would.

use crate::support::smtp::Smtp;
use crate::support::{env_if_there, host_and_port, server};
use std::collections::HashSet;
use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The folder that both mail hosts see as `/opt/maildrop`: programs and configuration files for them.
pub const OPT: &str = "/opt/maildrop";

/// The password of the role of [`Values::recipients_map`].
pub const READERS_PASSWORD: &str = "reader-secret";

/// What an administrator fills in.
pub struct Values<'a> {
    /// Names this test's instances; letters and digits.
    pub run: &'a str,
    /// The command, as the mail hosts see it.
    pub command: &'a str,
    /// Its configuration file, as the mail hosts see it.
    pub config: &'a str,
    /// In place of the shipped `--lock-wait`.
    pub lock_wait: Option<&'a str>,
    /// `pgsql` or `mysql`.
    pub map_type: &'a str,
    /// The text of /etc/postfix/maildrop-recipients.cf.
    pub recipients_map: &'a str,
}

/// A running Postfix. Dropped, it is stopped; it is also removed, unless the test failed.
pub struct Postfix {
    host: &'static str,
    directory: String,
    address: String,
}

impl Postfix {
    /// Starts one on `host` (`mx1` or `mx2`).
    pub fn start(host: &'static str, values: &Values<'_>) -> Self {
        // Two hosts may be one machine (tests/servers/plain).
        let directory = format!("/srv/maildrop-test-{}-{host}", values.run);
        let etc = format!("{directory}/etc");
        let (ip, _) = host_and_port(server(&host.to_uppercase()), 25);
        // Not a name server's, not an ephemeral port (from 32768 on), and another for each run; nobody's yet.
        let mut ports = (0..20_000).map(|more| 10_000 + (fnv(values.run) % 20_000 + more) % 20_000);
        let port = ports.find(|port| TcpStream::connect(format!("{ip}:{port}")).is_err()).expect("a port");

        let mut master = include_str!("../../postfix/master.cf.maildrop").to_owned();
        replace(&mut master, "/usr/bin/maildrop_command", values.command);
        replace(&mut master, "/etc/maildrop_command/config.toml", values.config);
        if let Some(wait) = values.lock_wait {
            replace(&mut master, "--lock-wait=30s", &format!("--lock-wait={wait}"));
        }
        // Each test's map has a role of its own, and all have one password.
        let password = include_str!("../../postfix/pgsql-recipients.pgpass");
        let password = password.replace("postfix_maps", "*").replace("PASSWORD", READERS_PASSWORD);
        let files = [
            ("main.cf", include_str!("../../postfix/main.cf.maildrop")),
            ("master.cf", &master),
            ("maildrop-recipients.cf", &values.recipients_map.replace("/etc/postfix", &etc)),
            ("maildrop-recipients.pgpass", &password),
            ("maildrop-header-checks", include_str!("../../postfix/header-checks.maildrop")),
        ]
        .map(|(file, text)| {
            format!("cat >>\"$1/etc/{file}\" <<'END OF THE FILE'\n{}\nEND OF THE FILE\n", text.trim_end_matches('\n'))
        });

        let settings = [
            // What makes it an instance of its own.
            format!("queue_directory={directory}/queue"),
            format!("data_directory={directory}/data"),
            format!("maillog_file={directory}/log"),
            "maillog_file_prefixes=/srv".to_owned(),
            format!("myhostname={host}-{}.test", values.run),
            // What the administrator fills in.
            format!("virtual_mailbox_maps=proxy:{}:{etc}/maildrop-recipients.cf", values.map_type),
            format!("header_checks=regexp:{etc}/maildrop-header-checks"),
            // Postfix's own retries, in seconds rather than minutes.
            "minimal_backoff_time=1s".to_owned(),
            "maximal_backoff_time=1s".to_owned(),
            "queue_run_delay=1s".to_owned(),
        ];
        // With the address: where two hosts are one machine, the other one listens on the same port.
        let address = format!("{ip}:{port}");
        // One command, since each takes the engine a while. Debian 12 ships an entry of our transport's name: postfix/README.md, step 4.
        // Elsewhere there is nothing to take out.
        let script = format!(
            "{MAKE_INSTANCE}\npostconf -c \"$1/etc\" -MX maildrop/unix 2>/dev/null || :\n{}\
             chown postfix \"$1/etc/maildrop-recipients.pgpass\"\nchmod 600 \"$1/etc/maildrop-recipients.pgpass\"\n\
             postconf -c \"$1/etc\" -e '{}'\npostconf -c \"$1/etc\" -MX smtp/inet\n\
             postconf -c \"$1/etc\" -M '{address}/inet={address} inet n - n - - smtpd'\npostfix -c \"$1/etc\" start\n",
            files.concat(),
            settings.join("' '"),
        );
        let postfix = Self { host, directory, address };
        on(host, &["sh", "-ec", &script, "sh", &postfix.directory]);
        postfix
    }

    /// Where it listens: address and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Writes a file into its configuration directory; its path.
    pub fn write(&self, file: &str, text: &str) -> String {
        append(self.host, &self.etc(file), text);
        self.etc(file)
    }

    /// A session with it, as a sending MTA has.
    pub fn smtp(&self) -> Smtp {
        Smtp::connect(&self.address)
    }

    /// Runs one of Postfix's commands for this instance: the arguments follow `-c`.
    pub fn run(&self, command: &str, arguments: &[&str]) -> String {
        on(self.host, &[&[command, "-c", &format!("{}/etc", self.directory)], arguments].concat())
    }

    /// The same, where it may fail: what it said.
    pub fn try_run(&self, command: &str, arguments: &[&str]) -> Result<String, String> {
        try_on(self.host, &[&[command, "-c", &format!("{}/etc", self.directory)], arguments].concat(), "")
    }

    /// What Postfix finds wrong with its main.cf and master.cf, a line each: `postconf` says it when it prints all that there is.
    pub fn warnings(&self) -> String {
        let script = "postconf -c \"$1\" 2>&1 >/dev/null";
        on(self.host, &["sh", "-c", script, "sh", &self.etc("")])
    }

    /// A file in its configuration directory.
    pub fn etc(&self, file: &str) -> String {
        format!("{}/etc/{file}", self.directory)
    }

    /// Appends to its main.cf, and has it read.
    pub fn append_to_main_cf(&self, text: &str) {
        append(self.host, &self.etc("main.cf"), text);
        self.run("postfix", &["reload"]);
    }

    /// Appends to its master.cf, and has it read.
    pub fn append_to_master_cf(&self, text: &str) {
        append(self.host, &self.etc("master.cf"), text);
        self.run("postfix", &["reload"]);
    }

    /// Has its transport run another command, with the same arguments.
    pub fn run_instead(&self, command: &str) {
        let edit = "s#^    argv=[^ ]*#    argv=$1#";
        on(self.host, &["sh", "-ec", &format!("sed -i \"{edit}\" \"$2\""), "sh", command, &self.etc("master.cf")]);
        self.run("postfix", &["reload"]);
    }

    /// Its log, from the start.
    pub fn log(&self) -> String {
        on(self.host, &["cat", &format!("{}/log", self.directory)])
    }

    /// Those of these queue ids whose messages are still in the queue.
    ///
    /// By the log, which `postfix stop` may cut short: what was said of a message last is lost with postlogd(8). So a
    /// message that is not logged as removed is looked for in the queue as well; more than once, since a message on its
    /// way from one queue to another can escape a look.
    pub fn unfinished(&self, ids: &[String]) -> Vec<String> {
        self.unfinished_after(":", ids)
    }

    /// The same, after this command of the shell.
    fn unfinished_after(&self, command: &str, ids: &[String]) -> Vec<String> {
        // One command, since each takes the engine a while. A file may go while it is looked at: find(1) then ends with 1.
        let look = "cat \"$1/log\"; for _ in 1 2 3; do find \"$1/queue\" -type f -printf 'queued %f\\n' 2>/dev/null || :; sleep 0.1; done";
        let found = on(self.host, &["sh", "-ec", &format!("{command}\n{look}"), "sh", &self.directory]);
        let queued: HashSet<&str> = found.lines().filter_map(|line| line.strip_prefix("queued ")).collect();
        let is_unfinished = |id: &&String| !found.contains(&format!(" {id}: removed")) && queued.contains(id.as_str());
        ids.iter().filter(is_unfinished).cloned().collect()
    }

    /// A command that runs on this Postfix's host.
    pub fn command(&self, command: &[&str]) -> Command {
        command_on(self.host, command)
    }

    /// Tries everything deferred again, now.
    pub fn flush(&self) {
        self.run("postqueue", &["-f"]);
    }
}

impl Drop for Postfix {
    fn drop(&mut self) {
        let etc = format!("{}/etc", self.directory);
        let _ = try_on(self.host, &["postfix", "-c", &etc, "abort"], "");
        if std::thread::panicking() {
            eprintln!("{} on {} is stopped, and left for you to look at: {}", self.address, self.host, self.directory);
        } else {
            let _ = try_on(self.host, &["rm", "-rf", &self.directory], "");
        }
    }
}

/// Waits until none of these messages is in any queue, trying deferred ones again whenever there are any.
pub fn wait_until_delivered(sent: &[(&Postfix, Vec<String>)], limit: Duration) {
    wait_until_queues_are_empty(sent, limit, "postqueue -c \"$1/etc\" -f");
}

/// The same, by Postfix's own retries.
pub fn wait_for_retries(sent: &[(&Postfix, Vec<String>)], limit: Duration) {
    wait_until_queues_are_empty(sent, limit, ":");
}

fn wait_until_queues_are_empty(sent: &[(&Postfix, Vec<String>)], limit: Duration, before_each_look: &str) {
    let began = Instant::now();
    loop {
        let left: Vec<_> = sent
            .iter()
            .map(|(postfix, ids)| (postfix, postfix.unfinished_after(before_each_look, ids)))
            .filter(|(_, ids)| !ids.is_empty())
            .collect();
        if left.is_empty() {
            break;
        }
        if began.elapsed() > limit {
            for (postfix, ids) in &left {
                eprintln!("{} still has {ids:?}; its log ends:\n{}", postfix.address, tail(&postfix.log(), 40));
            }
            panic!("after {limit:?} there is still mail in a queue");
        }
        // Each command in a container takes a machine as long as a delivery or two.
        std::thread::sleep(Duration::from_millis(300));
    }
    for (postfix, _) in sent {
        let queue = postfix.run("postqueue", &["-j"]);
        assert_eq!(queue, "", "the queue is not empty");
    }
}

/// The last lines of a log.
pub fn tail(log: &str, lines: usize) -> String {
    let all: Vec<&str> = log.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Runs a command on one of the test servers' hosts; what it said.
pub fn on(host: &str, command: &[&str]) -> String {
    try_on(host, command, "").unwrap_or_else(|error| panic!("on {host}: {command:?}: {error}"))
}

fn append(host: &str, file: &str, text: &str) {
    try_on(host, &["sh", "-ec", "cat >>\"$1\"", "sh", file], text).unwrap_or_else(|error| panic!("{file}: {error}"));
}

/// A command that runs on one of the test servers' hosts.
fn command_on(host: &str, command: &[&str]) -> Command {
    server(&host.to_uppercase());
    let container = env_if_there(&format!("MAILDROP_TEST_{}_CONTAINER", host.to_uppercase()));
    let mut program = match container {
        Some(container) => {
            let mut docker = Command::new("docker");
            docker.args(["exec", "--interactive", &container]);
            docker
        }
        None => {
            let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/on"));
            script.args([host, "--"]);
            script
        }
    };
    program.args(command);
    program
}

fn try_on(host: &str, command: &[&str], input: &str) -> Result<String, String> {
    let mut child = command_on(host, command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    // Small enough for the pipe; and a command that does not read it is none the worse.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(printed)
    } else {
        Err(format!("{}: {printed}{}", output.status, String::from_utf8_lossy(&output.stderr)))
    }
}

fn replace(text: &mut String, from: &str, to: &str) {
    assert_eq!(text.matches(from).count(), 1, "the fragment has `{from}` once");
    *text = text.replace(from, to);
}

fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// An instance of its own: the host's main.cf and master.cf, an empty queue, and the user of postfix/README.md.
const MAKE_INSTANCE: &str = r#"
    mkdir -p "$1/etc" "$1/queue" "$1/data"
    chown postfix "$1/data"
    cp -a /etc/postfix/. "$1/etc"
    # One test at a time.
    exec 9>/srv/maildrop-test-user
    flock 9
    id -u maildrop >/dev/null 2>&1 ||
        useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin maildrop
    exec 9>&-
"#;
