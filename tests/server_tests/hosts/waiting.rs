//! For how long a delivery waits for a server that takes writes, and for one that says nothing.

use super::pair::{Pair, go_to};
use crate::support::database::Engine;
use crate::support::own_server::OwnServer;
use crate::support::program::wait_until;
use crate::support::scene::Scene;
use crate::support::wire::SilentServer;

const WAITING: &str = "waiting for a database server that takes writes";

/// The only primary is dead until its standby takes over.
#[test]
fn a_delivery_waits_until_another_has_taken_over() {
    let pair = Pair::start("POSTGRES17");
    let mut scene = pair.site(&[&pair.primary, &pair.standby], "wait = \"100s\"");
    pair.primary.kill();
    let delivery = scene.start("doug", &[], scene.message("x"));
    wait_until("it waits", || scene.log().contains(WAITING));
    pair.promote();
    delivery.end().delivered();
    assert_eq!(scene.inbox("doug").len(), 2);
    pair.primary.start();
    scene.database.connect_again();
}

fn a_delivery_waits_until_its_server_is_back(engine: Engine) {
    let server = OwnServer::database(engine);
    let mut scene = Scene::with_database_on(engine, &server);
    scene.member("doug");
    scene.configure(|settings| settings.database_more = "wait = \"100s\"\n".into());
    server.kill();
    let delivery = scene.start("doug", &[], scene.message("x"));
    wait_until("it waits", || scene.log().contains(WAITING));
    server.start();
    delivery.end().delivered();
    assert_eq!(scene.inbox("doug").len(), 1);
    scene.database.connect_again();
}

on_each_engine!(
    a_delivery_waits_until_its_server_is_back,
    a_server_that_says_nothing_is_given_up,
    one_delivery_in_a_while_waits_for_a_server_that_says_nothing,
);

/// Every process of it is stopped; its kernel acknowledges what is sent to it. The other one, which many use, has as long to answer.
fn a_server_that_says_nothing_is_given_up(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let silent = OwnServer::database(engine);
    let (host, port) = engine.address();
    let hosts =
        format!("hosts = [\"{}\", \"{host}:{port}\"]\nsilence = \"4s\"\nwait = \"0s\"\n", silent.socket_address());
    scene.configure(|settings| settings.database_more = hosts);
    silent.pause();
    scene.deliver("doug", scene.message("x")).delivered();
    assert_eq!(scene.inbox("doug").len(), 1);
    assert!(scene.log().contains("the server has said nothing for 4.0 s"), "{}", scene.log());
    silent.go_on();
}

/// Each delivery is a process of its own, and the first server hangs: the first delivery gives it up, and the next ones ask another one
/// first, for as long as that has been written down lately. Nothing but the order hangs on that file.
fn one_delivery_in_a_while_waits_for_a_server_that_says_nothing(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let (hung, seen) = (SilentServer::start(), scene.path("seen"));
    let (host, port) = engine.address();
    let silent = format!("{seen}.silent");
    // The one that is well, and that many use, has as long to answer.
    let more = format!("silence = \"4s\"\nwait = \"0s\"\nseen_file = {seen:?}\n");
    scene.configure(|settings| {
        settings.database_more = format!("hosts = [\"{}\", \"{host}:{port}\"]\n{more}", hung.address);
    });
    let mut deliver = |id: &str| {
        scene.deliver("doug", scene.message(id)).delivered();
        hung.connections()
    };
    assert_eq!(deliver("first"), 1);
    assert_eq!(["second", "third"].map(&mut deliver), [1, 1]);
    let written = std::fs::read_to_string(&silent).unwrap();
    let (_, name) = written.trim_end().split_once(' ').expect("when, and which server");
    assert_eq!(name, format!("127.0.0.1 port {}", hung.address.port()));
    // Long ago; then of nobody knows when.
    std::fs::write(&silent, format!("2026-11-20T10:00:00Z {name}\n")).unwrap();
    assert_eq!(["long-ago", "again"].map(&mut deliver), [2, 2]);
    std::fs::write(&silent, b"\xff 2026-11-20T10:0").unwrap();
    assert_eq!(["damaged", "mended"].map(&mut deliver), [3, 3]);

    // The one that takes writes said nothing a moment ago: it is asked last, and used.
    let now = std::fs::read_to_string(&silent).unwrap().replace(name, &format!("{host} port {port}"));
    std::fs::write(&silent, now).unwrap();
    assert_eq!(deliver("the-only-one"), 4);
    let written = std::fs::read_to_string(&silent).unwrap();
    assert!(!written.contains(&format!(" {host} port {port}\n")), "it has answered: {written}");
    assert_eq!(scene.inbox("doug").len(), 8);

    // Nobody says nothing: there is no such file, and none comes.
    std::fs::remove_file(&silent).unwrap();
    scene.configure(|settings| {
        settings.database_more = format!("hosts = [\"{host}:{port}\", \"{}\"]\n{more}", hung.address);
    });
    scene.deliver("doug", scene.message("well")).delivered();
    assert!(!std::fs::exists(&silent).unwrap());
}

/// What a pooler says on connecting, it has from its own first connection.
#[test]
fn a_standby_behind_a_pooler_is_used_once_it_has_taken_over() {
    let pair = Pair::start("POSTGRES17");
    let pooler = OwnServer::pooler_before(&pair.standby);
    let mut scene = pair.site(&[], "");
    go_to(&mut scene, &[&pooler], "wait = \"0s\"");
    scene.deliver("doug", scene.message("x")).deferred("4.3.0 the database takes no writes");
    pair.promote();
    scene.deliver("doug", scene.message("x")).delivered();
    assert_eq!(scene.inbox("doug").len(), 2);
}

/// What is wrong with the configuration does not pass.
#[test]
fn nobody_waits_for_a_server_that_refuses_the_password() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug"]);
    scene.configure(|settings| {
        settings.database_password = "wrong".into();
        settings.database_more = "wait = \"100s\"\n".into();
    });
    scene.deliver("doug", scene.message("x")).deferred("4.3.5 the database is not set up for deliveries");
    assert!(!scene.log().contains(WAITING), "{}", scene.log());
}

/// A standby that nobody has promoted: the delivery ends when its wait does.
#[test]
fn a_delivery_ends_where_no_server_ever_takes_writes() {
    let pair = Pair::start("POSTGRES17");
    let mut scene = pair.site(&[], "");
    go_to(&mut scene, &[&pair.standby], "wait = \"1s\"");
    scene.deliver("doug", scene.message("x")).deferred("4.3.0 the database takes no writes");
    assert!(scene.log().contains(WAITING), "{}", scene.log());
}
