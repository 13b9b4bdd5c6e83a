//! What those may reach that talk with strangers: front and runners no password, nothing but their own files, and nobody by TCP; the
//! notifier and the web UI no password but those of the servers that they work with, and only these servers' ports.

use crate::program::wait_until;
use crate::queue_of_tests::QueueOfTests;
use crate::support::test_master::{Stage, own_folder};
use maildrop_command::lock::LockName;
use maildrop_command::queue::{Envelope, Queue, Recipient};
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
    let whole = log.contains("covers_tcp=true");
    log.contains("this process is confined").then_some(whole)
}

/// Whether the kernel holds back signals, too: from Linux 6.12 on.
fn holds_back_signals() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

/// The stage's processes are asked to look around: see `stage.rs`.
#[test]
fn a_process_that_talks_with_strangers_reaches_no_other_files_passwords_servers_or_processes_than_it_works_with() {
    let mut stage = Stage::new("");
    let [server, database] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let secret = stage.folder.path().join("secret");
    fs::create_dir(&secret).unwrap();
    for file in ["password", "database", "key"] {
        fs::write(secret.join(file), [7; 32]).unwrap();
    }
    fs::write(stage.path("server"), server.local_addr().unwrap().to_string()).unwrap();
    fs::write(stage.path("database"), database.local_addr().unwrap().to_string()).unwrap();
    // What is beneath the log's folder may be appended to.
    let config = fs::read_to_string(stage.path("config.toml")).unwrap();
    let log = stage.path("logs/log").display().to_string();
    fs::create_dir(stage.path("logs")).unwrap();
    // The notifier and the web UI share one password here; the timer's and that of deliveries are another's.
    let own = format!("password_file = {:?} }}", secret.join("database"));
    let config = config
        .replace("{ user = \"notifier\" }", &format!("{{ user = \"notifier\", {own}"))
        .replace("{ user = \"web\" }", &format!("{{ user = \"web\", {own}"))
        .replace(&stage.path("log").display().to_string(), &log)
        .replace("/nowhere", secret.join("password").to_str().unwrap())
        .replace(
            "host = \"db.invalid\"\n",
            &format!(
                "host = \"127.0.0.1\"\nport = {}\npassword_file = {:?}\n",
                database.local_addr().unwrap().port(),
                secret.join("database")
            ),
        );
    let more = format!(
        "[notifications]\nsecret_key_file = {:?}\n[web]\nlisten = \"127.0.0.1:1\"\napi = true\n",
        secret.join("key")
    );
    fs::write(stage.path("config.toml"), config + &more).unwrap();
    let all = ["front", "runner 1", "worker 1", "notifier 1", "web 1"];
    for who in all {
        stage.let_behave(who, "look around");
    }
    stage.start();
    stage.wait_until_well();
    let seen = |who: &str| stage.lines(&format!("{}/seen by {who}", own_folder(who)));
    wait_until("all have looked", || all.iter().all(|who| seen(who).len() == 12));
    // What it would be without: so a worker finds it.
    let tried = [
        ("password", "read"),
        ("server", "connected"),
        ("configuration", "written"),
        ("own folder", "written"),
        ("suspects", "written"),
        ("program", "started"),
        ("password of the database", "read"),
        ("key", "read"),
        ("hosts", "read"),
        ("database", "connected"),
        ("key of the control socket", "read"),
        ("master", "sent a signal"),
    ];
    let but_for = |held: &[&str]| {
        let result = |(what, free): (&str, &str)| {
            format!("{what}: {}", if held.contains(&what) { "Permission denied" } else { free })
        };
        tried.map(result)
    };
    assert_eq!(seen("worker 1"), but_for(&[]));
    let Some(whole) = confined(&stage.lines("logs/log").join("\n")) else {
        println!("not confined: the kernel has no landlock");
        return;
    };
    let by_tcp = |held: &'static str| Some(held).filter(|_| whole);
    let by_signal = || Some("master").filter(|_| holds_back_signals());
    let files = ["password", "configuration", "program", "key of the control socket"];
    // The web UI works with the file queue, for the API, and so does a runner.
    let of_servers = ["password of the database", "key", "hosts"];
    let front = files.into_iter().chain(of_servers).chain(by_tcp("server")).chain(by_tcp("database"));
    let runner = front.clone().chain(["suspects"]).chain(by_signal());
    let client = files.into_iter().chain(["suspects"]).chain(by_tcp("server")).chain(by_signal());
    for (who, held) in [
        ("front", front.collect::<Vec<_>>()),
        ("runner 1", runner.collect()),
        ("notifier 1", client.clone().collect()),
        ("web 1", client.collect()),
    ] {
        assert_eq!(seen(who), but_for(&held), "{who}");
    }
}

/// A rule of landlock is for the file that was there.
#[test]
fn who_may_read_a_file_that_is_replaced_is_started_again() {
    let mut stage = Stage::new("");
    fs::write(stage.path("key"), [7; 32]).unwrap();
    let config = fs::read_to_string(stage.path("config.toml")).unwrap();
    let more = format!("[notifications]\nsecret_key_file = {:?}\n", stage.path("key"));
    fs::write(stage.path("config.toml"), config + &more).unwrap();
    stage.start();
    let pid = |status: &serde_json::Value| {
        let all = status["processes"].as_array().into_iter().flatten();
        all.filter(|one| one["role"] == "notifier").find_map(|one| one["pid"].as_u64())
    };
    let first = pid(&stage.wait("there is a notifier", |status| pid(status).is_some()));
    wait_until("it is confined", || {
        stage.lines("log").iter().filter(|line| line.contains("this process is")).count() >= 3
    });
    fs::write(stage.path("key.new"), [8; 32]).unwrap();
    fs::rename(stage.path("key.new"), stage.path("key")).unwrap();
    stage.wait("there is another one", |status| pid(status).is_some_and(|pid| Some(pid) != first));
    assert!(stage.lines("log").iter().any(|line| line.contains("a file was replaced")));
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
fn a_runner_that_is_confined_holds_what_the_ledger_no_longer_remembers() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let config = format!(
        "[database]\nfailover_timeout = \"0s\"\nengine = \"postgresql\"\nhost = \"db.invalid\"\ndatabase = \"x\"\nuser = \"x\"\n\
         [imap]\nhost = \"imap.invalid\"\nuser = \"x\"\npassword_file = \"/nonexistent\"\n[log]\nto = \"file\"\nfile = {:?}\n\
         [service]\nruntime_directory = {:?}\nstate_directory = {:?}\nworkers = 1\n\
         [retention]\nmessages_older_than = \"20d\"\n",
        path("logs/log"),
        path("run"),
        path("state"),
    );
    fs::create_dir(path("logs")).unwrap();
    fs::write(path("config.toml"), config).unwrap();
    let queue = Queue::open(&folder.path().join("state/queue")).unwrap();
    let mail = Envelope {
        recipients: vec![Recipient { address: "doug@x".into(), original: None }],
        injected_by: "a test".into(),
        ..Envelope::default()
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
}

/// The workers die of it; a client that hands in mail is asked to come back.
#[test]
fn a_front_needs_no_password_that_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = format!(
        "[database]\nfailover_timeout = \"0s\"\nengine = \"postgresql\"\nhost = \"db.invalid\"\ndatabase = \"x\"\nuser = \"x\"\n\
         password_file = {0:?}\n[imap]\nhost = \"imap.invalid\"\nuser = \"x\"\npassword_file = {0:?}\n[log]\nto = \"file\"\nfile = {1:?}\n[service]\n\
         lmtp = [{2:?}]\nruntime_directory = {3:?}\nstate_directory = {4:?}\nworkers = 1\nworker_wait = \"1s\"\n",
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
    for (level, wanted) in [
        ("LHLO mx", "250 "),
        ("MAIL FROM:<lisa@gmail.com>", "250 "),
        ("RCPT TO:<doug@x>", "250 "),
        ("DATA", "354 "),
        ("Subject: x\r\n\r\nx\r\n.", "451 4."),
    ] {
        (&stream).write_all(format!("{level}\r\n").as_bytes()).unwrap();
        let answer = hear();
        assert!(answer.starts_with(wanted), "{level}: {answer}");
    }
    let log = || fs::read_to_string(path("log")).unwrap();
    assert!(log().contains("the front is ready"), "{}", log());
    // A worker may be slower to begin than the message was asked to come back.
    wait_until("a worker says why it ends", || log().contains("imap.password_file"));
    let log = log();
    confined(&log);
    // All that it has started ends with it.
    master.kill().unwrap();
    master.wait().unwrap();
}
