//! A delivery under way holds the passwords of database and mailbox store. What other users of the machine can see of it
//! shows none of them, and neither does what is left of it after a crash.

use crate::program::{Running, program, wait_until};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

const PASSWORDS: [(&str, &str); 2] =
    [("database", "the-databases-own-secret"), ("imap", "the-service-accounts-secret")];

/// A place whose database accepts connections and never says a word.
struct SiteFolder {
    folder: tempfile::TempDir,
    silent: TcpListener,
}

impl SiteFolder {
    fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap(), silent: TcpListener::bind("127.0.0.1:0").unwrap() };
        for (name, password) in PASSWORDS {
            fs::write(place.path(name), password).unwrap();
        }
        let port = place.silent.local_addr().unwrap().port();
        let text = format!(
            "[database]\nfailover_timeout = \"0s\"\nengine = \"postgresql\"\nhost = \"127.0.0.1\"\nport = {port}\ndatabase = \"maildrop\"\n\
             user = \"maildrop\"\npassword_file = \"{}\"\ntls = \"off\"\n\
             [imap]\nhost = \"127.0.0.1\"\nport = {port}\nuser = \"service\"\npassword_file = \"{}\"\nencryption = \"none\"\n\
             [log]\nto = \"file\"\nfile = \"{}\"\n",
            place.path("database"),
            place.path("imap"),
            place.path("log"),
        );
        fs::write(place.path("config.toml"), text).unwrap();
        place
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// A delivery that has read its configuration, and waits for the database for as long as the connection is there.
    fn delivery(&self, command: impl FnOnce(&str) -> Command) -> (Running, TcpStream) {
        let mut command = command(&self.path("config.toml"));
        command.args(["--sender", "lisa@mail.axial.net", "--recipient", "doug@mail.axial.net"]);
        let running = Running::start(command, b"Subject: hello\n\nHello.\n");
        let (connection, _) = self.silent.accept().unwrap();
        (running, connection)
    }
}

#[test]
fn no_password_is_in_its_command_line_or_environment() {
    let place = SiteFolder::new();
    let (delivery, _connection) = place.delivery(|config| program(&["--config", config]));
    for file in ["cmdline", "environ", "comm", "status"] {
        let seen = fs::read(format!("/proc/{}/{file}", delivery.id()));
        // Of a process that cannot be dumped, the environment is root's alone to see.
        let Ok(seen) = seen else { continue };
        let seen = String::from_utf8_lossy(&seen).into_owned();
        assert!(file != "cmdline" || seen.contains("--config"), "{seen}");
        for (_, password) in PASSWORDS {
            assert!(!seen.contains(password), "{file}: {seen}");
        }
    }
    for (_, password) in PASSWORDS {
        assert!(!fs::read_to_string(place.path("log")).unwrap_or_default().contains(password));
    }
}

/// Sends a signal, as kill(1).
fn signal(signal: &str, id: u32) {
    let status = Command::new("kill").args([signal, &id.to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn it_leaves_no_core_dump() {
    let place = SiteFolder::new();
    // Begun by a shell that allows as much as it may.
    let allow = "ulimit -S -c $(ulimit -H -c); cd \"$0\"; exec \"$@\"";
    let allowed = |arguments: &[&str]| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", allow, place.folder.path().to_str().unwrap()]).args(arguments);
        command
    };
    let limit = |id: u32| {
        let limits = fs::read_to_string(format!("/proc/{id}/limits")).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        line["Max core file size".len()..].split_whitespace().next().unwrap().to_owned()
    };

    let program = env!("CARGO_BIN_EXE_maildrop_command");
    let (mut delivery, _connection) = place.delivery(|config| allowed(&[program, "--config", config]));
    assert_eq!(limit(delivery.id()), "0");
    // Not even where the limit does not count, as for a dump that the kernel pipes to a program.
    let id = delivery.id().to_string();
    let raised = Command::new("prlimit").args(["--pid", &id, "--core=unlimited:unlimited"]).status();
    signal("-ABRT", delivery.id());
    wait_until("it ends", || delivery.has_ended());
    let status = delivery.status();
    assert_eq!(status.signal(), Some(6));
    assert!(!status.core_dumped(), "{status:?}");

    // Any other program does leave one, wherever this test can tell.
    let mut other = allowed(&["/bin/sleep", "60"]).stdin(Stdio::null()).spawn().unwrap();
    wait_until("the shell is another program", || {
        fs::read_to_string(format!("/proc/{}/comm", other.id())).is_ok_and(|name| name == "sleep\n")
    });
    let can_tell = raised.is_ok_and(|raised| raised.success()) && limit(other.id()) == "unlimited";
    signal("-ABRT", other.id());
    let status = other.wait().unwrap();
    let plain = fs::read_to_string("/proc/sys/kernel/core_pattern").is_ok_and(|pattern| pattern == "core\n");
    assert!(!(can_tell && plain) || status.core_dumped(), "{status:?}");
}
