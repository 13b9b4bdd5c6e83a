//! Which of several servers a delivery uses.

use crate::fixtures::primary_and_standby::{Pair, go_to};
use crate::support::check_report::{Checked, assert_reported_before};
use crate::support::counting_proxy::CountingProxy;
use crate::support::database::{Connection, Engine};
use crate::support::own_server::{OwnServer, docker};
use crate::support::pages::blocks;
use crate::support::program::{program, wait_until};
use crate::support::site_fixture::Scene;
use crate::support::wire::{Fate, Wire};
use crate::support::{env, host_and_port, server};
use std::os::unix::fs::PermissionsExt;

/// On 15 and later the standby says so when it greets; the delivery then costs what it costs where there is one server.
fn a_standby_is_passed_over(image: &str) {
    let pair = Pair::start(image);
    let mut scene = pair.site(&[&pair.standby, &pair.primary], "failover_timeout = \"0s\"");
    scene.deliver("doug", scene.message("passed-over")).delivered();
    let log = scene.log();
    assert!(log.contains("this database server takes no writes"), "{log}");
    // By the name that the certificate is for.
    let ca_file = env("MAILDROP_TEST_CA");
    scene.configure(|settings| settings.ca_file = Some(ca_file));
    scene.deliver("doug", scene.message("encrypted")).delivered();
    scene.configure(|settings| settings.ca_file = None);
    assert_eq!(scene.inbox("doug").len(), 3);

    let (host, port) = pair.primary.address();
    let proxy = CountingProxy::before(&host, port);
    let (standby, ours) = (pair.standby.socket_address(), format!("127.0.0.1:{}", proxy.port));
    let round_trips = ["one", "two"].map(|id| {
        let hosts = if id == "one" { format!("{ours:?}") } else { format!("\"{standby}\", {ours:?}") };
        scene.configure(|settings| settings.database_more = format!("hosts = [{hosts}]\nfailover_timeout = \"0s\"\n"));
        scene.deliver("doug", scene.message(id)).delivered();
        proxy.round_trips_in_all()
    });
    assert_eq!(round_trips[0], round_trips[1]);
    scene.configure(|settings| {
        settings.database_more = "failover_timeout = \"0s\"\n".into();
        settings.database = ("127.0.0.1".into(), proxy.port);
    });
    scene.deliver("doug", scene.message("alone")).delivered();
    assert_eq!(proxy.round_trips_in_all(), round_trips[0], "where only one is named");

    // What people ask can be asked of a standby; `check` says who is who.
    go_to(&mut scene, &[&pair.standby], "");
    pair.catch_up();
    let trace = scene.subcommand(&["trace", &scene.message_id("one")]);
    assert!(trace.status.success(), "{trace:?}");
    go_to(&mut scene, &[&pair.standby, &pair.primary], "durability = \"replicated\"");
    let found = check(&scene);
    for line in [
        format!("server {} port 5432", pair.standby.address().0),
        format!("server {} port 5432", pair.primary.address().0),
    ] {
        assert!(found.contains(&line), "{found}");
    }
    assert!(found.contains("takes no writes: passed over") && found.contains("takes writes"), "{found}");
    assert_reported_before(&scene, "replication", "to 1, and no commit waits for it", ["warning", "bad"]);
    pair.be_synchronous();
    assert_reported_before(&scene, "replication", "a commit waits for standby", ["ok", "ok"]);
}

/// What `check` says.
pub fn check(scene: &Scene) -> String {
    let config = scene.configuration_here();
    let printed =
        program(&["check", "--all", "--recipient", "doug@mail.axial.net", "--config", &config]).output().unwrap();
    String::from_utf8_lossy(&printed.stdout).into_owned() + &String::from_utf8_lossy(&printed.stderr)
}

#[test]
fn a_standby_is_passed_over_on_postgresql_17() {
    a_standby_is_passed_over("POSTGRES17");
}

#[test]
fn a_standby_is_passed_over_on_postgresql_15() {
    a_standby_is_passed_over("POSTGRES15");
}

fn a_server_that_is_read_only_is_passed_over(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let other = OwnServer::database(engine);
    let mut session = Connection::open_at(engine, &other.address(), None);
    session.execute(&format!("CREATE DATABASE {}", scene.database.name));
    session.execute("SET GLOBAL read_only = 1");
    let (host, port) = engine.address();
    let hosts = format!("hosts = [\"{}\", \"{host}:{port}\"]\nfailover_timeout = \"0s\"\n", other.socket_address());
    scene.configure(|settings| settings.database_more = hosts);
    scene.deliver("doug", scene.message("x")).delivered();
    assert_eq!(scene.inbox("doug").len(), 1);
    assert!(scene.log().contains("this database server takes no writes"), "{}", scene.log());
}

#[test]
fn a_mysql_that_is_read_only_is_passed_over() {
    a_server_that_is_read_only_is_passed_over(Engine::Mysql9);
}

#[test]
fn a_mariadb_that_is_read_only_is_passed_over() {
    a_server_that_is_read_only_is_passed_over(Engine::Mariadb118);
}

/// With the file of docs/failover-reference.md: a pooler on the mail host for each server, by a unix socket, which asks for no
/// password. The first has no server.
#[test]
fn a_pooler_on_the_mail_host_that_asks_for_no_password_is_used() {
    let mut scene = Scene::with(Engine::Postgres17, &["doug", "lisa"]);
    let role = format!("r{}", &scene.run[scene.run.len() - 12..]);
    scene.database.create_role_of_grants_file(&role, "secret");
    let page = blocks();
    let file =
        page.iter().find(|block| block.language == "ini" && block.place.starts_with("docs/failover-reference.md"));
    let file = file.expect("the page has one").lines.join("\n");
    let (host, port) = Engine::Postgres17.address();
    let folder = scene.folder.path().join("poolers");
    std::fs::create_dir(&folder).unwrap();
    let files = [("db1", "127.0.0.1".to_owned(), 1), ("db2", host, port)].map(|(name, host, port)| {
        std::fs::create_dir(folder.join(name)).unwrap();
        std::fs::set_permissions(folder.join(name), std::fs::Permissions::from_mode(0o777)).unwrap();
        let mut file = file.clone();
        for (there, here) in [
            ("maildrop = host=db1.example.com port=5432", format!("{} = host={host} port={port}", scene.database.name)),
            ("/run/pgbouncer-db1", format!("/run/pgbouncer/{name}")),
            ("/etc/maildrop_command/ca.pem", "/tls/ca.pem".to_owned()),
        ] {
            assert!(file.contains(there), "{there}");
            file = file.replace(there, &here);
        }
        file
    });
    let poolers = OwnServer::poolers_on_this_machine(&folder, &role, "secret", &files);
    let sockets = ["db1", "db2"].map(|name| folder.join(name));
    wait_until("both are there", || sockets.iter().all(|folder| folder.join(".s.PGSQL.5432").exists()));
    scene.configure(|settings| {
        (settings.role, settings.database_password) = (role, "not asked for".into());
        settings.database_more = format!("hosts = {sockets:?}\nfailover_timeout = \"0s\"\n");
    });
    scene.deliver("doug", scene.message("x")).delivered();
    assert_eq!((scene.inbox("doug").len(), scene.sent("lisa").len()), (1, 1));
    let log = scene.log();
    assert!(log.contains(&format!("{}: ", sockets[0].display())), "{log}");
    // Nobody else is let in by that name.
    let ask = ["psql", "-h", "/run/pgbouncer/db2", "-U", &scene.settings.role, &scene.database.name];
    let other = docker(&[&["exec", "--user", "postgres", &poolers.container][..], &ask].concat());
    assert!(other.as_ref().is_err_and(|error| error.contains("login rejected")), "{other:?}");
}

/// A name without an address, a port without a server, a socket that is not there; and a pooler before the one that is.
fn what_cannot_be_reached_is_passed_over(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let (host, port) = engine.address();
    let mut last = vec![format!("{host}:{port}")];
    if engine.is_postgres() {
        let (host, port) = host_and_port(server("PGBOUNCER"), 5432);
        last.push(format!("{host}:{port}"));
    }
    for (number, last) in last.iter().enumerate() {
        let hosts = ["nowhere.invalid", "127.0.0.1:1", "/nowhere/socket", last].map(|host| format!("{host:?}"));
        let hosts = format!("hosts = [{}]\nfailover_timeout = \"0s\"\n", hosts.join(", "));
        scene.configure(|settings| settings.database_more = hosts);
        scene.deliver("doug", scene.message(&number.to_string())).delivered();
        assert_eq!(scene.inbox("doug").len(), number + 1);
    }
    let hosts = "hosts = [\"nowhere.invalid\", \"127.0.0.1:1\"]\nfailover_timeout = \"0s\"\n";
    scene.configure(|settings| settings.database_more = hosts.into());
    scene.deliver("doug", scene.message("nobody")).deferred("4.4.1 the database cannot be reached");
    let log = scene.log();
    assert!(log.contains("nowhere.invalid") && log.contains("127.0.0.1"), "{log}");
}

/// The machine that answers there is not the server of that name. Among others it is passed over; alone it defers.
fn a_server_whose_certificate_is_for_another_name_is_passed_over(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let (host, port) = engine.address();
    // Its certificate is for its address and for 127.0.0.1 (tests/servers/docker, `CERT_NAMES`).
    let elsewhere = Wire::at("127.0.0.2", engine.address(), |_, _| Fate::Pass);
    let ca_file = env("MAILDROP_TEST_CA");
    let hosts = format!("hosts = [\"{}\", \"{host}:{port}\"]\nfailover_timeout = \"0s\"\n", elsewhere.address);
    scene.configure(|settings| (settings.ca_file, settings.database_more) = (Some(ca_file), hosts));
    scene.deliver("doug", scene.message("x")).delivered();
    assert_eq!(scene.inbox("doug").len(), 1);
    assert!(elsewhere.first_heard().is_some());
    let checked = Checked::of(&scene);
    let what = format!("server 127.0.0.2 port {}", elsewhere.address.port());
    let [("warning", found)] = checked.on(&what)[..] else { panic!("{:?}", checked.on(&what)) };
    assert!(found.contains("certificate"), "{found}");
    assert!(checked.fix(found).contains("database.ca_file"), "{}", checked.fix(found));
    assert_eq!(checked.exit, Some(0));

    let hosts = format!("hosts = [\"{}\"]\nfailover_timeout = \"0s\"\n", elsewhere.address);
    scene.configure(|settings| settings.database_more = hosts);
    std::fs::remove_file(scene.path("log")).unwrap();
    scene.deliver("doug", scene.message("alone")).deferred("4.4.1 the database cannot be reached");
    assert!(scene.log().contains("certificate"), "{}", scene.log());
    assert_eq!(scene.inbox("doug").len(), 1);
}

on_each_engine!(what_cannot_be_reached_is_passed_over, a_server_whose_certificate_is_for_another_name_is_passed_over);
