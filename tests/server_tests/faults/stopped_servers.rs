//! A server that stops and keeps its connections (SIGSTOP, a paused container) would hold a subcommand up without end. It is
//! given up, and named. One that works on a question, however long, is not: it answers another one meanwhile.
//!
//! (unresponsive_peers.rs has the same of deliveries, which have a deadline.)

use crate::support::database::Engine;
use crate::support::own_server::OwnServer;
use crate::support::program::{PATIENCE, Running, program, wait_for};
use crate::support::site_fixture::Scene;
use crate::support::wire::{Fate, Speaker, Wire, says};
use maildrop_command::database::Idle;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

on_each_engine!(
    a_database_that_hangs_is_given_up_and_one_that_works_is_not,
    one_that_hangs_between_two_deliveries_costs_the_session_and_that_soon,
);

/// A subcommand that asks the database over a wire of its own, and how many connections it has made there.
struct Asking {
    what: String,
    running: Running,
    connections: Arc<Mutex<HashSet<std::thread::ThreadId>>>,
    named: String,
}

impl Asking {
    fn begin(scene: &Scene, number: usize, subcommand: &[&str]) -> Self {
        // A thread for each connection hears what the server says.
        let connections = Arc::new(Mutex::new(HashSet::new()));
        let heard = connections.clone();
        let wire = Wire::to(scene.settings.database.clone(), move |speaker, _| {
            if speaker == Speaker::Server {
                heard.lock().unwrap().insert(std::thread::current().id());
            }
            Fate::Pass
        });
        let port = wire.address.port();
        let config = scene.other_configuration(&format!("wire{number}.toml"), |settings| {
            settings.database = ("127.0.0.1".into(), port)
        });
        let running = Running::start(program(&[subcommand, &["--config", &config]].concat()), b"");
        let named = format!("the database at 127.0.0.1 port {port} has not answered for ");
        Self { what: subcommand.join(" "), running, connections, named }
    }

    fn given_up(mut self) {
        wait_for(&format!("{} ends", self.what), PATIENCE, || self.running.has_ended());
        let (status, (stdout, stderr)) = (self.running.status(), self.running.outputs());
        assert_eq!(status.code(), Some(69), "{}: {stdout}{stderr}", self.what);
        assert!(stderr.contains(&self.named), "{}: {stderr}", self.what);
    }
}

fn a_database_that_hangs_is_given_up_and_one_that_works_is_not(engine: Engine) {
    let server = OwnServer::database(engine);
    let mut scene = Scene::with_database_on(engine, &server);
    scene.member("doug");
    scene.deliver("doug", scene.message("one")).delivered();
    // Somebody changes the tables.
    let mut session = scene.session();
    if engine.is_postgres() {
        session.execute("BEGIN; LOCK TABLE attempts, copies, messages, maildrop_migrations IN ACCESS EXCLUSIVE MODE");
    } else {
        session.execute("LOCK TABLES attempts WRITE, copies WRITE, messages WRITE, maildrop_migrations WRITE");
    }
    let id = scene.message_id("one");
    let subcommands = [
        &["trace", &id][..],
        &["stats"],
        &["audit"],
        &["prune", "--dry-run", "--messages-older-than", "400d"],
        &["replay", "--owed"],
        &["replay", "--since", "1d"],
        &["migrate"],
    ];
    let mut asking: Vec<Asking> =
        subcommands.iter().enumerate().map(|(number, subcommand)| Asking::begin(&scene, number, subcommand)).collect();
    // The third question after the first comes when half a minute has passed, and one that got no answer would have ended it.
    for asking in &mut asking {
        wait_for(&format!("{} asks again", asking.what), PATIENCE, || {
            assert!(!asking.running.has_ended(), "{}: {:?}", asking.what, asking.running.outputs());
            asking.connections.lock().unwrap().len() >= 5
        });
    }
    server.pause();
    asking.into_iter().for_each(Asking::given_up);
    server.go_on();
}

/// Otherwise a worker's watchdog ends the process.
fn one_that_hangs_between_two_deliveries_costs_the_session_and_that_soon(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let wire = Wire::to(scene.settings.database.clone(), |speaker, piece| {
        let ends = ["<> statement_timestamp()", "RELEASE_ALL_LOCKS()"].iter().any(|asked| says(piece, asked));
        if speaker == Speaker::Program && ends { Fate::Hold } else { Fate::Pass }
    });
    scene.configure(|settings| settings.database = ("127.0.0.1".into(), wire.address.port()));
    let session = scene.open_database();
    let began = Instant::now();
    assert!(Idle::after(session).is_none());
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[test]
fn a_mailbox_store_that_hangs_is_given_up() {
    let dovecot = OwnServer::dovecot();
    let mut scene = Scene::with_mailboxes_on(Engine::Postgres17, &dovecot);
    scene.member("doug");
    scene.deliver("doug", scene.message("one")).delivered();
    let message = scene.path("message.eml");
    std::fs::write(&message, scene.message("two")).unwrap();
    let (config, failures) = (scene.path("config.toml"), scene.path("failures"));
    let replay = ["replay", "--sender", "", "--recipient", "doug@mail.axial.net", "--failures-to", &failures, &message];
    dovecot.pause();
    let running: Vec<(&[&str], Running)> =
        [&["audit"][..], &["check"], &["replay", "--restore", "--since", "1d"], &replay]
            .into_iter()
            .map(|subcommand| {
                (subcommand, Running::start(program(&[subcommand, &["--config", &config]].concat()), b""))
            })
            .collect();
    let (host, port) = dovecot.address();
    for (subcommand, mut running) in running {
        wait_for(&format!("{subcommand:?} ends"), PATIENCE, || running.has_ended());
        let (status, (stdout, stderr)) = (running.status(), running.outputs());
        assert_eq!(status.code(), Some(69), "{subcommand:?}: {stdout}{stderr}");
        let named = format!("the mailbox store at {host} port {port} has not answered for ");
        assert!(stderr.contains(&named), "{subcommand:?}: {stderr}");
    }
    dovecot.go_on();
    scene.deliver("doug", scene.message("three")).delivered();
}
