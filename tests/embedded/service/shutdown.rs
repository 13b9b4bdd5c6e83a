//! How the service ends: after the messages in progress, at once, with its master.

use crate::program::wait_until;
use crate::support::test_master::{Stage, lives, pids};

#[test]
fn asked_to_end_it_ends_the_front_then_the_workers_and_leaves_nothing() {
    for signal in ["TERM", "INT"] {
        let socket = tempfile::tempdir().unwrap();
        let lmtp = socket.path().join("lmtp");
        let mut stage = Stage::new(&format!("lmtp = [{lmtp:?}]"));
        stage.let_behave("front", "slow");
        stage.start();
        let pids = pids(&stage.wait_until_well());
        assert_eq!(pids.len(), 3);
        stage.signal(signal);
        wait_until("the front was asked to end", || !stage.lines("ends").is_empty());
        // It has messages out: the workers go on, and who asks is answered.
        for _ in 0..3 {
            assert_eq!(stage.status()["state"], "stopping");
        }
        std::fs::write(stage.path("finish"), "").unwrap();
        assert_eq!(stage.end().code(), Some(0));
        assert!(pids.iter().all(|pid| !lives(*pid)));
        let ends = stage.lines("ends");
        assert_eq!(ends[..2], ["front is asked to end", "front ends"], "{ends:?}");
        assert_eq!(ends.len(), 6, "{ends:?}");
        assert!(!lmtp.exists() && !stage.path("run/control.sock").exists());
    }
}

#[test]
fn a_message_in_progress_is_finished_before_service_stop_returns() {
    let mut stage = Stage::new("");
    stage.let_behave("worker 2", "slow");
    stage.start();
    let status = stage.wait_until_well();
    let mut stop = stage.service_command(&["stop"]).spawn().unwrap();
    let was_asked = |name: &str| stage.lines("ends").contains(&format!("{name} is asked to end"));
    wait_until("both workers were asked to end", || was_asked("worker 1") && was_asked("worker 2"));
    stage.wait("the other has ended", |status| status["state"] == "stopping" && pids(status).len() == 1);
    assert!(stop.try_wait().unwrap().is_none());
    assert!(lives(pids(&status)[2]));
    std::fs::write(stage.path("finish"), "").unwrap();
    assert_eq!(stop.wait().unwrap().code(), Some(0));
    assert_eq!(stage.end().code(), Some(0));
    assert_eq!(stage.service(&["status"]).status.code(), Some(3));
}

#[test]
fn asked_twice_it_ends_at_once_even_where_a_process_does_not_listen() {
    let mut stage = Stage::new("");
    stage.let_behave("front", "deaf");
    stage.start();
    let pids = pids(&stage.wait_until_well());
    stage.signal("TERM");
    stage.wait("it is ending", |status| status["state"] == "stopping");
    stage.signal("TERM");
    assert_eq!(stage.end().code(), Some(0));
    assert!(pids.iter().all(|pid| !lives(*pid)));
}

#[test]
fn where_the_master_is_killed_its_processes_end_by_themselves_and_the_next_one_begins() {
    let socket = tempfile::tempdir().unwrap();
    let lmtp = socket.path().join("lmtp");
    let mut stage = Stage::started(&format!("lmtp = [{lmtp:?}]"));
    let before = pids(&stage.status());
    stage.master().kill().unwrap();
    stage.end();
    wait_until("they end", || before.iter().all(|pid| !lives(*pid)));
    // What it has left: a lock, two sockets.
    assert!(lmtp.exists() && stage.path("run/control.sock").exists() && stage.path("run/master.lock").exists());
    assert_eq!(stage.service(&["status"]).status.code(), Some(3));
    stage.start();
    let after = pids(&stage.wait_until_well());
    assert!(after.iter().all(|pid| !before.contains(pid)));
}
