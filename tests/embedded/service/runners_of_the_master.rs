//! Runners, as the master starts them: as many as the configuration says, again whenever one has ended, and asked to end with the front.

use crate::support::test_master::{Stage, lives, send};
use serde_json::Value;

/// The process ids of the runners that are ready, by their numbers.
fn runners(status: &Value) -> Vec<u64> {
    let all = status["processes"].as_array().map(Vec::as_slice).unwrap_or_default().iter();
    let ready = all.filter(|one| one["role"] == "runner" && one["ready"] == true);
    ready.filter_map(|one| one["pid"].as_u64()).collect()
}

#[test]
fn there_are_as_many_runners_as_the_configuration_says() {
    let stage = Stage::started("");
    let [before] = runners(&stage.status())[..] else { panic!("{}", stage.status()) };
    stage.configure("workers = 2\nrunners = 4");
    assert!(stage.service(&["reload"]).status.success());
    let status = stage.wait("there are four", |status| runners(status).len() == 4);
    let four = runners(&status);
    // Its slice is another one now.
    assert!(!four.contains(&before) && !lives(before), "{status}");
    stage.configure("workers = 2\nrunners = 1");
    assert!(stage.service(&["reload"]).status.success());
    let status = stage.wait("there is one", |status| {
        let all = status["processes"].as_array().map(Vec::as_slice).unwrap_or_default().iter();
        all.filter(|one| one["role"] == "runner").count() == 1 && runners(status).len() == 1
    });
    assert!(four.iter().all(|pid| !lives(*pid)), "{status}");
}

#[test]
fn a_runner_that_is_killed_is_started_again() {
    let stage = Stage::started("");
    let before = runners(&stage.status());
    send("KILL", before[0]);
    stage.wait("there is another", |status| runners(status).len() == 1 && runners(status) != before);
}

#[test]
fn runners_are_asked_to_end_with_the_front_and_finish_their_messages_in_progress() {
    let mut stage = Stage::new("runners = 2");
    stage.let_behave("runner", "slow");
    stage.start();
    stage.wait_until_well();
    stage.signal("TERM");
    crate::program::wait_until("the others have ended, and the runners were asked to end", || {
        let shown = stage.lines("ends of runners");
        shown.len() == 2 && stage.lines("ends").contains(&"worker 2 ends".to_owned())
    });
    std::fs::write(stage.path("finish"), "").unwrap();
    assert!(stage.end().success());
    assert_eq!(stage.lines("ends of runners").len(), 4);
}
