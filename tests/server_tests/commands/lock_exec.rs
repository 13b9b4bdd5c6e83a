//! `lock exec` runs a command on one machine at a time, of all that use the database; and not a moment longer than the
//! lock is held.

use crate::support::database::Engine;
use crate::support::program::{program, wait_until};
use crate::support::site_fixture::Scene;
use crate::support::wire::{Fate, Speaker, Wire};
use crate::support::{host_and_port, server};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

on_each_engine!(
    of_eight_that_wait_one_runs_at_a_time,
    a_lock_held_elsewhere_is_75_or_what_was_asked_for,
    the_commands_exit_status_is_passed_on,
    a_session_that_the_server_ends_ends_the_command,
    a_command_that_ignores_sigterm_is_killed_with_all_that_it_started,
    a_server_that_falls_silent_ends_the_command_before_another_begins,
    the_command_dies_with_the_holder_of_its_lock,
    a_lock_is_held_for_longer_than_any_delivery_lasts,
);

/// A site whose locks are its own: MySQL's lie in the server, not in a database.
fn site(engine: Engine) -> Scene {
    let mut scene = Scene::empty(engine);
    let namespace = format!("[lock]\nnamespace = \"{}\"\n", scene.run);
    scene.configure(|settings| settings.more = namespace);
    scene
}

/// `lock exec` with these arguments, on the scene's site.
fn exec(scene: &Scene, arguments: &[&str]) -> Command {
    let mut command = program(&["lock", "exec", "--config", &scene.path("config.toml")]);
    command
        .args(arguments)
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(scene: &Scene, arguments: &[&str]) -> Output {
    exec(scene, arguments).output().unwrap()
}

/// A command that has begun: its script says so in a line.
struct Begun {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
    /// What its first line says.
    printed: String,
}

impl Begun {
    fn start(scene: &Scene, options: &[&str], name: &str, script: &str) -> Self {
        let mut child = exec(scene, options).args([name, "--", "sh", "-c", script]).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut received = String::new();
        stdout.read_line(&mut received).unwrap();
        assert!(!received.is_empty(), "it did not begin: {}", stderr(&mut child));
        Self { child, stdout, printed: received.trim().to_owned() }
    }

    /// Its exit status, the rest of its output, and what `lock exec` had to say.
    fn end(mut self) -> (Option<i32>, String, String) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        let stderr = stderr(&mut self.child);
        (self.child.wait().unwrap().code(), rest, stderr)
    }
}

fn stderr(child: &mut Child) -> String {
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

/// Whether a process is there, and not merely waits to be collected.
fn runs(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
}

/// The server's sessions that hold the lock `x`.
fn sessions(scene: &Scene) -> Vec<u64> {
    let listed = scene.subcommand(&["lock", "try", "--json", "x"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    listed["locks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|lock| lock["waits"] == false)
        .map(|lock| lock["session"].as_u64().unwrap())
        .collect()
}

/// How many sessions wait for a lock of this site.
fn waiters(scene: &mut Scene) -> i64 {
    scene.database.count(if scene.database.engine.is_postgres() {
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    } else {
        "SELECT count(*) FROM information_schema.processlist WHERE state = 'User lock' AND db = DATABASE()"
    })
}

/// Ends the session that holds the lock, as an administrator or a failing server would.
fn end_session(scene: &mut Scene) {
    let [session] = sessions(scene)[..] else { panic!("one holds a lock") };
    let end = if scene.database.engine.is_postgres() {
        format!("SELECT pg_terminate_backend({session})")
    } else {
        format!("KILL {session}")
    };
    scene.database.execute(&end);
}

fn one_at_a_time(scene: &Scene) {
    // Each fails if it meets another.
    let room = scene.path("room");
    let script = format!("mkdir {room} && sleep 0.1 && rmdir {room}");
    let children: Vec<_> =
        (0..8).map(|_| exec(scene, &["--wait", "10m", "turn", "--", "sh", "-c", &script]).spawn().unwrap()).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    // Under two names they do meet: the room can tell.
    let held = Begun::start(scene, &[], "one", &format!("mkdir {room} && echo in && exec sleep 600"));
    let met = run(scene, &["another", "--", "sh", "-c", &script]);
    assert_eq!(met.status.code(), Some(1), "{met:?}");
    drop(held.stdout);
    let mut child = held.child;
    child.kill().unwrap();
    child.wait().unwrap();
}

fn of_eight_that_wait_one_runs_at_a_time(engine: Engine) {
    one_at_a_time(&site(engine));
}

#[test]
fn of_eight_behind_a_pooler_one_runs_at_a_time() {
    let mut scene = site(Engine::Postgres17);
    scene.configure(|settings| settings.database = host_and_port(server("PGBOUNCER"), 5432));
    one_at_a_time(&scene);
}

fn a_lock_held_elsewhere_is_75_or_what_was_asked_for(engine: Engine) {
    let scene = site(engine);
    let holder = Begun::start(&scene, &[], "nightly", "echo $$; exec sleep 600");
    let pid = holder.child.id().to_string();
    let ran = scene.path("ran");
    for (options, exit) in [(&[][..], 75), (&["--wait", "1s"], 75), (&["--busy-code", "0"], 0)] {
        let busy = run(&scene, &[options, &["nightly", "--", "touch", &ran]].concat());
        assert_eq!(busy.status.code(), Some(exit), "{busy:?}");
        let errors = String::from_utf8(busy.stderr).unwrap();
        // MySQL tells no process of what is no delivery.
        assert!(errors.contains("nightly: held by ") && (!engine.is_postgres() || errors.contains(&pid)), "{errors}");
    }
    assert!(!std::path::Path::new(&ran).exists());
    // A message of that name has another lock.
    let free = run(&scene, &["Nightly", "--", "true"]);
    assert_eq!(free.status.code(), Some(0), "{free:?}");
    let (mut child, stdout) = (holder.child, holder.stdout);
    drop(stdout);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the lock is free", || run(&scene, &["nightly", "--", "touch", &ran]).status.code() == Some(0));
    assert!(std::path::Path::new(&ran).exists());
}

fn the_commands_exit_status_is_passed_on(engine: Engine) {
    let mut scene = site(engine);
    let status = |command: &[&str]| run(&scene, &[&["x", "--"], command].concat()).status.code();
    assert_eq!(status(&["true"]), Some(0));
    assert_eq!(status(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(status(&["sh", "-c", "kill -USR1 $$"]), Some(128 + 10));
    assert_eq!(status(&["/nonexistent/command"]), Some(127));
    assert_eq!(status(&["/etc/passwd"]), Some(126));
    // Standard input and output are the command's.
    let mut cat = exec(&scene, &["x", "--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut cat.stdin.take().unwrap(), b"through").unwrap();
    assert_eq!(cat.wait_with_output().unwrap().stdout, b"through");
    // A signal is passed on, and what the command makes of it.
    let begun = Begun::start(&scene, &[], "x", "trap 'exit 42' TERM; echo go; while :; do sleep 0.1; done");
    let sent = Command::new("kill").arg(begun.child.id().to_string()).status().unwrap();
    assert!(sent.success());
    assert_eq!(begun.end().0, Some(42));
    // Also while it waits for the lock.
    let holder = Begun::start(&scene, &[], "x", "echo go; exec sleep 600");
    let mut waiting = exec(&scene, &["--wait", "10m", "x", "--", "true"]).spawn().unwrap();
    wait_until("it waits", || waiters(&mut scene) == 1);
    assert!(Command::new("kill").arg(waiting.id().to_string()).status().unwrap().success());
    assert_eq!(waiting.wait().unwrap().code(), Some(128 + 15));
    let mut child = holder.child;
    child.kill().unwrap();
    child.wait().unwrap();
}

fn a_session_that_the_server_ends_ends_the_command(engine: Engine) {
    let mut scene = site(engine);
    let begun =
        Begun::start(&scene, &[], "x", "trap 'echo terminated; exit 0' TERM; echo go; while :; do sleep 0.1; done");
    end_session(&mut scene);
    let (exit, output, complaint) = begun.end();
    // Though the command itself says that all is well.
    assert_eq!((exit, output.as_str()), (Some(69), "terminated\n"), "{complaint}");
    assert!(complaint.contains("x: the lock was lost while the command ran"), "{complaint}");
}

fn a_command_that_ignores_sigterm_is_killed_with_all_that_it_started(engine: Engine) {
    let mut scene = site(engine);
    let script = "trap '' TERM; (sleep 600; true) & echo $$ $!; sleep 600; true";
    let begun = Begun::start(&scene, &["--grace", "1s"], "x", script);
    let pids: Vec<_> = begun.printed.split(' ').map(str::to_owned).collect();
    assert!(pids.len() == 2 && pids.iter().all(|pid| runs(pid)), "{pids:?}");
    end_session(&mut scene);
    assert_eq!(begun.end().0, Some(69));
    wait_until("all are gone", || !pids.iter().any(|pid| runs(pid)));
}

/// Cut off from the server without a word, the command ends before the server gives the lock to another.
fn a_server_that_falls_silent_ends_the_command_before_another_begins(engine: Engine) {
    let mut scene = site(engine);
    let silent = Arc::new(AtomicBool::new(false));
    let there = scene.settings.database.clone();
    let wire = Wire::to(there.clone(), {
        let silent = silent.clone();
        move |_: Speaker, _: &mut Vec<u8>| if silent.load(Ordering::SeqCst) { Fate::Hold } else { Fate::Pass }
    });
    scene.configure(|settings| settings.database = ("127.0.0.1".into(), wire.address.port()));
    let begun = Begun::start(&scene, &["--grace", "1s"], "x", "trap '' TERM; echo $$; while :; do sleep 600; done");
    let pid = begun.printed.clone();
    scene.configure(|settings| settings.database = there);
    // Before it falls silent: what holds the lock counts from its last answer, a second before that at most.
    let since = Instant::now();
    silent.store(true, Ordering::SeqCst);
    let after = run(&scene, &["--wait", "10m", "x", "--", "sh", "-c", &format!("! kill -0 {pid}")]);
    assert_eq!(after.status.code(), Some(0), "the first command still ran, or the lock was never freed: {after:?}");
    assert!(since.elapsed() > Duration::from_secs(11), "{:?}", since.elapsed());
    let (exit, _, complaint) = begun.end();
    assert_eq!(exit, Some(69), "{complaint}");
    assert!(complaint.contains("has not answered"), "{complaint}");
}

fn the_command_dies_with_the_holder_of_its_lock(engine: Engine) {
    let scene = site(engine);
    let begun = Begun::start(&scene, &[], "x", "trap '' TERM; echo $$; while :; do sleep 600; done");
    let (mut child, pid) = (begun.child, begun.printed);
    assert!(runs(&pid));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the command is gone", || !runs(&pid));
    wait_until("the lock is free", || run(&scene, &["x", "--", "true"]).status.code() == Some(0));
}

/// The time limits of a delivery's session (30 seconds here) do not end it; on PostgreSQL, it holds back no VACUUM.
fn a_lock_is_held_for_longer_than_any_delivery_lasts(engine: Engine) {
    let mut scene = site(engine);
    let begun = Begun::start(&scene, &[], "x", "echo go; sleep 40; echo done");
    if engine.is_postgres() {
        let [session] = sessions(&scene)[..] else { panic!("one holds a lock") };
        let asked = format!(
            "SELECT concat_ws(',', backend_xid, backend_xmin) FROM pg_stat_activity \
             WHERE pid = {session} AND state = 'idle in transaction'"
        );
        let mut seen = 0;
        wait_until("it was seen idle five times", || {
            let snapshots = scene.database.texts(&asked);
            assert!(snapshots.iter().all(String::is_empty), "{snapshots:?}");
            seen += snapshots.len();
            std::thread::sleep(Duration::from_millis(300));
            seen >= 5
        });
    }
    let (exit, output, complaint) = begun.end();
    assert_eq!((exit, output.as_str()), (Some(0), "done\n"), "{complaint}");
}
