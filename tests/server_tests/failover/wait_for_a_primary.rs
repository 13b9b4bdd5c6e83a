//! For how long a delivery waits for a server that takes writes, and for one that says nothing.

use crate::fixtures::primary_and_standby::{Pair, go_to};
use crate::support::database::Engine;
use crate::support::own_server::OwnServer;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use crate::support::wire::SilentServer;

const WAITING: &str = "waiting for a database server that takes writes";

/// The only primary is dead until its standby takes over.
#[test]
fn a_delivery_waits_until_another_has_taken_over() {
    let pair = Pair::start("POSTGRES17");
    let mut scene = pair.site(&[&pair.primary, &pair.standby], "failover_timeout = \"100s\"");
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
    scene.configure(|settings| settings.database_more = "failover_timeout = \"100s\"\n".into());
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
    each_delivery_passes_over_a_server_that_says_nothing_and_one_that_stands_last_costs_nothing,
);

/// Every process of it is stopped; its kernel acknowledges what is sent to it. The other one, which many use, has as long to answer.
fn a_server_that_says_nothing_is_given_up(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let silent = OwnServer::database(engine);
    let (host, port) = engine.address();
    let hosts = format!("hosts = [\"{}\", \"{host}:{port}\"]\nfailover_timeout = \"0s\"\n", silent.socket_address());
    scene.configure(|settings| settings.database_more = hosts);
    silent.pause();
    scene.deliver("doug", scene.message("x")).delivered();
    assert_eq!(scene.inbox("doug").len(), 1);
    assert!(scene.log().contains("the server has said nothing for 5.0 s"), "{}", scene.log());
    silent.go_on();
}

/// Each delivery is a process of its own: the first server hangs for each of them, and for none if it stands last.
fn each_delivery_passes_over_a_server_that_says_nothing_and_one_that_stands_last_costs_nothing(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let hung = SilentServer::start();
    let (host, port) = engine.address();
    let order = |scene: &mut Scene, first: &str, second: &str| {
        scene.configure(|settings| {
            settings.database_more = format!("hosts = [{first:?}, {second:?}]\nfailover_timeout = \"0s\"\n")
        });
    };
    let (hangs, well) = (hung.address.to_string(), format!("{host}:{port}"));
    order(&mut scene, &hangs, &well);
    for (id, connections) in [("first", 1), ("second", 2)] {
        scene.deliver("doug", scene.message(id)).delivered();
        assert_eq!(hung.connections(), connections, "{id}");
    }
    order(&mut scene, &well, &hangs);
    scene.deliver("doug", scene.message("well")).delivered();
    assert_eq!((hung.connections(), scene.inbox("doug").len()), (2, 3));
}

/// What a pooler says on connecting, it has from its own first connection.
#[test]
fn a_standby_behind_a_pooler_is_used_once_it_has_taken_over() {
    let pair = Pair::start("POSTGRES17");
    let pooler = OwnServer::pooler_before(&pair.standby);
    let mut scene = pair.site(&[], "");
    go_to(&mut scene, &[&pooler], "failover_timeout = \"0s\"");
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
        settings.database_more = "failover_timeout = \"100s\"\n".into();
    });
    scene.deliver("doug", scene.message("x")).deferred("4.3.5 the database is not set up for deliveries");
    assert!(!scene.log().contains(WAITING), "{}", scene.log());
}

/// A standby that nobody has promoted: the delivery ends when its wait does.
#[test]
fn a_delivery_ends_where_no_server_ever_takes_writes() {
    let pair = Pair::start("POSTGRES17");
    let mut scene = pair.site(&[], "");
    go_to(&mut scene, &[&pair.standby], "failover_timeout = \"1s\"");
    scene.deliver("doug", scene.message("x")).deferred("4.3.0 the database takes no writes");
    assert!(scene.log().contains(WAITING), "{}", scene.log());
}
