//! Servers that go away under load, each of them a test's own: the database and the mailbox store, killed by SIGKILL and
//! started again, or taken off the network, so that what is sent to them is dropped and not refused, and put back, before
//! the deliveries' deadline or after it. The test plays Postfix. Afterwards every mailbox has every message once.
//!
//! What SIGKILL cannot take from a server is what it has given to the kernel: this is no power failure.

use crate::support::database::Engine;
use crate::support::own_server::OwnServer;
use crate::support::run::{MESSAGES, Run};
use crate::support::site_fixture::Scene;
use std::time::Duration;

on_each_engine!(
    the_database_is_killed,
    the_mailbox_store_is_killed,
    the_database_is_cut_off,
    the_mailbox_store_is_cut_off,
);

/// Of the deliveries, on a machine that has time for them.
const DEADLINE: Duration = Duration::from_secs(6);

fn the_database_is_killed(engine: Engine) {
    let database = OwnServer::database(engine);
    killed(&database, Scene::with_database_on(engine, &database), "the database killed");
}

fn the_mailbox_store_is_killed(engine: Engine) {
    let dovecot = OwnServer::dovecot();
    killed(&dovecot, Scene::with_mailboxes_on(engine, &dovecot), "the mailbox store killed");
}

fn the_database_is_cut_off(engine: Engine) {
    let database = OwnServer::database(engine);
    cut_off(&database, Scene::with_database_on(engine, &database), "the database cut off");
}

fn the_mailbox_store_is_cut_off(engine: Engine) {
    let dovecot = OwnServer::dovecot();
    cut_off(&dovecot, Scene::with_mailboxes_on(engine, &dovecot), "the mailbox store cut off");
}

fn killed(server: &OwnServer, scene: Scene, kind: &str) {
    let mut run = Run::in_scene(scene);
    let span = run.span_of_a_try();
    run.set_deadline(DEADLINE, span, None);
    while run.goes_on(2) {
        let mut queue = run.queue(MESSAGES);
        let running = run.start(&queue);
        std::thread::sleep(run.random.below(span));
        server.kill();
        run.report.faults += 1;
        run.finish(&mut queue, running, &[]);
        // Postfix's next tries find nobody, or a server that is not quite there.
        let running = run.start(&queue);
        server.start();
        run.finish(&mut queue, running, &[]);
        run.scene.database.connect_again();
        run.try_until_delivered(&mut queue);
    }
    run.count(kind);
}

fn cut_off(server: &OwnServer, scene: Scene, kind: &str) {
    let mut run = Run::in_scene(scene);
    run.was_cut_off = Some(server.socket_address());
    let span = run.span_of_a_try();
    let deadline = run.set_deadline(DEADLINE, span, None);
    while run.goes_on(2) {
        let mut queue = run.queue(MESSAGES);
        let running = run.start(&queue);
        std::thread::sleep(run.random.below(span));
        server.cut_off();
        run.report.faults += 1;
        std::thread::sleep(run.random.below(deadline * 3 / 2));
        server.connect();
        run.finish(&mut queue, running, &[]);
        run.scene.database.connect_again();
        run.try_until_delivered(&mut queue);
    }
    run.count(kind);
}
