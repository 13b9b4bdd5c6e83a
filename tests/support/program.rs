//! The program as Postfix runs it: a process of its own, no environment, the message on a pipe, one line and an exit
//! code at the end.
#![allow(dead_code, reason = "every test target uses a part of it")]

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a test waits for what has to happen: longer than the deadline that a delivery has if nobody says otherwise.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// The program with these arguments, and nothing in its environment.
pub fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_maildrop_command"));
    command.args(arguments).env_clear();
    command
}

/// Delivers a message and waits for the end of it.
pub fn feed(command: Command, message: &[u8]) -> Outcome {
    Running::start(command, message).end()
}

/// How a delivery ended.
#[derive(Debug)]
pub struct Outcome {
    /// `None` where a signal ended it.
    pub exit: Option<i32>,
    /// What it wrote to stdout.
    pub line: String,
    pub took: Duration,
}

impl Outcome {
    /// It was delivered; what the line says.
    #[track_caller]
    pub fn delivered(&self) -> &str {
        self.ended(0, "2.0.0 ")
    }

    /// It is deferred, with this beginning of the line.
    #[track_caller]
    pub fn deferred(&self, beginning: &str) -> &str {
        assert!(beginning.starts_with("4."), "{beginning}");
        self.ended(75, beginning)
    }

    /// It ended so; what the line says after `beginning`.
    #[track_caller]
    pub fn ended(&self, exit: i32, beginning: &str) -> &str {
        assert_eq!(self.exit, Some(exit), "{self:?}");
        self.one_line();
        self.line.strip_prefix(beginning).unwrap_or_else(|| panic!("not {beginning:?}: {self:?}")).trim_end()
    }

    /// Its output is one line of printable ASCII, of less than 200 bytes, that says the same as the exit code.
    #[track_caller]
    pub fn one_line(&self) {
        let text = self.line.strip_suffix('\n').unwrap_or_else(|| panic!("no line: {self:?}"));
        assert!(self.line.len() < 200, "{} bytes: {self:?}", self.line.len());
        assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{self:?}");
        let class = match self.exit {
            Some(0) => "2.",
            Some(75) => "4.",
            _ => "5.",
        };
        assert!(text.starts_with(class), "{self:?}");
    }
}

/// A delivery under way. Dropped, it is killed.
pub struct Running {
    child: Child,
    began: Instant,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Running {
    pub fn start(mut command: Command, message: &[u8]) -> Self {
        let began = Instant::now();
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let (mut stdin, message) = (child.stdin.take().unwrap(), message.to_vec());
        // It may end without having read everything.
        std::thread::spawn(move || {
            let _ = stdin.write_all(&message);
        });
        let stdout = Some(read(child.stdout.take().unwrap()));
        let stderr = Some(read(child.stderr.take().unwrap()));
        Self { child, began, stdout, stderr }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// How it has ended.
    pub fn status(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }

    /// Sends SIGKILL, and does not wait for the end of it.
    pub fn strike(&mut self) {
        self.child.kill().unwrap();
    }

    /// SIGSTOP.
    pub fn stop(&self) {
        self.signal("STOP");
    }

    /// SIGCONT.
    pub fn go_on(&self) {
        self.signal("CONT");
    }

    /// SIGINT: Ctrl-C.
    pub fn interrupt(&self) {
        self.signal("INT");
    }

    /// What it has written to stdout and to stderr, once it has ended.
    pub fn outputs(&mut self) -> (String, String) {
        let text = |reader: Option<JoinHandle<Vec<u8>>>| String::from_utf8(reader.unwrap().join().unwrap()).unwrap();
        (text(self.stdout.take()), text(self.stderr.take()))
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.id().to_string()]).status().unwrap();
        assert!(sent.success(), "kill -{name}");
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end. What it writes to stderr would reach the sender, too: nothing.
    #[track_caller]
    pub fn end(self) -> Outcome {
        self.end_within(PATIENCE)
    }

    /// The same, where there is much to do.
    #[track_caller]
    pub fn end_within(mut self, patience: Duration) -> Outcome {
        wait_for("the delivery ends", patience, || self.has_ended());
        let took = self.began.elapsed();
        let exit = self.child.wait().unwrap().code();
        let (line, stderr) = self.outputs();
        assert_eq!(stderr, "", "stderr");
        Outcome { exit, line, took }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        pipe.read_to_end(&mut all).unwrap();
        all
    })
}

/// Waits, for some minutes at most.
#[track_caller]
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    wait_for(what, PATIENCE, condition);
}

/// Waits, for so long at most. Many a condition logs in somewhere to see for itself, or runs a command in a container: it is asked less
/// often the longer that takes, or most of the machine would be busy with questions.
#[track_caller]
pub fn wait_for(what: &str, patience: Duration, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    loop {
        let asked = Instant::now();
        if condition() {
            return;
        }
        let (took, waited) = (asked.elapsed(), began.elapsed());
        assert!(waited < patience, "in vain: {what}");
        let rest = (waited / 20).min(Duration::from_millis(50)).max(took.min(Duration::from_millis(500)));
        std::thread::sleep(rest.max(Duration::from_millis(5)));
    }
}

/// The message as it has to be in the mailbox, by the words of the documentation: without an mbox line, each line ended
/// by CRLF, 0x80 for NUL, and otherwise as it came.
pub fn as_delivered(raw: &[u8]) -> Vec<u8> {
    let mbox_line = raw.starts_with(b"From ") && !raw.starts_with(b"From  :") && !raw.starts_with(b"From :");
    let skip = if mbox_line { raw.iter().position(|&byte| byte == b'\n').map_or(raw.len(), |at| at + 1) } else { 0 };
    let mut bytes = Vec::with_capacity(raw.len());
    for &byte in &raw[skip..] {
        match byte {
            b'\n' if bytes.last() != Some(&b'\r') => bytes.extend_from_slice(b"\r\n"),
            0 => bytes.push(0x80),
            other => bytes.push(other),
        }
    }
    if !bytes.ends_with(b"\n") {
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
