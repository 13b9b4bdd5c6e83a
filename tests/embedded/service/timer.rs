//! The timer: owed copies are finished with nobody asking for it, one host at a time; and how the master holds it.

use crate::program::{feed, program};
use crate::support::clients_and_processes::open;
use crate::support::test_front::{configure, process_in, until};
use crate::support::test_master::{Stage, lives, pids};
use maildrop_command::database::{SqliteDatabase, Tables};
use maildrop_command::lock::{Acquired, LockName, NamedLock};
use maildrop_command::protocol::control::Role;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::Duration;

/// A site on one machine, with messages from Lisa to Doug, who both live there.
struct Site(tempfile::TempDir);

/// A timer that runs. Dropped, it is killed.
struct Timer(Child);

impl Site {
    /// Lisa is owed her copies of these messages: doug has them.
    fn owing(ids: &[&str]) -> Self {
        let site = Self(tempfile::tempdir().unwrap());
        let deliver = |sender: &str, recipient: &str, id: &str| {
            let message = format!("From: {sender}\nMessage-ID: <{id}@x>\nSubject: {id}\n\n{id}\n");
            let place = site.0.path().to_str().unwrap();
            let command = program(&["--embedded", place, "--sender", sender, "--recipient", recipient]);
            feed(command, message.as_bytes()).delivered();
        };
        deliver("kim@gmail.com", "lisa@x", "before");
        ids.iter().for_each(|id| deliver("lisa@x", "doug@x", id));
        site.change(
            "UPDATE copies SET state = 'owed', reason = 'over quota', delivered_at = NULL WHERE role = 'sender'",
        );
        for copy in site.mailbox("lisa@x/.Sent") {
            fs::remove_file(copy).unwrap();
        }
        assert_eq!(site.owed(), ids.len());
        site
    }

    fn change(&self, sql: &str) {
        open(self.0.path()).change("changing", sql, &[]).unwrap();
    }

    fn owed(&self) -> usize {
        open(self.0.path()).select("counting", "SELECT role FROM copies WHERE state = 'owed'", &[]).unwrap().len()
    }

    fn reason(&self) -> String {
        let rows = open(self.0.path()).select("asking", "SELECT reason FROM copies WHERE state = 'owed'", &[]);
        rows.unwrap()[0].text(0).unwrap().to_owned()
    }

    fn mailbox(&self, name: &str) -> Vec<PathBuf> {
        let of = |part| fs::read_dir(self.0.path().join(name).join(part)).into_iter().flatten();
        of("new").chain(of("cur")).map(|entry| entry.unwrap().path()).collect()
    }

    fn timer(&self) -> Timer {
        Timer(process_in(self.0.path(), Role::Timer, &configure(self.0.path()), None).spawn().unwrap())
    }

    /// With the memory that its master lets it have as shipped (`service.worker_memory`).
    fn timer_as_shipped(&self) -> Timer {
        let mut timer = process_in(self.0.path(), Role::Timer, &configure(self.0.path()), Some(std::process::id()));
        Timer(timer.env("MALLOC_ARENA_MAX", "2").spawn().unwrap())
    }

    /// What it has written down.
    fn written(&self) -> Value {
        let text = fs::read_to_string(self.0.path().join("state/timer.json")).unwrap_or_default();
        serde_json::from_str::<Vec<Value>>(&text)
            .unwrap_or_default()
            .into_iter()
            .find(|task| task["task"] == "finish_owed")
            .unwrap_or_default()
    }

    /// Waits for a run to end; what it came to.
    #[track_caller]
    fn run(&self) -> String {
        let _ = fs::remove_file(self.0.path().join("state/timer.json"));
        let timer = self.timer();
        until("a run has ended", || !self.written()["last"].is_null());
        assert!(timer.end().success());
        self.written()["last"]["result"].as_str().unwrap().to_owned()
    }

    fn hold(&self, namespace: &str, name: &str) -> SqliteDatabase {
        let mut database = open(self.0.path());
        let lock = LockName::new(namespace, name.as_bytes());
        assert!(matches!(database.acquire(&lock, Duration::ZERO).unwrap(), Acquired::Held));
        database
    }

    /// Waits until the timer is at one of the copies.
    fn until_one_is_in_progress(&self) {
        let open_attempts = "SELECT role FROM attempts WHERE ended_at IS NULL";
        until("a copy is in progress", || {
            !open(self.0.path()).select("asking", open_attempts, &[]).unwrap().is_empty()
        });
    }
}

impl Timer {
    fn end(self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn ended(mut self) -> ExitStatus {
        until("the timer ends", || self.0.try_wait().unwrap().is_some());
        self.0.wait().unwrap()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn owed_copies_are_finished_once_with_nobody_asking_for_it() {
    let site = Site::owing(&["one", "two"]);
    assert_eq!(site.run(), "2 finished");
    assert_eq!((site.owed(), site.mailbox("lisa@x/.Sent").len(), site.mailbox("doug@x").len()), (0, 2, 2));
    assert_eq!(site.run(), "nothing is owed");
    assert_eq!(site.mailbox("lisa@x/.Sent").len(), 2);
}

#[test]
fn seventy_thousand_owed_copies_of_messages_with_long_subjects_fit_into_the_memory_of_a_timer() {
    let site = Site::owing(&["one"]);
    let now = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
    let numbers =
        |most: u32| format!("WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {most})");
    let long = "printf('%.*c', 8000, 'x')";
    site.change(&format!(
        "INSERT INTO messages (id, identity, lock_digest, message_id, content_digest, sender, header_from, subject, headers, size, \
         recorded_at) {} SELECT 1000 + n, randomblob(32), randomblob(32), '<a@x>', randomblob(32), '', {long}, {long}, '[]', 1, \
         {now} - 864000000000 FROM n",
        numbers(100)
    ));
    site.change(&format!(
        "INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, updated_at) {} \
         SELECT randomblob(32), 1001 + n % 100, 'sender', 'user' || n || '@x', 'Sent', 'doug@x', 'owed', {now} - n FROM n",
        numbers(70_000)
    ));
    let timer = site.timer_as_shipped();
    until("a run has ended", || !site.written()["last"].is_null());
    assert_eq!(site.written()["last"]["result"], "1 finished, 70000 still owed");
    assert!(timer.end().success());
}

#[test]
fn what_cannot_be_finished_says_why_and_is_left_alone_for_a_while() {
    let site = Site::owing(&["one"]);
    // Nothing is left of it; and it is old.
    site.mailbox("doug@x").into_iter().for_each(|copy| fs::remove_file(copy).unwrap());
    site.change("UPDATE messages SET recorded_at = recorded_at - 86400000000");
    site.change("UPDATE copies SET updated_at = updated_at - 10900000000");
    let output = site.run();
    assert!(
        output
            .starts_with("1 failed, 1 still owed; the first that failed: <one@x> for Sent of lisa@x: nothing is left"),
        "{output}"
    );
    assert!(site.reason().starts_with("nothing is left of the message to deliver"), "{}", site.reason());
    assert_eq!(site.run(), "1 still owed");
    // An eighth of a day later.
    site.change("UPDATE copies SET updated_at = updated_at - 10900000000");
    assert!(site.run().starts_with("1 failed"));
    assert_eq!((site.owed(), site.mailbox("lisa@x/.Sent").len()), (1, 0));
}

#[test]
fn one_does_it_at_a_time_and_an_operator_can_keep_all_from_it() {
    let site = Site::owing(&["one"]);
    let held = site.hold("maildrop exec", "maildropd finish_owed");
    assert!(site.run().starts_with("another host is at it"), "{}", site.written());
    assert_eq!(site.owed(), 1);
    drop(held);
    assert_eq!(site.run(), "1 finished");
}

#[test]
fn asked_to_end_it_finishes_the_copy_in_progress_and_begins_no_other() {
    let site = Site::owing(&["one", "two"]);
    let held = [site.hold("maildrop", "one@x"), site.hold("maildrop", "two@x")];
    let timer = site.timer();
    site.until_one_is_in_progress();
    timer.signal(Signal::TERM);
    drop(held);
    assert!(timer.ended().success());
    assert_eq!((site.owed(), site.mailbox("lisa@x/.Sent").len()), (1, 1));
    assert_eq!(site.written()["last"]["result"], "1 finished, 1 still owed");
}

#[test]
fn one_that_is_killed_leaves_its_turn_to_the_next_and_no_copy_twice() {
    let site = Site::owing(&["one", "two"]);
    let held = [site.hold("maildrop", "one@x"), site.hold("maildrop", "two@x")];
    let timer = site.timer();
    site.until_one_is_in_progress();
    timer.signal(Signal::KILL);
    assert!(!timer.ended().success());
    drop(held);
    // The try has begun, and the next one comes after a part of the time from the message to that: of none, however long it took.
    site.change("UPDATE copies SET updated_at = recorded_at FROM messages WHERE messages.id = copies.message");
    assert_eq!(site.run(), "2 finished");
    assert_eq!((site.owed(), site.mailbox("lisa@x/.Sent").len()), (0, 2));
}

// --- under a master

fn timers(status: &Value) -> Vec<u64> {
    let all = status["processes"].as_array().map(Vec::as_slice).unwrap_or_default().iter();
    all.filter(|one| one["role"] == "timer").filter_map(|one| one["pid"].as_u64()).collect()
}

#[test]
fn there_is_a_timer_unless_it_has_no_role_in_the_database() {
    let stage = Stage::started("");
    let before = timers(&stage.status());
    assert_eq!(before.len(), 1);
    crate::support::test_master::send("KILL", before[0]);
    stage.wait("there is another", |status| timers(status).first().is_some_and(|pid| *pid != before[0]));
    // Without owed copies it has addresses to index and failures to prune.
    stage.configure("workers = 2\nfinish_owed_every = \"0s\"");
    assert!(stage.service(&["reload"]).status.success());
    let before = timers(&stage.wait("there is one still", |status| status["state"] == "well"));
    assert_eq!(before.len(), 1);
    let config = fs::read_to_string(stage.path("config.toml")).unwrap();
    let without = config.replace("roles.timer = { user = \"operator\" }\n", "");
    assert_ne!(config, without);
    fs::write(stage.path("config.toml"), without).unwrap();
    assert!(stage.service(&["reload"]).status.success());
    let status = stage.wait("there is none", |status| timers(status).is_empty());
    assert!(!lives(before[0]), "{status}");
}

#[test]
fn a_timer_that_does_not_come_up_keeps_nothing_else_from_being_replaced() {
    let mut stage = Stage::new("restarts = 2");
    stage.let_behave("timer", "die");
    stage.start();
    let all_others = |status: &Value| {
        let all = status["processes"].as_array().map(Vec::as_slice).unwrap_or_default();
        all.len() == 5 && all.iter().all(|one| one["role"] == "timer" || one["ready"] == true)
    };
    let status = stage.wait("all others are up, and it is listed", |status| {
        all_others(status) && status["reasons"].to_string().contains("the timer dies again and again")
    });
    let before = pids(&status);
    let output = stage.service(&["restart"]);
    assert!(output.status.success(), "{output:?}");
    let after = stage.wait("all others are up", all_others);
    assert!(pids(&after).iter().all(|pid| !before.contains(pid)), "{after}");
}

#[test]
fn what_the_timer_did_is_reported_with_how_the_service_is() {
    let stage = Stage::new("");
    fs::create_dir(stage.path("state")).unwrap();
    let written = r#"[{"task":"finish_owed","every_s":300.0,"next_at":"2026-11-22T10:05:00Z","failed_runs":1,
        "last":{"at":"2026-11-22T10:00:00Z","took_s":2.0,"well":false,"result":"no database"}}]"#;
    fs::write(stage.path("state/timer.json"), written).unwrap();
    let mut stage = stage;
    stage.start();
    let status = stage.wait_until_well();
    assert_eq!(status["timer"], serde_json::from_str::<Value>(written).unwrap());
    let output = String::from_utf8(stage.service(&["status"]).stdout).unwrap();
    assert!(output.contains("finish owed: FAILED: no database, at 2026-11-22 10:00:00Z, in 2s"), "{output}");
}

/// It never uses the account of deliveries.
#[test]
fn a_process_without_an_account_in_the_database_is_not_started_and_status_says_so() {
    let mut stage = Stage::new("");
    let file = stage.path("config.toml");
    let text = fs::read_to_string(&file).unwrap();
    let without: String =
        text.lines().filter(|line| !line.starts_with("roles.")).map(|line| format!("{line}\n")).collect();
    fs::write(&file, without + "[web]\nlisten = \"127.0.0.1:8025\"\n").unwrap();
    stage.start();
    let status = stage.wait_until_well();
    let roles: Vec<&Value> = status["processes"].as_array().unwrap().iter().map(|process| &process["role"]).collect();
    assert!(!roles.iter().any(|role| ["timer", "web"].iter().any(|none| *role == none)), "{status}");
    let output = String::from_utf8(stage.service(&["status"]).stdout).unwrap();
    for (name, key) in [("the timer", "timer"), ("the web UI", "web")] {
        assert!(output.contains(&format!("{name} is not started: database.roles.{key} is missing")), "{output}");
    }
}
