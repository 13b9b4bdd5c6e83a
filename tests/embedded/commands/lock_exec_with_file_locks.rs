//! `lock exec`, `lock list` and `lock try` on an embedded site: what people run on one machine, they can try without any server.

use crate::program::{feed, program, wait_until};
use maildrop_command::database::DatabaseFailure;
use maildrop_command::operations::locks::{Listing, list};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory in which a delivery has been made.
fn site() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let arguments = ["--embedded", place, "--sender", "", "--recipient", "doug@x"];
    feed(program(&arguments), b"Subject: x\n\nx\n").delivered();
    directory
}

fn lock(directory: &Path, what: &str, arguments: &[&str]) -> Command {
    let mut command = program(&["lock", what, "--embedded", directory.to_str().unwrap()]);
    command.args(arguments).env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    command
}

fn output(mut command: Command) -> Output {
    command.output().unwrap()
}

fn locks(directory: &Path) -> Vec<Value> {
    let listed = output(lock(directory, "list", &["--json"]));
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap_or_else(|error| panic!("{error}: {listed:?}"));
    listed["locks"].as_array().unwrap().clone()
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_second_learns_who_holds_it_and_what_is_held_is_listed() {
    let site = site();
    let here = site.path();
    assert!(locks(here).is_empty());
    let holder = lock(here, "exec", &["nightly", "--", "sleep", "600"]).spawn().unwrap();
    let mut seen = Vec::new();
    // A moment lies between its taking the lock and its writing down who it is.
    wait_until("it holds the lock, and says so", || {
        seen = locks(here);
        seen.iter().any(|held| held["pid"] == holder.id())
    });
    let [held] = &seen[..] else { panic!("one lock is held: {seen:?}") };
    assert_eq!((&held["pid"], &held["name"]), (&holder.id().into(), &Value::Null), "{held}");

    let busy = output(lock(here, "exec", &["nightly", "--", "true"]));
    assert_eq!(busy.status.code(), Some(75), "{busy:?}");
    let errors = String::from_utf8(busy.stderr).unwrap();
    assert!(errors.contains("nightly: held by ") && errors.contains(&format!(":{}, for ", holder.id())), "{errors}");
    assert_eq!(output(lock(here, "try", &["nightly"])).status.code(), Some(75));
    assert_eq!(output(lock(here, "try", &["another"])).status.code(), Some(0));
    assert_eq!(output(lock(here, "exec", &["another", "--", "sh", "-c", "exit 7"])).status.code(), Some(7));

    kill(holder);
    // A file that a killed process leaves behind is no lock.
    wait_until("nothing is held", || locks(here).is_empty());
    assert_eq!(output(lock(here, "exec", &["nightly", "--", "true"])).status.code(), Some(0));
}

#[test]
fn where_no_lock_was_ever_taken_none_is_held_and_where_nobody_can_look_that_is_reported() {
    let site = site();
    let mut ledger = crate::support::clients_and_processes::open(site.path());
    let nowhere = site.path().join("nowhere");
    assert_eq!(list(&mut ledger, Some(&nowhere), None).unwrap(), Listing::default());
    let no_directory = site.path().join("ledger.sqlite");
    let error = list(&mut ledger, Some(&no_directory), None).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::Local);
}

/// Looking at a lock takes none: nobody is deferred by being looked at.
#[test]
fn looking_is_in_nobodys_way() {
    let site = site();
    let here = site.path();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..20).for_each(|_| drop((locks(here), output(lock(here, "try", &["turn"]))))));
        for _ in 0..20 {
            let output = output(lock(here, "exec", &["turn", "--", "true"]));
            assert_eq!(output.status.code(), Some(0), "{output:?}");
        }
    });
}

/// Ctrl-Z stops the terminal's foreground group, and the command has one of its own: it would go on, its lock lost.
#[test]
fn what_holds_the_lock_is_not_stopped_from_the_terminal() {
    let site = site();
    let script = "trap 'exit 7' USR1; echo begun; while :; do sleep 0.1; done";
    let mut command = lock(site.path(), "exec", &["nightly", "--", "sh", "-c", script]);
    let mut holder = command.stdout(Stdio::piped()).spawn().unwrap();
    let begun = BufReader::new(holder.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    assert_eq!(begun, "begun");
    let pid = holder.id().to_string();
    for signal in ["-TSTP", "-USR1"] {
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
    let end = Instant::now() + Duration::from_secs(60);
    while holder.try_wait().unwrap().is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    let ended = holder.try_wait().unwrap().map(|status| status.code());
    if ended.is_none() {
        kill(holder);
    }
    assert_eq!(ended, Some(Some(7)), "it was stopped");
}

#[test]
fn a_lock_file_that_is_taken_away_ends_the_command() {
    let site = site();
    let here = site.path();
    let mut holder = lock(here, "exec", &["nightly", "--", "sleep", "600"]).spawn().unwrap();
    wait_until("it holds the lock", || locks(here).len() == 1);
    for file in std::fs::read_dir(here.join("locks")).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    wait_until("it has ended", || holder.try_wait().unwrap().is_some());
    assert_eq!(holder.wait().unwrap().code(), Some(69));
}

#[test]
fn a_name_that_would_be_another_locks_too_is_refused() {
    let site = site();
    for name in ["", " x", "x ", "<x>", "x\ty"] {
        let refused = output(lock(site.path(), "exec", &[name, "--", "true"]));
        assert_eq!(refused.status.code(), Some(64), "{name:?}: {refused:?}");
    }
    let nobody = output(program_without_a_ledger());
    assert_eq!(nobody.status.code(), Some(66), "{nobody:?}");
}

fn program_without_a_ledger() -> Command {
    lock(Path::new("/nonexistent"), "exec", &["x", "--", "true"])
}
