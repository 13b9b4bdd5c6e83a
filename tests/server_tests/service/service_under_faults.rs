//! The service while mail flows by LMTP, `--via` and the file queue, and something happens to it again and again: any of its
//! processes is killed or hangs, it is restarted, its disks are full, its database is away. Afterwards every mailbox has every
//! message once, and nobody had to lend a hand.
//!
//! For hours: `MAILDROP_TEST_KILLS=10000 MAILDROP_TEST_SECONDS=4200 tests/run -- under_faults` (support/service_run.rs). With
//! `MAILDROP_TEST_AWAY=3600` the database is away for so many seconds.

use crate::support::database::Engine;
use crate::support::env_if_there;
use crate::support::own_mounts;
use crate::support::own_server::OwnServer;
use crate::support::program::wait_until;
use crate::support::run::note;
use crate::support::service_run::{ServiceRun, on_the_engines};
use crate::support::site_fixture::Scene;
use crate::support::wire::Wire;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What a signal is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerKind {
    Worker,
    Front,
    Runner,
    /// Every process but the master.
    Children,
    Master,
    /// The master and all the others, in this order.
    All,
}

impl ServerKind {
    fn processes(self, run: &mut ServiceRun) -> Vec<Pid> {
        let roles: &[&str] = match self {
            Self::Worker => &["worker"],
            Self::Front => &["front"],
            Self::Runner => &["runner"],
            Self::Children | Self::All => &["front", "worker", "runner", "timer"],
            Self::Master => &[],
        };
        let mut processes: Vec<Pid> = roles.iter().flat_map(|role| run.service().processes(role)).collect();
        if self == Self::Worker && processes.len() > 1 {
            let at = run.random.next() as usize % processes.len();
            processes = vec![processes[at]];
        }
        if matches!(self, Self::Master | Self::All) {
            processes.insert(0, run.service().master());
        }
        processes
    }
}

/// Waits until workers have a message in progress, and then a moment more.
fn in_the_midst(run: &mut ServiceRun) {
    wait_until("there is work", || run.service().status()["front"]["busy"].as_u64().is_some_and(|busy| busy > 0));
    let moment = run.random.below(Duration::from_millis(50));
    sleep(moment);
}

/// To those that are still there: some end with others, or by themselves.
fn send(processes: &[Pid], signal: Signal) {
    for process in processes {
        let _ = kill_process(*process, signal);
    }
}

#[test]
fn killed() {
    on_the_engines(|engine| {
        use ServerKind::{All, Children, Front, Master, Runner, Worker};
        // A master waits longer from death to death of one process; a new one has no memory. The first four are in the
        // test suite: lmtp_delivery.rs has the worker and the front.
        let turns = [Runner, Master, Children, All, Worker, Front, Worker, Master];
        ServiceRun::new(Scene::empty(engine), "").under_load("SIGKILL of the service", |run| {
            let mut processes = 0;
            while run.goes_on(4) {
                let whom = turns[run.report.faults % turns.len()];
                in_the_midst(run);
                let before = run.refused();
                let struck = whom.processes(run);
                send(&struck, Signal::KILL);
                run.report.faults += 1;
                processes += struck.len();
                if matches!(whom, Master | All) {
                    run.start_again();
                } else {
                    run.service().wait_until_replaced(&struck);
                    assert_eq!(run.refused(), before, "the master keeps the socket: {whom:?}");
                }
            }
            note(&format!("{engine:?}: {processes} processes of the service were sent SIGKILL\n"));
        });
    });
}

#[test]
fn hanging_and_restarted() {
    on_the_engines(|engine| {
        // The first three are in the test suite: a worker that goes on, and one that its broker has killed meanwhile.
        let stops = [
            (ServerKind::Worker, 2),
            (ServerKind::Worker, 12),
            (ServerKind::Front, 2),
            (ServerKind::Worker, 5),
            (ServerKind::Front, 5),
            (ServerKind::Worker, 20),
            (ServerKind::Front, 20),
        ];
        let mut turn = 0;
        ServiceRun::new(Scene::empty(engine), "").under_load("SIGSTOP and restarts of the service", |run| {
            // In the test suite three stops and three restarts.
            while run.goes_on(6) {
                in_the_midst(run);
                let (whom, seconds) = stops[turn % stops.len()];
                let struck = whom.processes(run);
                send(&struck, Signal::STOP);
                sleep(Duration::from_secs(seconds));
                // The broker may have had the worker killed by then: after 10 s without a word.
                send(&struck, Signal::CONT);
                run.report.faults += 1;
                run.service().wait_until_well();

                in_the_midst(run);
                if turn % 2 == 0 {
                    let old = ServerKind::Children.processes(run);
                    run.service().command(&["restart"]);
                    run.service().wait_until_replaced(&old);
                } else {
                    run.service().signal(Signal::HUP);
                    run.service().wait_until_well();
                }
                run.report.faults += 1;
                turn += 1;
            }
            assert_eq!(run.refused(), 0, "the master keeps the socket");
        });
    });
}

#[test]
fn whose_database_is_away() {
    on_the_engines(|engine| {
        let database = OwnServer::database(engine);
        let scene = Scene::with_database_on(engine, &database);
        ServiceRun::new(scene, "").under_load("the database of the service cut off", |run| {
            while run.goes_on(1) {
                in_the_midst(run);
                database.cut_off();
                let seconds = env_if_there("MAILDROP_TEST_AWAY");
                let seconds = seconds.map_or_else(|| 2 + run.random.next() % 10, |it| it.parse().expect("a number"));
                sleep(Duration::from_secs(seconds));
                database.connect();
                let back = Instant::now();
                run.report.faults += 1;
                run.wait_for_deliveries(6);
                let flows = back.elapsed().as_secs_f64();
                wait_until("both workers are ready, by themselves", || {
                    let status = run.service().status();
                    let processes = status["processes"].as_array().unwrap();
                    let ready = processes.iter().filter(|it| it["role"] == "worker" && it["ready"] == true);
                    ready.count() == 2 && status["state"] == "well"
                });
                let well = back.elapsed().as_secs_f64();
                note(&format!(
                    "{engine:?}, away for {seconds} s: mail flows {flows:.1} s after it is back, well at {well:.1} s\n"
                ));
            }
            assert_eq!(run.refused(), 0, "the master keeps the socket");
        });
    });
}

/// No login of maria's is answered for a while. Each message is for her as well: together with the others, and alone.
#[test]
fn one_of_whose_mailboxes_hangs() {
    on_the_engines(|engine| {
        let mut scene = Scene::empty(engine);
        let hangs = Arc::new(AtomicBool::new(false));
        let (wire, held) = Wire::where_logins_hang(scene.settings.imap.clone(), &scene.user("maria"), &hangs);
        scene.configure(|settings| settings.imap = (wire.address.ip().to_string(), wire.address.port()));
        // So few sessions that she is logged in again and again; and she has one of the two workers at most.
        let serve = "max_per_recipient = 1\nmailbox_sessions = 2\nslow_mailbox_timeout = \"1s\"\n";
        ServiceRun::new(scene, serve).under_load("a mailbox of the service hangs", |run| {
            while run.goes_on(2) {
                in_the_midst(run);
                let before = held.load(Ordering::SeqCst);
                hangs.store(true, Ordering::SeqCst);
                wait_until("logins hang", || held.load(Ordering::SeqCst) > before);
                // Hers are none of these. (Nothing new is brought once a dozen wait for her.)
                run.wait_for_deliveries(8);
                hangs.store(false, Ordering::SeqCst);
                run.report.faults += 1;
                run.wait_for_deliveries(24);
            }
            run.service().wait_until_well();
            assert_eq!(run.refused(), 0, "the master keeps the socket");
        });
    });
}

#[test]
fn whose_disks_are_full() {
    own_mounts::alone("service::service_under_faults::where_disks_are_full");
}

#[test]
fn where_disks_are_full() {
    if own_mounts::is_alone() {
        on_the_engines(full_disks);
    }
}

fn full_disks(engine: Engine) {
    let mut scene = Scene::empty(engine);
    // Each in a file system of its own: the file queue, with what crashed workers; the state; messages on their way; the log; sockets.
    let folders = ["state/queue", "state", "run/messages", "logs", "run"];
    for folder in ["state", "state/queue", "run", "run/messages", "logs"] {
        let path = scene.path(folder);
        std::fs::create_dir(&path).unwrap();
        own_mounts::mount(&path, "64m");
    }
    let log = scene.path("logs/log");
    // Its reader looks there.
    symlink(&log, scene.path("log")).unwrap();
    scene.configure(|settings| settings.more = format!("[log]\nto = \"file\"\nfile = \"{log}\"\n"));
    // Every message has a file.
    ServiceRun::new(scene, "spool_threshold = \"1B\"\n").under_load("full disks of the service", |run| {
        while run.goes_on(folders.len()) {
            let folder = folders[run.report.faults % folders.len()];
            let fill = run.scene.path(&format!("{folder}/fill"));
            in_the_midst(run);
            let mut file = File::create(&fill).unwrap();
            while file.write_all(&[b'x'; 1 << 10]).is_ok() {}
            drop(file);
            run.report.faults += 1;
            if folder == "run" {
                // The new processes make their sockets and files there.
                let old = ServerKind::Children.processes(run);
                run.service().command(&["restart"]);
                run.service().wait_until_replaced(&old);
            }
            sleep(Duration::from_secs(1));
            std::fs::remove_file(&fill).unwrap();
            run.wait_for_deliveries(6);
        }
        run.service().wait_until_well();
        assert_eq!(run.refused(), 0, "the master keeps the socket");
    });
}
