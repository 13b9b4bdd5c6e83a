//! Programs that others wrote and that speak what the service speaks: pyzmq, swaks, msmtp, smtplib, OpenSMTPD's
//! mail.lmtp, Dovecot's proxy, Exim.
//! They run in the container `peers` (tests/images/peers). The folder [`sockets`] is `/sockets` there.

use super::{container, env};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The folder that this machine and the container share, for unix sockets. A test makes one of its own in it.
pub fn sockets() -> PathBuf {
    container("PEERS");
    PathBuf::from(env("MAILDROP_TEST_PEERS_SOCKETS"))
}

/// A folder for one test's sockets, which is removed with it, and its name in the container.
pub fn own_sockets() -> (tempfile::TempDir, String) {
    let folder = tempfile::Builder::new().tempdir_in(sockets()).expect("the shared folder can be written");
    let name = format!("/sockets/{}", folder.path().file_name().expect("a name").display());
    (folder, name)
}

/// A program in the container. Dropped, a Python script ends as well; anything else is no longer waited for.
pub struct Peer {
    child: Child,
    /// Its end tells the script that nobody waits for it any more: a signal would reach `docker` alone.
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    /// A Python script with its arguments. It is ended after two minutes, whatever it waits for. The lines of its
    /// standard input are in `lines`.
    pub fn python(script: &str, arguments: &[&str]) -> Self {
        const LIFE: &str = "
import os, queue, signal, sys, threading
signal.alarm(120)
lines = queue.Queue()
threading.Thread(target=lambda: ([lines.put(line.decode()) for line in open(0, 'rb', 0)], os._exit(1)), daemon=True).start()
";
        let script = format!("{LIFE}{script}");
        Self::start(&[&["python3", "-u", "-c", &script], arguments].concat())
    }

    pub fn start(command: &[&str]) -> Self {
        let mut docker = Command::new("docker");
        docker.args(["exec", "--interactive", &container("PEERS")]).args(command);
        let mut child = docker.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("docker runs");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let stdin = child.stdin.take().expect("its input");
        Self { child, stdin, lines }
    }

    /// The next line that it writes.
    #[track_caller]
    pub fn line(&mut self) -> String {
        self.lines.next().expect("it ended, and should have said something").expect("its output")
    }

    /// Tells it something: a line on its standard input.
    #[track_caller]
    pub fn say(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it listens");
    }

    /// Waits for its end, which has to be a good one.
    #[track_caller]
    pub fn end(mut self) {
        assert!(self.child.wait().expect("its end").success(), "it failed");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Fails where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
