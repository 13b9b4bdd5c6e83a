//! How the master replaces its processes one at a time, and how it ends them.

use super::*;
use crate::service::master::lifecycle::LAST_GRACE;

#[test]
fn a_restart_replaces_one_after_the_other_once_the_last_is_up() {
    let mut scene = Scene::up(TWO);
    let before: Vec<u32> = scene.it.slots.iter().filter_map(|slot| slot.running().map(|one| one.pid)).collect();
    assert!(!scene.it.is_restarting());
    let mut client = scene.ask(control::Command::Restart);
    let mut order = Vec::new();
    for left in (1..=5).rev() {
        assert!(scene.it.is_restarting());
        let shown = scene.shown();
        assert_eq!(shown.len(), 1, "{shown:?} after {order:?}");
        let reason = format!("a restart is under way: {left} of 5 are still to be replaced");
        assert!(scene.state().1.contains(&reason), "{:?}", scene.state());
        let pid = scene.it.slots.iter().find(|slot| slot.name() == shown[0]).unwrap().running().unwrap().pid;
        scene
            .until("it is replaced", |it| it.slots.iter().all(|slot| slot.running().is_some_and(|one| one.pid != pid)));
        order.extend(shown);
        // The new process is not ready yet.
        for _ in 0..3 {
            if left > 1 && order != ["worker 1", "runner 1", "worker 2", "the front"] {
                assert!(!scene.turn());
                assert!(scene.shown().is_empty(), "{:?} after {order:?}", scene.shown());
                assert!(waits(&mut client));
            }
        }
        scene.all_ready();
        scene.turn();
    }
    assert_eq!(order, ["worker 1", "runner 1", "worker 2", "the front", "the timer"]);
    assert!(!scene.it.is_restarting() && scene.shown().is_empty());
    assert!(scene.it.slots.iter().all(|slot| slot.running().is_some_and(|one| !before.contains(&one.pid))));
    assert!(answer(client).done);
}

#[test]
fn where_no_front_says_who_is_up_a_worker_that_runs_is() {
    let mut scene = Scene::up(TWO);
    let now = scene.now;
    scene.slot(Role::Front, 1).set_ready(false, now);
    let _client = scene.ask(control::Command::Restart);
    assert_eq!(scene.shown(), ["worker 1"]);
    scene.until("it is replaced", |it| {
        it.slots.iter().any(|slot| slot.role == Role::Worker && slot.running().is_some_and(|one| one.generation == 1))
    });
    scene.turn();
    assert_eq!(scene.shown(), ["runner 1"]);
}

#[test]
fn one_through_which_no_mail_goes_holds_up_no_restart() {
    let mut scene = Scene::up(TWO);
    let client = scene.ask(control::Command::Restart);
    // The timer is new and not ready, and all others are old.
    let generation = scene.it.generation;
    scene.running(Role::Timer, 1).generation = generation;
    let now = scene.now;
    scene.slot(Role::Timer, 1).set_ready(false, now);
    for number in [1, 2] {
        scene.until("a worker is replaced", |it| {
            it.slots.iter().any(|slot| {
                (slot.role, slot.number) == (Role::Worker, number)
                    && slot.running().is_some_and(|one| one.generation == generation)
            })
        });
        for slot in scene.it.slots.iter_mut().filter(|slot| slot.role != Role::Timer && slot.running().is_some()) {
            slot.set_ready(true, now);
        }
        if number == 1 {
            scene.until("the runner is replaced", |it| {
                it.slots.iter().any(|slot| {
                    slot.role == Role::Runner && slot.running().is_some_and(|one| one.generation == generation)
                })
            });
            scene.slot(Role::Runner, 1).set_ready(true, now);
        }
    }
    scene.until("the front is replaced", |it| it.slots[0].running().is_some_and(|one| one.generation == generation));
    // The new front reports which workers are ready.
    for slot in scene.it.slots.iter_mut().filter(|slot| slot.role != Role::Timer) {
        slot.set_ready(true, now);
    }
    scene.turn();
    assert!(answer(client).done);
}

#[test]
fn who_waits_for_a_restart_is_reported_where_a_new_process_does_not_come_up() {
    let mut scene = Scene::up(TWO);
    // The death of an old process that was ready does not fail the restart.
    let mut client = scene.ask(control::Command::Restart);
    scene.until("the first is replaced", |it| {
        it.slots.iter().any(|slot| slot.role == Role::Worker && slot.running().is_some_and(|one| one.generation == 1))
    });
    kill(scene.running(Role::Worker, 2).pid);
    scene.until("it is reported", |it| it.counted.roles[&Role::Worker].ended.contains_key("SIGKILL"));
    assert!(waits(&mut client), "it was ready, and is of the time before");
    // The timer carries no mail, so its death does not fail the restart.
    kill(scene.running(Role::Timer, 1).pid);
    scene.until("it is reported", |it| it.counted.roles.get(&Role::Timer).is_some_and(|one| !one.ended.is_empty()));
    assert!(waits(&mut client));
    kill(scene.running(Role::Worker, 1).pid);
    scene.until("it is reported", |it| it.waiting.is_empty());
    let problem = answer(client).problem.unwrap();
    assert!(problem.starts_with("worker 1 does not come up: ended by SIGKILL. "), "{problem}");
}

#[test]
fn a_new_process_that_came_up_and_dies_is_no_reason_to_give_a_restart_up() {
    let mut scene = Scene::up(TWO);
    let mut client = scene.ask(control::Command::Restart);
    scene.until("the first is replaced", |it| {
        it.slots.iter().any(|slot| slot.role == Role::Worker && slot.running().is_some_and(|one| one.generation == 1))
    });
    let now = scene.now;
    scene.slot(Role::Worker, 1).set_ready(true, now);
    kill(scene.running(Role::Worker, 1).pid);
    scene.until("it is reported", |it| it.counted.roles[&Role::Worker].ended.contains_key("SIGKILL"));
    assert!(waits(&mut client));
}

#[test]
fn at_its_end_the_front_goes_first_and_the_workers_finish_what_it_has_handed_out() {
    let mut scene = Scene::up_with(TWO, [STUBBORN, OTHERS]);
    assert_eq!(scene.state().0, State::Starting);
    scene.turn();
    assert_eq!(scene.state(), (State::Well, vec![]));
    let mut restart = scene.ask(control::Command::Restart);
    assert!(waits(&mut restart));
    let stop = scene.ask(control::Command::Stop);
    assert_eq!(answer(restart).problem.as_deref(), Some("the service ends"));
    assert_eq!(scene.state().0, State::Stopping);
    let status = answer(scene.ask(control::Command::Status)).status.unwrap();
    assert_eq!((status.state, status.pid), (State::Stopping, std::process::id()));
    for command in [control::Command::Reload, control::Command::Restart] {
        assert_eq!(answer(scene.ask(command)).problem.as_deref(), Some("the service is ending"));
    }
    // The restart had already requested the end of worker 1.
    let waits = |scene: &mut Scene| scene.slot(Role::Worker, 2).running().is_some_and(|one| !one.is_asked_to_end());
    for _ in 0..3 {
        assert!(!scene.turn() && waits(&mut scene));
    }
    kill(scene.running(Role::Front, 1).pid);
    let until = Instant::now() + LONG;
    let mut over = false;
    while !over {
        assert!(Instant::now() < until);
        over = scene.turn();
        // Worker 2 is requested to end in the turn in which the front has ended.
        let front_runs = scene.slot(Role::Front, 1).running().is_some();
        assert_eq!(waits(&mut scene), front_runs);
    }
    assert!(scene.it.slots.iter().all(|slot| slot.running().is_none()));
    assert_eq!(scene.it.counted.roles[&Role::Worker].started, 2, "nothing is started any more");
    let control = scene.it.config.service.control_socket();
    let Mode::Stopping(stopping) = std::mem::replace(&mut scene.it.mode, Mode::Running) else { panic!("it runs") };
    stopping.answer_waiting_clients(true);
    let answer = answer(stop);
    assert!(answer.done && answer.note.is_some_and(|note| note.contains("maildropd.socket")) && control.exists());
}

#[test]
fn what_does_not_end_in_time_is_killed_and_reported_twice_it_is_so_at_once() {
    for twice in [false, true] {
        let mut scene = Scene::up_with(TWO, [STUBBORN, STUBBORN]);
        let began = scene.now;
        scene.it.stop(scene.now);
        let patience = scene.it.config.delivery.deadline + Duration::from_secs(30);
        assert_eq!(scene.it.next(), Some(began + patience));
        if twice {
            scene.now += Duration::from_secs(1);
            scene.it.stop(scene.now);
            assert_eq!(scene.it.next(), Some(scene.now));
            assert!(!scene.turn());
            // All processes get the second request, and end within a moment.
            assert_eq!(scene.shown().len(), 5);
            assert_eq!(scene.it.next(), Some(scene.now + LAST_GRACE));
            scene.now += LAST_GRACE;
        } else {
            scene.now += patience - Duration::from_millis(1);
            assert!(!scene.turn());
            assert_eq!(scene.shown(), ["the front", "runner 1", "the timer"]);
            assert!(!scene.is_killed(Role::Front, 1));
            scene.now += Duration::from_millis(1);
            assert!(!scene.turn());
            assert!(scene.is_killed(Role::Front, 1));
            assert!(!scene.is_killed(Role::Worker, 1), "it got its signal just now");
            scene.now += LAST_GRACE;
        }
        let until = Instant::now() + LONG;
        while !scene.turn() {
            assert!(Instant::now() < until);
        }
    }
}

#[test]
fn a_process_that_is_never_ready_is_not_killed_and_its_waiters_are_answered() {
    for new in [false, true] {
        let mut scene = Scene::up(TWO);
        let mut client = scene.ask(control::Command::Restart);
        if new {
            let generation = scene.it.generation;
            scene.running(Role::Worker, 2).generation = generation;
        }
        let (now, limit) = (scene.now, scene.it.config.delivery.deadline + Duration::from_secs(30));
        scene.slot(Role::Worker, 2).set_ready(false, now);
        scene.it.fail_who_waits_too_long(now + limit - Duration::from_millis(1));
        assert!(waits(&mut client), "it has some time left");
        scene.it.fail_who_waits_too_long(now + limit);
        if new {
            let problem = answer(client).problem.unwrap();
            assert!(problem.starts_with("worker 2 does not come up: it does not say that it is ready. "), "{problem}");
        } else {
            assert!(waits(&mut client), "it is of the time before");
        }
        assert_eq!(scene.running(Role::Worker, 2).life, Life::Unready);
    }
}
