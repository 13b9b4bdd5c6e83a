//! Whatever the master has started, it starts again.

use crate::program::wait_until;
use crate::support::test_master::{Stage, lives, pids, send};
use serde_json::Value;

fn notices(stage: &Stage) -> Vec<Value> {
    stage.lines("notices").iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_worker_that_is_killed_is_started_again_and_the_front_hears_of_what() {
    let stage = Stage::started("");
    let before = pids(&stage.status());
    send("KILL", before[1]);
    let after = stage.wait("another has taken its place", |status| {
        let worker = &status["processes"][1];
        worker["ready"] == true && worker["pid"] != before[1]
    });
    let worker = &after["processes"][1];
    assert_eq!((&worker["restarts"], &worker["last_end"]["signal"]), (&1.into(), &9.into()), "{worker}");
    assert_eq!(pids(&after)[0], before[0], "the front is the same");
    let log = notices(&stage);
    assert_eq!((&log[0]["pid"], &log[0]["signal"], &log[0]["by_us"]), (&before[1].into(), &9.into(), &false.into()));

    // The front: it hears of the workers that are there.
    send("KILL", before[0]);
    let after = stage.wait("another front", |status| status["processes"][0]["pid"] != before[0]);
    assert_eq!(after["processes"][0]["last_end"]["signal"], 9);
    let after = stage.wait_until_well();
    assert_eq!(pids(&after)[2], before[2], "the workers are the same");
}

#[test]
fn a_worker_that_dies_again_and_again_is_throttled_loudly_and_never_given_up() {
    let mut stage = Stage::new("restarts = 3");
    stage.let_behave("worker 2", "die");
    stage.start();
    let status = stage.wait("it is throttled", |status| status["processes"][2]["throttled"] == true);
    assert_eq!(status["state"], "degraded");
    let reason = status["reasons"][0].as_str().unwrap();
    assert!(reason.contains("worker 2") && reason.contains("no database, no mail"), "{reason}");
    let worker = &status["processes"][2];
    assert_eq!((&worker["restarts"], &worker["last_end"]["exit"]), (&3.into(), &70.into()), "{worker}");
    // It is to be started again.
    assert!(worker["starts_in_s"].as_f64().is_some_and(|left| left > 1.0), "{worker}");
    // The front hears of it in its own time: it may be slower to come up than a worker is to die three times.
    wait_until("the front has learnt of it, and reported itself to the master", || {
        !notices(&stage).is_empty() && stage.status()["front"]["queue_length"] == 3
    });
    assert_eq!(notices(&stage)[0]["output"], serde_json::json!(["no database, no mail"]));

    let output = stage.service(&["status"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("degraded") && text.contains("throttled") && text.contains("queue length: 3"), "{text}");
    assert!(stage.lines("log").iter().any(|line| line.contains("the service is degraded")));

    // Repaired, and reloaded: nobody waits a minute for it.
    stage.let_behave("worker 2", "");
    let output = stage.service(&["restart"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(stage.status()["state"], "well");
}

/// The master hears of a front's end twice: its standard input is closed, and it has ended.
#[test]
fn a_front_that_dies_again_and_again_is_throttled_and_comes_up_by_itself_once_it_can() {
    let mut stage = Stage::new("restarts = 2");
    stage.let_behave("front", "die late");
    stage.start();
    let status = stage.wait("it is throttled", |status| status["processes"][0]["throttled"] == true);
    let front = &status["processes"][0];
    assert_eq!((&front["restarts"], &front["last_end"]["exit"]), (&2.into(), &70.into()), "{front}");
    assert_eq!(status["state"], "degraded");
    assert!(status["reasons"].to_string().contains("the front dies again and again"), "{status}");
    stage.let_behave("front", "");
    assert_eq!(stage.service(&["restart"]).status.code(), Some(0));
    stage.wait_until_well();
}

#[test]
fn a_restart_replaces_one_after_the_other() {
    let stage = Stage::started("");
    let before = pids(&stage.status());
    let output = stage.service(&["restart"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let status = stage.status();
    let after = pids(&status);
    assert!(after.iter().all(|pid| !before.contains(pid)), "{before:?} {after:?}");
    assert_eq!(status["state"], "well");
    let ends = stage.lines("ends");
    let expected =
        ["worker 1", "worker 2", "front"].map(|name| [format!("{name} is asked to end"), format!("{name} ends")]);
    assert_eq!(ends, expected.concat());

    stage.signal("USR1");
    stage.wait("all are new once more", |status| {
        pids(status).len() == 3 && pids(status).iter().all(|pid| !after.contains(pid))
    });
}

#[test]
fn where_new_workers_do_not_come_up_a_restart_costs_one_and_not_all() {
    let stage = Stage::started("");
    let before = pids(&stage.status());
    stage.let_behave("worker", "die");
    let output = stage.service(&["restart"]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("worker 1 does not come up") && errors.contains("no database, no mail"), "{errors}");
    assert!(lives(before[0]) && lives(before[2]));
    let status = stage.wait("it is started again", |status| status["processes"][1]["restarts"].as_u64() >= Some(3));
    assert!(status["reasons"].to_string().contains("restart is under way"), "{status}");
    assert!(lives(before[0]) && lives(before[2]));

    stage.let_behave("worker", "");
    let done = |status: &Value| status["state"] == "well" && pids(status).iter().all(|pid| !before.contains(pid));
    stage.wait("it goes on by itself", |status| pids(status).len() == 3 && done(status));
}

#[test]
fn a_configuration_with_a_mistake_in_it_changes_nothing_whichever_process_starts_meanwhile() {
    let stage = Stage::started("");
    let before = pids(&stage.status());
    stage.configure("workers = 0");
    let output = stage.service(&["reload"]);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("service.workers: 0 would let no message in"), "{errors}");
    // A service is asked and ended even then.
    let status = stage.status();
    assert_eq!((&status["state"], pids(&status)), (&"degraded".into(), before.clone()), "{status}");
    assert!(status["reasons"][0].as_str().unwrap().contains("was not taken over"), "{status}");
    send("KILL", before[1]);
    stage.wait("it comes up by the old one", |status| {
        let worker = &status["processes"][1];
        worker["ready"] == true && worker["pid"] != before[1]
    });

    // SIGHUP does the same.
    stage.configure("workers = 3");
    stage.signal("HUP");
    stage.wait("there are three", |status| {
        status["state"] == "well" && pids(status).len() == 4 && pids(status).iter().all(|pid| !before.contains(pid))
    });
    stage.configure("workers = 1");
    let output = stage.service(&["reload"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    stage.wait("there is one", |status| status["state"] == "well" && pids(status).len() == 2);
    assert_eq!(
        std::fs::read(stage.path("config.toml")).unwrap(),
        std::fs::read(stage.path("run/config.toml")).unwrap()
    );
}

#[test]
fn the_folders_of_a_service_that_runs_stay() {
    let stage = Stage::started("");
    let moved = std::fs::read_to_string(stage.path("config.toml")).unwrap().replace("/state\"", "/elsewhere\"");
    std::fs::write(stage.path("config.toml"), moved).unwrap();
    let output = stage.service(&["reload"]);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("service.state_directory has changed"));
}

/// A renewed key that only root can read, say: mail goes on by the front that has the old one.
#[test]
fn a_certificate_that_cannot_be_used_replaces_no_front_by_reload_or_by_restart() {
    let stage = Stage::new("");
    let (certificate, key) = (stage.path("certificate.pem"), stage.path("key.pem"));
    let good = include_str!("../../support/imap_peer.pem");
    std::fs::write(&certificate, good).unwrap();
    std::fs::write(&key, good).unwrap();
    stage.configure(&format!("workers = 2\ncertificate_file = {certificate:?}\nkey_file = {key:?}"));
    let mut stage = stage;
    stage.start();
    let before = pids(&stage.wait_until_well());
    std::fs::write(&key, "nothing").unwrap();
    for (command, status) in [("reload", 78), ("restart", 69)] {
        let output = stage.service(&[command]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(status) && errors.contains("key.pem"),
            "{command}: {:?}, {errors}",
            output.status
        );
        assert_eq!(pids(&stage.status()), before, "{command}");
    }
    stage.signal("USR1");
    wait_until("it is said", || {
        stage.lines("log").iter().any(|line| line.contains("nothing was replaced: a new front could not begin"))
    });
    assert_eq!(pids(&stage.status()), before);
    std::fs::write(&key, good).unwrap();
    assert_eq!(stage.service(&["reload"]).status.code(), Some(0));
    assert!(pids(&stage.wait_until_well()).iter().all(|pid| !before.contains(pid)));
}
