//! Servers behind HAProxy: one address, which leads to the one that takes writes (docs/failover-reference.md). HAProxy asks
//! the servers themselves, since nothing here answers for them as Patroni would.

use crate::failover::failover_under_load::the_primary_dies_among_deliveries;
use crate::fixtures::delivery_storm::hurry;
use crate::fixtures::primary_and_standby::Pair;
use crate::support::check_report::assert_reported_before;
use crate::support::database::{Connection, Engine};
use crate::support::own_server::OwnServer;
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use std::net::{Shutdown, TcpListener, TcpStream};

/// A pair, HAProxy before it, and a site that knows only that.
fn site() -> (Pair, OwnServer, Scene) {
    let pair = Pair::start("POSTGRES17");
    let mut scene = pair.site(&[], "");
    for name in ["scuba", "lisa"] {
        scene.member(name);
    }
    pair.be_synchronous();
    let balancer = OwnServer::balancer_before(&[&pair.primary, &pair.standby], false);
    // Until its first check of it, HAProxy takes each server for one that takes writes.
    wait_until("it has asked the standby", || balancer.log_text().contains("Server maildrop/db2 is DOWN"));
    scene.configure(|settings| {
        settings.database = balancer.address();
        settings.database_more = "durability = \"replicated\"\n".into();
    });
    (pair, balancer, scene)
}

#[test]
fn a_primary_that_dies_behind_haproxy_loses_nothing_and_doubles_nothing() {
    let (pair, _balancer, mut scene) = site();
    assert_reported_before(&scene, "replication", "a commit waits for standby", ["ok", "ok"]);
    let gate = hurry(&mut scene);
    the_primary_dies_among_deliveries(&mut scene, &pair, &gate);
}

/// Each of its processes is stopped, and its kernel acknowledges what is sent: `on-marked-down shutdown-sessions` ends
/// the connections to it, and nobody waits for it until his deadline.
#[test]
fn the_connections_to_a_primary_that_hangs_are_ended() {
    let (pair, balancer, mut scene) = site();
    let holder = scene.hold(&scene.message_id("x"));
    let delivery = scene.start("doug", &["--lock-wait", "250s"], scene.message("x"));
    let journalled = format!("SELECT count(*) FROM attempts WHERE message_id = '{}'", scene.message_id("x"));
    wait_until("the delivery waits for its lock", || scene.database.count(&journalled) > 0);
    pair.primary.pause();
    delivery.end().deferred("4.4.2 the connection to the database was lost");
    pair.promote();
    wait_until("it leads to the new primary", || balancer.log_text().contains("Server maildrop/db2 is UP"));
    scene.deliver("scuba", scene.message("y")).delivered();
    pair.primary.go_on();
    drop(holder);
    pair.be_alone();
    scene.database.connect_again();
}

/// Two that both take writes, as after a fail-over whose former primary nobody has ended: `check --self-test` says so.
#[test]
fn a_self_test_finds_a_balancer_that_leads_to_more_than_one_server() {
    let pair = Pair::start("POSTGRES17");
    let mut scene = pair.site(&[], "");
    pair.promote();
    let balancer = OwnServer::balancer_before(&[&pair.primary, &pair.standby], true);
    scene.configure(|settings| settings.database = balancer.address());
    let output = scene.subcommand(&["check", "--all", "--self-test", "--recipient", "doug@mail.axial.net"]);
    let found = String::from_utf8_lossy(&output.stdout);
    assert!(found.contains("four connections lead to more than one server"), "{found}");
}

/// Each takes writes, and gives its own locks. Each connection gets the next one.
#[test]
fn a_self_test_finds_a_balancer_that_leads_to_more_than_one_mysql() {
    let engine = Engine::Mysql9;
    let mut scene = Scene::with(engine, &["doug"]);
    let other = OwnServer::database(engine);
    let create = format!("CREATE DATABASE {}", scene.database.name);
    Connection::open_at(engine, &other.address(), None).execute(&create);
    let servers = [engine.address(), other.address()];
    let balancer = TcpListener::bind("127.0.0.1:0").unwrap();
    scene.configure(|settings| settings.database = ("127.0.0.1".into(), balancer.local_addr().unwrap().port()));
    std::thread::spawn(move || {
        for (here, server) in balancer.incoming().zip(servers.iter().cycle()) {
            let (here, there) = (here.unwrap(), TcpStream::connect(server).unwrap());
            for (mut from, mut to) in [(here.try_clone().unwrap(), there.try_clone().unwrap()), (there, here)] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    let output = scene.subcommand(&["check", "--all", "--self-test", "--recipient", "doug@mail.axial.net"]);
    let found = String::from_utf8_lossy(&output.stdout);
    assert!(found.contains("four connections lead to more than one server"), "{found}");
}
