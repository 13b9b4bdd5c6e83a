//! What front and runners may reach: no password, nothing but their own files, nobody by TCP.

use super::stage::Stage;
use crate::program::wait_until;
use maildrop_command::lock::LockName;
use maildrop_command::queue::{NewMail, Queue, Recipient};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

/// What landlock the kernel has, as a process of the service says in its log; `None` where it has none.
fn confined(log: &str) -> Option<bool> {
    assert!(log.contains("this process is "), "{log}");
    let whole = log.contains("and can connect to nobody by TCP (landlock)");
    log.contains("this process is confined").then_some(whole)
}

/// The stage's front and runner are told to look around: see `stage.rs`.
#[test]
fn a_front_and_a_runner_that_are_told_to_reach_other_files_or_servers_cannot() {
    let mut stage = Stage::new("");
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let secret = stage.folder.path().join("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("password"), "secret").unwrap();
    fs::write(stage.path("server"), server.local_addr().unwrap().to_string()).unwrap();
    // What is beneath the log's folder may be appended to.
    let config = fs::read_to_string(stage.path("config.toml")).unwrap();
    let log = stage.path("logs/log").display().to_string();
    fs::create_dir(stage.path("logs")).unwrap();
    fs::write(stage.path("config.toml"), config.replace(&stage.path("log").display().to_string(), &log)).unwrap();
    for who in ["front", "runner", "worker"] {
        stage.let_behave(who, "look around");
    }
    stage.start();
    stage.wait_until_well();
    let seen = |who: &str| {
        let own = if who == "runner 1" { "state/queue" } else { "state" };
        stage.lines(&format!("{own}/seen by {who}"))
    };
    wait_until("all have looked", || ["front", "runner 1", "worker 1"].iter().all(|who| seen(who).len() == 6));
    // What it would be without: so a worker finds it.
    let all = [
        "password: read",
        "server: connected",
        "configuration: written",
        "own folder: written",
        "suspects: written",
        "program: started",
    ];
    assert_eq!(seen("worker 1"), all);
    let Some(whole) = confined(&stage.lines("logs/log").join("\n")) else {
        println!("not confined: the kernel has no landlock");
        return;
    };
    let server = if whole { "server: Permission denied" } else { "server: connected" };
    // A runner has the file queue alone.
    for (who, suspects) in [("front", "suspects: written"), ("runner 1", "suspects: Permission denied")] {
        let held = [
            "password: Permission denied",
            server,
            "configuration: Permission denied",
            "own folder: written",
            suspects,
            "program: Permission denied",
        ];
        assert_eq!(seen(who), held, "{who}");
    }
}

/// Dropped, it is killed, and all that it has started ends.
struct Master(Child);

impl Drop for Master {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_runner_may_read_for_how_long_the_ledger_remembers_in_the_timers_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let site = "[database]\nwait = \"0s\"\nengine = \"postgresql\"\nhost = \"db.invalid\"\ndatabase = \"x\"\nuser = \"x\"\n\
                [imap]\nhost = \"imap.invalid\"\nuser = \"x\"\npassword_file = \"/nonexistent\"\n";
    let config = format!(
        "{site}[log]\nto = \"file\"\nfile = {:?}\n[serve]\nruntime_directory = {:?}\nstate_directory = {:?}\nworkers = 1\n\
         timer_config = {:?}\n",
        path("logs/log"),
        path("run"),
        path("state"),
        path("timer.toml"),
    );
    fs::create_dir(path("logs")).unwrap();
    fs::write(path("config.toml"), config).unwrap();
    fs::write(path("timer.toml"), format!("{site}[retention]\nmessages_older_than = \"20d\"\n")).unwrap();
    let queue = Queue::open(&folder.path().join("state/queue")).unwrap();
    let mail = NewMail {
        recipients: vec![Recipient { address: "doug@x".into(), original: None }],
        injected_by: "a test".into(),
        ..NewMail::default()
    };
    for (lock, days) in [("a", 21), ("b", 19)] {
        let came = SystemTime::now() - Duration::from_hours(24 * days);
        let name =
            queue.enqueue(&LockName::new("x", lock.as_bytes()), mail.clone(), b"Subject: x\n\nx\n", came).unwrap();
        let new = folder.path().join("state/queue/new");
        fs::rename(new.join(name.to_string()), new.join(format!("{},9,1000.msg", name.id()))).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
    command.args(["--config", &path("config.toml")]).env_clear().stdin(Stdio::null()).stderr(Stdio::null());
    let _master = Master(command.spawn().unwrap());
    wait_until("the one is held, and the other is tried", || {
        let counts = queue.counts().unwrap();
        (counts.held, counts.new + counts.work) == (1, 1)
    });
    let log = fs::read_to_string(path("logs/log")).unwrap();
    confined(&log);
    assert!(!log.contains("cannot be told"), "{log}");
}

/// The workers die of it; whoever hands in mail is told to come back.
#[test]
fn a_front_needs_no_password_that_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = format!(
        "[database]\nwait = \"0s\"\nengine = \"postgresql\"\nhost = \"db.invalid\"\ndatabase = \"x\"\nuser = \"x\"\npassword_file = {0:?}\n\
         [imap]\nhost = \"imap.invalid\"\nuser = \"x\"\npassword_file = {0:?}\n[log]\nto = \"file\"\nfile = {1:?}\n[serve]\n\
         lmtp = [{2:?}]\nruntime_directory = {3:?}\nstate_directory = {4:?}\nworkers = 1\nqueue_wait = \"1s\"\n",
        path("password"),
        path("log"),
        path("lmtp"),
        path("run"),
        path("state"),
    );
    fs::write(path("config.toml"), text).unwrap();
    // Nobody can read it, not even root.
    fs::create_dir(path("password")).unwrap();
    fs::set_permissions(path("password"), fs::Permissions::from_mode(0o000)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
    command.args(["--config", &path("config.toml")]).env_clear().stdin(Stdio::null()).stderr(Stdio::null());
    let mut master = command.spawn().unwrap();
    wait_until("it listens", || UnixStream::connect(path("lmtp")).is_ok());
    let stream = UnixStream::connect(path("lmtp")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut heard = BufReader::new(stream.try_clone().unwrap());
    let mut hear = || {
        let mut answer = String::new();
        // The last line of an answer has a space after the code.
        while answer.get(3..4) != Some(" ") {
            answer.clear();
            heard.read_line(&mut answer).unwrap();
        }
        answer
    };
    assert!(hear().starts_with("220 "));
    for (said, wanted) in [
        ("LHLO mx", "250 "),
        ("MAIL FROM:<lisa@gmail.com>", "250 "),
        ("RCPT TO:<doug@x>", "250 "),
        ("DATA", "354 "),
        ("Subject: x\r\n\r\nx\r\n.", "451 4."),
    ] {
        (&stream).write_all(format!("{said}\r\n").as_bytes()).unwrap();
        let answer = hear();
        assert!(answer.starts_with(wanted), "{said}: {answer}");
    }
    let log = || fs::read_to_string(path("log")).unwrap();
    assert!(log().contains("the front is ready"), "{}", log());
    // A worker may be slower to begin than the message was told to come back.
    wait_until("a worker says why it ends", || log().contains("imap.password_file"));
    let log = log();
    confined(&log);
    // All that it has started ends with it.
    master.kill().unwrap();
    master.wait().unwrap();
}
