//! `maildrop_command service`, and `maildropd` itself.

use crate::program::wait_until;
use crate::support::test_master::{Stage, pids, send};
use crate::support::whole_service::Whole;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Output};
use std::time::Duration;

/// `maildropd`, to its end.
fn maildropd(stage: &Stage) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
    command.env_clear().arg("--config").arg(stage.path("config.toml")).output().unwrap()
}

#[test]
fn there_is_one_master_and_the_second_learns_who_it_is() {
    let mut stage = Stage::started("");
    let second = maildropd(&stage);
    assert_eq!(second.status.code(), Some(75), "{second:?}");
    let pid = stage.master().id();
    let errors = String::from_utf8(second.stderr).unwrap();
    assert_eq!(errors, format!("maildropd: another maildropd is running, pid {pid}\n"));
    // It has disturbed nothing.
    assert_eq!(stage.service(&["status"]).status.code(), Some(0));
    let start = stage.service(&["start"]);
    assert_eq!(start.status.code(), Some(0), "{start:?}");
    assert_eq!(String::from_utf8(start.stdout).unwrap(), format!("maildropd runs already: pid {pid}\n"));
}

#[test]
fn a_configuration_that_cannot_be_read_is_reported_in_one_line() {
    let stage = Stage::new("worker = 3");
    let ended = maildropd(&stage);
    assert_eq!(ended.status.code(), Some(78), "{ended:?}");
    let errors = String::from_utf8(ended.stderr).unwrap();
    assert!(errors.starts_with("maildropd: ") && errors.contains("service.worker: there is no such key"), "{errors}");
    assert_eq!(errors.lines().count(), 1);

    let start = stage.service(&["start", "--detached"]);
    assert_eq!(start.status.code(), Some(78), "{start:?}");
    assert!(String::from_utf8(start.stderr).unwrap().contains("service.worker: there is no such key"));
}

#[test]
fn an_unknown_role_is_reported_in_one_line() {
    let stage = Stage::new("");
    let mut command = Command::new(env!("CARGO_BIN_EXE_maildropd"));
    let ended =
        command.env_clear().args(["--role", "postman", "--config"]).arg(stage.path("config.toml")).output().unwrap();
    assert_eq!(ended.status.code(), Some(64), "{ended:?}");
    let errors = String::from_utf8(ended.stderr).unwrap();
    let roles = "front, worker, runner, timer, notifier, web";
    assert_eq!(errors, format!("maildropd: there is no role \"postman\": the roles are {roles}\n"));
}

#[test]
fn what_cannot_be_had_is_named() {
    let stage = Stage::new("lmtp = [\"/proc/nowhere\"]");
    let ended = maildropd(&stage);
    assert_eq!(ended.status.code(), Some(69), "{ended:?}");
    assert!(String::from_utf8(ended.stderr).unwrap().contains("listening at /proc/nowhere"));
    std::fs::remove_dir_all(stage.path("run")).unwrap();
    std::fs::write(stage.path("run"), "").unwrap();
    let ended = maildropd(&stage);
    assert_eq!(ended.status.code(), Some(73), "{ended:?}");
}

#[test]
fn a_service_that_does_not_run_is_exit_3_whatever_is_asked_of_it() {
    let stage = Stage::new("");
    for command in ["status", "stop", "restart", "reload", "reopen"] {
        let output = stage.service(&[command]);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("maildropd is not running"));
    }
    let output = stage.service(&["status", "--json"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(output.stdout, b"{\"state\":\"not_running\"}\n");
    // A socket that is left, and a file that is none.
    let output = crate::program::program(&["service", "status", "--socket", "/dev/null"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

#[test]
fn it_tells_how_it_is_and_lets_nobody_else_in() {
    let stage = Stage::started("");
    let output = stage.service(&["status"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("maildropd ") && text.contains("worker 2") && text.contains("ready"), "{text}");
    // A worker's memory is bounded, and the front's is not: what it holds depends on who connects.
    let bounded = |pid: u64| {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        limits.lines().any(|line| line.starts_with("Max address space") && line.contains(" 1000000000 "))
    };
    assert_eq!(pids(&stage.status()).into_iter().map(bounded).collect::<Vec<_>>(), [false, true, true]);
    // Threads that open the mailboxes of ten recipients side by side must not use up a worker's addresses.
    let of_threads = |pid: u64| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
        environment.split(|byte| *byte == 0).any(|variable| variable == b"MALLOC_ARENA_MAX=2")
    };
    assert!(pids(&stage.status()).into_iter().all(of_threads));
    let mode = |name: &str| std::fs::metadata(stage.path(name)).unwrap().permissions().mode() & 0o777;
    let modes =
        (mode("run"), mode("state"), mode("run/control.sock"), mode("run/control.key"), mode("run/master.lock"));
    assert_eq!(modes, (0o700, 0o700, 0o600, 0o600, 0o600));
}

#[test]
fn who_talks_nonsense_is_refused_and_disturbs_nothing() {
    let stage = Stage::started("");
    let connect = || UnixStream::connect(stage.path("run/control.sock")).unwrap();
    for nonsense in [
        "{}\n".to_owned(),
        "status\n".into(),
        "{\"command\":\"shoot\"}\n".into(),
        "{\"command\":\"stop\"}\n".into(),
        "x".repeat(1 << 20),
    ] {
        let mut stream = connect();
        // It may be answered before all of it was read.
        let _ = stream.write_all(nonsense.as_bytes());
        let mut answer = String::new();
        if BufReader::new(stream).read_line(&mut answer).is_ok() {
            assert!(answer.starts_with("{\"done\":false,\"problem\":"), "{answer}");
        }
    }
    // Forty who say nothing.
    let silent: Vec<UnixStream> = (0..20).map(|_| connect()).collect();
    assert_eq!(stage.service(&["status"]).status.code(), Some(0));
    drop(silent);
}

#[test]
fn all_processes_reopen_the_log() {
    let stage = Stage::started("");
    for how in ["command", "signal"] {
        std::fs::rename(stage.path("log"), stage.path("old")).unwrap();
        match how {
            "command" => assert_eq!(stage.service(&["reopen"]).status.code(), Some(0)),
            _ => stage.signal("USR2"),
        }
        wait_until("there is a new file", || stage.path("log").exists());
        let master = stage.path("log").canonicalize().unwrap();
        let open = |pid: u64| {
            let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
            files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|file| file == master))
        };
        let pids = pids(&stage.status());
        wait_until("all have it open", || pids.iter().all(|pid| open(*pid)));
    }
    // They live: the signal has ended nobody.
    let status = stage.status();
    assert!(status["processes"].as_array().unwrap().iter().all(|one| one["restarts"] == 0), "{status}");
    // The master writes to the new one.
    send("KILL", pids(&status)[1]);
    wait_until("it is logged", || stage.lines("log").iter().any(|line| line.contains("ended by SIGKILL")));
}

/// A process that has only just been started does not listen to signals yet, and would die of most. A runner and the timer are taken for
/// ready all the same.
#[test]
fn a_process_that_is_not_up_yet_does_not_die_of_a_reopened_log() {
    let mut stage = Stage::new("runners = 1\n");
    ["worker 2", "runner", "timer"].into_iter().for_each(|who| stage.let_behave(who, "late"));
    stage.start();
    stage.wait("the front and a worker are up", |status| {
        let ready = |index: usize| status["processes"][index]["ready"] == true;
        status["state"] == "well" && ready(0) && ready(1)
    });
    assert_eq!(stage.service(&["reopen"]).status.code(), Some(0));
    std::fs::write(stage.path("go"), "").unwrap();
    let status = stage.wait_until_well();
    let restarts = status["processes"].as_array().unwrap().iter().map(|one| one["restarts"].as_u64());
    assert!(
        status["processes"].as_array().unwrap().len() > 3 && restarts.flatten().all(|count| count == 0),
        "{status}"
    );
}

/// What `maildropd` starts is `maildropd`.
#[test]
fn it_starts_in_the_background_and_ends() {
    let stage = Stage::new("");
    let start = stage.service(&["start", "--detached", "--wait", "0s"]);
    // Whether it is well depends on servers that are not there.
    assert!(matches!(start.status.code(), Some(0 | 1)), "{start:?}");
    let master = stage.wait("it answers", |status| status["pid"].is_u64())["pid"].as_u64().unwrap();
    let session = std::fs::read_to_string(format!("/proc/{master}/stat")).unwrap();
    let session = session.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap().to_owned();
    assert_eq!(session, master.to_string(), "it has a session of its own");
    let stop = stage.service(&["stop"]);
    assert_eq!(stop.status.code(), Some(0), "{stop:?}");
    assert_eq!(stage.service(&["status"]).status.code(), Some(3));
}

#[test]
fn a_reload_makes_nine_workers_of_two() {
    let whole = Whole::started("");
    let before = whole.pids("front");
    // The front is replaced last: until then it has all of the new workers, and goes by the old configuration.
    let (lmtp, http) = (whole.0.path("lmtp"), whole.0.path("http"));
    whole.0.configure(&format!("workers = 9\nlmtp = [{lmtp:?}]\nhttp = {http:?}\n"));
    let reload = whole.0.service(&["reload"]);
    assert_eq!(reload.status.code(), Some(0), "{reload:?}");
    let status = whole.0.wait_until_well();
    assert_eq!(pids(&status).len(), 10);
    assert_ne!(whole.pids("front"), before);
}

#[test]
fn a_service_without_lmtp_needs_no_name_of_who_checks_authors() {
    let _stage = Stage::started("[sent]\nauthor_check = \"authenticated\"\n");
}

#[test]
fn systemd_learns_what_the_service_does() {
    let mut stage = Stage::new("");
    let systemd = UnixDatagram::bind(stage.path("systemd")).unwrap();
    // It is listened to all the time: a master whose words nobody takes would wait.
    let (sender, messages) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut received = [0; 4096];
        while let Ok(count) = systemd.recv(&mut received) {
            if sender.send(String::from_utf8_lossy(&received[..count]).into_owned()).is_err() {
                return;
            }
        }
    });
    stage.let_behave("worker", "late");
    let mut master = stage.command();
    master.env("NOTIFY_SOCKET", stage.path("systemd")).env("WATCHDOG_USEC", "200000");
    stage.start_as(master);
    // All up to the first that is this, or begins with it.
    let until = |what: &str| {
        let mut all = Vec::new();
        loop {
            let shown = messages.recv_timeout(Duration::from_mins(1));
            all.push(shown.unwrap_or_else(|error| panic!("{what}, after {all:?}: {error}")));
            if all.last().is_some_and(|last| last.starts_with(what)) {
                return all;
            }
        }
    };
    let says = |all: &[String], what: &str| all.iter().any(|one| one.starts_with(what));
    assert!(!says(&until("STATUS=starting"), "READY"));
    // The front takes mail. That no worker is ready yet is in the status.
    until("READY=1");
    std::fs::write(stage.path("go"), "").unwrap();
    until("STATUS=well: 2 of 2 workers are ready");
    until("WATCHDOG=1");
    assert_eq!(stage.service(&["reload"]).status.code(), Some(0));
    until("RELOADING=1");
    until("READY=1");
    assert!(!says(&until("WATCHDOG=1"), "READY"), "it is said once");
    assert_eq!(stage.service(&["stop"]).status.code(), Some(0));
    until("STOPPING=1");
}
