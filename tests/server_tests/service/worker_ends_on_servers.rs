//! A message that crashes workers, at a service with a master of its own: it is shunted while others flow, and delivered once a person
//! has it tried.

use crate::support::database::Engine;
use crate::support::lmtp::Lmtp;
use crate::support::own_server::OwnServer;
use crate::support::program::{program, wait_until};
use crate::support::service::Service;
use crate::support::site_fixture::{LISA, Scene};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};

fn shunt(scene: &Scene, arguments: &[&str]) -> Output {
    let mut command = program(&["shunt"]);
    command.args(arguments).args(["--config", &scene.path("config-here.toml")]).output().unwrap()
}

/// What the front says of itself.
fn figure(service: &Service, name: &str) -> Value {
    service.status()["front"][name].clone()
}

/// Gives the message, and ends the worker that gets it by this signal; all are deferred.
fn strike(scene: &mut Scene, service: &Service, to: &[String], message: &str, signal: Signal) {
    let holder = scene.hold(&scene.message_id("poison"));
    let mut lmtp = Lmtp::connect(&service.socket);
    lmtp.give(LISA, to, message);
    let waits = "SELECT DISTINCT CAST(pid AS char(20)) FROM attempts \
                 WHERE ended_at IS NULL AND recipient = 'doug@mail.axial.net'";
    let mut worker = None;
    wait_until("a worker waits for the lock", || {
        let pids = scene.database.texts(waits);
        let mut pids = pids.iter().filter_map(|pid| Pid::from_raw(pid.trim().parse().unwrap()));
        worker = pids.rfind(|pid| service.processes("worker").contains(pid));
        worker.is_some()
    });
    kill_process(worker.unwrap(), signal).unwrap();
    let replies = lmtp.replies(to.len());
    assert!(replies.iter().all(|reply| reply.starts_with("451 4.3.0 ")), "{replies:?}");
    drop(holder);
}

#[test]
fn a_message_that_crashes_two_workers_is_shunted_while_others_flow_and_delivered_once_a_person_has_it_tried() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug", "scuba", "kim"]);
    scene.member("lisa");
    let service = Service::start(&mut scene);
    let to: Vec<String> = ["doug", "scuba"].map(|name| format!("{name}@mail.axial.net")).into();
    let poison = scene.message("poison");
    let (template, is_shunted) = (scene.message("the-id"), AtomicBool::new(false));
    let flow = || {
        let mut sent = 0;
        while !is_shunted.load(Ordering::SeqCst) || sent < 20 {
            let message = template.replace("the-id", &format!("m{sent}"));
            let replies = Lmtp::connect(&service.socket).deliver(LISA, &["kim@mail.axial.net".to_owned()], &message);
            assert!(replies[0].starts_with("250 2.0.0 INBOX appended"), "{sent}: {replies:?}");
            sent += 1;
        }
        sent
    };
    let sent = std::thread::scope(|scope| {
        let flow = scope.spawn(flow);
        strike(&mut scene, &service, &to, &poison, Signal::ABORT);
        wait_until("it is a suspect", || figure(&service, "suspects") == 1);
        strike(&mut scene, &service, &to, &poison, Signal::ILL);
        wait_until("it is shunted", || figure(&service, "file_queue_shunted") == 1);
        let replies = Lmtp::connect(&service.socket).deliver(LISA, &to, &poison);
        assert!(
            replies.iter().all(|reply| reply.starts_with("451 4.3.0 shunted: it has crashed 2 workers")),
            "{replies:?}"
        );
        is_shunted.store(true, Ordering::SeqCst);
        flow.join().unwrap()
    });
    assert_eq!(scene.inbox("kim").len(), sent);

    let listed: Value = serde_json::from_slice(&shunt(&scene, &["list", "--json"]).stdout).unwrap();
    assert_eq!(listed[0]["crashes"], 2, "{listed}");
    assert!(listed[0]["reason"].as_str().unwrap().contains("ended by SIGABRT"), "{listed}");
    assert!(scene.inbox("doug").is_empty() && scene.inbox("scuba").is_empty());

    // What was at fault is repaired, and the ledger knows by now that nobody is at it any more.
    scene.ten_minutes_pass();
    let output = shunt(&scene, &["retry", listed[0]["id"].as_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    wait_until("it is shunted no more", || {
        figure(&service, "file_queue_shunted") == 0 && figure(&service, "suspects") == 0
    });
    let replies = Lmtp::connect(&service.socket).deliver(LISA, &to, &poison);
    assert!(replies.iter().all(|reply| reply.starts_with("250 2.0.0 INBOX already there")), "{replies:?}");
    for name in ["doug", "scuba"] {
        assert_eq!(scene.inbox(name).len(), 1, "{name}");
    }
    assert_eq!(scene.sent("lisa").len(), sent + 1);
    service.end();
}

on_two_engines!(no_message_is_blamed_for_a_database_that_hangs);

#[test]
fn a_worker_that_has_served_for_long_enough_goes_on_where_another_one_would_miss_its_password() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug"]);
    let service = Service::start_with(&mut scene, "workers = 1\nrecycle_after = 1\n", &[]);
    let (worker, password) = (service.processes("worker"), scene.path("imap.password"));
    let aside = scene.path("aside");
    std::fs::rename(&password, &aside).unwrap();
    for number in 0..3 {
        let message = scene.message(&format!("m{number}"));
        let replies = Lmtp::connect(&service.socket).deliver(LISA, &["doug@mail.axial.net".to_owned()], &message);
        assert!(replies[0].starts_with("250 2.0.0 INBOX appended"), "{number}: {replies:?}");
        assert_eq!(service.processes("worker"), worker, "after message {number}");
    }
    let log = scene.log();
    assert_eq!(log.matches("no new worker could begin").count(), 1, "{log}");
    assert!(log.contains(&password), "{log}");

    // It ends as any other.
    std::fs::rename(&aside, &password).unwrap();
    service.end();
}

/// Every process of it is stopped; its kernel acknowledges what is sent to it.
fn no_message_is_blamed_for_a_database_that_hangs(engine: Engine) {
    let server = OwnServer::database(engine);
    let mut scene = Scene::with_database_on(engine, &server);
    let to = [scene.member("doug")];
    // The worker still waits for the lock when the server hangs, which a busy machine takes its time for.
    scene.configure(|settings| {
        settings.imap_more = "append_grace = \"44s\"\n".into();
        settings.more += "[delivery]\ndeadline = \"40s\"\n[lock]\nwait = \"35s\"\n";
    });
    let service = Service::start(&mut scene);
    let (message, id) = (scene.message("x"), scene.message_id("x"));
    let holder = scene.hold(&id);
    let mut lmtp = Lmtp::connect(&service.socket);
    lmtp.give(LISA, &to, &message);
    wait_until("a worker waits for the lock", || {
        scene.database.texts("SELECT DISTINCT recipient FROM attempts WHERE ended_at IS NULL").len() == 1
    });
    server.pause();
    let replies = lmtp.replies(1);
    assert!(replies[0].starts_with("451 4."), "{replies:?}");
    // On MySQL the socket's own time limit comes first: the worker lives. Else the master sees how it ended: not by its own hand, for
    // which the message would be blamed.
    if engine == Engine::Postgres17 {
        wait_until("the master tells of its end", || scene.log().contains("ended by SIGKILL"));
        assert!(scene.log().contains("waits_for_a_server=true"), "{}", scene.log());
    }
    assert!(!scene.log().contains("ended by SIGABRT"), "{}", scene.log());
    server.go_on();
    drop(holder);
    scene.database.connect_again();
    wait_until("it is delivered", || {
        Lmtp::connect(&service.socket).deliver(LISA, &to, &message)[0].starts_with("250 2.0.0 INBOX ")
    });
    assert_eq!(scene.inbox("doug").len(), 1);
    service.end();
}
